"""A value is stored in a table exactly, or its row is rejected: for every sink, type, and neighbouring row."""

import datetime as dt
from decimal import Decimal
from itertools import count, groupby
from random import Random

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyarrow import parquet as pq

from redrive.rows.batch import Outgoing
from redrive.rows.sinks.parquet.sink import parquet_dataset
from redrive.rows.sinks.table import table
from tests.oracles.values import Moment, is_same
from tests.support import table_places

INDIA = dt.timezone(dt.timedelta(hours=5, minutes=30))
MOMENT = dt.datetime(2026, 7, 1, 12, 0, 0, 123456)
NUMBERS = [
    *(0, 1, 2, -7, 2**31, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**64, 2**70, 10**23, True, False),
    *(0.1, 0.125, 0.5, 1.0, -0.0, 27.500000000000004, 1234567.89, 12345678901234.56, 1e16, 1e22, 1e300, 5e-324, 1e39),
    *(0.10000000149011612, 123456789.123456789, float(2**53), float("inf"), float("nan")),
    *(1.2345678901234567e18, 1.2345678901234568e20, 1e23),
    *map(Decimal, ("1.5", "1.50", "1.005", "-99.99", "12345678901234567.89", "0.1", "1E+5", "1E-7", "123.4567890123")),
]
TEXTS = [
    *("7", "007", "+7", " 7 ", "1.5", "1.50", "1.005", "5.00", "1e3", "1.2345e3", "1e-3", "1e39", "1e400", "1e-400"),
    *("0.1", "0.10000000000000001", "0.3333333333333333148", "12345678901234567.89", "9007199254740993", "٣", "1_000"),
    *("123456789012345678901234.5", "00000000000000001234", "0x10", "nan", "x", "", "true", "yes", "abc   "),
    *("123456789012345680000.0", "0.9", "inf", "-inf", "\\x61", "\\", "null"),
]
TIMES = [
    *(MOMENT, MOMENT.replace(microsecond=0), dt.datetime(2026, 7, 1), MOMENT.replace(tzinfo=INDIA)),
    *(MOMENT.replace(tzinfo=dt.UTC), dt.datetime(2026, 7, 1, tzinfo=INDIA), dt.date(2026, 7, 1)),
    *(dt.time(12, 30), dt.time(12, 30, 15, 123456), dt.timedelta(days=-1, seconds=3, microseconds=7)),
    *("2026-07-01", "2026-07-01 12:00:00", "2026-07-01T12:00:00Z", "2026-07-01 12:00:00+00", "2026-07-01T00:00:00"),
    *("2026-07-01 12:00:00.123456", "2026-07-01 12:00:00.123456789", "2026-07-01 12:00:00.123000"),
    *("2026-07-01 12:00:00+05:30", "2026-07-01T00:00:00+0530", "2026-07-01 23:30", "2026-07-01 23:59:60"),
    *("12:30", "12:30:15.123456", "12:30:15.1234567", "12:30:00+02", "2026-07-01 12:30:00.5-08", "now", "epoch"),
]
BYTES = [b"", b"7", b"abc", b"\xff", "Müller".encode(), b"\\x61", "\ud800"]  # and half a character, which has none
LISTS = [[1, 2], [1.5], [0.1, 1.005], [2**53 + 1], [Decimal("1.50")], "[1, 2]", "[1.5]", "{1,2}", "{1.005}", [], "null"]
LISTS += ["\ud800", ["\ud800"]]

