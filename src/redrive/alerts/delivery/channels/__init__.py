"""Channels: `deliver` sends a message to a channel of any kind. One module for each kind, and the log here."""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, unquote, unquote_plus, urlsplit

from redrive._internal.masking import MASK
from redrive.alerts.config.settings import Channel
from redrive.alerts.delivery.format import safe_line
from redrive.alerts.delivery.message import Message
from redrive.model.alerts import Severity, What

_log = logging.getLogger("redrive.alerts")


class DeliveryFailed(Exception):
    """A delivery failed.

    Attributes:
        reason: One sentence for the operator, with secrets masked.
        permanent: Whether a retry cannot help, because the operator must change something.
        retry_after: Seconds that the receiver asks to wait.
    """

    def __init__(self, reason: str, *, permanent: bool = False, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.permanent = permanent
        self.retry_after = retry_after


def deliver(channel: Channel, message: Message) -> None:
    """Deliver a message within about `channel.timeout` seconds.

    Raises:
        DeliveryFailed: The delivery failed. Neither the error nor its cause contains the address or credentials.
    """
    failed = _try(channel, message)
    if failed is not None:
        raise failed  # outside of any `except`, so that it has no context


def _try(channel: Channel, message: Message) -> DeliveryFailed | None:
    try:
        _send(channel, message)
    except DeliveryFailed as failure:
        failed = failure
    except Exception as error:  # the sender continues with other messages
        failed = DeliveryFailed(f"{type(error).__name__}: {error}")
    else:
        return None
    return DeliveryFailed(
        concealed(failed.reason, channel.target, *channel.headers.values()),
        permanent=failed.permanent,
        retry_after=failed.retry_after,
    )


def _send(channel: Channel, message: Message) -> None:
    match channel.kind:
        case "log":
            _send_to_log(message)
        case "command":
            from redrive.alerts.delivery.channels import command

            command.send(channel, message)
        case "webhook":
            from redrive.alerts.delivery.channels import webhook

            webhook.send_document(channel, message)
        case "slack":
            from redrive.alerts.delivery.channels import webhook

            webhook.send_to_slack(channel, message)
        case "pagerduty":
            from redrive.alerts.delivery.channels import pagerduty

            pagerduty.send(channel, message)
        case "apprise":
            from redrive.alerts.delivery.channels import apprise

            apprise.send(channel, message)


# ── the log ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _send_to_log(message: Message) -> None:
    """Log a message, with the whole document as `extra["alert"]` for handlers that write JSON."""
    _log.log(_level(message), "%s", _single_line(message), extra={"alert": message.document()})


def _level(message: Message) -> int:
    if message.what in (What.RESOLVED, What.ACKNOWLEDGED):
        return logging.INFO
    return logging.ERROR if message.urgency is Severity.P1 else logging.WARNING


def _single_line(message: Message) -> str:
    parts = [message.headline]
    more = [(line.label, line.value) for line in message.lines if line.label in ("Impact", "Cause", "Resolved")]
    more.append(("Error", message.error or ""))
    parts += [f"{label}: {value}" for label, value in more if value and value not in message.headline]
    if message.next_step:
        parts.append(f"Next: {message.next_step}")
    if message.commands:
        parts.append(f"See: {message.commands[0]}")
    return " | ".join(" ".join(part.split()) for part in parts)


# ── hiding the address of the channel ─────────────────────────────────────────────────────────────────────────────────

_LONGEST = 500
_END = 300
# The addressees of a mail are no secret, and a mail server names the one that it rejects.
_ADDRESSES = frozenset({"to", "cc", "bcc", "from", "reply"})
_WORDS = re.compile(r"[\s/=:&?#@,;|]+")


def concealed(text: str, *targets: str | tuple[str, ...]) -> str:
    """Return the text on one line, without secrets and without any part of a channel's target that may be one."""
    for target in targets:
        text = _without(text, target)
    return safe_line(text, _LONGEST)


def end_of(output: str, target: str | tuple[str, ...]) -> str:
    """Return the end of the output of a program, which usually has the reason of a failure, without secrets."""
    shown = safe_line(_without(output, target), len(output))  # masked before it is cut
    return shown if len(shown) <= _END else f"…{shown[1 - _END :]}"


def _without(text: str, target: str | tuple[str, ...]) -> str:
    for piece in sorted(set(_pieces(target)), key=len, reverse=True):
        text = text.replace(piece, MASK)
    return text


def _pieces(target: str | tuple[str, ...]) -> Iterator[str]:
    # The name of a program is not hidden, because it is needed to find out why it cannot be started.
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
    yield from _distinctive([*parts, *map(unquote, parts)])


def _of_query(query: str) -> Iterator[str]:
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        if name.lower() not in _ADDRESSES:
            yield from _long_enough([value, unquote(value), unquote_plus(value), quote(unquote(value), safe="")])


def _of_url(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
        pieces = [parts.password or "", parts.username or "", parts.hostname or "", parts.path.strip("/")]
    except ValueError:
        return
    yield from _long_enough([*pieces, *map(unquote, pieces)])
    if parts.username is not None:  # as it is sent, and as a receiver may return it
        words = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        yield base64.b64encode(words.encode()).decode()
    yield from _distinctive(parts.netloc.split("."))  # the host names of some receivers are secrets


def _long_enough(parts: Iterable[str]) -> Iterator[str]:
    return (part for part in parts if len(part) >= 4)


def _distinctive(parts: Iterable[str]) -> Iterator[str]:
    """Yield the parts that are not common words: a sentence with every `api` hidden cannot be understood."""
    for part in parts:
        if len(part) >= 8 or (len(part) >= 4 and any(letter.isdigit() for letter in part)):
            yield part
