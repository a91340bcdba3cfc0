"""Tasks that hang in every known way: how long after its limit each is dead, and whether a process of it is left.

Each runs in a worker process, has a limit of a second, and half a second of grace to end after SIGTERM; then it is
killed with everything that it has started. One process is left for each that got away.
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
from typing import Any

import measure
from record import Figure, Table, Target, record

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


def hung() -> list[dict[str, Any]]:
    """Run them all; a row for each."""
    with tempfile.TemporaryDirectory() as directory, redrive.connect(f"{directory}/hangs.db") as store:
        try:
            flow.run(store=store)
        except redrive.FlowStopped as stopped:
            run = stopped.report.run_id
        attempts = {row.name: store.tasks.get(run, row.name).attempts for row in store.tasks.find(run)}
    return [
        {"task": name, "ended": str(attempt.ended), "dead_after_s": round(attempt.seconds, 2)}
        for name, (attempt,) in attempts.items()
    ]


def report(document: dict[str, Any]) -> str:
    cells = [(row["task"], row["ended"], measure.number(row["dead_after_s"], 2)) for row in document["rows"]]
    table = measure.table(f"Limit {LIMIT:g} s, grace {GRACE:g} s", ("task", "ended", "dead after s"), cells)
    end = document["headline"]
    verdict = f"{end['left']} processes left, {end['late']} later than {ALLOWED:g} s after limit and grace"
    return "\n\n".join([measure.heading(document["environment"]), table, verdict])


def recorded(rows: list[dict[str, Any]], end: dict[str, Any]) -> dict[str, Any]:
    title = f"Dead after, with a limit of {LIMIT:g} s and a grace of {GRACE:g} s"
    table = Table(title, [Figure(row["task"], "dead after", "s", row["dead_after_s"]) for row in rows])
    after = f"later than {ALLOWED:g} s after limit and grace"
    targets = [
        Target("hanging tasks that were killed", end["killed"], "exactly", len(rows), f"of {len(rows)}"),
        Target("hanging tasks that died late", end["late"], "exactly", 0, after),
        Target("processes left of them", end["left"], "exactly", 0, "processes"),
    ]
    return record(__doc__, [table], targets=targets)


def main() -> None:
    asked = measure.asked(measure.options(__doc__))
    logging.getLogger("redrive").setLevel(logging.CRITICAL)
    os.environ[MARK] = str(os.getpid())
    rows = hung()
    late = sum(row["dead_after_s"] > LIMIT + GRACE + ALLOWED for row in rows)
    end = {"killed": sum(row["ended"] == "timed_out" for row in rows), "late": late, "left": left()}
    document = {
        "benchmark": "hangs",
        "quick": asked.quick,
        "environment": measure.environment("redrive"),
        "rows": rows,
        "headline": end,
        "record": recorded(rows, end),
    }
    measure.publish(asked, document, report)


if __name__ == "__main__":
    main()
