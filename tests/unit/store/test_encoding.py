"""Any value can be stored and comes back unchanged."""

from __future__ import annotations

import argparse
import array
import collections
import dataclasses
import email.message
import email.policy
import enum
import http.cookiejar
import http.cookies
import io
import ipaddress
import json
import math
import pathlib
import sqlite3
import string
import types
import uuid
import xml.dom.minidom
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple
from xml.etree import ElementTree
from zoneinfo import ZoneInfo

import httpx
import multidict
import numpy as np
import orjson
import polars as pl
import psycopg
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.types.multirange import Multirange
from psycopg.types.range import Range
from sqlalchemy.dialects.postgresql import Range as AlchemyRange

from redrive.store.encoding import ObjectText, canonical, decode, encode, is_same
from tests.support.examples import examples

any_text = st.text(st.characters(exclude_categories=()), max_size=20)
texts = any_text | any_text.map("$".__add__) | st.sampled_from(["$bytes", "$map", '{"$int": "1"}', "\\u0000", '\\"$a"'])
# Whole seconds: CPython itself reads "+00:00:00.000001" as UTC.
offsets = st.integers(-86_399, 86_399).map(lambda seconds: timezone(timedelta(seconds=seconds)))
zones = st.none() | st.just(UTC) | offsets | st.timezones()
folds = st.sampled_from([0, 1])
atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.floats().map(float),
    st.complex_numbers(),
    texts,
    st.binary(max_size=20),
    st.decimals(),
    st.builds(lambda at, fold: at.replace(fold=fold), st.datetimes(timezones=zones), folds),
    st.dates(),
    st.builds(lambda at, fold: at.replace(fold=fold), st.times(timezones=zones), folds),
    st.timedeltas(),
    st.uuids(),
)
hashables = st.recursive(
    atoms.filter(lambda value: not (isinstance(value, Decimal) and value.is_snan())),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
values = st.recursive(
    atoms | st.just(Decimal("sNaN")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.sets(hashables, max_size=4),
        st.frozensets(hashables, max_size=4),
        st.dictionaries(texts, inner, max_size=4),
        st.dictionaries(hashables, inner, max_size=4),
    ),
    max_leaves=20,
)


def exactly(value):
    """Something to compare that knows 1 from True, 0.0 from -0.0, a zone from an offset, and NaN as itself."""
    kind = type(value)
    match value:
        case list() | tuple():
            return kind, tuple(map(exactly, value))
        case set() | frozenset():
            return kind, frozenset(map(exactly, value))
        case dict():
            return kind, frozenset((exactly(key), exactly(each)) for key, each in value.items())
        case datetime() | time():
            return kind, value.isoformat(), value.fold, value.tzinfo
        case float() | complex() | Decimal():
            return kind, repr(value)
    return kind, value


def as_jsonb_prints(text):
    """What PostgreSQL makes of the text, by its manual: numbers are numeric, the order of keys is its own."""
    assert "\\ud" not in text.lower().replace("\\\\", "")
    assert "\\u0000" not in text.replace("\\\\", "")
    text.encode()

    def show(node):
        match node:
            case dict():
                pairs = sorted(node.items(), key=lambda pair: (len(pair[0].encode()), pair[0].encode()))
                return "{" + ", ".join(f"{json.dumps(key)}: {show(each)}" for key, each in pairs) + "}"
            case list():
                return "[" + ", ".join(map(show, node)) + "]"
            case Decimal():
                return format(abs(node) if node == 0 else node, "f")
        return json.dumps(node, ensure_ascii=False)

    return show(json.loads(text, parse_float=Decimal))


@given(values)
def test_any_value_comes_back_unchanged(value):
    assert exactly(decode(encode(value))) == exactly(value)
    assert exactly(decode(encode(value).encode())) == exactly(value)


@given(values)
def test_any_value_comes_back_after_jsonb_rewrites_it(value):
    assert exactly(decode(as_jsonb_prints(encode(value)))) == exactly(value)


def test_any_value_comes_back_from_a_real_jsonb(postgres_url):
    with psycopg.connect(postgres_url) as connection:

        @settings(max_examples=examples(400))
        @given(values)
        def check(value):
            [stored] = connection.execute("select %s::jsonb::text", [encode(value)]).fetchone()
            assert exactly(decode(stored)) == exactly(value)

        check()


@given(st.dictionaries(any_text, st.none() | st.booleans() | st.integers() | st.floats() | texts, max_size=5))
def test_flat_record_comes_back(record):
    assert exactly(decode(encode(record))) == exactly(record)


json_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(1e-4, 9e15) | json_texts,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(json_texts.filter(lambda key: key[:1] != "$"), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(json_values)
def test_json_value_is_stored_as_itself(value):
    assert json.loads(encode(value)) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2**64, '{"$int":"18446744073709551616"}'),
        (math.nan, '{"$float":"nan"}'),
        (-math.inf, '{"$float":"-inf"}'),
        (-0.0, '{"$float":"-0.0"}'),
        (1e16, '{"$float":"1e+16"}'),
        (1.5 - 2j, '{"$complex":[1.5,-2.0]}'),
        (Decimal("19.90"), '{"$decimal":"19.90"}'),
        (b"\xff", '{"$bytes":"/w=="}'),
        ("a\0b", r'{"$text":"a\\u0000b"}'),
        ("\\\ud800", r'{"$text":"\\\\\\ud800"}'),
        (datetime(2026, 7, 1, 12), '{"$datetime":"2026-07-01T12:00:00"}'),
        (datetime(2026, 7, 1, 12, tzinfo=UTC), '{"$datetime":"2026-07-01T12:00:00+00:00"}'),
        (
            datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
            '{"$datetime":"2026-10-25T02:30:00+01:00[Europe/Berlin][fold=1]"}',
        ),
        (date(2026, 7, 1), '{"$date":"2026-07-01"}'),
        (time(12, tzinfo=ZoneInfo("Europe/Berlin")), '{"$time":"12:00:00[Europe/Berlin]"}'),
        (-timedelta(days=1, milliseconds=500), '{"$timedelta":"-86400.500000"}'),
        (uuid.UUID(int=1), '{"$uuid":"00000000-0000-0000-0000-000000000001"}'),
        ((1, 2), '{"$tuple":[1,2]}'),
        ({2, 1}, '{"$set":[1,2]}'),
        (frozenset("ba"), '{"$frozenset":["a","b"]}'),
        ({1: "a"}, '{"$map":[[1,"a"]]}'),
        ({"$int": "5", "a": 1}, '{"$map":[["$int","5"],["a",1]]}'),
        ({"fee": "$5", "note": '"$x"'}, r'{"fee":"$5","note":"\"$x\""}'),
        ({"fee": Decimal(1), "tags": ["a"]}, '{"fee":{"$decimal":"1"},"tags":["a"]}'),
    ],
)
def test_encoding_is_the_documented_one(value, text):
    assert encode(value) == text
    assert exactly(decode(text)) == exactly(value)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Name(str):
    __slots__ = ()

    def __str__(self):
        return "not what it holds"


