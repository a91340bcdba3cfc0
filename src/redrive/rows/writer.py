"""Writes a batch: its rows to the sink, its letters and the checkpoint to the store.

Where sink and store are one database, all of it is one transaction. Otherwise the rows come first and the rest follows
in one transaction: killed in between, the batch is written once more, which changes nothing, since rows are upserts.
The checkpoint never moves before every row of the batch is in the sink or in the quarantine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from redrive.letters import NewLetter
from redrive.model import Kind
from redrive.opening import Store
from redrive.rows.batch import Outgoing, Refused
from redrive.rows.duplicates import next_of, twice
from redrive.rows.faults import kind_of
from redrive.rows.job import Job
from redrive.rows.keys_seen import KeysSeen
from redrive.rows.ledger import Begun, Ledger
from redrive.rows.prepare import Prepared, reason_of
from redrive.rows.sinks.sink import SharesTransactions
from redrive.runs import Counts, Tier


@dataclass(frozen=True, slots=True)
class Written:
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

    def __add__(self, other: _Outcome) -> _Outcome:
        return _Outcome(self.counts + other.counts, self.letters + other.letters, self.digests + other.digests)


class Writer:
    """Writes the batches of one run, one after the other; used by one thread at a time."""

    def __init__(self, job: Job, store: Store, ledger: Ledger, begun: Begun) -> None:
        sink = job.sink
        self._job = job
        self._store = store
        self._shared = sink if isinstance(sink, SharesTransactions) and sink.lives_in(store.database) else None
        self._ledger = ledger
        self._begun = begun
        self._seen = None if job.on_duplicate == "last" else KeysSeen(store.database, begun.run_id, sink.key)
        # A batch that was cut in pieces is saved with its last piece, which alone moves the checkpoint.
        self._held: list[_Outcome] = []
        self._started = time.monotonic()
        self.counts = begun.counts
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
        """What the gate says so far; what it stopped the run for before stays a matter for the day."""
        gate = self._job.gate
        tier = gate.judge(self.judged.rejected, self.judged.read)
        whole = gate.judge(self.counts.rejected, self.counts.read)
        return Tier.P3 if tier is Tier.LOG and whole is not Tier.LOG else tier

    def write(self, prepared: Prepared) -> Written:
        """Write one batch."""
        began, repeats = time.monotonic(), self._repeats()
        bad_batch = prepared.bad_batch
        try:
            outcome = self._write(prepared)
        except Exception as error:
            # The sink finds the rows that are at fault by itself; what is left is nobody's in particular.
            if not len(prepared.rows) or kind_of(error, scope="row") is not Kind.ROW:
                raise
            bad_batch = reason_of(error)
            outcome = self._write(self._given_up(prepared, error))
        finally:
            self.counts += Counts(retries=self._repeats() - repeats)
        if prepared.batch.next is None:
            self._held.append(outcome)
        else:
            self._held.clear()
            self.counts, self.position = self.counts + outcome.counts, prepared.batch.next
        return Written(outcome.counts, time.monotonic() - began, bad_batch, moved=prepared.batch.next is not None)

    def _write(self, prepared: Prepared) -> _Outcome:
        """The rows into the sink, and all that is to be saved with the checkpoint."""
        database, shared = self._store.database, self._shared
        if shared is not None:

            def work(connection: Connection) -> _Outcome:
                rows, outcome = self._fresh(connection, prepared)
                outcome += self._to_sink(prepared, rows, lambda some: shared.write_within(connection, some))
                return self._save(connection, prepared, outcome)

            return database.write(work, done=self._is_saved, patience=shared.patience)
        if self._seen is None:
            rows, outcome = prepared.rows, _Outcome(prepared.counts, tuple(prepared.letters))
        else:
            rows, outcome = database.read(lambda connection: self._fresh(connection, prepared))
        self._ledger.confirm()  # in the sink's database nothing keeps out who has lost the claim
        outcome += self._to_sink(prepared, rows, lambda some: self._job.sink.write(some, label=self._label()))
        if prepared.batch.next is None:
            return outcome
        return database.write(lambda connection: self._save(connection, prepared, outcome), done=self._is_saved)

    def _fresh(self, connection: Connection, prepared: Prepared) -> tuple[Outgoing, _Outcome]:
        """The rows whose key this run has not written yet, where that matters."""
        rows = prepared.rows
        if self._seen is None or not len(rows):
            return rows, _Outcome(prepared.counts, tuple(prepared.letters))
        digests = self._seen.digests(rows)
        known = self._seen.known(connection, digests).union(*(held.digests for held in self._held))
        again = [place for place, digest in enumerate(digests) if digest in known]
        new = [place for place, digest in enumerate(digests) if digest not in known]
        letters = list(prepared.letters)
        counts = prepared.counts
        if self._job.on_duplicate == "quarantine":
            letters += [self._letter(prepared, rows, twice(rows, place, self._job.sink.key)) for place in again]
            counts += Counts(rejected=len(again))
        else:
            counts += Counts(duplicates=len(again))
        return rows.take(new) if again else rows, _Outcome(counts, tuple(letters))

    def _to_sink(self, prepared: Prepared, rows: Outgoing, write: Callable[[Outgoing], Sequence[Refused]]) -> _Outcome:
        """Write rows. For one that is refused, another of its key is written that would have given way to it."""
        total, spare = _Outcome(Counts()), prepared.spare
        while len(rows):
            refused = write(rows)
            bad = {one.place for one in refused}
            written = rows.take([place for place in range(len(rows)) if place not in bad]) if bad else rows
            letters = tuple(self._letter(prepared, rows, one) for one in refused)
            digests = () if self._seen is None else tuple(self._seen.digests(written))
            total += _Outcome(Counts(written=len(written), rejected=len(letters)), letters, digests)
            if spare is None or not refused:
                break
            spare, rows = next_of(spare, rows, rows.take(sorted(bad)), self._job.sink.key, self._job.on_duplicate)
            total += _Outcome(Counts(duplicates=-len(rows)))
        return total

    def _letter(self, prepared: Prepared, rows: Outgoing, refused: Refused) -> NewLetter:
        preparation = self._job.preparation
        as_received = replace(refused, place=rows.origin[refused.place])
        return preparation.letter(prepared.batch, as_received, preparation.sink_key(rows, refused.place))

    def _given_up(self, prepared: Prepared, error: Exception) -> Prepared:
        """The batch without its rows, which become one letter."""
        rows = prepared.rows
        letter = self._job.preparation.letter_of_all(prepared.batch, sorted(set(rows.origin)), error)
        nothing = Outgoing(rows.columns, (), tuples=())
        counts = prepared.counts + Counts(rejected=len(rows))
        return Prepared(prepared.batch, nothing, [*prepared.letters, letter], counts)

    def _save(self, connection: Connection, prepared: Prepared, outcome: _Outcome) -> _Outcome:
        """Letters, keys and checkpoint, in one transaction; of a piece of a batch nothing yet."""
        if prepared.batch.next is None:
            self._ledger.hold(connection)
            return outcome
        whole = sum(self._held, outcome)
        run_id = self._begun.run_id
        self._store.dlq.put_within(connection, whole.letters, pipeline=self._job.pipeline, run_id=run_id)
        if self._seen is not None:
            self._seen.add(connection, whole.digests)
        counts = self.counts + whole.counts
        judged = counts - self._begun.judged_before
        self._ledger.save(
            connection,
            position=prepared.batch.next,
            counts=counts,
            seconds=self.seconds,
            tier=self._job.gate.judge(judged.rejected, judged.read),
        )
        return whole

    def _is_saved(self, connection: Connection, outcome: _Outcome) -> bool:
        return self._ledger.has_saved(connection, self.counts + outcome.counts)

    def _label(self) -> str:
        """The name of what is being written: the same after a crash."""
        piece = f"-{len(self._held)}" if self._held else ""
        return f"{self._begun.run_id}-{self.counts.batches:06}{piece}"

    def _repeats(self) -> int:
        return self._store.database.repeats + (0 if self._shared else self._job.sink.repeats)
