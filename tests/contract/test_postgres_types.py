"""Types of PostgreSQL only: a value is stored exactly, or its row is rejected with the column and the value."""

import datetime as dt
from decimal import Decimal
from enum import Enum

import polars as pl
import pytest

from redrive.rows.batch import Outgoing
from redrive.rows.sinks.table import table
from tests.support import table_places


class Size(Enum):
    SMALL = "s"


MOMENT = dt.datetime(2026, 7, 1, 12, 0, 0, 123456)
DAY = dt.timedelta(days=1)
TYPES = """
    CREATE DOMAIN cents AS numeric(10, 2); CREATE DOMAIN price AS cents; CREATE DOMAIN prices AS price[];
    CREATE TYPE mood AS ENUM ('happy', 'sad');
    CREATE TYPE item AS (fee price, code varchar(3), at timestamp(3));
    CREATE TYPE bill AS (items item[], total numeric(10, 2))"""
# By type: values that are kept, with the text that the server has for each, and values that are rejected.
CASES = {
    "money": (
        [(5, "$5.00"), ("1.50", "$1.50"), (Decimal("-2.5"), "-$2.50"), (1.25, "$1.25"), ("-$1,234.50", "-$1,234.50")],
        ["1.005", Decimal("1.005"), 0.125, "", "$1.005", "(5)"],
    ),
    "name": ([("ab ", "ab "), ("x" * 63, "x" * 63)], ["x" * 64, "ü" * 32, ["x" * 62]]),
    '"char"': ([("a", "a"), (5, "5"), ("", "")], ["ab", "ü", 10, True, ["a"]]),
    "char(5)": ([("ab", "ab   "), ("abcde", "abcde"), ("ab   ", "ab   "), ("", "     ")], ["ab ", "abcde ", "abcdef"]),
    "varchar(3)": ([("abc", "abc"), ("ab ", "ab "), ("a\nb", "a\nb")], ["abc ", "abcd", "a\nb "]),
    "bit(3)": ([("101", "101")], ["x5", "B101", "1010", 5, True]),
    "bit varying": ([("101", "101"), ("", "")], ["x5", "B1"]),
    "cidr": (
        [("10.0.0.0/8", "10.0.0.0/8"), ("10/8", "10.0.0.0/8"), ("::1", "::1/128"), ("10.0.0.1", "10.0.0.1/32")],
        ["1.5", "1", "192.168", "0x1F", "010.0.0.1", 7, 1.5, "::1.5", "10.0.0.1x"],
    ),
    "inet": (
        [("10.0.0.1/24", "10.0.0.1/24"), ("::ffff:1.2.3.4", "::ffff:1.2.3.4")],
        ["010.0.0.1", "10.1"],
    ),
    "cidr[]": ([(["10.0.0.0/8"], "{10.0.0.0/8}")], [["1.5"], "{192.168}"]),
    "macaddr": ([("8:0:2b:1:2:3", "08:00:2b:01:02:03"), ("08002b010203", "08:00:2b:01:02:03")], ["08:00:2b:01:02:03x"]),
    "macaddr8": (
        [("08:00:2b:ff:fe:01:02:03", "08:00:2b:ff:fe:01:02:03"), ("08002bfffe010203", "08:00:2b:ff:fe:01:02:03")],
        ["08:00:2b:ff:fe:01:02:03x", "08:00:2b:ff:fe:01:02:03;", "08:00:2b:01:02:03", "0800.2b01.0203.5"],
    ),
    "macaddr8[]": ([(["08002bfffe010203"], "{08:00:2b:ff:fe:01:02:03}")], [["08:00:2b:01:02:03"]]),
    "interval(0)": ([("2 hours", "02:00:00"), (DAY, "1 day")], ["1.5 s", dt.timedelta(microseconds=5), "[7]", [7]]),
    "interval day": ([("2 days", "2 days"), (DAY, "1 day")], ["1 day 2 hours", DAY / 2, "1.5 days", "7"]),
    "interval year to month": ([("1 year 2 mons", "1 year 2 mons"), ("1-2", "1 year 2 mons")], ["1 day", DAY]),
    "price": ([("1.50", "1.50")], ["1.005", Decimal("1.005"), 0.125]),
    "price[]": ([([Decimal("1.5")], "{1.50}"), ("{1.5,NULL}", "{1.50,NULL}")], [[Decimal("1.005")], "{1.005}"]),
    "prices": ([([1, 2], "{1.00,2.00}")], [[[0.125]], ['{"1.005"}']]),
    "varchar(3)[]": ([(["abc", None], "{abc,NULL}"), (["a,b"], '{"a,b"}')], [["abc "], '{"abc "}', ["abcd"]]),
    "name[]": ([(["a b"], '{"a b"}')], [["x" * 64], "{%s}" % ("x" * 64)]),
    "text[]": ([([True], "{true}"), ([Size.SMALL], "{s}"), ([["a"], ["b"]], "{{a},{b}}")], [[b"a"], [[b"a"]]]),
    "bytea[]": ([([b"\xff"], '{"\\\\xff"}')], [[5], ["\\101"]]),
    "bytea": ([(b"\xff", "\\xff"), ("ab", "\\x6162"), ("\\x6162", "\\x6162")], ["\\101", "ü", 5, [1], MOMENT]),
    "mood": ([("sad", "sad")], ["angry", 1]),
    "item": (
        [("(1.5,abc,)", "(1.50,abc,)"), ('(,"a ",2026-07-01)', '(,"a ","2026-07-01 00:00:00")')],
        [
            "(1.005,abc,)",
            '(1,a"b",2026-07-01 12:00:00.1234)',
            '(1,"abc ",)',
            "(1,a,2026-07-01 12:00:00.1234)",
            '(1,a,"2026-07-01 12:00:00+02")',
        ],
    ),
    "item[]": ([('{"(1.5,a,)"}', '{"(1.50,a,)"}')], ['{"(1.005,a,)"}', '{"(1,\\"abc \\",)"}']),
    "bill": ([('("{""(1,a,)""}",2)', '("{""(1.00,a,)""}",2.00)')], ['("{""(1.005,a,)""}",2)', '("{}",2.005)']),
    "tsrange": (
        [("[2026-07-01,)", '["2026-07-01 00:00:00",)'), ("empty", "empty")],
        ["[2026-07-01 00:00:00.1234567,)", '(,"2026-07-01 12:00+02"]', [1, 5]],
    ),
    "daterange": ([("[2026-07-01,2026-07-03]", "[2026-07-01,2026-07-04)")], ["[2026-07-01 12:00,2026-07-03]"]),
    "int4range": ([("[1,5]", "[1,6)")], [[1, 5]]),
    "tsmultirange": ([("{[2026-07-01,)}", '{["2026-07-01 00:00:00",)}')], ["{[2026-07-01 00:00:00.1234567,)}"]),
    "point": ([("(0.1,2)", "(0.1,2)")], ["(0.12345678901234567891,2)"]),
    "date": (
        [("2026-07-01", "2026-07-01"), ("infinity", "infinity")],
        [["2026-07-01"], ["Infinity"], '["2026-07-01"]'],
    ),
    "oid": ([(5, "5")], [-1]),
}


