"""Which letters a target may be sent, or a decision taken about: its own pipeline's, and none of a flow's tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import ColumnElement, Connection, select

from redrive.dlq.filters import Filter
from redrive.dlq.replay.target import Target
from redrive.errors import LetterError
from redrive.model.letters import OPEN, ErrorType, Status
from redrive.model.tasks import FlowStatus
from redrive.store.schema import letters, task_runs

_MOST_NAMED = 5
_ENDED = (FlowStatus.COMPLETE, FlowStatus.ABANDONED)


def scoped(target: Target, chosen: Filter, *, any_pipeline: bool) -> Filter:
    """Return the filter of the letters that the target may be sent.

    A pipeline takes its own letters. A function has no pipeline, so the caller must say which letters it is for.
    """
    if any_pipeline or chosen.pipeline is not None:
        return chosen
    if target.pipeline is not None:
        return chosen.but(pipeline=(target.pipeline,))
    if chosen == Filter(status=chosen.status):
        raise LetterError(
            "the target is a function, and a replay without a filter would send it the letters of every pipeline; "
            "pass pipeline= (--pipeline) or another filter, or any_pipeline=True (--any-pipeline)"
        )
    return chosen


def must_be_one_pipeline(by_pipeline: Mapping[str, int]) -> None:
    """Refuse to send the letters of several pipelines to one function that nobody said takes them all."""
    if len(by_pipeline) > 1:
        raise LetterError(
            f"the selected letters belong to {len(by_pipeline)} pipelines ({named(by_pipeline)}); pass pipeline= "
            "(--pipeline) for each one that the target takes, or any_pipeline=True (--any-pipeline). "
            "Nothing was changed"
        )


def must_be_its_own(target: Target, others: Mapping[str, int]) -> None:
    """Refuse letters that were named by id and belong to other pipelines than the target."""
    if others:
        raise LetterError(
            f"{sum(others.values()):,} of the named letters belong to other pipelines ({named(others)}), not to "
            f"{target.pipeline!r}; pass any_pipeline=True (--any-pipeline) if the target takes them. "
            "Nothing was changed"
        )


def must_be_records(connection: Connection, conditions: Sequence[ColumnElement[bool]]) -> None:
    """Refuse to replay dead tasks: a target would be sent their input, and the task itself would stay dead."""
    found = _task_of(connection, conditions)
    if found is not None:
        run, flow = found
        raise LetterError(
            f"among the selected letters are dead tasks of the flow {flow!r}, which a replay does not run; use "
            f"`redrive tasks retry --run {run}`, and select other letters by pipeline or error type. "
            "Nothing was changed"
        )


def must_not_hide_tasks(connection: Connection, chosen: Filter, action: str) -> None:
    """Refuse to decide about, or edit, the letters of tasks: the task itself would stay as it is.

    Letters of runs that have ended may be discarded: no task waits for a decision any more.

    Args:
        action: discard, escalate, reopen or edit.
    """
    conditions = [chosen.where()]
    if action == "reopen":
        conditions.append(letters.c.status.in_((Status.DISCARDED, Status.REPROCESSED)))
    else:
        starts = (Status.PENDING,) if action == "escalate" else OPEN
        conditions += [letters.c.status.in_(starts), task_runs.c.status.not_in(_ENDED)]
    found = _task_of(connection, conditions)
    if found is not None:
        run, flow = found
        uses = {
            "discard": f"`redrive tasks accept --run {run}`, or skip or fail instead of accept",
            "escalate": f"`redrive tasks ls --run {run}`, which lists the tasks that wait for a decision",
            "reopen": f"`redrive tasks reopen --run {run}`",
            "edit": f"`redrive tasks retry --run {run}`, after the fault is fixed",
        }
        raise LetterError(
            f"cannot {action}: among the selected letters are tasks of the flow {flow!r}, and a task itself "
            f"would not change. Use {uses[action]}, and select other letters by pipeline or error type. "
            "Nothing was changed"
        )


def _task_of(connection: Connection, conditions: Sequence[ColumnElement[bool]]) -> tuple[str, str] | None:
    """Return the run, by its short id, and the flow of a letter that matches and is that of a task."""
    found = (
        select(task_runs.c.run_id, task_runs.c.flow_name)
        .join_from(letters, task_runs, letters.c.run_id == task_runs.c.run_id)
        .where(letters.c.error_type == ErrorType.TASK, *conditions)
        .limit(1)
    )
    row = connection.execute(found).first()
    return None if row is None else (str(row.run_id)[:8], row.flow_name)


def named(by_pipeline: Mapping[str, int]) -> str:
    """Return pipelines with their number of letters, for a message."""
    most = sorted(by_pipeline.items(), key=lambda pair: (-pair[1], pair[0]))
    listed = ", ".join(f"{name}: {count:,}" for name, count in most[:_MOST_NAMED])
    return listed + (", …" if len(most) > _MOST_NAMED else "")
