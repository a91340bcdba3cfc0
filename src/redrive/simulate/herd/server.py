"""The service of a herd: it takes up so many requests a second, keeps a queue, and is away for a while."""

from __future__ import annotations

import math
from enum import IntEnum, auto
from typing import Literal

OutageKind = Literal["refused", "503", "hang"]


class RequestOutcome(IntEnum):
    """What becomes of a request, as its client sees it."""

    ANSWERED = 0
    REFUSED = auto()
    """Nobody listens."""
    RESET = auto()
    """It was under way when the service went down."""
    UNAVAILABLE = auto()
    """A 503: the queue is full, or the service says itself that it is down."""
    TIMED_OUT = auto()


class SimulatedServer:
    """Takes up one request every 1/capacity seconds and answers it `latency` seconds later.

    It knows of no client that has given up: what waits in the queue for longer than its client does is worked on all
    the same, and capacity is spent on an answer that nobody hears. That is what keeps a service down that could be up.

    Nothing that comes later changes the fate of a request, but for the outage, whose time is known. So the fate is told
    when the request arrives, and requests arrive in the order of time.
    """

    __slots__ = ("_away", "_back", "_free_at", "_kind", "_latency", "_longest_queue", "_space")

    def __init__(
        self, *, capacity: float, queue: int, latency: float, away: float, back: float, kind: OutageKind
    ) -> None:
        self._space = 1 / capacity
        self._longest_queue = (queue + 0.5) / capacity  # in seconds as it is served; the half is for rounding
        self._latency = latency
        self._away = away
        self._back = back
        self._kind = kind
        self._free_at = -math.inf

    def ask(self, now: float, patience: float) -> tuple[RequestOutcome, float]:
        """What becomes of a request that arrives now, and when its client, who waits so long at most, knows."""
        if now >= self._away:
            if now < self._back:
                return self._while_away(now, patience)
            self._free_at = self._back  # what had queued up before the outage is gone
            self._away = math.inf
        begins = max(now, self._free_at)
        if begins - now > self._longest_queue:
            return RequestOutcome.UNAVAILABLE, now
        self._free_at = begins + self._space
        answered, given_up = begins + self._latency, now + patience
        if now < self._away < answered:
            if given_up <= self._away or self._kind == "hang":
                return RequestOutcome.TIMED_OUT, given_up
            return RequestOutcome.RESET, self._away
        return (RequestOutcome.ANSWERED, answered) if answered <= given_up else (RequestOutcome.TIMED_OUT, given_up)

    def _while_away(self, now: float, patience: float) -> tuple[RequestOutcome, float]:
        if self._kind == "hang":
            return RequestOutcome.TIMED_OUT, now + patience
        return (RequestOutcome.UNAVAILABLE if self._kind == "503" else RequestOutcome.REFUSED), now
