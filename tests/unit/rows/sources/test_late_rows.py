"""Rows committed late, within the `lag` of a query, are read by a later run at the latest."""

from __future__ import annotations

import contextlib
import json
import sqlite3

import pytest

import redrive
from redrive.rows import query


@pytest.fixture
def execute(tmp_path):
    def run(*statements):
        with contextlib.closing(sqlite3.connect(tmp_path / "in.db")) as connection, connection:
            return [connection.execute(statement).fetchall() for statement in statements][-1]

    run("CREATE TABLE s (id INTEGER PRIMARY KEY, at)")
    return run


def add(execute, *watermarks):
    execute(*(f"INSERT INTO s (at) VALUES ({at})" for at in watermarks))


@pytest.fixture
def source(tmp_path, execute):
    return query(f"sqlite:///{tmp_path / 'in.db'}", "SELECT * FROM s", watermark="at", key="id", lag=5)


def stored(position):
    return json.loads(json.dumps(position))


def read(source, position, most=10, batches=None):
    """Return the watermarks that are read from a position on, and where that ends."""
    reading = source.open(stored(position), source.identity())
    found = []
    with contextlib.closing(reading):
        while batches is None or batches > 0:
            batch = reading.read(most)
            if batch is None:
                break
            found += [record["at"] for record in batch.rows.records]
            position = batch.next
            batches = None if batches is None else batches - 1
    return found, position


class TestLateRow:
    def test_of_a_resumed_run_is_written_by_the_next(self, tmp_path, source, execute):
        add(execute, *range(1, 43))

        def stop(event):
            if isinstance(event, redrive.model.runs.BatchWritten) and event.so_far.read >= 30 and not late:
                pipeline.stop("test")

        late = []
        sink = redrive.rows.table(f"sqlite:///{tmp_path / 'out.db'}", "t", key="id", create=True)
        pipeline = redrive.Pipeline("p", source=source, sink=sink, store=tmp_path / "store.db", batch=10, on_event=stop)
        with pytest.raises(redrive.RunStopped) as stopped:
            pipeline.run()
        assert stopped.value.report.read == 40
        late.append(39)
        add(execute, 39, *range(43, 101))
        resumed, following, last = pipeline.run(), pipeline.run(), pipeline.run()
        # Each run reads a row once, so that no count has one twice.
        assert (resumed.resumed, resumed.read, resumed.written) == (True, 100, 100)
        assert (following.read, following.written) == (65, 65)
        assert (last.read, last.written) == (6, 6)
        with contextlib.closing(sqlite3.connect(tmp_path / "out.db")) as connection:
            assert connection.execute("SELECT count(*) FROM t").fetchone() == (101,)

    def test_of_a_run_with_concurrent_writers_is_read_by_the_next(self, source, execute):
        add(execute, *range(1, 21))
        reading = source.open(None, source.identity())
        with contextlib.closing(reading):
            reading.read(18)
            add(execute, 17, *range(21, 101))  # while the first page is written
            last = reading.read(1_000)
        assert [record["at"] for record in last.rows.records] == list(range(19, 101))
        again, position = read(source, source.start_of_next_run(stored(last.next)))
        assert again == [15, 16, 17, 17, *range(18, 101)]
        assert read(source, source.start_of_next_run(position))[0] == list(range(95, 101))

    def test_is_read_behind_a_checkpoint_of_an_earlier_version(self, source, execute):
        add(execute, *range(1, 43))
        _, position = read(source, {"watermark": 40, "key": [40]})
        assert source.start_of_next_run(stored(position)) == {"watermark": 35, "key": None, "nulls": []}

    def test_with_a_text_as_watermark_is_read_by_the_next(self, source, execute):
        add(execute, "'2026-07-01 12:00:00'")
        _, position = read(source, None)
        add(execute, "'2026-07-01 11:59:57'")
        assert len(read(source, source.start_of_next_run(stored(position)))[0]) == 2


class TestStartOfNextRun:
    def test_is_near_the_end_of_a_resumed_load_of_old_rows(self, source, execute):
        add(execute, *range(1, 101))
        _, position = read(source, None, batches=3)  # stopped far from the newest row: none is missing before
        _, position = read(source, position)
        assert source.start_of_next_run(stored(position))["watermark"] == 95

    def test_does_not_creep_back_while_nothing_is_read(self, source, execute):
        add(execute, 50, "NULL")
        _, position = read(source, None)
        execute("DELETE FROM s WHERE at = 50")
        for _ in range(3):
            start = source.start_of_next_run(stored(position))
            assert start["watermark"] == 45
            _, position = read(source, start)
