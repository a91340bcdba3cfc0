"""A map of a Parquet file is a map in the dataset, also after a function of a record."""

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import redrive
from redrive import rows


@pytest.mark.parametrize("step", ["validate", "transform"])
def test_map_stays_a_map_through_a_function(tmp_path, step):
    maps = [[("a", 1)], [("b", 2), ("c", 3)], [], None]
    moments = pa.map_(pa.string(), pa.timestamp("ns"))
    source = pa.table(
        {
            "id": [1, 2, 3, 4],
            "counts": pa.array(maps, pa.map_(pa.string(), pa.int64())),
            "lists": pa.array([[one] for one in maps], pa.list_(pa.map_(pa.string(), pa.int64()))),
            "fine": pa.array([[("a", 1)], [("b", 2)], [], None], moments),
            "place": pa.array([[("a", 1)], [("b", 2)], [], None], pa.map_(pa.string(), pa.int64())),
        }
    )
    pq.write_table(source, tmp_path / "in.parquet")

    def located(record):
        return {**record, "place": {"city": "Ulm", "zip": 89073}}  # an object of the function's own

    with redrive.connect(f"sqlite:///{tmp_path}/store.db") as store:
        report = redrive.Pipeline(
            "maps",
            source=rows.parquet(tmp_path / "in.parquet"),
            sink=rows.parquet_dataset(tmp_path / "out", key="id"),
            store=store,
            batch=1,
            **{step: located},
        ).run()
    assert (report.written, report.rejected) == (4, 0)
    found = pq.read_table(tmp_path / "out").sort_by("id")
    assert found["counts"].to_pylist() == maps
    assert found["lists"].to_pylist() == [[one] for one in maps]
    assert found["fine"].to_pylist()[:2] == [
        [("a", "1970-01-01 00:00:00.000000001")],
        [("b", "1970-01-01 00:00:00.000000002")],
    ]
    assert found["place"].to_pylist()[0] == {"city": "Ulm", "zip": 89073}
