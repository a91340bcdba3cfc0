"""`store.tasks`: the runs of flows and their tasks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Row, case, func, select

from redrive.errors import FlowError
from redrive.model.tasks import FlowReport, FlowStatus, State
from redrive.store.database import Database, corrupt_row_as_store_error
from redrive.store.encoding import decode
from redrive.store.lease import is_owner_dead
from redrive.store.repositories.runs import is_run, of_run
from redrive.store.schema import task_attempts, task_changes, task_executors, task_runs, tasks
from redrive.store.sql import in_ids

T = TypeVar("T")

_NO_TEXT = r"\0\ud800-\udfff"  # characters that no database stores in a text
_NAMED = re.compile(rf"(?P<name>[^\[\]{_NO_TEXT}]+)(?:\[(?P<child>\d+)\])?")
_NEVER_A_RUN = re.compile(f"[{_NO_TEXT}]")
_NO_CHILD = 2**31 - 1  # beyond what the column holds


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A task and its state."""

    id: int
    run_id: UUID
    name: str
    """`settle`, or `settle[17]` for a child of a fan-out."""
    state: State
    attempts: int
    """Number of attempts that were made."""
    error: str | None
    kind: str | None
    cause: str | None
    """The fingerprint of the error."""
    due_at: datetime | None
    """When its next attempt may begin."""
    started_at: datetime | None
    ended_at: datetime | None
    seconds: float | None
    note: str | None
    children: int | None = None
    """Number of children of a fan-out, once it is known."""
    remaining: int = 0
    """Number of children that are running or have not started."""
    dead: int = 0
    """Number of children that are dead letters."""
    failed: int = 0
    """Number of children whose retries are exhausted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One attempt of a task."""

    attempt: int
    started_at: datetime
    ended_at: datetime | None
    ended: str | None
    """How it ended: `returned`, `raised`, `died`, `timed_out`, `stopped` or `lost`; None while it runs."""
    seconds: float | None
    kind: str | None
    error: str | None
    cause: str | None
    trace: str | None
    """The traceback."""
    output: str | None
    """The end of its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRow:
    """One change of a task's state."""

    at: datetime
    before: State
    """The former state."""
    after: State
    """The new state."""
    cause: str | None
    """The reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDetails:
    """A task with its attempts and state changes."""

    task: TaskRow
    input: Any
    """The input of a child of a fan-out; None for other tasks."""
    result: Any
    """What it returned."""
    result_file: str | None
    """The file of the result, if it is large."""
    attempts: tuple[AttemptRow, ...]
    """The attempts, oldest first."""
    changes: tuple[ChangeRow, ...]
    """The state changes, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCause:
    """Tasks of a run that failed for one reason."""

    cause: str
    task: str
    error: str
    kind: str | None
    count: int
    """Number of tasks that died or failed of it."""
    untried: int
    """Siblings among them that were not attempted."""
    sample: str
    """One of them that was attempted."""


