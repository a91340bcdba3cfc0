"""The process in which apprise sends one message: an order on stdin, an answer of one line on stdout."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import sys
from typing import Any

from redrive._internal.optional import require_extra

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
