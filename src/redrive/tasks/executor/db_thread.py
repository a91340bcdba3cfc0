"""A thread for the executor's transactions, and a waker for the selector of its loop.

The executor enforces deadlines in its loop. The loop must not wait for the database, so the transactions run here.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Waker:
    """Wakes a selector from another thread or from a signal handler."""

    def __init__(self) -> None:
        self.receiver, self._sender = socket.socketpair()
        self.receiver.setblocking(False)
        self._sender.setblocking(False)

    def wake(self) -> None:
        """Wake the selector."""
        try:
            self._sender.send(b"!")
        except BlockingIOError:  # the buffer is full of wake-ups that were not read yet
            pass
        except OSError:  # closed: no selector waits there any more
            pass

    def clear(self) -> None:
        """Read the pending wake-ups, so that the selector can sleep."""
        try:
            while len(self.receiver.recv(4_096)) == 4_096:
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Close both sockets."""
        self.receiver.close()
        self._sender.close()


class DbThread(Generic[T]):
    """Runs one job at a time beside the loop that submits it."""

    def __init__(self, waker: Waker) -> None:
        self.busy = False
        self._waker = waker
        self._jobs: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self._outcomes: list[T | BaseException] = []
        self._thread = threading.Thread(target=self._loop, name="redrive-scribe", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], T]) -> None:
        """Run a job in the thread; `take_result` has its result when the waker wakes the loop."""
        assert not self.busy
        self.busy = True
        self._jobs.put(job)

    def take_result(self) -> T | None:
        """Return the result of the job, once; None while it runs. Raises what the job raised."""
        if not self._outcomes:
            return None
        self.busy = False
        outcome = self._outcomes.pop()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def close(self) -> None:
        """Let the thread end after its current job."""
        self._jobs.put(None)
        self._thread.join(1)  # bounded, since the job may be waiting for a database that is gone

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._outcomes.append(job())
            except BaseException as error:
                self._outcomes.append(error)
            self._waker.wake()
