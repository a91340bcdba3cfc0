"""Rules on freshness and on failed measurements; used by the registry."""

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
    findings = tuple(_stale(fresh, settings) for fresh in snapshot.fresh if fresh.age > fresh.within)
    return Judgement(findings=findings) + snapshot.judged("fresh", "level:stale:", ())


def _stale(fresh: Freshness, settings: AlertSettings) -> Finding:
    name, kind = fresh.subject.name, "--flow" if fresh.subject.kind == "flow" else "--pipeline"
    since = "has never been complete" if fresh.last_complete is None else f"is stale since {whole(fresh.last_complete)}"
    newest = "no run has started" if fresh.status is None else f"its newest run is {fresh.status}"
    facts = Facts(
        status=fresh.status or "not started",
        run_id=fresh.run_id,
        impact=f"{fresh.target or f'what {name} makes'} {since}",
        measured={"age": fresh.age, "threshold": fresh.within},
        affected=(name,),
        commands=(command("runs", "ls", kind, name),),
        next_step=f"{newest}; check the scheduler that starts it, and run it",
    )
    return make_finding(
        "stale",
        fresh.subject,
        f"{short(name)} {since}; it must be complete every {span(fresh.within)}",
        facts,
        key=f"stale:{fresh.subject.ident}",
        evidence=f"level:stale:{fresh.subject.ident}",
    )


def table_freshness(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return watched tables whose newest row is older than their `fresh_within`, or that have none."""
    old = [table for table in snapshot.table_ages if table.age is None or table.age > table.within]
    judged = snapshot.judged("newest", "level:stale_table:", (table.name for table in snapshot.table_ages))
    return Judgement(findings=tuple(_stale_table(table, settings) for table in old)) + judged


def _stale_table(table: TableAge, settings: AlertSettings) -> Finding:
    since = "has no rows" if table.newest is None else f"is stale since {whole(table.newest)}"
    commands = () if table.pipeline is None else (command("runs", "ls", "--pipeline", table.pipeline),)
    facts = Facts(
        status="stale",
        impact=f"{table.name} {since}, by its newest {table.column}",
        measured={"threshold": table.within} if table.age is None else {"age": table.age, "threshold": table.within},
        affected=() if table.pipeline is None else (table.pipeline,),
        commands=commands,
        sql=f"SELECT max({table.column}) FROM {table.name}",
        next_step="check what writes to this table",
    )
    return make_finding(
        "stale",
        Subject(kind="table", name=table.name),
        f"{short(table.name)} {since}; its newest {short(table.column)} may be {span(table.within)} old",
        facts,
        key=f"stale_table:{table.name}",
        evidence=f"level:stale_table:{table.name}",
    )


def monitors(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return failed measurements, because their own alerts cannot open while they fail."""
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
