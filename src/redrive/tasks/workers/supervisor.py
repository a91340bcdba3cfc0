"""Processes that are watched over: what they start is killed with them, and they end with whoever started them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from secrets import token_hex
from typing import Any

from redrive.calls import testmode
from redrive.tasks.workers import processes

# The path of the executor comes last until our own modules are there: a user's json.py is not for us.
_PROGRAM = """
import sys
path = {path!r}
sys.path = [entry for entry in sys.path if entry] + path
from {module} import main
sys.path[:] = path
main({descriptor})
"""
_MARK = "REDRIVE_FORK_SERVER"  # in the environment of everything that comes of it
_TO_END = 20.0  # seconds


class Supervisor:
    """A process that forks others, kills them with all that came of them, and ends with the one that started it."""

    def __init__(
        self, module: str, title: str, launch: Mapping[str, Any], *, takes: Sequence[int] = (), is_quiet: bool = False
    ) -> None:
        """Start a fresh interpreter that runs `main` of this module.

        title     for those who look at the list of processes
        launch    what it is to know beforehand
        takes     descriptors that it is given, under their numbers
        is_quiet  nothing is written to the standard output of this process
        """
        self._mark = token_hex(8)
        self.control, theirs = socket.socketpair()
        try:
            self.process = self._start(module, title, theirs.fileno(), takes, is_quiet=is_quiet)
        except BaseException:
            self.control.close()
            raise
        finally:
            theirs.close()
        given = {"executor": os.getpid(), "argv": sys.argv, "testing": asdict(testmode.active()), **launch}
        with contextlib.suppress(ConnectionError):  # a start that failed is noticed by who waits for it
            self.control.sendall(json.dumps(given).encode() + b"\n")

    def _start(
        self, module: str, title: str, descriptor: int, takes: Sequence[int], *, is_quiet: bool
    ) -> subprocess.Popen[bytes]:
        path = [entry for entry in sys.path if isinstance(entry, str)]
        return subprocess.Popen(
            [
                sys.executable,
                *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                "-c",
                _PROGRAM.format(path=path, module=module, descriptor=descriptor),
                title,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if is_quiet else None,
            env={**os.environ, _MARK: self._mark},
            pass_fds=(descriptor, *takes),
            start_new_session=True,  # a Ctrl-C is the business of the process that started it
        )

    def _wait(self) -> None:
        """Wait for its end; `subprocess` would look only from time to time, and up to 50 ms too late."""
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                descriptor = os.pidfd_open(self.process.pid)
                try:
                    poll = select.poll()
                    poll.register(descriptor, select.POLLIN)
                    poll.poll(1_000 * _TO_END)
                finally:
                    os.close(descriptor)
        self.process.wait(_TO_END)

    def end(self, *, at_once: bool = False) -> int:
        """Let it kill all that came of it and end; return its exit status. It is asked by the end of its orders.

        at_once  it listens to nobody yet, and has no workers
        """
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_WR)
        if at_once:
            self.process.kill()
        try:
            self._wait()
        except BaseException as error:
            self.process.kill()
            self.process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):  # a second Ctrl-C
                raise
        finally:
            self.control.close()
            if self.process.returncode != 0:  # it could not see to its workers and what they have started
                processes.kill_marked(f"{_MARK}={self._mark}")
        return self.process.returncode
