"""Keys that a column's type or collation makes equal are one key: in a batch, in a run, and beside their letters."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import polars as pl
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import redrive
from tests.oracles.row_loader import RowLoader
from tests.support.examples import examples
from tests.support.stores import NewStore
from tests.support.table_places import PLACES, place_of

COUNTED = ("read", "written", "rejected", "discarded", "duplicates")
NO_LIMIT = redrive.Gate(abort=1)
ONE = "6f1c1e0e-0b7a-4a3e-9d55-0a1b2c3d4e5f"
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
EAST = timezone(timedelta(hours=2))

# By the type of the key column: spellings of one key each. A text may come from a CSV file, anything from records.
INTEGERS = [[1, "1", "01", " 1", 1.0, Decimal(1)], [2, "2", "002"], [-3, "-3"], [10, "10"]]
TEXTS = [["a"], ["A"], ["a "], ["1", 1], ["01"]]
NUMBERS = [["1", "1.0", "01.00", 1, Decimal("1.0"), 1.0], ["2.5", 2.5, "2.50", Decimal("2.5")], [3, "3"]]
FLOATS = [[1, "1", "1.0", 1.0, "1e0"], [2.5, "2.5"], [0.0, -0.0, "0", "-0"]]
UUIDS = [[ONE, ONE.upper(), UUID(ONE)], [ONE.replace("6f", "7f"), UUID(ONE.replace("6f", "7f"))]]
DATES = [["2026-07-01", "2026-7-1", date(2026, 7, 1)], ["2026-07-02", date(2026, 7, 2)]]
INSTANTS = [
    ["2026-07-01T12:00:00Z", "2026-07-01 12:00:00+00:00", "2026-07-01T14:00:00+02:00", NOON, NOON.astimezone(EAST)],
    ["2026-07-01T12:00:01Z", NOON + timedelta(seconds=1)],
]
MOMENTS = [
    ["2026-07-01T12:00:00", "2026-07-01 12:00:00", "2026-07-01 12:00:00.0", NOON.replace(tzinfo=None)],
    ["2026-07-01T12:00:00.5", NOON.replace(tzinfo=None) + timedelta(microseconds=500_000)],
]
BOOLEANS = [[True, "true", "t"], [False, "false", "f"]]
SPELLINGS: dict[tuple[str, str], list[list[Any]]] = {
    **{(place, "INTEGER"): INTEGERS for place in PLACES},
    **{(place, "TEXT"): TEXTS for place in ("postgresql", "sqlite", "duckdb")},
    **{(place, "NUMERIC(10, 2)"): NUMBERS for place in ("postgresql", "sqlite", "duckdb")},
    **{(place, "DOUBLE PRECISION"): FLOATS for place in ("postgresql", "sqlite")},
    ("duckdb", "DOUBLE"): FLOATS,
    ("postgresql", "BIGINT"): INTEGERS,
    ("duckdb", "HUGEINT"): INTEGERS,
    **{(place, "UUID"): UUIDS for place in ("postgresql", "duckdb")},
    **{(place, "DATE"): DATES for place in ("postgresql", "duckdb")},
    **{(place, "TIMESTAMPTZ"): INSTANTS for place in ("postgresql", "duckdb")},
    **{(place, "TIMESTAMP"): MOMENTS for place in ("postgresql", "duckdb")},
    **{(place, "BOOLEAN"): BOOLEANS for place in ("postgresql", "duckdb")},
    ("postgresql", "VARCHAR(3)"): [["abc", "abc  "], ["ab "], ["ab"], ["ABC"]],
    ("postgresql", "CHAR(3)"): [["abc", "abc  "], ["ab ", "ab"], ["ABC"]],
    **{("postgresql", domain): [["abc", "abc  "], ["ab "], ["ab"], ["ABC"]] for domain in ("code", "inner_code")},
    ("postgresql", "padded"): [["abc", "abc  "], ["ab ", "ab"], ["ABC"]],
    ("postgresql", "amount"): NUMBERS,
    ("postgresql", "instant"): INSTANTS,
    ("postgresql", "JSONB"): [
        ['{"a": 1}', '{"a": 1.0}', ' {"a":1.00}'],
        ['{"a": "1.0"}'],
        ['{"a": "1"}'],
        ['{"b": [{"c": 2.50}, 100, 0.0], "a": "\\" 1.0"}', '{"a": "\\" 1.0", "b": [{"c": 2.5}, 1e2, -0]}'],
        ["[10, 1.05]", "[10.0, 1.050]"],
        ["[1]", "[1.0]"],
    ],
    ("postgresql", "NUMERIC[]"): [["{1,2.50,NULL}", "{1.0,2.5,NULL}"], ["{10}", "{10.0}"], ["{1.0}"]],
    ("postgresql", "FLOAT8[]"): [["{-0,1e-10}", "{0,1.0e-10}"], ["{1e-100}"], ["{1e+20}", "{100000000000000000000}"]],
    ("postgresql", "NUMRANGE"): [["[1.0,2.50)", "[1,2.5)"], ["[1,)", "[1.00,)"], ["[10,)"]],
    ("sqlite", "TEXT COLLATE NOCASE"): [["a", "A"], ["ä"], ["Ä"], ["b ", "B "], ["b"]],
    ("sqlite", "TEXT COLLATE RTRIM"): [["a", "a  "], ["A"], [" a"]],
    ("sqlite", ""): [[1, 1.0], ["1"], ["a"], ["A"]],
    ("duckdb", "VARCHAR COLLATE NOCASE"): [["a", "A"], ["b", "B"], ["b "]],
}


DOMAINS = {
    "code": ["code AS VARCHAR(3)"],
    "inner_code": ["code AS VARCHAR(3)", "inner_code AS code CHECK (VALUE <> '')"],
    "padded": ["padded AS CHAR(3)"],
    "amount": ["amount AS NUMERIC(10, 2)"],
    "instant": ["instant AS TIMESTAMPTZ"],
}


class Table:
    """A table with a key of one type, and pipelines into it."""

    runs = itertools.count()

    def __init__(self, store: redrive.Store, url: str, execute: Any, kind: str) -> None:
        self.store, self.url, self.execute = store, url, execute
        for domain in DOMAINS.get(kind, ()):
            execute(f"CREATE DOMAIN {domain}")
        execute(f"CREATE TABLE t (id {kind} PRIMARY KEY, v TEXT)")

    def run(self, source: Any, name: str | None = None, **options: Any) -> Any:
        sink = redrive.rows.table(self.url, "t", key="id", **options.pop("table", {}))
        options = {"gate": NO_LIMIT, "store": self.store, **options}
        return redrive.Pipeline(name or f"keys-{next(self.runs)}", source=source, sink=sink, **options).run()

    @property
    def values(self) -> set[str]:
        return {value for (value,) in self.execute("SELECT v FROM t")}


@pytest.fixture
def table(
    request: pytest.FixtureRequest, new_store: NewStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> Iterator[Table]:
    caplog.set_level(logging.CRITICAL, "redrive")
    place, kind = request.param
    with place_of(place, new_store, tmp_path) as (store, url, execute):
        yield Table(store, url, execute, kind)


every_type = pytest.mark.parametrize("table", SPELLINGS, indirect=True, ids=" ".join)
one_type = pytest.mark.parametrize("table", [(place, "INTEGER") for place in PLACES], indirect=True, ids=" ".join)


@every_type
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=examples(4),
)
@given(data=st.data(), batch=st.integers(1, 6), rule=st.sampled_from(["last", "first", "quarantine"]))
def test_spellings_equal_a_row_by_row_loader(request, table, data, batch, rule, tmp_path):
    """Compare with a loader that knows the key of each spelling."""
    spellings = SPELLINGS[request.node.callspec.params["table"]]
    from_csv = data.draw(st.booleans())
    pairs = [(key, one) for key, group in enumerate(spellings) for one in group if not from_csv or type(one) is str]
    chosen = data.draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=8))
    loader = RowLoader(("id",), ("id", "v"), batch, rule)
    loader.load([{"id": key, "v": f"v{at}"} for at, (key, _) in enumerate(chosen)])
    source = redrive.rows.records([{"id": one, "v": f"v{at}"} for at, (_, one) in enumerate(chosen)])
    if from_csv:
        lines = [f'"{one.replace(chr(34), 2 * chr(34))}",v{at}' for at, (_, one) in enumerate(chosen)]
        (tmp_path / "in.csv").write_text("\n".join(["id,v", *lines, ""]))
        source = redrive.rows.csv(tmp_path / "in.csv")
    table.execute("DELETE FROM t")
    report = table.run(source, batch=batch, on_duplicate=rule)
    letters = sorted(int(letter.position.split()[-1]) for letter in table.store.dlq.each(pipeline=report.pipeline))
    assert {name: getattr(report, name) for name in COUNTED} == {name: loader.counts[name] for name in COUNTED}
    assert table.values == {row["v"] for row in loader.table.values()}
    assert letters == [rejected.number + from_csv for rejected in loader.rejected]


@every_type
def test_deletion_by_another_spelling(request, table):
    groups = SPELLINGS[request.node.callspec.params["table"]]
    written = [{"id": group[0], "v": "new", "op": "I"} for group in groups]
    deleted = [{"id": group[-1], "v": None, "op": "D"} for group in groups]
    for batch in (2, 100):
        table.run(redrive.rows.records(written + deleted), batch=batch, table={"delete_when": {"op": "D"}})
        assert table.values == set()


@every_type
def test_letter_superseded_by_another_spelling(request, table):
    """A row is rejected under one spelling, and another run writes its key under another."""
    groups = SPELLINGS[request.node.callspec.params["table"]]

    def check(record: dict[str, Any]) -> None:
        if record["v"] is None:
            raise ValueError("no value")

    for number, spelling in enumerate((1, -1)):
        name = f"superseded-{number}"
        first = [{"id": group[0], "v": None} for group in groups]
        table.run(redrive.rows.records(first), name, validate=check)
        later = {at: group[min(spelling, len(group) - 1)] for at, group in enumerate(groups) if at % 2 == 0}
        table.run(redrive.rows.records([{"id": one, "v": "a"} for one in later.values()]), name, validate=check)
        letters = {letter.position: letter.superseded_at is not None for letter in table.store.dlq.each(pipeline=name)}
        assert letters == {f"row {at + 1}": at in later for at in range(len(groups))}


@one_type
def test_value_that_is_not_a_key_is_rejected_alone(table):
    records = [{"id": one, "v": str(one)} for one in ("1", "x", "01", "x", "2", "y")]
    report = table.run(redrive.rows.records(records), on_duplicate="first")
    assert (report.written, report.duplicates, report.rejected) == (2, 1, 3)
    assert table.values == {"1", "2"}


@pytest.mark.parametrize("place", ["postgresql", "sqlite", "duckdb"])
@pytest.mark.parametrize("batch", [1, 100])
def test_first_rows_of_a_table_that_is_created(new_store, tmp_path, place, batch):
    with place_of(place, new_store, tmp_path) as (store, url, execute):
        sink = redrive.rows.table(url, "made", key="id", create=True)
        records = [{"id": one, "v": at} for at, one in enumerate(["1", 1, "2"])]
        redrive.Pipeline("made", source=redrive.rows.records(records), sink=sink, batch=batch, store=store).run()
        assert sorted(execute("SELECT v FROM made")) == [(1,), (2,)]


class TestModels:
    """The key of a rejected record is the value that its field would have produced."""

    class Delivery(pydantic.BaseModel):
        id: int = pydantic.Field(alias="delivery-no")
        v: str

    class Trimmed(pydantic.BaseModel):
        id: str
        v: str

        @pydantic.field_validator("id")
        @classmethod
        def _short(cls, value: str) -> str:
            return value.removeprefix("D-")

    class Frozen(pydantic.BaseModel, frozen=True):
        id: int
        v: str

    @pytest.mark.parametrize(
        ("model", "field", "rejected", "written"),
        [
            (Delivery, "delivery-no", "007", "7"),
            (Trimmed, "id", "D-7", "7"),
            (Frozen, "id", "07", 7),
        ],
    )
    @one_type
    def test_letter_superseded(self, table, model, field, rejected, written):
        table.run(redrive.rows.records([{field: rejected, "v": None}]), "vendor", validate=model)
        table.run(redrive.rows.records([{field: written, "v": "a"}]), "vendor", validate=model)
        (letter,) = table.store.dlq.each(pipeline="vendor")
        assert letter.superseded_at is not None


@pytest.mark.parametrize("table", [("postgresql", "TEXT")], indirect=True)
def test_nondeterministic_collation_is_rejected(table):
    table.execute('CREATE COLLATION loose FROM "C"')  # not every build has the collations that may be so
    table.execute("UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'loose'")
    table.execute("CREATE TABLE loose (id TEXT COLLATE loose PRIMARY KEY, v TEXT)")
    sink = redrive.rows.table(table.url, "loose", key="id")
    with pytest.raises(redrive.errors.SinkMismatch, match="nondeterministic collation"):
        sink.check(("id", "v"))


@pytest.mark.parametrize("table", [("postgresql", "TEXT")], indirect=True)
def test_citext_folds_case(table):
    if not table.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'citext'"):
        pytest.skip("this server has no citext")
    table.execute("CREATE EXTENSION citext")
    table.execute("ALTER TABLE t ALTER id TYPE citext")
    table.run(redrive.rows.records([{"id": "a", "v": "1"}, {"id": "A", "v": "2"}]), on_duplicate="first")
    assert table.values == {"1"}


@pytest.mark.parametrize("table", [("sqlite", "INTEGER")], indirect=True)
def test_frames_of_other_integers_are_counted_once(table, tmp_path):
    """A later file has the key in a column of other bytes."""
    pl.DataFrame({"id": [1, 2], "v": ["a", "b"]}, schema={"id": pl.Int64, "v": pl.String}).write_parquet(tmp_path / "1")
    pl.DataFrame({"id": [2, 3], "v": ["c", "d"]}, schema={"id": pl.Int16, "v": pl.String}).write_parquet(tmp_path / "2")
    report = table.run(redrive.rows.parquet([tmp_path / "1", tmp_path / "2"]))
    assert (report.written, report.duplicates) == (3, 1)
