"""Forms of texts in which a secret was once shown, by class, and harmless texts that look like them."""

from __future__ import annotations

import configparser
import html
import json
import re
from pathlib import Path

import pytest

from redrive._internal.masking import MASK, mask, mask_all

SECRET = "Zq8vTr4nLw2x"
PHRASE = "correct horse Battery9"


def nested(document, depth):
    """The document as JSON within JSON."""
    text = json.dumps(document)
    for _ in range(depth):
        text = json.dumps({"body": text})
    return text


def read_password(text):
    """Read a setting as a program does."""
    parser = configparser.ConfigParser()
    parser.read_string(text)
    return parser.get("db", "password")


FORMS = {
    "scheme of a URL": [
        *(
            "oracle+cx_oracle://u:{}@h/db",
            "postgresql+psycopg_async://u:{}@h/db",
            "my_scheme://u:{}@h",
            "s3v2://u:{}@h",
        ),
        *(
            "x_1+y_2://u:{}@h:1/db",
            "failed: my_scheme://u:p/{}@h",
            "url=my_scheme://{}abcd@h",
            "MSSQL+PYODBC_X://u:{}@h",
        ),
    ],
    "error of pydantic": [
        "[{{'type': 'int_parsing', 'loc': ('password',), 'msg': 'Input should be', 'input': '{}'}}]",
        "[{{'type': 'x', 'loc': ('body', 'db', 'api_key'), 'msg': 'weak: {}', 'input': '{}', 'ctx': {{}}}}]",
        '[{{"type":"x","loc":["password"],"msg":"m","input":"{}","url":"https://x"}}]',
        '[\n  {{\n    "type": "x",\n    "loc": [\n      "password"\n    ],\n    "msg": "",\n    "input": "{}"\n  }}\n]',
        "{{'loc': ('tokens', 0), 'input': ['{}', 'b']}}",
        "{{'loc': ('password',), 'input': {{'a': '{}'}}}}",
        "{{'loc': ('a',), 'input': 'b'}}, {{'loc': ('password',), 'msg': 'x', 'input': '{}'}}",
    ],
    "error of a framework": [
        '{{"objectName": "user", "field": "password", "rejectedValue": "{}", "bindingFailure": false}}',
        '{{"rejectedValue": "{}", "field": "password"}}',
        '{{"type":"field","value":"{}","msg":"Invalid value","path":"password","location":"body"}}',
        "Field error in object 'user' on field 'password': rejected value [{}]; codes [Size.user.password]",
        "Field error in object 'user' on field 'db.password': rejected value [{}]",
        '{{"password": ["This password is too short: {}"]}}',
        "{{'password': [ErrorDetail(string='This password is too short: {}', code='invalid')]}}",
    ],
    "HTML": [
        "&quot;password&quot;: &quot;{}&quot;",
        "{{&quot;user&quot;:&quot;u&quot;,&quot;password&quot;:&quot;{}&quot;}}",
        "&#34;password&#34;: &#34;{}&#34;",
        "&#39;password&#39;: &#39;{}&#39;",
        "{{&#x27;api_key&#x27;: &#x27;{}&#x27;}}",
        "&amp;quot;password&amp;quot;: &amp;quot;{}&amp;quot;",
        "<td>password</td><td>{}</td>",
        '<tr><th class="x">DB_PASSWORD</th>\n <td class="code"><pre>&#x27;{}&#x27;</pre></td></tr>',
        "<dt>password:</dt><dd>{}</dd>",
        "<b>api_key</b> <code>{}</code>",
    ],
    "SQL": [
        "COPY t FROM 's3://b' ACCESS_KEY_ID 'AK' SECRET_ACCESS_KEY '{}' SESSION_TOKEN 'b'",
        "SESSION_TOKEN '{}'",
        "UNLOAD ('select 1') TO 's3://b' MASTER_SYMMETRIC_KEY '{}' ENCRYPTED",
        "CREATE EXTERNAL SOURCE x BEARER_TOKEN '{}'",
        "secret_access_key '{}'",
        "SET password TO '{}'",
        "set session db_password to '{}'",
        "ALTER SYSTEM SET app.api_key TO '{}'",
    ],
    "command line": [
        "java -Dpassword={} -jar x.jar",
        "-Dpassword={}",
        "java -Djavax.net.ssl.trustStorePassword={} -jar x.jar",
        "['java', '-Dpassword={}']",
        "tool --sftp-pass {}",
        "tool --db-pass={} x",
        "tool --pass {}",
        "keytool -list -storepass {} -keystore x",
        "keytool -keypass '{}'",
        "keytool -srcstorepass {}",
        "['keytool', '-storepass', '{}']",
        "curl --oauth2-bearer {} https://x",
        "['curl', '--oauth2-bearer', '{}']",
        "ssh -oPassword={} host",
        "sftp -o Password={} host",
        "curl -b session={} https://x",
        "curl -s -b 'a=1; session={}' https://x",
        "curl https://x --cookie session={}",
        "['curl', '-b', 'session={}']",
        "ENV DB_PASSWORD {}",
        "RUN x\nENV API_TOKEN {}\nRUN y",
        "setenv DB_PASSWORD {}",
        "set -gx DB_PASSWORD {}",
        "set -x API_KEY '{}'",
    ],
    "container": [
        "credentials=('u','{}')",
        "credentials=('u', '{}'), x=1",
        "auth=['u','{}']",
        "auth=['u', \"{}\"]",
        "credentials=Credentials('u','{}')",
        "credentials = azure.Credentials(user='u', value='{}')",
        "password=Secret(value='{}')",
        "password=Secret(inner=Inner(a=')', value='{}'))",
        "http_auth=('u', '{}')",
        "http_auth=(u, {})",
        "credentials=(u, {})",
        "proxy_auth=('u', '{}')",
        "{{'password': {{'prod': '{}'}}}}",
        '{{"password": {{"prod": {{"x": ["{}"]}}}}}}',
        '"tokens": {{"github": "{}", "n": 3}}',
        "'tokens': {{'github': '{}'}}",
        "'secrets': [{{'name': 'x', 'data': '{}'}}]",
        "'tokens': ['{}']",
        "passwords=['a', '{}']",
        "cut off: credentials=('u', '{}",
        "cut off: 'passwords': {{'a': {{'b': '{}",
        "password=[{}]",
        "User{{name=bob, password={{{}}}}}",
    ],
    "YAML": [
        "password:\n  - {}\nuser: x",
        "passwords:\n- a\n- {}\nuser: x",
        "password:\n    value: {}\nuser: x",
        "password:\n  prod: '{}'\n  test: b",
        "env:\n  - name: DB_PASSWORD\n    value: {}\n  - name: X",
        '- name: DB_PASSWORD\n  value: "{}"',
        "- name: 'API_TOKEN'\n\n  value: {}",
        "credentials:\n  db:\n    prod: {}\n",
    ],
    "assignment": ['password := "{}"', "token := '{}'", 'apiKey:="{}"'],
    "configparser": [
        "Bad value substitution: option 'password' in section 'db' contains an interpolation key 'x' which is not a "
        "valid option name. Raw value: '{}%(x)s'",
        "Source contains parsing errors: 'x.ini'\n\t[line  2]: 'password {}\\n'",
        "File contains no section headers.\nfile: 'x.ini', line: 1\n'password={}\\n'",
        "File contains no section headers.\nfile: 'x.ini', line: 1\n'password: {}\\n'",
        "'db_password   {}\\n'",
    ],
}
TEXTS = [text for texts in FORMS.values() for text in texts]


