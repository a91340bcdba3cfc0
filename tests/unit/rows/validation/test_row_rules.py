"""Rules of a dataframely schema: rules over one row are accepted, rules over several rows are rejected."""

import dataframely as dy
import polars as pl
import pytest

import redrive
from redrive.rows.batch import Received
from redrive.rows.validation.validator import check_of

A, B, TEXT, LIST = pl.col("a"), pl.col("b"), pl.col("text"), pl.col("list")

OF_ONE_ROW = [
    (A > 1) & (B <= A * 2 - 1) | ~(A == 3) ^ (A % 2 == 0),
    A.is_in([1, 2]),
    A.is_in(pl.Series([1, 2])),
    A.is_in(LIST),
    A.is_between(1, B) & A.is_null() & B.is_not_null() & A.cast(pl.Float64).is_nan().not_() & A.eq_missing(1),
    pl.when(A > 1).then(B.is_null()).when(B == 2).then(True).otherwise(A < 5),
    TEXT.str.contains("x") & TEXT.str.starts_with("x") & (TEXT.str.strip_chars().str.len_chars() > 2),
    TEXT.str.contains_any(["a", "b"]) & (TEXT.str.replace_all("a", "b") == TEXT.str.slice(0, 2)),
    TEXT.str.to_date("%Y-%m-%d", strict=False).dt.year() > 2_000,
    pl.concat_str("text", "text").str.to_uppercase().is_in(["A"]),
    (A.round(1).abs().clip(0, 9) + A.log() + A.sqrt() + A**2).is_finite(),
    pl.coalesce("a", "b").fill_null(0) == pl.max_horizontal("a", "b") + pl.sum_horizontal("a", "b"),
    pl.any_horizontal(A > 1, B > 1) & pl.all_horizontal(pl.col("a", "b") > 1),
    pl.struct("a", "b").struct.field("a") > 1,
    A.replace({1: 2}) == 1,
    LIST.list.sum() > 1,
    LIST.list.eval(pl.element().is_unique()).list.all(),
    A.replace_strict({1: True}, default=False).alias("other"),
    A.map_elements(lambda value: len(str(value)) == 1, return_dtype=pl.Boolean),
    pl.lit(value=True),
]

OF_OTHER_ROWS = [
    A.sum().over("b") == 1,
    A.is_unique(),
    A.is_duplicated().not_(),
    A.is_first_distinct() & (B > 1),
    pl.struct("a", "b").is_unique(),
    A.mean() < A,
    A.first() == A,
    pl.len().over("a") < 3,
    A.null_count() == 0,
    (A > 1).any(),
    pl.when(B > 1).then(A.max() > 3),
    A.is_in(B),
    A.is_in(B.implode()),
    A.replace(B, A) == 1,
    TEXT.str.contains_any(TEXT.implode()),
    A.shift() == A,
    A.diff() > 0,
    A.cum_sum() > 1,
    A.rank() == 1,
    A.rolling_sum(2) > 1,
    A.forward_fill() == 1,
    A.fill_null(A.mean()) > 1,
    A.sum().name.keep() > 1,
    A.sum().alias("c") > 1,
    A.sort() == A,
    A.filter(B > 1).sum() == A,
    TEXT.str.join(",") == "a",
    TEXT.str.to_datetime().is_not_null(),
    A.cumulative_eval(pl.element().sum()) > 1,
    pl.int_range(pl.len()) == A,
    A.map_batches(lambda values: values > values.mean()),
]


def ruled(expression):
    class Ruled(dy.Schema):
        a = dy.Int64(primary_key=True)
        b = dy.Int64()
        text = dy.String()
        list = dy.List(dy.Int64())

        @dy.rule()
        def the_rule(cls):
            return expression

    return Ruled


@pytest.mark.parametrize("expression", OF_ONE_ROW, ids=str)
def test_rule_of_one_row_is_accepted(expression):
    check_of(ruled(expression))


@pytest.mark.parametrize("expression", OF_OTHER_ROWS, ids=str)
def test_rule_over_rows_is_rejected(expression):
    with pytest.raises(ValueError, match="the schema Ruled has a rule that looks at other rows, 'the_rule': rows are"):
        check_of(ruled(expression))


def test_unique_column_is_rejected_when_the_pipeline_is_made(tmp_path):
    class Invoice(dy.Schema):
        line = dy.Int64(primary_key=True)
        tax_no = dy.Int64(unique=True)
        amount = dy.Int64(check=lambda column: column < column.max())

    sink = redrive.rows.table(f"sqlite:///{tmp_path / 'a.db'}", "t", key="line", create=True)
    with pytest.raises(ValueError, match=r"rules that look at other rows, 'tax_no\|unique' and 'amount\|check"):
        redrive.Pipeline("invoices", source=redrive.rows.records([]), validate=Invoice, sink=sink)


def test_inherited_rule_over_rows_is_rejected():
    class Child(ruled(A.is_unique())):
        more = dy.Int64()

    with pytest.raises(ValueError, match="the schema Child has a rule that looks at other rows"):
        check_of(Child)


def test_every_rule_of_a_column_is_accepted():
    class Columns(dy.Schema):
        key = dy.Int64(primary_key=True)
        other_key = dy.String(primary_key=True, regex="a+", min_length=1, max_length=3)
        lists = dy.List(dy.Int64(min=1, unique=True), min_length=1, max_length=3)
        structs = dy.List(dy.Struct({"x": dy.Int64(primary_key=True)}))
        array = dy.Array(dy.Float64(min=1, allow_inf=False), 2)
        moment = dy.Datetime(resolution="1h")
        time = dy.Time(resolution="1h")
        duration = dy.Duration(resolution="1h")
        fee = dy.Decimal(8, 2, min=0, max_exclusive=9)
        choice = dy.Integer(is_in=[1, 2])
        word = dy.Enum(["a", "b"])

    check_of(Columns)


def test_lists_with_duplicate_elements_are_rejected():
    class Lists(dy.Schema):
        list = dy.List(dy.Int64(unique=True))

    outcome = check_of(Lists)(Received([{"list": [1, 2]}, {"list": [1, 1]}, {"list": [1, 2]}]))
    assert [refused.place for refused in outcome.rejected] == [1]
