"""Parquet files, whole and damaged."""

from __future__ import annotations

import json
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from redrive.errors import SourceError
from redrive.rows import parquet
from redrive.rows.sources.parquet.rows import rows_of


def read_all(source, most=1_000, position=None):
    reading = source.open(position, source.identity())
    try:
        return list(iter(lambda: reading.read(most), None))
    finally:
        reading.close()


def ids(batches):
    return [number for batch in batches for number in batch.rows.frame["id"]] if batches else []


def write(path, count, *, start=0, **options):
    table = pa.table(
        {"id": range(start, start + count), "name": [f"name {n * 7919}" for n in range(start, start + count)]}
    )
    pq.write_table(table, path, **{"row_group_size": 1_000, "write_page_checksum": True, **options})
    return path


def damage(path, group, *, column=0, at=0.5):
    """Overwrite some bytes of a column of a row group."""
    chunk = pq.read_metadata(path).row_group(group).column(column)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    with path.open("r+b") as file:
        file.seek(start + int(chunk.total_compressed_size * at))
        file.write(b"\xa5" * 20)


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_are_frames_in_batches_independent_of_row_groups(tmp_path):
    batches = read_all(parquet(write(tmp_path / "a.parquet", 5_500)), most=2_200)
    assert [batch.rows.frame.height for batch in batches] == [2_200, 2_200, 1_100]
    assert ids(batches) == list(range(5_500))
    assert all(batch.rows.is_frame for batch in batches)
    assert batches[1].position_of(17) == "row 2218"
    assert batches[1].next == {"file": str(tmp_path / "a.parquet"), "row": 4_400}


