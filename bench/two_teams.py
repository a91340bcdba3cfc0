"""Two teams, their services and pipelines, one store and one watch, on a simulated clock: `second_week.py` lives in it.

What goes wrong when is a `Plan`. Webhooks are real requests to a server on loopback.
"""

from __future__ import annotations

import heapq
import json
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

from incidents import Message, hours, messages_of

import redrive
from redrive.alerts.config.settings import AlertSettings, Channel, DaysOff, PipelineSettings, Thresholds
from redrive.alerts.facts.collector import LevelCollector
from redrive.alerts.service import Alerts
from redrive.alerts.watch import Watch
from redrive.calls.metrics import publisher
from redrive.errors import RunStopped
from redrive.model.alerts import Severity
from redrive.testing import FakeClock

MONDAY = datetime(2027, 2, 1, tzinfo=UTC)
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
GRACE = timedelta(minutes=30)
ON_CALL = {"P1": timedelta(minutes=20), "P2": hours(1), "P3": hours(4)}
WEEKDAYS = frozenset(range(5))
TEAMS = ("platform", "finance")

Span = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What goes wrong when, in hours since Monday."""

    days: float
    before: int
    """Days without faults that come first."""
    look: timedelta
    """Between two looks of the watch while nothing changes quickly."""
    close_look: timedelta
    """While something does."""
    flaps: dict[int, Span]
    """By the period in minutes."""
    ramp: Span
    degraded: Span
    one_cause: Span
    """When the credential of the warehouse expires, and is renewed."""
    pipelines: int
    """Pipelines that write to this warehouse."""
    ledger: Span
    """From when on the daily run is not started, and when it is started again."""
    channel_down: Span
    outage: Span
    """Of a service, over before the channel is back."""
    hourly_dies: Span
    holiday: int
    """The day of the week that is one."""
    report_fails: Span
    """A pipeline of the finance team."""
    other_settings: Span
    """When the finance team runs a watch with a file of its own."""
    quiet: int
    """Daily pipelines with which nothing is wrong."""
    called_after: float
    """Hours for which services are called after their trouble."""


class Webhooks:
    """A server on loopback with one address per channel. A channel that is down answers 503."""

    def __init__(self, world: World) -> None:
        hooks = self
        self.received: list[Message] = []
        self.documents = 0

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                channel = self.path.strip("/")
                is_down = channel == "platform" and world.within(world.plan.channel_down)
                if not is_down:
                    hooks.documents += 1
                    hooks.received += messages_of(world.clock.now(), channel, json.loads(body))
                self.send_response(503 if is_down else 204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def channel(self, name: str) -> Channel:
        """Return the channel of a team."""
        return Channel(name=name, kind="webhook", target=f"http://127.0.0.1:{self._server.server_port}/{name}")

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Down(ConnectionError):
    """The service does not answer."""


@dataclass(slots=True)
class Counts:
    """What happened in the week that counts."""

    runs: int = 0
    looks: int = 0
    failed_runs: int = 0
    failed_attempts: int = 0
    first_failed: dict[str, datetime] = field(default_factory=dict)
    """When a call of a service first failed for its caller since Monday."""


class World:
    """Two teams, one store and one clock."""

    def __init__(self, here: Path, plan: Plan, *, seed: int) -> None:
        self.plan, self.chance, self.counts = plan, random.Random(seed), Counts()
        self.clock = FakeClock(MONDAY - plan.before * DAY)
        self.hooks = Webhooks(self)
        self.store = redrive.connect(here / "redrive.db")
        # Everything that is stored goes by the clock of the database.
        dialect: Any = self.store.database.dialect
        dialect.now = lambda connection: self.clock.now()
        self.settings = self._settings()
        self.watch, self.desk = self._watch(self.settings)
        self.store.__dict__["alerts"] = self.desk
        self.other: Watch | None = None
        self.acknowledged: dict[int, datetime] = {}
        self._read: set[tuple[int, datetime]] = set()
        self._warehouse = here / "warehouse.db"
        with sqlite3.connect(self._warehouse) as connection:
            connection.execute("CREATE TABLE loaded (id TEXT PRIMARY KEY, fee REAL NOT NULL)")
        connection.close()
        self._ids, self._order = count(), count()
        self._agenda: list[tuple[datetime, int, Callable[[], None]]] = []
        self._services: dict[str, redrive.Service] = {}

    def _settings(self) -> AlertSettings:
        """The file of the platform team, which names the pipelines of finance and their channel as well."""
        finance = dict.fromkeys(Severity, ("finance",))
        holiday = (MONDAY + self.plan.holiday * DAY).date()
        return AlertSettings(
            channels={name: self.hooks.channel(name) for name in TEAMS},
            routes=dict.fromkeys(Severity, ("platform",)),
            thresholds=Thresholds(sla_grace=GRACE.total_seconds()),
            holidays=DaysOff(dates=frozenset({holiday})),
            pipelines={
                "clicks": PipelineSettings(fresh_within=90 * 60),
                "payroll": PipelineSettings(days=WEEKDAYS),
                "report": PipelineSettings(routes=finance),
            },
        )

    def _watch(self, settings: AlertSettings) -> tuple[Watch, Alerts]:
        desk = Alerts(self.store.database, settings, clock=self.clock)
        desk.sender.ring = lambda: None  # what is due goes out when the watch looks
        watch = Watch(self.store.database, desk, LevelCollector(self.store.database, settings), clock=self.clock)
        return watch, desk

    # ── time ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def hour(self) -> float:
        """Hours since Monday; negative before."""
        return (self.clock.now() - MONDAY).total_seconds() / 3_600

    def within(self, span: Span) -> bool:
        """Return whether it is between these hours."""
        return span[0] <= self.hour < span[1]

    def at(self, moment: datetime, work: Callable[[], None]) -> None:
        """Do this then."""
        heapq.heappush(self._agenda, (moment, next(self._order), work))

    def every(self, pause: timedelta, work: Callable[[], None], *, begins: datetime, ends: datetime) -> None:
        """Do this again and again."""

        def step(moment: datetime) -> None:
            work()
            if moment + pause < ends:
                self.at(moment + pause, lambda: step(moment + pause))

        self.at(begins, lambda: step(begins))

    def go(self) -> None:
        """Do everything on the agenda, and look in between."""
        end = MONDAY + self.plan.days * DAY
        looked: datetime | None = None
        while self.clock.now() < end:
            if looked is None or self.clock.now() - looked >= self._pause():
                self._look()
                looked = self.clock.now()
            following = min([looked + self._pause(), end, *(entry[0] for entry in self._agenda[:1])])
            self.clock.advance(max(0.0, (following - self.clock.now()).total_seconds()))
            while self._agenda and self._agenda[0][0] <= self.clock.now():
                heapq.heappop(self._agenda)[2]()
            self._acknowledge()

    def _pause(self) -> timedelta:
        if self.hour < 0:
            return hours(6)
        begin, end = self.plan.other_settings
        if begin - 0.02 <= self.hour < end + 0.12:  # two watches, which know of each other for a minute after a look
            return MINUTE / 2
        changing = [*self.plan.flaps.values(), self.plan.outage, self.plan.channel_down]
        close = any(begin <= self.hour < end + 1.4 for begin, end in changing)
        return self.plan.close_look if close else self.plan.look

    def _look(self) -> None:
        publisher.flush()
        self.watch.check()
        self._stand_by()
        for watch in (self.watch, self.other):
            if watch is not None and watch.failed:
                raise watch.failed[0]
        self.counts.looks += self.hour >= 0

    def _stand_by(self) -> None:
        """The finance team starts a watch with another file, and ends it some hours later."""
        if self.within(self.plan.other_settings):
            if self.other is None:
                settings = AlertSettings(
                    channels={"finance": self.hooks.channel("finance")},
                    routes=dict.fromkeys(Severity, ("finance",)),
                    pipelines={"report": PipelineSettings(fresh_within=36 * 3_600)},
                )
                self.other = self._watch(settings)[0]
            self.other.check()
        elif self.other is not None:
            self.other.leave()
            self.other = None

    def _acknowledge(self) -> None:
        """The on-call acknowledges what has arrived, some time after."""
        now = self.clock.now()
        due = {
            (one.alert_id, one.at)
            for one in self.hooks.received
            if one.what in ("opened", "escalated", "repeated") and now - one.at >= ON_CALL[one.severity]
        } - self._read
        if not due:
            return
        self._read |= due
        for alert in self.desk.find(status="open"):
            if str(alert.status) == "open" and any(alert.id == number for number, _ in due):
                self.desk.acknowledge(alert.id, by="on-call")
                self.acknowledged[alert.id] = now

    # ── services ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def traffic(
        self, name: str, per_hour: float, fails: Callable[[], float], *, begins: datetime, ends: datetime
    ) -> None:
        """Call a service at random times. A call may fail; the program continues."""
        service = redrive.Service(name, store=self.store, clock=self.clock, random=self.chance)
        self._services[name] = service

        def calls() -> None:
            for _ in range(sum(self.chance.random() < per_hour / 600 for _ in range(10))):
                self.call(name, fails)

        self.every(MINUTE, calls, begins=begins, ends=ends)

    def call(self, name: str, fails: Callable[[], float]) -> bool:
        """Call once; return whether it succeeded."""

        def answer() -> None:
            self.clock.advance(0.1)
            if self.chance.random() < fails():
                self.counts.failed_attempts += self.hour >= 0
                raise Down("no answer")

        try:
            self._services[name].call(answer)
        except (Down, redrive.RedriveError):
            if self.hour >= 0:
                self.counts.first_failed.setdefault(name, self.clock.now())
            return False
        return True

    # ── pipelines ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, name: str, error: Exception | None = None, *, use: str | None = None, **options: Any) -> bool:
        """Run a pipeline of a few rows, as its scheduler does; return whether it is complete."""

        def rows() -> Iterator[dict[str, Any]]:
            for number in range(5):
                if use is not None:
                    self._services[use].call(lambda: self._recovers())
                if number == 3 and error is not None:
                    raise error
                yield {"id": f"{next(self._ids):08}", "fee": 1.5}

        pipeline = redrive.Pipeline(
            name,
            source=redrive.rows.records(rows, name=name, identity="the rows of the day"),
            sink=redrive.rows.table(f"sqlite:///{self._warehouse}", "loaded", key="id"),
            store=self.store,
            patience=0,
            **options,
        )
        counts = self.hour >= 0
        self.counts.runs += counts
        try:
            pipeline.run()
        except RunStopped:
            self.counts.failed_runs += counts
            return False
        return True

    def _recovers(self) -> None:
        """One attempt in fifty fails; a retry recovers."""
        self.clock.advance(0.1)
        if self.chance.random() < 0.02:
            self.counts.failed_attempts += self.hour >= 0
            raise Down("no answer")
