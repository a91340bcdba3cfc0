"""Shared by tests of flows: a run in another thread, and a long timeout."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import func, select

import redrive
from redrive.errors import FlowStopped
from redrive.model.tasks import TaskRetried
from redrive.store.schema import task_attempts
from redrive.tasks.workers.protocol import AttemptEnd

PATIENCE = 90.0
"""Seconds after which a test gives up hope."""


def stopped(flow: redrive.Flow, **options: Any) -> FlowStopped:
    """Run a flow that does not come to a good end; how it ended."""
    with pytest.raises(FlowStopped) as raised:
        flow.run(**options)
    return raised.value


def stopped_at_a_retry(flow: redrive.Flow) -> FlowStopped:
    """Run a flow until one of its tasks waits to be tried again."""
    end = redrive.on_event(lambda event: flow.stop() if isinstance(event, TaskRetried) else None)
    try:
        return stopped(flow)
    finally:
        end()


def states(store: redrive.Store, run: str = "settlement") -> dict[str, str]:
    return {row.name: str(row.state) for row in store.tasks.find(run, limit=10_000)}


def attempts_made(store: redrive.Store) -> int:
    """Attempts that came to something: on a busy machine, some are given back before anybody has begun them."""
    made = select(func.count()).where(task_attempts.c.ended != AttemptEnd.STOPPED)
    return store.database.read(lambda connection: connection.execute(made).scalar_one())


class Beside:
    """A run of a flow in a thread of its own."""

    def __init__(self, run: Callable[..., Any], **options: Any) -> None:
        self.error: Any = None
        self.report: Any = None
        self._thread = threading.Thread(target=self._run, args=(run, options))
        self._thread.start()

    def _run(self, run: Callable[..., Any], options: dict[str, Any]) -> None:
        try:
            self.report = run(**options)
        except Exception as error:
            self.error = error

    def join(self) -> Beside:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self


def eventually(question: Callable[[], Any]) -> Any:
    """Ask until the answer is yes."""
    for _ in range(int(PATIENCE / 0.01)):
        if found := question():
            return found
        time.sleep(0.01)
    return pytest.fail("it never came to that")
