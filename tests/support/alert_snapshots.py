"""Healthy runs and levels as input of the rules; a test changes the parts that it judges."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import redrive
from redrive.alerts.config.settings import AlertSettings, Thresholds
from redrive.alerts.facts.snapshot import (
    Judgement,
    LevelSnapshot,
    Minute,
    PastRun,
    RunSnapshot,
    ServiceSnapshot,
    Window,
)
from redrive.alerts.rules import of_levels, of_run
from redrive.model.alerts import Finding, Subject

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
RUN = UUID("11111111-2222-4333-8444-555555555555")
SECOND, MINUTE, HOUR, DAY = (timedelta(**{unit: 1}) for unit in ("seconds", "minutes", "hours", "days"))


def with_thresholds(**thresholds: Any) -> AlertSettings:
    """The settings as they are by default, but for these thresholds."""
    return AlertSettings(thresholds=Thresholds(**thresholds))


def a_run(status: str = "complete", **told: Any) -> RunSnapshot:
    """A pipeline's run of ten minutes that ended just now."""
    known: dict[str, Any] = {
        "subject": Subject(kind="pipeline", name="vendor"),
        "run_id": RUN,
        "started_at": NOW - 10 * MINUTE,
        "ended_at": None if status == "running" else NOW,
        "seconds": 600.0,
        "read": 180_000,
        "written": 180_000,
        "target": "silver.vendor",
        "checkpoint": '{"line": 180001}',
    }
    return RunSnapshot(status=status, **{**known, **told})


def a_flow(status: str = "complete", **told: Any) -> RunSnapshot:
    """A flow's run."""
    known: dict[str, Any] = {"subject": Subject(kind="flow", name="settlement"), "read": 0, "written": 0}
    return a_run(status, **{**known, "target": None, "checkpoint": None, **told})


def rejecting(rejected: int, read: int = 180_000, status: str | None = None, **told: Any) -> RunSnapshot:
    """A run of which so many rows were rejected, as the gate that ships judges it."""
    tier = redrive.Gate().judge(rejected, read)
    how = status or ("aborted" if tier == "abort" else "complete")
    return a_run(how, read=read, written=read - rejected, rejected=rejected, tier=str(tier), **told)


def past(*seconds: float, status: str = "complete", rejected: int = 0) -> tuple[PastRun, ...]:
    """Runs of the days before, the newest first."""
    return tuple(
        PastRun(status=status, started_at=NOW - n * DAY, ended_at=NOW - n * DAY, seconds=took, rejected=rejected)
        for n, took in enumerate(seconds, 1)
    )


def rejected_before(*counts: int, status: str = "complete") -> tuple[PastRun, ...]:
    """Runs that rejected so many rows, the newest first."""
    return tuple(past(60.0, status=status, rejected=count)[0] for count in counts)


def read_before(*counts: int, status: str = "complete") -> tuple[PastRun, ...]:
    """Return runs that read this many rows, the newest first."""
    return tuple(replace(past(600.0, status=status)[0], read=count) for count in counts)


def a_service(**told: Any) -> ServiceSnapshot:
    """A service that did nothing, but for what is told: sums of its last hour, and with `_before` of an earlier day."""
    names = ("calls", "failed", "successes", "retries")
    now = {name: told.pop(name) for name in names if name in told}
    before = {name: told.pop(f"{name}_before") for name in names if f"{name}_before" in told}
    if now:
        told["quarters"] = (Window(**now),)
    if before:
        told["usual"] = (Window(**before),)
    return ServiceSnapshot(**{"name": "shipfast", **told})


def minutes(*told: tuple[int, int, int]) -> tuple[Minute, ...]:
    """(minutes ago, attempts, faults), a minute ago being the one that has just ended."""
    return tuple(Minute(at=NOW - ago * MINUTE, attempts=attempts, faults=faults) for ago, attempts, faults in told)


def levels(**told: Any) -> LevelSnapshot:
    """Everything that is a level, and nothing of it worth a word."""
    return LevelSnapshot(now=told.pop("now", NOW), **told)


def judged(run: RunSnapshot, settings: AlertSettings | None = None, now: datetime = NOW) -> Judgement:
    """What the rules say of a run."""
    return of_run(run, settings or AlertSettings(), now=now)


def looked(snapshot: LevelSnapshot, settings: AlertSettings | None = None) -> Judgement:
    """What the rules say of the levels."""
    return of_levels(snapshot, settings or AlertSettings())


def conditions(judgement: Judgement) -> list[str]:
    """The names of what was found."""
    return [finding.condition for finding in judgement.findings]


def the_one(judgement: Judgement) -> Finding:
    """What was found, which is one thing."""
    (finding,) = judgement.findings
    return finding
