"""Stores of one process share the connections of a database, and each can be closed without affecting the others."""

import contextlib
import gc
import os
import sqlite3

import psycopg

import redrive
from tests.support.flows import eventually
from tests.support.stores import OTHERS


def put(store, key):
    store.dlq.put({"id": key}, "bad", pipeline="vendor", key=key)


def open_connections(url):
    """Count the connections to a store that this process holds open."""
    if url.startswith("postgresql"):
        with psycopg.connect(url) as connection:
            return connection.execute(f"SELECT count(*) {OTHERS}").fetchone()[0]
    path = url.removeprefix("sqlite:///")
    files = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum(os.path.realpath(file) == os.path.realpath(path) for file in files if os.path.islink(file))


def test_stores_share_connections(store_url):
    with redrive.connect(store_url) as first:
        put(first, "1")
        alone = open_connections(store_url)
        with redrive.connect(store_url) as second:
            put(second, "2")
            assert open_connections(store_url) == alone
            assert first.dlq.count() == second.dlq.count() == 2


def test_closing_one_store_leaves_the_other_its_connections(store_url):
    with redrive.connect(store_url) as first:
        with redrive.connect(store_url) as second:
            put(second, "1")
            put(first, "2")
        assert open_connections(store_url) > 0
        assert first.dlq.count() == 2


def test_last_store_to_close_closes_the_connections(store_url):
    first, second = redrive.connect(store_url), redrive.connect(store_url)
    for number, store in enumerate((first, second)):
        put(store, str(number))
    first.close()
    second.close()
    eventually(lambda: open_connections(store_url) == 0)


def test_closed_store_may_be_used_again(store_url):
    store = redrive.connect(store_url)
    store.close()
    put(store, "1")
    assert store.dlq.count() == 1
    store.close()
    eventually(lambda: open_connections(store_url) == 0)


def test_forgotten_store_leaves_no_connection(store_url):
    put(redrive.connect(store_url), "1")
    gc.collect()
    eventually(lambda: open_connections(store_url) == 0)


def test_replaced_file_is_not_read_through_old_connections(tmp_path):
    path = tmp_path / "store.db"
    with redrive.connect(path) as old:
        put(old, "1")
        for file in tmp_path.iterdir():
            file.unlink()
        with redrive.connect(path) as new:
            assert new.dlq.count() == 0
            put(new, "2")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT source_key FROM dead_letter_queue").fetchall() == [("2",)]


def test_relative_path_stays_the_same_file_after_chdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with redrive.connect("store.db") as store:
        put(store, "1")
        store.close()
        monkeypatch.chdir("elsewhere")
        put(store, "2")
        assert store.dlq.count() == 2
    assert list((tmp_path / "elsewhere").iterdir()) == []
