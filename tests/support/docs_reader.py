"""A reader who does what a page says: saves its files, runs its code, types its commands on a terminal.

python -m tests.support.docs_reader docs/rows.md    # writes what the commands show into the page
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from difflib import ndiff
from pathlib import Path
from typing import Any

from tests.support.docs_pages import ROOT, Block, Example, chapters, commands, examples, script
from tests.support.terminal import on_a_terminal
from tests.support.warm_python import warm_programs, warm_python

COLUMNS = 110
LIMIT = 240  # seconds for a block or a command, on a machine that is busy with other things
ANY = "…"

_INTERPRETER = """
import json, os, sys
_asked, _answered = os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w")
sys.argv = [""]
for _line in _asked:
    _ask = json.loads(_line)
    os.environ.clear()
    os.environ.update(_ask["environ"])
    exec(compile("\\n" * (_ask["line"] - 1) + _ask["text"], _ask["page"], "exec"))
    sys.stdout.flush()
    print("done", file=_answered, flush=True)
"""

# What differs from day to day and from machine to machine.
_VARYING = {
    r"just now|[\d.]+ (s|min|h|days) ago": "AGO",
    r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?": "WHEN",
    r"[0-9a-f]{8}-[0-9a-f-]{27}|\b[0-9a-f]{8}\b": "RUN",
    r"\S+@[\w.-]+": "WHO",
    r"[\d.,]+ [kM]B": "SIZE",
    r"[\d.]+ (ms|s|min)\b": "SPAN",
    r"[\d,]+ rows/s": "SPEED",
    r"127\.0\.0\.1:\d+": "ADDRESS",
    r'File "[^"]*/': 'File "',
}
_LAYOUT = {r"─+": "─", r" +": " "}


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of an example."""

    block: Block
    example: Example
    code: int
    output: str

    @property
    def is_as_shown(self) -> bool:
        """Whether the page shows what the terminal did, but for what differs from day to day."""
        return self.code == self.example.code and _alike(*self._settled)

    def check(self) -> None:
        """Fail with what differs, unless it is as the page shows it."""
        command = f"{self.block.place}: {self.example.command}"
        assert self.code == self.example.code, f"{command}\nends with {self.code}:\n{self.output}"
        assert self.is_as_shown, "\n".join([command, *ndiff(*self._settled)])

    @property
    def _settled(self) -> tuple[list[str], list[str]]:
        exact = self.block.exact
        return settled(self.example.output, exact=exact), settled(self.output, exact=exact)


def settled(text: str, *, exact: bool = False) -> list[str]:
    """Output without what differs from day to day and from machine to machine; of an exact one, without its layout."""
    for pattern, name in (_LAYOUT if exact else _VARYING | _LAYOUT).items():
        text = re.sub(pattern, name, text)
    return [line.rstrip() for line in text.rstrip("\n").splitlines()]


def _alike(shown: list[str], seen: list[str]) -> bool:
    """Whether the lines are the same; a line `…` of the page stands for any number of others."""
    if ANY not in shown:
        return shown == seen
    cut = shown.index(ANY)
    rest = shown[cut + 1 :]
    return seen[:cut] == shown[:cut] and any(_alike(rest, seen[start:]) for start in range(cut, len(seen) + 1))


