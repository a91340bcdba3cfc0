"""Threads and tasks call one service that fails in every way at once: all invariants hold, and the service recovers.

The short form runs with the tests; `make chaos` runs the full count.
"""

import asyncio
import random
import threading
from collections import Counter

import httpx
import pytest

import redrive
from redrive import Breaker, CircuitOpen, KeyPool, QuotaExhausted, Retry, RetryBudget, Service, Token
from redrive.model.calls import Attempt, BreakerChanged, CallFailed
from redrive.testing import set_testing

WORKERS = 8
QUOTA = {"error": {"errors": [{"reason": "quotaExceeded"}]}}
EXPECTED = (OSError, ValueError, httpx.HTTPStatusError, CircuitOpen, QuotaExhausted, redrive.Permanent)


class Partner:
    """Draws an outcome for every attempt; tokens expire and accounts run dry at random."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.lock = threading.Lock()
        self.burning = True
        self.attempts = 0
        self.tokens = Counter()

    def log_in(self, account):
        def fetch():
            with self.lock:
                if self.burning and self.chance.random() < 0.2:
                    raise ConnectionResetError("login broke")
                self.tokens[account] += 1
                return f"{account}-{self.tokens[account]}"

        return Token(fetch)

    def answer(self, credential):
        with self.lock:
            self.attempts += 1
            drawn = self.chance.random() if self.burning else 1.0
        if drawn < 0.10:
            raise TimeoutError("slow")
        if drawn < 0.12:
            raise ValueError("a bug")
        if drawn < 0.13:
            raise redrive.Permanent("no")
        if drawn < 0.25:
            responses = [
                httpx.Response(401),
                httpx.Response(403, json=QUOTA, headers={"Retry-After": "0"}),
                httpx.Response(429, headers={"Retry-After": "0"}),
                httpx.Response(503),
                httpx.Response(500),
            ]
            response = responses[int(drawn * 1_000_000) % len(responses)]
            response.request = httpx.Request("GET", "http://partner/")
            response.raise_for_status()
        return credential


class Witness:
    """Counts what the service announces."""

    def __init__(self):
        self.lock = threading.Lock()
        self.made = self.failed = self.opened = 0

    def __call__(self, event):
        with self.lock:
            if isinstance(event, Attempt):
                self.made += event.outcome != "circuit_open" and event.latency_ms > 0
            self.failed += isinstance(event, CallFailed)
            self.opened += isinstance(event, BreakerChanged) and event.after == "open"


def burn(calls, seed, *, in_tasks):
    """Run so many calls through one service, then let the fire end; gives what there is to check."""
    partner, witness, outcomes = Partner(seed), Witness(), Counter()
    service = Service(
        "partner",
        retry=Retry(attempts=4, base=0.001, cap=0.002),
        breaker=Breaker(failures=20, rate=0.15, window=0.5, cooldown=0.002),
        budget=RetryBudget(ratio=0.5, reserve=1_000),
        credentials=KeyPool([partner.log_in("north"), partner.log_in("south")], resets=0.01),
        on_event=witness,
    )

    def fetch(*, credential):
        return partner.answer(credential)

    async def afetch(*, credential):
        await asyncio.sleep(0)
        return partner.answer(credential)

    def count(error):
        outcomes["failed" if error is not None else "succeeded"] += 1  # under the interpreter's own lock

    def hammer():
        for _ in range(calls // WORKERS):
            try:
                service.call(fetch)
            except EXPECTED as error:
                count(error)
            else:
                count(None)

    async def ahammer():
        for _ in range(calls // WORKERS):
            try:
                await service.acall(afetch)
            except EXPECTED as error:
                count(error)
            else:
                count(None)

    async def tasks():
        await asyncio.gather(*(ahammer() for _ in range(WORKERS)))

    with set_testing(longest_wait=0.0005):
        if in_tasks:
            asyncio.run(tasks())
        else:
            threads = [threading.Thread(target=hammer) for _ in range(WORKERS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        partner.burning = False
        recovered = _recovers(service, fetch)
    return service, partner, witness, outcomes, recovered


def _recovers(service, fetch):
    """Whether the service is back within a bounded number of calls, each a little later."""
    pause = threading.Event()
    for _ in range(500):
        try:
            service.call(fetch)
        except (CircuitOpen, QuotaExhausted):
            pause.wait(0.005)
        else:
            if service.circuit == "closed":
                return True
    return False


def check(calls, seed, *, in_tasks):
    service, partner, witness, outcomes, recovered = burn(calls, seed, in_tasks=in_tasks)
    stats = service.stats()
    assert recovered
    assert outcomes.total() == calls  # every call ended, once
    assert witness.failed >= outcomes["failed"]
    assert stats.attempts == witness.made  # counted and announced alike
    assert partner.attempts <= stats.attempts  # the rest are logins that failed
    assert stats.calls == stats.successes + witness.failed
    assert outcomes["succeeded"] > 0


@pytest.mark.parametrize("in_tasks", [False, True], ids=["threads", "tasks"])
def test_concurrent_calls_keep_invariants(in_tasks):
    check(4_000, seed=3, in_tasks=in_tasks)


@pytest.mark.chaos
@pytest.mark.parametrize("in_tasks", [False, True], ids=["threads", "tasks"])
@pytest.mark.parametrize("seed", range(10))
def test_concurrent_calls_keep_invariants_at_full_count(seed, in_tasks):
    check(40_000, seed=seed, in_tasks=in_tasks)
