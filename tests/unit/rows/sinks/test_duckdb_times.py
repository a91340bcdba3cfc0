"""Texts of dates and times in DuckDB: the table has the exact value, or the row is rejected."""

import datetime as dt
from itertools import product

import duckdb
import polars as pl
import pytest

from redrive.rows.batch import Outgoing
from redrive.rows.sinks.table import table
from tests.oracles import intervals

DATES = ("2026-07-01", "2026/7/1", "07/01/26", "1.7.2026", "01 Jul 2026")
TIMES = ("05:30", "05:30:15.5", "5:30")
ENDS = ("", " PM", "PM", " AM", " p.m.", " xyz", " EST", " Europe/Berlin", "+02:00", " +0200", "Z", " UTC", "+00")
KINDS = ("TIMESTAMP", "TIMESTAMP_NS", "TIMESTAMP_MS", "TIMESTAMPTZ", "DATE", "TIME", "TIMETZ")
TEXTS = [
    *(f"{date}{between}{time}{end}" for date, between, time, end in product(DATES, " T", TIMES, ENDS)),
    *(time + end for time, end in product(TIMES, ENDS)),
    *(date + end for date, end in product(DATES, ENDS)),
    *("infinity", "-infinity", "epoch", "now", "infinity PM", "2026-07-01 (BC) PM"),
]
CLOCKS = {"05:30": dt.time(5, 30), "5:30": dt.time(5, 30), "05:30:15.5": dt.time(5, 30, 15, 500_000)}
# What stands behind a time, in hours from UTC.
OFFSETS = {"": 0, "Z": 0, "UTC": 0, "+00": 0, "+02:00": 2, "+0200": 2, "Europe/Berlin": 2, "EST": -5}


def says(kind, text):
    """Return the value of a text in a column of the type, in UTC; None where the column cannot represent it."""
    date = next((one for one in DATES if text.startswith(one)), "")
    rest = text[len(date) :].removeprefix("T").strip()
    clock = next((one for one in sorted(CLOCKS, key=len, reverse=True) if rest.startswith(one)), "")
    end = rest[len(clock) :].strip()
    time = CLOCKS.get(clock, dt.time())
    if end in ("PM", "p.m."):
        time = time.replace(hour=17)
    hours = 0 if end in ("PM", "p.m.", "AM") else OFFSETS.get(end)
    if hours is None or (hours and kind not in ("TIMESTAMPTZ", "TIMETZ")):
        return None
    if kind in ("TIME", "TIMETZ"):
        return None if date or not clock else (time, hours)
    if not date or (kind == "DATE" and clock):
        return None
    return dt.datetime.combine(dt.date(2026, 7, 1), time) - dt.timedelta(hours=hours)


def stored(kind, value):
    if kind == "TIMETZ":
        return value.replace(tzinfo=None), value.utcoffset() / dt.timedelta(hours=1)
    if kind == "TIME":
        return value, 0
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value
    return dt.datetime.combine(value, dt.time())


def write(path, type_, values):
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"CREATE TABLE t (id INTEGER PRIMARY KEY, v {type_})")
    rows = list(enumerate(values))
    sink = table(f"duckdb:///{path}", "t", key="id")
    refused = {one.place for one in sink.write(Outgoing(("id", "v"), range(len(rows)), tuples=rows), label="a")}
    sink.close()
    return refused


