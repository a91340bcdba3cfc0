"""Where a run stands in the store: what everybody needs who reads or changes it, executor or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, select

from redrive.model.tasks import State
from redrive.store.encoding import decode
from redrive.store.schema import task_runs, tasks
from redrive.store.store import Store
from redrive.tasks.graph import GraphShape
from redrive.tasks.trigger_rules import RunWhen

_NONE = UUID(int=0)


class RunHandle:
    """A run: its id, its parameters, and the shape of its graph."""

    executor = 0
    """Whose claims are meant; nobody's, where it is not an executor's place."""

    def __init__(self, store: Store, flow: str, shape: GraphShape, run_id: UUID = _NONE) -> None:
        self.store = store
        self.database = store.database
        self.flow = flow
        self.run_id = run_id
        self.params: Mapping[str, Any] = {}
        self.takes: Mapping[str, Sequence[str]] = {}
        """Which parameters tasks take, by their names; only an executor, which has their functions, knows."""
        self.adopt(shape)

    def adopt(self, shape: GraphShape) -> None:
        """Number tasks as this shape does."""
        self.shape = shape
        self.below = shape.below()
        self.numbers = {place.name: number for number, place in enumerate(shape.places)}
        self.has_rules = any(place.run_when is not RunWhen.ALL_SUCCEEDED for place in shape.places)
        """Whether something runs by another rule than that everything above it succeeded."""

    def params_of(self, task: str) -> Mapping[str, Any]:
        """Return the parameters that a task takes; all of the run, where that is not known."""
        return {name: self.params[name] for name in self.takes.get(task, self.params) if name in self.params}

    def lock_graph(self, connection: Connection) -> None:
        """Let one transaction at a time say what runs because of failures, or of their being none any more."""
        self.database.dialect.lock(connection, f"graph of {self.run_id}")

    def states(self, connection: Connection) -> tuple[list[State], dict[int, list[str]]]:
        """The states of all tasks by their numbers; for those that chose among their followers, which these are."""
        own = select(tasks.c.node, tasks.c.state, tasks.c.branch).where(
            tasks.c.run_id == self.run_id, tasks.c.child == -1
        )
        rows = connection.execute(own.order_by(tasks.c.node)).all()
        return [State(row.state) for row in rows], {row.node: decode(row.branch) for row in rows if row.branch}

    @classmethod
    def of(cls, store: Store, connection: Connection, run_id: UUID) -> RunHandle:
        """A run as it was stored."""
        run = connection.execute(select(task_runs).where(task_runs.c.run_id == run_id)).one()
        place = RunHandle(store, run.flow_name, GraphShape.of(decode(run.shape)), run_id)
        place.params = decode(run.params)
        return place
