"""Tables on terminals of every width, plain rows in pipes, readable ages and counts."""

import io
import re
import sys
from datetime import UTC, datetime, timedelta

import pytest

from redrive.cli.format import ago, bars, counted, hexdump, lines, one_line
from redrive.cli.output import Column, Output, datum


@pytest.fixture
def drawn(monkeypatch):
    """What a table looks like on a terminal of some width."""

    def drawn(columns, rows, width):
        stream = io.StringIO()
        stream.isatty = lambda: True
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
        Output().table(columns, rows)
        return [re.sub(r"\x1b\[\d*m", "", line).rstrip() for line in stream.getvalue().splitlines()]

    return drawn


COLUMNS = (
    Column(title="id", right=True),
    Column(title="pipeline", drop=2, least=6),
    Column(title="seen", right=True, drop=1),
    Column(title="cause", hidden=True),
    Column(title="message", least=12),
)
ROWS = [(1, "vendor_reconciliation", 5_400, "ab12", "could not convert string to float"), (22, "x", 1, "cd34", "short")]


def test_wide_terminal_shows_everything(drawn):
    assert drawn(COLUMNS, ROWS, 80) == [
        "id  pipeline                seen  message",
        "─" * 67,
        " 1  vendor_reconciliation  5,400  could not convert string to float",
        "22  x                          1  short",
    ]


def test_narrow_terminal_cuts_the_long_texts(drawn):
    shown = drawn(COLUMNS, ROWS, 50)
    assert shown[2] == " 1  vendor_reconciliation  5,400  could not conve…"
    assert all(len(line) <= 50 for line in shown)


def test_very_narrow_terminal_drops_the_least_important(drawn):
    assert drawn(COLUMNS, ROWS, 26)[2] == " 1  5,400  could not conv…"
    assert drawn(COLUMNS, ROWS, 18)[2] == " 1  could not con…"


def test_empty_optional_column_is_dropped(drawn):
    assert drawn(COLUMNS, [(1, "", 3, "ab", "x")], 80)[0] == "id  seen  message"


def test_empty_table_is_nothing_on_a_terminal(drawn, capsys, monkeypatch):
    Output().table(COLUMNS, [])
    assert capsys.readouterr().out == "id\tpipeline\tseen\tcause\tmessage\n"
    assert drawn(COLUMNS, [], 80) == []


def test_pipe_gets_every_column_and_every_value_in_full(capsys):
    moment = datetime(2026, 7, 1, 12, tzinfo=UTC)
    columns = [Column(title=title) for title in ("last seen", "trend", "edited", "note", "message")]
    Output().table(columns, [(moment, (1, 0), True, None, "a\tb\nc\x1b[31m")])
    assert capsys.readouterr().out == (
        "last_seen\ttrend\tedited\tnote\tmessage\n2026-07-01T12:00:00Z\t1,0\ttrue\t\ta\\tb\\nc\\x1b[31m\n"
    )


def test_wide_characters_are_counted_as_wide(drawn):
    shown = drawn((Column(title="name", least=4), Column(title="n")), [("日本語日本語", 1)], 12)
    assert shown[2] == "日本語日…  1"


def test_json_is_one_document_with_real_characters(capsys):
    Output(as_json=True).document({"name": "Müller"})
    assert capsys.readouterr().out == '{\n  "name": "Müller"\n}\n'


def test_controls_are_shown_escaped():
    assert one_line("\x1b[2Jgone\x07\u202eabc") == "\\x1b[2Jgone\\x07\\u202eabc"
    assert lines("one\r\ntwo\x1b") == "one\ntwo\\x1b"
    assert lines("Zoë → 日本") == "Zoë → 日本"


def test_ages_are_human_readable():
    now = datetime.now(UTC)
    assert ago(now) == "just now"
    assert ago(now - timedelta(hours=3, seconds=9)) == "3 h ago"
    assert ago(now - timedelta(days=4)) == "4 days ago"
    assert ago(now + timedelta(hours=8, seconds=9)) == "in 8 h"
    assert ago(None) == ""


def test_trend_is_seven_bars_with_the_lowest_for_zero():
    assert bars((0, 1, 2, 4, 8, 8, 0)) == "▁▂▃▅██▁"
    assert bars((0,) * 7) == "▁" * 7
    assert bars((1_000_000, 1)) == "█▂"
    assert bars(()) == ""


def test_counts_agree_with_their_noun():
    assert (counted(0), counted(1), counted(5_400)) == ("0 letters", "1 letter", "5,400 letters")


def test_bytes_are_dumped_with_readable_text():
    assert hexdump(b"17;M\xfcller;4711\r\n") == (
        "00000000  31 37 3b 4d fc 6c 6c 65  72 3b 34 37 31 31 0d 0a  17;M.ller;4711.."
    )
    assert hexdump(b"") == ""


def test_values_for_programs_are_plain():
    assert [datum(value) for value in (None, False, 3, "x", ("a", "b"))] == ["", "false", "3", "x", "a,b"]
