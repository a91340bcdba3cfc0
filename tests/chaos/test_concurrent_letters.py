"""Processes that use one store concurrently: they wait for each other, and share the work."""

import contextlib
import random
import sqlite3

import psycopg
import pytest

import redrive
from redrive.model.letters import Status
from tests.oracles.letters import checked_store
from tests.support import letters_worker

databases = pytest.mark.parametrize("kind", ["sqlite", "postgresql"])


def start_together(workers, *jobs):
    """Processes that start at the same moment."""
    with workers.together() as gate:
        started = [workers.start(**job, gate=gate) for job in jobs]
        for worker in started:
            worker.listen(until=1)
    return started


def make_target(url, directory):
    """Where replayed records go, for `letters_worker.replay`."""
    table = "CREATE TABLE delivered (n bigint PRIMARY KEY, record text, times int DEFAULT 1)"
    if url.startswith("postgresql:"):
        with psycopg.connect(url) as connection:
            connection.execute(table)
        return url
    path = directory / "target.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(table)
    return str(path)


@databases
def test_concurrent_replays_send_each_letter_once(workers, new_store, tmp_path, kind):
    with new_store(kind) as url:
        with redrive.connect(url) as store:
            store.dlq.put_many(map(letters_worker.letter, range(200)), pipeline=letters_worker.PIPELINE)
        deliveries = tmp_path / "deliveries"
        job = {"operation": "replay", "url": url, "deliveries": str(deliveries), "batch": 7, "lease": 60}
        job["target"] = make_target(url, tmp_path)
        both = start_together(workers, job, job)
        assert [worker.join() for worker in both] == [0, 0]
        reports = [worker.heard("report")[0] for worker in both]
        assert sum(report["attempted"] for report in reports) == 200
        assert sum(report["failed"] for report in reports) == len(range(3, 200, 7))
        assert sum(report["reprocessed"] for report in reports) == 200 - len(range(3, 200, 7))
        assert sorted(int(line) for line in deliveries.read_text().split()) == list(range(200))
        with checked_store(url) as (_, found):
            assert all(letter.reprocess_count == 1 for letter in found.values())
            assert not any(letter.status == Status.PENDING for letter in found.values())


@databases
def test_concurrent_writers_store_each_letter_once(workers, new_store, kind):
    chance = random.Random(4)
    orders = [chance.sample(range(400), k=400) for _ in range(4)]
    with new_store(kind) as url:
        job = {"operation": "put", "url": url, "chunk": 400, "batch": 100}
        four = start_together(workers, *({**job, "numbers": numbers} for numbers in orders))
        assert [worker.join() for worker in four] == [0, 0, 0, 0]
        assert sum(worker.heard("stored")[0]["new"] for worker in four) == 400
        with checked_store(url) as (_, found):
            assert {number: letter.seen for number, letter in found.items()} == dict.fromkeys(range(400), 4)


@pytest.mark.parametrize("time", range(3))
def test_concurrent_opens_of_a_new_file_succeed(workers, tmp_path, time):
    url = f"sqlite:///{tmp_path}/not/yet/there.db"
    eight = start_together(workers, *({"operation": "open_and_count", "url": url} for _ in range(8)))
    assert [worker.join() for worker in eight] == [0] * 8
    assert [worker.heard("report")[0]["letters"] for worker in eight] == [0] * 8


def test_concurrent_migrations_succeed(workers, postgres_url):
    name = "migrated_together"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    url = postgres_url.rpartition("/")[0] + f"/{name}"
    eight = start_together(workers, *({"operation": "open_and_count", "url": url, "migrate": True} for _ in range(8)))
    assert [worker.join() for worker in eight] == [0] * 8


def test_writer_waits_for_exclusive_lock_of_another_process(workers, new_store):
    with new_store("sqlite") as url, redrive.connect(url) as store:
        holder = workers.start("hold", url=url, seconds=2)
        holder.listen(until=1)
        assert store.dlq.put_many(map(letters_worker.letter, range(10)), pipeline="vendor").new == 10
        holder.listen(until=2)  # it has let go: we were not let in before
        assert holder.join() == 0


@databases
def test_writes_replays_and_purges_run_concurrently(workers, new_store, tmp_path, kind):
    with new_store(kind) as url:
        with redrive.connect(url) as store:
            store.dlq.put_many(map(letters_worker.letter, range(150)), pipeline=letters_worker.PIPELINE)
        put = {"operation": "put", "url": url, "chunk": 40, "batch": 10}
        replay = {"operation": "replay", "url": url, "deliveries": str(tmp_path / "log"), "batch": 7, "lease": 60}
        replay["target"] = make_target(url, tmp_path)
        started = start_together(
            workers,
            {**put, "numbers": list(range(100, 300))},
            {**put, "numbers": list(range(299, 99, -1))},
            replay,
            replay,
            {"operation": "purge", "url": url, "batch": 5, "older_than": "0s", "times": 20},
        )
        assert [worker.join() for worker in started] == [0] * 5
        with checked_store(url, purged=True, repeated=True) as (store, _):
            store.dlq.purge(older_than="0s")
        with checked_store(url, purged=True, repeated=True) as (_, found):
            assert {letter.status for letter in found.values()} <= {Status.PENDING, Status.ESCALATED}
