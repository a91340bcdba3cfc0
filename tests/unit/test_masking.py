"""Nothing secret is ever shown."""

from __future__ import annotations

import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from redrive.masking import MASK, last_four, mask

SHAPES = [
    "Authorization: Bearer {}",
    "authorization: basic {}",
    "https://etl:{}@db.example.com/lake",
    "postgresql://:{}@db/lake",
    "GET https://api.example.com/v1?api_key={}&page=2",
    "https://maps.example.com/?key={}",
    "host=db user=etl password={} dbname=lake",
    "password='{}'",
    'token="{}" ',
    "aws_secret_access_key={}",
    "refreshToken={}",
    "X-Amz-Signature={}&X-Amz-Date=1",
    '{{"api_key": "{}", "page": 2}}',
    '{{"accessToken":"{}"}}',
    "{{'client_secret': '{}'}}",
    '{{"message": "{{\\"password\\": \\"{}\\"}}"}}',
    "X-Api-Key: {}",
    'cut off: {{"password": "{}',
]

secrets = st.text(string.ascii_letters + string.digits + "-_", min_size=12, max_size=60).filter(
    lambda secret: MASK not in secret and not any(secret in shape for shape in SHAPES)
)


# Whatever stands before a secret, pieces of other shapes above all, must not hide it from us.
pieces = st.sampled_from(
    [
        "bearer",
        "Basic",
        "digest",
        "apikey",
        "password=",
        "token:",
        "key",
        "secret ",
        "https://",
        "x-api-key",
        "\n",
        "'",
        '"',
    ]
)
contexts = st.lists(pieces | st.text(string.printable, max_size=8), max_size=5).map("".join)


@pytest.mark.parametrize("shape", SHAPES)
@given(secret=secrets, before=contexts)
def test_a_planted_secret_does_not_come_through(shape, secret, before):
    assume(secret not in before)
    assert secret not in mask(before + "\n" + shape.format(secret))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("word", ["Bearer", "BASIC", "digest", "apikey"])
@pytest.mark.parametrize("gap", [" ", "\n", " \n ", "\r\n"])
def test_a_word_that_announces_a_secret_does_not_hide_the_name_of_the_next(shape, word, gap):
    secret = "hunter2-hunter2"
    assert secret not in mask(word + gap + shape.format(secret))


@pytest.mark.parametrize(
    "token",
    [
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
        "AKIAIOSFODNN7EXAMPLE",
        "AIzaSyA1234567890abcdefghijklmnopqrstuv",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "sk-proj-abcdefghijklmnopqrst",
        "xoxb-123456789012-abcdefgh",
        "glpat-abcdefghijklmnopqrst",
    ],
)
def test_a_token_known_by_its_shape_is_masked_in_plain_words(token):
    assert mask(f"Incorrect key provided: {token}.") == f"Incorrect key provided: {MASK}."
    assert mask(f"refused {token}") == f"refused {MASK}"


def test_a_private_key_is_masked_to_its_end():
    text = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEI\n-----END EC PRIVATE KEY-----\nafter"
    assert "MHcCAQEEI" not in mask(text)
    assert mask(text).endswith("\nafter")
    assert "MHcCAQEEI" not in mask(text.partition("-----END")[0])


@pytest.mark.parametrize(
    "text",
    [
        "Key (id)=(5) already exists.",
        "source_key=123 sort_key=9",
        "max_tokens=5",
        "password: field required",
        "fee: Input should be a valid number",
        "see https://example.com/docs?page=2",
        "mail to etl@example.com",
        'connection to server at "127.0.0.1", port 5432 failed',
    ],
)
def test_what_is_no_secret_stays_readable(text):
    assert mask(text) == text


def test_what_stands_around_a_secret_stays_readable():
    assert mask("GET /v1?api_key=abc&page=2") == f"GET /v1?api_key={MASK}&page=2"
    assert mask("postgresql://etl:hunter2@db/lake") == f"postgresql://etl:{MASK}@db/lake"
    assert mask('{"password": "a\\"b", "page": 2}') == f'{{"password": "{MASK}", "page": 2}}'


@given(st.text(max_size=300))
def test_masking_twice_changes_nothing_more(text):
    assert mask(mask(text)) == mask(text)


def test_of_a_key_the_last_four_characters_may_be_shown():
    assert last_four("sk-abcdef1234") == "1234"


@pytest.mark.parametrize(
    "text",
    [
        "github_pat_11ABCDEFG0123456789abcdef",
        "ſecret=hunter2hunter2",
        "paſſword='hunter2hunter2'",
        "sıgnature=hunter2hunter2",
    ],
)
def test_the_cheap_look_that_comes_first_misses_nothing(text):
    assert "hunter2" not in mask(text)
    assert "11ABCDEFG" not in mask(text)
