"""The start of a CSV file: its bytes as they come, where its rows begin, and what their columns are called."""

from __future__ import annotations

import re
from collections.abc import Sequence

from redrive.errors import SourceError
from redrive.rows.sources.csv.encoding import BOM, UTF_8, FileBytes, undecodable
from redrive.rows.sources.csv.records import (
    CsvDialect,
    RecordScan,
    ScannedRecord,
    ScanProgress,
    count_lines,
    line_end,
    record_at,
    without_line_end,
)
from redrive.rows.sources.files.unfit_files import START, refuse_markup

BLOCK = 1 << 20
_MOST_AT_ONCE = 32 << 20
_LONGEST_HEADER = 16 << 20
_EMPTY_LINES = re.compile(rb"(?:\r\n|\n|\r(?!\Z))+")  # a line feed may follow the last carriage return
_LAST_EMPTY_LINES = re.compile(rb"[\r\n]+")
_SEPARATOR = re.compile(rb"\"?sep=([!#-&(-/:-@\[-`{-~\t ])\"?(?:\r\n?|\n)", re.IGNORECASE)
# A header may have names in brackets, "[id],[name]".
_JSON = re.compile(rb'\s*(?:\{\s*(?:"|\}|\Z)|\[\s*(?:[\[{"\]]|\Z))')


class BlockReader:
    """What was read of a file and is still to be taken apart.

    byte, line  where `data` begins in the file
    final       nothing comes after `data`; it ends with a line end then, even where the file does not
    looked_at   there is no whole record in `data` that was not taken
    fault, cut  why the file ends too early, and the piece of a line that is left of its end
    """

    def __init__(self, stream: FileBytes, byte: int = 0, line: int = 1) -> None:
        self.data = b""
        self.byte = byte
        self.line = line
        self.final = False
        self.looked_at = True
        self.fault: str | None = None
        self.cut = b""
        self._stream = stream
        self._added_line_end = False

    def more(self) -> None:
        """Read on: twice as much where a record is longer than what is there, so that it is not copied too often."""
        wanted = max(BLOCK, min(len(self.data), _MOST_AT_ONCE))
        new = self._stream.read(wanted)
        self.data += new
        self.looked_at = False
        if len(new) == wanted:
            return
        self.final = True
        self.fault = self._stream.fault
        if self.fault is not None:
            whole = max(self.data.rfind(b"\n"), self.data.rfind(b"\r")) + 1
            self.data, self.cut = self.data[:whole], self.data[whole:]
        elif self.data and not self.data.endswith((b"\n", b"\r")):
            self.data += b"\n"
            self._added_line_end = True

    def drop(self, size: int, lines: int) -> None:
        """Continue after bytes that were parsed."""
        self.data = self.data[size:]
        self.byte += size
        self.line += lines
        if self._added_line_end and self.data == b"\n":
            self.data = b""  # the line that it would end was dropped

    def has_block(self, start: int) -> bool:
        """Return whether there is as much data from `start` on as is read at a time."""
        return len(self.data) - start >= BLOCK

    def skip_record(self, scan: RecordScan, progress: ScanProgress) -> tuple[int, int]:
        """Go after the first record without holding it, from where the scan stands.

        Returns its size without the line end, and its number of lines.
        """
        byte, line, last = self.byte, self.line, b""
        while True:
            last = self.data[: progress.at] or last
            self.drop(progress.at, count_lines(self.data[: progress.at]))
            if progress.ended:
                break
            self.more()
            progress = scan.advance(self.data, 0, final=self.final)
        self.looked_at = False
        line_end_size = len(last) - len(without_line_end(last))
        self.line += not line_end_size  # the last line of the file
        return self.byte - byte - line_end_size, self.line - line


def go_to_table(feed: BlockReader, name: str, *, encoding: str, skip: int) -> None:
    """Go to the first line of the table; a file that is not CSV at all is an error."""
    feed.more()
    if encoding == UTF_8 and feed.data.startswith(BOM):
        feed.drop(len(BOM), 0)
    refuse_markup(name, feed.data[:START].removeprefix(BOM), "CSV")  # a BOM may stand there in another encoding, too
    is_empty = not feed.data and feed.final
    for _ in range(skip):
        feed.drop(_first_line(feed, name, 0), 1)
    if skip and not is_empty and feed.final and not feed.data and feed.fault is None:
        raise SourceError(f"{name} has no line behind the first {skip:,}, which skip leaves out: check skip={skip}")


def read_separator(feed: BlockReader, name: str, declared: bytes | None) -> bytes | None:
    """Go after a first line "sep=;", which Excel understands, and return the delimiter that it names."""
    end = _first_line(feed, name, 0)
    match = _SEPARATOR.fullmatch(feed.data[:end])
    if match is None:
        return None
    if declared not in (None, match[1]):
        raise SourceError(
            f"the first line of {name} names the delimiter {match[1].decode()!r}: "
            f"pass that instead of delimiter={declared.decode()!r}"
        )
    feed.drop(end, 1)
    return match[1]


