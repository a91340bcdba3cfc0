"""The record of the benchmarks: a document with a line for each figure, and the page generated from it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
import page
import record
import results
import week
from record import Figure, Table, Target

ROOT = Path(__file__).parents[3]
PART = {
    **{"part": "rows", "title": "Rows", "state": "done", "reason": "", "quick": False, "seconds": 12},
    **{"command": "python bench/rows.py", "date": "2026-11-15T12:00:00+00:00", "versions": {"redrive": "0.1.0"}},
    "revision": {"commit": "abc123", "dirty": False},
}
WHERE = {
    "machine": {"system": "Linux", "processor": "a fast one", "cores": 2, "memory_gb": 8.0},
    "python": "CPython 3.11.7",
}


def part(*, targets=(), figures=(), **changes):
    return {**PART, **record.record("Rows.\n\nHow.", [Table("Loads", figures)], targets=targets), **changes}


def page_of(*parts):
    return page.page({**WHERE, "parts": list(parts)})


# ── figures ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_figure_of_several_runs_has_a_spread():
    assert record.spread([3.0, 1.0, 2.0]) == {"repeats": 3, "low": 1, "median": 2, "high": 3}
    assert record.spread([1.0]) is None
    assert record.spread([1.0, float("inf")]) is None


@pytest.mark.parametrize(
    ("value", "relation", "met"),
    [
        *((2, "at least", True), (1.99, "at least", False), (2, "at most", True), (2.01, "at most", False)),
        *((2, "exactly", True), (3, "exactly", False), (None, "at least", None)),
    ],
)
def test_target_is_met_missed_or_not_measured(value, relation, met):
    assert Target("speed", value, relation, 2, "×").met is met


def test_figure_without_extras_is_name_and_value_only():
    [table] = record.record("", [Table("Loads", [Figure("loop", "rate", "rows/s", None)])])["tables"]
    assert table["figures"] == [{"row": "loop", "name": "rate", "unit": "rows/s", "value": None}]


# ── the document ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_figure_is_one_line_of_the_document():
    figure = Figure("loop", "rate", "rows/s", 1.5, record.spread([1, 1.5]), {"× loop": 1.0}, "a note")
    text = results.written({**WHERE, "parts": [part(figures=[figure] * 3)]})

    assert json.loads(text)["parts"][0]["tables"][0]["figures"][2]["ratios"] == {"× loop": 1.0}
    assert len([line for line in text.splitlines() if '"row": "loop"' in line and '"note": "a note"' in line]) == 3


def test_same_document_is_written_the_same_way():
    document = {**WHERE, "parts": [part(figures=[Figure("loop", "rate", "rows/s", 1.5)])]}
    assert results.written(json.loads(results.written(document))) == results.written(document)


def test_unselected_parts_keep_their_order(monkeypatch):
    monkeypatch.setattr(results.measure, "environment", lambda: WHERE)
    earlier = {**WHERE, "parts": [part(part="calls", seconds=1), part(part="rows", seconds=1)]}

    document = results.gathered(["calls", "letters", "rows"], [part(part="letters"), part(part="calls")], earlier)

    assert [(one["part"], one["seconds"]) for one in document["parts"]] == [("calls", 12), ("letters", 12), ("rows", 1)]


def test_figures_of_different_machines_are_not_mixed(monkeypatch):
    monkeypatch.setattr(results.measure, "environment", lambda: WHERE)
    earlier = {**WHERE, "python": "CPython 3.13.0", "parts": [part(part="calls")]}

    assert [one["part"] for one in results.gathered(["calls", "rows"], [part()], earlier)["parts"]] == ["rows"]


@pytest.mark.parametrize("content", [None, "", "{"])
def test_unreadable_earlier_document_is_ignored(tmp_path, content):
    path = tmp_path / "results.json"
    if content is not None:
        path.write_text(content)
    assert results.read(path) is None


# ── the page ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_table_has_a_row_per_contender_with_median_and_ratios():
    figures = [
        Figure("redrive", "rate", "rows/s", 257_123.4, record.spread([257_123.4, 200_000.0]), {"× loop": 9.349}),
        Figure("redrive", "peak memory", "MB", 190.0),
        Figure("loop", "rate", "rows/s", 27_500.0, None, {"× loop": 1.0}),
        Figure("dlt", "rate", "rows/s", None, note="it was stopped"),
    ]
    lines = page_of(part(figures=figures)).splitlines()
    start = lines.index("### Loads")

    assert lines[start + 2 : start + 9] == [
        "|  | rate, rows/s | peak memory, MB | median rate | × loop |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| **redrive** | 257,123 | 190 | 228,562 | 9.35 |",
        "| loop | 27,500 | – | – | 1 |",
        "| dlt | –\\* | – | – | – |",
        "",
        "\\* dlt: it was stopped.",
    ]


def test_missed_target_is_reported_twice_and_met_target_once():
    targets = [Target("put_many", 0.26, "at least", 0.33, "of the floor"), Target("causes", 46, "at least", 20, "×")]
    text = page_of(part(targets=targets))

    assert "| put_many | 0.26 of the floor | at least 0.33 | **missed** |" in text
    assert "| causes | 46 × | at least 20 | met |" in text
    _, _, short = text.partition("## Where redrive falls short")
    assert "- put_many: 0.26 of the floor, where at least 0.33 is meant\n" in short
    assert "causes" not in short


def test_nothing_falls_short_where_all_targets_are_met():
    assert "falls short" not in page_of(part(targets=[Target("causes", 46, "at least", 20, "×")]))


def test_quick_run_is_marked_and_compared_with_no_target():
    text = page_of(part(quick=True, targets=[Target("causes", 1, "at least", 20, "×")]))

    assert "**A quick look only: Rows.**" in text
    assert "missed" not in text


def test_part_without_figures_is_named_first_with_its_reason():
    lost = part(title="Tasks", command="python bench/tasks.py", state="cut off", reason="it had not ended after 9 s")
    text = page_of(lost, part())

    assert "- Tasks (`python bench/tasks.py`): cut off, it had not ended after 9 s" in text.partition("## Targets")[0]


def test_revision_with_changes_is_marked():
    dirty = {"commit": "abc123", "dirty": True}
    assert "| `abc123`, `abc123` with changes |" in page_of(part(), part(revision=dirty))
    assert "| unknown |" in page_of(part(revision=None))


def test_docs_page_is_generated_from_the_record():
    document = results.read(ROOT / results.RESULTS)
    assert document, "run make bench"
    assert (ROOT / results.PAGE).read_text(encoding="utf-8") == page.page(document)


# ── a week ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_week_is_recorded_beside_a_message_for_every_failure():
    told = week.Told(week.MONDAY, "opened", "P3", "vendor", "P3 vendor: 54 rows rejected")
    lived = week.Week([told, told], Counter({"failed attempts": 7, "failed runs": 3, "rejected rows": 54}), 190, 1_005)

    document = week.documented(lived)

    [table] = document["record"]["tables"]
    assert [(one["row"], one["value"], one["ratios"]["÷ redrive"]) for one in table["figures"]] == [
        *(("redrive", 2, 1), ("one per failure", 10, 5), ("one per failure and row", 64, 32)),
    ]
    assert "  Mon 00:00  opened      P3 vendor: 54 rows rejected" in week.report(document)
