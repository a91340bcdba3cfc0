"""What a table does with a row of an existing key: update it, keep it, compare it, delete it."""

import datetime as dt

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import redrive
from redrive.errors import SinkMismatch
from redrive.rows.batch import Outgoing
from tests.support.examples import examples
from tests.support.table_places import PLACES, place_of

COUNTED = ("read", "written", "rejected", "discarded", "duplicates")
URL = "sqlite:///t.db"
few_examples = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
    max_examples=examples(6),
)


class Place:
    """A database with a table, and pipelines into it."""

    def __init__(self, url, execute, store):
        self.url, self.sql, self.store = url, execute, store
        self._runs = 0

    def sink(self, table="t", **mode):
        return redrive.rows.table(self.url, table, key="id", **mode)

    def run(self, rows, *, batch=40_000, **mode):
        self._runs += 1
        pipeline = redrive.Pipeline(
            f"load-{self._runs}",
            source=redrive.rows.records(rows, name="rows"),
            sink=self.sink(**mode),
            store=self.store,
            batch=batch,
            gate=redrive.Gate(abort=1),
        )
        report = pipeline.run()
        assert report.read == report.written + report.rejected + report.discarded + report.duplicates
        return {name: getattr(report, name) for name in COUNTED}

    def rows(self):
        return {key: (v, at) for key, v, at in self.sql("SELECT id, v, seq FROM t")}


@pytest.fixture(params=PLACES)
def place(request, new_store, tmp_path):
    with place_of(request.param, new_store, tmp_path) as (store, url, execute):
        execute("CREATE TABLE t (id integer PRIMARY KEY, v text CHECK (v <> 'bad'), seq integer)")
        yield Place(url, execute, store)


def row(key, v, at=0, **more):
    return {"id": key, "v": v, "seq": at, **more}


class TestIgnore:
    def test_row_that_is_there_stays(self, place):
        place.sql("INSERT INTO t VALUES (1, 'old', 0)")
        counts = place.run([row(1, "new"), row(2, "new"), row(3, "bad")], on_conflict="ignore")
        assert place.rows() == {1: ("old", 0), 2: ("new", 0)}
        assert counts == {"read": 3, "written": 1, "rejected": 1, "discarded": 0, "duplicates": 1}

    @pytest.mark.parametrize("batch", [1, 2, 40_000])
    def test_first_row_of_a_key_wins_in_any_batch(self, place, batch):
        counts = place.run([row(1, "a"), row(2, "b"), row(1, "c"), row(1, "d")], on_conflict="ignore", batch=batch)
        assert place.rows() == {1: ("a", 0), 2: ("b", 0)}
        assert counts == {"read": 4, "written": 2, "rejected": 0, "discarded": 0, "duplicates": 2}

    def test_second_run_changes_nothing(self, place):
        rows = [row(n, "a") for n in range(9)]
        assert place.run(rows, on_conflict="ignore", batch=4)["written"] == 9
        counts = place.run(rows, on_conflict="ignore", batch=4)
        assert (counts["written"], counts["duplicates"]) == (0, 9)


