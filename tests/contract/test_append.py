"""Tables that rows are appended to: every row once, also after an interrupted run or replay."""

import contextlib
import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import redrive
from redrive.errors import PipelineError, SinkMismatch, StoreError
from redrive.rows.batch import Outgoing
from redrive.rows.checkpoint import PipelineRunHandle
from tests.support.examples import examples
from tests.support.table_places import PLACES, place_of, postgresql, sqlite

URL = "sqlite:///t.db"


class Place:
    """A database with a table, and pipelines that append to it."""

    def __init__(self, url, execute, store):
        self.url, self.sql, self.store = url, execute, store

    def sink(self, **options):
        return redrive.rows.table(self.url, "t", append=True, **options)

    def pipeline(self, rows, *, batch=3, name="load", create=False, **options):
        return redrive.Pipeline(
            name,
            source=redrive.rows.records(rows, name="rows"),
            sink=self.sink(create=create),
            store=self.store,
            batch=batch,
            gate=redrive.Gate(abort=1),
            **options,
        )

    def run(self, rows, **options):
        report = self.pipeline(rows, **options).run()
        assert report.read == report.written + report.rejected + report.discarded + report.duplicates
        return report

    def rows(self):
        return sorted(self.sql("SELECT id, v FROM t"))

    def open_letters(self):
        statuses = ("pending", "escalated")
        return sorted(letter.record["id"] for status in statuses for letter in self.store.dlq.each(status=status))


@pytest.fixture(params=PLACES)
def place(request, new_store, tmp_path):
    with place_of(request.param, new_store, tmp_path) as (store, url, execute):
        execute("CREATE TABLE parent (id integer PRIMARY KEY)")
        execute("INSERT INTO parent VALUES (1)")
        execute(
            "CREATE TABLE t (id integer NOT NULL, v text CHECK (v <> 'bad'), once integer UNIQUE, "
            "parent integer REFERENCES parent (id))"
        )
        yield Place(url, execute, store)


def row(number, v="a", **more):
    return {"id": number, "v": v, "once": None, "parent": None, **more}


@contextlib.contextmanager
def save_failing(at, monkeypatch):
    """Fail the transaction of the store, once, after the sink has committed the rows of a batch."""
    save, calls = PipelineRunHandle.save, []

    def failing(self, connection, **values):
        calls.append(1)
        if len(calls) == at:
            raise StoreError("the store is gone")
        save(self, connection, **values)

    with monkeypatch.context() as patch:
        patch.setattr(PipelineRunHandle, "save", failing)
        yield
    assert len(calls) >= at


def interrupt(place, rows, monkeypatch, *, at=1, **options):
    with save_failing(at, monkeypatch), pytest.raises(redrive.RunStopped, match="the store is gone"):
        place.run(rows, **options)


class TestRows:
    @pytest.mark.parametrize("batch", [1, 3, 40_000])
    def test_equal_rows_are_all_kept(self, place, batch):
        report = place.run([row(1), row(1), row(2), row(1)], batch=batch)
        assert place.rows() == [(1, "a"), (1, "a"), (1, "a"), (2, "a")]
        assert (report.written, report.duplicates) == (4, 0)

    def test_second_run_appends_again(self, place):
        place.run([row(1)])
        place.run([row(1)])
        assert place.rows() == [(1, "a"), (1, "a")]

    def test_rejected_rows_are_letters_and_the_rest_is_appended(self, place):
        rows = [row(1), row(2, "bad"), row(3), row(None), row(5, parent=9), row(6, parent=1), row(7, once=1)]
        report = place.run([*rows, row(8, once=1), row(2, "bad")], batch=40_000)
        assert place.rows() == [(1, "a"), (3, "a"), (6, "a"), (7, "a")]
        assert (report.written, report.rejected) == (4, 5)
        assert place.store.dlq.count(status="pending", error_type="sink") == 5

    def test_missing_table_is_created_without_a_key(self, place):
        place.sql("DROP TABLE t")
        place.run([row(1), row(1), row(2)], create=True)
        assert place.rows() == [(1, "a"), (1, "a"), (2, "a")]

    def test_row_that_references_a_later_row_is_appended(self, place):
        place.sql("DROP TABLE t")
        place.sql("CREATE TABLE t (id integer PRIMARY KEY, v text, up integer REFERENCES t (id))")
        place.run([{"id": 1, "v": "a", "up": 2}, {"id": 2, "v": "a", "up": None}, {"id": 3, "v": "a", "up": 9}])
        assert place.rows() == [(1, "a"), (2, "a")]

    def test_dry_run_appends_nothing(self, place):
        sink = place.sink()
        refused = sink.rehearse(Outgoing.of_records([row(1), row(2, "bad")], range(2)))
        sink.close()
        assert ([one.place for one in refused], place.rows()) == ([1], [])

    def test_name_with_odd_characters(self, place):
        place.sql('CREATE TABLE "a%b?c" (id integer)')
        sink = redrive.rows.table(place.url, '"a%b?c"', append=True)
        for _ in range(2):
            sink.write(Outgoing.of_records([{"id": 1}], range(1)), label="x-1")
        assert not sink.is_empty()
        sink.close()
        assert place.sql('SELECT id FROM "a%b?c"') == [(1,)]


