"""User code that must type-check under mypy --strict; it is checked by `make lint`, never run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import assert_type

import httpx
import requests

import redrive
from redrive.model.calls import Event
from redrive.observe.log import JsonFormatter
from redrive.testing import Answer, FakeClock, FaultyServer, set_testing


class BankDown(Exception): ...


def hook(event: Event) -> None: ...


shipfast = redrive.Service(
    "shipfast",
    retry=redrive.Retry(attempts=5, base=1.0, cap=60.0, jitter="full", within=180.0),
    breaker=redrive.Breaker(failures=5, window=60.0, cooldown=30.0, probes=2),
    budget=redrive.RetryBudget(ratio=0.1, reserve=10),
    credentials=redrive.KeyPool(["k1", "k2"], resets="00:00 America/Los_Angeles"),
    classifier=redrive.Classifier().rule(status=409, kind="row").rule(BankDown, kind="transient"),
    timeout=10.0,
    fallback=None,
    on_event=hook,
)


@shipfast
def fetch(page: int, *, credential: str = "") -> dict[str, int]:
    return {"page": page}


@shipfast
async def afetch(page: int) -> list[int]:
    return [page]


assert_type(fetch(3), dict[str, int])


async def use() -> None:
    assert_type(await afetch(3), list[int])
    assert_type(await shipfast.acall(afetch, 3), list[int])
    async for attempt in shipfast.attempts():
        with attempt:
            await afetch(attempt.number)
    async with httpx.AsyncClient(transport=shipfast.httpx_transport(apply="X-Api-Key")) as client:
        await client.get("https://partner.example/")


def block() -> dict[str, int] | None:
    for attempt in shipfast.attempts():
        with attempt:
            return fetch(attempt.number)
    return None


@redrive.retry
def load() -> int:
    return 1


@redrive.retry(attempts=3, base=0.5)
def load_patiently(name: str) -> int:
    return len(name)


assert_type(load(), int)
assert_type(load_patiently("x"), int)
assert_type(shipfast.call(fetch, 1), dict[str, int])
assert_type(shipfast.with_options(fallback=0).call(load), int)
assert_type(redrive.classify(TimeoutError(), scope="task"), redrive.Verdict)
assert_type(redrive.classify(TimeoutError()).kind, redrive.Kind)

tokens: redrive.Token = redrive.Token(lambda: "token")


async def fetch_token() -> str:
    return "token"


def fetch_with_expiry() -> tuple[str, float]:
    return "token", 3_600.0


async def afetch_with_expiry() -> tuple[str, datetime]:
    return "token", datetime.now(UTC)


atokens: redrive.Token = redrive.Token(fetch_token)
short_lived = [redrive.Token(fetch_token, ttl=3_600), redrive.Token(lambda: "token", ttl=timedelta(hours=1))]
expiring = [redrive.Token(fetch_with_expiry), redrive.Token(afetch_with_expiry)]
assert_type(redrive.run_with_timeout(fetch, 30, 3, credential="k1"), dict[str, int])
assert_type(redrive.run_with_timeout(fetch_token, 30), str)


def keeping(store: redrive.Store) -> int:
    partner = redrive.Service(
        "partner",
        timeout=redrive.Timeout(connect=3, read=10, total=30),
        breaker_per="endpoint",
        dead_letters=store,
        pipeline="orders",
        on_discard="none",
        store=store,
    )
    partner.call(fetch, 1)
    store.dlq.replay(partner.replay_target(fetch), pipeline="orders", dry_run=False)
    return sum(one.attempts for one in store.services.endpoints("partner"))


end: Callable[[], None] = redrive.on_event(hook)
session = requests.Session()
session.mount("https://", shipfast.requests_adapter(apply="query:key"))
formatter = JsonFormatter()


def handle(error: Exception) -> float | None:
    if isinstance(error, redrive.CircuitOpen):
        return error.retry_in
    if isinstance(error, redrive.QuotaExhausted):
        return None if error.resets_at is None else error.resets_at.timestamp()
    return None


def testing() -> None:
    clock = FakeClock()
    redrive.Service("x", clock=clock)
    with set_testing(attempts=2), FaultyServer() as server:
        server.on("/", Answer(503, retry_after=1), Answer(json={}))


awaitable: Awaitable[list[int]] = afetch(1)


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def fix(record: dict[str, object]) -> dict[str, object] | None:
    return record


def pipeline(store: redrive.Store) -> redrive.Pipeline:
    def fetch(page: int) -> list[dict[str, object]]:
        return []

    paged = redrive.rows.pages(shipfast, fetch, in_flight=4, bad_page="quarantine")
    incremental = redrive.rows.query("sqlite:///x.db", "SELECT * FROM t", watermark="at", key="id")
    for source in (paged, incremental, redrive.rows.ndjson("x.ndjson"), redrive.rows.parquet("x.parquet")):
        redrive.Pipeline("all", source=source, sink=redrive.rows.parquet_dataset("out", key="id"))
    redrive.Pipeline("log", source=paged, sink=redrive.rows.table("sqlite:///x.db", "t", append=True))
    return redrive.Pipeline(
        "vendor",
        source=redrive.rows.csv("deliveries.csv", delimiter=";"),
        validate=fix,
        transform=redrive.rows.per_frame(lambda frame: frame.head(1)),
        sink=redrive.rows.table("sqlite:///x.db", "t", key=("a", "b"), create=True),
        gate=redrive.Gate(abort=0.5),
        sla="06:30 Asia/Kolkata",
        store=store,
    )


def run(store: redrive.Store) -> int:
    try:
        report: redrive.Report = pipeline(store).run(restart=True, deadline=60)
    except redrive.GateAborted as aborted:
        return 0 if aborted.report is None else aborted.report.rejected
    store.dlq.replay(pipeline(store), dry_run=False)
    return report.written


# ── tasks ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

flow = redrive.Flow("settlement", params={"day": "2025-03-01"}, workers=4, sla="06:30 Asia/Kolkata", on_event=hook)
flow.group(shipfast, concurrency=4, rate=10.0, when_open="hold")


@flow.sensor(every=60, timeout=7_200)
def ledger(day: str) -> str | None:
    return None


@flow.task(after=ledger)
def merchants(ledger: str) -> list[str]:
    return [ledger]


@flow.task(each=merchants, service=shipfast, retry=redrive.Retry(attempts=5), timeout=60, key=lambda merchant: merchant)
def settle(merchant: str, idempotency_key: str) -> int:
    return len(merchant + idempotency_key)


@flow.task(after=[settle, "merchants"], in_thread=True)
def total(settle: list[int]) -> int:
    return sum(settle)


@flow.task
def alone() -> None: ...


nightly = redrive.Flow("nightly", params=["day"], sla=7_200)
nightly.group(shipfast, concurrency=4, across_runs=True)


@nightly.run_sensor("settlement", every=60, timeout=7_200, within=86_400, on_failure="fail")
def settled(day: str) -> dict[str, str]:
    return {"day": day}


@nightly.task(after=settled, sla=1_800)
def choose(settled: dict[str, str]) -> redrive.Branch:
    if not settled:
        raise redrive.Skip("nothing was settled")
    return redrive.Branch("report", result=settled)


@nightly.task(after=choose, run_when="all_succeeded")
def report() -> None: ...


@nightly.task(after=choose)
def correct() -> None: ...


@nightly.task(after=[report, correct], run_when="none_failed")
def publish() -> None: ...


@nightly.task(after=publish, run_when="all_done")
def clean() -> None: ...


@nightly.task(after=publish, run_when="any_failed")
def page() -> None: ...


called: int = settle("M-1", idempotency_key="M-1")


def decide(store: redrive.Store) -> int:
    try:
        done: redrive.FlowReport = flow.run(params={"day": "2025-03-02"}, restart=True, deadline=60, store=store)
    except redrive.FlowStopped as held:
        return 0 if held.report is None else held.report.total
    flow.retry(settle, "settle[17]", note="mended")
    flow.accept(cause="ValueError@settlement:17", result=0, note="not worth it", run=done.run_id)
    flow.fail("merchants", note="given up")
    flow.skip("settle[3]", note="left")
    flow.reopen("settle[3]")
    flow.run(params={"day": "2025-03-02"}, new_run=True)
    assert_type(flow.rerun("merchants", note="the input was wrong").tasks, tuple[str, ...])
    assert_type(flow.cancel_tasks(settle, note="hangs").killed, tuple[str, ...])
    flow.cancel(note="wrong day", run=done.run_id)
    return done.attempts + len(flow.result(total)) + len(store.tasks.causes(done.run_id))


def on_call(store: redrive.Store) -> str | None:
    for alert in store.alerts.find(status="open", urgency="P1"):
        command: str = alert.facts.commands[0]
        told: list[str] = [send.channel for send in store.alerts.sends(alert.id)]
        if not told:
            return command
        store.alerts.acknowledge(alert.id, by="me", note="at it")
        store.alerts.resolve(alert.id, by="me", note="mended")
    busiest = max(store.services.windows("shipfast"), key=lambda window: window.attempts)
    return None if busiest.p95 is None else f"{busiest.p95:.3f} s, {busiest.transient_rate}"
