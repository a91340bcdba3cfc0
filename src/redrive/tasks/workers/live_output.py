"""Live output: what a running attempt writes, in a file beside the results, for as long as the attempt runs.

The executor writes it line by line, without what looks like a credential. When the attempt ends, its output goes to the
store and the file is removed. Where an executor is killed the file is left, for the one that takes the task over.
"""

from __future__ import annotations

import codecs
import contextlib
import os
from pathlib import Path
from uuid import UUID

from redrive._internal.files import make_directory
from redrive._internal.masking import mask, mask_stream
from redrive.tasks.workers.fingerprint import storable

LONGEST = 8 << 20
"""Maximum bytes of a file."""
_FULL = "… more than this is not written while the task runs …\n"


def live_file(directory: Path, run_id: UUID, task_id: int, attempt: int) -> Path:
    """Return the path of the output of a running attempt."""
    return directory / str(run_id) / f"{task_id}-{attempt}.log"


class LiveOutput:
    """Writes output to a file, which is created with the first byte."""

    __slots__ = ("_decoder", "_file", "_masked", "_path", "_written")

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: int | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._masked = mask_stream()
        self._written = 0

    def add(self, data: bytes) -> None:
        """Write complete lines; a failed write does not affect the task."""
        if not self._path or self._written > LONGEST:
            return
        if text := self._masked.add(storable(self._decoder.decode(data))):
            self._write(text)

    def _write(self, text: str) -> None:
        try:
            if self._file is None:
                make_directory(os.path.dirname(self._path))
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
                self._file = os.open(self._path, flags, 0o600)
            self._written += len(text)
            os.write(self._file, (text if self._written <= LONGEST else _FULL).encode())
        except OSError:
            self.close()

    def close(self) -> None:
        """Remove the file after the attempt, when the output is stored elsewhere."""
        if self._file is not None:
            os.close(self._file)
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self._path, self._file = "", None


def read_live(path: Path) -> str | None:
    """Return the output of an attempt so far; None if there is no file."""
    try:
        return mask(path.read_text(errors="backslashreplace"))
    except OSError:
        return None
