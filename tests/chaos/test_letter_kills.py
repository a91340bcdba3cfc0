"""Kill processes that store, replay and purge letters, hundreds of times: no letter is lost or doubled.

The short form runs with the tests; `make chaos` runs the full count, and with `-s` prints where the kills hit.
"""

import contextlib
import json
import random
import sqlite3
import sys
import time
from collections import Counter, defaultdict

import psycopg
import pytest
from sqlalchemy import func, select, update

import redrive
from redrive.model.letters import Status
from redrive.store.schema import letter_audit, letter_claims, letters
from tests.oracles.effects import EffectLedger
from tests.oracles.letters import checked_store
from tests.support import letters_worker

LEASE = 0.5
MOST_KILLS_A_ROUND = 8


# ── kills ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Putting:
    """`put_many`, in calls of 40 letters and transactions of 10."""

    size = 200

    def __init__(self, url, directory):
        self.url = url
        self.runs = 0
        self.reported = Counter()

    def job(self):
        self.runs += 1
        return {"operation": "put", "url": self.url, "numbers": list(range(self.size)), "chunk": 40, "batch": 10}

    def left(self):
        return 1.0

    def check(self, worker):
        for stored in worker.heard("stored"):
            assert stored["new"] + stored["repeated"] == len(stored["numbers"])
            self.reported.update(stored["numbers"])
        with checked_store(self.url) as (_, found):
            assert set(self.reported) <= set(found)
            for number, letter in found.items():
                # Once for each time that it was reported; one more where a run died between storing and reporting.
                assert max(1, self.reported[number]) <= letter.seen <= self.runs

    def is_finished(self):
        return all(self.reported[number] for number in range(self.size))

    def check_end(self):
        with checked_store(self.url) as (_, found):
            assert sorted(found) == list(range(self.size))


class Replaying:
    """`replay`, five letters at a time, into a table that is written in transactions of its own."""

    size = 120

    def __init__(self, url, directory):
        self.url = url
        self.deliveries = EffectLedger(directory / "deliveries")
        self.target = url if url.startswith("postgresql:") else str(directory / "target.db")
        with self.connected() as connection:
            connection.execute("CREATE TABLE delivered (n bigint PRIMARY KEY, record text, times int DEFAULT 1)")
            connection.commit()
        with redrive.connect(url) as store:
            store.dlq.put_many(map(letters_worker.letter, range(self.size)), pipeline=letters_worker.PIPELINE)
        self.runs = 0
        self.settled = set()
        self.known = 0
        self.pending = self.size

    def connected(self):
        if self.url.startswith("postgresql:"):
            return psycopg.connect(self.target)
        return contextlib.closing(sqlite3.connect(self.target))

    def job(self):
        self.runs += 1
        return {
            **{"operation": "replay", "url": self.url, "target": self.target, "deliveries": str(self.deliveries.path)},
            **{"batch": 5, "lease": LEASE},
        }

    def left(self):
        return self.pending / self.size

    def check(self, worker):
        delivered = list(map(int, self.deliveries.ids()))
        assert not self.settled & set(delivered[self.known :]), "a letter was sent again after it had been marked"
        with self.connected() as connection:
            rows = connection.execute("SELECT n, record FROM delivered").fetchall()
        assert {n for n, _ in rows} <= set(delivered)
        with checked_store(self.url) as (_, found):
            assert sorted(found) == list(range(self.size))
            by_status = {status: {n for n, letter in found.items() if letter.status == status} for status in Status}
        assert by_status[Status.REPROCESSED] <= {n for n, _ in rows}
        assert by_status[Status.ESCALATED] <= set(delivered)
        self.settled = by_status[Status.REPROCESSED] | by_status[Status.ESCALATED]
        self.known = len(delivered)
        self.pending = len(by_status[Status.PENDING])

    def is_finished(self):
        return not self.pending

    def check_end(self):
        self.deliveries.check_at_least_once(range(self.size))
        if self.runs == 1:  # no process was killed
            self.deliveries.check_once(range(self.size))
        good = {n for n in range(self.size) if n % 7 != 3}
        with checked_store(self.url) as (store, found):
            assert {n for n, letter in found.items() if letter.status == Status.REPROCESSED} == good
            assert all(letter.reprocess_count == 1 for letter in found.values())
            claimed = select(func.count()).select_from(letter_claims)
            assert store.database.read(lambda connection: connection.execute(claimed).scalar()) == 0
        with self.connected() as connection:
            rows = connection.execute("SELECT n, record FROM delivered").fetchall()
        assert {n: json.loads(record) for n, record in rows} == {n: letters_worker.letter(n).record for n in good}


