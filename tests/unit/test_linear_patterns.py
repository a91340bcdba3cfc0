"""No text can hang the program: every pattern, and all masking and shortening, takes linear time."""

from __future__ import annotations

import re

import pytest

from redrive._internal.masking import known_values, mask
from redrive.alerts.delivery.format import safe, safe_line
from redrive.classify.detail import body_detail, shown
from redrive.classify.packs import PACKS
from redrive.classify.tables.types import TEXTS
from redrive.dlq.fingerprint import template
from redrive.dlq.redact import Redactor
from tests.support.patterns import Found, attacks, growth, patterns

pytestmark = pytest.mark.slow

FOUND, BUILT = patterns()
_PATTERNS_OF_CODES = [
    (f"{codes.carrier}:{code}", texts)
    for pack in PACKS
    for codes in pack.codes
    for code, texts in codes.patterns.items()
]
FOUND += [
    Found(f"classify.tables.types:{name}", re.compile(pattern, re.IGNORECASE), frozenset({"search"}))
    for name, texts in [*TEXTS.items(), *_PATTERNS_OF_CODES]
    for pattern, _ in texts
]

# Patterns that see a bounded number of characters, because the function that uses them cuts the text first.
CUT = {"dlq.fingerprint:_TOKEN": 2_000, "dlq.fingerprint:_ADDRESS": 2_000, "rows.sinks.exact.moments": 128}

# Linear is 1 and quadratic is 8; what a loaded machine adds lies between.
SIZES = {"small": 3_000, "large": 24_000, "limit": 6}
MOST = 3.5


def test_patterns_built_at_run_time_are_registered():
    # Escaped names and separators in classes of characters; the tables of drivers and of masks are looked at here.
    assert BUILT == [
        "_internal.masked_errors",
        "_internal.masking.known_values",
        "_internal.masking.patterns",
        "alerts.delivery.message",
        "classify.code_verdict",
        "classify.detail",
        "dlq.message_bodies",
        "dlq.redact",
        "rows.sinks.exact.moments",
        "rows.sinks.sqlite.values",
        "rows.sources.csv.frames",
        "rows.sources.csv.records",
    ]


@pytest.mark.parametrize("found", FOUND, ids=lambda found: found.place)
def test_pattern_is_linear(found):
    most = CUT.get(found.place, CUT.get(found.place.partition(":")[0]))
    run = found.run if most is None else lambda text: found.run(text[:most])
    for make in attacks(found.pattern):
        assert growth(run, make, **SIZES) < MOST, make.__doc__


@pytest.mark.parametrize("slow", [r"(a+)+b", r"""(['"])(?:\\.|(?!\1).)*\1""", r"<[^>]*>", r"\s+$", r"x\w+y"])
def test_slow_pattern_is_noticed(slow):
    found = Found("slow", re.compile(slow), frozenset())
    assert any(growth(found.run, make, **{**SIZES, "limit": 1}) >= MOST for make in attacks(found.pattern))