class TaskRepository:
    """The runs of all flows of a store, and their tasks."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def _read(self, work: Callable[[Connection], T]) -> T:
        with corrupt_row_as_store_error("flows"):
            return self._database.read(work)

    def runs(
        self,
        *,
        flow: str | None = None,
        status: FlowStatus | str | None = None,
        since: datetime | None = None,
        limit: int = 20,
    ) -> list[FlowReport]:
        """Return runs, newest first."""
        wanted = select(task_runs.c.run_id).order_by(task_runs.c.started_at.desc(), task_runs.c.run_id).limit(limit)
        if flow is not None:
            wanted = wanted.where(task_runs.c.flow_name == flow)
        if status is not None:
            wanted = wanted.where(task_runs.c.status == str(FlowStatus(status)))
        if since is not None:
            wanted = wanted.where(task_runs.c.started_at >= since)
        return self._read(
            lambda connection: [report_of(connection, row.run_id) for row in connection.execute(wanted).all()]
        )

    def run(self, run: UUID | str) -> FlowReport:
        """Return one run, by its id or the beginning of it; for a flow's name, its newest run."""
        return self._read(lambda connection: report_of(connection, find_run(connection, run)))

    def find_by_prefix(self, run: UUID | str) -> list[FlowReport]:
        """Return up to two runs that match: an id or the beginning of one, or a flow's name for its newest run."""

        def work(connection: Connection) -> list[FlowReport]:
            return [report_of(connection, run_id) for run_id in _runs_like(connection, str(run))]

        return self._read(work)

    def find(
        self,
        run: UUID | str,
        *,
        state: State | str | None = None,
        name: str | None = None,
        cause: str | None = None,
        children: bool = True,
        limit: int = 100,
    ) -> list[TaskRow]:
        """Return tasks of a run, in the order of the flow.

        children  whether to include the children of fan-outs; with a state or a cause, they replace the fan-out
        """

        wanted_state = None if state is None else str(State(state))

        def work(connection: Connection) -> list[TaskRow]:
            run_id = find_run(connection, run)
            wanted = select(tasks).where(tasks.c.run_id == run_id).order_by(tasks.c.node, tasks.c.child).limit(limit)
            if wanted_state is not None:
                wanted = wanted.where(tasks.c.state == wanted_state)
            if name is not None:
                wanted = wanted.where(named(name))
            if cause is not None:
                wanted = wanted.where(tasks.c.fingerprint == resolve_cause(connection, run_id, cause))
            if not children:
                wanted = wanted.where(tasks.c.child == -1)
            elif state is not None or cause is not None:
                wanted = wanted.where(func.coalesce(tasks.c.children, 0) == 0)
            rows = [_task(row) for row in connection.execute(wanted)]
            if name is not None and not rows and not _is_there(connection, run_id, name):
                raise unknown_task_error(connection, run_id, name)
            return rows

        return self._read(work)

    def causes(self, run: UUID | str) -> list[TaskCause]:
        """Return why tasks of a run failed, the most frequent cause first."""
        return self._read(lambda connection: causes_of(connection, find_run(connection, run)))

    def get(self, run: UUID | str, name: str) -> TaskDetails:
        """Return one task with its attempts and changes: `settle`, or `settle[17]`."""

        def work(connection: Connection) -> TaskDetails:
            run_id = find_run(connection, run)
            row = connection.execute(select(tasks).where(tasks.c.run_id == run_id, exactly(name))).one_or_none()
            if row is None:
                raise unknown_task_error(connection, run_id, name)
            attempts = select(task_attempts).where(task_attempts.c.task_id == row.id).order_by(task_attempts.c.attempt)
            changes = select(task_changes).where(task_changes.c.task_id == row.id).order_by(task_changes.c.id)
            return TaskDetails(
                task=_task(row),
                input=None if row.input is None else decode(row.input),
                result=None if row.result is None else decode(row.result),
                result_file=row.result_file,
                attempts=tuple(_attempt(row) for row in connection.execute(attempts)),
                changes=tuple(
                    ChangeRow(at=row.at, before=State(row.before), after=State(row.after), cause=row.cause)
                    for row in connection.execute(changes)
                ),
            )

        return self._read(work)

    def inputs(self, ids: Sequence[int]) -> dict[int, Any]:
        """Return the inputs of children of fan-outs, by the ids of the tasks."""
        wanted = select(tasks.c.id, tasks.c.input).where(in_ids(tasks.c.id, list(ids)), tasks.c.input.is_not(None))
        return self._read(lambda connection: {row.id: decode(row.input) for row in connection.execute(wanted)})


def find_run(connection: Connection, run: UUID | str) -> UUID:
    """Return the id of the run that a text names: an id or its beginning, or a flow's name.

    Raises:
        FlowError: there is no such run, or several match.
    """
    text = str(run)
    run_ids = _runs_like(connection, text)
    if not run_ids:
        flows = list(connection.execute(select(task_runs.c.flow_name).distinct()).scalars())
        raise FlowError(f"there is no run of a flow {text!r}; {_meant(text, flows) or 'see `redrive runs ls`'}")
    if len(run_ids) > 1:
        raise FlowError(f"several runs begin with {text!r}; give more of the id")
    return run_ids[0]