def test_size_and_columns_are_known_before_the_first_row(tmp_path):
    write(tmp_path / "a.parquet", 30)
    write(tmp_path / "b.parquet", 12, start=30)
    reading = parquet(tmp_path / "*.parquet").open(None, parquet(tmp_path / "*.parquet").identity())
    assert (reading.total, reading.columns) == (42, ("id", "name"))
    assert [batch.done for batch in iter(lambda: reading.read(20), None)] == [20, 30, 42]
    reading.close()


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 700, 999, 1_000, 8_192, 100_000])
def test_reading_resumes_after_every_batch(tmp_path, most):
    write(tmp_path / "a.parquet", 20)
    write(tmp_path / "b.parquet", 2_100, start=20, row_group_size=900)
    source = parquet(tmp_path / "*.parquet")
    batches = read_all(source, most=most)
    assert ids(batches) == list(range(2_120))
    for place in range(0, len(batches), max(1, len(batches) // 10)):
        assert ids(read_all(source, most=most, position=batches[place].next)) == ids(batches[place + 1 :])


def test_batch_has_rows_of_one_file_and_columns_may_differ(tmp_path):
    pq.write_table(pa.table({"id": [1], "fee": [1.5]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"fee": ["N/A"], "id": [2], "note": ["x"]}), tmp_path / "b.parquet")
    source = parquet(tmp_path / "*.parquet")
    assert source.open(None, source.identity()).columns == ("id", "fee")
    first, second = read_all(source)
    assert first.rows.records == [{"id": 1, "fee": 1.5}]
    assert second.rows.records == [{"fee": "N/A", "id": 2, "note": "x"}]
    assert (first.source, second.source) == (str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet"))


def test_only_the_selected_columns_are_read(tmp_path):
    pq.write_table(pa.table({"a": [1], "a.b": [2], "s": [{"x": 3, "y": 4}], "c": [5]}), tmp_path / "a.parquet")
    source = parquet(tmp_path / "a.parquet", columns=["s", "a"])
    assert source.open(None, source.identity()).columns == ("s", "a")
    [batch] = read_all(source)
    assert batch.rows.records == [{"s": {"x": 3, "y": 4}, "a": 1}]


def test_dictionary_encoded_texts_are_texts(tmp_path):
    pq.write_table(pa.table({"id": [1, 2], "kind": pa.array(["a", "b"]).dictionary_encode()}), tmp_path / "a.parquet")
    [batch] = read_all(parquet(tmp_path / "a.parquet"))
    assert batch.rows.frame.schema["kind"] == pl.String


def test_values_have_their_type(tmp_path):
    row = {
        "id": 2**63 - 1,
        "fee": Decimal("19.90"),
        "at": datetime(2026, 7, 1, 12, tzinfo=UTC),
        "tags": ["a", None],
        "raw": b"\xff\x00",
        "none": None,
    }
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    [batch] = read_all(parquet(tmp_path / "a.parquet"))
    assert batch.rows.record(0) == row


def test_decimals_that_no_frame_can_represent_are_records(tmp_path):
    large = Decimal(10) ** 50
    table = pa.table({"id": [1], "sum": pa.array([[large]], pa.list_(pa.decimal256(60, 2)))})
    pq.write_table(table, tmp_path / "a.parquet")
    [batch] = read_all(parquet(tmp_path / "a.parquet"))
    assert batch.rows.records == [{"id": 1, "sum": [large]}]


def test_file_without_rows_has_no_batch(tmp_path):
    assert read_all(parquet(write(tmp_path / "a.parquet", 0))) == []


# ── damage ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("most", [100, 1_500, 50_000])
def test_damaged_row_group_is_one_letter_and_others_are_read(tmp_path, column, most):
    path = write(tmp_path / "a.parquet", 5_000)
    damage(path, 2, column=column)
    batches = read_all(parquet(path), most=most)
    assert ids([batch for batch in batches if len(batch.rows)]) == [*range(2_000), *range(3_000, 5_000)]
    [bad] = [bad for batch in batches for bad in batch.unreadable]
    assert bad.raw == {"file": str(path), "row_group": 2, "row": 2_001, "rows": 1_000}
    assert bad.rows == 1_000
    assert bad.position == "rows 2001 to 3000"
    assert bad.error.startswith("row group 2 cannot be read: ")
    assert "\n" not in bad.error
    places = [batch.position_of(place) for batch in batches for place in range(len(batch.rows))]
    assert places == [f"row {number + 1}" for number in [*range(2_000), *range(3_000, 5_000)]]


def test_rows_before_the_damage_in_a_row_group_are_read(tmp_path):
    large = {"row_group_size": 60_000, "data_page_size": 10_000, "use_dictionary": False}
    path = write(tmp_path / "a.parquet", 60_000, **large)
    damage(path, 0, column=1, at=0.9)
    source = parquet(path)
    whole = read_all(source, most=5_000)
    rows = ids([batch for batch in whole if len(batch.rows)])
    [bad] = [bad for batch in whole for bad in batch.unreadable]
    assert rows == list(range(len(rows)))
    assert len(rows) > 20_000
    assert len(rows) + bad.rows == 60_000
    assert bad.raw["row"] == len(rows) + 1
    # The same, wherever the reading begins and however much it takes at a time.
    for most in (999, 100_000):
        for begin in (whole[0].next, whole[3].next):
            again = read_all(source, most=most, position=begin)
            assert ids([batch for batch in again if len(batch.rows)]) == rows[begin["row"] :]
            assert [bad.raw for batch in again for bad in batch.unreadable] == [bad.raw]


def test_damaged_row_group_is_not_a_letter_again_after_resume(tmp_path):
    path = write(tmp_path / "a.parquet", 3_000)
    damage(path, 2)
    source = parquet(path)
    assert read_all(source, position=read_all(source)[-1].next) == []


def test_replaced_file_supplies_the_missing_rows(tmp_path):
    path = write(tmp_path / "a.parquet", 3_000)
    damage(path, 1)
    source = parquet(path, columns=["id"])
    [bad] = [bad for batch in read_all(source) for bad in batch.unreadable]
    raw, context = json.loads(json.dumps([bad.raw, bad.context]))
    with pytest.raises(ValueError, match="row group 1 cannot be read"):
        source.again(raw, context)
    write(path, 3_000)
    assert source.again(raw, context) == [{"id": number} for number in range(1_000, 2_000)]
    path.unlink()
    with pytest.raises(ValueError, match="there is no file"):
        source.again(raw, context)


@pytest.mark.parametrize("options", [{}, {"compression": "none", "write_statistics": False, "use_dictionary": False}])
def test_row_group_is_not_read_from_another_file(tmp_path, options):
    path = write(tmp_path / "a.parquet", 3_000, **options)
    damage(path, 1)
    source = parquet(path)
    [bad] = [bad for batch in read_all(source) for bad in batch.unreadable]
    raw, context = json.loads(json.dumps([bad.raw, bad.context]))
    for rows, first in ((3_000, 3_000), (1_500, 0)):
        names = [f"n{number % 7}" for number in range(first, first + rows)]
        table = pa.table({"id": range(first, first + rows), "name": names})
        pq.write_table(table, path, row_group_size=1_000, **options)
        with pytest.raises(ValueError, match="is another file than the one whose row group 1 was damaged: put a whole"):
            source.again(raw, context)
    with pytest.raises(ValueError, match="because an older version wrote it: run the pipeline over"):
        source.again(raw)
    path.write_bytes(b"PAR1")
    with pytest.raises(ValueError, match="is not a Parquet file"):
        source.again(raw, context)


def test_row_group_is_not_read_from_a_file_of_the_same_footer(tmp_path):
    plain = {"compression": "none", "write_statistics": False, "use_dictionary": False, "row_group_size": 1_000}
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(3_000)}), path, write_page_checksum=True, **plain)
    damage(path, 1)
    source = parquet(path)
    [bad] = [bad for batch in read_all(source) for bad in batch.unreadable]
    pq.write_table(pa.table({"id": range(3_000, 6_000)}), path, write_page_checksum=True, **plain)
    with pytest.raises(ValueError, match="is another file than"):
        source.again(bad.raw, bad.context)


