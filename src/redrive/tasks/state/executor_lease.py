"""The lease of an executor on its run: start or resume the run, and write under the lease.

Every transaction of an executor renews its lease and counts a heartbeat. An executor that recovers the tasks of a dead
one ends the other's lease in the same transaction. From then on the dead executor cannot write, so no attempt is ever
owned by two executors.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, TypeVar

import orjson
from sqlalchemy import ColumnElement, Connection, Row, bindparam, func, insert, select, update
from sqlalchemy.exc import NoResultFound

from redrive.dlq.status import actor, settle_within
from redrive.errors import FlowError, FlowStopped, RedriveError
from redrive.model.calls import Kind, format_duration
from redrive.model.letters import Status
from redrive.model.tasks import FlowReport, FlowStatus, State
from redrive.policy.time_of_day import TimeOfDay, due_at
from redrive.store.encoding import decode, encode
from redrive.store.lease import begin_work, end_work, is_owner_dead, new_owner
from redrive.store.repositories.runs import register_start
from redrive.store.repositories.tasks import has_live_executor, report_of
from redrive.store.schema import letters, task_executors, task_runs, tasks
from redrive.store.store import Store
from redrive.tasks.graph import GraphShape
from redrive.tasks.parameters import PreviousRun, new_prefix, spellings
from redrive.tasks.state.run_handle import DatabaseClock, FlowRunHandle

T = TypeVar("T")

LEASE = timedelta(seconds=60)
_TRANSACTION_SHARE = 0.75  # a transaction must end before the lease that it renews expires
_DUE_TOLERANCE = timedelta(seconds=1)
_RENEW = (
    update(task_executors)
    .where(task_executors.c.id == bindparam("me"), task_executors.c.ended_at.is_(None))
    .values(beat=bindparam("beats"), until=bindparam("lives_until"))
)
RESTART_HINT = "restart with run(restart=True) or `redrive run --restart`"
"""The next step for a run that cannot be resumed."""
_INSERTED_AT_ONCE = 1_000
_UNFINISHED = (FlowStatus.RUNNING, FlowStatus.STOPPED)
_ENDED_BADLY = (FlowStatus.FAILED, FlowStatus.HELD)


class EarlierRun(Enum):
    """What to do with an incomplete earlier run of the same parameters."""

    RESUME = "resume"
    RESTART = "restart"
    """Abandon it if it is running or stopped, and start a new run."""
    NEW = "new_run"
    """Keep it as it is, and start a new run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedFlowRun:
    """A run that this executor started, resumed or joined."""

    run_id: uuid.UUID
    started_at: datetime
    resumed: bool
    sla: datetime | None
    task_slas: Mapping[str, datetime] = field(default_factory=dict)
    """Due times of tasks with an SLA of their own, by name."""
    done_before: datetime | None = None
    """When an earlier run with the same idempotency keys was complete; None if there is none."""


