"""Validate frames with a dataframely schema: only rows that fail are converted to records.

Rules that depend on other rows are not supported, because rows are validated in batches.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from redrive._internal.masking import MASK, is_secret_name
from redrive._internal.optional import require_extra
from redrive.errors import PipelineError
from redrive.model.letters import ErrorType
from redrive.rows.batch import Outgoing, Received, Record, Refused
from redrive.rows.to_polars import UnframeableValue, framed, has_two_clocks
from redrive.rows.validation.casts import fitted, of_values, type_name
from redrive.rows.validation.validator import ValidatedRows, joined, listed, own_key, shown, unmet

with require_extra("rows"):
    import dataframely as dy
    import polars as pl

_OWN_TYPES = (int, float, Decimal, bytes, bytearray, date, time, timedelta)


_Kind = type | tuple[type, bool]
"""The Python type of a value; of a time, where others have a zone or none, also whether it has none."""


@dataclass(slots=True)
class _RowFaults:
    """What is wrong with the rows of a batch."""

    reasons: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    """By the place of the row."""
    unread: set[tuple[int, str]] = field(default_factory=set)
    """Places and columns whose value could not be cast. It is null now, and rules that fail for it are not reported."""


class SchemaValidator:
    """Casts each column to the type the schema wants, then asks the schema's own rules.

    A key that comes twice is no fault here, though the schema would reject every copy: the pipeline keeps one of them.
    Any other rule that looks at several rows is rejected, because it would see one batch at a time.
    """

    def __init__(self, schema: Any) -> None:
        self._schema: type[dy.Schema] = schema
        self._columns = schema.columns()
        self._digits = {
            name: (column.dtype.precision, column.dtype.scale)
            for name, column in self._columns.items()
            if isinstance(column.dtype, pl.Decimal)
        }
        self._rules = {
            f"{name}|{rule}": (name, rule)
            for name, column in self._columns.items()
            for rule in column.validation_rules(pl.col(name))
        }
        self._refuse_rules_over_rows()
        # dataframely does not report which row failed: a column that numbers the rows does.
        self._number = "row_number"
        while self._number in self._columns:
            self._number += "_"
        numbers = {"__module__": schema.__module__, self._number: dy.UInt32(nullable=True)}
        self._numbered: type[dy.Schema] = type(schema)(schema.__name__, (schema,), numbers)

    def _refuse_rules_over_rows(self) -> None:
        lists = {name for name, column in self._columns.items() if isinstance(column.dtype, pl.List | pl.Array)}
        rules = {name: rule.expr for name, rule in self._schema._schema_validation_rules().items()}
        for name, column in self._columns.items():
            rules |= {f"{name}|{rule}": expr for rule, expr in column.validation_rules(pl.col(name)).items()}
        if result := [name for name, expr in rules.items() if looks_at_other_rows(expr, lists)]:
            kind = "a rule that looks" if len(result) == 1 else "rules that look"
            raise ValueError(
                f"the schema {self._schema.__name__} has {kind} at other rows, {joined(result)}: rows are checked by "
                "batches, and such a rule would see one batch at a time. Remove it from the schema, and use a unique "
                "index of the table, or check the table after loading. A Python function of one row can be `validate` "
                "or `transform`, or map_elements with cloudpickle installed"
            )

    def fits(self, columns: Sequence[str]) -> None:
        """Refuse columns among which one of the schema's is missing."""
        missing = [name for name in self._columns if name not in columns]
        name = f"the schema {self._schema.__name__}"
        if columns and len(missing) == len(self._columns):
            raise PipelineError(f"{name} fits no column of {listed(columns)}; its columns are {listed(missing)}")
        if columns and missing:
            raise unmet(name, missing, columns)

    def ignored(self, columns: Collection[str]) -> tuple[str, ...]:
        """Return the columns that the schema does not have."""
        return tuple(name for name in columns if name not in self._columns)

    def keeps(self, columns: Sequence[str]) -> bool:
        """Return columns are cast, and not changed otherwise."""
        return True

    def key_of(self, record: Record, key: Sequence[str]) -> tuple[Any, ...] | None:
        """Return the record's own key, cast as that of an accepted row: some sinks take their types from the rows."""
        own = own_key(record, key)
        return None if own is None else tuple(map(self._as_passed, key, own))

    def _as_passed(self, name: str, value: Any) -> Any:
        """Return a value in the type of the schema; as it is where it has no place in that."""
        if name not in self._columns:
            return value
        received, misfits = framed([{name: value}], [name])
        if misfits:
            return value
        cast = fitted(received.get_column(name), self._columns[name].dtype)
        return value if cast is None or cast[0] is None else cast[0]

    def __call__(self, rows: Received) -> ValidatedRows:
        if not len(rows):
            return ValidatedRows(Outgoing(tuple(self._columns), (), tuples=()), [])
        faults = _RowFaults()
        columns = self._cast(rows, faults)
        number = pl.int_range(len(rows), dtype=pl.UInt32, eager=True).alias(self._number)
        # Lazily, so that only the rows that fail are collected: the good ones are at hand.
        failure = self._numbered.filter(pl.LazyFrame([*columns.values(), number])).failure
        if len(failure):
            self._explain(failure, faults)
        checked = _sorted(pl.DataFrame(list(columns.values())), faults)
        checked.good.digits = self._digits
        return checked

    def _cast(self, rows: Received, faults: _RowFaults) -> dict[str, pl.Series]:
        """Return the schema's columns in the schema's types; a value that has no place in one is a fault of its row."""
        of_frame = rows.is_frame
        misfits: list[UnframeableValue] = []
        if of_frame:
            self.fits(rows.columns)
            frame = rows.frame
        else:
            # A column that no record has is one of nulls.
            wanted = [name for name, column in self._columns.items() if column.dtype not in (pl.Object, pl.Null)]
            frame, misfits = framed(rows.records, wanted)
            # `dy.Any` takes every type, but one for the whole column.
            of_any_type = [name for name, column in self._columns.items() if column.dtype == pl.Null]
            others, of_other_kinds = framed(rows.records, of_any_type, one_kind=True)
            frame, misfits = pl.DataFrame([*frame, *others]), misfits + of_other_kinds
        for misfit in misfits:
            faults.reasons[misfit.place].append(misfit.why)
            faults.unread.add((misfit.place, misfit.column))
        result: dict[str, pl.Series] = {}
        for name, column in self._columns.items():
            if not of_frame and (column.dtype.is_nested() or column.dtype == pl.Object):
                unfit = {misfit.place for misfit in misfits if misfit.column == name}
                values = [None if place in unfit else item.get(name) for place, item in enumerate(rows.records)]
                result[name] = of_values(name, values, column.dtype)
                missing = pl.Series([value is None for value in values])
                _misfits(result[name], missing, values, faults)
                continue
            received = frame.get_column(name)
            if not of_frame and column.dtype != pl.Null and (kinds := _kinds(rows.records, name, received)):
                result[name] = self._mixed(received, rows.records, kinds, column.dtype, faults)
                continue
            if column.validate_dtype(received.dtype):
                result[name] = received
                continue
            result[name] = self._fitted(received, column.dtype, of_frame=of_frame)
            if result[name].null_count() > received.null_count():
                own = received if of_frame else [record.get(name) for record in rows.records]
                _misfits(result[name], received.is_null(), own, faults)
        return result

    def _mixed(
        self,
        column: pl.Series,
        records: Sequence[Record],
        kinds: Sequence[_Kind],
        dtype: pl.DataType,
        faults: _RowFaults,
    ) -> pl.Series:
        """Return a column of values of several kinds, each kind cast by itself: no value is changed by its neighbours.

        `column` has them in one type; it is null if a value has no place in any frame.
        """
        name, pieces, places = column.name, list[pl.Series](), list[int]()
        missing = column.is_null().to_list()
        for kind in dict.fromkeys(kinds):
            own = [place for place, other in enumerate(kinds) if other == kind]
            places += own
            if _is_container(kind):  # of objects with different fields a frame has the text
                pieces.append(pl.Series(name, [None] * len(own), dtype=dtype))
                continue
            values = [None if missing[place] else records[place].get(name) for place in own]
            pieces.append(self._of_one_kind(name, values, dtype))
        order = pl.Series(places, dtype=pl.UInt32).arg_sort()
        made = pl.concat(pieces).gather(order).alias(name)
        _misfits(made, pl.Series(missing), [record.get(name) for record in records], faults)
        return made

    def _of_one_kind(self, name: str, values: Sequence[Any], dtype: pl.DataType) -> pl.Series:
        received = framed([{name: value} for value in values], [name])[0].get_column(name)
        if len(values) > 1 and _became_text(received, set(map(type, values))):  # for some value, so all did
            middle = len(values) // 2
            return pl.concat([self._of_one_kind(name, half, dtype) for half in (values[:middle], values[middle:])])
        return received if received.dtype == dtype else self._fitted(received, dtype, of_frame=False)

    def _fitted(self, received: pl.Series, dtype: pl.DataType, *, of_frame: bool) -> pl.Series:
        cast = fitted(received, dtype)
        if cast is not None:
            return cast
        if of_frame:
            raise PipelineError(
                f"the schema {self._schema.__name__} wants {_a(dtype)} in the column {received.name!r}, and the source "
                f"has {_a(received.dtype)}, which cannot be one"
            )
        # Of records the next batch may have others: no reason to stop.
        return pl.Series(received.name, [None] * len(received), dtype=dtype)

    def _explain(self, failure: dy.FailureInfo, faults: _RowFaults) -> None:
        """Add the messages of the rules that each row failed."""
        details = failure.details()
        for rule in failure.counts():
            if rule == "primary_key":
                continue
            failed = details.filter(pl.col(rule) == "invalid")
            places = failed.get_column(self._number).to_list()
            if rule in self._rules:
                name, kind = self._rules[rule]
                for place, value in zip(places, failed.get_column(name), strict=True):
                    if (place, name) not in faults.unread:
                        faults.reasons[place].append(_broken(name, kind, value))
            else:
                names = self._columns_of(rule)
                reason = f"rule {rule} failed" + (f" on {', '.join(names)}" if names else "")
                for place, values in zip(places, failed.select(names).iter_rows(), strict=True):
                    faults.reasons[place].append(reason + _in_brackets(*values))

    def _columns_of(self, rule: str) -> list[str]:
        """Return the columns that a rule of the user's looks at."""
        used = getattr(self._schema, rule).make(self._schema).expr.meta.root_names()
        return [name for name in self._columns if name in used]


