"""A thread that writes, one transaction at a time: deadlines are kept while the database takes its time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Waker:
    """Wakes a selector from another thread, or from a signal handler."""

    def __init__(self) -> None:
        self.hears, self._rings = socket.socketpair()
        self.hears.setblocking(False)
        self._rings.setblocking(False)

    def ring(self) -> None:
        """Wake it."""
        try:
            self._rings.send(b"!")
        except BlockingIOError:  # rung often enough already
            pass
        except OSError:  # closed: nobody sleeps there any more
            pass

    def hush(self) -> None:
        """It was heard."""
        try:
            while len(self.hears.recv(4_096)) == 4_096:
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        """No more bells."""
        self.hears.close()
        self._rings.close()


class DbThread(Generic[T]):
    """Does one thing at a time beside the loop that asks for it."""

    def __init__(self, bell: Waker) -> None:
        self.busy = False
        self._bell = bell
        self._orders: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self._done: list[T | BaseException] = []
        self._thread = threading.Thread(target=self._work, name="redrive-scribe", daemon=True)
        self._thread.start()

    def begin(self, order: Callable[[], T]) -> None:
        """Have it done; `result` has the answer when the bell rings."""
        assert not self.busy
        self.busy = True
        self._orders.put(order)

    def result(self) -> T | None:
        """What was done, once; None while it is not. Raises what was raised."""
        if not self._done:
            return None
        self.busy = False
        done = self._done.pop()
        if isinstance(done, BaseException):
            raise done
        return done

    def close(self) -> None:
        """Let it end when it is done with what it does."""
        self._orders.put(None)
        self._thread.join(1)  # it may be waiting for a database that is gone

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                self._done.append(order())
            except BaseException as error:
                self._done.append(error)
            self._bell.ring()
