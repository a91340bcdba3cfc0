"""Rows of a replay in groups of the same columns, and the order in which rows of one key count.

Each record keeps only the fields that it has itself: a field that only another record has does not set a column to
NULL.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from redrive.errors import SinkMismatch
from redrive.model.letters import ErrorType
from redrive.rows.batch import Outgoing, Received, Record, Refused
from redrive.rows.prepare import Preparation
from redrive.rows.sinks.mode import WriteMode
from redrive.rows.sinks.sink import ComparesKeys, Sink
from redrive.rows.transform import BadBatch
from redrive.rows.write.dedup import KeyContest, WriteRounds


def sift(preparation: Preparation, records: Sequence[Record]) -> tuple[list[Outgoing], list[Refused]]:
    """Check and transform records; return what is to be written, by its columns, and what is rejected.

    Places and origins are those of the records.
    """
    by_columns: dict[frozenset[str], list[Outgoing]] = defaultdict(list)
    refused: list[Refused] = []
    for places in _portions(preparation, records):
        for good, rejected in _sifted(preparation, records, places):
            refused += rejected
            if len(good):
                by_columns[frozenset(good.columns)].append(good)
    return [_joined(pieces) for pieces in by_columns.values()], sorted(refused, key=lambda row: row.place)


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
    return [(good, [replace(row, place=places[row.place]) for row in checked.rejected])]


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


class RowPlace(NamedTuple):
    """Where a row is: its group, and its place there."""

    group: int
    place: int


def order_rows(
    groups: Sequence[Outgoing], preparation: Preparation, mode: WriteMode | None, runs: Sequence[UUID | None]
) -> list[RowPlace]:
    """Return all rows so that of those of one key the last one counts."""
    slots = [RowPlace(number, place) for number, group in enumerate(groups) for place in range(len(group))]
    slots.sort(key=lambda slot: groups[slot.group].origin[slot.place])
    if preparation.rule == "last" or not runs or (mode is not None and mode.compares):
        return slots
    # The first of its run, and of the newest run.
    newest = {run: place for place, run in enumerate(runs)}
    rank = [place if run is None else newest[run] for place, run in enumerate(runs)]
    ranks = [rank[groups[slot.group].origin[slot.place]] for slot in slots]
    return [slots[at] for at in sorted(range(len(slots)), key=lambda at: (ranks[at], -at))]


def join_groups(sink: Sink, groups: Sequence[Outgoing], slots: Sequence[RowPlace]) -> Outgoing:
    """Return the rows of all groups in their order, with the key at least."""
    if len(groups) == 1:
        rows = groups[0].take([slot.place for slot in slots])
    else:
        of_groups = [list(zip(*(group.values(name) for name in sink.key), strict=True)) for group in groups]
        origins = [groups[slot.group].origin[slot.place] for slot in slots]
        rows = Outgoing(sink.key, origins, tuples=[of_groups[slot.group][slot.place] for slot in slots])
        rows.of_text = groups[0].of_text
    if isinstance(sink, ComparesKeys):
        rows.keys = sink.compared_keys(rows)
    return rows


def choose_contest(sink: Sink, rows: Outgoing, mode: WriteMode | None) -> KeyContest | WriteRounds:
    """Return which of several letters of one key is sent. Where the sink rejects it, the one before it is written."""
    if mode is not None and mode.newer:
        return WriteRounds(rows, sink.key)  # the sink compares all of them
    if mode is not None and mode.on_conflict == "ignore":
        return KeyContest(rows, sink.key, "first")  # as between runs, where the row that is there stays
    return KeyContest(rows, sink.key, "last")
