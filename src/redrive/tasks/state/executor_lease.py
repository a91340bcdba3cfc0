"""One executor's place in the store: its run, its lease, and its one transaction at a time.

Every transaction renews the lease and counts a beat. Who takes over from a dead executor ends it in the transaction
that takes its tasks: from then on none of its transactions goes through, so no attempt is ever in two hands.
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
from redrive.store.process_identity import begin_work, end_work, is_owner_dead, new_owner
from redrive.store.repositories.known_runs import register_start
from redrive.store.repositories.tasks import has_live_executor, report_of
from redrive.store.schema import letters, task_executors, task_runs, tasks
from redrive.store.store import Store
from redrive.tasks.graph import GraphShape
from redrive.tasks.parameters import spellings
from redrive.tasks.state.database_time import DatabaseClock
from redrive.tasks.state.idempotency_keys import PreviousRun, new_prefix
from redrive.tasks.state.run_handle import RunHandle

T = TypeVar("T")

LEASE = timedelta(seconds=60)
_OF_THE_LEASE = 0.75  # a transaction must be over before the lease is that it renews
_AHEAD = timedelta(seconds=1)
_BEAT = (
    update(task_executors)
    .where(task_executors.c.id == bindparam("me"), task_executors.c.ended_at.is_(None))
    .values(beat=bindparam("beats"), until=bindparam("lives_until"))
)
ANEW = "begin anew with run(restart=True) or `redrive run --restart`"
"""What is left to do with a run that cannot go on."""
_INSERTED_AT_ONCE = 1_000
_UNDER_WAY = (FlowStatus.RUNNING, FlowStatus.STOPPED)
_ENDED_BADLY = (FlowStatus.FAILED, FlowStatus.HELD)


class EarlierRun(Enum):
    """What to do about an earlier run of the same parameters that is not complete."""

    RESUME = "resume"
    RESTART = "restart"
    """Abandon it where it is running or stopped, and begin a new run."""
    NEW = "new_run"
    """Leave it as it is, and begin a new run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedRun:
    """A run that was begun, gone on with, or joined."""

    run_id: uuid.UUID
    started_at: datetime
    resumed: bool
    sla: datetime | None
    task_slas: Mapping[str, datetime] = field(default_factory=dict)
    """When tasks with an SLA of their own are to be done, by their names."""
    done_before: datetime | None = None
    """When an earlier run of the same parameters was complete, so that this one has the same idempotency keys."""


