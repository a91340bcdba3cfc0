"""Values that the process knows to be secret do not come through, whatever the text's form."""

from __future__ import annotations

import base64
import contextlib
import html
import json
import shlex
import string
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive._internal.database_url import parse_url
from redrive._internal.masking import MASK, known_values, mask, mask_all, mask_bytes, mask_end, mask_start, remember
from redrive._internal.masking.known_values import is_distinctive
from redrive.config import settings
from redrive.observe import mask_value
from redrive.tasks.workers.output import OutputCollector

SECRET = "Zq8vTr4nLw2x"


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch):
    """Forget all values before and after a test."""
    for name in ("_keys", "_learned", "_registered", "_environment"):
        monkeypatch.setattr(known_values, name, {})


values = (st.text(string.printable, min_size=8, max_size=40) | st.text(min_size=8, max_size=30)).filter(
    lambda value: is_distinctive(value) and MASK not in value and value.isprintable()
)

# Each gives a text, and what of it must not be shown: the value as this text has it.
FORMS = {
    "as it is": lambda value: value,
    "repr": lambda value: repr(value)[1:-1],
    "repr with both quotes": lambda value: repr(f"'\"{value}")[4:-1],
    "ascii": lambda value: ascii(value)[1:-1],
    "bytes": lambda value: repr(value.encode())[2:-1],
    "JSON": lambda value: json.dumps(value)[1:-1],
    "JSON of any character": lambda value: json.dumps(value, ensure_ascii=False)[1:-1],
    "JSON with escaped slashes": lambda value: json.dumps(value)[1:-1].replace("/", "\\/"),
    "JSON in JSON": lambda value: json.dumps(json.dumps(value))[3:-3],
    "JSON in JSON in JSON": lambda value: json.dumps(json.dumps(json.dumps(value)))[7:-7],
    "repr of JSON": lambda value: repr("'" + json.dumps(value))[3:-2],
    "repr of repr": lambda value: repr(repr(value))[2:-2],
    "URL": lambda value: quote(value, safe=""),
    "path of a URL": quote,
    "form": quote_plus,
    "form in a form": lambda value: quote_plus(quote_plus(value)),
    "lower-case URL": lambda value: quote(value, safe="").replace("%2F", "%2f").replace("%3A", "%3a"),
    "URL of a browser": lambda value: quote(value, safe="!*'()"),
    "HTML": html.escape,
    "HTML in HTML": lambda value: html.escape(html.escape(value)),
    "JSON in HTML": lambda value: html.escape(json.dumps(value)[1:-1]),
    "SQL": lambda value: value.replace("'", "''"),
    "shell": lambda value: shlex.quote("'" + value)[6:-1],
}


class TestForms:
    @pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
    @given(value=values, before=st.text(string.printable, max_size=20), after=st.text(string.printable, max_size=20))
    def test_registered_value_is_masked(self, form, value, before, after):
        assert mask_value(value)
        shown = form(value)
        # What is within the form of another text is escaped with it.
        before, after = (part.replace("\\", "").replace("%", "") for part in (before, after))
        masked = mask(f"{before}{shown}{after}")
        assert shown not in masked
        assert value not in masked
        assert MASK in masked
        assert value not in str(mask_all({"note": [shown, {value: 1}]}))

    @given(value=values, before=st.binary(max_size=5), after=st.binary(max_size=5))
    def test_base64_of_a_registered_value_is_masked(self, value, before, after):
        mask_value(value)
        data = before + value.encode() + after
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            text = encode(data).decode()
            masked = mask(f"got {text};")
            assert text not in masked
            # Of the value, no more than the characters at its ends stay, which others share.
            assert len(masked) < len(f"got {text};") - len(value) * 4 // 3 + 3 + len(MASK)

    @given(value=values)
    def test_colours_within_a_value_do_not_hide_it(self, value):
        mask_value(value)
        assert value[4:] not in mask(f"{value[:4]}\x1b[0m{value[4:]}")

    @pytest.mark.parametrize(
        "value", ['"\\"\\"a1b2', "\\\\é\\\n1", "a\\u0022bc1", "%25%2525ab1", "&amp;&ab1x", "\xadab12cd34"]
    )
    def test_value_that_looks_escaped_is_masked(self, value):
        assert mask_value(value)
        for form in FORMS.values():
            assert form(value) not in mask(f"é{form(value)}")

    def test_overlapping_values_are_masked_together(self):
        assert all(map(mask_value, ["abcd1234efgh", "efgh5678ijkl", "1234efgh"]))
        assert mask("x abcd1234efgh5678ijkl y 1234efgh") == f"x {MASK} y {MASK}"

    def test_basic_credentials_with_the_value_are_masked(self):
        mask_value(SECRET)
        header = base64.b64encode(f"etl:{SECRET}".encode()).decode()
        assert header[8:-4] not in mask(f"sent {header}")

    def test_lines_of_a_long_value_are_masked_one_by_one(self):
        lines = [f"MII{number:02}{SECRET * 4}" for number in range(30)]
        mask_value("-----BEGIN KEY-----\n" + "\n".join(lines))
        assert mask(f"read {lines[7]}") == f"read {MASK}"

    def test_very_long_value_is_masked_whole(self):
        value = "".join(f"{number:x}." for number in range(4_000))
        mask_value(value)
        assert mask(f"({value})") == f"({MASK})"


