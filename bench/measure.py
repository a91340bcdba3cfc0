"""What the benchmarks share: their options, where and with what they ran, how they time and how they print."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import repeat
from pathlib import Path
from typing import Any

WIDTH = 100


def options(about: str, *, repeat: int | None = None) -> argparse.ArgumentParser:
    """The options every benchmark takes; the first line of `about` says what it is."""
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    written = "write one JSON document there as well; without PATH, print it instead of tables"
    parser.add_argument("--json", nargs="?", const="-", metavar="PATH", help=written)
    parser.add_argument("--quick", action="store_true", help="few and short repeats: shows that it runs, not how fast")
    if repeat:
        parser.add_argument("--repeat", type=positive, default=repeat, help="repeats of each measurement (%(default)s)")
    return parser


def asked(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """What was asked for. From here on SIGTERM ends the program as an error does: servers and children are ended."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    return parser.parse_args()


def publish(options: argparse.Namespace, document: Mapping[str, Any], report: Callable[[Any], str]) -> None:
    """Print what was measured, for people or for programs, and write it where it is wanted."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    if options.json == "-":
        print(text)
        return
    if options.json:
        Path(options.json).write_text(f"{text}\n", encoding="utf-8")
    print(report(document))


def tell(line: str) -> None:
    """At once, beside the document: it may take long, and somebody may stop it before its end."""
    print(line, file=sys.stderr, flush=True)


def positive(text: str) -> int:
    """A whole number of one or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {number}")
    return number


def environment(*packages: str) -> dict[str, Any]:
    """When, on what machine and with which versions; nothing that names the machine or its user."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "system": f"{_system()}, {platform.machine()}",
            "processor": _processor(),
            "cores": _cores(),
            "memory_gb": _memory(),
        },
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "versions": {package: _version(package) for package in packages},
    }


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _memory() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1)


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # what this process may use, not what the machine has
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# ── timing ────────────────────────────────────────────────────────────────────────────────────────────────────────────

TIMED = """
{kind} block(times):
    began = clock()
    for _ in times:
{statement}
    {afterwards}
    return clock() - began
"""


@dataclass(frozen=True)
class Contender:
    """One row of a comparison: the statement a user would write, and what it stands for."""

    name: str
    contains: str
    statement: str
    names: dict[str, Any] = field(default_factory=dict)
    afterwards: str = "pass"
    """Timed with the calls: work a library put off while they ran."""
    setting: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Put in force around a block, outside its time."""
    over: str = "bare"
    """The row that does the same without a guard."""


def compiled(contender: Contender, kind: str) -> Callable:
    """A loop of its own for each contender, as timeit makes one: a shared loop would be tuned to its last function."""
    source = TIMED.format(
        kind=kind, statement=textwrap.indent(contender.statement, " " * 8), afterwards=contender.afterwards
    )
    names = {"clock": time.perf_counter, **contender.names}
    exec(compile(source, f"<{contender.name}>", "exec"), names)
    return names["block"]


def timed(
    contenders: Sequence[Contender], *, rounds: int, block_seconds: float, runner: asyncio.Runner | None = None
) -> dict[str, list[float]]:
    """Nanoseconds per call of each contender's blocks; with a runner, of statements that await.

    Blocks take turns, round after round: whatever else the machine does, it does to all of them.
    """

    def seconds(name: str, calls: int) -> float:
        with settings[name]():
            made = blocks[name](repeat(None, calls))
            return made if runner is None else runner.run(made)

    blocks = {one.name: compiled(one, "def" if runner is None else "async def") for one in contenders}
    settings = {one.name: one.setting for one in contenders}
    calls = {name: calls_for(block_seconds, lambda count, name=name: seconds(name, count)) for name in blocks}
    taken: dict[str, list[float]] = {name: [] for name in blocks}
    for _ in range(rounds):
        for name, count in calls.items():
            taken[name].append(seconds(name, count) / count * 1e9)
    return taken


def calls_for(wanted: float, seconds: Callable[[int], float]) -> int:
    """How many calls fill a block of the wanted length; finding out warms the contender up."""
    count = 10
    while (taken := seconds(count)) < wanted / 4:
        count *= 4
    return max(10, round(count * wanted / taken))


def throughput(block: Callable, threads: int, calls: int) -> float:
    """Calls per second of several threads, `calls` each, from the first one's start to the last one's end."""
    ready = threading.Barrier(threads)
    moments: list[float] = []

    def work() -> None:
        ready.wait()
        # Each thread looks at the clock itself: the main one may have to wait for its turn until they are half done.
        moments.append(time.perf_counter())
        block(repeat(None, calls))
        moments.append(time.perf_counter())

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return threads * calls / (max(moments) - min(moments))


# ── printing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def heading(where: Mapping[str, Any]) -> str:
    """The environment in words."""
    machine = where["machine"]
    versions = ", ".join(f"{package} {number}" for package, number in where["versions"].items())
    return paragraph(
        f"{where['date']}, {where['python']}, {machine['system']}, {machine['cores']} cores, {machine['processor']}, "
        f"{machine['memory_gb']:g} GB; {versions}"
    )


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned plain text: the first column to the left, the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    ruler = ["─" * width for width in widths]
    return "\n".join([title, "", *(_line(row, widths) for row in (header, ruler, *rows))])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    name, *others = (
        cell.rjust(width) if place else cell.ljust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([name, *others]).rstrip()


def glossary(title: str, entries: Mapping[str, str]) -> str:
    """Names with what they mean, wrapped beside each other."""
    width = max(map(len, entries)) + 2
    lines = [
        textwrap.fill(text, WIDTH, initial_indent=name.ljust(width), subsequent_indent=" " * width)
        for name, text in entries.items()
    ]
    return "\n".join([title, "", *lines])


def paragraph(text: str) -> str:
    """Prose, wrapped."""
    return textwrap.fill(text, WIDTH)


def number(value: float | None, digits: int = 0) -> str:
    """A figure as people read it; a dash where there is none."""
    return "–" if value is None else f"{value:,.{digits}f}"


def peak_memory() -> float:
    """The most this process ever had resident, in MB."""
    status = Path("/proc/self/status")
    if status.exists():  # there, what rusage says may be the parent's
        [peak] = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        return int(peak) / 1_024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