@pytest.fixture
def opened(postgres_url):
    with table_places.postgresql(postgres_url) as (url, execute):
        execute("SET lc_monetary = 'C'; DROP SCHEMA IF EXISTS types CASCADE; CREATE SCHEMA types")
        execute(f"SET search_path = types; {TYPES}")
        columns = ", ".join(f"c{number} {type_}" for number, type_ in enumerate(CASES))
        execute(f"CREATE TABLE t (id integer PRIMARY KEY, {columns})")
        yield url, execute
        execute("DROP SCHEMA types CASCADE")


def test_value_is_exact_or_its_row_is_rejected(opened):
    url, execute = opened
    names = [f"c{number}" for number in range(len(CASES))]
    rows, expected = [], []
    for number, (kept, rejected) in enumerate(CASES.values()):
        for value, text in [*kept, *((one, None) for one in rejected)]:
            rows.append((len(rows), *(value if at == number else None for at in range(len(CASES)))))
            expected.append((number, value, text))
    sink = table(url, "types.t", key="id")
    refused = {
        one.place: str(one.error)
        for one in sink.write(Outgoing(("id", *names), range(len(rows)), tuples=rows), label="b")
    }
    texts = ", ".join(f"format('%s', {name})" for name in names)
    found = {row[0]: row[1:] for row in execute(f"SELECT id, {texts} FROM t")}
    types = list(CASES)
    wrong = [
        (types[number], value, text, found.get(place, [None] * (number + 1))[number], refused.get(place))
        for place, (number, value, text) in enumerate(expected)
        if (text is None) == (place in found) or (text is not None and found[place][number] != text)
    ]
    assert wrong == []
    assert all(
        f"{names[expected[place][0]]}: " in error or "cannot be stored" in error for place, error in refused.items()
    )
    sink.close()


def test_texts_of_a_frame_are_kept_or_rejected(opened):
    url, _ = opened
    numbers = {type_: f"c{number}" for number, type_ in enumerate(CASES)}
    frame = pl.DataFrame(
        {
            "id": [1, 2, 3, 4],
            numbers["varchar(3)"]: ["abc", "abc ", None, None],
            numbers["name"]: ["x", None, "x" * 64, None],
            numbers["money"]: [1.5, None, None, 0.125],
            numbers["price[]"]: [[1.5], None, None, None],
        }
    )
    sink = table(url, "types.t", key="id")
    flags = pl.DataFrame({"id": [9], numbers["bytea"]: [True]})
    assert len(sink.write(Outgoing.of_frame(flags, [0]), label="a")) == 1
    refused = {one.place: str(one.error) for one in sink.write(Outgoing.of_frame(frame, range(4)), label="b")}
    assert list(refused) == [1, 2, 3]
    assert refused[1] == f"{numbers['varchar(3)']}: 'abc ' would be cut: character varying(3) keeps 3 characters"
    sink.close()
