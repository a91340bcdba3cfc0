"""Counts of a herd simulation, by bucket of time."""

from __future__ import annotations

import math

from redrive.simulate.herd.clients import Request
from redrive.simulate.herd.server import RequestOutcome


class BucketCounts:
    """Counts by bucket. One bucket begins at the very moment of the recovery, and the others are aligned to it.

    A request counts when it is sent, its outcome when the client learns of it. A client is troubled from a request that
    failed until one that is answered.
    """

    def __init__(self, *, away: float, back: float, until: float, width: float, clients: int) -> None:
        self.width = width
        self.before = math.ceil(back / width)
        """Number of buckets before the recovery."""
        self.first = self.before - math.ceil((back - away) / width)
        """The bucket in which the service goes down."""
        number = self.before + math.ceil((until - back) / width)
        self.requests = [0] * number
        self.probes = [0] * number
        self.fates = tuple([0] * number for _ in RequestOutcome)
        self.calls_failed = [0] * number
        self.in_flight = 0
        """Requests without an outcome when the simulation ended."""
        self.recovered_at = -math.inf
        """When the last troubled client was answered."""
        self._back = back
        self._until = until
        self._troubled = bytearray(clients)

    def request(self, client: int, request: Request, outcome: RequestOutcome, when: float) -> None:
        """Count a request and its outcome."""
        sent = self._bucket(request.at)
        self.requests[sent] += 1
        if request.probe:
            self.probes[sent] += 1
        if when > self._until:
            self.in_flight += 1
            return
        self.fates[outcome][self._bucket(when)] += 1
        if outcome is not RequestOutcome.ANSWERED:
            self._troubled[client] = True
        elif self._troubled[client]:
            self._troubled[client] = False
            self.recovered_at = max(self.recovered_at, when)

    def call_failed(self, at: float) -> None:
        """Count a call that ended in an error for its caller, whether anything was sent or not."""
        if at <= self._until:
            self.calls_failed[self._bucket(at)] += 1

    @property
    def troubled(self) -> int:
        """The number of clients whose last request failed."""
        return sum(self._troubled)

    def begins(self, bucket: int) -> float:
        """Return when a bucket begins, in seconds after the recovery."""
        return (bucket - self.before) * self.width

    def _bucket(self, at: float) -> int:
        # The very end belongs to the last bucket.
        return min(self.before + math.floor((at - self._back) / self.width), len(self.requests) - 1)
