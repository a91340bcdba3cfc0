"""The files of a source: found, told from others of the same name, opened and decompressed."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from glob import glob, has_magic
from typing import Any, TypeVar

from redrive._internal.files import local_path
from redrive.errors import SourceError
from redrive.rows.sources.files import identity as file_identity
from redrive.rows.sources.files.compression import CompressionError, Decoder, damage_of, is_plain, open_decoder
from redrive.rows.sources.files.identity import ChangedFile, FileVersion
from redrive.rows.sources.files.partitions import partitions_of
from redrive.rows.sources.source import Reading

Path = str | os.PathLike[str]
Paths = Path | Sequence[Path]

R = TypeVar("R", bound=Reading)

_SKIP = 1 << 20


class Files:
    """Files named by a path, a glob, or a list of them; looked for anew whenever a run begins."""

    def __init__(self, paths: Paths, *, example: str) -> None:
        """`example` is what such files are usually called, "*.csv"."""
        self.patterns = _patterns(paths)
        self._example = example
        self.name = self.patterns[0] if len(self.patterns) == 1 else f"{self.patterns[0]} and others"

    def find(self) -> list[str]:
        """The files there are now: those of a glob sorted, each once. None, or one that is no file, is an error."""
        found: dict[str, None] = {}
        for pattern in self.patterns:
            # A name such as "fees[1].csv" may be that of a file, and is no pattern then.
            if has_magic(pattern) and not os.path.lexists(pattern):
                names = sorted(name for name in glob(pattern, recursive=True) if not os.path.isdir(name))
                if not names:
                    raise SourceError(f"there is no file that matches {pattern}")
            else:
                names = [pattern]
            found.update(dict.fromkeys(names))
        for name in found:
            _size(name, self._example)
        return list(found)

    def identity(self) -> list[dict[str, Any]]:
        """Which files there are and what tells each from another, as JSON: what a checkpoint is good for."""
        return file_identity.identities(self.find())

    def compared_options(self) -> dict[str, Any]:
        """See `ComparesOptions`. The path decides which directories are columns: those that a glob has found."""
        columns = {column for partition in partitions_of(self.find(), self.patterns).values() for column in partition}
        return {"partitions": sorted(columns)}

    def difference(self, recorded: Sequence[Mapping[str, Any]]) -> str | None:
        """Why positions in the recorded files mean nothing here, as a clause; None where they hold.

        Others may have come, and are read last. But a file must not have changed: one that has grown may as
        well be a new delivery of the same data, and a position in it mean another row.
        """
        try:
            found = set(self.find())
            for file in recorded:
                if file["name"] not in found:
                    return f"{file['name']} is not among its files"
                if different := file_identity.difference(file):
                    return different
        except SourceError as error:
            return str(error)
        return None


def at_same_file(reading: R, position: Mapping[str, Any] | None, recorded: Sequence[Mapping[str, Any]]) -> R:
    """Return a reading that was opened at a position in one of the recorded files, if that file is still the same.

    A source is also opened again after an error, when the run has been going on for hours.
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
    """Return the identity of a run that is resumed, with the files that have come since it began, behind the others."""
    files = recorded.get("files")
    if not files:
        return dict(recorded)
    known = {file["name"] for file in files}
    return {**recorded, "files": [*files, *(file for file in found["files"] if file["name"] not in known)]}


def names_of(recorded: Sequence[Mapping[str, Any]]) -> list[str]:
    """The files of an identity, in the order in which they are read."""
    return [file["name"] for file in recorded]


def size_of(names: Sequence[str]) -> int:
    """The bytes of all these files, as they lie on the disk."""
    return sum(map(_size, names))


class Stream:
    """The bytes of a file, decompressed where it is compressed, which its first bytes tell and not its name.

    Of a compressed file that is damaged only what stands before the damaged member or frame is given: bytes inside it
    cannot be told from wrong ones. `fault` says then that the file has no proper end.

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
        """What is wrong with a compressed file, wherever it was read to."""
        return None if self._damage is None else self._damage.reason

    @property
    def fault(self) -> str | None:
        """Why the file ends too early, once its end was reached."""
        return None if self._damage is None or self.position < self._damage.intact else self._damage.reason

    def read(self, most: int) -> bytes:
        """The next bytes: exactly so many, fewer only at the end of the file."""
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
        """How many bytes of the file, as it lies on the disk, were taken."""
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
    """The error that ends a run at the damaged part of a file; `line` is the last line before it."""
    rows = f"an unknown number of rows after line {line:,}" if line else "all of its rows"
    return DamagedFile(
        f"{name} is damaged: {fault}, so that {rows} are missing. Nothing of the damaged part was loaded. Replace the "
        "file by a whole one, then run with restart=True or `redrive run --restart`"
    )


def too_short(name: str, position: int) -> SourceError:
    """What is wrong with a file in which a position is not to be found."""
    return SourceError(f"{name} has become shorter: byte {position:,}, where the reading is to go on, is not in it")


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
    """The bytes of a file; what is no file that can be read is an error."""
    try:
        found = os.stat(name)
        if not stat.S_ISDIR(found.st_mode) and not os.access(name, os.R_OK):
            raise PermissionError
    except PermissionError:
        raise SourceError(f"{name} may not be read by this user: check its permissions") from None
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise SourceError(f"there is no file {name}") from None
    if stat.S_ISDIR(found.st_mode):
        raise SourceError(f"{name} is a directory; name the files in it: {os.path.join(name, example)}")
    if not stat.S_ISREG(found.st_mode):
        raise SourceError(f"{name} is a pipe or a device, which cannot be read twice: save it as a file first")
    return found.st_size
