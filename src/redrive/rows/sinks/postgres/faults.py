"""Errors of PostgreSQL that may be the fault of one row, besides those that always are.

The input functions of some types raise syntax errors (`ltree`, `tsquery`, `regclass`) or internal ones (`hstore`), and
a trigger raises whatever SQLSTATE it likes. Such an error is a row's where the table takes other rows of the batch.
"""

from __future__ import annotations

from redrive._internal.optional import require_extra
from redrive.rows.sinks.sql_table import is_row_fault

with require_extra("postgres"):
    import psycopg

# The connection, the session, a lock, another transaction, the server.
_NEVER_A_ROWS = {"08", "25", "26", "28", "34", "3B", "3D", "40", "53", "57", "58", "72", "F0", "HV"}
_NEVER_A_ROWS_CODES = {"55006", "55P02", "55P03", "55P04", "XX001", "XX002"}
_RAISED = "P0"  # by code in PL/pgSQL: RAISE, a SELECT INTO STRICT without a row, ASSERT
# Every other class of the server's own. What is in none of these was chosen by the code of a trigger or function.
_OWN = {"0A", "0B", "0F", "0L", "0P", "0Z", "20", "21", "22", "23", "24", "27", "2B", "2D", "2F", "38", "39", "3F"}
_OWN |= {"00", "01", "02", "03", "09", "10", "42", "44", "54", "55", "XX"}


def is_raised(error: psycopg.Error) -> bool:
    """Whether a trigger or function refuses a row, by P0001 or by a code of its own such as 45000."""
    if error.sqlstate is None:
        return False
    return error.sqlstate[:2] == _RAISED or error.sqlstate[:2] not in _OWN | _NEVER_A_ROWS


def is_rows(error: psycopg.Error) -> bool:
    """Whether an error says by itself that a row is bad."""
    return is_row_fault(error) or is_raised(error)


def may_be_rows(error: psycopg.Error) -> bool:
    """Whether an error may say that a row is bad."""
    if (
        error.sqlstate is None
        or error.sqlstate in _NEVER_A_ROWS_CODES
        or isinstance(error, psycopg.errors.QueryCanceled)
    ):
        return False
    return is_rows(error) or error.sqlstate[:2] not in _NEVER_A_ROWS
