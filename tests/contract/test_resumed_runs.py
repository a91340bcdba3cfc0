"""A run that was stopped or killed and resumed ends like an uninterrupted one."""

import contextlib
import itertools
import shutil
import sqlite3

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import redrive
from tests.support.examples import examples
from tests.support.table_places import place_of

FIELDS = ("a", "b")


class Scene:
    """A store and a table of their own, and a store that breaks when a batch is in the sink."""

    def __init__(self, directory, number):
        self.path = directory / f"{number}.db"
        self.store = redrive.connect(f"sqlite:///{directory / f'{number}-store.db'}")
        with contextlib.closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, b TEXT)")
            connection.executemany("INSERT INTO t VALUES (?, 'old', 'old')", [(n,) for n in range(12)])

    def run(self, records, batch, breaks_at=()):
        """Run to the end, however often the store breaks: before the checkpoint of the batches with these numbers."""
        numbers, real = itertools.count(), self.store.dlq.put_within

        def put_within(*args, **options):
            if next(numbers) in breaks_at:
                raise redrive.StoreError("gone")
            return real(*args, **options)

        self.store.dlq.put_within = put_within
        for _ in range(len(breaks_at) + 1):
            sink = redrive.rows.table(f"sqlite:///{self.path}", "t", key="id")
            pipeline = redrive.Pipeline(
                "p", source=redrive.rows.records(records), sink=sink, store=self.store, batch=batch
            )
            try:
                return pipeline.run()
            except redrive.RunStopped:
                continue
        raise AssertionError("it never ended")

    def run_over(self, source, stops_at=None):
        """Run over a source in batches of two; the store is gone at the checkpoint of the batch with this number."""
        numbers, real = itertools.count(), type(self.store.dlq).put_within

        def put_within(*args, **options):
            if stops_at is not None and next(numbers) == 2 * stops_at:  # letters of a batch are put in two parts
                raise redrive.StoreError("gone")
            return real(self.store.dlq, *args, **options)

        self.store.dlq.put_within = put_within
        sink = redrive.rows.table(f"sqlite:///{self.path}", "t", key="id")
        return redrive.Pipeline("p", source=source, sink=sink, store=self.store, batch=2).run()

    def table(self):
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            return connection.execute("SELECT * FROM t ORDER BY id").fetchall()


class TestFieldsOfRecords:
    @given(
        fields=st.lists(st.sets(st.sampled_from(FIELDS)), min_size=1, max_size=12),
        batch=st.integers(1, 4),
        breaks_at=st.sets(st.integers(0, 14), max_size=4),
    )
    @settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck))
    def test_are_the_same_in_a_resumed_run(self, tmp_path_factory, fields, batch, breaks_at):
        directory = tmp_path_factory.mktemp("fields")
        records = [{"id": n, **dict.fromkeys(sorted(some), "new")} for n, some in enumerate(fields)]
        whole, broken = Scene(directory, 1), Scene(directory, 2)
        expected = whole.run(records, batch)
        report = broken.run(records, batch, breaks_at)
        assert broken.table() == whole.table()
        assert (report.read, report.written) == (expected.read, expected.written)

    def test_of_the_first_part_are_null_if_later_records_lack_them(self, tmp_path):
        scene = Scene(tmp_path, 1)
        scene.run([{"id": 0, "a": "new", "b": "new"}, *({"id": n, "b": "new"} for n in (1, 2))], 1, breaks_at={1})
        assert scene.table()[:4] == [(0, "new", "new"), (1, None, "new"), (2, None, "new"), (3, "old", "old")]

    def test_of_an_abandoned_run_are_forgotten(self, tmp_path):
        scene = Scene(tmp_path, 1)
        sink = redrive.rows.table(f"sqlite:///{scene.path}", "t", key="id")
        source = redrive.rows.records([{"id": 0, "a": "new"}, {"id": 1}, {"id": 2}])
        pipeline = redrive.Pipeline("p", source=source, sink=sink, store=scene.store, batch=1)
        with pytest.raises(redrive.RunStopped):
            pipeline.run(deadline=1e-9)
        scene.run([{"id": n, "b": "new"} for n in range(3)], 1)
        assert scene.table()[:3] == [(0, "new", "new"), (1, "old", "new"), (2, "old", "new")]


