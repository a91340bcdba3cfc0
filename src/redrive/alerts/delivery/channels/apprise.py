"""The channel `apprise`: a message is sent by apprise in its own process.

apprise logs addresses with their credentials at its lowest levels, and so do libraries that it uses. It reports
failures by logging them, and a call that hangs in it cannot be stopped. In its own process none of that affects the
pipeline. That process runs `main`: it reads an order on stdin and prints an answer of one line.
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
from redrive.alerts.delivery.channels.webhook import address
from redrive.alerts.delivery.message import Message
from redrive.alerts.delivery.process import run
from redrive.model.alerts import Severity, What

# The address is passed on stdin, because every user of the machine can read the words of a command.
_PROGRAM = "import sys; sys.path[:] = {path!r}; from redrive.alerts.delivery.channels.apprise import main; main()"


def send(channel: Channel, message: Message) -> None:
    """Send a message in the format that the service takes."""
    if not sys.executable:
        raise DeliveryFailed("apprise needs a Python interpreter, and sys.executable of this program is empty")
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
    """Return the type of the notification, by which apprise colours it."""
    if message.what is What.RESOLVED:
        return "success"
    if message.what in (What.ACKNOWLEDGED, What.TEST):
        return "info"
    return "failure" if message.urgency is Severity.P1 else "warning"


_WARNING = ("WARNING", "ERROR", "CRITICAL")
# apprise logs the reason of a failure as details.
_WHY = ("Socket Exception", "Response Details")


def main() -> None:
    """Read the order, send, answer."""
    order = json.loads(sys.stdin.buffer.read())
    if hasattr(signal, "alarm"):  # if the parent is killed, nothing else stops this process
        signal.alarm(math.ceil(order["seconds"]) + 1)
    answer = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # services may print, and only the answer must be on stdout
    os.dup2(nowhere, 2)
    try:
        reason, permanent = _notify(order)
    except Exception as error:  # errors of foreign code: their traceback would be lost
        reason, permanent = f"{type(error).__name__}: {error}", False
    os.write(answer, json.dumps({"reason": reason, "permanent": permanent}).encode() + b"\n")
    os._exit(0)  # without waiting for threads of services


def _notify(order: dict[str, Any]) -> tuple[str | None, bool]:
    """Send; return why that failed, or None, and whether the failure is permanent."""
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
    return _reason(result) or "apprise could not deliver it and gives no reason", False


def _form(service: Any, order: dict[str, Any]) -> tuple[Any, str]:
    """Return Markdown if the service shows it, else plain text; apprise makes HTML from Markdown."""
    from apprise import NotifyFormat

    for form, body in ((NotifyFormat.MARKDOWN, order["markdown"]), (NotifyFormat.TEXT, order["plain"])):
        if service.resolve_format(form) == form:
            return form, body
    return NotifyFormat.MARKDOWN, order["markdown"]


def _reason(result: Any) -> str:
    reasons = (
        " ".join(entry.message.split())[:1_000]
        for entry in result.logs()
        if entry.level in _WARNING or entry.message.startswith(_WHY)
    )
    return "; ".join(dict.fromkeys(reasons))[:3_000]
