"""Identify a file by its size, content and modification time, and notice a change while it is read.

A checkpoint is used only for the same file. Reading all of a large file to compare it would take almost as long as
loading it, so small files are digested whole, and large ones in samples spread over the file, with the modification
time.

A file that is replaced by another one (renamed over it) or removed stays whole for the process that has it open. A file
that is written in place does not: what is read before and after that moment belongs to two files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, BinaryIO

from redrive.errors import SourceError

_BLOCK = 4096
_WHOLE = 4 << 20  # a file up to this size is digested whole
_WHOLE_IN_ALL = 256 << 20  # as long as the files together are not larger than this
_SAMPLES_IN_ALL = 16_384  # blocks that are read of all files together
_MOST, _LEAST = 256, 4  # blocks of one file
_SAMPLES = 16  # blocks that distinguish a file that has only grown from another one


def identities(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the identity of each file, as JSON."""
    sizes = {name: os.stat(name).st_size for name in names}
    whole = _WHOLE if sum(size for size in sizes.values() if size <= _WHOLE) <= _WHOLE_IN_ALL else 0
    samples = max(_LEAST, min(_MOST, _SAMPLES_IN_ALL // max(1, len(names))))
    return [identity(name, samples=0 if size <= whole else samples) for name, size in sizes.items()]


def identity(name: str, *, samples: int) -> dict[str, Any]:
    """Return the identity of a file; `samples` is how many blocks of it are digested, 0 for all of it."""
    with open(name, "rb") as file:
        status = os.fstat(file.fileno())
    return {
        "name": name,
        "size": status.st_size,
        "digest": edges(name, status.st_size),
        "mtime_ns": status.st_mtime_ns,
        "samples": samples,
        "content": content(name, status.st_size, samples=samples),
    }


def difference(recorded: Mapping[str, Any]) -> str | None:
    """Return how a file differs from what was recorded of it, as a clause; None if it is the same.

    What an older version did not record is not compared.
    """
    name, size = recorded["name"], recorded["size"]
    status = os.stat(name)
    if status.st_size != size:
        return f"{name} {'has grown since' if status.st_size > size else 'has become shorter'}"
    if edges(name, size) != recorded["digest"]:
        return f"{name} is another file now: its beginning or end differs"
    if "content" not in recorded:
        return None
    samples = recorded["samples"]
    if content(name, size, samples=samples) != recorded["content"]:
        return f"{name} is another file now: its content differs"
    if samples and status.st_mtime_ns != recorded["mtime_ns"]:
        return f"{name} was written since, and is too large to be compared as a whole"
    return None


def has_grown(recorded: Mapping[str, Any]) -> bool:
    """Return whether a file begins with all that was recorded of it, and has more by now."""
    name, size = recorded["name"], recorded["size"]
    if "content" not in recorded or os.stat(name).st_size <= size:
        return False
    return bool(content(name, size, samples=recorded["samples"]) == recorded["content"])


def edges(name: str, size: int) -> str:
    """Digest how a file begins and ends."""
    with open(name, "rb") as file:
        begin = file.read(min(size, _BLOCK))
        file.seek(max(0, size - _BLOCK))
        end = file.read(min(size, _BLOCK))
    return blake2b(begin + end, digest_size=8).hexdigest()


def content(name: str, size: int, *, samples: int, without: Sequence[tuple[int, int]] = ()) -> str:
    """Digest a file, or blocks spread over it; of the bytes in the ranges `without` nothing is read."""
    with open(name, "rb") as file:
        return content_of(file, size, samples=samples, without=without)


def content_of(file: BinaryIO, size: int, *, samples: int, without: Sequence[tuple[int, int]] = ()) -> str:
    """Digest a file that is open, like `content`."""
    digest = blake2b(digest_size=16)
    for start, end in _blocks(size, samples):
        for first, last in _outside(start, end, sorted(without)):
            file.seek(first)
            digest.update(file.read(last - first))
    return digest.hexdigest()


def _outside(start: int, end: int, ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Return the parts of a block that are outside of all ranges, which are sorted."""
    for first, last in ranges:
        if start < min(first, end):
            yield start, min(first, end)
        start = max(start, last)
    if start < end:
        yield start, end


def _blocks(size: int, samples: int) -> Iterator[tuple[int, int]]:
    if not samples or samples * _BLOCK >= size:
        for start in range(0, size, 1 << 20):
            yield start, min(size, start + (1 << 20))
        return
    for number in range(samples):
        start = number * (size - _BLOCK) // (samples - 1)
        yield start, start + _BLOCK


class ChangedFile(SourceError):
    """A file was written while it was being read."""


class FileVersion:
    """A file that is open, and what it was then. Checked after each read, it vouches for all bytes read so far."""

    def __init__(self, name: str, *, may_grow: bool = False) -> None:
        """`may_grow` allows what is only appended to, as a log."""
        self._name = name
        self._file = open(name, "rb")  # noqa: SIM115 - `close` closes it
        self._found = os.fstat(self._file.fileno())
        self._samples = content_of(self._file, self._found.st_size, samples=_SAMPLES) if may_grow else None

    def check(self) -> None:
        """Raise SourceError if the file was written since."""
        now = os.fstat(self._file.fileno())
        if _state(now) == _state(self._found):
            return
        size = self._found.st_size
        if now.st_size < size:
            raise self.changed("it has become shorter")
        is_longer = now.st_size > size and self._samples is not None
        if not is_longer or content_of(self._file, size, samples=_SAMPLES) != self._samples:
            raise self.changed("another content was written into it")

    def check_same(self, earlier: os.stat_result | None) -> None:
        """Raise SourceError if the file is not the one of which something was read before."""
        if earlier is not None and (*_state(earlier), earlier.st_ino) != (*_state(self._found), self._found.st_ino):
            raise self.changed("another content was written into it, or another file has taken its place")

    def check_path(self) -> None:
        """Raise SourceError if the file was written, or its name is that of another file or of none, since."""
        self.check()
        try:
            is_same = os.path.samestat(os.stat(self._name), self._found)
        except FileNotFoundError:
            raise SourceError(f"there is no file {self._name}") from None
        if not is_same:
            raise self.changed("another file has taken its place")

    def changed(self, how: str) -> ChangedFile:
        """Return the error that ends a run; nothing that was read after the change is loaded."""
        return ChangedFile(
            f"{self._name} was changed while it was being read: {how}; nothing was loaded from it since; once it is "
            "whole, run with restart=True or `redrive run --restart`"
        )

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()


def _state(found: os.stat_result) -> tuple[int, int]:
    return found.st_size, found.st_mtime_ns