class TestForms:
    @pytest.mark.parametrize("text", TEXTS)
    def test_secret_is_masked(self, text):
        shown = mask(text.format(*[SECRET] * text.count("{}")))
        assert SECRET not in shown
        assert MASK in shown
        assert mask(shown) == shown

    @pytest.mark.parametrize("text", [text for kind in ("error of pydantic", "container") for text in FORMS[kind]])
    def test_secret_in_a_text_within_a_text_is_masked(self, text):
        text = text.format(*[SECRET] * text.count("{}"))
        for shown in (
            repr(text),
            json.dumps(text),
            json.dumps(json.dumps(text)),
            repr(repr(text)),
            repr(text.encode()),
        ):
            assert SECRET not in mask(shown)

    @pytest.mark.parametrize("depth", range(5))
    @pytest.mark.parametrize("password", [SECRET, f'a"b{SECRET}', f"a\\{SECRET}", f"{SECRET}\\", f"it's {SECRET}"])
    def test_json_in_json_is_masked_at_any_depth(self, depth, password):
        text = nested({"password": password, "fee": 1, "token": password}, depth)
        for shown in (text, repr(text), repr(text.encode()), repr(repr(text)), html.escape(text), repr("'" + text)):
            masked = mask(shown)
            assert SECRET not in masked
            assert "fee" in masked

    def test_error_of_pydantic_is_masked_in_every_form(self):
        pydantic = pytest.importorskip("pydantic")

        class Login(pydantic.BaseModel):
            password: int
            fee: int

        with pytest.raises(pydantic.ValidationError) as error:
            Login(password=SECRET, fee="N/A")
        for text in (repr(error.value.errors()), error.value.json(), error.value.json(indent=2)):
            for shown in (text, repr(text), json.dumps({"detail": text})):
                assert SECRET not in mask(shown)
                assert "N/A" in mask(shown)
        assert SECRET not in json.dumps(mask_all(error.value.errors()))

    @pytest.mark.parametrize("line", [f"password {SECRET}\n", f"password = %(x)s{SECRET}\n"])
    def test_error_of_configparser_is_masked(self, line):
        for text in (line, f"[db]\n{line}"):
            with pytest.raises(configparser.Error) as error:
                read_password(text)
            assert SECRET not in mask(str(error.value))
            assert SECRET not in mask(repr(error.value))

    def test_rest_of_a_text_stays(self):
        assert mask(f"credentials=('u', '{SECRET}'), page=2") == f"credentials={MASK}, page=2"
        assert mask(f"{{'password': {{'prod': '{SECRET}'}}, 'page': 2}}") == f"{{'password': {MASK}, 'page': 2}}"
        assert mask(f"a:\n  password:\n    - {SECRET}\n  page: 2") == f"a:\n  password:\n    - {MASK}\n  page: 2"
        assert mask(f'{{"password": "{SECRET}\\\\", "page": "2"}}') == f'{{"password": "{MASK}", "page": "2"}}'
        assert mask(f"f(auth=['u', '{SECRET}']).g(x) == 1") == f"f(auth={MASK}).g(x) == 1"
        assert mask(f"curl -b s={SECRET} https://x") == f"curl -b {MASK} https://x"
        assert mask(f"keytool -storepass {SECRET} -alias x") == f"keytool -storepass {MASK} -alias x"

    @pytest.mark.parametrize(
        "document",
        [
            [{"loc": ["password"], "msg": "m", "input": SECRET}],
            [{"type": "x", "loc": ("body", "api_key"), "input": {"a": SECRET}}],
            {"field": "password", "rejectedValue": SECRET},
            {"path": "password", "value": SECRET},
            {"password": {"prod": SECRET}},
            {"tokens": {"github": SECRET}},
            {"credentials": {"db": {"prod": [SECRET]}}},
        ],
        ids=json.dumps,
    )
    def test_secret_in_a_document_is_masked(self, document):
        assert SECRET not in json.dumps(mask_all(document))


PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
TABLE = PAGE.read_text().partition("### Recognized forms")[2].partition("### Stored data")[0]
EXAMPLES = [example for row in TABLE.splitlines() if row[:1] == "|" for example in re.findall(r"`([^`]+)`", row)]


class TestDocumentedForms:
    def test_page_has_examples(self):
        assert len(EXAMPLES) > 40

    @pytest.mark.parametrize("example", EXAMPLES)
    def test_example_is_masked(self, example):
        assert "hunter2b" in example
        assert "hunter2b" not in mask(example)
        assert "hunter2b" not in mask(f"2026-11-18 12:00:00 ERROR it failed: {example}")


class TestHarmless:
    @pytest.mark.parametrize(
        "text",
        [
            "token=3 of 10",
            "pin=4",
            "pass=3 fail=2",
            "sig=2",
            "otp=expired",
            "key=customer_id not found",
            "lexer: token=IDENT",
            "pwd=/home/etl/jobs",
            "bearer token expired",
            "the bearer token is missing, basic auth is off, digest auth failed",
            "token=None key=id pass=ok",
            "https://example.com:8080/a?b=c@d",
            "[{'loc': ('fee',), 'msg': 'm', 'input': 'N/A'}]",
            "[{'loc': ('password',), 'msg': 'Field required'}, {'loc': ('fee',), 'input': 'N/A'}]",
            '{"field": "city", "rejectedValue": "Bern"}',
            "Field error in object 'user' on field 'city': rejected value [Bern]; codes [x]",
            '{"password": ["This field is required.", "Ensure this value has at least 8 characters: see the docs"]}',
            "<th>password</th><th>user</th>",
            "<td>city</td><td>Bern</td>",
            "&quot;city&quot;: &quot;Bern&quot;",
            "PRIMARY_KEY 'id' SORT_KEY 'customer_id'",
            "SET search_path TO 'public'",
            "-Dfile.encoding=UTF-8 -Xmx2g --bypass x --second-pass out.csv",
            "curl -b cookies.txt https://example.com",
            "ENV PATH /usr/bin",
            "setenv LANG C.UTF-8",
            "tokens={'input': 5, 'output': 7}",
            '"tokens": {"prompt_tokens": 12, "total": 99}',
            '{"tokens": ["one", "two"]}',
            "password=get_password()",
            "    token = load_token(path / 'x.txt')",
            "password = os.environ['DB_PASSWORD']",
            "auth: ['one'] of [2]",
            "password:\n  - This field is required.\n",
            "password:\n  valueFrom:\n    secretKeyRef:\n      name: db-login\n      key: password\n",
            "- name: CITY\n  value: Bern",
            "option 'city' in section 'x'. Raw value: '%(y)s'",
            "'city Bern\\n'",
            "key := 5",
        ],
    )
    def test_text_stays(self, text):
        assert mask(text) == text

    @pytest.mark.parametrize(
        "text",
        [
            *(
                "GET /v1?key=customer&page=2",
                "token=1234",
                "pin=1234",
                "pass=hunter",
                "sig=a1b2",
                "cvv=123",
                "pin='1234'",
            ),
            *("password=ok", "secret=expired", "api_key=three", "DB_PASSWORD=3", "&token=word"),
        ],
    )
    def test_secret_that_looks_plain_is_masked(self, text):
        assert MASK in mask(text)
