"""Anything that apprise speaks, in a process of its own.

apprise logs addresses with their credentials at its lowest levels, and so do libraries that it uses; it tells failures
by logging them, and what hangs in it cannot be ended. In another process none of that touches the pipeline's.
"""

from __future__ import annotations

import json
import os
import sys

from redrive.alerts.config.settings import Channel
from redrive.alerts.delivery.channels.errors import DeliveryFailed, end_of
from redrive.alerts.delivery.channels.process import run
from redrive.alerts.delivery.channels.webhook import address
from redrive.alerts.delivery.message import Message
from redrive.model.alerts import Severity, What

# The address is given on stdin: the words of a command can be read by everybody on the machine.
_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; from redrive.alerts.delivery.channels.apprise_process import main; main()"
)


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
