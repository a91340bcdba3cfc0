"""DuckDB as a sink: a file used by one process at a time, frames read in place."""

import random
import subprocess
import threading
from datetime import date
from decimal import Decimal

import duckdb
import polars as pl
import pytest

from redrive.errors import SinkMismatch, StoreError
from redrive.model.calls import Kind
from redrive.rows.batch import Outgoing
from redrive.rows.sinks.table import table
from tests.support.warm_python import warm_python


def rows_of(records):
    return Outgoing.of_records(records, range(len(records)))


def frame_of(records):
    return Outgoing.of_frame(pl.DataFrame(records, infer_schema_length=None), range(len(records)))


def places(refused):
    return [one.place for one in refused]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data.duckdb"


@pytest.fixture
def sql(path):
    def run(statement):
        with duckdb.connect(str(path)) as connection:
            return connection.execute(statement).fetchall()

    return run


@pytest.fixture
def sink(path):
    made = []

    def make(name="t", *, key="id", **options):
        made.append(table(f"duckdb:///{path}", name, key=key, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


class Counting:
    """A connection that counts its statements."""

    def __init__(self, connection):
        self._connection, self.calls = connection, 0

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def execute(self, *args):
        self.calls += 1
        return self._connection.execute(*args)


@pytest.mark.slow
def test_ten_bad_rows_in_fifty_thousand_cost_few_statements(sql, sink, monkeypatch):
    sql("CREATE TABLE city (id integer PRIMARY KEY)")
    sql("INSERT INTO city SELECT * FROM range(100)")
    sql(
        """CREATE TABLE t (id integer PRIMARY KEY, city integer REFERENCES city (id), vendor text NOT NULL,
                           fee decimal(8, 2) CHECK (fee >= 0))"""
    )
    bad = sorted(random.Random(4).sample(range(50_000), 10))
    faults = [{"city": 777}, {"fee": -1.0}, {"fee": 12345678.9}, {"vendor": None}]
    records = [{"id": n, "city": n % 100, "fee": 1.5, "vendor": "x"} for n in range(50_000)]
    for at, place in enumerate(bad):
        records[place] |= faults[at % 4]
    real, connections = duckdb.connect, []

    def connect(*args):
        connections.append(Counting(real(*args)))
        return connections[-1]

    monkeypatch.setattr(duckdb, "connect", connect)
    target = sink()
    target.check(tuple(records[0]))
    (connection,) = connections
    for rows in (frame_of(records), rows_of(records)):
        connection.calls = 0
        refused = target.write(rows, label="a")
        assert places(refused) == bad
        assert connection.calls <= 200
        assert connection.execute("SELECT count(*) FROM t").fetchall() == [(49_990,)]
    assert refused[0].error == "FOREIGN KEY (city) REFERENCES city(id) failed: '777' is not present"
    assert "fee >= 0" in refused[1].error
    assert refused[2].error == "fee: could not convert '12345678.9' to DECIMAL(8,2)"
    assert refused[3].error == "NOT NULL constraint failed: vendor"


def test_rows_that_no_query_can_identify_are_searched_for(sql, sink):
    sql(
        "CREATE TABLE t (id integer PRIMARY KEY, a text UNIQUE, least integer DEFAULT 3, n integer, CHECK (n >= least))"
    )
    records = [{"id": n, "a": str(n % 300), "n": 0 if n == 7 else 5} for n in range(310)]
    assert places(sink().write(frame_of(records), label="a")) == [7, *(n for n in range(300, 310) if n != 307)]


def test_columns_of_lists_and_structs_accept_them_unchanged(sql, sink):
    sql("CREATE TABLE t (id integer PRIMARY KEY, l integer[], s STRUCT(a integer, b text), v text)")
    tree = {"a": 1, "b": "it's"}
    records = [{"id": 1, "l": [1, 2], "s": tree, "v": tree}, {"id": 2, "l": None, "s": None, "v": None}]
    for rows in (frame_of(records), rows_of(records)):
        assert list(sink().write(rows, label="a")) == []
        assert sql("SELECT l, s, v FROM t WHERE id = 1") == [([1, 2], tree, '{"a":1,"b":"it\'s"}')]


def test_columns_of_several_types_are_read_one_by_one(sql, sink):
    sql("CREATE TABLE t (id integer PRIMARY KEY, n double, h hugeint)")
    values = [(1, 2**100), ("2.5", 1), (3.5, None), (None, 2), ("none", 3)]
    rows = Outgoing(("id", "n", "h"), range(5), tuples=[(at, *row) for at, row in enumerate(values)])
    refused = sink().write(rows, label="a")
    assert places(refused) == [4]
    assert "n: could not convert 'none' to DOUBLE" in refused[0].error
    assert sql("SELECT n, h FROM t ORDER BY id") == [(1.0, 2**100), (2.5, 1), (3.5, None), (None, 2)]


def test_missing_schema_is_reported(sql, sink):
    sql("SELECT 1")
    with pytest.raises(SinkMismatch, match=r'has no schema silver; make it: CREATE SCHEMA "silver"'):
        sink("silver.t", create=True).check(("id",))


# ── the file ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_file_or_directory_is_created_by_default(tmp_path):
    with pytest.raises(SinkMismatch, match=r"there is no database .*missing\.duckdb; name another file"):
        table(f"duckdb:///{tmp_path}/missing.duckdb", "t", key="id").check(("id",))
    with pytest.raises(SinkMismatch, match=r"the directory .*no does not exist"):
        table(f"duckdb:///{tmp_path}/no/such.duckdb", "t", key="id", create=True).check(("id",))
    assert list(tmp_path.iterdir()) == []


def test_file_that_is_no_database_is_one_sentence(path, sink):
    path.write_text("a diary, perhaps " * 1_000)
    with pytest.raises(StoreError, match="not a valid DuckDB database file") as told:
        sink(patience=0.1).check(("id",))
    assert "\n" not in str(told.value)
    assert told.value.kind is Kind.PERMANENT


def test_directory_is_no_database(tmp_path):
    with pytest.raises(SinkMismatch, match="is a directory"):
        table(f"duckdb:///{tmp_path}", "t", key="id").check(("id",))


HOLDER = """
import duckdb, sys
with duckdb.connect(sys.argv[1]) as connection:
    connection.execute("CREATE TABLE IF NOT EXISTS t (id integer PRIMARY KEY)")
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.process
def test_file_locked_by_another_process_is_waited_for(path, sink):
    holder = subprocess.Popen(warm_python("-c", HOLDER, path), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match=r"[Ll]ock") as told:
            sink(patience=0.2).check(("id",))
        assert told.value.kind is Kind.TRANSIENT
        assert "\n" not in str(told.value)
        leaving = threading.Timer(0.3, lambda: holder.communicate("\n"))
        leaving.start()
        assert list(sink(patience=60).write(rows_of([{"id": 1}]), label="a")) == []
        leaving.join()


@pytest.mark.process
def test_closed_sink_leaves_the_file_to_others(path, sql, sink):
    sql("CREATE TABLE t (id integer PRIMARY KEY)")
    target = sink()
    target.write(rows_of([{"id": 1}]), label="a")
    target.close()
    code = f"import duckdb; print(duckdb.connect({str(path)!r}).execute('SELECT count(*) FROM t').fetchone())"
    found = subprocess.run(warm_python("-c", code), capture_output=True, text=True, check=True)
    assert found.stdout == "(1,)\n"


def test_two_sinks_of_one_process_share_the_file(sql, sink):
    sql("CREATE TABLE t (id integer PRIMARY KEY, who integer)")
    failures = []

    def write(who):
        target = sink()
        try:
            for _ in range(5):
                failures.extend(target.write(rows_of([{"id": n, "who": who} for n in range(20)]), label="a"))
        except Exception as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(who,)) for who in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failures == []
    assert sql("SELECT count(*) FROM t") == [(20,)]


# ── values ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def stored(sql, sink, kind, values):
    """Write values; return the stored ones as texts, and the positions of the rejected ones."""
    sql(f"CREATE OR REPLACE TABLE t (id integer PRIMARY KEY, v {kind})")
    target = sink()
    refused = target.write(Outgoing(("id", "v"), range(len(values)), tuples=list(enumerate(values))), label="a")
    target.close()
    return [value for (value,) in sql("SELECT CAST(v AS varchar) FROM t ORDER BY id")], places(refused)


@pytest.mark.parametrize(
    ("kind", "values", "found", "refused"),
    [
        (
            "DECIMAL(20, 5)",
            [Decimal("NaN"), Decimal("1E-40"), Decimal("1E+40"), Decimal("1.5")],
            "1.50000",
            [0, 1, 2],
        ),
        ("DOUBLE", [Decimal("1.1"), Decimal("1E-40")], "1.1 1e-40", []),
        ("VARCHAR", [Decimal("1.50"), Decimal("1E+40")], "1.50 1E+40", []),
        ("BIGINT", [1.5, 2**53 + 1], "9007199254740993", [0]),
        ("INTEGER", ["1.5", "2", "1e2", Decimal("2.5")], "2 100", [0, 3]),
        ("VARCHAR", [1.5, 2**53 + 1, True], "1.5 9007199254740993 true", []),
        ("BLOB", [bytearray(b"ab")], "ab", []),
        ("MAP(VARCHAR, INTEGER)", [{"a": 1}, {"b": 2}], "{a=1} {b=2}", []),
        ("INTEGER[]", [[1], ["2"], [2.5]], "[1] [2]", [2]),
    ],
)
def test_values_are_written_unchanged(sql, sink, kind, values, found, refused):
    assert stored(sql, sink, kind, values) == (found.split(), refused)


def test_object_has_its_fields_whatever_objects_came_before(sql, sink):
    values = [{"a": 1}, {"a": 2, "b": "x"}, {"b": "y"}, {"a": 1, "c": "no field"}]
    found, refused = stored(sql, sink, "STRUCT(a INTEGER, b VARCHAR)", values)
    assert found == ["{'a': 1, 'b': NULL}", "{'a': 2, 'b': x}", "{'a': NULL, 'b': y}"]
    assert refused == [3]


# By type: values that are kept, and values that are rejected.
MIXED = {
    "VARIANT": (
        [1, 1.5, "1", True, {"a": [1, "x", None]}, [], 2**63, None, '{"a": 1}'],
        [Decimal("1.5"), b"a", date(2026, 7, 1), 2**64, {1: 2}, {"at": date(2026, 7, 1)}, float("nan")],
    ),
    "UNION(num INTEGER, str VARCHAR)": (
        ["x", {"num": 1}, {"str": "1"}, None],
        [1, {"num": 1.5}, {"x": 1}, [1], {}],
    ),
    "UNION(num INTEGER, str VARCHAR)[]": ([["x", {"num": 1}], [], None], [[1], "[1]", [{"num": 0.5}]]),
    "STRUCT(u UNION(num INTEGER, str VARCHAR))": ([{"u": {"num": 1}}, {"u": "x"}], [{"u": 1}, "{'u': 1}"]),
    "VARIANT[]": ([None], [[1], [], "[1]", 1]),
    "STRUCT(a BLOB)": ([{"a": "x"}], [{"a": 1}, {"a": "\\x61"}]),
    # A text is read as DuckDB writes lists and structs, never as JSON.
    "INTEGER[]": ([[1], [], [None], None], ["null", " null ", "[x]", ["null"]]),
    "STRUCT(a INTEGER)": ([{"a": 1}, {"a": None}, None], ["null", '{"a": 1, "b": 2}', {"a": "null"}]),
    "STRUCT(a INTEGER)[]": ([[{"a": 1}], None], ["null", "['null']", "[1]"]),
    "MAP(VARCHAR, VARCHAR)": ([{"k": "null"}, None], ["null", '{"k": null}']),
}
MEMBERS = ({"num": 1}, {"str": "1"})


class TestTextsOfNestedTypes:
    """DuckDB drops quotes and escapes within values, the first of two fields of one name, and fields without names."""

    @pytest.mark.parametrize(
        ("kind", "kept", "rejected"),
        [
            (
                "VARCHAR[]",
                ["['a b', c]", '["a"]', r"['it\'s']", r"['a\\b']", r"[a\b]", "[]", "[NULL, 'NULL']"],
                ["['a''b']", '[a"b"]', "['a' b]", r"['a\b']", "['x']y"],
            ),
            (
                "STRUCT(a VARCHAR, b VARCHAR)",
                ["{'a': 1, 'b': 2}", "{a: x}", "{'b': 'a: 1, a: 2'}"],
                ["{'a': 1, 'a': 2}", '{a: 1, "a": 2}', "(1)", "(1, 2)", "(,)"],
            ),
            (
                "STRUCT(a INTEGER)[]",
                ["[{'a': 1}, {'a': 2}]"],
                ["[{'a': 1, 'a': 2}]", "[(1)]", "[{'a': 1}, {'a': 1, 'a': 3}]"],
            ),
            ("MAP(VARCHAR, STRUCT(a INTEGER))", ["{k={'a': 1}, l={'a': 2}}"], ["{k={'a': 1, 'a': 2}}"]),
            ("BIT", ["0101"], ["x1f", "b101", "0 1"]),
        ],
    )
    def test_text_is_kept_whole_or_rejected(self, sql, sink, kind, kept, rejected):
        sql(f"CREATE TABLE t (id INTEGER PRIMARY KEY, v {kind})")
        target = sink()
        rows = [{"id": number, "v": value} for number, value in enumerate([*kept, *rejected])]
        bad = list(range(len(kept), len(rows)))
        assert places(target.write(rows_of(rows), label="b")) == bad
        frame = Outgoing.of_frame(pl.DataFrame(rows), range(len(rows)))
        assert places(target.write(frame, label="c")) == bad
        target.close()


class TestMixedTypes:
    """What DuckDB would choose by the rows beside a value, the value itself decides."""

    @pytest.mark.parametrize("kind", MIXED)
    def test_value_is_unchanged_or_rejected_beside_any_other(self, sql, sink, kind):
        kept, rejected = MIXED[kind]
        sql(f"CREATE TABLE t (id INTEGER PRIMARY KEY, v {kind})")
        target, values = sink(), [*kept, *rejected]
        together = [{"id": number, "v": value} for number, value in enumerate(values)]
        bad = range(len(kept), len(values))
        assert places(target.write(rows_of(together), label="b")) == list(bad)
        for number, value in enumerate(values):
            refused = target.write(rows_of([{"id": 100 + number, "v": value}]), label=f"b{number}")
            assert [one.error.partition(":")[0] for one in refused] in ([], ["v"], ["Conversion Error"])
            assert bool(refused) == (number in bad)
        target.close()
        found = dict(sql("SELECT id, v FROM t"))
        expected = [self._read(value) for value in kept]
        assert [found[number] for number in range(len(kept))] == expected
        assert [found[100 + number] for number in range(len(kept))] == expected
        assert [type(found[number]) for number in range(len(kept))] == list(map(type, expected))

    def _read(self, value):
        if isinstance(value, list):
            return [self._read(one) for one in value]
        if value in MEMBERS:
            return next(iter(value.values()))
        if value == {"a": "x"}:
            return {"a": b"x"}
        return {"u": self._read(value["u"])} if isinstance(value, dict) and "u" in value else value


def test_text_of_a_list_is_the_same_list_beside_other_lists(sql, sink):
    assert stored(sql, sink, "JSON[]", ["[1, null]"]) == (["[1, null]"], [])
    assert stored(sql, sink, "JSON[]", ["[1, null]", [{"a": 1}]]) == (["[1, null]", '[{"a":1}]'], [])


def test_list_nanoseconds_and_bytes_are_exact_or_rejected(sql, sink):
    length = pl.Series("v", [[5]], dtype=pl.List(pl.Duration("ns")))
    target = sink(create=True)
    assert list(target.write(Outgoing.of_frame(pl.DataFrame({"id": [1], "v": length}), [0]), label="b")) == []
    assert places(target.write(Outgoing.of_frame(pl.DataFrame({"id": [2], "v": [[b"a"]]}), [0]), label="c")) == [0]
    target.close()
    assert sql("SELECT v FROM t") == [('["PT0.000000005S"]',)]


def test_floats_of_16_bits_are_written(sql, sink):
    frame = pl.DataFrame({"id": [1, 2], "v": pl.Series([1.5, None], dtype=pl.Float16)})
    frame = frame.with_columns(list=pl.Series([[0.5], []], dtype=pl.List(pl.Float16)))
    assert list(sink(create=True).write(Outgoing.of_frame(frame, range(2)), label="a")) == []
    assert sql("SELECT v, CAST(list AS DOUBLE[]) FROM t ORDER BY id") == [(1.5, [0.5]), (None, [])]


class TestShortYears:
    """DuckDB reads `07/04/26` as the 26th of April in the year 7."""

    TEXTS = ("07/04/26", "1/2/26", "26-07-04", " 26-07-04 12:00", "26 07 04", "-5-01-01", "44-03-15 (BC)")

    @pytest.mark.parametrize("kind", ["DATE", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP_NS", "DATE[]"])
    @pytest.mark.parametrize("rows", [rows_of, frame_of])
    def test_date_with_a_short_year_is_rejected(self, sink, sql, kind, rows):
        sql(f"CREATE TABLE t (id INTEGER PRIMARY KEY, v {kind})")
        texts = [f"[{text}]" if kind.endswith("]") else text for text in (*self.TEXTS, "2026-07-04")]
        refused = sink().write(rows([{"id": at, "v": text} for at, text in enumerate(texts)]), label="run/0")
        assert [one.place for one in refused] == list(range(len(self.TEXTS)))

    def test_four_digit_year_is_unchanged(self, sink, sql):
        sql("CREATE TABLE t (id INTEGER PRIMARY KEY, v DATE)")
        texts = ["0007-04-26", "2026/7/4", "0044-03-15 (BC)", "infinity", "12026-01-01", "20260704"]
        refused = sink().write(rows_of([{"id": at, "v": text} for at, text in enumerate(texts[:5])]), label="run/0")
        assert not refused
        assert [value for (value,) in sql("SELECT v::VARCHAR FROM t ORDER BY id")] == [
            "0007-04-26",
            "2026-07-04",
            "0044-03-15 (BC)",
            "infinity",
            "12026-01-01",
        ]

    @pytest.mark.parametrize("rows", [rows_of, frame_of])
    def test_interval_with_an_offset_is_rejected(self, sink, sql, rows):
        sql("CREATE TABLE t (id INTEGER PRIMARY KEY, v INTERVAL)")
        texts = ["01:00:00+05", "01:00Z", "01:00:00 UTC", "1 day 01:00:00.5-0500", "1 day -01:00:00", "1 month 2 days"]
        refused = sink().write(rows([{"id": at, "v": text} for at, text in enumerate(texts)]), label="run/0")
        assert [one.place for one in refused] == [0, 1, 2, 3]
