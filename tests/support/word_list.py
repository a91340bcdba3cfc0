"""Check that text follows the vocabulary: run by `make lint` and `make test`.

    python -m tests.support.word_list [--update] [FILE ...]

The check reads the comments, docstrings and string literals of src/redrive, and the prose of README.md and docs/*.md.
Code is not text: inline code in backquotes, fenced blocks, targets of links, and strings that are a single name such as
"patience" are skipped. Words with many right uses ("check", "place", "hand", "turn", "who") are left to reviewers.

A right use of a listed word goes into word_list_allowed.txt. Uses that existed when the check was added are counted in
word_list_baseline.txt: a file fails when it has more than its count. `--update` lowers the counts to those of today and
never raises one. Where a file was moved, move its line; where there is no baseline, `--update` writes one.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
ALLOWED = Path(__file__).with_name("word_list_allowed.txt")
BASELINE = Path(__file__).with_name("word_list_baseline.txt")

INSTEAD = {
    r"repeat(?:s|ed|ing)?": "retry",
    r"anew": "again, retry, restart",
    r"go(?:es)? again": "retry",
    r"heal(?:s|ed|ing)?|curable": "transient (the error), recovered (the call)",
    r"cut off|rests": "the circuit is open, the key is exhausted",
    r"used[ -]up": "exhausted",
    r"partners?": "service, endpoint",
    r"passages?": "pipeline, call",
    r"bad ones?|what is bad": "rejected row",
    r"settled|in hand": "open; reprocessed or discarded",
    r"way back|rehears\w+": "replay, dry run",
    r"scribes?|errands?|who is at it": "executor, worker",
    r"held|waits? for a person": "blocked (waiting for an operator)",
    r"somebody|nobody|anybody|persons?|people": "operator, on-call",
    r"tells?|told|telling|hears?|heard|says?|said|saying": "notify, deliver, report, print",
    r"(?:by )?word (?:of|from)|witness(?:es)?": "reported by, evidence",
    r"urgen(?:t|cy)": "severity",
    r"pictures?": "snapshot",
    r"go(?:es|ing)? on|went on|gone on": "continue, resume",
    r"begins? again|began again": "restart",
    r"g[ia]ves? up|given up|giving up|leaves? alone": "stop, discard, cancel",
    r"mend(?:s|ed|ing)?": "fix, repair",
    r"so (?:many|few|much)|where nothing is said": "maximum number, default",
    r"(?:is|are) refused": "raises, rejects",
    r"com(?:es?|ing) to nothing|came to nothing|comes to|came to": "returns, fails",
    r"promises?|promised": "SLA, deadline",
    r"patience|patient": "timeout, grace period",
}
"""What the vocabulary does not use, as patterns of whole words in any case, and what to write instead."""

_WORDS = [
    (re.compile(rf"\b(?:{pattern})\b".replace(" ", r"\s+"), re.IGNORECASE), instead)
    for pattern, instead in INSTEAD.items()
]
_NAME = re.compile(r"[\w.:/-]*")
_INLINE_CODE = re.compile(r"(`+)[^`]+\1")
_LINK_TARGET = re.compile(r"(?<=\])\([^)\s]+\)")
_FENCED_CODE = re.compile(r"^( *)(```+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)


class Use(NamedTuple):
    """A use of a word that is not in the vocabulary."""

    path: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word!r} is not in the vocabulary. Use: {self.instead}."


class Allowed(NamedTuple):
    """A right use: text that matches `pattern`, in files whose path matches `path`."""

    path: str
    pattern: re.Pattern[str]


def python_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield each comment and string of a module, with the line on which it starts."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not _NAME.fullmatch(node.value):
            yield node.lineno, node.value


def page_text(page: str) -> str:
    """Return the prose of a page: fenced code becomes as many empty lines."""
    return _FENCED_CODE.sub(lambda block: "\n" * block[0].count("\n"), page)


def find_uses(path: str, content: str, allowed: Sequence[Allowed] = ()) -> list[Use]:
    """Return the uses of listed words in a file, in the order of lines."""
    texts = python_texts(content) if path.endswith(".py") else [(1, page_text(content))]
    right = [entry.pattern for entry in allowed if fnmatchcase(path, entry.path)]
    uses = [use for line, text in texts for use in _uses_in(path, line, text, right)]
    return sorted(uses, key=lambda use: use.line)


def _uses_in(path: str, first_line: int, text: str, right: Iterable[re.Pattern[str]]) -> Iterator[Use]:
    for pattern in (_INLINE_CODE, _LINK_TARGET, *right):
        text = pattern.sub(_blank, text)
    for pattern, instead in _WORDS:
        for match in pattern.finditer(text):
            yield Use(path, first_line + text.count("\n", 0, match.start()), " ".join(match[0].split()), instead)


def _blank(match: re.Match[str]) -> str:
    """Replace a match by something that has as many lines and matches nothing."""
    return "·" + "\n" * match[0].count("\n")


def checked_files() -> list[Path]:
    """Return the files whose text is checked; pages that are generated from the code are not."""
    return [
        *sorted((ROOT / "src" / "redrive").rglob("*.py")),
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
    ]


def read_allowed(text: str) -> list[Allowed]:
    """Parse the allow-list: `PATH | PATTERN | REASON` on each line."""
    entries = [[part.strip() for part in line.split(" | ")] for line in _lines(text)]
    assert all(len(entry) == 3 and all(entry) for entry in entries), "each line must be: PATH | PATTERN | REASON"
    return [Allowed(path, re.compile(pattern, re.IGNORECASE)) for path, pattern, _ in entries]


def read_baseline(text: str) -> dict[str, int]:
    """Parse the baseline: `COUNT PATH` on each line."""
    return {path: int(count) for count, path in (line.split(maxsplit=1) for line in _lines(text))}


def write_baseline(counts: Mapping[str, int]) -> str:
    """Return the text of a baseline file."""
    return "".join(f"{count:4} {path}\n" for path, count in sorted(counts.items()) if count)


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def exceeded(uses: Sequence[Use], baseline: Mapping[str, int]) -> list[Use]:
    """Return the uses in files that have more of them than the baseline allows."""
    counts = Counter(use.path for use in uses)
    return [use for use in uses if counts[use.path] > baseline.get(use.path, 0)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the uses in files that got worse; return 1 if there are any. With files named, print all of theirs."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.word_list", description="Check the vocabulary.")
    parser.add_argument("--update", action="store_true", help="lower the counts of the baseline to those of today")
    parser.add_argument("files", nargs="*", metavar="FILE", help="print every use in these files")
    options = parser.parse_args(arguments)
    allowed = read_allowed(ALLOWED.read_text())
    files = [Path(name).resolve() for name in options.files] or checked_files()
    contents = {path.relative_to(ROOT).as_posix(): path.read_text() for path in files}
    uses = [use for path, content in contents.items() for use in find_uses(path, content, allowed)]
    if options.files:
        return _report(uses)
    baseline = read_baseline(BASELINE.read_text()) if BASELINE.exists() else None
    if options.update:
        counts = Counter(use.path for use in uses)
        lowered = {path: min(count, counts[path]) for path, count in baseline.items()} if baseline else counts
        BASELINE.write_text(write_baseline(lowered))
        baseline = read_baseline(BASELINE.read_text())
    return _report(exceeded(uses, baseline or {}))


def _report(uses: Sequence[Use]) -> int:
    for use in uses:
        print(use)  # noqa: T201
    if uses:
        print("Rewrite these lines, or add a right use to tests/support/word_list_allowed.txt with its reason.")  # noqa: T201
    return 1 if uses else 0


if __name__ == "__main__":
    sys.exit(main())
