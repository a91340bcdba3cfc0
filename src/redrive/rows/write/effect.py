"""Which rows of a write are in the sink. Sinks count the rows that they leave out, and do not say which they are."""

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
    """What became of rows, by their place."""

    count: int
    refused: list[Refused] = field(default_factory=list)
    """Also those that the database left out."""
    ignored: set[int] = field(default_factory=set)
    """Rows whose key is there, and that changed nothing."""

    @property
    def written(self) -> list[int]:
        """The rows that are in the sink; those that stand for a deletion are done as well."""
        others = self.ignored.union(one.place for one in self.refused)
        return [place for place in range(self.count) if place not in others]

    def add(self, other: WriteEffect) -> None:
        """Add rows that stand behind these."""
        self.refused += [replace(one, place=self.count + one.place) for one in other.refused]
        self.ignored.update(self.count + place for place in other.ignored)
        self.count += other.count


def apply(sink: Sink, rows: Outgoing, *, label: str | None, after: Sequence[Outgoing] = ()) -> WriteEffect:
    """Write rows of different keys, or rehearse that where there is no label.

    Args:
        after: what would be in the sink before, in a rehearsal; a sink that cannot rehearse so leaves it out.
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
        # What was written cannot be asked again, so it is rehearsed first; a row alone tells by itself.
        if len(some) > 1 and _effect(len(some), sink.rehearse(some)) is None:
            return None
        refused = sink.write(some, label=label)
        return _effect(len(some), refused) or _unknown(len(some), refused)

    return _by_halves(rows, write)


def left_out(rehearse: Rehearse, rows: Outgoing) -> set[int]:
    """Return the places of rows that changed nothing although the sink took them: it would leave them out again."""
    if not len(rows):
        return set()
    effect = _by_halves(rows, lambda some: _effect(len(some), rehearse(some)))
    return effect.ignored.union(one.place for one in effect.refused)


def _effect(count: int, refused: Sequence[Refused]) -> WriteEffect | None:
    """Return what became of rows; None where some were left out and it is not known which."""
    if not isinstance(refused, WriteResult) or not (refused.ignored or refused.suppressed):
        return WriteEffect(count, list(refused))
    bad = {one.place for one in refused}
    good = {place for place in range(count) if place not in bad}
    if refused.ignored == len(good):
        return WriteEffect(count, list(refused), good)
    if refused.suppressed == len(good):
        return WriteEffect(count, [*refused, *_refused(good, LEFT_OUT)])
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
    """Return what became of rows of which a trigger left out some."""
    bad = {one.place for one in refused}
    good = [place for place in range(len(rows)) if place not in bad]
    absent = {good[at] for at in left_out(sink.rehearse, rows.take(good))}
    return WriteEffect(len(rows), [*refused, *_refused(absent, LEFT_OUT)])


def _unknown(count: int, refused: Sequence[Refused]) -> WriteEffect:
    bad = {one.place for one in refused}
    return WriteEffect(count, [*refused, *_refused({place for place in range(count) if place not in bad}, _UNKNOWN)])


def _refused(places: set[int], why: str) -> list[Refused]:
    return [Refused(place, why, ErrorType.SINK) for place in sorted(places)]
