"""The columns of a run. A file has the same ones in every row; those of records come and go.

What a record does not have is nothing (None), in whatever batch it happens to be: each batch has all columns that the
run has seen. A record that brings a column of its own, which the sink does not know, is rejected by itself. Names that
the sink takes for the same are one column, and a record with several of them is rejected, too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from redrive.errors import SinkMismatch
from redrive.model.letters import ErrorType
from redrive.rows.batch import Outgoing, Refused
from redrive.rows.sinks.sink import Sink


class KnownColumns:
    """What the sink is known to take."""

    def __init__(self, sink: Sink, seen: Sequence[str] = ()) -> None:
        """`seen` are the fields that records of the run had before it was stopped or killed."""
        self._sink = sink
        self._fitting: set[tuple[str, ...]] = set()
        self._seen: dict[str, None] = dict.fromkeys(seen)

    @property
    def seen(self) -> tuple[str, ...]:
        """The fields that records of the run have had so far."""
        return tuple(self._seen)

    def have_fitted(self, columns: tuple[str, ...]) -> bool:
        """Whether rows of these columns were found to fit."""
        return columns in self._fitting

    def fit(self, rows: Outgoing) -> tuple[Outgoing, Sequence[Refused]]:
        """The rows as the sink can take them, and those it cannot.

        Raises `SinkMismatch` where no row of the run has fitted so far: then it is not the rows that are odd.
        """
        if not len(rows):
            return rows, ()
        if not rows.loose:
            self._check(rows.columns)
            return rows, ()
        united, places, refused = unite(self._sink, rows, self._seen)
        wanted = tuple({**self._seen, **dict.fromkeys(united.columns)})
        try:
            self._check(wanted)
        except SinkMismatch as error:
            united, unfit = _without(united, error)
            if not len(united) and not self._seen:
                raise
            refused += [replace(one, place=places[one.place]) for one in unfit]
            if not len(united):
                return united.onto(self.seen), refused
            wanted = tuple(name for name in wanted if name not in error.unknown)
            self._check(wanted)
        self._seen = dict.fromkeys(wanted)
        return united.onto(wanted), refused

    def _check(self, columns: tuple[str, ...]) -> None:
        if columns not in self._fitting:
            self._sink.check(columns)
            self._fitting.add(columns)


def unite(sink: Sink, rows: Outgoing, seen: Collection[str] = ()) -> tuple[Outgoing, Sequence[int], list[Refused]]:
    """Make one column of those whose names the sink takes for the same.

    Args:
        seen: columns of earlier rows; a name that was there first stays, and so does one that the sink itself uses.

    Returns:
        The rows, their places among those given, and the rows that have a value under several of such names.
    """
    fold = getattr(sink, "fold", str)
    mode = getattr(sink, "mode", None)
    named = [*sink.key, *(mode.columns if mode is not None else ())]
    names = {fold(name): name for name in [*reversed(rows.columns), *reversed([*seen]), *named]}
    if all(names[fold(name)] == name for name in rows.columns):
        return rows, range(len(rows)), []
    columns: dict[str, list[Any]] = {}
    refused: dict[int, Refused] = {}
    for name in rows.columns:
        own, values = names[fold(name)], rows.values(name)
        column = columns.setdefault(own, [None] * len(rows))
        for place, value in enumerate(values):
            if value is not None and column[place] is not None:
                twin = next(one for one in rows.columns if names[fold(one)] == own)
                why = f"{twin!r} and {name!r} are one column of the sink, and the record has both"
                refused.setdefault(place, Refused(place, why, ErrorType.SCHEMA))
            column[place] = column[place] if value is None else value
    made = Outgoing(
        tuple(columns),
        rows.origin,
        tuples=list(zip(*columns.values(), strict=True)),
        loose=rows.loose,
        digits=rows.digits,
        maps=rows.maps,
        of_text=rows.of_text,
        keys=rows.keys,
    )
    good = [place for place in range(len(rows)) if place not in refused]
    return made.take(good), good, [refused[place] for place in sorted(refused)]


def _without(rows: Outgoing, error: SinkMismatch) -> tuple[Outgoing, Sequence[Refused]]:
    """The rows that do not have the columns that are too many, and those that do."""
    extra = {name: rows.values(name) for name in error.unknown if name in rows.columns}
    bad = {place: name for name, values in extra.items() for place, value in enumerate(values) if value is not None}
    if not extra:
        raise error  # it is a column of earlier rows, which the sink has lost since
    good = [place for place in range(len(rows)) if place not in bad]
    why = "{!r} is a column that the sink does not have"
    return rows.take(good), [Refused(place, why.format(bad[place]), ErrorType.SCHEMA) for place in sorted(bad)]
