"""Texts of dates and times in PostgreSQL: a column without a zone drops no offset, and a date no time of day."""

import datetime as dt
import json
from itertools import product

import polars as pl
import pytest

from redrive.rows.batch import Outgoing
from redrive.rows.sinks.table import table
from tests.oracles import intervals
from tests.support import table_places

DATES = (
    *("2026-07-01", "7/1/2026", "01/Jul/2026", "Wed, 01 Jul 2026", "July 1, 2026", "20260701", "Jul-01-2026"),
    *("2026.07.01", "2026-182", "01Jul2026", "J2451187", "2026-07-01 BC", "July 1, 2026 at", "today", "2026-07-01 dst"),
)
TIMES = ("", "12:00", "5:30:00 PM", "05:30PM", "120000", "T120000", "T12:00", "1200", "12:00:00.5", "00:00")
ZONES = (
    *("", " +02:00", "+02", "-05", " -0500", " EST", "EST", " CEST", " Europe/Berlin", " GMT+2", "Z", " UTC", " GMT"),
    *(" +00", "+0000", "-00:00", " (EST)", " z+2", "+2", " utc2", "-12:00", " EST5EDT", "-5:30:15", " m", ",+02"),
)


def spelled():
    for date, time, zone in product(DATES, TIMES, ZONES):
        gap = " " if time and not time.startswith("T") else ""
        yield from (date + gap + time + zone, f"{time}{zone} {date}", date + zone + gap + time, time + zone)
        yield from (f"{date}:{time}{zone}", f"{date.split(' 2026')[0]}{gap}{time}{zone} 2026")


TEXTS = sorted(set(spelled()))
READ = """
    CREATE FUNCTION read_as(value text, type text) RETURNS text LANGUAGE plpgsql AS $$
    DECLARE found text;
    BEGIN EXECUTE format('SELECT (%L::%s)::text', value, type) INTO found; RETURN found;
    EXCEPTION WHEN others THEN RETURN NULL; END $$"""
# What each type would drop is kept by another one.
WHOLE = {"timestamp": "timestamptz", "date": "timestamptz", "time": "timetz", "timetz": "timetz"}


@pytest.fixture
def opened(postgres_url):
    with table_places.postgresql(postgres_url) as (url, execute):
        execute("DROP SCHEMA IF EXISTS times CASCADE; CREATE SCHEMA times")
        execute("SET search_path = times; SET TimeZone = 'UTC'")
        yield url, execute
        execute("DROP SCHEMA times CASCADE")


def write(url, values, **options):
    sink = table(url, "times.t", **({"key": "id"} | options))
    rows = Outgoing(("id", "v"), range(len(values)), tuples=list(enumerate(values)))
    refused = {one.place for one in sink.write(rows, label="run/0")}
    sink.close()
    return refused


