"""The sender: it delivers the messages of the outbox in a background thread, so that no run waits for a channel.

Used by `redrive.alerts.service`.
"""

from __future__ import annotations

import atexit
import os
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable
from datetime import datetime

from redrive._internal.masking import mask
from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.delivery.dispatcher import LOG, Deliver, Dispatcher
from redrive.alerts.delivery.outbox import Outbox
from redrive.errors import StoreError
from redrive.policy import backoff
from redrive.store.database import Database

LONGEST_PAUSE = 60.0
"""Seconds between two attempts to reach an unreachable store."""

_senders: weakref.WeakSet[Sender] = weakref.WeakSet()
"""All senders in use, or whose thread still runs. A store that was dropped without closing it is not in here."""
_closed_at_exit: set[int] = set()
"""The ids of processes that close them at exit: this one, and those it was forked from."""


class Sender:
    """Deliver messages to the channels of the settings.

    `wake` starts a thread that ends when no message waits any more. Messages that are not sent when the program exits
    stay in the store, for the next program or for `redrive watch`.

    Args:
        database: The store.
        settings: The alert settings.
        deliver: Delivers a message to a channel; by the kind of the channel by default.
    """

    def __init__(self, database: Database, settings: AlertSettings, *, deliver: Deliver | None = None) -> None:
        self._outbox = Outbox(database, settings)
        self._settings, self._deliver = settings, deliver
        self._reset()
        _senders.add(self)

    def _reset(self) -> None:
        """Start without deliveries and threads: in a new sender, and in a forked child."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._background = Dispatcher(self._outbox, self._settings, self._deliver)
        self._foreground = Dispatcher(self._outbox, self._settings, self._deliver)
        self._turn = threading.Lock()
        self._ends_at: float | None = None

    def wake(self) -> None:
        """Wake the sender, because messages may be due. Returns at once and never raises."""
        try:
            with self._lock:
                self._ends_at = None
                if self._thread is None or not self._thread.is_alive():
                    self._background.start_workers()
                    self._thread = threading.Thread(target=self._run, name="redrive-alerts", daemon=True)
                    self._thread.start()
                self._background.finished.put(None)
            _close_at_exit()
        except Exception as error:  # no thread can be started, which must not fail a run
            self._thread = None
            LOG.warning("messages cannot be sent by this process and wait for another one: %s", mask(str(error)))

    def wake_if_due(self, *, now: datetime | None = None) -> None:
        """Wake the sender if a message can be sent now, whichever process stored it."""
        due = self._outbox.due(now=now)
        if any(at <= due.now for at in due.channels.values()):
            self.wake()

    def send_due(self, *, now: datetime | None = None, alert_id: int | None = None) -> int:
        """Send the due messages, of all alerts or of one, and wait for it; return how many were delivered.

        The channels are used in parallel, each with its timeout. After a failure a channel is paused, together with the
        other messages that are due to it.
        """
        arrived, dispatch = 0, self._foreground
        with self._turn:
            try:
                dispatch.begin(now=now, alert_id=alert_id)
                while dispatch.is_busy:
                    arrived += dispatch.wait(None, now=now)
                    dispatch.begin(now=now, alert_id=alert_id)
            except StoreError:
                while dispatch.is_busy:  # wait for deliveries in progress although the store is unreachable
                    dispatch.wait(None, now=now)
                raise
            finally:
                dispatch.stop()
        return arrived

    def close(self) -> None:
        """Send what is due now, for `exit_wait` seconds at most, and stop."""
        self._start_closing()()

    def _start_closing(self) -> Callable[[], None]:
        """Start to close; return a function that waits for the end."""
        with self._lock:
            thread = self._thread
            ends_at = self._ends_at = time.monotonic() + self._settings.exit_wait
            self._background.finished.put(None)

        def wait() -> None:
            if thread is not None and thread is not threading.current_thread():
                thread.join(max(0.0, ends_at - time.monotonic()))

        return wait

    # ── the thread ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        failures = 0
        wait: float | None = 0.0
        while not self._is_done(wait):
            try:
                self._background.wait(wait)
                wait = None if self._is_late() else self._background.begin()
                failures = 0
            except Exception as error:  # of any kind, since the messages stay in the store
                failures += 1
                if failures == 1:
                    reason = str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
                    LOG.warning("messages cannot be sent now and wait: %s", mask(reason))
                wait = random.uniform(0, backoff.ceiling(failures, base=1, multiplier=2, cap=LONGEST_PAUSE))

    def _is_late(self) -> bool:
        """Return whether the exit wait is over, so that no further delivery starts."""
        with self._lock:
            return self._ends_at is not None and time.monotonic() >= self._ends_at

    def _is_done(self, wait: float | None) -> bool:
        """Return whether nothing is pending; then the thread ends, and the next `wake` starts a new one."""
        with self._lock:
            if self._background.is_busy or not self._background.finished.empty():
                return False
            if wait is not None and self._ends_at is None:
                return False
            self._background.stop()
            self._thread = None
            return True


def _close_at_exit() -> None:
    if os.getpid() in _closed_at_exit:
        return
    _closed_at_exit.add(os.getpid())
    atexit.unregister(_close_all)  # a forked child has inherited it
    atexit.register(_close_all)
    # A worker of multiprocessing runs these finalizers instead of those of `atexit`.
    if (finalizers := sys.modules.get("multiprocessing.util")) is not None:
        finalizers.Finalize(None, _close_all, exitpriority=0)


def _close_all() -> None:
    for wait in [sender._start_closing() for sender in list(_senders)]:  # in parallel, because all channels may hang
        wait()


def _after_fork() -> None:
    for sender in list(_senders):
        sender._reset()


os.register_at_fork(after_in_child=_after_fork)
