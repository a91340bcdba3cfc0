"""Lines of JSON: the record of a line, or why it is none. Used by `rows.ndjson`."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import orjson

from redrive.rows.batch import Record, Unreadable
from redrive.rows.sources.csv.scanner import BEGINNING, TOO_LARGE
from redrive.rows.sources.ndjson.numbers import has_long_number, is_exact, loads

_SIDE_BY_SIDE = re.compile(rb"\}\s*\{")
_JSON_SIGNS = '{}[]":,\\ \t\r\n0'


class LineStart(bytes):
    """The beginning of a line that is longer than the source takes."""

    size: int
    """Bytes of the whole line."""

    @classmethod
    def of(cls, line: bytes, size: int, most: int) -> LineStart:
        made = cls(line[: min(BEGINNING, most)])
        made.size = size
        return made


def parsed(
    lines: Sequence[bytes], first: int, encoding: str, most: int
) -> tuple[list[Record], Sequence[int], list[Unreadable]]:
    """Return the records with the numbers of their lines, and the lines that hold none."""
    if encoding == "utf-8" and LineStart not in set(map(type, lines)):
        try:
            decoded = list(map(orjson.loads, lines))
        except orjson.JSONDecodeError:
            pass
        else:
            are_objects = all(type(item) is dict for item in decoded)
            if are_objects and (not has_long_number(b"".join(lines)) or all(map(is_exact, lines, decoded))):
                return decoded, range(first, first + len(decoded)), []
    return _parsed_one_by_one(lines, first, encoding, most)


def _parsed_one_by_one(
    lines: Sequence[bytes], first: int, encoding: str, most: int
) -> tuple[list[Record], Sequence[int], list[Unreadable]]:
    rows: list[Record] = []
    numbers: list[int] = []
    unreadable: list[Unreadable] = []
    for number, ended in enumerate(lines, first):
        if isinstance(ended, LineStart):
            error = f"the record has {ended.size:,} bytes, and max_record_bytes is {most:,}"
            unreadable.append(Unreadable({TOO_LARGE: bytes(ended)}, error, f"line {number}"))
            continue
        line = ended.rstrip(b"\r\n")
        if not line.strip():
            continue
        try:
            rows.append(record_of(line, encoding))
            numbers.append(number)
        except ValueError as wrong:
            unreadable.append(Unreadable(line, str(wrong), f"line {number}", rows=_rows_in(line)))
    return rows, numbers, unreadable


def is_object(line: bytes, encoding: str) -> bool:
    """Return whether a line is a record; one that is too long to be read counts by its beginning."""
    if not line.lstrip().startswith(b"{"):
        return False
    if isinstance(line, LineStart):
        return True
    try:
        record_of(line, encoding)
    except ValueError:
        return False
    return True


def _rows_in(line: bytes) -> int:
    """Return how many rows an invalid line counts as: an array by its items, several objects one by one."""
    if line.lstrip().startswith(b"["):
        with suppress(ValueError):
            return max(1, len(orjson.loads(line)))
    return 1 + len(_SIDE_BY_SIDE.findall(line))


def record_of(line: bytes, encoding: str) -> Record:
    if encoding == "utf-8":
        try:
            result = orjson.loads(line)
        except orjson.JSONDecodeError:  # also for what Python's json takes, and to have its words
            pass
        else:
            if not has_long_number(line) or is_exact(line, result):
                return _object(result)
    return record(decoded(line, encoding))


def record(text: str) -> Record:
    try:
        return _object(loads(text))
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON at column {error.colno}: {error.msg.removesuffix(' at')}") from None
    except RecursionError:
        raise ValueError("no JSON that can be read: it is nested too deep") from None


def _object(found: Any) -> Record:
    if type(found) is not dict:
        raise ValueError(f"a record is a JSON object, not {_NAMES.get(type(found), 'a number')}")
    return found


_NAMES = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


def decoded(line: bytes, encoding: str) -> str:
    try:
        return line.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"no {encoding}: byte 0x{line[error.start]:02x} at place {error.start + 1}") from None


def known_encoding(encoding: str) -> str:
    """Return the name of an encoding in Python; lines must be separable by their bytes."""
    try:
        name = codecs.lookup(encoding).name.removesuffix("-sig")
        told_by_bytes = _JSON_SIGNS.encode(name) == _JSON_SIGNS.encode()
    except (LookupError, TypeError):
        raise ValueError(f"{encoding!r} is not an encoding that Python knows") from None
    if not told_by_bytes:
        raise ValueError(f"lines in {encoding} cannot be separated by their bytes: convert the file to UTF-8 first")
    return name
