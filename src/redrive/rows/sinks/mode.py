"""The write mode of a table: what happens to a row whose key exists, and which rows are deletions.

A row is a deletion if a column has a value that the option `delete_when` names, whatever types the two have. The same
flag is the number 1 in Parquet, the text "1" in CSV and a bool in JSON. A value that cannot be compared with those of
`delete_when` is rejected: if it counted as no deletion, deleted rows would be written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any, Literal, NamedTuple, get_args
from uuid import UUID

from redrive.errors import SinkMismatch
from redrive.rows.batch import Outgoing
from redrive.rows.sinks.sink import WriteResult
from redrive.rows.sinks.table_schema import TableName, quoted
from redrive.store.encoding import encode

OnConflict = Literal["update", "ignore"]
DeleteWhen = str | Mapping[str, Any]
_YES = ("1", "t", "true", "y", "yes")
_NO = ("", "0", "f", "false", "n", "no")


class WritesAndDeletes(NamedTuple):
    """Rows to write and rows to delete, each with their places among all of them."""

    kept: Outgoing
    kept_places: Sequence[int]
    deleted: Outgoing
    deleted_places: Sequence[int]
    bad: dict[int, str]
    """Rows that are neither, by place, and why."""


@dataclass(frozen=True, slots=True)
class WriteMode:
    """How rows become the table's own. The default is an upsert: the row that comes replaces the one that is there."""

    on_conflict: OnConflict = "update"
    newer: str | None = None
    delete_when: DeleteWhen | None = None
    _wanted: Mapping[str, frozenset[Any] | None] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.on_conflict not in get_args(OnConflict):
            raise ValueError(f'on_conflict must be "update" or "ignore", not {self.on_conflict!r}')
        if self.newer is not None and (not isinstance(self.newer, str) or not self.newer):
            raise ValueError(f"newer must be the name of a column, not {self.newer!r}")
        if self.on_conflict == "ignore" and (self.newer is not None or self.delete_when is not None):
            raise ValueError(
                'on_conflict="ignore" leaves rows as they are; it cannot be combined with newer or delete_when'
            )
        object.__setattr__(self, "_wanted", _wanted(self.delete_when))

    def compared_options(self) -> dict[str, Any]:
        """Return what must not change within a run, by name, as JSON that is the same in every process."""
        marks = {name: None if values is None else sorted(map(encode, values)) for name, values in self._wanted.items()}
        return {"on_conflict": self.on_conflict, "newer": self.newer, "delete_when": marks or None}

    @property
    def is_plain(self) -> bool:
        """Return whether the mode is a plain upsert."""
        return self == WriteMode()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it names."""
        return (*([self.newer] if self.newer else []), *self._wanted)

    def check_key(self, key: Collection[str]) -> None:
        """Raise where a column of the key is given another purpose."""
        for name in self.columns:
            if name in key:
                raise ValueError(
                    f"{name!r} is part of the key, which identifies a row; newer and delete_when name other columns"
                )

    def written(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the columns that go into the table: those of `delete_when` do not."""
        return tuple(name for name in columns if name not in self._wanted) if self._wanted else tuple(columns)

    def check(self, table: TableName, columns: Sequence[str], fold: Callable[[str], str] = str) -> None:
        """Raise where rows of these columns cannot be compared by `newer`: they would never be written."""
        if self.newer is not None and fold(self.newer) not in map(fold, columns):
            raise SinkMismatch(
                f"{table} is updated where {self.newer!r} is newer, and the rows have no such column; "
                f"they have {', '.join(columns[:12])}"
            )

    def split(self, rows: Outgoing, bad: Mapping[int, str] | None = None) -> WritesAndDeletes:
        """Split rows to write from rows to delete; `bad` are rows that can be neither."""
        flags = [_flags(name, wanted, rows) for name, wanted in self._wanted.items()]
        bad = dict(bad or {})
        for _, faults in flags:
            bad.update(faults)
        deleted = [at for at in range(len(rows)) if flags and at not in bad and all(values[at] for values, _ in flags)]
        gone = {*deleted, *bad}
        kept = [at for at in range(len(rows)) if at not in gone]
        columns = self.written(rows.columns)
        return WritesAndDeletes(rows.take(kept).onto(columns), kept, rows.take(deleted).onto(columns), deleted, bad)

    def without_deleted(self, rows: Outgoing) -> Outgoing:
        """Return the rows that do not stand for a deletion."""
        return rows.take(self.split(rows).kept_places) if self._wanted else rows

    def deletions(self, rows: Outgoing) -> Outgoing:
        """Return the rows that stand for a deletion."""
        return rows.take(self.split(rows).deleted_places if self._wanted else ())

    def keep(self, applied: WriteResult, kept: int) -> None:
        """Count deletions that left their row in the table: it is newer, or a trigger keeps it."""
        applied.deleted -= kept
        if self.newer is None:
            applied.suppressed += kept
        else:
            applied.ignored += kept

    @property
    def compares(self) -> bool:
        """Return whether the table decides which row of a key stays, so that no old row overwrites a newer one."""
        return self.on_conflict == "ignore" or self.newer is not None

    def superseding(self, rows: Outgoing) -> Sequence[int]:
        """Return the places of the rows after which no earlier row of their key must be written.

        Where the table compares rows, that is a deletion: there is nothing left to compare with.
        """
        if not self.compares:
            return range(len(rows))
        return self.split(rows).deleted_places if self.delete_when is not None else ()

    def action(self, own: str, others: Sequence[str]) -> str:
        """Return what follows ON CONFLICT (…) DO, for PostgreSQL and SQLite; `own` is the table's name in it."""
        if self.on_conflict == "ignore" or not others:
            return "NOTHING"
        changes = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in others)
        return f"UPDATE SET {changes}" + (f" WHERE {self.is_newer(own)}" if self.newer else "")

    def is_newer(self, own: str) -> str:
        """Return the condition that the incoming row is newer than the one that is there."""
        assert self.newer is not None
        column = quoted(self.newer)
        return f"({own}.{column} IS NULL OR excluded.{column} > {own}.{column})"


