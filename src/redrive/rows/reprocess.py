"""Rejected records once more: through the checks of today, into the sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any
from uuid import uuid4

from redrive.classify.classifier import Classifier
from redrive.errors import SinkMismatch, SourceError
from redrive.letters import ErrorType, Letter
from redrive.model import Kind
from redrive.rows import duplicates
from redrive.rows.batch import Outgoing, Received, Record, Refused
from redrive.rows.columns import unite
from redrive.rows.prepare import Preparation
from redrive.rows.sinks.sink import Appends, ComparesKeys, Sink
from redrive.rows.sources.source import Source
from redrive.rows.transform import BadBatch
from redrive.store.encoding import encode

Answer = str | BaseException | None
_classifier = Classifier()


def reprocess(
    source: Source,
    sink: Sink,
    preparation: Preparation,
    records: Sequence[Any],
    *,
    dry_run: bool,
    letters: Sequence[Letter] = (),
) -> list[Answer]:
    """For each record why it is rejected, or None where it was written; in a dry run, would be."""
    if not sink.key and isinstance(sink, Appends):
        return _append(source, sink, preparation, records, dry_run=dry_run, letters=letters)
    answers: list[Answer] = [None] * len(records)
    rows: list[Record] = []
    owners: list[int] = []  # whose each row is: the letter of a page or a batch holds many
    for place, raw in enumerate(records):
        found = _read(source, raw, letters[place] if letters else None)
        if not isinstance(found, list):
            answers[place] = found
            continue
        rows += found
        owners += [place] * len(found)
    if not rows:
        return answers
    for refused in _send(sink, preparation, rows, dry_run=dry_run):
        answers[owners[refused.place]] = answers[owners[refused.place]] or refused.error
    return answers


def _read(source: Source, raw: Any, letter: Letter | None) -> list[Record] | Exception:
    """Return the rows that a record holds, or why it cannot be read."""
    try:
        found = _rows_of(source, raw, letter)
        if not found and (letter is None or letter.error_type != ErrorType.PAGE):  # a page may be empty by now
            raise ValueError("there is no row in it")
    except SourceError as error:  # this record cannot be read again; the next one may
        return error
    except Exception as error:
        if _classifier.classify(error, scope="row").kind is not Kind.ROW:
            raise
        return error
    return found


def _append(
    source: Source,
    sink: Appends,
    preparation: Preparation,
    records: Sequence[Any],
    *,
    dry_run: bool,
    letters: Sequence[Letter],
) -> list[Answer]:
    """Append records one by one: the rows of a letter all or none, and never twice, even if the replay was killed."""
    answers: list[Answer] = []
    for place, raw in enumerate(records):
        letter = letters[place] if letters else None
        found = _read(source, raw, letter)
        if not isinstance(found, list):
            answers.append(found)
        else:
            label = f"replay-{uuid4()}" if letter is None else _letter_label(letter)
            answers.append(_append_rows(sink, preparation, found, None if dry_run else label) if found else None)
    return answers


def _append_rows(sink: Any, preparation: Preparation, rows: list[Record], label: str | None) -> Answer:
    """Append the rows of one record; without a label, rehearse that."""
    try:
        sifted = preparation.sift(Received(rows))
    except BadBatch as bad:
        return bad.error
    good, unfit = _fitted(sink, sifted.good)
    refused: Sequence[Refused] = [*sifted.rejected, *unfit]
    if not refused and len(good):
        try:
            refused = sink.rehearse(good) if label is None else sink.append_all(good, label=label)
        except SinkMismatch as error:
            return error
    return refused[0].error if refused else None


def _letter_label(letter: Letter) -> str:
    """The name of a letter's rows. An edited record has another one: it is not what was appended before."""
    digest = blake2b(encode(letter.payload).encode("utf-8", "surrogatepass"), digest_size=12)
    return f"replay-{letter.run_id}-{letter.id}-{digest.hexdigest()}"


def _rows_of(source: Source, raw: Any, letter: Letter | None) -> list[Record]:
    """The rows that a record holds."""
    whole_batch = letter is not None and letter.error_type == ErrorType.BATCH
    pieces = raw if isinstance(raw, list) and (whole_batch or all(isinstance(one, Mapping) for one in raw)) else [raw]
    found: list[Record] = []
    context = None if letter is None else letter.context
    for piece in pieces:
        # Without a context, a source of a user's own need not know the parameter.
        again = source.again(piece) if context is None else source.again(piece, context)
        found += again if isinstance(again, list) else [again]
    return found


def _send(sink: Sink, preparation: Preparation, rows: list[Record], *, dry_run: bool) -> list[Refused]:
    """Return the rows that were refused, by their place."""
    try:
        sifted = preparation.sift(Received(rows))
    except BadBatch as bad:
        return [Refused(place, bad.error, ErrorType.TRANSFORM) for place in range(len(rows))]
    except SinkMismatch as error:  # a frame without the sink's key: rows among others would be rejected one by one
        if len(rows) == 1 and error.lacking:
            return [Refused(0, error, ErrorType.VALIDATION)]
        if len(rows) == 1:
            raise
        middle = len(rows) // 2
        first = _send(sink, preparation, rows[:middle], dry_run=dry_run)
        second = _send(sink, preparation, rows[middle:], dry_run=dry_run)
        return first + [replace(one, place=middle + one.place) for one in second]
    good, unfit = _fitted(sink, sifted.good)
    if isinstance(sink, ComparesKeys):
        good.keys = sink.compared_keys(good)
    refused = list(sifted.rejected) + unfit
    # Of several letters of one key the newest counts, whatever the rule of a run is: each of them was sent on purpose.
    # Where the sink refuses the newest, the one before it is written.
    contest = duplicates.Contest(good, sink.key, "last")
    places = contest.first()
    while len(places):
        at_sink = _to_sink(sink, good.take(places), dry_run=dry_run)
        at_fault = [places[one.place] for one in at_sink]
        refused += [
            Refused(good.origin[place], one.error, one.error_type) for place, one in zip(at_fault, at_sink, strict=True)
        ]
        places = contest.next(at_fault)
    return refused


def _fitted(sink: Sink, rows: Outgoing) -> tuple[Outgoing, list[Refused]]:
    """Return the rows whose columns the sink takes, and the others, each with its own reason.

    A sink that fits no rows at all, because its table is missing for example, raises.
    """
    given = rows
    rows, _, ambiguous = unite(sink, rows) if rows.loose else (rows, (), [])
    refused = [replace(one, place=given.origin[one.place]) for one in ambiguous]
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


def _to_sink(sink: Sink, rows: Outgoing, *, dry_run: bool) -> list[Refused]:
    """Write rows, or rehearse that; return those that the sink refuses, by their place.

    The columns fit. What the sink finds in the values that does not fit as a whole is looked for by halving.
    """
    try:
        return list(sink.rehearse(rows) if dry_run else sink.write(rows, label=_label(rows, sink.key)))
    except SinkMismatch as error:
        if len(rows) == 1:
            return [Refused(0, error, ErrorType.SCHEMA)]
    middle = len(rows) // 2
    first = _to_sink(sink, rows.slice(0, middle), dry_run=dry_run)
    second = _to_sink(sink, rows.slice(middle, len(rows) - middle), dry_run=dry_run)
    return first + [replace(one, place=middle + one.place) for one in second]


def _label(rows: Outgoing, key: Sequence[str]) -> str:
    digest = blake2b(digest_size=12)
    for values in zip(*(rows.values(name) for name in key), strict=True):
        digest.update(repr(values).encode("utf-8", "surrogatepass"))
    return f"replay-{digest.hexdigest()}"
