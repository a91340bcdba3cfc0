"""After any sequence of operations, the queue's answers equal its rows, and the audit log is complete."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import select

import redrive
from redrive.store.schema import letter_audit, letters

OPEN = ("pending", "escalated")
DONE = {"discard": "discarded", "escalate": "escalated", "reopen": "pending"}
ERRORS = ["fee: not a number", "weight: 12 is missing", "naïve \0 text"]
RUNS = ["7f0a7e3e-9d7c-4a51-8a5e-0d9b0f0a1b2c", None]
FILTERS: list[dict[str, Any]] = [
    {"pipeline": ("a", "b")},
    {"key": ["k0", "k1"]},
    {"position": ("1", 2)},
    {"status": ("pending", "discarded")},
    {"status": "open", "source": {"f1", "f2"}},
    {"status": ["reprocessed", "escalated"]},
    {"since": "1h", "text": "FEE"},
    {"until": "1h"},
    {"edited": True},
    {"min_seen": 2},
    {"run_id": "7f0a7e3e", "error_type": ("sink", "validation")},
]


def rows_of(store: redrive.Store) -> dict[int, Any]:
    return {row.id: row for row in store.database.read(lambda connection: connection.execute(select(letters)).all())}


def check_answers(store: redrive.Store, rows: dict[int, Any]) -> None:
    dlq, statuses = store.dlq, Counter(row.status for row in rows.values())
    size = dlq.size()
    assert size.letters == dlq.count() == len(rows)
    assert dlq.count_by_status() == statuses
    assert {status: count for status, count in size.by_status.items() if count} == statuses
    pending = [row for row in rows.values() if row.status == "pending"]
    assert size.pending_by_pipeline == Counter(row.pipeline_name for row in pending)
    assert size.oldest_pending == min((row.rejected_at for row in pending), default=None)
    by_cause = {
        (cause.fingerprint, status): count
        for cause in dlq.causes()
        for status, count in cause.by_status.items()
        if count
    }
    assert by_cause == Counter((row.fingerprint, row.status) for row in rows.values())
    assert all(count == 1 for count in Counter(row.identity for row in rows.values() if row.status in OPEN).values())


def check_audit(store: redrive.Store, rows: dict[int, Any]) -> None:
    entries = defaultdict(list)
    log = select(letter_audit).where(letter_audit.c.letter_id.is_not(None)).order_by(letter_audit.c.id)
    for entry in store.database.read(lambda connection: connection.execute(log).all()):
        entries[entry.letter_id].append(entry)
    assert set(entries) <= set(rows)
    for letter_id, theirs in entries.items():
        for earlier, later in pairwise(theirs):
            assert earlier.status_after == later.status_before
        assert theirs[-1].status_after == rows[letter_id].status


def take_step(store: redrive.Store, rng: random.Random, exports: list[list[str]]) -> None:
    dlq, before = store.dlq, rows_of(store)
    action = rng.choice(["put", "put", "discard", "escalate", "reopen", "edit", "replay", "purge", "export", "import"])
    filters = rng.choice(FILTERS)
    if action == "put":
        stored = dlq.put_many([new_letter(rng) for _ in range(rng.randrange(1, 8))], pipeline=rng.choice("abc"))
        assert stored.new == len(rows_of(store)) - len(before)
    elif action in DONE:
        matching = dlq.count(**filters)
        changed = getattr(dlq, action)(note="why", **filters)
        assert changed.changed + changed.unfit + changed.held == matching
        after = {one: row.status for one, row in rows_of(store).items() if row.status != before[one].status}
        assert list(after.values()) == [DONE[action]] * changed.changed
    elif action == "edit":
        patch = {"patch": {"n": rng.randrange(5)}} if rng.random() < 0.7 else {"undo": True}
        preview = dlq.edit_many(**patch, **filters)
        assert rows_of(store) == before
        assert dlq.edit_many(**patch, dry_run=False, **filters).changed == preview.changed
    elif action == "replay":
        outcomes = [rng.choice([None, None, "no", "fee: other"]) for _ in range(5)]
        report = dlq.replay(
            lambda records: [outcomes[index % 5] for index in range(len(records))],
            any_pipeline=True,
            canary=0,
            dry_run=False,
            **{**filters, "status": "open"},
        )
        after = rows_of(store)
        assert report.reprocessed == sum(
            after[one].status == "reprocessed" and after[one].last_reprocess != before[one].last_reprocess
            for one in after
        )
    elif action == "purge":
        before_when = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
        filters = {name: value for name, value in filters.items() if name != "status"}
        wanted = dlq.purge(older_than=before_when, dry_run=True, **filters)
        assert dlq.purge(older_than=before_when, **filters).letters == wanted.letters
        gone = set(before) - set(rows_of(store))
        assert len(gone) == wanted.letters
        assert all(before[one].status not in OPEN for one in gone)
    elif action == "export":
        exports.append(list(dlq.export()))
        done = dlq.import_(exports[-1])
        assert (done.new, done.known, done.differing) == (0, len(before), 0)
    elif exports:
        lines = rng.choice(exports)
        done = dlq.import_(lines)
        assert (done.new, done.new + done.known) == (len(rows_of(store)) - len(before), len(lines))
        assert dlq.import_(lines).new == 0


def new_letter(rng: random.Random) -> redrive.NewLetter:
    key = rng.choice([None, "k0", "k1", "k2"])
    return redrive.NewLetter(
        {"n": rng.randrange(3), "id": key},
        rng.choice(ERRORS),
        key=key,
        position=rng.choice([None, 1, 2]),
        source=rng.choice([None, "f1", "f2"]),
        run_id=rng.choice(RUNS),
        error_type=rng.choice(["validation", "sink"]),
        rejected_at=dt.datetime.now(dt.UTC) - dt.timedelta(hours=rng.choice([0, 2, 30])),
    )


class TestQueue:
    @pytest.mark.parametrize("seed", [1, 2])
    def test_answers_equal_the_rows_after_any_sequence(self, store, seed):
        rng, exports = random.Random(seed), []
        for _ in range(40):
            take_step(store, rng, exports)
            rows = rows_of(store)
            check_answers(store, rows)
            check_audit(store, rows)
