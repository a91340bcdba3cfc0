"""Batching of messages: a storm of alerts becomes a summary, and messages from quiet hours become a digest.

Pure. `storm` of the messages to one channel within `storm_window` are sent one by one, the most severe first. What is
due together with them is one summary. Messages that come later, while the window is full, wait until it has room, and
are one summary then, which fills the window again: a storm that lasts is one summary in each window.

P1 never waits: a new alert of this severity, or one that has escalated to it, is sent at once.

PagerDuty never gets summaries: it keeps an incident for each alert, which only a message with the key of the alert can
open or close, and it has its own grouping. A test is always sent by itself and at once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from redrive.alerts.config.settings import AlertSettings, ChannelKind
from redrive.model.alerts import Send, Severity, What

GroupKind = Literal["one", "digest", "summary"]
KEEPS_STATE: frozenset[ChannelKind] = frozenset({"pagerduty"})
"""Channels that track alerts by key, so that each alert needs a message of its own."""
_URGENT = (What.OPENED, What.ESCALATED)
"""Messages that are sent at once if the alert is P1."""
_OWN: Mapping[int, str] = {}
"""No keys: each alert counts as having its own key."""


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Messages that are sent together."""

    kind: GroupKind
    sends: tuple[Send, ...]


def sendable(
    waiting: Iterable[Send], now: datetime, *, taken: Collection[int] = (), keys: Mapping[int, str] = _OWN
) -> list[Send]:
    """Return the messages to one channel that can be sent now: those that are due and not claimed.

    A receiver identifies an alert by its key, so messages of one key keep their order: each waits for earlier ones.

    Args:
        waiting: All messages that wait for the channel.
        now: The current time.
        taken: The ids of messages that are claimed.
        keys: The keys of alerts, by the ids of alerts.
    """
    free: list[Send] = []
    blocked: set[str] = set()
    for send in sorted(waiting, key=lambda send: send.id):
        key = _key(send, keys)
        if send.due_at > now or send.id in taken:
            blocked.add(key)
        elif key not in blocked:
            free.append(send)
    return free


def overtaken(
    waiting: Iterable[Send], now: datetime, *, taken: Collection[int] = (), keys: Mapping[int, str] = _OWN
) -> set[int]:
    """Return the ids of messages that must not be sent any more, because a newer alert of the same key is due first.

    Their alert is over and they cannot be sent yet. Sent later, they would close the newer alert; if the newer alert
    waited for them, it would be delayed.
    """
    by_alert: defaultdict[int, list[Send]] = defaultdict(list)
    for send in sorted(waiting, key=lambda send: send.id):
        by_alert[send.alert_id].append(send)
    newer: set[str] = set()
    outdated: set[int] = set()
    for _, sends in sorted(by_alert.items(), reverse=True):
        key = _key(sends[0], keys)
        if sends[0].due_at <= now:
            newer.add(key)
        elif key in newer and not any(send.id in taken for send in sends):
            outdated.update(send.id for send in sends)
    return outdated


def _key(send: Send, keys: Mapping[int, str]) -> str:
    return keys.get(send.alert_id, str(send.alert_id))


def groups(
    due: Sequence[Send],
    *,
    now: datetime,
    sent: Sequence[datetime],
    settings: AlertSettings,
    kind: ChannelKind,
    keys: Mapping[int, str] = _OWN,
) -> list[MessageBatch]:
    """Return the messages to one channel, in the order in which they are sent.

    Args:
        due: The messages that can be sent now.
        now: The current time.
        sent: When messages about alerts were sent, or now for those that are being sent; from `storm_window` before the
            creation of the first of `due` on.
        settings: The alert settings.
        kind: The kind of the channel.
        keys: The keys of alerts, by the ids of alerts.
    """
    ordered = _in_order(due, keys)
    if kind in KEEPS_STATE:
        return [MessageBatch("one", (send,)) for send in ordered]
    tests = [send for send in ordered if send.what is What.TEST]
    # Messages of a key with a message from quiet hours are part of the digest, because they must not arrive before it.
    waited = {_key(send, keys) for send in ordered if send.digest}
    digest = [send for send in ordered if _key(send, keys) in waited]
    rest = [send for send in ordered if _key(send, keys) not in waited and send.what is not What.TEST]
    urgent = _of_keys(rest, [send for send in rest if send.urgency is Severity.P1 and send.what in _URGENT], keys)
    others = _without(rest, urgent)
    window = timedelta(seconds=settings.storm_window)
    limit = max(1, settings.storm)  # with 0 there are summaries only, one in each window
    # The window was full when they came.
    times = sorted(sent)
    late = [
        send
        for send in others
        if bisect_left(times, send.created_at) - bisect_right(times, send.created_at - window) >= limit
    ]
    waiting = _of_keys(others, late, keys)
    counted = sum(now - window < at <= now for at in sent)  # none that were sent while the clock was ahead
    free = max(0, settings.storm - counted)
    if waiting and counted >= limit:
        waiting, others = [], _without(others, waiting)
    # Messages that come with some that had to wait are part of the same storm.
    alone = [*urgent[:free], *([] if waiting else others[: max(0, free - len(urgent))])]
    in_summary = _without(rest, alone)
    batches = [MessageBatch("one", (send,)) for send in (*tests, *_without(rest, in_summary))]
    # A new P1 is not hidden in the summary of the others.
    beyond = [_without(sends, alone) for sends in (urgent, others)]
    batches += [_together("summary", sends) for sends in beyond if sends]
    if digest:
        batches.append(_together("digest", digest))
    return batches


def _of_keys(sends: Sequence[Send], some: Iterable[Send], keys: Mapping[int, str]) -> list[Send]:
    """Return the messages that have a key of some of them: messages of one key keep their order."""
    wanted = {_key(send, keys) for send in some}
    return [send for send in sends if _key(send, keys) in wanted]


def _without(sends: Sequence[Send], some: Iterable[Send]) -> list[Send]:
    excluded = {send.id for send in some}
    return [send for send in sends if send.id not in excluded]


def _together(kind: GroupKind, sends: Sequence[Send]) -> MessageBatch:
    return MessageBatch(kind if len(sends) > 1 else "one", tuple(sends))


def _in_order(due: Sequence[Send], keys: Mapping[int, str]) -> list[Send]:
    """Return the messages in the order of sending.

    Open alerts come first, because after an outage of the channel resolved ones can wait. Then come messages with few
    attempts, so that one message which the channel rejects does not delay the others; then the most severe, then the
    oldest. Messages of one key keep their order, because the last one decides whether the alert counts as resolved.
    """
    by_id = sorted(due, key=lambda send: send.id)
    over = {_key(send, keys): send.what is What.RESOLVED for send in by_id}
    place: Counter[str] = Counter()
    tried: defaultdict[str, int] = defaultdict(int)
    ranks: dict[int, tuple[bool, int, int, str, int]] = {}
    for send in by_id:
        key = _key(send, keys)
        tried[key] = max(tried[key], send.attempts)
        ranks[send.id] = (over[key], place[key], tried[key], send.urgency.value, send.id)
        place[key] += 1
    return sorted(due, key=lambda send: ranks[send.id])
