"""Fields of a record that differ only by case are one column where the database says so; no row is lost or invented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import redrive
from tests.support.stores import NewStore
from tests.support.table_places import place_of

NO_LIMIT = redrive.Gate(abort=1)


@pytest.fixture(params=["sqlite", "duckdb"])
def run(request: pytest.FixtureRequest, new_store: NewStore, tmp_path: Path) -> Any:
    """A function that loads records into a table with the rows 1 and 2; it returns rejected positions and the table."""
    with place_of(request.param, new_store, tmp_path) as (store, url, execute):
        execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT)")

        def load(source: Any, **options: Any) -> Any:
            execute("DELETE FROM t")
            execute("INSERT INTO t VALUES (1, 'old'), (2, 'old')")
            sink = redrive.rows.table(url, "t", key="id", **options.pop("table", {}))
            source = redrive.rows.records(source) if isinstance(source, list) else source
            pipeline = redrive.Pipeline("case", source=source, sink=sink, store=store, gate=NO_LIMIT, **options)
            pipeline.run()
            letters = {letter.position: letter.error_type for letter in store.dlq.each()}
            return letters, dict(execute("SELECT id, a FROM t"))

        yield load


@pytest.mark.parametrize("batch", [1, 2, 100])
class TestRecords:
    def test_other_spelling_of_a_field_is_the_same_column(self, run, batch):
        records = [{"id": 1, "A": "x"}, {"id": 2, "a": "y"}, {"id": 3, "a": "z"}]
        assert run(records, batch=batch) == ({}, {1: "x", 2: "y", 3: "z"})

    def test_other_spelling_of_the_key_is_rejected(self, run, batch):
        records = [{"ID": 9, "a": "x"}, {"id": 1, "a": "y"}, {"id": 3, "A": "z"}]
        assert run(records, batch=batch) == ({"row 1": "validation"}, {1: "y", 2: "old", 3: "z"})

    def test_record_with_both_is_rejected(self, run, batch):
        records = [{"id": 1, "a": "x"}, {"id": 3, "ID": 4, "a": "y"}, {"id": 2, "a": "y", "A": "z"}]
        assert run(records, batch=batch) == ({"row 2": "schema", "row 3": "schema"}, {1: "x", 2: "old"})

    def test_column_that_marks_deletions(self, run, batch):
        records = [{"id": 1, "a": None, "OP": "D"}, {"id": 2, "a": None, "op": "D"}, {"id": 3, "a": "x", "op": "I"}]
        assert run(records, batch=batch, table={"delete_when": {"op": "D"}}) == ({}, {3: "x"})


@pytest.mark.parametrize("batch", [2, 100])
def test_unknown_field_with_two_spellings(run, batch):
    records = [{"id": 1, "a": "x"}, {"id": 2, "a": "y", "A": "z"}, {"id": 3, "b": 1}, {"id": 4, "A": "v"}]
    assert run(records, batch=batch) == ({"row 2": "schema", "row 3": "schema"}, {1: "x", 2: "old", 4: "v"})


def test_header_with_both_is_rejected(run, tmp_path):
    (tmp_path / "in.csv").write_text("id,a,A\n1,x,y\n")
    with pytest.raises(redrive.RunStopped, match="'a' and 'A' for one column"):
        run(redrive.rows.csv(tmp_path / "in.csv"))


def test_letters_outside_ascii_are_not_folded(new_store, tmp_path):
    with place_of("sqlite", new_store, tmp_path) as (store, url, execute):
        execute('CREATE TABLE t (id INTEGER PRIMARY KEY, "ä" TEXT, "Ä" TEXT)')
        sink = redrive.rows.table(url, "t", key="id")
        source = redrive.rows.records([{"id": 1, "ä": "x", "Ä": "y"}])
        redrive.Pipeline("case", source=source, sink=sink, store=store).run()
        assert execute("SELECT * FROM t") == [(1, "x", "y")]


def test_replayed_record_with_both_stays_rejected(new_store, tmp_path):
    with place_of("sqlite", new_store, tmp_path) as (store, url, execute):
        execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT)")
        sink = redrive.rows.table(url, "t", key="id")
        source = redrive.rows.records([{"id": 1, "a": "x", "A": "y"}, {"id": 2, "a": "z"}])
        pipeline = redrive.Pipeline("case", source=source, sink=sink, store=store, gate=NO_LIMIT)
        pipeline.run()
        store.dlq.replay(pipeline, dry_run=False)
        (letter,) = store.dlq.each()
        assert letter.status != "reprocessed"
        assert letter.reprocess_count == 1
        assert execute("SELECT * FROM t") == [(2, "z")]
