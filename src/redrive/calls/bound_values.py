"""Bound values: what a function works on that is not among its arguments, such as `self` or a variable of a closure.

Two calls with the same arguments are two calls where these differ. A function that its module knows by its name has
none: whoever calls it by this name calls the same.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable, Iterator
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import blake2b
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any, NamedTuple
from uuid import UUID

from redrive._internal.masking import mask_all
from redrive.calls.arguments import Arguments, cells_of, undecorated
from redrive.calls.function import FILLABLE, innermost
from redrive.classify.responses import attribute
from redrive.store.encoding import decode, encode

_CODE = (FunctionType, BuiltinFunctionType, MethodType, MethodWrapperType, type)
_SCALARS = (str, bytes, int, float, Decimal, date, time, timedelta, UUID, Enum)


class BoundValues(NamedTuple):
    """What a function works on beside its arguments."""

    data: dict[str, Any]
    """The values that a record can hold, by the names of their variables."""
    missing: tuple[str, ...]
    """The names of values that a replay cannot give back, of which some may be in `data`."""
    is_known: bool
    """Whether calls with equal data have equal values: none is an object of which only the text is known."""
    code: str | None
    """Of a lambda, a digest of its code: others have the same name."""

    @property
    def shown(self) -> dict[str, Any]:
        """The data without secrets."""
        shown: dict[str, Any] = mask_all(decode(encode(self.data)))
        return shown


def bound_values(function: Callable[..., Any], given: Arguments) -> BoundValues:
    """Return what a function works on beside the arguments that it is given."""
    function = undecorated(function)
    is_lambda = attribute(function, "__name__") == "<lambda>" and isinstance(function, FunctionType)
    found = _Found()
    if isinstance(function, FunctionType):
        if is_lambda or not _is_known_by_name(function):
            # What is called without arguments, or is a lambda, has been made for this one call, as far as one can see.
            found.add_variables(function, given, all_of_them=is_lambda or not (given.args or given.kwargs))
    elif isinstance(function, MethodType | BuiltinFunctionType | MethodWrapperType):
        owner = function.__self__
        if isinstance(owner, type):
            if function.__qualname__ != f"{owner.__qualname__}.{function.__name__}":
                found.data["cls"] = _name_of(owner)  # a classmethod that a subclass inherits
        elif not isinstance(owner, ModuleType | None):
            found.add("self", owner)
    elif not isinstance(function, type) and not _is_known_by_name(function):
        found.add("self", function)
    code = _digest(function.__code__) if is_lambda else None
    return BoundValues(found.data, tuple(found.missing), found.is_known, code)


def module_of(function: Callable[..., Any]) -> str | None:
    """Return the module of a function: functions of two modules may have one name."""
    bare = innermost(function)
    module = attribute(bare, "__module__") or attribute(type(bare), "__module__")
    return module if isinstance(module, str) else None


class _Found:
    """Collects bound values."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self.missing: list[str] = []
        self.is_known = True

    def add(self, name: str, value: Any) -> None:
        """Add a value that a replay cannot give back."""
        self.missing.append(name)
        lost: list[str] = []
        encode(value, lost=lost)
        if lost:
            self.is_known = False
        else:
            self.data[name] = value

    def add_variables(self, function: FunctionType, given: Arguments, *, all_of_them: bool) -> None:
        """Add the variables that a function uses.

        Args:
            all_of_them: whether lists and other objects count; a function that is called again and again may use these
                to keep a client, or what it has done.
        """
        variables = cells_of(function)
        if function.__name__ == "<lambda>":
            variables.update(_globals_of(function, function.__code__))
        for name, value in variables.items():
            if isinstance(value, _CODE):
                self._add_code(name, value)
            elif not isinstance(value, ModuleType) and (all_of_them or _is_plain(value)):
                self.add(name, value)
        for name, value in _defaults_of(function, given).items():
            if isinstance(value, _CODE):
                self._add_code(name, value)
            elif function.__name__ == "<lambda>":
                self.add(name, value)
            elif _is_plain(value):
                self.data[name] = value  # mostly a constant: a replay by the same function has it

    def _add_code(self, name: str, value: Any) -> None:
        """Add a function or a class under another name than its own, such as the one that a decorator wraps."""
        bound = bound_values(value, Arguments((), {}))
        if bound.missing:
            self.missing.append(name)
            self.is_known = False
        elif attribute(value, "__name__") != name:
            self.data[name] = _name_of(innermost(value))


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, _SCALARS)


def _is_known_by_name(function: Any) -> bool:
    """Return whether the module of a function has it, or what decorates it, under its name."""
    found: Any = sys.modules.get(str(attribute(function, "__module__")))
    name = attribute(function, "__qualname__") or attribute(function, "__name__")
    if found is None or not isinstance(name, str):
        return False
    for part in name.split("."):
        found = inspect.getattr_static(found, part, None)
    found = attribute(found, "__func__") if isinstance(found, classmethod | staticmethod) else found
    return found is function or (found is not None and undecorated(found) is function)


def _name_of(value: Any) -> str:
    return f"{attribute(value, '__module__')}.{attribute(value, '__qualname__') or attribute(value, '__name__')}"


def _defaults_of(function: FunctionType, given: Arguments) -> dict[str, Any]:
    """Return the defaults of the parameters that are not given."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    passed = {*code.co_varnames[: min(len(given.args), code.co_argcount)], *given.kwargs, *FILLABLE}
    found = {**dict(zip(names, defaults, strict=True)), **(function.__kwdefaults__ or {})}
    return {name: value for name, value in found.items() if name not in passed}


def _globals_of(function: FunctionType, code: CodeType) -> Iterator[tuple[str, Any]]:
    """Yield the global variables that a lambda uses: in a loop they are its arguments."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in function.__globals__:
            yield step.argval, function.__globals__[step.argval]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_of(function, constant)


def _digest(code: CodeType) -> str:
    return blake2b(repr(_parts(code)).encode(errors="backslashreplace"), digest_size=6).hexdigest()


def _parts(code: CodeType) -> tuple[Any, ...]:
    """Return what a code does, wherever it stands."""
    constants = [_parts(each) if isinstance(each, CodeType) else each for each in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants
