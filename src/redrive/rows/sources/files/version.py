"""A file as it was when it was opened, so that a change during the reading is noticed before its rows are used.

A file that is replaced by another one (renamed over it) or removed stays whole for the process that has it open. One
that is written in place does not: what is read before and behind that moment belongs to two files.
"""

from __future__ import annotations

import os

from redrive.errors import SourceError
from redrive.rows.sources.files.identity import content_of

_SAMPLES = 16  # blocks that tell a file that was only appended to from another one


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
        """The error that ends a run; nothing that was read behind the change is loaded."""
        return ChangedFile(
            f"{self._name} was changed while it was being read: {how}; nothing was loaded from it since; once it is "
            "whole, run with restart=True or `redrive run --restart`"
        )

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()


def _state(found: os.stat_result) -> tuple[int, int]:
    return found.st_size, found.st_mtime_ns
