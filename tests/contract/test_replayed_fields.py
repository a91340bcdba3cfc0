"""A replay writes the fields of each record, whatever other letters are sent with it."""

from __future__ import annotations

import polars as pl
import pydantic
import pytest

import redrive
from tests.support.table_places import PLACES, place_of


class Place:
    """A table with a row of another program, and a pipeline `vendor` that rejects every row until it is fixed."""

    def __init__(self, store, url, execute):
        self.store, self.url, self.sql = store, url, execute
        execute("CREATE TABLE t (id integer PRIMARY KEY, v text, fee integer)")
        execute("INSERT INTO t VALUES (1, 'theirs', 42)")

    def pipeline(self, *records, **options):
        source = redrive.rows.records(records, name="in")
        sink = redrive.rows.table(self.url, "t", key="id")
        options = {"gate": redrive.Gate(abort=1), "store": self.store} | options
        return redrive.Pipeline("vendor", source=source, sink=sink, **options)

    def reject(self, *records):
        def check(record):
            raise ValueError("bad")

        for record in records:
            self.pipeline(record, validate=check).run()

    def replay(self, *, batch=500, **options):
        target = self.pipeline(**options)
        report = self.store.dlq.replay(target, dry_run=False, batch=batch)
        target.sink.close()
        return report

    def rows(self):
        return sorted(self.sql("SELECT id, v, fee FROM t"))


@pytest.fixture(params=PLACES)
def place(request, new_store, tmp_path):
    with place_of(request.param, new_store, tmp_path) as parts:
        yield Place(*parts)


def leave_out_no_fee(record):
    return {name: value for name, value in record.items() if value != -1}


@pytest.mark.parametrize("batch", [1, 500])
class TestFields:
    @pytest.mark.parametrize(
        "options",
        [{}, {"validate": lambda record: None}, {"transform": redrive.rows.per_frame(lambda frame: frame)}],
        ids=["unchecked", "function", "frame"],
    )
    def test_column_missing_in_a_record_is_unchanged(self, place, batch, options):
        place.reject({"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"v": "c", "id": 3, "fee": 7})
        assert place.replay(batch=batch, **options).reprocessed == 3
        assert place.rows() == [(1, "a", 42), (2, "b", None), (3, "c", 7)]

    def test_field_that_is_null_is_written(self, place, batch):
        place.reject({"id": 1, "v": "a", "fee": None}, {"id": 2, "v": "b"})
        place.replay(batch=batch)
        assert place.rows() == [(1, "a", None), (2, "b", None)]

    def test_field_removed_by_a_transform_is_unchanged(self, place, batch):
        place.reject({"id": 1, "v": "a", "fee": -1}, {"id": 2, "v": "b", "fee": 7})
        place.replay(batch=batch, transform=leave_out_no_fee)
        assert place.rows() == [(1, "a", 42), (2, "b", 7)]

    def test_model_gives_every_record_all_fields(self, place, batch):
        class Order(pydantic.BaseModel):
            id: int
            v: str
            fee: int | None = None

        place.reject({"id": 1, "v": "a"}, {"id": 2, "v": "b", "fee": 7})
        place.replay(batch=batch, validate=Order)
        assert place.rows() == [(1, "a", None), (2, "b", 7)]

    @pytest.mark.parametrize("fees", [(7, None), (None, 7)])
    def test_newest_letter_of_a_key_counts(self, place, batch, fees):
        records = [{"id": 2, "v": v} | ({} if fee is None else {"fee": fee}) for v, fee in zip("ab", fees, strict=True)]
        for number, record in enumerate(records):

            def check(record, number=number):
                raise ValueError("bad " + "row " * number)

            place.pipeline(record, validate=check).run()
        place.replay(batch=batch)
        assert [row[:2] for row in place.rows()] == [(1, "theirs"), (2, "b")]


def test_rejected_letter_is_replaced_by_one_with_other_fields(place):
    place.sql("DROP TABLE t")
    place.sql("CREATE TABLE t (id integer PRIMARY KEY, v text, fee integer CHECK (fee < 10))")
    place.reject({"id": 1, "v": "a"})

    def check(record):
        raise ValueError("bad for another cause")

    place.pipeline({"id": 1, "v": "b", "fee": 70}, validate=check).run()
    report = place.replay()
    assert (report.reprocessed, report.failed_again) == (1, 1)
    assert place.rows() == [(1, "a", None)]


def test_frame_without_the_key_is_rejected_alone(place):
    place.reject({"id": 1, "v": "a"}, {"v": "b"})
    report = place.replay(transform=redrive.rows.per_frame(lambda frame: frame.with_columns(pl.lit(5).alias("fee"))))
    assert (report.reprocessed, report.failed_again) == (1, 1)
    assert place.rows() == [(1, "a", 5)]