TYPES = {
    "postgresql": [
        *("integer", "bigint", "numeric", "numeric(10,2)", "numeric(38,10)", "real", "double precision", "text"),
        *("boolean", "date", "time", "time(0)", "timestamp", "timestamp(3)", "timestamptz", "interval"),
        *("integer[]", "numeric(10,2)[]", "double precision[]", "jsonb", "cents"),
        "timetz",
    ],
    "duckdb": [
        *("INTEGER", "BIGINT", "HUGEINT", "UBIGINT", "DECIMAL(10,2)", "DECIMAL(38,10)", "FLOAT", "DOUBLE", "VARCHAR"),
        *("BOOLEAN", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMPTZ"),
        *(
            "UHUGEINT",
            "BIGNUM",
            "TIMETZ",
            "BIT",
            "BLOB",
            "ENUM('7', 'x')",
            "INTERVAL",
            "INTEGER[]",
            "DECIMAL(10,2)[]",
            "DOUBLE[]",
            "VARCHAR[]",
            "JSON",
        ),
    ],
    "sqlite": [
        *("INTEGER", "BIGINT", "NUMERIC", "DECIMAL(10,2)", "REAL", "TEXT", "VARCHAR(4)", "DATE", "DATETIME", "STRING"),
        *("BLOB", "JSON", ""),
    ],
}
# The first value of a column of Parquet, which makes its type.
FIRST = [5, 0.5, Decimal("0.5"), "text", MOMENT, MOMENT.replace(tzinfo=dt.UTC), dt.date(2026, 7, 1), dt.time(1), [5]]
# What every column of the type must take.
KEPT = {
    "BIGINT": [1, 2**63 - 1, 1.0, "7", "5.00", Decimal("1E+5")],
    "DECIMAL(10,2)": [1, 0.1, 1234567.89, "1.50", Decimal("-99.99"), 0.5],
    "FLOAT": [0.1, "0.1", Decimal("0.1"), 0.10000000149011612, 1.0, 2, float("inf")],
    "DOUBLE": [0.1, "0.1", "0.10000000000000001", Decimal("1.50"), 2**53, 5e-324, 1e300],
    "VARCHAR": [0.1, 12345678901234.56, 2**70, "007", Decimal("12345678901234567.89"), MOMENT],
    "TIMESTAMP": [MOMENT, "2026-07-01T12:00:00Z", MOMENT.replace(tzinfo=dt.UTC), dt.date(2026, 7, 1)],
    "TIMESTAMPTZ": [MOMENT.replace(tzinfo=INDIA), "2026-07-01 12:00:00+05:30"],
    "DATE": [dt.date(2026, 7, 1), "2026-07-01", "2026-07-01T00:00:00", dt.datetime(2026, 7, 1)],
    "TIME": [dt.time(12, 30, 15, 123456), "12:30"],
    "TIMETZ": [dt.time(12, 30, 15, 123456), "12:30", dt.time(12, 30, tzinfo=INDIA), "12:30:00+05:30"],
    "BIGNUM": [1, 2**70, 10**60, 1.0, "7", "-5", True, Decimal("7.00")],
    "BIT": ["0101", "1"],
    "BLOB": [b"", b"\xff", "abc"],
}
ALIASES = {
    **{"bigint": "BIGINT", "numeric(10,2)": "DECIMAL(10,2)", "real": "FLOAT", "double precision": "DOUBLE"},
    **{"text": "VARCHAR", "timestamp": "TIMESTAMP", "timestamptz": "TIMESTAMPTZ", "date": "DATE", "time": "TIME"},
    **{"timetz": "TIMETZ"},
    **{"cents": "DECIMAL(10,2)", "TEXT": "VARCHAR", "REAL": "DOUBLE"},
}
NOTATIONS = ("json", "jsonb", "interval")  # which have texts of their own for a value
NOT_IN_POSTGRESQL = ["5.00", Decimal("1E+5")]  # its integers have no decimal places


class Column:
    """A table with a key and one column; values are written to it and read back."""

    def __init__(self, sink, read):
        """`read` returns the values of the table from an id on, by their ids."""
        self._sink, self._read, self._next = sink, read, count(1)

    def write(self, values, *, frame=False):
        """Return for each value whether it was kept, and what the table has then."""
        ids = [next(self._next) for _ in values]
        if frame:
            rows = Outgoing.of_frame(pl.DataFrame({"id": ids, "v": values}), range(len(ids)))
        else:
            rows = Outgoing(("id", "v"), range(len(ids)), tuples=list(zip(ids, values, strict=True)))
        refused = {one.place: str(one.error) for one in self._sink.write(rows, label=f"b{ids[0]}")}
        assert all("\n" not in error for error in refused.values())
        found = self._read(ids[0])
        assert {place for place, own in enumerate(ids) if own not in found} == {*refused}
        return [(own in found, found.get(own)) for own in ids]


# One table for all tests of a type: to make it takes longer than to write a batch.
@pytest.fixture(
    scope="module", params=[(kind, type_) for kind, types in TYPES.items() for type_ in types], ids=" ".join
)
def column(request, tmp_path_factory):
    kind, type_ = request.param
    if kind == "postgresql":
        opened = table_places.postgresql(request.getfixturevalue("postgres_url"))
    else:
        opened = {"sqlite": table_places.sqlite, "duckdb": table_places.duck}[kind](
            tmp_path_factory.mktemp("exact") / "values"
        )
    with opened as (url, execute):
        if kind == "postgresql":
            execute("SET TimeZone = 'UTC'; DROP TABLE IF EXISTS exact; DROP DOMAIN IF EXISTS cents")
            execute("CREATE DOMAIN cents AS numeric(10, 2)")
        elif kind == "duckdb":
            execute("SET TimeZone = 'UTC'")
        execute(f"CREATE TABLE exact (id integer PRIMARY KEY, v {type_})")
        # The driver of DuckDB has no nanoseconds, and a JSON column is to be read by the test itself.
        read = "CAST(v AS text)" if type_ == "TIMESTAMP_NS" or type_.lower() in NOTATIONS else "v"
        if type_ == "real":  # of which the driver reads the shortest text, as a float of 64 bits
            read = "CAST(v AS double precision)"

        def find(first):
            found = dict(execute(f"SELECT id, {read} FROM exact WHERE id >= {first}"))
            made = {"TIMESTAMP_NS": Moment, "BIGNUM": int}.get(type_)
            return {own: v and made(v) for own, v in found.items()} if made else found

        sink = table(url, "exact", key="id")
        yield kind, type_, Column(sink, find)
        sink.close()
        if kind == "postgresql":
            execute("DROP TABLE exact")


def check(values, outcomes):
    wrong = [
        (value, found)
        for value, (kept, found) in zip(values, outcomes, strict=True)
        if kept and not is_same(value, found)
    ]
    assert wrong == []


def values_for(type_):
    """Values of all kinds; JSON and intervals have notations of their own, which are not compared here."""
    if type_.lower() in ("json", "jsonb"):
        return [*(one for one in LISTS if not isinstance(one, str)), 2**70, Decimal("12345678901234567.89"), 0.1]
    if type_.lower() == "interval":
        return [1, 0.5, "0.0000001 seconds", "7", "-7.5", None]
    return [None, *NUMBERS, *TEXTS, *TIMES, *BYTES, *(LISTS if type_.endswith("[]") else ())]


RANDOM = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.floats(width=32),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.decimals(places=3, min_value=-(10**9), max_value=10**9).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map("{:.17g}".format),
    st.datetimes(dt.datetime(1700, 1, 1), timezones=st.sampled_from([None, dt.UTC, INDIA])),
    st.times(),
)


