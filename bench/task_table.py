"""A table of tasks by hand, for peers that keep nothing themselves: one row per task, a COMMIT for each change."""

from __future__ import annotations

import functools
import os
from typing import Any

from task_marks import Work
from vendor import connected


class Table:
    """Bound to a database; every process has its own connection, as the drivers demand."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def create(self, rows: int = 0) -> None:
        """Make the table, with so many tasks that have not begun."""
        connection = self._connection()
        connection.execute("CREATE TABLE by_hand (number integer PRIMARY KEY, state text NOT NULL)")
        insert = self._sql("INSERT INTO by_hand VALUES (?, 'ready')")
        connection.cursor().executemany(insert, [(number,) for number in range(rows)])
        connection.commit()

    def put(self, number: int, state: str) -> None:
        self._change("INSERT INTO by_hand (state, number) VALUES (?, ?)", (state, number))

    def move(self, number: int, state: str) -> None:
        self._change("UPDATE by_hand SET state = ? WHERE number = ?", (state, number))

    def has(self, number: int) -> bool:
        connection = self._connection()
        found = connection.execute(self._sql("SELECT 1 FROM by_hand WHERE number = ?"), (number,)).fetchone()
        connection.rollback()
        return found is not None

    def count(self, state: str) -> int:
        [count] = (
            self._connection().execute(self._sql("SELECT count(*) FROM by_hand WHERE state = ?"), (state,)).fetchone()
        )
        return count

    def close(self) -> None:
        self._connection().close()

    def _change(self, sql: str, values: tuple[Any, ...]) -> None:
        connection = self._connection()
        connection.execute(self._sql(sql), values)
        connection.commit()

    def _sql(self, text: str) -> str:
        return text.replace("?", "%s") if self._work.database == "PostgreSQL" else text

    def _connection(self) -> Any:
        return connection_of(self._work, os.getpid())


@functools.cache
def connection_of(work: Work, process: int) -> Any:
    """Kept for ever, the parent's after a fork as well: to close that one would end the parent's session."""
    return connected(work.database, work.url)