class TestTexts:
    @pytest.mark.parametrize("type_", ["timestamp", "date", "time"])
    def test_accepted_text_loses_no_part(self, opened, type_):
        url, execute = opened
        execute(READ)
        execute(f"CREATE TABLE t (id integer PRIMARY KEY, v {type_})")
        refused = write(url, TEXTS)
        execute("CREATE TABLE texts (id integer PRIMARY KEY, text text)")
        sink = table(url, "times.texts", key="id")
        assert not sink.write(Outgoing(("id", "text"), range(len(TEXTS)), tuples=list(enumerate(TEXTS))), label="a")
        sink.close()
        # Read with the zone, in a session in UTC, a text without an offset is the same date and time.
        whole = f"read_as(text, '{WHOLE[type_]}')"
        shown = {"timestamp": "v::text || '+00'", "date": "v::timestamptz::text", "time": "v::text || '+00'"}[type_]
        shown = f"replace({shown}, ' BC+00', '+00 BC')"
        query = f"SELECT text, {shown}, {whole} FROM texts JOIN t USING (id) WHERE {shown} IS DISTINCT FROM {whole}"
        assert execute(query) == []
        kept = len(TEXTS) - len(refused)
        assert execute("SELECT count(*) FROM t") == [(kept,)]
        assert kept > 30

    @pytest.mark.parametrize("type_", ["timestamp", "date", "time", "timetz", "timestamptz"])
    def test_array_domain_and_append_get_the_same_verdict(self, opened, type_):
        url, execute = opened
        texts = [text for text in TEXTS if "," not in text][::7]
        execute(f"CREATE TABLE t (id integer PRIMARY KEY, v {type_})")
        alone = write(url, texts)
        assert alone
        execute("DROP TABLE t")
        execute(f"CREATE TABLE t (id integer PRIMARY KEY, v {type_}[])")
        assert write(url, [[text] for text in texts]) == alone
        execute("DROP TABLE t")
        execute(f"CREATE DOMAIN own AS {type_}; CREATE TABLE t (id integer PRIMARY KEY, v own)")
        assert write(url, texts, key=None, append=True) == alone

    @pytest.mark.parametrize(
        ("type_", "text", "shown"),
        [
            ("timestamp", "2026-07-01 05:30 PM", "2026-07-01 17:30:00"),
            ("timestamp", "Wed, 01 Jul 2026 12:00:00 GMT", "2026-07-01 12:00:00"),
            ("timestamp", "01/Jul/2026:12:00:00 +0000", "2026-07-01 12:00:00"),
            ("timestamp", "July 1, 2026 at 5:30 PM", "2026-07-01 17:30:00"),
            ("timestamp", "20260701T120000", "2026-07-01 12:00:00"),
            ("date", "January 8, 99 BC", "0099-01-08 BC"),
            ("date", "08-Jan-99", "1999-01-08"),
            ("date", "1/8/1999", "1999-01-08"),
            ("date", "19990108", "1999-01-08"),
            ("date", "2026-07-01T00:00:00Z", "2026-07-01"),
            ("time", "04:05 PM", "16:05:00"),
            ("time", "040506", "04:05:06"),
            ("timetz", "04:05:06-08", "04:05:06-08"),
            ("timestamptz", "2026-07-01 10:00 Europe/Berlin", "2026-07-01 08:00:00+00"),
            ("timestamptz", "2026-07-01 10:00 America/Port-au-Prince", "2026-07-01 14:00:00+00"),
            ("timestamptz", "2026-07-01 10:00 Etc/GMT+5", "2026-07-01 15:00:00+00"),
            ("timestamptz", "Wed, 01 Jul 2026 10:00:00 +0530", "2026-07-01 04:30:00+00"),
            ("timestamptz", "01/Jul/2026:10:00:00 +0530", "2026-07-01 04:30:00+00"),
            ("timestamptz", "July 1, 2026 at 5:30 PM UTC", "2026-07-01 17:30:00+00"),
            ("timestamptz", "20260701T100000Z", "2026-07-01 10:00:00+00"),
            ("timestamptz", "2026-07-01 10:00:00 GMT+0000", "2026-07-01 10:00:00+00"),
            ("timestamptz", "infinity", "infinity"),
        ],
    )
    def test_text_of_a_plain_date_or_time_is_kept(self, opened, type_, text, shown):
        url, execute = opened
        execute(f"CREATE TABLE t (id integer PRIMARY KEY, v {type_})")
        assert write(url, [text]) == set()
        assert execute("SELECT v::text FROM t") == [(shown,)]


AMBIGUOUS = [
    *("GMT+2", "UTC+05:30", "UTC+5", "UTC +5", "Z+2", "EST+1", "GMT-7", "UTC+0200", "EST5EDT", "EST5"),
    *("IST", "EST", "CST", "BST", "CET", "PST DST", "MSK", "Japan"),
]


class TestZones:
    @pytest.mark.parametrize("type_", ["timestamptz", "timestamptz[]", "timetz"])
    def test_ambiguous_zone_is_rejected(self, opened, type_):
        url, execute = opened
        execute(f"CREATE TABLE t (id integer PRIMARY KEY, v {type_})")
        moment = "10:00" if type_ == "timetz" else "2026-07-01 10:00"
        texts = [f"{moment}{gap}{zone}" for zone in AMBIGUOUS for gap in (" ", "")]
        assert write(url, [[text] for text in texts] if type_.endswith("[]") else texts) == {*range(len(texts))}


PARTS = (
    "extract(year FROM v)::bigint * 12 + extract(month FROM v)::bigint, extract(day FROM v)::bigint, "
    "extract(hour FROM v)::bigint * 3600000000 + extract(minute FROM v)::bigint * 60000000 + "
    "extract(microsecond FROM v)::bigint"
)


