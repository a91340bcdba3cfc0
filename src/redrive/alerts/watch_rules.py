"""Rules on freshness, and on the watch itself: a measurement that fails is an alert of its own."""

from __future__ import annotations

from redrive.alerts.conditions import found
from redrive.alerts.picture import Freshness, Judgement, LevelPicture
from redrive.alerts.sentences import command, short, span, whole
from redrive.alerts.settings import AlertSettings
from redrive.notices import Facts, Finding, Subject

_MEASURED = {
    "due": "deadlines",
    "fresh": "freshness",
    "running": "runs",
    "services": "services",
    "letters": "open letters",
    "conditions": "the condition",
    "size": "the size of the store",
    "tables": "table row counts",
    "slots": "replication slots",
    "lags": "consumer lag",
}


def freshness(picture: LevelPicture, settings: AlertSettings) -> Judgement:
    """Return pipelines and flows whose last complete run is older than their `fresh_within`."""
    findings = tuple(_stale(one, settings) for one in picture.fresh if one.age > one.within)
    return Judgement(findings=findings) + picture.judged("fresh", "level:stale:", ())


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
    return found(
        "stale",
        one.subject,
        f"{short(name)} {since}; it must be complete every {span(one.within)}",
        facts,
        key=f"stale:{one.subject.ident}",
        evidence=f"level:stale:{one.subject.ident}",
    )


def monitors(picture: LevelPicture, settings: AlertSettings) -> Judgement:
    """Return the measurements that fail: what is not measured cannot raise its own alert."""
    findings = tuple(_failed(name, reason, settings) for name, reason in sorted(picture.unknown.items()))
    return Judgement(findings=findings, judged_under=frozenset({"level:monitor:"}))


def _failed(name: str, reason: str, settings: AlertSettings) -> Finding:
    group, _, member = name.partition(":")
    what = _MEASURED.get(group, group) + (f" of {short(member)}" if member else "")
    return found(
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
