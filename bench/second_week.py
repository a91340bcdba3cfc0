"""A second week of alerts, judged message by message against the incidents that were planned.

Store, runs, services, rules, watch, outbox and webhooks are real; only the clock is simulated. A few days without
faults come first. In the week that counts services flap with four periods, one degrades slowly and another for days,
hundreds of pipelines fail of one cause while their channel is down, a daily pipeline misses its SLA for days, an hourly
one stops, a weekday pipeline has a holiday, and two teams share the store. Most pipelines run as they should, with
retries that recover.
"""

from __future__ import annotations

import heapq
import json
import logging
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import measure
from incidents import Cause, Message, Verdict, hours, judge, messages_of
from record import Figure, Table, Target, record
from week import directory

import redrive
from redrive.alerts.days_off import DaysOff
from redrive.alerts.desk import Desk
from redrive.alerts.levels import Levels
from redrive.alerts.settings import AlertSettings, Channel, PipelineSettings, Thresholds
from redrive.alerts.watch import Watch
from redrive.calls import recording
from redrive.errors import RunStopped
from redrive.notices import Urgency
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


WEEK = Plan(
    days=7,
    before=3,
    look=5 * MINUTE,
    close_look=MINUTE,
    flaps={4: (8, 13), 10: (32, 37), 25: (57, 63), 50: (105, 113)},
    ramp=(24, 36),
    degraded=(54, 126),
    one_cause=(75, 81),
    pipelines=500,
    ledger=(29, 106),
    channel_down=(74, 79),
    outage=(74.2, 74.8),
    hourly_dies=(109, 129),
    holiday=2,
    report_fails=(10, 13),
    other_settings=(129, 130),
    quiet=40,
)
SHORT = Plan(
    days=2.5,
    before=1,
    look=30 * MINUTE,
    close_look=10 * MINUTE,
    flaps={4: (2, 3), 10: (2, 3.5), 25: (2, 4.5), 50: (2, 5)},
    ramp=(12, 24),
    degraded=(14, 52),
    one_cause=(27, 33),
    pipelines=20,
    ledger=(29, 56),
    channel_down=(26, 31),
    outage=(26.2, 26.8),
    hourly_dies=(34, 41),
    holiday=1,
    report_fails=(10, 13),
    other_settings=(45, 45.15),
    quiet=3,
)


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
        self._warehouse = here / "warehouse.db"
        with sqlite3.connect(self._warehouse) as connection:
            connection.execute("CREATE TABLE loaded (id TEXT PRIMARY KEY, fee REAL NOT NULL)")
        connection.close()
        self._ids, self._order = count(), count()
        self._agenda: list[tuple[datetime, int, Callable[[], None]]] = []
        self._services: dict[str, redrive.Service] = {}

    def _settings(self) -> AlertSettings:
        """The file of the platform team, which names the pipelines of finance and their channel as well."""
        finance = dict.fromkeys(Urgency, ("finance",))
        holiday = (MONDAY + self.plan.holiday * DAY).date()
        return AlertSettings(
            channels={name: self.hooks.channel(name) for name in TEAMS},
            routes=dict.fromkeys(Urgency, ("platform",)),
            thresholds=Thresholds(sla_grace=GRACE.total_seconds()),
            holidays=DaysOff(dates=frozenset({holiday})),
            pipelines={
                "clicks": PipelineSettings(fresh_within=90 * 60),
                "payroll": PipelineSettings(days=WEEKDAYS),
                "report": PipelineSettings(routes=finance),
            },
        )

    def _watch(self, settings: AlertSettings) -> tuple[Watch, Desk]:
        desk = Desk(self.store.database, settings, clock=self.clock)
        desk.sender.ring = lambda: None  # what is due goes out when the watch looks
        watch = Watch(self.store.database, desk, Levels(self.store.database, settings), clock=self.clock)
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
        recording.flush()
        self.watch.look()
        self._stand_by()
        for watch in (self.watch, self.other):
            if watch is not None and watch.failed:
                raise watch.failed[0]
        self._acknowledge()
        self.counts.looks += self.hour >= 0

    def _stand_by(self) -> None:
        """The finance team starts a watch with another file, and ends it some hours later."""
        if self.within(self.plan.other_settings):
            if self.other is None:
                settings = AlertSettings(
                    channels={"finance": self.hooks.channel("finance")},
                    routes=dict.fromkeys(Urgency, ("finance",)),
                    pipelines={"report": PipelineSettings(fresh_within=36 * 3_600)},
                )
                self.other = self._watch(settings)[0]
            self.other.look()
        elif self.other is not None:
            self.other.leave()
            self.other = None

    def _acknowledge(self) -> None:
        """The on-call acknowledges what has arrived, some time after."""
        now = self.clock.now()
        arrived: dict[int, datetime] = {}
        for one in self.hooks.received:
            if one.what in ("opened", "escalated", "repeated"):
                arrived.setdefault(one.alert_id, one.at)
        for alert in self.desk.find(status="open"):
            at = arrived.get(alert.id)
            if str(alert.status) == "open" and at is not None and now - at >= ON_CALL[str(alert.urgency)]:
                self.desk.acknowledge(alert.id, by="on-call")
                self.acknowledged[alert.id] = now

    # ── services ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def traffic(
        self, name: str, per_hour: float, fails: Callable[[], float], *, begins: datetime, ends: datetime
    ) -> None:
        """Call a service at random times. A call may fail; the program goes on."""
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


