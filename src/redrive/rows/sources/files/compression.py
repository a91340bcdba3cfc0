"""Decompression of gzip and zstd files, and the check that a compressed file is whole.

The checksum of a gzip member or a zstd frame stands at its end, so nothing inside it can be trusted before it was
decompressed to the end. `damage_of` does that once, before the first row of a file is handed out.
"""

from __future__ import annotations

import mmap
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO, Protocol

from redrive._internal.optional import require_extra
from redrive.errors import SourceError

_CHUNK = 1 << 14  # of a compressed file: what it unpacks to may be a thousand times as large
_STEP = 1 << 20
RATIO_VARIABLE = "REDRIVE_MAX_COMPRESSION_RATIO"
"""How many times its size a file may unpack to, from `_ANY_RATIO` bytes on."""
_MOST_RATIO = 500  # tables seldom reach 100; a stream of zeros has 1,030 with gzip and 30,000 with zstd
_ANY_RATIO = 256 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")  # a frame, or one to be skipped
_BY_NAME = {".gz": ("gzip", _GZIP_MAGIC), ".zst": ("zstd", _ZSTD_MAGIC), ".zstd": ("zstd", _ZSTD_MAGIC)}
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")  # control characters, which are in no text
_NOT_READ = (
    (re.compile(rb"PK\x03\x04"), "a zip archive, or a spreadsheet: unpack or export it first"),
    (re.compile(rb"BZh[1-9]1AY&SY"), "compressed with bzip2: gzip and zstd are read"),
    (re.compile(rb"\xfd7zXZ\x00"), "compressed with xz: gzip and zstd are read"),
)


@dataclass(frozen=True, slots=True)
class CompressionFault:
    """What is wrong with a compressed file.

    reason  "the gzip stream ends early"
    intact  how many decompressed bytes stand before the damaged member or frame
    """

    reason: str
    intact: int


class CompressionError(Exception):
    """A compressed stream cannot be decompressed any further."""


class Decoder(Protocol):
    """The decompressed bytes of one file."""

    def read(self, most: int) -> bytes:
        """Return some bytes, none at the end; raises `CompressionError`."""

    def jump(self, position: int) -> bool:
        """Go to a position at once, where that is possible."""

    def taken(self) -> int:
        """Return how many bytes of the file on disk were read."""

    def close(self) -> None:
        """Close the file; may be called twice."""


def open_decoder(name: str) -> Decoder:
    """Open a file; how it is compressed is seen from its first bytes, not from its name."""
    file = open(name, "rb")  # noqa: SIM115 - the decoder closes it
    head = file.read(10)
    file.seek(0)
    if head.startswith(_GZIP_MAGIC):
        return _Gzip(file)
    if _ZSTD.match(head):
        file.close()
        return _Zstd(name)
    for magic, kind in _NOT_READ:
        if magic.match(head):
            file.close()
            raise SourceError(f"{name} is {kind}")
    return _Plain(file)


def is_plain(name: str) -> bool:
    """Return whether a file is read as it is."""
    with open(name, "rb") as file:
        head = file.read(10)
    return not head.startswith(_GZIP_MAGIC) and not _ZSTD.match(head)


def damage_of(name: str) -> CompressionFault | None:
    """Return what is wrong with a compressed file; None if it is whole, or not compressed.

    This decompresses the whole file. The answer is remembered for as long as the file is not changed.
    """
    status = os.stat(name)
    return _damage_of(name, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@lru_cache(maxsize=1024)
def _damage_of(name: str, *_version: int) -> CompressionFault | None:
    decoder = open_decoder(name)
    try:
        if isinstance(decoder, _Plain):
            return _without_its_magic(name)
        unpacked = 0
        while piece := decoder.read(_STEP):
            unpacked += len(piece)
            if unpacked > _ANY_RATIO:
                _check_ratio(name, unpacked, decoder.taken())
    except CompressionError as damaged:
        intact = decoder.intact if isinstance(decoder, _Gzip) else _intact_zstd(name)
        return CompressionFault(str(damaged), intact)
    finally:
        decoder.close()
    return None


def _check_ratio(name: str, unpacked: int, packed: int) -> None:
    """Refuse a file that is made to fill a disk."""
    most = _most_ratio()
    if unpacked > most * max(1, packed):
        raise SourceError(
            f"{name} unpacks to more than {most:,} times its size ({unpacked >> 20:,} MB so far). Nothing of it was "
            f"loaded. If the file is not a decompression bomb, set {RATIO_VARIABLE} to a larger number"
        )


def _most_ratio() -> int:
    given = os.environ.get(RATIO_VARIABLE, "")
    if not given:
        return _MOST_RATIO
    if not given.isdecimal() or int(given) < 1:
        raise SourceError(f"{RATIO_VARIABLE} must be a whole number of 1 or more, not {given!r}")
    return int(given)


def _without_its_magic(name: str) -> CompressionFault | None:
    """Return a file called .gz or .zst that does not begin like one; text was decompressed, and has kept its name."""
    kind, magic = _BY_NAME.get(os.path.splitext(name)[1].lower(), ("", b""))
    if not kind:
        return None
    with open(name, "rb") as file:
        head = file.read(4096)
    if len(head) < len(magic) and magic.startswith(head):
        return CompressionFault(f"the {kind} stream ends early", 0)
    return CompressionFault(f"it does not begin as a {kind} stream does", 0) if _BINARY.search(head) else None


class _Plain:
    def __init__(self, file: BinaryIO) -> None:
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
    """One member after the other.

    intact  how many decompressed bytes are in members whose checksum was right
    """

    def __init__(self, file: BinaryIO) -> None:
        self.intact = 0
        self._unpacked = 0
        self._file = file
        self._member: Any = None
        self._packed = b""
        self._has_more = False  # what was packed may be decompressed further
        self._rest = b""  # decompressed, and not yet asked for

    def read(self, most: int) -> bytes:
        while not self._rest:
            if not self._packed and not self._has_more:
                self._packed = self._file.read(_CHUNK)
            if not self._packed and not self._has_more:
                if self._member is not None:
                    raise CompressionError("the gzip stream ends early")
                return b""
            self._unpack()
        data, self._rest = self._rest[:most], self._rest[most:]
        return data

    def _unpack(self) -> None:
        if self._member is None:
            self._packed = self._packed.lstrip(b"\0")  # tapes and block devices pad a file so
            if not self._packed:
                return
            self._member = zlib.decompressobj(wbits=31)
        try:
            self._rest = self._member.decompress(self._packed, _STEP)  # a little may be packed that is very much
        except zlib.error as error:
            raise CompressionError("the gzip stream is corrupt") from error
        self._unpacked += len(self._rest)
        self._packed = self._member.unconsumed_tail or self._member.unused_data
        self._has_more = len(self._rest) == _STEP and not self._member.eof
        if self._member.eof:
            self._member = None
            self.intact = self._unpacked

    def jump(self, position: int) -> bool:
        return False

    def taken(self) -> int:
        return self._file.tell() - len(self._packed)

    def close(self) -> None:
        self._file.close()


class _Zstd:
    def __init__(self, name: str) -> None:
        with require_extra("rows"):
            import pyarrow as pa  # type: ignore[import-untyped]
        self._file = pa.OSFile(name)
        self._stream = pa.CompressedInputStream(self._file, "zstd")

    def read(self, most: int) -> bytes:
        try:
            data: bytes = self._stream.read(most)
        except (OSError, ValueError) as error:
            if getattr(error, "errno", None) is not None:
                raise  # the disk's fault, not the file's
            early = "Truncated" in str(error)
            raise CompressionError(f"the zstd stream {'ends early' if early else 'is corrupt'}") from error
        return data

    def jump(self, position: int) -> bool:
        return False

    def taken(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        self._stream.close()
        self._file.close()


def _intact_zstd(name: str) -> int:
    """Return how many decompressed bytes stand before the first damaged frame.

    Arrow does not report where a frame ends, so the frames are found by their headers and decompressed one by one.
    """
    import pyarrow as pa

    intact = 0
    with open(name, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for start, end in _zstd_frames(data):
            frame = 0
            with pa.CompressedInputStream(pa.BufferReader(data[start:end]), "zstd") as stream:
                try:
                    while piece := stream.read(_STEP):
                        frame += len(piece)
                except (OSError, ValueError):
                    break
            intact += frame
    return intact


def _zstd_frames(data: mmap.mmap) -> Iterator[tuple[int, int]]:
    """The places of the frames, up to the first that is cut short or is none."""
    start = 0
    while start < len(data) and (end := _zstd_frame_end(data, start)) is not None and end <= len(data):
        yield start, end
        start = end


def _zstd_frame_end(data: mmap.mmap, at: int) -> int | None:
    """Return where a frame ends by its own headers (RFC 8878, section 3.1); None if they are not those of one."""

    def number(place: int, size: int) -> int:
        return int.from_bytes(data[place : place + size], "little")

    magic = data[at : at + 4]
    if magic != _ZSTD_MAGIC:
        return at + 8 + number(at + 4, 4) if _ZSTD.match(magic) else None
    descriptor = number(at + 4, 1)
    one_segment = descriptor >> 5 & 1
    at += 5 + (1 - one_segment) + (0, 1, 2, 4)[descriptor & 3] + (one_segment, 2, 4, 8)[descriptor >> 6]
    last = False
    while not last:
        if at + 3 > len(data):
            return None
        header = number(at, 3)
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        at += 3 + (1 if kind == 1 else size)
    return at + 4 * (descriptor >> 2 & 1)
