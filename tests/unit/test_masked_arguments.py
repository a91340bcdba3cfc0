"""Secrets in commands passed as lists, and in values that are apart from the name of their field."""

from __future__ import annotations

import json
import subprocess

import pytest

from redrive._internal.masking import MASK, mask, mask_all, mask_bytes

SECRET = "Zq8vTr4nLw2x"

COMMANDS = [
    ["tool", "--password", SECRET],
    ["tool", "--db-password", SECRET, "--verbose"],
    ["tool", "--token", SECRET],
    ["tool", "--api-key", SECRET, "x"],
    ["tool", "--client-secret", SECRET],
    ["tool", "-Password", SECRET],
    ["tool", "-p", SECRET],
    ["curl", "-u", f"admin:{SECRET}", "https://example.com"],
    ["curl", "-sSu", f"admin:{SECRET}"],
    ["tool", "--user", f"admin:{SECRET}"],
    ["tool", f"--user=admin:{SECRET}"],
    ["smbclient", "-U", f"admin%{SECRET}"],
    ["tool", "--password", f"it's {SECRET}"],
    ["tool", "--password", f'a"b {SECRET}'],
    ["lftp", "-u", f"etl,{SECRET}", "sftp://host"],
    ["sqlplus", "-s", f"etl/{SECRET}@ORCL", "@load.sql"],
    ["impdp", f"userid=etl/{SECRET}@orcl", "dumpfile=x"],
    ["openssl", "pkcs12", "-in", "x", "-passin", f"pass:{SECRET}"],
    ["aws", "configure", "set", "aws_secret_access_key", SECRET],
]


class TestCommandAsList:
    @pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
    @pytest.mark.parametrize(
        "show",
        [
            lambda command: str(subprocess.CalledProcessError(1, command)),
            lambda command: str(subprocess.TimeoutExpired(command, 3)),
            lambda command: repr(tuple(command)),
            lambda command: repr([word.encode() for word in command]),
            json.dumps,
            lambda command: json.dumps(command, indent=2),
            lambda command: json.dumps({"argv": json.dumps(command)}),
            lambda command: json.dumps(command, separators=(",", ":")),
        ],
    )
    def test_secret_in_a_text_is_masked(self, command, show):
        shown = mask(show(command))
        assert SECRET not in shown
        assert MASK in shown
        assert mask(shown) == shown

    @pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
    def test_secret_in_a_record_is_masked(self, command):
        for record in ({"args": command}, [command], {"args": {"$tuple": command}}):
            assert SECRET not in json.dumps(mask_all(record))

    def test_error_keeps_its_other_arguments(self):
        error = subprocess.CalledProcessError(1, ["tool", "--password", SECRET, "--fast"])
        assert (
            mask(str(error)) == f"Command '['tool', '--password', '{MASK}', '--fast']' returned non-zero exit status 1."
        )

    @pytest.mark.parametrize(
        "command",
        [
            ["tool", "--password", "--verbose"],
            ["tool", "--token"],
            ["ssh", "-p", "2222", "db"],
            ["mkdir", "-p", "/srv/data2"],
            ["docker", "run", "-p", "8080:80", "web1"],
            ["docker", "run", "-p", "localhost1:8080:80"],
            ["docker", "run", "-u", "1000:1000", "web"],
            ["curl", "-u", "https://example.com"],
            ["redrive", "dlq", "ls", "--key", "D-00000017"],
            ["api_key", "city"],
        ],
        ids=" ".join,
    )
    def test_command_without_a_secret_stays(self, command):
        assert mask(str(command)) == str(command)
        assert mask_all(command) == command

    def test_quoted_arguments_of_a_shell_are_masked(self):
        assert mask(f"'--password' '{SECRET}' 'x'") == f"'--password' '{MASK}' 'x'"
        assert mask("the options '--password' '--token' exist") == "the options '--password' '--token' exist"

    @pytest.mark.parametrize("command", [["sshpass", "-p", f"a {SECRET}"], ["mysql", f"-p{SECRET}"]], ids=" ".join)
    def test_password_of_a_known_program_in_a_record_is_masked(self, command):
        assert SECRET not in json.dumps(mask_all({"args": command}))

    def test_option_of_powershell_is_masked(self):
        assert mask(f'run -Password {SECRET} -ApiKey "{SECRET}"') == f"run -Password {MASK} -ApiKey {MASK}"


