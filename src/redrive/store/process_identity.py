"""Who holds a claim: a process, known by its machine, its number and the moment it began."""

from __future__ import annotations

import functools
import json
import os
import socket
import uuid
from pathlib import Path

_at_work: set[str] = set()
"""The claims of this process that somebody is still behind."""


def begin_work(owner: str) -> None:
    """Say that somebody in this process is behind this claim."""
    _at_work.add(owner)


def end_work(owner: str) -> None:
    """Let go of a claim in this process: what is left of it in the store is nobody's."""
    _at_work.discard(owner)


def ourselves() -> str:
    """A name for what this process holds, by which others can tell whether it still lives."""
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


def is_dead(owner: str) -> bool:
    """Whether nobody is behind this claim any more, as far as this machine can tell."""
    who = json.loads(owner)
    if (who["host"], who.get("boot"), who["space"]) != (socket.gethostname(), _boot(), _space()):
        return False
    if who["pid"] == os.getpid() and who["began"] == _began(os.getpid()):
        return owner not in _at_work  # something of our own that could not even say that it ended
    try:
        os.kill(who["pid"], 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return bool(_began(who["pid"]) != who["began"])  # another process has its number now


@functools.cache
def _boot() -> str | None:
    """Which kernel counts them: two machines may have one name, and the same numbers."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _space() -> str | None:
    """Within which processes have their numbers: two containers may have one host's name, and each a process 1."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _began(pid: int) -> str | None:
    """When a process began, by the kernel's count; None where that cannot be had, or it is dead and only not buried."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in {"Z", "X"} else fields[18]
