"""The error of a run that is not complete, with the reason and the next step. Raised by the executor."""

from __future__ import annotations

from redrive.errors import FlowStopped
from redrive.model.calls import Kind
from redrive.model.tasks import FlowReport, FlowStatus, State
from redrive.store.database import Database
from redrive.store.repositories.tasks import causes_of
from redrive.tasks.executor.decide import RECOVERS
from redrive.tasks.operator.actions import CANCELLED


def stopped_error(report: FlowReport, database: Database, stop_reason: str | None) -> FlowStopped:
    """Return the error of a run that did not complete."""
    next_step = f"see `redrive tasks ls --run {report.run_id}`"
    if report.status in (FlowStatus.STOPPED, FlowStatus.RUNNING, FlowStatus.ABANDONED):
        reason = stop_reason or report.reason
        cancelled = report.status is FlowStatus.ABANDONED and (report.reason or "").startswith(CANCELLED)
        what_follows = {
            FlowStatus.RUNNING: "another executor goes on with it",
            FlowStatus.ABANDONED: "running it again begins a new run" if cancelled else "a new run has taken its place",
        }
        return FlowStopped(
            f"flow {report.flow!r} stopped: {reason}; "
            + what_follows.get(report.status, "running it again goes on from there"),
            kind=Kind.PERMANENT if cancelled else Kind.TRANSIENT,
            report=report,
        )
    blocked = ", and what comes after is held" if report.counts.get(State.PENDING) else ""
    return FlowStopped(
        f"flow {report.flow!r} has {report.reason}{blocked}; {next_step}",
        kind=_kind_of(report, database),
        report=report,
    )


def _kind_of(report: FlowReport, database: Database) -> Kind:
    """Return TRANSIENT if resuming the run would retry something, even if other tasks are blocked."""

    def kinds_of(*states: State) -> set[Kind]:
        causes = database.read(lambda connection: causes_of(connection, report.run_id, states))
        return {Kind(cause.kind or Kind.PERMANENT) for cause in causes}

    if kinds_of(State.FAILED) & RECOVERS:
        return Kind.TRANSIENT
    kinds = kinds_of(State.FAILED, State.DEAD_LETTER)
    return kinds.pop() if len(kinds) == 1 else Kind.PERMANENT
