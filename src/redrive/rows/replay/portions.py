"""Records of a replay, each with the fields that it has itself: what a neighbour has does not set a column to NULL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from redrive.errors import SinkMismatch
from redrive.model.letters import ErrorType
from redrive.rows.batch import Outgoing, Received, Record, Refused
from redrive.rows.prepare import Preparation
from redrive.rows.transform import BadBatch


def sift(preparation: Preparation, records: Sequence[Record]) -> tuple[list[Outgoing], list[Refused]]:
    """Check and transform records; return what is to be written, by its columns, and what is rejected.

    Places and origins are those of the records.
    """
    found: dict[frozenset[str], list[Outgoing]] = defaultdict(list)
    refused: list[Refused] = []
    for places in _portions(preparation, records):
        for good, rejected in _sifted(preparation, records, places):
            refused += rejected
            if len(good):
                found[frozenset(good.columns)].append(good)
    return [_joined(pieces) for pieces in found.values()], sorted(refused, key=lambda one: one.place)


def _portions(preparation: Preparation, records: Sequence[Record]) -> list[list[int]]:
    """Part records by their fields, or one by one where a function may give each of them others."""
    if preparation.is_by_record:
        return [[place] for place in range(len(records))]
    by_fields: dict[frozenset[str], list[int]] = defaultdict(list)
    for place, record in enumerate(records):
        by_fields[frozenset(record)].append(place)
    return list(by_fields.values())


def _sifted(
    preparation: Preparation, records: Sequence[Record], places: list[int]
) -> list[tuple[Outgoing, list[Refused]]]:
    nothing = Outgoing((), (), tuples=())
    try:
        checked = preparation.sift(Received([records[place] for place in places]))
    except BadBatch as bad:
        batch = [records[place] for place in places]
        return [(nothing, [Refused(place, bad.error, ErrorType.TRANSFORM, batch=batch) for place in places])]
    except SinkMismatch as error:  # a frame without the sink's key: rows among others would be rejected one by one
        if len(places) == 1 and error.lacking:
            return [(nothing, [Refused(places[0], error, ErrorType.VALIDATION)])]
        if len(places) == 1:
            raise
        middle = len(places) // 2
        return [
            *_sifted(preparation, records, places[:middle]),
            *_sifted(preparation, records, places[middle:]),
        ]
    good = checked.good
    good.origin = [places[origin] for origin in good.origin]
    return [(good, [replace(one, place=places[one.place]) for one in checked.rejected])]


def _joined(pieces: Sequence[Outgoing]) -> Outgoing:
    """Make one of rows that have the same columns, in the order of the records."""
    first = pieces[0]
    if len(pieces) == 1:
        return first
    rows = [
        (origin, row)
        for piece in pieces
        for origin, row in zip(piece.origin, piece.onto(first.columns).tuples, strict=True)
    ]
    rows.sort(key=lambda pair: pair[0])
    return Outgoing(
        first.columns,
        [origin for origin, _ in rows],
        tuples=[row for _, row in rows],
        loose=first.loose,
        digits=first.digits,
        maps=first.maps,
        of_text=first.of_text,
    )
