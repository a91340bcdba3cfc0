"""Deletions by `delete_when`, for all types of the flag and the option."""

from __future__ import annotations

import contextlib
import enum
import sqlite3
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

import redrive

OPERATION = enum.Enum("OPERATION", {"DELETE": "D", "UPDATE": "U"})


@pytest.fixture
def load(tmp_path):
    """A function that loads a source into a table with the rows 0 to 9; it returns the report and the ids left."""

    def run(source, delete_when):
        with contextlib.closing(sqlite3.connect(tmp_path / "w.db")) as connection:
            connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)")
            connection.executemany("INSERT INTO t VALUES (?, 'old')", [(number,) for number in range(10)])
            connection.commit()
        sink = redrive.rows.table(f"sqlite:///{tmp_path}/w.db", "t", key="id", delete_when=delete_when)
        store = f"sqlite:///{tmp_path}/s.db"
        gate = redrive.Gate(abort=1)
        report = redrive.Pipeline("p", source=source, sink=sink, store=store, gate=gate).run()
        with contextlib.closing(sqlite3.connect(tmp_path / "w.db")) as connection:
            return report, [number for (number,) in connection.execute("SELECT id FROM t ORDER BY id")]

    return run


@pytest.mark.parametrize("mark", [1, True, "1", 1.0, Decimal("1.00"), [1], ["D", 1]])
def test_csv_text_matches_the_deletion_mark(load, tmp_path, mark):
    (tmp_path / "a.csv").write_text("id,v,flag\n" + "".join(f"{number},new,{number % 2}\n" for number in range(10)))
    report, left = load(redrive.rows.csv(tmp_path / "a.csv"), {"flag": mark})
    assert (left, report.discarded, report.rejected) == ([0, 2, 4, 6, 8], 5, 0)


VALUES = [
    # a value that is the mark, one that is another, the mark
    ("true", "false", True),
    ("yes", "no", True),
    ("false", "true", False),
    (True, False, "true"),
    (True, False, 1),
    (1, 0, True),
    (1, 0, "1"),
    (1.0, 2.0, "1"),
    ("1.50", "2", Decimal("1.5")),
    (" 1", "2", 1),
    ("2026-01-02", "2026-01-03", date(2026, 1, 2)),
    ("2026-01-02T00:00:00+00:00", "2026-01-02T00:00:00+01:00", datetime(2026, 1, 2, tzinfo=UTC)),
    (None, "x", [None]),
    ("D", None, "D"),
    ("7", "", 7),
    ("D", "d", "D"),
    ("D", "U", OPERATION.DELETE),
]


@pytest.mark.parametrize(("marked", "other", "mark"), VALUES)
def test_values_of_another_type_are_compared(load, marked, other, mark):
    rows = [{"id": 1, "v": "new", "flag": marked}, {"id": 2, "v": "new", "flag": other}]
    report, left = load(redrive.rows.records(rows), {"flag": mark})
    assert 1 not in left
    assert 2 in left
    assert (report.discarded, report.written, report.rejected) == (1, 1, 0)


INCOMPARABLE = [
    ("true", 1),
    ("deleted", 1),
    ("maybe", True),
    ("D", datetime(2026, 1, 2)),
    (2, True),
    (1, "D"),
    ({"a": 1}, "D"),
    (datetime(2026, 1, 2), datetime(2026, 1, 2, tzinfo=UTC)),
    (datetime(2026, 1, 2), date(2026, 1, 2)),
]


@pytest.mark.parametrize(("value", "mark"), INCOMPARABLE)
def test_value_that_cannot_be_compared_is_a_letter(load, value, mark):
    report, left = load(redrive.rows.records([{"id": 1, "v": "new", "flag": value}]), {"flag": mark})
    assert (report.written, report.discarded, report.rejected) == (0, 0, 1)
    assert left == list(range(10))
