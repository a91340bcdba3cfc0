"""The careful way to take CSV apart: one record at a time, and what is wrong with it where it is none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

LONGEST = 16 << 20
"""How far a record may go over several lines, in bytes; a quote that is open for longer was never closed."""

_LF, _CR = 10, 13


@dataclass(frozen=True)
class Dialect:
    """How the fields of a file are written.

    null       texts that stand for no value where they are not quoted
    has_header the first record names the columns
    """

    delimiter: bytes = b","
    quote: bytes | None = b'"'
    null: frozenset[bytes] = frozenset({b""})
    has_header: bool = True

    @property
    def shield(self) -> bytes:
        """What quotes a field that a fast parser would misread: the quote, or else what hardly ever occurs."""
        if self.quote is not None:
            return self.quote
        return b"\x01" if self.delimiter != b"\x01" else b"\x02"

    def ragged(self, fields: int, width: int) -> str:
        """What is wrong with a record that has too few fields or too many."""
        wanted = f"the header has {width}" if self.has_header else f"there should be {width}"
        return f"{fields} field{'s' if fields != 1 else ''} where {wanted}"

    def opens_quote(self, line: bytes) -> bool:
        """Whether a field of this line may be quoted; a quote within a field is a part of it."""
        quote = self.quote
        return quote is not None and quote in line and (line.startswith(quote) or self.delimiter + quote in line)

    @cached_property
    def field_end(self) -> re.Pattern[bytes]:
        return re.compile(b"[\n" + re.escape(self.delimiter) + b"]")

    @cached_property
    def odd_field(self) -> re.Pattern[bytes]:
        """A field that is not quoted, and that a fast parser would misread."""
        delimiter, odd = re.escape(self.delimiter), b"\r" + re.escape(self.shield)
        start = b"(?:(?<=" + delimiter + b")|^)"
        return re.compile(start + b"[^\n" + delimiter + odd + b"]*[" + odd + b"][^\n" + delimiter + b"]*")


class Field(NamedTuple):
    """One field, without its quotes."""

    text: bytes
    quoted: bool

    def value(self, dialect: Dialect, encoding: str) -> str | None:
        """What it stands for."""
        return None if not self.quoted and self.text in dialect.null else self.text.decode(encoding)


class Found(NamedTuple):
    """A record: where the next one begins, and its fields, or why it has none. An empty line has neither."""

    end: int
    fields: list[Field] | None = None
    error: str | None = None


def record_at(data: bytes, start: int, dialect: Dialect, width: int | None, *, final: bool) -> Found | None:
    """The record that begins at `start`; None where its end is not in `data` and more may come.

    A record that goes on over several lines must be whole and of the right width. Otherwise it is the first line's
    quote that was not closed, and the following lines are records of their own.

    width  how many fields a record has; None takes any number
    final  nothing comes after `data`, which ends with a line end then
    """
    line_end = data.find(b"\n", start)
    if line_end < 0:
        return None
    after = line_end + 1
    line = without_line_end(data[start:after])
    if not line:
        return Found(after)
    if not dialect.opens_quote(line):
        fields = [Field(text, quoted=False) for text in line.split(dialect.delimiter)]
        return _of_width(after, fields, dialect, width)
    found = None
    try:
        found = _walk(data, start, line_end, dialect, width)
    except _EndsBeforeIt:
        if not final and len(data) - start < LONGEST:
            return None
    except _TextAfterQuote:
        return Found(after, error="text after a closing quote")
    if found is not None and (found.end == after or (found.error is None and found.end - start <= LONGEST)):
        return found
    return Found(after, error="a quote is not closed")


def shielded(raw: bytes, dialect: Dialect) -> bytes:
    """The same record in a form that no parser can misread: a field with anything odd in it is quoted."""
    line = without_line_end(raw)
    if not dialect.opens_quote(line):
        return dialect.odd_field.sub(lambda field: _in_quotes(field[0], dialect.shield), line) + b"\n"
    found = record_at(raw, 0, dialect, None, final=True)
    assert found is not None
    assert found.fields is not None
    odd = dialect.odd_field.search
    texts = [_in_quotes(text, dialect.shield) if quoted or odd(text) else text for text, quoted in found.fields]
    return dialect.delimiter.join(texts) + b"\n"


def without_line_end(raw: bytes) -> bytes:
    """A record as a person sees it."""
    return raw.removesuffix(b"\n").removesuffix(b"\r")


def _in_quotes(text: bytes, quote: bytes) -> bytes:
    return quote + text.replace(quote, quote * 2) + quote


class _EndsBeforeIt(Exception):
    """The data ends inside the record."""


class _TextAfterQuote(Exception):
    """On the first line of a record."""


def _of_width(end: int, fields: list[Field], dialect: Dialect, width: int | None) -> Found:
    if width is None or len(fields) == width:
        return Found(end, fields)
    return Found(end, error=dialect.ragged(len(fields), width))


def _walk(data: bytes, start: int, line_end: int, dialect: Dialect, width: int | None) -> Found | None:
    """Go from field to field; None where the record goes on over several lines and is none after all."""
    assert dialect.quote is not None
    fields: list[Field] = []
    at = start
    while at <= line_end or width is None or len(fields) < width:
        if at == len(data):
            raise _EndsBeforeIt
        take = _quoted if data[at] == dialect.quote[0] else _unquoted
        field, at = take(data, at, dialect)
        fields.append(field)
        if data[at] == _LF:
            return _of_width(at + 1, fields, dialect, width)
        if data[at] != dialect.delimiter[0]:
            if at <= line_end:
                raise _TextAfterQuote
            break
        at += 1
    return None


def _quoted(data: bytes, at: int, dialect: Dialect) -> tuple[Field, int]:
    assert dialect.quote is not None
    close = _closing(data, at + 1, dialect.quote)
    field = Field(data[at + 1 : close].replace(dialect.quote * 2, dialect.quote), quoted=True)
    after = close + 1
    if data[after] == _CR:
        if after + 1 == len(data):
            raise _EndsBeforeIt
        after += data[after + 1] == _LF
    return field, after


def _unquoted(data: bytes, at: int, dialect: Dialect) -> tuple[Field, int]:
    match = dialect.field_end.search(data, at)
    if match is None:
        raise _EndsBeforeIt
    after = match.start()
    end = after - 1 if data[after] == _LF and after > at and data[after - 1] == _CR else after
    return Field(data[at:end], quoted=False), after


def _closing(data: bytes, at: int, quote: bytes) -> int:
    """Where the quoted field is closed; two quotes together are one that belongs to the text."""
    while True:
        close = data.find(quote, at)
        if close < 0 or close + 1 == len(data):
            raise _EndsBeforeIt
        if data[close + 1] != quote[0]:
            return close
        at = close + 2
