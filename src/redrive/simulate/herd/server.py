"""The simulated service: it processes requests at a limited rate, keeps a queue, and is down for a while."""

from __future__ import annotations

import math
from enum import IntEnum, auto
from typing import Literal

OutageKind = Literal["refused", "503", "hang"]


class RequestOutcome(IntEnum):
    """The outcome of a request, as its client sees it."""

    ANSWERED = 0
    REFUSED = auto()
    """The service is down."""
    RESET = auto()
    """It was in flight when the service went down."""
    UNAVAILABLE = auto()
    """A 503: the queue is full, or the service reports that it is down."""
    TIMED_OUT = auto()


class SimulatedServer:
    """Starts to process one request every 1/capacity seconds and answers it `latency` seconds later.

    It does not notice clients that time out: a request that waits in the queue for longer than its client does is
    processed all the same, and capacity is spent on an answer that no client receives. This is what keeps an overloaded
    service from recovering.

    Later requests do not change the outcome of a request, and the time of the outage is known. So the outcome is
    returned when the request arrives; requests arrive in the order of time.
    """

    __slots__ = ("_away", "_back", "_free_at", "_kind", "_latency", "_longest_queue", "_space")

    def __init__(
        self, *, capacity: float, queue: int, latency: float, away: float, back: float, kind: OutageKind
    ) -> None:
        self._space = 1 / capacity
        self._longest_queue = (queue + 0.5) / capacity  # in seconds; the half request is for rounding
        self._latency = latency
        self._away = away
        self._back = back
        self._kind = kind
        self._free_at = -math.inf

    def ask(self, now: float, timeout: float) -> tuple[RequestOutcome, float]:
        """Return the outcome of a request that arrives now, and when its client learns of it.

        Args:
            timeout: seconds that the client waits.
        """
        if now >= self._away:
            if now < self._back:
                return self._while_away(now, timeout)
            self._free_at = self._back  # the queue from before the outage is lost
            self._away = math.inf
        begins = max(now, self._free_at)
        if begins - now > self._longest_queue:
            return RequestOutcome.UNAVAILABLE, now
        self._free_at = begins + self._space
        answered, timed_out_at = begins + self._latency, now + timeout
        if now < self._away < answered:
            if timed_out_at <= self._away or self._kind == "hang":
                return RequestOutcome.TIMED_OUT, timed_out_at
            return RequestOutcome.RESET, self._away
        if answered > timed_out_at:
            return RequestOutcome.TIMED_OUT, timed_out_at
        return RequestOutcome.ANSWERED, answered

    def _while_away(self, now: float, timeout: float) -> tuple[RequestOutcome, float]:
        if self._kind == "hang":
            return RequestOutcome.TIMED_OUT, now + timeout
        return (RequestOutcome.UNAVAILABLE if self._kind == "503" else RequestOutcome.REFUSED), now
