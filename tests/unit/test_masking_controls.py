"""Colours and invisible characters do not hide a secret."""

from __future__ import annotations

import pytest

from redrive._internal.masking import mask
from redrive.tasks.workers.output import OutputCollector

PASSWORD = "Tr0ub4dor-Correct-91"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"\x1b[36mpassword\x1b[0m=\x1b[35m{PASSWORD}\x1b[0m", "password=***"),
        (f"\x1b[1;38;5;9mapi_key\x1b[0m=\x1b[35m{PASSWORD}\x1b[0m", "api_key=***"),
        (f"Authorization: \x1b[32mBearer\x1b[0m {PASSWORD}", "Authorization: Bearer ***"),
        (f"\x1b[1mpassword\x1b[0m: {PASSWORD}", "password: ***"),
        (f"\x1b[32m'password'\x1b[0m: \x1b[32m'{PASSWORD}'\x1b[0m", "'password': '***'"),
        (f"postgresql://etl:\x1b[1m{PASSWORD}\x1b[0m@db/x", "postgresql://etl:***@db/x"),
        (f"\x1b]8;;https://example.com\x1b\\password\x1b]8;;\x1b\\={PASSWORD}", "password=***"),
        (f"\x1b]0;title\x07password=\x1b(B\x1b[m{PASSWORD}", "password=***"),
        (f"\x9b36mpassword\x9b0m={PASSWORD}", "password=***"),
        (f"\x9d0;title\x9cpassword={PASSWORD}", "password=***"),
        (f"p\u200bass\u2060word\ufeff={PASSWORD}", "password=***"),
        (f"\u202epass\u200dword\u202c={PASSWORD}", "password=***"),
        (f"pass\xadword={PASSWORD}", "password=***"),
        (f"output=b'\\x1b[36mpassword\\x1b[0m=\\x1b[35m{PASSWORD}\\x1b[0m'", "output=b'password=***'"),
        (f'"\\u001b[36mpassword\\u001b[0m={PASSWORD}"', '"password=***"'),
    ],
)
def test_invisible_characters_do_not_hide_a_secret(text, shown):
    assert mask(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "می\u200cخواهم",
        "\U0001f469\u200d\U0001f4bb",
        "caf\xe9",
        "í, ✛A, Û".encode().decode("latin-1"),
        "C:\\x1\\e[1]",
        "[36m",
    ],
)
def test_text_without_sequences_is_unchanged(text):
    assert mask(text) == text


def test_task_output_has_no_colours():
    output = OutputCollector()
    output.add(f"\x1b[32mlogin\x1b[0m \x1b[36mpassword\x1b[0m=\x1b[35m{PASSWORD}\x1b[0m\n".encode())
    assert output.text() == "login password=***\n"