class Count(int):
    pass


class Point(NamedTuple):
    x: int
    y: float


@dataclasses.dataclass(frozen=True)
class Line:
    sku: str
    fee: Decimal


@dataclasses.dataclass(slots=True)
class Unfinished:
    known: int
    unknown: int = dataclasses.field(init=False)


class Order(pydantic.BaseModel):
    id: int
    fee: Decimal
    lines: list[Line]


class Scalar:
    """As numpy's scalars behave."""

    __module__ = "numpy"

    def __init__(self, plain, dtype="int64"):
        self.plain, self.dtype = plain, dtype

    def tolist(self):
        return self if self.plain is None else self.plain

    def astype(self, kind):
        return Scalar("2023-11-14T22:13:20.000000001") if kind is str else None

    def __repr__(self):
        return "numpy.longdouble('1.1')"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (Name("Ann"), "Ann"),
        ({Name("Ann"): Count(5)}, {"Ann": 5}),
        ({Colour.RED: 1}, {"red": 1}),
        (Point(1, 2.5), {"x": 1, "y": 2.5}),
        ({Point(1, 2.5): "here"}, {(1, 2.5): "here"}),
        (Line("a", Decimal("1.50")), {"sku": "a", "fee": Decimal("1.50")}),
        ({Line("a", Decimal(1))}, {ObjectText("Line(sku='a', fee=Decimal('1'))")}),
        (Unfinished(1), {"known": 1}),
        (
            Order(id=1, fee="2.5", lines=[Line("a", Decimal(1))]),
            {"id": 1, "fee": Decimal("2.5"), "lines": [{"sku": "a", "fee": Decimal(1)}]},
        ),
        (Scalar(5), 5),
        (Scalar([[1.5], [math.inf]], "float64"), [[1.5], [math.inf]]),
        (Scalar(date(2026, 7, 1), "datetime64[D]"), date(2026, 7, 1)),
        (Scalar(1_700_000_000_000_000_001, "datetime64[ns]"), "2023-11-14T22:13:20.000000001"),
        (Scalar(None, "float128"), "numpy.longdouble('1.1')"),
        (bytearray(b"\xff"), b"\xff"),
        (memoryview(b"abcd")[::2], b"ac"),
        (pathlib.PurePosixPath("/data/in.csv"), "/data/in.csv"),
        (collections.OrderedDict(a=1), {"a": 1}),
        (collections.deque([1, 2]), [1, 2]),
        (types.MappingProxyType({"a": (1,)}), {"a": (1,)}),
        (ValueError("no fee"), ObjectText("ValueError('no fee')")),
        (Line, ObjectText(repr(Line))),
        (range(3), [0, 1, 2]),
        (range(10**9), ObjectText("range(0, 1000000000)")),
        ({"a": (1,)}.values(), [(1,)]),
        ({"a": 1}.keys(), ["a"]),
        ({"a": 1}.items(), [("a", 1)]),
        (array.array("d", [1, math.inf]), [1.0, math.inf]),
        (memoryview(array.array("i", [300])), [300]),
        (collections.UserList([1]), [1]),
        (collections.UserString("a"), "a"),
        ([object], [ObjectText("<class 'object'>")]),
    ],
)
def test_object_is_reduced_to_its_contents(value, plain):
    assert exactly(decode(encode(value))) == exactly(plain)
    assert exactly(decode(encode([value]))) == exactly([plain])


