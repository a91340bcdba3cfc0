"""From rows as received to rows that can be written, and letters of those that cannot."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from redrive._internal.masking import mask
from redrive.dlq.insert.row_builder import error_text, key_text
from redrive.model.letters import ErrorType, NewLetter
from redrive.model.runs import Counts
from redrive.rows.batch import Batch, Outgoing, Received, Refused
from redrive.rows.schema_drift import KnownColumns
from redrive.rows.sinks.mode import WriteMode
from redrive.rows.transform import BadBatch, PerRow, Transform
from redrive.rows.validation.function import FunctionValidator
from redrive.rows.validation.validator import NoValidator, ValidatedRows, Validator
from redrive.rows.write import dedup

OnDuplicate = dedup.Rule


@dataclass(slots=True)
class Prepared:
    """A batch that is ready for the sink."""

    batch: Batch
    rows: Outgoing
    """All that passed, several of one key included."""
    letters: list[NewLetter]
    counts: Counts
    """All but what the sink is to decide: written, dedup, and what it refuses."""
    rejected: dict[int, NewLetter] = field(default_factory=dict)
    """The letters of rows, by their place in the batch: one that was split has one letter, not one for each part."""
    fields: tuple[str, ...] = ()
    """What the records of the run have had for fields, this batch included: kept with the checkpoint."""
    keys: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    """The keys of rejected rows where they are known, by place in the batch."""
    bad_batch: str | None = None
    """Why it is quarantined as a whole, where it is."""


class Preparation:
    """What a pipeline does to rows before they are written."""

    def __init__(
        self,
        check: Validator,
        transform: Transform | None,
        *,
        key: Sequence[str],
        letter_key: Sequence[str],
        on_duplicate: OnDuplicate,
        of_text: bool = False,
    ) -> None:
        self._of_text = of_text
        self._check = check
        self._transform = transform
        self._key = tuple(key)
        self._letter_key = tuple(letter_key)
        self.rule = on_duplicate
        # Whether a row has the key of its record: by the way the pipeline is built, or as far as rows have shown.
        self._is_key_fixed = transform is None and check.keeps(self._key)
        self._keeps_key: bool | None = True if self._is_key_fixed else None

    def fits(self, columns: Sequence[str]) -> None:
        """Raise `PipelineError` where rows of these columns can never pass."""
        self._check.fits(columns)

    @property
    def names_columns(self) -> bool:
        """Whether the check says which columns it reads: a model or a schema does."""
        return not isinstance(self._check, NoValidator | FunctionValidator)

    def ignored(self, columns: Collection[str]) -> tuple[str, ...]:
        """Return those of the source's columns that the check does not read."""
        return self._check.ignored(columns)

    @property
    def keeps_columns(self) -> bool:
        """Whether rows reach the sink with the columns that the source has."""
        return self._transform is None and isinstance(self._check, NoValidator)

    @property
    def is_by_record(self) -> bool:
        """Whether nothing but functions of one record is called, each of which may give it other fields."""
        if not isinstance(self._check, NoValidator | FunctionValidator):
            return False
        return not self.keeps_columns and (self._transform is None or isinstance(self._transform, PerRow))

    def sift(self, rows: Received) -> ValidatedRows:
        """Check and transform rows; those without a key are rejected, too."""
        checked = self._check(rows)
        good, rejected, discarded = checked.good, checked.rejected, checked.discarded
        if self._transform is not None and len(good):
            transformed = self._transform(good)
            good = transformed.good
            rejected = rejected + transformed.rejected
            discarded += transformed.discarded
        if len(good):
            kept, keyless = dedup.keyless(good, self._key)
            rejected = rejected + _as_received(keyless, good)
            good = kept
        good.of_text = self._of_text
        good.maps = rows.maps
        return ValidatedRows(good, rejected, discarded)

    def prepare(self, batch: Batch) -> Prepared:
        """Return a batch that is ready for the sink. One that cannot be transformed at all becomes one letter."""
        unreadable = [
            NewLetter(
                one.raw,
                one.error,
                position=one.position,
                source=batch.source,
                error_type=one.error_type,
                context=one.context,
            )
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
        prepared = Prepared(batch, sifted.good, unreadable, Counts(read=read, discarded=sifted.discarded, batches=1))
        prepared.counts += Counts(rejected=lost)
        self._compare_keys(batch, sifted.good, is_needed=bool(sifted.rejected))
        for one in sifted.rejected:
            self.reject(prepared, one)
        return prepared

    def _compare_keys(self, batch: Batch, good: Outgoing, *, is_needed: bool) -> None:
        """Look whether good rows have the keys of their records: then that of a rejected record is known, too.

        Args:
            is_needed: whether rows of this batch were rejected. Otherwise a look at one batch is enough.
        """
        if self._is_key_fixed or not self._key or self._keeps_key is False or not len(good):
            return
        if is_needed or self._keeps_key is None:
            self._keeps_key = self._has_own_keys(batch.rows, good)

    def _has_own_keys(self, received: Received, good: Outgoing) -> bool:
        """Whether all these rows have the keys of their records."""
        keyed = good.keyed
        if any(name not in keyed.columns for name in self._key):
            return False
        keys = zip(*(keyed.values(name) for name in self._key), strict=True)
        records = received.records
        for origin, after in zip(good.origin, keys, strict=True):
            record = records[origin]
            if all(record.get(name) == value for name, value in zip(self._key, after, strict=True)):
                continue
            before = self._check.key_of(record, self._key)
            if before is None or key_text(before) != key_text(after):
                return False
        return True

    def fit(self, prepared: Prepared, columns: KnownColumns) -> None:
        """Give the rows the columns that the sink is to have; those that have others are rejected."""
        before = prepared.rows
        prepared.rows, misfits = columns.fit(before)
        prepared.fields = columns.seen
        for one in misfits:
            self.reject(prepared, replace(one, place=before.origin[one.place]), self.key_of(before, one.place))

    def reject(self, prepared: Prepared, refused: Refused, key: tuple[Any, ...] | None = None) -> None:
        """Add the letter of a row, by its place in the batch, unless it has one.

        Args:
            key: the key of its row in the sink. Without one, it is read from the record where nothing but the check
                changes it on the way to the sink, as far as is known.
        """
        if refused.place in prepared.rejected:
            return
        batch = prepared.batch
        is_sure = key is not None or bool(self._keeps_key)
        # Without a row that has passed, a function is believed to leave the key alone; a transform is not.
        if key is None and (self._keeps_key or (self._keeps_key is None and self._transform is None)):
            key = self._check.key_of(batch.rows.record(refused.place), self._key)
        letter = self.letter(batch, refused, key, is_key_sure=is_sure)
        if letter.sink_key is not None and key is not None:
            prepared.keys[refused.place] = key
        prepared.rejected[refused.place] = letter
        prepared.letters.append(letter)
        prepared.counts += Counts(rejected=1)

    def letter(
        self, batch: Batch, refused: Refused, key: tuple[Any, ...] | None, *, is_key_sure: bool = True
    ) -> NewLetter:
        """Return the letter of a row, as it was received, with the key of its row in the sink."""
        record = batch.rows.record(refused.place)
        return NewLetter(
            record,
            refused.error,
            key=_key_text(record, self._letter_key),
            position=batch.position_of(refused.place),
            source=batch.source,
            error_type=refused.error_type,
            sink_key=None if key is None or not refused.keyed else key_text(key),
            is_key_sure=is_key_sure,
        )

    def letter_of_all(self, batch: Batch, places: Sequence[int], error: str | BaseException) -> NewLetter:
        """One letter that holds all these rows of a batch."""
        records = [batch.rows.record(place) for place in places]
        first, last = batch.position_of(places[0]), batch.position_of(places[-1])
        where = first if len(places) == 1 else f"{first} to {last}"
        return NewLetter(records, error, position=where, source=batch.source, error_type=ErrorType.BATCH)

    def key_of(self, rows: Outgoing, place: int) -> tuple[Any, ...] | None:
        """Return the key of a row on its way to the sink; None where a part of it is missing."""
        row = rows.slice(place, 1).keyed
        key = tuple(row.values(name)[0] if name in row.columns else None for name in self._key)
        return None if None in key else key

    def sink_keys(self, rows: Outgoing, mode: WriteMode | None) -> list[str | None]:
        """Return the keys of rows that were written, as letters have them; None where others of a key still count."""
        counting = set(range(len(rows)) if mode is None else mode.superseding(rows))
        keyed = rows.keyed
        texts = [key_text(parts) for parts in zip(*(keyed.values(name) for name in self._key), strict=True)]
        return [text if at in counting else None for at, text in enumerate(texts)]


def _key_text(record: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return key_text([record.get(name) for name in names])


def reason_of(error: str | BaseException) -> str:
    """An error as people are told of it."""
    return mask(error if isinstance(error, str) else error_text(error))


def _as_received(refused: Sequence[Refused], rows: Outgoing) -> list[Refused]:
    return [replace(one, place=rows.origin[one.place]) for one in refused]
