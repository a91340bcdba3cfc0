"""A message as the payload of a Slack incoming webhook: Block Kit, within all of its limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from redrive.alerts.delivery.facts import FactLine
from redrive.alerts.delivery.safe_text import without_calls

if TYPE_CHECKING:
    from redrive.alerts.delivery.message import Message

# docs.slack.dev/reference/block-kit/blocks; Slack does not say what a character is, so the longer ones count twice.
HEADER, SECTION, FIELD, FIELDS, BLOCKS = 150, 3_000, 2_000, 10, 50
TEXT = 3_000
"""Of the fallback; Slack asks for less than 4,000."""
ALTOGETHER = 10_000
"""Of all blocks: beyond some 13,000 Slack answers `msg_blocks_too_long`, which it does not document."""

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}

Block = dict[str, Any]


def payload(message: Message) -> dict[str, Any]:
    """`text` for notifications and screen readers, `blocks` for everybody else."""
    first = next((f"\n{line.label}: {line.value}" for line in message.lines), "")
    return {
        "text": _fit(message.headline + first, TEXT),
        "blocks": list(_within_limits(_blocks(message))),
        # An address in an error must not be fetched by Slack, nor shown as a picture.
        "unfurl_links": False,
        "unfurl_media": False,
    }


def _within_limits(blocks: Iterator[Block]) -> Iterator[Block]:
    """As many as there is room for: they come in the order of their use."""
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
    yield from _stories(message.lines)
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
        yield from _links(message.links)
    if message.details:
        yield {"type": "section", "fields": [_mrkdwn(_labelled(line, FIELD)) for line in message.details[:FIELDS]]}
    yield _context(f"redrive · {message.key}")


def _stories(lines: Sequence[FactLine]) -> Iterator[Block]:
    """The facts one below the other, in as few sections as hold them."""
    held = ""
    for line in lines:
        told = _labelled(line, SECTION - 1)
        if held and _size(held) + _size(told) + 1 > SECTION:
            yield _raw_section(held)
            held = ""
        held = f"{held}\n{told}" if held else told
    if held:
        yield _raw_section(held)


def _links(links: Sequence[FactLine]) -> Iterator[Block]:
    shown = ""
    for told in map(_link, links):
        if _size(shown) + _size(told) + 3 <= SECTION:
            shown = f"{shown} · {told}" if shown else told
    if shown:
        yield _raw_section(shown)


def _link(link: FactLine) -> str:
    if not link.value.startswith(("http://", "https://")):
        return _fit(f"{link.label}: {link.value}", FIELD)
    return f"<{link.value.replace('&', '&amp;')}|{_fit(link.label.replace('|', '/'), HEADER)}>"


def _labelled(line: FactLine, most: int) -> str:
    label = f"*{_fit(line.label.replace('*', ''), HEADER)}:*"
    between = "\n• " if "\n" in line.value else " "
    value = line.value.replace("\n", "\n• ") if "\n" in line.value else line.value
    return label + between + _fit(value, most - _size(label) - len(between))


def _section(title: str, text: str, *, code: bool = False) -> Block:
    # On lines of their own: a backtick at an end of the text must not become part of the fence.
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
    for found in (block.get("text"), *block.get("fields", ()), *block.get("elements", ())):
        if found:
            yield found["text"]


def _fit(text: str, most: int) -> str:
    """The text as Slack wants it, escaped, and cut so that it fits with its escapes."""
    text = without_calls(text).replace("```", "'''")  # a fence of foreign text would turn all that follows into code
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
    """In UTF-16, as JavaScript counts: never less than the characters."""
    return len(text) + sum(letter > "\uffff" for letter in text)
