"""Find where a CSV record ends that is not well-formed, or that is too large to be held in memory.

A record ends where Python's `csv` module ends it, with one exception. Text may follow a closing quote on a later line
than the one on which the field was opened: then either that quote is text, or the opening quote was never closed. The
two readings take different line ends for the end of a record. The scan follows all readings at once and ends the record
where every one of them ends a record, so that no reading of the following rows depends on a guess.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

NOT_CLOSED = "a quote is not closed"
TEXT_AFTER_QUOTE = "text after a closing quote"
AMBIGUOUS = "a quote is not closed, or text follows a closing quote on a later line"
QUOTE_ERRORS = frozenset({NOT_CLOSED, TEXT_AFTER_QUOTE, AMBIGUOUS})

_LF, _CR = 10, 13
_LINE_END = re.compile(rb"\r\n?|\n")

# The states of a reading, as bits of a set: at the start of a field, in an unquoted field, in a quoted field, behind a
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
    """Where the line ends and the next one begins; None where that is not in the data and more may come."""
    match = _LINE_END.search(data, at)
    if match is None or (match.end() == len(data) and match[0] == b"\r" and not final):
        return None
    return match.span()


def count_lines(data: bytes) -> int:
    """The number of line ends."""
    returns = data.count(b"\r")
    return data.count(b"\n") + (returns - data.count(b"\r\n") if returns else 0)


@lru_cache(maxsize=64)
def _step(states: int, kind: int) -> int:
    """The states that all readings are in behind a token."""
    after = 0
    for state, following in _NEXT.items():
        if states & state:
            after |= following[kind]
    return after
