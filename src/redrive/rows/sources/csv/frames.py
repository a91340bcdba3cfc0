"""Records of CSV as frames of text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from redrive._internal.optional import require_extra
from redrive.rows.batch import Unreadable
from redrive.rows.sources.csv.encoding import UTF_8
from redrive.rows.sources.csv.records import CsvDialect, record_at, without_line_end
from redrive.rows.sources.csv.scanner import BadRecord, Places, RecordBlock

with require_extra("rows"):
    import numpy as np
    import polars as pl


@dataclass(frozen=True, slots=True)
class RecordRange:
    """Some records of a block, one after the other."""

    block: RecordBlock
    first: int
    last: int

    def lines(self) -> Places:
        """Return the line numbers of the rows."""
        bad = [record - self.first for record in self._of(self.block.bad)]
        lines = self.block.lines[self.first : self.last]
        return np.delete(lines, bad) if bad else lines

    def pieces(self) -> Iterator[bytes]:
        """The bytes of the rows, in as few pieces as there can be."""
        block, first, last = self.block, self.first, self.last
        data = block.data if block.parsed is None else block.parsed
        apart = np.flatnonzero(block.starts[first + 1 : last] != block.ends[first : last - 1]) + first + 1
        single = [*self._of(block.bad), *self._of(block.rewritten)]
        cuts = sorted({first, last, *apart.tolist(), *single, *(record + 1 for record in single)})
        for start, end in pairwise(cuts):
            if start in block.bad:
                continue
            yield block.rewritten.get(start) or data[block.starts[start] : block.ends[end - 1]]

    def rows(self) -> Iterator[bytes]:
        """The bytes of each row."""
        for record in range(self.first, self.last):
            if record not in self.block.bad:
                yield self.block.raw(record)

    def unreadable(self) -> list[Unreadable]:
        """Return the records that are not rows."""
        return [self._unreadable(record, self.block.bad[record]) for record in self._of(self.block.bad)]

    def _unreadable(self, record: int, bad: BadRecord) -> Unreadable:
        raw = without_line_end(self.block.raw(record)) if bad.raw is None else bad.raw
        return Unreadable(raw, bad.error, f"line {self.block.lines[record]}", rows=bad.rows)

    def _of(self, records: Collection[int]) -> list[int]:
        mine = range(self.first, self.last)
        few, many = (records, mine) if len(records) < len(mine) else (mine, records)
        return sorted(record for record in few if record in many)


class FrameBuilder:
    """Makes frames of records that were found to be good."""

    def __init__(self, columns: Sequence[str], dialect: CsvDialect, encoding: str) -> None:
        self._columns = list(columns)
        self._dialect = dialect
        self._encoding = encoding
        # A line of our own comes first: what the fast parser would do to the start of a file, it must not do to a row.
        letter = next(letter for letter in (b"a", b"b", b"c") if letter not in (dialect.delimiter, dialect.shield))
        self._first_line = dialect.delimiter.join([letter] * len(columns)) + b"\n"
        self._null = [text.decode(encoding) for text in sorted(dialect.null) if text]
        self._quoted_null = _quoted_null(dialect)

    def frame(self, parts: Sequence[RecordRange]) -> pl.DataFrame:
        """Return the rows of these parts."""
        rows = sum(len(part.lines()) for part in parts)
        data = b"".join([self._first_line, *(piece for part in parts for piece in part.pieces())])
        frame = self._fast(data) if rows else None
        if frame is None or frame.height != rows:
            return self.carefully(self._rows(parts))  # if the two parsers ever differ, ours decides what a record is
        if self._quoted_null is not None and self._quoted_null.search(data):
            self._keep_quoted(frame, parts)
        return frame

    def carefully(self, rows: Iterable[bytes]) -> pl.DataFrame:
        """Return the same, record by record."""
        values = list(zip(*map(self._values, rows), strict=True)) or [()] * len(self._columns)
        return pl.DataFrame(
            [pl.Series(name, column, pl.String) for name, column in zip(self._columns, values, strict=True)]
        )

    def _fast(self, data: bytes) -> pl.DataFrame | None:
        if self._encoding != UTF_8:
            data = data.decode(self._encoding).encode()
        try:
            frame = pl.read_csv(
                data,
                separator=self._dialect.delimiter.decode(),
                quote_char=self._dialect.shield.decode(),
                null_values=self._null or None,
                empty_string_is_null=b"" in self._dialect.null,
                infer_schema=False,
            )
        except pl.exceptions.PolarsError:
            return None
        frame.columns = self._columns
        return frame

    def _keep_quoted(self, frame: pl.DataFrame, parts: Sequence[RecordRange]) -> None:
        """Put texts back that are null only where they are not quoted: the fast parser takes them for null always."""
        kept: dict[str, dict[int, str]] = {}
        for place, row in enumerate(self._rows(parts)):
            if self._quoted_null is not None and self._quoted_null.search(row):
                for name, value in zip(self._columns, self._values(row), strict=True):
                    if value is not None:
                        kept.setdefault(name, {})[place] = value
        for name, values in kept.items():
            column = frame.get_column(name).scatter(list(values), list(values.values()))
            frame.replace_column(frame.get_column_index(name), column)

    def _values(self, row: bytes) -> list[str | None]:
        record = record_at(row, 0, self._dialect, len(self._columns), final=True)
        assert record is not None
        return [field.value(self._dialect, self._encoding) for field in record.fields or ()]

    def _rows(self, parts: Sequence[RecordRange]) -> Iterator[bytes]:
        for part in parts:
            yield from part.rows()


def _quoted_null(dialect: CsvDialect) -> re.Pattern[bytes] | None:
    texts = [re.escape(text) for text in dialect.null if text]
    if dialect.quote is None or not texts:
        return None
    quote = re.escape(dialect.quote)
    return re.compile(quote + b"(?:" + b"|".join(texts) + b")" + quote)
