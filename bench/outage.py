"""500 clients, one server that dies for five seconds: what reaches it in the seconds after it is back.

Each client acts as a separate process: with its own service, breaker and random numbers. It makes one request, gets its
answer after a second, pauses, and makes the next one; a failed request is made again, never dropped. A fifth of the
clients is waiting for an answer when the server dies, and so fails at the same instant.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

import measure
from record import Figure, Table, Target, record

import redrive
from redrive.testing import Answer, FaultyServer

LATENCY = 1.0
BUCKET = 1.0
LIMIT = 2.0  # × the normal rate, for clients that ask every two seconds

Fetch = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Plan:
    """The course of one experiment, in seconds."""

    clients: int
    think: float
    warm_up: float
    outage: float
    watch: float
    """How long the peak is looked for."""
    patience: float
    """How long is waited until every client is served again."""


async def fetch(url: str) -> None:
    """One request on a connection of its own, by hand: a client library would cost more than what is measured."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(b"GET /work HTTP/1.1\r\nHost: work\r\nConnection: close\r\n\r\n")
        if not (await reader.read()).startswith(b"HTTP/1.1 200"):
            raise ConnectionResetError("no answer")
    finally:
        writer.close()


# ── strategies: how a client asks until it has an answer ────────────────────────────────────────────────────────


async def fixed_retry(ask: Fetch, _seed: int) -> None:
    """The loop most programs have: on error, sleep a second and ask again."""
    while True:
        try:
            return await ask()
        except OSError:
            await asyncio.sleep(1)


def by_service(make: Callable[[random.Random], redrive.Service]) -> Callable[[Fetch, int], Awaitable[None]]:
    """A client that asks through a service, and comes back when its error says so."""
    services: dict[int, redrive.Service] = {}

    async def ask_until_answered(ask: Fetch, client: int) -> None:
        service = services.setdefault(client, make(random.Random(client)))
        while True:
            try:
                return await service.acall(ask)
            except (OSError, redrive.CircuitOpen) as error:
                story = error.redrive  # type: ignore[union-attr]  # every error of a service carries it
                await asyncio.sleep(LATENCY if story.retry_in is None else story.retry_in)

    return ask_until_answered


def breaker_only(jitter: float) -> Callable[[random.Random], redrive.Service]:
    """No retries: the first failure opens the circuit for six seconds, give or take the jitter."""

    def make(chance: random.Random) -> redrive.Service:
        breaker = redrive.Breaker(failures=1, cooldown=6, probes=1, jitter=jitter)
        return redrive.Service("work", retry=None, breaker=breaker, random=chance)

    return make


STRATEGIES = {
    "fixed 1 s retry": fixed_retry,
    "breakers, cool-down without jitter": by_service(breaker_only(0.0)),
    "breakers, cool-down ± 20 %": by_service(breaker_only(0.2)),
    "redrive as it comes": by_service(lambda chance: redrive.Service("work", random=chance)),
}


# ── the experiment ──────────────────────────────────────────────────────────────────────────────────────────────


async def experiment(name: str, plan: Plan) -> dict[str, Any]:
    """Run one strategy against a server of its own; one at a time, or they would disturb each other."""
    loop, strategy = asyncio.get_running_loop(), STRATEGIES[name]
    asked = 0
    served_again: set[int] = set()
    back_at = float("inf")
    async with FaultyServer() as server:
        server.on("/work", Answer(json={}, delay=LATENCY))

        async def ask() -> None:
            nonlocal asked
            asked += 1
            await fetch(server.url)

        async def client(number: int) -> None:
            await asyncio.sleep(random.Random(number).uniform(0, plan.think + LATENCY))
            while True:
                await strategy(ask, number)
                if loop.time() > back_at:
                    served_again.add(number)
                    if len(served_again) == plan.clients:
                        all_served.set_result(loop.time() - back_at)
                await asyncio.sleep(plan.think)

        all_served: asyncio.Future[float] = loop.create_future()
        clients = [asyncio.create_task(client(number)) for number in range(plan.clients)]
        await asyncio.sleep(plan.warm_up)
        died_at, asked_before = loop.time(), asked
        server.down()
        await asyncio.sleep(plan.outage)
        back_at, asked_while_down = loop.time(), asked - asked_before
        server.up()
        await asyncio.sleep(plan.watch)
        await asyncio.wait([all_served], timeout=plan.patience - plan.watch)
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        times = server.times("/work")
    # The first round is still finding its pace: the normal rate is that of the last round before the outage.
    settled = [at for at in times if died_at - (plan.think + LATENCY) <= at < died_at]
    normal = len(settled) / (plan.think + LATENCY)
    return {
        "strategy": name,
        "asks_every_s": plan.think + LATENCY,
        "normal_per_s": round(normal, 1),
        "peak_per_s": peak(times, back_at, BUCKET),
        "peak_to_normal": round(peak(times, back_at, BUCKET) / normal, 2),
        "burst_to_normal": round(peak(times, back_at, BUCKET / 10) * 10 / normal, 2),
        "asked_while_down": asked_while_down,
        "all_served_after_s": round(all_served.result(), 1) if all_served.done() else None,
    }