def _runs_like(connection: Connection, text: str) -> list[UUID]:
    if is_run(text.lower()):
        begins = of_run(task_runs.c.run_id, text.lower())
        if run_ids := list(connection.execute(select(task_runs.c.run_id).where(begins).limit(2)).scalars()):
            return run_ids
    if _NEVER_A_RUN.search(text):
        return []
    newest = select(task_runs.c.run_id).where(task_runs.c.flow_name == text)
    return list(connection.execute(newest.order_by(task_runs.c.started_at.desc()).limit(1)).scalars())


def resolve_cause(
    connection: Connection, run_id: UUID, beginning: str, among_states: Sequence[State] = tuple(State)
) -> str:
    """Return the one cause of this fingerprint or beginning: few characters must not select two causes by accident."""
    theirs = select(tasks.c.fingerprint).distinct().where(tasks.c.run_id == run_id, tasks.c.fingerprint.is_not(None))
    known: list[str] = sorted(connection.execute(theirs.where(tasks.c.state.in_(among_states))).scalars())
    if beginning in known:
        return beginning
    matches = [cause for cause in known if beginning and cause.startswith(beginning)]
    if len(matches) == 1:
        return matches[0]
    listed = ", ".join((matches or known)[:4]) + (", …" if len(matches or known) > 4 else "")
    if matches:
        raise FlowError(f"{len(matches)} causes begin with {beginning!r} ({listed}); write more of it")
    there = f"its causes are {listed}" if known else "nothing in it did"
    raise FlowError(f"no task of run {str(run_id)[:8]} failed for a cause that begins with {beginning!r}; {there}")


def unknown_task_error(connection: Connection, run_id: UUID, name: str) -> FlowError:
    """Return the error for a task that does not exist, with the name that was probably meant."""
    own = select(tasks.c.name, tasks.c.children).where(tasks.c.run_id == run_id, tasks.c.child == -1)
    known = {row.name: row.children for row in connection.execute(own)}
    base = name.partition("[")[0]
    see = _meant(base, list(known)) or f"see `redrive tasks ls --run {run_id}`"
    if base in known:
        last = (known[base] or 0) - 1
        see = f"{base} has {base}[0] to {base}[{last}]" if last >= 0 else f"{base} has no children, or none yet"
    return FlowError(f"run {str(run_id)[:8]} has no task {name!r}; {see}")


def _is_there(connection: Connection, run_id: UUID, name: str) -> bool:
    return (
        connection.execute(select(tasks.c.id).where(tasks.c.run_id == run_id, named(name)).limit(1)).first() is not None
    )


