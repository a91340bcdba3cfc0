"""Rules on freshness, and on the watch itself: a measurement that fails is an alert of its own."""

from __future__ import annotations

from redrive.alerts.conditions import make_finding
from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.delivery.format import command, short, span, whole
from redrive.alerts.facts.snapshot import Freshness, Judgement, LevelSnapshot, TableAge
from redrive.model.alerts import Facts, Finding, Subject

_MEASURED = {
    "due": "deadlines",
    "fresh": "freshness",
    "running": "runs",
    "services": "services",
    "letters": "open letters",
    "conditions": "the condition",
    "size": "the size of the store",
    "tables": "table row counts",
    "newest": "the newest row",
    "slots": "replication slots",
    "lags": "consumer lag",
}


def freshness(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return pipelines and flows whose last complete run is older than their `fresh_within`."""
    findings = tuple(_stale(one, settings) for one in snapshot.fresh if one.age > one.within)
    return Judgement(findings=findings) + snapshot.judged("fresh", "level:stale:", ())


def _stale(one: Freshness, settings: AlertSettings) -> Finding:
    name, kind = one.subject.name, "--flow" if one.subject.kind == "flow" else "--pipeline"
    since = "has never been complete" if one.last_complete is None else f"is stale since {whole(one.last_complete)}"
    newest = "no run has started" if one.status is None else f"its newest run is {one.status}"
    facts = Facts(
        status=one.status or "not started",
        run_id=one.run_id,
        impact=f"{one.target or f'what {name} makes'} {since}",
        measured={"age": one.age, "threshold": one.within},
        affected=(name,),
        commands=(command("runs", "ls", kind, name),),
        next_step=f"{newest}; check the scheduler that starts it, and run it",
    )
    return make_finding(
        "stale",
        one.subject,
        f"{short(name)} {since}; it must be complete every {span(one.within)}",
        facts,
        key=f"stale:{one.subject.ident}",
        evidence=f"level:stale:{one.subject.ident}",
    )


def table_freshness(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return watched tables whose newest row is older than their `fresh_within`, or that have none."""
    old = [one for one in snapshot.table_ages if one.age is None or one.age > one.within]
    judged = snapshot.judged("newest", "level:stale_table:", (one.name for one in snapshot.table_ages))
    return Judgement(findings=tuple(_stale_table(one, settings) for one in old)) + judged


def _stale_table(one: TableAge, settings: AlertSettings) -> Finding:
    since = "has no rows" if one.newest is None else f"is stale since {whole(one.newest)}"
    commands = () if one.pipeline is None else (command("runs", "ls", "--pipeline", one.pipeline),)
    facts = Facts(
        status="stale",
        impact=f"{one.name} {since}, by its newest {one.column}",
        measured={"threshold": one.within} if one.age is None else {"age": one.age, "threshold": one.within},
        affected=() if one.pipeline is None else (one.pipeline,),
        commands=commands,
        sql=f"SELECT max({one.column}) FROM {one.name}",
        next_step="check what writes to this table",
    )
    return make_finding(
        "stale",
        Subject(kind="table", name=one.name),
        f"{short(one.name)} {since}; its newest {short(one.column)} may be {span(one.within)} old",
        facts,
        key=f"stale_table:{one.name}",
        evidence=f"level:stale_table:{one.name}",
    )


def monitors(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return the measurements that fail: what is not measured cannot raise its own alert."""
    findings = tuple(_failed(name, reason, settings) for name, reason in sorted(snapshot.unknown.items()))
    return Judgement(findings=findings, judged_under=frozenset({"level:monitor:"}))


def _failed(name: str, reason: str, settings: AlertSettings) -> Finding:
    group, _, member = name.partition(":")
    what = _MEASURED.get(group, group) + (f" of {short(member)}" if member else "")
    return make_finding(
        "monitor_failed",
        Subject(kind="monitor", name=name),
        f"cannot measure {what}",
        Facts(
            status="not measured",
            error=reason,
            impact=f"alerts about {what} are neither opened nor resolved until it is measured again",
            next_step="fix the connection, permission or name in redrive.toml; the watch tries again at every look",
        ),
        key=f"monitor:{name}",
        evidence=f"level:monitor:{name}",
        persist=settings.persist,
    )
