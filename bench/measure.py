"""What the benchmarks share: their options, where and with what they ran, and how they print."""

from __future__ import annotations

import argparse
import json
import os
import platform
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

WIDTH = 100


def options(description: str, *, repeat: int) -> argparse.ArgumentParser:
    """The options every benchmark takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    parser.add_argument("--quick", action="store_true", help="few and short repeats: shows that it runs, not how fast")
    parser.add_argument("--repeat", type=positive, default=repeat, help="repeats of each measurement (%(default)s)")
    return parser


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
            "system": f"{platform.system()} {platform.machine()}",
            "processor": _processor(),
            "cores": _cores(),
        },
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "versions": {package: _version(package) for package in packages},
    }


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


def heading(where: Mapping[str, Any]) -> str:
    """The environment in words."""
    machine = where["machine"]
    versions = ", ".join(f"{package} {number}" for package, number in where["versions"].items())
    return paragraph(
        f"{where['date']}, {where['python']}, {machine['system']}, {machine['cores']} cores, {machine['processor']}; "
        f"{versions}"
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


def document(content: Mapping[str, Any]) -> str:
    """The JSON of a benchmark."""
    return json.dumps(content, indent=2, ensure_ascii=False)
