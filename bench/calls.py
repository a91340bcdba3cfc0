"""What a guarded call costs: redrive beside hand-written code and its peers, in one run.

Four questions: a successful call in a thread, the same in a coroutine, a call that fails on all of its attempts, and
what several threads get through together. Every contender calls the same function and is set to the same policy as
far as it has one: 5 attempts, waits of up to 1 s that double to 60 s with full jitter, 180 s in all, a breaker that
opens after 5 failures for 30 s. Blocks of calls are timed in turn, round after round, and the fastest block counts:
what else the machine does can only add. The garbage collector stays on, as in production.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import backoff
import measure
import pybreaker
import stamina
import tenacity
from measure import Contender, calls_for, compiled, fastest, throughput

import redrive
from redrive.testing import set_testing

PACKAGES = ("redrive", "tenacity", "stamina", "backoff", "pybreaker")
LIMIT_NS = 1_000
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
        "tenacity, logs": ("the same with before_sleep_log: a line per repeat", tenacity.retry(**noted)),
        "stamina": ("its own line per repeat; stamina.set_testing", stamina_retry),
        "backoff": ("its own line per repeat and one at the end; interval=0", impatient_backoff),
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
            "full Service, breaker and budget set to let it go on; a WARNING line per attempt; set_testing",
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


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    rounds: int
    block_seconds: float
    thread_rounds: int
    thread_calls: int
    """Calls of 1 ms per thread."""


def cost_rows(section: str, contenders: Sequence[Contender], ns: dict[str, float]) -> list[dict[str, Any]]:
    added = {one.name: ns[one.name] - ns[one.over] for one in contenders}
    return [
        {
            "section": section,
            "name": one.name,
            "contains": one.contains,
            "ns_per_call": round(ns[one.name], 1),
            "ns_added": None if one.name.startswith(BARE) else round(added[one.name], 1),
            "ratio_to_loop": None if one.name.startswith(BARE) else ratio(added[one.name], added[LOOP]),
            "ratio_to_redrive": None if one.name.startswith(BARE) else ratio(added[one.name], added[REDRIVE]),
        }
        for one in contenders
    ]


def ratio(value: float, base: float) -> float | None:
    """None where noise has eaten the base."""
    return round(value / base, 3) if base > 0 else None


def thread_rows(effort: Effort) -> list[dict[str, Any]]:
    return [
        thread_row(work, contender, effort, slow=function is fetch_slowly)
        for work, function in {"returns at once": fetch, "sleeps 1 ms": fetch_slowly}.items()
        for contender in thread_contenders(function)
    ]


def thread_contenders(function: Callable) -> list[Contender]:
    service = full_service()
    return [
        Contender(BARE, "", "fetch(7)", {"fetch": function}),
        Contender(REDRIVE, "", "fetch(7)", {"fetch": service(function), "service": service}, COUNTED),
        tenacity_and_pybreaker(function),
    ]


def thread_row(work: str, contender: Contender, effort: Effort, *, slow: bool) -> dict[str, Any]:
    block = compiled(contender, "def")
    if slow:
        calls = {1: effort.thread_calls, 8: effort.thread_calls}
    else:
        # Long enough that the interpreter switches threads many times: it does so every 5 ms.
        total = calls_for(20 * effort.block_seconds, lambda count: block(repeat(None, count)))
        calls = {1: total, 8: total // 8}
    best = {
        threads: max(throughput(block, threads, count) for _ in range(effort.thread_rounds))
        for threads, count in calls.items()
    }
    return {
        "section": "threads",
        "name": contender.name,
        "work": work,
        "calls_per_s_1_thread": round(best[1]),
        "calls_per_s_8_threads": round(best[8]),
        "ratio_8_to_1": round(best[8] / best[1], 2),
    }


def measured(effort: Effort) -> list[dict[str, Any]]:
    failing = failing_contenders(fetch_in_vain)
    how = {"rounds": effort.rounds, "block_seconds": effort.block_seconds}
    with store() as kept, asyncio.Runner() as runner:
        plain, coroutines = sync_contenders(kept), async_contenders(kept)
        rows = cost_rows("sync", plain, fastest(plain, **how))
        rows += cost_rows("async", coroutines, fastest(coroutines, **how, runner=runner))
    with waits_off():
        check_attempts()
        rows += cost_rows("failing", failing, fastest(failing, **how))
    return rows + thread_rows(effort)


def headline(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    added = {(row["section"], row["name"]): row["ns_added"] for row in rows if "ns_added" in row}
    return {
        "sync_ns_added": added["sync", REDRIVE],
        "async_ns_added": added["async", REDRIVE],
        "sync_ns_added_with_rollups": added["sync", RECORDED],
        "async_ns_added_with_rollups": added["async", RECORDED],
        "limit_ns": LIMIT_NS,
    }


# ── printing ─────────────────────────────────────────────────────────────────────────────────────────────────────────

TITLES = {
    "sync": "A successful call, in a thread",
    "async": "A successful call, in a coroutine",
    "failing": "A call that times out on each of 3 attempts, waits switched off",
}
FOOTNOTES = (
    "Added: over the bare row that does the same. ÷ loop and ÷ redrive: what is added, as a multiple of what the "
    "hand-written loop adds and of what a full Service adds.",
    "pybreaker is missing among the coroutines: its call_async is written for Tornado, not for asyncio.",
    "Failing calls log as each library does by itself, at its own level, with the root logger at WARNING and all lines "
    "handed to a handler that drops them: making a line is in the time, writing it is not. The bare row is one call of "
    "three attempts, so that what is added is the guard alone. Waits are off by each library's own means, and "
    "time.sleep does nothing.",
    "Threads: with a function that returns at once, only one thread runs at a time whatever guards it. With one that "
    "sleeps 1 ms, 8 threads get through 8 times as much unless a lock is held while the function runs.",
)


def report(document: dict[str, Any]) -> str:
    rows = document["rows"]
    costs = [cost_table(section, [row for row in rows if row["section"] == section]) for section in TITLES]
    end = document["headline"]
    return "\n\n".join(
        [
            measure.heading(document["environment"]),
            *costs,
            thread_table([row for row in rows if row["section"] == "threads"]),
            *map(measure.paragraph, FOOTNOTES),
            f"a full Service adds {measure.number(end['sync_ns_added'])} ns to a successful sync call, "
            f"{measure.number(end['async_ns_added'])} ns to an async one;\n"
            f"with rollups {measure.number(end['sync_ns_added_with_rollups'])} ns and "
            f"{measure.number(end['async_ns_added_with_rollups'])} ns; limit {measure.number(end['limit_ns'])} ns",
        ]
    )


def cost_table(section: str, rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        (
            row["name"],
            measure.number(row["ns_per_call"]),
            measure.number(row["ns_added"]),
            measure.number(row["ratio_to_loop"], 1),
            measure.number(row["ratio_to_redrive"], 2),
        )
        for row in rows
    ]
    table = measure.table(TITLES[section], ("", "ns per call", "ns added", "÷ loop", "÷ redrive"), lines)
    return f"{table}\n\n{measure.glossary('Rows:', {row['name']: row['contains'] for row in rows})}"


def thread_table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        (
            f"{row['name']}, {row['work']}",
            measure.number(row["calls_per_s_1_thread"]),
            measure.number(row["calls_per_s_8_threads"]),
            measure.number(row["ratio_8_to_1"], 2),
        )
        for row in rows
    ]
    return measure.table("Calls per second by threads", ("function", "1 thread", "8 threads", "8 ÷ 1"), lines)


def main() -> None:
    asked = measure.options(__doc__.partition("\n")[0], repeat=60).parse_args()
    logging.basicConfig(level=logging.WARNING, handlers=[logging.NullHandler()])
    effort = Effort(asked.repeat, 0.005, 5, 50)
    if asked.quick:
        effort = Effort(min(asked.repeat, 3), 0.0005, 1, 5)
    rows = measured(effort)
    document = {
        "benchmark": "calls",
        "environment": measure.environment(*PACKAGES),
        "rounds": effort.rounds,
        "quick": asked.quick,
        "rows": rows,
        "headline": headline(rows),
    }
    print(measure.document(document) if asked.json else report(document))


if __name__ == "__main__":
    main()
