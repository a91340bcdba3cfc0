"""A handle on a stored run: its id, parameters and graph. Used by executors and operator actions."""

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

_NO_RUN = UUID(int=0)


class RunHandle:
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
    def load(cls, store: Store, connection: Connection, run_id: UUID) -> RunHandle:
        """Return the handle of a stored run."""
        run = connection.execute(select(task_runs).where(task_runs.c.run_id == run_id)).one()
        handle = RunHandle(store, run.flow_name, GraphShape.of(decode(run.shape)), run_id)
        handle.params = decode(run.params)
        return handle
