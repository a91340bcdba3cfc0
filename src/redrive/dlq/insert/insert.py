"""Putting letters: in bulk, counted by cause, each record once however often it comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from sqlalchemy import Connection, literal, select, update

from redrive.dlq.fingerprint import Fingerprint
from redrive.dlq.insert.identity import LetterIdentity
from redrive.dlq.insert.match import RowThatCounts, match
from redrive.dlq.insert.row_builder import LetterRowBuilder
from redrive.errors import StoreError
from redrive.model.letters import OPEN, NewLetter, Stored
from redrive.store.database import Database
from redrive.store.dialects.dialect import LetterRow
from redrive.store.encoding import decode, is_same
from redrive.store.schema import causes, letter_audit, letters
from redrive.store.schema.columns import utc_text

BATCH = 20_000
_BATCH_BYTES = 16 << 20  # a batch of large records is cut shorter: memory stays flat
_LONGEST_SAMPLE = 500
_AT_ONCE = 500

CauseFound = tuple[Fingerprint, str, str]
"""A cause, its error type, and the message of one letter."""


@dataclass(frozen=True, slots=True)
class _Batch:
    rows: list[LetterRow]
    causes: tuple[CauseFound, ...]
    last: bool
    error: Exception | None = None
    """Error that ended the stream; the letters before it are put."""


def put_all(
    database: Database, new: Iterable[NewLetter], preparer: LetterRowBuilder, *, kept: Callable[[Stored], None]
) -> Stored:
    """Put letters batch by batch, each in one transaction. Where one fails, those before it are kept and reported.

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


def _sums(database: Database, stream: Iterator[NewLetter], preparer: LetterRowBuilder) -> Iterator[Stored]:
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
    identities: Callable[[LetterRow], LetterIdentity] | None = None,
    by_run: bool = False,
    counts: RowThatCounts | None = None,
) -> Stored:
    """Put rows in the caller's transaction.

    Args:
        identities: by what the row of a run may be known, so that two rows of one run are always two letters.
        by_run: whether equal rows of two runs are two letters, too.
        counts: which of the rows of a key and run counts, unless the sink itself compares them.
    """
    dialect = database.dialect
    add_causes(connection, database, found)
    matched = match(connection, database, rows, identities, by_run=by_run, counts=counts)
    decided = len(rows) - len(matched.rows)
    if matched.decided:
        dialect.see_decided(connection, matched.decided)
    rows = matched.rows
    if not rows:
        return Stored(decided=decided)
    first: dict[bytes, LetterRow] = {}
    later = [row for row in rows if first.setdefault(row.identity, row) is not row]
    standing = dialect.put_new(connection, list(first.values()))
    again = [row for row in first.values() if row.identity in standing] if standing else []
    if again or later:
        _see_again(connection, database, again + later)
    superseded = sorted(matched.superseded)
    for start in range(0, len(superseded), _AT_ONCE):
        mine = letters.c.identity.in_(superseded[start : start + _AT_ONCE]) & letters.c.status.in_(OPEN)
        connection.execute(update(letters).where(mine).values(superseded_at=dialect.now(connection)))
    return Stored(len(first) - len(again), len(again) + len(later), decided)


def in_order(rows: list[LetterRow]) -> list[LetterRow]:
    """Return rows of a batch with the sightings of one key one after the other: a replay sends the last one last."""
    times: Counter[str] = Counter()
    for place, row in enumerate(rows):
        if row.sink_key is None:
            continue
        if later := times[row.sink_key]:
            moment = datetime.fromisoformat(row.last_seen) + timedelta(microseconds=later)
            rows[place] = row._replace(last_seen=utc_text(moment))
        times[row.sink_key] += 1
    return rows


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


def _next(stream: Iterator[NewLetter], preparer: LetterRowBuilder) -> _Batch:
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
    """Count letters seen again. The letter shows the last of a batch; the others go to the audit log."""
    last = {row.identity: row for row in rows}
    counts = Counter(row.identity for row in rows)
    database.dialect.see_again(connection, list(last.values()), [counts[identity] for identity in last])
    if len(last) == len(rows):
        return
    between = [row for row in rows if not is_same(row.raw_record, last[row.identity].raw_record)]
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
