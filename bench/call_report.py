"""The benchmark of calls in words: its tables, what they mean, and how redrive stands to its limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import measure
from call_guards import RECORDED, REDRIVE
from record import Figure, Table, Target, record

LIMIT_NS = 1_000

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


# ── for the record ────────────────────────────────────────────────────────────────────────────────────────────────────


def headline(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    added = {(row["section"], row["name"]): row["ns_added"] for row in rows if "ns_added" in row}
    return {
        "sync_ns_added": added["sync", REDRIVE],
        "async_ns_added": added["async", REDRIVE],
        "sync_ns_added_with_rollups": added["sync", RECORDED],
        "async_ns_added_with_rollups": added["async", RECORDED],
        "limit_ns": LIMIT_NS,
    }


def recorded(about: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    costs = [row for row in rows if row["section"] in TITLES and row["ns_added"] is not None]
    tables = []
    for section, title in TITLES.items():
        here = [row for row in costs if row["section"] == section]
        tables.append(Table(title, [added(row) for row in here], {row["name"]: row["contains"] for row in here}))
    threads = [figure for row in rows if row["section"] == "threads" for figure in by_threads(row)]
    end = headline(rows)
    targets = [
        Target("a full Service adds to a successful call", end["sync_ns_added"], "at most", LIMIT_NS, "ns"),
        Target(
            "a full Service with rollups in a store adds", end["sync_ns_added_with_rollups"], "at most", LIMIT_NS, "ns"
        ),
    ]
    return record(about, [*tables, Table("Calls per second by threads", threads)], targets=targets, notes=FOOTNOTES)


def added(row: dict[str, Any]) -> Figure:
    ratios = {"÷ loop": row["ratio_to_loop"], "÷ redrive": row["ratio_to_redrive"]}
    return Figure(row["name"], "added", "ns", row["ns_added"], row["spread"], ratios)


def by_threads(row: dict[str, Any]) -> list[Figure]:
    name = f"{row['name']}, {row['work']}"
    one, eight = row["calls_per_s_1_thread"], row["calls_per_s_8_threads"]
    return [
        Figure(name, "1 thread", "calls/s", one),
        Figure(name, "8 threads", "calls/s", eight, ratios={"8 ÷ 1": row["ratio_8_to_1"]}),
    ]
