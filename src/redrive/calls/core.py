"""What all callers of one service share."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from redrive.calls.announce import Announcer
from redrive.calls.circuit import Circuit
from redrive.calls.credentials import Credentials
from redrive.calls.tally import Tally
from redrive.classify.classifier import Classifier
from redrive.clock import Clock, Random
from redrive.policy.budget import Ledger
from redrive.policy.retry import Retry

Idempotent = bool | Literal["key"]


class _Missing:
    """Tells "no fallback" from "fall back to None"."""


MISSING: Final = _Missing()


@dataclass(frozen=True, slots=True)
class Options:
    """What may differ between the views of one service."""

    timeout: float | None = None
    endpoint: str | None = None
    idempotency_key: str | None = None
    fallback: Any = MISSING


@dataclass(slots=True, weakref_slot=True)
class Core:
    """A service's policies and its state; every view of the service (`with_options`) refers to the same one."""

    name: str
    retry: Retry
    classifier: Classifier
    circuit: Circuit | None
    ledger: Ledger | None
    credentials: Credentials | None
    announcer: Announcer
    clock: Clock
    random: Random
    idempotent: Idempotent
    slice_seconds: float
    tally: Tally = field(init=False)
    _ledger_lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.tally = Tally(self.clock, slice_seconds=self.slice_seconds, tell=self._count_successes)

    def began(self) -> None:
        """Count a call that left the straight way."""
        self.tally.began()
        self._earn(1, self.clock.monotonic())

    def may_repeat(self) -> bool:
        """Charge one repeat to the retry budget, if it holds one."""
        if self.ledger is None:
            return True
        self.tally.fold(self.clock.monotonic())  # what successful calls have earned
        with self._ledger_lock:
            return self.ledger.spend(self.clock.monotonic())

    def start_anew(self) -> None:
        """In a forked child: the threads that held locks may not exist any more."""
        self._ledger_lock = threading.Lock()
        self.tally.start_anew()

    def _count_successes(self, count: int, at: float) -> None:
        if self.circuit is not None:
            self.circuit.count_successes(count, at)
        self._earn(count, at)

    def _earn(self, calls: int, at: float) -> None:
        if self.ledger is not None:
            with self._ledger_lock:
                self.ledger.earn(at, calls)
