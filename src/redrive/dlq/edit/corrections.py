"""Corrections of a record before a replay, and what they changed."""

from __future__ import annotations

import builtins
import copy
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from redrive.model.letters import ABSENT, Change
from redrive.store.encoding import encode

_PLAIN_KEY = re.compile(r"[^\W\d]\w*")

_NAMES: dict[str, Any] = {
    "__builtins__": builtins,
    "Decimal": Decimal,
    "date": date,
    "datetime": datetime,
    "json": json,
    "math": math,
    "re": re,
    "timedelta": timedelta,
}


def merge_patch(record: Any, patch: Any) -> Any:
    """The record after a JSON merge patch (RFC 7396): objects are merged, None removes a key, all else replaces."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(record) if isinstance(record, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def expression(source: str) -> Callable[[Any], Any]:
    """A function that gives the new record, from one Python expression over `record`.

    `{**record, "fee": Decimal(record["fee"].replace(",", "."))}`. Beside the builtins the expression knows Decimal,
    date, datetime, timedelta, json, math and re. It gets a copy, so it may change `record` in place; what counts is its
    value. What it raises comes through. It is code and may do anything: take it only from those who may deploy.
    """
    if not isinstance(source, str):
        raise TypeError(f"an edit is Python text, not {source!r}")
    source = source.strip()
    try:
        code = compile(source, "<edit>", "eval")
    except SyntaxError as error:
        raise ValueError(_complaint(source, error)) from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise ValueError(f"the edit cannot be read as Python: {error or type(error).__name__}") from None

    def edit(record: Any) -> Any:
        # Globals, not locals: comprehensions and lambdas see nothing else.
        return eval(code, {**_NAMES, "record": copy.deepcopy(record)})

    return edit


def _complaint(source: str, error: SyntaxError) -> str:
    if not source:
        return "the edit is empty; write an expression whose value is the new record"
    try:
        compile(source, "<edit>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        number, column = error.lineno or 1, error.offset or 1
        line = [*source.splitlines(), ""][number - 1]
        place = f"{line[: column - 1][-40:]} >>> {line[column - 1 :][:40]}"
        return f"the edit is no Python expression: {error.msg} (line {number}, column {column}): {place}"
    shown = " ".join(source.split())[:80]
    return f'the edit is a statement; write an expression such as {{**record, "fee": 0}} instead of: {shown}'


def diff(before: Any, after: Any) -> list[Change]:
    """Return where two records differ, in the order of the first and then of what the second adds.

    A value of another type is another value: 1, True, 1.0 and Decimal(1) all differ, NaN does not from NaN.
    """
    return list(_changes("", before, after))


def _changes(path: str, before: Any, after: Any) -> Iterator[Change]:
    if type(before) is type(after) is dict:
        # 1 and True are one key to a dict, but not to us.
        old, new = ({(type(key), key): value for key, value in each.items()} for each in (before, after))
        for kind_and_key in [*old, *(each for each in new if each not in old)]:
            here = path + _step(kind_and_key[1], first=not path)
            yield from _changes(here, old.get(kind_and_key, ABSENT), new.get(kind_and_key, ABSENT))
    elif type(before) is type(after) and type(before) in (list, tuple):
        for index in range(max(len(before), len(after))):
            old_item = before[index] if index < len(before) else ABSENT
            new_item = after[index] if index < len(after) else ABSENT
            yield from _changes(f"{path}[{index}]", old_item, new_item)
    elif not _is_same(before, after):
        yield Change(path, before, after)


def _step(key: object, *, first: bool) -> str:
    if not isinstance(key, str):
        return f"[{key!r}]"
    if not _PLAIN_KEY.fullmatch(key):
        return f"[{json.dumps(key, ensure_ascii=False)}]"
    return key if first else f".{key}"


def _is_same(before: Any, after: Any) -> bool:
    # The encoding distinguishes what Python calls equal and we do not, and calls NaN the same as NaN.
    return before is after or (type(before) is type(after) and encode(before) == encode(after))
