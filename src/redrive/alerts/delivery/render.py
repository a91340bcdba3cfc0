"""A message as plain text of 78 columns, as Markdown, and as the payload of a Slack incoming webhook."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from redrive.alerts.delivery.facts import FactLine
from redrive.alerts.delivery.format import without_calls

if TYPE_CHECKING:
    from redrive.alerts.delivery.message import Message

WIDTH = 78
_INDENT = "  "
_LABEL = 24
"""Longer labels are on their own line."""

_TICKS = re.compile("`+")
# An underscore inside a word means nothing in Markdown, and names of tables are full of them.
_SPECIAL = re.compile(r"[\\`*\[\]<>|]|(?<!\w)_|_(?!\w)")


# ── plain ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def plain(message: Message, *, headline: bool) -> str:
    """Return paragraphs; commands and SQL are on their own lines and are never wrapped."""
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
        break_long_words=False,  # a wrapped address cannot be opened
        break_on_hyphens=False,
    )


# ── Markdown ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def markdown(message: Message, *, headline: bool) -> str:
    """Return common Markdown: a list of facts, and code in fences."""
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
    return _SPECIAL.sub(r"\\\g<0>", text)


# ── Slack ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

# docs.slack.dev/reference/block-kit/blocks; Slack does not define a character, so the longer ones count twice.
HEADER, SECTION, FIELD, FIELDS, BLOCKS = 150, 3_000, 2_000, 10, 50
TEXT = 3_000
"""Maximum length of the fallback text; Slack asks for less than 4,000."""
ALTOGETHER = 10_000
"""Maximum length of all blocks: above about 13,000, Slack answers `msg_blocks_too_long`, which is undocumented."""

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}

Block = dict[str, Any]


def slack_payload(message: Message) -> dict[str, Any]:
    """Return the payload: `text` for notifications and screen readers, `blocks` for the display."""
    first = next((f"\n{line.label}: {line.value}" for line in message.lines), "")
    return {
        "text": _fit(message.headline + first, TEXT),
        "blocks": list(_within_limits(_blocks(message))),
        # Slack must neither fetch an address in an error nor show a preview of it.
        "unfurl_links": False,
        "unfurl_media": False,
    }


def _within_limits(blocks: Iterator[Block]) -> Iterator[Block]:
    """Yield as many blocks as fit; the most useful ones come first."""
    room = ALTOGETHER
    for number, block in enumerate(blocks):
        size = sum(_size(text) for text in _texts(block))
        if size > room or number == BLOCKS - 1:
            yield _context("Shortened: see redrive alerts ls")
            return
        room -= size
        yield block


def _blocks(message: Message) -> Iterator[Block]:
    yield {
        "type": "header",
        "text": {"type": "plain_text", "text": _fit(message.headline, HEADER), "emoji": False},
    }
    yield from _fact_sections(message.lines)
    if message.error:
        yield _section("*Error*\n", message.error, code=True)
    if message.next_step:
        yield _section("*Next*\n", message.next_step)
    if message.commands:
        yield _section("*Commands*\n", "\n".join(message.commands), code=True)
    if message.sql:
        yield _section("*SQL*\n", message.sql, code=True)
    if message.steps:
        yield _section("*Runbook*\n", "\n".join(f"{number}. {step}" for number, step in enumerate(message.steps, 1)))
    if message.links:
        yield from _slack_links(message.links)
    if message.details:
        yield {"type": "section", "fields": [_mrkdwn(_labelled(line, FIELD)) for line in message.details[:FIELDS]]}
    yield _context(f"redrive · {message.key}")


def _fact_sections(lines: Sequence[FactLine]) -> Iterator[Block]:
    """Yield the facts below each other, in as few sections as possible."""
    section = ""
    for line in lines:
        entry = _labelled(line, SECTION - 1)
        if section and _size(section) + _size(entry) + 1 > SECTION:
            yield _raw_section(section)
            section = ""
        section = f"{section}\n{entry}" if section else entry
    if section:
        yield _raw_section(section)


def _slack_links(links: Sequence[FactLine]) -> Iterator[Block]:
    shown = ""
    for entry in map(_slack_link, links):
        if _size(shown) + _size(entry) + 3 <= SECTION:
            shown = f"{shown} · {entry}" if shown else entry
    if shown:
        yield _raw_section(shown)


def _slack_link(link: FactLine) -> str:
    if not link.value.startswith(("http://", "https://")):
        return _fit(f"{link.label}: {link.value}", FIELD)
    return f"<{link.value.replace('&', '&amp;')}|{_fit(link.label.replace('|', '/'), HEADER)}>"


def _labelled(line: FactLine, most: int) -> str:
    label = f"*{_fit(line.label.replace('*', ''), HEADER)}:*"
    between = "\n• " if "\n" in line.value else " "
    value = line.value.replace("\n", "\n• ") if "\n" in line.value else line.value
    return label + between + _fit(value, most - _size(label) - len(between))


def _section(title: str, text: str, *, code: bool = False) -> Block:
    # The fence has its own lines, so that a backtick at the end of the text does not become part of it.
    before, after = ("```\n", "\n```") if code else ("", "")
    return _raw_section(title + before + _fit(text, SECTION - len(title) - len(before) - len(after)) + after)


def _raw_section(text: str) -> Block:
    return {"type": "section", "text": _mrkdwn(text)}


def _context(text: str) -> Block:
    return {"type": "context", "elements": [_mrkdwn(_fit(text, FIELD))]}


def _mrkdwn(text: str) -> dict[str, Any]:
    # Verbatim: Slack would otherwise make mentions and links of names it finds in the text.
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def _texts(block: Block) -> Iterator[str]:
    for element in (block.get("text"), *block.get("fields", ()), *block.get("elements", ())):
        if element:
            yield element["text"]


def _fit(text: str, most: int) -> str:
    """Return the text escaped for Slack, and cut so that it fits with its escapes."""
    text = without_calls(text).replace("```", "'''")  # a fence in the text would turn everything after it into code
    escaped = "".join(_ENTITIES.get(letter, letter) for letter in text)
    if _size(escaped) <= most:
        return escaped
    kept, room = [], most - 1
    for letter in text:
        shown = _ENTITIES.get(letter, letter)
        room -= _size(shown)
        if room < 0:
            break
        kept.append(shown)
    return "".join(kept).rstrip() + "…"


def _size(text: str) -> int:
    """Return the length in UTF-16 units, as JavaScript counts; it is never less than the number of characters."""
    return len(text) + sum(letter > "\uffff" for letter in text)
