"""The outbox of messages: they are stored with their alert, and kept until a channel accepts them.

A message is claimed before it is delivered, and marked afterwards. Several processes may do so at the same time: a
claim is a lease with a unique owner, and ends when its holder dies. If a process is killed between the delivery and the
mark, the message is sent a second time: delivery is at least once. PagerDuty identifies an alert by its key, so a
second message changes nothing there.

Silences are checked when a message is claimed, too: a message may wait for its channel, or for the end of quiet hours,
when its alert is silenced. It is sent when the silence ends, or dropped if the alert was acknowledged or resolved
before that.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from redrive.alerts.config.settings import LOG_CHANNEL, AlertSettings, Channel
from redrive.alerts.delivery.batching import KEEPS_STATE, MessageBatch, groups, overtaken, sendable
from redrive.alerts.delivery.format import safe_line
from redrive.alerts.lifecycle.rows import alert_of, send_of
from redrive.alerts.lifecycle.silences import Silenced, read_silenced
from redrive.alerts.lifecycle.state_machine import SUPPRESSED
from redrive.clock import Random
from redrive.model.alerts import Alert, Send, SendStatus, Severity, What
from redrive.policy import backoff
from redrive.store.database import Database
from redrive.store.lease import begin_work, end_work, is_owner_dead, new_owner
from redrive.store.schema import alert_sends, alerts
from redrive.store.sql import in_ids

BASE, CAP = 15.0, 900.0
"""The first and the longest backoff between attempts, in seconds, with full jitter."""
MAX_AGE = {
    Severity.P1: timedelta(days=1),
    Severity.P2: timedelta(hours=12),
    Severity.P3: timedelta(hours=6),
}
"""How long delivery is attempted, from when the message could first be sent; there is a last attempt at the end."""
GRACE = 60.0
"""Seconds by which a claim outlasts the longest delivery, so that it can be marked after a restart of the store."""
TEST_LASTS = timedelta(seconds=60)
"""Time for which a test stays open in a channel that opens incidents: long enough to notify."""

CLAIMING = "alert sends"
_REASON = 500
_OPENING = (What.OPENED, What.ESCALATED)
_sends = alert_sends.c


@dataclass(frozen=True, slots=True)
class ClaimedMessage:
    """A message that this process has claimed for delivery."""

    owner: str
    channel: Channel
    group: MessageBatch
    messages: tuple[tuple[What, Alert], ...]
    """The kind of message and the alert, in the order of `group.sends`."""


class DueMessages(NamedTuple):
    """The times at which waiting messages can be sent."""

    now: datetime
    channels: dict[str, datetime]
    """The earliest time to send, by the name of the channel."""


def known(settings: AlertSettings) -> dict[str, Channel]:
    """Return the channels that a process with these settings can deliver to.

    There are none if alerts are disabled. Messages for a channel without its address wait for a process that has it.
    The log is always included.
    """
    if not settings.enabled:
        return {}
    usable = {name: channel for name, channel in settings.channels.items() if channel.kind == "log" or channel.target}
    return {LOG_CHANNEL: Channel(name=LOG_CHANNEL, kind="log"), **usable}


class Outbox:
    """The messages of one store, for a process with these settings."""

    def __init__(self, database: Database, settings: AlertSettings, *, chance: Random | None = None) -> None:
        self.channels = known(settings)
        self._database, self._settings = database, settings
        self._chance = random.Random() if chance is None else chance

    # ── storing ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, connection: Connection, alert: Alert, what: What, now: datetime) -> None:
        """Store the messages about an alert, in the transaction that stores the alert."""
        self._database.dialect.lock(connection, CLAIMING)  # a message that is replaced must not be in delivery
        rows = connection.execute(select(alert_sends).where(_sends.alert_id == alert.id).order_by(_sends.id)).all()
        for channel, urgency in self._receivers(alert, what, rows):
            if what is What.REPEATED and self._was_sent_after_silence(connection, alert, channel, rows, now):
                continue
            unsent = [row for row in rows if row.channel == channel and row.status == SendStatus.WAITING]
            if self._drop_outdated(connection, unsent, what, now):
                continue
            # An alert that is over when it is sent would stay open forever in a channel that tracks alerts by key.
            messages = [self._schedule(what, urgency, now)]
            if alert.is_over and self._keeps_state(channel):
                if what is What.OPENED:
                    messages.append(self._schedule(What.RESOLVED, urgency, now))
                elif what is What.TEST:
                    messages.append({**messages[0], "what": What.RESOLVED.value, "due_at": now + TEST_LASTS})
            addressed = {"alert_id": alert.id, "channel": channel, "urgency": urgency.value}
            for message in messages:
                connection.execute(insert(alert_sends).values(**addressed, **message))

    def _schedule(self, what: What, urgency: Severity, now: datetime) -> dict[str, Any]:
        quiet = None
        if self._settings.quiet is not None and urgency is Severity.P3 and what is not What.TEST:
            quiet = self._settings.quiet.until(now)
        return {
            "what": what.value,
            "status": SendStatus.WAITING.value,
            "digest": int(quiet is not None),
            "created_at": now,
            "due_at": quiet or now,
        }

    def _was_sent_after_silence(
        self, connection: Connection, alert: Alert, channel: str, rows: Sequence[Row[Any]], now: datetime
    ) -> bool:
        """Return whether a message that a silence had delayed was sent when the silence ended.

        At the end of a silence, alerts that were sent before it are sent again. This channel has just received its
        first message.
        """
        sent = [row.sent_at for row in rows if row.channel == channel and row.sent_at is not None]
        ended = self._silenced(connection, now).ended_at(alert)
        if not sent or ended is None or max(sent) < ended:
            return False
        every = self._settings.repeat.get(alert.urgency)
        # Half of it: the interval starts when the alert was stored, which is a little before it was sent.
        return every is None or now - max(sent) < timedelta(seconds=every) / 2

    def _drop_outdated(self, connection: Connection, unsent: Sequence[Row[Any]], what: What, now: datetime) -> bool:
        """Delete waiting messages that are outdated; return whether the new message is not needed either.

        A message that an alert escalated replaces earlier ones about a lower severity. If an alert opened and was
        resolved during quiet hours, only the second is sent.
        """
        idle = [row.id for row in unsent if not _is_taken(row, now)]
        if what is What.ESCALATED:
            connection.execute(delete(alert_sends).where(in_ids(_sends.id, idle)))
        elif what is What.RESOLVED:
            for row in unsent:
                if row.digest and row.id in idle:
                    connection.execute(update(alert_sends).where(_sends.id == row.id).values(what=what.value))
                    return True
        return False

    def _receivers(self, alert: Alert, what: What, rows: Sequence[Row[Any]]) -> Iterator[tuple[str, Severity]]:
        """Return the channels that get a message, each with the severity that it shows."""
        if what in (*_OPENING, What.TEST):
            for name in dict.fromkeys(self._settings.channels_for(alert.urgency, alert.subject, alert.condition)):
                yield name, alert.urgency
            return
        for name in dict.fromkeys(row.channel for row in rows if row.what in SUPPRESSED):
            sent = [row for row in rows if row.channel == name]
            if what is What.REPEATED:
                # A message that still waits will be sent; one that could not be delivered is sent again.
                is_waiting = any(row.status == SendStatus.WAITING for row in sent)
                if not is_waiting and self._is_repeated_to(name, alert):
                    yield name, alert.urgency
            elif all(row.status == SendStatus.FAILED for row in sent):
                continue  # no earlier message was delivered, so the receiver does not know the alert
            elif what is What.RESOLVED or self._keeps_state(name):
                yield name, Severity(min(row.urgency for row in sent))

    def _is_repeated_to(self, name: str, alert: Alert) -> bool:
        """Return whether the routes in force lead to a channel that was sent the alert, at whatever severity.

        A channel that these settings do not have may be in those of another process, which sends what waits for it.
        """
        if not self._settings.has_channel(name):
            return True
        return any(
            name in self._settings.channels_for(severity, alert.subject, alert.condition) for severity in Severity
        )

    def put_first(self, connection: Connection, alert: Alert, channels: Iterable[str], now: datetime) -> None:
        """Store the first message about an open alert for channels that have none yet."""
        for name in channels:
            message = self._schedule(What.OPENED, alert.urgency, now)
            values = {"alert_id": alert.id, "channel": name, "urgency": alert.urgency.value, **message}
            connection.execute(insert(alert_sends).values(values))

    def _keeps_state(self, name: str) -> bool:
        channel = self._settings.channels.get(name)
        return channel is not None and channel.kind in KEEPS_STATE

    # ── claiming ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def claim(self, name: str, *, now: datetime | None = None, alert_id: int | None = None) -> ClaimedMessage | None:
        """Claim the next message for a channel, so that no other process sends it; None if nothing is due."""
        channel, owner = self.channels[name], new_owner()
        begin_work(owner)

        def work(connection: Connection) -> ClaimedMessage | None:
            moment = self._begin(connection, now)
            group = self._next(connection, channel, moment, alert_id)
            if group is None:
                return None
            until = moment + timedelta(seconds=channel.timeout + 1 + GRACE)
            ids = [send.id for send in group.sends]
            connection.execute(update(alert_sends).where(in_ids(_sends.id, ids)).values(owner=owner, owner_until=until))
            return ClaimedMessage(owner, channel, group, tuple(_read_messages(connection, group.sends)))

        def is_ours(connection: Connection, claim: ClaimedMessage | None) -> bool:
            ours = select(func.count()).where(_sends.owner == owner)
            return claim is not None and connection.execute(ours).scalar_one() > 0

        claim: ClaimedMessage | None = None
        try:
            claim = self._database.write(work, done=is_ours)
            return claim
        finally:
            if claim is None:
                end_work(owner)

    def _begin(self, connection: Connection, now: datetime | None) -> datetime:
        """Lock the outbox, so that a claim that is being marked is not taken for abandoned; return the time."""
        self._database.dialect.lock(connection, CLAIMING)
        return self._database.dialect.now(connection) if now is None else now

    def _next(
        self, connection: Connection, channel: Channel, now: datetime, alert_id: int | None
    ) -> MessageBatch | None:
        of_channel = select(alert_sends, alerts.c.key).join(alerts, alerts.c.id == _sends.alert_id)
        is_waiting = (_sends.channel == channel.name) & (_sends.status == SendStatus.WAITING)
        waiting = connection.execute(of_channel.where(is_waiting)).all()
        taken = {row.id for row in waiting if _is_taken(row, now)}
        keys = {row.alert_id: row.key for row in waiting}
        silenced = self._silenced(connection, now)
        affected = _alerts_of(connection, waiting) if silenced else {}
        handled = {alert.id for alert in affected.values() if silenced.is_handled(alert)}
        unwanted = _unnecessary(connection, channel, waiting, taken, handled)
        sends = [
            _delay_until_silence_ends(_waiting(row, now), affected, silenced)
            for row in waiting
            if row.id not in unwanted
        ]
        unwanted |= overtaken(sends, now, taken=taken, keys=keys)
        if unwanted:
            connection.execute(delete(alert_sends).where(in_ids(_sends.id, unwanted)))
        free = sendable((send for send in sends if send.id not in unwanted), now, taken=taken, keys=keys)
        if alert_id is not None:
            free = [send for send in free if send.alert_id == alert_id]
        if not free:
            return None
        since = min(send.created_at for send in free) - timedelta(seconds=self._settings.storm_window)
        of_alerts = (_sends.channel == channel.name) & (_sends.digest == 0) & (_sends.sent_at > since)
        sent = [
            *connection.execute(select(_sends.sent_at).where(of_alerts)).scalars(),
            *(now for row in waiting if row.id in taken and not row.digest),
        ]
        batches = groups(free, now=now, sent=sent, settings=self._settings, kind=channel.kind, keys=keys)
        return batches[0] if batches else None

    def due(self, *, now: datetime | None = None, alert_id: int | None = None) -> DueMessages:
        """Return when messages can be sent, for the channels of these settings."""

        def work(connection: Connection) -> DueMessages:
            moment = self._database.dialect.now(connection) if now is None else now
            waiting = select(alert_sends).where(
                _sends.status == SendStatus.WAITING, _sends.channel.in_(list(self.channels))
            )
            if alert_id is not None:
                waiting = waiting.where(_sends.alert_id == alert_id)
            rows = connection.execute(waiting).all()
            silenced = self._silenced(connection, moment)
            affected = _alerts_of(connection, rows) if silenced else {}
            channels: dict[str, datetime] = {}
            for row in rows:
                due_at = _delay_until_silence_ends(_waiting(row, moment), affected, silenced).due_at
                at = max(due_at, row.owner_until) if _is_taken(row, moment) else due_at
                channels[row.channel] = min(at, channels.get(row.channel, at))
            return DueMessages(moment, channels)

        return self._database.read(work)

    def _silenced(self, connection: Connection, now: datetime) -> Silenced:
        return read_silenced(connection, self._settings.maintenance, now)

    # ── marking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def sent(self, claim: ClaimedMessage, *, now: datetime | None = None) -> None:
        """Mark a claimed message as delivered."""

        def work(connection: Connection) -> None:
            moment = self._begin(connection, now)
            # The owner is kept, because the messages of a window are counted by it.
            connection.execute(
                _is_claimed_by(claim).values(
                    status=SendStatus.SENT.value,
                    sent_at=moment,
                    attempts=_sends.attempts + 1,
                    error=None,
                    owner_until=None,
                )
            )
            # The channel takes messages again: messages that wait for a retry are sent in their order, not after the
            # backoff that was drawn while the channel was down.
            waits = (_sends.channel == claim.channel.name) & (_sends.status == SendStatus.WAITING.value)
            delayed = waits & (_sends.attempts > 0) & (_sends.due_at > moment)
            connection.execute(update(alert_sends).where(delayed).values(due_at=moment))

        self._database.write(work)
        end_work(claim.owner)

    def failed(
        self,
        claim: ClaimedMessage,
        reason: str,
        *,
        permanent: bool = False,
        retry_after: float | None = None,
        now: datetime | None = None,
    ) -> None:
        """Mark an attempt as failed: schedule the next attempt, or stop after a permanent error or the deadline."""
        error = safe_line(reason, _REASON) or "it failed without a reason"

        def work(connection: Connection) -> None:
            moment = self._begin(connection, now)
            wait = self._wait(max(send.attempts for send in claim.group.sends) + 1, retry_after)
            silenced = self._silenced(connection, moment)
            for send, (_, alert) in zip(claim.group.sends, claim.messages, strict=True):
                ends = self._ends(send, silenced.ended_at(alert))
                is_final = permanent or send.what is What.TEST or moment >= ends
                values = {
                    "status": (SendStatus.FAILED if is_final else SendStatus.WAITING).value,
                    "due_at": send.due_at if is_final else min(moment + wait, ends),
                    "attempts": _sends.attempts + 1,
                    "error": error,
                    "owner": None,
                    "owner_until": None,
                }
                connection.execute(_is_claimed_by(claim).where(_sends.id == send.id).values(values))

        self._database.write(work)
        end_work(claim.owner)

    def _wait(self, attempts: int, retry_after: float | None) -> timedelta:
        drawn = backoff.wait(
            attempts, base=BASE, multiplier=2.0, cap=CAP, jitter="full", previous=None, random=self._chance
        )
        # A channel may ask for more than a century.
        asked = min(retry_after or 0.0, max(MAX_AGE.values()).total_seconds())
        return timedelta(seconds=max(drawn, asked))

    def _ends(self, send: Send, silence_ended_at: datetime | None) -> datetime:
        quiet = self._settings.quiet.until(send.created_at) if send.digest and self._settings.quiet else None
        return max(quiet or send.created_at, silence_ended_at or send.created_at) + MAX_AGE[send.urgency]


def _is_taken(row: Row[Any], now: datetime) -> bool:
    """Return whether a live process has claimed the message."""
    return (
        row.owner is not None and row.owner_until is not None and row.owner_until > now and not is_owner_dead(row.owner)
    )


def _is_claimed_by(claim: ClaimedMessage) -> Any:
    return update(alert_sends).where(_sends.owner == claim.owner, _sends.status == SendStatus.WAITING.value)


def _waiting(row: Row[Any], now: datetime) -> Send:
    """Return a message that waits; one that was stored while the clock was ahead is due now."""
    send = send_of(row)
    if send.created_at <= now or send.digest:
        return send
    return replace(send, created_at=now, due_at=now)


def _delay_until_silence_ends(send: Send, affected: Mapping[int, Alert], silenced: Silenced) -> Send:
    """Return the message, due when the silence of its alert ends.

    An alert that was handled is not delayed: its messages are dropped when they are claimed.
    """
    alert = affected.get(send.alert_id)
    if alert is None or send.what not in SUPPRESSED or silenced.is_handled(alert):
        return send
    return replace(send, due_at=max(send.due_at, silenced.until(alert) or send.due_at))


def _unnecessary(
    connection: Connection,
    channel: Channel,
    waiting: Sequence[Row[Any]],
    taken: Collection[int],
    handled: Collection[int],
) -> set[int]:
    """Return the ids of messages that a silence has made unnecessary: their alerts were handled before it ended.

    A channel that knows of the alert still receives that it was acknowledged or resolved.
    """
    if not handled:
        return set()
    sent = (_sends.channel == channel.name) & (_sends.status == SendStatus.SENT.value)
    known = set(connection.execute(select(_sends.alert_id).where(sent, in_ids(_sends.alert_id, handled))).scalars())
    # An attempt that failed may have opened an incident, which nothing else would close.
    tried = channel.kind in KEEPS_STATE
    known |= {row.alert_id for row in waiting if row.id in taken or row.what == What.TEST or (tried and row.attempts)}
    return {
        row.id
        for row in waiting
        if row.alert_id in handled and row.id not in taken and (row.alert_id not in known or row.what in SUPPRESSED)
    }


def _alerts_of(connection: Connection, sends: Iterable[Send | Row[Any]]) -> dict[int, Alert]:
    ids = {send.alert_id for send in sends}
    return {row.id: alert_of(row) for row in connection.execute(select(alerts).where(in_ids(alerts.c.id, ids)))}


def _read_messages(connection: Connection, sends: Collection[Send]) -> Iterator[tuple[What, Alert]]:
    by_id = _alerts_of(connection, sends)
    for send in sends:
        # The severity at the time of the message is sent, because it may have dropped since without a message.
        yield send.what, replace(by_id[send.alert_id], urgency=send.urgency)
