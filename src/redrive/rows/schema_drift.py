"""The columns of a run, used before a batch is written: rows of a file have the same columns, records may differ.

A field that a record lacks is None: each batch has all columns that the run has seen. Only the records with a column
that the sink does not have are rejected. Names that the sink treats as the same are one column, and a record with
several of them is rejected, too.
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
    """The columns that the sink is known to accept."""

    def __init__(self, sink: Sink, seen: Sequence[str] = ()) -> None:
        """Set the fields of the run's records before it was stopped or killed: `seen`."""
        self._sink = sink
        self._fitting: set[tuple[str, ...]] = set()
        self._seen: dict[str, None] = dict.fromkeys(seen)

    @property
    def seen(self) -> tuple[str, ...]:
        """The fields of the run's records so far."""
        return tuple(self._seen)

    def have_fitted(self, columns: tuple[str, ...]) -> bool:
        """Return whether rows of these columns have fitted before."""
        return columns in self._fitting

    def fit(self, rows: Outgoing) -> tuple[Outgoing, Sequence[Refused]]:
        """Return the rows with the columns of the sink, and the rows that do not fit.

        Raises:
            SinkMismatch: No row of the run has fitted so far, so the sink itself is probably the wrong one.
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
            united, unfit = _split_by_columns(united, error)
            if not len(united) and not self._seen:
                raise
            refused += [replace(misfit, place=places[misfit.place]) for misfit in unfit]
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
    """Merge columns whose names the sink treats as the same.

    Args:
        seen: Columns of earlier rows. The earliest name is used, unless the sink itself uses another.

    Returns:
        The rows, their places among `rows`, and the rows that have a value under several such names.
    """
    fold = getattr(sink, "fold", str)
    mode = getattr(sink, "mode", None)
    sink_columns = [*sink.key, *(mode.columns if mode is not None else ())]
    names = {fold(name): name for name in [*reversed(rows.columns), *reversed([*seen]), *sink_columns]}
    if all(names[fold(name)] == name for name in rows.columns):
        return rows, range(len(rows)), []
    columns: dict[str, list[Any]] = {}
    refused: dict[int, Refused] = {}
    for name in rows.columns:
        column_name, values = names[fold(name)], rows.values(name)
        column = columns.setdefault(column_name, [None] * len(rows))
        for place, value in enumerate(values):
            if value is not None and column[place] is not None:
                other_name = next(other for other in rows.columns if names[fold(other)] == column_name)
                why = f"{other_name!r} and {name!r} are one column of the sink, and the record has both"
                refused.setdefault(place, Refused(place, why, ErrorType.SCHEMA))
            column[place] = column[place] if value is None else value
    united_rows = Outgoing(
        tuple(columns),
        rows.origin,
        tuples=list(zip(*columns.values(), strict=True)),
        loose=rows.loose,
        digits=rows.digits,
        maps=rows.maps,
        of_text=rows.of_text,
        keys=rows.keys,
    )
    fitting_places = [place for place in range(len(rows)) if place not in refused]
    return united_rows.take(fitting_places), fitting_places, [refused[place] for place in sorted(refused)]


def _split_by_columns(rows: Outgoing, error: SinkMismatch) -> tuple[Outgoing, Sequence[Refused]]:
    """Return the rows without a value in an unknown column, and the others as rejected rows."""
    extra = {name: rows.values(name) for name in error.unknown if name in rows.columns}
    unfit_names = {
        place: name for name, values in extra.items() for place, value in enumerate(values) if value is not None
    }
    if not extra:
        raise error  # a column of earlier rows, which the sink no longer has
    fitting_places = [place for place in range(len(rows)) if place not in unfit_names]
    why = "{!r} is a column that the sink does not have"
    return rows.take(fitting_places), [
        Refused(place, why.format(unfit_names[place]), ErrorType.SCHEMA) for place in sorted(unfit_names)
    ]
