"""The supervisor process, which forks workers, kills them with all their children, and ends with its parent.

Used for the fork server of an executor and for killable calls.
"""

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

# The executor's path comes last until redrive's modules are imported: a user's json.py must not replace them.
_PROGRAM = """
import sys
path = {path!r}
sys.path = [entry for entry in sys.path if entry] + path
from {module} import main
sys.path[:] = path
main({descriptor})
"""
_MARK = "REDRIVE_FORK_SERVER"  # in the environment of all descendants
_TO_END = 20.0  # seconds


class Supervisor:
    """A process that forks others, kills them with their descendants, and ends with its parent."""

    def __init__(
        self, module: str, title: str, launch: Mapping[str, Any], *, takes: Sequence[int] = (), is_quiet: bool = False
    ) -> None:
        """Start a fresh interpreter that runs `main` of this module.

        title     title in the list of processes
        launch    launch parameters
        takes     descriptors that it inherits, with the same numbers
        is_quiet  discard its standard output
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
        with contextlib.suppress(ConnectionError):  # the caller notices a failed start when it waits
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
            start_new_session=True,  # only the parent handles a Ctrl-C
        )

    def _wait(self) -> None:
        """Wait for its end with a pidfd; `subprocess` polls, and notices the end up to 50 ms late."""
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
        """Close the socket of orders, so that it kills its descendants and ends; return its exit status.

        at_once  kill it: it does not read orders yet, and has no workers
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
            if self.process.returncode != 0:  # it may have left workers and their children
                processes.kill_marked(f"{_MARK}={self._mark}")
        return self.process.returncode
