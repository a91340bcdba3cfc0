"""Reading CSV files one after the other, batch by batch, from any place where a batch ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from redrive._internal.optional import require_extra
from redrive.errors import SourceError
from redrive.rows.batch import Batch, Received, Unreadable
from redrive.rows.sources.csv.encoding import UTF_8, Utf16Stream, is_utf_16, mark_undecodable, open_text
from redrive.rows.sources.csv.frames import FrameBuilder, RecordRange
from redrive.rows.sources.csv.header import BlockReader, go_to_table, other_columns, read_columns, read_separator
from redrive.rows.sources.csv.records import CsvDialect, RecordScan, ScanProgress, without_line_end
from redrive.rows.sources.csv.scanner import RecordBlock, long_record, skipped_record, structure, too_large
from redrive.rows.sources.files.files import check_before_its_turn, damaged, names_of, size_of
from redrive.rows.sources.files.unfit_files import FileFitCheck, check_that_one_is_good, is_odd, set_aside

with require_extra("rows"):
    import numpy as np

_BATCH_BYTES = 32 << 20  # a batch of large rows is cut shorter: memory stays flat


@dataclass(frozen=True, slots=True)
class CsvOptions:
    """How the files are written.

    delimiter  None goes by the name of the file
    columns    the names of the columns where they were given
    skip       lines before the header
    most       how many bytes a record may have
    """

    delimiter: bytes | None
    quote: bytes | None
    null: frozenset[str]
    encoding: str
    has_header: bool
    columns: tuple[str, ...] | None
    skip: int
    most: int

    @property
    def of_bytes(self) -> str:
        """The encoding of the bytes that records are made of: UTF-16 was converted before."""
        return UTF_8 if is_utf_16(self.encoding) else self.encoding

    def dialect(self, name: str, encoding: str) -> CsvDialect:
        """Return how this file is written."""
        stem = name.lower().removesuffix(".gz").removesuffix(".zst")
        by_name = b"\t" if stem.endswith((".tsv", ".tab")) else b","
        return CsvDialect(self.delimiter or by_name, self.quote, self.null_bytes(encoding), self.has_header)

    def null_bytes(self, encoding: str) -> frozenset[bytes]:
        """Return the texts that stand for None, as they are in a file."""
        return frozenset(text.encode(encoding) for text in self.null)


CUT_OFF = "cut_off"
"""The field of a letter that holds what was left of a line when its stream ended early."""


def letter_context(columns: Sequence[str], dialect: CsvDialect, encoding: str | None) -> dict[str, Any]:
    """Return what a letter of this file needs to be read again when the file is gone, as JSON.

    encoding  that of the letter's bytes where it is certain, as of text that was converted
    """
    quote = None if dialect.quote is None else dialect.quote.decode()
    context = {"header": list(columns), "delimiter": dialect.delimiter.decode(), "quote": quote}
    return context if encoding is None else {**context, "encoding": encoding}


def read_context(context: Mapping[str, Any]) -> tuple[list[str], bytes, bytes | None, str | None]:
    """Return the columns, the delimiter, the quote and the encoding of a letter's context."""
    try:
        columns, delimiter, quote = context["header"], context["delimiter"], context["quote"]
        return list(columns), delimiter.encode("ascii"), quote and quote.encode("ascii"), context.get("encoding")
    except (KeyError, TypeError, AttributeError, UnicodeError):
        raise ValueError("the context of the letter is not that of a CSV line: edit the record into fields") from None