class TestMissingSink:
    """A sink that was removed between a stop and the resume, although rows of the run were in it."""

    def stopped(self, tmp_path, sink, source=None):
        store = redrive.connect(f"sqlite:///{tmp_path / 'store.db'}")
        source = source or redrive.rows.records([{"id": n, "a": "new"} for n in range(6)])
        pipeline = redrive.Pipeline("p", source=source, sink=sink, store=store, batch=2)
        with pytest.raises(redrive.RunStopped):
            pipeline.run(deadline=1e-9)
        return pipeline

    def refuses(self, pipeline):
        with pytest.raises(redrive.PipelineError, match=r"does not exist any more.*--restart"):
            pipeline.run()

    @pytest.mark.parametrize("place", ["sqlite", "duckdb", "parquet", "append"])
    def test_is_rejected_until_a_restart(self, tmp_path, place):
        path = tmp_path / "sink"
        if place == "parquet":
            sink = redrive.rows.parquet_dataset(path, key="id")
        elif place == "append":
            sink = redrive.rows.table(f"sqlite:///{path}", "t", append=True, create=True)
        else:
            sink = redrive.rows.table(f"{place}:///{path}", "t", key="id", create=True)
        pipeline = self.stopped(tmp_path, sink)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.refuses(pipeline)
        assert not path.exists()
        self.refuses(pipeline)
        assert pipeline.run(restart=True).written == 6

    @pytest.mark.parametrize("place", ["postgresql", "sqlite with its store"])
    def test_is_rejected_after_a_drop_of_the_table(self, new_store, tmp_path, place):
        with place_of(place, new_store, tmp_path) as (_, url, execute):
            pipeline = self.stopped(tmp_path, redrive.rows.table(url, "t", key="id", create=True))
            execute("DROP TABLE t")
            self.refuses(pipeline)
            assert pipeline.run(restart=True).written == 6
            assert execute("SELECT count(*) FROM t")[0][0] == 6

    def test_is_created_if_nothing_was_written_to_it(self, tmp_path):
        source = redrive.rows.records([*([None] * 4), {"id": 1}, {"id": 2}])
        sink = redrive.rows.table(f"sqlite:///{tmp_path / 'sink'}", "t", key="id", create=True)
        assert self.stopped(tmp_path, sink, source).run().written == 2

    def test_is_rejected_after_a_watermark(self, tmp_path):
        with contextlib.closing(sqlite3.connect(tmp_path / "in.db")) as connection, connection:
            connection.execute("CREATE TABLE s (id INTEGER PRIMARY KEY)")
            connection.execute("INSERT INTO s VALUES (1), (2)")
        source = redrive.rows.query(f"sqlite:///{tmp_path / 'in.db'}", "SELECT id FROM s", watermark="id", key="id")
        sink = redrive.rows.table(f"sqlite:///{tmp_path / 'sink'}", "t", key="id", create=True)
        pipeline = redrive.Pipeline("p", source=source, sink=sink, store=tmp_path / "store.db")
        assert pipeline.run().written == 2
        (tmp_path / "sink").unlink()
        self.refuses(pipeline)
        assert pipeline.run(restart=True).written == 2


class TestOverriddenGate:
    def pipeline(self, tmp_path, bad, count=4_000, **options):
        def validate(record):
            if record["id"] in bad:
                raise ValueError("bad")
            return record

        source = redrive.rows.records([{"id": n} for n in range(count)])
        sink = redrive.rows.table(f"sqlite:///{tmp_path / 'sink'}", "t", key="id", create=True)
        store = tmp_path / "store.db"
        options = {"batch": 500, **options}
        return redrive.Pipeline("p", source=source, sink=sink, validate=validate, store=store, **options)

    def test_stays_overridden_over_a_stop(self, tmp_path):
        pipeline = self.pipeline(tmp_path, range(900))
        with pytest.raises(redrive.GateAborted):
            pipeline.run()
        with pytest.raises(redrive.RunStopped, match="deadline") as stopped:
            pipeline.run(override_gate=True, deadline=1e-9)
        assert not isinstance(stopped.value, redrive.GateAborted)
        report = pipeline.run()
        assert (report.status, report.read, report.rejected, report.tier) == ("complete", 4_000, 900, "P3")
        assert report.gate_overridden
        assert "gate overridden" in str(report)
        assert pipeline.store.runs.get("p").gate_overridden

    def test_does_not_accept_later_rejected_rows(self, tmp_path):
        pipeline = self.pipeline(tmp_path, [*range(900), *range(2_000, 4_000)])
        with pytest.raises(redrive.GateAborted):
            pipeline.run()
        with pytest.raises(redrive.RunStopped):
            pipeline.run(override_gate=True, deadline=1e-9)
        with pytest.raises(redrive.GateAborted) as aborted:
            pipeline.run()
        assert aborted.value.report.read > 2_000

    def test_leaves_a_mark_where_too_few_rows_were_read(self, tmp_path, caplog):
        pipeline = self.pipeline(tmp_path, (), count=5, gate=redrive.Gate(at_least=10))
        with pytest.raises(redrive.GateAborted):
            pipeline.run()
        report = pipeline.run(override_gate=True)
        assert (report.status, report.tier, report.gate_overridden) == ("complete", "log", True)
        assert any(
            record.levelname == "WARNING" and "the gate overridden by an operator" in record.message
            for record in caplog.records
        )

    def test_is_forgotten_by_a_restart(self, tmp_path):
        pipeline = self.pipeline(tmp_path, range(900))
        for options in ({}, {"restart": True}):
            with pytest.raises(redrive.GateAborted) as aborted:
                pipeline.run(**options)
            assert not aborted.value.report.gate_overridden


class TestNewFiles:
    """Files of a glob that arrive while a run is unfinished are read when it is resumed."""

    @pytest.mark.parametrize("kind", ["csv", "ndjson"])
    @pytest.mark.parametrize("name", ["0-first", "2-last"])
    @pytest.mark.parametrize("stops_at", [1, 2])
    def test_new_file_is_read_by_the_resumed_run(self, tmp_path, kind, name, stops_at):
        def write(file, ids):
            lines = ["id,a", *(f"{n},x" for n in ids)] if kind == "csv" else [f'{{"id": {n}, "a": "x"}}' for n in ids]
            (tmp_path / f"{file}.{kind}").write_text("\n".join(lines) + "\n")

        read = {"csv": redrive.rows.csv, "ndjson": redrive.rows.ndjson}[kind]
        scene = Scene(tmp_path, 1)
        write("1-monday", range(20, 26))
        with pytest.raises(redrive.RunStopped):
            scene.run_over(read(str(tmp_path / f"*.{kind}")), stops_at=stops_at)
        write(name, range(30, 34))
        report = scene.run_over(read(str(tmp_path / f"*.{kind}")))
        assert (report.status, report.resumed, report.read) == ("complete", True, 10)
        assert [row[0] for row in scene.table() if row[0] >= 20] == [*range(20, 26), *range(30, 34)]
        assert scene.run_over(read(str(tmp_path / f"*.{kind}"))).read == 10