class TestPydanticError:
    def test_input_of_a_secret_field_is_masked(self):
        pydantic = pytest.importorskip("pydantic")

        class Login(pydantic.BaseModel):
            password: int
            api_key: int
            fee: int

        with pytest.raises(pydantic.ValidationError) as error:
            Login(password=SECRET, api_key=SECRET, fee="N/A")
        for text in (str(error.value), repr(str(error.value))):
            shown = mask(text)
            assert SECRET not in shown
            assert "input_value='N/A'" in shown or "N/A" in shown
            assert shown.count(f"input_value={MASK}") == 2

    def test_rest_of_a_cut_input_is_masked(self):
        value = "{'host': 'db.exa...8vTr4nLw2xKp7', 'fee': 1}"
        shown = mask(f"port\n  Field required [type=missing, input_value={value}, input_type=dict]")
        assert "8vTr4nLw2xKp7" not in shown
        assert "'fee': 1}" in shown

    def test_message_that_contains_the_input_is_masked(self):
        text = f"password\n  Value error, weak: {SECRET} [type=value_error, input_value='{SECRET}', input_type=str]"
        assert SECRET not in mask(text)

    @pytest.mark.parametrize(
        "location",
        [
            "password.int",
            "api_key.literal['a']",
            "tokens.0",
            "api_keys.prod",
            "secrets.x",
            "db.credentials.x",
            "password.function-after[<lambda>(), int]",
        ],
    )
    def test_location_that_continues_behind_the_name_is_masked(self, location):
        error = f"Input should be a valid integer [type=int_type, input_value='{SECRET}', input_type=str]"
        for text in (f"1 validation error for M\n{location}\n  {error}", f"ValidationError: {location}\n  {error}"):
            for shown in (mask(text), mask(repr(text))):
                assert SECRET not in shown
                assert f"input_value={MASK}" in shown

    def test_key_of_a_secret_mapping_is_masked(self):
        text = f"password.{SECRET}.[key]\n  Not an integer [type=int_type, input_value='{SECRET}', input_type=str]"
        assert SECRET not in mask(text)

    def test_error_of_another_field_beside_a_secret_stays(self):
        text = "password\n\nfee\n  Not a number [type=int_type, input_value='N/A', input_type=str]"
        assert mask(text) == text

    def test_field_of_another_name_stays(self):
        text = "fee\n  Input should be a valid integer [type=int_parsing, input_value='N/A', input_type=str]"
        assert mask(text) == text


