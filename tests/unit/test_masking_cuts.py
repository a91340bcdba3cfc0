"""A secret that crosses a cut is not shown, wherever the cut is."""

from __future__ import annotations

import os

import pytest

from redrive._internal.masking import mask, mask_end, mask_start, mask_stream
from redrive.alerts.delivery.format import safe, safe_line
from redrive.rows.validation.validator import shown as shown_value
from redrive.tasks.workers.fingerprint import TRACE_LENGTH, trace_of
from redrive.tasks.workers.output import KEPT, LiveOutput, OutputCollector

PASSWORD = "Tr0ub4dor-Correct-Horse-91"
LONG = "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dE3fG5hJ7k"
KEY = "\n".join(f"MII{number:02}{LONG}{LONG[:19]}" for number in range(10, 60))

# The text, and what of it is secret.
SECRETS = {
    "url": (f"connecting to postgresql://etl:{PASSWORD}@db.internal/prod", PASSWORD),
    "url with a token": (f"GET https://{LONG}@api.example.com/x", LONG),
    "json": (f'{{"dsn":"amqp://svc:{PASSWORD}@mq:5672/v","n":1}}', PASSWORD),
    "json field": (f'{{"n":1,"password":"{PASSWORD}","m":2}}', PASSWORD),
    "assignment": (f"password = '{PASSWORD} with blanks'", f"{PASSWORD} with blanks"),
    "option": (f"tool --password '{PASSWORD} with blanks' --go", f"{PASSWORD} with blanks"),
    "command": (f"mysql -u etl -p{PASSWORD} orders", PASSWORD),
    "element": (f"<password>{PASSWORD}</password>", PASSWORD),
    "github": (f"token is ghp_{LONG[:36]}", LONG[:36]),
    "anthropic": (f"using sk-ant-api03-{LONG}", LONG),
    "web token": (
        f"got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.{LONG} here",
        f"eyJzdWIiOiIxMjM0NTY3ODkwIn0.{LONG}",
    ),
    "slack": (f"slack xoxb-123456789012-123456789012-{LONG}", LONG),
    "amazon": ("key AKIAIOSFODNN7EXAMPLE is", "IOSFODNN7EXAMPLE"),
    "header": (f"Authorization: Bearer {LONG}", LONG),
    "card": ("paid by 4012 8888 8888 1881 today", "4012 8888 8888"),
    "coloured": (f"\x1b[36mpassword\x1b[0m=\x1b[35m{PASSWORD}\x1b[0m", PASSWORD),
}
_FEWEST = 5  # characters in a row that count as a part of the secret
_EVERY = 4 if os.environ.get("REDRIVE_TEST_LOOP") == "chaos" else 17  # characters between two cuts of a long text


def part_of(secret, shown):
    parts = (secret[at : at + _FEWEST] for at in range(len(secret) - _FEWEST + 1))
    return next((part for part in parts if part in shown), None)


@pytest.fixture(params=SECRETS.values(), ids=SECRETS)
def planted(request):
    return request.param


FILLERS = ["." * 700 + " ", "a line\n" * 100, '{"n":1},' * 90]


class TestExcerpts:
    @pytest.mark.parametrize("filler", FILLERS, ids=["one word", "lines", "json"])
    def test_start_of_text_shows_nothing_of_a_cut_secret(self, planted, filler):
        text, secret = planted
        for at in range(len(text) + 1):
            shown = mask_start(filler + text + filler, len(filler) + at)
            assert part_of(secret, shown) is None, at
            assert shown.startswith(filler)

    @pytest.mark.parametrize("filler", FILLERS, ids=["one word", "lines", "json"])
    def test_end_of_text_shows_nothing_of_a_cut_secret(self, planted, filler):
        text, secret = planted
        for at in range(len(text) + 1):
            shown = mask_end(f"{filler}{text} {filler}", len(filler) + 1 + at)
            assert part_of(secret, shown) is None, at
            assert shown.endswith(filler)

    def test_private_key_across_a_cut_is_masked(self):
        text = f"before\n-----BEGIN PRIVATE KEY-----\n{KEY}\n-----END PRIVATE KEY-----\nafter\n"
        for at in range(0, len(text), 50):
            assert part_of(LONG, mask_start(text, at)) is None
            assert part_of(LONG, mask_end(text, at)) is None

    def test_text_without_secrets_is_cut_at_the_limit(self):
        text = "".join(f"line {number}\n" for number in range(5_000))
        assert (mask_start(text, 777), mask_end(text, 777)) == (text[:777], text[-777:])

    def test_longest_text_shows_nothing_of_a_cut_secret(self, planted):
        text, secret = planted
        for at in range(0, len(text), _EVERY):
            assert part_of(secret, mask(f"{'.' * (199_999 - at)} {text} {'.' * 9_000}")) is None


