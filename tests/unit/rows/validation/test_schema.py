"""Rows against a dataframely schema."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import dataframely as dy
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import redrive
from redrive.dlq.fingerprint import template
from redrive.errors import PipelineError
from redrive.rows.batch import Received
from redrive.rows.validation.schema import SchemaValidator
from redrive.rows.validation.validator import check_of


class Delivery(dy.Schema):
    delivery_id = dy.String(primary_key=True)
    city = dy.String(nullable=True, min_length=2)
    day = dy.Date()
    fee = dy.Decimal(12, 2, min=Decimal(0))

    @dy.rule()
    def sane(cls):
        return (pl.col("fee") < 1_000) | (pl.col("city") == "Berlin")


TEXT = dict.fromkeys(Delivery.column_names(), pl.String)


def frame(*rows):
    return pl.DataFrame(rows, schema=TEXT, orient="row")


def check(*rows, schema=Delivery):
    return check_of(schema)(Received(frame(*rows)))


def said(*row):
    (refused,) = check(row).rejected
    return refused.error


def test_clean_frame_has_the_types_of_the_schema():
    outcome = check(("D-1", "Berlin", "2026-07-01", " 1.50 "), ("D-2", None, "2026-07-02", "2"))
    assert outcome.good.as_frame.schema == {
        "delivery_id": pl.String,
        "city": pl.String,
        "day": pl.Date,
        "fee": pl.Decimal(12, 2),
    }
    assert list(outcome.good.tuples) == [
        ("D-1", "Berlin", date(2026, 7, 1), Decimal("1.50")),
        ("D-2", None, date(2026, 7, 2), Decimal("2.00")),
    ]
    assert (outcome.good.origin, outcome.rejected, outcome.discarded) == (range(2), [], 0)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (("D-1", "Berlin", "2026-07-01", "N/A"), "fee: not a Decimal(12,2) ('N/A')"),
        (("D-1", "Berlin", "2026-07-01", None), "fee: missing"),
        (("D-1", "Berlin", "2026-07-01", "-5"), "fee: min (-5.00)"),
        (("D-1", "B", "July", "-5"), "day: not a Date ('July'); city: min_length ('B'); fee: min (-5.00)"),
        (("D-1", "Paris", "2026-07-01", "5000"), "rule sane failed on city, fee ('Paris', 5000.00)"),
        ((None, "Berlin", "2026-07-01", "1"), "delivery_id: missing"),
    ],
)
def test_all_faults_of_a_row_are_reported_in_one_line(row, sentence):
    assert said(*row) == sentence


def test_positions_of_bad_rows_are_those_in_the_batch():
    rows = [(f"D-{number}", "Berlin", "2026-07-01", "1") for number in range(100)]
    rows[17] = ("D-17", "Berlin", "2026-07-01", "N/A")
    rows[60] = ("D-60", "Berlin", "2026-07-01", "-1")
    outcome = check(*rows)
    assert [one.place for one in outcome.rejected] == [17, 60]
    assert outcome.good.values("delivery_id") == [f"D-{place}" for place in outcome.good.origin]
    assert len(outcome.good) == 98


def test_30_duplicate_key_is_no_fault_of_either_row():
    row = ("D-1", "Berlin", "2026-07-01", "1")
    outcome = check(row, ("D-2", *row[1:]), row, ("D-1", "Berlin", "2026-07-01", "-1"))
    assert list(outcome.good.origin) == [0, 1, 2]
    assert [(one.place, one.error) for one in outcome.rejected] == [(3, "fee: min (-1.00)")]


def test_invalid_value_of_a_nullable_column_is_not_null():
    class Loose(dy.Schema):
        fee = dy.Float64(nullable=True)

    outcome = check_of(Loose)(Received(pl.DataFrame({"fee": ["1", "N/A", None]})))
    assert list(outcome.good.tuples) == [(1.0,), (None,)]
    assert [(one.place, one.error) for one in outcome.rejected] == [(1, "fee: not a Float64 ('N/A')")]


def test_columns_missing_in_the_schema_are_not_written():
    outcome = check_of(Delivery)(
        Received(frame(("D-1", "Berlin", "2026-07-01", "1")).with_columns(row_number=pl.lit("x"), more=pl.lit(1)))
    )
    assert outcome.good.columns == ("delivery_id", "city", "day", "fee")


def test_schema_may_have_a_column_named_like_the_row_number():
    class Numbered(dy.Schema):
        row_number = dy.Int64(min=0)

    outcome = check_of(Numbered)(Received(pl.DataFrame({"row_number": ["7", "-1"]})))
    assert list(outcome.good.tuples) == [(7,)]
    assert [(one.place, one.error) for one in outcome.rejected] == [(1, "row_number: min (-1)")]


def test_users_own_rules_are_named():
    class Ruled(dy.Schema):
        city = dy.String(check=lambda column: column.str.starts_with("B"))
        zone = dy.String(check={"is_letter": lambda column: column.str.len_chars() == 1}, nullable=True)

        @dy.rule()
        def not_bern(cls):
            return pl.col("city") != "Bern"

    rows = pl.DataFrame({"city": ["Bonn", "Bern", "Bern", "Bern", "Ulm"], "zone": ["a", "b", None, "c", "xy"]})
    outcome = check_of(Ruled)(Received(rows))
    assert [(one.place, one.error) for one in outcome.rejected] == [
        *((place, "rule not_bern failed on city ('Bern')") for place in (1, 2, 3)),
        (4, "city: check ('Ulm'); zone: is_letter ('xy')"),
    ]


@pytest.mark.parametrize("name", ["fee", "name", "key", "type"])
def test_same_problem_of_different_values_is_one_cause(name):
    schema = type("Any", (dy.Schema,), {name: dy.Float64(min=0)})
    texts = ["N/A", "-", "x" * 99, "O'Brien", "-1", "-22.5"]
    outcome = check_of(schema)(Received(pl.DataFrame({name: texts})))
    causes = [template(one.error) for one in outcome.rejected]
    assert len(set(causes[:4])) == 1
    assert len(set(causes[4:])) == 1
    assert len(set(causes)) == 2


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (
            ["delivery_id", "city", "day", "fees"],
            "the schema Delivery needs 'fee', which is not among the columns delivery_id, city, day, fees; "
            "did you mean 'fees'?",
        ),
        (["a", "b"], "the schema Delivery fits no column of a, b; its columns are delivery_id, city, day, fee"),
    ],
)
def test_missing_columns_are_named_before_any_row(columns, sentence):
    for judge in (
        check_of(Delivery).fits,
        lambda names: check_of(Delivery)(Received(pl.DataFrame({name: ["x"] for name in names}))),
    ):
        with pytest.raises(PipelineError) as refused:
            judge(columns)
        assert str(refused.value) == sentence


def test_complete_columns_fit():
    check_of(Delivery).fits(["fee", "more", *TEXT])
    check_of(Delivery).fits([])


class Event(dy.Schema):
    at = dy.Datetime(time_zone="UTC")
    tags = dy.List(dy.String(), nullable=True)
    number = dy.Int64(nullable=True)


def test_source_of_incompatible_types_stops_the_pipeline():
    rows = pl.DataFrame({"at": [1], "tags": [["a"]], "number": [1]})
    with pytest.raises(PipelineError, match="wants a Datetime in UTC in the column 'at', and the source has an Int64"):
        check_of(Event)(Received(rows))


def test_records_are_judged_independently_of_their_types():
    ten = "2026-07-01T10:00:00Z"
    records = [
        {"at": ten, "tags": ["a", "b"], "number": 1},
        {"at": ten, "tags": "a", "number": "2"},
        {"at": 5, "tags": ["a"], "number": 2.5},
        {"at": ten},
        {"tags": []},
    ]
    outcome = check_of(Event)(Received(records))
    moment = datetime(2026, 7, 1, 10, tzinfo=UTC)
    assert list(outcome.good.tuples) == [(moment, ["a", "b"], 1), (moment, None, None)]
    assert list(outcome.good.origin) == [0, 3]
    assert [(one.place, one.error) for one in outcome.rejected] == [
        (1, "tags: not a List(String) ('a')"),
        (2, "at: not a Datetime in UTC (5); number: not an Int64 (2.5)"),
        (4, "at: missing"),
    ]


def test_records_that_all_have_wrong_types_are_all_rejected():
    outcome = check_of(Event)(Received([{"at": 5}, {"at": 6}]))
    assert [one.error for one in outcome.rejected] == ["at: not a Datetime in UTC (5)", "at: not a Datetime in UTC (6)"]


def test_schema_without_rules_passes_everything():
    class Loose(dy.Schema):
        a = dy.String(nullable=True)

    outcome = check_of(Loose)(Received(pl.DataFrame({"a": ["x", None]})))
    assert list(outcome.good.tuples) == [("x",), (None,)]


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["D-1", "D-2", "D-3", None]),
        st.sampled_from(["Berlin", "Ulm", "B", None]),
        st.sampled_from(["2026-07-01", "July", None]),
        st.sampled_from(["1", "-1", "N/A", "5000", None]),
    ),
    max_size=12,
)


@given(ROWS, st.booleans())
def test_rows_that_pass_are_those_that_pass_alone(rows, as_records):
    received = Received(frame(*rows).to_dicts() if as_records else frame(*rows))
    outcome = check_of(Delivery)(received)
    alone = [not check(row).rejected for row in rows]
    assert list(outcome.good.origin) == [place for place, good in enumerate(alone) if good]
    assert [one.place for one in outcome.rejected] == [place for place, good in enumerate(alone) if not good]
    for one in outcome.rejected:
        assert one.error == said(*rows[one.place])
    if outcome.good.as_frame is not None:
        assert Delivery.is_valid(outcome.good.as_frame.unique("delivery_id"))


class Parcel(dy.Schema):
    parcel_id = dy.String()
    tags = dy.List(dy.Int64(), nullable=True)
    size = dy.Int64(nullable=True)


def test_unrepresentable_value_rejects_only_its_row():
    cyclic = [1]
    cyclic.append(cyclic)
    records = [
        {"parcel_id": "1", "tags": [1], "size": 1},
        {"parcel_id": "2", "tags": cyclic, "size": 2},
        {"parcel_id": "\ud800", "tags": [3], "size": 10**5_000},
        {"parcel_id": "4", "tags": None, "size": 4, "unused": cyclic},
    ]
    outcome = check_of(Parcel)(Received(records))
    assert list(outcome.good.tuples) == [("1", [1], 1), ("4", None, 4)]
    assert [(one.place, one.error) for one in outcome.rejected] == [
        (1, "tags: nested too deep, or within itself"),
        (2, "parcel_id: half a character, which is no Unicode; size: a number of thousands of digits"),
    ]


def test_python_objects_are_unchanged_in_object_columns():
    class Loose(dy.Schema):
        thing = dy.Object(nullable=True)

    things = [object(), UUID(int=5), None]
    outcome = check_of(Loose)(Received([{"thing": thing} for thing in things]))
    assert [thing for (thing,) in outcome.good.tuples] == things


def test_identifiers_and_durations_become_text_in_text_columns():
    class Named(dy.Schema):
        name = dy.String()

    good = check_of(Named)(Received([{"name": value} for value in (UUID(int=5), "x")])).good
    assert good.values("name") == ["00000000-0000-0000-0000-000000000005", "x"]
    for received in Received([{"name": timedelta(hours=1)}]), Received(pl.DataFrame({"name": [timedelta(hours=1)]})):
        assert check_of(Named)(received).good.values("name") == ["PT1H"]


def test_value_gets_the_same_verdict_beside_any_other():
    class Loose(dy.Schema):
        text = dy.String(nullable=True)
        raw = dy.Binary(nullable=True)
        number = dy.Int64(nullable=True)

    values = [b"caf\xc3\xa9", b"\xff", "x", "7", 7, 2**53 + 1, 0.5, 7.0, True, Decimal("1.50"), [1], {"a": 1}, None]
    values += ["\ud800", date(2026, 7, 1), timedelta(hours=1)]
    records = [{"text": value, "raw": value, "number": value} for value in values]
    for name in Loose.column_names():
        some = [{name: record[name]} for record in records]
        together = check_of(Loose)(Received(some))
        found = {place: repr(row) for place, row in zip(together.good.origin, together.good.tuples, strict=True)}
        found |= {one.place: one.error for one in together.rejected}
        for place, record in enumerate(some):
            alone = check_of(Loose)(Received([record]))
            assert found[place] == (repr(alone.good.tuples[0]) if alone.good.tuples else alone.rejected[0].error)
    texts = check_of(Loose)(Received([{"text": value} for value in (b"caf\xc3\xa9", "x")]))
    assert [one.error for one in texts.rejected] == ["text: not a String (b'caf\\xc3\\xa9')"]


def test_struct_with_a_field_missing_in_the_schema_is_rejected():
    class Nested(dy.Schema):
        at = dy.List(dy.Struct({"city": dy.String(), "zip": dy.String(nullable=True)}))

    values = [[{"city": "Ulm"}], [{"city": "Ulm", "zip": "89073"}, {"city": "Bonn", "street": "Am Hof"}]]
    outcome = check_of(Nested)(Received([{"at": value} for value in values]))
    assert [one.place for one in outcome.rejected] == [1]
    assert outcome.good.values("at") == [[{"city": "Ulm", "zip": None}]]


class TestRejectedRowKeys:
    """A letter has the key that its row would have, so that a later row of the key supersedes it."""

    class Schema(dy.Schema):
        id = dy.Int64()
        v = dy.Int64()

    @pytest.mark.parametrize(
        ("key", "passed"), [("01", 1), (" 1", 1), (1.0, 1), ("1", 1), (1, 1), ("x", "x"), ("\ud800", "\ud800")]
    )
    def test_key_is_cast_like_that_of_a_good_row(self, key, passed):
        found = SchemaValidator(self.Schema).key_of({"id": key, "v": "bad"}, ["id"])
        assert (found, type(found[0])) == ((passed,), type(passed))

    def test_missing_key_is_none(self):
        assert SchemaValidator(self.Schema).key_of({"id": None}, ["id"]) is None

    @pytest.mark.parametrize("kind", ["created table", "dataset"])
    def test_newer_row_of_a_padded_key_supersedes_letter(self, tmp_path, kind):
        def pipeline(text, validate):
            (tmp_path / "in.csv").write_text(text)
            sink = (
                redrive.rows.parquet_dataset(tmp_path / "out", key="id")
                if kind == "dataset"
                else redrive.rows.table(f"sqlite:///{tmp_path}/out.db", "t", key="id", create=True)
            )
            source = redrive.rows.csv(tmp_path / "in.csv")
            return redrive.Pipeline("p", source=source, sink=sink, validate=validate, store=tmp_path / "store.db")

        pipeline("id,v\n07,7\n01,bad\n", self.Schema).run()
        pipeline("id,v\n01,2\n", self.Schema).run()
        fixed = pipeline("id,v\n", lambda record: {"id": int(record["id"]), "v": 0})
        report = fixed.store.dlq.replay(fixed, dry_run=False)
        assert (report.superseded, report.reprocessed) == (1, 0)
