"""The identity of a process that holds a claim: its machine, its number and its start time."""

from __future__ import annotations

import functools
import json
import os
import socket
import uuid
from pathlib import Path

_at_work: set[str] = set()
"""The claims of this process that are still in use."""


def begin_work(owner: str) -> None:
    """Mark a claim of this process as in use."""
    _at_work.add(owner)


def end_work(owner: str) -> None:
    """Mark a claim of this process as no longer in use: what is left of it in the store is stale."""
    _at_work.discard(owner)


def new_owner() -> str:
    """Return a new owner name for a claim of this process; others can tell by it whether the process lives."""
    pid = os.getpid()
    token = uuid.uuid4().hex
    return json.dumps(
        {
            "host": socket.gethostname(),
            "boot": _boot(),
            "space": _space(),
            "pid": pid,
            "began": _began(pid),
            "token": token,
        }
    )


def is_owner_dead(owner: str) -> bool:
    """Return whether the claim of this owner is stale, as far as this machine can tell."""
    identity = json.loads(owner)
    if (identity["host"], identity.get("boot"), identity["space"]) != (socket.gethostname(), _boot(), _space()):
        return False
    if identity["pid"] == os.getpid() and identity["began"] == _began(os.getpid()):
        return owner not in _at_work  # a claim of this process that was not released
    try:
        os.kill(identity["pid"], 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return bool(_began(identity["pid"]) != identity["began"])  # another process has the same number now


@functools.cache
def _boot() -> str | None:
    """Return the id of the running kernel: two machines may have the same name, and the same process numbers."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _space() -> str | None:
    """Return the namespace of process numbers: two containers may have the same host name, and each a process 1."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _began(pid: int) -> str | None:
    """Return when a process began, by the kernel's count; None if that is unknown, or the process is dead."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in {"Z", "X"} else fields[18]
