"""The batches that an appending sink has written, in a table beside its rows: `redrive_batches`.

Rows that are appended have no key, so that writing a batch twice would double them. The label of a batch is inserted in
the transaction that inserts its rows: if the label exists, the rows were written, and it lists the rejected ones.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any

from redrive.errors import SinkMismatch
from redrive.model.letters import ErrorType
from redrive.rows.batch import Outgoing, Refused
from redrive.rows.sinks.sink import WriteResult
from redrive.rows.sinks.table_schema import TableName

NAME = "redrive_batches"
KEPT = timedelta(days=30)
"""How long labels of other runs are kept."""

Execute = Callable[[str, Sequence[Any]], Sequence[Any]]


class BatchLog:
    """The labels of one schema.

    execute  runs a statement with parameters, in the transaction of the rows, and returns what it selects
    mark     a parameter in a statement, as the driver writes it
    """

    def __init__(self, schema: str | None, execute: Execute, *, mark: str = "?") -> None:
        self._execute = execute
        self._mark = mark
        self._sql = TableName(NAME, schema).sql

    @property
    def create(self) -> str:
        """The statement that creates the table where it is missing."""
        return (
            f"CREATE TABLE IF NOT EXISTS {self._sql} (label VARCHAR(200) PRIMARY KEY, digest VARCHAR(200) NOT NULL, "
            "refused TEXT, suppressed INTEGER NOT NULL DEFAULT 0, written_at VARCHAR(40) NOT NULL)"
        )

    def claim(self, label: str, digest: str) -> bool:
        """Insert a label; False if it is there already.

        A second writer of the same label waits here until the first one has ended its transaction.
        """
        values = label, digest, datetime.now(UTC).isoformat()
        statement = "INSERT INTO {} (label, digest, written_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING RETURNING label"
        return bool(self._run(statement, *values))

    def complete(self, label: str, applied: WriteResult) -> None:
        """Store what became of the rows of a claimed label."""
        if applied or applied.suppressed:
            refused = json.dumps([[row.place, str(row.error)] for row in applied])
            self._run("UPDATE {} SET refused = ?, suppressed = ? WHERE label = ?", refused, applied.suppressed, label)

    def find(self, label: str, digest: str) -> WriteResult | None:
        """Return what became of the rows of a label; None if it is not there.

        Raises:
            SinkMismatch: other rows of the source were written under this label.
        """
        rows = self._run("SELECT digest, refused, suppressed FROM {} WHERE label = ?", label)
        if not rows:
            return None
        digest_before, refused, suppressed = rows[0]
        if digest_before != digest:
            raise SinkMismatch(
                "a batch of this run was appended before the run was interrupted, and it would now have other rows: "
                "run it again with the same input, batch size, validate and transform as before, or empty the table "
                "and run it with restart=True (`redrive run --restart`)"
            )
        applied = WriteResult(Refused(place, error, ErrorType.SINK) for place, error in json.loads(refused or "[]"))
        applied.suppressed = suppressed
        return applied

    def has_run(self, run_id: str) -> bool:
        """Return whether a batch of this run was written."""
        return bool(self._run("SELECT label FROM {} WHERE substr(label, 1, ?) = ? LIMIT 1", len(run_id), run_id))

    def remove_old(self, label: str) -> None:
        """Remove old labels of other runs than the one of this label."""
        run, before = label.rpartition("-")[0], (datetime.now(UTC) - KEPT).isoformat()
        self._run("DELETE FROM {} WHERE written_at < ? AND substr(label, 1, ?) <> ?", before, len(run), run)

    def _run(self, statement: str, *values: Any) -> Sequence[Any]:
        table = self._sql.replace("%", "%%") if self._mark == "%s" else self._sql
        return self._execute(statement.replace("?", self._mark).format(table), values)


def digest_of(rows: Outgoing, digest: str = "") -> str:
    """Return a digest of the places that rows have in their batch: a value may differ each time, such as the time."""
    places = blake2b(array("q", rows.origin).tobytes(), digest_size=8).hexdigest()
    return f"{len(rows)}-{places}-{digest}"
