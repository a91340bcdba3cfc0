"""Writes a batch: its rows to the sink, its letters and the checkpoint to the store.

Where sink and store are one database, all of it is one transaction. Otherwise the rows come first and the rest follows
in one transaction: killed in between, the batch is written once more, which changes nothing, since rows are upserts, or
known by the label of their batch where they are appended.
The checkpoint never moves before every row of the batch is in the sink or in the quarantine.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from redrive.rows.checkpoint import RunHandle, StartedRun
from redrive.rows.errors import kind_of
from redrive.rows.prepare import Preparation, Prepared, reason_of
from redrive.rows.run_options import RunOptions
from redrive.rows.sinks.sink import Appends, ComparesKeys, SharesTransactions, WriteResult
from redrive.rows.sources.records.first_items import digest_of
from redrive.rows.sources.source import Replaceable
from redrive.rows.write.dedup import KeyContest, WriteRounds, twice
from redrive.rows.write.dedup_store import KeysSeen
from redrive.rows.write.dedup_store import digest_of as digest_of_key
from redrive.rows.write.distinct_keys import DistinctKeys, Hashes
from redrive.rows.write.effect import Rehearse, left_out
from redrive.rows.write.superseded import OpenLetters, Order, Place, compared_texts, place_of
from redrive.store.store import Store

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What became of a batch."""

    counts: Counts
    seconds: float
    bad_batch: str | None = None
    moved: bool = True
    """Whether the checkpoint is behind it; not so for a piece of a batch."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What is still to be saved once the rows are in the sink."""

    counts: Counts
    letters: tuple[NewLetter, ...] = ()
    digests: tuple[bytes, ...] = ()
    """Of the keys that were written, where none may come twice."""
    hashes: tuple[Hashes, ...] = ()
    """Of the keys that were written, where a later batch may overwrite them."""
    places: tuple[Order | None, ...] = ()
    """Of the letters; None where a letter is not that of one row."""
    last_written: Order | None = None
    """The place of the last row that was written."""
    superseded: Mapping[str, Order] = field(default_factory=dict)
    """Keys that were written and have a letter of an earlier batch or run, with the place of their last row."""
    rejected: Mapping[Place, Order] = field(default_factory=dict)
    """The places of rejected rows, where such keys were written: they may belong to letters of other keys."""
    superseded_here: frozenset[Place] = frozenset()
    """Letters of this batch for whose key a later row was written."""

    def __add__(self, other: _Outcome) -> _Outcome:
        return _Outcome(
            self.counts + other.counts,
            self.letters + other.letters,
            self.digests + other.digests,
            self.hashes + other.hashes,
            self.places + other.places,
            max((one for one in (self.last_written, other.last_written) if one is not None), default=None),
            {**self.superseded, **other.superseded},
            {**self.rejected, **other.rejected},
            self.superseded_here | other.superseded_here,
        )


@dataclass(frozen=True, slots=True)
class _Known:
    """Rows whose key the run has written before, where none may come twice."""

    rows: frozenset[int] = frozenset()
    """By their place among the prepared ones."""
    rejected: frozenset[int] = frozenset()
    """Rows that were rejected, by their place in the batch."""


class _Letters:
    """The letters of a batch: one for each row as received, however many rows a transform made of it."""

    def __init__(self, preparation: Preparation, prepared: Prepared) -> None:
        self._preparation = preparation
        self._prepared = prepared
        self.of_rows = dict(prepared.rejected)
        """By the place of the row in the batch."""
        self._letters = list(prepared.letters)
        self.rejected = 0
        """Rows as received that were added here."""

    def add(self, refused: Sequence[Refused]) -> list[NewLetter]:
        """Add the letters of rows, by their place among the prepared ones; return those that are new."""
        prepared, preparation = self._prepared, self._preparation
        before = len(self._letters)
        for one in refused:
            origin = prepared.rows.origin[one.place]
            if origin not in self.of_rows:
                key = preparation.key_of(prepared.rows, one.place)
                letter = preparation.letter(prepared.batch, replace(one, place=origin), key)
                self.of_rows[origin] = letter
                self._letters.append(letter)
                self.rejected += 1
        return self._letters[before:]

    def places(self, piece: int) -> tuple[Order | None, ...]:
        """Return the places of all letters, in a piece of the batch; None where a letter is not that of one row."""
        of_letters = {id(letter): (piece, place) for place, letter in self.of_rows.items()}
        return tuple(of_letters.get(id(letter)) for letter in self._letters)

    @property
    def all(self) -> tuple[NewLetter, ...]:
        """Those of the preparation, and those that were added."""
        return tuple(self._letters)