class TestNewer:
    def test_only_a_newer_row_replaces(self, place):
        place.sql("INSERT INTO t VALUES (1, 'old', 5), (2, 'old', 5), (3, 'old', 5), (4, 'old', NULL)")
        rows = [row(1, "new", 6), row(2, "same", 5), row(3, "older", 4), row(4, "first", 1), row(5, "added", 1)]
        counts = place.run([*rows, row(1, "bad", 9)], newer="seq", batch=5)
        assert place.rows() == {1: ("new", 6), 2: ("old", 5), 3: ("old", 5), 4: ("first", 1), 5: ("added", 1)}
        assert counts == {"read": 6, "written": 3, "rejected": 1, "discarded": 0, "duplicates": 2}

    def test_text_of_a_number_is_compared_as_a_number(self, place):
        place.run([row(1, "ten", "10"), row(1, "nine", "9")], newer="seq")
        assert place.rows() == {1: ("ten", 10)}

    @settings(
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
        deadline=None,
        max_examples=examples(6),
    )
    @given(
        rows=st.lists(
            st.tuples(st.integers(1, 3), st.sampled_from("abc"), st.none() | st.integers(0, 5)), min_size=1, max_size=8
        ),
        batch=st.integers(1, 8),
    )
    def test_newest_row_of_a_key_wins_in_any_batch(self, place, rows, batch):
        place.sql("DELETE FROM t")
        counts = place.run([row(*one) for one in rows], newer="seq", batch=batch)
        wanted = {}
        for key, v, at in rows:
            if key not in wanted or wanted[key][1] is None or (at is not None and at > wanted[key][1]):
                wanted[key] = (v, at)
        assert place.rows() == wanted
        assert counts["written"] == len(wanted)

    def test_numbers_in_a_text_column_are_rejected(self, place):
        place.sql("CREATE TABLE texts (id integer PRIMARY KEY, v text, seq text)")
        with pytest.raises(redrive.RunStopped, match="texts such as '9' do not sort by what they mean"):
            place.run([row(1, "old", "9"), row(1, "new", "10")], newer="seq", table="texts")
        assert place.sql("SELECT * FROM texts") == []

    @pytest.mark.parametrize("batch", [1, 2, 40_000])
    def test_text_column_takes_times_in_one_format(self, place, batch):
        place.sql("CREATE TABLE texts (id integer PRIMARY KEY, v text, seq text)")
        rows = [
            row(1, "old", "2026-07-01T12:00:00Z"),
            row(1, "new", "2026-07-02T12:00:00Z"),
            row(1, "older", "2026-06-01T12:00:00Z"),
            row(1, "other form", "2027-07-02 12:00:00"),
            row(1, "no time", "later"),
            row(1, "none", None),
        ]
        counts = place.run(rows, newer="seq", batch=batch, table="texts")
        assert place.sql("SELECT v FROM texts") == [("new",)]
        assert counts["rejected"] == 2

    def test_padding_of_a_char_column_is_ignored(self, place):
        place.sql("CREATE TABLE texts (id integer PRIMARY KEY, v text, seq char(30))")
        for day, v in ((2, "old"), (3, "new"), (1, "older")):
            place.run([row(1, v, f"2026-07-0{day}")], newer="seq", table="texts")
        assert place.sql("SELECT v FROM texts") == [("new",)]

    def test_stored_texts_decide_on_the_form(self, place):
        place.sql("CREATE TABLE texts (id integer PRIMARY KEY, v text, seq text)")
        place.sql("INSERT INTO texts VALUES (1, 'old', '2026-07-01 12:00')")
        assert place.run([row(1, "new", "2026-07-02T12:00:00Z")], newer="seq", table="texts")["rejected"] == 1
        place.sql("UPDATE texts SET seq = '9'")
        with pytest.raises(redrive.RunStopped, match="texts such as '9'"):
            place.run([row(1, "new", "2026-07-02 12:00")], newer="seq", table="texts")

    @pytest.mark.parametrize("batch", [1, 40_000])
    def test_row_is_not_compared_with_a_text_of_another_form(self, place, batch):
        place.sql("CREATE TABLE texts (id integer PRIMARY KEY, v text, seq text)")
        stored = {
            1: ("old", "2026-07-01T01:00:00Z"),
            2: ("newer", "2026-07-01 12:00:00"),
            3: ("older", "2026-07-01T12:00:00+05:30"),
            4: ("no time", "later"),
            5: ("none", None),
        }
        for key, (v, at) in stored.items():
            place.sql(f"INSERT INTO texts VALUES ({key}, '{v}', {'NULL' if at is None else repr(at)})")
        rows = [row(key, "in", "2026-07-01T08:00:00Z") for key in ("1", 2, 3, 4, 5, 6, "x")]
        counts = place.run(rows, newer="seq", batch=batch, table="texts")
        assert dict(place.sql("SELECT id, v FROM texts")) == {
            1: "in",
            2: "newer",
            3: "older",
            4: "no time",
            5: "in",
            6: "in",
        }
        assert (counts["written"], counts["rejected"]) == (3, 4)
        messages = [letter.error_message for letter in place.store.dlq.each(status="any")]
        assert sum("which the table has for this key" in message for message in messages) == 3

    def test_row_is_not_deleted_by_a_text_of_another_form(self, place):
        place.sql("CREATE TABLE texts (id integer PRIMARY KEY, v text, seq text)")
        place.sql("INSERT INTO texts VALUES (1, 'a', '2026-07-01T01:00:00Z')")
        place.sql("INSERT INTO texts VALUES (2, 'newer', '2026-07-01 12:00:00')")
        rows = [row(key, None, "2026-07-01T08:00:00Z", op="D") for key in (1, 2)]
        counts = place.run(rows, newer="seq", delete_when={"op": "D"}, table="texts")
        assert place.sql("SELECT v FROM texts") == [("newer",)]
        assert (counts["discarded"], counts["rejected"]) == (1, 1)

    @pytest.mark.parametrize("zone", [None, dt.UTC])
    def test_times_in_a_text_column_keep_the_written_form(self, place, zone):
        place.sql("CREATE TABLE texts (id integer PRIMARY KEY, v text, seq text)")
        for day in (2, 3, 1):
            at = dt.datetime(2026, 7, day, 12, tzinfo=zone)
            assert place.run([row(1, f"day {day}", at)], newer="seq", table="texts")["rejected"] == 0
        assert place.sql("SELECT v FROM texts") == [("day 3",)]

    def test_json_column_is_rejected(self, place):
        if place.url.startswith("sqlite"):
            pytest.skip("SQLite has no type for JSON")
        place.sql("CREATE TABLE texts (id integer PRIMARY KEY, v text, seq json)")
        place.sql("INSERT INTO texts VALUES (1, 'ten', '10')")
        with pytest.raises(redrive.RunStopped, match="do not sort by what they mean"):
            place.run([row(1, "nine", 9)], newer="seq", table="texts")
        assert place.sql("SELECT v FROM texts") == [("ten",)]

    def test_rows_without_the_column_are_a_mismatch(self, place):
        with pytest.raises(redrive.RunStopped, match="updated where 'seq' is newer"):
            place.run([{"id": 1, "v": "a"}], newer="seq")

    def test_other_rule_for_duplicates_is_rejected(self):
        sink = redrive.rows.table(URL, "t", key="id", newer="seq")
        with pytest.raises(ValueError, match="on_duplicate='first' has no meaning"):
            redrive.Pipeline("x", source=redrive.rows.records([], name="x"), sink=sink, on_duplicate="first")


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("mode", [{"on_conflict": "ignore"}, {"newer": "seq"}], ids=["ignore", "newer"])
def test_invalid_row_of_an_existing_key_is_rejected(place, mode, batch):
    place.sql("INSERT INTO t VALUES (1, 'old', 5)")
    counts = place.run([row(1, "bad", 1), row(2, "new", 1)], batch=batch, **mode)
    assert (counts["rejected"], counts["written"]) == (1, 1)


