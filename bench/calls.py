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
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import repeat
from textwrap import dedent, indent
from typing import Any
from unittest import mock

import backoff
import measure
import pybreaker
import stamina
import tenacity

import redrive
from redrive.testing import set_testing

PACKAGES = ("redrive", "tenacity", "stamina", "backoff", "pybreaker")
LIMIT_NS = 1_000
BARE, LOOP, REDRIVE = "bare", "hand-written loop", "redrive"

HEALS = (TimeoutError, ConnectionError)
ATTEMPTS, BASE, CAP, WITHIN = 5, 1.0, 60.0, 180.0
FAILURES, COOLDOWN, PROBES = 5, 30.0, 2
FAILING_ATTEMPTS = 3
NEVER = 10**9  # a breaker or budget that does its work but does not step in
KEY = "bench-key-0001"

ATTEMPT_LOG = logging.getLogger("redrive.attempts")

TIMED = """
{kind} block(times):
    began = clock()
    for _ in times:
{statement}
    {afterwards}
    return clock() - began
"""


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


def full_service() -> redrive.Service:
    """Classification, retries, breaker, budget, key pool, counters: all at their defaults, which are the policy."""
    return redrive.Service("bench", credentials=redrive.KeyPool([KEY, "bench-key-0002"]))


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


@dataclass(frozen=True)
class Contender:
    """One row: the statement a user would write, and what it stands for."""

    name: str
    contains: str
    statement: str
    names: dict[str, Any] = field(default_factory=dict)
    afterwards: str = "pass"
    """Timed with the calls: work a library put off while they ran."""
    setting: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Put in force around a block, outside its time."""
    over: str = BARE
    """The row that does the same without a guard."""


FULL = "decorated function of a Service with classification, retries, breaker, budget, 2 keys and counters"
COUNTED = "service.stats()"  # successes are counted in bulk once a second, and that belongs to the price


def sync_contenders() -> list[Contender]:
    service = full_service()
    key = {"fetch": service(fetch_with_key)}
    block = """
        for attempt in service.attempts():
            with attempt:
                fetch(7)
        """

    def ours(name: str, contains: str, statement: str = "fetch(7)", **more: Any) -> Contender:
        names = {"service": service, **more.pop("names", {"fetch": fetch})}
        return Contender(name, contains, dedent(statement).strip(), names, COUNTED, **more)

    return [
        Contender(BARE, "the function itself, which returns its argument", "fetch(7)", {"fetch": fetch}),
        Contender(
            "bare, given a key",
            "the same function with a keyword `credential`, passed by hand",
            "fetch(7, credential=key)",
            {"fetch": fetch_with_key, "key": KEY},
        ),
        Contender(
            LOOP,
            "for attempt in range(5): try, except two types, sleep with jitter",
            "fetch(7)",
            {"fetch": hand_written(fetch)},
        ),
        ours(REDRIVE, FULL, names={"fetch": service(fetch)}),
        ours(
            "redrive, gives key", "the same, of a function that is given its key", names=key, over="bare, given a key"
        ),
        ours("redrive, call", "service.call(fetch, 7) through the same Service", "service.call(fetch, 7)"),
        ours("redrive, block", "for attempt in service.attempts(): with attempt: fetch(7)", block),
        ours(
            "redrive, INFO log",
            "decorated, and the logger redrive.attempts at INFO, to a sink: a line per success",
            names={"fetch": service(fetch)},
            setting=lambda: level(ATTEMPT_LOG, logging.INFO),
        ),
        Contender(
            "redrive.retry",
            "the one-liner: classification, retries, counters (their bulk count, once a second, not in the time)",
            "fetch(7)",
            {"fetch": redrive.retry(fetch)},
        ),
        *peers(fetch),
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


def async_contenders() -> list[Contender]:
    service = full_service()
    block = """
        async for attempt in service.attempts():
            with attempt:
                await fetch(7)
        """

    def ours(name: str, contains: str, statement: str = "await fetch(7)", **more: Any) -> Contender:
        names = {"service": service, **more.pop("names", {"fetch": afetch})}
        return Contender(name, contains, dedent(statement).strip(), names, COUNTED, **more)

    return [
        Contender(BARE, "await of the coroutine itself", "await fetch(7)", {"fetch": afetch}),
        Contender(
            "bare, given a key",
            "the same with a keyword `credential`, passed by hand",
            "await fetch(7, credential=key)",
            {"fetch": afetch_with_key, "key": KEY},
        ),
        Contender(LOOP, "as above, with asyncio.sleep", "await fetch(7)", {"fetch": ahand_written(afetch)}),
        ours(REDRIVE, FULL, names={"fetch": service(afetch)}),
        ours(
            "redrive, gives key",
            "the same, of a function that is given its key",
            names={"fetch": service(afetch_with_key)},
            over="bare, given a key",
        ),
        ours("redrive, call", "await service.acall(fetch, 7)", "await service.acall(fetch, 7)"),
        ours("redrive, block", "async for attempt in service.attempts(): with attempt: …", block),
        Contender("redrive.retry", "the one-liner", "await fetch(7)", {"fetch": redrive.retry(afetch)}),
        *(Contender(peer.name, peer.contains, f"await {peer.statement}", peer.names) for peer in peers(afetch)),
    ]


def peers(function: Callable) -> list[Contender]:
    """The libraries that retry, by their decorators; they look for themselves whether a function is async."""
    return [
        Contender(
            "tenacity",
            "@tenacity.retry with stop, wait and retry set",
            "fetch(7)",
            {"fetch": tenacity.retry(**tenacity_options())(function)},
        ),
        Contender("stamina", "@stamina.retry", "fetch(7)", {"fetch": stamina.retry(**stamina_options())(function)}),
        Contender("backoff", "@backoff.on_exception with expo", "fetch(7)", {"fetch": with_backoff(function)}),
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


# ── timing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    rounds: int
    block_seconds: float
    thread_rounds: int
    thread_calls: int
    """Calls of 1 ms per thread."""


def compiled(contender: Contender, kind: str) -> Callable:
    """A loop of its own for each contender, as timeit makes one: a shared loop would be tuned to its last function."""
    source = TIMED.format(kind=kind, statement=indent(contender.statement, " " * 8), afterwards=contender.afterwards)
    names = {"clock": time.perf_counter, **contender.names}
    exec(compile(source, f"<{contender.name}>", "exec"), names)
    return names["block"]


def fastest(
    contenders: Sequence[Contender], effort: Effort, *, runner: asyncio.Runner | None = None
) -> dict[str, float]:
    """Nanoseconds per call of each contender's fastest block."""

    def seconds(name: str, calls: int) -> float:
        with settings[name]():
            made = blocks[name](repeat(None, calls))
            return made if runner is None else runner.run(made)

    blocks = {one.name: compiled(one, "def" if runner is None else "async def") for one in contenders}
    settings = {one.name: one.setting for one in contenders}
    calls = {name: calls_for(effort.block_seconds, lambda count, name=name: seconds(name, count)) for name in blocks}
    best = dict.fromkeys(blocks, float("inf"))
    for _ in range(effort.rounds):
        for name, count in calls.items():
            best[name] = min(best[name], seconds(name, count) / count)
    return {name: value * 1e9 for name, value in best.items()}