@pytest.mark.parametrize("value", [object, [object], {"a": object}, {object: 1}, {"\0": object}])
def test_text_of_an_object_is_stored_again_as_one(value):
    stored = encode(value)
    assert "$repr" in stored
    assert encode(decode(stored)) == stored


def test_sqlite_row_is_stored_by_its_columns():
    with sqlite3.connect(":memory:") as connection:
        connection.row_factory = sqlite3.Row
        row = connection.execute("select 1 as id, 'N/A' as fee").fetchone()
    connection.close()
    assert decode(encode(row)) == {"id": 1, "fee": "N/A"}


def test_sqlite_row_with_duplicate_columns_has_both():
    with sqlite3.connect(":memory:") as connection:
        connection.row_factory = sqlite3.Row
        row = connection.execute("select 1 as id, 2 as id").fetchone()
    connection.close()
    assert decode(encode(row)) == (1, 2)


def mail(text, **headers):
    message = email.message.EmailMessage()
    for name, value in headers.items():
        message[name] = value
    message.set_content(text)
    return message


def cookie(value):
    morsel = http.cookies.Morsel()
    morsel.set("session", value, value)
    return morsel


@dataclasses.dataclass
class WithoutFields:
    pass


class ModelWithoutFields(pydantic.BaseModel):
    pass


class Keyed:
    """As records of a driver: keys, and items by key."""

    def __init__(self, fields):
        self.fields = fields

    def keys(self):
        return self.fields.keys()

    def __iter__(self):
        return iter(self.fields)

    def __getitem__(self, name):
        return self.fields[name]


class Attributes(Keyed):
    """As an element of a document: the keys are those of its attributes, and going through it gives its children."""

    def __init__(self, fields, children):
        super().__init__(fields)
        self.children = children

    def __iter__(self):
        return iter(self.children)

    def __repr__(self):
        return f"Attributes({self.fields}, {self.children})"