class TestInterruptedRuns:
    @pytest.mark.parametrize("at", [1, 2, 3])
    def test_batch_unknown_to_the_store_is_not_doubled(self, place, monkeypatch, at):
        rows = [row(n, "bad" if n % 4 == 2 else "a", once=n) for n in range(9)]
        interrupt(place, rows, monkeypatch, at=at)
        report = place.run(rows)
        assert place.rows() == [(n, "a") for n in range(9) if n % 4 != 2]
        assert (report.read, report.written, report.rejected) == (9, 7, 2)
        assert place.open_letters() == [2, 6]

    def test_stopped_run_is_resumed(self, place):
        pipeline = place.pipeline([row(n) for n in range(9)], on_event=lambda event: None)
        with pytest.raises(redrive.RunStopped):
            pipeline.run(watch=lambda progress: pipeline.stop())
        assert 0 < len(place.rows()) < 9
        place.run([row(n) for n in range(9)])
        assert place.rows() == [(n, "a") for n in range(9)]

    def test_other_batch_size_is_rejected(self, place, monkeypatch):
        rows = [row(n) for n in range(9)]
        interrupt(place, rows, monkeypatch, at=2)
        for batch in (2, 40_000):
            with pytest.raises(redrive.RunStopped, match="run it again with the same input, batch size"):
                place.run(rows, batch=batch)
        place.run(rows)
        assert place.rows() == [(n, "a") for n in range(9)]

    def test_part_of_a_batch_is_not_doubled(self, place, monkeypatch):
        rows, seen = [row(n) for n in range(64)], []

        def validate(record):
            seen.append(record)
            if len(seen) == 1:
                raise MemoryError

        interrupt(place, rows, monkeypatch, batch=64, validate=validate)
        assert len(place.rows()) == 64
        with pytest.raises(redrive.RunStopped, match="run it again with the same input, batch size"):
            place.run(rows, batch=64)
        place.run(rows, batch=32)
        assert place.rows() == [(n, "a") for n in range(64)]

    def test_values_that_vary_do_not_change_the_batch(self, place, monkeypatch):
        count = iter(range(100))
        rows = [row(n) for n in range(3)]
        interrupt(place, rows, monkeypatch, transform=lambda record: {**record, "v": f"x{next(count)}"})
        place.run(rows, transform=lambda record: {**record, "v": f"x{next(count)}"})
        assert place.rows() == [(0, "x0"), (1, "x1"), (2, "x2")]

    @settings(
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
        deadline=None,
        max_examples=examples(5),
    )
    @given(
        rows=st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["a", "b", "bad"])), min_size=1, max_size=9),
        batch=st.integers(1, 5),
        data=st.data(),
    )
    def test_killed_runs_append_every_row_once(self, place, monkeypatch, rows, batch, data):
        place.sql("DELETE FROM t")
        given_rows = [row(*one) for one in rows]
        at = data.draw(st.integers(1, -(-len(rows) // batch)))
        interrupt(place, given_rows, monkeypatch, at=at, batch=batch)
        place.run(given_rows, batch=batch)
        assert place.rows() == sorted(one for one in rows if one[1] != "bad")


class TestRestart:
    @pytest.mark.parametrize("at", [1, 2])
    def test_restart_that_would_double_rows_is_rejected(self, place, monkeypatch, at):
        rows = [row(n) for n in range(9)]
        interrupt(place, rows, monkeypatch, at=at)
        with pytest.raises(PipelineError, match="a restart would append them again"):
            place.pipeline(rows).run(restart=True)
        place.run(rows)
        assert place.rows() == [(n, "a") for n in range(9)]

    def test_restart_over_an_empty_table_reads_everything(self, place, monkeypatch):
        rows = [row(n) for n in range(9)]
        interrupt(place, rows, monkeypatch, at=2)
        place.sql("DELETE FROM t")
        place.pipeline(rows).run(restart=True)
        assert place.rows() == [(n, "a") for n in range(9)]

    def test_other_input_does_not_start_over(self, place, monkeypatch):
        interrupt(place, [row(n) for n in range(9)], monkeypatch, at=2)
        with pytest.raises(PipelineError, match=r"starting over .* would append them again"):
            place.run([row(n) for n in range(100, 109)])
        assert place.rows() == [(n, "a") for n in range(6)]

    def test_other_input_is_not_taken_for_the_first_batch(self, place, monkeypatch):
        interrupt(place, [row(n) for n in range(9)], monkeypatch, at=1)
        with pytest.raises(redrive.RunStopped, match="it would now have other rows: run it again with the same input"):
            place.run([row(n) for n in range(100, 109)])
        assert place.rows() == [(n, "a") for n in range(3)]

    def test_run_that_appended_nothing_is_restarted(self, place):
        place.sql("INSERT INTO t (id, v) VALUES (0, 'before')")

        def broken():
            raise RuntimeError("no input")
            yield

        with pytest.raises(redrive.RunStopped):
            place.pipeline(broken).run()
        place.run([row(1)])
        assert place.rows() == [(0, "before"), (1, "a")]


class TestReplay:
    def replay(self, place, pipeline):
        return place.store.dlq.replay(pipeline, pipeline="load", dry_run=False)

    def test_replay_appends_each_letter_once(self, place):
        place.run([row(1), row(2, parent=5), row(2, parent=5), row(3, "bad")])
        place.sql("INSERT INTO parent VALUES (5)")
        pipeline = place.pipeline([])
        letters = list(place.store.dlq.each(status="pending"))
        records = [letter.payload for letter in letters]
        for _ in range(2):  # as after a kill between the sink's commit and the marking of the letters
            answers = pipeline.reprocess(records, letters=letters)
            assert [answer is None for answer in answers] == [True, True, False]
        self.replay(place, pipeline)
        self.replay(place, pipeline)
        pipeline.sink.close()
        assert place.rows() == [(1, "a"), (2, "a"), (2, "a")]
        assert place.open_letters() == [3]

    def test_rejected_letter_is_retried(self, place):
        place.run([row(2, parent=5)])
        pipeline = place.pipeline([])
        self.replay(place, pipeline)
        assert (place.rows(), place.open_letters()) == ([], [2])
        place.sql("INSERT INTO parent VALUES (5)")
        self.replay(place, pipeline)
        pipeline.sink.close()
        assert (place.rows(), place.open_letters()) == ([(2, "a")], [])

    def test_rows_of_one_letter_are_appended_all_or_none(self, place):
        parts = [row(1), row(2, parent=5), row(3)]
        pipeline = place.pipeline([])
        assert pipeline.reprocess([parts]) != [None]
        assert place.rows() == []
        place.sql("INSERT INTO parent VALUES (5)")
        assert pipeline.reprocess([parts], dry_run=True) == [None]
        assert place.rows() == []
        assert pipeline.reprocess([parts]) == [None]
        pipeline.sink.close()
        assert place.rows() == [(1, "a"), (2, "a"), (3, "a")]

    def test_row_that_fails_validation_keeps_its_letter_whole(self, place):
        def validate(record):
            if record["id"] == 2:
                raise ValueError("not this one")

        pipeline = place.pipeline([], validate=validate)
        assert "not this one" in str(pipeline.reprocess([[row(1), row(2)]])[0])
        pipeline.sink.close()
        assert place.rows() == []


class TestLetters:
    def replay(self, place, **options):
        pipeline = place.pipeline([], **options)
        place.store.dlq.replay(pipeline, pipeline="load", dry_run=False)
        pipeline.sink.close()

    def test_equal_events_of_two_runs_are_two_letters(self, place):
        for _ in range(2):
            place.run([row(1), row(2, parent=5), row(2, parent=5)])
        assert [letter.seen for letter in place.store.dlq.each()] == [1, 1, 1, 1]
        place.sql("INSERT INTO parent VALUES (5)")
        self.replay(place)
        assert place.rows() == [(1, "a")] * 2 + [(2, "a")] * 4

    @pytest.mark.parametrize("how", ["reprocessed", "discarded"])
    def test_event_equal_to_one_decided_in_another_run_is_a_letter(self, place, how):
        place.run([row(2, parent=5)])
        if how == "discarded":
            place.store.dlq.discard(pipeline="load", note="a test event")
        else:
            place.sql("INSERT INTO parent VALUES (5)")
            self.replay(place)
            place.sql("DELETE FROM t")
            place.sql("DELETE FROM parent WHERE id = 5")
        place.run([row(0), row(2, parent=5)])
        assert [str(letter.status) for letter in place.store.dlq.each()] == [how, "pending"]

    def test_event_equal_to_one_replayed_in_its_run_is_a_letter(self, place):
        rows = [row(2, parent=5) for _ in range(9)]
        pipeline = place.pipeline(rows)
        with pytest.raises(redrive.RunStopped):
            pipeline.run(watch=lambda progress: pipeline.stop())
        assert place.store.dlq.count() < 9
        place.sql("INSERT INTO parent VALUES (5)")
        self.replay(place)
        place.sql("UPDATE t SET parent = NULL")
        place.sql("DELETE FROM parent WHERE id = 5")
        place.run(rows)
        place.sql("INSERT INTO parent VALUES (5)")
        self.replay(place)
        assert place.rows() == [(2, "a")] * 9

    @pytest.mark.parametrize("is_fixed", [False, True])
    def test_restarted_run_does_not_double_events(self, place, is_fixed):
        rows = [row(2, parent=5) for _ in range(9)]
        pipeline = place.pipeline(rows)
        with pytest.raises(redrive.RunStopped):
            pipeline.run(watch=lambda progress: pipeline.stop())
        assert 0 < place.store.dlq.count() < 9
        if is_fixed:
            place.sql("INSERT INTO parent VALUES (5)")
        place.pipeline(rows).run(restart=True)
        if not is_fixed:
            place.sql("INSERT INTO parent VALUES (5)")
        self.replay(place)
        assert place.rows() == [(2, "a")] * 9

    def test_resumed_run_does_not_double_letters(self, place):
        rows = [row(n % 2, "bad") for n in range(9)]
        pipeline = place.pipeline(rows)
        with pytest.raises(redrive.RunStopped):
            pipeline.run(watch=lambda progress: pipeline.stop())
        assert place.store.dlq.count() < 9
        place.run(rows)
        assert [letter.seen for letter in place.store.dlq.each()] == [1] * 9


class TestBatchLog:
    def test_old_labels_of_other_runs_are_removed(self, place):
        place.run([row(n) for n in range(6)])
        place.sql("UPDATE redrive_batches SET written_at = '2020-01-01T00:00:00+00:00'")
        assert place.sql("SELECT count(*) FROM redrive_batches") == [(2,)]
        place.run([row(9)])
        assert place.sql("SELECT count(*) FROM redrive_batches") == [(1,)]


class TestPostgresql:
    def test_batches_are_in_the_schema_of_the_table(self, new_store, store):
        with new_store("postgresql") as other, postgresql(other) as (url, execute):
            execute("CREATE SCHEMA silver")
            execute("CREATE TABLE silver.t (id integer)")
            sink = redrive.rows.table(url, "silver.t", append=True)
            source = redrive.rows.records([{"id": 1}], name="rows")
            redrive.Pipeline("load", source=source, sink=sink, store=store).run()
            assert execute("SELECT count(*) FROM silver.redrive_batches") == [(1,)]
            execute("DROP SCHEMA silver CASCADE")

    def test_row_that_a_trigger_leaves_out_is_discarded(self, new_store, store):
        with new_store("postgresql") as other, postgresql(other) as (url, execute):
            execute("CREATE TABLE t (id integer)")
            execute(
                "CREATE FUNCTION leave_out() RETURNS trigger LANGUAGE plpgsql AS "
                "'BEGIN IF NEW.id = 2 THEN RETURN NULL; END IF; RETURN NEW; END'"
            )
            execute("CREATE TRIGGER x BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION leave_out()")
            sink = redrive.rows.table(url, "t", append=True)
            source = redrive.rows.records([{"id": 1}, {"id": 2}, {"id": 1}], name="rows")
            report = redrive.Pipeline("load", source=source, sink=sink, store=store).run()
            assert (report.written, report.discarded) == (2, 1)
            execute("DROP FUNCTION leave_out CASCADE")

    def test_role_without_create_right_cannot_append(self, new_store):
        role = f"limited_{uuid.uuid4().hex[:8]}"
        with new_store("postgresql") as other, postgresql(other) as (url, execute):
            execute("CREATE TABLE t (id integer)")
            execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
            execute(f"CREATE ROLE {role}")
            execute(f"GRANT USAGE ON SCHEMA public TO {role}")
            execute(f"GRANT SELECT, INSERT ON t TO {role}")
            sink = redrive.rows.table(f"{url}?options=-c%20role%3D{role}", "t", append=True)
            rows = Outgoing.of_records([{"id": 1}], range(1))
            with pytest.raises(SinkMismatch, match="needs a table redrive_batches beside it") as told:
                sink.write(rows, label="x-1")
            execute(str(told.value).rpartition("write it: ")[2])
            execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON redrive_batches TO {role}")
            sink.write(rows, label="x-1")
            sink.close()
            assert execute("SELECT id FROM t") == [(1,)]
            execute(f"DROP OWNED BY {role}")
            execute(f"DROP ROLE {role}")


class TestSqlite:
    def test_row_that_a_trigger_leaves_out_is_discarded(self, tmp_path, store):
        with sqlite(tmp_path / "t.db") as (url, execute):
            execute("CREATE TABLE t (id integer)")
            execute(
                "CREATE TRIGGER x BEFORE INSERT ON t WHEN new.id = 2 BEGIN SELECT RAISE(IGNORE); END",
            )
            sink = redrive.rows.table(url, "t", append=True)
            source = redrive.rows.records([{"id": 1}, {"id": 2}, {"id": 1}], name="rows")
            report = redrive.Pipeline("load", source=source, sink=sink, store=store).run()
            assert (report.written, report.discarded) == (2, 1)

    def test_table_that_ends_transactions_is_rejected(self, tmp_path):
        with sqlite(tmp_path / "t.db") as (url, execute):
            execute("CREATE TABLE t (id integer UNIQUE ON CONFLICT ROLLBACK)")
            with pytest.raises(SinkMismatch, match="answers a bad row with ROLLBACK"):
                redrive.rows.table(url, "t", append=True).check(("id",))


class TestRejectedOptions:
    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({}, "needs key, .* or append=True"),
            ({"key": "id", "append": True}, "leave out key, or append=True"),
            ({"append": True, "on_conflict": "ignore"}, "cannot be combined with on_conflict"),
            ({"append": True, "newer": "seq"}, "cannot be combined with on_conflict, newer"),
            ({"append": True, "delete_when": "deleted"}, "cannot be combined with .* delete_when"),
        ],
    )
    def test_invalid_options_raise_one_sentence(self, options, sentence):
        with pytest.raises(ValueError, match=sentence):
            redrive.rows.table(URL, "t", **options)

    def test_append_must_be_a_flag(self):
        with pytest.raises(TypeError, match="append is True or False, not 'yes'"):
            redrive.rows.table(URL, "t", append="yes")

    def test_other_databases_are_rejected(self):
        with pytest.raises(ValueError, match="append is for PostgreSQL, SQLite and DuckDB, not for mysql"):
            redrive.rows.table("mysql+pymysql://u@h/d", "t", append=True)

    def test_rule_for_duplicates_is_rejected(self):
        sink = redrive.rows.table(URL, "t", append=True)
        with pytest.raises(ValueError, match="on_duplicate='first' has no meaning"):
            redrive.Pipeline("x", source=redrive.rows.records([], name="x"), sink=sink, on_duplicate="first")

    def test_query_that_reads_rows_again_is_rejected(self):
        sink = redrive.rows.table(URL, "t", append=True)
        source = redrive.rows.query(URL, "SELECT * FROM s", watermark="at", key="id", lag=60)
        with pytest.raises(ValueError, match="leave out lag, or name a key"):
            redrive.Pipeline("x", source=source, sink=sink)
