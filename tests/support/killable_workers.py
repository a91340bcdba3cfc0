"""Start, watch and kill the worker programs of the chaos suites (`killable.py` is the other side of the pipe)."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
_LONGEST = 60.0  # seconds in which a process must say something


class Worker:
    """One process and its output lines."""

    def __init__(self, pid: int, pipe: int, wait: Callable[[int], int]) -> None:
        self.pid = pid
        self.said: list[dict[str, Any]] = []
        self._pipe, self._wait, self._rest = pipe, wait, b""

    def listen(self, until: int | None = None) -> bool:
        """Read until there are this many messages, or to the end; return False where the process ended first."""
        while until is None or len(self.said) < until:
            if not select.select([self._pipe], [], [], _LONGEST)[0]:
                pytest.fail(f"process {self.pid} said nothing for {_LONGEST} s, after {self.said[-3:]}")
            heard = os.read(self._pipe, 1 << 16)
            if not heard:
                return False
            *lines, self._rest = (self._rest + heard).split(b"\n")
            self.said += [json.loads(line) for line in lines]
        return True

    def kill(self) -> None:
        """kill -9."""
        os.kill(self.pid, signal.SIGKILL)

    def join(self) -> int:
        """Read its output to the end and return its exit code."""
        self.listen()
        os.close(self._pipe)
        return self._wait(self.pid)

    def heard(self, what: str) -> list[dict[str, Any]]:
        """All its output lines of one kind."""
        return [one for one in self.said if one["what"] == what]


class Workers:
    """Starts processes."""

    def __init__(self, server: subprocess.Popen[str], directory: Path) -> None:
        self._server = server
        self._directory = directory
        self._serial = itertools.count()
        self._lock = threading.Lock()  # tests may start processes from several threads

    def start(self, operation: str, *, gate: Path | None = None, **arguments: Any) -> Worker:
        """Start an operation in a process of its own; one with a gate waits there."""
        path = self._directory / f"pipe-{next(self._serial)}"
        os.mkfifo(path)
        pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        job = {"operation": operation, "pipe": str(path), "gate": None if gate is None else str(gate), **arguments}
        worker = Worker(self._ask(job), pipe, lambda pid: self._ask({"wait": pid}))
        path.unlink()
        return worker

    @contextlib.contextmanager
    def together(self) -> Iterator[Path]:
        """A gate that opens at the end of the block, for all that were started with it."""
        gate = self._directory / f"gate-{next(self._serial)}"
        with gate.open("w") as closed:
            fcntl.flock(closed, fcntl.LOCK_EX)
            yield gate

    def _ask(self, job: dict[str, Any]) -> int:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with self._lock:
            self._server.stdin.write(json.dumps(job) + "\n")
            self._server.stdin.flush()
            return int(self._server.stdout.readline())


@contextlib.contextmanager
def workers_of(module: str, directory: Path) -> Iterator[Workers]:
    """Yield a starter of processes for one worker program of `tests.support`."""
    command = [sys.executable, "-W", "error", "-m", f"tests.support.{module}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        yield Workers(server, directory)
