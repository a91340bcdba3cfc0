"""Batching of messages: a storm of alerts becomes a summary, and messages from quiet hours become a digest.

Pure. Of what is due to one channel, up to `storm` messages within `storm_window` go out one by one, the most urgent
first; whatever comes beyond is one summary, and what comes after that waits until the window has moved on. So a channel
sees at most `storm` + 1 messages within a window, digests not counted, however much there is to tell.

PagerDuty is never told in sums: it keeps an incident for each alert, which only a message of its own with the alert's
key can open or close; it has its own way of grouping for people. A test is always sent as it is, and at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from redrive.alerts.config.settings import AlertSettings, ChannelKind
from redrive.model.alerts import Send, What

GroupKind = Literal["one", "digest", "summary"]
KEEPS_STATE: frozenset[ChannelKind] = frozenset({"pagerduty"})
"""Channels that track alerts by key, so that each alert needs a message of its own."""
_OWN: Mapping[int, str] = {}
"""Every alert has a key of its own."""


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Messages that are sent together."""

    kind: GroupKind
    sends: tuple[Send, ...]


def sendable(
    waiting: Iterable[Send], now: datetime, *, taken: Collection[int] = (), keys: Mapping[int, str] = _OWN
) -> list[Send]:
    """Return what may be sent now, of all that waits for one channel: what is due, claimed by nobody, and not behind
    something of the same key that is neither. A receiver knows an alert by its key: its messages keep their order.

    taken  messages that are claimed, by id
    keys   the keys of alerts, by the ids of alerts
    """
    free: list[Send] = []
    held: set[str] = set()
    for send in sorted(waiting, key=lambda send: send.id):
        key = _key(send, keys)
        if send.due_at > now or send.id in taken:
            held.add(key)
        elif key not in held:
            free.append(send)
    return free


def overtaken(
    waiting: Iterable[Send], now: datetime, *, taken: Collection[int] = (), keys: Mapping[int, str] = _OWN
) -> set[int]:
    """Return the ids of messages that must not be sent any more: what they tell of is over, cannot be sent yet, and a
    newer alert of the same key can. Sent later, they would close the newer one; waited for, they would hold it up."""
    by_alert: defaultdict[int, list[Send]] = defaultdict(list)
    for send in sorted(waiting, key=lambda send: send.id):
        by_alert[send.alert_id].append(send)
    newer: set[str] = set()
    found: set[int] = set()
    for _, sends in sorted(by_alert.items(), reverse=True):
        key = _key(sends[0], keys)
        if sends[0].due_at <= now:
            newer.add(key)
        elif key in newer and not any(send.id in taken for send in sends):
            found.update(send.id for send in sends)
    return found


def _key(send: Send, keys: Mapping[int, str]) -> str:
    return keys.get(send.alert_id, str(send.alert_id))


def groups(
    due: Sequence[Send],
    *,
    sent: int,
    settings: AlertSettings,
    kind: ChannelKind,
    keys: Mapping[int, str] = _OWN,
) -> list[MessageBatch]:
    """Return the messages to one channel, in the order in which they are sent.

    due   what may be sent now
    sent  the messages that went out, or are on their way, within the last `storm_window`
    keys  the keys of alerts, by the ids of alerts
    """
    ordered = _in_order(due, keys)
    if kind in KEEPS_STATE:
        return [MessageBatch("one", (send,)) for send in ordered]
    tests = [send for send in ordered if send.what is What.TEST]
    # What came after something that waited for the morning comes with it: it must not come before.
    waited = {_key(send, keys) for send in ordered if send.digest}
    digest = [send for send in ordered if _key(send, keys) in waited]
    rest = [send for send in ordered if _key(send, keys) not in waited and send.what is not What.TEST]
    alone = max(0, settings.storm - sent)
    batches = [MessageBatch("one", (send,)) for send in (*tests, *rest[:alone])]
    beyond = rest[alone:]
    if beyond and sent <= settings.storm:
        batches.append(_together("summary", beyond))
    if digest:
        batches.append(_together("digest", digest))
    return batches


def _together(kind: GroupKind, sends: Sequence[Send]) -> MessageBatch:
    return MessageBatch(kind if len(sends) > 1 else "one", tuple(sends))


def _in_order(due: Sequence[Send], keys: Mapping[int, str]) -> list[Send]:
    """What is open goes first: after an outage of the channel, what is over has time. Then what was tried least, that
    one message which the channel refuses does not hold up all others; then the most urgent, then the oldest. Messages
    of one key stay in their order: who hears last that it is over takes it to be over."""
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
