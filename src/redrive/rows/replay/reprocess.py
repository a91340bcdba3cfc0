"""Rejected records once more: through the checks of today, into the sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any
from uuid import UUID, uuid4

from redrive.classify.classifier import Classifier
from redrive.classify.signals import is_interrupt
from redrive.dlq.replay.target import Outcomes, note_rows
from redrive.errors import Discard, SinkMismatch, SourceError, Superseded
from redrive.model.calls import Kind
from redrive.model.letters import ErrorType, Letter
from redrive.rows.batch import Outgoing, Received, Record, Refused
from redrive.rows.prepare import Preparation
from redrive.rows.replay.row_groups import choose_contest, join_groups, order_rows, sift
from redrive.rows.schema_drift import unite
from redrive.rows.sinks.sink import Appends, Sink
from redrive.rows.sources.source import Source
from redrive.rows.transform import BadBatch
from redrive.rows.write.dedup import WriteRounds
from redrive.rows.write.effect import LEFT_OUT, WriteEffect, apply
from redrive.store.encoding import encode

_classifier = Classifier()
_DROPPED = "the pipeline dropped it: validate or transform gave back no row"
_KEPT = "the sink has a row of this key, and keeps it"
_OTHER_LETTER = "another letter of this key was sent with it, and counts"


def reprocess(
    source: Source,
    sink: Sink,
    preparation: Preparation,
    records: Sequence[Any],
    *,
    dry_run: bool,
    letters: Sequence[Letter] = (),
) -> Outcomes:
    """Return for each record why it is not in the sink, or None if it was written; in a dry run, would be."""
    rows: list[Record] = []
    try:
        if not sink.key and isinstance(sink, Appends):
            return _append(source, sink, preparation, records, rows, dry_run=dry_run, letters=letters)
        return _write(source, sink, preparation, records, rows, dry_run=dry_run, letters=letters)
    except Exception as error:
        note_rows(error, rows)
        raise


def _write(
    source: Source,
    sink: Sink,
    preparation: Preparation,
    records: Sequence[Any],
    rows: list[Record],
    *,
    dry_run: bool,
    letters: Sequence[Letter],
) -> Outcomes:
    """Write the rows of records to a sink that has a key, and add those that were read to `rows`."""
    fates = [_RecordOutcome() for _ in records]
    owners: list[int] = []  # whose each row is: the letter of a page or a batch holds many
    for place, raw in enumerate(records):
        read_rows = _read(source, raw, letters[place] if letters else None)
        if not isinstance(read_rows, list):
            fates[place].error = read_rows
            continue
        fates[place].rows = read_rows
        rows += read_rows
        owners += [place] * len(read_rows)
    runs = [letters[owner].run_id for owner in owners] if letters else []
    sent = _send(sink, preparation, rows, runs, dry_run=dry_run) if rows else _SentRows()
    for refused in sent.refused:
        fates[owners[refused.place]].refuse(refused)
    for place, reason in sent.superseded:
        fates[owners[place]].superseded = reason
    for place, key in sent.written:
        fates[owners[place]].add(key)
    one_per_run = preparation.rule != "last"
    return Outcomes(
        [fate.outcome for fate in fates],
        [frozenset(fate.keys) for fate in fates],
        one_per_run=one_per_run,
        rows=[() if fate.error is None else fate.rows for fate in fates],
    )


@dataclass(slots=True)
class _RecordOutcome:
    """What became of the rows of one record."""

    error: str | BaseException | None = None
    superseded: str | None = None
    written: int = 0
    keys: set[str] = field(default_factory=set)
    rows: Sequence[Record] = ()
    """Those that its error may show values of: its own, or those of the batch that failed with it."""

    def refuse(self, refused: Refused) -> None:
        """Note why a row was rejected, unless one was before."""
        if self.error is None:
            self.error = refused.error
            self.rows = refused.batch or self.rows

    def add(self, key: str | None) -> None:
        """Note a row that was written; its key, where it counts from now on."""
        self.written += 1
        if key is not None:
            self.keys.add(key)

    @property
    def outcome(self) -> str | BaseException | None:
        """None if the record is in the sink: some row of it was written, and none refused."""
        if self.error is not None or self.written:
            return self.error
        return Discard(_DROPPED) if self.superseded is None else Superseded(self.superseded)


@dataclass(slots=True)
class _SentRows:
    """Rows that were sent to the sink, by their place. What is in none of these lists, the pipeline dropped."""

    refused: list[Refused] = field(default_factory=list)
    superseded: list[tuple[int, str]] = field(default_factory=list)
    """With the reason."""
    written: list[tuple[int, str | None]] = field(default_factory=list)
    """With the key, unless the sink compares the rows of a key by itself."""


def _read(source: Source, raw: Any, letter: Letter | None) -> list[Record] | Exception:
    """Return the rows that a record holds, or why it cannot be read."""
    try:
        records = _rows_of(source, raw, letter)
        if not records:
            raise ValueError("there is no row in it")
    except SourceError as error:  # this record cannot be read again; the next one may
        return error
    except Exception as error:
        if is_interrupt(error) or _classifier.classify(error, scope="row").kind is not Kind.ROW:
            raise
        return error
    return records


def _append(
    source: Source,
    sink: Appends,
    preparation: Preparation,
    records: Sequence[Any],
    rows: list[Record],
    *,
    dry_run: bool,
    letters: Sequence[Letter],
) -> Outcomes:
    """Append records one by one: the rows of a letter all or none, and never twice, even if the replay was killed."""
    outcomes: list[str | BaseException | None] = []
    rows_of: list[Sequence[Record]] = []
    for place, raw in enumerate(records):
        letter = letters[place] if letters else None
        read_rows = _read(source, raw, letter)
        if not isinstance(read_rows, list):
            outcomes.append(read_rows)
            rows_of.append(())
        else:
            rows[:] = read_rows
            label = f"replay-{uuid4()}" if letter is None else _letter_label(letter)
            outcomes.append(_append_rows(sink, preparation, read_rows, None if dry_run else label))
            rows_of.append(() if outcomes[-1] is None else read_rows)
    return Outcomes(outcomes, [frozenset[str]()] * len(outcomes), one_per_run=False, rows=rows_of)


def _append_rows(
    sink: Any, preparation: Preparation, rows: list[Record], label: str | None
) -> str | BaseException | None:
    """Append the rows of one record; without a label, do a dry run."""
    try:
        sifted = preparation.sift(Received(rows))
    except BadBatch as bad:
        return bad.error
    good, unfit = _fitted(sink, sifted.good)
    refused: Sequence[Refused] = [*sifted.rejected, *unfit]
    if refused:
        return refused[0].error
    if not len(good):
        return Discard(_DROPPED)
    try:
        refused = sink.rehearse(good) if label is None else sink.append_all(good, label=label)
    except SinkMismatch as error:
        return error
    if getattr(refused, "suppressed", 0):
        return LEFT_OUT
    return refused[0].error if refused else None


def _letter_label(letter: Letter) -> str:
    """Return the name of a letter's rows. An edited record has another one: it is not what was appended before."""
    digest = blake2b(encode(letter.payload).encode("utf-8", "surrogatepass"), digest_size=12)
    return f"replay-{letter.run_id}-{letter.id}-{digest.hexdigest()}"


