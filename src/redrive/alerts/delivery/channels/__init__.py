"""How a message gets out: one `deliver` for every kind of channel."""

from __future__ import annotations

from redrive.alerts.config.settings import Channel
from redrive.alerts.delivery.channels.errors import DeliveryFailed, concealed
from redrive.alerts.delivery.message import Message

__all__ = ["DeliveryFailed", "deliver"]


def deliver(channel: Channel, message: Message) -> None:
    """Deliver a message, within about `channel.timeout` seconds; what goes wrong is a `DeliveryFailed`.

    No part of the channel's address or credentials is in the failure, nor in what led to it.
    """
    failed = _tried(channel, message)
    if failed is not None:
        raise failed  # outside of any `except`, so that it has no context to be shown with


def _tried(channel: Channel, message: Message) -> DeliveryFailed | None:
    try:
        _send(channel, message)
    except DeliveryFailed as failure:
        found = failure
    except Exception as error:  # the sender has other messages to send, whatever is wrong with this one
        found = DeliveryFailed(f"{type(error).__name__}: {error}")
    else:
        return None
    return DeliveryFailed(
        concealed(found.reason, channel.target, *channel.headers.values()),
        permanent=found.permanent,
        retry_after=found.retry_after,
    )


def _send(channel: Channel, message: Message) -> None:
    match channel.kind:
        case "log":
            from redrive.alerts.delivery.channels import log

            log.send(message)
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
