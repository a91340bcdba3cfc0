"""Columns in the names of directories: `dt=2026-07-01/part-0.parquet`."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import redrive
from redrive import rows


def write_csv(path, records):
    path.write_text("id,v\n" + "".join(f"{one['id']},{one['v']}\n" for one in records))


def write_ndjson(path, records):
    path.write_text("".join(json.dumps(one) + "\n" for one in records))


def write_parquet(path, records):
    pq.write_table(pa.Table.from_pylist(records), path)


FORMATS = {
    "csv": (rows.csv, write_csv),
    "ndjson": (rows.ndjson, write_ndjson),
    "parquet": (rows.parquet, write_parquet),
}


@pytest.fixture(params=sorted(FORMATS))
def files(tmp_path, request):
    read, write = FORMATS[request.param]

    def make(*directories):
        for place, directory in enumerate(directories):
            (tmp_path / directory).mkdir(parents=True)
            write(tmp_path / directory / f"part.{request.param}", [{"id": number, "v": place} for number in (1, 2)])
        return lambda pattern, **options: read(f"{tmp_path}/{pattern}.{request.param}", **options)

    return make


def read_all(source):
    reading = source.open(None, source.identity())
    batches = list(iter(lambda: reading.read(10), None))
    reading.close()
    return reading, batches


def pairs(source, *columns):
    _, batches = read_all(source)
    return [tuple(record[name] for name in columns) for batch in batches for record in batch.rows.records]


@pytest.mark.parametrize("pattern", ["**/*", "*/*", "dt=*/part"])
def test_partition_is_a_column_of_its_rows(files, pattern):
    source = files("dt=a", "dt=b%20c")(pattern)
    assert pairs(source, "dt") == [("a",), ("a",), ("b c",), ("b c",)]
    reading, _ = read_all(source)
    assert reading.columns in (None, ("id", "v", "dt"))


def test_several_levels_and_missing_values(files):
    make = files("y=2026/m=01", "y=2026/m=__HIVE_DEFAULT_PARTITION__", "other")
    assert pairs(make("**/*"), "y", "m") == [(None, None)] * 2 + [("2026", "01")] * 2 + [("2026", None)] * 2


def test_partition_named_by_the_path_is_no_column(files):
    source = files("dt=a", "dt=b")("dt=a/*")
    _, [batch] = read_all(source)
    assert batch.rows.columns == ("id", "v")


def test_column_of_the_file_is_not_replaced(files):
    source = files("id=7")("*/*")
    assert [str(one) for (one,) in pairs(source, "id")] == ["1", "2"]


def test_rows_of_partitions_do_not_overwrite_each_other(tmp_path, files):
    source = files("dt=a", "dt=b")("**/*")
    with redrive.connect(tmp_path / "store.db") as store:
        sink = rows.parquet_dataset(tmp_path / "out", key=["dt", "id"])
        report = redrive.Pipeline("hive", source=source, sink=sink, store=store).run()
    assert (report.written, pq.read_table(tmp_path / "out").num_rows) == (4, 4)


@pytest.mark.parametrize(("read", "name"), [(rows.csv, "a.csv"), (rows.ndjson, "a.ndjson")])
def test_letter_of_a_line_knows_its_partition(tmp_path, read, name):
    (tmp_path / "dt=a").mkdir()
    (tmp_path / "dt=a" / name).write_bytes(b"id\n1,2\n" if name == "a.csv" else b"{}\n1,2\n")
    source = read(tmp_path / "*" / name)
    _, batches = read_all(source)
    bad = [one for batch in batches for one in batch.unreadable][-1]
    context = json.loads(json.dumps(bad.context))
    edited = "7" if name == "a.csv" else '{"id": "7"}'
    assert source.again(edited, context) == {"id": "7", "dt": "a"}
    assert source.again({"id": "7"}, context) == {"id": "7", "dt": "a"}


def test_selected_columns_may_be_those_of_directories(tmp_path):
    for place, value in enumerate("ab"):
        (tmp_path / f"dt={value}").mkdir()
        write_parquet(tmp_path / f"dt={value}" / "a.parquet", [{"id": place, "v": 1}])
    assert pairs(rows.parquet(tmp_path / "*" / "*.parquet", columns=["id", "dt"]), "id", "dt") == [(0, "a"), (1, "b")]
    _, [first, _] = read_all(rows.parquet(tmp_path / "*" / "*.parquet", columns=["id"]))
    assert first.rows.columns == ("id",)
    with pytest.raises(redrive.PipelineError, match="columns must name one that is in"):
        read_all(rows.parquet(tmp_path / "*" / "*.parquet", columns=["dt"]))
