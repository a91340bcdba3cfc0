"""The careful way to take CSV apart: one record at a time, and what is wrong with it where it is none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from redrive.rows.sources.csv.record_end import NOT_CLOSED, RecordScan, line_end

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
        return re.compile(b"[\r\n" + re.escape(self.delimiter) + b"]")

    @cached_property
    def odd_field(self) -> re.Pattern[bytes]:
        """A field that is not quoted, and that a fast parser would misread."""
        delimiter, odd = re.escape(self.delimiter), re.escape(self.shield)
        start = b"(?:(?<=" + delimiter + b")|^)"
        return re.compile(start + b"[^" + delimiter + odd + b"]*" + odd + b"[^" + delimiter + b"]*")


class Field(NamedTuple):
    """One field, without its quotes."""

    text: bytes
    quoted: bool

    def value(self, dialect: Dialect, encoding: str) -> str | None:
        """What it stands for."""
        return None if not self.quoted and self.text in dialect.null else self.text.decode(encoding)


class ScannedRecord(NamedTuple):
    """A record: where the next one begins, and its fields, or why it has none. An empty line has neither."""

    end: int
    fields: list[Field] | None = None
    error: str | None = None


def record_at(data: bytes, start: int, dialect: Dialect, width: int | None, *, final: bool) -> ScannedRecord | None:
    """Return the record that begins at `start`; None where its end is not in `data` and more may come.

    The lines of a quoted field belong to their record, whatever the number of its fields. A record whose quotes are not
    well-formed goes as far as `RecordScan` says.

    width  how many fields a record has; None takes any number
    final  nothing comes after `data`, which ends with a line end then
    """
    found_end = line_end(data, start, final=final)
    if found_end is None:
        return None
    stop, after = found_end
    if stop == start:
        # Where there is one column, an empty line is what others write for a row without a value.
        return ScannedRecord(after, [Field(b"", quoted=False)] if width == 1 else None)
    line = data[start:stop]
    if not dialect.opens_quote(line):
        fields = [Field(text, quoted=False) for text in line.split(dialect.delimiter)]
        return _of_width(after, fields, dialect, width)
    try:
        return _walk(data, start, dialect, width, final=final)
    except _EndsBeforeIt:
        return ScannedRecord(len(data), error=NOT_CLOSED) if final else None
    except _TextAfterQuote:
        scan = RecordScan(dialect.delimiter, dialect.quote)
        ended, end = scan.advance(data, start, final=final)
        return ScannedRecord(end, error=scan.error) if ended else None


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
    """A closing quote is followed by neither a delimiter nor a line end."""


def _of_width(end: int, fields: list[Field], dialect: Dialect, width: int | None) -> ScannedRecord:
    if width is None or len(fields) == width:
        return ScannedRecord(end, fields)
    return ScannedRecord(end, error=dialect.ragged(len(fields), width))


def _walk(data: bytes, start: int, dialect: Dialect, width: int | None, *, final: bool) -> ScannedRecord:
    """Go from field to field to the end of the record."""
    assert dialect.quote is not None
    fields: list[Field] = []
    at = start
    while True:
        if at == len(data):
            raise _EndsBeforeIt
        take = _quoted if data[at] == dialect.quote[0] else _unquoted
        field, at = take(data, at, dialect)
        fields.append(field)
        if data[at] == dialect.delimiter[0]:
            at += 1
            continue
        if data[at] not in (_LF, _CR):
            raise _TextAfterQuote
        end = line_end(data, at, final=final)
        if end is None:
            raise _EndsBeforeIt
        return _of_width(end[1], fields, dialect, width)


def _quoted(data: bytes, at: int, dialect: Dialect) -> tuple[Field, int]:
    assert dialect.quote is not None
    close = _closing(data, at + 1, dialect.quote)
    return Field(data[at + 1 : close].replace(dialect.quote * 2, dialect.quote), quoted=True), close + 1


def _unquoted(data: bytes, at: int, dialect: Dialect) -> tuple[Field, int]:
    match = dialect.field_end.search(data, at)
    if match is None:
        raise _EndsBeforeIt
    return Field(data[at : match.start()], quoted=False), match.start()


def _closing(data: bytes, at: int, quote: bytes) -> int:
    """Where the quoted field is closed; two quotes together are one that belongs to the text."""
    while True:
        close = data.find(quote, at)
        if close < 0 or close + 1 == len(data):
            raise _EndsBeforeIt
        if data[close + 1] != quote[0]:
            return close
        at = close + 2
