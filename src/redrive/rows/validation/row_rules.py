"""Rules of a dataframely schema: which of them look at one row alone. Rows are judged by batches."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from redrive._internal.optional import require_extra

with require_extra("rows"):
    import polars as pl

# Everything that is not listed here is taken for one that looks at other rows.
_NODES: dict[str, tuple[Any, ...]] = {
    "Alias": (0,),
    "BinaryExpr": ("left", "right"),
    "Cast": ("expr",),
    "RenameAlias": ("expr",),
    "Ternary": ("predicate", "truthy", "falsy"),
}
"""The parts of a node that are expressions."""
_LEAVES = frozenset({"Column", "Element", "Literal", "Selector"})
_FAMILIES = frozenset(
    {"ArrayExpr", "BinaryExpr", "Business", "Categorical", "ListExpr", "Pow", "StringExpr", "StructExpr"}
    | {"TemporalExpr", "Trigonometry"}
)
_FUNCTIONS = frozenset(
    {"Abs", "AsStruct", "Atan2", "Cbrt", "Ceil", "Clip", "Coalesce", "Cut", "Exp", "FillNull", "Floor", "Hash", "Log"}
    | {"Log1p", "MaxHorizontal", "MeanHorizontal", "MinHorizontal", "Negate", "RepeatBy", "Replace", "ReplaceStrict"}
    | {"Round", "RoundSF", "SetSortedFlag", "Sign", "SumHorizontal", "ToPhysical", "Truncate"}
)
_BITS = frozenset({"CountOnes", "CountZeros", "LeadingOnes", "LeadingZeros", "TrailingOnes", "TrailingZeros"})
_TRUTHS = frozenset(
    {"AllHorizontal", "AnyHorizontal", "IsBetween", "IsClose", "IsFinite", "IsIn", "IsInfinite", "IsNan", "IsNotNan"}
    | {"IsNotNull", "IsNull", "Not"}
)
# These take a column that is no list for all of its values, whatever the row.
_LOOKUPS = frozenset({"ContainsAny", "ExtractMany", "FindMany", "IsIn", "Replace", "ReplaceMany", "ReplaceStrict"})
_EVALUATIONS = frozenset({"List", "ListAgg", "Array", "ArrayAgg"})  # of the elements of one row


def looks_at_other_rows(rule: pl.Expr, lists: Collection[str]) -> bool:
    """Return whether what a rule says of a row may depend on other rows; also where that cannot be found out.

    Args:
        rule: The expression of the rule.
        lists: The columns whose values are lists: `is_in` of any other column looks at all of its rows.
    """
    try:
        tree = json.loads(rule.meta.serialize(format="json"))
    except (ValueError, ImportError, pl.exceptions.PolarsError):  # a Python function, and nothing that can pickle it
        return True
    left = [tree]
    while left:
        try:
            inputs = _inputs(left.pop(), lists)
        except (KeyError, IndexError, TypeError):  # a form of another version of polars
            return True
        if inputs is None:
            return True
        left += inputs
    return False


def _inputs(node: Any, lists: Collection[str]) -> list[Any] | None:
    """Return the expressions that a node is made of; None where it looks at other rows."""
    name, content = _named(node)
    if name in _LEAVES:
        return []
    if name in _NODES:
        return [content[part] for part in _NODES[name]]
    if name == "KeepName":
        return [content]
    if name == "Eval":
        return [content["expr"]] if _named(content["variant"])[0] in _EVALUATIONS else None
    if name == "AnonymousFunction":
        flags = str(content["options"].get("flags")).split(" | ")
        return list(content["input"]) if {"ROW_SEPARABLE", "LENGTH_PRESERVING"} <= set(flags) else None
    if name == "Function" and _is_of_a_row(content["function"], content["input"], lists):
        return list(content["input"])
    return None


def _is_of_a_row(function: Any, inputs: list[Any], lists: Collection[str]) -> bool:
    family, content = _named(function)
    member, options = _named(content)
    if (family in _LOOKUPS or member in _LOOKUPS) and not all(_is_list(table, lists) for table in inputs[1:3]):
        return False
    if family == "Boolean":
        return member in _TRUTHS
    if family == "StringExpr":
        if member == "Strptime":  # without a format, that of the first values counts for all
            return any(isinstance(option, Mapping) and option.get("format") for option in options)
        return member != "ConcatVertical"
    return family in _FAMILIES or family in _FUNCTIONS or (family == "Bitwise" and member in _BITS)


def _is_list(table: Any, lists: Collection[str]) -> bool:
    name, content = _named(table)
    if name == "Function":
        return bool(content["function"] == {"ListExpr": "Concat"})
    return name == "Literal" or (name == "Column" and content in lists)


def _named(node: Any) -> tuple[str, Any]:
    """Return the name and the content of a node: it is a text, or an object with one name."""
    if isinstance(node, Mapping) and len(node) == 1:
        return next(iter(node.items()))
    return (node, None) if isinstance(node, str) else ("", None)
