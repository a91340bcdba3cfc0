"""The benchmark of tasks runs, checks that every task ran, and reports its figures as JSON and as tables."""

from __future__ import annotations

import importlib.util
import json

import pytest

SHAPES = ("flat", "chain")
OURS = "redrive-process"
KEYS = {
    *("database", "shape", "peer", "tasks", "unavailable", "done", "cut", "seconds", "tasks_per_s", "spread"),
    *(
        "going_tasks_per_s",
        "first_ms",
        "latency_ms",
        "to_dbos",
        "to_luigi",
        "to_fork",
        "to_pebble",
        "peak_mb",
        "spread",
    ),
}

needs_peers = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("dbos", "luigi", "pebble"))),
    reason="the peers are missing: pip install 'redrive[bench]'",
)


def test_redrive_is_compared_with_a_fork_per_task(bench):
    how = ("--quick", "--only", "sqlite", "--shapes", *SHAPES, "--peers", OURS, "fork", "--sizes", "10")
    document = json.loads(bench("tasks.py", *how, "--json"))
    rows = {(row["shape"], row["peer"], row["tasks"]): row for row in document["rows"]}

    assert document["benchmark"] == "tasks"
    assert document["quick"] is True
    assert document["environment"].keys() == {"date", "machine", "python", "versions"}
    assert list(document["databases"]) == ["SQLite"]
    assert rows.keys() == {(shape, peer, size) for shape in SHAPES for peer in (OURS, "fork") for size in (10,)}
    assert all(row.keys() == KEYS and row["done"] == row["tasks"] and not row["cut"] for row in rows.values())
    assert all(row["to_fork"] == 1 for (_, peer, _), row in rows.items() if peer == "fork")
    assert all(row["to_dbos"] is None for row in rows.values())
    assert {shape for (shape, _, _), row in rows.items() if row["latency_ms"]} == {"chain"}
    assert [(end["peer"], end["shape"]) for end in document["headline"]] == [(OURS, shape) for shape in SHAPES]
    assert document["targets"] == {"tasks_per_s": 2_000, "cost_ratio": 1.5, "bytes_per_task": 1_024}


@needs_peers
@pytest.mark.parametrize(
    ("database", "shape", "ways"),
    [
        ("sqlite", "chain", {"dbos-steps", "luigi", "luigi-timeout"}),
        ("postgres", "diamond", {"dbos-async", "dbos-queue"}),
    ],
)
def test_dbos_and_luigi_run_the_same_tasks(bench, database, shape, ways):
    how = ("--quick", "--only", database, "--shapes", shape, "--peers", *sorted(ways), "--sizes", "10")
    rows = json.loads(bench("tasks.py", *how, "--json"))["rows"]

    assert {row["peer"] for row in rows} == ways
    assert all(row["unavailable"] is None and row["done"] == row["tasks"] for row in rows)


@needs_peers
def test_tables_fit_a_hundred_columns_with_document_in_a_file(bench, tmp_path):
    written = tmp_path / "tasks.json"

    how = ("--quick", "--only", "sqlite", "--shapes", "diamond", "--peers", "redrive-thread", "pebble")
    printed = bench("tasks.py", *how, "--json", written)

    lines = printed.rstrip().splitlines()
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("pebble") and "NOT DURABLE" in line for line in lines)
    assert any(line.startswith("SQLite, diamond, redrive-thread: ") for line in lines[-4:])
    document = json.loads(written.read_text())
    assert document["effort"]["sizes"] == [10, 30]
    assert [row["peer"] for row in document["growth"]] == ["redrive-thread", "pebble"]
    assert [len(table["figures"]) for table in document["record"]["tables"]] == [4, 4]


def test_slow_contender_is_stopped_and_partly_counted(bench):
    how = ("--only", "sqlite", "--shapes", "flat", "--peers", "fork", "--sizes", "100000", "--repeat", "1")

    for limit in ("2", "10", "40"):  # a busy machine may finish no task within the first
        [row] = json.loads(bench("tasks.py", *how, "--limit", limit, "--json"))["rows"]
        if row["done"]:
            break

    assert row["cut"] is True
    assert 0 < row["done"] < row["tasks"]
    assert row["tasks_per_s"] > 0
    assert row["peak_mb"] is None