def _kinds(records: Sequence[Record], name: str, received: pl.Series) -> Sequence[_Kind]:
    """Return the kind of each value of a column; none if there is one kind, beside None, that the frame has kept."""
    values = [record.get(name) for record in records]
    types = {*map(type, values)}
    if has_two_clocks(values, types):
        return [(type(value), value.tzinfo is None) if isinstance(value, datetime) else type(value) for value in values]
    is_mixed = len(types - {type(None)}) > 1 or any(map(_is_container, types)) or _became_text(received, types)
    return [*map(type, values)] if is_mixed else ()


def _became_text(received: pl.Series, types: Collection[type]) -> bool:
    """Return whether a frame has text of values that it has a type for, because that does not hold one of them."""
    return received.dtype == pl.String and any(issubclass(kind, _OWN_TYPES) for kind in types)


def _is_container(kind: _Kind) -> bool:
    return isinstance(kind, type) and issubclass(kind, dict | list | tuple)


def _misfits(cast: pl.Series, missing: pl.Series, received: Sequence[Any] | pl.Series, faults: _RowFaults) -> None:
    """Name the values that became null."""
    name, why = cast.name, f"{cast.name}: not {_a(cast.dtype)}"
    places = (cast.is_null() & ~missing).arg_true()
    values = received.gather(places) if isinstance(received, pl.Series) else [received[place] for place in places]
    for place, value in zip(places.to_list(), values, strict=True):
        faults.reasons[place].append(why + _value_of(name, value))
        faults.unread.add((place, name))