def calls_for(wanted: float, seconds: Callable[[int], float]) -> int:
    """How many calls fill a block of the wanted length; finding out warms the contender up."""
    count = 10
    while (taken := seconds(count)) < wanted / 4:
        count *= 4
    return max(10, round(count * wanted / taken))


def throughput(block: Callable, threads: int, calls: int) -> float:
    """Calls per second of several threads, `calls` each, from their common start to the last one's end."""
    ready = threading.Barrier(threads + 1)

    def work() -> None:
        ready.wait()
        block(repeat(None, calls))

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    ready.wait()
    began = time.perf_counter()
    for worker in workers:
        worker.join()
    return threads * calls / (time.perf_counter() - began)


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


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
    plain, coroutines, failing = sync_contenders(), async_contenders(), failing_contenders(fetch_in_vain)
    rows = cost_rows("sync", plain, fastest(plain, effort))
    with asyncio.Runner() as runner:
        rows += cost_rows("async", coroutines, fastest(coroutines, effort, runner=runner))
    with waits_off():
        check_attempts()
        rows += cost_rows("failing", failing, fastest(failing, effort))
    return rows + thread_rows(effort)


def headline(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    added = {row["section"]: row["ns_added"] for row in rows if row["name"] == REDRIVE and "ns_added" in row}
    return {"sync_ns_added": added["sync"], "async_ns_added": added["async"], "limit_ns": LIMIT_NS}


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
            f"{measure.number(end['async_ns_added'])} ns to an async one; limit {measure.number(end['limit_ns'])} ns",
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
