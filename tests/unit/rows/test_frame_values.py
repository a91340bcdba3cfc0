"""Values that polars would change silently, or fail on, when records become a frame."""

from __future__ import annotations

import json
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal

import polars as pl
import pytest

import redrive
from redrive.rows.to_polars import of_records


class TestTimeWithOffset:
    @pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=2)), timezone(timedelta(hours=-5))], ids=str)
    def test_offset_is_written_as_text(self, zone):
        moment = time(10, tzinfo=zone)
        assert of_records([{"at": moment}, {"at": None}])["at"].to_list() == [str(moment), None]

    def test_time_without_offset_stays_a_time(self):
        assert of_records([{"at": time(10)}])["at"].dtype == pl.Time


class TestNonNumericDecimal:
    @pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
    def test_value_becomes_text(self, text):
        frame = of_records([{"fee": Decimal(text)}, {"fee": Decimal("1.5")}])
        assert frame["fee"].to_list() == [text, "1.5"]

    def test_nested_value_does_not_end_the_run(self):
        frame = of_records([{"fees": [Decimal("NaN")]}])
        assert frame["fees"].dtype == pl.String


class TestBytesBesideBytearray:
    def test_bytes_stay_bytes(self):
        values = [{"body": b"\\x41"}, {"body": bytearray(b"\x00\xff")}, {"body": None}]
        assert of_records(values)["body"].to_list() == [b"\\x41", b"\x00\xff", None]


class TestMixedObjects:
    def test_number_stays_a_number(self):
        exact = Decimal("12345678901234567.89")
        frame = of_records([{"detail": {"amount": exact}}, {"detail": {"note": "hi"}}, {"detail": [exact]}])
        assert [json.loads(text, parse_float=Decimal) for text in frame["detail"]] == [
            {"amount": exact},
            {"note": "hi"},
            [exact],
        ]

    def test_datetime_is_written_as_iso_8601(self):
        frame = of_records([{"detail": {"at": datetime(2026, 1, 1)}}, {"detail": {"note": "hi"}}])
        assert json.loads(frame["detail"][0]) == {"at": "2026-01-01T00:00:00"}


class TestDatasetTimeOffset:
    @pytest.mark.parametrize("value", [time(10, tzinfo=UTC), [time(10, tzinfo=UTC)]], ids=["plain", "in a list"])
    def test_row_is_rejected_and_the_others_are_written(self, tmp_path, value):
        plain = [time(10)] if isinstance(value, list) else time(10)
        records = [{"id": 1, "at": value}, {"id": 2, "at": plain}, {"id": 3, "at": plain}]
        with redrive.connect(tmp_path / "store.db") as store:
            pipeline = redrive.Pipeline(
                "hours",
                source=redrive.rows.records(records),
                sink=redrive.rows.parquet_dataset(tmp_path / "hours", key="id"),
                store=store,
            )
            report = pipeline.run()
        assert (report.written, report.rejected) == (2, 1)
        assert pl.read_parquet(tmp_path / "hours" / "*.parquet").sort("id").rows() == [(2, plain), (3, plain)]