def one_by_one(plans: list[Plan]) -> list[dict[str, Any]]:
    rows = []
    for plan in plans:
        for name in STRATEGIES:
            rows.append(asyncio.run(experiment(name, plan)))
            measure.tell(f"{name}, {plan.think:g} s of thought: {rows[-1]['peak_to_normal']} × the normal rate")
    return rows


async def together(plan: Plan) -> list[dict[str, Any]]:
    """For a quick look, where nobody minds if they disturb each other."""
    return await asyncio.gather(*(experiment(name, plan) for name in STRATEGIES))


def peak(times: list[float], since: float, width: float) -> int:
    """The most requests in any stretch of so many seconds, wherever it begins."""
    late = [at for at in times if at >= since]
    most = first = 0
    for last, at in enumerate(late):
        while at - late[first] >= width:
            first += 1
        most = max(most, last - first + 1)
    return most


# ── in words, and for the record ────────────────────────────────────────────────────────────────────────────────


def report(document: dict[str, Any]) -> str:
    """The figures for people."""
    tables = [
        in_text(title, [row for row in document["rows"] if row["asks_every_s"] == every])
        for every, title in titles(document["rows"], document["plans"][0]).items()
    ]
    verdict = f"redrive as it comes peaks at {ours(document['rows']):.2f} × the normal rate after recovery; limit 2 ×"
    return "\n\n".join([measure.heading(document["environment"]), *tables, measure.paragraph(verdict)])


def titles(rows: list[dict[str, Any]], plan: dict[str, Any]) -> dict[float, str]:
    """By how often a client asks."""
    course = f"{plan['clients']:,} clients, a server that dies for {plan['outage']:g} s"
    return {row["asks_every_s"]: f"{course}, a request every {row['asks_every_s']:g} s each" for row in rows}


def in_text(title: str, rows: list[dict[str, Any]]) -> str:
    cells = [
        (
            row["strategy"],
            measure.number(row["normal_per_s"]),
            measure.number(row["peak_per_s"]),
            f"{row['peak_to_normal']:.2f} ×",
            f"{row['burst_to_normal']:.1f} ×",
            measure.number(row["asked_while_down"]),
            measure.number(row["all_served_after_s"], 1),
        )
        for row in rows
    ]
    header = ("requests per second", "normal", "peak", "peak/normal", "in 0.1 s", "while down", "all back, s")
    return measure.table(title, header, cells)


def ours(rows: list[dict[str, Any]]) -> float:
    """What the limit is about."""
    return rows[len(STRATEGIES) - 1]["peak_to_normal"]


def recorded(rows: list[dict[str, Any]], plan: dict[str, Any]) -> dict[str, Any]:
    tables = [
        Table(title, [figure for row in rows if row["asks_every_s"] == every for figure in figures(row)])
        for every, title in titles(rows, plan).items()
    ]
    limit = Target("peak of redrive as it comes after an outage", ours(rows), "at most", LIMIT, "× the normal rate")
    notes = ["Peak: the most requests in any second after the server is back; burst: in any tenth of a second, × 10."]
    return record(__doc__, tables, targets=[limit], notes=notes)


def figures(row: dict[str, Any]) -> list[Figure]:
    who = row["strategy"]
    return [
        Figure(who, "normal", "requests/s", row["normal_per_s"]),
        Figure(who, "peak", "requests/s", row["peak_per_s"], ratios={"peak ÷ normal": row["peak_to_normal"]}),
        Figure(who, "burst ÷ normal", "×", row["burst_to_normal"]),
        Figure(who, "asked while down", "requests", row["asked_while_down"]),
        Figure(who, "all served after", "s", row["all_served_after_s"]),
    ]


def main() -> None:
    parser = measure.options(__doc__)
    parser.add_argument("--clients", type=measure.positive, default=500)
    think = "seconds between an answer and the next request (1 and 4)"
    parser.add_argument("--think", type=float, nargs="+", default=[1.0, 4.0], help=think)
    asked = measure.asked(parser)
    plans = [Plan(asked.clients, think, warm_up=8.0, outage=5.0, watch=10.0, patience=45.0) for think in asked.think]
    if asked.quick:
        plans = [Plan(min(asked.clients, 20), think=0.2, warm_up=1.5, outage=0.5, watch=0.5, patience=1.0)]
    logging.disable()  # thousands of attempts are meant to fail
    rows = asyncio.run(together(plans[0])) if asked.quick else one_by_one(plans)
    document = {
        "benchmark": "outage",
        "quick": asked.quick,
        "environment": measure.environment("redrive"),
        "plans": [asdict(plan) for plan in plans],
        "rows": rows,
        "record": recorded(rows, asdict(plans[0])),
    }
    measure.publish(asked, document, report)


if __name__ == "__main__":
    main()
