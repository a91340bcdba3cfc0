"""The benchmark of rows runs, checks the loaded rows, and reports its figures as JSON and as tables."""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench"
OURS = "redrive-dataframely"
KEYS = {
    *("database", "peer", "multiple", "rows", "unavailable", "best_s", "median_s", "rows_per_s", "median_rows_per_s"),
    *("to_loop", "floor_time", "to_dlt", "to_dlt_pydantic", "peak_mb", "again", "spread"),
}


@pytest.fixture(scope="module")
def beside_the_loop(bench):
    how = ("--quick", "--only", "postgres", "--peers", OURS, "loop", "floor")
    return json.loads(bench("rows.py", *how, "--json"))


def test_redrive_is_compared_with_the_loop_and_the_floor(beside_the_loop):
    database, document = "PostgreSQL", beside_the_loop
    rows = {(row["peer"], row["rows"]): row for row in document["rows"]}

    assert document["benchmark"] == "rows"
    assert document["quick"] is True
    assert document["environment"].keys() == {"date", "machine", "python", "versions"}
    assert list(document["databases"]) == [database]
    assert rows.keys() >= {("loop", 1_000), *((name, size) for name in (OURS, "floor") for size in (1_000, 10_000))}
    assert all(row.keys() == KEYS and row["database"] == database and row["peak_mb"] > 0 for row in rows.values())
    assert rows["loop", 1_000]["to_loop"] == rows["floor", 1_000]["floor_time"] == 1
    assert all(row["to_dlt"] is None for row in rows.values())
    assert all(rows[name, 1_000]["again"]["rows_per_s"] > 0 for name in (OURS, "loop", "floor"))
    assert [end["peer"] for end in document["headline"]] == [OURS]


def test_record_has_a_target_for_speed_and_for_memory(beside_the_loop):
    record = beside_the_loop["record"]
    assert [table["title"].partition(",")[0] for table in record["tables"]] == ["PostgreSQL"] * 3
    assert [target["unit"] for target in record["targets"]] == [
        *("× the row loop's speed", "× the floor's time", "× that of a tenth of the rows"),
    ]
    assert all(target["value"] > 0 for target in record["targets"])


@pytest.mark.skipif(not importlib.util.find_spec("dlt"), reason="dlt is missing: pip install 'redrive[bench]'")
def test_dlt_loads_the_same_rows(bench):
    rows = json.loads(bench("rows.py", "--quick", "--only", "duckdb", "--peers", "dlt", "--json"))["rows"]

    assert {row["database"] for row in rows if row["peer"] == "dlt-arrow"} == {"DuckDB"}
    assert all(row["unavailable"] is None and row["rows_per_s"] > 0 for row in rows)


def test_tables_fit_a_hundred_columns_with_document_in_a_file(bench, tmp_path):
    written = tmp_path / "rows.json"

    how = ("--quick", "--only", "sqlite", "--peers", "redrive-pydantic", "loop")
    lines = bench("rows.py", *how, "--json", written).rstrip().splitlines()

    assert max(map(len, lines)) <= 100
    assert any(line.startswith("SQLite, redrive-pydantic: ") for line in lines[-3:])
    assert json.loads(written.read_text())["effort"]["rows"] == 1_000


def test_file_is_the_same_each_time_with_3_percent_without_fee(tmp_path):
    specification = importlib.util.spec_from_file_location("vendor", BENCH / "vendor.py")
    vendor = importlib.util.module_from_spec(specification)
    sys.modules["vendor"] = vendor  # a dataclass looks for its module there
    try:
        specification.loader.exec_module(vendor)
        first, second = (vendor.generated(tmp_path / name, 5_000) for name in ("a.csv", "b.csv"))
    finally:
        del sys.modules["vendor"]

    with first.path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    fees = [row["fee"] for row in rows if row["fee"] != "N/A"]
    assert first.path.read_bytes() == second.path.read_bytes()
    assert (len(rows), len(fees), first.bad) == (5_000, first.good, 150)
    assert sum(round(float(fee) * 100) for fee in fees) == first.cents
    assert len({row["delivery_id"] for row in rows}) == 5_000
