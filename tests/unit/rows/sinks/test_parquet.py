"""A dataset of Parquet files: upserts, types, faults."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import signal
import subprocess
import threading
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import redrive
from redrive.errors import SinkMismatch
from redrive.model.letters import ErrorType
from redrive.rows import parquet_dataset
from redrive.rows.batch import Outgoing
from redrive.rows.sinks.parquet import sink as module
from tests.support.warm_python import warm_python


def framed(frame):
    return Outgoing.of_frame(frame, range(frame.height))


def listed(records):
    return Outgoing.of_records(records, range(len(records)))


def numbered(start, count, fee="x"):
    ids = range(start, start + count)
    return framed(
        pl.DataFrame({"id": ids, "fee": [f"{fee} {n}" for n in ids]}, schema={"id": pl.Int64, "fee": pl.String})
    )


def files(path):
    return sorted(entry.name for entry in path.iterdir())


def read(path):
    """Every row, however often its key is there."""
    return pl.read_parquet(path / "*.parquet").sort(pl.nth(0)).to_dicts() if files(path) else []


@contextlib.contextmanager
def path_locked(path):
    directory = os.open(path, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    yield
    os.close(directory)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "dataset"


@pytest.fixture
def sink(path):
    return parquet_dataset(path, key="id")


# ── upserts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_batch_is_a_file_named_by_its_label(path, sink):
    assert sink.write(numbered(0, 3), label="run-000001") == []
    assert sink.write(numbered(3, 3), label="run-000002") == []
    assert files(path) == ["part-run-000001.parquet", "part-run-000002.parquet"]
    assert [row["id"] for row in read(path)] == list(range(6))


def test_row_replaces_the_row_of_its_key(path, sink):
    sink.write(numbered(0, 6, "old"), label="a")
    sink.write(numbered(4, 4, "new"), label="b")
    assert [row["fee"] for row in read(path)] == [
        "old 0",
        "old 1",
        "old 2",
        "old 3",
        "new 4",
        "new 5",
        "new 6",
        "new 7",
    ]


def test_same_batch_again_changes_nothing(path, sink):
    sink.write(numbered(0, 6), label="a")
    sink.write(numbered(4, 4, "new"), label="b")
    before = read(path)
    sink.write(numbered(4, 4, "new"), label="b")
    assert read(path) == before


def test_batch_split_differently_the_first_time_loses_no_row(path, sink):
    sink.write(numbered(0, 10, "before"), label="run-1")
    sink.write(numbered(0, 10, "first"), label="run-2")
    sink.write(numbered(0, 4, "second"), label="run-2")
    assert [row["fee"].split()[0] for row in read(path)] == ["second"] * 4 + ["first"] * 6


def test_file_without_remaining_rows_is_removed(path, sink):
    sink.write(numbered(0, 3), label="a")
    sink.write(numbered(0, 5), label="b")
    assert files(path) == ["part-b.parquet"]


def test_key_may_have_several_columns(path):
    sink = parquet_dataset(path, key=["shop", "id"])
    sink.write(listed([{"shop": s, "id": n, "fee": 1} for s in "ab" for n in range(3)]), label="a")
    sink.write(listed([{"shop": "b", "id": 1, "fee": 2}, {"shop": "c", "id": 1, "fee": 2}]), label="b")
    assert {(row["shop"], row["id"]): row["fee"] for row in read(path)} == {
        ("a", 0): 1, ("a", 1): 1, ("a", 2): 1, ("b", 0): 1, ("b", 1): 2, ("b", 2): 1, ("c", 1): 2,
    }  # fmt: skip


def test_ascending_keys_leave_the_other_files_unchanged(path, sink, monkeypatch):
    for number in range(5):
        sink.write(numbered(number * 100, 100), label=f"{number}")
    before = {name: (path / name).stat().st_ino for name in files(path)}
    with monkeypatch.context() as patched:
        patched.setattr(pq.ParquetFile, "read_row_group", lambda *_, **__: pytest.fail("a file was read"))
        sink.write(numbered(500, 100), label="5")
    assert {name: (path / name).stat().st_ino for name in before} == before


@pytest.mark.parametrize(
    "keys",
    [
        ["a", "ä", "z", "\U0001f600", ""],
        [date(2026, 1, 1), date(1969, 1, 1)],
        [datetime(2026, 1, 1), datetime(1, 1, 1)],
        [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2)))],
        [Decimal("1.5"), Decimal("-2")],
        [b"\xff", b"\x00", b""],
        [1.5, -0.5, float("inf")],
        [UUID(int=1), UUID(int=2**127)],
        [True, False],
        [time(1), time(2)],
        [2**63 - 1, -(2**63)],
    ],
    ids=lambda keys: type(keys[0]).__name__,
)
def test_key_may_be_of_any_plain_type(path, sink, keys):
    sink.write(listed([{"id": key, "fee": "old"} for key in keys]), label="a")
    sink.write(listed([{"id": key, "fee": "new"} for key in keys[:-1]]), label="b")
    assert sorted(row["fee"] for row in read(path)) == ["new"] * (len(keys) - 1) + ["old"]


def test_existing_files_belong_to_the_dataset(path, sink):
    path.mkdir()
    pq.write_table(pa.table({"id": [1, 2], "fee": ["theirs", "theirs"]}), path / "export.parquet")
    sink.write(listed([{"id": 2, "fee": "ours"}]), label="a")
    assert read(path) == [{"id": 1, "fee": "theirs"}, {"id": 2, "fee": "ours"}]


def test_another_writer_of_the_same_dataset_is_noticed(path, sink):
    sink.write(numbered(0, 3), label="a")
    parquet_dataset(path, key="id").write(numbered(2, 3, "other"), label="b")
    sink.write(numbered(4, 2, "mine"), label="c")
    assert [row["fee"] for row in read(path)] == ["x 0", "x 1", "other 2", "other 3", "mine 4", "mine 5"]


def test_concurrent_threads_write_in_turn(path):
    def write(number):
        sink = parquet_dataset(path, key="id")
        for turn in range(5):
            sink.write(numbered(0, 20, f"{number}"), label=f"{number}-{turn}")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [row["id"] for row in read(path)] == list(range(20))


def test_writer_that_does_not_end_is_a_transient_error(path, sink, monkeypatch):
    sink.write(numbered(0, 1), label="a")
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    with path_locked(path), pytest.raises(redrive.Transient, match="another process has been writing"):
        sink.write(numbered(0, 1), label="b")


@pytest.mark.parametrize("label", ["a/b", "a:b", "../../x", "ä", "x" * 300, ""])
def test_any_label_has_a_file_of_its_own(path, sink, label):
    sink.write(numbered(0, 1), label=label)
    sink.write(numbered(1, 1), label=f"{label}?")
    sink.write(numbered(2, 1), label=f"{label}*")
    assert len(files(path)) == 3
    assert [row["id"] for row in read(path)] == [0, 1, 2]
    assert os.listdir(path.parent) == ["dataset"]


batches = st.lists(st.dictionaries(st.integers(0, 12), st.text(max_size=2), max_size=8), max_size=6)


@given(batches, st.booleans())
def test_last_row_of_every_key_is_present_once(tmp_path_factory, written, as_frames):
    path = tmp_path_factory.mktemp("any") / "dataset"
    sink = parquet_dataset(path, key="id")
    expected = {}
    for number, batch in enumerate(written):
        records = [{"id": key, "fee": fee} for key, fee in batch.items()]
        rows = (
            framed(pl.DataFrame(records, schema={"id": pl.Int64, "fee": pl.String})) if as_frames else listed(records)
        )
        assert list(sink.write(rows, label=f"{number}")) == []
        expected |= batch
    found = read(path) if expected else []
    assert [(row["id"], row["fee"]) for row in found] == sorted(expected.items())


# ── faults ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def prepared(path):
    """Three files that all hold keys of the batch to come: one is rewritten, one removed, one rewritten."""
    sink = parquet_dataset(path, key="id")
    sink.write(numbered(0, 10, "old"), label="1")
    sink.write(numbered(10, 5, "old"), label="2")
    sink.write(numbered(15, 10, "old"), label="3")
    return sink


EXPECTED = [f"{'new' if 5 <= number < 20 else 'old'} {number}" for number in range(25)]


@pytest.mark.parametrize("function", ["replace", "fsync"])
def test_write_that_fails_anywhere_converges_when_retried(path, monkeypatch, function):
    real = getattr(os, function)
    for failing in range(100):
        for name in files(path) if path.exists() else ():
            (path / name).unlink()
        sink = prepared(path)
        calls = iter(range(100))

        def fail(*arguments, calls=calls, failing=failing):
            if next(calls) == failing:
                raise OSError(errno.EIO, "Input/output error")
            return real(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(os, function, fail)
            try:
                sink.write(numbered(5, 15, "new"), label="4")
            except OSError:
                pass
            else:
                break
        # No key is missing at any time, and no half file is there.
        assert {row["id"] for row in read(path)} == set(range(25))
        assert all(name.startswith("part-") for name in files(path))
        sink.write(numbered(5, 15, "new"), label="4")
        assert [row["fee"] for row in read(path)] == EXPECTED
    assert failing >= 3


def killed_at(path, call):
    """Write in a process that dies at the n-th `os.replace`; return whether it finished."""
    program = f"""
