"""Any database that SQLAlchemy knows: its own upsert where it has one, and bisection for the rejected rows."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from math import isfinite
from typing import Any, cast
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy import URL, Connection, Engine, Executable, TableClause, event
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import DBAPIError, NoSuchModuleError, NoSuchTableError, StatementError

from redrive._internal.masking import mask
from redrive.classify.classifier import Classifier
from redrive.classify.detail import error_detail
from redrive.model.calls import Kind
from redrive.rows.batch import Outgoing
from redrive.rows.sinks.exact.capacity import ColumnCapacity, Family, column_digits
from redrive.rows.sinks.exact.columns import find_changes
from redrive.rows.sinks.infer_types import ColumnType, types_of
from redrive.rows.sinks.keys import KeyKind, KeyQuery
from redrive.rows.sinks.sink import isolate
from redrive.rows.sinks.sql_table import SqlTable, is_row_fault, sample_evenly
from redrive.rows.sinks.sqlite.values import column_type, fit_numbers
from redrive.rows.sinks.sqlite.values import rules_of as sqlite_rules
from redrive.rows.sinks.table_schema import TableColumn, TableName, TableSchema
from redrive.rows.sinks.values import NESTED, Rules, adapt_columns, json_of_str, json_text
from redrive.store.database import Database
from redrive.store.dialects.dialect import Dialect

_VALUES: Rules = {**NESTED, UUID: str}
_TYPES: dict[ColumnType, sa.types.TypeEngine[Any]] = {
    ColumnType.BOOLEAN: sa.Boolean(),
    ColumnType.INTEGER: sa.BigInteger(),
    ColumnType.HUGE: sa.Numeric(38, 0),
    ColumnType.FLOAT: sa.Double(),
    ColumnType.BYTES: sa.LargeBinary(),
    ColumnType.DATE: sa.Date(),
    ColumnType.TIME: sa.Time(),
    ColumnType.TIMESTAMP: sa.DateTime(),
    ColumnType.INSTANT: sa.DateTime(timezone=True),
    ColumnType.JSON: sa.JSON(),
}
_JSON = "json"
_OF_A_ROW = {Kind.ROW, Kind.PERMANENT, Kind.AUTH}
"""What an error is that may be one row's; the others are the server's, the network's or another session's."""
_classifier = Classifier()
_LONGEST_KEY = 255  # some databases index no text without a limit
_HAS_ON_CONFLICT = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}


class _Engine:
    """Of `Dialect`, what `Database` needs for its transactions."""

    is_remote = True
    reading: Mapping[str, Any] = {}
    writing: Mapping[str, Any] = {}
    errors: tuple[type[Exception], ...] = ()

    def __init__(self, url: URL) -> None:
        self._url = url
        self.where = mask(url.render_as_string(hide_password=True))

    def engine_key(self) -> Hashable:
        return self  # what each sink listens to on its engine is its own

    def engine(self) -> Engine:
        try:
            engine = sa.create_engine(self._url, hide_parameters=True)
        except NoSuchModuleError:
            known = "postgresql://, sqlite:///, duckdb:/// or a URL of SQLAlchemy's"
            raise ValueError(f"no database is known as {self._url.drivername}; write {known}") from None
        except ModuleNotFoundError as missing:
            raise ImportError(
                f"the driver of {self._url.drivername} is not installed: {missing}", name=missing.name
            ) from None
        if engine.dialect.is_async:
            raise ValueError(f"{self._url.drivername} names an asynchronous driver; rows are written by a plain one")
        if engine.dialect.name == "sqlite":
            event.listen(engine, "connect", _leave_transactions_to_us)
            event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        return engine

    def collided(self, error: BaseException) -> bool:
        return False

    def advice(self, error: BaseException, kind: Kind) -> str | None:
        return "check the user and the password of the table's URL" if kind is Kind.AUTH else None


def _leave_transactions_to_us(connection: Any, _: object) -> None:
    # The driver would begin a transaction at the first change, which is too late for a savepoint.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")


class GenericTable(SqlTable):
    """See `Sink`."""

    def __init__(self, url: URL, table: TableName, *, key: tuple[str, ...], create: bool, patience: float) -> None:
        database = Database(cast(Dialect, _Engine(url)), patience=patience)
        super().__init__(database, table, key=key, create=create)

    def _read_shape(self, connection: Connection) -> TableSchema | None:
        look, name = sa.inspect(connection), (self._table.table, self._table.schema)
        try:
            columns, primary = look.get_columns(*name), look.get_pk_constraint(*name)
        except NoSuchTableError:
            return None
        unique = [primary["constrained_columns"]]
        with suppress(NotImplementedError):  # not every dialect looks for all of this
            unique += [indexes["column_names"] for indexes in look.get_unique_constraints(*name)]
        unique += [
            [column for column in index["column_names"] if column is not None]
            for index in look.get_indexes(*name)
            if index["unique"] and _is_whole(index)
        ]
        indexes = tuple({frozenset(index) for index in unique if index})
        made = tuple(_column(item, connection.dialect.name) for item in columns)
        return TableSchema(made, indexes, kind="table" if indexes or not _is_view(look, *name) else "view")

    def _other_tables(self, connection: Connection) -> list[str]:
        schema = self._table.schema
        return [str(TableName(name, schema)) for name in sa.inspect(connection).get_table_names(schema)]

    def _make(self, connection: Connection, rows: Outgoing) -> None:
        columns = [
            sa.Column(name, self._type(connection, name, kind, rows), primary_key=name in self.key, autoincrement=False)
            for name, kind in types_of(rows).items()
        ]
        sa.Table(self._table.table, sa.MetaData(), *columns, schema=self._table.schema).create(connection)

    def _type(self, connection: Connection, name: str, kind: ColumnType, rows: Outgoing) -> sa.types.TypeEngine[Any]:
        if kind is ColumnType.DECIMAL:
            if connection.dialect.name == "sqlite":
                return sa.Numeric() if column_type(rows.values(name)) == "NUMERIC" else sa.Text()
            digits = column_digits(name, rows)
            return sa.Numeric(*digits) if digits else sa.Text()
        return _TYPES.get(kind) or (sa.String(_LONGEST_KEY) if name in self.key else sa.Text())

    def _load(
        self, connection: Connection, shape: TableSchema, rows: Outgoing, *, rehearsing: bool
    ) -> Mapping[int, str]:
        dialect = connection.dialect.name
        tuples, bad = _adapted(dialect, rows, shape.types(rows.columns))
        if dialect == "postgresql":
            connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")
        table = sa.table(self._table.table, *map(sa.column, rows.columns), schema=self._table.schema)
        alone = all(index == frozenset(self.key) for index in shape.unique)
        statements = upsert(dialect, table, self.key, key_alone=alone)
        places: Sequence[int] = [place for place in range(len(tuples)) if place not in bad]

        def given(place: int) -> dict[str, Any]:
            return {f"p{at}": value for at, value in enumerate(tuples[place])}

        def attempt(start: int, stop: int) -> Exception | None:
            return _attempt(connection, statements, [given(place) for place in places[start:stop]])

        error = attempt(0, len(places)) if places else None
        if error is None:
            return bad
        if not is_row_fault(error) and not _takes_any(
            connection, statements, [given(place) for place in sample_evenly(places)]
        ):
            raise error
        total = len(places)
        while True:
            errors = isolate(len(places), attempt)
            if len(errors) == total and (others := [error for _, error in errors if not is_row_fault(error)]):
                raise others[0]
            result = {places[at]: _describe_error(error) for at, error in errors}
            # A row may refer to one after it: once that is in, it may be, too.
            if len(result) in (0, len(places)) or not self._refers_to_itself(connection):
                return {**bad, **result}
            places = sorted(result)

    def _key_columns(self, shape: TableSchema | None, rows: Outgoing) -> tuple[dict[str, KeyKind], KeyQuery]:
        """Only integers are known: how another database writes and compares anything else is not."""
        if shape is None:
            made = types_of(rows)
            whole = {name for name in self.key if made[name] is ColumnType.INTEGER}
        else:
            types = zip(self.key, shape.types(self.key), strict=True)
            whole = {name for name, kind in types if _is_integer(kind)}

        def ask(some: Outgoing) -> Sequence[Sequence[Any]]:
            return [
                [_as_whole(value) for value in some.values(name)] if name in whole else some.values(name)
                for name in some.columns
            ]

        return {name: KeyKind.INTEGER if name in whole else KeyKind.OTHER for name in self.key}, ask

    def _refers_to_itself(self, connection: Connection) -> bool:
        keys = sa.inspect(connection).get_foreign_keys(self._table.table, self._table.schema)
        return any(key["referred_table"] == self._table.table for key in keys)


def _adapted(dialect: str, rows: Outgoing, kinds: Sequence[str]) -> tuple[Sequence[tuple[Any, ...]], dict[int, str]]:
    """Return the rows as the driver takes them, and those with a value that the table would change, by place."""
    columns: list[Sequence[Any]] = list(zip(*rows.tuples, strict=True))
    bad = adapt_columns(columns, [_rules(dialect, kind, rows) for kind in kinds])
    for at, (name, kind, values) in enumerate(zip(rows.columns, kinds, columns, strict=True)):
        if dialect == "sqlite":
            columns[at] = values if kind == _JSON else fit_numbers(name, kind, values, bad)
            continue
        for place, change in find_changes(values, _capacity(dialect, kind)):
            bad.setdefault(place, f"{name}: {change}")
    return list(zip(*columns, strict=True)), bad


def _capacity(dialect: str, kind: str) -> ColumnCapacity | None:
    """See `ColumnCapacity.of`. MySQL reads `07/04/26` as a day of the year 2007."""
    capacity = ColumnCapacity.of(kind)
    if capacity is None or dialect not in ("mysql", "mariadb"):
        return capacity
    return replace(capacity, iso_only=capacity.family in (Family.DATE, Family.TIMESTAMP))


def _rules(dialect: str, kind: str, rows: Outgoing) -> Rules:
    if kind == _JSON:
        return {object: json_text, str: None if rows.of_text else json_of_str, type(None): None}
    if dialect == "sqlite":
        return sqlite_rules(kind)
    capacity = ColumnCapacity.of(kind)
    if _is_integer(kind):
        return {**_VALUES, float: _whole, Decimal: _whole}
    # Some drivers send a float with 15 digits, which is too few for an exact column.
    exact: Rules = {float: _exact} if capacity is not None and capacity.family is Family.DECIMAL else {}
    return {**_VALUES, **exact}


def _exact(number: float) -> Decimal | float:
    return Decimal(repr(number)) if isfinite(number) else number


def _whole(number: float | Decimal) -> int:
    """Return a number for a column of integers, for which the database would round it."""
    if number != number // 1:
        raise ValueError(f"{number} is no whole number")
    return int(number)


def _is_integer(kind: str) -> bool:
    capacity = ColumnCapacity.of(kind)
    return capacity is not None and capacity.family is Family.INTEGER


def _as_whole(value: Any) -> Any:
    """Return a key of a column of integers as one; a value that is not an integer as it is."""
    try:
        return _whole(value) if isinstance(value, float | Decimal) else int(value)
    except (TypeError, ValueError, OverflowError):
        return value


def _column(found: Mapping[str, Any], dialect: str) -> TableColumn:
    computed = found.get("computed") is not None or bool((found.get("identity") or {}).get("always"))
    numbered = found.get("autoincrement") is True or found.get("identity") is not None
    required = not found["nullable"] and found.get("default") is None and not computed and not numbered
    return TableColumn(found["name"], _kind(found["type"], dialect), required=required, computed=computed)


def _kind(type_: Any, dialect: str) -> str:
    """Return the type of a column, by a name that `ColumnCapacity` and SQLite know."""
    if isinstance(type_, sa.JSON):
        return _JSON
    if dialect == "sqlite":
        return str(type_)
    if isinstance(type_, sa.Float):
        return "real" if isinstance(type_, sa.REAL) else "double precision"
    if isinstance(type_, sa.Numeric):
        return "numeric" if type_.scale is None else f"numeric({type_.precision}, {type_.scale})"
    zone = " with time zone" if getattr(type_, "timezone", False) else ""
    # MySQL keeps whole seconds unless the type has decimal places.
    places = f"({getattr(type_, 'fsp', None) or 0})" if dialect in ("mysql", "mariadb") else ""
    for kind, name in (
        (sa.Integer, "integer"),
        (sa.Boolean, "boolean"),
        (sa.Date, "date"),
        (sa.DateTime, f"timestamp{places}{zone}"),
        (sa.Time, f"time{places}{zone}"),
    ):
        if isinstance(type_, kind):
            return name
    return ""


def _is_view(look: sa.Inspector, name: str, schema: str | None) -> bool:
    try:
        return name in look.get_view_names(schema)
    except NotImplementedError:  # of a dialect that does not look for views
        return False


def _is_whole(index: Mapping[str, Any]) -> bool:
    """Return whether an index is over columns as they are, and over all rows."""
    partial = any(option.endswith("_where") for option in index.get("dialect_options", {}))
    return None not in index["column_names"] and not partial


def upsert(dialect: str, table: TableClause, key: Sequence[str], *, key_alone: bool) -> list[Executable]:
    """Return the statements that make rows the table's own, each to be run for every row: `p0`, `p1` … are its values.

    `key_alone`: the key is all that is unique in the table.
    """
    given: dict[str, Any] = {column.name: sa.bindparam(f"p{at}") for at, column in enumerate(table.columns)}
    others = [name for name in given if name not in key]
    if dialect in _HAS_ON_CONFLICT:
        insert: Any = _HAS_ON_CONFLICT[dialect](table).values(given)
        if not others:
            return [insert.on_conflict_do_nothing(index_elements=list(key))]
        changes = {name: insert.excluded[name] for name in others}
        return [insert.on_conflict_do_update(index_elements=list(key), set_=changes)]
    if dialect in ("mysql", "mariadb") and key_alone:  # it would take a row for the same by any unique index
        insert = mysql.insert(table).values(given)
        return [insert.on_duplicate_key_update({name: insert.inserted[name] for name in others or key})]
    same = sa.and_(*(table.columns[name] == given[name] for name in key))
    absent = ~sa.exists(sa.select(sa.literal(1)).select_from(table).where(same))
    missing = sa.insert(table).from_select(list(given), sa.select(*given.values()).where(absent))
    update = [sa.update(table).where(same).values({name: given[name] for name in others})] if others else []
    return [*update, missing]


def _attempt(connection: Connection, statements: Sequence[Executable], rows: list[dict[str, Any]]) -> Exception | None:
    """Write rows as a whole; or none of them, and give the error, which may be a row's fault."""
    try:
        with connection.begin_nested():
            for statement in statements:
                connection.execute(statement, rows)
    except (ValueError, OverflowError) as error:  # the driver cannot put a value into words
        return error
    except StatementError as error:
        if not _may_be_rows(error):
            raise
        return error
    return None


def _takes_any(connection: Connection, statements: Sequence[Executable], rows: Sequence[dict[str, Any]]) -> bool:
    """Return whether the table takes one of these rows by itself; nothing is kept."""
    for row in rows:
        undone = connection.begin_nested()
        is_taken = _attempt(connection, statements, [row]) is None
        undone.rollback()
        if is_taken:
            return True
    return False


def _may_be_rows(error: StatementError) -> bool:
    """Return whether an error may be the fault of a row: of a value's type, or raised by a trigger."""
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return False
    return _classifier.classify(error, scope="row").kind in _OF_A_ROW


def _describe_error(error: Exception) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return error_detail(cause) or type(cause).__name__
