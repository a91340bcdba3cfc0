"""What only the system can do about processes: die with one's parent, adopt orphans, find one's children.

On Linux all of it works. Elsewhere process groups have to do, and `children` finds none.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 10  # processes may start others during a round
_HARMLESS_THREADS = (
    "redrive",
    "jemalloc_bg_thd",
    "polars-ooc",
)  # these are started again after a fork, or only clean up
_LINUX = sys.platform.startswith("linux")


def _prctl(option: int, value: int) -> bool:
    if not _LINUX:
        return False
    try:
        return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def die_with_parent(parent: int) -> None:
    """Let the system kill this process when its parent ends; exit if the parent has ended already."""
    if _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) and os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Undo `die_with_parent`, since this process must clean up before its end."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def adopt_orphans() -> bool:
    """Become the parent of orphaned descendants, so that all of them can be killed."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> list[int]:
    """Return the child processes of this process, as far as the system lists them."""
    try:
        threads = os.listdir("/proc/self/task")
        listed = [Path(f"/proc/self/task/{thread}/children").read_text() for thread in threads]
    except OSError:
        return list(_children_by_scan())
    return [int(pid) for text in listed for pid in text.split()]


def _children_by_scan() -> Iterator[int]:
    own = os.getpid()
    with suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                with suppress(OSError, ValueError, IndexError):
                    # The name of the program is in parentheses, and may hold anything.
                    _, parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:2]
                    if int(parent) == own:
                        yield int(name)


def bury(prepare: Callable[[int], None]) -> tuple[int, int] | None:
    """Wait for a child that has ended, if there is one: its number and its status.

    `prepare` is called with the number while it still is the child's, where the system lets us look before we wait.
    """
    try:
        if not hasattr(os, "waitid"):
            pid, status = os.waitpid(-1, os.WNOHANG)
            prepare(pid)
            return (pid, status) if pid else None
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        prepare(found.si_pid)
        return os.waitpid(found.si_pid, 0)
    except ChildProcessError:
        return None


def has_zombie() -> bool:
    """Return whether a child has ended that was not waited for."""
    try:
        return hasattr(os, "waitid") and os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def threads() -> list[str]:
    """The names of the threads of this process, but for the main one and those that survive a fork, or do not matter.

    Threads of libraries are known by the name that the system has for them. One that has the name of the program is not
    notified of: numpy and its like start such ones, and see to forks themselves.
    """
    main = threading.main_thread()
    names = {
        one.name for one in threading.enumerate() if one is not main and not one.name.startswith(_HARMLESS_THREADS)
    }
    own = threading.active_count()
    with suppress(OSError):
        found = [Path(f"/proc/self/task/{number}/comm").read_text().strip() for number in os.listdir("/proc/self/task")]
        program = Path("/proc/self/comm").read_text().strip()
        if len(found) > own:
            names |= {name for name in found if name != program and not name.startswith(_HARMLESS_THREADS)}
    return sorted(names)


def kill_group(leader: int, number: int) -> None:
    """Send a signal to a process group and to its leader, which may not have created the group yet."""
    for send in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            send(leader, number)
            if number != signal.SIGKILL:
                return


def kill_marked(mark: str) -> None:
    """Kill all processes that were started with this entry in their environment."""
    wanted = mark.encode()
    for _ in range(_ROUNDS):
        found = False
        for name in filter(str.isdigit, os.listdir("/proc") if _LINUX else ()):
            with suppress(OSError):
                if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    os.kill(int(name), signal.SIGKILL)
                    found = True
        if not found:
            return


def resident_bytes(statm: int | None) -> int:
    """Return the resident memory of this process; `statm` is its open /proc/self/statm, if it exists."""
    if statm is not None:
        return int(os.pread(statm, 128, 0).split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10