class TestField:
    @pytest.mark.parametrize(
        "text",
        [
            "DB_PW={}",
            "pw={}",
            "pin={}",
            "otp={}",
            "cvv: 'ab{}'",
            "signing_key={}",
            "SLACK_SIGNING_SECRET={}",
            "master_key={}",
            "encryption_key: {}",
            "pass-phrase={}",
            "secret key: {}",
            "api key: {}",
            "access key = {}",
            '{{"userPwd": "{}"}}',
            '{{"masterKey": "{}"}}',
            '{{"passwords": ["{}", "b"]}}',
            '{{"passwords": ["a", "{}"]}}',
            '{{"password": {{"value": "{}"}}}}',
            '[{{"name": "X-Api-Key", "value": "{}"}}]',
            "[{{'key': 'Authorization', 'value': '{}'}}]",
            "DETAIL:  Key (password)=({}) already exists.",
            'DETAIL:  Key (tenant, "api_key")=(7, {}) is not present in table "t".',
            "redirect=https%3A%2F%2Fx%2Fcb%3Faccess_token%3D{}%26a%3D1",
            "redirect=https%3A%2F%2Fx%2Fcb%3Fkey%3D{}",
            "next=https%253A%252F%252Fx%252F%253Ftoken%253D{}%2526a%253D1",
            "proxy=http%3A%2F%2Fu%3A{}%40proxy%3A3128",
            "User(password=SecretStr('{}'))",
            "User(password=b'{}')",
            "{{'password': b'{}'}}",
            "{{'api_key': SecretStr('{}')}}",
            "password is {}",
            "machine example.com login etl password {}",
            "password: |\n  {}\nuser: x",
            "Incorrect API key provided: {}",
            "token: {}: invalid",
            "api_key: {}: unauthorized",
            "password: {}: x",
            "X-Api-Key: {}: refused",
            "Authorization: Token {}: refused",
            "Bearer {}: refused",
            "PASSWORD:\t{}",
            "password:\t'{}'",
            '<add key="Password" value="{}"/>',
            "<property name='db.password' value='{}' />",
            "or return character(s) in header value: '{}\\n'",
            "Invalid header value b'{}\\r\\n'",
            "failed to connect: postgres//etl:{}@db/lake",
            "fernet_key={}",
            "AIRFLOW__CORE__FERNET_KEY={}",
            "password2={}",
            "pwd1: {}",
            "mfa_code={}",
            "jwt={}",
            "bearer={}",
            "Invalid type for parameter MasterUserPassword, value: ['{}'], type: <class 'list'>",
            "failed to resolve host '{}@127.0.0.1': [Errno -2] Name or service not known",
            "nonnumeric port: '{}@127.0.0.1'",
            "Failed to parse: 'etl:{}' is not a valid host or port",
            "Invalid port: '{}'",
            "nonnumeric port: '{}'",
            "Port could not be cast to integer value as '{}'",
            "URL can't contain control characters. 'etl:{} more@127.0.0.1' (found at least ' ')",
            "URL can't contain control characters. 'etl:more {}@127.0.0.1' (found at least ' ')",
            'unexpected spaces found in "{} more", use percent-encoded spaces (%20) instead',
            'unexpected spaces found in "more {}", use percent-encoded spaces (%20) instead',
            'missing "=" after "{}" in connection info string',
            'invalid percent-encoded token: "{}%zz"',
            'forbidden value %00 in percent-encoded value: "{}%00"',
            'invalid integer value "{}" for connection option "port"',
            "SplitResult(scheme='sftp', netloc='etl:{}@h', path='/x', query='', fragment='')",
            "<password><![CDATA[{}]]></password>",
            "&lt;password&gt;{}&lt;/password&gt;",
            '{{\\\\\\"password\\\\\\":\\\\\\"{}\\\\\\"}}',
            "body=%7B%22password%22%3A%22{}%22%7D",
            "password\\u003d{}&x=1",
            "password := {}",
            "auth: ['etl', '{}']",
            "HTTPBasicAuth('etl', '{}')",
        ],
    )
    def test_secret_is_masked(self, text):
        shown = mask(text.format(SECRET))
        assert SECRET not in shown
        assert mask(shown) == shown

    @pytest.mark.parametrize(
        "text",
        [
            "Key (id)=(5) already exists.",
            "Key (email, tenant)=(a@b, 7) already exists.",
            '{"password": ["This field is required."]}',
            '{"tokens": ["one", "two"]}',
            '{"name": "city", "value": "Bern"}',
            "shipping=12345678, pin_count=3, mapping: 12345678",
            "primary key: 12345678",
            "the password is too short",
            "url=https%3A%2F%2Fexample.com%2F%3Fpage%3D2",
            "/lake/orders/dt=2026-01-01/key=7/part-0001.parquet not found",
            "C:\\data\\key=1\\x.csv",
            "NoSuchKey: Key=in/2026/a.csv",
            "PWD=/home/etl",
            "OLDPWD=/tmp",
            "has_password=False",
            "auth=none",
            "next_page_token=CAUQAA",
            "continuation_token=17",
            "Basic rate missing",
            "Invalid type for parameter Name, value: 7, type: <class 'int'>",
            "nonnumeric port: 'abc'",
            "Invalid port: '70000'",
            "Failed to parse: 'db.example.com:99999' is not a valid host or port",
            "Failed to parse: '2026-13-01'",
            'invalid integer value "fast" for connection option "connect_timeout"',
            "support: 'open'",
            "auth: ['one'] of [2]",
            "n := 5",
            "update users set password=? where token = :token_1 and secret=%(secret)s",
        ],
    )
    def test_other_text_stays(self, text):
        assert mask(text) == text


PLACEHOLDERS = "INSERT INTO users (id, password) VALUES (?, ?)"