class Purging:
    """`purge`, five letters at a time, of a queue that also holds letters which must stay."""

    size = 250

    def __init__(self, url, directory):
        self.url = url
        # By number: pending, escalated, reprocessed of late, reprocessed long ago, discarded long ago.
        self.stays = {n for n in range(self.size) if n % 5 < 3}
        with redrive.connect(url) as store:
            dlq = store.dlq
            dlq.put_many(map(letters_worker.letter, range(self.size)), pipeline=letters_worker.PIPELINE)
            ids = defaultdict(list)
            for letter in dlq.each():
                ids[int(letter.key) % 5].append(letter.id)
            dlq.escalate(note="ask the partner", ids=ids[1])
            dlq.replay(lambda records: None, dry_run=False, ids=ids[2] + ids[3])
            dlq.discard(note="too old", ids=ids[4])
            aged = (
                update(letters).where(letters.c.id.in_(ids[1] + ids[3] + ids[4])).values(settled_at=letters_worker.OLD)
            )
            store.database.write(lambda connection: connection.execute(aged))
        self.old = self.size - len(self.stays)

    def job(self):
        return {"operation": "purge", "url": self.url, "batch": 5}

    def left(self):
        return self.old / (self.size - len(self.stays))

    def check(self, worker):
        with checked_store(self.url, purged=True) as (store, found):
            assert self.stays <= set(found)
            self.old = len(found) - len(self.stays)
            purges = store.database.read(
                lambda connection: connection.execute(
                    select(letter_audit.c.note).where(letter_audit.c.action == "purged")
                ).scalars()
            )
            assert sum(int(note.split()[0]) for note in purges) == self.size - len(found)

    def is_finished(self):
        return not self.old

    def check_end(self):
        with checked_store(self.url, purged=True) as (store, found):
            assert set(found) == self.stays
            # Causes 3 and 4 went with their letters.
            assert {cause.fingerprint for cause in store.dlq.causes()} == {one.fingerprint for one in found.values()}


# ── the fire ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Fire:
    """Kills processes of one operation until enough are dead, and remembers where they were hit."""

    def __init__(self, workers, new_store, directory, seed):
        self.workers, self.new_store, self.directory = workers, new_store, directory
        self.chance = random.Random(seed)
        self.hits = Counter()
        self.last_words = Counter()
        self.things, self.starting, self.pace = 0, 0.0, 0.0

    def burn(self, operation, kind, kills):
        with self.new_store(kind) as url:
            self.measure(operation(url, self.fresh_directory()))
        while self.hits.total() < kills:
            with self.new_store(kind) as url:
                task = operation(url, self.fresh_directory())
                for _ in range(min(MOST_KILLS_A_ROUND, kills - self.hits.total())):
                    self.kill_once(task)
                    if task.is_finished():
                        break
                self.finish(task)
        place = ", ".join(f"after {words!r} {count}" for words, count in self.last_words.most_common())
        sys.stdout.write(f"\n{operation.__name__.lower()} on {kind}: {dict(self.hits)}; {place}\n")

    def fresh_directory(self):
        path = self.directory / f"round-{self.hits.total()}-{self.things}"
        path.mkdir()
        return path

    def measure(self, task):
        """Measure an undisturbed run: how many lines it prints, and how fast, to aim the kills."""
        began = time.monotonic()
        worker = self.workers.start(**task.job())
        worker.listen(until=1)
        self.starting = time.monotonic() - began
        assert worker.join() == 0
        self.things = len(worker.said)
        self.pace = (time.monotonic() - began - self.starting) / self.things
        task.check(worker)
        task.check_end()

    def kill_once(self, task):
        aim = self.chance.randint(0, int(self.things * task.left()))
        worker = self.workers.start(**task.job())
        worker.listen(until=aim)
        time.sleep(self.chance.uniform(0, 2 * self.pace if aim else self.starting))
        worker.kill()
        code = worker.join()
        assert code in {0, -9}
        words = worker.said[-1]["what"] if worker.said else "nothing"
        self.hits["after" if words == "done" else "in the work" if worker.said else "before"] += 1
        self.last_words[words] += 1
        task.check(worker)

    def finish(self, task):
        """Run it until it is through: once, but for claims of the dead that outlast a run on a slow machine."""
        for _ in range(5):
            worker = self.workers.start(**task.job())
            assert worker.join() == 0
            task.check(worker)
            if task.is_finished():
                break
        task.check_end()


@pytest.fixture
def fire(workers, new_store, tmp_path):
    return lambda seed: Fire(workers, new_store, tmp_path, seed)


databases = pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
operations = pytest.mark.parametrize("operation", [Putting, Replaying, Purging])


@databases
@operations
def test_few_kills_lose_and_double_no_letter(fire, operation, kind):
    burning = fire(seed=1)
    burning.burn(operation, kind, kills=5)
    assert burning.hits["in the work"]


@pytest.mark.chaos
@databases
@operations
def test_two_hundred_kills_lose_and_double_no_letter(fire, operation, kind):
    burning = fire(seed=2)
    burning.burn(operation, kind, kills=200)
    assert burning.hits["in the work"] >= 120
