"""The writer of a run's batches: rows to the sink, letters and the checkpoint to the store. Used by `Run`.

If sink and store are one database, a batch is one transaction. Otherwise the rows are written first, and the rest in
one transaction of the store. If the process is killed between the two, the resumed run writes the batch a second time.
That changes nothing: rows are upserts, or are recognised by the label of their batch if the sink appends them.
The checkpoint never moves before every row of the batch is in the sink or in the quarantine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile

from sqlalchemy import Connection

from redrive.dlq.insert.match import RowThatCounts
from redrive.dlq.insert.row_builder import key_text
from redrive.model.calls import Kind
from redrive.model.letters import ErrorType, NewLetter
from redrive.model.runs import Counts, Tier
from redrive.rows.batch import Outgoing, Refused
from redrive.rows.checkpoint import PipelineRunHandle
from redrive.rows.errors import kind_of
from redrive.rows.options import RunOptions
from redrive.rows.prepare import Prepared, reason_of
from redrive.rows.run_state import StartedPipelineRun
from redrive.rows.sinks.sink import Appends, ComparesKeys, SharesTransactions, WriteResult
from redrive.rows.sources.records.first_items import digest_of
from redrive.rows.sources.source import Replaceable
from redrive.rows.write.batch_outcome import BatchLetters, BatchOutcome, BatchResult, KnownRows, first_number
from redrive.rows.write.dedup import KeyContest, WriteRounds, twice
from redrive.rows.write.effect import Rehearse, left_out
from redrive.rows.write.superseded import LetterKeys, compared_texts, place_of
from redrive.rows.write.written_keys import DistinctKeys, Hashes, KeysSeen
from redrive.rows.write.written_keys import digest_of as digest_of_key
from redrive.store.store import Store


class BatchWriter:
    """Writes the batches of a run in their order; used by one thread at a time."""

    def __init__(
        self, options: RunOptions, store: Store, handle: PipelineRunHandle, started: StartedPipelineRun
    ) -> None:
        sink = options.sink
        self._options = options
        self._store = store
        self._shared = sink if isinstance(sink, SharesTransactions) and sink.lives_in(store.database) else None
        self._handle = handle
        self._started = started
        keyed = store.database, started.run_id, sink.key
        self._seen = None if options.on_duplicate == "last" else KeysSeen(*keyed)
        self._distinct = None
        mode = getattr(sink, "mode", None)
        self._mode = None if mode is None or mode.is_plain else mode
        # If existing rows are kept, no key is written twice.
        overwrites = self._mode is None or self._mode.on_conflict == "update"
        if options.on_duplicate == "last" and sink.key and overwrites:
            self._distinct = DistinctKeys(*keyed, resumed=started.resumed)
        self._row_that_counts: RowThatCounts | None = None
        if sink.key and not (self._mode is not None and self._mode.compares):
            self._row_that_counts = "last" if options.on_duplicate == "last" else "first"
        self._letter_keys = None
        if sink.key:
            self._letter_keys = LetterKeys(
                store.database,
                options.pipeline,
                started.run_id,
                sink.key,
                stored_texts=store.dlq.stored_texts,
                keys_of=partial(compared_texts, sink, of_text=getattr(options.source, "of_text", False)),
            )
        self._with_letters: frozenset[str] = frozenset()  # keys of the batch, or piece, that is being written
        self._has_claims = False
        self.has_unsaved_rows = False
        """Whether the sink may have rows of a batch that was not saved, so that their letters are not marked."""
        # A batch that was split into pieces is saved with its last piece, which alone moves the checkpoint.
        self._unsaved_pieces: list[BatchOutcome] = []
        self._start_time = time.monotonic()
        # The number of rows in a file that was set aside is not known, so such a run raises at least a P3 alert.
        self._lacks_files = started.resumed and store.dlq.count(run_id=started.run_id, error_type=ErrorType.FILE) > 0
        self.counts = started.counts
        self.source_done, self.source_total = started.source_done, started.source_total
        """How much of the source has been read up to the checkpoint, and its size; None if not known."""
        self.position = started.position

    @property
    def seconds(self) -> float:
        """Seconds of work in all parts of the run."""
        return self._started.seconds + time.monotonic() - self._start_time

    @property
    def judged(self) -> Counts:
        """The counts for the gate: without the rows of a decision that an operator has overridden."""
        return self.counts - self._started.judged_before

    @property
    def tier(self) -> Tier:
        """The tier of the run so far: at least P3 if an operator accepted rejected rows, or a file was set aside."""
        tier = self._options.gate.judge(self.judged.rejected, self.judged.read)
        is_fine = not self._started.judged_before.rejected and not self._lacks_files
        return Tier.P3 if tier is Tier.LOG and not is_fine else tier

    def write(self, prepared: Prepared) -> BatchResult:
        """Write one batch."""
        start, repeats_before = time.monotonic(), self._count_repeats()
        bad_batch = prepared.bad_batch
        try:
            self._set_compared_keys(prepared)
            self._claim_letters(prepared)
            outcome = self._write(prepared)
        except Exception as error:
            # The sink isolates rows at fault by itself. Any other error of the data belongs to the whole batch.
            if not len(prepared.rows) or kind_of(error, scope="row") is not Kind.ROW:
                raise
            bad_batch = reason_of(error)
            outcome = self._write(self._reject_rows(prepared, error))
        finally:
            self.counts += Counts(retries=self._count_repeats() - repeats_before)
        self._lacks_files |= any(letter.error_type == ErrorType.FILE for letter in prepared.letters)
        if prepared.batch.next is None:
            self._unsaved_pieces.append(outcome)
            self.has_unsaved_rows = True
        else:
            self._unsaved_pieces.clear()
            self._has_claims = self.has_unsaved_rows = False
            if self._distinct is not None:
                self._distinct.add(*outcome.hashes)
            if self._letter_keys is not None:
                self._letter_keys.add(outcome.letters)
            self.counts, self.position = self.counts + outcome.counts, prepared.batch.next
            self.source_done = prepared.batch.done
        return BatchResult(outcome.counts, time.monotonic() - start, bad_batch, moved=prepared.batch.next is not None)

    def _set_compared_keys(self, prepared: Prepared) -> None:
        """Set the keys of accepted and rejected rows as the sink compares them."""
        sink = self._options.sink
        if not sink.key or not isinstance(sink, ComparesKeys):
            return
        prepared.rows.keys = sink.compared_keys(prepared.rows)
        rejected = Outgoing(sink.key, list(prepared.keys), tuples=list(prepared.keys.values()))
        rejected.of_text = prepared.rows.of_text
        compared = sink.compared_keys(rejected)
        if compared is not None:
            for place, key in zip(compared.origin, compared.tuples, strict=True):
                prepared.rejected[place].sink_key = key_text(key)
                prepared.keys[place] = tuple(key)

    def _claim_letters(self, prepared: Prepared) -> None:
        """Claim the letters of the rows' keys, so that no replay writes older rows until the batch is saved."""
        self._with_letters = frozenset()
        if self._letter_keys is None or not len(prepared.rows):
            return
        self._letter_keys.refresh()
        self._with_letters = self._letter_keys.find_keys_with_letters(self._take_superseding(prepared.rows))
        if self._with_letters:
            self._has_claims = True
            self._letter_keys.claim(self._with_letters, self._handle.claims, patience=self._options.patience)

    def _take_superseding(self, rows: Outgoing) -> Outgoing:
        """Return the rows that supersede earlier rows of their key."""
        return rows if self._mode is None else rows.take(self._mode.superseding(rows))

    def _write(self, prepared: Prepared) -> BatchOutcome:
        """Write the rows to the sink, and save the outcome with the checkpoint."""
        database, shared = self._store.database, self._shared
        if shared is not None:

            def work(connection: Connection) -> BatchOutcome:
                known = self._find_known(connection, prepared)

                def rehearse(some: Outgoing) -> Sequence[Refused]:
                    with connection.begin_nested() as savepoint:
                        refused = shared.write_within(connection, some)
                        savepoint.rollback()
                    return refused

                outcome = self._to_sink(prepared, known, lambda some: shared.write_within(connection, some), rehearse)
                return self._save(connection, prepared, outcome)

            return database.write(work, done=self._has_saved, patience=shared.patience)
        known = KnownRows()
        if self._seen is not None:
            known = database.read(lambda connection: self._find_known(connection, prepared))
        self._handle.confirm_claim()  # the sink's database does not reject a process that has lost its claim
        outcome = self._to_sink(
            prepared, known, lambda some: self._to_other(prepared, some), self._options.sink.rehearse
        )
        if prepared.batch.next is None:
            return outcome
        return database.write(lambda connection: self._save(connection, prepared, outcome), done=self._has_saved)

    def _to_other(self, prepared: Prepared, rows: Outgoing) -> Sequence[Refused]:
        """Write rows to a sink of another database, or to a sink that appends."""
        sink = self._options.sink
        self.has_unsaved_rows = True
        if sink.key or not isinstance(sink, Appends):
            return sink.write(rows, label=self._build_label())
        return sink.append(rows, label=self._build_label(), digest=self._first_rows(prepared))

    def _first_rows(self, prepared: Prepared) -> str:
        """Return a digest of the first batch, if the input may be replaced under the same name; else an empty text.

        A resumed run compares its input with the checkpoint; before the first batch is saved there is none.
        """
        received = prepared.batch.rows
        if (
            self.position is not None
            or self._unsaved_pieces
            or not isinstance(self._options.source, Replaceable)
            or not len(received)
        ):
            return ""
        return "-".join(digest_of(received.record(place)) for place in (0, len(received) - 1))

    def _find_known(self, connection: Connection, prepared: Prepared) -> KnownRows:
        """Return the rows whose key the run has written before, if no key may be written twice."""
        if self._seen is None:
            return KnownRows()
        unsaved = frozenset[bytes]().union(*(unsaved.digests for unsaved in self._unsaved_pieces))
        rows, keyed = self._seen.digests(prepared.rows) if len(prepared.rows) else [], list(prepared.keys)
        rejected = [digest_of_key(prepared.keys[place]) for place in keyed]
        known = unsaved | self._seen.known(connection, [*rows, *rejected])
        return KnownRows(
            frozenset(place for place, digest in enumerate(rows) if digest in known),
            frozenset(place for place, digest in zip(keyed, rejected, strict=True) if digest in known),
        )

    def _to_sink(
        self, prepared: Prepared, known: KnownRows, write: Callable[[Outgoing], Sequence[Refused]], rehearse: Rehearse
    ) -> BatchOutcome:
        """Write one row of each key. If the sink rejects a row, write the next row of its key."""
        rows, key = prepared.rows, self._options.sink.key
        rule = self._options.on_duplicate
        if self._mode is not None and self._mode.on_conflict == "ignore" and rule == "last":
            rule = "first"  # as between batches, where the existing row is kept
        # If the newer row counts, all rows are sent in their order, and the sink compares them.
        by_age = self._mode is not None and self._mode.newer and len(rows)
        contest = WriteRounds(rows, key) if by_age else KeyContest(rows, key, rule, known.rows)
        letters = BatchLetters(self._options.preparation, prepared)
        written, digests, hashes = list[Outgoing](), list[bytes](), list[Hashes]()
        superseding = list[Outgoing]()
        suppressed = ignored = 0  # rows that a trigger left out or that delete a row; rows that changed nothing
        removed = 0  # rows of this run that were deleted
        places = contest.first()
        while places:
            bad_places: list[int] = []
            for some, is_known in self._split_by_known(rows, places, hashes):
                sent = rows if len(some) == len(rows) else rows.take(some)
                refused = write(sent)
                rejected_places = {row.place for row in refused}
                kept = (
                    sent.take([place for place in range(len(sent)) if place not in rejected_places])
                    if rejected_places
                    else sent
                )
                if isinstance(refused, WriteResult):
                    left_out = refused.suppressed + refused.deleted
                    suppressed += left_out
                    ignored += len(kept) - left_out if is_known else refused.ignored
                written.append(kept)
                superseding.append(self._select_superseding(kept, refused, letters, rehearse))
                if self._seen is not None:
                    digests += self._seen.digests(kept)
                if self._distinct is not None:
                    changed = self._select_changed(kept, refused, rehearse, is_known=is_known)
                    hashes.append(self._distinct.hashes(changed))
                    removed += len(changed) if is_known else 0
                letters.add([replace(row, place=some[row.place]) for row in refused])
                bad_places += [some[place] for place in rejected_places]
            places = contest.next(sorted(bad_places))
        unsent, copy_letters = contest.left(), list[NewLetter]()
        if self._options.on_duplicate == "quarantine":
            copy_letters = letters.add([twice(rows, place, key) for place in unsent])
            unsent = ()
        counts = Counts(written=sum(map(len, written)), rejected=letters.rejected, duplicates=len(unsent))
        counts += Counts(written=-suppressed - ignored, discarded=suppressed, duplicates=ignored)
        counts += Counts(written=-removed, duplicates=removed)
        outcome = BatchOutcome(
            prepared.counts + counts,
            letters.all,
            tuple(digests),
            tuple(hashes),
            letters.places(len(self._unsaved_pieces)),
            max(((len(self._unsaved_pieces), max(some.origin)) for some in written if len(some)), default=None),
        )
        if self._letter_keys is None:
            return outcome
        superseded_places = [place_of(letter) for letter in copy_letters]
        superseded_places += [place_of(letters.of_rows[place]) for place in known.rejected]
        first = self._options.on_duplicate != "last"
        for group in superseding:
            superseded_places += self._letter_keys.written_later(group, letters.of_rows, or_before=first)
        outcome = replace(outcome, superseded_here=frozenset(superseded_places))
        return self._add_superseded(outcome, superseding, letters) if self._with_letters else outcome

    def _add_superseded(
        self, outcome: BatchOutcome, superseding: Sequence[Outgoing], letters: BatchLetters
    ) -> BatchOutcome:
        """Add to the outcome the written keys that have letters of earlier batches."""
        assert self._letter_keys is not None
        piece, last = len(self._unsaved_pieces), dict[str, int]()
        for group in superseding:
            for key, origin in self._letter_keys.last_places(group).items():
                last[key] = max(last.get(key, origin), origin)
        return replace(
            outcome,
            superseded={key: (piece, origin) for key, origin in last.items()},
            rejected={place_of(letter): (piece, origin) for origin, letter in letters.of_rows.items()},
        )

    def _select_superseding(
        self, rows: Outgoing, refused: Sequence[Refused], letters: BatchLetters, rehearse: Rehearse
    ) -> Outgoing:
        """Return the rows that are in the sink and supersede earlier rows of their key.

        If a trigger left out some rows, or the table has newer rows, only rows whose key has a letter are returned.
        """
        rows = self._take_superseding(rows)
        if self._letter_keys is None or not isinstance(refused, WriteResult) or not len(rows):
            return rows
        if not refused.suppressed and not refused.ignored:
            return rows
        of_batch = {letter.sink_key for letter in letters.of_rows.values() if letter.sink_key is not None}
        rows = rows.take(self._letter_keys.places(rows, self._with_letters | of_batch))
        return _without_left_out(rows, rehearse)

    def _select_changed(
        self, rows: Outgoing, refused: Sequence[Refused], rehearse: Rehearse, *, is_known: bool
    ) -> Outgoing:
        """Return the rows that are new in the sink; of rows whose key the run has written, the deletions.

        With `newer` the sink does not report which rows it left unchanged, so a key stays counted as written.
        """
        if self._mode is None:
            return rows
        if is_known and self._mode.newer is not None:
            return rows.take(())
        rows = self._mode.deletions(rows) if is_known else self._mode.without_deleted(rows)
        return _without_left_out(rows, rehearse) if isinstance(refused, WriteResult) and refused.suppressed else rows

    def _split_by_known(
        self, rows: Outgoing, places: Sequence[int], hashes: Sequence[Hashes]
    ) -> Sequence[tuple[Sequence[int], bool]]:
        """Split rows by whether the run has written their key, if the sink does not report which rows it changed.

        Rows of written keys are duplicates, whether they change the table or not. A sink that upserts every row gets
        all rows at once: duplicates are counted when the batch is saved.
        """
        if self._distinct is None or self._mode is None:
            return [(places, False)]
        before = [*hashes, *(some for unsaved in self._unsaved_pieces for some in unsaved.hashes)]
        known = self._distinct.known(self._distinct.hashes(rows.take(places)), before)
        parts = [
            ([place for place, is_known in zip(places, known, strict=True) if is_known is flag], flag)
            for flag in (False, True)
        ]
        return [part for part in parts if part[0]]

    def _reject_rows(self, prepared: Prepared, error: Exception) -> Prepared:
        """Return the batch without its rows, which become one letter."""
        rows = prepared.rows
        letter = self._options.preparation.letter_of_all(prepared.batch, sorted(set(rows.origin)), error)
        no_rows = Outgoing(rows.columns, (), tuples=())
        origins = set(rows.origin).difference(prepared.rejected)
        counts = prepared.counts + Counts(rejected=len(origins))
        return Prepared(prepared.batch, no_rows, [*prepared.letters, letter], counts, fields=prepared.fields)

    def _save(self, connection: Connection, prepared: Prepared, outcome: BatchOutcome) -> BatchOutcome:
        """Save letters, keys and checkpoint in one transaction. A piece of a batch is saved with the last piece."""
        if prepared.batch.next is None:
            self._handle.verify_claim(connection)
            return outcome
        whole = sum(self._unsaved_pieces, outcome)
        now = self._store.database.dialect.now(connection)
        if self._letter_keys is not None and whole.superseded:
            self._letter_keys.mark(connection, whole.superseded, now)
        written_at = self._put_letters(connection, whole)
        if self._letter_keys is not None:
            self._letter_keys.mark_rows_of_this_run(connection, whole.superseded_here, now)
            self._letter_keys.mark_edited(connection, whole.superseded, whole.rejected, now)
        if self._has_claims:
            self._handle.claims.release(connection)
        if self._seen is not None:
            self._seen.add(connection, whole.digests)
        if self._distinct is not None:
            whole = self._discount_overwritten(connection, whole, self._distinct)
        counts = self.counts + whole.counts
        judged = counts - self._started.judged_before
        self._handle.save(
            connection,
            position=prepared.batch.next,
            fields=prepared.fields,
            counts=counts,
            added=whole.counts,
            done=prepared.batch.done,
            total=self.source_total,
            seconds=self.seconds,
            tier=self._options.gate.judge(judged.rejected, judged.read),
            written_at=written_at,
        )
        return whole

    def _put_letters(self, connection: Connection, outcome: BatchOutcome) -> datetime | None:
        """Put the letters of a batch. Return when its rows were written; None if none were.

        Letters before a written row are put before that time, the others after it: a replay compares these times.
        """
        options = self._options
        paired = zip(outcome.letters, outcome.places, strict=True)
        in_order = sorted(paired, key=lambda pair: first_number(pair[0]))
        followed, last = 0, outcome.last_written
        if options.on_duplicate != "last" and (last is not None or self.counts.written):
            followed, last = (
                len(in_order),
                (0, 0),
            )  # no row of the run is overwritten, whether it is before or after the letter
        elif last is not None:
            later_letters = takewhile(lambda pair: pair[1] is not None and pair[1] >= last, reversed(in_order))
            followed = len(in_order) - sum(1 for _ in later_letters)
        put = partial(
            self._store.dlq.put_within,
            connection,
            pipeline=options.pipeline,
            run_id=self._started.run_id,
            target=options.target,
            by_run=not options.sink.key,
            counts=self._row_that_counts,
        )
        put([letter for letter, _ in in_order[:followed]])
        written_at = None if last is None else datetime.now(UTC)
        put([letter for letter, _ in in_order[followed:]])
        return written_at

    def _discount_overwritten(
        self, connection: Connection, outcome: BatchOutcome, distinct: DistinctKeys
    ) -> BatchOutcome:
        """Return the outcome with rows that overwrite a row of an earlier batch or piece counted as duplicates."""
        if self._mode is None:
            hashes, overwritten = distinct.merge(outcome.hashes)
        else:  # duplicates were split off before the rows were sent
            hashes, overwritten = distinct.changed(outcome.hashes), 0
        distinct.save(connection, self.counts.batches, hashes)
        return replace(
            outcome, counts=outcome.counts + Counts(written=-overwritten, duplicates=overwritten), hashes=(hashes,)
        )

    def _has_saved(self, connection: Connection, outcome: BatchOutcome) -> bool:
        return self._handle.has_saved(connection, self.counts + outcome.counts)

    def _build_label(self) -> str:
        """Return the label of the batch or piece: the same label after a crash."""
        if not self._options.sink.key:
            # Pieces are numbered like batches, so that after a crash a run with smaller batches finds them.
            return f"{self._started.run_id}-{self.counts.batches + len(self._unsaved_pieces):06}"
        piece = f"-{len(self._unsaved_pieces)}" if self._unsaved_pieces else ""
        return f"{self._started.run_id}-{self.counts.batches:06}{piece}"

    def _count_repeats(self) -> int:
        return self._store.database.retries + (0 if self._shared else self._options.sink.repeats)


def _without_left_out(rows: Outgoing, rehearse: Rehearse) -> Outgoing:
    absent = left_out(rehearse, rows)
    return rows.take([place for place in range(len(rows)) if place not in absent])
