"""Writing down what became of replayed letters: one transaction, only for letters whose claim is still ours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, case, update

from redrive.dlq.change import actor
from redrive.dlq.due import Schedule
from redrive.letters import OPEN, Letter, Status
from redrive.store.listed import among
from redrive.store.schema import letter_audit, letters

_LONGEST_REASON = 2_000
_AT_ONCE = 500


def mark(
    connection: Connection,
    outcomes: Sequence[tuple[Letter, str | None]],
    *,
    ours: set[int],
    schedule: Schedule | None,
    note: str | None,
    now: datetime,
) -> int:
    """Mark letters reprocessed or failed again; how many of those accepted had failed anew meanwhile.

    A letter that somebody else took over is left to him.
    """
    accepted = [letter for letter, reason in outcomes if reason is None and letter.id in ours]
    failed = [(letter, reason) for letter, reason in outcomes if reason is not None and letter.id in ours]
    settled = _accept(connection, accepted, note, now)
    missed = [letter for letter in accepted if letter.id not in settled]
    if missed:
        # The record failed anew while it was under way: what was accepted may not be what the letter holds now.
        connection.execute(update(letters).where(among(letters.c.id, [one.id for one in missed])).values(_tried(now)))
    entries = [_entry(one, "reprocessed", Status.REPROCESSED, note, now) for one in accepted if one.id in settled]
    entries += [_entry(one, "seen meanwhile", one.status, note, now) for one in missed]
    entries += _fail(connection, failed, schedule, now)
    if entries:
        connection.execute(letter_audit.insert(), entries)
    return len(missed)


def _accept(connection: Connection, accepted: Sequence[Letter], note: str | None, now: datetime) -> set[int]:
    by_sightings: dict[int, list[int]] = defaultdict(list)
    for letter in accepted:
        by_sightings[letter.seen].append(letter.id)
    settled: set[int] = set()
    for seen, ids in by_sightings.items():
        statement = (
            update(letters)
            .where(among(letters.c.id, ids), letters.c.seen == seen, letters.c.status.in_(OPEN))
            .values(
                **_tried(now),
                status=Status.REPROCESSED,
                last_error=None,
                settled_at=now,
                **({} if note is None else {"resolution_note": note}),
            )
            .returning(letters.c.id)
        )
        settled.update(connection.execute(statement).scalars())
    return settled


def _fail(
    connection: Connection, failed: Sequence[tuple[Letter, str]], schedule: Schedule | None, now: datetime
) -> list[dict[str, Any]]:
    entries = []
    for start in range(0, len(failed), _AT_ONCE):
        part = [(letter, reason[:_LONGEST_REASON]) for letter, reason in failed[start : start + _AT_ONCE]]
        reasons = {letter.id: reason for letter, reason in part}
        connection.execute(
            update(letters)
            .where(among(letters.c.id, reasons), letters.c.status.in_(OPEN))
            .values(**_tried(now), last_error=case(reasons, value=letters.c.id))
        )
        # A person's replay that fails is for a person; one by schedule has more tries.
        over = [letter for letter, _ in part if schedule is None or letter.reprocess_count + 1 >= schedule.tries]
        if over:
            notes = {letter.id: f"failed again: {reasons[letter.id]}" for letter in over}
            connection.execute(
                update(letters)
                .where(among(letters.c.id, notes), letters.c.status.in_(OPEN))
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
