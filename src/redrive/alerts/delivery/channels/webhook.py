"""Webhooks: the message as JSON, or as Slack wants it, posted to an address."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping

from redrive.alerts.config.settings import Channel
from redrive.alerts.delivery.channels.http import post
from redrive.alerts.delivery.message import Message


def send_document(channel: Channel, message: Message) -> None:
    """Post the JSON document, signed where the channel has a key."""
    body = json.dumps(message.document(), ensure_ascii=False).encode()
    headers = {**channel.headers, **(signature(channel.signing_key, body) if channel.signing_key else {})}
    post(address(channel), body, seconds=channel.timeout, headers=headers)


def send_to_slack(channel: Channel, message: Message) -> None:
    """Post blocks to a Slack incoming webhook, or to one that takes the same, such as Mattermost's."""
    post(address(channel), json.dumps(message.slack(), ensure_ascii=False).encode(), seconds=channel.timeout)


def signature(key: bytes, body: bytes) -> Mapping[str, str]:
    """Return the headers that sign a body, as Standard Webhooks has them; a message sent twice has one id."""
    name, at = f"msg_{hashlib.blake2b(body, digest_size=16).hexdigest()}", str(int(time.time()))
    signed = hmac.digest(key, b".".join((name.encode(), at.encode(), body)), "sha256")
    return {
        "webhook-id": name,
        "webhook-timestamp": at,
        "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
    }


def address(channel: Channel) -> str:
    """The target, which is one text for every channel but a command."""
    return channel.target if isinstance(channel.target, str) else " ".join(channel.target)