class TestDeleteWhen:
    @pytest.mark.parametrize("batch", [1, 2, 40_000])
    def test_last_row_of_a_key_decides(self, place, batch):
        place.sql("INSERT INTO t VALUES (1, 'old', 0), (2, 'old', 0), (3, 'old', 0)")
        rows = [
            row(1, "x", deleted=True),
            row(2, "new", deleted=False),
            row(4, "added", deleted=None),
            row(4, "gone", deleted="yes"),
            row(1, "back", deleted="0"),
            row(9, None, deleted=True),
        ]
        place.run(rows, delete_when="deleted", batch=batch)
        assert place.rows() == {1: ("back", 0), 2: ("new", 0), 3: ("old", 0)}

    @pytest.mark.parametrize("batch", [1, 2, 40_000])
    def test_key_that_is_written_again_counts_once(self, place, batch):
        rows = [row(1, "a", op="I"), row(2, "b", op="I"), row(3, "c", op="D"), row(3, "d", op="I"), row(1, "e", op="U")]
        counts = place.run(rows, delete_when={"op": "D"}, batch=batch)
        assert place.rows() == {1: ("e", 0), 2: ("b", 0), 3: ("d", 0)}
        assert (counts["written"], counts["discarded"] + counts["duplicates"]) == (3, 2)

    @few_examples
    @given(
        rows=st.lists(st.tuples(st.integers(1, 2), st.sampled_from(["a", "b", "gone"])), min_size=1, max_size=6),
        batch=st.integers(1, 6),
    )
    def test_rows_kept_in_the_table_are_counted_in_any_batch(self, place, rows, batch):
        place.sql("DELETE FROM t")
        place.sql("INSERT INTO t VALUES (1, 'old', 0)")
        records = [row(key, v, op="D" if v == "gone" else "U") for key, v in rows]
        counts = place.run(records, delete_when={"op": "D"}, batch=batch)
        wanted = dict(rows)
        assert counts["written"] == sum(v != "gone" for v in wanted.values())
        left = {1: "old", **wanted}
        assert place.rows() == {key: (v, 0) for key, v in left.items() if v != "gone"}

    @pytest.mark.parametrize("batch", [1, 40_000])
    def test_row_behind_a_newer_deletion_counts_as_written(self, place, batch):
        counts = place.run(
            [row(4, None, 5, op="D"), row(4, "a", 3, op="I")], newer="seq", delete_when={"op": "D"}, batch=batch
        )
        assert place.rows() == {4: ("a", 3)}
        assert (counts["written"], counts["discarded"]) == (1, 1)

    def test_row_equal_to_the_stored_one_counts_as_written(self, place):
        rows = [row(1, "a", op="I"), row(2, "b", op="I")]
        assert place.run(rows, delete_when={"op": "D"})["written"] == 2
        assert place.run(rows, delete_when={"op": "D"})["written"] == 2

    def test_deletions_count_as_discarded(self, place):
        place.sql("INSERT INTO t VALUES (1, 'old', 0)")
        rows = [row(1, None, op="D"), row(2, "a", op="I"), row(3, "b", op="U"), row(4, "bad", op="I")]
        counts = place.run(rows, delete_when={"op": "D"})
        assert place.rows() == {2: ("a", 0), 3: ("b", 0)}
        assert counts == {"read": 4, "written": 2, "rejected": 1, "discarded": 1, "duplicates": 0}

    def test_mark_that_is_neither_yes_nor_no_is_rejected(self, place):
        counts = place.run([row(1, "a", deleted="maybe"), row(2, "b", deleted="no")], delete_when="deleted")
        assert (place.rows(), counts["rejected"]) == ({2: ("b", 0)}, 1)

    def test_row_that_others_refer_to_is_rejected(self, place):
        place.sql("CREATE TABLE child (id integer PRIMARY KEY, t integer REFERENCES t (id))")
        place.sql("INSERT INTO t VALUES (1, 'a', 0), (2, 'b', 0)")
        place.sql("INSERT INTO child VALUES (1, 1)")
        counts = place.run([row(1, None, op="D"), row(2, None, op="D")], delete_when={"op": ["D", "d"]})
        assert (place.rows(), counts["rejected"], counts["discarded"]) == ({1: ("a", 0)}, 1, 1)

    def test_key_invalid_for_its_column_is_rejected(self, place):
        place.sql("INSERT INTO t VALUES (1, 'a', 0)")
        counts = place.run([row("1", None, op="D"), row("x", None, op="D")], delete_when={"op": "D"})
        assert place.rows() == {}
        assert counts["rejected"] == (0 if place.url.startswith("sqlite") else 1)

    def test_older_deletion_is_left_out(self, place):
        place.sql("INSERT INTO t VALUES (1, 'a', 5), (2, 'b', 5)")
        place.run([row(1, None, 4, op="D"), row(2, None, 6, op="D")], delete_when={"op": "D"}, newer="seq")
        assert place.rows() == {1: ("a", 5)}

    def test_dry_run_deletes_nothing(self, place):
        place.sql("INSERT INTO t VALUES (1, 'a', 5)")
        sink = place.sink(delete_when={"op": "D"})
        assert list(sink.rehearse(Outgoing.of_records([row(1, None, op="D")], range(1)))) == []
        sink.close()
        assert place.rows() == {1: ("a", 5)}


class TestRejectedOptions:
    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"on_conflict": "replace"}, 'on_conflict must be "update" or "ignore"'),
            ({"on_conflict": "ignore", "newer": "seq"}, "cannot be combined"),
            ({"newer": "id"}, "part of the key"),
            ({"delete_when": "id"}, "part of the key"),
            ({"newer": 7}, "name of a column"),
            ({"delete_when": 7}, "delete_when is a column"),
        ],
    )
    def test_invalid_options_raise_one_sentence(self, options, sentence):
        with pytest.raises(ValueError, match=sentence):
            redrive.rows.table(URL, "t", key="id", **options)

    def test_other_databases_are_rejected(self):
        with pytest.raises(ValueError, match="for PostgreSQL, SQLite and DuckDB, not for mysql"):
            redrive.rows.table("mysql+pymysql://u@h/d", "t", key="id", on_conflict="ignore")

    def test_missing_key_is_still_a_mismatch(self, tmp_path):
        sink = redrive.rows.table(f"sqlite:///{tmp_path}/t.db", "t", key="id", create=True, delete_when="deleted")
        with pytest.raises(SinkMismatch, match="lack column 'id'"):
            sink.check(("v", "deleted"))
