"""Rejected records once more: through the checks of today, into the sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from redrive.classify.classifier import Classifier
from redrive.letters import ErrorType, Letter
from redrive.model import Kind
from redrive.rows import duplicates
from redrive.rows.batch import Outgoing, Received, Record, Refused
from redrive.rows.prepare import Preparation
from redrive.rows.sinks.sink import Sink
from redrive.rows.sources.source import Source
from redrive.rows.transform import BadBatch

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
    answers: list[Answer] = [None] * len(records)
    rows: list[Record] = []
    owners: list[int] = []  # whose each row is: the letter of a page or a batch holds many
    for place, raw in enumerate(records):
        try:
            letter = letters[place] if letters else None
            found = _rows_of(source, raw, letter)
            if not found and (letter is None or letter.error_type != ErrorType.PAGE):  # a page may be empty by now
                raise ValueError("there is no row in it")
        except Exception as error:
            if _classifier.classify(error, scope="row").kind is not Kind.ROW:
                raise
            answers[place] = error
            continue
        rows += found
        owners += [place] * len(found)
    if not rows:
        return answers
    for refused in _send(sink, preparation, rows, dry_run=dry_run):
        answers[owners[refused.place]] = answers[owners[refused.place]] or refused.error
    return answers


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
    """The rows that were refused, by their place."""
    try:
        sifted = preparation.sift(Received(rows))
    except BadBatch as bad:
        return [Refused(place, bad.error, ErrorType.TRANSFORM) for place in range(len(rows))]
    refused = list(sifted.rejected)
    good = sifted.good
    if not len(good):
        return refused
    # Of several letters of one key the newest counts, whatever the rule of a run is: each of them was sent on purpose.
    kept = duplicates.reduce(good, sink.key, "last")
    sink.check(kept.columns)
    at_sink = sink.rehearse(kept) if dry_run else sink.write(kept, label=_label(kept, sink.key))
    return refused + [Refused(kept.origin[one.place], one.error, one.error_type) for one in at_sink]


def _label(rows: Outgoing, key: Sequence[str]) -> str:
    digest = blake2b(digest_size=12)
    for values in zip(*(rows.values(name) for name in key), strict=True):
        digest.update(repr(values).encode("utf-8", "surrogatepass"))
    return f"replay-{digest.hexdigest()}"
