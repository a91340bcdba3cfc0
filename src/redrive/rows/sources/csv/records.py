"""Parse CSV one record at a time: where a record ends, its fields, and what is wrong with it.

This is the exact parser for records that are not well-formed or too large for memory; polars parses the others.

A record ends where Python's `csv` module ends it, with one exception. Text may follow a closing quote on a later line
than the one on which the field was opened: then either that quote is text, or the opening quote was never closed. The
two readings take different line ends for the end of a record. The scan follows all readings at once and ends the record
where every one of them ends a record, so that no reading of the following rows depends on a guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

NOT_CLOSED = "a quote is not closed"
TEXT_AFTER_QUOTE = "text after a closing quote"
AMBIGUOUS = "a quote is not closed, or text follows a closing quote on a later line"
QUOTE_ERRORS = frozenset({NOT_CLOSED, TEXT_AFTER_QUOTE, AMBIGUOUS})
_LF, _CR = 10, 13
_LINE_END = re.compile(rb"\r\n?|\n")
# The states of a reading, as bits of a set: at the start of a field, in an unquoted field, in a quoted field, after a
# quote that may close the field.
_START, _UNQUOTED, _QUOTED, _BEHIND_QUOTE = 1, 2, 4, 8
# What each state becomes at a quote, a delimiter, a line end and any other text.
_NEXT = {
    _START: (_QUOTED, _START, _START, _UNQUOTED),
    _UNQUOTED: (_UNQUOTED, _START, _START, _UNQUOTED),
    _QUOTED: (_BEHIND_QUOTE, _QUOTED, _QUOTED, _QUOTED),
    _BEHIND_QUOTE: (_QUOTED, _START, _START, _QUOTED | _UNQUOTED),
}
_AT_LINE_END, _AT_TEXT = 2, 3


class ScanProgress(NamedTuple):
    """Where a scan stands: at the end of the record, or where it continues when there is more data."""

    ended: bool
    at: int


class RecordScan:
    """A search for the end of one record. It can be continued with other data, from where it stopped.

    error  what is wrong with the quotes of the record, as far as it was scanned
    """

    def __init__(self, delimiter: bytes, quote: bytes | None) -> None:
        self.error: str | None = None
        self._quote = quote
        self._delimiter = delimiter
        self._field_end = re.compile(b"[\r\n" + re.escape(delimiter) + b"]")
        self._state = _START
        self._spans_lines = False  # of the quoted field, as far as it is no longer in the data

    def advance(self, data: bytes, at: int, *, final: bool) -> ScanProgress:
        """Scan from `at`; nothing comes after `final` data, so that the record ends in it."""
        progress = self._advance(data, at, final=final)
        if progress.ended or not final:
            return progress
        if self._state == _QUOTED and self.error != AMBIGUOUS:
            self.error = NOT_CLOSED
        return ScanProgress(True, len(data))

    def _advance(self, data: bytes, at: int, *, final: bool) -> ScanProgress:
        while self.error != AMBIGUOUS:
            if self._state == _QUOTED:
                closed, at = self._close(data, at)
                if not closed:
                    return ScanProgress(False, at)
                continue
            if at == len(data):
                return ScanProgress(False, at)
            if self._state == _START and self._quote is not None and data[at] == self._quote[0]:
                self._state, self._spans_lines = _QUOTED, False
                at += 1
                continue
            match = self._field_end.search(data, at)
            if match is None:
                self._state = _UNQUOTED
                return ScanProgress(False, len(data))
            if data[match.start()] != self._delimiter[0]:
                end = line_end(data, match.start(), final=final)
                # The line feed of a pair may be in the data that follows.
                self._state = _UNQUOTED
                return ScanProgress(False, match.start()) if end is None else ScanProgress(True, end[1])
            at, self._state = match.end(), _START
        return self._agree(data, at, final=final)

    def _close(self, data: bytes, at: int) -> tuple[bool, int]:
        """Return whether the quoted field is closed in the data, and where to continue."""
        assert self._quote is not None
        begin = at
        while True:
            close = data.find(self._quote, at)
            if close < 0 or close + 1 == len(data):
                # Not between a carriage return and its line feed, or the line end would be counted twice.
                stop = close if close >= 0 else len(data) - data.endswith(b"\r")
                self._spans_lines |= _LINE_END.search(data, begin, stop) is not None
                return False, stop
            if data[close + 1] != self._quote[0]:
                break
            at = close + 2
        after = data[close + 1]
        if after == self._delimiter[0]:
            self._state = _START
            return True, close + 2
        self._state = _UNQUOTED
        if after not in (_LF, _CR):
            if self._spans_lines or _LINE_END.search(data, begin, close) is not None:
                self.error = AMBIGUOUS
                self._state = _QUOTED | _UNQUOTED
            else:
                self.error = TEXT_AFTER_QUOTE
        return True, close + 1

    def _agree(self, data: bytes, at: int, *, final: bool) -> ScanProgress:
        """Go to the first line end at which all readings end a record."""
        assert self._quote is not None
        quote, delimiter = re.escape(self._quote), re.escape(self._delimiter)
        token = re.compile(b"(" + quote + b")|(" + delimiter + b")|(\r\n?|\n)|[^\r\n" + quote + delimiter + b"]+")
        while at < len(data):
            match = token.match(data, at)
            assert match is not None
            if match.end() == len(data) and match[0] == b"\r" and not final:
                break
            kind = _AT_TEXT if match.lastindex is None else match.lastindex - 1
            self._state = _step(self._state, kind)
            at = match.end()
            if kind == _AT_LINE_END:
                if self._state == _START:
                    return ScanProgress(True, at)
                if self._state == _START | _QUOTED:
                    at = self._line_of_next_quote(data, at, final=final)
        return ScanProgress(False, at)

    def _line_of_next_quote(self, data: bytes, at: int, *, final: bool) -> int:
        """Skip lines without a quote, which change nothing."""
        assert self._quote is not None
        quote = data.find(self._quote, at)
        stop = quote if quote >= 0 else len(data) - (data.endswith(b"\r") and not final)
        return max(at, data.rfind(b"\n", at, stop) + 1, data.rfind(b"\r", at, stop) + 1)


def line_end(data: bytes, at: int, *, final: bool) -> tuple[int, int] | None:
    """Return where the line ends and the next one begins; None if that is not in the data and more may come."""
    match = _LINE_END.search(data, at)
    if match is None or (match.end() == len(data) and match[0] == b"\r" and not final):
        return None
    return match.span()


def count_lines(data: bytes) -> int:
    """Return the number of line ends."""
    returns = data.count(b"\r")
    return data.count(b"\n") + (returns - data.count(b"\r\n") if returns else 0)


@lru_cache(maxsize=64)
def _step(states: int, kind: int) -> int:
    """Return the states that all readings are in after a token."""
    after = 0
    for state, following in _NEXT.items():
        if states & state:
            after |= following[kind]
    return after


@dataclass(frozen=True)
class CsvDialect:
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
        """Return what quotes a field that a fast parser would misread: the quote, or else what hardly ever occurs."""
        if self.quote is not None:
            return self.quote
        return b"\x01" if self.delimiter != b"\x01" else b"\x02"

    def ragged(self, fields: int, width: int) -> str:
        """Return what is wrong with a record that has too few fields or too many."""
        wanted = f"the header has {width}" if self.has_header else f"there should be {width}"
        return f"{fields} field{'s' if fields != 1 else ''} where {wanted}"

    def opens_quote(self, line: bytes) -> bool:
        """Return whether a field of this line may be quoted; a quote within a field is a part of it."""
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

    def value(self, dialect: CsvDialect, encoding: str) -> str | None:
        """Return what it stands for."""
        return None if not self.quoted and self.text in dialect.null else self.text.decode(encoding)


class ScannedRecord(NamedTuple):
    """A record: where the next one begins, and its fields, or why it has none. An empty line has neither."""

    end: int
    fields: list[Field] | None = None
    error: str | None = None


def record_at(data: bytes, start: int, dialect: CsvDialect, width: int | None, *, final: bool) -> ScannedRecord | None:
    """Return the record that begins at `start`; None if its end is not in `data` and more may come.

    The lines of a quoted field belong to their record, whatever the number of its fields. A record whose quotes are not
    well-formed extends as far as `RecordScan` finds.

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


