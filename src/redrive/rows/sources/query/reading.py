"""Read the rows of a query page by page after a watermark, and the rows that have no place in its order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

from sqlalchemy import Select, Text

from redrive.errors import SourceError
from redrive.model.letters import ErrorType
from redrive.rows.batch import Batch, Received, Record, Unreadable
from redrive.rows.sources.query import database as databases
from redrive.rows.sources.query.database import QueryDatabase
from redrive.rows.sources.query.keyset import Columns, Keyset
from redrive.rows.sources.query.order import (
    QueryOrder,
    QueryPage,
    format_value,
    from_json,
    raise_fault,
    stepped_back,
    to_json,
)
from redrive.rows.sources.query.text_rows import TextRow, TextRowReader

MOST_NULLS = 10_000
"""Rows without a watermark, or without a key, that a run accepts: they are read in every run."""


class QueryReading:
    """See `Reading`."""

    total: int | None = None  # to count would run the whole query once more, on a database that others work with

    def __init__(
        self, name: str, database: QueryDatabase, keyset: Keyset, lag: timedelta | None, position: Any | None
    ) -> None:
        self._name = name
        self._database = database
        self._keyset = keyset
        self._lag = lag
        # Rows without a watermark come first; the key is how far they were read, None after all of them.
        self._nulls: list[Any] | None = [] if position is None else from_json(position.get("nulls"))
        self._ended = False
        self._done = 0
        self._start: Any = None
        self._behind: list[Any] | None = None
        self._go_to(position)
        # With a lag: from which watermark on rows may come that were passed; None while none was that may be missing.
        self._late: Any = None if position is None else self._late_of(position)
        self._newest: Any = None
        self.columns: tuple[str, ...] | None = self._look()
        self._rescue = TextRowReader(self.columns, databases.is_not_of_a_row)

    def read(self, most: int) -> Batch | None:
        if self._nulls is not None:
            batch = self._without_place(self._nulls, most)
            if batch is not None:
                return batch
        if self._ended:
            return None
        if self._lag is not None and self._newest is None:
            self._newest = self._find_newest()
        page = self._page(most)
        if page is None:
            self._ended = True
            return None
        if page.first == self._behind:
            raise SourceError(self._order.stands_still(page.first))
        if self._keyset.is_lost(page.last[0]):  # in a database whose types are not known
            raise SourceError(
                f"{self._place(dict(zip(self._keyset.names, page.last, strict=True)))} of {self._name} has no place in "
                "the order, and can be no checkpoint: filter such rows out in the SQL"
            )
        self._note_late(page.last[0])
        watermark, *key = to_json(page.last, self._keyset.names)
        position = self._position(watermark, key)
        self._go_to(position)
        self._ended = page.ends
        return self._batch(page.rows, page.bad, position)

    def close(self) -> None:
        self._database.close()

    def row_of(self, record: Record) -> Record:
        """Return the row that has the key of a record, as it is now; ValueError where it cannot be had."""
        keys = self._keyset.names[1:]
        where = ", ".join(f"{name} {format_value(record.get(name))}" for name in keys)
        if any(record.get(name) is None for name in keys):
            raise ValueError(f"the letter holds no whole row of {self._name}, and no key to fetch it by")

        def fetch(columns: Columns) -> list[Record]:
            return self._select(self._keyset.at_key([record[name] for name in keys], 2, columns))

        if len(fetch(dict.fromkeys(keys))) > 1:
            raise ValueError(f"the letter holds no whole row of {self._name}, which has several with {where}")
        result = self._rescue.row(fetch)
        if result is None:
            raise ValueError(f"the letter holds no whole row of {self._name}, which has none with {where} any more")
        if result.missing:
            raise ValueError(f"{', '.join(result.missing)} of the row of {self._name} with {where} cannot be read")
        return result.record

    def _go_to(self, position: Any | None) -> None:
        if position is None:
            return
        watermark = from_json(position["watermark"])
        if self._lag is not None and watermark is not None:
            # An error of the lag is raised now, and not at the start of the next run.
            stepped_back(watermark, self._lag, self._keyset.names[0])
        if position["key"] is None:
            self._start = watermark
        else:
            self._behind = [watermark, *from_json(position["key"])]

    def _late_of(self, position: Mapping[str, Any]) -> Any:
        if self._lag is None or position["key"] is None:
            return None
        if "late" in position:
            return from_json(position["late"])
        # A checkpoint of an earlier version, or of a run without a lag.
        return stepped_back(from_json(position["watermark"]), self._lag, self._keyset.names[0])

    def _note_late(self, watermark: Any) -> None:
        """Note from where the next run must read, once this one has passed rows that may have been missing.

        Rows of the last `lag` before the newest one may be committed after they were passed, while the run is stopped
        or reads and writes other pages. The end of the run may be far after them by then.
        """
        if self._lag is None or self._late is not None:
            return
        newest = watermark if self._newest is None else self._newest
        back = stepped_back(newest, self._lag, self._keyset.names[0])
        try:
            is_passed = watermark > back
        except TypeError:  # SQLite has values of several types in one column
            is_passed = True
        if is_passed:
            self._late = back

    def _position(self, watermark: Any, key: list[Any] | None) -> dict[str, Any]:
        position = {"watermark": watermark, "key": key}
        if self._lag is not None:
            position["late"] = None if self._late is None else to_json([self._late], self._keyset.names[:1])[0]
        return position

    def _batch(self, rows: list[Record], bad: list[Unreadable], position: Any) -> Batch:
        self._done += len(rows) + len(bad)
        return Batch(Received(rows), lambda place: self._place(rows[place]), position, self._name, bad, self._done)

    def _place(self, record: Record) -> str:
        return ", ".join(f"{name} {format_value(record[name])}" for name in dict.fromkeys(self._keyset.names))

    def _values(self, record: Record) -> list[Any]:
        return [record[name] for name in self._keyset.names]

    # ── what is asked of the database ─────────────────────────────────────────────────────────────────────────────────

    def _select(self, statement: Select[Any]) -> list[Record]:
        columns, rows = databases.with_retries(lambda: self._database.run(statement))
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def _look(self) -> tuple[str, ...]:
        """Return the columns; what is wrong with the query as a whole is found out here."""
        try:
            described = databases.with_retries(lambda: self._database.describe(self._keyset.nothing()))
        except Exception as error:
            raise_fault(self._name, error)
        columns = [name for name, _ in described]
        for name in columns:
            if list(columns).count(name) > 1:
                raise SourceError(f"the query of {self._name} gives {name} twice: name one of them otherwise, with AS")
        for name in self._keyset.names:
            if name not in columns:
                raise SourceError(f"the query of {self._name} gives no {name}; its columns are {', '.join(columns)}")
        for name, kind in described:
            if name in self._keyset.names and kind == databases.NUMBERED:
                raise SourceError(
                    f"{name} of {self._name} is an {kind} of MySQL, which sorts it by number and compares it by text: "
                    "cast it to text in the SQL"
                )
        self._keyset = self._keyset.typed(dict(described))
        self._order = QueryOrder(self._name, self._keyset, self._select)
        watermark = self._start if self._behind is None else self._behind[0]
        if self._keyset.is_lost(watermark):
            raise SourceError(
                f"the checkpoint of {self._name} is at {self._keyset.names[0]} {format_value(watermark)}, after which "
                "no row ever comes; restart with run(restart=True) or `redrive run --restart`"
            )
        return tuple(columns)

    def _find_newest(self) -> Any:
        """Return the greatest watermark there is; None if there is no row."""
        try:
            records = self._select(self._keyset.newest())
        except Exception as error:
            raise_fault(self._name, error)
        return records[0][self._keyset.names[0]] if records else None

    def _page(self, most: int) -> _Page | None:
        try:
            records = self._select(self._keyset.page(self._start, self._behind, most + 1))
        except Exception as error:
            if databases.is_not_of_a_row(error):
                raise_fault(self._name, error)
            return self._page_by_halves(most, error)
        rows = self._cut(records, most)
        if not rows:
            return None
        return _Page(rows, [], self._values(rows[0]), self._values(rows[-1]), ends=len(records) <= most)

    def _cut(self, found: list[Record], most: int) -> list[Record]:
        """As much as was asked for. One more was read: if that is of the same place, no page could begin with it."""
        if len(found) > most:
            self._order.check(found[most - 1], found[most], QueryPage(self._start, self._behind, most))
        return found[:most]

    def _page_by_halves(self, most: int, error: Exception) -> _Page:
        """Return a page of which some row cannot be had: a value that the driver cannot hold, an expression that fails.

        It is looked for by halves, with statements that touch no other row. Watermark and key can be had of any row.
        """
        try:
            all_found = self._select(self._keyset.places(self._start, self._behind, most + 1))
        except Exception:
            self._raise_faulty_page(error)
        result = self._cut(all_found, most)
        if not result:
            raise_fault(self._name, error)
        places = [self._values(place) for place in result]
        page = _Page([], [], places[0], places[-1], ends=len(all_found) <= most)
        pieces = [(0, len(result))]
        while pieces:
            first, end = pieces.pop()
            behind = places[first - 1] if first else self._behind
            try:
                page.rows.extend(self._select(self._keyset.between(self._start, behind, places[end - 1])))
            except Exception as fault:
                if databases.is_not_of_a_row(fault):
                    raise_fault(self._name, fault)
                if end - first == 1:
                    page.bad.extend(self._unreadable(result[first], behind, places[first], fault))
                else:
                    middle = (first + end) // 2
                    self._order.check(result[middle - 1], result[middle], QueryPage(self._start, self._behind, most))
                    pieces += [(middle, end), (first, middle)]
        return page

    def _unreadable(
        self, place: Record, behind: Sequence[Any] | None, last: Sequence[Any], fault: Exception
    ) -> list[Unreadable]:
        """Return the letter of a row that cannot be had as it is: all that can be had of it. None if it has gone."""
        rescued = self._rescue.row(
            lambda columns: self._select(self._keyset.between(self._start, behind, last, columns))
        )
        return self._letter_of(rescued, place, fault)

    def _letter_of(self, rescued: TextRow | None, place: Record, fault: Exception) -> list[Unreadable]:
        if rescued is None:
            return []
        error = databases.first_line(fault)
        return [Unreadable(rescued.record, error, self._place(place), context=rescued.context)]

    # ── rows that have no place in the order ──────────────────────────────────────────────────────────────────────────

    def _without_place(self, behind: list[Any], most: int) -> Batch | None:
        """Return the next rows without a watermark, with the first of them those without a key; None at the end."""
        try:
            bad = [] if behind else self._without_key()
            if not behind and self._count_nulls() > MOST_NULLS:
                self._too_many(f"{self._keyset.names[0]}, or one that is NaN or infinite")
            rows, unreadable, last = self._null_page(behind, most)
        except Exception as error:
            raise_fault(self._name, error)
        position = self._place_kept()
        self._nulls = last
        if last is not None:
            position["nulls"] = to_json(last, self._keyset.names[1:])
        bad += unreadable
        return self._batch(rows, bad, position) if rows or bad else None

    def _null_page(self, behind: list[Any], most: int) -> tuple[list[Record], list[Unreadable], list[Any] | None]:
        """Return rows without a watermark after a key, those that cannot be had, and the last key where more follow."""
        keys = self._keyset.names[1:]
        try:
            records = self._select(self._keyset.without_watermark(behind, most + 1))
        except Exception as error:
            if databases.is_not_of_a_row(error):
                raise
        else:
            more = len(records) > most
            if more:
                self._order.check_key(records[most - 1], records[most], QueryPage(None, behind, most))
            return records[:most], [], [records[most - 1][name] for name in keys] if more else None
        # The watermark as text, because it may be what cannot be had.
        place_columns = {self._keyset.names[0]: Text(), **dict.fromkeys(keys)}
        places = self._select(self._keyset.without_watermark(behind, most + 1, place_columns))
        rows: list[Record] = []
        bad: list[Unreadable] = []
        page = QueryPage(None, behind, most)
        for place, following in pairwise(places):
            self._order.check_key(place, following, page)
        for place in places[:most]:
            try:
                rows += self._select(self._keyset.without_watermark(behind, 1))
            except Exception as error:
                if databases.is_not_of_a_row(error):
                    raise
                bad += self._letter_of(self._rescue.row(self._first_null_behind(behind)), place, error)
            behind = [place[name] for name in keys]
        return rows, bad, behind if len(places) > most else None

    def _first_null_behind(self, behind: list[Any]) -> Callable[[Columns], list[Record]]:
        return lambda columns: self._select(self._keyset.without_watermark(behind, 1, columns))

    def _count_nulls(self) -> int:
        some = self._keyset.names[1:2]
        return len(self._select(self._keyset.without_watermark([], MOST_NULLS + 1, dict.fromkeys(some))))

    def _place_kept(self) -> dict[str, Any]:
        """Return the place in the order at which this reading began, as a position."""
        if self._behind is not None:
            watermark, *key = to_json(self._behind, self._keyset.names)
            return self._position(watermark, key)
        watermark = None if self._start is None else to_json([self._start], self._keyset.names[:1])[0]
        return self._position(watermark, None)

    def _without_key(self) -> list[Unreadable]:
        def fetch(columns: Columns | None = None) -> list[Record]:
            return self._select(self._keyset.without_key(MOST_NULLS + 1, columns))

        context = None
        try:
            rows = fetch()
        except Exception as error:
            if databases.is_not_of_a_row(error):
                raise
            # They have no order in which each could be selected by itself.
            forms = self._rescue.forms(fetch)
            rows = fetch(forms)
            context = {"as_text": [name for name, form in forms.items() if form is not None], "missing": []}
        if len(rows) > MOST_NULLS:
            self._too_many(" or ".join(self._keyset.names[1:]))
        return [
            Unreadable(row, self._missing_key(row), self._place(row), ErrorType.VALIDATION, context=context)
            for row in rows
        ]

    def _too_many(self, names: str) -> NoReturn:
        raise SourceError(
            f"more than {MOST_NULLS:,} rows of {self._name} have no {names}, and every run would read them: "
            "filter them out in the SQL, or give them one with COALESCE"
        )

    def _missing_key(self, record: Record) -> str:
        keys = self._keyset.names[1:]
        missing = next((name for name in keys if record[name] is None), None)
        return f"key {', '.join(keys)} cannot be read" if missing is None else f"key {missing} is null"

    def _raise_faulty_page(self, error: Exception) -> NoReturn:
        """Raise the error of a page of which not even the places can be read."""
        if self._behind is not None:
            try:
                self._select(self._keyset.places(None, None, 1))
            except Exception:
                raise_fault(self._name, error)
            self._order.raise_incomparable(error, self._keyset.names)
        raise_fault(self._name, error)


class _Page(NamedTuple):
    rows: list[Record]
    bad: list[Unreadable]
    first: list[Any]
    last: list[Any]
    """Watermark and key of the outermost rows, read or not."""
    ends: bool
    """Whether it is the last. Not only an empty one is: where others write all the time, that may never come."""
