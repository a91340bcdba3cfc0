"""`python` without its imports: commands for `subprocess` that run in a fork of a warmed-up interpreter.

Use `warm_python("-m", "redrive.cli", …)` where a test needs a real process, but neither its own pid, its process group
nor a cold import. Use `sys.executable` where one of those is what the test is about.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def warm_python(*words: object) -> list[str]:
    """Return the command that runs `python WORDS…` in a fork of the warm server."""
    return [*_client(), *map(str, words)]


def cold_python(*words: object) -> list[str]:
    """Return the command that runs `python WORDS…` as a process with a pid of its own, imports included."""
    return [sys.executable, *map(str, words)]


@functools.cache
def warm_programs() -> Path:
    """Return a directory with `python` and `redrive` for the PATH of a shell."""
    directory = Path(_directory()) / "bin"
    directory.mkdir()
    for name, words in {"python": "", "python3": "", "redrive": "-m redrive.cli"}.items():
        script = directory / name
        script.write_text(f'#!/bin/sh\nexec {" ".join(_client())} {words} "$@"\n')
        script.chmod(0o755)
    return directory


def _client() -> list[str]:
    return [sys.executable, "-I", "-S", str(HERE / "warm_client.py"), _socket()]


@functools.cache
def _directory() -> str:
    directory = tempfile.mkdtemp(prefix="redrive-warm-")
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(directory, ignore_errors=True) if os.getpid() == owner else None)
    return directory


@functools.cache
def _socket() -> str:
    """Start the server of this process on first use; it ends with this process."""
    path = f"{_directory()}/socket"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    server = subprocess.Popen(
        [sys.executable, str(HERE / "warm_server.py"), path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environ,
        cwd="/",
        start_new_session=True,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n", "the warm server did not start"
    _servers.append(server)
    return path


_servers: list[subprocess.Popen[bytes]] = []
"""Keeps the pipe by which a server learns that this process is gone."""
