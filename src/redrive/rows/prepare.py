"""Validate and transform the rows of a batch, and make letters of rejected rows; used by runs and by replays."""

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
from redrive.rows.validation.validator import FunctionValidator, NoValidator, ValidatedRows, Validator
from redrive.rows.write import dedup

OnDuplicate = dedup.Rule


@dataclass(slots=True)
class Prepared:
    """A batch that is ready for the sink, with the letters of its rejected rows."""

    batch: Batch
    rows: Outgoing
    """All rows that passed; several of them may have one key."""
    letters: list[NewLetter]
    counts: Counts
    """The counts before the sink is written: without written, duplicate and rejected rows of the sink."""
    rejected: dict[int, NewLetter] = field(default_factory=dict)
    """The letters of rows, by their place in the batch: a row that was split has one letter, not one for each part."""
    fields: tuple[str, ...] = ()
    """The fields of the records of the run, including this batch; stored with the checkpoint."""
    keys: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    """The known keys of rejected rows, by place in the batch."""
    bad_batch: str | None = None
    """Why the batch is quarantined as a whole; None if it is not."""


class Preparation:
    """The steps of a pipeline before its sink: validate, transform, and quarantine rejected rows."""

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
        # Whether a row has the key of its record: known from the options of the pipeline, or observed in its rows.
        self._is_key_fixed = transform is None and check.keeps(self._key)
        self._keeps_key: bool | None = True if self._is_key_fixed else None

    def fits(self, columns: Sequence[str]) -> None:
        """Raise `PipelineError` if rows of these columns can never pass."""
        self._check.fits(columns)

    @property
    def names_columns(self) -> bool:
        """Return whether the validator names the columns that it reads, as a model or a schema does."""
        return not isinstance(self._check, NoValidator | FunctionValidator)

    def ignored(self, columns: Collection[str]) -> tuple[str, ...]:
        """Return the columns of the source that the validator does not read."""
        return self._check.ignored(columns)

    @property
    def keeps_columns(self) -> bool:
        """Return whether rows reach the sink with the columns of the source."""
        return self._transform is None and isinstance(self._check, NoValidator)

    @property
    def is_by_record(self) -> bool:
        """Return whether only functions of one record are called, each of which may change the fields of the record."""
        if not isinstance(self._check, NoValidator | FunctionValidator):
            return False
        return not self.keeps_columns and (self._transform is None or isinstance(self._transform, PerRow))

    def sift(self, rows: Received) -> ValidatedRows:
        """Validate and transform rows. Rows without a key are rejected as well."""
        checked = self._check(rows)
        good, rejected, discarded = checked.good, checked.rejected, checked.discarded
        if self._transform is not None and len(good):
            transformed = self._transform(good)
            good = transformed.good
            rejected = rejected + transformed.rejected
            discarded += transformed.discarded
        if len(good):
            kept, keyless = dedup.keyless(good, self._key)
            rejected = rejected + _with_batch_places(keyless, good)
            good = kept
        good.of_text = self._of_text
        good.maps = rows.maps
        return ValidatedRows(good, rejected, discarded)

    def prepare(self, batch: Batch) -> Prepared:
        """Return a batch that is ready for the sink. A batch of which no row can be transformed becomes one letter."""
        unreadable = [
            NewLetter(
                piece.raw,
                piece.error,
                position=piece.position,
                source=batch.source,
                error_type=piece.error_type,
                context=piece.context,
            )
            for piece in batch.unreadable
        ]
        unreadable_rows = sum(piece.rows for piece in batch.unreadable)
        read = len(batch.rows) + unreadable_rows
        try:
            validated = self.sift(batch.rows)
        except BadBatch as failure:
            whole_batch = Refused(0, failure.error, ErrorType.BATCH)
            letter = self.letter_of_all(batch, range(len(batch.rows)), whole_batch.error)
            no_rows = Outgoing((), (), tuples=())
            counts = Counts(read=read, rejected=read, batches=1)
            return Prepared(batch, no_rows, [*unreadable, letter], counts, bad_batch=reason_of(failure.error))
        prepared = Prepared(
            batch, validated.good, unreadable, Counts(read=read, discarded=validated.discarded, batches=1)
        )
        prepared.counts += Counts(rejected=unreadable_rows)
        self._compare_keys(batch, validated.good, is_needed=bool(validated.rejected))
        for rejected_row in validated.rejected:
            self.reject(prepared, rejected_row)
        return prepared

    def _compare_keys(self, batch: Batch, good: Outgoing, *, is_needed: bool) -> None:
        """Compare the keys of accepted rows and their records. If they agree, keys of rejected records are known, too.

        Args:
            is_needed: Whether rows of this batch were rejected. Otherwise comparing one batch of the run is enough.
        """
        if self._is_key_fixed or not self._key or self._keeps_key is False or not len(good):
            return
        if is_needed or self._keeps_key is None:
            self._keeps_key = self._has_own_keys(batch.rows, good)

    def _has_own_keys(self, received: Received, good: Outgoing) -> bool:
        """Return whether all these rows have the keys of their records."""
        keyed = good.keyed
        if any(name not in keyed.columns for name in self._key):
            return False
        keys = zip(*(keyed.values(name) for name in self._key), strict=True)
        records = received.records
        for origin, after in zip(good.origin, keys, strict=True):
            record = records[origin]
            if all(record.get(name) == value for name, value in zip(self._key, after, strict=True)):
                continue
            original_rows = self._check.key_of(record, self._key)
            if original_rows is None or key_text(original_rows) != key_text(after):
                return False
        return True

    def fit(self, prepared: Prepared, columns: KnownColumns) -> None:
        """Give the rows the columns of the sink; reject rows with other columns."""
        original_rows = prepared.rows
        prepared.rows, misfits = columns.fit(original_rows)
        prepared.fields = columns.seen
        for rejected_row in misfits:
            self.reject(
                prepared,
                replace(rejected_row, place=original_rows.origin[rejected_row.place]),
                self.key_of(original_rows, rejected_row.place),
            )

    def reject(self, prepared: Prepared, refused: Refused, key: tuple[Any, ...] | None = None) -> None:
        """Add the letter of a rejected row, unless the row has a letter already.

        Args:
            refused: The row, by its place in the batch.
            key: The key of its row in the sink. By default it is read from the record, if the pipeline keeps the key
                as far as is known.
        """
        if refused.place in prepared.rejected:
            return
        batch = prepared.batch
        is_key_sure = key is not None or bool(self._keeps_key)
        # If no row has passed yet, a validator is assumed to keep the key; a transform is not.
        if key is None and (self._keeps_key or (self._keeps_key is None and self._transform is None)):
            key = self._check.key_of(batch.rows.record(refused.place), self._key)
        letter = self.letter(batch, refused, key, is_key_sure=is_key_sure)
        if letter.sink_key is not None and key is not None:
            prepared.keys[refused.place] = key
        prepared.rejected[refused.place] = letter
        prepared.letters.append(letter)
        prepared.counts += Counts(rejected=1)

    def letter(
        self, batch: Batch, refused: Refused, key: tuple[Any, ...] | None, *, is_key_sure: bool = True
    ) -> NewLetter:
        """Return the letter of a row as received, with the key of its row in the sink."""
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
        """Return one letter with all these rows of a batch."""
        records = [batch.rows.record(place) for place in places]
        first, last = batch.position_of(places[0]), batch.position_of(places[-1])
        where = first if len(places) == 1 else f"{first} to {last}"
        return NewLetter(records, error, position=where, source=batch.source, error_type=ErrorType.BATCH)

    def key_of(self, rows: Outgoing, place: int) -> tuple[Any, ...] | None:
        """Return the key of a row for the sink; None if a part of it is missing."""
        row = rows.slice(place, 1).keyed
        key = tuple(row.values(name)[0] if name in row.columns else None for name in self._key)
        return None if None in key else key

    def sink_keys(self, rows: Outgoing, mode: WriteMode | None) -> list[str | None]:
        """Return the keys of written rows as text, as letters store them; None for a row that does not supersede."""
        counting = set(range(len(rows)) if mode is None else mode.superseding(rows))
        keyed = rows.keyed
        texts = [key_text(parts) for parts in zip(*(keyed.values(name) for name in self._key), strict=True)]
        return [text if at in counting else None for at, text in enumerate(texts)]


def _key_text(record: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return key_text([record.get(name) for name in names])


def reason_of(error: str | BaseException) -> str:
    """Return the masked text of an error, for events and messages."""
    return mask(error if isinstance(error, str) else error_text(error))


def _with_batch_places(refused: Sequence[Refused], rows: Outgoing) -> list[Refused]:
    return [replace(rejected_row, place=rows.origin[rejected_row.place]) for rejected_row in refused]