class TestContentsBesideKeys:
    """An object that looks like a collection is not reduced to what its keys show."""

    @pytest.mark.parametrize(
        ("value", "parts", "named"),
        [
            (mail("pay 12.50", To="a@b.de"), ["To: a@b.de", "pay 12.50"], "an EmailMessage"),
            (mail("f\u00fcr Anna"), ["Content-Type: text/plain"], "an EmailMessage"),
            (ElementTree.fromstring("<a><id>1</id></a>"), ["<a><id>1</id></a>"], "an Element"),
            (ElementTree.fromstring('<a id="1">x</a>'), ['<a id="1">x</a>'], "an Element"),
            (ElementTree.ElementTree(ElementTree.fromstring("<a/>")), ["<a />"], "an ElementTree"),
            (xml.dom.minidom.parseString("<a><b/></a>").documentElement, ["<a><b/></a>"], "an Element"),
            (cookie("123"), ["session=123"], "a Morsel"),
            (WithoutFields(), ["WithoutFields()"], "a WithoutFields"),
            (ModelWithoutFields(), ["ModelWithoutFields"], "a ModelWithoutFields"),
            (Attributes({}, [1]), ["Attributes({}, [1])"], "an Attributes"),
            (Attributes({"id": 1}, [2]), ["Attributes({'id': 1}, [2])"], "an Attributes"),
            (Keyed({}), ["Keyed object"], "a Keyed"),
            (argparse.Namespace(fee=1), ["Namespace(fee=1)"], "a Namespace"),
            (email.policy.default, ["EmailPolicy"], "an EmailPolicy"),
            (http.cookiejar.CookieJar(), ["CookieJar"], "a CookieJar"),
            (io.StringIO("a"), ["StringIO"], "a StringIO"),
        ],
    )
    def test_are_stored_in_its_text_and_noted(self, value, parts, named):
        lost = []
        text = decode(encode({"value": value}, lost=lost))["value"]
        assert isinstance(text, str)
        assert all(part in text for part in parts)
        assert lost == [named]

    def test_distinguish_elements_and_mails(self):
        feed = ElementTree.fromstring("<all><a><id>1</id></a><a><id>2</id></a><a/></all>")
        assert len({encode(element) for element in feed}) == 3
        assert encode(mail("a")) != encode(mail("b"))
        assert encode(mail("a")) == encode(mail("a"))

    @pytest.mark.parametrize(
        ("value", "plain"),
        [
            (Keyed({"id": 1}), {"id": 1}),
            (collections.ChainMap({"a": 1}, {"b": 2}), {"a": 1, "b": 2}),
            (collections.UserDict(a=1), {"a": 1}),
            (collections.UserDict(), {}),
            (http.cookies.SimpleCookie("a=1"), {"a": "Set-Cookie: a=1"}),
            (multidict.MultiDict([("a", "1"), ("b", "2")]), {"a": "1", "b": "2"}),
            (multidict.MultiDict([("a", "1"), ("b", "2"), ("a", "3")]), {"a": ["1", "3"], "b": "2"}),
            (httpx.QueryParams("a=1&a=2"), {"a": ["1", "2"]}),
            (pl.DataFrame({"a": range(100)}), [{"a": number} for number in range(100)]),
            (pa.table({"a": range(100)}), [{"a": number} for number in range(100)]),
            (pa.array(range(100)), list(range(100))),
        ],
    )
    def test_are_empty_in_a_mapping_or_a_table(self, value, plain):
        assert decode(encode({"value": value})) == {"value": plain}

    def test_of_a_table_with_two_columns_of_a_name(self):
        table = type("DataFrame", (), {"__module__": "pandas.core", "items": lambda self: iter([("a", 1), ("a", 2)])})()
        assert decode(encode(table)) == [("a", 1), ("a", 2)]


class Precise(datetime):
    """As pandas' timestamps, which have nanoseconds."""

    def isoformat(self, *args, **kwargs):
        return super().isoformat(*args, **kwargs) + "001"


class Long(timedelta):
    """As pandas' spans, likewise."""

    def __ne__(self, other):
        return True


class Moment(datetime):
    pass


class Span(timedelta):
    pass


def test_plain_subclass_of_datetime_or_timedelta_is_one():
    assert exactly(decode(encode(Moment(2026, 7, 1)))) == exactly(datetime(2026, 7, 1))
    assert exactly(decode(encode(Span(1)))) == exactly(timedelta(1))
    assert decode(encode(Precise(2026, 7, 1))) == str(Precise(2026, 7, 1))
    assert decode(encode(Long(1))) == str(Long(1))


