"""What is said in one message: a storm is summed up, what waited for the morning is one digest.

Pure. Of what is due to one channel, up to `storm` messages within `storm_window` go out one by one, the most urgent
first; whatever comes beyond is one summary, and what comes after that waits until the window has moved on. So a channel
sees at most `storm` + 1 messages within a window, digests not counted, however much there is to tell.

PagerDuty is never told in sums: it keeps an incident for each alert, which only a message of its own with the alert's
key can open or close; it has its own way of grouping for people. A test is always sent as it is, and at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from redrive.alerts.settings import AlertSettings, ChannelKind
from redrive.notices import Send, What

GroupKind = Literal["one", "digest", "summary"]
KEEPS_STATE: frozenset[ChannelKind] = frozenset({"pagerduty"})
"""Channels that know an alert by its key, and have to be told of each."""


@dataclass(frozen=True, slots=True)
class Group:
    """What makes one message."""

    kind: GroupKind
    sends: tuple[Send, ...]


def sendable(waiting: Iterable[Send], now: datetime, *, taken: Collection[int] = ()) -> list[Send]:
    """What may be sent now, of all that waits for one channel: what is due, in nobody's hand, and not behind something
    of the same alert that is neither. So nobody hears that an alert is over before he has heard of it."""
    free: list[Send] = []
    held: set[int] = set()
    for send in sorted(waiting, key=lambda send: send.id):
        if send.due_at > now or send.id in taken:
            held.add(send.alert_id)
        elif send.alert_id not in held:
            free.append(send)
    return free


def groups(due: Sequence[Send], *, sent: int, settings: AlertSettings, kind: ChannelKind) -> list[Group]:
    """The messages to one channel, in the order in which they are to go out.

    due   what may be sent now
    sent  the messages that went out, or are on their way, within the last `storm_window`
    """
    ordered = _in_order(due)
    if kind in KEEPS_STATE:
        return [Group("one", (send,)) for send in ordered]
    tests = [send for send in ordered if send.what is What.TEST]
    # What came after something that waited for the morning comes with it: it must not come before.
    waited = {send.alert_id for send in ordered if send.digest}
    digest = [send for send in ordered if send.alert_id in waited]
    rest = [send for send in ordered if send.alert_id not in waited and send.what is not What.TEST]
    alone = max(0, settings.storm - sent)
    found = [Group("one", (send,)) for send in (*tests, *rest[:alone])]
    beyond = rest[alone:]
    if beyond and sent <= settings.storm:
        found.append(_together("summary", beyond))
    if digest:
        found.append(_together("digest", digest))
    return found


def _together(kind: GroupKind, sends: Sequence[Send]) -> Group:
    return Group(kind if len(sends) > 1 else "one", tuple(sends))


def _in_order(due: Sequence[Send]) -> list[Send]:
    """What is open goes first: after an outage of the channel, what is over has time. Then what was tried least, that
    one message which the channel refuses does not hold up all others; then the most urgent, then the oldest. What is
    said of one alert stays in its order."""
    over = {send.alert_id for send in due if send.what is What.RESOLVED}
    place: Counter[int] = Counter()
    tried: defaultdict[int, int] = defaultdict(int)
    ranks: dict[int, tuple[bool, int, int, str, int]] = {}
    for send in sorted(due, key=lambda send: send.id):
        tried[send.alert_id] = max(tried[send.alert_id], send.attempts)
        ranks[send.id] = (
            send.alert_id in over,
            place[send.alert_id],
            tried[send.alert_id],
            send.urgency.value,
            send.id,
        )
        place[send.alert_id] += 1
    return sorted(due, key=lambda send: ranks[send.id])
