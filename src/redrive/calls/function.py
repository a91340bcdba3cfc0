"""What is known of a call before it is made: the function, the keywords that redrive fills in, the endpoint's name."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redrive.calls.credentials import Grant


# The keywords a service fills in where a function takes them and its caller did not pass them.
FILLABLE = frozenset({"credential", "timeout", "idempotency_key"})
# Attributes of a function whose signature is not that of its code.
_SIGNED = frozenset({"__wrapped__", "__signature__"})


@dataclass(frozen=True, slots=True)
class CalledFunction:
    """What a service knows of a function that it calls."""

    endpoint: str
    fills: tuple[tuple[str, int], ...] = ()
    """Keywords to fill in, with their position in the signature."""
    returns_responses: bool = False
    """Whether the last failed response is returned (HTTP adapters) or raised as RetriesExhausted (functions)."""
    content: str | None = ""
    """What distinguishes the requests of one attempt; None where that is not known, and no key is sent."""
    limits_itself: bool = False
    """Whether it ends at the `timeout` it is given, with an error of its own library."""
    request: str | None = None
    """Of an HTTP adapter, the method and the path, with the ids that the endpoint leaves out."""
    server: str | None = None
    """Of an HTTP adapter, the host, with the port where the URL has one."""
    takes_key: bool = field(init=False)
    """Whether it is given an idempotency key."""
    credential_position: int = field(init=False)
    """Position of the credential in the signature, if it alone is filled in (the case that must be fast); else -1."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "takes_key", any(name == "idempotency_key" for name, _ in self.fills))
        alone = len(self.fills) == 1 and self.fills[0][0] == "credential"
        object.__setattr__(self, "credential_position", self.fills[0][1] if alone else -1)

    def fill(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        grant: Grant | None,
        timeout: float | None,
        key: str | None = None,
    ) -> dict[str, Any]:
        """Return the keywords for one attempt; what the caller passed stays."""
        values = {"credential": grant and grant.value, "timeout": timeout, "idempotency_key": key}
        wanted = (name for name, place in self.fills if place >= len(args))
        return {**{name: values[name] for name in wanted if values[name] is not None}, **kwargs}


# By code object: a lambda in a loop is a new function each time, with the same code. A method's bound and plain forms
# share theirs but not their signature; functions of one factory share theirs but not always their name.
_known: dict[tuple[CodeType, type, str], CalledFunction] = {}
_MOST_KNOWN = 2_000


def target_of(function: Callable[..., Any]) -> CalledFunction:
    """Return what is known of a function; fast the second time."""
    kind = type(function)
    if kind is not FunctionType and kind is not MethodType:
        return _examine(function)
    if function.__dict__ and not _SIGNED.isdisjoint(function.__dict__):
        return _examine(function)
    key = (function.__code__, kind, function.__qualname__)
    target = _known.get(key)
    if target is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        target = _known[key] = _examine(function)
    return target


def _examine(function: Callable[..., Any]) -> CalledFunction:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some C functions have no signature
        return CalledFunction(endpoint_of(function))
    given = function.keywords if isinstance(function, functools.partial) else {}
    fills = tuple(
        (parameter.name, sys.maxsize if parameter.kind is parameter.KEYWORD_ONLY else place)
        for place, parameter in enumerate(parameters)
        if parameter.name in FILLABLE - given.keys()
        and parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    )
    return CalledFunction(endpoint_of(function), fills)


def endpoint_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, also behind functools.partial or an object with `__call__`."""
    bare = innermost(function)
    return getattr(bare, "__qualname__", None) or type(bare).__qualname__


def innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function behind functools.partial."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def require_callable(function: object) -> None:
    """Raise TypeError for what cannot be guarded, with what to do instead."""
    if isinstance(function, classmethod | staticmethod | property):
        raise TypeError(f"put the service below @{type(function).__name__}: it guards the function itself")
    if inspect.iscoroutine(function):
        raise TypeError("pass the async function itself, not a coroutine it gave: a coroutine can run only once")
    if not callable(function):
        raise TypeError(f"a service guards a function, not {function!r}")


def reject_generator(function: Callable[..., Any]) -> None:
    """Raise TypeError for a generator function: it runs after the call has returned, so that nothing can be retried."""
    bare = innermost(function)
    candidates = (bare, getattr(bare, "__call__", None))  # noqa: B004  # the method itself is examined, not called
    if any(inspect.isgeneratorfunction(candidate) or inspect.isasyncgenfunction(candidate) for candidate in candidates):
        raise TypeError(
            f"{endpoint_of(function)} is a generator function: after its first yield it cannot be retried without "
            "yielding items twice; let the service guard the function that fetches one page, and yield from outside"
        )


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a call surely returns an awaitable; where False, it may still return one."""
    bare = innermost(function)
    method = getattr(bare, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(bare) or inspect.iscoroutinefunction(method)


# ── the names of HTTP endpoints ───────────────────────────────────────────────────────────────────────────────────────


MOST_ENDPOINTS = 100
"""Endpoints of one service that are counted separately."""
OTHER_ENDPOINT = "other"
"""The name under which all further endpoints are counted."""
_LONGEST_PATH = 500
_LONGEST_WORD = 40

# A segment that is probably an id: a number, a UUID, a hash, a date, or a long name with digits in it.
_ID = re.compile(
    r"""(?ix)
    \d[\d.,:_-]*                                                 # 17, 2024-05-01, 12.5
    | \{?[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\}?          # a UUID
    | (?=[a-f-]*\d)[0-9a-f-]{8,}                                 # a hash
    | \d{4}-?\d{2}-?\d{2}T[\d:.+Z-]+                             # a date and time
    | [^@]+@[^@]+                                                # an address
    """
)
# Ids that are shown in log lines. What is longer, a hash or an address may be a secret or personal data.
_SHOWN = re.compile(
    r"""(?ix)
    \d[\d.,:_-]*
    | [0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}
    | \d{4}-?\d{2}-?\d{2}T[\d:.+Z-]+
    | (?![0-9a-f-]{8,20}$)[\w.~-]{1,20}
    """
)
_VERSION = re.compile(r"(?i)v\d{1,3}(?:\.\d+)?|\d\.\d")
_DIGITS = re.compile(r"\d")
_MIXED = 3  # a segment with this many digits is taken for an id


@lru_cache(1_000)  # most programs send many requests to few paths
def route(path: str) -> str:
    """Return the path with `{id}` for each segment that looks like an id."""
    return "/".join(_segments(path[:_LONGEST_PATH]))


@lru_cache(1_000)
def shown_path(path: str) -> str:
    """Return the path as an operator needs it: with the ids in it, but for those that may be secrets."""
    return "/".join(_segments(path[:_LONGEST_PATH], _SHOWN))


def _segments(path: str, shown: re.Pattern[str] | None = None) -> Iterator[str]:
    for segment in path.split("/"):
        hidden = _is_id(segment) and not (shown is not None and shown.fullmatch(segment))
        yield "{id}" if hidden else segment


def _is_id(segment: str) -> bool:
    if not segment or _VERSION.fullmatch(segment):
        return False
    if _ID.fullmatch(segment) or len(segment) > _LONGEST_WORD or "%" in segment:
        return True
    digits = len(_DIGITS.findall(segment))
    if digits >= _MIXED:
        return True
    # `cus_NffrFeUfNV2Hib`: capitals in the midst of small letters, and a digit.
    return digits > 0 and len(segment) >= 8 and segment not in (segment.lower(), segment.upper())
