"""The benchmark of calls runs and reports its figures as JSON and as tables."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

PEERS = ("tenacity", "stamina", "backoff", "pybreaker")
GUARDS = {"bare", "hand-written loop", "redrive", "tenacity"}
RECORDED = "redrive, rollups"
COST_KEYS = {"section", "name", "contains", "ns_per_call", "ns_added", "spread", "ratio_to_loop", "ratio_to_redrive"}
THREAD_KEYS = {"section", "name", "work", "calls_per_s_1_thread", "calls_per_s_8_threads", "ratio_8_to_1"}

pytestmark = pytest.mark.skipif(
    not all(find_spec(peer) for peer in PEERS), reason="the peers are missing: pip install 'redrive[bench]'"
)


@pytest.fixture(scope="module")
def run(bench, tmp_path_factory):
    """Run once, and return the tables and the JSON document."""
    written = tmp_path_factory.mktemp("calls") / "calls.json"
    printed = bench("calls.py", "--quick", "--json", written)
    return printed, json.loads(written.read_text())


@pytest.fixture(scope="module")
def document(run):
    return run[1]


def test_document_has_environment_and_versions(document):
    where = document["environment"]

    assert document["benchmark"] == "calls"
    assert document["quick"] is True
    assert where.keys() == {"date", "machine", "python", "versions"}
    assert where["versions"].keys() == {"redrive", *PEERS}
    assert all(where["versions"].values())


@pytest.mark.parametrize("section", ["sync", "async", "failing"])
def test_each_cost_has_its_row_with_the_same_keys(document, section):
    rows = [row for row in document["rows"] if row["section"] == section]

    assert {row["name"] for row in rows} >= GUARDS
    assert len({row["name"] for row in rows}) == len(rows)
    assert all(row.keys() == COST_KEYS and row["contains"] and row["ns_per_call"] > 0 for row in rows)


@pytest.mark.parametrize("section", ["sync", "async"])
def test_call_is_measured_with_rollups_on(document, section):
    assert RECORDED in {row["name"] for row in document["rows"] if row["section"] == section}


def test_threads_are_counted_with_and_without_function_time(document):
    rows = [row for row in document["rows"] if row["section"] == "threads"]

    assert {row["work"] for row in rows} == {"returns at once", "sleeps 1 ms"}
    assert {row["name"] for row in rows} == {"bare", "redrive", "tenacity+pybreaker"}
    assert all(row.keys() == THREAD_KEYS and row["ratio_8_to_1"] > 0 for row in rows)


def test_headline_compares_with_the_limit(document):
    added = {"sync_ns_added", "async_ns_added", "sync_ns_added_with_rollups", "async_ns_added_with_rollups"}
    assert document["headline"].keys() == added | {"limit_ns"}


def test_record_has_cost_of_each_guard_with_spread_and_ratios(document):
    tables = document["record"]["tables"]
    ours = {figure["row"]: figure for figure in tables[0]["figures"]}["redrive"]

    assert [len(table["figures"]) > 3 for table in tables] == [True] * 4
    assert ours["ratios"]["÷ redrive"] == 1
    assert ours["spread"]["low"] == ours["value"] <= ours["spread"]["median"] <= ours["spread"]["high"]
    assert {target["limit"] for target in document["record"]["targets"]} == {1_000}


def test_tables_fit_a_hundred_columns_and_end_with_headline(run):
    lines = run[0].rstrip().splitlines()

    assert max(map(len, lines)) <= 100
    assert lines[-2].startswith("a full Service adds ")
    assert lines[-1].startswith("with rollups ")
    assert lines[-1].endswith("; limit 1,000 ns")
