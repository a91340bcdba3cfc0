"""Reads a traceback as Python prints it: the exceptions of the last one, with what caused what. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

Link = Literal["cause", "context"]

_HEADER = re.compile(r"^(?P<before>.*?)(?:\+ )?(?P<group>Exception Group )?Traceback \(most recent call last\):\s*$")
_RAISED = re.compile(r"^(?P<type>[^\W\d][\w.]*(?:\.<locals>\.[\w.]+)*)(?::(?: (?P<said>.*))?)?$")
_LINKS: dict[str, Link] = {
    "The above exception was the direct cause of the following exception:": "cause",
    "During handling of the above exception, another exception occurred:": "context",
}
# The drawing of a group: a margin before its lines, a rule before each part, a rule at the end.
_MARGIN = re.compile(r"^\s*\| ?")
_PART = re.compile(r"^\s*\+-\+?-+ (?:\d+|\.\.\.) -+$")
_END = re.compile(r"^\s*\+-+$")
_HOLDS_OTHERS = re.compile(r"\(\d+ sub-exceptions?\)$")

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NOTE = "redrive: service "
_MOST_LINES = 50  # of a message


@dataclass(frozen=True, slots=True, kw_only=True)
class TracebackException:
    """One exception as a traceback tells of it."""

    type: str
    message: str = ""
    story: str | None = None
    """redrive's own note: what the service did before it let the error go."""
    link: Link | None = None
    """How the one before it in the text, where there is one, led to it."""
    parts: tuple[TracebackException, ...] = ()
    """What a group holds, groups in it opened."""


@dataclass(slots=True)
class _Block:
    """The lines of one exception: its frames, itself, what it holds."""

    link: Link | None = None
    indent: str = ""
    is_group: bool = False
    lines: list[str] = field(default_factory=list)
    parts: list[list[str]] = field(default_factory=list)
    follows: Link | None = None
    """How the next one is linked to it; None where none is."""

    def take(self, line: str) -> None:
        """One more line of the text."""
        plain = self._plain(line)
        if plain is not None and (link := _LINKS.get(plain.strip())) is not None:
            self.follows = link
        elif plain is not None and self.follows is None:
            self.lines.append(plain)

    def _plain(self, line: str) -> str | None:
        """The line as it would be outside of a group; None for one that belongs to a part of it."""
        if not self.is_group:
            return line.removeprefix(self.indent)
        if _PART.match(line):
            self.parts.append([])
        elif _END.match(line):
            return None
        elif not _MARGIN.match(line):
            return line
        elif not self.parts:
            return _MARGIN.sub("", line)
        else:
            self.parts[-1].append(_MARGIN.sub("", line))
        return None


def parse(text: str) -> tuple[TracebackException, ...]:
    """The exceptions of the last traceback in a text, the one that was raised last being the last; empty for none."""
    lines = [_COLOUR.sub("", line).rstrip("\r") for line in text.split("\n")]
    return _chain(lines) or _alone(lines)


def _chain(lines: Sequence[str]) -> tuple[TracebackException, ...]:
    chain: tuple[TracebackException, ...] = ()
    for block in _blocks(lines):
        if told := _told(block):
            chain = (*chain, told) if block.link else (told,)
    return chain


def _blocks(lines: Sequence[str]) -> Iterator[_Block]:
    """Cut a text into exceptions: each begins with the head of its traceback."""
    block: _Block | None = None
    for place, line in enumerate(lines):
        # The tracebacks of a group's parts stand behind its margin, and are taken with it.
        header = None if block is not None and block.is_group and _MARGIN.match(line) else _HEADER.match(line)
        if header is None:
            if block is not None:
                block.take(line)
            continue
        if block is not None:
            yield block
        before = header["before"]
        link = None if block is None else block.follows
        # Behind a log's own words, only the head is moved; pasted into other text, or with the name of a container
        # before each line, all of it is.
        moved = not before.strip() or (place + 1 < len(lines) and lines[place + 1].startswith(f"{before}  "))
        block = _Block(link, before if moved else "", bool(header["group"]))
    if block is not None:
        yield block


def _told(block: _Block) -> TracebackException | None:
    """The exception itself stands behind the frames, which are indented."""
    for place, line in enumerate(block.lines):
        if not line.strip() or line[0].isspace():
            continue
        found = _RAISED.match(line)
        if found is None:
            return None  # the traceback broke off, and something else goes on
        message, story = _message(found["said"] or "", block.lines[place + 1 :])
        parts = [one for lines in block.parts if (one := _part(lines))]
        return TracebackException(
            type=found["type"],
            message=message,
            story=story,
            link=block.link,
            parts=tuple(one for one in parts if not _HOLDS_OTHERS.search(one.message)),
        )
    return None


def _part(lines: list[str]) -> TracebackException | None:
    """The exception of a part, with a traceback or, where it was never raised, without."""
    chain = _chain(lines)
    return chain[-1] if chain else _told(_Block(lines=lines))


def _message(first: str, following: Sequence[str]) -> tuple[str, str | None]:
    """What an exception says, in several lines perhaps, and what redrive has noted below it."""
    said, story = [first], None
    for line in following[:_MOST_LINES]:
        if line.startswith(_NOTE):
            story = line.removeprefix("redrive: ")
        elif story is None:
            said.append(line)
    return "\n".join(said).strip(), story


def _alone(lines: Sequence[str]) -> tuple[TracebackException, ...]:
    """The last line that is an exception without its frames, as `tail -1` or a log leaves it."""
    for place in range(len(lines) - 1, -1, -1):
        found = _RAISED.match(lines[place].strip())
        if found and found["said"] is not None and _looks_like_one(found["type"]):
            message, story = _message(found["said"], lines[place + 1 :])
            return (TracebackException(type=found["type"], message=message, story=story),)
    return ()


def _looks_like_one(name: str) -> bool:
    """Whether a word before a colon is the name of an exception, which most words of a log are not."""
    return "." in name or name.endswith(("Error", "Exception", "Warning", "Timeout", "Group"))
