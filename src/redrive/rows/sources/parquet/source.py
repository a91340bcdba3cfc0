"""Rows of Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from redrive._internal.optional import require_extra
from redrive.errors import SourceError
from redrive.rows.batch import Batch, Received, Record, Unreadable
from redrive.rows.sources.files.files import (
    Files,
    Paths,
    add_partition,
    at_same_file,
    names_of,
    partition_in,
    partitions_of,
    with_partitions,
)
from redrive.rows.sources.files.identity import FileVersion
from redrive.rows.sources.files.unfit_files import FileFitCheck, check_that_one_is_good, refuse_file, set_aside
from redrive.rows.sources.parquet.footer import (
    ParquetFooter,
    check_row_group,
    check_same_file,
    first_line,
    footer_fault,
    footer_or_unfit,
    identity_without,
    is_damage,
    open_bytes,
    read_footer,
)
from redrive.rows.sources.parquet.rows import rows_of
from redrive.rows.sources.parquet.unfit_values import require_edit
from redrive.rows.sources.source import Misfit, Reading

with require_extra("rows"):
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

# Decoded at a time, whatever the batch: so a fault costs the same rows whichever way they are read.
_PIECE = 8_192
_RAW = {"file", "row_group", "row", "rows"}


def parquet(path: Paths, *, columns: Sequence[str] | None = None) -> Parquet:
    """Read Parquet files: a path, a glob, or several. If `columns` is given, no others are read.

    The rows of a damaged row group that cannot be read become one letter, which counts all of them. A row with a date
    before the year 1 or after 9999 becomes a letter with that date as a text; so does a row with a text that is not
    UTF-8 (as bytes), or a map with a repeated key (as a list of pairs). Times in a zone that is only an offset
    ("+05:30") are read in UTC, UUIDs as texts; in records, a time with nanoseconds is a text. A column without a name
    is named by its place, "column_3".

    path  a file, a glob ("in/**/*.parquet"), or a list of them; a directory that a glob has found and that is named
          like "dt=2026-07-01" is a column of the rows in it, as a text
    """
    if columns is not None and (isinstance(columns, str) or not columns):
        raise ValueError("columns is a list of the columns to read, such as ['id', 'fee']")
    return Parquet(Files(path, example="*.parquet"), None if columns is None else tuple(dict.fromkeys(columns)))


class Parquet:
    """See `Source`."""

    def __init__(self, files: Files, columns: tuple[str, ...] | None) -> None:
        self.name = files.name
        self._files = files
        self._columns = columns

    def __repr__(self) -> str:
        return f"<parquet {self.name!r}>"

    def identity(self) -> dict[str, Any]:
        return {"kind": "parquet", "files": self._files.identity()}

    def difference(self, identity: Mapping[str, Any]) -> str | None:
        if identity.get("kind") != "parquet":
            return f"it was taken over {identity.get('kind')}, not over parquet"
        return self._files.difference(identity["files"])

    def compared_options(self) -> dict[str, Any]:
        """See `ComparesOptions`."""
        columns = None if self._columns is None else sorted(self._columns)
        return {"columns": columns, **self._files.compared_options()}

    def open(self, position: Any | None, identity: Mapping[str, Any]) -> Reading:
        return self.open_fitting(position, identity, None)

    def open_fitting(self, position: Any | None, identity: Mapping[str, Any], misfit: Misfit | None) -> Reading:
        """See `SetsFilesAside`."""
        names = names_of(identity["files"])
        partitions = partitions_of(names, self._files.patterns)

        def look(name: str) -> ParquetFooter:
            return read_footer(name, self._columns, besides=partitions.get(name, {}))

        check_that_one_is_good(names, look)
        footers = [footer_or_unfit(name, look, names) for name in names]
        if self._columns is not None:
            wanted = self._columns
            partitions = {
                name: {k: v for k, v in partition.items() if k in wanted} for name, partition in partitions.items()
            }
        good = {footer.name: footer.columns for footer in footers if not footer.odd}
        fit = FileFitCheck(misfit, names, partitions, good.get)
        reading = at_same_file(ParquetReading(footers, position, fit), position, identity["files"])
        return with_partitions(reading, partitions)

    def again(self, raw: Any, context: Mapping[str, Any] | None = None) -> Record | list[Record]:
        refuse_file(raw)
        return add_partition(self._again(raw, context), context)

    def _again(self, raw: Any, context: Mapping[str, Any] | None) -> Record | list[Record]:
        if not isinstance(raw, Mapping):
            raise TypeError(f"a row of Parquet is a mapping, not a {type(raw).__name__}")
        if raw.keys() != _RAW:
            require_edit(raw, context or {})
            return dict(raw)
        try:
            check_same_file(raw, context)
            footer = read_footer(raw["file"], self._columns, besides=partition_in(context))
            return _rows_again(footer, raw["row"] - 1, raw["rows"])
        except SourceError as error:
            raise ValueError(str(error)) from error  # the fault of this letter: others may be of another file


class ParquetReading:
    """See `Reading`."""

    def __init__(self, footers: Sequence[ParquetFooter], position: Mapping[str, Any] | None, fit: FileFitCheck) -> None:
        good = {footer.columns: footer.name for footer in footers if not footer.odd}
        fitting = [columns for columns, name in good.items() if fit.objection(name, columns) is None]
        self.columns: tuple[str, ...] | None = _in_common(fitting or list(good))
        self._fit = fit
        self.total: int | None = sum(footer.rows for footer in footers)
        self._left = list(footers)
        self._done = 0
        self._row = 0
        self._file: _OpenFile | None = None
        self._pieces: Iterator[pa.Table | Unreadable] | None = None
        self._rest: pa.Table | None = None
        if position is not None:
            self._skip_to(position)

    def read(self, most: int) -> Batch | None:
        while self._left:
            try:
                batch = self._take(most)
            except BaseException:
                self.close()  # the next reading begins where the last batch ended
                raise
            if batch is not None:
                return batch
            self.close()
            self._done += self._left.pop(0).rows
            self._row = 0
        return None

    def close(self) -> None:
        self._pieces = self._rest = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _skip_to(self, position: Mapping[str, Any]) -> None:
        name = position["file"]
        if name not in [footer.name for footer in self._left]:
            raise SourceError(f"{name}, in which the run resumes, is not among the files")
        while self._left[0].name != name:
            self._done += self._left.pop(0).rows
        if position.get("ended"):
            self._done += self._left.pop(0).rows
        else:
            self._row = position["row"]

    def _take(self, most: int) -> Batch | None:
        name, odd = self._left[0].name, self._left[0].odd
        if odd is not None and self._row:
            return None  # a checkpoint of an older version stands after it
        if odd is None and not self._row:
            # Now, and not when the source was opened: a table may have been created from the files before.
            odd = self._fit.objection(name, self._left[0].columns)
        if odd is not None:
            self._done += self._left.pop(0).rows
            return set_aside(name, odd, {"file": name, "row": 0, "ended": True}, done=self._done)
        tables: list[Any] = []
        before: list[Unreadable] = []
        behind: list[Unreadable] = []
        first, row, count = self._row, self._row, 0
        while count < most and (piece := self._next()) is not None:
            if isinstance(piece, Unreadable):
                row += piece.rows
                if tables:
                    behind.append(piece)
                    break  # the rows of a batch stand one after the other
                before.append(piece)
                first = row
                continue
            tables.append(piece.slice(0, most - count))
            if len(piece) > most - count:
                self._rest = piece.slice(most - count)
            count += len(tables[-1])
            row += len(tables[-1])
        if not tables and not before:
            return None
        rows, places, in_ids = rows_of(pa.concat_tables(tables), first) if tables else (Received([]), (), [])
        self._row = row
        return Batch(
            rows,
            lambda place: f"row {first + places[place] + 1}",
            {"file": name, "row": row},
            name,
            [*before, *in_ids, *behind],
            self._done + row,
        )

    def _next(self) -> pa.Table | Unreadable | None:
        if self._rest is not None:
            piece, self._rest = self._rest, None
            return piece
        if self._pieces is None:
            self._file = _OpenFile(self._left[0])
            self._pieces = self._file.pieces(self._row)
        return next(self._pieces, None)


class _OpenFile:
    """A file while it is read."""

    def __init__(self, footer: ParquetFooter) -> None:
        self._name = footer.name
        self._columns = list(footer.columns)
        self._renamed = footer.renamed
        self._only = None if footer.whole or footer.renamed else self._columns
        self._version = FileVersion(footer.name)
        self._bytes = open_bytes(footer.name)
        self._damaged: list[int] | None = None
        try:
            self._version.check_path()
            self._version.check_same(footer.version)
        except BaseException:
            self._version.close()
            self._bytes.close()
            raise
        self._file = pq.ParquetFile(
            self._bytes,
            # Buffered, so that a row group need not be in memory as a whole.
            pre_buffer=False,
            buffer_size=1 << 20,
            page_checksum_verification=True,  # where the writer left checksums
            coerce_int96_timestamp_unit="us",  # nanoseconds overflow in 2262 without an error
        )

    def __enter__(self) -> _OpenFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self._bytes.close()
        self._version.close()

    def pieces(self, row: int, *, identify: bool = True) -> Iterator[pa.Table | Unreadable]:
        """The rows after the first `row` ones.

        Args:
            identify: whether unreadable rows have the identity of the file; all of the file is read for that.
        """
        metadata = self._file.metadata
        end = 0
        for group in range(metadata.num_row_groups):
            start, end = end, end + metadata.row_group(group).num_rows
            if end > row:
                yield from self._pieces_of(group, start, end, row, identify=identify)

    def _pieces_of(
        self, group: int, start: int, end: int, row: int, *, identify: bool
    ) -> Iterator[pa.Table | Unreadable]:
        at, fault = start, "it has fewer rows than the footer has"
        try:
            for piece in self._file.iter_batches(_PIECE, row_groups=[group], columns=self._only):
                self._version.check()
                at += len(piece)
                if at > row:
                    table = pa.Table.from_batches([piece])
                    table = table.rename_columns(self._renamed) if self._renamed else table
                    yield table.slice(max(0, row - at + len(piece))).select(self._columns)
        except (pa.ArrowException, OSError) as error:
            if not is_damage(error):
                raise
            fault = first_line(error)
        self._version.check()
        first = max(at, row)
        if first < end:
            raw = {"file": self._name, "row_group": group, "row": first + 1, "rows": end - first}
            place = f"rows {first + 1} to {end}"
            why = f"row group {group} cannot be read: {fault}"
            context = {"file": self._identity(group)} if identify else None
            yield Unreadable(raw, why, place, rows=end - first, context=context)

    def _identity(self, group: int) -> dict[str, Any]:
        """Return an identity that an undamaged copy of the file has as well: without any damaged row group.

        "without" names the row groups that are left out; where it is missing, only that of the letter is.
        """
        metadata = self._file.metadata
        check_row_group(self._name, metadata, group)
        if self._damaged is None:
            self._damaged = [item for item in range(metadata.num_row_groups) if self._is_damaged(item)]
            self._version.check()
        damaged = sorted({group, *self._damaged})
        identity = identity_without(self._name, metadata, damaged)
        return identity if damaged == [group] else {**identity, "without": damaged}

    def _is_damaged(self, group: int) -> bool:
        """Return whether a row group cannot be read. The run itself fails at one that the footer describes wrongly."""
        metadata, rows = self._file.metadata, 0
        if footer_fault(metadata, group):
            return False
        try:
            for piece in self._file.iter_batches(_PIECE, row_groups=[group], columns=self._only):
                rows += len(piece)
        except (pa.ArrowException, OSError) as error:
            if not is_damage(error):
                raise
            return True
        return bool(rows < metadata.row_group(group).num_rows)


def _rows_again(footer: ParquetFooter, first: int, rows: int) -> list[Record]:
    """Return the rows of a row group that was damaged, where the file has been replaced by a whole one."""
    records: list[Record] = []
    with _OpenFile(footer) as file:
        for piece in file.pieces(first, identify=False):
            if isinstance(piece, Unreadable):
                raise ValueError(str(piece.error))
            received, _, unreadable = rows_of(piece.slice(0, rows - len(records)), first + len(records))
            for bad in unreadable:
                raise ValueError(f"{bad.position}: {bad.error}")
            records += received.records
            if len(records) == rows:
                return records
    raise ValueError(f"{footer.name} has {first + len(records)} rows, and those asked for end at {first + rows}")


def _in_common(columns: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(name for name in columns[0] if all(name in others for others in columns[1:]))
