"""Exception types of the database drivers and SQLAlchemy, for errors that carry no code."""

from __future__ import annotations

from redrive.classify.tables.entry import (
    AMBIGUOUS,
    AUTH,
    DATA,
    PERMANENT,
    RESOURCE,
    RETRY_NOW,
    ROW,
    TRANSIENT,
    Entry,
)

DBAPI: dict[str, Entry] = {
    "DataError": Entry(ROW, "data refused by the database"),
    "DatabaseError": Entry(PERMANENT, "database error"),
    "Error": Entry(PERMANENT, "database error"),
    "IntegrityError": Entry(ROW, "integrity constraint violated"),
    "InterfaceError": Entry(PERMANENT, "database driver used wrongly"),
    "InternalError": Entry(AMBIGUOUS, "internal error of the database"),
    "NotSupportedError": Entry(PERMANENT, "not supported by the database"),
    "OperationalError": Entry(TRANSIENT, "database not available"),
    "ProgrammingError": Entry(PERMANENT, "statement or its use is wrong"),
    "Warning": Entry(PERMANENT, "warning of the database"),
}
"""The classes that PEP 249 gives every driver."""

_DBAPI_LIBRARIES = ("psycopg", "psycopg2", "sqlite3", "pymysql", "MySQLdb", "mysql", "duckdb", "sqlalchemy")

DRIVER_TYPES: dict[str, Entry] = {
    **{f"{library}.{name}": entry for library in _DBAPI_LIBRARIES for name, entry in DBAPI.items()},
    "asyncpg.ClientConfigurationError": Entry(PERMANENT, "connection configured wrongly"),
    "asyncpg.InterfaceError": Entry(PERMANENT, "database driver used wrongly"),
    "asyncpg.InternalClientError": Entry(AMBIGUOUS, "internal error of the driver"),
    "asyncpg.PostgresError": Entry(PERMANENT, "database error"),
    "asyncpg.TargetServerAttributeNotMatched": Entry(TRANSIENT, "no server with the wanted role"),
    "duckdb.BinderException": Entry(PERMANENT, "unknown column or function, or types that do not fit"),
    "duckdb.CatalogException": Entry(PERMANENT, "table or function does not exist"),
    "duckdb.ConnectionException": Entry(TRANSIENT, "connection failed"),
    "duckdb.ConstraintException": Entry(ROW, "constraint violated"),
    "duckdb.ConversionException": Entry(ROW, "value not convertible"),
    "duckdb.DependencyException": Entry(PERMANENT, "other objects depend on this one"),
    "duckdb.FatalException": Entry(PERMANENT, "database invalidated by a fatal error"),
    "duckdb.HTTPException": Entry(AMBIGUOUS, "HTTP exchange failed"),
    # A lock of another process, a missing file or a full disk: the code does not distinguish them.
    "duckdb.IOException": Entry(AMBIGUOUS, "I/O error"),
    "duckdb.InternalException": Entry(AMBIGUOUS, "internal error of DuckDB"),
    "duckdb.InterruptException": Entry(PERMANENT, "interrupted"),
    "duckdb.InvalidInputException": Entry(PERMANENT, "invalid input"),
    "duckdb.InvalidTypeException": Entry(PERMANENT, "invalid type"),
    "duckdb.NotImplementedException": Entry(PERMANENT, "not implemented"),
    "duckdb.OperationalError": Entry(AMBIGUOUS, "database error"),
    "duckdb.OutOfMemoryException": Entry(RESOURCE, "out of memory"),
    "duckdb.OutOfRangeException": Entry(ROW, "value out of range"),
    "duckdb.ParserException": Entry(PERMANENT, "syntax error"),
    "duckdb.PermissionException": Entry(PERMANENT, "permission denied"),
    "duckdb.ResourceInUseException": Entry(TRANSIENT, "resource in use"),
    "duckdb.SequenceException": Entry(PERMANENT, "sequence exhausted"),
    "duckdb.SerializationException": Entry(PERMANENT, "stored data not readable"),
    "duckdb.SyntaxException": Entry(PERMANENT, "syntax error"),
    "duckdb.TransactionException": Entry(RETRY_NOW, "transaction conflict"),
    "duckdb.TypeMismatchException": Entry(ROW, "value of the wrong type"),
    "mysql.PoolError": Entry(TRANSIENT, "no free connection"),
    # Errors of a server carry these as codes; these are for errors that were made without one.
    "psycopg2.DeadlockDetected": Entry(RETRY_NOW, "deadlock detected"),
    "psycopg2.SerializationFailure": Entry(RETRY_NOW, "serialization failure"),
    "psycopg.Rollback": Entry(PERMANENT, "transaction rolled back on purpose"),
    # What a dropped connection leaves behind: (0, '').
    "pymysql.InterfaceError": Entry(AMBIGUOUS, "connection no longer usable"),
    "pymysql.MySQLError": Entry(PERMANENT, "database error"),
    "sqlalchemy.DBAPIError": Entry(PERMANENT, "database error"),
    "sqlalchemy.DisconnectionError": Entry(TRANSIENT, "connection lost"),
    "sqlalchemy.MultipleResultsFound": Entry(DATA, "more than one result"),
    "sqlalchemy.NoResultFound": Entry(DATA, "no result"),
    "sqlalchemy.SQLAlchemyError": Entry(PERMANENT, "SQLAlchemy used wrongly"),
    "sqlalchemy.TimeoutError": Entry(TRANSIENT, "no free connection in time"),
    # Without a code: "unable to open", "no such table"; the busy ones carry theirs.
    "sqlite3.OperationalError": Entry(PERMANENT, "SQL error"),
}

