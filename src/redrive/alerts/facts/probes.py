"""Probes: functions of the user and queries that may hang. Each runs in its own thread, with a timeout.

A lag probe is a function without arguments, or an object with a method `lag`, that returns one `Lag` or several:

    from redrive.types import Lag

    def billing() -> Lag:
        return Lag(consumer="billing", messages=newest_offset() - committed_offset())

`redrive.toml` names it as `redrive run` names a pipeline: `lags = ["probes.py:billing"]` in [alerts]. The collector of
levels runs it at every check, and continues without a probe that raises or hangs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from sqlalchemy import Connection, text

from redrive._internal.masking import mask
from redrive.alerts.facts.snapshot import Lag
from redrive.config import ConfigError
from redrive.errors import RedriveError
from redrive.store.database import Database

T = TypeVar("T")

_BOUND = text("SET LOCAL statement_timeout = '20s'")

_LONGEST = 300  # characters of a reason


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The reason why there is no answer, without secrets."""

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


Answer = Lag | Iterable[Lag]
_MOST = 1e15


@runtime_checkable
class LagProbe(Protocol):
    """Measures how far one or more consumers are behind."""

    def lag(self) -> Answer:
        """Return the current lag. Use a timeout: a probe is not started again while it still runs."""


Probe = Callable[[], tuple[Lag, ...]]


class BadProbe(ConfigError):
    """An object is not a probe, or its answer is not a `Lag`."""


def lag_probes(names: Iterable[str], load: Callable[[str], Any]) -> Mapping[str, Probe]:
    """The lag_probes of these names; `load` finds what `FILE_OR_MODULE:NAME` means."""
    return {name: _lag_probe(name, load(name)) for name in names}


def _lag_probe(name: str, found: object) -> Probe:
    is_object = isinstance(found, LagProbe) and not isinstance(found, type)
    ask: Any = found.lag if is_object else found  # type: ignore[attr-defined]
    if isinstance(found, type) or not callable(ask):
        what = "a class" if isinstance(found, type) else f"a {type(found).__name__}"
        raise BadProbe(f"{name} is {what}, not a probe: that is a function without arguments, or has a method `lag`")
    return lambda: _check_lags(name, ask())


def _check_lags(name: str, answer: Any) -> tuple[Lag, ...]:
    listed = (answer,) if isinstance(answer, Lag) or not isinstance(answer, Iterable) else tuple(answer)
    for lag in listed:
        if not isinstance(lag, Lag):
            raise BadProbe(f"{name} answered a {type(lag).__name__}, not a redrive.types.Lag")
        if not isinstance(lag.consumer, str) or not lag.consumer.isprintable() or not lag.consumer.strip():
            raise BadProbe(f"{name} answered a lag of a consumer whose name is no text that can be shown")
        if lag.messages is None and lag.seconds is None:
            raise BadProbe(f"{name} knows neither messages nor seconds of {lag.consumer}")
        if any(value is not None and not _is_amount(value) for value in (lag.messages, lag.seconds)):
            raise BadProbe(f"{name} answered a lag of {lag.consumer} that is no number from 0 up")
    return listed


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST
