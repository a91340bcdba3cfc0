"""Where the records of a block of CSV are: found for all of them at once, and carefully where that fails.

Quotes are well-formed where every other one stands at the start of a field and those between at the end of one; two
together close and open the field at once, which keeps the count right. Line ends with an even number of quotes before
them end a record then, and delimiters with an even number part its fields. What does not fit is handed to the careful
way, record by record, until it fits again. A line ends with a line feed, a carriage return, or both.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from redrive._internal.optional import require_extra
from redrive.rows.sources.csv.records import (
    QUOTE_ERRORS,
    CsvDialect,
    count_lines,
    record_at,
    shielded,
    without_line_end,
)

with require_extra("rows"):
    import numpy as np
    from numpy.typing import NDArray

Places = NDArray[np.intp]

_CAREFUL_IN_A_ROW = 16  # faults come in groups, and another scan of the block costs as much as this many records
_LF, _CR = 10, 13


class BadRecord(NamedTuple):
    """What is wrong with a record that is not a row.

    rows  how many rows it may be: of several lines, each may be a row that a wrong quote made part of the record
    raw   what the letter holds where that is not the record
    """

    error: str
    rows: int = 1
    raw: dict[str, bytes] | None = None


TOO_LARGE = "too_large"
"""The field of a letter that holds the beginning of a record larger than the source takes."""

BEGINNING = 1 << 16
"""Bytes of it that are kept."""


def too_large(beginning: bytes, size: int, lines: int, most: int, error: str | None = None) -> BadRecord:
    """Return what is wrong with a record of more than `most` bytes; an error of its quotes may be the reason."""
    text = f"the record has {size:,} bytes, and max_record_bytes is {most:,}"
    return BadRecord(
        f"{error}: {text}" if error in QUOTE_ERRORS else text, lines, {TOO_LARGE: beginning[: min(BEGINNING, most)]}
    )


@dataclass(slots=True)
class RecordBlock:
    """The records of some bytes of a file.

    starts, ends  where each record begins, and where it ends with its line end; empty lines are left out
    lines         the number of each record's first line
    rest, line    where the last whole record ends, and the number of the line there
    bad           what is wrong with a record that is not a row
    rewritten     the record in another form where a fast parser would misread it
    parsed        the data in which every record ends with a line feed, where some end with a carriage return alone
    """

    data: bytes
    starts: Places
    ends: Places
    lines: Places
    rest: int
    line: int
    bad: dict[int, BadRecord] = field(default_factory=dict)
    rewritten: dict[int, bytes] = field(default_factory=dict)
    parsed: bytes | None = None

    @classmethod
    def empty(cls, line: int) -> RecordBlock:
        """No records, where a line begins."""
        none = np.empty(0, np.intp)
        return cls(b"", none, none, none, 0, line)

    def __len__(self) -> int:
        return len(self.starts)

    def raw(self, record: int) -> bytes:
        return self.data[self.starts[record] : self.ends[record]]

    def good_at(self, places: Places) -> list[int]:
        """Return the records in which these places are, each once, those left out that are bad."""
        records = np.unique(np.searchsorted(self.ends, places, "right")).tolist()
        return [record for record in records if record < len(self) and record not in self.bad]


def structure(data: bytes, line: int, dialect: CsvDialect, width: int, *, most: int, final: bool) -> RecordBlock:
    """Return the records that are whole in `data`, which begins with one; `line` is its number.

    width  how many fields a record has
    most   how many bytes a record may have
    final  nothing comes after `data`, which ends with a line end then
    """
    marks = _Marks(data, dialect, final=final)
    gathered = _RecordBatch(data, dialect, width)
    at, whole = 0, True
    while whole and at < len(data):
        at = gathered.add_run(marks.run(at), at)
        whole, at = gathered.add_carefully(at, final=final)
    starts, ends = gathered.bounds()
    first_lines = np.searchsorted(marks.newlines, starts)
    bad = {}
    for record, error in gathered.errors.items():
        lines = int(np.searchsorted(marks.newlines, ends[record]) - first_lines[record])
        raw = data[starts[record] : ends[record]]
        bad[record] = BadRecord(error, lines if lines == 1 else _rows_in(raw, error, lines, dialect, width))
    if len(data) > most:
        for record in np.flatnonzero(ends - starts > most).tolist():
            raw = without_line_end(data[starts[record] : ends[record]])
            if len(raw) > most:
                lines = int(np.searchsorted(marks.newlines, ends[record]) - first_lines[record])
                bad[record] = too_large(raw, len(raw), lines, most, gathered.errors.get(record))
    block = RecordBlock(
        data, starts, ends, line + first_lines, at, line + int(np.searchsorted(marks.newlines, at)), bad
    )
    block.rewritten = {record: raw for record, raw in gathered.rewritten.items() if record not in bad}
    _rewrite_literal_quotes(block, marks.literal, dialect)
    if len(marks.lone_returns):
        block.parsed = _with_line_feeds(data, ends)
    return block


def long_record(raw: bytes, line: int, dialect: CsvDialect, width: int) -> RecordBlock:
    """Return a block of one record, taken apart without the marks of `structure`, which need many times its size."""
    record = record_at(raw, 0, dialect, width, final=True)
    assert record is not None
    lines = count_lines(raw)
    starts, ends, first_line = (np.array([place], np.intp) for place in (0, len(raw), line))
    block = RecordBlock(raw, starts, ends, first_line, len(raw), line + lines)
    if record.error is not None:
        block.bad[0] = BadRecord(record.error, _rows_in(raw, record.error, lines, dialect, width))
    elif record.fields is None:
        return replace(RecordBlock.empty(line + lines), rest=len(raw))  # an empty line
    elif any(not quoted and dialect.shield in text for text, quoted in record.fields):
        block.rewritten[0] = shielded(raw, dialect)
    elif raw.endswith(b"\r"):
        block.parsed = raw[:-1] + b"\n"
    return block


def _rows_in(raw: bytes, error: str, lines: int, dialect: CsvDialect, width: int) -> int:
    """Return how many rows a record of several lines counts as.

    Where its quotes are wrong, all of its lines. Where they are closed it is one, and one more for each line between
    the first and the last that could be a row of its own: two stray quotes may have made it a part of the record.
    """
    if error in QUOTE_ERRORS:
        return lines
    return 1 + sum(line.count(dialect.delimiter) == width - 1 for line in raw.splitlines()[1:-1])


def skipped_record(taken: int, line: int, lines: int, bad: BadRecord) -> RecordBlock:
    """Return a block of one record that was not kept in memory; the rest begins after its `taken` bytes."""
    starts, ends, first_line = (np.array([place], np.intp) for place in (-taken, 0, line))
    return RecordBlock(b"", starts, ends, first_line, 0, line + lines, {0: bad})


class _Run(NamedTuple):
    """Records one after the other whose quotes are well-formed."""

    starts: Places
    ends: Places
    fields: Places


class _Side(NamedTuple):
    """What the marks mean if the first quote opens a field, or if the second one does.

    run      the records, if every quote is what it has to be
    misfits  quotes that cannot be
    """

    run: _Run
    delimiters: Places
    misfits: Places


class _Marks:
    """The line ends, delimiters and quotes of a block."""

    def __init__(self, data: bytes, dialect: CsvDialect, *, final: bool) -> None:
        self._bytes = np.frombuffer(data, np.uint8)
        self._dialect = dialect
        self.newlines = np.flatnonzero(self._bytes == _LF)
        self.lone_returns = self._lone_returns(final=final) if b"\r" in data else self.newlines[:0]
        if len(self.lone_returns):
            self.newlines = np.sort(np.concatenate((self.newlines, self.lone_returns)))
        self._delimiters = np.flatnonzero(self._bytes == dialect.delimiter[0])
        signs = np.flatnonzero(self._bytes == dialect.shield[0]) if dialect.shield in data else np.empty(0, np.intp)
        opens = dialect.quote is not None and self._opens_field(signs).any()
        # Where no field begins with a quote, all of them are text.
        self._quotes: Places = signs if opens else signs[:0]
        self.literal: Places = signs[:0] if opens else signs
        self._sides: dict[int, _Side] = {}

    def run(self, at: int) -> _Run:
        """Return the records from `at` up to the first that must be looked at carefully."""
        side = self._side(int(np.searchsorted(self._quotes, at)) & 1)
        misfit = _first_from(at, side.misfits, len(self._bytes))
        first, last = np.searchsorted(side.run.ends, (at, misfit), "right").tolist()
        # What lies before `at` went another way, so that the first record may begin elsewhere than its side has it.
        head = self._measured(np.array([at])[: last - first], side.run.ends[first:last][:1], side.delimiters)
        if not len(head.starts):
            return head
        return _Run(
            *(np.concatenate((item, rest[first + 1 : last])) for item, rest in zip(head, side.run, strict=True))
        )

    def _side(self, parity: int) -> _Side:
        if parity not in self._sides:
            self._sides[parity] = self._judged(parity)
        return self._sides[parity]

    def _judged(self, parity: int) -> _Side:
        quotes, newlines, delimiters = self._quotes, self.newlines, self._delimiters
        if len(quotes):
            newlines = newlines[np.searchsorted(quotes, newlines) & 1 == parity]
            delimiters = delimiters[np.searchsorted(quotes, delimiters) & 1 == parity]
        run = self._measured(np.concatenate(((0,), newlines[:-1] + 1))[: len(newlines)], newlines + 1, delimiters)
        opening, closing = quotes[parity::2], quotes[1 - parity :: 2]
        misfits = np.concatenate((opening[~self._starts_field(opening)], closing[~self._ends_field(closing)]))
        misfits.sort()
        return _Side(run, delimiters, misfits)

    def _measured(self, starts: Places, ends: Places, delimiters: Places) -> _Run:
        return _Run(starts, ends, 1 + _count(delimiters, starts, ends))

    def _lone_returns(self, *, final: bool) -> Places:
        """Carriage returns that end a line by themselves; of the last one that is known only at the end of the file."""
        returns: Places = np.flatnonzero(self._bytes == _CR)
        last = len(self._bytes) - 1
        if returns[-1] == last and not final:
            returns = returns[:-1]
        alone: Places = returns[self._bytes[np.minimum(returns + 1, last)] != _LF]
        return alone

    def _opens_field(self, quotes: Places) -> NDArray[np.bool_]:
        before = self._bytes[quotes - 1]
        first: NDArray[np.bool_] = (before == self._dialect.delimiter[0]) | (before == _LF) | (before == _CR)
        first |= quotes == 0
        return first

    def _starts_field(self, quotes: Places) -> NDArray[np.bool_]:
        """Return which may open a field, or be the other half of a doubled one."""
        fits: NDArray[np.bool_] = self._opens_field(quotes) | (self._bytes[quotes - 1] == self._dialect.shield[0])
        return fits

    def _ends_field(self, quotes: Places) -> NDArray[np.bool_]:
        last = len(self._bytes) - 1
        after = self._bytes[np.minimum(quotes + 1, last)]
        fits: NDArray[np.bool_] = (after == self._dialect.delimiter[0]) | (after == _LF) | (after == _CR)
        fits |= after == self._dialect.shield[0]
        fits[quotes == last] = False  # what comes after it is not known yet
        return fits


class _RecordBatch:
    """The records found so far."""

    def __init__(self, data: bytes, dialect: CsvDialect, width: int) -> None:
        self.errors: dict[int, str] = {}
        self.rewritten: dict[int, bytes] = {}
        self._data = data
        self._dialect = dialect
        self._width = width
        self._starts: list[Places] = []
        self._ends: list[Places] = []
        self._count = 0

    def add_run(self, run: _Run, at: int) -> int:
        """Add records that were found at once, and return where they end."""
        if not len(run.starts):
            return at
        at = int(run.ends[-1])
        run = self._without_empty_lines(run)
        for place in np.flatnonzero(run.fields != self._width).tolist():
            self.errors[self._count + place] = self._dialect.ragged(int(run.fields[place]), self._width)
        self._add(run.starts, run.ends)
        return at

    def add_carefully(self, at: int, *, final: bool) -> tuple[bool, int]:
        """Add a few records one by one, and return whether they are whole and where they end."""
        starts: list[int] = []
        ends: list[int] = []
        whole = True
        while whole and at < len(self._data) and len(starts) < _CAREFUL_IN_A_ROW:
            record = record_at(self._data, at, self._dialect, self._width, final=final)
            if record is None:
                whole = False
                break
            if record.error is not None:
                self.errors[self._count + len(starts)] = record.error
            elif self._dialect.shield in self._data[at : record.end]:
                self.rewritten[self._count + len(starts)] = shielded(self._data[at : record.end], self._dialect)
            if record.error is not None or record.fields is not None:
                starts.append(at)
                ends.append(record.end)
            at = record.end
        self._add(np.array(starts, np.intp), np.array(ends, np.intp))
        return whole, at

    def bounds(self) -> tuple[Places, Places]:
        """Return where the records begin and end."""
        none = np.empty(0, np.intp)
        return np.concatenate([none, *self._starts]), np.concatenate([none, *self._ends])

    def _add(self, starts: Places, ends: Places) -> None:
        self._starts.append(starts)
        self._ends.append(ends)
        self._count += len(starts)

    def _without_empty_lines(self, run: _Run) -> _Run:
        if self._width == 1:
            return run  # they are rows
        lengths = run.ends - run.starts
        if lengths.min() > 2:
            return run
        first = np.frombuffer(self._data, np.uint8)[run.starts]
        full = (lengths > 2) | ((lengths == 2) & (first != _CR))
        return _Run(*(part[full] for part in run))


def _rewrite_literal_quotes(block: RecordBlock, literal: Places, dialect: CsvDialect) -> None:
    """Shield quotes that are text, which the fast parser would misread."""
    for record in block.good_at(literal):
        block.rewritten[record] = shielded(block.raw(record), dialect)


def _with_line_feeds(data: bytes, ends: Places) -> bytes:
    """Return the data with a line feed for each carriage return that ends a record; within quotes they stay."""
    changed = np.frombuffer(data, np.uint8).copy()
    last = ends - 1
    changed[last[changed[last] == _CR]] = _LF
    return changed.tobytes()


def _count(marks: Places, starts: Places, stops: Places) -> Places:
    """Return how many marks there are between each start and its stop."""
    return np.searchsorted(marks, stops) - np.searchsorted(marks, starts)


def _first_from(start: int, places: Places, otherwise: int) -> int:
    """Return the first place from `start` on; `otherwise` where there is none, or it lies beyond."""
    place = int(np.searchsorted(places, start))
    return min(int(places[place]), otherwise) if place < len(places) else otherwise
