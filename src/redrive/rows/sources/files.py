"""The files of a source: found, told from others of the same name, opened and decompressed."""

from __future__ import annotations

import os
import re
import stat
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from glob import glob, has_magic
from hashlib import blake2b
from typing import Any, BinaryIO, Protocol

from redrive.errors import SourceError
from redrive.extras import needs

Path = str | os.PathLike[str]
Paths = Path | Sequence[Path]

_EDGE = 4096  # what a file begins and ends with, as far as it tells it from another
_CHUNK = 1 << 14  # of a compressed file: what it unpacks to may be a thousand times as large
_SKIP = 1 << 20
_GZIP = re.compile(rb"\x1f\x8b")
_ZSTD = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")  # a frame, or one to be skipped
_NOT_READ = (
    (re.compile(rb"PK\x03\x04"), "a zip archive, or a spreadsheet: unpack or export it first"),
    (re.compile(rb"BZh[1-9]1AY&SY"), "compressed with bzip2: gzip and zstd are read"),
    (re.compile(rb"\xfd7zXZ\x00"), "compressed with xz: gzip and zstd are read"),
)


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
        """Which files there are and how each begins and ends, as JSON: what a checkpoint is good for."""
        sizes = {name: _size(name) for name in self.find()}
        return [{"name": name, "size": size, "digest": _digest(name, size)} for name, size in sizes.items()]

    def difference(self, recorded: Sequence[Mapping[str, Any]]) -> str | None:
        """Why positions in the recorded files mean nothing here, as a clause; None where they hold.

        Others may have come: those belong to the next run. But a file must have its size, and begin and end as it did:
        one that has grown may as well be a new delivery of the same data, and a position in it mean another row.
        """
        try:
            found = set(self.find())
            for file in recorded:
                name, size = file["name"], file["size"]
                if name not in found:
                    return f"{name} is not among its files"
                now = _size(name)
                if now != size:
                    return f"{name} {'has grown since' if now > size else 'has become shorter'}"
                if _digest(name, size) != file["digest"]:
                    return f"{name} is another file now: its beginning or end differs"
        except SourceError as error:
            return str(error)
        return None


def names_of(recorded: Sequence[Mapping[str, Any]]) -> list[str]:
    """The files of an identity, in the order in which they are read."""
    return [file["name"] for file in recorded]


def size_of(names: Sequence[str]) -> int:
    """The bytes of all these files, as they lie on the disk."""
    return sum(map(_size, names))


