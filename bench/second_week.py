"""A second week of alerts, judged message by message against the incidents that were planned.

Store, runs, services, rules, watch, outbox and webhooks are real; only the clock is simulated. A few days without
faults come first. In the week that counts services flap with four periods, one degrades slowly and another for days,
hundreds of pipelines fail of one cause while their channel is down, a daily pipeline misses its SLA for days, an hourly
one stops, a weekday pipeline has a holiday, and two teams share the store. Most pipelines run as they should, with
retries that recover.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import measure
from incidents import Cause, Verdict, hours, judge
from record import Figure, Table, Target, record
from two_teams import DAY, GRACE, MINUTE, MONDAY, WEEKDAYS, Counts, Plan, Span, World
from week import directory

import redrive

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
    called_after=7 * 24,
)
SHORT = Plan(
    days=2.4,
    before=1,
    look=45 * MINUTE,
    close_look=15 * MINUTE,
    flaps={4: (2, 3), 10: (2, 3.5), 25: (2, 4.5), 50: (2, 5)},
    ramp=(4, 16),
    degraded=(6, 34),
    one_cause=(27, 33),
    pipelines=6,
    ledger=(29, 56),
    channel_down=(26, 31),
    outage=(26.2, 26.8),
    hourly_dies=(34, 41),
    holiday=1,
    report_fails=(10, 13),
    other_settings=(45, 45.15),
    quiet=2,
    called_after=3,
)


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
    ramp, degraded = (min(end, MONDAY + hours(span[1] + plan.called_after)) for span in (plan.ramp, plan.degraded))
    world.traffic("payments", 300, lambda: 0.01 + 0.34 * _ramped(world.hour, plan.ramp), begins=start, ends=ramp)
    world.traffic("geocoder", 120, lambda: 0.3 if world.within(plan.degraded) else 0.01, begins=start, ends=degraded)
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
    """A cause between two hours, which the on-call must know of within a number of hours of its start and end.

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
