"""The dead-letter queue as users see it: `store.dlq`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from redrive.dlq import queries, retention, transfer
from redrive.dlq.edit import edit
from redrive.dlq.edit.edit import MISSING
from redrive.dlq.filters import Filter, moment
from redrive.dlq.insert.insert import in_order, put_all, put_rows
from redrive.dlq.insert.match import RowThatCounts
from redrive.dlq.insert.row_builder import LetterRowBuilder
from redrive.dlq.reader import LetterReader
from redrive.dlq.replay.claims import LEASE
from redrive.dlq.replay.plan import BATCH, Progress, ReplayPlan
from redrive.dlq.replay.replay import Replay
from redrive.dlq.replay.schedule import Schedule
from redrive.dlq.replay.target import ReplayTarget, Target, must_not_hide_tasks, scoped
from redrive.dlq.status import ACTIONS, actor, as_note, checked_note, settle_batch
from redrive.dlq.status import BATCH as SETTLED_AT_ONCE
from redrive.errors import LetterError
from redrive.events.bus import EventBus, Hook
from redrive.model.letters import (
    OPEN,
    Changed,
    Edit,
    EditReport,
    ErrorType,
    Imported,
    LettersChanged,
    LettersPurged,
    LettersPut,
    LettersReplayed,
    NewLetter,
    Purged,
    ReplayReport,
    Status,
    Stored,
)
from redrive.store.database import Database

RETENTION = timedelta(days=30)


class DeadLetters(LetterReader):
    """Records that were rejected, kept with their raw form and their cause until they are reprocessed or discarded.

    `**filters` are the fields of `redrive.dlq.filters.Filter`: ids, pipeline, cause, error_type, status, run_id,
    source, key, position, since, until, seen_since, text, min_seen and others.

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
        super().__init__(database, redact=redact, store_redacted=store_redacted)
        self._publish = EventBus(None).with_listeners(listeners).event

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
        """Quarantine any number of records, in transactions of 20,000.

        The arguments are defaults for what a letter does not set. If a record fails again for the same cause while its
        letter is open, that letter counts it, so a batch may be put twice. If it comes again unchanged after its letter
        was reprocessed or discarded, that letter counts it, too, and its status does not change.

        letters  the records, each with its error
        """
        preparer = self._preparer(pipeline=pipeline, run_id=run_id, source=source, error_type=error_type)

        def kept(stored: Stored) -> None:
            self._publish(
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
        """Quarantine the records of a run in a transaction that the caller has begun on the database of this store.

        A record is identified by the key of its row in the sink, where that is known, otherwise by its position and
        content. Two records of one run are always two letters.

        Args:
            by_run: Whether equal records of two runs are two letters, because the sink has no key.
            counts: The row that counts among those of a key and run, unless the sink compares them.
        """
        preparer = self._preparer(pipeline=pipeline, run_id=run_id, target=target, by_key=False, by_run=by_run)
        rows = in_order([preparer.row(letter) for letter in letters])
        if not rows:
            return Stored()
        causes, known_by = tuple(preparer.causes.values()), preparer.identities
        return put_rows(connection, self._database, rows, causes, identities=known_by, by_run=by_run, counts=counts)

    def _preparer(self, **common: Any) -> LetterRowBuilder:
        return LetterRowBuilder(now=_now(), redactor=self.redactor, digests=self._digests, **common)

    # ── deciding ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def discard(self, *, note: str, **filters: Any) -> Changed:
        """Discard letters that will not be replayed."""
        return self._settle("discard", Status.DISCARDED, checked_note(note, "discard"), filters)

    def escalate(self, *, note: str, **filters: Any) -> Changed:
        """Escalate letters to an operator."""
        return self._settle("escalate", Status.ESCALATED, checked_note(note, "escalate"), filters)

    def reopen(self, *, note: str | None = None, **filters: Any) -> Changed:
        """Make escalated, reprocessed or discarded letters pending again."""
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
        """Publish the number of changes, also if the store failed before the last one."""
        if count:
            self._publish(LettersChanged(action=action, count=count, actor=actor()))

    def _selection(self, filters: dict[str, Any], what: str) -> Filter:
        """Return the filter; raise a LetterError if it has no condition."""
        chosen = self._filter(filters)
        if chosen == Filter():
            raise LetterError(f"to {what} letters, select them: by ids, pipeline, cause, status or any other filter")
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

        record      the complete new record
        patch       a JSON merge patch: fields to set, or None to remove one
        expression  a Python expression of `record` that returns the new record
        undo        restore the record as received
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
        """Edit all letters that match; by default only a preview.

        patch       a JSON merge patch: fields to set, or None to remove one
        expression  a Python expression of `record` that returns the new record
        undo        restore the records as received
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
        """Send open letters (pending and escalated) to a target again.

        A `Pipeline` takes its own letters only. For a function, the filters must select the letters; those of several
        pipelines must be selected by the names of the pipelines.

        target        a function of a list of records, or an object with `reprocess(records)`; see `ReplayTarget`
        dry_run       only report what would be done; a target is called if it has the keyword `dry_run`
        any_pipeline  send the letters of every pipeline that the filters match
        include_superseded  also send letters whose key was written since; by default they are counted and left out
        canary        number of letters that are sent first; if one of them fails, the replay stops. 0 turns it off. The
                      default is 10 if more than 100 letters are sent, except in a dry run or a scheduled replay
        rate          maximum number of letters per second
        limit         maximum number of letters
        due           only pending letters whose next attempt is due by the schedule; a letter that fails again stays
                      pending until its attempts are exhausted, and is escalated then
        batch         number of records per call of the target
        progress      function that is called with the number of finished letters and the number of all
        lease         seconds after which another replay may take the letters of one that was killed
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
                self._publish(LettersReplayed(report=report, pipelines=plan.chosen.pipelines, actor=actor()))

    # ── keeping ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def purge(
        self,
        *,
        older_than: timedelta | str | datetime = RETENTION,
        dry_run: bool = False,
        within: float = math.inf,
        **filters: Any,
    ) -> Purged:
        """Remove letters that were reprocessed or discarded long ago; never open ones.

        older_than  minimum age: a timedelta, "90d", or a datetime
        within      maximum duration in seconds; the next call removes the rest
        """
        now = _now()
        before = moment(older_than, now, "older_than")

        def gone(count: int) -> None:
            if count:
                self._publish(LettersPurged(count=count, before=before, actor=actor()))

        chosen = self._filter(filters, now)
        return retention.purge(self._database, chosen, before=before, dry_run=dry_run, gone=gone, within=within)

    def export(self, **filters: Any) -> Iterator[str]:
        """Iterate over the letters that match, as lines of NDJSON."""
        return transfer.export_lines(self._database, self._filter(filters))

    def import_(self, lines: Iterable[str]) -> Imported:
        """Import letters that `export` wrote; existing letters are not changed.

        lines  lines of NDJSON
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


def _now() -> datetime:
    return datetime.now(UTC)
