"""Kill PostgreSQL repeatedly while letters are stored and replayed: both wait for it, and no letter is lost.

The short form runs with the tests; `make chaos` runs the full count.
"""

import gc
import itertools
import random
import threading
import time

import psycopg
import pytest

import redrive
from redrive.dlq.insert import insert as putting
from redrive.model.letters import Status
from tests.oracles.letters import checked_store
from tests.support import letters_worker

_serial = itertools.count()

# SQLAlchemy does not close the cursor of a connection that broke, and the driver complains when it is collected.
pytestmark = pytest.mark.filterwarnings("ignore:.*ServerCursor.*deleted while still open:ResourceWarning")


@pytest.fixture(autouse=True)
def collected():
    """Collect a broken cursor here, where its warning is ignored."""
    yield
    gc.collect()


class Life:
    """Store and replay in two threads until stopped; record the results."""

    def __init__(self, store):
        self.dlq = store.dlq
        self.stopping = threading.Event()
        self.put, self.sent, self.failed = [], [], []
        self.threads = [threading.Thread(target=self.live, args=(each,)) for each in (self.put_some, self.replay)]

    def live(self, each):
        try:
            while not self.stopping.is_set():
                each()
        except Exception as error:
            self.failed.append(error)

    def put_some(self):
        numbers = range(len(self.put), len(self.put) + 100)
        stored = self.dlq.put_many(map(letters_worker.letter, numbers), pipeline=letters_worker.PIPELINE)
        assert stored.total == 100
        self.put.extend(numbers)

    def replay(self):
        self.dlq.replay(
            lambda records: self.sent.extend(record["n"] for record in records),
            any_pipeline=True,
            dry_run=False,
            batch=20,
            limit=100,
        )


def burn(server, kills, seed):
    chance = random.Random(seed)
    name = f"restarted_{next(_serial)}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    url = server.url.rpartition("/")[0] + f"/{name}"
    with redrive.connect(url, migrate=True) as store:
        life = Life(store)
        for thread in life.threads:
            thread.start()
        for _ in range(kills):
            time.sleep(chance.uniform(0, 0.5))
            (server.kill if chance.random() < 0.7 else server.stop)()
            time.sleep(chance.uniform(0, 0.2))
            server.start()
        life.stopping.set()
        for thread in life.threads:
            thread.join()
        assert life.failed == []
        store.dlq.replay(
            lambda records: life.sent.extend(record["n"] for record in records), any_pipeline=True, dry_run=False
        )
    # A put whose commit was never confirmed is repeated. Where the letter was replayed by then, that makes another one.
    with checked_store(url, repeated=True) as (store, found):
        assert sorted(found) == life.put
        assert all(letter.status == Status.REPROCESSED for letter in found.values())
        # No process died, so no letter was sent twice.
        assert sorted(life.sent) == sorted(int(letter.key) for letter in store.dlq.each())


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(putting, "BATCH", 20)


def test_few_postgres_kills_lose_no_letter(mortal_postgres):
    burn(mortal_postgres, kills=4, seed=5)


@pytest.mark.chaos
def test_hundred_postgres_kills_lose_no_letter(mortal_postgres):
    burn(mortal_postgres, kills=100, seed=6)
