"""Values of named fields are never shown, neither in a record nor in its message."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import decimal
import json
import reprlib
import string
import types
from typing import NamedTuple
from urllib.parse import parse_qs, urlencode

import duckdb
import pydantic
import pytest
import sqlalchemy
from hypothesis import given
from hypothesis import strategies as st

from redrive._internal.masking import MASK
from redrive.dlq.redact import Redactor
from redrive.store.encoding import decode, encode

ORDER = {
    "id": 7,
    "ssn": "123-45-6789",
    "Card_Number": 4111111111111111,
    "customer": {"email": "ann@example.com", "name": "Ann", "ssn": "987-65-4321", "emails": ["a@example.com"]},
    "lines": [{"sku": "a", "refresh_token": "abcdef"}, ({"customer": {"email": "bob@example.com"}},)],
}


@pytest.mark.parametrize(
    ("field", "masked"),
    [
        ("card_number", [("Card_Number",)]),
        ("CARD_NUMBER", [("Card_Number",)]),
        ("ssn", [("ssn",), ("customer", "ssn")]),
        ("*.ssn", [("customer", "ssn")]),
        ("customer.email", [("customer", "email")]),
        ("lines.customer.email", [("lines", 1, 0, "customer", "email")]),
        ("*.email", [("customer", "email"), ("lines", 1, 0, "customer", "email")]),
        ("*_token", [("lines", 0, "refresh_token")]),
        ("s?n", [("ssn",), ("customer", "ssn")]),
        ("customer", [("customer",), ("lines", 1, 0, "customer")]),
        ("customer.*", [("customer", key) for key in ("email", "name", "ssn", "emails")]),
        ("lines.*.email", [("lines", 1, 0, "customer", "email")]),
        ("em", []),
        ("email.customer", []),
    ],
)
def test_pattern_masks_only_the_fields_that_match(field, masked):
    expected = copy.deepcopy(ORDER)
    expected["lines"][1] = list(expected["lines"][1])
    for *way, last in masked:
        place = expected
        for step in way:
            place = place[step]
        place[last] = "***"
    expected["lines"][1] = tuple(expected["lines"][1])
    before = copy.deepcopy(ORDER)
    assert Redactor([field]).record(ORDER) == expected
    assert before == ORDER


def test_path_matches_a_flat_key_of_the_same_spelling():
    assert Redactor(["customer.email"]).record({"customer.email": "ann@example.com"}) == {"customer.email": "***"}


def test_non_text_keys_have_names():
    record = {b"ssn": "123-45-6789", 5: {"ssn": 1}}
    assert Redactor(["ssn"]).record(record) == {b"ssn": "***", 5: {"ssn": "***"}}


def test_no_fields_mask_nothing():
    assert Redactor(()).record(ORDER) is ORDER
    assert Redactor([]).record("a line") == "a line"
    assert Redactor(()).text("ssn 123-45-6789", ORDER) == "ssn 123-45-6789"


@dataclasses.dataclass
class Person:
    ssn: str
    name: str


class Row(NamedTuple):
    ssn: str
    name: str


class Model(pydantic.BaseModel):
    ssn: str
    name: str


@pytest.mark.parametrize("kind", [Person, Row, Model, lambda **fields: types.MappingProxyType(fields)])
def test_objects_are_shown_by_their_fields(kind):
    person = kind(ssn="123-45-6789", name="Ann")
    assert Redactor(["ssn"]).record([person]) == [{"ssn": "***", "name": "Ann"}]
    assert Redactor(["person"]).text("no 123-45-6789", {"person": person}) == "no ***"


MULTIPART = (
    '--b\r\nContent-Disposition: form-data; name="{}"\r\nContent-Type: text/plain\r\n\r\n{}\r\n'
    '--b\r\nContent-Disposition: form-data; name="note"\r\n\r\nhello\r\n--b--\r\n'
)
BELOW_CARD = ["card[number]", "card%5Bnumber%5D", "card[a][0][number]", "card[][number]", "card.number", "card[number"]
FILES = (
    '--b\r\nContent-Disposition: form-data; name="scan"; filename="{0}"\r\nContent-Type: image/png\r\n\r\n<content>\r\n'
    "--b\r\nContent-Disposition: form-data; filename*=utf-8''{0}; name=scan\r\n\r\n<content>\r\n"
    '--b\r\nContent-Disposition: form-data; name="scan"\r\nContent-Type: image/png; name="{0}"\r\n\r\n<content>\r\n'
    '--b\r\nContent-Disposition: form-data; name="plan"; filename="plan.txt"\r\n\r\n{{"id": 1}}\r\n--b--\r\n'
)


def request(body="", content_type=None, url="https://pay.example/charges"):
    return {"method": "POST", "url": url, "content_type": content_type, "body": body}


def requests_of(name, value):
    """The same field in all the places that a request has for it."""
    form = f"{name}={value}&note=7"
    multipart = MULTIPART.format(name, value)
    return [
        request(form, "application/x-www-form-urlencoded"),
        request(form.encode()),
        request(url=f"https://pay.example/charges?a=1&{form}#top"),
        request(multipart, "multipart/form-data; boundary=b"),
        request(json.dumps({name: value}), "application/json"),
        {"function": "pay", "args": [form, multipart], "kwargs": {"data": {name: value}}},
    ]


class TestBelowANamedField:
    """A form writes the path of a field into its name; what is below a named field is masked in every notation."""

    @pytest.mark.parametrize("field", ["card", "CARD", "c?rd", "card.*", "*.number"])
    @pytest.mark.parametrize("name", BELOW_CARD)
    def test_value_is_masked(self, name, field):
        redactor = Redactor([field])
        for record in requests_of(name, "4000-Xq7Secret"):
            assert "Xq7Secret" not in repr(redactor.record(record))
            assert redactor.text("no such card: 4000-Xq7Secret", record) == "no such card: ***"
            assert redactor.can_read(record)

    @pytest.mark.parametrize("name", BELOW_CARD)
    def test_value_below_a_path_is_masked(self, name):
        for outer in ("cust[{}]", "cust[{}", "cust.{}"):
            inner = name.replace("[", "][", 1) if "[" in outer and "[" in name else name
            for record in requests_of(outer.format(inner), "4000-Xq7Secret"):
                assert "Xq7Secret" not in repr(Redactor(["cust.card"]).record(record))

    @pytest.mark.parametrize("name", ["discard[number]", "cards[number]", "card_number", "number[cards]"])
    def test_other_names_are_shown(self, name):
        for record in requests_of(name, "4000-Xq7Public"):
            assert Redactor(["card"]).record(record) == record

    def test_flat_key_of_a_row_is_masked(self):
        row = {"card.number": "4000", "card[cvc]": "123", "cards": "7", "shop": {"card.number": "4001"}}
        shown = {"card.number": "***", "card[cvc]": "***", "cards": "7", "shop": {"card.number": "***"}}
        assert Redactor(["card"]).record(row) == shown
        assert Redactor(["shop.card"]).record(row) == {**row, "shop": {"card.number": "***"}}


class TestFileOfANamedField:
    NAME = "078-05-1120 Xq7.pdf"

    def test_its_name_is_masked(self):
        body = FILES.format(self.NAME)
        for record in (request(body, "multipart/form-data; boundary=b"), {"args": [body]}):
            shown = repr(Redactor(["scan"]).record(record))
            assert "plan.txt" in shown
            assert not any(part in shown for part in ("Xq7", "1120"))
            text = Redactor(["scan"]).text(f"cannot read {self.NAME!r} of 078-05-1120 Xq7", record)
            assert text == "cannot read '***' of ***"

    def test_masked_body_is_still_a_form(self):
        record = request(FILES.format(self.NAME), "multipart/form-data; boundary=b")
        redactor = Redactor(["scan"])
        once = redactor.record(record)
        assert redactor.record(once) == once
        assert redactor.has_masked_field(once)

    def test_name_of_another_file_is_shown(self):
        record = request(FILES.format("scan.png"), "multipart/form-data; boundary=b")
        assert Redactor(["id"]).record(record)["body"].count("scan.png") == 3


class Opaque:
    def __repr__(self):
        return "<Opaque ssn=123-45-6789>"


def test_object_with_only_a_repr_is_not_shown():
    assert Redactor(["ssn"]).record({"id": 1, "person": Opaque()}) == {"id": 1, "person": "*** (24 characters)"}


def test_stored_text_of_an_object_is_not_shown():
    redactor = Redactor(["ssn"])
    for record in (
        {"id": 1, "person": Opaque()},
        {"id": 1, "of": {Opaque(): 5}},
        {"function": "check", "args": [Opaque()], "kwargs": {}},
    ):
        stored = decode(encode(record))
        assert "123-45-6789" in repr(stored)
        assert redactor.record(stored) == redactor.record(record)
        assert "123-45-6789" not in repr(redactor.record(stored)) + redactor.text(f"no {Opaque()}", stored)
        assert not redactor.can_read(stored)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ('{"ssn": "123-45-6789", "name": "Zoë"}', '{"ssn": "***", "name": "Zoë"}'),
        (b'[{"ssn": 123456789}]', b'[{"ssn": "***"}]'),
        ('{"name":"Ann"}', '{"name":"Ann"}'),
        ("Ann,123-45-6789", "*** (15 characters)"),
        (b"Ann,\xff", "*** (5 bytes)"),
        ('{"ssn": "123-45-6789"', "*** (21 characters)"),
        ('"123-45-6789"', "*** (13 characters)"),
        ("", "*** (0 characters)"),
        (
            ["Ann", "123-45-6789", 123456789, None, True],
            ["*** (3 characters)", "*** (11 characters)", "***", None, True],
        ),
        (("Ann",), ("*** (3 characters)",)),
        (123456789, "***"),
        (None, None),
        (
            {"payload": '{"ssn": "123-45-6789"}', "note": "{not json"},
            {"payload": '{"ssn": "***"}', "note": "{not json"},
        ),
    ],
)
def test_text_without_fields_is_masked_unless_it_is_json(raw, shown):
    assert Redactor(["ssn"]).record(raw) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("card_number=4111&note=a%20b", "card_number=***&note=a%20b"),
        ("note=hello&Card%5Fnumber=41+11", "note=hello&Card%5Fnumber=***"),
        ("customer[cards][0][card_number]=4111&note=1", "customer[cards][0][card_number]=***&note=1"),
        ("card_number[]=4111&card_number[]=4222", "card_number[]=***&card_number[]=***"),
        ("https://pay.example/x?a=1&card_number=4111#top", "https://pay.example/x?a=1&card_number=***#top"),
        ("payload=%7B%22card_number%22%3A+4111%7D", "payload=%7B%22card_number%22%3A+%22***%22%7D"),
        (MULTIPART.format("card_number", "4111"), MULTIPART.format("card_number", "***")),
        ("2 + 2 = 4, and a=b", "2 + 2 = 4, and a=b"),
    ],
)
def test_fields_of_forms_are_masked(text, shown):
    redactor = Redactor(["card_number"])
    assert redactor.record({"body": text, "id": 7}) == {"body": shown, "id": 7}
    assert redactor.record({"body": text.encode() + b"&x=\xff"})["body"] == shown.encode() + b"&x=\xff"


def test_message_shows_no_value_of_a_form():
    record = {"body": "password=hunter%2F22+x&a=1"}
    assert Redactor(["password"]).text("no hunter/22 x, hunter%2F22+x, hunter%2F22%20x", record) == "no ***, ***, ***"


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=4), st.text(min_size=4, alphabet=string.ascii_letters))
def test_no_secret_of_a_form_comes_through(fields, secret):
    body = urlencode({**{f"x{name}": value for name, value in fields.items()}, "pin": f"9/{secret}"}, errors="replace")
    shown = Redactor(["pin"]).record({"body": body})["body"]
    assert parse_qs(shown)["pin"] == ["***"]


def test_value_that_reappears_in_other_texts_is_masked():
    record = {
        "ssn": "123-45-6789",
        "line": "Ann,123-45-6789,DE",
        "pin": "12",
        "count": "12",
        "more": [("123-45-6789",)],
    }
    assert Redactor(["ssn", "pin"]).record(record) == {
        "ssn": "***",
        "line": "Ann,***,DE",
        "pin": "***",
        "count": "12",
        "more": [("***",)],
    }


@pytest.mark.parametrize(
    ("value", "message", "shown"),
    [
        ("123-45-6789", "invalid ssn '123-45-6789' (123-45-6789)", "invalid ssn '***' (***)"),
        (123456789, "invalid ssn 123456789", "invalid ssn ***"),
        (decimal.Decimal("1234.50"), "too high: 1234.50, Decimal('1234.50')", "too high: ***, ***"),
        (datetime.datetime(2026, 7, 1, 12), "at 2026-07-01 12:00:00 or 2026-07-01T12:00:00", "at *** or ***"),
        ("it's\n5", 'got "it\'s\\n5"', 'got "***"'),
        ("Zoë\x01", 'got {"a": "Zo\\u00eb\\u0001"}', 'got {"a": "***"}'),
        (b"secret\xff", "got b'secret\\xff'", "got b'***'"),
        ({"iban": ["DE001", {"x": "DE002"}]}, "DE001 and DE002", "*** and ***"),
        ('{"iban": "DE001"}', "no DE001", "no ***"),
        (["longer", "longer than that"], "longer than that, longer", "***, ***"),
        ("abc", "abc is too short to tell", "abc is too short to tell"),
        ("    ", "four    blanks", "four    blanks"),
        (None, "None", "None"),
        (True, "True", "True"),
    ],
)
def test_message_shows_no_value_of_a_named_field(value, message, shown):
    assert Redactor(["ssn"]).text(message, {"ssn": value, "name": "Ann"}) == shown


def test_message_shows_no_value_of_a_json_record():
    assert Redactor(["ssn"]).text("no 123-45-6789", '{"ssn": "123-45-6789"}') == "no ***"


def test_pydantic_message_shows_no_value_and_no_cut_record():
    record = {"name": "Ann", "card": "4111111111111111222233334444", "more": "x" * 50}
    with pytest.raises(pydantic.ValidationError) as caught:
        Model.model_validate({"ssn": 5, "name": [record]})
    missing = "Field required [type=missing, input_value={'card': '41111111...c': 1}, input_type=dict]"
    redactor = Redactor(["card"])
    assert redactor.text(missing, record) == "Field required [type=missing, input_value=***, input_type=dict]"
    assert "4111" not in redactor.text(str(caught.value), record)
    assert "input_value=5, input_type=int" in redactor.text(str(caught.value), record)


def test_message_shows_no_part_of_a_record_without_names():
    assert Redactor(["ssn"]).text("bad line: Ann,123-45-6789", "Ann,123-45-6789") == "bad line: ***"


def test_message_shows_no_credential():
    assert Redactor(()).text("password=hunter2", {}) == "password=***"
    assert Redactor(["ssn"]).text("password=hunter2", {}) == "password=***"


def test_deep_or_endless_record_is_masked_whole():
    endless = {}
    endless["self"] = endless
    assert Redactor(["ssn"]).record(endless) == "***"
    assert Redactor(["ssn"]).text("fine", endless) == "***"  # which part of the record it shows is unknown
    assert Redactor(["ssn"]).record("[" * 100_000) == "*** (100000 characters)"


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ("ssn", TypeError, "list of field names"),
        (b"ssn", TypeError, "list of field names"),
        (None, TypeError, "list of field names"),
        ([5], TypeError, "names of fields"),
        ([""], ValueError, "name is missing"),
        (["a..b"], ValueError, "name is missing"),
        ([".a"], ValueError, "name is missing"),
        (["a. "], ValueError, "name is missing"),
    ],
)
def test_invalid_list_of_fields_is_rejected(fields, error, words):
    with pytest.raises(error, match=words):
        Redactor(fields)


def test_value_is_masked_before_the_message_is_cut():
    record = {"note": "correct horse battery staple"}
    for most in range(600, 640):
        message = "password='" + "x" * 580 + "' " + record["note"]
        assert "correct" not in Redactor(["note"]).text(message, record, most=most)


def test_repr_of_a_redactor_shows_its_fields():
    assert repr(Redactor(["ssn", "*.email"])) == "Redactor(['ssn', '*.email'])"


secrets = st.text(string.ascii_letters + string.digits + "'\"\\\n é-", min_size=4, max_size=20).map("S3".__add__)
others = st.none() | st.booleans() | st.integers(-99, 99) | st.text("abc {[\"'", max_size=5)


@st.composite
def records_with_secrets(draw):
    """A record, and what stands in its fields `pin` and `*_key`."""
    planted = []

    def secret(_):
        planted.append(draw(secrets))
        return planted[-1]

    names = st.sampled_from(["id", "pin", "a_key", "b_KEY", "Pin", "note"])
    shape = draw(
        st.recursive(
            others,
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.lists(inner, max_size=3).map(tuple)
                | st.dictionaries(names, inner, max_size=4)
            ),
        )
    )

    def plant(node):
        if isinstance(node, dict):
            return {
                key: secret(node) if key.lower() == "pin" or key.lower().endswith("_key") else plant(each)
                for key, each in node.items()
            }
        return type(node)(map(plant, node)) if isinstance(node, list | tuple) else node

    return {"top": plant(shape)}, planted


@given(records_with_secrets(), st.text("ab :'", max_size=10))
def test_no_planted_secret_comes_through(drawn, words):
    record, planted = drawn
    redactor = Redactor(["pin", "*_key"])
    shown = repr(redactor.record(record)) + repr(redactor.record(json.dumps(record)))
    message = words.join([*planted, *map(repr, planted), *map(json.dumps, planted), words])
    told = redactor.text(message, record)
    for secret in planted:
        assert secret not in shown
        assert repr(secret)[1:-1] not in shown
        assert secret not in told


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("  padded77  ", "padded77"),
        ("O'Brien-77x", "'O''Brien-77x'"),
        ("a&b<c77", "a&amp;b&lt;c77"),
        ('say "hi" there', "say &quot;hi&quot; there"),
        ("Ünï-cödé77", "ÜNÏ-CÖDÉ77"),
        (b"bytes77\xff", "b%27bytes77%5Cxff%27"),
        (b"bytes77\xff", r"b'bytes77\\xff'"),
        ("Anna77@Example.com", "anna77@example.com"),
        ("A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A77", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a77"),
        ("{a0eebc999c0b4ef8bb6d6bb9bd380a77}", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a77"),
        ("1977-05-17T10:11:12.5Z", "1977-05-17 10:11:12"),
        (datetime.datetime(1977, 5, 17, 10, 11, 12, 5, datetime.UTC), "1977-05-17 10:11:12+00"),
    ],
)
def test_value_in_another_spelling_is_masked(value, shown):
    text = Redactor(["account"]).text(f"bad value {shown}!", {"account": value})
    assert MASK in text
    assert "77" not in text
    assert "there" not in text


PERSON = {"id": 7, "email": "Anna@X.de", "name": "Ann"}


class TestReportedValues:
    """A database reports values beside their columns, in its own spelling; they are masked by their place."""

    @pytest.mark.parametrize(
        ("message", "shown"),
        [
            ("Key (email)=(<anna>) already exists.", "Key (email)=(***) already exists."),
            ("Key (lower(email))=(<anna>) already exists.", "Key (lower(email))=(***) already exists."),
            ('Key (id, lower("Email"::text))=(7, <a>) already', 'Key (id, lower("Email"::text))=(***) already'),
            ("Key (email)=(a) is b) already exists.", "Key (email)=(***) already exists."),
            ("Key (email)=(a\nb) is not present in table", "Key (email)=(***) is not present in table"),
            (
                "Key (email)=(<a>) conflicts with existing key (email)=(<b>).",
                "Key (email)=(***) conflicts with existing key (email)=(***).",
            ),
            ("Schlüssel »(email)=(<anna>)« existiert bereits.", "Schlüssel »(email)=(***)« existiert bereits."),
            ("the failing row contains (email) = (<anna>).", "the failing row contains (email) = (***)."),
            ("Key (id)=(7) already exists.", "Key (id)=(7) already exists."),
            (
                "Key (id)=(7) is duplicated. Key (email)=(<a>) is duplicated.",
                "Key (id)=(7) is duplicated. Key (email)=(***) is duplicated.",
            ),
            ("Key (contact)=(<anna>) already exists.", "Key (contact)=(***) already exists."),
            ("Failing row contains (7, <anna>, null).", "Failing row contains (***)."),
            ("Failing row contains (7, a).\nb).\nCONTEXT:  COPY t", "Failing row contains (***).\nCONTEXT:  COPY t"),
            ('COPY t, line 1, column email: "<anna>..."', 'COPY t, line 1, column email: "***"'),
            ('COPY t, line 1, column id: "x"', 'COPY t, line 1, column id: "x"'),
            ('COPY t, line 1: "7\t<anna>..."', 'COPY t, line 1: "***"'),
            ('JSON data, line 1: {"email": "<a>...\nHINT:  b', "JSON data, line 1: ***\nHINT:  b"),
            ("unnamed portal with parameters: $1 = '<anna>'", "unnamed portal with parameters: ***"),
            ("unnamed portal parameter $1 = '<anna>'", "unnamed portal parameter $1 = ***"),
            (
                "[parameters: ('<anna> ... (9 characters truncated) ... <b>')]\n(Background on this error",
                "[parameters: ***]\n(Background on this error",
            ),
            ('Duplicate key "email: <anna>" violates unique', 'Duplicate key "***" violates unique'),
            ('Duplicate key "id: 7" violates primary key', 'Duplicate key "id: 7" violates primary key'),
            ('because key "contact: <anna>" does not exist', 'because key "***" does not exist'),
            ("Duplicate entry '<anna>' for key 'person.email'", "Duplicate entry '***' for key 'person.email'"),
            ("Duplicate entry '<it's>' for key 'uq_person'", "Duplicate entry '***' for key 'uq_person'"),
            ("Duplicate entry '7' for key 'person.id'", "Duplicate entry '7' for key 'person.id'"),
            (
                "Incorrect string value: '<\\xF0>' for column 'email' at row 1",
                "Incorrect string value: '***' for column 'email' at row 1",
            ),
            ("The duplicate key value is (<anna>).", "The duplicate key value is (***)."),
            ("Truncated value: '<ann>'.", "Truncated value: '***'."),
            ("row with column values (EMAIL:'<anna>') already", "row with column values (***) already"),
            ('dup key: { email: "<anna>" }, full error: x', "dup key: { *** }, full error: x"),
        ],
    )
    def test_values_of_a_hidden_column_are_masked(self, message, shown):
        text = Redactor(["email"]).text(message, PERSON)
        assert text == shown
        assert "<" not in text
        assert Redactor(["email"]).text(text, PERSON) == text

    def test_values_of_a_record_without_names_are_masked(self):
        assert Redactor(["email"]).text("Key (id)=(8) already exists", "7;Ann") == "Key (id)=(***) already exists"

    def test_values_of_an_unknown_column_are_shown_without_masking(self):
        assert Redactor(["email"]).text("Key (no)=(8) already exists", {"id": 8}) == "Key (no)=(8) already exists"

    def test_values_of_duckdb_are_masked(self):
        with duckdb.connect() as connection:
            connection.execute("create table t (id int primary key, email varchar, unique (email))")
            connection.execute("insert into t values (1, 'anna@x.de')")
            with pytest.raises(duckdb.ConstraintException) as caught:
                connection.execute("insert into t values (2, lower('Anna@X.de'))")
        assert "anna@x.de" in str(caught.value)
        assert "anna@" not in Redactor(["email"]).text(str(caught.value), {"id": 2, "email": " ANNA@x.de"})


STORY = "patient Anna Schmidt has kidney disease and takes lithium since 2019, see the referral of Dr. Braun. " * 4


class TestCutValues:
    """Libraries show the beginning and the end of a long text; what is left of a masked one is masked, too."""

    @pytest.mark.parametrize(
        "message",
        [
            f"invalid literal for int() with base 10: '{STORY[:199]}",
            reprlib.repr(STORY),
            f"too long: {STORY[:90]}... (310 more)",
            f"too long: ...{STORY[-14:]}",
            f"too long: {STORY[:5]}...",
            f"too long: …{STORY[-6:]}",
            f"too long: {STORY[:9]} ... {STORY[-7:]}",
        ],
    )
    def test_cut_values_are_masked(self, message):
        text = Redactor(["story"]).text(message, {"id": 1, "story": STORY})
        assert "***" in text
        assert not any(part in text for part in ("pati", "Anna", "Brau", "aun."))

    def test_longest_matching_start_is_masked(self):
        record = {"story": [STORY, STORY[:40] + "other words", STORY[:30]]}
        assert Redactor(["story"]).text(f"a {STORY[:45]}, b", record) == "a ***, b"
        assert Redactor(["story"]).text(f"a {STORY[:40]}other w, b", record) == "a ***, b"

    def test_credentials_with_the_same_start_are_masked(self):
        record = {"dsn": "postgresql://etl:first-Secret-1@db/lake", "key": "-----BEGIN PRIVATE KEY-----\nMIIabc"}
        message = "no answer of postgresql://etl:other-Secret-2@db/lake\n-----BEGIN PRIVATE KEY-----\nMIIxyzMIIxyz\n"
        shown = Redactor(["dsn", "key"]).text(message, record)
        assert "other-Secret-2" not in shown
        assert "MIIxyz" not in shown

    @pytest.mark.parametrize("message", ["Anna takes lithium", "the patient is new", "kidney disease...", "at..."])
    def test_are_not_searched_in_short_texts(self, message):
        assert Redactor(["story"]).text(message, {"story": STORY}) == message

    def test_values_of_statements_are_masked(self):
        engine = sqlalchemy.create_engine("sqlite://")
        with pytest.raises(sqlalchemy.exc.OperationalError) as caught, engine.begin() as connection:
            connection.execute(sqlalchemy.text("insert into visit values (:story)"), {"story": STORY})
        engine.dispose()
        text = Redactor(["story"]).text(str(caught.value), {"story": STORY})
        assert "no such table: visit" in text
        assert "patient" not in text
        assert "Braun" not in text


def request_with(body, content_type=None):
    return {"method": "POST", "url": "http://bank/x", "content_type": content_type, "body": body}


def part_with(content, headers):
    return f"--b\r\n{headers}\r\n\r\n{content}\r\n--b--\r\n"


PIN = '{"pin": "s3cret"}'
MASKED = '{"pin": "***"}'
FORM = "multipart/form-data; boundary=b"
FIELD = "Content-Disposition: form-data; name=pin"
FILE = 'Content-Disposition: form-data; name="f"; filename="a"'


class TestCallBodies:
    """The body of a request is masked by field, or whole."""

    @pytest.mark.parametrize(
        ("body", "content_type", "shown"),
        [
            (f"{PIN}\n{PIN}\n", "application/x-ndjson", f"{MASKED}\n{MASKED}\n"),
            (f"\ufeff{PIN}", "application/json", f"\ufeff{MASKED}"),
            (PIN.encode("utf-16"), "application/json", MASKED.encode("utf-16")),
            (PIN.encode("utf-16-le").decode(), None, MASKED.encode("utf-16-le").decode()),
            (
                '{"n": "é", "pin": "s3cret"}'.encode("latin-1"),
                "a/json; charset=latin-1",
                b'{"n": "\\u00e9", "pin": "***"}',
            ),
            ('{"pin": "s3cret", "pin": 1}', None, MASKED),
            ("pin=s3cret&a=1", None, "pin=***&a=1"),
            (part_with("s3cret", FIELD), FORM, part_with("***", FIELD)),
            (part_with("s3cret", FIELD.upper()), FORM, part_with("***", FIELD.upper())),
            (part_with(f"{PIN}\n{PIN}", FILE), FORM, part_with(f"{MASKED}\n{MASKED}", FILE)),
            (part_with(PIN, "Content-Type: application/json"), "multipart/mixed; boundary=b", None),
        ],
    )
    def test_readable_body_is_masked_by_field(self, body, content_type, shown):
        redactor, record = Redactor(["pin"]), request_with(body, content_type)
        shown = part_with(MASKED, "Content-Type: application/json") if shown is None else shown
        assert redactor.record(record)["body"] == shown
        assert redactor.text("no s3cret", record) == "no ***"
        assert redactor.can_read(record)

    @pytest.mark.parametrize(
        ("body", "content_type"),
        [
            ('{"pin": "s3cret",}', "application/json"),
            ("<pin>s3cret</pin>", "text/xml"),
            ("pin,a\ns3cret,1", "text/csv"),
            ("s3cret", None),
            ("s3cret==", None),
            ('"s3cret"', "application/json"),
            (b"\x1f\x8bs3cret", "application/json"),
            ("--b\r\npin s3cret\r\n--b--", FORM),
            (part_with("s3cret", FIELD), "multipart/form-data"),
            (part_with("s3cret", FIELD), "multipart/form-data; boundary=other"),
        ],
    )
    def test_unreadable_body_is_masked_whole(self, body, content_type):
        redactor, record = Redactor(["pin"]), request_with(body, content_type)
        unit = "characters" if isinstance(body, str) else "bytes"
        shown = redactor.record(record)["body"]
        assert shown == (f"*** ({len(body)} {unit})" if isinstance(body, str) else f"*** ({len(body)} {unit})".encode())
        assert not redactor.can_read(record)
        assert redactor.can_read(redactor.record(record))

    @pytest.mark.parametrize(
        "headers", [FILE, "Content-Type: text/csv", f"{FIELD}2\r\nContent-Transfer-Encoding: base64"]
    )
    def test_unreadable_part_is_masked_whole(self, headers):
        redactor, record = Redactor(["pin"]), request_with(part_with("a,s3cret", headers), FORM)
        assert redactor.record(record)["body"] == part_with("*** (8 bytes)", headers)
        assert not redactor.can_read(record)

    def test_path_starts_at_the_top_of_a_part(self):
        body = part_with('{"customer": {"pin": "s3cret"}}', FILE)
        shown = Redactor(["customer.pin"]).record(request_with(body, FORM))["body"]
        assert shown == part_with('{"customer": {"pin": "***"}}', FILE)

    def test_values_without_names_are_masked(self):
        assert Redactor(["pin"]).record(request_with('["s3cret", 5]'))["body"] == '["*** (6 characters)", "***"]'

    def test_empty_body_has_nothing_to_mask(self):
        redactor = Redactor(["pin"])
        assert redactor.record(request_with("")) == request_with("")
        assert redactor.can_read(request_with(None))

    def test_ndjson_argument_is_masked_by_field(self):
        call = {"function": "load", "args": [f"{PIN}\n{PIN}"], "kwargs": {}}
        assert Redactor(["pin"]).record(call)["args"] == [f"{MASKED}\n{MASKED}"]
