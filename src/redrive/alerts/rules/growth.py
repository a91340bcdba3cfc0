"""Rules on growth: letters that stay open for too long, and the size of the store; used by the registry."""

from __future__ import annotations

from redrive.alerts.conditions import make_finding
from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.delivery.format import command, counted, gigabytes, letters_sql, short, span, text, whole
from redrive.alerts.facts.snapshot import Judgement, LevelSnapshot, PendingLetters
from redrive.model.alerts import Facts, Finding, Subject

_PURGE = "dlq purge and store purge remove what is finished; [retention] in redrive.toml lets the watch do so every day"


def old_letters(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return pipelines whose oldest open letter has waited for too long."""
    known = [letters for letters in snapshot.letters if snapshot.knows("letters", letters.pipeline)]
    findings = [
        finding for letters in known if (finding := _old_letters_finding(letters, snapshot, settings)) is not None
    ]
    judged = snapshot.judged("letters", "level:old_letters:", (letters.pipeline for letters in snapshot.letters))
    return Judgement(findings=tuple(findings)) + judged


def _old_letters_finding(letters: PendingLetters, snapshot: LevelSnapshot, settings: AlertSettings) -> Finding | None:
    limit = settings.thresholds.letter_age
    age = 0.0 if letters.oldest is None else (snapshot.now - letters.oldest).total_seconds()
    if letters.oldest is None or age <= limit:
        return None
    name = letters.pipeline
    facts = Facts(
        letters=letters.pending,
        cause=letters.cause,
        impact=f"{short(name)} lacks these records since {whole(letters.oldest)}",
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
        f"{short(name)}: the oldest of {counted(letters.pending, 'open letter')} has waited for {span(age)}",
        facts,
        key=f"old_letters:{name}",
        evidence=f"level:old_letters:{name}",
        persist=settings.persist,
    )


def sizes(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return findings if the store or its table of letters is too large."""
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
