"""Transformations, row by row and per frame."""

import functools
import math
from datetime import UTC, datetime
from uuid import UUID

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import redrive
from redrive.errors import PipelineError
from redrive.model.letters import ErrorType
from redrive.rows import per_frame
from redrive.rows.batch import Outgoing, Received
from redrive.rows.transform import BadBatch, transform_of
from redrive.rows.validation.validator import check_of

ORIGIN = [3, 5, 8, 13]
ROWS = [("a", "1"), ("b", "x"), ("c", "3"), ("d", "4")]
FRAME = pl.DataFrame(ROWS, schema=["id", "fee"], orient="row")


def outgoing(*, frame):
    if frame:
        return Outgoing.of_frame(FRAME, ORIGIN)
    return Outgoing(("id", "fee"), ORIGIN, tuples=ROWS)


def test_default_is_no_transformation():
    assert transform_of(None) is None


@pytest.mark.parametrize("frame", [False, True], ids=["tuples", "frame"])
def test_function_of_a_record_returns_the_written_record(frame):
    def convert(record):
        if record["id"] == "d":
            return None
        return {"key": record["id"], "fee": float(record["fee"])}

    outcome = transform_of(convert)(outgoing(frame=frame))
    assert outcome.good.columns == ("key", "fee")
    assert (list(outcome.good.tuples), list(outcome.good.origin)) == ([("a", 1.0), ("c", 3.0)], [3, 8])
    assert outcome.discarded == 1
    assert [(one.place, one.error, one.error_type) for one in outcome.rejected] == [
        (5, "ValueError: could not convert string to float: 'x'", ErrorType.TRANSFORM)
    ]


def test_28_function_does_not_change_the_received_record():
    records = [{"id": 1, "tags": ["a"]}]

    def spoil(record):
        record["tags"].append("b")
        record["id"] = 2
        return record

    good = check_of(None)(Received(records)).good
    assert list(transform_of(spoil)(good).good.tuples) == [(2, ["a", "b"])]
    assert records == [{"id": 1, "tags": ["a"]}]


def test_function_may_discard_a_row_and_stop_the_pipeline():
    def discard(record):
        raise redrive.Discard("not ours")

    assert transform_of(discard)(outgoing(frame=False)).discarded == 4

    def stop(record):
        raise redrive.Transient("later")

    with pytest.raises(redrive.Transient):
        transform_of(stop)(outgoing(frame=False))


async def waits(record):
    return record


@pytest.mark.parametrize("transform", [7, "name", dict, waits, functools.partial(waits)])
def test_invalid_transformation_is_rejected_in_a_sentence(transform):
    with pytest.raises(TypeError, match=r"^transform "):
        transform_of(transform)


def test_function_must_return_a_record():
    with pytest.raises(PipelineError, match="transform gave back a list; it must give back a record, or None"):
        transform_of(lambda record: [record])(outgoing(frame=False))
    with pytest.raises(PipelineError, match="is async"):
        transform_of(lambda record: waits(record))(outgoing(frame=False))


def to_floats(frame):
    return frame.with_columns(pl.col("fee").cast(pl.Float64))


@pytest.mark.parametrize("frame", [False, True], ids=["tuples", "frame"])
def test_function_of_a_frame_returns_the_written_rows(frame):
    upper = per_frame(lambda rows: rows.select(pl.col("id").str.to_uppercase(), n=pl.lit(1)))
    outcome = transform_of(upper)(outgoing(frame=frame))
    assert outcome.good.columns == ("id", "n")
    assert (list(outcome.good.tuples), list(outcome.good.origin)) == ([("A", 1), ("B", 1), ("C", 1), ("D", 1)], ORIGIN)
    assert (outcome.rejected, outcome.discarded) == ([], 0)


def test_lazy_frame_is_collected():
    outcome = per_frame(lambda rows: to_floats(rows.lazy()))(outgoing(frame=True))
    assert list(outcome.good.origin) == [3, 8, 13]