# ── what happens ──────────────────────────────────────────────────────────────────────────────────────────────────────


def arrange(world: World) -> None:
    """Put the days before and the week on the agenda."""
    plan, start, end = world.plan, world.clock.now(), MONDAY + world.plan.days * DAY
    _services(world, start, end)
    days = [start + day * DAY for day in range(int(plan.before + plan.days) + 1)]
    for midnight in days:
        _daily(world, midnight)
    world.every(hours(1), lambda: _clicks(world), begins=start + 10 * MINUTE, ends=end)
    for number in range(plan.pipelines):
        _of_the_warehouse(world, f"load_{number:03}", days, minute=number * 60 / plan.pipelines)
    begins, ends = (MONDAY + hours(one) for one in plan.report_fails)
    broken = redrive.Permanent("column cost_center does not exist")
    world.at(begins, lambda: world.run("report", broken))
    world.at(ends, lambda: world.run("report"))
    ledger = MONDAY + hours(plan.ledger[1])
    world.at(ledger, lambda: world.run("ledger", sla="06:00 UTC"))


def _services(world: World, start: datetime, end: datetime) -> None:
    plan = world.plan
    for period, span in plan.flaps.items():
        down = lambda period=period, span=span: float(is_down(world.hour, period, span))  # noqa: E731
        begins, ends = MONDAY + hours(span[0] - 1), MONDAY + hours(span[1] + 3)
        world.traffic(f"flaps_{period}", 240, down, begins=begins, ends=ends)
    world.traffic("payments", 300, lambda: 0.01 + 0.34 * _ramped(world.hour, plan.ramp), begins=start, ends=end)
    world.traffic("geocoder", 120, lambda: 0.3 if world.within(plan.degraded) else 0.01, begins=start, ends=end)
    begins, ends = MONDAY + hours(plan.outage[0] - 2), MONDAY + hours(plan.outage[1] + 3)
    world.traffic("sms", 120, lambda: float(world.within(plan.outage)), begins=begins, ends=ends)
    world.traffic("crm", 60, lambda: 0.02, begins=start, ends=end)


def is_down(hour: float, period: int, span: Span) -> bool:
    """Return whether a service that flaps is down: each first half of its period."""
    return span[0] <= hour < span[1] and (hour - span[0]) * 60 % period < period / 2