# Each write is a transaction: one example with many values finds the same as many with few, sooner. They differ, so
# that the first example is not forty times the simplest value.
shuffled = given(st.integers(0, 2**32).map(Random), st.lists(RANDOM, min_size=40, max_size=40, unique_by=repr))
once = settings(max_examples=1, phases=[Phase.generate], report_multiple_bugs=False)


@once
@shuffled
def test_value_is_exact_or_rejected_beside_any_rows(column, random, drawn):
    _check_neighbours(column, random, drawn)


@pytest.mark.chaos
@settings(once, max_examples=10)
@shuffled
def test_many_values_are_kept_exactly_or_rejected(column, random, drawn):
    _check_neighbours(column, random, drawn)


def _check_neighbours(column, random, drawn):
    _, type_, target = column
    values = [*values_for(type_), *(() if type_.lower() in NOTATIONS else drawn)]
    random.shuffle(values)
    together = target.write(values)
    check(values, together)
    places = range(len(values))
    alike = groupby(
        sorted(places, key=lambda place: type(values[place]).__name__), key=lambda place: type(values[place])
    )
    groups = [list(group) for _, group in alike]
    groups += [[place] for place in random.sample(places, min(4, len(values)))]
    for group in groups:
        some = target.write([values[place] for place in group])
        check([values[place] for place in group], some)
        verdicts = [(values[place], kept) for place, (kept, _) in zip(group, some, strict=True)]
        assert str(verdicts) == str([(values[place], together[place][0]) for place in group])


