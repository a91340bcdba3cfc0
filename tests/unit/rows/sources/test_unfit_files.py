"""One unreadable file of a glob is quarantined, and the others are read."""

from __future__ import annotations

import contextlib
import json
import sqlite3

import pyarrow as pa
import pyarrow.parquet as pq
import pydantic
import pytest

import redrive
from redrive import rows
from redrive.errors import SourceError


def write_csv(path, numbers):
    path.write_text("id,v\n" + "".join(f"{number},x\n" for number in numbers))


def write_ndjson(path, numbers):
    path.write_text("".join(json.dumps({"id": number, "v": "x"}) + "\n" for number in numbers))


def write_parquet(path, numbers):
    pq.write_table(pa.table({"id": list(numbers), "v": ["x" for _ in numbers]}), path)


TABLE = "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)"
ZIP = b"PK\x03\x04 and so on"
FORMATS = {
    "a csv with another column": (rows.csv, write_csv, b"id,price\n7,8\n", "it lacks v and it adds price"),
    "a csv with no header": (rows.csv, write_csv, b'"id,v\n1,2\n', "cannot be read"),
    "a csv that is an archive": (rows.csv, write_csv, ZIP, "is a zip archive"),
    "an ndjson that is an archive": (rows.ndjson, write_ndjson, ZIP, "is a zip archive"),
    "an ndjson that is an HTML page": (rows.ndjson, write_ndjson, b"<html>\n{}\n", "is an HTML page, not NDJSON"),
    "an ndjson that is a csv": (rows.ndjson, write_ndjson, b"id,v\n1,2\n", "no line is a JSON object"),
    "a parquet that is none": (rows.parquet, write_parquet, b"id,v\n1,2\n", "is not a Parquet file"),
}


@pytest.fixture(params=FORMATS.values(), ids=FORMATS)
def odd(tmp_path, request):
    """Three files, the second of them odd; their source, and what is wrong with it."""
    read, write, content, why = request.param
    for place in (0, 2):
        write(tmp_path / f"{place}.data", range(place * 10, place * 10 + 10))
    (tmp_path / "1.data").write_bytes(content)
    return read(tmp_path / "*.data"), why


def batches_of(source, position=None):
    reading = source.open(position, source.identity())
    found = list(iter(lambda: reading.read(4), None))
    reading.close()
    return found


def ids(batches):
    return [int(record["id"]) for batch in batches for record in batch.rows.records]


def test_odd_file_is_one_letter_and_the_others_are_read(tmp_path, odd):
    source, why = odd
    batches = batches_of(source)
    assert ids(batches) == [*range(10), *range(20, 30)]
    [letter] = [one for batch in batches for one in batch.unreadable]
    assert (letter.error_type, letter.position) == ("file", "file")
    assert why in letter.error
    assert letter.raw["path"] == str(tmp_path / "1.data")
    assert letter.raw["size"] == (tmp_path / "1.data").stat().st_size
    assert letter.raw.keys() == {"path", "size", "mtime", "digest", "reason"}
    for place, batch in enumerate(batches):  # and the same from every checkpoint
        rest = batches_of(source, json.loads(json.dumps(batch.next)))
        assert ids(rest) == ids(batches[place + 1 :])
        assert [len(one.unreadable) for one in rest] == [len(one.unreadable) for one in batches[place + 1 :]]


def test_letter_of_a_file_is_not_replayed(odd):
    source, _ = odd
    [letter] = [one for batch in batches_of(source) for one in batch.unreadable]
    with pytest.raises(ValueError, match="was set aside as a file: fix it, run a pipeline over it, then discard"):
        source.again(letter.raw, letter.context)


def test_run_with_an_odd_file_is_at_least_p3(tmp_path, odd):
    source, _ = odd
    with redrive.connect(tmp_path / "store.db") as store:
        sink = rows.parquet_dataset(tmp_path / "out", key="id")
        gate = redrive.Gate(warn=0.5, page=0.6, abort=0.9)
        report = redrive.Pipeline("glob", source=source, sink=sink, store=store, gate=gate).run()
        [letter] = store.dlq.find()
    assert (report.status, report.tier, report.written) == ("complete", "P3", 20)
    assert (letter.error_type, letter.source) == ("file", str(tmp_path / "1.data"))


