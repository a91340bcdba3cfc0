"""Putting letters: in bulk, counted by cause, each record once however often it comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from uuid import UUID

from sqlalchemy import Connection, literal, select

from redrive.dlq.fingerprint import Fingerprint
from redrive.dlq.prepare import Preparer
from redrive.errors import StoreError
from redrive.letters import OPEN, ErrorType, NewLetter, Stored
from redrive.store.database import Database
from redrive.store.dialect import LetterRow
from redrive.store.encoding import decode
from redrive.store.schema import cause_hours, causes, letter_audit, letters

BATCH = 20_000
_BATCH_BYTES = 16 << 20  # a batch of large records is cut shorter: memory stays flat
_LONGEST_SAMPLE = 500
_ASKED_AT_ONCE = 500

# Their record only names the work: the task, or the page as it is by then, has failed once more.
_NEVER_DECIDED = {ErrorType.TASK, ErrorType.PAGE}

CauseFound = tuple[Fingerprint, str, str]
"""A cause, its error type, and the message of one letter."""


@dataclass(frozen=True, slots=True)
class _Batch:
    rows: list[LetterRow]
    causes: tuple[CauseFound, ...]
    last: bool
    error: Exception | None = None
    """What ended the stream: what came before it is put all the same."""


def put_all(
    database: Database, new: Iterable[NewLetter], preparer: Preparer, *, kept: Callable[[Stored], None]
) -> Stored:
    """Put letters batch by batch, each in one transaction. Where one fails, those before it are kept, and said.

    In the end `kept` is called with what is in the store, where that is anything at all.
    """
    stored = Stored()
    try:
        for so_far in _sums(database, iter(new), preparer):
            stored = so_far
    finally:
        if stored.total:
            kept(stored)
    return stored


def _sums(database: Database, stream: Iterator[NewLetter], preparer: Preparer) -> Iterator[Stored]:
    """Put letters; what is stored so far, after each batch."""
    stored, batch = Stored(), _next(stream, preparer)

    def write(batch: _Batch) -> Stored:
        try:
            return database.write(lambda connection: put_rows(connection, database, batch.rows, batch.causes))
        except StoreError as error:
            if stored.total:
                error.args = (f"{error.args[0]} ({stored.total:,} letters before the fault are kept)",)
            raise

    while batch.rows:
        if batch.last or not database.dialect.is_remote:
            done = write(batch)
            following = _Batch([], (), last=True) if batch.last else _next(stream, preparer)
        else:
            with ThreadPoolExecutor(1) as server:  # it works on one batch while we prepare the next
                under_way = server.submit(write, batch)
                following = _next(stream, preparer)
            done = under_way.result()
        stored += done
        yield stored
        if batch.error is not None:
            break
        batch = following
    if batch.error is not None:
        batch.error.add_note(f"redrive: the {stored.total:,} letters before it are kept")
        raise batch.error


def put_rows(
    connection: Connection,
    database: Database,
    rows: Sequence[LetterRow],
    found: Sequence[CauseFound],
    *,
    apart: Callable[[LetterRow], LetterRow] | None = None,
) -> Stored:
    """Put rows in the caller's transaction.

    By `apart`, a row gets an identity of its own where another one of its run has the same: a letter for each.
    """
    dialect = database.dialect
    add_causes(connection, database, found)
    if apart is not None:
        rows = _told_apart(connection, rows, apart)
    handed_in = len(rows)
    rows = _undecided(connection, database, rows)
    decided = handed_in - len(rows)
    if not rows:
        return Stored(decided=decided)
    first: dict[bytes, LetterRow] = {}
    later = [row for row in rows if first.setdefault(row.identity, row) is not row]
    standing = dialect.put_new(connection, list(first.values()))
    again = [row for row in first.values() if row.identity in standing] if standing else []
    if again or later:
        _see_again(connection, database, again + later)
    return Stored(len(first) - len(again), len(again) + len(later), decided)


def _undecided(connection: Connection, database: Database, rows: Sequence[LetterRow]) -> Sequence[LetterRow]:
    """Return the rows whose record has no letter that was reprocessed or discarded; the others are counted there.

    Most causes have no decided letters, which their counts tell, so that nothing is looked for.
    """
    known = list({row.fingerprint for row in rows if row.error_type not in _NEVER_DECIDED})
    decided: set[str] = set()
    for start in range(0, len(known), _ASKED_AT_ONCE):
        column = cause_hours.c
        some = column.fingerprint.in_(known[start : start + _ASKED_AT_ONCE])
        found = select(column.fingerprint).distinct().where(some, (column.reprocessed > 0) | (column.discarded > 0))
        decided.update(connection.execute(found).scalars())
    if not decided:
        return rows
    times = Counter((row.identity, row.raw_record) for row in rows if row.fingerprint in decided)
    last = {(row.identity, row.raw_record): row for row in rows if row.fingerprint in decided}
    asked = list(last.values())
    places = database.dialect.see_decided(connection, asked, [times[row.identity, row.raw_record] for row in asked])
    settled = {(asked[place].identity, asked[place].raw_record) for place in places}
    return [row for row in rows if (row.identity, row.raw_record) not in settled] if settled else rows


def _told_apart(
    connection: Connection, rows: Sequence[LetterRow], apart: Callable[[LetterRow], LetterRow]
) -> list[LetterRow]:
    """The rows, those with an identity of their own that would pass for another row of the same run."""
    keyed = list({row.identity for row in rows if row.sink_key is not None})
    taken: dict[bytes, str | None] = {}
    run_id = None if not rows or rows[0].run_id is None else UUID(rows[0].run_id)
    for start in range(0, len(keyed), _ASKED_AT_ONCE):
        same = letters.c.identity.in_(keyed[start : start + _ASKED_AT_ONCE])
        # Decided ones as well: a record that comes again unchanged is counted at its letter.
        standing = select(letters.c.identity, letters.c.position).where(same, letters.c.run_id == run_id)
        taken.update({row.identity: row.position for row in connection.execute(standing)})
    told = []
    for row in rows:
        if row.sink_key is not None and taken.setdefault(row.identity, row.position) != row.position:
            told.append(apart(row))
        else:
            told.append(row)
    return told


def add_causes(connection: Connection, database: Database, found: Sequence[CauseFound]) -> None:
    """See that causes are known by what they have in common and by one example."""
    if not found:
        return
    listed = [
        {
            "fingerprint": cause.value,
            "version": cause.version,
            "error_type": error_type,
            "template": cause.template,
            "sample": message[:_LONGEST_SAMPLE],
        }
        # One order for all writers, so that two that meet the same new causes wait for each other and do not deadlock.
        for cause, error_type, message in sorted(found, key=lambda one: one[0].value)
    ]
    connection.execute(database.dialect.insert(causes).on_conflict_do_nothing(), listed)


def _next(stream: Iterator[NewLetter], preparer: Preparer) -> _Batch:
    rows: list[LetterRow] = []
    size, error = 0, None
    try:
        for letter in islice(stream, BATCH):
            row = preparer.row(letter)
            rows.append(row)
            size += len(row.raw_record)
            if size > _BATCH_BYTES:
                break
    except Exception as broken:
        error = broken
    causes = tuple(preparer.causes.values())
    preparer.causes.clear()
    last = error is not None or (len(rows) < BATCH and size <= _BATCH_BYTES)
    return _Batch(rows, causes, last=last, error=error)


def _see_again(connection: Connection, database: Database, rows: Sequence[LetterRow]) -> None:
    """Count repeats. Of several in one batch the letter shows the last; what the others held goes to the audit log."""
    last = {row.identity: row for row in rows}
    counts = Counter(row.identity for row in rows)
    database.dialect.see_again(connection, list(last.values()), [counts[identity] for identity in last])
    if len(last) == len(rows):
        return
    between = [row for row in rows if row.raw_record != last[row.identity].raw_record]
    for row in between:
        letter = (letters.c.identity == row.identity) & (letters.c.status.in_(OPEN))
        connection.execute(
            letter_audit.insert().from_select(
                ["letter_id", "at", "action", "status_before", "status_after", "detail"],
                select(
                    letters.c.id,
                    letters.c.last_seen,
                    literal("superseded"),
                    letters.c.status,
                    letters.c.status,
                    literal({"raw_record": decode(row.raw_record)}, letter_audit.c.detail.type),
                ).where(letter),
            )
        )