def test_only_rows_that_make_a_frame_fail_are_rejected():
    outcome = per_frame(to_floats)(outgoing(frame=True))
    assert (list(outcome.good.tuples), list(outcome.good.origin)) == ([("a", 1.0), ("c", 3.0), ("d", 4.0)], [3, 8, 13])
    ((place, error, error_type),) = [(one.place, one.error, one.error_type) for one in outcome.rejected]
    assert (place, error_type) == (5, ErrorType.TRANSFORM)
    assert error.startswith("InvalidOperationError: conversion from `str` to `f64` failed")
    assert "\n" not in error


def test_result_of_a_row_does_not_depend_on_the_bad_rows():
    def share(rows):
        fees = to_floats(rows)
        return fees.with_columns(share=pl.col("fee") / pl.col("fee").sum())

    outcome = per_frame(share)(outgoing(frame=True))
    assert outcome.good.values("share") == [1 / 8, 3 / 8, 4 / 8]


def test_fault_of_the_rows_together_rejects_none():
    def few(rows):
        if rows.height > 2:
            raise ValueError("too many at once")
        return rows

    outcome = per_frame(few)(outgoing(frame=True))
    assert (list(outcome.good.tuples), list(outcome.good.origin), outcome.rejected) == (ROWS, ORIGIN, [])


def test_batch_with_one_fault_in_every_row_fails_as_a_whole():
    def never(rows):
        raise ValueError("no")

    with pytest.raises(BadBatch, match="every row of the batch failed: ValueError: no") as bad:
        per_frame(never)(outgoing(frame=True))
    assert isinstance(bad.value.error, ValueError)
    assert isinstance(bad.value, redrive.RedriveError)


def test_batch_with_different_faults_is_rejected_row_by_row():
    def never(rows):
        raise ValueError("no") if rows["id"][0] == "a" else TypeError("never")

    outcome = per_frame(never)(outgoing(frame=True))
    assert [one.place for one in outcome.rejected] == ORIGIN
    assert len(outcome.good) == 0


def test_single_failing_row_is_a_bad_row_and_no_bad_batch():
    outcome = per_frame(to_floats)(outgoing(frame=True).take([1]))
    assert [one.place for one in outcome.rejected] == [5]


def test_function_of_a_frame_may_discard_rows():
    def discard(rows):
        if "x" in rows["fee"].to_list():
            raise redrive.Discard("not ours")
        return rows

    outcome = per_frame(discard)(outgoing(frame=True))
    assert (outcome.discarded, outcome.rejected, list(outcome.good.origin)) == (1, [], [3, 8, 13])


@pytest.mark.parametrize(
    "function",
    [
        lambda rows: rows.select("missing"),
        lambda rows: rows.no_such_method(),
    ],
)
def test_bug_in_the_function_is_raised(function):
    with pytest.raises((pl.exceptions.ColumnNotFoundError, AttributeError), match=r"missing|no_such"):
        per_frame(function)(outgoing(frame=True))


def test_frame_of_another_height_needs_numbers():
    with pytest.raises(
        PipelineError, match=r"gave back 2 rows for 4: to drop, reorder or multiply rows, use per_frame"
    ):
        per_frame(lambda rows: rows.head(2))(outgoing(frame=True))


def test_numbered_rows_may_be_dropped_reordered_and_multiplied():
    def juggle(rows):
        kept = rows.filter(pl.col("id") != "b")
        return pl.concat([kept.reverse(), kept.filter(pl.col("id") == "c")])

    outcome = per_frame(juggle, row="number")(outgoing(frame=True))
    assert outcome.good.columns == ("id", "fee")
    assert outcome.good.values("id") == ["d", "c", "a", "c"]
    assert list(outcome.good.origin) == [13, 8, 3, 8]
    assert (outcome.discarded, outcome.rejected) == (1, [])


def test_numbered_bad_rows_are_found():
    outcome = per_frame(lambda rows: to_floats(rows).filter(pl.col("fee") != 3), row="number")(outgoing(frame=True))
    assert list(outcome.good.origin) == [3, 13]
    assert (outcome.discarded, [one.place for one in outcome.rejected]) == (1, [5])


