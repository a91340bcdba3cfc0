"""Rows from a list, a generator or a function."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections import ChainMap, UserDict
from datetime import date
from decimal import Decimal
from uuid import UUID

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import redrive
from redrive.errors import SourceError
from redrive.model.runs import RunStarted
from redrive.rows import records


def read_all(source, most=10, position=None):
    reading = source.open(position, source.identity())
    batches = list(iter(lambda: reading.read(most), None))
    reading.close()
    return batches


def rows_of(batches):
    return [record for batch in batches for record in batch.rows.records]


def numbered(count):
    return ({"id": n} for n in range(count))


def test_list_is_read_in_batches_with_positions_from_one():
    batches = read_all(records([{"id": n} for n in range(25)], name="mine"), most=10)
    assert [len(batch.rows) for batch in batches] == [10, 10, 5]
    assert [batch.next["row"] for batch in batches] == [10, 20, 25]
    assert batches[1].position_of(7) == "row 18"
    assert {batch.source for batch in batches} == {"mine"}


def test_size_of_a_list_is_known_and_of_a_generator_is_not():
    assert records([{}, {}]).open(None, {}).total == 2
    assert records(numbered(2)).open(None, {}).total is None


def test_function_can_be_read_repeatedly():
    source = records(lambda: numbered(3))
    assert rows_of(read_all(source)) == rows_of(read_all(source)) == [{"id": 0}, {"id": 1}, {"id": 2}]


def test_exhausted_generator_error_suggests_a_function():
    source = records(numbered(3))
    read_all(source)
    with pytest.raises(SourceError, match=r"read before, to row 3.*pass the function that makes it"):
        source.open(None, source.identity())


def test_generator_read_to_its_end_elsewhere_is_rejected():
    made = ({"id": n} for n in range(3))
    source = records(made)
    assert len(list(made)) == 3
    with pytest.raises(SourceError, match="was read to its end before: pass the function"):
        source.open(None, source.identity())


@pytest.mark.parametrize(
    "made",
    [
        lambda items: iter(items),
        lambda items: iter(tuple(items)),
        lambda items: reversed(items),
        lambda items: map(dict, items),
        lambda items: filter(None, (item for item in items)),
    ],
)
def test_iterator_read_to_its_end_elsewhere_is_rejected(made):
    items = [{"id": n} for n in range(3)]
    used_up = made(items)
    assert len(list(used_up)) == 3
    with pytest.raises(SourceError, match="was read to its end before: pass the function"):
        read_all(records(used_up))
    assert len(rows_of(read_all(records(made(items))))) == 3
    assert rows_of(read_all(records(made([])))) == []


@pytest.mark.parametrize("made", [lambda: iter([]), lambda: iter({}.values()), lambda: numbered(0)])
def test_empty_iterator_is_not_read_twice(made):
    source = records(made())
    assert rows_of(read_all(source)) == []
    with pytest.raises(SourceError, match="read before, to row 0"):
        source.open(None, source.identity())


def test_generator_continues_at_its_position():
    source = records(numbered(5))
    batch = source.open(None, source.identity()).read(2)
    assert rows_of(read_all(source, position=batch.next)) == [{"id": 2}, {"id": 3}, {"id": 4}]


def test_generator_beyond_the_position_is_rejected():
    source = records(numbered(5))
    reading = source.open(None, source.identity())
    first = reading.read(2)
    reading.read(2)
    with pytest.raises(SourceError, match="read before, to row 4"):
        source.open(first.next, source.identity())


def test_item_that_is_no_mapping_is_a_letter_with_its_number():
    items = [{"id": 1}, ["id", 2], {"id": 3}, None, {4: "four"}, {"id": 6}]
    [batch] = read_all(records(items))
    assert batch.rows.records == [{"id": 1}, {"id": 3}, {"id": 6}]
    assert [batch.position_of(place) for place in range(3)] == ["row 1", "row 3", "row 6"]
    assert [(bad.raw, bad.error, bad.position) for bad in batch.unreadable] == [
        (["id", 2], "a record is a mapping, not a list", "row 2"),
        (None, "a record is a mapping, not a NoneType", "row 4"),
        ({4: "four"}, "a record's keys are texts, not 4", "row 5"),
    ]


def test_any_mapping_is_a_record():
    [batch] = read_all(records([UserDict(id=1), ChainMap({"id": 2})]))
    assert batch.rows.records == [{"id": 1}, {"id": 2}]
    assert {type(record) for record in batch.rows.records} == {dict}


def test_unreadable_mapping_is_a_letter_with_its_error():
    class Broken(UserDict):
        def __getitem__(self, key):
            raise ValueError("the blob is gone")

    broken = Broken(id=1)
    [batch] = read_all(records([broken, {"id": 2}]))
    assert batch.rows.records == [{"id": 2}]
    assert batch.unreadable[0].raw is broken
    assert str(batch.unreadable[0].error) == "the blob is gone"


def test_reused_dict_is_read_as_separate_rows():
    def reused(mapping):
        for number in range(3):
            mapping["id"] = number
            yield mapping

    for mapping in ({}, UserDict()):
        assert rows_of(read_all(records(reused(mapping)))) == [{"id": 0}, {"id": 1}, {"id": 2}]


def test_iterator_error_is_raised_after_the_rows_before_it():
    def breaking():
        yield from numbered(3)
        raise ConnectionResetError("gone")

    reading = records(breaking).open(None, {})
    assert len(reading.read(10).rows) == 3
    for _ in range(2):  # it would seem to have ended if it were asked once more
        with pytest.raises(ConnectionResetError, match="gone"):
            reading.read(10)


def test_generator_that_raised_cannot_be_opened_again():
    def breaking():
        yield from numbered(3)
        raise ConnectionResetError("gone")

    source = records(breaking())
    reading = source.open(None, {})
    batch = reading.read(10)
    with pytest.raises(ConnectionResetError):
        reading.read(10)
    with pytest.raises(SourceError, match="pass the function"):
        source.open(batch.next, {})


def test_iterable_shorter_than_the_checkpoint_is_reported():
    with pytest.raises(SourceError, match=r"ended after 3 rows, before the checkpoint at row 7"):
        records(lambda: numbered(3)).open({"row": 7}, {})


def test_checkpoint_of_other_records_cannot_be_used():
    assert records([], name="b").difference(records([], name="b").identity()) is None
    told = records([], name="b").difference(records([], name="a").identity())
    assert told == "it was taken over records 'a', not over records 'b'"


def test_close_ends_the_generator_of_a_function():
    ended = []

    def guarded():
        try:
            yield from numbered(5)
        finally:
            ended.append(True)

    reading = records(guarded).open(None, {})
    reading.read(2)
    reading.close()
    reading.close()
    assert ended == [True]


def test_repaired_item_is_a_record_and_a_broken_one_an_error():
    source = records([])
    assert source.again({"id": 2}) == {"id": 2}
    with pytest.raises(TypeError, match="a record is a mapping, not a list"):
        source.again(["id", 2])


@pytest.mark.parametrize("nothing", [None, 5, "rows.csv", {"id": 1}, b"x"])
def test_object_without_records_is_rejected_at_once(nothing):
    with pytest.raises(TypeError, match="records takes many mappings"):
        records(nothing)


def test_function_that_returns_nothing_is_reported():
    with pytest.raises(SourceError, match="returned a NoneType, and must return an iterator"):
        records(lambda: None).open(None, {})


def test_empty_name_is_rejected():
    with pytest.raises(ValueError, match="needs a name"):
        records([], name=" ")


# ── the same input, or another one ────────────────────────────────────────────────────────────────────────────────────


def day(name, count=1_000):
    return [{"id": number, "day": name} for number in range(count)]


class TestChangedInput:
    """A checkpoint is used for the input that it was taken over, and for no other."""

    @pytest.mark.parametrize("form", ["list", "function", "generator"])
    def test_other_records_start_over_with_a_warning(self, tmp_path, form):
        given = {"list": lambda items: items, "function": lambda items: lambda: iter(items), "generator": iter}[form]
        events = []
        stop_after_first_batch(tmp_path, given(day("Monday")))
        report = load(tmp_path, given(day("Tuesday")), on_event=events.append).run()
        assert (report.status, report.read, report.resumed) == ("complete", 1_000, False)
        assert set(table(tmp_path)) == {(number, "Tuesday") for number in range(1_000)}
        assert "the first 500 records differ" in report.started_over
        assert "after 500 rows" in report.started_over
        assert report.started_over in str(report)
        assert [event.started_over for event in events if isinstance(event, RunStarted)] == [report.started_over]
        [_, abandoned] = redrive.connect(tmp_path / "store.db").runs.find()
        assert (abandoned.status, abandoned.reason) == ("abandoned", report.started_over)

    @pytest.mark.parametrize("form", ["list", "function", "generator"])
    def test_same_records_resume(self, tmp_path, form):
        given = {"list": lambda items: items, "function": lambda items: lambda: iter(items), "generator": iter}[form]
        stop_after_first_batch(tmp_path, given(day("Monday")))
        report = load(tmp_path, given(day("Monday"))).run()
        assert (report.status, report.read, report.resumed, report.started_over) == ("complete", 1_000, True, None)
        assert len(table(tmp_path)) == 1_000

    @pytest.mark.parametrize("form", ["list", "function", "generator"])
    def test_run_stopped_twice_resumes(self, tmp_path, form):
        given = {"list": lambda items: items, "function": lambda items: lambda: iter(items), "generator": iter}[form]
        for _ in range(2):
            stop_after_first_batch(tmp_path, given(day("Monday", 20)), batch=2)
        report = load(tmp_path, given(day("Monday", 20)), batch=2).run()
        assert (report.status, report.read, report.resumed, report.started_over) == ("complete", 20, True, None)

    def test_list_of_another_length_starts_over(self, tmp_path):
        stop_after_first_batch(tmp_path, day("Monday", 2_000))
        report = load(tmp_path, day("Monday", 1_999)).run()
        assert "there were 2,000 records, and now there are 1,999" in report.started_over
        assert report.read == 1_999

    def test_row_inserted_after_the_first_thousand_is_noticed(self, tmp_path):
        def items(extra):
            yield from day("Monday", 1_200)
            yield from extra
            yield from ({"id": number, "day": "Monday"} for number in range(2_000, 3_000))

        stop_after_first_batch(tmp_path, lambda: items([]), batch=750)
        with pytest.raises(redrive.RunStopped, match=r"row 1,500 of records is not the row .*--restart"):
            load(tmp_path, lambda: items([{"id": 1_500, "day": "late"}]), batch=750).run()

    def test_declared_identity_resumes_changing_records(self, tmp_path):
        def stamped():
            return ({"id": number, "day": str(next(_clock))} for number in range(1_000))

        stop_after_first_batch(tmp_path, stamped, identity="2026-07-01")
        assert load(tmp_path, stamped, identity="2026-07-01").run().resumed

    def test_another_declared_identity_starts_over(self, tmp_path):
        stop_after_first_batch(tmp_path, day("Monday"), identity="Monday")
        report = load(tmp_path, day("Monday"), identity="Tuesday").run()
        assert "its identity was 'Monday', and now it is 'Tuesday'" in report.started_over
        assert report.read == 1_000

    def test_checkpoint_of_an_earlier_version_starts_over(self):
        assert records(day("Monday")).changed({"kind": "records", "name": "records"}, {"row": 500})

    def test_function_is_called_once_for_identity_and_reading(self, tmp_path):
        calls = []

        def made():
            calls.append(True)
            return iter(day("Monday"))

        load(tmp_path, made).run()
        assert len(calls) == 1

    def test_function_that_fails_at_once_does_not_start_over(self, tmp_path):
        def refused():
            raise PermissionError("no access today")

        stop_after_first_batch(tmp_path, lambda: iter(day("Monday")))
        with pytest.raises(redrive.RunStopped, match="no access today"):
            load(tmp_path, refused).run()
        report = load(tmp_path, lambda: iter(day("Monday"))).run()
        assert (report.resumed, report.read) == (True, 1_000)

    def test_identity_must_be_a_text(self):
        for wrong in ("", " ", 7):
            with pytest.raises(ValueError, match="identity must be a text"):
                records([], identity=wrong)


_clock = itertools.count()


def load(tmp_path, items, *, batch=250, on_event=None, **options):
    return redrive.Pipeline(
        "daily",
        source=records(items, **options),
        sink=redrive.rows.table(f"sqlite:///{tmp_path}/sink.db", "t", key="id", create=True),
        batch=batch,
        store=tmp_path / "store.db",
        on_event=on_event,
    )


def stop_after_first_batch(tmp_path, items, **options):
    pipeline = load(tmp_path, items, **options)
    with pytest.raises(redrive.RunStopped):
        pipeline.run(watch=lambda _: pipeline.stop())


def table(tmp_path):
    with sqlite3.connect(tmp_path / "sink.db") as connection:
        return connection.execute("SELECT id, day FROM t").fetchall()


VALUES = st.none() | st.integers(0, 3) | st.text(max_size=2)
ITEMS = st.lists(st.dictionaries(st.sampled_from("ab"), VALUES), max_size=12)


@given(ITEMS, ITEMS, st.booleans())
def test_records_are_the_same_input_exactly_if_equal(before, now, sized):
    """Of an iterator it is not known how many items will follow: it is the same where it begins with those read."""
    given = list if sized else (lambda items: lambda: iter(items))
    batches = read_all(records(given(before)), most=100)
    assume(batches)
    position = json.loads(json.dumps(batches[-1].next))
    same = json.dumps(before) == json.dumps(now if sized else now[: len(before)])
    assert (records(given(now)).changed({}, position) is None) == same


@given(st.lists(st.integers(0, 5), max_size=20), st.integers(1, 7), st.integers(1, 7), st.booleans())
def test_resuming_at_every_position_reads_the_same_rows(values, most, afterwards, one_shot):
    items = [{"id": value} if value else ["no record"] for value in values]

    def source():
        return records(iter(items) if one_shot else lambda: iter(items))

    def content(batches):
        return [
            (batch.position_of(place), record) for batch in batches for place, record in enumerate(batch.rows.records)
        ] + [(bad.position, bad.raw) for batch in batches for bad in batch.unreadable]

    whole = read_all(source(), most)
    for place, batch in enumerate(whole):
        position = json.loads(json.dumps(batch.next))
        rest = read_all(source(), afterwards, position)
        assert content(rest) == content(whole[place + 1 :])
        for later in rest:
            assert source().changed({}, json.loads(json.dumps(later.next))) is None


class TestFrames:
    """A frame is read unchanged; an object that only looks like one is rejected when the source is made."""

    FRAME = pl.DataFrame({"id": [1, 2, 3], "fee": [Decimal("1.50"), None, Decimal("3.00")]})

    FORMS = (
        lambda frame: frame,
        lambda frame: frame.to_arrow(),
        lambda frame: frame.to_arrow().combine_chunks().to_batches()[0],
        lambda frame: frame.to_arrow().to_reader(),
        lambda frame: lambda: frame,
        lambda frame: lambda: frame.to_arrow(),
    )

    @pytest.mark.parametrize("form", FORMS, ids=["polars", "table", "batch", "reader", "function", "table of function"])
    def test_rows_of_a_frame_are_records(self, form):
        batches = read_all(records(form(self.FRAME)), most=2)
        assert rows_of(batches) == self.FRAME.to_dicts()
        assert [batch.position_of(0) for batch in batches] == ["row 1", "row 3"]

    def test_pipeline_writes_a_frame(self, tmp_path):
        report = load(tmp_path, pl.DataFrame({"id": range(1_000), "day": ["Monday"] * 1_000})).run()
        assert (report.written, report.rejected) == (1_000, 0)
        assert len(table(tmp_path)) == 1_000

    def test_another_frame_starts_over_and_the_same_one_resumes(self, tmp_path):
        monday, tuesday = (pl.DataFrame(day(name)) for name in ("Monday", "Tuesday"))
        stop_after_first_batch(tmp_path, monday)
        assert load(tmp_path, monday.clone()).run().resumed
        stop_after_first_batch(tmp_path, monday)
        report = load(tmp_path, tuesday).run()
        assert "the first 1,000 records differ" in report.started_over
        assert {row[1] for row in table(tmp_path)} == {"Tuesday"}

    def test_row_that_differs_at_the_checkpoint_stops_the_run(self):
        frame = pl.DataFrame({"id": range(3_000)})
        [first, *_] = read_all(records(frame), most=2_000)
        other = frame.with_columns(pl.when(pl.col("id") < 1_500).then("id").otherwise(pl.col("id") + 1))
        with pytest.raises(SourceError, match="row 2,000 of records is not the row"):
            records(other).open(first.next, {})

    @pytest.mark.parametrize(
        ("value", "sentence"),
        [
            (FRAME.lazy(), r"not a LazyFrame: call collect\(\) on it first"),
            (FRAME["id"], "not a polars Series"),
            (pa.chunked_array([[1]]), "not an Arrow array"),
            (np.array([1, 2]), "not a numpy array"),
        ],
        ids=["LazyFrame", "Series", "array", "numpy"],
    )
    def test_object_without_rows_is_rejected_in_one_sentence(self, value, sentence):
        with pytest.raises(TypeError, match=sentence):
            records(value)

    def test_arrow_table_that_is_no_frame_is_rejected(self):
        with pytest.raises(TypeError, match="records cannot read this Table as a frame"):
            records(pa.Table.from_arrays([[1], [2]], names=["id", "id"]))

    ONE = UUID("6f1c1e0e-0b7a-4a3e-9d55-0a1b2c3d4e5f")

    def test_types_that_polars_lacks_are_preserved(self):
        """A date64 is a date and no timestamp, a UUID is its text and no bytes."""
        kinds = {"day": pa.date64(), "days": pa.list_(pa.date64()), "id": pa.uuid()}
        values = {"day": [86_400_000, None], "days": [[0], None], "id": [self.ONE.bytes, None]}
        arrow = pa.table({name: pa.array(values[name], kind) for name, kind in kinds.items()})
        assert rows_of(read_all(records(arrow))) == [
            {"day": date(1970, 1, 2), "days": [date(1970, 1, 1)], "id": str(self.ONE)},
            {"day": None, "days": None, "id": None},
        ]

    def test_value_that_would_be_changed_is_rejected(self):
        uuids = pa.array([self.ONE.bytes], pa.uuid())
        with pytest.raises(TypeError, match="ids has UUIDs within it"):
            records(pa.table({"ids": pa.ListArray.from_arrays([0, 1], uuids)}))
        with pytest.raises(TypeError, match="would lose data"):
            records(pa.table({"day": pa.array([1], pa.int64()).view(pa.date64())}))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
        pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1]), pa.array(["a"])]),
        pa.array([[(1, 2, 3)]], pa.list_(pa.month_day_nano_interval())),
    ],
    ids=lambda column: str(column.type),
)
def test_arrow_type_that_no_frame_has_is_rejected(column):
    with pytest.raises(TypeError, match=r"odd is of type .*, which no frame has: cast it to text, or drop it"):
        records(pa.table({"odd": column}))
