"""All benchmarks, one after another, each in a process of its own; what they found goes into a file and a page.

A benchmark that fails or takes too long is reported as such, and the others go on. Run it on a machine that has nothing
else to do: two benchmarks at once measure each other.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import measure
import page
import results

GRACE = 30.0  # seconds to end servers and children in
LAST_LINES = 12
EMPTY: dict[str, Any] = {"about": [], "tables": [], "rows": {}, "notes": [], "targets": []}


@dataclass(frozen=True, slots=True)
class Part:
    """One benchmark."""

    name: str
    title: str
    program: str
    limit: float
    """Seconds after which it is cut off."""
    arguments: tuple[str, ...] = ()
    in_full: tuple[str, ...] = ()
    """What is asked for as well unless it is a quick look: sizes that let all of them end in half an hour."""

    def command(self, *, quick: bool) -> tuple[str, ...]:
        return (self.program, *self.arguments, *(("--quick",) if quick else self.in_full))


PARTS = (
    Part("calls", "Calls", "bench/calls.py", 300),
    Part("outage", "After an outage", "bench/outage.py", 600),
    Part("letters", "Dead letters", "bench/letters.py", 900),
    Part("rows", "Rows", "bench/rows.py", 1_200),
    Part("tasks", "Tasks", "bench/tasks.py", 1_200, ("--shapes", "flat", "diamond"), ("--repeat", "2", "--limit", "8")),
    Part(
        "chain",
        "Tasks in a chain",
        "bench/tasks.py",
        600,
        ("--shapes", "chain"),
        ("--sizes", "1000", "5000", "--limit", "8"),
    ),
    Part("hangs", "Tasks that hang", "bench/task_hangs.py", 120),
    Part("week", "A week of alerts", "bench/week.py", 600),
    Part("simulation", "Simulations", "bench/simulation.py", 600),
)


# ── one part ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def outcome(part: Part, *, quick: bool, limit: float) -> dict[str, Any]:
    """Run it, and say what it found or why it found nothing."""
    command = part.command(quick=quick)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as scratch:
        path = Path(scratch) / "document.json"
        state, reason = ran([sys.executable, *command, "--json", str(path)], limit)
        document = results.read(path) if state == "done" else None
    if state == "done" and not (document and "record" in document):
        state, reason = "failed", "it left no document"
    document = document or {"environment": {"versions": {}}}
    return {
        **{"part": part.name, "title": part.title, "state": state, "reason": reason, "quick": quick},
        **{"command": shlex.join(["python", *command]), "seconds": round(time.monotonic() - began)},
        **{"date": datetime.now(UTC).isoformat(timespec="seconds"), "revision": results.revision()},
        "versions": document["environment"]["versions"] | document.get("databases", {}),
        **document.get("record", EMPTY),
    }


def ran(command: Sequence[str], limit: float) -> tuple[str, str]:
    """How a program ended, and why if it did not end well; its lines of progress are shown as they come."""
    if limit <= 0:
        return "cut off", "no time was left for it"
    process = subprocess.Popen(
        command, cwd=results.ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    last: deque[str] = deque(maxlen=LAST_LINES)
    reader = threading.Thread(target=show_lines, args=(process.stderr, last), daemon=True)
    reader.start()
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        return "cut off", f"it had not ended after {limit:,.0f} s"
    finally:
        end(process)
        reader.join(GRACE)
    if code:
        return "failed", f"exit code {code}: {last[-1] if last else 'it said nothing'}"
    return "done", ""


def show_lines(stream: IO[str], last: deque[str]) -> None:
    with stream:
        for line in stream:
            if line.strip():
                last.append(line.strip())
                measure.tell(f"    {line.rstrip()}")


def end(process: subprocess.Popen[str]) -> None:
    """Ask it to end with all it has started; then leave nothing of it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


# ── all of them ──────────────────────────────────────────────────────────────────────────────────────────────────────


def all_of(parts: Sequence[Part], *, quick: bool, minutes: float) -> list[dict[str, Any]]:
    """One after another; what has no time left is not started."""
    ends = time.monotonic() + minutes * 60
    found = []
    for number, part in enumerate(parts, 1):
        measure.tell(f"{number} of {len(parts)}: {part.name}")
        limit = min(part.limit, max(0.0, ends - time.monotonic()))
        found.append(outcome(part, quick=quick, limit=limit))
        measure.tell(f"    {format_duration(found[-1])}")
    return found


def format_duration(part: dict[str, Any]) -> str:
    if part["state"] != "done":
        return f"{part['state']} after {part['seconds']:,} s: {part['reason']}"
    told = f"done in {part['seconds']:,} s"
    if part["quick"] or not part["targets"]:
        return told
    missed = [target["what"] for target in part["targets"] if target["met"] is False]
    return f"{told}, " + (f"short of: {'; '.join(missed)}" if missed else "all targets met")


def chosen(text: str) -> list[Part]:
    """Some of the parts, by their names with commas between."""
    by_name = {part.name: part for part in PARTS}
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in by_name]:
        raise argparse.ArgumentTypeError(f"there is no {', '.join(unknown)}; there are {', '.join(by_name)}")
    if not wanted:
        raise argparse.ArgumentTypeError(f"name some of {', '.join(by_name)}")
    return [part for part in PARTS if part.name in wanted]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python bench", description=(__doc__ or "").partition("\n")[0])
    only = f"some of {', '.join(part.name for part in PARTS)}, with commas between; the others stay as they were"
    parser.add_argument("--only", type=chosen, default=list(PARTS), metavar="PARTS", help=only)
    parser.add_argument("--quick", action="store_true", help="a first look: shows that they run, not how fast")
    parser.add_argument("--minutes", type=measure.positive, default=60, help="for all of them together (%(default)s)")
    parser.add_argument("--results", type=Path, default=results.ROOT / results.RESULTS, metavar="PATH")
    parser.add_argument("--page", type=Path, default=results.ROOT / results.PAGE, metavar="PATH")
    return measure.asked(parser)


def main() -> int:
    asked = options()
    fresh = all_of(asked.only, quick=asked.quick, minutes=asked.minutes)
    document = results.gathered([part.name for part in PARTS], fresh, results.read(asked.results))
    asked.results.write_text(results.written(document) + "\n", encoding="utf-8")
    asked.page.write_text(page.page(document), encoding="utf-8")
    lost = [part["part"] for part in fresh if part["state"] != "done"]
    measure.tell(f"written: {asked.results.name}, {asked.page.name}")
    if lost:
        measure.tell(f"without figures: {', '.join(lost)}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
