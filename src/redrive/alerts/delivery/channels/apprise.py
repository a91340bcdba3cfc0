"""Anything that apprise speaks, in a process of its own.

apprise logs addresses with their credentials at its lowest levels, and so do libraries that it uses; it tells failures
by logging them, and what hangs in it cannot be ended. In another process none of that touches the pipeline's. That
process runs `main`: it reads an order on stdin and prints an answer of one line.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import sys
from typing import Any

from redrive._internal.optional import require_extra
from redrive.alerts.config.settings import Channel
from redrive.alerts.delivery.channels import DeliveryFailed, end_of
from redrive.alerts.delivery.channels.command import run
from redrive.alerts.delivery.channels.webhook import address
from redrive.alerts.delivery.message import Message
from redrive.model.alerts import Severity, What

# The address is given on stdin: the words of a command can be read by everybody on the machine.
_PROGRAM = "import sys; sys.path[:] = {path!r}; from redrive.alerts.delivery.channels.apprise import main; main()"


def send(channel: Channel, message: Message) -> None:
    """Have it sent, in the form that the service takes."""
    if not sys.executable:
        raise DeliveryFailed("apprise needs a Python interpreter, and this program does not say where its own is")
    order = {
        "url": address(channel),
        "title": message.headline,
        "plain": message.plain(headline=False),
        "markdown": message.markdown(headline=False),
        "type": _type(message),
        "seconds": channel.timeout,
    }
    words = [sys.executable, "-c", _PROGRAM.format(path=[entry for entry in sys.path if isinstance(entry, str)])]
    try:
        ended = run(words, json.dumps(order).encode(), environment=os.environ, seconds=channel.timeout)
    except OSError as error:
        raise DeliveryFailed(f"no process can be started for apprise: {error.strerror}") from None
    if ended.code is None:
        raise DeliveryFailed(f"apprise has not delivered it within {channel.timeout:g} s")
    try:
        answer = json.loads(ended.output.splitlines()[-1])
        reason, permanent = answer["reason"], answer["permanent"]
    except (IndexError, ValueError, TypeError, KeyError):
        raise DeliveryFailed(f"apprise ended with {ended.code}: {end_of(ended.output, channel.target)}") from None
    if reason is not None:
        raise DeliveryFailed(reason, permanent=permanent)


def _type(message: Message) -> str:
    """How apprise is to colour it."""
    if message.what is What.RESOLVED:
        return "success"
    if message.what in (What.ACKNOWLEDGED, What.TEST):
        return "info"
    return "failure" if message.urgency is Severity.P1 else "warning"


_WARNING = ("WARNING", "ERROR", "CRITICAL")
# What apprise logs as mere details is why it failed.
_WHY = ("Socket Exception", "Response Details")


def main() -> None:
    """Read the order, send, answer."""
    order = json.loads(sys.stdin.buffer.read())
    if hasattr(signal, "alarm"):  # should who waits for it be killed, nobody else would end it
        signal.alarm(math.ceil(order["seconds"]) + 1)
    answer = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # services may print, and nothing but the answer is to be read
    os.dup2(nowhere, 2)
    try:
        reason, permanent = _sent(order)
    except Exception as error:  # of foreign code; nobody would see its traceback
        reason, permanent = f"{type(error).__name__}: {error}", False
    os.write(answer, json.dumps({"reason": reason, "permanent": permanent}).encode() + b"\n")
    os._exit(0)  # not held up by threads that services have left


def _sent(order: dict[str, Any]) -> tuple[str | None, bool]:
    """Why it could not be sent, and whether it never can be."""
    try:
        with require_extra("alerts"):
            import apprise
    except ImportError as missing:
        return str(missing), False  # another process may have it
    logging.getLogger("apprise").setLevel(logging.DEBUG)
    asset = apprise.AppriseAsset(
        app_id="redrive",
        app_desc="redrive alerts",
        app_url="",
        http_redirects=False,
        service_timeout=order["seconds"],
    )
    service = apprise.Apprise.instantiate(order["url"], asset=asset)
    if service is None:
        return "apprise does not understand the channel's URL", True
    box = apprise.Apprise(asset=asset)
    box.add(service)
    form, body = _form(service, order)
    result = box.notify(
        body,
        title=order["title"],
        notify_type=order["type"],
        body_format=form,
        log_level=logging.DEBUG,
        timeout=order["seconds"],
    )
    if result:
        return None, False
    return _reason(result) or "apprise could not deliver it, and does not say why", False


def _form(service: Any, order: dict[str, Any]) -> tuple[Any, str]:
    """Markdown where the service shows it, else plain text; what takes only HTML is given Markdown to make it of."""
    from apprise import NotifyFormat

    for form, body in ((NotifyFormat.MARKDOWN, order["markdown"]), (NotifyFormat.TEXT, order["plain"])):
        if service.resolve_format(form) == form:
            return form, body
    return NotifyFormat.MARKDOWN, order["markdown"]


def _reason(result: Any) -> str:
    told = (
        " ".join(entry.message.split())[:1_000]
        for entry in result.logs()
        if entry.level in _WARNING or entry.message.startswith(_WHY)
    )
    return "; ".join(dict.fromkeys(told))[:3_000]
