"""Check a queue: every letter once, and counts and audit log in agreement with the letters."""

import contextlib
import sqlite3
import time
from collections import Counter, defaultdict

import psycopg
import pytest
from sqlalchemy import select

import redrive
from redrive.model.letters import Status
from redrive.store.schema import letter_audit
from tests.support import letters_worker
from tests.support.stores import OTHERS


def come_to_rest(url):
    """Wait until the server has noticed that a process is gone: until then it may still commit what it was sent."""
    if url.startswith("sqlite:"):
        return
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(3_000):
            if connection.execute(f"SELECT count(*) {OTHERS}").fetchone() == (0,):
                return
            time.sleep(0.01)
    pytest.fail("the server did not let go of a process that is dead")


@contextlib.contextmanager
def checked_store(url, *, purged=False, repeated=False):
    """A store, freshly opened, whose books have been found in order; with its letters by number.

    purged    letters were removed: how often their causes were seen is not forgotten with them
    repeated  records failed again after they had been settled: they have a letter for each time
    """
    come_to_rest(url)
    with redrive.connect(url) as store:
        found = list(store.dlq.each())
        once = [letter.key for letter in found if not repeated or letter.status == Status.PENDING]
        assert len(set(once)) == len(once), "a letter is there twice"
        by_number = {int(letter.key): letter for letter in found}
        for number, letter in by_number.items():
            assert letter.record == letters_worker.letter(number).record
        check_counts(store.dlq, found, purged)
        check_audit(store, found)
        yield store, by_number
    if url.startswith("sqlite:"):
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def check_counts(dlq, found, purged):
    """The counts that the database keeps are those that one gets letter by letter."""
    counted = defaultdict(Counter)
    for letter in found:
        counted[letter.fingerprint][str(letter.status)] += 1
    causes = dlq.causes()
    assert {one.fingerprint: +Counter(one.by_status) for one in causes if one.count} == counted
    assert {one.fingerprint: one.count for one in causes if one.count} == {
        cause: statuses.total() for cause, statuses in counted.items()
    }
    if not purged:
        assert sum(one.seen for one in causes) == sum(letter.seen for letter in found)
    size = dlq.size()
    assert +Counter(size.by_status) == Counter(str(letter.status) for letter in found)
    assert size.letters == len(found)
    assert sum(size.pending_by_pipeline.values()) == sum(letter.status == Status.PENDING for letter in found)


def check_audit(store, found):
    """Every change of a status is in the log, once; no line of it speaks of a letter that is gone."""
    rows = store.database.read(
        lambda connection: connection.execute(
            select(letter_audit).where(letter_audit.c.letter_id.is_not(None)).order_by(letter_audit.c.id)
        ).all()
    )
    entries = defaultdict(list)
    for row in rows:
        entries[row.letter_id].append(row)
    assert set(entries) <= {letter.id for letter in found}
    for letter in found:
        status, tries = "pending", 0
        for entry in entries[letter.id]:
            assert entry.status_before == status
            status = entry.status_after
            tries += entry.action in {"reprocessed", "failed again", "seen meanwhile"}
        assert (status, tries) == (letter.status, letter.reprocess_count)