@pytest.mark.parametrize("groups", [(0, 1), (1, 2), (0, 2), (0, 1, 2)])
def test_all_damaged_row_groups_are_read_from_a_whole_copy(tmp_path, groups):
    path = write(tmp_path / "a.parquet", 3_000)
    whole = path.read_bytes()
    for group in groups:
        damage(path, group)
    source = parquet(path)
    found = [bad for batch in read_all(source) for bad in batch.unreadable]
    letters = json.loads(json.dumps([[bad.raw, bad.context] for bad in found]))
    assert [raw["row_group"] for raw, _ in letters] == list(groups)
    resumed = [
        bad for batch in read_all(source, position={"file": str(path), "row": 1_000}) for bad in batch.unreadable
    ]
    assert [bad.context for bad in resumed] == [bad.context for bad in found if bad.raw["row_group"] >= 1]
    for raw, context in letters:
        with pytest.raises(ValueError, match=f"row group {raw['row_group']} cannot be read"):
            source.again(raw, context)
    path.write_bytes(whole)
    for raw, context in letters:
        first = raw["row"] - 1
        assert [row["id"] for row in source.again(raw, context)] == list(range(first, first + raw["rows"]))


def test_one_of_two_row_groups_is_not_read_from_another_file(tmp_path):
    plain = {"compression": "none", "write_statistics": False, "use_dictionary": False, "row_group_size": 1_000}
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(3_000)}), path, write_page_checksum=True, **plain)
    damage(path, 0)
    damage(path, 1)
    source = parquet(path)
    found = [bad for batch in read_all(source) for bad in batch.unreadable]
    pq.write_table(pa.table({"id": range(3_000, 6_000)}), path, write_page_checksum=True, **plain)
    for bad in found:
        with pytest.raises(ValueError, match=r"is another file than .*If the sink has a key"):
            source.again(bad.raw, bad.context)


def test_letter_of_an_only_damaged_row_group_names_no_others(tmp_path):
    path = write(tmp_path / "a.parquet", 3_000)
    damage(path, 1)
    [bad] = [bad for batch in read_all(parquet(path)) for bad in batch.unreadable]
    assert bad.context["file"].keys() == {"size", "footer", "rest"}  # as earlier versions have it


def test_record_is_returned_and_any_other_value_is_an_error(tmp_path):
    source = parquet(write(tmp_path / "a.parquet", 1))
    assert source.again({"id": 1}) == {"id": 1}
    with pytest.raises(TypeError, match="is a mapping, not a list"):
        source.again([1])


