"""Arguments of a call: those of a `functools.partial`, copies for a dead letter, and which can be read only once."""

from __future__ import annotations

import copy
import dis
import functools
import inspect
import sys
from collections import UserDict, UserList, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from io import IOBase
from types import (
    AsyncGeneratorType,
    BuiltinFunctionType,
    CodeType,
    CoroutineType,
    FunctionType,
    GeneratorType,
    MethodType,
    MethodWrapperType,
    NoneType,
)
from typing import Any, NamedTuple

from redrive.calls.effects.in_flight import members
from redrive.calls.function import innermost
from redrive.classify.error_codes import call_or_none
from redrive.classify.responses import attribute

PASS_AGAIN = (
    "Pass what can be read again, such as a path, bytes, a list or a function that opens it; or call seek() on the "
    "file in the function."
)
"""Advice for a call that is not retried since an argument was read."""

_MOST_DECORATORS = 100
_PLACEHOLDER = getattr(functools, "Placeholder", object())  # from Python 3.14 on


class Arguments(NamedTuple):
    """What a function is called with; with what its partials add."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def merged(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
    """Return the arguments that the function behind functools.partial is called with."""
    while isinstance(function, functools.partial):
        given = iter(args)
        bound = [next(given, _PLACEHOLDER) if each is _PLACEHOLDER else each for each in function.args]
        args, kwargs, function = (*bound, *given), {**function.keywords, **kwargs}, function.func
    return Arguments(args, kwargs)


def undecorated(function: Callable[..., Any]) -> Any:
    """Return the function behind functools.partial and decorators that use functools.wraps."""
    function = innermost(function)
    for _ in range(_MOST_DECORATORS):
        inner = vars(function).get("__wrapped__") if hasattr(function, "__dict__") else None
        if inner is None:
            break
        function = innermost(inner)
    return function


# ── copies ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_NESTED = (list, dict, set, bytearray, deque, tuple, UserDict, UserList)
_FLAT = frozenset({NoneType, bool, int, float, str, bytes})
_DEEPEST = 4
_MOST_COPIED = 1_000
"""Values of collections that are looked into; of what is larger, the outermost collection alone is copied."""


class NotCopied:
    """Stands for a collection that could not be copied before the call, which may have changed it."""

    def __init__(self, value: object) -> None:
        self.kind = type(value).__name__


def copied(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
    """Return the merged arguments, with a copy of each collection that the function may change."""
    given = merged(function, args, kwargs)
    if _is_flat(given.args) and _is_flat(given.kwargs.values()):
        return given
    left = [_MOST_COPIED]
    return Arguments(_copy(given.args, left, -1), _copy(dict(given.kwargs), left, -1))


def _is_flat(values: Iterable[Any]) -> bool:
    return not any(type(value) not in _FLAT and isinstance(value, _NESTED) for value in values)


def _copy(value: Any, left: list[int], depth: int) -> Any:
    if type(value) in _FLAT or not isinstance(value, _NESTED):
        return value
    try:
        # In one step: another thread may change the original.
        duplicate = value if isinstance(value, tuple) else copy.copy(value)
        return _copy_inside(duplicate, left, depth)
    except Exception:  # a user's class may raise anything
        return NotCopied(value)


def _copy_inside(duplicate: Any, left: list[int], depth: int) -> Any:
    """Copy the collections in a copy. Methods of the built-in class are used: those of a subclass may do more."""
    held: Any = duplicate.data if isinstance(duplicate, UserDict | UserList) else duplicate
    if isinstance(held, set | bytearray) or depth >= _DEEPEST or len(held) > left[0]:
        return duplicate
    if _is_flat(dict.values(held) if isinstance(held, dict) else held):
        return duplicate
    left[0] -= len(held)
    if isinstance(held, tuple):
        inner = (_copy(each, left, depth + 1) for each in held)
        return tuple(inner) if type(held) is tuple else duplicate._make(inner)
    kind: Any = next(each for each in (dict, list, deque) if isinstance(held, each))
    for place, each in list(dict.items(held) if kind is dict else enumerate(held)):
        kind.__setitem__(held, place, _copy(each, left, depth + 1))
    return duplicate


# ── arguments that can be read only once ──────────────────────────────────────────────────────────────────────────────

_CALLABLES = (FunctionType, BuiltinFunctionType, MethodType, MethodWrapperType, functools.partial)
_ITEM_BY_ITEM = frozenset({"next", "anext"})


def is_read_once(value: object) -> bool:
    """Return whether a value is an iterator or a file: what it holds is not in its text."""
    return isinstance(value, Iterator | AsyncIterator) or callable(attribute(value, "read"))


def why_read(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Return why a function cannot be called with its arguments again; None where it can.

    An iterator or a file that an attempt has read would give the next attempt only the rest, or nothing.
    """
    calls: list[tuple[Any, Arguments | None]] = [(innermost(function), merged(function, args, kwargs))]
    code = attribute(undecorated(function), "__code__")
    own = _names_in(code)
    for name, value in _named(function, args, kwargs):
        for member in members(value):
            if _is_read(member) and not ("seek" in own and _is_file(member)):
                return _read_once(name, member)
            if isinstance(member, _CALLABLES):
                calls.append((member, None))
    for called, given in calls:
        for name, value in _variables(called, given, own, {id(called)}):
            return _read_once(name, value)
    return None