def repeated(piece, before=""):
    def make(size):
        return before + piece * max(1, size // len(piece))

    make.__doc__ = f"{before!r} + {piece!r} * n"
    return make


TEXTS = [
    *(repeated("\\a", before) for before in ("password='", 'token="', "api_key = '", "(b'token', b'", '{"token": "')),
    *(repeated(f"{name}{quote}\\x3d") for name in ("password=", "key = ", "token: ") for quote in "'\""),
    repeated("cookie:"),
    repeated("cookie:" + "\t" * 50),
    repeated("eyJaaaaaaaa-"),
    repeated("eyJaaaaaaaa.aaaaaaaa-"),
    repeated("4111111111111111 1.5 "),
    repeated("4111 "),
    repeated("4111 1111 1111 1111 1111 1111 1111 "),
    repeated("a://a:a"),
    repeated("a://a:a/a@"),
    repeated("//a:a@"),
    repeated("a:a@a/"),
    repeated("password is "),
    repeated("identified with "),
    repeated("curl "),
    repeated("<password>"),
    repeated("<script"),
    repeated("(" * 10),
    repeated(" "),
    repeated("'"),
    repeated("\\"),
    repeated("\x1b]"),
    repeated("\x1b[0"),
    repeated("-----BEGIN PRIVATE KEY-----"),
    repeated("password = password => "),
    repeated("password $$"),
    repeated("user identified "),
    repeated("set password for "),
    repeated("pwd={}}"),
    repeated("mysql -p"),
    repeated("mysql '\""),
    repeated("'mysql', '-p"),
    *(repeated(piece) for piece in ("'--password', '", '"-u", "a:', "'-p', 'a1", " -Password ", "--user=a:'")),
    repeated("password\n  input_value="),
    repeated("input_value={...", "password\n "),
    *(repeated(piece) for piece in ("(password)=(", '"name": "token", "value": "', '"password": {"value": "')),
    *(repeated(piece) for piece in ('"passwords": [', '"passwords": ["a",', "token%3D", "%3A%2F%2Fa%3A")),
    *(
        repeated(piece)
        for piece in ("[parameters: ", "[SQL: pin=?]\n[parameters: (", "into a(pin) values (", "into a(pin")
    ),
    repeated("('a', ", "into a(password) values "),
    *(repeated(piece) for piece in ("password.a\n  ", "\\npassword.a\\n  ", "input_value=a\npassword\n ")),
    *(repeated(piece) for piece in ("key='password' ", "name='token' value='", "header value '\\", "'--token' '")),
    *(
        repeated(piece)
        for piece in ("lftp -u a,", "sqlplus a/", "userid=a/", "configure set token ", "sqlplus ", "lftp ")
    ),
    *(repeated(piece) for piece in (")=(", "(a)=(", "(card_number)=(a) already exists", "Failing row contains (")),
    *(repeated(piece) for piece in ("Failing row contains (a) HINT: ", 'COPY a, line 1: "', 'key "a: ', "dup key: { ")),
    *(
        repeated(piece)
        for piece in ("Duplicate entry '", "Duplicate entry 'a' for key 'card_number'", "...", "aaaa...")
    ),
    *(repeated(piece) for piece in ("aaaaaaaaaaaa ", 'key "card_number: a" violates ', "JSON data, line 1: ")),
    *(
        repeated(piece)
        for piece in ("password=(", "password={'", "password=['a", '"tokens": {"a": "', "auth=(a, ", "auth=['")
    ),
    *(repeated(piece, "password={") for piece in ("'a", "(", ")", "\\", "\\'", "a'b'", "'a' ", "[{(", "a: b, ")),
    *(repeated(piece, '"password": "') for piece in ("\\\\", '\\"', "\\\\\\'", '\\\\"x')),
    *(
        repeated(piece)
        for piece in ("\\\\", '\\"password\\": \\"', '"loc": ["password"], "input": "', '"name": "token", {')
    ),
    *(
        repeated(piece)
        for piece in ("{'name': 'token', ", "'value': 'a', ", "{'value': {", "'loc': ('a', ", "'input': {'a")
    ),
    *(repeated(piece) for piece in ("password:\n ", "password:\n  - a\n", "- name: token\n", "name: token\n  value: ")),
    *(
        repeated(piece)
        for piece in ("&quot;token&quot;: &quot;", "&amp;quot;", "&quot;", "<td>token</td>", "<td>token</td><td>")
    ),
    *(
        repeated(piece)
        for piece in ("-storepass ", "--a-pass ", "-Dpassword=", "-Da.", "ENV token ", "set -x ", "curl -b ", "-b a=")
    ),
    *(
        repeated(piece)
        for piece in ("set token to '", "a_secret_key '", "SECRET_KEY '", "field 'token': rejected value [")
    ),
    *(
        repeated(piece)
        for piece in ("option 'token' ", "raw value: ", "'token a", "'token a\\n", "a_+://a:a", "_://a@")
    ),
    *(repeated(piece) for piece in ("password: |\n ", "login a password ", "M1" + "a" * 22 + ".", "a1~-8Q~")),
]


@pytest.mark.parametrize(
    "handle",
    [mask, shown, body_detail, safe, lambda text: safe_line(text, 200), template],
    ids=["mask", "shown", "body_detail", "safe", "safe_line", "template"],
)
def test_text_is_handled_in_linear_time(handle):
    for make in TEXTS:
        assert growth(handle, make, **SIZES) < MOST, make.__doc__


KNOWN = [
    *('"' * 30 + "a1b", "'\"" * 15 + "a1", "\\'" * 15 + "a1", "%25" * 10 + "a1", "&amp;" * 6 + "a1", " +" * 15 + "a1"),
    *("a" * 39 + "b1cd", "aaaab1cd" * 5, "\r\n" * 15 + "a1b", "\\u0022" * 5 + "a1", "+/" * 12 + "a1b"),
]


@pytest.mark.parametrize("value", KNOWN)
def test_known_value_is_found_in_linear_time(value, monkeypatch):
    for kind in ("_keys", "_learned", "_registered"):
        monkeypatch.setattr(known_values, kind, {})
    assert known_values.mask_value(value)
    pieces = [value, value[:-1], value[0], value[:2], value[0] + "\\", "\\", "\\\\'", "%25", "%5C", "&amp;", "'\"'\"'"]
    for piece in pieces:
        for before in ("", value[:10], value + value[:-1]):
            assert growth(known_values.mask_known, repeated(piece, before), **SIZES) < MOST, piece


def test_record_is_redacted_in_linear_time():
    redactor = Redactor(["card_number", "*.ssn", "*_token"])

    def handle(text):
        redactor.text(text, {"card_number": text[:20], "note": text, text: 1})

    for make in TEXTS:
        assert growth(handle, make, **SIZES) < MOST, make.__doc__
