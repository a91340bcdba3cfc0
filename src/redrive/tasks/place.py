"""Where a run stands in the store: what everybody needs who reads or changes it, executor or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, select

from redrive.opening import Store
from redrive.store.encoding import decode
from redrive.store.schema import task_runs
from redrive.tasks.graph import Shape

_NONE = UUID(int=0)


class Place:
    """A run: its id, its parameters, and the shape of its graph."""

    executor = 0
    """Whose claims are meant; nobody's, where it is not an executor's place."""

    def __init__(self, store: Store, flow: str, shape: Shape, run_id: UUID = _NONE) -> None:
        self.store = store
        self.database = store.database
        self.flow = flow
        self.run_id = run_id
        self.params: Mapping[str, Any] = {}
        self.adopt(shape)

    def adopt(self, shape: Shape) -> None:
        """Number tasks as this shape does."""
        self.shape = shape
        self.below = shape.below()
        self.numbers = {place.name: number for number, place in enumerate(shape.places)}

    def lock_graph(self, connection: Connection) -> None:
        """Let one transaction at a time say what runs because of failures, or of their being none any more."""
        self.database.dialect.lock(connection, f"graph of {self.run_id}")

    @classmethod
    def of(cls, store: Store, connection: Connection, run_id: UUID) -> Place:
        """A run as it was stored."""
        run = connection.execute(select(task_runs).where(task_runs.c.run_id == run_id)).one()
        place = Place(store, run.flow_name, Shape.of(decode(run.shape)), run_id)
        place.params = decode(run.params)
        return place
