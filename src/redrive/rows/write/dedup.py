"""Choose one row of each key of a batch, and reject rows without a key; used by runs and replays.

Keys are equal if the sink treats them as equal (`Outgoing.keys`), or by default if Python or polars does. Rows are
returned by their place among the rows that were passed in.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence, Set
from typing import TYPE_CHECKING, Any, Literal

from redrive.errors import SinkMismatch
from redrive.model.letters import ErrorType
from redrive.rows.batch import Outgoing, Refused
from redrive.rows.validation.validator import shown, unmet

if TYPE_CHECKING:
    import polars as pl

Rule = Literal["last", "first", "quarantine"]


class KeyContest:
    """The rows of a batch of which the sink gets one per key.

    If the sink rejects a row, the next row of its key is sent, so that the outcome does not depend on which rows
    happen to share a batch.
    """

    def __init__(self, rows: Outgoing, key: Sequence[str], rule: Rule, known: Set[int] = frozenset()) -> None:
        """Start with all rows of a batch.

        Args:
            known: Places of rows whose key the run has written before; they are never sent.
        """
        self._rows = rows
        self._key = key
        self._rule = rule
        self._known = known
        self._sent: set[int] | None = None  # None: all of them, at once
        self._waiting: dict[Hashable, list[int]] | None = None

    def first(self) -> Sequence[int]:
        """Return the places of the rows to send first: one of each key."""
        chosen = kept_places(self._rows, self._key, self._rule)
        if chosen is None and not self._known:
            return range(len(self._rows))
        places = range(len(self._rows)) if chosen is None else chosen
        sent = [place for place in places if place not in self._known]
        self._sent = set(sent)
        return sent

    def next(self, refused: Sequence[int]) -> Sequence[int]:
        """Return the places of the rows to send instead of rows that the sink rejected."""
        if self._sent is None or not refused:
            return ()
        if self._waiting is None:
            self._waiting = {}
            for place, value in enumerate(keys_of(self._rows, self._key)):
                if place not in self._sent and place not in self._known:
                    self._waiting.setdefault(value, []).append(place)
        values = keys_of(self._rows.take(refused), self._key)
        end = -1 if self._rule == "last" else 0
        next_places = sorted(waiting.pop(end) for value in values if (waiting := self._waiting.get(value)))
        self._sent.update(next_places)
        return next_places

    def left(self) -> Sequence[int]:
        """Return the places of the rows that were not sent, since another row of their key was."""
        if self._sent is None:
            return ()
        return [place for place in range(len(self._rows)) if place not in self._sent]


class WriteRounds:
    """The rows of a batch if all are sent, since the sink compares them: the first of each key, then the second, …"""

    def __init__(self, rows: Outgoing, key: Sequence[str]) -> None:
        self._rounds: list[list[int]] = []
        seen: dict[Hashable, int] = {}
        for place, value in enumerate(keys_of(rows, key)):
            number = seen[value] = seen.get(value, -1) + 1
            if number == len(self._rounds):
                self._rounds.append([])
            self._rounds[number].append(place)
        self._next = 0

    def first(self) -> Sequence[int]:
        """Return the places of the rows to send first."""
        return self.next(())

    def next(self, refused: Sequence[int]) -> Sequence[int]:
        """Return the places of the rows to send next, whether or not rows were rejected."""
        self._next += 1
        return self._rounds[self._next - 1] if self._next <= len(self._rounds) else ()

    def left(self) -> Sequence[int]:
        """Return the places of the rows that were not sent: none."""
        return ()


def keyless(rows: Outgoing, key: Sequence[str]) -> tuple[Outgoing, list[Refused]]:
    """Return the rows with a key, and reject those without: a part of it is missing, NaN, or cannot be compared."""
    if not len(rows):
        return rows, []
    if missing := [name for name in key if name not in rows.columns]:
        if not rows.loose:
            raise SinkMismatch(str(unmet("the sink's key", missing, rows.columns)), lacking=missing)
        rows = rows.onto((*rows.columns, *missing))  # these records have no such field; others may
    frame = rows.as_frame
    unkeyed_places: dict[int, str] = {}
    for name in reversed(key):
        # The message names the first missing part.
        unkeyed_places.update(
            _find_unkeyed(name, rows.values(name)) if frame is None else _find_unkeyed_in_column(frame.get_column(name))
        )
    if not unkeyed_places:
        return rows, []
    keyed_places = [place for place in range(len(rows)) if place not in unkeyed_places]
    return rows.take(keyed_places), [
        Refused(place, unkeyed_places[place], ErrorType.VALIDATION) for place in sorted(unkeyed_places)
    ]


def kept_places(rows: Outgoing, key: Sequence[str], rule: Rule) -> list[int] | None:
    """Return the places of the last or first row of each key; None if every key is unique."""
    if len(rows) < 2 or not key:
        return None
    rows = rows.keyed
    return _choose_in_frame(rows.as_frame, key, rule) if rows.as_frame is not None else _choose_tuples(rows, key, rule)


def reduce(rows: Outgoing, key: Sequence[str], rule: Rule) -> Outgoing:
    """Return one row of each key."""
    places = kept_places(rows, key, rule)
    return rows if places is None else rows.take(places)


def twice(rows: Outgoing, place: int, key: Sequence[str]) -> Refused:
    """Return the row at a place as rejected, since its key was written before."""
    row = rows.slice(place, 1)
    values = ", ".join(shown(row.values(name)[0]) or "…" for name in key)
    why = f"the key {', '.join(key)} came twice in this run ({values})"
    return Refused(place, why, ErrorType.VALIDATION, keyed=False)


def _find_unkeyed(name: str, values: Sequence[Any]) -> dict[int, str]:
    """Return why values cannot be part of a key, by their place."""
    try:
        distinct = set(values)
        if None not in distinct and all(value == value for value in distinct):  # noqa: PLR0124
            return {}
    except TypeError:
        pass  # some value cannot be hashed
    return {place: why for place, value in enumerate(values) if (why := _explain_unkeyed(name, value))}


def _explain_unkeyed(name: str, value: Any) -> str | None:
    if value is None:
        return _missing(name)
    try:
        hash(value)
    except TypeError:
        return f"the key {name} is a {type(value).__name__}, and cannot be one"
    return None if value == value else _nan(name)  # noqa: PLR0124


def _find_unkeyed_in_column(column: pl.Series) -> dict[int, str]:
    dtype, name = column.dtype, column.name
    if dtype.is_nested():
        kind = str(dtype.base_type())
        unkeyed_places = dict.fromkeys(range(len(column)), f"the key {name} is a {kind}, and cannot be one")
    else:
        unkeyed_places = dict.fromkeys(column.is_nan().arg_true(), _nan(name)) if dtype.is_float() else {}
    return (
        unkeyed_places | dict.fromkeys(column.is_null().arg_true(), _missing(name))
        if column.null_count()
        else unkeyed_places
    )


def _missing(name: str) -> str:
    return f"the key {name} is missing"


def _nan(name: str) -> str:
    return f"the key {name} is NaN, which equals nothing"


def keys_of(rows: Outgoing, key: Sequence[str]) -> Sequence[Hashable]:
    """Return the key of each row."""
    rows = rows.keyed
    return rows.values(key[0]) if len(key) == 1 else list(zip(*(rows.values(name) for name in key), strict=True))


def _choose_tuples(rows: Outgoing, key: Sequence[str], rule: Rule) -> list[int] | None:
    keys = keys_of(rows, key)
    if len(set(keys)) == len(keys):
        return None
    if rule == "last":
        return sorted({value: place for place, value in enumerate(keys)}.values())
    first: dict[Hashable, int] = {}
    for place, value in enumerate(keys):
        first.setdefault(value, place)
    return list(first.values())


def _choose_in_frame(frame: pl.DataFrame, key: Sequence[str], rule: Rule) -> list[int] | None:
    keys = frame.get_column(key[0]) if len(key) == 1 else frame.select(key).to_struct()
    if keys.n_unique() == len(keys):
        return None
    return (keys.is_last_distinct() if rule == "last" else keys.is_first_distinct()).arg_true().to_list()
