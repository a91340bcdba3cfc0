"""The files of a source: finds, identifies, opens and decompresses them, and adds columns of Hive partitions."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from glob import glob, has_magic
from typing import Any, TypeVar
from urllib.parse import unquote

from redrive._internal.files import local_path
from redrive.errors import SourceError
from redrive.rows.batch import Batch, Received, Record
from redrive.rows.sources.files import identity as file_identity
from redrive.rows.sources.files.compression import CompressionError, Decoder, damage_of, is_plain, open_decoder
from redrive.rows.sources.files.identity import ChangedFile, FileVersion
from redrive.rows.sources.source import Reading

Path = str | os.PathLike[str]
Paths = Path | Sequence[Path]
R = TypeVar("R", bound=Reading)
_SKIP = 1 << 20
Partition = dict[str, str | None]
_DIRECTORY = re.compile(r"([^=]+)=(.*)", re.DOTALL)
_NULL = "__HIVE_DEFAULT_PARTITION__"
_CONTEXT = "partition"


class Files:
    """Files named by a path, a glob, or a list of them; found again at the start of each run."""

    def __init__(self, paths: Paths, *, example: str) -> None:
        """`example` is what such files are usually called, "*.csv"."""
        self.patterns = _patterns(paths)
        self._example = example
        self.name = self.patterns[0] if len(self.patterns) == 1 else f"{self.patterns[0]} and others"

    def find(self) -> list[str]:
        """Return the files: those of a glob sorted, each once. Raise SourceError if one of them is missing."""
        files: dict[str, None] = {}
        for pattern in self.patterns:
            # A name such as "fees[1].csv" may be that of a file, and is no pattern then.
            if has_magic(pattern) and not os.path.lexists(pattern):
                names = sorted(name for name in glob(pattern, recursive=True) if not os.path.isdir(name))
                if not names:
                    raise SourceError(f"there is no file that matches {pattern}")
            else:
                names = [pattern]
            files.update(dict.fromkeys(names))
        for name in files:
            _size(name, self._example)
        return list(files)

    def identity(self) -> list[dict[str, Any]]:
        """Return the files with what identifies each, as JSON: a checkpoint is valid only for these."""
        return file_identity.identities(self.find())

    def compared_options(self) -> dict[str, Any]:
        """See `ComparesOptions`. The path decides which directories are columns: those that a glob has found."""
        columns = {column for partition in partitions_of(self.find(), self.patterns).values() for column in partition}
        return {"partitions": sorted(columns)}

    def difference(self, recorded: Sequence[Mapping[str, Any]]) -> str | None:
        """Return why positions in the recorded files mean nothing here, as a clause; None if they hold.

        Others may have come, and are read last. But a file must not have changed: one that has grown may as
        well be a new delivery of the same data, and a position in it mean another row.
        """
        try:
            result = set(self.find())
            for file in recorded:
                if file["name"] not in result:
                    return f"{file['name']} is not among its files"
                if different := file_identity.difference(file):
                    return different
        except SourceError as error:
            return str(error)
        return None


def at_same_file(reading: R, position: Mapping[str, Any] | None, recorded: Sequence[Mapping[str, Any]]) -> R:
    """Return a reading that was opened at a position in one of the recorded files, if that file is still the same.

    A source is also opened again after an error, when the run has taken hours.
    """
    if position is None or position.get("ended"):
        return reading
    file = next(file for file in recorded if file["name"] == position["file"])
    if different := file_identity.difference(file):
        reading.close()
        raise SourceError(f"{different}; once it is whole, run with restart=True or `redrive run --restart`")
    return reading


def check_before_its_turn(file: Mapping[str, Any]) -> None:
    """Raise SourceError if a recorded file that is about to be opened is not the one that was there at the start.

    Text may have been appended to it, as to a file that is being read.
    """
    size = _size(file["name"])
    if (size, os.stat(file["name"]).st_mtime_ns) == (file["size"], file.get("mtime_ns")):
        return
    if file_identity.has_grown(file) and is_plain(file["name"]):
        return
    if different := file_identity.difference(file):
        raise ChangedFile(
            f"{different}; it was changed after the run had begun, and nothing was loaded from it; once it is whole, "
            "run with restart=True or `redrive run --restart`"
        )


def with_new_files(recorded: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity of a run that is resumed, with the files that have come since it began, after the others."""
    files = recorded.get("files")
    if not files:
        return dict(recorded)
    known = {file["name"] for file in files}
    return {**recorded, "files": [*files, *(file for file in found["files"] if file["name"] not in known)]}


