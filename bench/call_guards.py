"""The guards that are compared: hand-written code, redrive and its peers, each set to the same policy.

5 attempts, waits of up to 1 s that double to 60 s with full jitter, 180 s in all, a breaker that opens after 5 failures
for 30 s; of these, each library gets what it has.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import backoff
import pybreaker
import stamina
import tenacity
from measure import Contender, compiled

import redrive
from redrive.testing import set_testing

BARE, BARE_KEYED, LOOP, REDRIVE = "bare", "bare, given a key", "hand-written loop", "redrive"
RECORDED = "redrive, rollups"

HEALS = (TimeoutError, ConnectionError)
ATTEMPTS, BASE, CAP, WITHIN = 5, 1.0, 60.0, 180.0
FAILURES, COOLDOWN, PROBES = 5, 30.0, 2
FAILING_ATTEMPTS = 3
NEVER = 10**9  # a breaker or budget that does its work but does not step in
KEY = "bench-key-0001"

ATTEMPT_LOG = logging.getLogger("redrive.attempts")


# ── the work ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def fetch(page: int) -> int:
    return page


def fetch_with_key(page: int, *, credential: str) -> int:
    return page


def fetch_slowly(page: int) -> int:
    time.sleep(0.001)
    return page


def fetch_in_vain(page: int) -> int:
    raise TimeoutError("no answer in time")


async def afetch(page: int) -> int:
    return page


async def afetch_with_key(page: int, *, credential: str) -> int:
    return page


# ── each library, set to the same policy ─────────────────────────────────────────────────────────────────────────────


def hand_written(function: Callable[[int], int], attempts: int = ATTEMPTS, sleep: Callable = time.sleep) -> Callable:
    def looped(page: int) -> int:
        for attempt in range(attempts):
            try:
                return function(page)
            except HEALS:
                if attempt == attempts - 1:
                    raise
                sleep(random.uniform(0, min(CAP, BASE * 2**attempt)))
        raise AssertionError("unreachable")

    return looped


def ahand_written(function: Callable[[int], Awaitable[int]]) -> Callable:
    async def looped(page: int) -> int:
        for attempt in range(ATTEMPTS):
            try:
                return await function(page)
            except HEALS:
                if attempt == ATTEMPTS - 1:
                    raise
                await asyncio.sleep(random.uniform(0, min(CAP, BASE * 2**attempt)))
        raise AssertionError("unreachable")

    return looped


def full_service(store: redrive.Store | None = None) -> redrive.Service:
    """Classification, retries, breaker, budget, key pool, counters: all at their defaults, which are the policy."""
    return redrive.Service("bench", credentials=redrive.KeyPool([KEY, "bench-key-0002"]), store=store)


@contextmanager
def store() -> Iterator[redrive.Store]:
    """Where a service keeps its rollups and shares its circuit: a file, as by default."""
    with TemporaryDirectory() as directory, redrive.connect(Path(directory) / "redrive.db") as opened:
        yield opened


def patient_service() -> redrive.Service:
    """The same with a breaker and a budget that let a function fail for ever, to time the failures themselves."""
    return redrive.Service(
        "bench",
        retry=redrive.Retry(attempts=FAILING_ATTEMPTS),
        breaker=redrive.Breaker(rate=1.0, minimum=NEVER),
        budget=redrive.RetryBudget(reserve=NEVER),
        credentials=redrive.KeyPool([KEY, "bench-key-0002"]),
    )


def tenacity_options() -> dict[str, Any]:
    return {
        "stop": tenacity.stop_after_attempt(ATTEMPTS) | tenacity.stop_after_delay(WITHIN),
        "wait": tenacity.wait_random_exponential(multiplier=BASE, max=CAP),
        "retry": tenacity.retry_if_exception_type(HEALS),
        "reraise": True,
    }


def impatient_tenacity_options() -> dict[str, Any]:
    stop = tenacity.stop_after_attempt(FAILING_ATTEMPTS) | tenacity.stop_after_delay(WITHIN)
    return {**tenacity_options(), "stop": stop, "wait": tenacity.wait_none()}


def no_sleep(seconds: float) -> None:
    pass


def stamina_options(attempts: int = ATTEMPTS) -> dict[str, Any]:
    waits = {"wait_initial": BASE, "wait_max": CAP, "wait_jitter": 1.0}
    return {"on": HEALS, "attempts": attempts, "timeout": WITHIN, **waits}


def with_backoff(function: Callable) -> Callable:
    return backoff.on_exception(backoff.expo, HEALS, max_tries=ATTEMPTS, max_time=WITHIN, max_value=CAP)(function)


def impatient_backoff(function: Callable) -> Callable:
    options: dict[str, Any] = {"max_tries": FAILING_ATTEMPTS, "max_time": WITHIN, "jitter": None}
    return backoff.on_exception(backoff.constant, HEALS, interval=0, **options)(function)


def breaker(failures: int = FAILURES) -> pybreaker.CircuitBreaker:
    return pybreaker.CircuitBreaker(fail_max=failures, reset_timeout=COOLDOWN, success_threshold=PROBES)


# ── contenders ───────────────────────────────────────────────────────────────────────────────────────────────────────


COUNTED = "service.stats()"  # successes are counted in bulk once a second, and that belongs to the price


def sync_contenders(kept: redrive.Store) -> list[Contender]:
    service = full_service()
    return [
        *contenders(fetch, fetch_with_key, hand_written(fetch), kept),
        Contender(
            "redrive, INFO log",
            "decorated, and the logger redrive.attempts at INFO, to a sink: a line per success",
            "fetch(7)",
            {"fetch": service(fetch), "service": service},
            COUNTED,
            lambda: level(ATTEMPT_LOG, logging.INFO),
        ),
        Contender(
            "tenacity, block",
            "for attempt in Retrying(…): with attempt: fetch(7), the Retrying made once",
            "for attempt in retrying:\n    with attempt:\n        fetch(7)",
            {"retrying": tenacity.Retrying(**tenacity_options()), "fetch": fetch},
        ),
        Contender(
            "stamina, block",
            "for attempt in stamina.retry_context(…): with attempt: fetch(7)",
            "for attempt in context(**options):\n    with attempt:\n        fetch(7)",
            {"context": stamina.retry_context, "options": stamina_options(), "fetch": fetch},
        ),
        Contender("pybreaker", "@breaker, no retries", "fetch(7)", {"fetch": breaker()(fetch)}),
        tenacity_and_pybreaker(fetch),
    ]


def async_contenders(kept: redrive.Store) -> list[Contender]:
    return contenders(afetch, afetch_with_key, ahand_written(afetch), kept, wait="await ")


def contenders(
    function: Callable, keyed: Callable, looped: Callable, kept: redrive.Store, *, wait: str = ""
) -> list[Contender]:
    """What there is for functions and coroutines alike; `wait` stands before a call that is awaited."""
    service, recorded = full_service(), full_service(kept)
    plain = f"{wait}fetch(7)"
    call = f"{wait}service.{'acall' if wait else 'call'}(fetch, 7)"
    block = f"{'async ' if wait else ''}for attempt in service.attempts():\n    with attempt:\n        {plain}"

    def ours(name: str, contains: str, statement: str, fetch: Callable, over: str = BARE) -> Contender:
        return Contender(name, contains, statement, {"fetch": fetch, "service": service}, COUNTED, over=over)

    return [
        Contender(BARE, "the function itself, which returns its argument", plain, {"fetch": function}),
        Contender(
            BARE_KEYED,
            "the same with a keyword `credential`, passed by hand",
            f"{wait}fetch(7, credential=key)",
            {"fetch": keyed, "key": KEY},
        ),
        Contender(LOOP, "for attempt in range(5): try, except two types, sleep", plain, {"fetch": looped}),
        ours(
            REDRIVE,
            "decorated by a Service with classification, retries, breaker, budget, 2 keys and counters",
            plain,
            service(function),
        ),
        Contender(
            RECORDED,
            "the same with a store (SQLite): rollups on, circuit and keys shared",
            plain,
            {"fetch": recorded(function), "service": recorded},
            COUNTED,
        ),
        ours("redrive, gives key", "the same; the function is given its key", plain, service(keyed), BARE_KEYED),
        ours("redrive, call", f"{call} through the same Service", call, function),
        ours("redrive, block", "the body of `for attempt in service.attempts(): with attempt:`", block, function),
        Contender(
            "redrive.retry",
            "the one-liner: classification, retries, counters (their bulk count, once a second, not in the time)",
            plain,
            {"fetch": redrive.retry(function)},
        ),
        *peers(function, plain),
    ]


def peers(function: Callable, plain: str) -> list[Contender]:
    """The libraries that retry, by their decorators; they look for themselves whether a function is async."""
    with_tenacity = tenacity.retry(**tenacity_options())(function)
    with_stamina = stamina.retry(**stamina_options())(function)
    return [
        Contender("tenacity", "@tenacity.retry with stop, wait and retry set", plain, {"fetch": with_tenacity}),
        Contender("stamina", "@stamina.retry", plain, {"fetch": with_stamina}),
        Contender("backoff", "@backoff.on_exception with expo", plain, {"fetch": with_backoff(function)}),
    ]


def tenacity_and_pybreaker(function: Callable) -> Contender:
    guarded = tenacity.retry(**tenacity_options())(breaker()(function))
    return Contender("tenacity+pybreaker", "@tenacity.retry over @breaker", "fetch(7)", {"fetch": guarded})


def failing_contenders(function: Callable[[int], int]) -> list[Contender]:
    caught = "try:\n    fetch(7)\nexcept TimeoutError:\n    pass"
    service = patient_service()
    ours = {"fetch": service(function), "service": service}
    impatient = impatient_tenacity_options()
    noted = {**impatient, "before_sleep": tenacity.before_sleep_log(logging.getLogger("bench"), logging.WARNING)}
    stamina_retry = stamina.retry(**stamina_options(FAILING_ATTEMPTS))
    broken = breaker(NEVER)(function)
    retries = {
        "tenacity": ("nothing is logged; wait_none()", tenacity.retry(**impatient)),
        "tenacity, logs": ("the same with before_sleep_log: a line per retry", tenacity.retry(**noted)),
        "stamina": ("its own line per retry; stamina.set_testing", stamina_retry),
        "backoff": ("its own line per retry and one at the end; interval=0", impatient_backoff),
    }
    return [
        Contender(BARE, "three attempts, each caught: no guard at all", "\n".join([caught] * 3), {"fetch": function}),
        Contender(
            LOOP,
            "the loop with 3 attempts and a sleep that returns; nothing is logged",
            caught,
            {"fetch": hand_written(function, FAILING_ATTEMPTS, no_sleep)},
        ),
        Contender(
            REDRIVE,
            "full Service, breaker and budget set so that it continues; a WARNING line per attempt; set_testing",
            caught,
            ours,
            COUNTED,
        ),
        Contender(
            "redrive, lines off",
            "the same with the logger redrive.attempts at CRITICAL",
            caught,
            ours,
            COUNTED,
            lambda: level(ATTEMPT_LOG, logging.CRITICAL),
        ),
        *(
            Contender(name, contains, caught, {"fetch": decorate(function)})
            for name, (contains, decorate) in retries.items()
        ),
        Contender(
            "tenacity+pybreaker",
            "as tenacity, over a breaker that never opens",
            caught,
            {"fetch": tenacity.retry(**impatient)(broken)},
        ),
    ]


def check_attempts() -> None:
    """Make sure that all contenders do the same work before it is timed."""
    made = 0

    def counted(page: int) -> int:
        nonlocal made
        made += 1
        raise TimeoutError("no answer in time")

    for contender in failing_contenders(counted):
        made = 0
        compiled(contender, "def")(repeat(None, 1))
        assert made == FAILING_ATTEMPTS, f"{contender.name} made {made} attempts"


@contextmanager
def waits_off() -> Iterator[None]:
    """Each library's own test mode; and no sleep of 0 s, which takes the system some 50 µs, for those that still do."""
    with set_testing(), stamina.set_testing(True, attempts=FAILING_ATTEMPTS), mock.patch("time.sleep", no_sleep):
        yield


@contextmanager
def level(logger: logging.Logger, wanted: int) -> Iterator[None]:
    before = logger.level
    logger.setLevel(wanted)
    try:
        yield
    finally:
        logger.setLevel(before)