@pytest.mark.parametrize("keep", [0, 3, 1_000, -4])
def test_file_that_is_not_parquet_is_reported_by_its_name(tmp_path, keep):
    path = write(tmp_path / "a.parquet", 1_000)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(SourceError, match=r"a\.parquet is not a Parquet file, or not a whole one: ") as told:
        read_all(parquet(path))
    assert "\n" not in str(told.value)


def test_missing_column_is_reported(tmp_path):
    write(tmp_path / "a.parquet", 1)
    with pytest.raises(SourceError, match=r"has no column fee; its columns are id, name"):
        read_all(parquet(tmp_path / "a.parquet", columns=["id", "fee"]))


def test_duplicate_column_is_reported(tmp_path):
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"]), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match="has the column id twice"):
        read_all(parquet(tmp_path / "a.parquet"))


def test_reading_continues_after_an_error_without_a_lost_row(tmp_path, monkeypatch):
    source = parquet(write(tmp_path / "a.parquet", 3_000))
    reading = source.open(None, source.identity())
    batches = [reading.read(700)]
    with monkeypatch.context() as patched:
        patched.setattr("redrive.rows.sources.parquet.source.rows_of", lambda *_: (_ for _ in ()).throw(MemoryError()))
        with pytest.raises(MemoryError):
            reading.read(700)
    batches += iter(lambda: reading.read(700), None)
    reading.close()
    assert ids(batches) == list(range(3_000))


FAR = 2**61  # microseconds: the year 75039


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (pa.timestamp("us"), FAR, f"<value out of range: {FAR}>"),
        (pa.timestamp("us"), 253_402_300_800_000_000, "10000-01-01 00:00:00.000000"),
        (pa.timestamp("ms"), -62_135_596_800_001, "0000-12-31 23:59:59.999"),
        (pa.timestamp("us", "Asia/Kolkata"), FAR, f"<value out of range: {FAR}>"),
        (pa.timestamp("us", "Asia/Kolkata"), 253_402_300_799_999_999, "9999-12-31 23:59:59.999999"),
        (pa.timestamp("us", "+05:30"), FAR, f"<value out of range: {FAR}>"),
        (pa.date32(), 2**30, f"<value out of range: {2**30}>"),
        (pa.date32(), 2_932_897, "10000-01-01"),
        (pa.time32("ms"), 86_400_000, "<value out of range: 86400000>"),
        (pa.duration("ms"), 2**62, str(2**62)),
        (pa.list_(pa.timestamp("us")), [0, FAR], ["1970-01-01 00:00:00.000000", f"<value out of range: {FAR}>"]),
        (pa.struct([("a", pa.timestamp("us"))]), {"a": FAR}, {"a": f"<value out of range: {FAR}>"}),
        (pa.map_(pa.string(), pa.timestamp("us")), [("k", FAR)], [("k", f"<value out of range: {FAR}>")]),
    ],
    ids=str,
)
def test_value_out_of_range_makes_only_its_row_a_letter(tmp_path, kind, value, shown):
    path = tmp_path / "a.parquet"
    width = {pa.date32(): pa.int32(), pa.time32("ms"): pa.int32()}.get(kind)
    column = pa.array([None, value, None], kind if width is None else width).cast(kind)
    pq.write_table(pa.table({"id": [1, 2, 3], "v": column}), path)
    (batch,) = read_all(parquet(path))
    assert list(batch.rows.records) == [{"id": 1, "v": None}, {"id": 3, "v": None}]
    assert [batch.position_of(place) for place in range(2)] == ["row 1", "row 3"]
    (bad,) = batch.unreadable
    assert (bad.raw, bad.position, bad.rows) == ({"id": 2, "v": shown}, "row 2", 1)
    assert bad.error == "v: out of range; dates and times go from the year 1 to 9999"
    assert parquet(path).again(bad.raw) == bad.raw
    one_by_one = read_all(parquet(path), most=1)
    assert [one.next["row"] for one in one_by_one] == [1, 2, 3]
    assert [len(one.unreadable) for one in one_by_one] == [0, 1, 0]


