"""The dead-letter queue as users see it: `store.dlq`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from redrive.dlq import queries, retention, transfer
from redrive.dlq.causes import find_causes
from redrive.dlq.edit import edit
from redrive.dlq.edit.edit import MISSING
from redrive.dlq.filters import Filter, checked_number, moment
from redrive.dlq.insert.digests import Digests
from redrive.dlq.insert.insert import in_order, put_all, put_rows
from redrive.dlq.insert.match import RowThatCounts
from redrive.dlq.insert.row_builder import LetterRowBuilder
from redrive.dlq.redact import Redactor
from redrive.dlq.replay.claims import LEASE
from redrive.dlq.replay.replay import BATCH, Progress, Replay, ReplayPlan
from redrive.dlq.replay.scope import must_not_hide_tasks, scoped
from redrive.dlq.replay.target import ReplayTarget, Target
from redrive.dlq.schedule import Schedule
from redrive.dlq.status import ACTIONS, actor, as_note, checked_note, settle_batch
from redrive.dlq.status import BATCH as SETTLED_AT_ONCE
from redrive.errors import LetterError
from redrive.events.bus import EventBus, Hook
from redrive.model.letters import (
    OPEN,
    AuditEntry,
    Cause,
    Changed,
    Edit,
    EditReport,
    ErrorType,
    History,
    Imported,
    Letter,
    LettersChanged,
    LettersPurged,
    LettersPut,
    LettersReplayed,
    NewLetter,
    Purged,
    QueueSize,
    ReplayReport,
    Status,
    Stored,
)
from redrive.store.database import Database

RETENTION = timedelta(days=30)


class DeadLetters:
    """Records that were rejected, kept with their raw form and their cause until they are sent back or given up.

    Wherever `**filters` are taken, they are those of `redrive.dlq.filters.Filter`: ids, pipeline, cause, error_type,
    status, run_id, source, key, position, since, until, seen_since, text, min_seen and so on.

    `redact` names fields that `show` and the error messages mask; records are stored complete unless `store_redacted`.
    """

    def __init__(
        self,
        database: Database,
        *,
        redact: Iterable[str] = (),
        store_redacted: bool = False,
        listeners: Iterable[Hook] = (),
    ) -> None:
        self._database = database
        self.redactor = Redactor(redact)
        self._masks = store_redacted and bool(self.redactor.fields)
        self._tell = EventBus(None).with_listeners(listeners).event

    @cached_property
    def _salted(self) -> Digests:
        return Digests.of(self._database)

    @cached_property
    def _found_salt(self) -> Digests | None:
        """What stands for values that this process or another one masks; None where the store has no salt."""
        return Digests.found(self._database)

    @property
    def _digests(self) -> Digests | None:
        """What stands for masked values; None where records are stored complete."""
        return self._salted if self._masks else None

    def stored_texts(self, text: str) -> tuple[str, ...]:
        """Return how a key or a position may be stored: as it is, or as a digest where its record was masked.

        text  the key or the position
        """
        digests = self._found_salt  # also where nothing is masked here: another process may mask fields
        return (text,) if digests is None else (text, digests.text(text))

    def _filter(self, filters: Mapping[str, Any], now: datetime | None = None) -> Filter:
        chosen = Filter.of(now or _now(), dict(filters))
        # Both forms, whatever this process would store: another one may mask fields.
        given = {name: texts for name in ("key", "position") if (texts := getattr(chosen, name))}
        both = {name: (*texts, *(self._salted.text(text) for text in texts)) for name, texts in given.items()}
        return chosen.but(**both)

    # ── putting ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def put(
        self,
        record: Any,
        error: str | BaseException,
        *,
        pipeline: str,
        key: str | None = None,
        position: str | int | None = None,
        source: str | None = None,
        run_id: UUID | str | None = None,
        error_type: ErrorType | str | None = None,
        attempts: int = 1,
    ) -> Stored:
        """Quarantine one record. See `NewLetter` for what the arguments mean."""
        letter = NewLetter(record, error, key, position, source, error_type=error_type, attempts=attempts)
        return self.put_many([letter], pipeline=pipeline, run_id=run_id)

    def put_many(
        self,
        letters: Iterable[NewLetter],
        *,
        pipeline: str | None = None,
        run_id: UUID | str | None = None,
        source: str | None = None,
        error_type: ErrorType | str | None = None,
    ) -> Stored:
        """Quarantine many records: any number, from any iterable, in transactions of 20,000.

        What a letter leaves out is taken from the arguments. A record that fails again for the same cause while its
        letter is open is counted there, so that repeating a batch does no harm. One that comes again unchanged after
        its letter was reprocessed or discarded is counted there, too: it stays decided.

        letters  the records, each with its error
        """
        preparer = self._preparer(pipeline=pipeline, run_id=run_id, source=source, error_type=error_type)

        def kept(stored: Stored) -> None:
            self._tell(
                LettersPut(
                    pipeline=pipeline,
                    run_id=run_id,
                    new=stored.new,
                    repeated=stored.repeated,
                    decided=stored.decided,
                )
            )

        return put_all(self._database, letters, preparer, kept=kept)

    def put_within(
        self,
        connection: Connection,
        letters: Iterable[NewLetter],
        *,
        pipeline: str,
        run_id: UUID | str | None = None,
        target: str | None = None,
        by_run: bool = False,
        counts: RowThatCounts | None = None,
    ) -> Stored:
        """Quarantine the records of a run in a transaction of the caller's on this store's database.

        A record is identified by the key of its row in the sink, where that is known, otherwise by its position and
        content. Two records of one run are always two letters.

        Args:
            by_run: whether equal records of two runs are two letters, as the rows of a sink without a key are two.
            counts: which of the rows of a key and run counts, unless the sink itself compares them.
        """
        preparer = self._preparer(pipeline=pipeline, run_id=run_id, target=target, by_key=False, by_run=by_run)
        rows = in_order([preparer.row(letter) for letter in letters])
        if not rows:
            return Stored()
        causes, known_by = tuple(preparer.causes.values()), preparer.identities
        return put_rows(connection, self._database, rows, causes, identities=known_by, by_run=by_run, counts=counts)

    def _preparer(self, **common: Any) -> LetterRowBuilder:
        return LetterRowBuilder(now=_now(), redactor=self.redactor, digests=self._digests, **common)

    # ── asking ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, letter_id: int) -> Letter:
        """One letter."""
        chosen = Filter.of(_now(), {"ids": (letter_id,)})
        found = self._database.read(lambda connection: queries.fetch(connection, list(chosen.ids or ())))
        if not found:
            raise LetterError(f"there is no letter {letter_id}")
        return found[0]

    def find(
        self,
        *,
        limit: int = 100,
        after: int | None = None,
        newest_first: bool = True,
        records: bool = True,
        max_record_chars: int | None = None,
        **filters: Any,
    ) -> list[Letter]:
        """One page of letters. The next page begins `after` the id of the last one.

        newest_first      or the oldest first
        records           whether to read the records, which may be large; otherwise they are None
        max_record_chars  the longest record to read, in characters of its JSON; for a longer one the letter has a
                          `CutRecord` with its size and its beginning
        """
        checked_number(limit, "limit", least=1)
        if after is not None:
            checked_number(after, "after", least=0)
        _check_longest(max_record_chars)
        chosen = self._filter(filters)
        return self._database.read(
            lambda connection: queries.page(
                connection,
                chosen,
                limit=limit,
                after=after,
                newest_first=newest_first,
                records=records,
                longest=max_record_chars,
            )
        )

    def each(self, **filters: Any) -> Iterator[Letter]:
        """All letters of a selection, oldest first, however many."""
        for ids in self._parts(self._filter(filters), queries.PAGE):
            yield from self._database.read(lambda connection, ids=ids: queries.fetch(connection, ids))  # type: ignore[misc]

    def count(self, **filters: Any) -> int:
        """How many letters match."""
        chosen = self._filter(filters)
        return self._database.read(lambda connection: queries.count(connection, chosen))

    def count_by_status(self, **filters: Any) -> dict[str, int]:
        """Return how many letters match, by status; a status among the filters is ignored."""
        chosen = self._filter(filters)
        return self._database.read(lambda connection: queries.by_status(connection, chosen))

    def targets(self, **filters: Any) -> dict[str | None, int]:
        """Return how many letters match, by the target that rejected them; None for those that have none."""
        chosen = self._filter(filters)
        return self._database.read(lambda connection: queries.by_target(connection, chosen))

    def causes(self, *, limit: int | None = None, **filters: Any) -> list[Cause]:
        """Letters grouped by what is wrong with them, the most frequent first."""
        now = _now()
        chosen = self._filter(filters, now)
        if limit is not None:
            checked_number(limit, "limit", least=1)
        return self._database.read(lambda connection: find_causes(connection, chosen, limit=limit, now=now))

    def history(self, source_key: str, *, max_record_chars: int | None = None) -> History:
        """Every letter of one source key, and what happened to each.

        source_key        the key that the record has at its source
        max_record_chars  the longest record to read, as in `find`
        """
        _check_longest(max_record_chars)
        chosen = self._filter({"key": str(source_key)})

        def work(connection: Connection) -> History:
            ids = queries.snapshot(connection, chosen.where())
            found = queries.fetch(connection, ids, longest=max_record_chars)
            events = queries.audit(connection, ids, longest=max_record_chars)
            return History(key=str(source_key), letters=tuple(found), events=tuple(events))

        return self._database.read(work)

    def audit(self, letter_id: int) -> list[AuditEntry]:
        """What happened to one letter, oldest first."""
        ids = Filter.of(_now(), {"ids": (letter_id,)}).ids or ()
        return self._database.read(lambda connection: queries.audit(connection, ids))

    def size(self) -> QueueSize:
        """How full the queue is."""
        return self._database.read(lambda connection: retention.size(connection, self._database, now=_now()))

    # ── deciding ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def discard(self, *, note: str, **filters: Any) -> Changed:
        """Give letters up on purpose."""
        return self._settle("discard", Status.DISCARDED, checked_note(note, "discard"), filters)

    def escalate(self, *, note: str, **filters: Any) -> Changed:
        """Hand letters to a person."""
        return self._settle("escalate", Status.ESCALATED, checked_note(note, "escalate"), filters)

    def reopen(self, *, note: str | None = None, **filters: Any) -> Changed:
        """Make settled letters pending again."""
        return self._settle("reopen", Status.PENDING, _noted(note), filters)

    def _settle(self, action: str, target: Status, note: str | None, filters: dict[str, Any]) -> Changed:
        chosen = self._selection(filters, "discard, escalate or reopen")
        self._refuse_tasks(chosen, action)
        total, again = Changed(), chosen.but(ids=None)
        try:
            for ids in self._parts(chosen, SETTLED_AT_ONCE):

                def work(connection: Connection, ids: list[int] = ids) -> Changed:
                    now = self._database.dialect.now(connection)
                    return settle_batch(connection, again, ids, target=target, note=note, now=now)

                part = self._database.write(work)
                total = Changed(total.changed + part.changed, total.unfit + part.unfit, total.held + part.held)
        finally:
            self._changed(ACTIONS[target], total.changed)
        return total

    def _refuse_tasks(self, chosen: Filter, action: str) -> None:
        self._database.read(lambda connection: must_not_hide_tasks(connection, chosen, action))

    def _changed(self, action: str, count: int) -> None:
        """Tell what was changed; also where the store was lost halfway."""
        if count:
            self._tell(LettersChanged(action=action, count=count, actor=actor()))

    def _parts(self, chosen: Filter, size: int) -> Iterator[list[int]]:
        """The letters that match now, so many at a time; what comes later does not join."""
        where = chosen.where()
        return queries.in_parts(self._database.read(lambda connection: queries.snapshot(connection, where)), size)

    def _selection(self, filters: dict[str, Any], what: str) -> Filter:
        """A filter that selects something: everything there is must be asked for by name."""
        chosen = self._filter(filters)
        if chosen == Filter():
            raise LetterError(f"to {what} letters, say which: by ids, pipeline, cause, status or any other filter")
        if chosen.ids:
            ids = chosen.ids
            self._database.read(lambda connection: queries.must_exist(connection, ids))
        return chosen

    # ── editing ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def edit(
        self,
        letter_id: int,
        record: Any = MISSING,
        *,
        patch: Any = MISSING,
        expression: str | None = None,
        undo: bool = False,
        note: str | None = None,
    ) -> Edit:
        """Change what a replay of this letter sends; the record as received is kept.

        record      the whole record anew
        patch       a JSON merge patch: fields to set, None to remove
        expression  a Python expression of `record` that gives the new record
        undo        back to the record as received
        """
        change = edit.change_of(record, patch, expression, undo)
        self._refuse_tasks(Filter.of(_now(), {"ids": (letter_id,)}), "edit")
        made = edit.edit_one(
            self._database,
            letter_id,
            change,
            note=_noted(note),
            redactor=self.redactor,
            stored_texts=self.stored_texts,
        )
        self._changed(_edited(undo), 1)
        return made

    def edit_many(
        self,
        *,
        patch: Any = MISSING,
        expression: str | None = None,
        undo: bool = False,
        dry_run: bool = True,
        note: str | None = None,
        **filters: Any,
    ) -> EditReport:
        """Edit a selection; a preview unless `dry_run=False`.

        patch       a JSON merge patch: fields to set, None to remove
        expression  a Python expression of `record` that gives the new record
        undo        back to the records as received
        """
        change = edit.change_of(MISSING, patch, expression, undo)
        chosen = self._selection(filters, "edit")
        self._refuse_tasks(chosen, "edit")
        return edit.edit_many(
            self._database,
            chosen,
            change,
            note=_noted(note),
            dry_run=dry_run,
            redactor=self.redactor,
            stored_texts=self.stored_texts,
            kept=lambda count: self._changed(_edited(undo), count),
        )

    # ── sending back ──────────────────────────────────────────────────────────────────────────────────────────────────

    def replay(
        self,
        target: ReplayTarget | Any,
        *,
        dry_run: bool = True,
        any_pipeline: bool = False,
        include_superseded: bool = False,
        canary: int | None = None,
        rate: float | None = None,
        limit: int | None = None,
        due: bool | Schedule = False,
        batch: int = BATCH,
        note: str | None = None,
        progress: Progress | None = None,
        lease: float = LEASE,
        **filters: Any,
    ) -> ReplayReport:
        """Send open letters, pending and escalated ones, back through a target.

        A `Pipeline` takes its own letters. For a function the filters must say which letters it takes; it is not sent
        the letters of several pipelines unless they are named.

        target        a function of a list of records, or anything with `reprocess(records)`; see `ReplayTarget`
        dry_run       change nothing; a target that takes the keyword `dry_run` is asked what it would answer
        any_pipeline  send the letters of every pipeline that the filters match
        include_superseded  also letters whose key was written since; without this they are counted and left out
        canary        letters to send first, and stop if one of them fails; 0 for none. By default 10, where more than
                      100 letters are sent, unless it is a dry run or a scheduled replay
        rate          letters per second at most
        limit         letters to send at most
        due           only pending letters whose next attempt is due by the schedule; they stay pending until their
                      attempts are exhausted, where otherwise a letter that fails again is escalated
        batch         records per call of the target
        progress      is called with how many letters are done, and of how many
        lease         seconds after which the letters of a replay that was killed are free for the next
        """
        schedule = due if isinstance(due, Schedule) else Schedule() if due else None
        matched = self._filter(filters)
        if matched.status is None:
            # An escalated letter waits for an operator's decision; no schedule sends it by itself.
            matched = matched.but(status=OPEN if schedule is None else (Status.PENDING,))
        if matched.ids:
            ids = matched.ids
            self._database.read(lambda connection: queries.must_exist(connection, ids))
        aim = Target.of(target)
        plan = ReplayPlan(
            chosen=scoped(aim, matched, any_pipeline=any_pipeline),
            matched=matched,
            any_pipeline=any_pipeline,
            include_superseded=include_superseded or matched.superseded is not None,
            limit=limit,
            canary=canary,
            rate=rate,
            batch=batch,
            schedule=schedule,
            lease=lease,
            note=_noted(note),
        )
        replay = Replay(
            self._database,
            aim,
            plan,
            dry_run=dry_run,
            redactor=self.redactor,
            stored_texts=self.stored_texts,
            masks=self._masks,
            progress=progress,
        )
        try:
            return replay.go()
        finally:
            report = replay.report()
            if report.attempted and not dry_run:
                self._tell(LettersReplayed(report=report, pipelines=plan.chosen.pipelines, actor=actor()))

    # ── keeping ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def purge(
        self,
        *,
        older_than: timedelta | str | datetime = RETENTION,
        dry_run: bool = False,
        within: float = math.inf,
        **filters: Any,
    ) -> Purged:
        """Remove letters that were reprocessed or discarded longer ago than this; never any other.

        older_than  how long ago at least: a timedelta, "90d", or the moment itself
        within      seconds after which the rest is left for another time
        """
        now = _now()
        before = moment(older_than, now, "older_than")

        def gone(count: int) -> None:
            if count:
                self._tell(LettersPurged(count=count, before=before, actor=actor()))

        chosen = self._filter(filters, now)
        return retention.purge(self._database, chosen, before=before, dry_run=dry_run, gone=gone, within=within)

    def export(self, **filters: Any) -> Iterator[str]:
        """Letters as lines of NDJSON."""
        return transfer.export_lines(self._database, self._filter(filters))

    def import_(self, lines: Iterable[str]) -> Imported:
        """Take letters in that `export` wrote; those that are there already are left alone.

        lines  of NDJSON
        """
        return transfer.import_lines(
            self._database,
            lines,
            redactor=self.redactor,
            digests=self._digests,
            kept=lambda count: self._changed("imported", count),
        )


def _edited(undo: bool) -> str:
    return edit.UNDONE if undo else edit.EDITED


def _noted(note: str | None) -> str | None:
    return None if note is None else as_note(note)


def _check_longest(max_record_chars: int | None) -> None:
    if max_record_chars is not None:
        checked_number(max_record_chars, "max_record_chars", least=0)


def _now() -> datetime:
    return datetime.now(UTC)
