"""Channels that never got an open alert, and messages that no channel of these settings takes.

Used by the ledger at each look of the watch, since channels and routes may change while an alert is open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, select

from redrive.alerts.conditions import SETTINGS_DIFFER
from redrive.alerts.config.settings import LOG_CHANNEL, AlertSettings
from redrive.alerts.lifecycle.rows import record_of, send_of
from redrive.alerts.lifecycle.silences import Silenced
from redrive.alerts.lifecycle.state_machine import SUPPRESSED, AlertRecord
from redrive.model.alerts import Alert, AlertStatus, Send, SendStatus
from redrive.store.schema import alert_sends, alerts
from redrive.store.sql import in_ids

_sends = alert_sends.c


class Unreached(NamedTuple):
    """An open alert, and the channels that its routes lead to and that have no message about it."""

    alert: Alert
    channels: Sequence[str]


def unreached_channels(connection: Connection, settings: AlertSettings, silenced: Silenced) -> list[Unreached]:
    """Return the open alerts with channels that never got them.

    These channels were added or renamed since, a process with other settings opened the alert, or the message was
    dropped while the alert was acknowledged.
    """
    rows = connection.execute(select(alerts).where(alerts.c.status == AlertStatus.OPEN.value).order_by(alerts.c.id))
    records = [record for record in map(record_of, rows) if _is_sent_on(record, silenced)]
    if not records:
        return []
    about = in_ids(_sends.alert_id, [record.alert.id for record in records])
    sent = select(_sends.alert_id, _sends.channel).where(about, _sends.what.in_([what.value for what in SUPPRESSED]))
    known = {(row.alert_id, row.channel) for row in connection.execute(sent)}
    pairs = [
        Unreached(record.alert, [name for name in _routed(record, settings) if (record.alert.id, name) not in known])
        for record in records
    ]
    return [one for one in pairs if one.channels]


def unconfigured_messages(connection: Connection, settings: AlertSettings) -> list[Send]:
    """Return the messages that wait for channels which these settings do not have; the oldest first."""
    is_elsewhere = _sends.channel.not_in([LOG_CHANNEL, *settings.channels])
    wanted = select(alert_sends).where(_sends.status == SendStatus.WAITING.value, is_elsewhere)
    return [send_of(row) for row in connection.execute(wanted.order_by(_sends.id))]


def _is_sent_on(record: AlertRecord, silenced: Silenced) -> bool:
    """Return whether further channels get the alert: it was sent, still holds, and is not silenced.

    That settings differ is for the channels of the watch that stands by.
    """
    alert = record.alert
    if alert.condition == SETTINGS_DIFFER:
        return False
    return (
        record.is_notified and alert.told_at is not None and alert.gone_since is None and silenced.until(alert) is None
    )


def _routed(record: AlertRecord, settings: AlertSettings) -> dict[str, None]:
    """Return the channels of the highest severity that was sent: one that has gone down since is no news."""
    alert = record.alert
    return dict.fromkeys(settings.channels_for(record.peak or alert.urgency, alert.subject, alert.condition))
