"""A handle on a stored run: its id, parameters and graph, the states of its tasks, and the clock of its database."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, select

from redrive.errors import RedriveError
from redrive.model.tasks import State
from redrive.store.encoding import decode
from redrive.store.schema import task_runs, tasks
from redrive.store.store import Store
from redrive.tasks.graph import GraphShape
from redrive.tasks.trigger_rules import RunWhen

_NO_RUN = UUID(int=0)


class FlowRunHandle:
    """A run: its id, its parameters, and the shape of its graph."""

    executor = 0
    """The id of the executor that owns claims; 0 for a handle without an executor."""

    def __init__(self, store: Store, flow: str, shape: GraphShape, run_id: UUID = _NO_RUN) -> None:
        self.store = store
        self.database = store.database
        self.flow = flow
        self.run_id = run_id
        self.params: Mapping[str, Any] = {}
        self.takes: Mapping[str, Sequence[str]] = {}
        """The parameters of each task, by its name; known only to an executor, which has the functions."""
        self.set_shape(shape)

    def set_shape(self, shape: GraphShape) -> None:
        """Set the graph: its order gives the tasks their numbers."""
        self.shape = shape
        self.below = shape.below()
        self.numbers = {task.name: number for number, task in enumerate(shape.places)}
        self.has_rules = any(task.run_when is not RunWhen.ALL_SUCCEEDED for task in shape.places)
        """Whether a task has another trigger rule than `all_succeeded`."""

    def params_of(self, task: str) -> Mapping[str, Any]:
        """Return the parameters that a task takes; all parameters of the run if that is unknown."""
        return {name: self.params[name] for name in self.takes.get(task, self.params) if name in self.params}

    def lock_graph(self, connection: Connection) -> None:
        """Lock the graph: one transaction at a time decides what follows from the states of all tasks."""
        self.database.dialect.lock(connection, f"graph of {self.run_id}")

    def read_states(self, connection: Connection) -> tuple[list[State], dict[int, list[str]]]:
        """Return the states of all tasks by number, and the chosen branches of tasks that have some."""
        query = select(tasks.c.node, tasks.c.state, tasks.c.branch).where(
            tasks.c.run_id == self.run_id, tasks.c.child == -1
        )
        rows = connection.execute(query.order_by(tasks.c.node)).all()
        return [State(row.state) for row in rows], {row.node: decode(row.branch) for row in rows if row.branch}

    @classmethod
    def load(cls, store: Store, connection: Connection, run_id: UUID) -> FlowRunHandle:
        """Return the handle of a stored run."""
        run = connection.execute(select(task_runs).where(task_runs.c.run_id == run_id)).one()
        handle = FlowRunHandle(store, run.flow_name, GraphShape.of(decode(run.shape)), run_id)
        handle.params = decode(run.params)
        return handle


_ = State

TRANSITIONS: dict[State, frozenset[State]] = {
    # Waits for its upstream tasks; blocked while one of them is a dead letter.
    _.PENDING: frozenset({_.READY, _.SENSING, _.RUNNING, _.UPSTREAM_FAILED, _.SKIPPED, _.FAILED}),
    # May be claimed. Becomes a dead letter untried if its siblings died of one cause; fails untried if its service is
    # down and `when_open` is "fail".
    _.READY: frozenset({_.RUNNING, _.DEAD_LETTER, _.FAILED, _.PENDING}),
    # Claimed by an executor; READY again if the executor stopped before the attempt ended. A fan-out is RUNNING as
    # long as its children are.
    _.RUNNING: frozenset({_.SUCCESS, _.SKIPPED, _.FAILED, _.RETRYING, _.DEAD_LETTER, _.READY, _.PENDING}),
    # Waits for the time of its next attempt; READY if an operator retries it earlier.
    _.RETRYING: frozenset({_.RUNNING, _.READY, _.DEAD_LETTER, _.FAILED, _.PENDING}),
    # A sensor that is polled from time to time; a poll does not change its state.
    _.SENSING: frozenset({_.SUCCESS, _.SKIPPED, _.FAILED, _.DEAD_LETTER, _.PENDING}),
    # End states. An operator may retry failed tasks, rerun successful ones, or fail tasks for good that a resume would
    # retry. The tasks below a task that runs again become PENDING.
    _.SUCCESS: frozenset({_.READY, _.SENSING, _.RUNNING, _.PENDING, _.DEAD_LETTER}),
    _.FAILED: frozenset({_.READY, _.SENSING, _.RUNNING, _.SUCCESS, _.DEAD_LETTER, _.FAILED, _.PENDING}),
    _.DEAD_LETTER: frozenset({_.READY, _.SENSING, _.RUNNING, _.SUCCESS, _.FAILED, _.PENDING}),
    _.UPSTREAM_FAILED: frozenset({_.PENDING}),
    _.SKIPPED: frozenset({_.READY, _.SENSING, _.PENDING}),
}


class WrongTransition(RedriveError):
    """A transition that is not in the table: a bug in redrive, stopped before it is stored."""


def checked(before: State, after: State) -> State:
    """Return the new state; raises WrongTransition if the transition is not allowed."""
    if after not in TRANSITIONS[before]:
        raise WrongTransition(f"a task cannot go from {before} to {after}")
    return after


_log = logging.getLogger("redrive.events")
_JUMP = timedelta(seconds=1)


class DatabaseClock:
    """Follows the wall clock of the database, and the monotonic clock once the wall clock has jumped."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._wall: datetime | None = None
        self._wall_read_at = 0.0
        self._jump_reported = False

    def read(self, read_wall: Callable[[], datetime]) -> tuple[datetime, datetime]:
        """Return the wall time, and the time to use for due times."""
        earliest = self._monotonic()
        wall_time = read_wall()
        latest = self._monotonic()
        if self._wall is not None and not self._expect(earliest) - _JUMP < wall_time < self._expect(latest) + _JUMP:
            steady_time = self._expect(latest)
            self._report_jump(wall_time - steady_time)
            return wall_time, steady_time
        self._wall, self._wall_read_at = wall_time, latest
        self._jump_reported = False
        return wall_time, wall_time

    def _expect(self, moment: float) -> datetime:
        assert self._wall is not None
        return self._wall + timedelta(seconds=moment - self._wall_read_at)

    def _report_jump(self, jump: timedelta) -> None:
        if not self._jump_reported:
            self._jump_reported = True
            _log.warning(
                "the clock of the store has jumped by %+.0f s; tasks that wait are tried as if it had not",
                jump.total_seconds(),
            )
