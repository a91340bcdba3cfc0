"""Writing down what became of replayed letters: one transaction, only for letters whose claim is still ours."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, case, update

from redrive.dlq.fingerprint import fingerprint
from redrive.dlq.replay.overwrites import note_replayed
from redrive.dlq.replay.schedule import Schedule
from redrive.dlq.replay.siblings import StoredTexts, remember_keys, supersede
from redrive.dlq.replay.target import LetterOutcome, Target, TargetAnswer
from redrive.dlq.status import actor
from redrive.model.letters import OPEN, FailedCause, Letter, Status
from redrive.store.dialects.dialect import Dialect
from redrive.store.schema import letter_audit, letters
from redrive.store.sql import in_ids

_LONGEST_REASON = 2_000
_AT_ONCE = 500

# The action in the audit log for letters that did not fail.
_ACTIONS = {
    LetterOutcome.REPROCESSED: "reprocessed",
    LetterOutcome.DISCARDED: "discarded",
    LetterOutcome.SUPERSEDED: "superseded",
}

Answered = tuple[Letter, TargetAnswer]


def mark(
    connection: Connection,
    answers: Sequence[Answered],
    *,
    ours: set[int],
    schedule: Schedule | None,
    note: str | None,
    now: datetime,
    target: Target,
    dialect: Dialect,
    stored_texts: StoredTexts,
    masks: bool,
) -> list[Answered]:
    """Mark letters by their outcome; return those that did not fail, but whose record was rejected again meanwhile.

    A letter that another replay took over is left to it.

    Args:
        target: what they were sent to.
        stored_texts: how a key may be stored.
        masks: whether no masked value may be stored.
    """
    mine = [(letter, answer) for letter, answer in answers if letter.id in ours]
    failed = [(letter, answer.reason or "") for letter, answer in mine if answer.became is LetterOutcome.FAILED]
    missed: list[Answered] = []
    entries: list[dict[str, Any]] = []
    for became, action in _ACTIONS.items():
        part = [(letter, answer) for letter, answer in mine if answer.became is became]
        settled = _settle(connection, part, became, note, now)
        missed += [(letter, answer) for letter, answer in part if letter.id not in settled]
        status = _status(became)
        entries += [
            _entry(letter, action, status or letter.status, answer.reason or note, now)
            for letter, answer in part
            if letter.id in settled
        ]
    if missed:
        # The record was rejected again while it was being sent: what was sent may not be what the letter holds now.
        ids = [letter.id for letter, _ in missed]
        connection.execute(update(letters).where(in_ids(letters.c.id, ids)).values(_tried(now)))
    entries += [_entry(letter, "seen meanwhile", letter.status, note, now) for letter, _ in missed]
    written = [pair for pair in mine if pair[1].became is LetterOutcome.REPROCESSED]
    # Of a record that became several rows, some may be in the sink although it failed.
    in_part = [(letter, answer) for letter, answer in mine if answer.became is LetterOutcome.FAILED and answer.keys]
    note_replayed(connection, dialect, [*written, *in_part], pipeline=target.pipeline, sink=target.sink)
    supersede(connection, [*written, *in_part], pipeline=target.pipeline, stored_texts=stored_texts, now=now)
    remember_keys(connection, written, stored_texts=stored_texts, masks=masks, now=now)
    entries += _fail(connection, failed, schedule, now)
    if entries:
        connection.execute(letter_audit.insert(), entries)
    return missed


def _status(became: LetterOutcome) -> Status | None:
    """Return the status that a letter gets; None where it keeps the one it has."""
    return {LetterOutcome.REPROCESSED: Status.REPROCESSED, LetterOutcome.DISCARDED: Status.DISCARDED}.get(became)


def _settle(
    connection: Connection, part: Sequence[Answered], became: LetterOutcome, note: str | None, now: datetime
) -> set[int]:
    """Mark letters that did not fail, unless their record was rejected again meanwhile; return their ids."""
    by_sightings: dict[int, dict[int, str | None]] = defaultdict(dict)
    for letter, answer in part:
        by_sightings[letter.seen][letter.id] = None if answer.reason is None else answer.reason[:_LONGEST_REASON]
    settled: set[int] = set()
    for seen, reasons in by_sightings.items():
        ids = list(reasons)
        for start in range(0, len(ids), _AT_ONCE):
            some = {one: reasons[one] for one in ids[start : start + _AT_ONCE]}
            statement = (
                update(letters)
                .where(in_ids(letters.c.id, some), letters.c.seen == seen, letters.c.status.in_(OPEN))
                .values(**_tried(now), **_settled(became, some, note, now))
                .returning(letters.c.id)
            )
            settled.update(connection.execute(statement).scalars())
    return settled


def _settled(
    became: LetterOutcome, reasons: Mapping[int, str | None], note: str | None, now: datetime
) -> dict[str, Any]:
    if became is LetterOutcome.SUPERSEDED:  # still open: an operator may send it all the same
        return {"superseded_at": now, "last_error": case(dict(reasons), value=letters.c.id)}
    values = {"status": _status(became), "last_error": None, "settled_at": now}
    if became is LetterOutcome.DISCARDED:
        return {**values, "resolution_note": case(dict(reasons), value=letters.c.id)}
    return values if note is None else {**values, "resolution_note": note}


def _fail(
    connection: Connection, failed: Sequence[tuple[Letter, str]], schedule: Schedule | None, now: datetime
) -> list[dict[str, Any]]:
    entries = []
    for start in range(0, len(failed), _AT_ONCE):
        part = [(letter, reason[:_LONGEST_REASON]) for letter, reason in failed[start : start + _AT_ONCE]]
        reasons = {letter.id: reason for letter, reason in part}
        connection.execute(
            update(letters)
            .where(in_ids(letters.c.id, reasons), letters.c.status.in_(OPEN))
            .values(**_tried(now), last_error=case(reasons, value=letters.c.id))
        )
        # A failed replay of an operator needs an operator; one by schedule has more tries.
        over = [letter for letter, _ in part if schedule is None or letter.reprocess_count + 1 >= schedule.tries]
        if over:
            notes = {letter.id: f"failed again: {reasons[letter.id]}" for letter in over}
            connection.execute(
                update(letters)
                .where(in_ids(letters.c.id, notes), letters.c.status.in_(OPEN))
                .values(status=Status.ESCALATED, resolution_note=case(notes, value=letters.c.id), settled_at=now)
            )
        escalated = {letter.id for letter in over}
        for letter, reason in part:
            after = Status.ESCALATED if letter.id in escalated else letter.status
            entries.append(_entry(letter, "failed again", after, reason, now))
    return entries


def _tried(now: datetime) -> dict[str, Any]:
    return {"reprocess_count": letters.c.reprocess_count + 1, "last_reprocess": now}


def _entry(letter: Letter, action: str, after: str, note: str | None, now: datetime) -> dict[str, Any]:
    return {
        "letter_id": letter.id,
        "at": now,
        "action": action,
        "status_before": str(letter.status),
        "status_after": str(after),
        "actor": actor(),
        "note": note,
    }


@dataclass(slots=True)
class ReplayCounts:
    """The report as it grows."""

    attempted: int = 0
    became: Counter[LetterOutcome] = field(default_factory=Counter)
    seen_meanwhile: int = 0
    superseded_before: int = 0
    superseded: int = 0
    """Left out since the replay began."""
    decided: int = 0
    stopped: str | None = None
    causes: dict[str, FailedCause] = field(default_factory=dict)

    @property
    def reprocessed(self) -> int:
        """Letters whose record was written."""
        return self.became[LetterOutcome.REPROCESSED]

    @property
    def failed(self) -> int:
        """Letters that failed again."""
        return self.became[LetterOutcome.FAILED]

    def add(self, letter: Letter, answer: TargetAnswer) -> None:
        """Count what became of a letter."""
        self.attempted += 1
        self.became[answer.became] += 1
        if answer.became is LetterOutcome.FAILED:
            self._add_failure(letter, answer.reason or "")

    def _add_failure(self, letter: Letter, reason: str) -> None:
        cause = fingerprint(letter.error_type, reason)
        before = self.causes.get(cause.value)
        self.causes[cause.value] = FailedCause(
            fingerprint=cause.value,
            message=cause.template,
            count=before.count + 1 if before else 1,
            sample=before.sample if before else reason,
        )