class ExecutorLease(RunHandle):
    """One executor's place: with its right to change it."""

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
        self._time = DatabaseClock()
        self.confirmed = time.monotonic()
        """When the lease was last known to be ours."""
        self.key_prefix = ""
        """What the idempotency keys of the run's tasks begin with."""
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
    ) -> StartedRun:
        """Begin a run, or resume the one that is not complete, beside others that work on it."""
        same = spellings(params, self.defaults)
        asked = 0.0

        def work(connection: Connection) -> StartedRun:
            nonlocal asked
            now, _ = self._time.read(lambda: self.database.dialect.begin_bounded(connection))
            self.database.dialect.lock(connection, f"flow {self.flow}")  # two that begin at once mean one run
            register_start(connection, self.database.dialect, "flow", self.flow, sla=sla, now=now)
            standing = self._standing(connection, run_id, same)
            if start is not EarlierRun.RESUME:
                if standing is not None and run_id is not None:
                    option = start.value
                    raise FlowError(f"run {run_id} cannot begin anew under its own id: leave run_id out, or {option}")
                if start is EarlierRun.RESTART:
                    self._abandon(connection, same, now)
                standing = None
            if standing is None:
                begun = self._anew(connection, run_id or uuid.uuid4(), same, sla, now, new_keys=start is EarlierRun.NEW)
                begun = replace(begun, task_slas=self._set_slas(connection, begun, task_slas or {}))
            else:
                begun = self._again(connection, standing, same)
            asked = time.monotonic()  # a large graph takes its time to be written
            until = self.database.dialect.now(connection) + self.lease
            joined = insert(task_executors).values(run_id=begun.run_id, owner=self._owner, until=until, began_at=now)
            self.executor = connection.execute(joined.returning(task_executors.c.id)).scalar_one()
            return begun

        with self._understanding():
            begun = self.database.write(work, done=lambda connection, _: self._is_registered(connection))
        self.run_id, self.params = begun.run_id, params
        self.confirmed = asked
        return begun

    def _standing(self, connection: Connection, run_id: uuid.UUID | None, same: Sequence[str]) -> Row[Any] | None:
        wanted = select(task_runs).with_for_update()
        if run_id is not None:
            return connection.execute(wanted.where(task_runs.c.run_id == run_id)).first()
        # What failed, or is blocked, is resumed unless the same work has been completed since.
        done = select(func.max(task_runs.c.updated_at)).where(
            self._same_work(same), task_runs.c.status == FlowStatus.COMPLETE
        )
        done_at = connection.execute(done).scalar()
        unfinished: ColumnElement[bool] = task_runs.c.status.in_(_UNDER_WAY)
        ended_badly = task_runs.c.status.in_(_ENDED_BADLY)
        unfinished |= ended_badly if done_at is None else ended_badly & (task_runs.c.updated_at > done_at)
        exact_first = (task_runs.c.params != same[0], task_runs.c.updated_at.desc(), task_runs.c.started_at.desc())
        wanted = wanted.where(self._same_work(same), unfinished).order_by(*exact_first)
        return connection.execute(wanted.limit(1)).first()

    def _same_work(self, same: Sequence[str]) -> ColumnElement[bool]:
        return (task_runs.c.flow_name == self.flow) & task_runs.c.params.in_(same)

    def _again(self, connection: Connection, standing: Row[Any], same: Sequence[str]) -> StartedRun:
        if standing.flow_name != self.flow:
            raise FlowError(f"run {standing.run_id} is of flow {standing.flow_name!r}, not of {self.flow!r}")
        if standing.params not in same:
            raise FlowError(
                f"run {standing.run_id} has other parameters: {_differing(standing.params, same[0])}; give it those it "
                "began with, or leave its id out"
            )
        if standing.status == FlowStatus.ABANDONED:
            raise FlowError(f"run {standing.run_id} was given up; begin another one")
        stored = GraphShape.of(decode(standing.shape))
        if difference := self.shape.difference(stored):
            raise FlowError(
                f"flow {self.flow!r} has changed since run {str(standing.run_id)[:8]} began: {difference}; finish that "
                f"run with the flow as it was, or {ANEW}"
            )
        if standing.status != FlowStatus.COMPLETE:  # what is complete remains so: there is nothing left to do
            died = standing.status == FlowStatus.RUNNING and not has_live_executor(
                connection, standing.run_id, self.database.dialect.now(connection)
            )
            connection.execute(
                update(task_runs)
                .where(task_runs.c.run_id == standing.run_id)
                .values(
                    status=FlowStatus.RUNNING,
                    reason=None,
                    ended_at=None,
                    judged_at=None,
                    failures=standing.failures + int(died),
                )
            )
        self.adopt(stored)  # tasks may stand in another order in the source by now
        self.key_prefix = standing.key_prefix or str(standing.run_id)
        with_sla = (tasks.c.run_id == standing.run_id) & tasks.c.sla.is_not(None)
        return StartedRun(
            run_id=standing.run_id,
            started_at=standing.started_at,
            resumed=True,
            sla=standing.sla,
            task_slas={
                one.name: one.sla for one in connection.execute(select(tasks.c.name, tasks.c.sla).where(with_sla))
            },
        )

    def _abandon(self, connection: Connection, same: Sequence[str], now: datetime) -> None:
        abandoned = (
            update(task_runs)
            .where(self._same_work(same), task_runs.c.status.in_(_UNDER_WAY))
            .values(status=FlowStatus.ABANDONED, ended_at=now, judged_at=now, reason="given up for a new run")
            .returning(task_runs.c.run_id)
        )
        for run_id in connection.execute(abandoned).scalars().all():
            # No decision about its tasks is possible any more, so that nothing else would settle their letters.
            note = f"run {str(run_id)[:8]} was given up for a new run ({actor()})"
            settle_within(connection, letters.c.run_id == run_id, target=Status.DISCARDED, note=note, now=now)

    def _anew(
        self,
        connection: Connection,
        run_id: uuid.UUID,
        same: Sequence[str],
        sla: TimeOfDay | float | None,
        now: datetime,
        *,
        new_keys: bool,
    ) -> StartedRun:
        due = due_at(sla, now)
        last = self._last_of(connection, same)
        done = last is not None and last.status == FlowStatus.COMPLETE
        before = None if last is None else PreviousRun(last.run_id, last.key_prefix, last.params, is_complete=done)
        self.key_prefix = new_prefix(self.flow, same[0], run_id, before, on_purpose=new_keys)
        connection.execute(
            insert(task_runs),
            {
                "key_prefix": self.key_prefix,
                "run_id": run_id,
                "flow_name": self.flow,
                "status": FlowStatus.RUNNING,
                "params": same[0],
                "shape": orjson.dumps(self.shape.document()).decode(),
                "started_at": now,
                "updated_at": now,
                "sla": due,
            },
        )
        new = {"run_id": run_id, "state": State.PENDING, "created_at": now}
        places = self.shape.places
        for start in range(0, len(places), _INSERTED_AT_ONCE):
            rows = [
                {**new, "node": number, "name": place.name, "waiting": len(place.after)}
                for number, place in enumerate(places[start : start + _INSERTED_AT_ONCE], start)
            ]
            connection.execute(insert(tasks), rows)
        same_keys = last is not None and done and last.key_prefix == self.key_prefix
        done_before = last.ended_at if last is not None and same_keys else None
        return StartedRun(run_id=run_id, started_at=now, resumed=False, sla=due, done_before=done_before)

    def _last_of(self, connection: Connection, same: Sequence[str]) -> Row[Any] | None:
        """Return the last run of the same work, one of exactly these parameters first."""
        exact_first = (task_runs.c.params != same[0], task_runs.c.started_at.desc())
        earlier = select(task_runs).where(self._same_work(same)).order_by(*exact_first).limit(1)
        last: Row[Any] | None = connection.execute(earlier).first()
        if last is None or last.params == same[0]:
            return last
        # Where the default was another one once, other work may have its keys since.
        taken = select(task_runs.c.run_id).where(
            task_runs.c.flow_name == self.flow,
            task_runs.c.key_prefix == last.key_prefix,
            task_runs.c.params.not_in(same),
        )
        return last if connection.execute(taken.limit(1)).first() is None else None

    def _set_slas(
        self, connection: Connection, begun: StartedRun, seconds: Mapping[str, float]
    ) -> Mapping[str, datetime]:
        due = {name: begun.started_at + timedelta(seconds=after) for name, after in seconds.items()}
        for name, moment in due.items():
            of_task = (tasks.c.run_id == begun.run_id) & (tasks.c.name == name)
            connection.execute(update(tasks).where(of_task).values(sla=moment))
        return due

    def _is_registered(self, connection: Connection) -> bool:
        mine = select(task_executors.c.id).where(task_executors.c.owner == self._owner)
        return connection.execute(mine).first() is not None

    # ── every transaction ─────────────────────────────────────────────────────────────────────────────────────────────

    def write(self, work: Callable[[Connection, datetime], T]) -> T:
        """Run `work` in one transaction, provided that this executor is still to be reckoned with."""
        self._beat += 1
        beat, asked = self._beat, 0.0

        def once(connection: Connection) -> T:
            nonlocal asked
            asked = time.monotonic()  # the lease begins when its time is read, however long the rest takes
            within = _OF_THE_LEASE * self.lease.total_seconds()
            real, now = self._time.read(lambda: self.database.dialect.begin_bounded(connection, within=within))
            mine = {"me": self.executor, "beats": beat, "lives_until": real + self.lease}
            if connection.execute(_BEAT, mine).rowcount != 1:
                raise self.fenced()
            return work(connection, now)

        with self._understanding():
            result = self.database.write(once, done=lambda connection, _: self._has_beaten(connection, beat))
        self.confirmed = asked
        return result

    @contextmanager
    def _understanding(self) -> Iterator[None]:
        """What nobody of ours can have written ends in a sentence; what it stumbled over is its cause."""
        try:
            yield
        except RedriveError:
            raise
        except (ValueError, TypeError, LookupError, NoResultFound) as error:
            raise FlowError(
                f"what the store holds of flow {self.flow!r} makes no sense ({type(error).__name__}: {error}): if it "
                f"was changed by hand, undo that; otherwise {ANEW}"
            ) from error

    @property
    def late_at(self) -> float:
        """The moment after which the lease may have run out."""
        return self.confirmed + self.lease.total_seconds()

    def is_late(self) -> bool:
        """Whether the lease may have run out unnoticed: others may have taken what this one has in hand."""
        return time.monotonic() - self.confirmed > self.lease.total_seconds()

    def _has_beaten(self, connection: Connection, beat: int) -> bool:
        last = select(task_executors.c.beat).where(task_executors.c.id == self.executor)
        return connection.execute(last).scalar() == beat

    def fenced(self) -> FlowStopped:
        """Why nothing of ours is written any more."""
        return FlowStopped(
            f"another executor has taken over what this one had of flow {self.flow!r}; this one has stopped, and "
            "running it again joins in",
            kind=Kind.TRANSIENT,
        )

    def out_of_touch(self) -> FlowStopped:
        """Why nothing of ours may be written any more, though nobody is known to have taken it."""
        return FlowStopped(
            f"the store could not be reached for longer than the lease of "
            f"{format_duration(self.lease.total_seconds())}, so others may have taken over what this one had of flow "
            f"{self.flow!r}; what was running has been ended, and running it again goes on",
            kind=Kind.TRANSIENT,
        )

    def explained(self, error: FlowStopped, *, resumed: bool) -> FlowStopped:
        """The error of a lost lease with the report of the run, and with what the store knows of this executor by now.

        An executor that was suspended is late as well; the store answers, and others may have taken over.
        """

        def work(connection: Connection) -> FlowStopped:
            ended_at = select(task_executors.c.ended_at).where(task_executors.c.id == self.executor)
            reason = error if connection.execute(ended_at).scalar() is None else self.fenced()
            report = report_of(connection, self.run_id, resumed=resumed)
            return FlowStopped(str(reason), kind=reason.kind, report=report)

        return self.database.read(work)

    def left_behind(self, connection: Connection, now: datetime) -> Sequence[Row[Any]]:
        """Tasks in the hands of executors that will not be heard of again, which are ended herewith."""
        self._end_the_dead(connection, now)
        at_work = select(task_executors.c.id).where(
            task_executors.c.run_id == self.run_id, task_executors.c.ended_at.is_(None)
        )
        theirs = select(tasks).where(
            tasks.c.run_id == self.run_id, tasks.c.owner.is_not(None), tasks.c.owner.not_in(at_work)
        )
        return connection.execute(theirs.with_for_update(skip_locked=True)).all()

    def _end_the_dead(self, connection: Connection, now: datetime) -> None:
        others = select(task_executors.c.id, task_executors.c.owner, task_executors.c.until).where(
            task_executors.c.run_id == self.run_id,
            task_executors.c.ended_at.is_(None),
            task_executors.c.id != self.executor,
        )
        rows = connection.execute(others).all()
        moment = self.database.dialect.now(connection) if rows else now
        for row in rows:
            dead = select(task_executors.c.id).where(task_executors.c.id == row.id, task_executors.c.ended_at.is_(None))
            if not is_owner_dead(row.owner):
                if row.until >= moment:
                    continue
                dead = dead.where(task_executors.c.until < moment)  # it may only be slow, and renew its lease just now
            # Who is in the middle of a transaction is left for the next time: it may stand still there.
            if connection.execute(dead.with_for_update(skip_locked=True)).first() is not None:
                ended = update(task_executors).where(task_executors.c.id == row.id).values(ended_at=now)
                connection.execute(ended)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def bring_back(self, connection: Connection, now: datetime) -> None:
        """Let tasks wait no longer than they were to: their times may be of a clock that was ahead, and was set."""
        if self.others(connection):
            return  # who wrote them goes by the same time still
        late = select(tasks.c.id, tasks.c.due_at, tasks.c.wait).where(
            tasks.c.run_id == self.run_id, tasks.c.due_at > now + _AHEAD
        )
        too_late = [
            {"b_id": row.id, "due": due}
            for row in connection.execute(late)
            if row.due_at > (due := now + timedelta(seconds=row.wait or 0.0)) + _AHEAD
        ]
        if too_late:
            mine = update(tasks).where(tasks.c.id == bindparam("b_id")).values(due_at=bindparam("due"))
            connection.execute(mine, too_late)

    def lock_run(self, connection: Connection) -> None:
        """Keep people from deciding about the run until the transaction ends."""
        connection.execute(select(task_runs.c.status).where(task_runs.c.run_id == self.run_id).with_for_update())

    def leave(self, connection: Connection, now: datetime) -> None:
        """This executor is done with the run."""
        connection.execute(update(task_executors).where(task_executors.c.id == self.executor).values(ended_at=now))

    def others(self, connection: Connection) -> int:
        """How many other executors work on the run."""
        alive = select(func.count()).where(
            task_executors.c.run_id == self.run_id,
            task_executors.c.ended_at.is_(None),
            task_executors.c.id != self.executor,
        )
        return connection.execute(alive).scalar_one()

    def end(self, connection: Connection, now: datetime, status: FlowStatus, reason: str | None) -> None:
        """Say how the run ended."""
        connection.execute(
            update(task_runs)
            .where(task_runs.c.run_id == self.run_id)
            .where(task_runs.c.status.not_in([FlowStatus.ABANDONED, FlowStatus.COMPLETE]))
            .values(status=status, reason=reason, updated_at=now, ended_at=now)
        )

    def report(self, *, resumed: bool) -> FlowReport:
        """What the run has done so far."""
        return self.database.read(lambda connection: report_of(connection, self.run_id, resumed=resumed))

    def release(self) -> None:
        """Nobody in this process is behind the claim any more."""
        end_work(self._owner)


def _differing(these: str, those: str) -> str:
    """The names of parameters that have other values; the values may be secret."""
    before, after = ({(name, encode(value)) for name, value in decode(text).items()} for text in (these, those))
    return ", ".join(sorted({name for name, _ in before ^ after}))
