"""The output of an attempt: its beginning and its end, the thread dumps in it, and a file while the attempt runs.

The executor writes the file line by line, without what looks like a credential. When the attempt ends, its output goes
to the store and the file is removed. If an executor is killed, the file is left for the executor that takes over.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
from pathlib import Path, PurePath
from uuid import UUID

from redrive._internal.files import make_directory
from redrive._internal.masking import MARGIN, mask, mask_end, mask_start, mask_stream
from redrive.tasks.workers.fingerprint import storable

KEPT = 16 << 10
"""Bytes to keep of the beginning, and of the end."""
_SEEN = KEPT + MARGIN  # a secret may lie across the cut
_LONGEST_LINE = 4 << 10
_CHUNK = 1 << 16
_AT_ONCE = 1 << 18  # bytes read at once, so that other workers are served, too


class OutputCollector:
    """Collects the output that arrives by a pipe."""

    __slots__ = ("_head", "_live", "_tail", "_total")

    def __init__(self, live: str = "") -> None:
        """live  the file that shows the output while the attempt runs"""
        self._live = LiveOutput(live)
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def add(self, data: bytes) -> None:
        """Add received output."""
        self._live.add(data)
        self._total += len(data)
        room = _SEEN - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data
            if len(self._tail) > 8 * KEPT:
                del self._tail[:-_SEEN]

    def text(self) -> str:
        """Return the kept output, masked; no more can be added."""
        self._live.close()
        if not self._total:
            return ""
        if self._total <= 2 * KEPT:
            return mask(_readable(self._head + self._tail))
        is_complete = len(self._head) + len(self._tail) == self._total
        tail = (self._head + self._tail if is_complete else self._tail)[-_SEEN:]
        # Cut between lines, unless they are very long.
        ends = self._head.rfind(b"\n", KEPT - _LONGEST_LINE, KEPT) + 1 or KEPT
        begins = tail.find(b"\n", len(tail) - KEPT, len(tail) - KEPT + _LONGEST_LINE) + 1 or len(tail) - KEPT
        left_out = self._total - ends - (len(tail) - begins)
        first, last = _readable(self._head[:ends]), _readable(tail[begins:])
        beginning = mask_start(first + _readable(self._head[ends:]), len(first)).removesuffix("\n")
        end = mask_end(_readable(tail[:begins]) + last, len(last))
        return f"{beginning}\n… {left_out:,} bytes left out …\n{end}"


def _readable(data: bytearray) -> str:
    return storable(data.decode(errors="backslashreplace"))


def read_left_behind(path: Path) -> str:
    """Return the kept output of an attempt whose executor was killed."""
    output = OutputCollector()
    with contextlib.suppress(OSError), path.open("rb") as file:
        while data := file.read(_CHUNK):
            output.add(data)
    return output.text()


def drain(pipe: int, output: OutputCollector | None) -> bool:
    """Read available output, up to a limit; return whether more may follow."""
    read = 0
    while read < _AT_ONCE:
        try:
            data = os.read(pipe, _CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        if output is not None:
            output.add(data)
        if len(data) < _CHUNK:
            return True
        read += len(data)
    return True


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


# faulthandler writes the innermost call first.
_BLOCK = re.compile(
    r"^(?:Current thread|Thread) 0x[0-9a-f]{1,16}+.{0,200}\(most recent call first\):\n(?:  .*\n?)+\n?", re.MULTILINE
)
_RUNS_A_TASK = re.compile(
    rf'  File ".*{re.escape(str(PurePath("redrive", "tasks", "workers", "run_task.py")))}", line \d+'
)


def tidy(output: str) -> str:
    """Return the output with dumps cut at the task's function, without duplicates."""
    seen: set[str] = set()

    def shorter(found: re.Match[str]) -> str:
        header, *frames = found[0].rstrip("\n").split("\n")
        own = next((place for place, frame in enumerate(frames) if _RUNS_A_TASK.match(frame)), len(frames))
        block = "\n".join([header, *(frames[:own] or frames)])
        if block in seen:
            return ""
        seen.add(block)
        return f"{block}\n"

    return _BLOCK.sub(shorter, output)


def split(output: str) -> tuple[str, str]:
    """Return the task's own output and the dumps after it."""
    found = _BLOCK.search(output)
    return (output, "") if found is None else (output[: found.start()], output[found.start() :])