def test_run_in_which_every_file_is_odd_fails(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.data").write_bytes(ZIP)
    for read in (rows.csv, rows.ndjson, rows.parquet):
        source = read(tmp_path / "*.data")
        with pytest.raises(SourceError, match="none of the 2 files can be read; the last one: "):
            source.open(None, source.identity())


def test_only_file_is_rejected(tmp_path):
    (tmp_path / "a.csv").write_bytes(ZIP)
    source = rows.csv(tmp_path / "*.csv")
    with pytest.raises(SourceError, match="is a zip archive"):
        source.open(None, source.identity())


def test_csv_with_its_columns_in_another_order_is_read_by_name(tmp_path):
    (tmp_path / "a.csv").write_text("id,v\n1,x\n")
    (tmp_path / "b.csv").write_text("v,id\ny,2\nragged\n")
    source = rows.csv(tmp_path / "*.csv")
    batches = batches_of(source)
    assert [record for batch in batches for record in batch.rows.records] == [
        {"id": "1", "v": "x"},
        {"id": "2", "v": "y"},
    ]
    assert [batch.rows.columns for batch in batches] == [("id", "v")] * 2
    [bad] = [one for batch in batches for one in batch.unreadable]
    assert source.again(b"z,3", bad.context) == {"v": "z", "id": "3"}


class TestUnfitFile:
    """Files of a glob, of which some have columns that the model or the table does not take."""

    def run(self, tmp_path, source, *, batch=4, table=TABLE, **options):
        path = tmp_path / "t.db"
        if table and not path.exists():
            with contextlib.closing(sqlite3.connect(path)) as connection, connection:
                connection.execute(table)
        sink = rows.table(f"sqlite:///{path}", "t", key="id", create=table is None)
        store = redrive.connect(tmp_path / "store.db")
        report = redrive.Pipeline("glob", source=source, sink=sink, store=store, batch=batch, **options).run()
        with contextlib.closing(sqlite3.connect(path)) as connection:
            written = [key for (key,) in connection.execute("SELECT id FROM t ORDER BY id")]
        return report, written, {letter.source: letter.error_message for letter in store.dlq.find()}

    def parquet(self, path, **columns):
        pq.write_table(pa.table({name: list(values) for name, values in columns.items()}), path)

    # The first file decides what a new table is like.
    @pytest.mark.parametrize(("odd", "table"), [(0, TABLE), (1, TABLE), (2, TABLE), (1, None), (2, None)])
    def test_of_parquet_is_quarantined(self, tmp_path, odd, table):
        for place in range(3):
            other = {"w": ["x"] * 5} if place == odd else {}
            self.parquet(tmp_path / f"{place}.parquet", id=range(place * 10, place * 10 + 5), v=["x"] * 5, **other)
        report, written, letters = self.run(tmp_path, rows.parquet(tmp_path / "*.parquet"), table=table)
        assert (report.status, report.tier, report.rejected) == ("complete", "P3", 1)
        assert written == [number for number in range(30) if number % 10 < 5 and number // 10 != odd]
        assert list(letters) == [str(tmp_path / f"{odd}.parquet")]
        assert "'w'" in letters[str(tmp_path / f"{odd}.parquet")]

    def test_of_parquet_may_lack_a_column(self, tmp_path):
        self.parquet(tmp_path / "0.parquet", id=range(5))
        self.parquet(tmp_path / "1.parquet", id=range(5, 9), v=["x"] * 4)
        report, written, letters = self.run(tmp_path, rows.parquet(tmp_path / "*.parquet"))
        assert (report.status, written, letters) == ("complete", [*range(9)], {})

    def test_of_csv_is_quarantined_where_it_is_the_first(self, tmp_path):
        (tmp_path / "0.csv").write_text("id,w\n1,x\n")
        for place in (1, 2):
            write_csv(tmp_path / f"{place}.csv", range(place * 10, place * 10 + 5))
        report, written, letters = self.run(tmp_path, rows.csv(tmp_path / "*.csv"))
        assert (report.status, report.rejected) == ("complete", 1)
        assert written == [*range(10, 15), *range(20, 25)]
        assert list(letters) == [str(tmp_path / "0.csv")]

    def test_of_csv_is_judged_by_the_model(self, tmp_path):
        class Row(pydantic.BaseModel):
            id: int
            v: str

        (tmp_path / "0.csv").write_text("number,v\n1,x\n")
        write_csv(tmp_path / "1.csv", range(5))
        report, written, letters = self.run(tmp_path, rows.csv(tmp_path / "*.csv"), validate=Row)
        assert (report.status, written, list(letters)) == ("complete", [*range(5)], [str(tmp_path / "0.csv")])

    def test_ends_the_run_where_none_fits(self, tmp_path):
        for place in range(2):
            (tmp_path / f"{place}.csv").write_text("id,w\n1,x\n")
            self.parquet(tmp_path / f"{place}.parquet", id=[1], w=["x"])
        for source in (rows.csv(tmp_path / "*.csv"), rows.parquet(tmp_path / "*.parquet")):
            with pytest.raises(redrive.RunStopped, match="has no column 'w'"):
                self.run(tmp_path, source)

    @pytest.mark.parametrize("form", ["csv", "parquet"])
    def test_is_quarantined_once_in_a_resumed_run(self, tmp_path, form):
        for place in range(4):
            name = "w" if place in (0, 2) else "v"
            if form == "csv":
                text = "".join(f"{n},x\n" for n in range(place * 10, place * 10 + 3))
                (tmp_path / f"{place}.csv").write_text(f"id,{name}\n{text}")
            else:
                numbers = range(place * 10, place * 10 + 3)
                self.parquet(tmp_path / f"{place}.parquet", id=numbers, **{name: ["x"] * 3})
        read = getattr(rows, form)
        report = None
        for _ in range(20):
            with contextlib.suppress(redrive.RunStopped):  # after each batch
                source = read(tmp_path / f"*.{form}")
                report, written, letters = self.run(tmp_path, source, batch=1, deadline=1e-9)
                break
        assert report is not None
        assert (report.status, report.read, report.rejected) == ("complete", 8, 2)
        assert written == [10, 11, 12, 30, 31, 32]
        assert len(letters) == 2
