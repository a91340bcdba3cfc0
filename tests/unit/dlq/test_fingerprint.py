"""Letters are grouped by the failure, not by the record."""

from __future__ import annotations

import csv
import datetime
import decimal
import itertools
import json
import os
import sqlite3
import string
import uuid

import httpx
import psycopg
import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redrive.dlq.fingerprint import VERSION, Fingerprint, fingerprint, template


def message_of(fails, *args, **kwargs):
    try:
        fails(*args, **kwargs)
    except Exception as error:
        return str(error)
    raise AssertionError("no error")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        # numbers, and what is made of them
        ("row 17 has 3 columns", "row <n> has <n> columns"),
        ("got -5.5e-3, 1,000 and +7", "got <n> and <n>"),
        ("weight 12.5kg at 30%", "weight <n>.<n>kg at <n>%"),
        ("month must be in 1..12", "month must be in <n>..<n>"),
        ("order_12345, ORD-777 and A1", "order_<n>, ORD-<n> and A1"),
        ("on 2026-07-01 at 12:30", "on <date> at <time>"),
        ("at 2026-07-01T12:30:00.5+02:00", "at <date>"),
        ("at 2026-07-01 12:30:00Z, 1.7.2026, 01/07/26", "at <date>"),
        ("expires Wed, 21 Oct 2026 07:28:00 GMT", "expires Wed, <date>"),
        ("host 10.0.0.7 and fe80::1 and ::1", "host <ip> and <ip> and <ip>"),
        ("id 9f8a7b6c-1234-4321-8888-1234567890ab", "id <id>"),
        ("blob 3b18e512dba79e4c8300dd08aeb37f8e728b8dad", "blob <id>"),
        ("charge ch_4eC39HqLyjWDarjtT1zdp7dc failed", "charge <id> failed"),
        ("<Order object at 0x7f3993a6fb30>", "<Order object at <hex>>"),
        ("ann.b+x@mail.example.com is unknown", "<email> is unknown"),
        ("no file /data/2026-07-01/part-00012.csv", "no file /data/<date>/part-<n>.csv"),
        ("GET https://a.example.com/v2/orders/8812?page=3&q=x", "GET https://a.example.com/v2/orders/<n>?<value>"),
        # quoted values
        ("unknown country 'Atlantis'", "unknown country <value>"),
        ('unknown country "Atlantis"', "unknown country <value>"),
        ("unknown user 'O'Brien' (it isn't there)", "unknown user <value> (it isn't there)"),
        (r"unknown text 'it\'s' here", "unknown text <value> here"),
        ("one of ['a', 'b', 'c']", "one of [<value>]"),
        # what names the cause
        ("column 'fee' is missing", "column 'fee' is missing"),
        ("KeyError: 'fee'", "KeyError: 'fee'"),
        ("'fee'", "'fee'"),
        ("'ORD-12345'", "'ORD-<n>'"),
        ("Missing key: 'fee'", "Missing key: 'fee'"),
        ("'fee' is a required property", "'fee' is a required property"),
        ("No module named 'polars'", "No module named 'polars'"),
        ("f() missing 1 required positional argument: 'x'", "f() missing <n> required positional argument: 'x'"),
        ("unsupported operand type(s) for +: 'int' and 'str'", "unsupported operand type(s) for +: 'int' and 'str'"),
        ("fee: Input should be a valid number", "fee: Input should be a valid number"),
        ("cannot cast int64 and float32 from ISO-8859-1", "cannot cast int64 and float32 from ISO-8859-1"),
        ("HTTP 404, HTTP/1.1 503, status=429", "HTTP 404, HTTP/1.1 503, status=429"),
        ("status code: 500 for zip code 12345", "status code: 500 for zip code <n>"),
        ("the server said 502 Bad Gateway", "the server said 502 Bad Gateway"),
        ("SQLSTATE 23505, ORA-00942: row 17", "SQLSTATE 23505, ORA-00942: row <n>"),
        (
            """(1062, "Duplicate entry 'x' for key 'orders.PRIMARY'")""",
            "(1062) Duplicate entry <value> for key 'orders.PRIMARY'",
        ),
        (
            "(UniqueViolation) no [SQL: INSERT (%s, 5)] [parameters: {'id': [5]}] (Background at: https://sqlalche.me/e/1)",
            "(UniqueViolation) no [SQL: <value>] [parameters: <value>] (Background at: <url>)",
        ),
        (
            'conversion from `str` to `i64` failed in column \'fee\' for 2 out of 3 values: ["N/A", "x"]',
            "conversion from `str` to `i64` failed in column 'fee' for <n> out of <n> values: [<value>]",
        ),
        ('unable to find column "fee"; valid columns: ["a"]', 'unable to find column "fee"; valid columns: [<value>]'),
        (
            "could not parse `x` as dtype `i64` at column 'a' (column number 1)",
            "could not parse <value> as dtype `i64` at column 'a' (column number <n>)",
        ),
        # white space, other scripts, nothing
        ("a\n  b\t\u00a0c ", "a b c"),
        ("Größe 12 ist „falsch“", "Größe <n> ist „falsch“"),
        ("无效的值 '12'", "无效的值 <value>"),
        ("", ""),
        ("(17) rows", "(<n>) rows"),
    ],
)
def test_template_has_the_fixed_text_without_the_values(message, expected):
    assert template(message) == expected


