"""Debouncing of work by key; used by `redrive.alerts.service` to limit how often a running flow is judged.

Each judgement costs a transaction. A run with many events is judged every few seconds, and once more after the last.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

PAUSE = 2.0
"""Minimum number of seconds between two calls for the same key."""
_SHARE = 20  # the work takes at most a twentieth of the time

K = TypeVar("K", bound=Hashable)


class Debouncer(Generic[K]):
    """Call a function for each key at once, or later if it was called for this key a moment ago."""

    def __init__(self, work: Callable[[K], object]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._free_at: dict[K, float] = {}
        self._later: dict[K, threading.Timer] = {}

    def ask(self, key: K) -> None:
        """Call the function for this key now, or after the pause if it was called a moment ago."""
        with self._lock:
            wait = self._free_at.get(key, 0.0) - time.monotonic()
            if wait > 0:
                if key not in self._later:
                    self._later[key] = timer = threading.Timer(wait, self._run_later, (key,))
                    timer.daemon = True
                    timer.start()
                return
        self._run(key)

    def end(self, key: K) -> None:
        """Cancel the pending call for this key and forget its pause."""
        with self._lock:
            self._free_at.pop(key, None)
            if (timer := self._later.pop(key, None)) is not None:
                timer.cancel()

    def close(self) -> None:
        """Cancel all pending calls."""
        for key in list(self._later):
            self.end(key)

    def _run(self, key: K) -> None:
        began = time.monotonic()
        try:
            self._work(key)
        finally:
            ended = time.monotonic()
            with self._lock:
                self._free_at[key] = ended + max(PAUSE, _SHARE * (ended - began))

    def _run_later(self, key: K) -> None:
        with self._lock:
            if self._later.pop(key, None) is None:
                return  # `end` was called meanwhile
        with suppress(Exception):  # no caller is left to handle an error, and the next judgement sees the same facts
            self._run(key)
