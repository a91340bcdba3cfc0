"""Bound values: what a function works on that is not among its arguments, such as `self` or a variable of a closure.

Two calls with the same arguments are two calls where these differ. A function that its module knows by its name has
none: whoever calls it by this name calls the same.
"""

from __future__ import annotations

import dataclasses
import dis
import inspect
import sys
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import blake2b
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    NoneType,
)
from typing import Any, NamedTuple
from uuid import UUID

from redrive._internal.masking import mask_all
from redrive.calls.arguments import Arguments, cells_of, defaults_of, undecorated
from redrive.calls.function import FILLABLE, innermost
from redrive.classify.responses import attribute
from redrive.store.encoding import decode, encode

_CODE = (FunctionType, BuiltinFunctionType, MethodType, MethodWrapperType, type)
_EXACT = (NoneType, bool, int, float, str, bytes, Decimal, datetime, date, time, timedelta, UUID)
_DEEPEST = 60
_MOST_TYPES = 20  # classes that a record names
_MOST_DECORATORS = 100
_SCALARS = (str, bytes, int, float, Decimal, date, time, timedelta, UUID, Enum)


class BoundValues(NamedTuple):
    """What a function works on beside its arguments."""

    data: dict[str, Any]
    """The values that a record can hold, by the names of their variables."""
    missing: tuple[str, ...]
    """The names of values that a replay cannot give back, of which some may be in `data`."""
    is_known: bool
    """Whether calls with equal identities are equal: the function and its values are found again by their names."""
    identity: tuple[Any, ...]
    """What distinguishes the function and its values, where that is known."""
    types: dict[str, str]
    """The classes of the values, by the names of their variables."""
    code: str | None
    """Of a lambda, a digest of its code: others have the same name."""

    @property
    def shown(self) -> dict[str, Any]:
        """The data without secrets."""
        shown: dict[str, Any] = mask_all(decode(encode(self.data)))
        return shown


def bound_values(function: Callable[..., Any], given: Arguments) -> BoundValues:
    """Return what a function works on beside the arguments that it is given."""
    called, function = innermost(function), undecorated(function)
    is_lambda = attribute(function, "__name__") == "<lambda>" and isinstance(function, FunctionType)
    found = _Found()
    if isinstance(function, FunctionType):
        if is_lambda or not is_known_by_name(function):
            # What is called without arguments, or is a lambda, has been made for this one call, as far as one can see.
            found.add_variables(function, given, all_of_them=is_lambda or not (given.args or given.kwargs))
            found.identity.append(_digest(function.__code__))
        if called is not function and not is_known_by_name(called):
            found.is_known = False  # its decorators may hold anything
    elif isinstance(function, MethodType | BuiltinFunctionType | MethodWrapperType):
        owner = function.__self__
        if isinstance(owner, type):
            if function.__qualname__ != f"{owner.__qualname__}.{function.__name__}":
                found.data["cls"] = _name_of(owner)  # a classmethod that a subclass inherits
            found.is_known = is_known_by_name(owner)
        elif not isinstance(owner, ModuleType | None):
            found.add("self", owner)
        if isinstance(function, MethodType) and not is_known_by_name(function.__func__):
            found.is_known = False
    elif not is_known_by_name(function):
        if not isinstance(function, type):
            found.add("self", function)
        found.is_known = found.is_known and not isinstance(function, type)
    code = _digest(function.__code__) if is_lambda else None
    return BoundValues(found.data, tuple(found.missing), found.is_known, tuple(found.identity), found.types, code)


def module_of(function: Callable[..., Any]) -> str | None:
    """Return the module of a function: functions of two modules may have one name."""
    bare = innermost(function)
    module = attribute(bare, "__module__") or attribute(type(bare), "__module__")
    return module if isinstance(module, str) else None


class NotIdentifiedError(Exception):
    """Two values of this kind cannot be proved to be equal."""


def identity_of(value: Any, place: str, types: dict[str, str], depth: int = 0) -> Any:
    """Return what is equal only for equal values: of built-in types, or objects whose class and fields are all known.

    Args:
        value: the value.
        place: where it is among the arguments.
        types: takes the names of the classes that are found, by place.
        depth: number of values around it.

    Raises:
        NotIdentifiedError: the value is of another kind, or holds one.
    """
    kind = type(value)
    if kind in _EXACT:
        return value
    if depth > _DEEPEST:
        raise NotIdentifiedError

    def within(name: object, held: Any) -> Any:
        return identity_of(held, f"{place}.{name}", types, depth + 1)

    if kind is dict:
        return "dict", sorted([encode(within("key", key)), encode(within(key, held))] for key, held in value.items())
    if kind is list or kind is tuple:
        return kind.__name__, [within(number, held) for number, held in enumerate(value)]
    if kind is set or kind is frozenset:
        return kind.__name__, sorted(encode(within("member", held)) for held in value)
    state = _state_of(value)
    if state is None or not (is_known_by_name(kind) or isinstance(value, PurePath)):
        raise NotIdentifiedError
    if len(types) < _MOST_TYPES:
        types[place] = _name_of(kind)
    return "object", _name_of(kind), [[name, within(name, held)] for name, held in state.items()]


def _state_of(value: Any) -> dict[str, Any] | None:
    """Return all that an object holds; None where that is not known."""
    kind = type(value)
    if isinstance(value, Enum):
        return None if value.name is None else {"name": value.name}
    if isinstance(value, PurePath):
        return {"path": str(value)} if kind.__module__.partition(".")[0] == "pathlib" else None
    own = dict(vars(value)) if hasattr(value, "__dict__") else {}
    if isinstance(value, tuple) and isinstance(fields := attribute(kind, "_fields"), tuple):
        return None if own or len(fields) != len(value) else dict(zip(fields, value, strict=True))
    if isinstance(value, (*_EXACT, dict, list, tuple, set, frozenset)):
        return None  # a subclass that may hold more than its fields
    if hasattr(kind, "model_dump"):
        more = ("__pydantic_extra__", "__pydantic_private__")
        return {**own, **{name: attribute(value, name) for name in more if attribute(value, name)}}
    if not dataclasses.is_dataclass(kind):
        return None
    names = {field.name for field in dataclasses.fields(kind)}
    slots = {name for base in kind.__mro__ for name in _slots_of(base)} - {"__dict__", "__weakref__"}
    if not names >= {*own, *slots}:
        return None
    return {name: getattr(value, name) for name in sorted(names) if hasattr(value, name)}


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


class _Found:
    """Collects bound values."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self.missing: list[str] = []
        self.is_known = True
        self.identity: list[Any] = []
        self.types: dict[str, str] = {}

    def add(self, name: str, value: Any) -> None:
        """Add a value that a replay cannot give back."""
        self.missing.append(name)
        self._identify(name, value)
        lost: list[str] = []
        encode(value, lost=lost)
        if lost:
            self.is_known = False
        else:
            self.data[name] = value

    def _identify(self, name: str, value: Any) -> None:
        try:
            self.identity.append((name, identity_of(value, name, self.types)))
        except NotIdentifiedError:
            self.is_known = False

    def add_variables(self, function: FunctionType, given: Arguments, *, all_of_them: bool) -> None:
        """Add the variables that a function uses.

        Args:
            all_of_them: whether a replay has to give lists and other objects back; a function that is called again and
                again may use these to keep a client, or what it has done.
        """
        variables = cells_of(function)
        if function.__name__ == "<lambda>":
            variables.update(_globals_of(function, function.__code__))
        for name, value in variables.items():
            if isinstance(value, _CODE):
                self._add_code(function, name, value)
            elif isinstance(value, ModuleType):
                continue
            elif all_of_them or _is_plain(value):
                self.add(name, value)
            else:
                self.is_known = False
        for name, value in _defaults_of(function, given).items():
            if isinstance(value, _CODE):
                self._add_code(function, name, value)
            elif function.__name__ == "<lambda>":
                self.add(name, value)
            elif _is_plain(value):
                self.data[name] = value  # mostly a constant: a replay by the same function has it
                self._identify(name, value)
            else:
                self.is_known = False

    def _add_code(self, function: FunctionType, name: str, value: Any) -> None:
        """Add a function or a class that a function uses, which is distinguished from others only by its own name."""
        if not is_known_by_name(value):
            self.missing.append(name)
            self.is_known = False
        elif (known_as := _name_of(value)) != f"{function.__module__}.{name}":
            self.data[name] = known_as
            self.identity.append((name, known_as))


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, _SCALARS)


def is_known_by_name(function: Any) -> bool:
    """Return whether the module of a function or a class has it, or what decorates it, under its name."""
    if isinstance(function, MethodType | MethodWrapperType):
        return isinstance(function.__self__, type) and is_known_by_name(attribute(function, "__func__"))
    found: Any = sys.modules.get(str(attribute(function, "__module__")))
    name = attribute(function, "__qualname__") or attribute(function, "__name__")
    if found is None or not isinstance(name, str):
        return False
    for part in name.split("."):
        found = inspect.getattr_static(found, part, None)
    found = attribute(found, "__func__") if isinstance(found, classmethod | staticmethod) else found
    for _ in range(_MOST_DECORATORS):
        if found is None or found is function:
            break
        found = vars(found).get("__wrapped__") if hasattr(found, "__dict__") else None
    return found is not None


def _name_of(value: Any) -> str:
    return f"{attribute(value, '__module__')}.{attribute(value, '__qualname__') or attribute(value, '__name__')}"


def _defaults_of(function: FunctionType, given: Arguments) -> dict[str, Any]:
    """Return the defaults of the parameters that are not given."""
    code = function.__code__
    passed = {*code.co_varnames[: min(len(given.args), code.co_argcount)], *given.kwargs, *FILLABLE}
    return {name: value for name, value in defaults_of(function).items() if name not in passed}


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
