"""Webhooks: the message as JSON, or as Slack wants it, posted to an address."""

from __future__ import annotations

from redrive.alerts.channels.http import post
from redrive.alerts.message import Message
from redrive.alerts.settings import Channel


def send_document(channel: Channel, message: Message) -> None:
    """Post the JSON document."""
    post(address(channel), message.document(), seconds=channel.timeout)


def send_to_slack(channel: Channel, message: Message) -> None:
    """Post blocks to a Slack incoming webhook, or to one that takes the same, such as Mattermost's."""
    post(address(channel), message.slack(), seconds=channel.timeout)


def address(channel: Channel) -> str:
    """The target, which is one text for every channel but a command."""
    return channel.target if isinstance(channel.target, str) else " ".join(channel.target)
