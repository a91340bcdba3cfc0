"""A compressed file that is truncated or corrupt: the run fails and reports missing rows."""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing

import pytest

import redrive
from redrive.errors import PipelineError, RunStopped

WHOLE = [gzip.compress("".join(f"{number},x\n" for number in range(start, start + 100)).encode()) for start in (0, 100)]


@pytest.fixture
def store(tmp_path):
    with redrive.connect(tmp_path / "store.db") as opened:
        yield opened


@pytest.fixture
def load(tmp_path, store):
    def run(content=None, **options):
        path = tmp_path / "deliveries.csv.gz"
        if content is not None:
            path.write_bytes(content)
        return redrive.Pipeline(
            "vendor",
            source=redrive.rows.csv(path, header=False, columns=["id", "text"]),
            sink=redrive.rows.table(f"sqlite:///{tmp_path}/target.db", "deliveries", key="id", create=True),
            batch=30,
            store=store,
        ).run(**options)

    return run


def count(tmp_path):
    with closing(sqlite3.connect(tmp_path / "target.db")) as database:
        return database.execute("SELECT count(*) FROM deliveries").fetchone()[0]


def test_run_over_truncated_gzip_fails_with_p1(tmp_path, store, load):
    with pytest.raises(RunStopped) as stopped:
        load(WHOLE[0] + WHOLE[1][:-20])
    report = stopped.value.report
    assert (report.status, report.read, report.written) == ("failed", 100, 100)
    assert "an unknown number of rows after line 100 are missing" in report.reason
    assert count(tmp_path) == 100
    (alert,) = store.alerts.find(status="open")
    assert (alert.urgency, alert.condition) == ("P1", "permanent_error")
    assert "after line 100" in str(alert)


def test_run_over_same_damaged_file_fails_again(tmp_path, load):
    for _ in range(3):
        with pytest.raises(RunStopped, match="after line 100 are missing") as stopped:
            load(WHOLE[0] + WHOLE[1][:-20])
        assert stopped.value.report.status == "failed"
    assert count(tmp_path) == 100


def test_run_over_repaired_file_needs_restart(tmp_path, load):
    with pytest.raises(RunStopped):
        load(WHOLE[0] + WHOLE[1][:-20])
    with pytest.raises(PipelineError, match="redrive run --restart"):
        load(WHOLE[0] + WHOLE[1])
    report = load(restart=True)
    assert (report.status, report.written, count(tmp_path)) == ("complete", 200, 200)


def test_flipped_byte_loads_nothing_and_repaired_file_loads(tmp_path, load):
    corrupt = bytearray(WHOLE[0])
    corrupt[len(corrupt) // 2] ^= 0x10
    with pytest.raises(RunStopped, match="all of its rows are missing") as stopped:
        load(bytes(corrupt))
    assert (stopped.value.report.status, stopped.value.report.read) == ("failed", 0)
    report = load(WHOLE[0])
    assert (report.status, report.written) == ("complete", 100)


@pytest.mark.parametrize("kept", [0, 1, 5])
def test_gzip_cut_to_almost_nothing_is_not_complete(load, kept):
    with pytest.raises(RunStopped, match="ends early"):
        load(WHOLE[0][:kept])
