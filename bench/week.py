"""A week of ten pipelines, on a clock that does not wait: the alerts that are sent, beside a message for every error.

Pipelines, services, store, rules, watch and outbox are the real ones; only the time and the calls are simulated. A week
without faults comes first, to establish what is usual. In the measured week: a carrier that is down for an hour, a
credential that expires, a vendor's file with 3 % invalid rows and another with 7 %, a deploy every working day, a run
that is not started, one that is killed, and one call in fifty that meets a 503.
"""

from __future__ import annotations

import heapq
import logging
import random
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, time, timedelta
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock
from zoneinfo import ZoneInfo

import httpx
import measure
from record import Figure, Table, record

import redrive
from redrive.alerts.config.settings import AlertSettings, PipelineSettings, Quiet
from redrive.alerts.facts.collector import LevelCollector
from redrive.alerts.service import Alerts
from redrive.alerts.watch import Watch
from redrive.calls.metrics import publisher
from redrive.errors import RunStopped, StoreError
from redrive.model.alerts import AlertStatus, Severity
from redrive.model.calls import Attempt, Event
from redrive.model.runs import RunEnded, RunStatus
from redrive.rows.checkpoint import PipelineRunHandle
from redrive.testing import FakeClock

MONDAY = datetime(2026, 11, 2, tzinfo=UTC)  # of the week that counts
WEEK = timedelta(days=7)
WARM_UP = timedelta(hours=12)  # between two looks of the watch in the days before, of which nothing is counted
ON_CALL = timedelta(minutes=20)  # until somebody says that he is at it
ROWS, CALLS = 600, 120

VENDOR_FILE = {"rows": 1_800, "bad": 54}  # the vendor's week in small: 3 %

