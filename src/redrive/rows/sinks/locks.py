"""How long a sink waits for a lock that another session holds: no longer than its `patience`.

Only waiting for locks is limited. A statement that is merely slow, because a table has many triggers and indexes, is
left to finish; a limit for statements is the server's own, such as PostgreSQL's statement_timeout.
"""

from __future__ import annotations

import math

from sqlalchemy import Connection

_SHORTEST = 1.0  # two writers of one table always wait for each other for a moment

# A shorter limit of the role, the database or the URL stays as it is. 0 means no limit.
_POSTGRES = """
    SELECT set_config('lock_timeout', '{milliseconds}ms', true)
    FROM (SELECT current_setting('lock_timeout')::interval AS present) AS limits
    WHERE present = interval '0' OR present > interval '{milliseconds} milliseconds'"""
_MYSQL = "SET SESSION lock_wait_timeout = {seconds}, SESSION innodb_lock_wait_timeout = {seconds}"
_STATEMENTS = {
    "postgresql": _POSTGRES,
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    "mssql": "SET LOCK_TIMEOUT {milliseconds}",
}


# How PostgreSQL writes values in a transaction, the same in every session. The order of day and month and the zone, by
# which it reads them, stay as they are.
OUTPUT_SETTINGS = (
    "SELECT set_config('datestyle', 'ISO', true), set_config('extra_float_digits', '1', true), "
    "set_config('bytea_output', 'hex', true), set_config('intervalstyle', 'postgres', true)"
)


def limit_lock_waits(connection: Connection, patience: float) -> None:
    """Make the current transaction wait for a lock no longer than `patience`, on databases that wait for ever."""
    statement = _STATEMENTS.get(connection.dialect.name)
    if statement is not None:
        seconds = max(patience, _SHORTEST)
        connection.exec_driver_sql(statement.format(seconds=math.ceil(seconds), milliseconds=round(seconds * 1_000)))
