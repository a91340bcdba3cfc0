"""Find which rows of a write are in the sink: sinks only count the rows they leave out. Used by runs and replays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from redrive.model.letters import ErrorType
from redrive.rows.batch import Outgoing, Refused
from redrive.rows.sinks.sink import ChecksInOrder, Sink, WriteResult

LEFT_OUT = "the database left the row out by a rule of its own, such as a trigger; nothing was written"
_UNKNOWN = "the table was changed by others at the same moment, and it is not known whether the row was written"

Rehearse = Callable[[Outgoing], Sequence[Refused]]


@dataclass(slots=True)
class WriteEffect:
    """The outcome of a write, by the place of each row."""

    count: int
    refused: list[Refused] = field(default_factory=list)
    """Rejected rows, including those that the database left out."""
    ignored: set[int] = field(default_factory=set)
    """Rows whose key exists in the sink, and that changed nothing."""

    @property
    def written(self) -> list[int]:
        """The rows that are in the sink, including applied deletions."""
        not_written = self.ignored.union(row.place for row in self.refused)
        return [place for place in range(self.count) if place not in not_written]

    def add(self, other: WriteEffect) -> None:
        """Add the outcome of the rows that follow these."""
        self.refused += [replace(row, place=self.count + row.place) for row in other.refused]
        self.ignored.update(self.count + place for place in other.ignored)
        self.count += other.count


def apply(sink: Sink, rows: Outgoing, *, label: str | None, after: Sequence[Outgoing] = ()) -> WriteEffect:
    """Write rows of different keys. Without a label, do a dry run.

    Args:
        after: Rows that a dry run treats as written before; ignored by a sink that cannot.
    """
    mode = getattr(sink, "mode", None)
    if label is None:
        if after and isinstance(sink, ChecksInOrder):
            in_order = sink.rehearse_after
            return _by_halves(rows, lambda some: _effect(len(some), in_order(after, some)))
        return _by_halves(rows, lambda some: _effect(len(some), sink.rehearse(some)))
    if mode is None or mode.is_plain:
        refused = sink.write(rows, label=label)
        return _effect(len(rows), refused) or _without_left_out(sink, rows, refused)

    def write(some: Outgoing) -> WriteEffect | None:
        # After a write it is too late to find the rows, so a dry run comes first; a single row needs none.
        if len(some) > 1 and _effect(len(some), sink.rehearse(some)) is None:
            return None
        refused = sink.write(some, label=label)
        return _effect(len(some), refused) or _unknown(len(some), refused)

    return _by_halves(rows, write)


def left_out(rehearse: Rehearse, rows: Outgoing) -> set[int]:
    """Return the places of accepted rows that changed nothing: in a dry run, the sink leaves them out as well."""
    if not len(rows):
        return set()
    effect = _by_halves(rows, lambda some: _effect(len(some), rehearse(some)))
    return effect.ignored.union(row.place for row in effect.refused)


def _effect(count: int, refused: Sequence[Refused]) -> WriteEffect | None:
    """Return the outcome of a write; None if some rows were left out and it is not known which."""
    if not isinstance(refused, WriteResult) or not (refused.ignored or refused.suppressed):
        return WriteEffect(count, list(refused))
    rejected_places = {row.place for row in refused}
    accepted_places = {place for place in range(count) if place not in rejected_places}
    if refused.ignored == len(accepted_places):
        return WriteEffect(count, list(refused), accepted_places)
    if refused.suppressed == len(accepted_places):
        return WriteEffect(count, [*refused, *_refused(accepted_places, LEFT_OUT)])
    return None


def _by_halves(rows: Outgoing, attempt: Callable[[Outgoing], WriteEffect | None]) -> WriteEffect:
    effect = attempt(rows)
    if effect is not None:
        return effect
    middle = len(rows) // 2
    effect = _by_halves(rows.slice(0, middle), attempt)
    effect.add(_by_halves(rows.slice(middle, len(rows) - middle), attempt))
    return effect


def _without_left_out(sink: Sink, rows: Outgoing, refused: Sequence[Refused]) -> WriteEffect:
    """Return the outcome of a write of which a trigger left out some rows."""
    rejected_places = {row.place for row in refused}
    accepted_places = [place for place in range(len(rows)) if place not in rejected_places]
    left_out_places = {accepted_places[at] for at in left_out(sink.rehearse, rows.take(accepted_places))}
    return WriteEffect(len(rows), [*refused, *_refused(left_out_places, LEFT_OUT)])


def _unknown(count: int, refused: Sequence[Refused]) -> WriteEffect:
    rejected_places = {row.place for row in refused}
    return WriteEffect(
        count, [*refused, *_refused({place for place in range(count) if place not in rejected_places}, _UNKNOWN)]
    )


def _refused(places: set[int], why: str) -> list[Refused]:
    return [Refused(place, why, ErrorType.SINK) for place in sorted(places)]