class TestTexts:
    @pytest.mark.parametrize("kind", KINDS)
    def test_text_is_written_exactly_or_rejected(self, tmp_path, kind):
        refused = write(tmp_path / "a.duckdb", kind, TEXTS)
        value = {"TIMESTAMPTZ": "timezone('UTC', v)"}.get(kind, "v")
        condition = "" if kind in ("TIME", "TIMETZ") else " WHERE isfinite(v)"
        with duckdb.connect(str(tmp_path / "a.duckdb")) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            found = dict(connection.execute(f"SELECT id, {value} FROM t{condition}").fetchall())
        wrong = [
            (TEXTS[place], value) for place, value in found.items() if stored(kind, value) != says(kind, TEXTS[place])
        ]
        assert wrong == []
        assert found
        assert len(refused) > len(found)

    @pytest.mark.parametrize("kind", KINDS)
    def test_elements_keys_and_frames_accept_no_more(self, tmp_path, kind):
        alone = write(tmp_path / "alone.duckdb", kind, TEXTS)
        assert write(tmp_path / "list.duckdb", f"{kind}[]", [[text] for text in TEXTS]) >= alone
        assert write(tmp_path / "map.duckdb", f"MAP({kind}, INTEGER)", [{text: 1} for text in TEXTS]) >= alone
        path = tmp_path / "frame.duckdb"
        write(path, kind, [])
        sink = table(f"duckdb:///{path}", "t", key="id")
        frame = pl.DataFrame({"id": range(len(TEXTS)), "v": TEXTS})
        assert {one.place for one in sink.write(Outgoing.of_frame(frame, range(len(TEXTS))), label="a")} == alone
        sink.close()

    @pytest.mark.parametrize(
        ("kind", "text"),
        [
            ("TIMESTAMP", "2026-07-01T05:30:00Z"),
            ("TIMESTAMP", "2026-07-01 05:30 UTC"),
            ("TIMESTAMPTZ", "2026-07-01 05:30 Europe/Berlin"),
            ("TIMESTAMPTZ", "2026-07-01T05:30:00.5+0530"),
            ("DATE", "2026/7/1"),
            ("DATE", "0044-03-15 (BC)"),
            ("DATE", "infinity"),
            ("TIME", "5:30"),
            ("TIMETZ", "05:30:00+02"),
        ],
    )
    def test_iso_form_is_unchanged(self, tmp_path, kind, text):
        assert write(tmp_path / "a.duckdb", kind, [text]) == set()

    def test_keys_of_morning_and_evening_are_rejected(self, tmp_path):
        path = tmp_path / "a.duckdb"
        with duckdb.connect(str(path)) as connection:
            connection.execute("CREATE TABLE t (moment TIMESTAMP PRIMARY KEY)")
        sink = table(f"duckdb:///{path}", "t", key="moment")
        rows = [("2026-07-01 05:30 AM",), ("2026-07-01 05:30 PM",), ("2026-07-01 17:30",)]
        refused = sink.write(Outgoing(("moment",), range(3), tuples=rows), label="a")
        assert [one.place for one in refused] == [0, 1]
        sink.close()


PARTS = "date_part('year', v) * 12 + date_part('month', v), date_part('day', v), date_part('hour', v) * 3600000000 + "
PARTS += "date_part('minute', v) * 60000000 + date_part('microsecond', v)"


class TestIntervals:
    def test_text_is_kept_as_it_says_or_rejected(self, tmp_path):
        texts = intervals.texts()
        refused = write(tmp_path / "a.duckdb", "INTERVAL", texts)
        with duckdb.connect(str(tmp_path / "a.duckdb")) as connection:
            found = {
                place: tuple(parts) for place, *parts in connection.execute(f"SELECT id, {PARTS} FROM t").fetchall()
            }
        wrong = [(texts[place], parts) for place, parts in found.items() if parts != intervals.says(texts[place])]
        assert wrong == []
        assert {texts[place] for place in refused}.isdisjoint([*intervals.GOOD, *intervals.DUCKDB])
        assert {texts[place] for place in refused} >= {*intervals.BAD}

    @pytest.mark.parametrize("holder", ["INTERVAL[]", "STRUCT(a INTERVAL)", "MAP(VARCHAR, INTERVAL)"])
    @pytest.mark.parametrize("as_text", [False, True])
    def test_parts_of_values_get_the_same_verdict(self, tmp_path, holder, as_text):
        texts = [*intervals.GOOD, *intervals.BAD]
        alone = write(tmp_path / "alone.duckdb", "INTERVAL", texts)

        def held(text):
            if as_text:
                quoted = f"'{text}'"
                return {"I": f"[{quoted}]", "S": f"{{'a': {quoted}}}", "M": f"{{'a'={quoted}}}"}[holder[0]]
            return [text] if holder.endswith("[]") else {"a": text}

        assert write(tmp_path / "held.duckdb", holder, [held(text) for text in texts]) == alone

    def test_frame_gets_the_same_verdict(self, tmp_path):
        texts = intervals.texts(count=500)
        alone = write(tmp_path / "alone.duckdb", "INTERVAL", texts)
        write(tmp_path / "frame.duckdb", "INTERVAL", [])
        sink = table(f"duckdb:///{tmp_path / 'frame.duckdb'}", "t", key="id")
        frame = pl.DataFrame({"id": range(len(texts)), "v": texts})
        assert {one.place for one in sink.write(Outgoing.of_frame(frame, range(len(texts))), label="a")} == alone
        sink.close()

    def test_negative_timedelta_is_kept(self, tmp_path):
        spans = [dt.timedelta(hours=-2), dt.timedelta(days=-3, microseconds=1), dt.timedelta(1)]
        assert write(tmp_path / "a.duckdb", "INTERVAL", spans) == set()
        with duckdb.connect(str(tmp_path / "a.duckdb")) as connection:
            assert [value for (value,) in connection.execute("SELECT v FROM t ORDER BY id").fetchall()] == spans