class ExecutorLease(FlowRunHandle):
    """A run handle with the right to change the run, for as long as the lease is renewed."""

    def __init__(
        self,
        store: Store,
        flow: str,
        shape: GraphShape,
        *,
        defaults: Mapping[str, Any] | None = None,
        takes: Mapping[str, Sequence[str]] | None = None,
        lease: timedelta = LEASE,
    ) -> None:
        super().__init__(store, flow, shape)
        self.takes = takes or {}
        self.defaults = defaults or {}
        self.lease = lease
        self._owner = new_owner()
        self._beat = 0
        self._clock = DatabaseClock()
        self.confirmed = time.monotonic()
        """When this executor last renewed the lease, by the monotonic clock."""
        self.key_prefix = ""
        """The prefix of the idempotency keys of the run's tasks."""
        begin_work(self._owner)

    # ── beginning ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(
        self,
        *,
        params: Mapping[str, Any],
        run_id: uuid.UUID | None,
        start: EarlierRun,
        sla: TimeOfDay | float | None,
        task_slas: Mapping[str, float] | None = None,
    ) -> StartedFlowRun:
        """Start a run, or resume or join the incomplete one of the same parameters."""
        param_texts = spellings(params, self.defaults)
        renewed_at = 0.0

        def start_run(connection: Connection) -> StartedFlowRun:
            nonlocal renewed_at
            now, _ = self._clock.read(lambda: self.database.dialect.begin_bounded(connection))
            # Two executors that start at once share one run.
            self.database.dialect.lock(connection, f"flow {self.flow}")
            register_start(connection, self.database.dialect, "flow", self.flow, sla=sla, now=now)
            unfinished = self._find_unfinished(connection, run_id, param_texts)
            if start is not EarlierRun.RESUME:
                if unfinished is not None and run_id is not None:
                    option = start.value
                    raise FlowError(f"run {run_id} cannot restart under its own id: leave run_id out, or {option}")
                if start is EarlierRun.RESTART:
                    self._abandon(connection, param_texts, now)
                unfinished = None
            if unfinished is None:
                started = self._create(
                    connection, run_id or uuid.uuid4(), param_texts, sla, now, new_keys=start is EarlierRun.NEW
                )
                started = replace(started, task_slas=self._set_slas(connection, started, task_slas or {}))
            else:
                started = self._resume(connection, unfinished, param_texts)
            renewed_at = time.monotonic()  # read late, since writing a large graph takes time
            until = self.database.dialect.now(connection) + self.lease
            joined = insert(task_executors).values(run_id=started.run_id, owner=self._owner, until=until, began_at=now)
            self.executor = connection.execute(joined.returning(task_executors.c.id)).scalar_one()
            return started

        with self._corrupt_rows_as_flow_error():
            started = self.database.write(start_run, done=lambda connection, _: self._is_registered(connection))
        self.run_id, self.params = started.run_id, params
        self.confirmed = renewed_at
        return started

    def _find_unfinished(
        self, connection: Connection, run_id: uuid.UUID | None, param_texts: Sequence[str]
    ) -> Row[Any] | None:
        query = select(task_runs).with_for_update()
        if run_id is not None:
            return connection.execute(query.where(task_runs.c.run_id == run_id)).first()
        # A failed or blocked run is resumed unless the same work was completed since.
        completed = select(func.max(task_runs.c.updated_at)).where(
            self._same_work(param_texts), task_runs.c.status == FlowStatus.COMPLETE
        )
        completed_at = connection.execute(completed).scalar()
        unfinished: ColumnElement[bool] = task_runs.c.status.in_(_UNFINISHED)
        ended_badly = task_runs.c.status.in_(_ENDED_BADLY)
        unfinished |= ended_badly if completed_at is None else ended_badly & (task_runs.c.updated_at > completed_at)
        exact_first = (
            task_runs.c.params != param_texts[0],
            task_runs.c.updated_at.desc(),
            task_runs.c.started_at.desc(),
        )
        query = query.where(self._same_work(param_texts), unfinished).order_by(*exact_first)
        return connection.execute(query.limit(1)).first()

    def _same_work(self, param_texts: Sequence[str]) -> ColumnElement[bool]:
        return (task_runs.c.flow_name == self.flow) & task_runs.c.params.in_(param_texts)

    def _resume(self, connection: Connection, stored: Row[Any], param_texts: Sequence[str]) -> StartedFlowRun:
        if stored.flow_name != self.flow:
            raise FlowError(f"run {stored.run_id} is of flow {stored.flow_name!r}, not of {self.flow!r}")
        if stored.params not in param_texts:
            raise FlowError(
                f"run {stored.run_id} has other parameters: {_differing_params(stored.params, param_texts[0])}; give "
                "it those it began with, or leave its id out"
            )
        if stored.status == FlowStatus.ABANDONED:
            raise FlowError(f"run {stored.run_id} was abandoned; begin another one")
        stored_shape = GraphShape.of(decode(stored.shape))
        if difference := self.shape.difference(stored_shape):
            raise FlowError(
                f"flow {self.flow!r} has changed since run {str(stored.run_id)[:8]} began: {difference}; finish that "
                f"run with the flow as it was, or {RESTART_HINT}"
            )
        if stored.status != FlowStatus.COMPLETE:  # a complete run stays complete: there is nothing left to do
            was_lost = stored.status == FlowStatus.RUNNING and not has_live_executor(
                connection, stored.run_id, self.database.dialect.now(connection)
            )
            connection.execute(
                update(task_runs)
                .where(task_runs.c.run_id == stored.run_id)
                .values(
                    status=FlowStatus.RUNNING,
                    reason=None,
                    ended_at=None,
                    judged_at=None,
                    failures=stored.failures + int(was_lost),
                )
            )
        self.set_shape(stored_shape)  # the source may list the tasks in another order by now
        self.key_prefix = stored.key_prefix or str(stored.run_id)
        with_sla = (tasks.c.run_id == stored.run_id) & tasks.c.sla.is_not(None)
        return StartedFlowRun(
            run_id=stored.run_id,
            started_at=stored.started_at,
            resumed=True,
            sla=stored.sla,
            task_slas={
                task.name: task.sla for task in connection.execute(select(tasks.c.name, tasks.c.sla).where(with_sla))
            },
        )

    def _abandon(self, connection: Connection, param_texts: Sequence[str], now: datetime) -> None:
        abandoned = (
            update(task_runs)
            .where(self._same_work(param_texts), task_runs.c.status.in_(_UNFINISHED))
            .values(status=FlowStatus.ABANDONED, ended_at=now, judged_at=now, reason="abandoned for a new run")
            .returning(task_runs.c.run_id)
        )
        for run_id in connection.execute(abandoned).scalars().all():
            # No operator action on its tasks is possible any more, so nothing else would close their letters.
            note = f"run {str(run_id)[:8]} was abandoned for a new run ({actor()})"
            settle_within(connection, letters.c.run_id == run_id, target=Status.DISCARDED, note=note, now=now)

    def _create(
        self,
        connection: Connection,
        run_id: uuid.UUID,
        param_texts: Sequence[str],
        sla: TimeOfDay | float | None,
        now: datetime,
        *,
        new_keys: bool,
    ) -> StartedFlowRun:
        due = due_at(sla, now)
        previous = self._find_previous(connection, param_texts)
        is_complete = previous is not None and previous.status == FlowStatus.COMPLETE
        previous_run = (
            None
            if previous is None
            else PreviousRun(previous.run_id, previous.key_prefix, previous.params, is_complete=is_complete)
        )
        self.key_prefix = new_prefix(self.flow, param_texts[0], run_id, previous_run, new_keys=new_keys)
        connection.execute(
            insert(task_runs),
            {
                "key_prefix": self.key_prefix,
                "run_id": run_id,
                "flow_name": self.flow,
                "status": FlowStatus.RUNNING,
                "params": param_texts[0],
                "shape": orjson.dumps(self.shape.document()).decode(),
                "started_at": now,
                "updated_at": now,
                "sla": due,
            },
        )
        common = {"run_id": run_id, "state": State.PENDING, "created_at": now}
        task_shapes = self.shape.places
        for start in range(0, len(task_shapes), _INSERTED_AT_ONCE):
            rows = [
                {**common, "node": number, "name": task.name, "waiting": len(task.after)}
                for number, task in enumerate(task_shapes[start : start + _INSERTED_AT_ONCE], start)
            ]
            connection.execute(insert(tasks), rows)
        same_keys = previous is not None and is_complete and previous.key_prefix == self.key_prefix
        done_before = previous.ended_at if previous is not None and same_keys else None
        return StartedFlowRun(run_id=run_id, started_at=now, resumed=False, sla=due, done_before=done_before)

    def _find_previous(self, connection: Connection, param_texts: Sequence[str]) -> Row[Any] | None:
        """Return the last run of the same work; a run of exactly these parameters comes first."""
        exact_first = (task_runs.c.params != param_texts[0], task_runs.c.started_at.desc())
        earlier = select(task_runs).where(self._same_work(param_texts)).order_by(*exact_first).limit(1)
        previous: Row[Any] | None = connection.execute(earlier).first()
        if previous is None or previous.params == param_texts[0]:
            return previous
        # If a default has changed, a run of other work may have reused these keys since.
        reused = select(task_runs.c.run_id).where(
            task_runs.c.flow_name == self.flow,
            task_runs.c.key_prefix == previous.key_prefix,
            task_runs.c.params.not_in(param_texts),
        )
        return previous if connection.execute(reused.limit(1)).first() is None else None

    def _set_slas(
        self, connection: Connection, started: StartedFlowRun, seconds: Mapping[str, float]
    ) -> Mapping[str, datetime]:
        due = {name: started.started_at + timedelta(seconds=after) for name, after in seconds.items()}
        for name, due_time in due.items():
            of_task = (tasks.c.run_id == started.run_id) & (tasks.c.name == name)
            connection.execute(update(tasks).where(of_task).values(sla=due_time))
        return due

    def _is_registered(self, connection: Connection) -> bool:
        mine = select(task_executors.c.id).where(task_executors.c.owner == self._owner)
        return connection.execute(mine).first() is not None

    # ── every transaction ─────────────────────────────────────────────────────────────────────────────────────────────

    def write(self, work: Callable[[Connection, datetime], T]) -> T:
        """Run `work` in one transaction that renews the lease; raises `FlowStopped` if the lease is lost."""
        self._beat += 1
        beat, renewed_at = self._beat, 0.0

        def renew_and_work(connection: Connection) -> T:
            nonlocal renewed_at
            renewed_at = time.monotonic()  # the lease starts when the time is read, however long the rest takes
            within = _TRANSACTION_SHARE * self.lease.total_seconds()
            wall_time, now = self._clock.read(lambda: self.database.dialect.begin_bounded(connection, within=within))
            values = {"me": self.executor, "beats": beat, "lives_until": wall_time + self.lease}
            if connection.execute(_RENEW, values).rowcount != 1:
                raise self.lease_lost_error()
            return work(connection, now)

        with self._corrupt_rows_as_flow_error():
            result = self.database.write(renew_and_work, done=lambda connection, _: self._is_renewed(connection, beat))
        self.confirmed = renewed_at
        return result

    @contextmanager
    def _corrupt_rows_as_flow_error(self) -> Iterator[None]:
        """Raise a FlowError for rows that redrive cannot have written; the original error is its cause."""
        try:
            yield
        except RedriveError:
            raise
        except (ValueError, TypeError, LookupError, NoResultFound) as error:
            raise FlowError(
                f"the stored state of flow {self.flow!r} is inconsistent ({type(error).__name__}: {error}): if it "
                f"was changed by hand, undo that; otherwise {RESTART_HINT}"
            ) from error

    @property
    def expires_at(self) -> float:
        """Return when the lease may have expired, by the monotonic clock."""
        return self.confirmed + self.lease.total_seconds()

    def is_expired(self) -> bool:
        """Return whether the lease may have expired, so that other executors may have recovered the tasks."""
        return time.monotonic() - self.confirmed > self.lease.total_seconds()

    def _is_renewed(self, connection: Connection, beat: int) -> bool:
        stored_beat = select(task_executors.c.beat).where(task_executors.c.id == self.executor)
        return connection.execute(stored_beat).scalar() == beat

    def lease_lost_error(self) -> FlowStopped:
        """Return the error of an executor whose tasks were taken over."""
        return FlowStopped(
            f"another executor has taken over what this one had of flow {self.flow!r}; this one has stopped, and "
            "running it again joins in",
            kind=Kind.TRANSIENT,
        )

    def lease_expired_error(self) -> FlowStopped:
        """Return the error of an executor that could not renew its lease in time."""
        return FlowStopped(
            f"the store could not be reached for longer than the lease of "
            f"{format_duration(self.lease.total_seconds())}, so others may have taken over what this one had of flow "
            f"{self.flow!r}; what was running has been ended, and running it again resumes it",
            kind=Kind.TRANSIENT,
        )

    def add_report(self, error: FlowStopped, *, resumed: bool) -> FlowStopped:
        """Return the error of a lost lease with the report of the run.

        The lease of an executor that was suspended has expired, too. If the store shows that another executor has taken
        over, the error reports that instead.
        """

        def work(connection: Connection) -> FlowStopped:
            ended_at = select(task_executors.c.ended_at).where(task_executors.c.id == self.executor)
            reason = error if connection.execute(ended_at).scalar() is None else self.lease_lost_error()
            report = report_of(connection, self.run_id, resumed=resumed)
            return FlowStopped(str(reason), kind=reason.kind, report=report)

        return self.database.read(work)

    def find_lost_tasks(self, connection: Connection, now: datetime) -> Sequence[Row[Any]]:
        """End the leases of dead executors, and return their tasks."""
        self._end_dead_executors(connection, now)
        live_executors = select(task_executors.c.id).where(
            task_executors.c.run_id == self.run_id, task_executors.c.ended_at.is_(None)
        )
        lost = select(tasks).where(
            tasks.c.run_id == self.run_id, tasks.c.owner.is_not(None), tasks.c.owner.not_in(live_executors)
        )
        return connection.execute(lost.with_for_update(skip_locked=True)).all()

    def _end_dead_executors(self, connection: Connection, now: datetime) -> None:
        others = select(task_executors.c.id, task_executors.c.owner, task_executors.c.until).where(
            task_executors.c.run_id == self.run_id,
            task_executors.c.ended_at.is_(None),
            task_executors.c.id != self.executor,
        )
        rows = connection.execute(others).all()
        database_now = self.database.dialect.now(connection) if rows else now
        for row in rows:
            dead = select(task_executors.c.id).where(task_executors.c.id == row.id, task_executors.c.ended_at.is_(None))
            if not is_owner_dead(row.owner):
                if row.until >= database_now:
                    continue
                # A slow executor may be renewing its lease just now.
                dead = dead.where(task_executors.c.until < database_now)
            # An executor within a transaction is skipped until the next time: waiting for it could block forever.
            if connection.execute(dead.with_for_update(skip_locked=True)).first() is not None:
                ended = update(task_executors).where(task_executors.c.id == row.id).values(ended_at=now)
                connection.execute(ended)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def correct_due_times(self, connection: Connection, now: datetime) -> None:
        """Correct due times that are later than their waits allow: the clock was ahead when they were stored."""
        if self.count_others(connection):
            return  # the executor that stored them still uses that time
        waiting = select(tasks.c.id, tasks.c.due_at, tasks.c.wait).where(
            tasks.c.run_id == self.run_id, tasks.c.due_at > now + _DUE_TOLERANCE
        )
        too_late = [
            {"b_id": row.id, "due": due}
            for row in connection.execute(waiting)
            if row.due_at > (due := now + timedelta(seconds=row.wait or 0.0)) + _DUE_TOLERANCE
        ]
        if too_late:
            correction = update(tasks).where(tasks.c.id == bindparam("b_id")).values(due_at=bindparam("due"))
            connection.execute(correction, too_late)

    def lock_run(self, connection: Connection) -> None:
        """Block operator actions on the run until the transaction ends."""
        connection.execute(select(task_runs.c.status).where(task_runs.c.run_id == self.run_id).with_for_update())

    def leave(self, connection: Connection, now: datetime) -> None:
        """End the lease of this executor."""
        connection.execute(update(task_executors).where(task_executors.c.id == self.executor).values(ended_at=now))

    def count_others(self, connection: Connection) -> int:
        """Return how many other executors work on the run."""
        alive = select(func.count()).where(
            task_executors.c.run_id == self.run_id,
            task_executors.c.ended_at.is_(None),
            task_executors.c.id != self.executor,
        )
        return connection.execute(alive).scalar_one()

    def end(self, connection: Connection, now: datetime, status: FlowStatus, reason: str | None) -> None:
        """Store how the run ended."""
        connection.execute(
            update(task_runs)
            .where(task_runs.c.run_id == self.run_id)
            .where(task_runs.c.status.not_in([FlowStatus.ABANDONED, FlowStatus.COMPLETE]))
            .values(status=status, reason=reason, updated_at=now, ended_at=now)
        )

    def report(self, *, resumed: bool) -> FlowReport:
        """Return the report of the run so far."""
        return self.database.read(lambda connection: report_of(connection, self.run_id, resumed=resumed))

    def release(self) -> None:
        """Unregister this executor in its process."""
        end_work(self._owner)


def _differing_params(stored: str, given: str) -> str:
    """Return the names of parameters with different values; the values may be secret."""
    before, after = ({(name, encode(value)) for name, value in decode(text).items()} for text in (stored, given))
    return ", ".join(sorted({name for name, _ in before ^ after}))