class Order(pydantic.BaseModel):
    fee: float
    lines: list[int] = []


CONVERSIONS = [
    (lambda: int("N/A"), "invalid literal for int() with base 10: <value>"),
    (lambda: float("N/A"), "could not convert string to float: <value>"),
    (lambda: {}["fee"], "'fee'"),
    (lambda: None.fee, "'NoneType' object has no attribute 'fee'"),
    (lambda: decimal.Decimal("N/A"), "[<class 'decimal.ConversionSyntax'>]"),
    (lambda: json.loads('{"a": '), "Expecting value: line <n> column <n> (char <n>)"),
    (
        lambda: b"\xff".decode("utf-8"),
        "'utf-8' codec can't decode byte <hex> in position <n>: invalid start byte",
    ),
    (
        lambda: datetime.datetime.strptime("2026-13-01", "%Y-%m-%d"),
        "time data <value> does not match format '%Y-%m-%d'",
    ),
    (lambda: datetime.datetime.fromisoformat("yesterday"), "Invalid isoformat string: <value>"),
    (lambda: uuid.UUID("x"), "badly formed hexadecimal UUID string"),
    (lambda: list(csv.reader(['"x'], strict=True)), "unexpected end of data"),
    (
        lambda: httpx.Response(404, request=httpx.Request("GET", "https://a.example.com/v1/o/17")).raise_for_status(),
        "Client error '404 Not Found' for url 'https://a.example.com/v1/o/<n>' For more information check: <url>",
    ),
    (
        lambda: os.stat("/nowhere/part-00012.csv"),
        "[Errno 2] No such file or directory: '/nowhere/part-<n>.csv'",
    ),
    (
        lambda: Order(fee="N/A"),
        "<n> validation error for Order fee Input should be a valid number, unable to parse string as a number "
        "[type=float_parsing, input_value=<value>, input_type=str] For further information visit <url>",
    ),
    (
        lambda: Order(fee=1, lines=[1, 2, {"a": "b, c"}]),
        "<n> validation error for Order lines.<n> Input should be a valid integer "
        "[type=int_type, input_value=<value>, input_type=dict] For further information visit <url>",
    ),
]


@pytest.mark.parametrize(("fails", "expected"), CONVERSIONS)
def test_real_messages_of_python_and_its_libraries(fails, expected):
    assert template(message_of(fails)) == expected


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("insert into orders values (1, 1)", "UNIQUE constraint failed: orders.id"),
        ("insert into orders values (2, null)", "NOT NULL constraint failed: orders.fee"),
        ("insert into orders values (2)", "table orders has <n> columns but <n> values were supplied"),
        ("select nope from orders", "no such column: nope"),
    ],
)
def test_real_messages_of_sqlite(statement, expected):
    connection = sqlite3.connect(":memory:")
    connection.execute("create table orders (id integer primary key, fee real not null)")
    connection.execute("insert into orders values (1, 1)")
    assert template(message_of(connection.execute, statement)) == expected
    connection.close()


def test_real_messages_of_postgresql(postgres_url):
    expected = {
        "insert into letters values (1, 1)": (
            'duplicate key value violates unique constraint "letters_pkey" DETAIL: Key (id)=(<value>) already exists.'
        ),
        "insert into letters values (2, null)": (
            'null value in column "fee" of relation "letters" violates not-null constraint '
            "DETAIL: Failing row contains (<value>)."
        ),
        "insert into letters values (2, 1000000)": (
            "numeric field overflow DETAIL: A field with precision <n>, scale <n> "
            "must round to an absolute value less than <n>^<n>."
        ),
        "select 'N/A'::int": "invalid input syntax for type integer: <value> LINE <n>",
        "select nope from letters": 'column "nope" does not exist LINE <n>',
        "select '2026-13-01'::date": (
            "date/time field value out of range: <value> LINE <n> HINT: Perhaps you need a different <value> setting."
        ),
    }
    with psycopg.connect(postgres_url) as connection:
        connection.execute("create temporary table letters (id int primary key, fee numeric(5, 2) not null)")
        connection.execute("insert into letters values (1, 1)")
        for statement, shape in expected.items():
            with connection.transaction(force_rollback=True):
                connection.execute("savepoint before")
                assert template(message_of(connection.execute, statement)) == shape
                connection.execute("rollback to before")


