"""Writes the reference from the code: `python docs/generate`. With `--check`, says where it is out of date instead.

What a public name, a parameter, a field or an option does not say of itself, nobody can read there: that is an error.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

import plan
from commands import Commands
from names import Reference

HOME = Path(__file__).parents[1] / "reference"
INTRO = (
    "Every public name and every command, as the code has them: these pages are written by `make docs`, and a test "
    "fails where they differ from it. The [guides](../index.md) tell what they are for."
)


def main() -> int:
    """Write the pages, or compare them; the exit code."""
    parser = argparse.ArgumentParser(description="Write the reference from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; say where the pages are out of date")
    checking = parser.parse_args().check
    reference, commands = Reference(plan.pages()), Commands()
    pages = {page.file: reference.text(page) for page in reference.pages}
    pages["commands.md"] = commands.text()
    pages["index.md"] = _index(reference)
    wrong = [*reference.missing, *plan.unlisted(reference.pages), *commands.missing]
    if checking:
        wrong += _differences(pages)
    elif not wrong:
        HOME.mkdir(exist_ok=True)
        for name, text in pages.items():
            (HOME / name).write_text(text)
    sys.stderr.writelines(f"{line}\n" for line in wrong)
    return 1 if wrong else 0


def _index(reference: Reference) -> str:
    parts = ["# Reference", INTRO, *reference.index(), "## [Commands](commands.md)", "Every command and its options."]
    return "\n\n".join(parts) + "\n"


def _differences(pages: dict[str, str]) -> list[str]:
    """Where the pages that are there are not these."""
    there = {path.name: path.read_text() for path in HOME.glob("*.md")}
    wrong = []
    for name in sorted({*there, *pages}):
        before, after = there.get(name, ""), pages.get(name, "")
        if before != after:
            wrong.append(f"docs/reference/{name} is out of date; write it anew: make docs")
            changes = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
            wrong += list(changes)[2:12]
    return wrong


if __name__ == "__main__":
    sys.exit(main())