@pytest.mark.parametrize(
    "function",
    [
        lambda rows: rows.drop("number"),
        lambda rows: rows.with_columns(pl.col("number") + 100),
        lambda rows: rows.with_columns(number=None),
        lambda rows: rows.with_columns(pl.col("number").cast(pl.String)),
        lambda rows: rows.with_columns(pl.col("number").cast(pl.Float64)),
    ],
)
def test_lost_or_changed_numbers_are_a_fault_of_the_pipeline(function):
    with pytest.raises(PipelineError, match="must give back the column 'number' with the numbers it got"):
        per_frame(function, row="number")(outgoing(frame=True))


def test_name_for_the_numbers_that_is_in_use_is_rejected():
    with pytest.raises(PipelineError, match="have a column 'id' already"):
        per_frame(lambda rows: rows, row="id")(outgoing(frame=True))


@pytest.mark.parametrize("answer", [None, 7, {"a": 1}], ids=repr)
def test_function_of_a_frame_must_return_a_frame(answer):
    with pytest.raises(PipelineError, match=f"gave back a {type(answer).__name__}; it must give back a polars frame"):
        per_frame(lambda rows: answer)(outgoing(frame=True))


@pytest.mark.parametrize(("function", "row"), [(7, None), (len, 7), (len, ""), (waits, None)])
def test_function_that_per_frame_cannot_mark_is_rejected(function, row):
    with pytest.raises(TypeError):
        per_frame(function, row=row)


def test_empty_batch_does_not_call_the_function():
    nothing = outgoing(frame=True).slice(0, 0)
    assert per_frame(lambda rows: 1 / 0)(nothing).good is nothing


@given(st.data())
def test_exactly_the_bad_rows_are_found_with_few_calls(data):
    height = data.draw(st.integers(2, 3_000))
    bad = data.draw(st.sets(st.integers(0, height - 1), max_size=min(40, height - 1)))
    calls = 0

    def convert(rows):
        nonlocal calls
        calls += 1
        return to_floats(rows)

    fees = ["x" if place in bad else str(place) for place in range(height)]
    origin = range(7, 7 + height)
    outcome = per_frame(convert)(Outgoing.of_frame(pl.DataFrame({"fee": fees}), origin))
    assert {one.place - 7 for one in outcome.rejected} == bad
    assert list(outcome.good.tuples) == [(float(place),) for place in range(height) if place not in bad]
    assert list(outcome.good.origin) == [origin[place] for place in range(height) if place not in bad]
    found = len(bad)
    assert calls <= (2 * found * (math.log2(height / found) + 2) + math.log2(height) + 3 if found else 1)


def test_28_function_of_a_frame_does_not_change_received_rows():
    frame = pl.DataFrame({"id": [1, 2], "note": ["a", "b"]})

    def spoil(rows):
        rows.drop_in_place("note")
        rows[0, "id"] = 7
        return rows

    outcome = per_frame(spoil)(Outgoing.of_frame(frame, [0, 1]))
    assert list(outcome.good.tuples) == [(7,), (2,)]
    assert frame.to_dicts() == [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}]


def with_fees(*fees):
    frame = pl.DataFrame({"id": ["a", "b", "c"], "fee": fees, "kind": ["x"] * 3, "paid": [True, False, True]})
    return Outgoing.of_frame(frame, range(3))


@pytest.mark.parametrize(
    "function",
    [
        lambda rows: rows.sort("fee"),
        lambda rows: rows.with_columns(pl.col("fee").cast(pl.Float64)).sort("fee"),
        lambda rows: rows.select("id", "kind").reverse(),
    ],
)
def test_function_that_reorders_rows_must_ask_for_numbers(function):
    with pytest.raises(
        PipelineError, match=r"^the function of per_frame reorders rows; ask for their numbers with row=…"
    ):
        per_frame(function)(with_fees(9, 5, 7))
    assert list(per_frame(lambda rows: rows.sort("fee"), row="n")(with_fees(9, 5, 7)).good.origin) == [1, 2, 0]


