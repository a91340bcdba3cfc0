"""Texts of dates and times in PostgreSQL: a column without a zone drops no offset, and a date no time of day."""

import json
from itertools import product

import pytest

from redrive.rows.batch import Outgoing
from redrive.rows.sinks.table import table
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
            ("timetz", "04:05:06 PST", "04:05:06-08"),
        ],
    )
    def test_text_of_a_plain_date_or_time_is_kept(self, opened, type_, text, shown):
        url, execute = opened
        execute(f"CREATE TABLE t (id integer PRIMARY KEY, v {type_})")
        assert write(url, [text]) == set()
        assert execute("SELECT v::text FROM t") == [(shown,)]


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
