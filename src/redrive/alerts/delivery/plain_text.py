"""A message as plain text of 78 columns, and as Markdown."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from redrive.alerts.delivery.facts import FactLine
from redrive.alerts.delivery.safe_text import without_calls

if TYPE_CHECKING:
    from redrive.alerts.delivery.message import Message

WIDTH = 78
_INDENT = "  "
_LABEL = 24
"""Longer labels stand on a line of their own."""

_TICKS = re.compile("`+")
# An underscore inside a word means nothing in Markdown, and names of tables are full of them.
_MEANS_SOMETHING = re.compile(r"[\\`*\[\]<>|]|(?<!\w)_|_(?!\w)")


# ── plain ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def plain(message: Message, *, headline: bool) -> str:
    """Paragraphs; what is to be copied stands on lines of its own and is never broken."""
    parts = [
        _wrapped(message.headline, "") if headline else "",
        _table(message.lines),
        _under("Error", _paragraphs(message.error)),
        _under("Next", _paragraphs(message.next_step)),
        _under("Commands", (f"{_INDENT}$ {command}" for command in message.commands)),
        _under("SQL", (f"{_INDENT}{line}" for line in (message.sql or "").splitlines())),
        _under("Runbook", _numbered(message.steps)),
        _under("Links", (f"{_INDENT}{link.label}: {link.value}" for link in message.links)),
        _under("Details", _table(message.details).splitlines()),
    ]
    return "\n\n".join(part for part in parts if part)


def _under(title: str, lines: Iterable[str]) -> str:
    body = "\n".join(lines)
    return f"{title}\n{body}" if body else ""


def _table(lines: Sequence[FactLine]) -> str:
    column = max((len(line.label) for line in lines if len(line.label) <= _LABEL), default=0)
    return "\n".join(row for line in lines for row in _row(line, column))


def _row(line: FactLine, column: int) -> Iterator[str]:
    indent = _INDENT + " " * (column + 2)
    label = f"{_INDENT}{line.label}"
    if len(line.label) > column:
        yield _wrapped(line.label, _INDENT)
        label = ""
    for number, text in enumerate(line.value.split("\n")):
        yield _wrapped(text, indent, first=label.ljust(len(indent)) if number == 0 else indent)


def _paragraphs(text: str | None) -> Iterator[str]:
    for line in (text or "").splitlines():
        yield _wrapped(line, _INDENT)


def _numbered(steps: Sequence[str]) -> Iterator[str]:
    for number, step in enumerate(steps, 1):
        mark = f"{_INDENT}{number}. "
        for place, line in enumerate(step.split("\n")):
            yield _wrapped(line, " " * len(mark), first=mark if place == 0 else None)


def _wrapped(text: str, indent: str, *, first: str | None = None) -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,  # an address that is cut in two cannot be followed
        break_on_hyphens=False,
    )


# ── Markdown ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def markdown(message: Message, *, headline: bool) -> str:
    """Common Markdown: a list of facts, code in fences."""
    parts = [
        f"**{_escaped(message.headline)}**" if headline else "",
        _listed(message.lines),
        _headed("Error", _fenced(message.error)),
        _headed("Next", _lines(message.next_step)),
        _headed("Commands", _fenced("\n".join(message.commands))),
        _headed("SQL", _fenced(message.sql)),
        _headed("Runbook", "\n".join(f"{number}. {_lines(step)}" for number, step in enumerate(message.steps, 1))),
        _headed("Links", "\n".join(f"- {_link(link)}" for link in message.links)),
        _headed("Details", _listed(message.details)),
    ]
    return without_calls("\n\n".join(part for part in parts if part))


def _headed(title: str, body: str) -> str:
    return f"**{title}**\n\n{body}" if body else ""


def _listed(lines: Sequence[FactLine]) -> str:
    return "\n".join(_item(line) for line in lines)


def _item(line: FactLine) -> str:
    label = f"- **{_escaped(line.label)}:**"
    values = line.value.split("\n")
    if len(values) == 1:
        return f"{label} {_escaped(values[0])}"
    return "\n".join([label, *(f"  - {_escaped(value)}" for value in values if value)])


def _lines(text: str | None) -> str:
    return "  \n".join(_escaped(line) for line in (text or "").splitlines())


def _fenced(text: str | None) -> str:
    if not text:
        return ""
    fence = "`" * max(3, 1 + max((len(run) for run in _TICKS.findall(text)), default=0))
    return f"{fence}\n{text}\n{fence}"


def _link(link: FactLine) -> str:
    if not link.value.startswith(("http://", "https://")):
        return f"{_escaped(link.label)}: {_escaped(link.value)}"
    target = link.value.replace("(", "%28").replace(")", "%29")
    return f"[{_escaped(link.label)}]({target})"


def _escaped(text: str) -> str:
    return _MEANS_SOMETHING.sub(r"\\\g<0>", text)