class TestStatement:
    @pytest.mark.parametrize(
        ("sql", "parameters"),
        [
            ("update users set password=? where id = ?", f"('{SECRET}', 5)"),
            (PLACEHOLDERS, f"(1, '{SECRET}')"),
            (PLACEHOLDERS, f"[(1, '{SECRET}'), (2, 'a]\\n{SECRET}')]"),
            ("insert into t(api_key) values (:api_key)", f"{{'api_key': '{SECRET}'}}"),
            ('UPDATE t SET "token"=%(b)s,\n x=1', f"{{'b': '{SECRET}'}}"),
        ],
    )
    def test_parameters_of_a_secret_column_are_masked(self, sql, parameters):
        text = f"(sqlite3.Error) no table\n[SQL: {sql}]\n[parameters: {parameters}]\n(Background on this error at: x)"
        assert mask(text) == text.replace(parameters, MASK)
        assert SECRET not in mask(repr(text))

    def test_parameters_of_other_columns_stay(self):
        text = "[SQL: insert into t(id, sort_key) values (?, ?)]\n[parameters: (1, 'abc')]\n(Background on this error)"
        assert mask(text) == text

    def test_each_statement_is_masked_independently(self):
        text = f"[SQL: set pin=?]\n[parameters: ('{SECRET}',)]\n[SQL: select ?]\n[parameters: ('a',)]"
        assert mask(text) == text.replace(f"('{SECRET}',)", MASK)

    @pytest.mark.parametrize("values", ["(1,'{}')", "(1, 'it''s {}'), (2, 'b')", "(1, upper('{}'))", "(?, 'cut off {}"])
    def test_literals_of_an_insert_are_masked(self, values):
        shown = mask(f"[SQL: insert into users(id,password) values{values.format(SECRET)}")
        assert SECRET not in shown
        assert mask(shown) == shown

    def test_literals_of_other_columns_stay(self):
        text = "insert into users(id, name) values (1, 'bob')"
        assert mask(text) == text


class TestDocument:
    @pytest.mark.parametrize(
        "document",
        [
            {"passwords": [SECRET, "b"]},
            {"api_keys": {"$tuple": [SECRET]}},
            {"password": {"value": SECRET}},
            {"password": {"$bytes": "WnE4dlRyNG5MdzJ4"}},
            {"password": [SECRET]},
            {"headers": [["X-Api-Key", SECRET]]},
            {"headers": [{"$tuple": ["X-Api-Key", SECRET]}]},
            {"headers": [{"name": "X-Api-Key", "value": SECRET}]},
            {"$map": [["password", SECRET]]},
            {"$map": [[{"$bytes": "cGFzc3dvcmQ="}, SECRET]]},
            {"userPwd": SECRET},
        ],
        ids=json.dumps,
    )
    def test_secret_is_masked(self, document):
        shown = json.dumps(mask_all(document))
        assert SECRET not in shown
        assert "WnE4dlRyNG5MdzJ4" not in shown
        assert MASK in shown

    @pytest.mark.parametrize(("name", "number"), [("pin", 1234), ("cvv", 123), ("password", 12345678)])
    def test_number_is_masked(self, name, number):
        assert mask_all({name: number}) == {name: MASK}

    @pytest.mark.parametrize(
        "document",
        [
            {"authorization": {"status": "declined", "amount": 5}},
            {"max_token": 5, "token": 7},
            {"tokens": ["one", "two"]},
            {"columns": ["password", "city"]},
            {"raw": {"$bytes": "/w=="}},
            {"name": "city", "value": "Bern"},
            {"pass": "yes", "signature": "J. Doe", "cookie": "choc"},
            {"next_page_token": "CAUQAA"},
            ["zip", "-r", "out.zip", "in"],
        ],
        ids=json.dumps,
    )
    def test_other_value_stays(self, document):
        assert mask_all(document) == document


class TestBytes:
    @pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
    def test_text_with_a_secret_is_shown_masked(self, encoding):
        data = f"17;Müller;password={SECRET};4111111111111111".encode(encoding)
        assert mask_bytes(data) == f"17;Müller;password={MASK};{MASK}1111"

    @pytest.mark.parametrize("data", [f"password={SECRET}".encode("utf-16"), b"\0\1password=" + SECRET.encode()])
    def test_binary_with_a_secret_is_shown_by_its_size(self, data):
        assert mask_bytes(data) == f"{MASK} ({len(data)} bytes)"

    @pytest.mark.parametrize("data", [b"", b"17;M\xfcller\x1b[31m", bytes(range(256)), b"\0" * 10_000])
    def test_other_bytes_stay(self, data):
        assert mask_bytes(data) == data

    def test_end_of_long_bytes_is_not_shown(self):
        data = b"a b " * 60_000 + b"password=" + SECRET.encode()
        assert SECRET not in str(mask_bytes(data))
