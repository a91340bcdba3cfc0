"""How the processes that use a service share the state of its circuit, and what each makes of the others' reports.

Every process reports its own evidence only: it *opened* the circuit, or its own probes *closed* it. It never passes on
what others reported. Reports hold spans, not times, since the clocks of machines differ.

An opening **stands** until its time to retry is over, or until a process of the same machine has closed the circuit
since. It is one opening however often its probes fail, so that one process with a problem of its own cannot reopen the
circuits of others again and again.

A process whose circuit is closed believes openings that stand and began after its own circuit last closed: one, if it
is of the same machine; else as many machines as its quorum requires, so that one bad machine does not stop all. A
process whose circuit is open believes any closing that is younger than its own opening: it probes soon. A reset by an
operator is obeyed by all, and voids all earlier reports.
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
    """What a process, or an operator, reports of a service."""

    OPEN = "open"
    CLOSED = "closed"
    RESET = "reset"
    """By an operator: close the circuit everywhere."""
    RESET_KEYS = "reset_keys"
    """By an operator: what was recorded of exhausted keys is out of date."""


@dataclass(frozen=True, slots=True)
class BreakerReport:
    """What one process reports of one service."""

    service: str
    host: str
    process: str
    kind: ReportKind
    ago: float
    """Seconds since it opened or closed."""
    retry_in: float = 0.0
    """Seconds until it probes, for an opening."""
    quorum: int = 1
    """The quorum of the process that reports."""

    @property
    def in_force(self) -> bool:
        """Return whether this is an opening whose time to retry is still to come."""
        return self.kind is ReportKind.OPEN and self.retry_in > 0


@dataclass(frozen=True, slots=True)
class DrainedKey:
    """A key of a service that is exhausted until a time of the wall clock."""

    service: str
    digest: str
    """Distinguishes the key from others; the key cannot be recovered from it."""
    key_id: str
    """What operators see: its last four characters."""
    until: datetime


class Reports(NamedTuple):
    """All reports on some services."""

    reports: Sequence[BreakerReport]
    drained: Sequence[DrainedKey]


def reset_ago(reports: Iterable[BreakerReport], kind: ReportKind = ReportKind.RESET) -> float:
    """Return the seconds since an operator last reset the service; infinite where none did."""
    return min((report.ago for report in reports if report.kind is kind), default=math.inf)


def openings(reports: Collection[BreakerReport]) -> list[BreakerReport]:
    """Return the openings after which no process of the same machine has closed the circuit, in force or not."""
    void = reset_ago(reports)
    closed_ago: dict[str, float] = {}
    for report in reports:
        if report.kind is ReportKind.CLOSED:
            closed_ago[report.host] = min(report.ago, closed_ago.get(report.host, math.inf))
    return [
        report
        for report in reports
        if report.kind is ReportKind.OPEN and report.ago < min(void, closed_ago.get(report.host, math.inf))
    ]


def apply_reports(
    machine: CircuitMachine, reports: Collection[BreakerReport], *, node: str, quorum: int, now: float
) -> None:
    """Update the machine of a process on `node` by the reports of other processes."""
    if machine.state is CircuitState.CLOSED:
        retry_in = _required_open_seconds(reports, node=node, quorum=quorum, within=now - machine.since)
        if retry_in > 0:
            machine.apply_remote_open(now, retry_in)
    elif reset_ago(reports) < now - machine.since:
        machine.apply_remote_reset(now)
    elif any(report.kind is ReportKind.CLOSED and report.ago < now - machine.opened_at for report in reports):
        machine.apply_remote_close(now)


def _required_open_seconds(reports: Collection[BreakerReport], *, node: str, quorum: int, within: float) -> float:
    """Return for how many seconds the reports of others require the circuit to be open; 0 for not at all."""
    standing = [report for report in openings(reports) if report.in_force and report.ago < within]
    if any(report.host == node for report in standing) or len({report.host for report in standing}) >= quorum:
        return max(report.retry_in for report in standing)
    return 0.0


def is_news(report: BreakerReport, reports: Collection[BreakerReport]) -> bool:
    """Return whether to publish `report`, given the reports so far: a thousand processes need not report the same.

    It is published if it corrects what this process reported before, or if its machine does not report it already.
    """
    if report.kind is ReportKind.OPEN and not report.in_force:
        return False
    if any((other.host, other.process) == (report.host, report.process) for other in reports):
        return True
    standing = openings(reports)
    if report.kind is ReportKind.OPEN:
        return not any(other.host == report.host and other.in_force for other in standing)
    youngest = min((other.ago for other in standing), default=0.0)
    closed = [other.ago for other in reports if other.kind is ReportKind.CLOSED and other.host == report.host]
    return report.ago < youngest <= min(closed, default=math.inf)