def _wanted(delete_when: DeleteWhen | None) -> dict[str, frozenset[Any] | None]:
    """Return the columns that mark a deletion, and the values by which they do; None if it is a yes."""
    if delete_when is None:
        return {}
    if isinstance(delete_when, str) and delete_when:
        return {delete_when: None}
    if not isinstance(delete_when, Mapping) or not delete_when:
        raise ValueError(
            f'delete_when is a column, "deleted", or columns with the values that mark a deletion, {{"op": "D"}}, '
            f"not {delete_when!r}"
        )
    many = (list, tuple, set, frozenset)
    return {name: frozenset(value if isinstance(value, many) else (value,)) for name, value in delete_when.items()}


def _flags(name: str, wanted: frozenset[Any] | None, rows: Outgoing) -> tuple[list[bool], dict[int, str]]:
    """Return whether each row is marked, and the rows whose mark is neither yes nor no."""
    if name not in rows.columns:
        return [False] * len(rows), {}
    values = rows.values(name)
    if wanted is None:
        flags, meant = list(map(is_yes, values)), "yes nor no"
    else:
        flags, meant = marked(values, wanted), f"{_listed(wanted)} nor another value that can be compared with it"
    bad = {
        at: f"{name}: {values[at]!r} is neither {meant}; it marks whether the row is deleted"
        for at, flag in enumerate(flags)
        if flag is None
    }
    return list(map(bool, flags)), bad


def _listed(values: Collection[Any]) -> str:
    return " or ".join(sorted(map(repr, values)))


def is_yes(value: Any) -> bool | None:
    """Return whether a value means yes; None if it means neither yes nor no."""
    text = "" if value is None else str(value).strip().lower()
    return True if text in _YES else False if text in _NO else None


def marked(values: Iterable[Any], marks: Collection[Any]) -> list[bool | None]:
    """Return of each value whether it is one of the marks; None if it can be compared with none of them."""
    plain = [_plain(mark) for mark in marks]
    known: dict[tuple[type, Any], bool | None] = {}
    flags = []
    for value in values:
        try:
            answer = known[type(value), value]
        except KeyError:
            answer = known[type(value), value] = _is_any(_plain(value), plain)
        except TypeError:  # it has no hash
            answer = _is_any(value, plain)
        flags.append(answer)
    return flags


def _is_any(value: Any, marks: Iterable[Any]) -> bool | None:
    answers = [_equals(value, mark) for mark in marks]
    return True if True in answers else False if False in answers else None


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _equals(value: Any, mark: Any) -> bool | None:
    """Return whether the two are the same value; None if they cannot be compared."""
    if value is None or mark is None:
        return value is mark
    if isinstance(value, str) and isinstance(mark, str):
        return value == mark
    if isinstance(value, str):
        return _text_equals(value, mark)
    if isinstance(mark, str):
        return _text_equals(mark, value)
    if isinstance(value, bool) != isinstance(mark, bool):
        flag, other = (value, mark) if isinstance(value, bool) else (mark, value)
        return flag == other if _is_number(other) and other in (0, 1) else None
    if _is_number(value) and _is_number(mark):
        return bool(value == mark)
    if isinstance(value, datetime) and isinstance(mark, datetime):
        return None if (value.tzinfo is None) != (mark.tzinfo is None) else value == mark
    return bool(value == mark) if type(value) is type(mark) else None


def _text_equals(text: str, other: Any) -> bool | None:
    """Return whether a text, as of CSV, is a value of another type; an empty one is no value."""
    if not text.strip():
        return False
    if isinstance(other, bool):
        flag = is_yes(text)
        return None if flag is None else flag == other
    if _is_number(other):
        number = _parsed(_number, text)
        return None if number is None else bool(number == Decimal(str(other)))
    parse = _PARSERS.get(type(other))
    value = None if parse is None else _parsed(parse, text)
    return None if value is None else _equals(value, other)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal)


def _number(text: str) -> Decimal | None:
    number = Decimal(text)
    return number if number.is_finite() and "_" not in text else None


_PARSERS: dict[type, Callable[[str], Any]] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    UUID: UUID,
}


def _parsed(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text.strip())
    except (ValueError, InvalidOperation):
        return None