def names_of(recorded: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the files of an identity, in the order in which they are read."""
    return [file["name"] for file in recorded]


def size_of(names: Sequence[str]) -> int:
    """Return the bytes of all these files, as they lie on the disk."""
    return sum(map(_size, names))


class Stream:
    """The bytes of a file, decompressed if its first bytes are those of a compressed file; its name does not matter.

    Of a compressed file that is damaged only what stands before the damaged member or frame is given: bytes inside it
    cannot be distinguished from wrong ones. `fault` then reports that the file has no proper end.

    name      the file
    position  how many bytes, decompressed, were read or skipped
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.position = 0
        _size(name)
        self._version = FileVersion(name, may_grow=is_plain(name))
        try:
            self._damage = damage_of(name)
            self._bytes = self._open()
        except BaseException:
            self._version.close()
            raise

    @property
    def damage(self) -> str | None:
        """Return the damage of a compressed file, at whatever position it was found."""
        return None if self._damage is None else self._damage.reason

    @property
    def fault(self) -> str | None:
        """Return why the file ends too early, once its end was reached."""
        return None if self._damage is None or self.position < self._damage.intact else self._damage.reason

    def read(self, most: int) -> bytes:
        """Return exactly this many bytes, fewer only at the end of the file."""
        if self._damage is not None:
            most = min(most, self._damage.intact - self.position)
        pieces: list[bytes] = []
        missing = most
        while missing and (data := self._read(missing)):
            pieces.append(data)
            missing -= len(data)
        self._version.check()
        self.position += most - missing
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read(self, most: int) -> bytes:
        try:
            return self._bytes.read(most)
        except CompressionError as error:  # it was whole a moment ago
            damage = str(error)
        raise self._version.changed(damage)  # outside, or the error of zlib in it might be retried

    def seek(self, position: int) -> None:
        """Go to a position that was reached before; a file that is too short for it by now is an error."""
        if self._bytes.jump(position):
            self.position = position
            return
        if position < self.position:
            self._bytes.close()
            self._bytes = self._open()
            self.position = 0
        while self.position < position and self.read(min(_SKIP, position - self.position)):
            pass
        if self.position < position:
            raise too_short(self.name, position)

    def progress(self) -> int:
        """Return how many bytes of the file, as it lies on the disk, were taken."""
        return self._bytes.taken()

    def close(self) -> None:
        """Let go of the file; may be called twice."""
        self._version.close()
        self._bytes.close()

    def _open(self) -> Decoder:
        decoder = open_decoder(self.name)
        try:
            self._version.check_path()
        except BaseException:
            decoder.close()
            raise
        return decoder


class DamagedFile(SourceError):
    """A compressed file that is truncated or corrupt."""


def damaged(name: str, fault: str, line: int) -> DamagedFile:
    """Return the error that ends a run at the damaged part of a file; `line` is the last line before it."""
    rows = f"an unknown number of rows after line {line:,}" if line else "all of its rows"
    return DamagedFile(
        f"{name} is damaged: {fault}, so that {rows} are missing. Nothing of the damaged part was loaded. Replace the "
        "file by a whole one, then run with restart=True or `redrive run --restart`"
    )


def too_short(name: str, position: int) -> SourceError:
    """Return what is wrong with a file in which a position is not to be found."""
    return SourceError(f"{name} has become shorter: byte {position:,}, where the run resumes, is not in it")


def _patterns(paths: Paths) -> list[str]:
    given = [paths] if isinstance(paths, str | bytes | os.PathLike) else paths
    if not isinstance(given, Sequence) or not given:
        raise TypeError(f"the files of a source are a path, a glob, or a list of them, not {paths!r}")
    patterns = []
    for path in given:
        pattern = os.fspath(path) if isinstance(path, str | os.PathLike) else None
        if not isinstance(pattern, str) or not pattern:
            raise TypeError(f"a path is a text or a pathlib.Path, not {path!r}")
        patterns.append(local_path(pattern, "the files of a source"))
    return patterns


def _size(name: str, example: str = "*") -> int:
    """Return the bytes of a file; what is no file that can be read is an error."""
    try:
        status = os.stat(name)
        if not stat.S_ISDIR(status.st_mode) and not os.access(name, os.R_OK):
            raise PermissionError
    except PermissionError:
        raise SourceError(f"{name} may not be read by this user: check its permissions") from None
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise SourceError(f"there is no file {name}") from None
    if stat.S_ISDIR(status.st_mode):
        raise SourceError(f"{name} is a directory; name the files in it: {os.path.join(name, example)}")
    if not stat.S_ISREG(status.st_mode):
        raise SourceError(f"{name} is a pipe or a device, which cannot be read twice: save it as a file first")
    return status.st_size


def partitions_of(names: Sequence[str], patterns: Sequence[str]) -> dict[str, Partition]:
    """Return the columns of each file that stand in directories which a glob has found; none if there are none.

    A directory that the path names itself, as in "in/dt=2026-07-01/*.csv", is no column: it was chosen.
    """
    roots = sorted(map(_root, filter(has_magic, patterns)), key=len, reverse=True)
    result = {name: _partition(name, roots) for name in names}
    columns = dict.fromkeys(column for partition in result.values() for column in partition)
    if not columns:
        return {}
    return {name: {column: partition.get(column) for column in columns} for name, partition in result.items()}


def with_partitions(reading: Reading, partitions: Mapping[str, Partition]) -> Reading:
    """Return the reading with the columns of its partitions, where there are some."""
    return _Partitioned(reading, partitions) if partitions else reading


def add_partition(found: Record | list[Record], context: Mapping[str, Any] | None) -> Record | list[Record]:
    """Return what was read again of a letter with the columns of its partition."""
    partition = partition_in(context)
    if not partition:
        return found
    return [{**partition, **item} for item in found] if isinstance(found, list) else {**partition, **found}


def partition_in(context: Mapping[str, Any] | None) -> Mapping[str, str | None]:
    """Return the columns of its partition that the context of a letter holds."""
    result = (context or {}).get(_CONTEXT)
    return result if isinstance(result, Mapping) else {}


class _Partitioned:
    """See `Reading`."""

    def __init__(self, reading: Reading, partitions: Mapping[str, Partition]) -> None:
        self._reading = reading
        self._partitions = partitions
        self._names = tuple(next(iter(partitions.values())))

    @property
    def columns(self) -> tuple[str, ...] | None:
        columns = self._reading.columns
        return None if columns is None else tuple(dict.fromkeys((*columns, *self._names)))

    @property
    def total(self) -> int | None:
        return self._reading.total

    def read(self, most: int) -> Batch | None:
        batch = self._reading.read(most)
        if batch is not None:
            partition = self._partitions[batch.source]
            batch.rows = _with_columns(batch.rows, partition)
            for row in batch.unreadable:
                row.context = {**(row.context or {}), _CONTEXT: partition}
        return batch

    def close(self) -> None:
        self._reading.close()


def _with_columns(rows: Received, partition: Partition) -> Received:
    """Return the rows with the columns of their partition; a column that is in the file itself stays as it is there."""
    if not rows.is_frame:
        return Received([{**record, **_missing(partition, record)} for record in rows.records])
    import polars as pl

    new = [pl.lit(value, pl.String).alias(name) for name, value in partition.items() if name not in rows.columns]
    return Received(rows.frame.with_columns(new))


def _missing(partition: Partition, record: Record) -> Partition:
    return {column: value for column, value in partition.items() if column not in record}


def _root(pattern: str) -> str:
    """Return the directories of a pattern before the first with a wildcard."""
    parts = pattern.split(os.sep)
    fixed = next(place for place, part in enumerate(parts) if has_magic(part))
    return "".join(f"{part}{os.sep}" for part in parts[:fixed])


def _partition(name: str, roots: Sequence[str]) -> Partition:
    root = next((root for root in roots if name.startswith(root)), None)
    if root is None:
        return {}
    directories = name.removeprefix(root).split(os.sep)[:-1]
    pairs = [match.groups() for directory in directories if (match := _DIRECTORY.fullmatch(directory))]
    return {unquote(column): None if value == _NULL else unquote(value) for column, value in pairs}