FRAMES = [
    pl.Series([0.1, 0.125, 1234567.89, 27.500000000000004, 1e16, None, float("inf"), 1e300]),
    pl.Series([0.1, 0.5, 1e10], dtype=pl.Float32),
    pl.Series([1, 2**53 + 1, -(2**63), None]),
    pl.Series([2**64 - 1], dtype=pl.UInt64),
    pl.Series([Decimal("1.005"), Decimal("12345678901234567.89"), Decimal("1.5")], dtype=pl.Decimal(38, 10)),
    pl.Series([one for one in (*TEXTS, *TIMES) if isinstance(one, str)]),
    pl.Series([one for one in TIMES if type(one) is dt.datetime and one.tzinfo is None]),
    pl.Series([MOMENT, dt.datetime(2026, 7, 1)]).dt.replace_time_zone("Asia/Kolkata"),
    pl.Series([MOMENT, dt.datetime(2026, 1, 1)]).dt.replace_time_zone("Europe/London"),
    pl.Series([dt.date(2026, 7, 1)]),
    pl.Series([dt.time(12, 30), dt.time(1, 2, 3, 4)]),
    pl.Series([True, False]),
    pl.Series([b"7", b"\xff", "Müller".encode(), None]),
]


def test_frame_is_kept_exactly_or_rejected(column):
    _, type_, target = column
    if type_.lower() in NOTATIONS:
        pytest.skip("notations of their own are not compared here")
    for series in FRAMES:
        together = target.write(series, frame=True)
        check(series.to_list(), together)
        (alone,) = target.write(series.slice(0, 1), frame=True)
        assert alone == together[0]


FINE = 1_782_907_200_123_456_789
COARSE = FINE // 1000 * 1000
NANOSECONDS = {
    "timestamp": pl.Series([FINE, COARSE], dtype=pl.Datetime("ns")),
    "zoned": pl.Series([FINE, COARSE], dtype=pl.Datetime("ns", "UTC")),
    "time": pl.Series([FINE % 10**12, COARSE % 10**12], dtype=pl.Time),
    "nested": pl.Series([[FINE], [COARSE]], dtype=pl.List(pl.Datetime("ns"))),
}


def test_nanoseconds_of_a_frame_are_kept_or_rejected(column):
    _, type_, target = column
    for unit, series in NANOSECONDS.items():
        (kept, found), (_, plain) = target.write(series, frame=True)
        if unit == "nested" or type_.lower() in NOTATIONS:
            assert not kept or "123456789" in str(found), unit
            continue
        text = series.dt.to_string("iso")[0].removesuffix("+00:00")
        found = found.decode() if isinstance(found, bytes) else found  # a BLOB holds its text
        assert not kept or str(found).startswith(text), unit
        assert plain is None or "123456" in str(plain) or type(plain) is dt.date, unit


@pytest.mark.parametrize(
    "column",
    [
        ("postgresql", "timestamp"),
        ("postgresql", "time"),
        ("duckdb", "TIMESTAMP"),
        ("duckdb", "DATE"),
        ("sqlite", "REAL"),
    ],
    indirect=True,
    ids=" ".join,
)
def test_values_of_unexpected_types_do_not_end_the_batch(column):
    values = [MOMENT, MOMENT.date(), MOMENT.time(), 10**400, object(), {1, 2}, b"7", None]
    _, _, target = column
    together = [kept for kept, _ in target.write(values)]
    assert together == [target.write([value])[0][0] for value in values]


def test_plain_values_are_kept(column):
    kind, type_, target = column
    known = KEPT.get(type_ if kind == "duckdb" else ALIASES.get(type_, ""))
    if known is None:
        pytest.skip("no values are required of this type")
    if kind == "postgresql" and type_ == "bigint":
        known = [value for value in known if value not in NOT_IN_POSTGRESQL]
    assert [value for value, (kept, _) in zip(known, target.write(known), strict=True) if not kept] == []


