"""What a table does with a row whose key it has, and which rows are deletions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from redrive.errors import SinkMismatch
from redrive.rows.batch import Outgoing
from redrive.rows.sinks.deletion_marks import is_yes, marked
from redrive.rows.sinks.sink import WriteResult
from redrive.rows.sinks.table_schema import TableName, quoted
from redrive.store.encoding import encode

OnConflict = Literal["update", "ignore"]
DeleteWhen = str | Mapping[str, Any]


class WritesAndDeletes(NamedTuple):
    """Rows to write and rows to delete, each with their places among all of them."""

    kept: Outgoing
    kept_places: Sequence[int]
    deleted: Outgoing
    deleted_places: Sequence[int]
    bad: dict[int, str]
    """Rows that say neither, by place, and why."""


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
        """Whether it is an upsert and nothing else."""
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
        """Tell rows to write from rows to delete; `bad` are rows that can be neither."""
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
        """Whether the table itself decides which row of a key stays, so that no old row overwrites a newer one."""
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
    """Return the columns that mark a deletion, and the values by which they do; None where it is a yes."""
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
        at: f"{name}: {values[at]!r} is neither {meant}; it tells whether the row is deleted"
        for at, flag in enumerate(flags)
        if flag is None
    }
    return list(map(bool, flags)), bad


def _listed(values: Collection[Any]) -> str:
    return " or ".join(sorted(map(repr, values)))
