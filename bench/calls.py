"""What a guarded call costs: redrive, hand-written code and its peers, in one run.

Four questions: a successful call in a thread, the same in a coroutine, a call that fails on all of its attempts, and
the throughput of several threads. Every contender calls the same function and is set to the same policy as far as it
has one: 5 attempts, waits of up to 1 s that double to 60 s with full jitter, 180 s in all, a breaker that opens after 5
failures for 30 s. Blocks of calls are timed in turn, round after round, and the fastest block counts, since other load
can only add time. The garbage collector stays on, as in production.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import call_report
import measure
from call_guards import (
    BARE,
    COUNTED,
    LOOP,
    REDRIVE,
    async_contenders,
    check_attempts,
    failing_contenders,
    fetch,
    fetch_in_vain,
    fetch_slowly,
    full_service,
    store,
    sync_contenders,
    tenacity_and_pybreaker,
    waits_off,
)
from measure import Contender, calls_for, compiled, throughput, timed
from record import spread

PACKAGES = ("redrive", "tenacity", "stamina", "backoff", "pybreaker")


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    rounds: int
    block_seconds: float
    thread_rounds: int
    thread_calls: int
    """Calls of 1 ms per thread."""


def cost_rows(section: str, contenders: Sequence[Contender], blocks: dict[str, list[float]]) -> list[dict[str, Any]]:
    ns = {name: min(taken) for name, taken in blocks.items()}
    added = {one.name: ns[one.name] - ns[one.over] for one in contenders}
    return [
        {
            "section": section,
            "name": one.name,
            "contains": one.contains,
            "ns_per_call": round(ns[one.name], 1),
            "ns_added": None if one.name.startswith(BARE) else round(added[one.name], 1),
            "spread": spread([taken - ns[one.over] for taken in blocks[one.name]], 1),
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
        rows = cost_rows("sync", plain, timed(plain, **how))
        rows += cost_rows("async", coroutines, timed(coroutines, **how, runner=runner))
    with waits_off():
        check_attempts()
        rows += cost_rows("failing", failing, timed(failing, **how))
    return rows + thread_rows(effort)


def main() -> None:
    asked = measure.asked(measure.options(__doc__, repeat=60))
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
        "headline": call_report.headline(rows),
        "record": call_report.recorded(__doc__, rows),
    }
    measure.publish(asked, document, call_report.report)


if __name__ == "__main__":
    main()