# What goes wrong, by hours of the week that counts.
OUTAGE = (50.0, 51.0)  # Wednesday, 02:00 to 03:00: the carrier is down
EXPIRED = (81.0, 81.75)  # Thursday, 09:00: the bank's credential is refused until somebody renews it
DEPLOYS = tuple(14.0 + 24 * day for day in range(5))  # every working day at 14:00


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How many days go before the week that counts, and how often the watch looks in it."""

    before: int
    calm: timedelta
    close: timedelta
    """While an alert is about to open or to resolve."""


WHOLE = Pace(before=7, calm=timedelta(hours=1), close=timedelta(minutes=1))
SHORT = Pace(before=1, calm=timedelta(hours=3), close=timedelta(minutes=3))


@dataclass(frozen=True, slots=True)
class Told:
    """A message, as it went out."""

    at: datetime
    what: str
    urgency: str
    subject: str
    title: str


@dataclass(slots=True)
class Week:
    """What was told, and what happened."""

    told: list[Told] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    looks: int = 0


class World:
    """Ten pipelines, three services, one store and one watch, on one clock."""

    def __init__(self, here: Path, pace: Pace, *, seed: int) -> None:
        self.pace = pace
        self.clock = FakeClock(MONDAY - timedelta(days=pace.before))
        self.chance = random.Random(seed)
        self.week = Week()
        self.store = redrive.connect(here / "redrive.db")
        # Everything that is stored goes by the clock of the database.
        dialect: Any = self.store.database.dialect
        dialect.now = lambda connection: self.clock.now()
        self.settings = AlertSettings(
            quiet=Quiet(time(22), time(7), ZoneInfo("Europe/Berlin")),
            pipelines={"vendor": PipelineSettings(runbook=("ask the vendor for a corrected file",))},
        )
        self.store.__dict__["alerts"] = self.desk = Alerts(self.store.database, self.settings)
        self.desk.sender.ring = lambda: None  # what is due goes out when the watch looks, and at no other time
        self.watch = Watch(self.store.database, self.desk, LevelCollector(self.store.database, self.settings))
        self._table = here / "warehouse.db"
        self._ids = count()
        self.shipfast, self.bank, self.crm_api = (self._service(name) for name in ("shipfast", "bank", "crm"))
        self._agenda: list[tuple[datetime, int, Callable[[], None]]] = []
        self._order = count()

    def _service(self, name: str) -> redrive.Service:
        return redrive.Service(name, store=self.store, clock=self.clock, random=self.chance, on_event=self._count)

    def _count(self, event: Event) -> None:
        if isinstance(event, Attempt) and event.outcome != "success" and self.counts:
            self.week.errors["failed attempts"] += 1
        elif isinstance(event, RunEnded) and self.counts:
            self.week.runs += 1
            self.week.errors["failed runs"] += event.report.status in (RunStatus.FAILED, RunStatus.ABORTED)
            self.week.errors["rejected rows"] += event.report.rejected

    # ── time ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def hour(self) -> float:
        """Hours since the week began that counts; before that, less than nothing."""
        return (self.clock.now() - MONDAY).total_seconds() / 3_600

    @property
    def counts(self) -> bool:
        return self.hour >= 0

    def within(self, span: tuple[float, float]) -> bool:
        return span[0] <= self.hour < span[1]

    def at(self, moment: datetime, work: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (moment, next(self._order), work))

    def go(self) -> Week:
        """Do what is on the agenda, and look at it all in between."""
        ends = MONDAY + WEEK
        with self._hearing():
            looked, troubled = None, False
            while self.clock.now() < ends:
                pause = (self.pace.close if troubled else self.pace.calm) if self.counts else WARM_UP
                due = bool(self._agenda) and self._agenda[0][0] <= self.clock.now()
                # A run that fails is given time to recover only where a watch has looked recently.
                if looked is None or self.clock.now() - looked >= pause or (due and self.counts):
                    self._look()
                    looked, troubled = self.clock.now(), self._is_troubled()
                if due:
                    heapq.heappop(self._agenda)[2]()
                    troubled = self._is_troubled()
                    continue
                until = min(looked + pause, ends, *(entry[0] for entry in self._agenda[:1]))
                self.clock.advance(max(0.0, (until - self.clock.now()).total_seconds()))
        return self.week

    def _look(self) -> None:
        publisher.flush()
        self.watch.check()
        if self.watch.failed:
            raise self.watch.failed[0]
        for alert in self.desk.find(status="open"):
            if alert.urgency is Severity.P1 and alert.opened_at and self.clock.now() - alert.opened_at >= ON_CALL:
                self.desk.acknowledge(alert.id, by="on call")
        self.week.looks += 1

    def _is_troubled(self) -> bool:
        """Whether an alert is about to open or to resolve."""
        return any(
            alert.status is not AlertStatus.ACKNOWLEDGED and alert.urgency is not Severity.P3
            for alert in self.desk.find(status="open")
        )

    @contextmanager
    def _hearing(self) -> Iterator[None]:
        """What goes out, by way of the log."""

        class Ear(logging.Handler):
            def emit(ear, record: logging.LogRecord) -> None:
                document = getattr(record, "alert", None)
                if document is not None and self.counts:
                    self.week.told.append(_told(self.clock.now(), document))

        ear, log = Ear(), logging.getLogger("redrive.alerts")
        log.addHandler(ear)
        log.propagate = False
        log.setLevel(logging.INFO)
        try:
            yield
        finally:
            log.removeHandler(ear)

    # ── pipelines ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def pipeline(self, name: str, source: Callable[[], Iterator[dict[str, Any]]], **options: Any) -> redrive.Pipeline:
        with sqlite3.connect(self._table) as connection:
            connection.execute(f"CREATE TABLE IF NOT EXISTS {name} (id TEXT PRIMARY KEY, fee REAL NOT NULL)")
        return redrive.Pipeline(
            name,
            source=redrive.rows.records(source, name=name, identity="the rows of the day"),
            sink=redrive.rows.table(f"sqlite:///{self._table}", name, key="id"),
            validate=_has_a_fee,
            store=self.store,
            batch=ROWS,
            on_event=self._count,
            patience=0,  # what fails is run again
            **options,
        )

    def rows(self, number: int = ROWS, *, bad: int = 0) -> Iterator[dict[str, Any]]:
        spoiled = set(self.chance.sample(range(number), bad))
        for place in range(number):
            yield {"id": f"{next(self._ids):08}", "fee": "N/A" if place in spoiled else self.chance.random()}

    def pages(self, service: redrive.Service, ask: Callable[[], httpx.Response]) -> Iterator[dict[str, Any]]:
        """Rows by the page, each by a call."""
        for _ in range(CALLS):
            response = service.call(ask)
            response.raise_for_status()
            yield from self.rows(ROWS // CALLS)

    def run(self, pipeline: redrive.Pipeline, *, again_after: timedelta | None = None) -> None:
        """Run it as a scheduler does: what ended for now is run again, if it is told to."""
        try:
            pipeline.run()
        except (RunStopped, SystemExit):
            if again_after is not None:
                self.at(self.clock.now() + again_after, lambda: self.run(pipeline, again_after=again_after))

    @contextmanager
    def killed(self) -> Iterator[None]:
        """What is left of a run after kill -9: it says that it runs, and nobody is behind it."""

        def gone(*_: Any, **__: Any) -> datetime:
            raise StoreError("killed")

        with mock.patch.object(PipelineRunHandle, "end", gone):
            yield

    # ── who answers what ──────────────────────────────────────────────────────────────────────────────────────────────

    def carrier(self) -> httpx.Response:
        """The carrier: one call in fifty meets a 503, and for an hour all do."""
        if self.within(OUTAGE) or self.chance.random() < 0.02:
            return _answer(503)
        return _answer(200)

    def banker(self) -> httpx.Response:
        return _answer(401 if self.within(EXPIRED) else 200)


def _told(at: datetime, document: dict[str, Any]) -> Told:
    return Told(
        at,
        str(document["what"]),
        str(document["urgency"]),
        (document["subject"] or {}).get("name", ""),
        str(document["headline"]),
    )


@cache
def _answer(status: int) -> httpx.Response:
    return httpx.Response(status, request=httpx.Request("GET", "https://partner.example/page"))


def _has_a_fee(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "fee": float(record["fee"])}


# ── what is to be done when ───────────────────────────────────────────────────────────────────────────────────────────


def _plan(world: World) -> None:
    """The agenda; what goes wrong, goes wrong in the week that counts."""
    for day in range(-world.pace.before, 7):
        midnight = MONDAY + timedelta(days=day)
        _of_the_carrier(world, midnight)
        _of_the_day(world, midnight)
        if day % 7 == 0:
            _vendor(world, midnight)


def _of_the_carrier(world: World, midnight: datetime) -> None:
    """Three pipelines that need the carrier; when it is down, they are run again every ten minutes."""
    source = lambda: world.pages(world.shipfast, world.carrier)  # noqa: E731
    made = {name: world.pipeline(name, source) for name in ("orders", "returns", "tracking")}
    for name, minutes in (("orders", range(5, 1440, 180)), ("returns", range(20, 1440, 360))):
        for minute in minutes:
            run = lambda pipeline=made[name]: world.run(pipeline, again_after=timedelta(minutes=10))  # noqa: E731
            world.at(midnight + timedelta(minutes=minute), run)
    often = range(90, 240, 5) if midnight == MONDAY + timedelta(days=2) else range(40, 1440, 360)
    for minute in often:
        world.at(midnight + timedelta(minutes=minute), lambda: world.run(made["tracking"]))


def _of_the_day(world: World, midnight: datetime) -> None:
    day = (midnight - MONDAY).days  # 0 for the Monday that counts
    billing = world.pipeline("billing", lambda: world.pages(world.bank, world.banker))
    world.at(midnight + timedelta(hours=9, minutes=10), lambda: world.run(billing, again_after=timedelta(minutes=15)))
    ledger = world.pipeline("ledger", world.rows, sla="07:00 Europe/Berlin")
    forgotten = timedelta(hours=8, minutes=20) if day == 4 else timedelta(hours=5)  # on Friday nobody starts it
    world.at(midnight + forgotten, lambda: world.run(ledger))
    catalog = world.pipeline("catalog", lambda: world.rows(bad=42 if day == 5 else 0))  # 7 % on Saturday
    world.at(midnight + timedelta(hours=11), lambda: world.run(catalog))
    if day == 6:  # the rows of the day before are quarantined until an operator decides
        discard = partial(world.store.dlq.discard, pipeline="catalog", note="the vendor sends them again")
        world.at(midnight + timedelta(hours=12), discard)
    _marketing(world, midnight, day)
    _crm(world, midnight, day)
    _inventory(world, midnight, day)


def _marketing(world: World, midnight: datetime, day: int) -> None:
    """One bad row in six hundred, every day; on Thursday its process is killed, and started again."""
    marketing = world.pipeline("marketing", lambda: world.rows(bad=1))

    def half() -> Iterator[dict[str, Any]]:
        yield from world.rows(300)
        raise SystemExit

    dies = world.pipeline("marketing", half)
    at = midnight + timedelta(hours=12)

    def killed() -> None:
        with world.killed():
            world.run(dies)

    if day == 3:
        world.at(at, killed)
        at += timedelta(minutes=5)
    world.at(at, lambda: world.run(marketing))


def _crm(world: World, midnight: datetime, day: int) -> None:
    """A customer that the partner does not accept, on Wednesday; the pipeline goes on without."""

    def customers() -> Iterator[dict[str, Any]]:
        answers = [200] * 6
        if day == 2:
            answers[3] = 422
        for status in answers:
            try:
                world.crm_api.call(lambda status=status: _answer(status).raise_for_status())
            except httpx.HTTPStatusError:
                continue
            yield from world.rows(100)

    pipeline = world.pipeline("crm", customers)
    world.at(midnight + timedelta(hours=13), lambda: world.run(pipeline))


def _inventory(world: World, midnight: datetime, day: int) -> None:
    """Under way when there is a deploy, and run again after it; on Tuesday its source fails once and heals."""
    state = {"left": 1 if 0 <= day < 5 else 0}

    def stock() -> Iterator[dict[str, Any]]:
        yield from world.rows(200)
        if state["left"]:
            state["left"] -= 1
            if day == 1:
                raise redrive.Transient("the share is not mounted")
            pipeline.stop("a deploy")
        yield from world.rows(400)

    pipeline = world.pipeline("inventory", stock)
    world.at(midnight + timedelta(hours=13, minutes=58), lambda: world.run(pipeline, again_after=timedelta(minutes=5)))


def _vendor(world: World, midnight: datetime) -> None:
    """The weekly file: 3 % of it without a fee; the next morning the parser is fixed, and what was bad sent back."""
    sizes = VENDOR_FILE if midnight == MONDAY else {**VENDOR_FILE, "bad": 0}
    vendor = world.pipeline("vendor", lambda: world.rows(sizes["rows"], bad=sizes["bad"]), sla="10:00 Asia/Kolkata")
    world.at(midnight + timedelta(hours=3), lambda: world.run(vendor))

    def redriven() -> None:
        world.store.dlq.replay(
            lambda records: [None] * len(records), pipeline="vendor", dry_run=False, note="N/A means no fee"
        )

    world.at(midnight + timedelta(hours=33), redriven)


def simulate(here: Path, pace: Pace = WHOLE, *, seed: int = 2026) -> Week:
    """Live through it."""
    world = World(here, pace, seed=seed)
    try:
        _plan(world)
        return world.go()
    finally:
        world.store.close()


@contextmanager
def directory() -> Iterator[Path]:
    """A place in memory, if there is one: thousands of small transactions that wait for a disk show nothing here."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as place:
        yield Path(place)