class TestIntervals:
    @pytest.mark.parametrize("style", ["postgres", "sql_standard"])
    def test_text_is_exact_or_rejected(self, opened, style):
        url, execute = opened
        texts = intervals.texts()
        execute("CREATE TABLE t (id integer PRIMARY KEY, v interval)")
        refused = write(f"{url}?options=-c%20intervalstyle%3D{style}", texts)
        found = {place: tuple(parts) for place, *parts in execute(f"SELECT id, {PARTS} FROM t")}
        wrong = [(texts[place], parts) for place, parts in found.items() if parts != intervals.says(texts[place])]
        assert wrong == []
        assert {texts[place] for place in refused}.isdisjoint([*intervals.GOOD, *intervals.POSTGRES])
        assert {texts[place] for place in refused} >= {*intervals.BAD, *intervals.DUCKDB}

    def test_array_domain_and_frame_get_the_same_verdict(self, opened):
        url, execute = opened
        texts = [*intervals.GOOD, *intervals.POSTGRES, *intervals.BAD]
        execute("CREATE TABLE t (id integer PRIMARY KEY, v interval)")
        alone = write(url, texts)
        execute("TRUNCATE t")
        sink = table(url, "times.t", key="id")
        frame = pl.DataFrame({"id": range(len(texts)), "v": texts})
        assert {one.place for one in sink.write(Outgoing.of_frame(frame, range(len(texts))), label="a")} == alone
        sink.close()
        execute("DROP TABLE t; CREATE TABLE t (id integer PRIMARY KEY, v interval[])")
        assert write(url, [[text] for text in texts]) == alone
        execute("TRUNCATE t")
        assert write(url, [f'{{"{text}"}}' for text in texts]) == alone
        execute("DROP TABLE t; CREATE DOMAIN own AS interval; CREATE TABLE t (id integer PRIMARY KEY, v own)")
        assert write(url, texts, key=None, append=True) == alone

    @pytest.mark.parametrize("style", ["postgres", "sql_standard", "postgres_verbose", "iso_8601"])
    def test_timedelta_and_text_of_each_style_are_kept(self, opened, style):
        url, execute = opened
        execute("CREATE TABLE t (id integer PRIMARY KEY, v interval)")
        spans = [dt.timedelta(days=-1, seconds=7_384), dt.timedelta(hours=-2), dt.timedelta(3, 5, 7), dt.timedelta(0)]
        url = f"{url}?options=-c%20intervalstyle%3D{style}"
        assert write(url, spans) == set()
        assert [value for (value,) in execute("SELECT v FROM t ORDER BY id")] == spans
        execute(
            "INSERT INTO t VALUES (8, '1 year 2 mons -3 days 04:05:06.7'), (9, '-1 year -2 mons -3 days -04:05:06')"
        )
        execute(f"SET intervalstyle = {style}")
        texts = [text for (text,) in execute("SELECT v::text FROM t ORDER BY id")]
        execute("RESET intervalstyle")
        before = execute(f"SELECT {PARTS} FROM t ORDER BY id")
        execute("TRUNCATE t")
        refused = {texts[place] for place in write(url, texts)}
        # A minus that stands for the whole in this style only, and a number without a unit.
        assert all(text == "0" or text.startswith("-") for text in refused)
        assert refused == set() or style == "sql_standard"
        after = execute(f"SELECT {PARTS} FROM t ORDER BY id")
        assert {*after} <= {*before}
        assert len(after) == len(texts) - len(refused)

    def test_two_numbers_are_rejected_as_ambiguous(self, opened):
        url, execute = opened
        execute("CREATE TABLE t (id integer PRIMARY KEY, v interval minute to second)")
        assert write(url, ["01:02", "00:01:02", "1 minute 2 seconds"]) == {0}


class TestArraysOfJson:
    @pytest.mark.parametrize("type_", ["json[]", "jsonb[]"])
    def test_elements_of_any_types_are_kept(self, opened, type_):
        url, execute = opened
        values = [[[1], [2]], [{"a": 1}, 5], ["x", "y"], [True, None, 1.5], [], ["x", {"b": ["z"]}]]
        execute(f"CREATE TABLE t (id integer PRIMARY KEY, v {type_})")
        assert write(url, values) == set()
        assert [found for (found,) in execute("SELECT v FROM t ORDER BY id")] == values
        (count,) = execute("SELECT count(*) FROM t WHERE array_ndims(v) > 1")
        assert count == (0,)
        assert json.loads(execute("SELECT to_json(v)::text FROM t WHERE id = 0")[0][0]) == [[1], [2]]
