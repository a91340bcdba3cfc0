"""The worker's side of a killable call: send the answer and, shortly before the timeout, the requests in flight.

A killed process cannot report whether it has sent a POST. A thread reports requests shortly before the timeout, so that
the calling service knows that the call must not be retried.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import threading
import time

from redrive.calls.effects.in_flight import in_flight_in_process
from redrive.tasks.killable.call import LENGTH, REPORT

_BEFORE_THE_LIMIT = 0.5
_INTERVAL = 0.05


class CallWatch:
    """Writes to the caller, from the thread that answers and from the thread that watches.

    Args:
        caller: the connection to the process that makes the call.
        ends: when the process is killed, by the monotonic clock; None if requests are not reported.
    """

    def __init__(self, caller: socket.socket, ends: float | None) -> None:
        self._caller = caller
        self._ends = ends
        self._lock = threading.Lock()
        self._answered = threading.Event()

    def start(self) -> None:
        """Start the watching thread if requests are reported: otherwise a function that forks stays single-threaded."""
        if self._ends is not None:
            threading.Thread(target=self._watch, args=(self._ends,), name="redrive call watch", daemon=True).start()

    def answer(self, answer: bytes) -> None:
        """Send the answer."""
        with self._lock:
            self._answered.set()
            with contextlib.suppress(ConnectionError):  # the caller is gone
                self._caller.sendall(LENGTH.pack(len(answer)) + answer)

    def _watch(self, ends: float) -> None:
        left = ends - time.monotonic()
        wait = left - min(_BEFORE_THE_LIMIT, left / 4)
        reported: set[bytes] = set()
        while not self._answered.wait(max(0.0, wait)):
            for request in _requests():
                if request not in reported:
                    reported.add(request)
                    self._report(request)
            wait = _INTERVAL

    def _report(self, request: bytes) -> None:
        with self._lock, contextlib.suppress(OSError):
            if not self._answered.is_set():
                self._caller.sendall(LENGTH.pack(REPORT | len(request)) + request)


def _requests() -> list[bytes]:
    with contextlib.suppress(Exception):  # the frames of other threads change while they are read
        return [pickle.dumps(request) for request in in_flight_in_process()]
    return []