class TestDatabaseTypes:
    """Values that drivers make of the database's own types come back as a text that the database reads."""

    @pytest.mark.parametrize(
        "text",
        ["10.0.0.1", "10.0.0.0/8", "::1", "2001:db8::/32", "10.0.0.1/24"],
    )
    def test_address_is_its_text(self, text):
        make = ipaddress.ip_interface if text.endswith("/24") else ipaddress.ip_network if "/" in text else None
        lost = []
        assert decode(encode({"ip": (make or ipaddress.ip_address)(text)}, lost=lost)) == {"ip": text}
        assert lost == []

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (Range(1, 5), '["1","5")'),
            (Range(1, 5, "(]"), '("1","5"]'),
            (Range(None, Decimal("2.50")), '(,"2.50")'),
            (Range(None, None, "()"), "(,)"),
            (Range(empty=True), "empty"),
            (Range(date(2026, 1, 1), date(2026, 2, 1)), '["2026-01-01","2026-02-01")'),
            (Range(datetime(2026, 1, 1, tzinfo=UTC), None), '["2026-01-01 00:00:00+00:00",)'),
            (Range('a"b', "c\\d"), r'["a\"b","c\\d")'),
            (Multirange([Range(1, 2), Range(5, 7)]), '{["1","2"),["5","7")}'),
            (Multirange(), "{}"),
            (AlchemyRange(1, 5), '["1","5")'),
            (AlchemyRange(empty=True), "empty"),
        ],
        ids=str,
    )
    def test_range_is_the_text_that_postgresql_reads(self, value, text):
        lost = []
        assert decode(encode([value], lost=lost)) == [text]
        assert lost == []

    def test_object_with_a_text_of_its_own_is_that_text(self):
        lost = []
        assert decode(encode({"share": Fraction(1, 3)}, lost=lost)) == {"share": "1/3"}
        assert lost == ["a Fraction"]

    def test_enum_is_its_value_and_a_long_double_its_digits(self):
        assert decode(encode([enum.Enum("Color", {"RED": "red"}).RED])) == ["red"]
        assert decode(encode([np.longdouble("1.5")])) == ["1.5"]

    def test_values_of_arrow_and_polars_are_their_contents(self):
        assert decode(encode([pa.scalar(Decimal("1.50")), pl.Series([1, None])])) == [Decimal("1.50"), [1, None]]

    def test_missing_values_of_pandas_are_none(self):
        na, nat = (type(name, (), {"__module__": "pandas._libs"})() for name in ("NAType", "NaTType"))
        assert decode(encode([na, nat])) == [None, None]


class Silent:
    def __repr__(self):
        raise RuntimeError("no repr")


class Hostile(pydantic.BaseModel):
    def model_dump(self, **_):
        raise RuntimeError("no dump")


class Explosive(dict):
    def values(self):
        raise RuntimeError("no values")


class Odd:
    def __repr__(self):
        return "<Odd \0 \ud800>"


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (Hostile(), "Hostile()"),
        (Explosive(a=1), "{'a': 1}"),
        (Odd(), r"<Odd \u0000 \ud800>"),
    ],
)
def test_unencodable_object_is_text_and_leaves_its_neighbours(value, stored):
    assert decode(encode({"odd": value, "fee": 1.5})) == {"odd": stored, "fee": 1.5}


def test_objects_without_a_repr_are_distinguished():
    first, second = Silent(), Silent()
    assert decode(encode(first)).startswith("<Silent at 0x")
    assert decode(encode(first)) != decode(encode(second))


def test_cycle_is_cut_where_it_closes_and_sharing_is_not():
    shared = [1]
    record = {"id": 1, "twins": [shared, shared]}
    record["self"] = record
    assert decode(encode(record)) == {"id": 1, "self": "<cycle>", "twins": [[1], [1]]}


def nested(depth, wrap):
    value = 1
    for _ in range(depth):
        value = wrap(value)
    return value


WRAPS = [
    lambda inner: [inner],
    lambda inner: {"a": inner},
    lambda inner: (inner,),
    lambda inner: {1: inner},
    lambda inner: frozenset([inner]),
    lambda inner: [b"", {"$a": inner}],
]


@pytest.mark.parametrize("wrap", WRAPS[:-1])
def test_eighty_levels_come_back_for_every_type(wrap):
    value = nested(80, wrap)
    assert decode(encode(value)) == value


def test_250_levels_of_lists_and_dicts_come_back():
    value = nested(125, lambda inner: [{"a": inner}])
    assert decode(encode(value)) == value
    assert decode(encode([*value, b"\xff"])) == [*value, b"\xff"]


@pytest.mark.parametrize("depth", [250, 255, 1_000, 100_000])
@pytest.mark.parametrize("wrap", WRAPS)
def test_no_depth_is_rejected(wrap, depth):
    assert decode(encode({"id": 7, "deep": nested(depth, wrap)}))["id"] == 7


