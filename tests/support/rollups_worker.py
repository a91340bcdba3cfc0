"""A process that calls services in every way, and prints its own counts. Run by `test_rollups`.

Its clock is set to a quarter of an hour of the test's choice, and to the next one at half time; the attempt log has the
time by this clock, too.
"""

import asyncio
import json
import logging
import random
import sys
import threading
from collections import Counter
from datetime import timedelta

import httpx

import redrive
from redrive.clock import SystemClock
from redrive.model.calls import Kind
from redrive.observe.log import attempt_log

QUARTER = timedelta(minutes=15)
ERRORS = {kind: type(f"Error{kind.title()}", (Exception,), {}) for kind in Kind}
CLASSIFIER = redrive.Classifier()
for kind, error in ERRORS.items():
    CLASSIFIER = CLASSIFIER.rule(error, kind=kind)


class Clock(SystemClock):
    """The machine's, shifted."""

    shift = timedelta()

    def now(self):
        return super().now() + self.shift


class Worker:
    """The services of this process, and what came of their calls."""

    def __init__(self, store, seed):
        self.clock = Clock()
        self.random = random.Random(seed)
        self.failed = Counter()  # calls, by service and quarter
        self.quiet = Counter()  # successful calls that are in no log
        brief = redrive.Retry(attempts=3, base=0.001, cap=0.002, rate_limit_wait=0)
        breaker = redrive.Breaker(failures=4, rate=0.05, cooldown=0.02, probes=1)
        common = {"store": store, "clock": self.clock, "classifier": CLASSIFIER, "retry": brief, "budget": None}
        self.services = {
            "bank": redrive.Service("bank", breaker=breaker, **common),
            "atlas": redrive.Service("atlas", breaker=None, **common),
            "partner": redrive.Service(
                "partner", breaker=None, credentials=redrive.KeyPool(["key-1111", "key-2222"], resets=0.05), **common
            ),
            "exchange": redrive.Service("exchange", breaker=None, **common),
            "ledger": redrive.Service("ledger", credentials=redrive.KeyPool(["key-3333"]), **common),
        }
        self._lock = threading.Lock()

    def begin(self, at):
        """Set the clock, and let everything before count where it was."""
        for service in self.services.values():
            service.stats()
        self.clock.shift = at - SystemClock().now()
        for service in self.services.values():
            service.stats()

    def work(self, calls):
        """Call in three threads and a loop of tasks at once."""
        threads = [threading.Thread(target=self._in_a_thread, args=(calls,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        asyncio.run(self._in_tasks(calls))
        for thread in threads:
            thread.join()
        self._over_http(calls)

    def work_quietly(self, calls):
        """Make calls that succeed, with the log off: by the shortest way there is."""
        for name in ("atlas", "exchange", "ledger"):
            self.quiet[self._where(name)] += calls
            for _ in range(calls):
                self.services[name].call(len, name)

    def _script(self):
        """What the attempts of a call come to."""
        if self.random.random() < 0.7:
            return iter([None] * 9)
        return iter([self.random.choice([None, *ERRORS.values(), TimeoutError]) for _ in range(9)])

    def _in_a_thread(self, calls):
        for _ in range(calls):
            name, script = self.random.choice(["bank", "atlas", "partner"]), self._script()
            try:
                self.services[name].call(attempt, script)
            except Exception:
                self._fail(name)

    async def _in_tasks(self, calls):
        async def one():
            name, script = self.random.choice(["bank", "atlas", "partner"]), self._script()
            try:
                await self.services[name].acall(aattempt, script)
            except Exception:
                self._fail(name)

        for _ in range(calls // 10):
            await asyncio.gather(*(one() for _ in range(10)))

    def _over_http(self, calls):
        statuses = (200, 200, 200, 404, 401, 429, 500, 503)
        answer = httpx.MockTransport(lambda request: httpx.Response(self.random.choice(statuses)))
        with httpx.Client(transport=self.services["exchange"].httpx_transport(answer)) as client:
            for _ in range(calls // 4):
                if client.get("https://exchange.example").status_code >= 400:
                    self._fail("exchange")

    def _fail(self, name):
        with self._lock:
            self.failed[self._where(name)] += 1

    def _where(self, name):
        now = self.clock.now()
        return f"{name} {now - (now - now.min.replace(tzinfo=now.tzinfo)) % QUARTER:%Y-%m-%dT%H:%M:%S%z}"


def attempt(script):
    if (error := next(script)) is not None:
        raise error
    return "fine"


async def aattempt(script):
    await asyncio.sleep(0.0001)
    return attempt(script)


def main(told):
    store = redrive.connect(told["url"])
    store.services.every = 0.05
    worker = Worker(store, told["seed"])
    log, logger = attempt_log(told["log"]), logging.getLogger("redrive.attempts")
    log.addFilter(lambda record: setattr(record, "created", worker.clock.now().timestamp()) or True)
    logger.addHandler(log)
    logger.propagate = False
    for quarter in told["quarters"]:
        worker.begin(redrive.clock.datetime.fromisoformat(quarter))
        logger.setLevel(logging.INFO)
        worker.work(told["calls"])
        logger.setLevel(logging.WARNING)
        worker.work_quietly(told["calls"] * 10)
    sys.stdout.write(json.dumps({"failed": worker.failed, "quiet": worker.quiet}) + "\n")
    sys.stdout.flush()
    sys.stdin.readline()  # until it may end


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