class Stream:
    """The bytes of a file, decompressed where it is compressed, which its first bytes tell and not its name.

    name      the file
    position  how many bytes, decompressed, were read or skipped
    fault     why the file ends too early, once its end was reached; everything before is good
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.position = 0
        _size(name)
        self._bytes = _decoded(name)
        self._found = os.stat(name)

    def read(self, most: int) -> bytes:
        """The next bytes: exactly so many, fewer only at the end of the file."""
        data = self._bytes.read(most)
        if 0 < len(data) < most:
            pieces = [data]
            missing = most - len(data)
            while missing and (data := self._bytes.read(missing)):
                pieces.append(data)
                missing -= len(data)
            data = b"".join(pieces)
        if len(data) < most:
            self._is_whole()
        self.position += len(data)
        return data

    def _is_whole(self) -> None:
        """A file that somebody cuts while it is read has an end that is none."""
        with suppress(FileNotFoundError):  # removed, it is still whole to who has it open
            now = os.stat(self.name)
            if now.st_ino == self._found.st_ino and now.st_size < self._found.st_size:
                raise SourceError(f"{self.name} has become shorter while it was being read: give it back whole")

    def seek(self, position: int) -> None:
        """Go to a position that was reached before; a file that is too short for it by now is an error."""
        if self._bytes.jump(position):
            self.position = position
            return
        if position < self.position:
            self._bytes.close()
            self._bytes = _decoded(self.name)
            self.position = 0
        while self.position < position and self.read(min(_SKIP, position - self.position)):
            pass
        if self.position < position:
            raise too_short(self.name, position)

    @property
    def fault(self) -> str | None:
        return self._bytes.fault

    def progress(self) -> int:
        """How many bytes of the file, as it lies on the disk, were taken."""
        return self._bytes.taken()

    def close(self) -> None:
        """Let go of the file; may be called twice."""
        self._bytes.close()


def too_short(name: str, position: int) -> SourceError:
    """What is wrong with a file in which a position is not to be found."""
    return SourceError(f"{name} has become shorter: byte {position:,}, where the reading is to go on, is not in it")


class _Decoder(Protocol):
    fault: str | None

    def read(self, most: int) -> bytes:
        """Some bytes; none at the end, or where the fault is."""

    def jump(self, position: int) -> bool:
        """Go there at once, where that can be done."""

    def taken(self) -> int: ...

    def close(self) -> None: ...


class _Plain:
    def __init__(self, file: BinaryIO) -> None:
        self.fault: str | None = None
        self._file = file

    def read(self, most: int) -> bytes:
        return self._file.read(most)

    def jump(self, position: int) -> bool:
        if position > os.fstat(self._file.fileno()).st_size:
            return False
        self._file.seek(position)
        return True

    def taken(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


class _Gzip:
    """One member after the other, up to the first that is cut short or damaged."""

    def __init__(self, file: BinaryIO) -> None:
        self.fault: str | None = None
        self._file = file
        self._member: Any = None
        self._packed = b""
        self._rest = b""  # decompressed, and not yet asked for

    def read(self, most: int) -> bytes:
        while not self._rest and self.fault is None:
            if not self._packed:
                self._packed = self._file.read(_CHUNK)
                if not self._packed:
                    if self._member is not None:
                        self.fault = "the gzip stream ends early: what follows this line is missing"
                    break
            self._unpack()
        data, self._rest = self._rest[:most], self._rest[most:]
        return data

    def _unpack(self) -> None:
        if self._member is None:
            self._packed = self._packed.lstrip(b"\0")  # tapes and block devices pad a file so
            if not self._packed:
                return
            self._member = zlib.decompressobj(wbits=31)
        before = self._member.copy()
        try:
            self._rest = self._member.decompress(self._packed)
        except zlib.error:
            self._rest = _up_to_the_fault(before, self._packed)
            self.fault = "the gzip stream is damaged: lines before this one may be wrong, those after it are lost"
            return
        self._packed = self._member.unused_data
        if self._member.eof:
            self._member = None

    def jump(self, position: int) -> bool:
        return False

    def taken(self) -> int:
        return self._file.tell() - len(self._packed)

    def close(self) -> None:
        self._file.close()


def _up_to_the_fault(member: Any, packed: bytes) -> bytes:
    """What can be decompressed of bytes that have a fault: zlib keeps nothing of a call that fails."""
    good = bytearray()
    with suppress(zlib.error):
        for place in range(len(packed)):
            good += member.decompress(packed[place : place + 1])
    return bytes(good)


class _Zstd:
    def __init__(self, name: str) -> None:
        self.fault: str | None = None
        self._name = name
        self._begin()

    def _begin(self) -> None:
        with needs("rows"):
            import pyarrow as pa  # type: ignore[import-untyped]
        self._read = 0
        self._file = pa.OSFile(self._name)
        self._stream = pa.CompressedInputStream(self._file, "zstd")

    def read(self, most: int) -> bytes:
        if self.fault is not None:
            return b""
        try:
            data: bytes = self._stream.read(most)
        except (OSError, ValueError) as error:
            if getattr(error, "errno", None) is not None:
                raise  # the disk's fault, not the file's
            self.fault = f"the zstd stream ends early or is damaged: what follows this line is lost ({error})"
            data = self._up_to_the_fault(most)
        self._read += len(data)
        return data

    def _up_to_the_fault(self, most: int) -> bytes:
        """The bytes before a fault: a read that meets it keeps nothing, so each is read by itself."""
        known = self._read
        self.close()
        self._begin()
        while self._read < known:
            self._read += len(self._stream.read(min(_SKIP, known - self._read)))
        good = bytearray()
        with suppress(OSError, ValueError):
            while len(good) < most:
                good += self._stream.read(1)
        return bytes(good)

    def jump(self, position: int) -> bool:
        return False

    def taken(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        self._stream.close()
        self._file.close()


def _patterns(paths: Paths) -> list[str]:
    given = [paths] if isinstance(paths, str | bytes | os.PathLike) else paths
    if not isinstance(given, Sequence) or not given:
        raise TypeError(f"the files of a source are a path, a glob, or a list of them, not {paths!r}")
    patterns = []
    for path in given:
        pattern = os.fspath(path) if isinstance(path, str | os.PathLike) else None
        if not isinstance(pattern, str) or not pattern:
            raise TypeError(f"a path is a text or a pathlib.Path, not {path!r}")
        scheme, separator, _ = pattern.partition("://")
        if separator and scheme.isalnum():
            raise ValueError(f"files are read from this machine, not from {scheme}://…: fetch them first")
        patterns.append(pattern)
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


def _digest(name: str, size: int) -> str:
    """How a file begins and ends, as far as it goes at this size."""
    with open(name, "rb") as file:
        begin = file.read(min(size, _EDGE))
        file.seek(max(0, size - _EDGE))
        end = file.read(min(size, _EDGE))
    return blake2b(begin + end, digest_size=8).hexdigest()


def _decoded(name: str) -> _Decoder:
    file = open(name, "rb")  # noqa: SIM115 - the decoder closes it
    head = file.read(10)
    file.seek(0)
    if _GZIP.match(head):
        return _Gzip(file)
    if _ZSTD.match(head):
        file.close()
        return _Zstd(name)
    for magic, kind in _NOT_READ:
        if magic.match(head):
            file.close()
            raise SourceError(f"{name} is {kind}")
    return _Plain(file)
