"""The columns of a run. A file has the same ones in every row; those of records come and go.

What a record does not have is nothing (None), in whatever batch it happens to be: each batch has all columns that the
run has seen. A record that brings a column of its own, which the sink does not know, is rejected by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from redrive.errors import SinkMismatch
from redrive.letters import ErrorType
from redrive.rows.batch import Outgoing, Refused
from redrive.rows.sinks.sink import Sink


class Columns:
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

    def fit(self, rows: Outgoing) -> tuple[Outgoing, Sequence[Refused]]:
        """The rows as the sink can take them, and those it cannot. Raises `SinkMismatch` where no row fits."""
        if not len(rows):
            return rows, ()
        if not rows.loose:
            self._check(rows.columns)
            return rows, ()
        wanted = tuple({**self._seen, **dict.fromkeys(rows.columns)})
        refused: Sequence[Refused] = ()
        try:
            self._check(wanted)
        except SinkMismatch as error:
            rows, refused = _without(rows, error)
            wanted = tuple(name for name in wanted if name not in error.unknown)
            self._check(wanted)
        self._seen = dict.fromkeys(wanted)
        return rows.onto(wanted), refused

    def _check(self, columns: tuple[str, ...]) -> None:
        if columns not in self._fitting:
            self._sink.check(columns)
            self._fitting.add(columns)


def _without(rows: Outgoing, error: SinkMismatch) -> tuple[Outgoing, Sequence[Refused]]:
    """The rows that do not have the columns that are too many, and those that do."""
    extra = {name: rows.values(name) for name in error.unknown if name in rows.columns}
    bad = {place: name for name, values in extra.items() for place, value in enumerate(values) if value is not None}
    if not extra or len(bad) == len(rows):
        raise error  # it is not the rows that are odd
    good = [place for place in range(len(rows)) if place not in bad]
    why = "{!r} is a column that the sink does not have"
    return rows.take(good), [Refused(place, why.format(bad[place]), ErrorType.SCHEMA) for place in sorted(bad)]
