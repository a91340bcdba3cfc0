"""Why a message did not get out, said without giving the channel away."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, unquote, unquote_plus, urlsplit

from redrive._internal.masking import MASK
from redrive.alerts.delivery.safe_text import safe_line

_LONGEST = 500
_END = 300
# Who a mail is for is no secret, and a mail server names the one it refuses.
_ADDRESSES = frozenset({"to", "cc", "bcc", "from", "reply"})
_WORDS = re.compile(r"[\s/=:&?#@,;|]+")


class DeliveryFailed(Exception):
    """A try has failed.

    reason       one sentence for a person, secrets masked
    permanent    trying again is of no use: a person must change something
    retry_after  seconds for which the receiver asks to be left alone
    """

    def __init__(self, reason: str, *, permanent: bool = False, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.permanent = permanent
        self.retry_after = retry_after


def concealed(text: str, *targets: str | tuple[str, ...]) -> str:
    """The text in one line, without secrets and without any part of a channel's target that could be one."""
    for target in targets:
        text = _without(text, target)
    return safe_line(text, _LONGEST)


def end_of(output: str, target: str | tuple[str, ...]) -> str:
    """The end of what a program has printed, where it says why it failed; concealed before it is cut."""
    said = safe_line(_without(output, target), len(output))
    return said if len(said) <= _END else f"…{said[1 - _END :]}"


def _without(text: str, target: str | tuple[str, ...]) -> str:
    for piece in sorted(set(_pieces(target)), key=len, reverse=True):
        text = text.replace(piece, MASK)
    return text


def _pieces(target: str | tuple[str, ...]) -> Iterator[str]:
    # The name of the program is none: without it nobody finds out why it cannot be started.
    for word in target[1:] if isinstance(target, tuple) else (target,):
        if "://" not in word:
            yield from _of_word(word)
            continue
        address, _, query = word.partition("?")
        yield from _of_word(address)
        yield from _of_url(address)
        yield from _of_query(query)


def _of_word(word: str) -> Iterator[str]:
    parts = [word, *_WORDS.split(word)]
    yield from _telling([*parts, *map(unquote, parts)])


def _of_query(query: str) -> Iterator[str]:
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        if name.lower() not in _ADDRESSES:
            yield from _long_enough([value, unquote(value), unquote_plus(value), quote(unquote(value), safe="")])


def _of_url(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
        found = [parts.password or "", parts.username or "", parts.hostname or "", parts.path.strip("/")]
    except ValueError:
        return
    yield from _long_enough([*found, *map(unquote, found)])
    if parts.username is not None:  # as it is sent, and as a receiver may repeat it
        words = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        yield base64.b64encode(words.encode()).decode()
    yield from _telling(parts.netloc.split("."))  # some receivers are known by a name that nobody can guess


def _long_enough(parts: Iterable[str]) -> Iterator[str]:
    return (part for part in parts if len(part) >= 4)


def _telling(parts: Iterable[str]) -> Iterator[str]:
    """Those that are no mere words: to hide every `api` of a sentence would hide its meaning."""
    for part in parts:
        if len(part) >= 8 or (len(part) >= 4 and any(letter.isdigit() for letter in part)):
            yield part