class CsvReading:
    """See `Reading`."""

    def __init__(
        self,
        files: Sequence[Mapping[str, Any]],
        position: Mapping[str, Any] | None,
        options: CsvOptions,
        fit: FileFitCheck,
    ) -> None:
        """`files` are those of the source's identity."""
        names = names_of(files)
        self._files = {file["name"]: file for file in files}
        self.columns = options.columns
        self._fit = fit
        self._options = options
        self._sizes = {name: size_of([name]) for name in names}
        self.total: int | None = sum(self._sizes.values())
        self._named_by = ""
        self._file: CsvFile | None = None
        self._error: Exception | None = None
        self._names = names
        self._aside: list[Batch] = []
        check_that_one_is_good(names, lambda name: CsvFile(name, options, options.columns, None).close())
        first = 0
        if position is not None:
            if position["file"] not in self._sizes:
                raise SourceError(f"{position['file']}, in which the run resumes, is not among the files")
            first = list(names).index(position["file"])
            if position.get("ended"):
                first, position = first + 1, None
        self._left = list(names[first:])
        self._behind = sum(self._sizes[name] for name in names[:first])
        if self.columns is None:
            self._name_columns(names[:first])
        self._open_next(position)

    def read(self, most: int) -> Batch | None:
        if self._error is not None:
            raise self._error
        try:
            if self._aside:
                return self._aside.pop(0)
            while self._file is not None:
                batch = self._file.take(most)
                if batch is not None:
                    batch.done += self._behind
                    if self.columns is not None and batch.rows.columns != self.columns:
                        batch.rows = Received(batch.rows.frame.select(self.columns))  # its header has another order
                    return batch
                self._leave(self._file)
                self._open_next(None)
                if self._aside:
                    return self._aside.pop(0)
        except Exception as error:
            # Some data may be read and not returned. Reading on would lose it; opening the source again does not.
            self._error = error
            self.close()
            raise
        return None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _name_columns(self, behind: Sequence[str]) -> None:
        """Take the columns from the first file, even where it was read before: a later one may differ, or be ragged."""
        for name in behind:
            try:
                columns = columns_of(name, self._options)
            except SourceError:
                continue  # it was set aside
            if columns is not None and self._fit.objection(name, columns) is None:
                self.columns, self._named_by = columns, name
                return

    def _open_next(self, position: Mapping[str, Any] | None) -> None:
        """Go to the next file that has something in it: only then is it known what columns there are."""
        while self._left and self._file is None:
            known = None if self._options.has_header else self.columns
            name = self._left.pop(0)
            if position is None:
                check_before_its_turn(self._files[name])
            try:
                file = CsvFile(name, self._options, known, position)
            except SourceError as error:
                if position is not None or not is_odd(name, error, self._names):
                    raise
                self._set_aside(name, error)
                continue
            position = None
            if file.is_empty:
                self._leave(file)
                continue
            if self.columns is None and (odd := self._fit.objection(file.name, file.columns or ())) is not None:
                file.close()
                self._set_aside(file.name, odd)
                continue
            if self.columns is None:
                self.columns, self._named_by = file.columns, file.name
            elif sorted(file.columns or ()) != sorted(self.columns):
                file.close()
                different = other_columns(file.columns or (), self.columns)
                why = f"{file.name} has other columns than {self._named_by}: {different}"
                self._set_aside(file.name, SourceError(why))
                continue
            self._file = file

    def _set_aside(self, name: str, error: SourceError) -> None:
        self._behind += self._sizes[name]
        position = {"file": name, "byte": 0, "line": 1, "ended": True}
        self._aside.append(set_aside(name, error, position, done=self._behind))

    def _leave(self, file: CsvFile) -> None:
        file.close()
        self._behind += self._sizes[file.name]
        self._file = None


def columns_of(name: str, options: CsvOptions) -> tuple[str, ...] | None:
    """Return the columns of a file; None if it is empty."""
    file = CsvFile(name, options, options.columns, None)
    file.close()
    return file.columns


