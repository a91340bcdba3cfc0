"""What is counted while a herd is simulated, by bucket of time."""

from __future__ import annotations

import math

from redrive.simulate.herd.clients import Request
from redrive.simulate.herd.server import RequestOutcome


class BucketCounts:
    """Counts by bucket. One begins at the very moment at which the service is back, and the others fit to that.

    A request counts where it is sent, its fate where its client knows of it. A client is troubled from a request that
    failed until one that is answered.
    """

    def __init__(self, *, away: float, back: float, until: float, width: float, clients: int) -> None:
        self.width = width
        self.before = math.ceil(back / width)
        """Buckets before the one in which the service is back."""
        self.first = self.before - math.ceil((back - away) / width)
        """The bucket in which it goes away."""
        number = self.before + math.ceil((until - back) / width)
        self.requests = [0] * number
        self.probes = [0] * number
        self.fates = tuple([0] * number for _ in RequestOutcome)
        self.calls_failed = [0] * number
        self.in_flight = 0
        """Requests whose fate nobody knew when all ended."""
        self.healed_at = -math.inf
        """When the last client that was troubled was answered."""
        self._back = back
        self._until = until
        self._troubled = bytearray(clients)

    def request(self, client: int, request: Request, fate: RequestOutcome, when: float) -> None:
        """A request was sent, and this is what becomes of it."""
        sent = self._bucket(request.at)
        self.requests[sent] += 1
        if request.probe:
            self.probes[sent] += 1
        if when > self._until:
            self.in_flight += 1
            return
        self.fates[fate][self._bucket(when)] += 1
        if fate is not RequestOutcome.ANSWERED:
            self._troubled[client] = True
        elif self._troubled[client]:
            self._troubled[client] = False
            self.healed_at = max(self.healed_at, when)

    def call_failed(self, at: float) -> None:
        """A call ended in an error for its caller, whether anything was sent or not."""
        if at <= self._until:
            self.calls_failed[self._bucket(at)] += 1

    @property
    def troubled(self) -> int:
        """Clients that are still in trouble."""
        return sum(self._troubled)

    def begins(self, bucket: int) -> float:
        """When a bucket begins, in seconds since the service is back."""
        return (bucket - self.before) * self.width

    def _bucket(self, at: float) -> int:
        # The very end belongs to the last one.
        return min(self.before + math.floor((at - self._back) / self.width), len(self.requests) - 1)