class TestPlaces:
    def test_value_across_a_cut_is_not_shown(self):
        mask_value(SECRET)
        text = "." * 700 + SECRET + "." * 700
        for at in range(690, 720):
            for shown in (mask_start(text, at), mask_end(text, at)):
                assert not any(SECRET[part : part + 5] in shown for part in range(len(SECRET) - 4))

    def test_output_of_a_task_is_masked(self):
        mask_value(SECRET)
        output = OutputCollector()
        output.add(f"connecting with {SECRET}\n".encode())
        assert output.text() == f"connecting with {MASK}\n"

    def test_documents_are_masked(self):
        mask_value(SECRET)
        mask_value("1234567890")
        document = {"note": SECRET, SECRET: 1, "n": 1234567890, 1234567890: 2, "b": SECRET.encode()}
        assert mask_all(document) == {"note": MASK, MASK: 2, "n": MASK, "b": MASK}
        assert mask_bytes(SECRET.encode()) == MASK


class TestDistinctive:
    @pytest.mark.parametrize(
        "value",
        [
            *("short1", "abcdef", "1234567", "orders", "customer", "warehouse", "a-key-1", "********", "00000000", ""),
            *("x" * 40, "/etc/redrive/key.pem", "/var/run/secrets/token1", "~/.ssh/id_rsa", "./keys/a1.pem", "../x1/y"),
            "C:\\keys\\a1.pem",
        ],
    )
    def test_common_value_is_not_masked(self, value):
        assert not mask_value(value)
        assert mask(f"see {value} here") == f"see {value} here"

    @pytest.mark.parametrize(
        "value", ["aB3$xy", "Ab1xyz", "12345678", "correct-horse", "correcthorsebattery", b"Zq8vTr4nLw2x"]
    )
    def test_other_value_is_masked(self, value):
        text = value.decode() if isinstance(value, bytes) else value
        assert mask_value(value)
        assert mask(f"see {text} here") == f"see {MASK} here"

    def test_of_very_many_values_the_latest_are_masked(self):
        for number in range(1_100):
            mask_value(f"many-of-them-{number:04}")
        assert mask("many-of-them-1099 many-of-them-0000") == f"{MASK} many-of-them-0000"


class TestKeys:
    def test_last_four_characters_of_a_key_stay(self):
        remember("plain-as-can-be-0123")
        assert mask("the key plain-as-can-be-0123 is refused") == f"the key {MASK}0123 is refused"

    def test_key_is_shown_the_same_when_the_environment_has_it(self, monkeypatch):
        monkeypatch.setenv("VENDOR_API_KEY", "plain-as-can-be-0123")
        remember("plain-as-can-be-0123")
        assert mask("plain-as-can-be-0123") == f"{MASK}0123"

    @pytest.mark.parametrize("word", ["orders", "customer", "a-key-1"])
    def test_common_text_is_not_remembered(self, word):
        remember(word)
        assert mask(f"see {word}") == f"see {word}"

    def test_key_that_no_url_can_hold_is_remembered(self):
        remember("half-a-character-\udc80")
        assert mask("see half-a-character-\udc80") == f"see {MASK}er-\udc80"

    def test_of_very_many_keys_the_latest_are_remembered(self):
        for number in range(1_000):
            remember(f"many-of-them-{number:04}")
        assert mask("many-of-them-0999") == f"{MASK}0999"
        assert mask("many-of-them-0000") == "many-of-them-0000"


