"""The content of a page: its items, and the token of the next page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import isawaitable, signature
from typing import Any, Final

from redrive._internal.numbers import exact
from redrive.classify import classify
from redrive.classify.builtin import NO_LIST
from redrive.classify.responses import attribute, body_in_memory, response_status
from redrive.classify.signals import is_interrupt
from redrive.errors import SourceError, StatedVerdict
from redrive.model.calls import Kind
from redrive.rows.sources.ndjson.numbers import loads

Finder = str | Callable[[Any], Any]
"""Where something is in a page: a name, a path of names with dots, or a function of the page."""

_LISTS = ("items", "data", "results", "records")
_NEXT = ("next", "next_cursor", "cursor", "next_page_token")
_NO_ITEMS = frozenset({"errors", "warnings"})  # lists that are about the page, not in it
_LONGEST_BODY = 1_000_000
_WORDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}


class _Unsaid:
    """What stands for something that a page does not mention."""

    def __repr__(self) -> str:
        return "unsaid"


UNSAID: Final = _Unsaid()


@dataclass(frozen=True, slots=True)
class Page:
    """A page that could be read."""

    items: Sequence[Any]
    following: Any = None
    """The token of the next page, if it is needed; UNSAID if the page has no usual name for it."""


class MalformedPage(StatedVerdict):
    """A page that came and cannot be read. It may come whole the next time, so the service asks for it again."""

    kind = Kind.AMBIGUOUS

    def __init__(self, message: str, body: str | bytes | None) -> None:
        super().__init__(message)
        self.body = body


class PageWithoutList(MalformedPage):
    """A page that came as JSON and holds no list: an answer, which the breaker does not count.

    Otherwise two such pages would open the circuit, and stop the reading of all others. A body that is no JSON counts:
    it is often the error page of a proxy.
    """

    verdict_rule = NO_LIST


class PageReader:
    """Reads pages.

    items      where the list is; None: the page itself, a usual name, or the only list in it
    following  where the page has the next token; None: under a usual name
    asks_next  whether the token of the next page is needed
    """

    def __init__(self, items: Finder | None, following: Finder | None, *, asks_next: bool) -> None:
        self._items = items
        self._following = following
        self._asks_next = asks_next

    def compared_options(self) -> dict[str, Any]:
        """See `ComparesOptions`. A function is not compared with another one."""
        result = {"items": self._items, "following": self._following}
        return {name: "a function" if callable(finder) else finder for name, finder in result.items()}

    def page(self, fetched: Any) -> Page:
        """Return the page in what was fetched; `MalformedPage` where there is none."""
        if response_status(fetched) == 204:
            return Page(())
        with _malformed_unless_json(fetched):
            value = decoded(fetched)
        return self._find(value, fetched)

    async def apage(self, fetched: Any) -> Page:
        """Return the same, for libraries whose bodies have to be awaited."""
        if response_status(fetched) == 204:
            return Page(())
        with _malformed_unless_json(fetched):
            value = decoded(fetched)
            if isawaitable(value):
                value = await value
        return self._find(value, fetched)

    def _find(self, value: Any, fetched: Any) -> Page:
        try:
            items = self._find_items(value)
            return Page(items, self._find_following(value) if self._asks_next else None)
        except _NotThere as missing:
            raise PageWithoutList(str(missing), body_of(fetched)) from missing.__cause__

    def _find_items(self, value: Any) -> Sequence[Any]:
        where = self._items
        if callable(where):
            result, name = _call_finder("items", where, value), "what items gave"
        elif where is not None:
            result, name = _at(value, where), repr(where)
            if result is UNSAID:
                raise _NotThere(f"there is no {where!r} in the page")
        else:
            result, name = _usual_list(value), "the page"
        if not isinstance(result, list | tuple):
            raise _NotThere(f"{name} is {_type_name(result)}, not a list")
        return result

    def _find_following(self, value: Any) -> Any:
        where = self._following
        if callable(where):
            return _call_finder("following", where, value)
        if not isinstance(value, Mapping):
            raise SourceError(
                "the page is a list, which has no names in it: pass following= a function that returns "
                "the next cursor of a page"
            )
        if where is not None:
            result = _at(value, where)
            return None if result is UNSAID else result
        return next((value[name] for name in _NEXT if name in value), UNSAID)


def decoded(fetched: Any) -> Any:
    """Return what was fetched as lists and objects; something to await where its library has it so."""
    if isinstance(fetched, list | tuple | Mapping):
        return fetched
    if isinstance(fetched, str | bytes | bytearray):
        return loads(fetched)
    status = response_status(fetched)
    if status is not None and 300 <= status < 400:
        raise SourceError(f"the answer is a redirect, HTTP {status}: let the HTTP client follow redirects")
    if callable(as_json := attribute(fetched, "json")):
        return _exactly(as_json, fetched)
    if status is not None and callable(read := attribute(fetched, "read")):
        return loads(read())
    raise SourceError(
        f"fetch gave {_type_name(fetched)}: it must give a list of records, an object that holds one, a response, "
        "or JSON"
    )


def _exactly(as_json: Callable[..., Any], fetched: Any) -> Any:
    """Return the body by a response's own json(), numbers exact if its library has an option for it."""
    try:
        options = signature(as_json).parameters.values()
    except (TypeError, ValueError):
        return as_json()
    if any(option.name == "loads" for option in options):  # aiohttp
        return as_json(loads=loads)
    if any(option.kind is option.VAR_KEYWORD for option in options):  # httpx, requests
        return as_json(parse_float=exact)
    data = attribute(fetched, "data")  # urllib3
    return loads(data) if isinstance(data, bytes) else as_json()