class CsvFile:
    """One file, read from its first row or from a position on."""

    def __init__(
        self, name: str, options: CsvOptions, columns: tuple[str, ...] | None, position: Mapping[str, Any] | None
    ) -> None:
        """`columns` are known only where the file does not name them itself."""
        self.name = name
        self._encoding = options.of_bytes
        self._most = options.most
        self._dialect = options.dialect(name, self._encoding)
        self._stream = open_text(name, options.encoding)
        try:
            self._feed = BlockReader(self._stream)
            go_to_table(self._feed, name, encoding=self._encoding, skip=options.skip)
            if self._stream.damage is not None and self._feed.final and not self._feed.data:
                raise damaged(name, self._stream.damage, 0)
            separator = read_separator(self._feed, name, options.delimiter)
            if separator is not None:
                self._dialect = replace(self._dialect, delimiter=separator)
            self.columns = columns or self._read_columns(guess=options.delimiter is None and separator is None)
            self.is_empty = self.columns is None and self._feed.fault is None
            if position is not None and position["byte"] > self._feed.byte:
                self._stream.close()
                self._stream = open_text(name, options.encoding)
                self._stream.seek(position["byte"])
                self._feed = BlockReader(self._stream, position["byte"], position["line"])
        except BaseException:
            self._stream.close()
            raise
        converted = UTF_8 if isinstance(self._stream, Utf16Stream) else None
        self._context = letter_context(self.columns or (), self._dialect, converted)
        self._frames = FrameBuilder(self.columns or (), self._dialect, self._encoding)
        self._block = RecordBlock.empty(self._feed.line)
        self._at = 0
        self._ended = False

    def _read_columns(self, *, guess: bool) -> tuple[str, ...] | None:
        return read_columns(self._feed, self.name, self._dialect, self._encoding, guess=guess)

    def take(self, most: int) -> Batch | None:
        """Return the next rows, and what stands between them and is none; None at the end."""
        parts: list[RecordRange] = []
        records = size = 0
        while records < most and size < _BATCH_BYTES and self._find_records():
            part = self._part(most - records, _BATCH_BYTES - size)
            parts.append(part)
            records += part.last - part.first
            size += int(part.block.ends[part.last - 1] - part.block.starts[part.first])
            self._at = part.last
        unreadable = [bad for part in parts for bad in part.unreadable()]
        fault, damage = self._feed.fault, self._stream.damage
        if not parts and fault is not None and damage is not None:
            raise damaged(self.name, damage, self._feed.line - 1)
        if records < most and size < _BATCH_BYTES and fault is not None and damage is None and not self._ended:
            # Marked: a truncated line may still look like a whole one.
            raw = {CUT_OFF: self._feed.cut}
            unreadable.append(Unreadable(raw, fault, f"line {self._feed.line}"))
            self._ended = True
        for bad in unreadable:
            bad.context = self._context
        if not parts and not unreadable:
            return None
        lines = np.concatenate([part.lines() for part in parts] or [self._block.lines])
        following = self._position()
        return Batch(
            Received(self._frames.frame(parts)),
            lambda place: f"line {lines[place]}",
            following,
            self.name,
            unreadable,
            done=self._taken(following["byte"]),
        )

    def close(self) -> None:
        self._stream.close()

    def _find_records(self) -> bool:
        """Read until there is a record to take; return whether there is one."""
        while self._at == len(self._block):
            feed = self._feed
            feed.drop(self._block.rest, self._block.line - feed.line)
            self._block, self._at = RecordBlock.empty(feed.line), 0
            if feed.looked_at:
                if feed.final:
                    return False
                feed.more()
            feed.looked_at = True
            final = self._is_final()
            self._block = structure(feed.data, feed.line, self._dialect, self._width, most=self._most, final=final)
            if not feed.final and not len(self._block) and feed.has_block(self._block.rest):
                self._block = self._long_record()
            mark_undecodable(self._block, self._encoding)
        return True

    @property
    def _width(self) -> int:
        return len(self.columns or ())

    def _is_final(self) -> bool:
        """Return whether an open quote stays open. Before damage it may be closed in what is missing."""
        return self._feed.final and self._stream.damage is None

    def _long_record(self) -> RecordBlock:
        """Return the record that is not whole in the data; one that is too large for memory is skipped."""
        feed, block = self._feed, self._block
        feed.drop(block.rest, block.line - feed.line)
        scan, progress = RecordScan(self._dialect.delimiter, self._dialect.quote), ScanProgress(False, 0)
        while True:
            # Before damage the data ends with a whole line, which may be before what was scanned.
            at = min(progress.at, len(feed.data))
            progress = scan.advance(feed.data, at, final=self._is_final())
            # A line end at the end of the data may turn out to be that of the record.
            text = without_line_end(feed.data[: progress.at] if progress.ended else feed.data)
            if len(text) > self._most:
                return self._skip_record(scan, progress)
            if progress.ended:
                feed.looked_at = False
                return long_record(feed.data[: progress.at], feed.line, self._dialect, self._width)
            if feed.final:
                return RecordBlock.empty(feed.line)
            feed.more()

    def _skip_record(self, scan: RecordScan, progress: ScanProgress) -> RecordBlock:
        feed = self._feed
        byte, line, beginning = feed.byte, feed.line, feed.data
        size, lines = feed.skip_record(scan, progress)
        bad = too_large(beginning, size, lines, self._most, scan.error)
        return skipped_record(feed.byte - byte, line, lines, bad)

    def _part(self, most: int, size: int) -> RecordRange:
        """Return the next records: at least one, at most this number, and at most this number of bytes."""
        block, first = self._block, self._at
        fitting = int(np.searchsorted(block.ends, block.starts[first] + size, "right"))
        return RecordRange(block, first, min(first + most, max(first + 1, fitting)))

    def _position(self) -> dict[str, Any]:
        block = self._block
        if self._at < len(block):
            offset, line = int(block.starts[self._at]), int(block.lines[self._at])
        else:
            offset, line = block.rest, block.line
        # The line end that a last line lacks was counted.
        byte = min(self._feed.byte + offset, self._stream.position)
        ended = {"ended": True} if self._ended else {}
        return {"file": self.name, "byte": byte, "line": line, **ended}

    def _taken(self, byte: int) -> int:
        """Return how much of the file, as it lies on the disk, was read up to here."""
        return self._stream.progress() * byte // max(1, self._stream.position)
