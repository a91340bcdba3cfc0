"""The pages of the documentation: their blocks in order, and the action for each.

    ```python     is run; all of a page in one interpreter, one after the other
    # name.py     as a block's first line: a file to save; it runs by itself unless a command of the page names it
    ```console    commands behind `$ `, each with what a terminal shows below; a line `…` stands for any others
    ```sh         commands that must succeed
    ```toml       settings that can be used; `# redrive.toml` as the first line saves them

A command that is to fail says so behind itself: `  # exit code 70`. Comments of HTML say where blocks belong:
`<!-- directory: NAME -->` begins another empty directory, or goes on in it, with an interpreter of its own;
`<!-- files: examples/NAME -->` copies the files of that directory of the repository into it;
`<!-- run with: postgresql -->` gives what follows a store there, until `<!-- run with: sqlite -->`; after
`<!-- exact -->` every figure must be the one that is shown, where otherwise times, sizes and names of runs may differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "docs" / "reference"
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if GENERATED not in page.parents),
]

_PART = re.compile(
    r"^```(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^```$"
    r"|^<!-- directory: (?P<directory>[\w-]+) -->$"
    r"|^<!-- files: (?P<files>[\w/-]+) -->$"
    r"|^<!-- run with: (?P<store>sqlite|postgresql) -->$"
    r"|^(?P<exact><!-- exact -->)$",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"# ([\w-]+\.\w+)\n")
_CODE = re.compile(r" +# exit code (\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block of a page, and where it belongs."""

    page: Path
    line: int
    """Of the block's first line."""
    language: str
    text: str
    directory: str = ""
    store: str = "sqlite"
    exact: bool = False
    files: str = ""
    """The directory of the repository whose files the block needs beside it."""

    @property
    def file(self) -> str | None:
        """The name under which it is to be saved, where it has one."""
        named = _FILE.match(self.text)
        return named[1] if named and self.language in {"python", "toml"} else None

    @property
    def place(self) -> str:
        """Where to look for it."""
        return f"{self.page.name}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A command, how it ends, and what the page shows of it."""

    command: str
    code: int
    output: str


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page, in order."""
    text, directory, store, exact, files = page.read_text(), "", "sqlite", False, ""
    for part in _PART.finditer(text):
        directory, store, exact = part["directory"] or directory, part["store"] or store, exact or bool(part["exact"])
        files = "" if part["directory"] else part["files"] or files
        if part["text"] is not None:
            line = text.count("\n", 0, part.start("text")) + 1
            place = {"directory": directory, "store": store, "exact": exact, "files": files}
            yield Block(page=page, line=line, language=part["language"], text=part["text"], **place)


def chapters(page: Path) -> dict[str, list[Block]]:
    """The blocks of a page by the directory in which they belong."""
    found: dict[str, list[Block]] = {}
    for block in blocks(page):
        found.setdefault(block.directory, []).append(block)
    return found


def examples(block: Block) -> Iterator[Example]:
    """The commands of a `console` block, with what is shown below each."""
    head, *parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    assert not head, f"{block.place} shows output before a command"
    for part in parts:
        line, _, output = part.partition("\n")
        code = _CODE.search(line)
        yield Example(command=_CODE.sub("", line), code=int(code[1]) if code else 0, output=output)


def script(block: Block) -> str:
    """A `sh` block as a script that ends at the first command that does not end as it should."""
    lines = ["set -eu"]
    for line in block.text.splitlines():
        code = _CODE.search(line)
        lines.append(f"code=0; {line[: code.start()]} || code=$?; [ $code = {code[1]} ]" if code else line)
    return "\n".join(lines)


def commands(block: Block) -> list[str]:
    """What is typed in a block that is run."""
    if block.language == "console":
        return [example.command for example in examples(block)]
    return block.text.splitlines() if block.language == "sh" else []