def read_columns(
    feed: BlockReader, name: str, dialect: CsvDialect, encoding: str, *, guess: bool = False
) -> tuple[str, ...] | None:
    """Return the columns, and move after the record that names them; None if there is no record, and none is needed.

    Without a header the columns are numbered, as many as the first record has.

    guess  the delimiter was not declared, so that it may be another one
    """
    first = _first_record(feed, name, dialect)
    if first is None:
        if dialect.has_header:  # what has not even a header is an upload that failed, not a delivery without rows
            why = feed.fault or "the file is empty"
            raise SourceError(f"{name} has no header that can be read: {why}")
        return None
    start, result = first
    raw = feed.data[start : result.end]
    if dialect.has_header:
        _refuse_header(raw, name)
    if result.fields is None:
        advice = "" if dialect.has_header else "; name the columns, so that their number is known"
        line = feed.line + count_lines(feed.data[:start])
        raise SourceError(f"the first record of {name}, line {line}, cannot be read: {result.error}{advice}")
    if not dialect.has_header:
        return tuple(f"column_{number}" for number in range(1, len(result.fields) + 1))
    if wrong := undecodable(raw, encoding):
        raise SourceError(f"the header of {name} is {wrong}: name its encoding, such as encoding='cp1252'")
    feed.drop(result.end, count_lines(feed.data[: result.end]))
    if guess and len(result.fields) == 1 and not result.fields[0].quoted:
        _refuse_other_delimiter(feed, name, raw, dialect)
    return unique_names([field.text.decode(encoding) for field in result.fields])


def unique_names(cells: Sequence[str]) -> tuple[str, ...]:
    """Return a name for each column: one that comes again is numbered, an empty one is called by its place."""
    given = set(cells)
    names: dict[str, None] = {}
    for place, cell in enumerate(cells, 1):
        name = stem = cell or f"column_{place}"
        number = 1
        while name in names or (name in given and name != cell):
            number += 1
            name = f"{stem}_{number}"
        names[name] = None
    return tuple(names)


def other_columns(columns: Sequence[str], expected: Sequence[str]) -> str | None:
    """Return how columns differ from those expected, as a clause."""
    if tuple(columns) == tuple(expected):
        return None
    lacks = [name for name in expected if name not in columns]
    adds = [name for name in columns if name not in expected]
    differences = [f"it lacks {', '.join(lacks)}" if lacks else "", f"it adds {', '.join(adds)}" if adds else ""]
    return " and ".join(filter(None, differences)) or "they come in another order"


def _refuse_header(raw: bytes, name: str) -> None:
    """Raise where the header shows that the file is not CSV."""
    if _JSON.match(raw):
        raise SourceError(f"{name} is JSON, not CSV: read it with rows.ndjson, one object per line")
    if b"\0" in raw:
        encoding = "utf-16-be" if raw.startswith(b"\0") else "utf-16-le"
        raise SourceError(f"the header of {name} has NUL characters: if the file is UTF-16, pass encoding={encoding!r}")


def _refuse_other_delimiter(feed: BlockReader, name: str, header: bytes, dialect: CsvDialect) -> None:
    """Raise where a header of one column, and the first line after it, are several columns with another delimiter."""
    end = _first_line(feed, name, 0)
    line = feed.data[:end]
    for delimiter in b";\t|,":
        count = header.count(delimiter)
        if count and delimiter != dialect.delimiter[0] and (not end or line.count(delimiter) == count):
            one, other = repr(dialect.delimiter.decode()), repr(chr(delimiter))
            raise SourceError(
                f"the header of {name} is one column: did you mean delimiter={other}? "
                f"If it is one column, pass delimiter={one}"
            )


def _first_record(feed: BlockReader, name: str, dialect: CsvDialect) -> tuple[int, ScannedRecord] | None:
    """Return where the first line is that is not empty, and the record that begins there."""
    at = 0
    while True:
        empty = (_LAST_EMPTY_LINES if feed.final else _EMPTY_LINES).match(feed.data, at)
        at = at if empty is None else empty.end()
        if not _first_line(feed, name, at):
            return None
        record = record_at(feed.data, at, dialect, None, final=feed.final)
        if record is None:
            _read_more(feed, name)
        elif record.fields is not None or record.error is not None:
            return at, record


def _first_line(feed: BlockReader, name: str, at: int) -> int:
    """Return where the line that begins at `at` ends, with its line end; 0 where there is no line."""
    while (end := line_end(feed.data, at, final=feed.final)) is None:
        if feed.final:
            return 0
        _read_more(feed, name)
    return end[1]


def _read_more(feed: BlockReader, name: str) -> None:
    if len(feed.data) > _LONGEST_HEADER:
        raise SourceError(f"the first record of {name} has no end after {_LONGEST_HEADER >> 20} MB: is it a CSV file?")
    feed.more()