@pytest.mark.parametrize("unit", ["ms", "us"])
def test_first_and_last_datetime_are_read(tmp_path, unit):
    moments = [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_000)]
    pq.write_table(pa.table({"at": pa.array(moments, pa.timestamp(unit))}), tmp_path / "a.parquet")
    (batch,) = read_all(parquet(tmp_path / "a.parquet"))
    assert (batch.rows.frame["at"].to_list(), batch.unreadable) == (moments, [])


def test_value_out_of_range_beside_unknown_type_is_a_letter(tmp_path):
    table = pa.table(
        {
            "fee": pa.array([Decimal("1.5"), Decimal("2.5")], pa.decimal256(50, 2)),
            "at": pa.array([FAR, 0], pa.timestamp("us")),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    (batch,) = read_all(parquet(tmp_path / "a.parquet"))
    assert list(batch.rows.records) == [{"fee": Decimal("2.5"), "at": datetime(1970, 1, 1)}]
    assert batch.unreadable[0].raw == {"fee": Decimal("1.5"), "at": f"<value out of range: {FAR}>"}


def test_timestamps_of_96_bits_are_read_beyond_nanosecond_range(tmp_path):
    table = pa.table({"at": pa.array([datetime(2500, 1, 1)], pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    (batch,) = read_all(parquet(tmp_path / "a.parquet"))
    assert list(batch.rows.records) == [{"at": datetime(2500, 1, 1)}]


@pytest.mark.parametrize("kind", [lambda one: one, pa.list_, lambda one: pa.list_(pa.struct([("a", one)]))])
def test_datetimes_in_an_offset_zone_are_in_utc(tmp_path, kind):
    def within(one):
        wrapped = [{"a": one}] if pa.types.is_list(made) and pa.types.is_struct(made.value_type) else [one]
        return wrapped if pa.types.is_list(made) else one

    moment, made = datetime(2026, 7, 1, 12, tzinfo=UTC), kind(pa.timestamp("us", "+05:30"))
    pq.write_table(pa.table({"at": pa.array([within(moment)], made)}), tmp_path / "a.parquet")
    (batch,) = read_all(parquet(tmp_path / "a.parquet"))
    assert list(batch.rows.records) == [{"at": within(moment)}]
    assert batch.rows.is_frame


def test_checkpoint_is_valid_for_the_same_files_only(tmp_path):
    source = parquet(write(tmp_path / "a.parquet", 100))
    taken = json.loads(json.dumps(source.identity()))
    assert source.difference(taken) is None
    assert source.difference({"kind": "csv"}) == "it was taken over csv, not over parquet"
    write(tmp_path / "a.parquet", 100, start=5)
    assert source.difference(taken) is not None


@pytest.mark.parametrize("columns", [[], "id"])
def test_columns_that_are_no_list_are_rejected_at_once(columns):
    with pytest.raises(ValueError, match="columns is a list"):
        parquet("a.parquet", columns=columns)


# ── values that no record can hold ────────────────────────────────────────────────────────────────────────────────────


def texts(*values, kind=None):
    """A column of texts that are not checked."""
    column = pa.array(values, pa.binary()).view(pa.string())
    return column if kind is None else column.cast(kind)


def one_by_one(table, tmp_path):
    pq.write_table(table, tmp_path / "a.parquet")
    source = parquet(tmp_path / "a.parquet")
    batches = read_all(source)
    return source, [r for b in batches for r in b.rows.records], [bad for b in batches for bad in b.unreadable]


NOT_UTF_8 = {
    "a text": (texts(b"a", b"\xff\xfe", b"c"), b"\xff\xfe"),
    "a packed text": (texts(b"a", b"\xff", b"c").dictionary_encode(), b"\xff"),
    "a list": (pa.ListArray.from_arrays(pa.array([0, 1, 3, 4]), texts(b"a", b"b", b"\xff", b"c")), ["b", b"\xff"]),
    "an object": (pa.StructArray.from_arrays([texts(b"a", b"\xff", b"c")], ["x"]), {"x": b"\xff"}),
    "a map": (
        pa.MapArray.from_arrays(pa.array([0, 1, 2, 3]), texts(b"a", b"\xff", b"c"), texts(b"x", b"y", b"z")),
        [[b"\xff", "y"]],
    ),
}


@pytest.mark.parametrize(("column", "kept"), NOT_UTF_8.values(), ids=NOT_UTF_8)
def test_text_that_is_not_utf_8_makes_a_letter_with_bytes(tmp_path, column, kept):
    table = pa.table({"id": [1, 2, 3], "raw": [b"\xff", b"\xff", b"\xff"], "name": column})
    source, rows, [bad] = one_by_one(table, tmp_path)
    assert [row["id"] for row in rows] == [1, 3]
    assert bad.raw == {"id": 2, "raw": b"\xff", "name": kept}
    assert (bad.error, bad.position) == ("name: not UTF-8", "row 2")
    with pytest.raises(ValueError, match="write the text that it should be into the letter"):
        source.again(bad.raw, bad.context)
    edited = {**bad.raw, "name": "repaired"}
    assert source.again(edited, bad.context) == edited


def test_positions_behind_rows_that_are_not_utf_8_are_right(tmp_path):
    values = [b"\xff" if number % 3 == 0 else b"x%d" % number for number in range(100)]
    pq.write_table(pa.table({"id": range(100), "name": texts(*values)}), tmp_path / "a.parquet")
    for most in (7, 100):
        batches = read_all(parquet(tmp_path / "a.parquet"), most=most)
        good = {b.rows.records[n]["id"]: b.position_of(n) for b in batches for n in range(len(b.rows))}
        bad = {one.raw["id"]: one.position for b in batches for one in b.unreadable}
        assert good == {number: f"row {number + 1}" for number in range(100) if number % 3}
        assert bad == {number: f"row {number + 1}" for number in range(100) if not number % 3}


def test_map_with_a_duplicate_key_makes_a_letter_of_pairs(tmp_path):
    maps = pa.array([[("a", 1), ("a", 2)], None, [("a", 1), ("b", 2)], []], pa.map_(pa.string(), pa.int64()))
    source, rows, [bad] = one_by_one(pa.table({"id": range(4), "m": maps}), tmp_path)
    assert rows == [{"id": 1, "m": None}, {"id": 2, "m": {"a": 1, "b": 2}}, {"id": 3, "m": {}}]
    assert (bad.raw, bad.error) == ({"id": 0, "m": [["a", 1], ["a", 2]]}, "m: a key comes twice in a map")
    with pytest.raises(ValueError, match="a key that comes twice: write an object"):
        source.again(bad.raw, bad.context)
    assert source.again({"id": 0, "m": {"a": 2}}, bad.context) == {"id": 0, "m": {"a": 2}}


def test_row_of_several_unrepresentable_values_is_stored_whole(tmp_path):
    maps = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
    days = pa.array([-10_000_000], pa.date32())
    _, rows, [bad] = one_by_one(pa.table({"name": texts(b"\xff"), "m": maps, "day": days}), tmp_path)
    assert (rows, bad.raw["name"], bad.raw["m"]) == ([], b"\xff", [["a", 1], ["a", 2]])
    assert bad.raw["day"].startswith("-25")


def test_uuids_are_texts(tmp_path):
    one = UUID("67d031ef-87fe-4f37-9bb4-c58ef048ad2d")
    column = pa.array([one.bytes, None], pa.uuid())
    nested = pa.ListArray.from_arrays(pa.array([0, 1, 1]), column)
    _, rows, _ = one_by_one(pa.table({"u": column}), tmp_path)
    assert rows == [{"u": str(one)}, {"u": None}]
    _, rows, _ = one_by_one(pa.table({"u": column, "in": nested}), tmp_path)
    assert rows == [{"u": str(one), "in": [one]}, {"u": None, "in": []}]


def test_nanoseconds_are_exact_in_records(tmp_path):
    kinds = {"t": pa.timestamp("ns"), "z": pa.timestamp("ns", "UTC"), "d": pa.duration("ns"), "x": pa.time64("ns")}
    table = pa.table({name: pa.array([1_000_000_001, 2_000_000_000, None], kind) for name, kind in kinds.items()})
    _, [first, second, third], bad = one_by_one(table, tmp_path)
    assert bad == []
    assert first == {
        "t": "1970-01-01 00:00:01.000000001",
        "z": "1970-01-01 00:00:01.000000001+00:00",
        "d": "PT1.000000001S",
        "x": "00:00:01.000000001",
    }
    assert second == {
        "t": datetime(1970, 1, 1, 0, 0, 2),
        "z": datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC),
        "d": timedelta(seconds=2),
        "x": time(0, 0, 2),
    }
    assert set(third.values()) == {None}
    [batch] = read_all(parquet(tmp_path / "a.parquet"))
    assert batch.rows.record(0) == first


def test_column_without_a_name_is_named_by_its_position(tmp_path):
    table = pa.table([pa.array([1]), pa.array([2]), pa.array([3])], names=["id", "", "column_2"])
    _, rows, _ = one_by_one(table, tmp_path)
    assert rows == [{"id": 1, "column_2_2": 2, "column_2": 3}]
    [batch] = read_all(parquet(tmp_path / "a.parquet", columns=["column_2_2", "id"]))
    assert batch.rows.records == [{"column_2_2": 2, "id": 1}]


def test_empty_object_is_an_object():
    rows, places, bad = rows_of(pa.table({"id": [1, 2], "o": pa.array([{}, None], pa.struct([]))}), 0)
    assert (list(rows.records), list(places), bad) == ([{"id": 1, "o": {}}, {"id": 2, "o": None}], [0, 1], [])


MAP = pa.map_(pa.string(), pa.timestamp("ns"))


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        (pa.struct([("m", MAP)]), {"m": [("a", 1), ("a", 2)]}, lambda pairs: {"m": pairs}),
        (pa.list_(MAP), [[("b", 1)], [("a", 1), ("a", 2)]], None),
        (pa.map_(pa.string(), MAP), [("x", [("a", 1), ("a", 2)])], lambda pairs: {"x": pairs}),
    ],
    ids=["struct", "list", "map"],
)
def test_nested_map_with_a_duplicate_key_rejects_its_row(tmp_path, kind, value, kept):
    source = parquet(tmp_path / "f.parquet")
    pq.write_table(pa.table({"id": [1, 2], "v": pa.array([value, None], kind)}), tmp_path / "f.parquet")
    (batch,) = read_all(source)
    assert [record["id"] for record in batch.rows.records] == [2]
    (bad,) = batch.unreadable
    assert bad.error == "v: a key comes twice in a map"
    if kept is not None:
        one, two = (f"1970-01-01 00:00:00.00000000{number}" for number in (1, 2))
        assert bad.raw["v"] == kept([["a", one], ["a", two]])
    with pytest.raises(ValueError, match="a key that comes twice"):
        source.again(bad.raw, bad.context)
    assert source.again({"id": 1, "v": None}, bad.context) == {"id": 1, "v": None}


def test_lists_of_a_fixed_size_are_read_from_any_row_on(tmp_path):
    values = [[1, 2], None, [3, None], [5, 6]]
    pq.write_table(pa.table({"id": range(4), "v": pa.array(values, pa.list_(pa.int64(), 2))}), tmp_path / "f.parquet")
    batches = read_all(parquet(tmp_path / "f.parquet"), most=3)
    assert [record["v"] for batch in batches for record in batch.rows.records] == values


def test_nanoseconds_are_exact_in_a_zone_with_offset_seconds(tmp_path):
    moments = pa.array([-1_957_255_489_999_999_999, 1], pa.timestamp("ns", "Europe/Paris"))
    pq.write_table(pa.table({"id": [1, 2], "at": moments}), tmp_path / "f.parquet")
    (batch,) = read_all(parquet(tmp_path / "f.parquet"))
    assert [record["at"] for record in batch.rows.records] == [
        "1907-12-24 13:55:10.000000001+00:00",
        "1970-01-01 01:00:00.000000001+01:00",
    ]