def _meant(wanted: str, known: Sequence[str]) -> str:
    near = get_close_matches(wanted, known, n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def named(name: str) -> ColumnElement[bool]:
    """Select a task and all its children, or one child."""
    wanted = _NAMED.fullmatch(name) if isinstance(name, str) else None
    if wanted is None:
        raise FlowError(f"{name!r} names no task: write settle, or settle[17] for a child of a fan-out")
    selected: ColumnElement[bool] = tasks.c.name == wanted["name"]
    child = wanted["child"]
    return selected if child is None else selected & (tasks.c.child == (int(child) if len(child) < 10 else _NO_CHILD))


def exactly(name: str) -> ColumnElement[bool]:
    """Select a task without its children, or one child."""
    selected = named(name)
    return selected if name.endswith("]") else selected & (tasks.c.child == -1)


def shown_name(name: str, child: int) -> str:
    """Return the name of a task or child for users."""
    return name if child < 0 else f"{name}[{child}]"


def causes_of(
    connection: Connection, run_id: UUID, states: Sequence[State] = (State.DEAD_LETTER, State.FAILED)
) -> list[TaskCause]:
    """Return why tasks of a run failed, the most frequent cause first."""
    count = func.count().label("tasks")
    tried = tasks.c.attempt > 0
    wanted = (
        select(
            tasks.c.fingerprint,
            tasks.c.name,
            # The error is that of an attempted task: the others only state that they were not attempted.
            func.coalesce(func.max(tasks.c.error).filter(tried), func.max(tasks.c.error)).label("error"),
            func.max(tasks.c.kind).label("kind"),
            count,
            func.count().filter(tasks.c.attempt == 0).label("untried"),
            func.coalesce(func.min(case((tried, tasks.c.child))), func.min(tasks.c.child)).label("child"),
        )
        .where(tasks.c.run_id == run_id, tasks.c.state.in_(states))
        .where(tasks.c.fingerprint.is_not(None))
        .group_by(tasks.c.fingerprint, tasks.c.name)
        .order_by(count.desc(), tasks.c.name)
    )
    return [
        TaskCause(
            cause=row.fingerprint,
            task=row.name,
            error=row.error,
            kind=row.kind,
            count=row.tasks,
            untried=row.untried,
            sample=shown_name(row.name, row.child),
        )
        for row in connection.execute(wanted)
    ]


def counts_of(connection: Connection, run_id: UUID) -> dict[State, int]:
    """Count the tasks of a run by state; a fan-out counts by its children, or as one while it has none."""
    grouped = (
        select(tasks.c.state, func.count().label("tasks"))
        .where(tasks.c.run_id == run_id)
        .where(func.coalesce(tasks.c.children, 0) == 0)
        .group_by(tasks.c.state)
    )
    counts = {State(row.state): row.tasks for row in connection.execute(grouped)}
    return {state: counts[state] for state in State if state in counts}


def has_live_executor(connection: Connection, run_id: UUID, now: datetime) -> bool:
    """Return whether an executor works on a run, as far as is known."""
    there = select(task_executors.c.owner).where(
        task_executors.c.run_id == run_id, task_executors.c.ended_at.is_(None), task_executors.c.until > now
    )
    return any(not is_owner_dead(row.owner) for row in connection.execute(there))


def time_at_work(connection: Connection, run_ids: Sequence[UUID], now: datetime) -> dict[UUID, float]:
    """Return the seconds in which executors worked on each run: not while it waited for an operator or a start."""
    of = task_executors.c
    spans = select(of.run_id, of.began_at, of.ended_at, of.until).where(of.run_id.in_(run_ids)).order_by(of.began_at)
    took: defaultdict[UUID, float] = defaultdict(float)
    covered: dict[UUID, datetime] = {}
    for span in connection.execute(spans):
        # The end of an executor that died is unknown: it was alive when it last renewed its lease.
        ends = min(now, span.ended_at or span.until)
        begins = max(span.began_at, covered.get(span.run_id, span.began_at))
        took[span.run_id] += max(0.0, (ends - begins).total_seconds())
        covered[span.run_id] = max(ends, begins)
    return took


def report_of(connection: Connection, run_id: UUID, *, resumed: bool = False) -> FlowReport:
    """Return the report of a run."""
    run = connection.execute(select(task_runs).where(task_runs.c.run_id == run_id)).one()
    tried = select(func.coalesce(func.sum(tasks.c.attempt), 0)).where(tasks.c.run_id == run_id)
    now = datetime.now(UTC)
    ended = run.ended_at or now
    return FlowReport(
        flow=run.flow_name,
        run_id=run.run_id,
        status=FlowStatus(run.status),
        started_at=run.started_at,
        seconds=max(0.0, (ended - run.started_at).total_seconds()),
        worked=time_at_work(connection, [run_id], now).get(run_id, 0.0),
        params=decode(run.params),
        counts=counts_of(connection, run_id),
        attempts=int(connection.execute(tried).scalar_one()),
        resumed=resumed,
        reason=run.reason,
        sla=run.sla,
        ended_at=run.ended_at,
    )


def _task(row: Row[Any]) -> TaskRow:
    return TaskRow(
        id=row.id,
        run_id=row.run_id,
        name=shown_name(row.name, row.child),
        state=State(row.state),
        attempts=row.attempt,
        error=row.error,
        kind=row.kind,
        cause=row.fingerprint,
        due_at=row.due_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        seconds=row.seconds,
        note=row.note,
        children=row.children,
        remaining=row.remaining,
        dead=row.dead,
        failed=row.failed,
    )


def _attempt(row: Row[Any]) -> AttemptRow:
    return AttemptRow(
        attempt=row.attempt,
        started_at=row.started_at,
        ended_at=row.ended_at,
        ended=row.ended,
        seconds=row.seconds,
        kind=row.kind,
        error=row.error,
        cause=row.fingerprint,
        trace=row.trace,
        output=row.output,
    )