def _rows_of(source: Source, raw: Any, letter: Letter | None) -> list[Record]:
    """Return the rows that a record holds."""
    whole_batch = letter is not None and letter.error_type == ErrorType.BATCH
    pieces = raw if isinstance(raw, list) and (whole_batch or all(isinstance(item, Mapping) for item in raw)) else [raw]
    records: list[Record] = []
    context = None if letter is None else letter.context
    for piece in pieces:
        # Without a context, a source of a user's own need not know the parameter.
        again = source.again(piece) if context is None else source.again(piece, context)
        records += again if isinstance(again, list) else [again]
    return records


def _send(
    sink: Sink, preparation: Preparation, rows: list[Record], runs: Sequence[UUID | None], *, dry_run: bool
) -> _SentRows:
    """Send rows to the sink.

    Args:
        runs: the run that rejected each row; empty where that is not known.
    """
    by_columns, refused = sift(preparation, rows)
    sent, groups = _SentRows(refused), list[Outgoing]()
    for group in by_columns:
        good, unfit = _fitted(sink, group)
        sent.refused += unfit
        if len(good):
            groups.append(good)
    if not groups:
        return sent
    mode = getattr(sink, "mode", None)
    slots = order_rows(groups, preparation, mode, runs)
    contenders = join_groups(sink, groups, slots)
    origins = contenders.origin
    counting = [set(range(len(group)) if mode is None else mode.superseding(group)) for group in groups]
    texts = preparation.sink_keys(contenders, None)
    keys = [text if slot.place in counting[slot.group] else None for text, slot in zip(texts, slots, strict=True)]
    contest = choose_contest(sink, contenders, mode)
    rehearsed: list[Outgoing] = []  # in a dry run, what the letters before would have written
    places = contest.first()
    while len(places):
        failed: list[int] = []
        for number, group in enumerate(groups):
            own = [place for place in places if slots[place].group == number]
            if not own:
                continue
            rows_of_group = group.take([slots[place].place for place in own])
            effect = _to_sink(sink, rows_of_group, dry_run=dry_run, after=rehearsed)
            if dry_run and isinstance(contest, WriteRounds):
                rehearsed.append(rows_of_group.take(effect.written))
            sent.refused += [replace(row, place=origins[own[row.place]]) for row in effect.refused]
            sent.superseded += [(origins[own[at]], _KEPT) for at in sorted(effect.ignored)]
            sent.written += [(origins[own[at]], keys[own[at]]) for at in effect.written]
            failed += [own[row.place] for row in effect.refused]
        places = contest.next(sorted(failed))
    sent.superseded += [(origins[place], _OTHER_LETTER) for place in contest.left()]
    return sent


