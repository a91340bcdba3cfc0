"""Processes that work on letters, made to be killed: see `mortals`."""

import json
import sqlite3
import time
from datetime import UTC, datetime

import psycopg

import redrive
from redrive.dlq import retention
from redrive.dlq.insert import insert as putting
from tests.oracles.effects import EffectLedger
from tests.support.killable import serve

PIPELINE = "vendor"
OLD = datetime(2024, 1, 1, tzinfo=UTC)  # long past any retention


ERRORS = ("fee: not a number", KeyError("weight"), ValueError("date out of range"), "carrier unknown", "fee: negative")


def letter(number):
    """The letter of a number: one of five causes, and a record that tells which it is."""
    record = {"n": number, "text": "x" * (number % 50)}
    return redrive.NewLetter(record, ERRORS[number % 5], key=str(number), source="deliveries.csv", rejected_at=OLD)


def connect(url, mouth):
    """A store that says where each of its writing transactions stands."""
    store = redrive.connect(url)
    write = store.database.write

    def traced(work):
        def watched(connection):
            mouth.say("begun")
            result = work(connection)
            mouth.say("worked")
            return result

        result = write(watched)
        mouth.say("committed")
        return result

    store.database.write = traced
    return store


# ── limits of a process ───────────────────────────────────────────────────────────────────────────────────────────────


def put(mouth, *, url, numbers, chunk, batch):
    """Put letters, so many in a call of `put_many`, and say after each call up to which they are stored."""
    putting.BATCH = batch
    store = connect(url, mouth)
    for start in range(0, len(numbers), chunk):
        part = numbers[start : start + chunk]
        stored = store.dlq.put_many((letter(number) for number in part), pipeline=PIPELINE)
        mouth.say("stored", numbers=part, new=stored.new, repeated=stored.repeated)


def replay(mouth, *, url, target, deliveries, batch, lease):
    """Send everything that is pending to the target."""
    store = connect(url, mouth)
    effects = EffectLedger(deliveries)

    def deliver(records):
        effects.record(*(one["n"] for one in records))
        mouth.say("delivered")
        accepted = [one for one in records if one["n"] % 7 != 3]
        upsert(target, [(one["n"], json.dumps(one)) for one in accepted])
        return [None if one["n"] % 7 != 3 else ValueError("still no number") for one in records]

    report = store.dlq.replay(
        deliver, status="pending", any_pipeline=True, canary=0, dry_run=False, batch=batch, lease=lease
    )
    mouth.say("report", attempted=report.attempted, reprocessed=report.reprocessed, failed=report.failed_again)


def upsert(target, rows):
    """Write to the target, in a transaction of its own; a row that is there already is replaced."""
    on_postgres = target.startswith("postgresql:")
    mark = "%s" if on_postgres else "?"
    statement = (
        f"INSERT INTO delivered (n, record) VALUES ({mark}, {mark})"
        " ON CONFLICT (n) DO UPDATE SET record = excluded.record, times = delivered.times + 1"
    )
    connection = psycopg.connect(target) if on_postgres else sqlite3.connect(target, timeout=30)
    try:
        connection.cursor().executemany(statement, rows)
        connection.commit()
    finally:
        connection.close()


def purge(mouth, *, url, batch, older_than="30d", times=1):
    """Remove what was settled so long ago."""
    retention.BATCH = batch
    store = connect(url, mouth)
    mouth.say("report", letters=sum(store.dlq.purge(older_than=older_than).letters for _ in range(times)))


def open_and_count(mouth, *, url, migrate=None):
    """Connect, to a store that may not be there yet."""
    mouth.say("report", letters=redrive.connect(url, migrate=migrate).dlq.count())


def hold(mouth, *, url, seconds):
    """Keep the file to ourselves for a while."""
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    mouth.say("holding")
    time.sleep(seconds)
    mouth.say("letting go")
    connection.execute("COMMIT")


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def perform(mouth, *, operation, **arguments):
    """Do one job."""
    {one.__name__: one for one in (put, replay, purge, open_and_count, hold)}[operation](mouth, **arguments)


if __name__ == "__main__":
    serve(perform)
