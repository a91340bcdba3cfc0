"""Probes and queries that may hang: each runs in its own thread and is waited for with a timeout.

Used by the collector of levels.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, text

from redrive._internal.masking import mask
from redrive.errors import RedriveError
from redrive.store.database import Database

T = TypeVar("T")

_BOUND = text("SET LOCAL statement_timeout = '20s'")

_LONGEST = 300  # characters of a reason


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Why there is no answer, fit to be shown."""

    reason: str
    still_out: bool = False
    """Whether the probe still runs, so that its answer may come later."""


class ProbeRunner:
    """Run probes. A probe that still runs is not started a second time, so that a hanging probe costs one thread."""

    def __init__(self) -> None:
        self._running: dict[str, _RunningProbe] = {}

    def send(self, questions: Mapping[str, Callable[[], Any]]) -> None:
        """Start probes by name. If the last run of a probe has not been collected yet, its answer is used instead."""
        for name, question in questions.items():
            if name not in self._running:
                self._running[name] = _RunningProbe(name, question)

    def collect(self, *, until: float) -> dict[str, Any]:
        """Return the answers by name, each a value or `Unanswered`; wait until this monotonic time at most.

        A probe that timed out before is not waited for; its answer is collected when it is there.
        """
        answers: dict[str, Any] = {}
        for name, probe in list(self._running.items()):
            if probe.done.wait(0.0 if probe.late else max(0.0, until - time.monotonic())):
                answers[name] = probe.answer
                del self._running[name]
            else:
                probe.late = True
                waited = time.monotonic() - probe.started_at
                answers[name] = Unanswered(f"no answer for {waited:.0f} s, and none yet", still_out=True)
        return answers


class _RunningProbe:
    def __init__(self, name: str, question: Callable[[], Any]) -> None:
        self.started_at = time.monotonic()
        self.done = threading.Event()
        self.late = False
        self.answer: Any = None
        self._question = question
        # A daemon thread, because a hanging probe must not keep the program from exiting.
        threading.Thread(target=self._ask, name=f"redrive-{name}", daemon=True).start()

    def _ask(self) -> None:
        try:
            self.answer = self._question()
        except BaseException as error:  # a user's probe may raise anything, and this thread belongs to it
            self.answer = Unanswered(why(error))
        finally:
            self.done.set()


def read_bounded(database: Database, work: Callable[[Connection], T]) -> T:
    """Read from the store like `Database.read`, with a timeout for each statement on PostgreSQL."""

    def bounded(connection: Connection) -> T:
        if connection.dialect.name == "postgresql":
            connection.execute(_BOUND)
        return work(connection)

    return database.read(bounded)


def why(error: BaseException) -> str:
    """Return an error as a single line without secrets."""
    cause: BaseException = getattr(error, "orig", None) or error  # SQLAlchemy wraps the error of the driver
    message = " ".join(mask(str(cause)).split())
    if len(message) > _LONGEST:
        message = f"{message[:_LONGEST]}…"
    if isinstance(cause, RedriveError):
        return message
    return f"{type(cause).__name__}: {message}" if message else type(cause).__name__
