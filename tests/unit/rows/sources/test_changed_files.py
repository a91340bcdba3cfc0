"""A file that changes during its run: no row of two versions, and no complete run with missing rows."""

from __future__ import annotations

import gzip
import json
import os
import random
import sqlite3
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import redrive
from redrive.errors import PipelineError, RunStopped

ROWS = 3_000
OLD, NEW = range(ROWS), [*range(ROWS, ROWS + 50), *range(ROWS)]


def records(mark, ids):
    noise = random.Random(mark)  # gzip must not make it small
    return [{"id": number, "v": f"{mark}{noise.getrandbits(3_600):0900x}"} for number in ids]


def as_csv(rows):
    return ("id,v\n" + "".join(f"{row['id']},{row['v']}\n" for row in rows)).encode()


def as_ndjson(rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def as_parquet(rows):
    with pa.BufferOutputStream() as out:
        pq.write_table(pa.Table.from_pylist(rows), out, row_group_size=500)
        return out.getvalue().to_pybytes()


CASES = {
    "csv": (redrive.rows.csv, as_csv),
    "gzip": (redrive.rows.csv, lambda rows: gzip.compress(as_csv(rows), 1)),
    "ndjson": (redrive.rows.ndjson, as_ndjson),
    "ndjson.gz": (redrive.rows.ndjson, lambda rows: gzip.compress(as_ndjson(rows), 1)),
    "parquet": (redrive.rows.parquet, as_parquet),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.fixture
def load(tmp_path):
    """Runs a pipeline over files, and does something after the first batch."""

    def run(source, then=lambda: None, **options):
        todo = [then]
        pipeline = redrive.Pipeline(
            "vendor",
            source=source,
            sink=redrive.rows.table(f"sqlite:///{tmp_path}/target.db", "t", key="id", create=True),
            store=tmp_path / "store.db",
            batch=400,
        )
        return pipeline.run(watch=lambda _: todo.pop()() if todo else None, **options)

    return run


def marks(tmp_path):
    with closing(sqlite3.connect(tmp_path / "target.db")) as database:
        return dict(database.execute("SELECT substr(v, 1, 3), count(*) FROM t GROUP BY 1"))


def test_file_changed_in_place_fails_the_run_without_mixed_rows(tmp_path, load, case):
    kind, made = case
    path = tmp_path / "file"
    path.write_bytes(made(records("old", OLD)))
    new = made(records("new", NEW))
    with pytest.raises(RunStopped, match="was changed while it was being read") as stopped:
        load(kind(path), lambda: path.write_bytes(new))
    assert stopped.value.report.status == "failed"
    assert not stopped.value.report.rejected
    assert set(marks(tmp_path)) == {"old"}
    with pytest.raises(PipelineError, match="--restart"):
        load(kind(path))
    assert load(kind(path), restart=True).status == "complete"
    assert marks(tmp_path) == {"new": len(NEW)}


def test_file_of_a_glob_changed_in_place_is_not_quarantined(tmp_path, load, case):
    kind, made = case
    for name, ids in (("a", range(10)), ("b", range(10, ROWS))):
        (tmp_path / f"{name}.in").write_bytes(made(records("old", ids)))
    new = made(records("new", NEW))
    with pytest.raises(RunStopped, match=r"b\.in was changed while it was being read"):
        load(kind(tmp_path / "*.in"), lambda: (tmp_path / "b.in").write_bytes(new))
    assert set(marks(tmp_path)) == {"old"}


@pytest.mark.parametrize("case", [CASES["ndjson"], CASES["parquet"]], ids=["ndjson", "parquet"])
def test_content_of_the_same_size_fails_the_run(tmp_path, load, case):
    kind, made = case
    path = tmp_path / "file"
    content = made(records("old", OLD))
    path.write_bytes(content)

    def write_again():
        with path.open("r+b") as file:
            file.seek(len(content) // 2)
            file.write(content[len(content) // 2 :])

    with pytest.raises(RunStopped, match="was changed while it was being read"):
        load(kind(path), write_again)


def test_file_replaced_by_another_is_read_to_its_end(tmp_path, load, case):
    kind, made = case
    path = tmp_path / "file"
    path.write_bytes(made(records("old", OLD)))
    (tmp_path / "next").write_bytes(made(records("new", NEW)))
    assert load(kind(path), lambda: os.replace(tmp_path / "next", path)).status == "complete"
    assert marks(tmp_path) == {"old": ROWS}


@pytest.mark.parametrize("names", ["a", "ab"], ids=["one", "glob"])
def test_file_that_is_moved_is_read_to_its_end(tmp_path, load, case, names):
    kind, made = case
    for place, name in enumerate(names):
        (tmp_path / f"{name}.in").write_bytes(made(records("old", range(place * ROWS, (place + 1) * ROWS))))
    moved = tmp_path / "a.in"
    report = load(kind(moved if names == "a" else tmp_path / "*.in"), lambda: moved.rename(tmp_path / "a.archived"))
    assert report.status == "complete"
    assert marks(tmp_path) == {"old": ROWS * len(names)}


@pytest.mark.parametrize("name", ["csv", "ndjson"])
def test_file_appended_to_is_read_with_its_new_rows(tmp_path, load, name):
    kind, made = CASES[name]
    path = tmp_path / "file"
    path.write_bytes(made(records("old", OLD)))
    more = made(records("new", range(ROWS, ROWS + 50))).removeprefix(b"id,v\n")

    def append():
        with path.open("ab") as file:
            file.write(more)

    assert load(kind(path), append).status == "complete"
    assert marks(tmp_path) == {"old": ROWS, "new": 50}


class TestUnreadFile:
    """Of the files of a glob, the last one changes while the first is read."""

    @pytest.fixture
    def files(self, tmp_path, case):
        kind, made = case
        for name, ids in (("a", range(1_000)), ("b", range(1_000, 1_010)), ("c", range(1_010, 1_200))):
            (tmp_path / f"{name}.in").write_bytes(made(records("old", ids)))
        return kind(tmp_path / "*.in"), tmp_path / "c.in"

    @pytest.mark.parametrize("is_renamed", [False, True], ids=["in place", "renamed"])
    @pytest.mark.parametrize("rows", [None, 20], ids=["empty", "fewer rows"])
    def test_shorter_file_fails_the_run(self, tmp_path, load, case, files, rows, is_renamed):
        source, last = files
        short = b"" if rows is None else case[1](records("old", range(1_010, 1_010 + rows)))

        def shorten():
            written = tmp_path / "next" if is_renamed else last
            written.write_bytes(short)
            written.rename(last)

        with pytest.raises(RunStopped, match=r"c\.in (has become shorter|was changed)") as stopped:
            load(source, shorten)
        report = stopped.value.report
        assert (report.status, report.rejected) == ("failed", 0)
        assert marks(tmp_path) == {"old": 1_010}

    def test_other_content_fails_the_run(self, load, case, files):
        source, last = files
        other = case[1](records("new", range(1_010, 1_200)))
        with pytest.raises(RunStopped, match=r"c\.in (is another file|has grown since|has become shorter|was changed)"):
            load(source, lambda: last.write_bytes(other))

    def test_missing_file_fails_the_run(self, load, files):
        source, last = files
        with pytest.raises(RunStopped, match=r"(?i)no (such )?file .*c\.in"):
            load(source, last.unlink)

    @pytest.mark.parametrize("case", [CASES["csv"], CASES["ndjson"]], ids=["csv", "ndjson"])
    def test_appended_rows_are_read(self, tmp_path, load, case, files):
        source, last = files
        more = case[1](records("new", range(1_200, 1_210))).removeprefix(b"id,v\n")

        def append():
            with last.open("ab") as file:
                file.write(more)

        assert load(source, append).status == "complete"
        assert marks(tmp_path) == {"old": 1_200, "new": 10}


def test_source_reopened_after_an_error_notices_the_change(tmp_path, case):
    kind, made = case
    path = tmp_path / "file"
    path.write_bytes(made(records("old", OLD)))
    source = kind(path)
    identity = source.identity()
    reading = source.open(None, identity)
    position = reading.read(100).next
    reading.close()
    path.write_bytes(made(records("new", NEW)))
    with pytest.raises(PipelineError, match=r"is another file now|has grown since"):
        source.open(position, identity).read(100)