def reader_of(dataset):
    def read(first):
        rows = pq.read_table(dataset, filters=[("id", ">=", first)]).to_pylist()
        return {row["id"]: row["v"] for row in rows}

    return read


@pytest.mark.parametrize("first", FIRST, ids=str)
def test_parquet_values_are_exact_or_rejected(tmp_path, first):
    sink = parquet_dataset(tmp_path / "t", key="id")
    target = Column(sink, reader_of(tmp_path / "t"))
    assert target.write([first])[0][0]
    values = [None, *NUMBERS, *TEXTS, *TIMES, *LISTS]
    together = target.write(values)
    check(values, together)
    for kind in {type(value) for value in values}:
        places = [place for place, value in enumerate(values) if type(value) is kind]
        some = target.write([values[place] for place in places])
        check([values[place] for place in places], some)
        assert [kept for kept, _ in some] == [together[place][0] for place in places]


@pytest.mark.parametrize("kind", [pa.timestamp("ms"), pa.time32("s"), pa.duration("s"), pa.float32()], ids=str)
def test_parquet_file_of_coarser_types_rejects_finer_value(tmp_path, kind):
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"id": [0], "v": pa.nulls(1, kind)}), tmp_path / "t" / "part-0.parquet")
    sink = parquet_dataset(tmp_path / "t", key="id")
    target = Column(sink, reader_of(tmp_path / "t"))
    values = [one for one in (*NUMBERS, *TIMES) if not isinstance(one, str)]
    check(values, target.write(values))


class TestCreatedColumns:
    """`create=True` picks a type that holds the first rows exactly."""

    @pytest.mark.parametrize("kind", ["sqlite", "duckdb", "postgresql"])
    @pytest.mark.parametrize(
        "values",
        [
            [1.5, 2**53 + 1],
            [2**53, 2**53 + 1, 0.5],
            [1.5, Decimal("12345678901234567.89")],
            [12345678901234.56, "n/a"],
            [2**70, 0.5],
            [2**70, 1],
            [0.1, 5],
        ],
        ids=str,
    )
    def test_values_are_kept(self, request, tmp_path, kind, values):
        with self._opened(request, tmp_path, kind) as (url, execute):
            sink = table(url, "made", key="id", create=True)
            target = Column(sink, lambda _: dict(execute("SELECT id, v FROM made")))
            outcomes = target.write(values)
            assert all(kept for kept, _ in outcomes)
            check(values, outcomes)
            sink.close()
            execute("DROP TABLE made")

    @pytest.mark.parametrize("kind", ["sqlite", "duckdb", "postgresql"])
    def test_nanoseconds_are_kept(self, request, tmp_path, kind):
        moments = pl.Series([1_782_907_200_123_456_789, 0], dtype=pl.Datetime("ns"))
        with self._opened(request, tmp_path, kind) as (url, execute):
            sink = table(url, "made", key="id", create=True)
            target = Column(sink, lambda _: dict(execute("SELECT id, CAST(v AS text) FROM made")))
            (_, fine), (_, plain) = target.write(moments, frame=True)
            assert (fine, plain) == ("2026-07-01 12:00:00.123456789", "1970-01-01 00:00:00")
            sink.close()
            execute("DROP TABLE made")

    @staticmethod
    def _opened(request, directory, kind):
        if kind == "postgresql":
            return table_places.postgresql(request.getfixturevalue("postgres_url"))
        return {"sqlite": table_places.sqlite, "duckdb": table_places.duck}[kind](directory / "values")


def test_duckdb_key_of_another_type_compares_as_its_column(tmp_path):
    with table_places.duck(tmp_path / "keys") as (url, execute):
        execute("CREATE TABLE t (id bigint PRIMARY KEY, v integer)")
        sink = table(url, "t", key="id")
        for label, (key, value) in enumerate([(2**53, 1), (2**53 + 1, 2), (float(2**53), 3)]):
            rows = Outgoing(("id", "v"), [0], tuples=[(key, value)])
            assert list(sink.write(rows, label=str(label))) == []
        assert execute("SELECT * FROM t ORDER BY id") == [(2**53, 3), (2**53 + 1, 2)]
        sink.close()