SHARDS = """
    fee column HTTP status code LINE row contains KeyError object codec Oct ß x1 5kg 1e5 12 404 2026-07-01 12:30
    T12:30:00Z 0x7f 10.0.0.1 ::1 fe80 a1b2c3d4 deadbeef99 abc123def45 utf-8 int64 cp1252 ann@example.com @ @x.com
    % & + - . , ; : / :// https://errors.pydantic.dev/2 input_value= ,|input_type=str ( ) [ ] = =( ? ?a=b
    ' " ` '' \\ < > <n> <value> <id> [SQL: [parameters: (Background DETAIL: 'fee' "12" `i64` 'int' '404|Not|Found'
    '/a/1' (1062, (1062) row|contains|(
"""
pieces = st.one_of(
    st.sampled_from([shard.replace("|", " ") for shard in SHARDS.split()]),
    st.sampled_from([" ", " ", " ", ", ", ": ", "\n"]),
    st.text(max_size=4),
    st.text(string.digits + string.ascii_letters + "'\" -", max_size=8),
)
messages = st.lists(pieces, max_size=14).map("".join)


@given(messages)
def test_template_is_its_own_template(message):
    shape = template(message)
    assert template(shape) == shape


@given(st.lists(pieces, min_size=10, max_size=30).map("".join), st.integers(10, 200))
@example("1;", 1_000)
def test_long_template_is_its_own_template(message, times):
    shape = template(message * times)
    assert len(shape) <= 2_000
    assert template(shape) == shape


# A path or a URL is not simply a value: of these only the numbers differ.
safe_values = st.text(string.ascii_letters + string.digits + " .,:;/+_-@", min_size=1, max_size=30).filter(
    lambda text: not text.startswith("/") and "//" not in text
)


@given(safe_values, safe_values, st.integers(0, 10**12), st.integers(0, 10**12))
@example("int", "x", 1, 2)
def test_two_records_with_the_same_failure_are_one_cause(one, other, first, second):
    def cause(value, row):
        return fingerprint("ValueError", f"fee: could not convert '{value}.' to float in row {row} of the file").value

    assert cause(one, first) == cause(other, second)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("fee: could not convert 'N/A'", "weight: could not convert 'N/A'"),
        ("KeyError: 'fee'", "KeyError: 'weight'"),
        ("'fee'", "'weight'"),
        ("'Order' object has no attribute 'fee'", "'Order' object has no attribute 'weight'"),
        ('column "fee" does not exist', 'column "weight" does not exist'),
        ("HTTP 404", "HTTP 503"),
        ("expected int64", "expected int32"),
    ],
)
def test_different_names_in_messages_are_different_causes(one, other):
    assert fingerprint("Error", one).value != fingerprint("Error", other).value


def test_fingerprint_shows_its_template_and_version():
    cause = fingerprint("ValueError", "could not convert string to float: 'N/A'")
    assert cause == Fingerprint(cause.value, "could not convert string to float: <value>", VERSION)
    assert len(cause.value) == 12
    assert set(cause.value) <= set(string.hexdigits.lower())


def test_fingerprint_is_the_same_on_every_machine():
    # Letters of the past are grouped by these: where this fails, VERSION has to change.
    assert VERSION == 1
    assert fingerprint("ValueError", "could not convert string to float: 'N/A'").value == "1b299100ae7e"


def test_error_type_is_part_of_the_cause():
    assert fingerprint("KeyError", "'fee'").value != fingerprint("ValueError", "'fee'").value


def test_any_text_has_a_fingerprint():
    for message in ["", "\0", "\ud800", "\ud800 'x' 12", "e\u0301" * 3_000]:
        assert len(fingerprint("ValueError", message).value) == 12


BRICKS = [
    "'",
    "'a ",
    '"a\\',
    "\\",
    "a",
    "1",
    "a1",
    "1a ",
    "<",
    "<n",
    "=(",
    "[SQL: ",
    "?a=",
    "a@",
    "a.b@c.",
    "1:",
    "f:",
    "::",
]


@pytest.mark.parametrize("pair", list(itertools.product(BRICKS, ["", " ", ",", "0"])), ids="".join)
def test_megabyte_of_any_text_is_accepted(pair):
    brick = "".join(pair)
    message = brick * (1_000_000 // len(brick))
    shape = template(message)
    assert template(shape) == shape
    assert shape == template(message[:2_000])
