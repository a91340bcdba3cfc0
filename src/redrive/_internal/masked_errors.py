"""Texts of exceptions without secrets: what is masked in one message of an exception is masked wherever it stands.

A message names a password as one, and that of its cause may quote the same password without a name beside it.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress

from redrive._internal.masking import MASK, mask, mask_start
from redrive._internal.masking.patterns import without_controls

_SHORTEST = 4  # shorter values are part of every text
_WITHIN_WORDS = 8  # values of this length are found within longer words
_MOST_ERRORS = 20
_LONGEST_MESSAGE = 20_000
_WORDS = frozenset({"None", "True", "False", "null", "true", "false"})
_QUOTES = "\"'`()[]{}<>,;: \t\r\n"
_PARTS = re.compile(r"[:/?#@]")  # a URL is cut into these, and an error may quote one of them


def secrets_of(error: BaseException) -> tuple[str, ...]:
    """Return what is masked in the messages and notes of an exception and of all that it came from, longest first."""
    secrets = {secret for text in _messages(error) for value in _hidden(text) for secret in _spellings(value)}
    return tuple(sorted(secrets, key=lambda secret: (-len(secret), secret)))


def without(text: str, secrets: Iterable[str]) -> str:
    """Return a text without these values; short ones only where they are whole words."""
    for secret in secrets:
        if secret not in text:
            continue
        if len(secret) >= _WITHIN_WORDS:
            text = text.replace(secret, MASK)
        else:
            text = re.sub(rf"(?<![^\W_]){re.escape(secret)}(?![^\W_])", MASK, text)
    return text


def masked_traceback(error: BaseException) -> str:
    """Return the traceback as Python prints it, masked."""
    return without(mask("".join(traceback.format_exception(error))), secrets_of(error))


def _messages(error: BaseException) -> Iterator[str]:
    """The messages and notes of an exception, its causes, what it was raised from, and the members of its group."""
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending and len(seen) < _MOST_ERRORS:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        with suppress(Exception):  # a user's class may raise anything
            yield str(one)
        with suppress(Exception):
            yield from map(str, getattr(one, "__notes__", ()))
        pending += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            pending += one.exceptions


def _hidden(text: str) -> Iterator[str]:
    """The parts of a text in whose places its masked form has masks."""
    shown = mask_start(text, _LONGEST_MESSAGE)
    first, *rest = shown.split(MASK)
    text = without_controls(text)
    if not rest or not text.startswith(first):
        return
    at = len(first)
    for number, piece in enumerate(rest, 1):
        is_last = number == len(rest)
        if not piece and not is_last:
            continue  # two masks side by side
        end = _place_of(text, piece, at, is_last=is_last)
        if end < 0:
            return
        yield text[at:end]
        at = end + len(piece)


def _place_of(text: str, piece: str, at: int, *, is_last: bool) -> int:
    if is_last and len(text) - len(piece) >= at and text.endswith(piece):
        return len(text) - len(piece)
    return text.find(piece, at)


def _spellings(value: str) -> Iterator[str]:
    """A value as it is, without quotes, and the parts that a URL is cut into."""
    for each in (value, value.strip(_QUOTES), *(part.strip(_QUOTES) for part in _PARTS.split(value))):
        if len(each.strip()) >= _SHORTEST and each not in _WORDS and MASK not in each:
            yield each