import os
import polars as pl
from redrive.rows import parquet_dataset
from redrive.rows.batch import Outgoing
calls, real = iter(range(100)), os.replace
os.replace = lambda *names: os._exit(9) if next(calls) == {call} else real(*names)
frame = pl.DataFrame({{"id": range(5, 20), "fee": [f"new {{n}}" for n in range(5, 20)]}})
parquet_dataset({str(path)!r}, key="id").write(Outgoing.of_frame(frame, range(15)), label="4")
"""
    return subprocess.run(warm_python("-c", program), check=False).returncode == 0


@pytest.mark.process
def test_killed_process_is_cleaned_up_by_the_next_write(path):
    for call in range(10):
        for name in files(path) if path.exists() else ():
            (path / name).unlink()
        sink = prepared(path)
        if killed_at(path, call):
            break
        assert any(name.endswith(".tmp") for name in files(path))
        assert {row["id"] for row in read(path)} == set(range(25))
        sink.write(numbered(5, 15, "new"), label="4")
        assert [row["fee"] for row in read(path)] == EXPECTED
        assert all(name.startswith("part-") for name in files(path))
    assert call == 3


def test_full_disk_error_is_raised_and_leaves_no_partial_file(path, sink):
    sink.write(numbered(0, 10), label="a")
    before = read(path)
    large = framed(pl.DataFrame({"id": range(100_000), "fee": [os.urandom(20).hex() for _ in range(100_000)]}))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        with pytest.raises(OSError, match="File too large") as told:
            sink.write(large, label="b")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert told.value.errno == errno.EFBIG
    assert files(path) == ["part-a.parquet"]
    assert read(path) == before


# ── types ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_values_come_back_unchanged(path, sink):
    row = {
        "id": 1,
        "text": "ä\0",
        "fee": Decimal("19.90"),
        "ratio": 0.1,
        "raw": b"\xff",
        "day": date(2026, 7, 1),
        "naive": datetime(2026, 7, 1, 12, 0, 0, 1),
        "aware": datetime(2026, 7, 1, 12, tzinfo=timezone(timedelta(hours=2))),
        "clock": time(12, 30, 0, 5),
        "span": timedelta(days=-1, microseconds=3),
        "yes": True,
        "tags": ["a", None],
        "nested": {"x": [1], "y": {"z": date(2026, 1, 1)}},
        "none": None,
    }
    assert sink.write(listed([row, {"id": 2}]), label="a") == []
    first, second = read(path)
    assert first == row
    assert second == {"id": 2, **dict.fromkeys(list(row)[1:])}


def test_frame_has_its_types(path, sink):
    frame = pl.DataFrame(
        {"id": [1], "small": [1], "kind": ["a"], "fee": [Decimal("1.5")], "at": [datetime(2026, 1, 1)], "items": [[1]]},
        schema={
            "id": pl.UInt32,
            "small": pl.Int8,
            "kind": pl.Categorical,
            "fee": pl.Decimal(10, 2),
            "at": pl.Datetime("ns"),
            "items": pl.List(pl.Int16),
        },
    )
    assert sink.write(framed(frame), label="a") == []
    assert pl.read_parquet(path / "*.parquet").schema == {**frame.schema, "kind": pl.String}


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ("text", 5, "fee: integer where the column holds string"),
        (5, "text", "fee: text where the column holds int64"),
        (5, 1.5, "fee: float where the column holds int64"),
        (date(2026, 1, 1), datetime(2026, 1, 1), "fee: timestamp where the column holds date32[day]"),
        (datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC), "fee: instant where the column holds timestamp[us]"),
        ("text", b"bytes", "fee: bytes where the column holds string"),
        (1.5, True, "fee: boolean where the column holds double"),
        ([1], {"x": 1}, "fee: object where the column holds list<item: int64>"),
    ],
)
def test_only_value_of_a_column_may_be_invalid(path, sink, first, second, says):
    sink.write(listed([{"id": 1, "fee": first}]), label="a")
    for attempt in (sink.rehearse, lambda rows: sink.write(rows, label="b")):
        (refused,) = attempt(listed([{"id": 2, "fee": second}, {"id": 3, "fee": None}]))
        assert (refused.place, refused.error) == (0, says)
    assert [row["id"] for row in read(path)] == [1, 3]


def test_excessive_nesting_is_its_rows_fault(path, sink):
    deep = []
    for _ in range(5_000):
        deep = [deep]
    (refused,) = sink.write(listed([{"id": 1, "tags": [[]]}, {"id": 2, "tags": deep}]), label="a")
    assert (refused.place, refused.error) == (1, "tags: it is nested more than 64 deep")
    assert read(path) == [{"id": 1, "tags": [[]]}]


def test_frame_of_another_type_is_a_mismatch(path, sink):
    sink.write(framed(pl.DataFrame({"id": [1], "fee": [1.5]})), label="a")
    sink.write(framed(pl.DataFrame({"id": [2], "fee": [2]})), label="b")
    sink.write(framed(pl.DataFrame({"id": [3], "fee": [None]})), label="c")
    with pytest.raises(SinkMismatch, match=r"column 'fee' of .* holds double, and these rows bring string"):
        sink.write(framed(pl.DataFrame({"id": [4], "fee": ["N/A"]})), label="d")
    assert [row["fee"] for row in read(path)] == [1.5, 2.0, None]


def test_null_column_gets_the_type_of_dataset_or_first_values(path, sink):
    sink.write(listed([{"id": 1, "fee": None, "tags": [], "more": {"x": None}}]), label="a")
    sink.write(framed(pl.DataFrame({"id": [2], "fee": [None], "tags": [None], "more": [None]})), label="b")
    sink.write(listed([{"id": 3, "fee": "x", "tags": ["t"], "more": {"x": 1}}]), label="c")
    sink.write(listed([{"id": 4, "fee": None, "tags": None, "more": None}]), label="d")
    assert {str(pq.read_schema(path / name).field("fee").type) for name in files(path)} == {"string"}
    assert [row["fee"] for row in read(path)] == [None, None, "x", None]
    assert [row["tags"] for row in read(path)] == [[], None, ["t"], None]
    assert [row["more"] for row in read(path)] == [{"x": None}, None, {"x": 1}, None]


def test_whole_numbers_fit_a_column_of_floats_or_decimals(path, sink):
    sink.write(listed([{"id": 1, "fee": 1.5, "sum": Decimal("0.1")}, {"id": 2, "fee": 2, "sum": 3}]), label="a")
    sink.write(listed([{"id": 3, "fee": 3, "sum": 4}]), label="b")
    sink.write(listed([{"id": 4, "fee": 4, "sum": Decimal("0.123456789")}]), label="c")
    assert [row["fee"] for row in read(path)] == [1.5, 2.0, 3.0, 4.0]
    assert [row["sum"] for row in read(path)] == [Decimal("0.1"), 3, 4, Decimal("0.123456789")]


def test_extra_column_is_a_mismatch_and_a_missing_one_is_null(path, sink):
    sink.write(listed([{"id": 1, "fee": 1}]), label="a")
    with pytest.raises(SinkMismatch, match="has no tip, only id, fee"):
        sink.check(["id", "fee", "tip"])
    with pytest.raises(SinkMismatch, match="has no tip, only id, fee"):
        sink.write(listed([{"id": 2, "fee": 1, "tip": 1}]), label="b")
    sink.check(["id"])
    sink.write(listed([{"id": 2}]), label="b")
    assert read(path) == [{"id": 1, "fee": 1}, {"id": 2, "fee": None}]


def test_rows_without_the_key_are_a_mismatch_at_once(path, sink):
    with pytest.raises(SinkMismatch, match=r"the rows have no id, which .* is written by"):
        sink.check(["fee"])
    sink.check(["id", "fee"])
    assert not path.exists()


def test_list_as_key_is_a_mismatch(sink):
    with pytest.raises(SinkMismatch, match="a key is a plain value"):
        sink.rehearse(listed([{"id": [1]}]))


def test_files_that_cannot_be_one_dataset_are_a_mismatch(path, sink):
    path.mkdir()
    pq.write_table(pa.table({"id": [1]}), path / "a.parquet")
    pq.write_table(pa.table({"id": ["1"]}), path / "b.parquet")
    with pytest.raises(SinkMismatch, match=r"not of one kind: b.parquet holds 'id' as string, other files as int64"):
        sink.check(["id"])
    (path / "b.parquet").write_bytes(b"no")
    with pytest.raises(SinkMismatch, match=r"b.parquet is not a Parquet file"):
        sink.check(["id"])
    pq.write_table(pa.table({"other": ["1"]}), path / "b.parquet")
    with pytest.raises(SinkMismatch, match=r"b.parquet has no id"):
        sink.check(["id"])


def test_path_that_is_a_file_is_a_mismatch(path, sink):
    path.write_text("x")
    with pytest.raises(SinkMismatch, match="is a file"):
        sink.check(["id"])
    with pytest.raises(SinkMismatch, match="is a file"):
        sink.write(numbered(0, 1), label="a")


# ── rejected rows ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("good", "bad", "says"),
    [
        (1, "N/A", "fee: text where the column holds int64"),
        (1, 2**64, "fee: "),
        (1, True, "fee: boolean where the column holds int64"),
        (1.5, 2**53 + 1, "fee: "),
        ("x", 1, "fee: integer where the column holds string"),
        ("x", b"x", "fee: bytes where the column holds string"),
        ("x", "\ud800", "fee: "),
        (date(2026, 1, 1), datetime(2026, 1, 1, 12), r"fee: timestamp where the column holds date32[day]"),
        (datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC), "fee: instant where the column holds timestamp[us]"),
        (Decimal("1.5"), Decimal("NaN"), "fee: "),
        (1, object(), "fee: <object> is nothing that Parquet holds"),
        ([1], ["a"], "fee: text where the column holds int64"),
        ({"x": 1}, {"x": "a"}, "fee: x: text where the column holds int64"),
        ({"x": date(2026, 1, 1)}, {"x": datetime(2026, 1, 1, 5)}, "fee: x: timestamp where"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
@pytest.mark.parametrize("known", [False, True])
def test_unfitting_value_rejects_only_its_row(path, sink, good, bad, says, known):
    if known:
        sink.write(listed([{"id": -1, "fee": good}]), label="before")
    rows = listed([{"id": number, "fee": bad if number in {3, 70} else good} for number in range(100)])
    for refused in (sink.rehearse(rows), sink.write(rows, label="a")):
        assert [one.place for one in refused] == [3, 70]
        assert all(str(one.error).startswith(says) for one in refused)
        assert {one.error_type for one in refused} == {ErrorType.SINK}
    assert [row["id"] for row in read(path) if row["id"] >= 0] == [n for n in range(100) if n not in {3, 70}]


def test_object_with_an_extra_field_is_rejected_and_not_cut(path, sink):
    sink.write(listed([{"id": 1, "more": {"x": 1}}]), label="a")
    [refused] = sink.write(listed([{"id": 2, "more": {"x": 1, "y": 2}}, {"id": 3, "more": {"x": None}}]), label="b")
    assert refused.place == 0
    assert str(refused.error).startswith("more: 'y' is no field of the column")
    assert read(path) == [{"id": 1, "more": {"x": 1}}, {"id": 3, "more": {"x": None}}]


@pytest.mark.parametrize("batch", [1, 100])
def test_object_gets_no_missing_field(tmp_path, path, batch):
    values = [{"x": 1}, {"y": 2}, {}, {"x": None}, {"x": 2, "y": 3}, None]
    with redrive.connect(f"sqlite:///{tmp_path}/store.db") as store:
        report = run_into(path, store, redrive.rows.records(enumerated(values), name="rows"), batch=batch)
        messages = [letter.error_message for letter in store.dlq.each(status="any")]
    assert report.rejected == 3
    assert read(path) == [{"id": 0, "v": {"x": 1}}, {"id": 3, "v": {"x": None}}, {"id": 5, "v": None}]
    assert sum("the object has no 'x', which would be null" in message for message in messages) == 1


@pytest.mark.parametrize("batch", [1, 100])
@pytest.mark.parametrize("kind", [pa.map_(pa.string(), pa.int64()), pa.list_(pa.map_(pa.string(), pa.int64()))])
def test_objects_are_maps_where_the_dataset_has_maps(tmp_path, path, kind, batch):
    maps = [{"a": 1}, {"b": 2, "c": None}, {}]
    values = [*([[one] for one in maps] if pa.types.is_list(kind) else maps), None]
    pairs = [with_pairs(value) for value in values]
    source = tmp_path / "source.parquet"
    pq.write_table(pa.table({"id": pa.array(range(4)), "v": pa.array(pairs, kind)}), source)
    with redrive.connect(f"sqlite:///{tmp_path}/store.db") as store:
        run_into(path, store, redrive.rows.parquet(source), batch=batch)
        report = run_into(path, store, redrive.rows.parquet(source), batch=batch, validate=lambda row: row)
        assert report.rejected == 0
        wrong = [{"a": "text"}, {1: 1}, {"a": 5}]
        wrong = [[one] for one in wrong] if pa.types.is_list(kind) else wrong
        report = run_into(path, store, redrive.rows.records(enumerated(wrong, start=4), name="rows"), batch=batch)
        assert report.rejected == 2
    table = pa.concat_tables(pq.ParquetFile(path / name).read() for name in files(path)).sort_by("id")
    assert table.schema.field("v").type == kind
    assert table.column("v").to_pylist() == [*pairs, with_pairs(wrong[2])]


def run_into(path, store, source, **options):
    sink = parquet_dataset(path, key="id")
    name = f"load-{len(list(store.runs.find()))}"
    return redrive.Pipeline(name, source=source, sink=sink, store=store, gate=redrive.Gate(abort=1), **options).run()


def enumerated(values, start=0):
    return [{"id": at, "v": value} for at, value in enumerate(values, start)]


def with_pairs(value):
    if isinstance(value, list):
        return [with_pairs(one) for one in value]
    return None if value is None else list(value.items())


def test_all_faults_of_a_row_are_reported(sink):
    rows = listed([{"id": n, "fee": "N/A" if n == 1 else 1, "tip": b"?" if n == 1 else "x"} for n in range(5)])
    [refused] = sink.rehearse(rows)
    assert refused.error == "fee: text where the column holds int64; tip: bytes where the column holds string"


def test_frame_number_too_large_rejects_only_its_row(path, sink):
    sink.write(framed(pl.DataFrame({"id": [1], "fee": [1]}, schema={"id": pl.Int64, "fee": pl.Int16})), label="a")
    refused = sink.write(framed(pl.DataFrame({"id": [2, 3, 4], "fee": [5, 70_000, 6]})), label="b")
    assert [one.place for one in refused] == [1]
    assert [row["id"] for row in read(path)] == [1, 2, 4]


def test_frame_numbers_beyond_64_bits_are_written_if_they_fit(path, sink):
    frame = pl.DataFrame({"id": [1, 2], "fee": [5, 2**100]}, schema={"id": pl.Int64, "fee": pl.Int128})
    assert [one.place for one in sink.write(framed(frame), label="a")] == [1]
    assert read(path) == [{"id": 1, "fee": 5}]


def test_batch_of_rejected_rows_writes_nothing(path, sink):
    sink.write(listed([{"id": 1, "fee": Decimal(1)}]), label="a")
    assert len(sink.write(listed([{"id": 2, "fee": Decimal("NaN")}]), label="b")) == 1
    assert files(path) == ["part-a.parquet"]


def test_dry_run_changes_nothing(path, sink):
    assert sink.rehearse(numbered(0, 3)) == []
    assert not path.exists()
    assert sink.write(numbered(0, 0), label="a") == ()
    assert not path.exists()


def test_object_without_a_field_is_rejected(sink):
    with pytest.raises(SinkMismatch, match="which Parquet cannot hold"):
        sink.rehearse(framed(pl.DataFrame({"id": [1], "more": [{}]}, schema={"id": pl.Int64, "more": pl.Struct([])})))
    [refused] = sink.rehearse(listed([{"id": 1, "more": {}}]))
    assert refused.place == 0


def test_closed_sink_may_be_used_again(path, sink):
    sink.write(numbered(0, 3), label="a")
    sink.close()
    sink.close()
    sink.write(numbered(2, 3, "new"), label="b")
    assert [row["id"] for row in read(path)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("key", ["", [], ["id", ""], ["id", "id"], [1]])
def test_missing_key_is_rejected_at_once(key):
    with pytest.raises(ValueError, match="needs the columns that identify a row"):
        parquet_dataset("x", key=key)


def test_unknown_compression_is_rejected_at_once(path):
    with pytest.raises(ValueError, match="compression is zstd, snappy"):
        parquet_dataset(path, key="id", compression="rar")
    parquet_dataset(path, key="id", compression="none").write(numbered(0, 1), label="a")
    assert pq.read_metadata(path / "part-a.parquet").row_group(0).column(0).compression == "UNCOMPRESSED"


def test_floats_beside_decimals_are_written_as_decimals(tmp_path):
    sink = parquet_dataset(tmp_path / "out", key="id")
    records = [{"id": 1, "fee": 0.5}, {"id": 2, "fee": Decimal("12345678901234567.89")}, {"id": 3, "fee": 7}]
    assert sink.write(Outgoing.of_records(records, range(3)), label="a") == []
    assert sink.write(Outgoing.of_records([{"id": 4, "fee": 0.1}], range(1)), label="b") == []
    table = pq.read_table(tmp_path / "out")
    assert dict(zip(table["id"].to_pylist(), table["fee"].to_pylist(), strict=True)) == {
        1: Decimal("0.5"), 2: Decimal("12345678901234567.89"), 3: Decimal(7), 4: Decimal("0.1"),
    }  # fmt: skip
