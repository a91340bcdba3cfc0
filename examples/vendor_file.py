"""A vendor's weekly file in which some fees are "N/A": what is good is loaded, the rest waits and is sent back.

Run it: python examples/vendor_file.py

The store is a file in a temporary directory; a pipeline of your own would use `redrive.connect()` and keep it.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import redrive

DELIVERIES = 18_000
EVERY = 33  # one fee in so many is missing


def vendor_file() -> Iterator[tuple[int, dict[str, Any]]]:
    """Lines of the file, numbered as an editor numbers them."""
    for number in range(DELIVERIES):
        fee = "N/A" if number % EVERY == 0 else f"{number % 900 / 100:.2f}"
        yield number + 2, {"delivery_id": f"D-{number:06}", "city": "Pune", "fee": fee}


class Warehouse:
    """Where deliveries go; writing one again changes nothing."""

    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:")
        self.database.execute("CREATE TABLE deliveries (delivery_id TEXT PRIMARY KEY, city TEXT, fee NUMERIC)")

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        with self.database:
            self.database.executemany(
                "INSERT INTO deliveries VALUES (:delivery_id, :city, :fee)"
                " ON CONFLICT DO UPDATE SET city = excluded.city, fee = excluded.fee",
                rows,
            )

    def count(self) -> int:
        found: int = self.database.execute("SELECT count(*) FROM deliveries").fetchone()[0]
        return found


def strict(record: dict[str, Any]) -> dict[str, Any]:
    """How fees were read when the file came."""
    return {**record, "fee": float(record["fee"])}


def lenient(record: dict[str, Any]) -> dict[str, Any]:
    """How they are read after the fix."""
    return strict({**record, "fee": "0"}) if record["fee"] == "N/A" else strict(record)


def load(warehouse: Warehouse, letters: Any) -> None:
    """One run: every line ends in the warehouse or in the quarantine."""
    good, rejected = [], []
    for line, record in vendor_file():
        try:
            good.append(strict(record))
        except ValueError as error:
            rejected.append(redrive.NewLetter(record, error, key=record["delivery_id"], position=f"line {line}"))
    warehouse.write(good)
    stored = letters.put_many(rejected, pipeline="vendor", source="deliveries.csv", run_id=uuid.uuid4())
    print(f"  {len(good):,} loaded, {stored.new:,} quarantined, {stored.repeated:,} of them seen before")


def show(letters: Any) -> None:
    for cause in letters.causes():
        pending = cause.by_status["pending"]
        print(f"  {cause.fingerprint}  {pending:,} pending, seen {cause.seen:,} times  {cause.message}")


def main() -> int:
    with tempfile.TemporaryDirectory() as directory, redrive.connect(Path(directory) / "redrive.db") as store:
        letters, warehouse = store.dlq, Warehouse()

        print("the file arrives")
        load(warehouse, letters)
        print("the job is started once more, by mistake")
        load(warehouse, letters)
        print("what is wrong")
        show(letters)
        (letter,) = letters.history("D-000033").letters
        print(f"  for example letter {letter.id}, {letter.source} {letter.position}: {letter.record}")

        def reload(records: Sequence[dict[str, Any]], *, dry_run: bool = False) -> None:
            rows = [lenient(record) for record in records]
            if not dry_run:
                warehouse.write(rows)

        print("the parser is fixed; first a rehearsal")
        rehearsal = letters.replay(reload, pipeline="vendor")
        print(f"  {rehearsal.reprocessed:,} of {rehearsal.selected:,} would pass; loaded so far: {warehouse.count():,}")
        print("then for real, ten first")
        report = letters.replay(reload, pipeline="vendor", dry_run=False, canary=10, note="N/A means free")
        print(f"  {report.reprocessed:,} reprocessed, {report.failed_again:,} failed again")
        pending = letters.count(status="pending")
        print(f"  in the warehouse: {warehouse.count():,} of {DELIVERIES:,}, pending: {pending:,}")
        return 0 if warehouse.count() == DELIVERIES and not pending else 1


if __name__ == "__main__":
    sys.exit(main())