@pytest.mark.parametrize(
    "function",
    [
        lambda rows: rows,
        lambda rows: rows.with_columns(pl.col("fee").reverse()),
        lambda rows: rows.with_columns(pl.col("id").str.to_uppercase(), pl.col("fee") + 1),
        lambda rows: rows.select("kind", pl.col("paid").reverse()),
        lambda rows: rows.sort("id"),
    ],
)
def test_function_that_may_keep_the_order_is_accepted(function):
    assert list(per_frame(function)(with_fees(9, 5, 7)).good.origin) == [0, 1, 2]


def test_unrepresentable_value_rejects_only_its_row():
    deep = []
    for _ in range(700):
        deep = [deep]
    rows = [("a", "1"), ("b", "\ud800"), ("c", deep), ("d", "x"), ("e", "5")]
    outcome = per_frame(to_floats)(Outgoing(("id", "fee"), [3, 5, 8, 13, 21], tuples=rows))
    assert (list(outcome.good.tuples), list(outcome.good.origin)) == ([("a", 1.0), ("e", 5.0)], [3, 21])
    assert [(one.place, one.error_type) for one in outcome.rejected] == [(p, ErrorType.TRANSFORM) for p in (5, 8, 13)]
    assert [one.error for one in outcome.rejected][:2] == [
        "fee: half a character, which is no Unicode",
        "fee: nested too deep, or within itself",
    ]
    nothing = per_frame(lambda rows: 1 / 0)(Outgoing(("id",), [4], tuples=[("\ud800",)]))
    assert (len(nothing.good), [one.place for one in nothing.rejected]) == (0, [4])


def test_uncopyable_or_misnamed_row_is_rejected_alone():
    cyclic = []
    cyclic.append(cyclic)
    rows = Outgoing(("id", "tags"), [3, 5, 8], tuples=[(1, []), (2, cyclic), (3, [])])
    outcome = transform_of(lambda record: {record["id"] if record["id"] == 3 else "id": record["id"]})(rows)
    assert list(outcome.good.tuples) == [(1,)]
    assert [(one.place, one.error) for one in outcome.rejected] == [
        (5, "a value is nested more than 200 levels deep, or within itself"),
        (8, "column names must be text, not 3"),
    ]


MORNING = datetime(2026, 7, 1, 8)


@pytest.mark.parametrize(
    ("values", "rejected"),
    [
        ([MORNING.replace(tzinfo=UTC), MORNING, MORNING.replace(tzinfo=UTC)], {1: "a time without a zone"}),
        ([MORNING, MORNING.replace(tzinfo=UTC), None], {1: "a time with a zone"}),
        ([b"\xff\xfe", "a", b"c"], {1: "a text"}),
        (["a", b"\xff\xfe"], {1: "bytes"}),
        ([True, 2, 3, None], {0: "a boolean"}),
        ([MORNING.date(), MORNING], {1: "a time without a zone"}),
        (["7", 7, "8"], {1: "a number"}),
        ([[1], {"a": 1}], {1: "an object"}),
        ([1, 1.5, None], {}),
        ([UUID(int=1), "a"], {}),
    ],
)
def test_values_have_their_type_beside_any_other(tmp_path, values, rejected):
    written = tmp_path / "written"
    with redrive.connect(f"sqlite:///{tmp_path}/store.db") as store:
        report = redrive.Pipeline(
            "load",
            source=redrive.rows.records([{"id": at, "v": value} for at, value in enumerate(values)], name="rows"),
            transform=per_frame(lambda frame: frame),
            sink=redrive.rows.parquet_dataset(written, key="id"),
            store=store,
            gate=redrive.Gate(abort=1),
        ).run()
        letters = {letter.record["id"]: letter.error_message for letter in store.dlq.each(status="any")}
    kept = dict(pl.read_parquet(written).rows())
    assert report.rejected == len(rejected)
    assert {at: message.partition(", where most rows of the batch have ")[0] for at, message in letters.items()} == {
        at: f"v: {kind}" for at, kind in rejected.items()
    }
    assert kept == {
        at: str(value) if isinstance(value, UUID) else value for at, value in enumerate(values) if at not in rejected
    }
