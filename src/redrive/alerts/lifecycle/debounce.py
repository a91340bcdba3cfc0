"""Judging costs a transaction: a run of which much is told is judged every few seconds at most, and at last."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

PAUSE = 2.0
"""Seconds between two judgements of one run that is under way."""
_SHARE = 20  # of its time at most this part goes into being judged

K = TypeVar("K", bound=Hashable)


class Debouncer(Generic[K]):
    """Does something for each of several, at once or a little later."""

    def __init__(self, work: Callable[[K], object]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._free_at: dict[K, float] = {}
        self._later: dict[K, threading.Timer] = {}

    def ask(self, key: K) -> None:
        """Do it now; soon, where it was done a moment ago."""
        with self._lock:
            wait = self._free_at.get(key, 0.0) - time.monotonic()
            if wait > 0:
                if key not in self._later:
                    self._later[key] = timer = threading.Timer(wait, self._at_last, (key,))
                    timer.daemon = True
                    timer.start()
                return
        self._do(key)

    def end(self, key: K) -> None:
        """It is over: nothing is to be done for it any more."""
        with self._lock:
            self._free_at.pop(key, None)
            if (timer := self._later.pop(key, None)) is not None:
                timer.cancel()

    def close(self) -> None:
        """Nothing is to be done for any of them."""
        for key in list(self._later):
            self.end(key)

    def _do(self, key: K) -> None:
        began = time.monotonic()
        try:
            self._work(key)
        finally:
            ended = time.monotonic()
            with self._lock:
                self._free_at[key] = ended + max(PAUSE, _SHARE * (ended - began))

    def _at_last(self, key: K) -> None:
        with self._lock:
            if self._later.pop(key, None) is None:
                return  # it is over
        with suppress(Exception):  # nobody is there to hear of it; whoever looks next sees the same
            self._do(key)