class BatchWriter:
    """Writes the batches of one run, one after the other; used by one thread at a time."""

    def __init__(self, job: RunOptions, store: Store, ledger: RunHandle, begun: StartedRun) -> None:
        sink = job.sink
        self._job = job
        self._store = store
        self._shared = sink if isinstance(sink, SharesTransactions) and sink.lives_in(store.database) else None
        self._ledger = ledger
        self._begun = begun
        keyed = store.database, begun.run_id, sink.key
        self._seen = None if job.on_duplicate == "last" else KeysSeen(*keyed)
        self._distinct = None
        mode = getattr(sink, "mode", None)
        self._mode = None if mode is None or mode.is_plain else mode
        # Where a row that is there stays, no key is written twice.
        overwrites = self._mode is None or self._mode.on_conflict == "update"
        if job.on_duplicate == "last" and sink.key and overwrites:
            self._distinct = DistinctKeys(*keyed, resumed=begun.resumed)
        self._row_that_counts: RowThatCounts | None = None
        if sink.key and not (self._mode is not None and self._mode.compares):
            self._row_that_counts = "last" if job.on_duplicate == "last" else "first"
        self._open_letters = None
        if sink.key:
            self._open_letters = OpenLetters(
                store.database,
                job.pipeline,
                begun.run_id,
                sink.key,
                stored_texts=store.dlq.stored_texts,
                keys_of=partial(compared_texts, sink, of_text=getattr(job.source, "of_text", False)),
            )
        self._with_letters: frozenset[str] = frozenset()  # keys of the batch, or piece, that is being written
        self._has_claims = False
        self.has_unsaved_rows = False
        """Whether rows may be in the sink whose letters are not marked: a batch was sent, and not saved."""
        # A batch that was cut in pieces is saved with its last piece, which alone moves the checkpoint.
        self._held: list[_Outcome] = []
        self._started = time.monotonic()
        # Of a file that was set aside nobody knows how many rows it has: that is never a matter for the log alone.
        self._lacks_files = begun.resumed and store.dlq.count(run_id=begun.run_id, error_type=ErrorType.FILE) > 0
        self.counts = begun.counts
        self.source_done, self.source_total = begun.source_done, begun.source_total
        """How much of the source is behind the checkpoint, and how much there is; None where that is not known."""
        self.position = begun.position

    @property
    def seconds(self) -> float:
        """At work, in all parts of the run."""
        return self._begun.seconds + time.monotonic() - self._started

    @property
    def judged(self) -> Counts:
        """What the gate goes by: a run that it stopped and that a person started again is judged anew."""
        return self.counts - self._begun.judged_before

    @property
    def tier(self) -> Tier:
        """What the gate says so far. Rejected rows that an operator accepted are P3 at least."""
        tier = self._job.gate.judge(self.judged.rejected, self.judged.read)
        is_fine = not self._begun.judged_before.rejected and not self._lacks_files
        return Tier.P3 if tier is Tier.LOG and not is_fine else tier

    def write(self, prepared: Prepared) -> BatchResult:
        """Write one batch."""
        began, repeats = time.monotonic(), self._repeats()
        bad_batch = prepared.bad_batch
        try:
            self._compare_keys(prepared)
            self._claim_letters(prepared)
            outcome = self._write(prepared)
        except Exception as error:
            # The sink finds the rows that are at fault by itself; what is left is nobody's in particular.
            if not len(prepared.rows) or kind_of(error, scope="row") is not Kind.ROW:
                raise
            bad_batch = reason_of(error)
            outcome = self._write(self._given_up(prepared, error))
        finally:
            self.counts += Counts(retries=self._repeats() - repeats)
        self._lacks_files |= any(letter.error_type == ErrorType.FILE for letter in prepared.letters)
        if prepared.batch.next is None:
            self._held.append(outcome)
            self.has_unsaved_rows = True
        else:
            self._held.clear()
            self._has_claims = self.has_unsaved_rows = False
            if self._distinct is not None:
                self._distinct.add(*outcome.hashes)
            if self._open_letters is not None:
                self._open_letters.add(outcome.letters)
            self.counts, self.position = self.counts + outcome.counts, prepared.batch.next
            self.source_done = prepared.batch.done
        return BatchResult(outcome.counts, time.monotonic() - began, bad_batch, moved=prepared.batch.next is not None)

    def _compare_keys(self, prepared: Prepared) -> None:
        """Let the sink say which keys are the same: those of the rows, and those of the rows that were rejected."""
        sink = self._job.sink
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
        """Keep replays from writing older rows of the same keys from now on until the batch is saved."""
        self._with_letters = frozenset()
        if self._open_letters is None or not len(prepared.rows):
            return
        self._open_letters.look_again()
        self._with_letters = self._open_letters.having_letters(self._superseding(prepared.rows))
        if self._with_letters:
            self._has_claims = True
            self._open_letters.claim(self._with_letters, self._ledger.claims, patience=self._job.patience)

    def _superseding(self, rows: Outgoing) -> Outgoing:
        """Return the rows after which no earlier row of their key must be written."""
        return rows if self._mode is None else rows.take(self._mode.superseding(rows))

    def _write(self, prepared: Prepared) -> _Outcome:
        """The rows into the sink, and all that is to be saved with the checkpoint."""
        database, shared = self._store.database, self._shared
        if shared is not None:

            def work(connection: Connection) -> _Outcome:
                known = self._known(connection, prepared)

                def rehearse(some: Outgoing) -> Sequence[Refused]:
                    with connection.begin_nested() as savepoint:
                        refused = shared.write_within(connection, some)
                        savepoint.rollback()
                    return refused

                outcome = self._to_sink(prepared, known, lambda some: shared.write_within(connection, some), rehearse)
                return self._save(connection, prepared, outcome)

            return database.write(work, done=self._is_saved, patience=shared.patience)
        known = _Known()
        if self._seen is not None:
            known = database.read(lambda connection: self._known(connection, prepared))
        self._ledger.confirm()  # in the sink's database nothing keeps out who has lost the claim
        outcome = self._to_sink(prepared, known, lambda some: self._to_other(prepared, some), self._job.sink.rehearse)
        if prepared.batch.next is None:
            return outcome
        return database.write(lambda connection: self._save(connection, prepared, outcome), done=self._is_saved)

    def _to_other(self, prepared: Prepared, rows: Outgoing) -> Sequence[Refused]:
        """Write rows to a sink of another database, or one that appends."""
        sink = self._job.sink
        self.has_unsaved_rows = True
        if sink.key or not isinstance(sink, Appends):
            return sink.write(rows, label=self._label())
        return sink.append(rows, label=self._label(), digest=self._first_rows(prepared))

    def _first_rows(self, prepared: Prepared) -> str:
        """A digest of the first batch of an input that may be another one under the same name.

        Later ones are compared with the checkpoint when a run is resumed; before the first there is none.
        """
        received = prepared.batch.rows
        if (
            self.position is not None
            or self._held
            or not isinstance(self._job.source, Replaceable)
            or not len(received)
        ):
            return ""
        return "-".join(digest_of(received.record(place)) for place in (0, len(received) - 1))

    def _known(self, connection: Connection, prepared: Prepared) -> _Known:
        """What this run has written before, where that matters."""
        if self._seen is None:
            return _Known()
        held = frozenset[bytes]().union(*(held.digests for held in self._held))
        rows, keyed = self._seen.digests(prepared.rows) if len(prepared.rows) else [], list(prepared.keys)
        rejected = [digest_of_key(prepared.keys[place]) for place in keyed]
        known = held | self._seen.known(connection, [*rows, *rejected])
        return _Known(
            frozenset(place for place, digest in enumerate(rows) if digest in known),
            frozenset(place for place, digest in zip(keyed, rejected, strict=True) if digest in known),
        )

    def _to_sink(
        self, prepared: Prepared, known: _Known, write: Callable[[Outgoing], Sequence[Refused]], rehearse: Rehearse
    ) -> _Outcome:
        """Write one row of each key. For one that is refused, the next of its key is written."""
        rows, key = prepared.rows, self._job.sink.key
        rule = self._job.on_duplicate
        if self._mode is not None and self._mode.on_conflict == "ignore" and rule == "last":
            rule = "first"  # as between batches, where the row that is there stays
        # Where the newer row counts, all rows are sent in their order, and the sink compares them.
        by_age = self._mode is not None and self._mode.newer and len(rows)
        contest = WriteRounds(rows, key) if by_age else KeyContest(rows, key, rule, known.rows)
        letters = _Letters(self._job.preparation, prepared)
        written, digests, hashes = list[Outgoing](), list[bytes](), list[Hashes]()
        superseding = list[Outgoing]()
        suppressed = ignored = 0  # rows that were left out by a trigger or deleted, and those that changed nothing
        removed = 0  # rows of this run that were deleted
        places = contest.first()
        while places:
            bad_places: list[int] = []
            for some, is_again in self._parted(rows, places, hashes):
                sent = rows if len(some) == len(rows) else rows.take(some)
                refused = write(sent)
                bad = {one.place for one in refused}
                kept = sent.take([place for place in range(len(sent)) if place not in bad]) if bad else sent
                if isinstance(refused, WriteResult):
                    left_out = refused.suppressed + refused.deleted
                    suppressed += left_out
                    ignored += len(kept) - left_out if is_again else refused.ignored
                written.append(kept)
                superseding.append(self._in_sink(kept, refused, letters, rehearse))
                if self._seen is not None:
                    digests += self._seen.digests(kept)
                if self._distinct is not None:
                    changed = self._changed(kept, refused, rehearse, is_again=is_again)
                    hashes.append(self._distinct.hashes(changed))
                    removed += len(changed) if is_again else 0
                letters.add([replace(one, place=some[one.place]) for one in refused])
                bad_places += [some[place] for place in bad]
            places = contest.next(sorted(bad_places))
        left, copies = contest.left(), list[NewLetter]()
        if self._job.on_duplicate == "quarantine":
            copies = letters.add([twice(rows, place, key) for place in left])
            left = ()
        counts = Counts(written=sum(map(len, written)), rejected=letters.rejected, duplicates=len(left))
        counts += Counts(written=-suppressed - ignored, discarded=suppressed, duplicates=ignored)
        counts += Counts(written=-removed, duplicates=removed)
        outcome = _Outcome(
            prepared.counts + counts,
            letters.all,
            tuple(digests),
            tuple(hashes),
            letters.places(len(self._held)),
            max(((len(self._held), max(some.origin)) for some in written if len(some)), default=None),
        )
        if self._open_letters is None:
            return outcome
        here = [place_of(letter) for letter in copies]
        here += [place_of(letters.of_rows[place]) for place in known.rejected]
        first = self._job.on_duplicate != "last"
        for group in superseding:
            here += self._open_letters.written_later(group, letters.of_rows, or_before=first)
        outcome = replace(outcome, superseded_here=frozenset(here))
        return self._with_superseded(outcome, superseding, letters) if self._with_letters else outcome

    def _with_superseded(self, outcome: _Outcome, superseding: Sequence[Outgoing], letters: _Letters) -> _Outcome:
        """The outcome, with the keys that were written and have letters of earlier batches."""
        assert self._open_letters is not None
        piece, last = len(self._held), dict[str, int]()
        for group in superseding:
            for key, origin in self._open_letters.last_places(group).items():
                last[key] = max(last.get(key, origin), origin)
        return replace(
            outcome,
            superseded={key: (piece, origin) for key, origin in last.items()},
            rejected={place_of(letter): (piece, origin) for origin, letter in letters.of_rows.items()},
        )

    def _in_sink(self, rows: Outgoing, refused: Sequence[Refused], letters: _Letters, rehearse: Rehearse) -> Outgoing:
        """Return the rows that are known to be in the sink, and after which no earlier row of their key may be written.

        Where a trigger left out some of them, or the table has newer rows, only those are returned that matter to a
        letter.
        """
        rows = self._superseding(rows)
        if self._open_letters is None or not isinstance(refused, WriteResult) or not len(rows):
            return rows
        if not refused.suppressed and not refused.ignored:
            return rows
        of_batch = {letter.sink_key for letter in letters.of_rows.values() if letter.sink_key is not None}
        rows = rows.take(self._open_letters.places(rows, self._with_letters | of_batch))
        return _without_left_out(rows, rehearse)

    def _changed(self, rows: Outgoing, refused: Sequence[Refused], rehearse: Rehearse, *, is_again: bool) -> Outgoing:
        """Return the rows that are new in the sink; of those whose key the run has written, the deletions.

        With `newer` the sink does not say which rows it has left as they are, so a key stays counted as written.
        """
        if self._mode is None:
            return rows
        if is_again and self._mode.newer is not None:
            return rows.take(())
        rows = self._mode.deletions(rows) if is_again else self._mode.without_deleted(rows)
        return _without_left_out(rows, rehearse) if isinstance(refused, WriteResult) and refused.suppressed else rows

    def _parted(
        self, rows: Outgoing, places: Sequence[int], hashes: Sequence[Hashes]
    ) -> Sequence[tuple[Sequence[int], bool]]:
        """Part rows to send by whether the run has written their key, where the sink does not say which it changed.

        Those that it has written are duplicates, whether they change the table or not. Where the sink upserts every row
        they need not be sent apart: they are counted when the batch is saved.
        """
        if self._distinct is None or self._mode is None:
            return [(places, False)]
        before = [*hashes, *(some for held in self._held for some in held.hashes)]
        known = self._distinct.known(self._distinct.hashes(rows.take(places)), before)
        parts = [
            ([place for place, is_known in zip(places, known, strict=True) if is_known is flag], flag)
            for flag in (False, True)
        ]
        return [part for part in parts if part[0]]

    def _given_up(self, prepared: Prepared, error: Exception) -> Prepared:
        """The batch without its rows, which become one letter."""
        rows = prepared.rows
        letter = self._job.preparation.letter_of_all(prepared.batch, sorted(set(rows.origin)), error)
        nothing = Outgoing(rows.columns, (), tuples=())
        origins = set(rows.origin).difference(prepared.rejected)
        counts = prepared.counts + Counts(rejected=len(origins))
        return Prepared(prepared.batch, nothing, [*prepared.letters, letter], counts, fields=prepared.fields)

    def _save(self, connection: Connection, prepared: Prepared, outcome: _Outcome) -> _Outcome:
        """Letters, keys and checkpoint, in one transaction; of a piece of a batch nothing yet."""
        if prepared.batch.next is None:
            self._ledger.hold(connection)
            return outcome
        whole = sum(self._held, outcome)
        now = self._store.database.dialect.now(connection)
        if self._open_letters is not None and whole.superseded:
            self._open_letters.mark(connection, whole.superseded, now)
        written_at = self._put_letters(connection, whole)
        if self._open_letters is not None:
            self._open_letters.mark_here(connection, whole.superseded_here, now)
            self._open_letters.mark_edited(connection, whole.superseded, whole.rejected, now)
        if self._has_claims:
            self._ledger.claims.release(connection)
        if self._seen is not None:
            self._seen.add(connection, whole.digests)
        if self._distinct is not None:
            whole = self._without_overwritten(connection, whole, self._distinct)
        counts = self.counts + whole.counts
        judged = counts - self._begun.judged_before
        self._ledger.save(
            connection,
            position=prepared.batch.next,
            fields=prepared.fields,
            counts=counts,
            added=whole.counts,
            done=prepared.batch.done,
            total=self.source_total,
            seconds=self.seconds,
            tier=self._job.gate.judge(judged.rejected, judged.read),
            written_at=written_at,
        )
        return whole

    def _put_letters(self, connection: Connection, outcome: _Outcome) -> datetime | None:
        """Put the letters of a batch; return when its rows were written, None where none were.

        Letters that a row may follow are put before that moment, the others after it: a replay goes by this.
        """
        job = self._job
        paired = zip(outcome.letters, outcome.places, strict=True)
        in_order = sorted(paired, key=lambda pair: _first_number(pair[0]))
        followed, last = 0, outcome.last_written
        if job.on_duplicate != "last" and (last is not None or self.counts.written):
            followed, last = len(in_order), (0, 0)  # no row of the run is overwritten, those before the letter included
        elif last is not None:
            behind = takewhile(lambda pair: pair[1] is not None and pair[1] >= last, reversed(in_order))
            followed = len(in_order) - sum(1 for _ in behind)
        put = partial(
            self._store.dlq.put_within,
            connection,
            pipeline=job.pipeline,
            run_id=self._begun.run_id,
            target=job.target,
            by_run=not job.sink.key,
            counts=self._row_that_counts,
        )
        put([letter for letter, _ in in_order[:followed]])
        written_at = None if last is None else datetime.now(UTC)
        put([letter for letter, _ in in_order[followed:]])
        return written_at

    def _without_overwritten(self, connection: Connection, outcome: _Outcome, distinct: DistinctKeys) -> _Outcome:
        """The outcome, in which rows that overwrite one of an earlier batch, or piece, count as duplicates."""
        if self._mode is None:
            hashes, again = distinct.merge(outcome.hashes)
        else:  # parted before they were sent
            hashes, again = distinct.changed(outcome.hashes), 0
        distinct.save(connection, self.counts.batches, hashes)
        return replace(outcome, counts=outcome.counts + Counts(written=-again, duplicates=again), hashes=(hashes,))

    def _is_saved(self, connection: Connection, outcome: _Outcome) -> bool:
        return self._ledger.has_saved(connection, self.counts + outcome.counts)

    def _label(self) -> str:
        """The name of what is being written: the same after a crash."""
        if not self._job.sink.key:
            # A piece has the number of a batch of its size: after a crash, a run with smaller batches finds it.
            return f"{self._begun.run_id}-{self.counts.batches + len(self._held):06}"
        piece = f"-{len(self._held)}" if self._held else ""
        return f"{self._begun.run_id}-{self.counts.batches:06}{piece}"

    def _repeats(self) -> int:
        return self._store.database.repeats + (0 if self._shared else self._job.sink.repeats)


def _without_left_out(rows: Outgoing, rehearse: Rehearse) -> Outgoing:
    absent = left_out(rehearse, rows)
    return rows.take([place for place in range(len(rows)) if place not in absent])


def _first_number(letter: NewLetter) -> int:
    """Where a row stood, so that the letters of a batch are put in the order of their rows: "line 18" is 18."""
    found = _NUMBER.search(str(letter.position))
    return 0 if found is None else int(found[0])