NO_CODE_TEXTS: dict[str, tuple[tuple[str, Entry], ...]] = {
    # While connecting, libpq gives words and no SQLSTATE. The first pattern found decides.
    "psycopg.OperationalError": (
        ("password authentication failed", Entry(AUTH, "password authentication failed")),
        ("no password supplied", Entry(AUTH, "no password supplied")),
        (r"no pg_hba\.conf entry", Entry(AUTH, "server does not admit this client")),
        (r"pg_hba\.conf rejects", Entry(AUTH, "server does not admit this client")),
        ("authentication failed", Entry(AUTH, "authentication failed")),
        ("is not permitted to log in", Entry(AUTH, "role may not log in")),
        ('role ".{1,300}" does not exist', Entry(AUTH, "role does not exist")),
        ("certificate verify failed", Entry(PERMANENT, "certificate check failed")),
        ("server does not support ssl", Entry(PERMANENT, "server does not support TLS")),
        ('database ".{1,300}" does not exist', Entry(PERMANENT, "database does not exist")),
        ("starting up", Entry(TRANSIENT, "server starting up")),
        ("shutting down", Entry(TRANSIENT, "server shutting down")),
        ("too many", Entry(TRANSIENT, "too many connections")),
        ("remaining connection slots", Entry(TRANSIENT, "too many connections")),
        ("connection refused", Entry(TRANSIENT, "connection refused")),
        ("could not translate host name", Entry(TRANSIENT, "host name not resolved")),
        ("failed to resolve host", Entry(TRANSIENT, "host name not resolved")),
        ("timeout", Entry(TRANSIENT, "connect timed out")),
    ),
    # The driver refuses a value before the database sees it.
    "psycopg.ProgrammingError": (("cannot adapt type", Entry(ROW, "value of a type the driver cannot send")),),
    "psycopg2.ProgrammingError": (("can't adapt type", Entry(ROW, "value of a type the driver cannot send")),),
    "psycopg2.InterfaceError": (("already closed", Entry(TRANSIENT, "connection closed")),),
    "sqlite3.InterfaceError": (("error binding parameter", Entry(ROW, "value of a type the driver cannot send")),),
    "sqlite3.ProgrammingError": (("error binding parameter", Entry(ROW, "value of a type the driver cannot send")),),
    "asyncpg.InterfaceError": (
        ("connection is closed", Entry(TRANSIENT, "connection closed")),
        ("connection has been released", Entry(PERMANENT, "bug: connection used after its release")),
    ),
    "duckdb.IOException": (("no space left on device", Entry(PERMANENT, "disk full")),),
    "duckdb.TransactionException": (
        ("no space left on device", Entry(PERMANENT, "disk full")),
        ("within a transaction", Entry(PERMANENT, "bug: transaction already begun")),
        ("no transaction is active", Entry(PERMANENT, "bug: no transaction begun")),
        ("transaction is aborted", Entry(PERMANENT, "transaction already failed")),
    ),
}
"""Where a driver gives no code at all: patterns in its message, searched without regard to case."""

NO_CODE_TEXTS["psycopg2.OperationalError"] = NO_CODE_TEXTS["psycopg.OperationalError"]


def dbapi(**others: Entry) -> dict[str, Entry]:
    """Return the entries of the classes that every driver has, with those that one driver adds or overrides."""
    return {**DBAPI, **others}
