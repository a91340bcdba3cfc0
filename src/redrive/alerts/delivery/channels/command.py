"""The channel `command`: a program that gets the message as JSON on stdin, and a summary in its environment."""

from __future__ import annotations

import json
import os
import shlex
import signal

from redrive.alerts.config.settings import Channel
from redrive.alerts.delivery.channels import DeliveryFailed, end_of
from redrive.alerts.delivery.message import Message
from redrive.alerts.delivery.process import ProcessEnded, run


def send(channel: Channel, message: Message) -> None:
    """Run the command; an exit code other than 0 is a failure, with the end of its output as the reason."""
    words = shlex.split(channel.target) if isinstance(channel.target, str) else list(channel.target)
    if not words:
        raise DeliveryFailed("the channel has no command", permanent=True)
    given = json.dumps(message.document(), ensure_ascii=False).encode()
    try:
        ended = run(words, given, environment={**os.environ, **environment(message)}, seconds=channel.timeout)
    except OSError as error:
        # Not permanent: a program that is missing here may be there for the next process that tries.
        failed = DeliveryFailed(f"{words[0]} cannot be started: {error.strerror or error}")
    else:
        if ended.code == 0:
            return
        output = end_of(ended.output, channel.target)
        failed = DeliveryFailed(f"the command {_outcome(ended, channel.timeout)}" + (f": {output}" if output else ""))
    raise failed


def environment(message: Message) -> dict[str, str]:
    """Return environment variables for shell scripts, which need not read JSON."""
    return {
        "REDRIVE_ALERT_URGENCY": message.urgency.value,
        "REDRIVE_ALERT_WHAT": message.what.value,
        "REDRIVE_ALERT_SUBJECT": str(message.subject or message.kind),
        "REDRIVE_ALERT_TITLE": message.headline,
        "REDRIVE_ALERT_KEY": message.key,
    }


def _outcome(ended: ProcessEnded, seconds: float) -> str:
    if ended.code is None:
        return f"did not end within {seconds:g} s and was killed"
    if ended.code < 0:
        return f"was ended by {_signal(-ended.code)}"
    return f"ended with exit code {ended.code}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