def _broken(name: str, rule: str, value: Any) -> str:
    if rule == "nullability":
        return f"{name}: missing"
    return f"{name}: {rule.removeprefix('check__')}" + _value_of(name, value)


def _value_of(name: str, value: Any) -> str:
    return f" ({MASK})" if is_secret_name(name) and value is not None else _in_brackets(value)


def _in_brackets(*values: Any) -> str:
    texts = [text for value in values if (text := shown(value)) is not None]
    return f" ({', '.join(texts)})" if texts else ""


def _a(dtype: pl.DataType) -> str:
    name = type_name(dtype)
    return f"an {name}" if name[0] in "AEIO" else f"a {name}"


def _sorted(frame: pl.DataFrame, faults: _RowFaults) -> ValidatedRows:
    """Return the rows, good and bad."""
    if not faults.reasons:
        return ValidatedRows(Outgoing.of_frame(frame, range(frame.height)), [])
    bad = sorted(faults.reasons)
    rejected = [Refused(place, "; ".join(faults.reasons[place]), ErrorType.VALIDATION) for place in bad]
    good = pl.repeat(True, frame.height, eager=True).scatter(bad, False)
    return ValidatedRows(Outgoing.of_frame(frame.filter(good), good.arg_true().to_list()), rejected)


# ── rules of one row ──────────────────────────────────────────────────────────────────────────────────────────────────

# A rule with anything that is not listed here counts as one that depends on other rows.
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
    """Return whether the result of a rule may depend on other rows; also if that cannot be found out.

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
    """Return the expressions that a node is made of; None if it looks at other rows."""
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