def _read_once(name: str, value: Any) -> str:
    return f"{name} ({type(value).__name__}) can be read only once, and an attempt may have read from it"


def _named(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a call with their names."""
    args, kwargs = merged(function, args, kwargs)
    try:
        names = inspect.signature(innermost(function)).bind_partial(*args).arguments
    except (TypeError, ValueError):  # some C functions have no signature
        names = {str(place): value for place, value in enumerate(args, 1)}
    for name, value in (*names.items(), *kwargs.items()):
        yield f"the argument {name}", value


def _variables(
    function: Any, given: Arguments | None, outer: frozenset[str], seen: set[int], depth: int = 0
) -> Iterator[tuple[str, Any]]:
    """Yield what was read among the values that a function holds: partial, method, variables of a closure, defaults.

    Functions among these are looked into as well. One that takes item by item means to continue.

    Args:
        function: the function.
        given: its arguments, which replace defaults.
        outer: the names that functions which call it use: one that seeks reads a file again.
        seen: ids of the functions that were looked into.
        depth: number of functions around it.
    """
    names = outer | _names_in(attribute(function, "__code__"))
    for name, value in _held(function, given):
        for member in members(value):
            if isinstance(member, _CALLABLES):
                if depth < _DEEPEST and id(member) not in seen:
                    seen.add(id(member))
                    yield from _variables(member, None, names, seen, depth + 1)
            elif _is_read(member) and not ("seek" in names and _is_file(member)):
                yield name, member


def _held(function: Any, given: Arguments | None) -> Iterator[tuple[str, Any]]:
    """Yield the values that a function holds, with their names."""
    if isinstance(function, functools.partial):
        yield from (("an argument of a partial", value) for value in (*function.args, *function.keywords.values()))
        yield "the function", function.func
        return
    if isinstance(function, MethodType):
        yield f"the object of {function.__name__}", function.__self__
        yield "the function", function.__func__
        return
    if isinstance(function, BuiltinFunctionType | MethodWrapperType):
        if function.__name__ not in ("__next__", "__anext__"):
            yield f"the object of {function.__name__}", function.__self__
        return
    if not isinstance(function, FunctionType):
        return
    if (inner := vars(function).get("__wrapped__")) is not None:
        yield "the function", inner
    code = function.__code__
    if str(function.__globals__.get("__name__")).startswith("redrive.") or not _ITEM_BY_ITEM.isdisjoint(
        _names_in(code)
    ):
        yield from ((name, value) for name, value in cells_of(function).items() if isinstance(value, _CALLABLES))
        return
    yield from ((f"the variable {name}", value) for name, value in cells_of(function).items())
    passed = code.co_varnames[: len(given.args)] if given is not None else ()
    for name, value in defaults_of(function).items():
        if name not in passed and (given is None or name not in given.kwargs):
            yield f"the default of {name}", value


def _names_in(code: Any) -> frozenset[str]:
    """Return the attributes and global variables that a code uses, with those of the functions in it."""
    if not isinstance(code, CodeType):
        return frozenset()
    inner = (_names_in(each) for each in code.co_consts if isinstance(each, CodeType))
    return frozenset(code.co_names).union(*inner)


def defaults_of(function: FunctionType) -> dict[str, Any]:
    """Return the defaults of the parameters of a function."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    return {**dict(zip(names, defaults, strict=True)), **(function.__kwdefaults__ or {})}


def cells_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the variables of surrounding functions that a function uses, without those that it assigns itself."""
    code = attribute(function, "__code__")
    cells = attribute(function, "__closure__")
    if not cells:
        return {}
    assigned = {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_DEREF"}
    found = {}
    for name, cell in zip(code.co_freevars, cells, strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        if name not in assigned:
            found[name] = value
    return found


def _is_read(value: Any) -> bool:
    """Return whether a value may have been read in part, and cannot be read again."""
    if isinstance(value, GeneratorType):
        return inspect.getgeneratorstate(value) != inspect.GEN_CREATED
    if isinstance(value, CoroutineType):
        return inspect.getcoroutinestate(value) != inspect.CORO_CREATED
    if isinstance(value, AsyncGeneratorType):
        return not _is_new(value)
    if not is_read_once(value) or callable(attribute(value, "execute")):
        return False  # a cursor of a database gives its rows again when it executes
    return _is_file_read(value) if _is_file(value) else isinstance(value, Iterator | AsyncIterator)


def _is_new(generator: AsyncGeneratorType[Any, Any]) -> bool:
    """Return whether an async generator has not begun."""
    if sys.version_info >= (3, 12):
        return inspect.getasyncgenstate(generator) == inspect.AGEN_CREATED
    frame = generator.ag_frame
    return frame is not None and frame.f_code.co_code[frame.f_lasti] == dis.opmap["RETURN_GENERATOR"]


def _is_file(value: Any) -> bool:
    """Return whether a value is read at a position; by its class, since a mock has any attribute."""
    is_stream = isinstance(value, IOBase) or hasattr(type(value), "seek") or hasattr(type(value), "readline")
    return callable(attribute(value, "read")) and (is_stream or isinstance(call_or_none(value, "tell"), int))


def _is_file_read(file: Any) -> bool:
    if call_or_none(file, "readable") is False:
        return False  # it is written to
    tell = attribute(file, "tell")
    if inspect.iscoroutinefunction(tell):
        return True
    # The position of a pipe, a closed file, or a text file in a loop over its lines is not known.
    return bool(call_or_none(file, "tell") != 0)