@pytest.mark.parametrize(
    "document",
    [
        '{"$ref": "#/definitions/fee"}',
        '{"$oid": {"a": 1}, "b": [2]}',
        '{"$bytes": "%%%"}',
        '{"$bytes": 5}',
        '{"$bytes": null}',
        '{"$date": "2026-07-01T00:00:00Z"}',
        '{"$date": {"$numberLong": "1"}}',
        '{"$datetime": "yesterday"}',
        '{"$datetime": "[UTC]"}',
        '{"$decimal": "12,5"}',
        '{"$float": 5}',
        '{"$int": "five"}',
        '{"$map": ["ab"]}',
        '{"$map": [[1, 2, 3]]}',
        '{"$map": [[[], 1]]}',
        '{"$set": [[1]]}',
        '{"$set": {"a": 1}}',
        '{"$timedelta": "an hour"}',
        '{"$tuple": "ab"}',
        '{"$uuid": "1"}',
        '{"$complex": ["a", "b"]}',
        '{"$": 1}',
        '{"": 1}',
    ],
)
def test_document_of_others_is_returned_unchanged(document):
    assert decode(document) == json.loads(document)
    assert decode(f"[{document}]") == [json.loads(document)]


def test_unknown_tag_does_not_hide_ours():
    assert decode('{"$set_of": [{"$decimal": "1"}], "b": {"$tuple": []}}') == {"$set_of": [Decimal(1)], "b": ()}


def test_unknown_zone_leaves_the_offset():
    at = decode('{"$datetime": "2026-07-01T12:00:00+02:00[Mars/Olympus]"}')
    assert exactly(at) == exactly(datetime(2026, 7, 1, 12, tzinfo=timezone(timedelta(hours=2))))


@given(st.integers())
@settings(max_examples=examples(50))
def test_foreign_number_loses_no_digit(number):
    large = number * 10**20
    assert exactly(decode(f'{{"id": {large}}}')) == exactly({"id": large})
    assert exactly(decode(f"[{large}]")) == exactly([large])
    assert exactly(decode(f"{large}")) == exactly(large)


def test_int_of_any_length_is_stored():
    assert decode(encode(10**10_000)) == 10**10_000
    assert decode(encode(-(2**60_000))) == -(2**60_000)
    assert decode("[1" + "0" * 5_000 + "]") == [Decimal(10) ** 5_000]


def test_invalid_json_is_a_value_error():
    for text in ["", "{", "nope", b"\xff", "[" * 100_000 + "]" * 100_000]:
        with pytest.raises(ValueError):
            decode(text)


def turned(value):
    """The value with the fields of every dict in reverse."""
    if isinstance(value, dict):
        return {key: turned(one) for key, one in reversed(value.items())}
    return list(map(turned, value)) if isinstance(value, list) else value


class TestFieldOrder:
    @given(json_values)
    @settings(max_examples=examples(200))
    def test_does_not_count(self, value):
        assert canonical(encode(value)) == canonical(encode(turned(value)))

    @given(values)
    @settings(max_examples=examples(200))
    def test_is_the_only_change_of_canonical(self, value):
        assert json.loads(canonical(encode(value))) == json.loads(encode(value))

    @pytest.mark.parametrize("other", ['{"a":[2,1],"b":1}', '{"a":[1,2],"b":"1"}', '{"a":[1,2]}', "null", "nope", None])
    def test_counts_in_lists_like_other_values(self, other):
        text = '{"b":1,"a":[1,2]}'
        assert is_same(text, '{"a":[1,2],"b":1}')
        assert not is_same(text, other)

    def test_leaves_numbers_written_by_others_distinct(self):
        assert not is_same('{"a":1,"n":100000000000000000000001}', '{"a":1,"n":100000000000000000000002}')


def test_equal_sets_have_equal_text():
    letters = string.ascii_letters
    assert encode(set(letters)) == f'{{"$set":{encode(sorted(letters))}}}'


def test_large_record_is_stored():
    record = {"payload": bytes(range(256)) * 20_000, "text": 'ä$"' * 500_000, "rows": [{"n": n} for n in range(10_000)]}
    assert decode(encode(record)) == record


def test_plain_record_is_written_by_orjson_alone():
    record = {"id": 1, "fee": 12.5, "name": "Zoë", "lines": [{"sku": "a\\b", "fee": -0.25}], "zero": 0.0}
    assert encode(record) == orjson.dumps(record).decode()
