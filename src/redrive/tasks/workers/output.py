"""The output of an attempt: its beginning and its end, whatever its length. Used by the pool."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from redrive._internal.masking import MARGIN, mask, mask_end, mask_start
from redrive.tasks.workers.fingerprint import storable
from redrive.tasks.workers.live_output import LiveOutput

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
