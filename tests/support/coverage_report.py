"""Print line and branch coverage per package, from the data that `make test-coverage` has combined."""

from __future__ import annotations

import json
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import coverage

KEYS = ("covered_lines", "num_statements", "covered_branches", "num_branches")


def package_of(file: str) -> str:
    """Return the package of redrive that a file belongs to."""
    parts = Path(file.partition("redrive/")[2]).parts
    return parts[0] if len(parts) > 1 else "(top level)"


def totals_by_package(document: dict[str, Any]) -> dict[str, Counter[str]]:
    """Add up the figures of the files of each package."""
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    for file, content in sorted(document["files"].items()):
        totals[package_of(file)].update({key: content["summary"][key] for key in KEYS})
    return {**dict(sorted(totals.items())), "total": sum(totals.values(), Counter())}


def row_of(name: str, counts: Counter[str]) -> str:
    """Return one row of the table."""
    lines, statements, branches, all_branches = (counts[key] for key in KEYS)
    of_lines, of_branches = 100 * lines / max(1, statements), 100 * branches / max(1, all_branches)
    return f"{name:14}{of_lines:8.2f} %  {lines:>6}/{statements:<6}{of_branches:8.2f} %  {branches:>5}/{all_branches}"


def main() -> None:
    """Print the table."""
    measured = coverage.Coverage()
    measured.load()
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "coverage.json"
        measured.json_report(outfile=str(report), ignore_errors=True)
        document = json.loads(report.read_text())
    print(f"{'package':14}{'lines':>10}{'':15}{'branches':>10}")  # noqa: T201
    for name, counts in totals_by_package(document).items():
        print(row_of(name, counts))  # noqa: T201


if __name__ == "__main__":
    main()
