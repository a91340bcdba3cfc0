"""Types and defaults as a person reads them."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

_WORD = re.compile(r"\b[A-Za-z_][\w.]*\b")


def home_of(thing: Any) -> ModuleType:
    """The module in which something is defined."""
    return sys.modules[thing.__module__]


def resolve(word: str, module: ModuleType) -> Any:
    """What a word of an annotation stands for in its module; None where that cannot be known."""
    name, *rest = word.split(".")
    found = getattr(module, name, None) or _for_types_only(module).get(name) or getattr(builtins, name, None)
    for one in rest:
        found = getattr(found, one, None)
    return found


@cache
def _for_types_only(module: ModuleType) -> dict[str, Any]:
    """What a module imports for its annotations alone."""
    found = {}
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for one in node.body:
                if isinstance(one, ast.ImportFrom) and one.module is not None:
                    home = import_module(one.module)
                    found |= {name.asname or name.name: getattr(home, name.name) for name in one.names}
    return found


@cache
def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


@cache
def _aliases(module: ModuleType) -> Mapping[str, str]:
    """The names that a module gives to types, with what stands behind them."""
    return {
        node.targets[0].id: ast.unparse(node.value)
        for node in _tree(module).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


@cache
def _imported(module: ModuleType) -> Mapping[str, tuple[str, str]]:
    """What a module takes from others of ours: the module it comes from, and its name there."""
    return {
        one.asname or one.name: (node.module, one.name)
        for node in ast.walk(_tree(module))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("redrive")
        for one in node.names
    }


def alternatives(annotation: str, module: ModuleType) -> Iterator[tuple[str, ModuleType]]:
    """The types between the bars of an annotation, names that stand for others replaced by these."""
    for part in _split(annotation.strip("'\"")):
        if part.startswith("Literal["):
            yield from ((one, module) for one in _split(part[8:-1], ","))
            continue
        behind, where = _behind(part, module)
        if behind is not None:
            yield from alternatives(behind, where)
        else:
            yield part, module


def _behind(part: str, module: ModuleType) -> tuple[str | None, ModuleType]:
    """What an alias stands for, and the module in which that is to be read."""
    if not _WORD.fullmatch(part):
        return None, module
    name = part.rpartition(".")[2]
    if "." in part:
        module = resolve(part.rpartition(".")[0], module) or module
    if (said := _aliases(module).get(name)) is not None and not said.startswith(("TypeVar", "ParamSpec")):
        return said, module
    if (origin := _imported(module).get(name)) is not None:
        return _behind(origin[1], import_module(origin[0]))
    return None, module


def _split(text: str, at: str = "|") -> list[str]:
    """The parts of an annotation, at bars or commas that are not within brackets or quotes."""
    parts, depth, quoted = [""], 0, False
    for letter in text:
        quoted ^= letter in "'\""
        depth += (letter in "[(") - (letter in "])")
        if letter == at and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def words_of(annotation: str, module: ModuleType) -> Iterator[Any]:
    """The classes that an annotation names."""
    for part, where in alternatives(annotation, module):
        for word in _WORD.findall(part):
            found = resolve(word, where)
            if isinstance(found, type):
                yield found


def shown(default: Any) -> str:
    """A default as one would write it, no longer than it needs to be."""
    if isinstance(default, Enum):
        return quoted(repr(default.value))
    if isinstance(default, frozenset | set):
        return "{" + ", ".join(sorted(shown(one) for one in default)) + "}"
    if is_dataclass(default) and not isinstance(default, type):
        usual = {one.name: one.default for one in fields(default)}
        said = [
            f"{name}={shown(getattr(default, name))}"
            for name, value in usual.items()
            if getattr(default, name) != value
        ]
        return f"{type(default).__name__}({', '.join(said)})"
    text = repr(default).removeprefix("datetime.")
    if text == "<factory>":
        return "{}"
    return "…" if text.startswith("<") else quoted(text)


def quoted(text: str) -> str:
    """Texts in the quotes in which people write them."""
    return re.sub(r"'([^'\"]*)'", r'"\1"', text)
