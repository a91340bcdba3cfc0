"""3,000 pages of a partner's flaky API into a table: what heals is repeated, the page that never does becomes a letter.

Run it: python examples/partner_api.py

The partner is played by the server that redrive ships for tests. Store and table are files in a temporary directory.
"""

from __future__ import annotations

import logging
import random
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

import redrive
from redrive.testing import Answer, FaultyServer, Request

PAGES, PER_PAGE = 3_000, 10
BROKEN = 1_234


class Partner:
    """Forty pages fail once, one is malformed until the partner mends it."""

    def __init__(self, server: FaultyServer) -> None:
        unlucky = random.Random(7).sample(range(1, PAGES), 40)
        self.faults = {
            page: Answer(503) if n % 2 else Answer(json=[], reset="mid-body") for n, page in enumerate(unlucky)
        }
        self.broken = {BROKEN}
        server.on("/deliveries/*", self.answer)

    def answer(self, request: Request) -> Answer:
        page = int(request.path.rsplit("/", 1)[1])
        if page in self.broken:
            return Answer(body=b'{"deliveries": [{"delivery_id": "D-')
        if page in self.faults:
            return self.faults.pop(page)
        first = (page - 1) * PER_PAGE
        rows = [{"delivery_id": f"D-{n:06}", "fee": n % 90} for n in range(first, first + PER_PAGE)]
        return Answer(json={"deliveries": rows if page <= PAGES else []})


def pipeline(client: httpx.Client, service: redrive.Service, database: Path, store: redrive.Store) -> redrive.Pipeline:
    def fetch(page: int) -> httpx.Response:
        return client.get(f"/deliveries/{page}").raise_for_status()

    return redrive.Pipeline(
        "partner_deliveries",
        source=redrive.rows.pages(service, fetch, items="deliveries", in_flight=8, bad_page="quarantine"),
        sink=redrive.rows.table(f"sqlite:///{database}", "deliveries", key="delivery_id"),
        store=store,
        batch=5_000,
    )


def count(database: Path) -> int:
    with sqlite3.connect(database) as connection:
        found: int = connection.execute("SELECT count(*) FROM deliveries").fetchone()[0]
    return found


def main() -> int:
    logging.getLogger("redrive").setLevel(logging.CRITICAL)  # the report says it all
    service = redrive.Service("partner", retry=redrive.Retry(base=0.05, cap=1.0), timeout=5.0)
    with tempfile.TemporaryDirectory() as directory, FaultyServer() as server:
        database = Path(directory) / "warehouse.db"
        with sqlite3.connect(database) as connection:
            connection.execute("CREATE TABLE deliveries (delivery_id TEXT PRIMARY KEY, fee INTEGER NOT NULL)")
        partner = Partner(server)
        with redrive.connect(Path(directory) / "redrive.db") as store, httpx.Client(base_url=server.url) as client:
            deliveries = pipeline(client, service, database, store)
            print(f"fetching {PAGES:,} pages, eight at a time, from a partner on a bad day")
            print(deliveries.run())
            print(f"  {server.count() - PAGES:,} requests more than pages; rows in the table: {count(database):,}")
            return mend_and_redrive(partner, deliveries, store, database)


def mend_and_redrive(partner: Partner, deliveries: redrive.Pipeline, store: redrive.Store, database: Path) -> int:
    for letter in store.dlq.each(pipeline=deliveries.name):
        print(f"  letter {letter.id}: {letter.position}: {letter.error_message}")
    print("the partner mends the page, and it is fetched again")
    partner.broken.clear()
    report: Any = store.dlq.replay(deliveries, pipeline=deliveries.name, dry_run=False)
    print(f"  {report.reprocessed} letter reprocessed; rows in the table: {count(database):,} of {PAGES * PER_PAGE:,}")
    return 0 if count(database) == PAGES * PER_PAGE else 1


if __name__ == "__main__":
    sys.exit(main())