@dataclass(slots=True)
class Reader:
    """Follows pages in an empty directory.

    python  the interpreter with a `redrive` beside it; by default forks of one that has imported it
    stores  the URL of a store for each kind that a page may ask for
    """

    directory: Path
    python: Path | None = None
    stores: Mapping[str, str] = field(default_factory=dict)

    def follow(self, parts: Sequence[Block]) -> Iterator[Seen]:
        """Do what each block says, in order; what the commands of `console` blocks showed."""
        typed = "\n".join(command for block in parts for command in commands(block))
        with closing(_Interpreter(self._python, self.directory, self._environ("sqlite"))) as interpreter:
            for block in parts:
                if block.files:
                    self._copy(ROOT / block.files)
                if block.file is not None:
                    (self.directory / block.file).write_text(block.text)
                if block.language == "python" and block.file is None:
                    interpreter.run(block, self._environ(block.store))
                elif block.language == "python" and str(block.file) not in typed:
                    self._must(block, *self._python("-W", "error", block.file))
                elif block.language == "sh":
                    self._must(block, "sh", "-c", script(block))
                elif block.language == "console":
                    yield from (self._type(block, example) for example in examples(block))

    def _copy(self, files: Path) -> None:
        for file in files.iterdir():
            if file.is_file() and not (self.directory / file.name).exists():
                shutil.copyfile(file, self.directory / file.name)

    def _type(self, block: Block, example: Example) -> Seen:
        command, environ = ["sh", "-c", example.command], self._environ(block.store)
        return Seen(block, example, *on_a_terminal(command, columns=COLUMNS, cwd=self.directory, environ=environ))

    def _must(self, block: Block, *command: Any) -> None:
        done = subprocess.run(
            command,
            cwd=self.directory,
            env=self._environ(block.store),
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert done.returncode == 0, f"{block.place} ends with {done.returncode}:\n{done.stdout}{done.stderr}"

    def _python(self, *words: object) -> list[str]:
        return warm_python(*words) if self.python is None else [str(self.python), *map(str, words)]

    def _environ(self, store: str) -> dict[str, str]:
        """Nothing of ours but the way to the programs."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("REDRIVE_", "PYTHON"))}
        named = {"REDRIVE_STORE": self.stores[store]} if store in self.stores else {}
        programs = warm_programs() if self.python is None else self.python.parent
        return {**kept, **named, "PATH": f"{programs}:{kept.get('PATH', '')}"}


class _Interpreter:
    """One interpreter for all the code of a page: what a block defines, the next ones know."""

    def __init__(self, python: Callable[..., list[str]], directory: Path, environ: Mapping[str, str]) -> None:
        (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the interpreter
        self._process = subprocess.Popen(
            python("-W", "error", "-c", _INTERPRETER, theirs_in, theirs_out),
            pass_fds=(theirs_in, theirs_out),
            cwd=directory,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._ask, self._answer = os.fdopen(ours_out, "w"), os.fdopen(ours_in)

    def run(self, block: Block, environ: Mapping[str, str]) -> None:
        """Run a block, whose lines are those of the page in a traceback."""
        asked = {"page": str(block.page), "line": block.line, "text": block.text, "environ": dict(environ)}
        print(json.dumps(asked), file=self._ask, flush=True)
        ready, _, _ = select.select([self._answer], [], [], LIMIT)
        if not ready or not self._answer.readline():
            self._process.kill()
            self._process.wait()
            self._said.seek(0)
            raise AssertionError(f"{block.place} fails, or takes longer than {LIMIT} s:\n{self._said.read()}")

    def close(self) -> None:
        """Let it end; what a page leaves running, it ends."""
        self._ask.close()
        self._answer.close()
        try:
            self._process.wait(LIMIT)
        finally:
            self._process.kill()
            self._said.close()


def write(page: Path, seen: list[Seen]) -> int:
    """Put what the terminal showed into the page wherever that is something else; how often it was."""
    lines = page.read_text().splitlines(keepends=True)
    changed = 0
    for block in {one.block.line: one.block for one in seen}.values():
        told, mine = "", [one for one in seen if one.block == block]
        for one in mine:
            ending = f"  # exit code {one.code}" if one.code else ""
            output = one.example.output if one.is_as_shown else _tidy(one.output)
            told += f"$ {one.example.command}{ending}\n{output}"
            changed += not one.is_as_shown
        if not all(one.is_as_shown for one in mine):
            height = block.text.count("\n")
            lines[block.line - 1 : block.line - 1 + height] = [told] + [""] * (height - 1)
    page.write_text("".join(lines))
    return changed


def _tidy(output: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in output.rstrip().splitlines())


def main() -> None:
    """Write what the commands of pages show into them."""
    for name in sys.argv[1:]:
        page, seen = Path(name).absolute(), []
        for parts in chapters(page).values():
            with tempfile.TemporaryDirectory(prefix="redrive-") as directory:
                seen += Reader(Path(directory)).follow(parts)
        print(f"{name}: {write(page, seen)} changed")  # noqa: T201


if __name__ == "__main__":
    main()