class TestStream:
    def test_line_in_parts_shows_nothing_of_a_cut_secret(self, planted):
        text, secret = planted
        line = f"{'x' * 5_000} {text} " * 8
        for size in (4_096, 7_777, 65_536):
            stream, shown = mask_stream(), ""
            for start in range(0, len(line), size):
                shown += stream.add(line[start : start + size])
            assert shown
            assert part_of(secret, shown + stream.add("\n")) is None

    def test_line_in_parts_is_shown_whole(self):
        stream, line = mask_stream(), "".join(f"{number}," for number in range(9_000)) + "\n"
        assert "".join(stream.add(line[start : start + 999]) for start in range(0, len(line), 999)) == line

    def test_private_key_received_line_by_line_is_masked(self):
        text = f"before\n-----BEGIN PRIVATE KEY-----\n{KEY}\n-----END PRIVATE KEY-----\nafter\n"
        stream = mask_stream()
        shown = "".join(stream.add(line) for line in text.splitlines(keepends=True))
        assert part_of(LONG, shown) is None
        assert shown.startswith("before\n")
        assert shown.endswith("after\n")

    def test_value_on_the_line_after_its_name_is_masked(self):
        stream = mask_stream()
        assert PASSWORD not in stream.add("ALTER ROLE bob PASSWORD\n") + stream.add(f"  '{PASSWORD}'\n")


class TestTaskOutput:
    def test_first_16_kb_show_nothing_of_a_cut_secret(self, planted):
        text, secret = planted
        for at in range(0, len(text) + 1, _EVERY):
            output = OutputCollector()
            output.add(f"{'.' * (KEPT - at - 1)} {text} {'z' * 79}\n".encode() + b"line\n" * 20_000)
            assert part_of(secret, output.text()) is None, at

    def test_last_16_kb_show_nothing_of_a_cut_secret(self, planted):
        text, secret = planted
        for at in range(0, len(text) + 1, _EVERY):
            output = OutputCollector()
            for _ in range(20):
                output.add(b"line\n" * 2_000)
            output.add(f" {text} {'z' * (KEPT - at - 1)}".encode())
            assert part_of(secret, output.text()) is None, at

    def test_live_output_shows_nothing_of_a_cut_secret(self, planted, tmp_path):
        text, secret = planted
        file = tmp_path / "1-1.log"
        live = LiveOutput(str(file))
        line = f"{'x' * 5_000} {text} ".encode() * 4
        for start in range(0, len(line), 4_096):
            live.add(line[start : start + 4_096])
        shown = file.read_text()
        assert shown
        assert part_of(secret, shown) is None
        live.close()

    def test_output_reports_how_much_is_left_out(self):
        output = OutputCollector()
        output.add(b"a line\n" * 10_000)
        beginning, _, end = output.text().partition("\n… ")
        left_out = int(end.partition(" ")[0].replace(",", ""))
        assert left_out + len(beginning) + 1 + len(end.partition("\n")[2]) == 70_000


class TestOtherTexts:
    def test_alert_text_shows_nothing_of_a_cut_secret(self, planted):
        text, secret = planted
        for at in range(0, len(text) + 1, _EVERY):
            assert part_of(secret, safe("\t" * (9_000 - at) + text + " " * 9_000 + "end")) is None
            assert part_of(secret, safe("start" + " " * 9_000 + text + " " * (9_000 - at))) is None
            assert part_of(secret, safe_line(" " * (5_200 - at) + text + " and so on" * 900, 200)) is None

    def test_traceback_shows_nothing_of_a_cut_secret(self, planted):
        text, secret = planted
        for at in range(0, len(text) + 1, _EVERY):
            error = ValueError(f"{'.' * 9_000} {text}{' ' * (4 * TRACE_LENGTH - at - 1)}\n")
            assert part_of(secret, trace_of(error)) is None

    def test_value_in_a_message_shows_nothing_of_a_cut_secret(self, planted):
        text, secret = planted
        for at in range(40):
            assert part_of(secret, mask(f"not a number: {shown_value('.' * at + ' ' + text + ' ' * 60)}")) is None
