"""From rows as received to rows that can be written, and letters of those that cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from redrive.dlq.prepare import error_text
from redrive.letters import ErrorType, NewLetter
from redrive.masking import mask
from redrive.rows import duplicates
from redrive.rows.batch import Batch, Outgoing, Received, Refused
from redrive.rows.checks.check import Check, Checked
from redrive.rows.transform import BadBatch, Transform
from redrive.runs import Counts

OnDuplicate = duplicates.Rule


@dataclass(slots=True)
class Prepared:
    """A batch that is ready for the sink."""

    batch: Batch
    rows: Outgoing
    letters: list[NewLetter]
    counts: Counts
    """All but what the sink will have written."""
    spare: Outgoing | None = None
    """The rows together with those that were superseded: if the sink refuses a row, another of its key may do."""
    bad_batch: str | None = None
    """Why it is quarantined as a whole, where it is."""


class Preparation:
    """What a pipeline does to rows before they are written."""

    def __init__(
        self,
        check: Check,
        transform: Transform | None,
        *,
        key: Sequence[str],
        letter_key: Sequence[str],
        on_duplicate: OnDuplicate,
    ) -> None:
        self._check = check
        self._transform = transform
        self._key = tuple(key)
        self._letter_key = tuple(letter_key)
        self._rule = on_duplicate

    def fits(self, columns: Sequence[str]) -> None:
        """Raise `PipelineError` where rows of these columns can never pass."""
        self._check.fits(columns)

    def sift(self, rows: Received) -> Checked:
        """Check and transform rows; those without a key are rejected, too."""
        checked = self._check(rows)
        good, rejected, discarded = checked.good, checked.rejected, checked.discarded
        if self._transform is not None and len(good):
            transformed = self._transform(good)
            good = transformed.good
            rejected = rejected + transformed.rejected
            discarded += transformed.discarded
        if len(good):
            kept, keyless = duplicates.keyless(good, self._key)
            rejected = rejected + _as_received(keyless, good)
            good = kept
        return Checked(good, rejected, discarded)

    def prepare(self, batch: Batch) -> Prepared:
        """A batch, ready for the sink. One that cannot be transformed at all becomes one letter."""
        unreadable = [
            NewLetter(one.raw, one.error, position=one.position, source=batch.source, error_type=one.error_type)
            for one in batch.unreadable
        ]
        lost = sum(one.rows for one in batch.unreadable)
        read = len(batch.rows) + lost
        try:
            sifted = self.sift(batch.rows)
        except BadBatch as bad:
            whole = Refused(0, bad.error, ErrorType.BATCH)
            letter = self.letter_of_all(batch, range(len(batch.rows)), whole.error)
            nothing = Outgoing((), (), tuples=())
            counts = Counts(read=read, rejected=read, batches=1)
            return Prepared(batch, nothing, [*unreadable, letter], counts, bad_batch=reason_of(bad.error))
        rows, rejected = sifted.good, sifted.rejected
        reduced = duplicates.reduce(rows, self._key, self._rule)
        rejected = rejected + _as_received(reduced.rejected, rows)
        counts = Counts(
            read=read,
            rejected=lost + len(rejected),
            discarded=sifted.discarded,
            duplicates=reduced.superseded,
            batches=1,
        )
        letters = unreadable + [self.letter(batch, one) for one in rejected]
        return Prepared(batch, reduced.kept, letters, counts, spare=rows if reduced.superseded else None)

    def letter(self, batch: Batch, refused: Refused) -> NewLetter:
        """The letter of a row, as it was received."""
        record = batch.rows.record(refused.place)
        return NewLetter(
            record,
            refused.error,
            key=self.key_of(record) if refused.keyed else None,
            position=batch.position_of(refused.place),
            source=batch.source,
            error_type=refused.error_type,
        )

    def letter_of_all(self, batch: Batch, places: Sequence[int], error: str | BaseException) -> NewLetter:
        """One letter that holds all these rows of a batch."""
        records = [batch.rows.record(place) for place in places]
        first, last = batch.position_of(places[0]), batch.position_of(places[-1])
        where = first if len(places) == 1 else f"{first} to {last}"
        return NewLetter(records, error, position=where, source=batch.source, error_type=ErrorType.BATCH)

    def key_of(self, record: Any) -> str | None:
        """What identifies a record to people, where all of it is there."""
        parts = [record.get(name) for name in self._letter_key]
        if not parts or any(part is None for part in parts):
            return None
        if len(parts) == 1:
            return str(parts[0])
        return "|".join(str(part).replace("\\", "\\\\").replace("|", "\\|") for part in parts)


def reason_of(error: str | BaseException) -> str:
    """An error as people are told of it."""
    return mask(error if isinstance(error, str) else error_text(error))


def _as_received(refused: Sequence[Refused], rows: Outgoing) -> list[Refused]:
    return [replace(one, place=rows.origin[one.place]) for one in refused]
