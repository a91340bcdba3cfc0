"""When a run is to end early: SIGTERM, a deadline, a word from the program. It finishes its batch first."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from redrive.model import in_words


class Stopping:
    """Whether to stop, and why."""

    def __init__(self, deadline: float | None, *, told: Callable[[], None] | None = None) -> None:
        self._deadline = deadline
        self._on_told = told
        self._ends = None if deadline is None else time.monotonic() + deadline
        self._told: str | None = None
        self.interrupted = False
        """Whether it was a Ctrl-C."""

    @property
    def ends_at(self) -> float:
        """The moment of its deadline, by the monotonic clock."""
        return math.inf if self._ends is None else self._ends

    def tell(self, reason: str) -> None:
        """Ask for the end, from any thread or from a signal handler."""
        self._told = self._told or reason
        if self._on_told is not None:
            self._on_told()

    def reason(self) -> str | None:
        """Why the run is to end now; None while it is not."""
        if self._told is not None:
            return self._told
        if self._ends is not None and time.monotonic() >= self._ends:
            return f"its deadline of {in_words(self._deadline or 0)} has passed"
        return None

    @contextmanager
    def heeding_sigterm(self) -> Iterator[None]:
        """Take SIGTERM as a word to stop; a handler of the program's own is left in its place."""
        if threading.current_thread() is not threading.main_thread():
            yield  # signals are the main thread's
            return
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            yield
            return
        signal.signal(signal.SIGTERM, self._on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    @contextmanager
    def heeding_sigint(self) -> Iterator[None]:
        """Take the first Ctrl-C as a word to stop, too: an exception could come between any two steps of what must not
        be torn apart. The second one is the interrupt it always was."""
        main = threading.current_thread() is threading.main_thread()
        if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        self.tell("it was interrupted")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.tell("SIGTERM")