# ── in words, and for the record ──────────────────────────────────────────────────────────────────────────────────────


def documented(week: Week) -> dict[str, Any]:
    failures = week.errors["failed attempts"] + week.errors["failed runs"]
    end = {
        "runs": week.runs,
        "looks": week.looks,
        "messages": len(week.told),
        "failures": failures,
        "with_rows": failures + week.errors["rejected rows"],
    }
    return {
        "benchmark": "week",
        "environment": measure.environment("redrive"),
        "rows": [{**asdict(one), "at": f"{one.at:%a %H:%M}"} for one in week.told],
        "headline": end,
        "record": recorded(end, Counter(one.urgency for one in week.told)),
    }


def report(document: dict[str, Any]) -> str:
    end = document["headline"]
    lived = f"a week of ten pipelines: {end['runs']:,} runs, {end['looks']:,} looks of the watch (two weeks)"
    told = "\n".join(f"  {row['at']}  {row['what']:<10}  {row['title']}" for row in document["rows"])
    beside = (
        f"{end['messages']} messages; one for every failed attempt and run would have been {end['failures']:,}, "
        f"and {end['with_rows']:,} with one for every rejected row"
    )
    heading = measure.heading(document["environment"])
    return "\n\n".join([heading, lived, f"what people were told\n\n{told}", measure.paragraph(beside)])


def recorded(end: dict[str, int], urgencies: Counter[str]) -> dict[str, Any]:
    def messages(row: str, count: int) -> Figure:
        ratio = {"÷ redrive": round(count / end["messages"], 1) if end["messages"] else None}
        return Figure(row, "messages", "in a week", count, ratios=ratio)

    shares = ", ".join(f"{count} of {urgency}" for urgency, count in sorted(urgencies.items()))
    contains = {
        "redrive": f"alerts that opened, were sent again or were resolved: {shares}",
        "one per failure": "one for every failed attempt of a call and every failed run",
        "one per failure and row": "the same, and one for every rejected row",
    }
    counts = (end["messages"], end["failures"], end["with_rows"])
    figures = [messages(row, count) for row, count in zip(contains, counts, strict=True)]
    return record(__doc__, [Table("Alerts in a week of ten pipelines", figures)], rows=contains)


def main() -> None:
    asked = measure.asked(measure.options(__doc__))
    logging.getLogger("redrive").setLevel(logging.CRITICAL)
    with directory() as here:
        week = simulate(here)
    measure.publish(asked, {**documented(week), "quick": asked.quick}, report)


if __name__ == "__main__":
    main()