def body_of(fetched: Any) -> str | bytes | None:
    """Return what was fetched as text, or as bytes where it is none; its beginning, if it is very long."""
    if isinstance(fetched, list | tuple | Mapping):
        try:
            return json.dumps(fetched, default=str, ensure_ascii=False)[:_LONGEST_BODY]
        except (TypeError, ValueError):  # keys that JSON has not, or a cycle
            return repr(fetched)[:_LONGEST_BODY]
    if isinstance(fetched, str):
        return fetched[:_LONGEST_BODY]
    body = fetched if isinstance(fetched, bytes | bytearray) else attribute(fetched, "content")
    if not isinstance(body, bytes | bytearray):
        return body_in_memory(fetched)
    try:
        return body.decode()[:_LONGEST_BODY]
    except UnicodeDecodeError:
        return bytes(body[:_LONGEST_BODY])


class _NotThere(Exception):
    """The page lacks what was looked for."""


@contextmanager
def _malformed_unless_json(fetched: Any) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if is_interrupt(error):
            raise
        # Every library has its own error; endless nesting is a fault of the data as well, not of the program.
        if not isinstance(error, RecursionError) and classify(error, "row").kind is not Kind.ROW:
            raise
        raise MalformedPage(f"the body is no JSON: {error}", body_of(fetched)) from error


def _call_finder(option: str, function: Callable[[Any], Any], value: Any) -> Any:
    try:
        return function(value)
    except Exception as error:
        if is_interrupt(error):
            raise
        raise _NotThere(f"{option} raised {type(error).__name__}: {error}") from error


def _at(value: Any, path: str) -> Any:
    """Return what stands at a path of names; a name may have dots of its own."""
    if isinstance(value, Mapping) and path in value:
        return value[path]
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return UNSAID
        value = value[name]
    return value


def _usual_list(value: Any) -> Any:
    """Return the page itself, the list under a usual name, or the only one there is."""
    if not isinstance(value, Mapping):
        return value
    for name in _LISTS:
        if name in value:
            if isinstance(value[name], list | tuple):
                return value[name]
            raise _NotThere(f"{name!r} is {_type_name(value[name])}, not a list; name the list with items=")
    lists = [name for name in value if isinstance(value[name], list | tuple) and name not in _NO_ITEMS]
    if len(lists) > 1:
        raise SourceError(f"the page has several lists, {', '.join(map(repr, lists))}: name one with items=")
    if not lists:
        raise _NotThere(f"there is no list in the page ({_names(value)}); name it with items=")
    return value[lists[0]]


def _names(value: Mapping[Any, Any]) -> str:
    shown = ", ".join(map(repr, list(value)[:5]))
    return f"it has {shown}{' …' if len(value) > 5 else ''}" if value else "it is empty"


def _type_name(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "a number"
    return _WORDS.get(type(value)) or f"a {type(value).__name__}"