def shielded(raw: bytes, dialect: CsvDialect) -> bytes:
    """Return the same record in a form that no parser can misread: a field with anything odd in it is quoted."""
    line = without_line_end(raw)
    if not dialect.opens_quote(line):
        return dialect.odd_field.sub(lambda field: _in_quotes(field[0], dialect.shield), line) + b"\n"
    record = record_at(raw, 0, dialect, None, final=True)
    assert record is not None
    assert record.fields is not None
    odd = dialect.odd_field.search
    texts = [_in_quotes(text, dialect.shield) if quoted or odd(text) else text for text, quoted in record.fields]
    return dialect.delimiter.join(texts) + b"\n"


def without_line_end(raw: bytes) -> bytes:
    """Return a record as a text editor shows it."""
    return raw.removesuffix(b"\n").removesuffix(b"\r")


def _in_quotes(text: bytes, quote: bytes) -> bytes:
    return quote + text.replace(quote, quote * 2) + quote


class _EndsBeforeIt(Exception):
    """The data ends inside the record."""


class _TextAfterQuote(Exception):
    """A closing quote is followed by neither a delimiter nor a line end."""


def _of_width(end: int, fields: list[Field], dialect: CsvDialect, width: int | None) -> ScannedRecord:
    if width is None or len(fields) == width:
        return ScannedRecord(end, fields)
    return ScannedRecord(end, error=dialect.ragged(len(fields), width))


def _walk(data: bytes, start: int, dialect: CsvDialect, width: int | None, *, final: bool) -> ScannedRecord:
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


def _quoted(data: bytes, at: int, dialect: CsvDialect) -> tuple[Field, int]:
    assert dialect.quote is not None
    close = _closing(data, at + 1, dialect.quote)
    return Field(data[at + 1 : close].replace(dialect.quote * 2, dialect.quote), quoted=True), close + 1


def _unquoted(data: bytes, at: int, dialect: CsvDialect) -> tuple[Field, int]:
    match = dialect.field_end.search(data, at)
    if match is None:
        raise _EndsBeforeIt
    return Field(data[at : match.start()], quoted=False), match.start()


def _closing(data: bytes, at: int, quote: bytes) -> int:
    """Return where the quoted field is closed; two quotes together are one that belongs to the text."""
    while True:
        close = data.find(quote, at)
        if close < 0 or close + 1 == len(data):
            raise _EndsBeforeIt
        if data[close + 1] != quote[0]:
            return close
        at = close + 2