def _fitted(sink: Sink, rows: Outgoing) -> tuple[Outgoing, list[Refused]]:
    """Return the rows whose columns the sink takes, and the others, each with its own reason.

    A sink that fits no rows at all, because its table is missing for example, raises.
    """
    given = rows
    rows, _, ambiguous = unite(sink, rows) if rows.loose else (rows, (), [])
    refused = [replace(row, place=given.origin[row.place]) for row in ambiguous]
    while len(rows):
        try:
            sink.check(rows.columns)
            break
        except SinkMismatch as error:
            extra = [name for name in error.extra if name in rows.columns]
            if not (extra or error.lacking):
                raise
            values = {name: rows.values(name) for name in extra}
            at_fault = [
                place
                for place in range(len(rows))
                if error.lacking or any(column[place] is not None for column in values.values())
            ]
            refused += [
                Refused(rows.origin[place], _reason(error, values, place), ErrorType.SCHEMA) for place in at_fault
            ]
            bad = set(at_fault)
            rows = rows.take([place for place in range(len(rows)) if place not in bad])
            rows = rows.onto([name for name in rows.columns if name not in extra])
    return rows, refused


def _reason(error: SinkMismatch, values: Mapping[str, Sequence[Any]], place: int) -> str:
    """Return why one row does not fit."""
    names = [name for name, column in values.items() if column[place] is not None]
    if not names:
        return str(error)
    listed = ", ".join(map(repr, names))
    if set(names) <= set(error.unknown):
        return f"{listed} is not a column of the sink" if len(names) == 1 else f"{listed} are not columns of the sink"
    return f"the sink computes {listed} itself and takes no value"


def _to_sink(sink: Sink, rows: Outgoing, *, dry_run: bool, after: Sequence[Outgoing]) -> WriteEffect:
    """Write rows after others, or do a dry run.

    The columns fit. What the sink finds in the values that does not fit as a whole is looked for by halving.
    """
    try:
        return apply(sink, rows, label=None if dry_run else _label(rows, sink.key), after=after)
    except SinkMismatch as error:
        if len(rows) == 1:
            return WriteEffect(1, [Refused(0, error, ErrorType.SCHEMA)])
    middle = len(rows) // 2
    effect = _to_sink(sink, rows.slice(0, middle), dry_run=dry_run, after=after)
    effect.add(_to_sink(sink, rows.slice(middle, len(rows) - middle), dry_run=dry_run, after=after))
    return effect


def _label(rows: Outgoing, key: Sequence[str]) -> str:
    digest = blake2b(digest_size=12)
    for values in zip(*(rows.values(name) for name in key), strict=True):
        digest.update(repr(values).encode("utf-8", "surrogatepass"))
    return f"replay-{digest.hexdigest()}"