class TestEnvironment:
    @pytest.mark.parametrize(
        "name",
        [
            *(
                "DB_PASSWORD",
                "PGPASSWORD",
                "MYSQL_PWD",
                "SMTP_PASS",
                "my_secret",
                "GH_TOKEN",
                "VENDOR_API_KEY",
                "APIKEY",
            ),
            *("VAULT_SECRET_ID", "SNOWFLAKE_PASSPHRASE", "REDIS_AUTH"),
        ],
    )
    def test_value_of_a_secret_variable_is_masked(self, monkeypatch, name):
        monkeypatch.setenv(name, SECRET)
        assert mask(f"it is {SECRET}") == f"it is {MASK}"

    @pytest.mark.parametrize(
        ("name", "value", "secret"),
        [
            ("STRIPE_KEY", f"{SECRET}abcd", f"{SECRET}abcd"),
            ("API_KEYS", f"{SECRET}abcd,{SECRET}efgh", f"{SECRET}efgh"),
            ("GOOGLE_CREDENTIALS", json.dumps({"type": "service", "private_key": SECRET}), SECRET),
            ("REDIS_AUTH", f"etl:{SECRET}", SECRET),
            ("DATABASE_URL", f"postgresql://etl:{SECRET}@db/lake", SECRET),
            ("AIRFLOW__CORE__SQL_ALCHEMY_CONN", f"postgresql+psycopg2://etl:{SECRET}@db/lake", SECRET),
            ("BROKER", f"amqp://etl:p/{SECRET}@mq:5672/v", f"p/{SECRET}"),
            ("PROXY", f"http://etl:{quote('@' + SECRET)}@proxy:3128", f"@{SECRET}"),
            ("REDRIVE_STORE", f"postgresql://etl:{SECRET}@db/lake", SECRET),
            ("BLOB", f"Protocol=https;AccountName=a;AccountKey={SECRET}==;EndpointSuffix=x", f"{SECRET}=="),
            ("DSN", f"host=db user=etl password={SECRET} dbname=lake", SECRET),
            ("DB_PASSWORD", "12345678", "12345678"),
        ],
    )
    def test_secret_within_a_variable_is_masked(self, monkeypatch, name, value, secret):
        monkeypatch.setenv(name, value)
        assert mask(f"it is {secret}") == f"it is {MASK}"

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("TOKEN_URL", "https://auth.example.com/oauth/token1"),
            ("DB_PASSWORD_FILE", "/run/secrets/db_password1"),
            ("SSL_KEY", "/data/ssl/server.key"),
            ("SECRET_NAME", "prod/lake/writer1"),
            ("TOKEN_TTL", "86400000"),
            ("TOKEN_LIMITS", "86400000"),
            ("SORT_KEY", "customer_id"),
            ("PARTITION_KEY", "order_date_2024"),
            ("PWD", "/somewhere/else1"),
            ("DB_PASSWORD", "$OTHER_PASSWORD1"),
            ("DB_PASSWORD", "postgres"),
            ("API_SECRET", "arn:aws:secretsmanager:eu-central-1:123456789012:secret:lake"),
            ("USERNAME", "etl-writer-1"),
            ("ENDPOINT", "https://example.com:8443/path?mail=etl@example.com"),
        ],
    )
    def test_value_of_another_variable_stays(self, monkeypatch, name, value):
        monkeypatch.setenv(name, value)
        mask("look at the environment")
        assert value not in known_values._learned
        assert "8443/path?mail=etl" not in known_values._learned

    def test_variable_that_is_unset_stays_secret(self, monkeypatch):
        monkeypatch.setenv("DB_PASSWORD", SECRET)
        assert mask(SECRET) == MASK
        monkeypatch.delenv("DB_PASSWORD")
        assert mask(SECRET) == MASK

    def test_variable_that_changes_is_seen_at_once(self, monkeypatch):
        monkeypatch.setenv("DB_PASSWORD", SECRET)
        assert mask(SECRET) == MASK
        monkeypatch.setenv("DB_PASSWORD", SECRET[::-1])
        assert mask(SECRET + SECRET[::-1]) == MASK


class TestSettings:
    def test_password_of_a_url_in_the_file_is_masked(self, tmp_path):
        tmp_path.joinpath("redrive.toml").write_text(f'[store]\nurl = "postgresql://etl:{SECRET}@db/lake"\n')
        settings.load(directory=tmp_path, environ={})
        assert mask(f"login failed for {SECRET}") == f"login failed for {MASK}"

    def test_password_of_a_url_with_a_variable_is_masked(self, tmp_path):
        tmp_path.joinpath("redrive.toml").write_text('[store]\nurl = "postgresql://etl:$WORD@db/lake"\n')
        settings.load(directory=tmp_path, environ={"WORD": f"@{SECRET}"})
        assert mask(f"login failed for @{SECRET}, %40{SECRET}") == f"login failed for {MASK}, {MASK}"

    def test_key_in_the_address_of_a_channel_is_masked(self, tmp_path):
        from redrive.alerts.config.read import read

        address = f"https://hooks.example.com/x/T01234567/{SECRET}abcdefgh"
        tmp_path.joinpath("redrive.toml").write_text('[channels.team]\nslack = "$HOOK"\n[routes]\nP1 = ["team"]\n')
        read(settings.load(directory=tmp_path, environ={"HOOK": address}))
        assert mask(f"no such hook: {SECRET}abcdefgh") == f"no such hook: {MASK}"

    @pytest.mark.parametrize("url", [f"postgresql://etl:{SECRET}@db/lake", f"postgresql://etl:p@{SECRET}@db/lake"])
    def test_password_of_a_database_url_is_masked(self, url):
        with contextlib.suppress(ValueError):
            parse_url(url, "the URL", "postgresql://…")
        assert SECRET not in mask(f"login failed: p@{SECRET}, {SECRET if 'p@' not in url else ''}")
