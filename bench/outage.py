"""500 clients, one server that dies for five seconds: what reaches it in the seconds after it is back.

Each client is a process of its own in spirit: its own service, breaker and chance. It asks for one piece of work,
takes a second to be answered, thinks, asks again; work that failed is asked for again, never dropped. A fifth of
the clients is waiting for an answer when the server dies, and so fails in the very same instant.
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

import redrive
from redrive.testing import Answer, FaultyServer

LATENCY = 1.0
BUCKET = 1.0

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
        "normal_per_s": round(normal, 1),
        "peak_per_s": peak(times, back_at, BUCKET),
        "peak_to_normal": round(peak(times, back_at, BUCKET) / normal, 2),
        "burst_to_normal": round(peak(times, back_at, BUCKET / 10) * 10 / normal, 2),
        "asked_while_down": asked_while_down,
        "all_served_after_s": round(all_served.result(), 1) if all_served.done() else None,
    }


def peak(times: list[float], since: float, width: float) -> int:
    """The most requests in any stretch of so many seconds, wherever it begins."""
    late = [at for at in times if at >= since]
    most = first = 0
    for last, at in enumerate(late):
        while at - late[first] >= width:
            first += 1
        most = max(most, last - first + 1)
    return most


def report(plan: Plan, rows: list[dict[str, Any]]) -> str:
    """The figures for people."""
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
    title = f"{plan.clients} clients, a server that dies for {plan.outage:g} s; requests per second once it is back"
    header = ("strategy", "normal", "peak", "peak/normal", "in 0.1 s", "asked while down", "all served after s")
    ours = rows[-1]["peak_to_normal"]
    verdict = f"redrive as it comes peaks at {ours:.2f} × the normal rate after recovery; limit 2 ×"
    return "\n\n".join([measure.table(title, header, cells), measure.paragraph(verdict)])


def main() -> None:
    parser = measure.options("What 500 clients do to a server that comes back after five seconds.", repeat=1)
    parser.add_argument("--clients", type=measure.positive, default=500)
    parser.add_argument("--think", type=float, default=1.0, help="seconds between an answer and the next request")
    options = parser.parse_args()
    plan = Plan(options.clients, options.think, warm_up=8.0, outage=5.0, watch=10.0, patience=45.0)
    if options.quick:
        plan = Plan(min(options.clients, 20), think=0.2, warm_up=1.5, outage=0.5, watch=0.5, patience=1.0)
    logging.disable()  # thousands of attempts are meant to fail
    where = measure.environment("redrive")
    rows = [asyncio.run(experiment(name, plan)) for name in STRATEGIES]
    if options.json:
        facts = {"benchmark": "outage", "quick": options.quick, "environment": where, "plan": asdict(plan)}
        print(measure.document({**facts, "rows": rows}))
    else:
        print(measure.heading(where), report(plan, rows), sep="\n\n")


if __name__ == "__main__":
    main()
