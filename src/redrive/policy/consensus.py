"""What the processes that use a service tell each other about its circuit, and what one of them makes of it.

Every process speaks for itself, by its own evidence: it *opened*, or its own probes *closed* the circuit. It passes on
nothing that it has only heard. Spans, not times, are what is told and compared: clocks of different machines differ.

An opening **stands** until its time to retry is over, or until a process of the same machine has closed the circuit
since. It is one opening however often its probes fail: who has found the service well is not told otherwise again and
again by one process that has a trouble of its own.

A process whose circuit is closed believes openings that stand and began after its own circuit last closed: one, if it
is of the same machine; else as many machines as its quorum says, so that one bad machine does not stop all. A process
whose circuit is open believes a closing that is younger than its own opening, whoever says it: it probes soon. A reset
by hand is obeyed by all, and what was said before it is void.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from redrive.policy.breaker import CircuitMachine, CircuitState


class ReportKind(StrEnum):
    """What can be said of a service."""

    OPEN = "open"
    CLOSED = "closed"
    RESET = "reset"
    """By a person: close the circuit everywhere."""
    RESET_KEYS = "reset_keys"
    """By a person: what was known of used-up keys is out of date."""


@dataclass(frozen=True, slots=True)
class BreakerReport:
    """What one process says of one service."""

    service: str
    host: str
    process: str
    saying: ReportKind
    ago: float
    """Seconds since it opened or closed."""
    retry_in: float = 0.0
    """Seconds until it probes, where it says open."""
    quorum: int = 1
    """The speaker's own."""

    @property
    def in_force(self) -> bool:
        """Whether this is an opening whose time to retry is still to come."""
        return self.saying is ReportKind.OPEN and self.retry_in > 0


@dataclass(frozen=True, slots=True)
class DrainedKey:
    """A key of a service that is used up until a time of the wall clock."""

    service: str
    digest: str
    """Tells the key from others; it cannot be got back from it."""
    key_id: str
    """What people see: its last four characters."""
    until: datetime


class Reports(NamedTuple):
    """All that is said of some services."""

    words: Sequence[BreakerReport]
    drained: Sequence[DrainedKey]


def reset_ago(words: Iterable[BreakerReport], saying: ReportKind = ReportKind.RESET) -> float:
    """Seconds since a person last reset the service; infinite where nobody has."""
    return min((word.ago for word in words if word.saying is saying), default=math.inf)


def openings(words: Collection[BreakerReport]) -> list[BreakerReport]:
    """The openings after which no process of the same machine has closed the circuit, in force or not."""
    void = reset_ago(words)
    closed_ago: dict[str, float] = {}
    for word in words:
        if word.saying is ReportKind.CLOSED:
            closed_ago[word.host] = min(word.ago, closed_ago.get(word.host, math.inf))
    return [
        word
        for word in words
        if word.saying is ReportKind.OPEN and word.ago < min(void, closed_ago.get(word.host, math.inf))
    ]


def hear(machine: CircuitMachine, words: Collection[BreakerReport], *, node: str, quorum: int, now: float) -> None:
    """Move the machine of a process on `node` by what the others say; its own word is not among `words`."""
    if machine.state is CircuitState.CLOSED:
        retry_in = _believed(words, node=node, quorum=quorum, within=now - machine.since)
        if retry_in > 0:
            machine.hear_open(now, retry_in)
    elif reset_ago(words) < now - machine.since:
        machine.hear_reset(now)
    elif any(word.saying is ReportKind.CLOSED and word.ago < now - machine.opened_at for word in words):
        machine.hear_closed(now)


def _believed(words: Collection[BreakerReport], *, node: str, quorum: int, within: float) -> float:
    """For how many seconds the circuit is to be open by what others say; 0 for not at all."""
    said = [word for word in openings(words) if word.in_force and word.ago < within]
    if any(word.host == node for word in said) or len({word.host for word in said}) >= quorum:
        return max(word.retry_in for word in said)
    return 0.0


def is_news(word: BreakerReport, words: Collection[BreakerReport]) -> bool:
    """Whether to say `word` at all, given what was said: a thousand processes need not all say the same.

    It is news if it corrects what this process said before; or if its machine does not say so already.
    """
    if word.saying is ReportKind.OPEN and not word.in_force:
        return False
    if any((said.host, said.process) == (word.host, word.process) for said in words):
        return True
    standing = openings(words)
    if word.saying is ReportKind.OPEN:
        return not any(said.host == word.host and said.in_force for said in standing)
    youngest = min((said.ago for said in standing), default=0.0)
    closed = [said.ago for said in words if said.saying is ReportKind.CLOSED and said.host == word.host]
    return word.ago < youngest <= min(closed, default=math.inf)
