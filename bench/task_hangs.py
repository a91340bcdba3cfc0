"""Tasks that hang in every way we know: how long after their limit each is dead, and whether anything of it is left.

Run it: python bench/task_hangs.py
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import redrive

LIMIT, GRACE, ALLOWED = 1.0, 0.5, 0.5
MARK = "REDRIVE_HANGING"

flow = redrive.Flow("hangs", workers=4)
hanging = flow.task(timeout=LIMIT, grace=GRACE, retry=None)


@hanging
def endless_loop():
    while True:
        pass


@hanging
def catastrophic_regex():
    re.match(r"(a+)+$", "a" * 64 + "b")


@hanging
def blocked_recv():
    ours, theirs = socket.socketpair()
    ours.recv(1)
    theirs.close()


@hanging
def sigterm_ignored():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


@hanging
def c_call_with_the_gil():
    ctypes.PyDLL(None).sleep(600)


@hanging
def grandchildren():
    sleep = [sys.executable, "-c", "import os, time; os.setsid(); time.sleep(600)"]
    program = f"import subprocess, time; subprocess.Popen({sleep!r}); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", program])
    time.sleep(600)


def left() -> int:
    """Processes that still carry the mark, this one not counted."""
    mark = f"{MARK}={os.getpid()}".encode()
    count = 0
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and int(place.name) != os.getpid():
            try:
                count += mark in (place / "environ").read_bytes()
            except OSError:  # it has ended meanwhile, or is somebody else's
                continue
    return count


def main() -> int:
    logging.getLogger("redrive").setLevel(logging.CRITICAL)
    os.environ[MARK] = str(os.getpid())
    late = 0
    with tempfile.TemporaryDirectory() as directory, redrive.connect(f"{directory}/hangs.db") as store:
        try:
            flow.run(store=store)
        except redrive.FlowStopped as stopped:
            run = stopped.report.run_id
        print(f"limit {LIMIT:g} s, grace {GRACE:g} s\n")
        for row in store.tasks.find(run):
            (attempt,) = store.tasks.get(run, row.name).attempts
            over = attempt.seconds - LIMIT - GRACE
            late += over > ALLOWED
            print(f"{row.name:<22} {row.state:<8} {attempt.ended:<10} dead after {attempt.seconds:.2f} s")
    print(f"\n{left()} processes left, {late} later than {ALLOWED:g} s after limit and grace")
    return 1 if late or left() else 0


if __name__ == "__main__":
    sys.exit(main())
