"""Run a program with a text on stdin and a timeout: used by the channels `command` and `apprise`."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_TAIL = 4_000
"""Bytes at the end of the output that are kept, since programs print the reason of a failure last."""
_POLL = 0.02
"""Seconds between two checks whether the program has ended; its output may be kept open longer by its children."""
_GRACE = 0.5
"""Seconds between SIGTERM and SIGKILL."""


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """The end of a program. The code is None if it was stopped, and negative if a signal ended it."""

    code: int | None
    output: str


def run(words: Sequence[str], given: bytes, *, environment: Mapping[str, str], seconds: float) -> ProcessEnded:
    """Run a program with a text on stdin; after the timeout it is killed with its children.

    Raises:
        OSError: The program cannot be started.
    """
    deadline = time.monotonic() + seconds
    process = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        start_new_session=True,
    )
    with _Pipes(process, given) as pipes:
        while process.poll() is None and (left := deadline - time.monotonic()) > 0:
            pipes.poll(min(_POLL, left))
        code = process.poll()
        if code is None:
            _stop(process, pipes)
        pipes.drain()
        return ProcessEnded(code, pipes.tail.decode("utf-8", "replace"))


class _Pipes:
    """Both pipes of a program at once: it may print before it has read its input, or never read it."""

    def __init__(self, process: subprocess.Popen[bytes], given: bytes) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.tail = b""
        self._input, self._output, self._left = process.stdin, process.stdout, memoryview(given)
        self._selector = selectors.DefaultSelector()
        os.set_blocking(self._input.fileno(), False)
        os.set_blocking(self._output.fileno(), False)
        self._selector.register(self._input, selectors.EVENT_WRITE, self._write)
        self._selector.register(self._output, selectors.EVENT_READ, self._read)

    def __enter__(self) -> _Pipes:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        with contextlib.suppress(OSError):
            self._input.close()
        self._output.close()

    def poll(self, seconds: float) -> None:
        """Read and write what is possible; wait this long for a pipe to be ready."""
        if not self._selector.get_map():
            time.sleep(seconds)
            return
        for key, _ in self._selector.select(seconds):
            key.data()

    def drain(self) -> None:
        """Read the output that exists, but not what a child that still runs may write later."""
        for _ in range(64):
            if not self._read():
                return

    def _write(self) -> None:
        try:
            self._left = self._left[os.write(self._input.fileno(), self._left) :]
        except BlockingIOError:
            return
        except OSError:  # the program does not read any more
            self._left = self._left[:0]
        if not self._left:
            self._selector.unregister(self._input)
            with contextlib.suppress(OSError):
                self._input.close()

    def _read(self) -> bool:
        try:
            chunk = os.read(self._output.fileno(), 65_536)
        except BlockingIOError:
            return False
        if not chunk and self._output in self._selector.get_map():
            self._selector.unregister(self._output)
        self.tail = (self.tail + chunk)[-_TAIL:]
        return bool(chunk)


def _stop(process: subprocess.Popen[bytes], pipes: _Pipes) -> None:
    for which in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, which)  # the program leads its own session, so this is also the number of its group
        end = time.monotonic() + _GRACE
        while process.poll() is None and (left := end - time.monotonic()) > 0:
            pipes.poll(min(_POLL, left))