def last_down(period: int, span: Span) -> float:
    """Return the hour at which a service that flaps was last down."""
    times = int((span[1] - span[0]) * 60 // period)
    whole = span[0] + times * period / 60
    left = min(span[1] - whole, period / 120)
    return whole + left if left > 0 else whole - period / 120


def _ramped(hour: float, span: Span) -> float:
    return (hour - span[0]) / (span[1] - span[0]) if span[0] <= hour < span[1] else 0.0


def _daily(world: World, midnight: datetime) -> None:
    day = (midnight - MONDAY).days
    for number in range(world.plan.quiet):
        name, at = f"quiet_{number:02}", midnight + hours(1 + number / 10)
        world.at(at, lambda name=name: world.run(name, use="crm", sla="23:00 UTC"))
    begins, ends = (MONDAY + hours(one) for one in world.plan.ledger)
    at = midnight + hours(5)
    if not begins <= at < ends:
        world.at(at, lambda: world.run("ledger", sla="06:00 UTC"))
    late = timedelta(minutes=20) if day == world.plan.holiday else timedelta(minutes=-30)  # within the grace period
    world.at(midnight + hours(7) + late, lambda: world.run("statements", sla="07:00 UTC"))
    if midnight.weekday() in WEEKDAYS and day != world.plan.holiday:
        world.at(midnight + hours(7), lambda: world.run("payroll", sla="08:00 UTC"))


def _clicks(world: World) -> None:
    if not world.within(world.plan.hourly_dies):
        world.run("clicks")


def _of_the_warehouse(world: World, name: str, days: list[datetime], *, minute: float) -> None:
    """A pipeline that runs once before the trouble, fails of it, and is run again once the credential is renewed."""
    refused = redrive.Permanent('connection to server at "warehouse" failed: password expired for user "etl"')
    begins, ends = (MONDAY + hours(one) for one in world.plan.one_cause)
    world.at(days[0] + hours(3) + minute * MINUTE, lambda: world.run(name))
    world.at(begins + minute * MINUTE / 2, lambda: world.run(name, refused))
    world.at(ends + minute * MINUTE / 2, lambda: world.run(name))


def truth(world: World) -> list[Cause]:
    """Return what went wrong, from the plan and from what callers saw; no alert was looked at for this."""
    plan = world.plan
    warehouse = {f"load_{number:03}" for number in range(plan.pipelines)}
    missed = (plan.ledger[0] + 1 + GRACE / hours(1), plan.ledger[1])
    stale = (int(plan.hourly_dies[0]) - 1 + 1 / 6 + 1.5, int(plan.hourly_dies[1]) + 1 / 6)
    first_failed = (world.counts.first_failed["payments"] - MONDAY) / hours(1)
    flaps = [
        _cause(
            plan, f"service flaps every {period} min", {f"flaps_{period}"}, (span[0], last_down(period, span)), "P2", 1
        )
        for period, span in plan.flaps.items()
    ]
    ramp = _cause(plan, "service degrades slowly", {"payments"}, plan.ramp, "P2", plan.ramp[1] - plan.ramp[0], over=2.5)
    return [
        *flaps,
        replace(ramp, needs=(("P3", MONDAY + hours(first_failed - 1 / 3)), *ramp.needs)),
        _cause(plan, "service degraded for days", {"geocoder"}, plan.degraded, "P2", 1.5, over=2.5),
        _cause(plan, "pipelines of one expired credential", warehouse, plan.one_cause, "P1", 0.1),
        _cause(plan, "SLA missed for days", {"ledger"}, missed, "P1", 0.1),
        _cause(plan, "service down while the channel is", {"sms"}, plan.outage, "P2", 0.5),
        _cause(plan, "hourly pipeline stopped", {"clicks"}, stale, "P1", 0.1),
        _cause(plan, "pipeline of the finance team fails", {"report"}, plan.report_fails, "P1", 0.1, channel="finance"),
        _cause(plan, "watch with other settings", {"settings"}, plan.other_settings, "P2", 0.2, channel="finance"),
    ]


def _cause(
    plan: Plan,
    name: str,
    subjects: set[str],
    span: Span,
    severity: str,
    within: float,
    *,
    channel: str = "platform",
    over: float = 1.5,
) -> Cause:
    """A cause between two hours, of which the on-call must know so many hours after its begin and after its end.

    A level is seen by two looks. What falls due while the channel is down must arrive once it is back.
    """
    begin, end = plan.channel_down if channel == "platform" else (0.0, 0.0)

    def due(hour: float, limit: float) -> datetime:
        by = hour + limit + 2 * plan.look / hours(1)
        return MONDAY + hours(by if not begin <= hour < end else max(by, end + 0.5))

    return Cause(
        name=name,
        subjects=frozenset(subjects),
        channel=channel,
        begins=MONDAY + hours(span[0]),
        ends=MONDAY + hours(span[1]),
        needs=((severity, due(span[0], within)),),
        resolved_by=due(span[1], over),
    )


@dataclass(frozen=True, slots=True)
class Lived:
    """The week, judged."""

    plan: Plan
    counts: Counts
    verdict: Verdict
    documents: int
    """Webhook requests: a summary of several alerts is one."""


def simulate(here: Path, plan: Plan = WEEK, *, seed: int = 2027) -> Lived:
    """Live through the week, and judge what arrived."""
    world = World(here, plan, seed=seed)
    try:
        arrange(world)
        world.go()
        received = sorted(world.hooks.received, key=lambda one: one.at)
        until = MONDAY + plan.days * DAY
        verdict = judge(truth(world), received, acknowledged=world.acknowledged, until=until)
        return Lived(plan, world.counts, verdict, world.hooks.documents)
    finally:
        world.store.close()
        world.hooks.close()


# ── the report ────────────────────────────────────────────────────────────────────────────────────────────────────────


def documented(lived: Lived) -> dict[str, Any]:
    verdict = lived.verdict
    totals = {
        "runs": lived.counts.runs,
        "looks": lived.counts.looks,
        "failures": lived.counts.failed_runs + lived.counts.failed_attempts,
        "requests": lived.documents,
        "messages": len(verdict.messages),
        "causes": verdict.causes,
        "incidents": verdict.incidents,
        "missed": len(verdict.missed),
        "false_all_clears": len(verdict.false_all_clears),
        "not_needed": len(verdict.not_needed),
    }
    return {
        "benchmark": "second week",
        "environment": measure.environment("redrive"),
        "rows": [{**asdict(one), "at": f"{one.at:%a %H:%M}"} for one in verdict.messages],
        "missed": verdict.missed,
        "headline": totals,
        "record": recorded(totals),
    }


def recorded(totals: dict[str, int]) -> dict[str, Any]:
    names = ("messages", "causes", "incidents", "missed", "false_all_clears", "not_needed", "failures")
    figures = [Figure("redrive", name.replace("_", " "), "in a week", totals[name]) for name in names]
    targets = [
        Target("false all-clears", totals["false_all_clears"], "exactly", 0, ""),
        Target("missed needs", totals["missed"], "exactly", 0, ""),
        Target("incidents", totals["incidents"], "exactly", totals["causes"], ""),
    ]
    rows = {"redrive": "every message judged against the incidents that were planned"}
    return record(__doc__, [Table("A second week, judged", figures)], targets=targets, rows=rows)


def report(document: dict[str, Any]) -> str:
    totals = document["headline"]
    lived = f"{totals['runs']:,} runs, {totals['looks']:,} looks of the watch, {totals['failures']:,} failures"
    lines = [
        f"  {row['at']}  {row['severity']}  {row['channel']:<8}  {row['what']:<9}  {row['subject']:<9}  "
        f"{row['judgement']} ({row['reason']}; {row['cause'] or 'no cause'})\n      {row['headline']}"
        for row in document["rows"]
    ]
    names = ("requests", "messages", "causes", "incidents", "missed", "false_all_clears", "not_needed")
    sums = "\n".join(f"  {name.replace('_', ' '):<17} {totals[name]:>5}" for name in names)
    missed = "".join(f"\n  missed: {one}" for one in document["missed"])
    return "\n\n".join([measure.heading(document["environment"]), lived, "\n".join(lines), sums + missed])


def main() -> None:
    asked = measure.asked(measure.options(__doc__))
    logging.getLogger("redrive").setLevel(logging.CRITICAL)
    with directory() as here:
        lived = simulate(here, SHORT if asked.quick else WEEK)
    measure.publish(asked, {**documented(lived), "quick": asked.quick}, report)


if __name__ == "__main__":
    main()
