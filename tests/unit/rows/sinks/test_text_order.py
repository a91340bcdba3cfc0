"""Texts of one form sort like the times that they represent."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import SinkMismatch
from redrive.rows.sinks.keys import TextOrder
from redrive.rows.sinks.table_schema import TableName

moments = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))
WRITTEN = (
    lambda moment: moment.isoformat(),
    lambda moment: moment.isoformat(" "),
    lambda moment: moment.isoformat(timespec="milliseconds") + "Z",
    lambda moment: moment.isoformat(timespec="minutes"),
    lambda moment: moment.isoformat() + "Z",
    lambda moment: moment.replace(tzinfo=UTC).isoformat(),
    lambda moment: moment.replace(tzinfo=timezone(timedelta(hours=-5))).isoformat(),
    lambda moment: moment.replace(tzinfo=timezone(timedelta(hours=2))).isoformat(),
    lambda moment: moment.date().isoformat(),
    lambda moment: moment.strftime("%Y%m%dT%H%M%SZ"),
    lambda moment: moment.strftime("%d.%m.%Y"),
    lambda moment: str(moment.year),
)


def faults(values, stored=(), replaced=None, *, takes_numbers=False):
    order = TextOrder(TableName("t"), "seq")
    found = order.faults(values, lambda most: stored[:most], lambda places: replaced or {}, takes_numbers=takes_numbers)
    return set(found)


@given(moments, moments, st.sampled_from(WRITTEN), st.sampled_from(WRITTEN), st.integers(0, 3))
def test_accepted_texts_sort_like_their_times(earlier, later, first, second, whole):
    earlier, later = sorted((earlier, later))
    if whole:
        earlier, later = earlier.replace(microsecond=0), later.replace(microsecond=500_000 * (whole % 2))
        earlier, later = sorted((earlier, later))
    texts = first(earlier), second(later)
    try:
        if faults(texts):
            return
    except SinkMismatch:
        return
    assert texts[0] <= texts[1]


@pytest.mark.parametrize(
    ("values", "rejected"),
    [
        (["2026-07-01", None, "2026-07-02"], set()),
        ([date(2026, 7, 1), "2026-07-02"], set()),
        ([datetime(2026, 7, 1), datetime(2026, 7, 1, 0, 0, 0, 5)], set()),
        (["2026-07-01T00:00:00Z", "2026-07-01T00:00:00.5Z"], {1}),
        (["2026-07-01T00:00:00Z", "2026-07-01T00:00:00+02:00", "later", 7], {1, 2, 3}),
        ([None, None], set()),
    ],
)
def test_values_of_another_form_are_rejected(values, rejected):
    assert faults(values) == rejected


@pytest.mark.parametrize("value", ["9", "v10", 9, 9.5, "01.07.2026", ""])
def test_column_without_sortable_texts_is_rejected(value):
    with pytest.raises(SinkMismatch, match="do not sort by what they mean"):
        faults([value])
    with pytest.raises(SinkMismatch, match="do not sort by what they mean"):
        faults(["2026-07-01"], [value])


def test_numbers_are_numbers_where_the_column_stores_them():
    assert faults([9, 10.5, "2026-07-01"], takes_numbers=True) == {2}


def test_table_of_several_forms_uses_the_most_common_one():
    day, moment = "2026-07-01", "2026-07-01T00:00:00Z"
    for stored in (["9", day, moment, moment], [moment, moment, day, "9"]):
        assert faults(["2026-07-02", "2026-07-02T00:00:00Z"], stored) == {0}
        assert faults([moment, moment, moment], stored, {0: moment, 1: day, 2: "9"}) == {1, 2}
    for stored in ([day, moment], [moment, day]):
        assert faults([day, moment, moment], stored) == {0}
        assert faults([day, day, moment], stored) == {2}
