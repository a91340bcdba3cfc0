"""Rules on what grows while nobody looks: letters that are open for long, and the size of the store."""

from __future__ import annotations

from redrive.alerts.conditions import make_finding
from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.delivery.format import command, counted, gigabytes, letters_sql, short, span, text, whole
from redrive.alerts.facts.snapshot import Judgement, LevelSnapshot, PendingLetters
from redrive.model.alerts import Facts, Finding, Subject

_PURGE = "dlq purge and store purge remove what is finished; [retention] in redrive.toml lets the watch do so every day"


def old_letters(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return pipelines whose oldest open letter has waited for too long."""
    known = [one for one in snapshot.letters if snapshot.knows("letters", one.pipeline)]
    findings = [finding for one in known if (finding := _old(one, snapshot, settings)) is not None]
    judged = snapshot.judged("letters", "level:old_letters:", (one.pipeline for one in snapshot.letters))
    return Judgement(findings=tuple(findings)) + judged


def _old(one: PendingLetters, snapshot: LevelSnapshot, settings: AlertSettings) -> Finding | None:
    limit = settings.thresholds.letter_age
    age = 0.0 if one.oldest is None else (snapshot.now - one.oldest).total_seconds()
    if one.oldest is None or age <= limit:
        return None
    name = one.pipeline
    facts = Facts(
        letters=one.pending,
        cause=one.cause,
        impact=f"{short(name)} lacks these records since {whole(one.oldest)}",
        measured={"age": age, "threshold": limit},
        affected=(name,),
        commands=(
            command("dlq", "causes", "--pipeline", name),
            command("dlq", "replay", "--pipeline", name),
            command("dlq", "discard", "--pipeline", name, "--note", "WHY"),
        ),
        sql=letters_sql(f"pipeline_name = {text(name)}"),
        next_step="open letters are never removed unasked: replay them when the cause is fixed, or discard them",
    )
    return make_finding(
        "old_letters",
        Subject(kind="pipeline", name=name),
        f"{short(name)}: the oldest of {counted(one.pending, 'open letter')} has waited for {span(age)}",
        facts,
        key=f"old_letters:{name}",
        evidence=f"level:old_letters:{name}",
        persist=settings.persist,
    )


def sizes(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return what is too large: the store, and the table of letters where its size is known."""
    limits = settings.thresholds
    return _size("store_size", "the store", snapshot.store_bytes, limits.store_bytes, settings) + _size(
        "letters_size", "the table of letters", snapshot.letters_bytes, limits.letters_bytes, settings
    )


def _size(condition: str, what: str, size: int | None, limit: float, settings: AlertSettings) -> Judgement:
    evidence = f"level:{condition}"
    if size is None:
        return Judgement()
    if size <= limit:
        return Judgement(judged=frozenset({evidence}))
    finding = make_finding(
        condition,
        Subject(kind="store", name=what.removeprefix("the ")),
        f"{what} takes {gigabytes(size)} ({gigabytes(limit)} is the limit)",
        Facts(
            impact="it grows until the disk is full, and then no run can record anything",
            measured={"bytes": size, "threshold": limit},
            commands=(command("store", "info"), command("dlq", "purge", "--dry-run")),
            next_step=_PURGE,
        ),
        key=condition,
        evidence=evidence,
        persist=settings.persist,
    )
    return Judgement(findings=(finding,), judged=frozenset({evidence}))
