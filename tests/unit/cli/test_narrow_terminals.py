"""Terminals that are too narrow for a table: every value stays readable."""

import io
import re
import sys
from pathlib import Path

import pytest

from redrive.cli.demo.story import DemoNarration
from redrive.cli.output import Column, Output
from redrive.cli.tasks.show import _end_of

COLUMNS = (
    Column(title="cause"),
    Column(title="letters", right=True, drop=1),
    Column(title="last seen"),
    Column(title="message", least=20, wrap=True),
)
ROWS = [
    ("6745a0", 30, "3 h ago", "fee: Input should be a valid decimal"),
    ("61e258", 7, "just now", ""),
]


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of some width; what was written to it, line by line."""

    def terminal(width):
        stream = io.StringIO()
        stream.isatty = lambda: True
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setenv("COLUMNS", str(width))
        return lambda: re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue()).splitlines()

    return terminal


def test_each_value_has_its_own_line_in_a_narrow_terminal(terminal):
    written = terminal(36)
    Output().table(COLUMNS, ROWS)
    assert written() == [
        "cause      6745a0",
        "last seen  3 h ago",
        "message    fee: Input should be a",
        "           valid decimal",
        "",
        "cause      61e258",
        "last seen  just now",
    ]


def test_dumb_terminal_has_its_real_width(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    written = terminal(50)
    Output().table(COLUMNS, ROWS)
    assert max(map(len, written())) <= 50


def test_demo_output_fits_sixty_columns(terminal):
    written = terminal(60)
    DemoNarration(Output(), Path("redrive-demo"), typed="redrive").act_three(24)
    assert written() == [
        "",
        "3  A settlement: 24 merchants, each paid in a task of its",
        "   own  (settlement.py)",
        "   The bank is busy at times and never answers for one",
        "   payment; one account is malformed.",
    ]


def test_long_line_is_wrapped_below_its_text(terminal):
    terminal(30)
    assert Output().wrapped("told  one message for each of them", hang=6) == "told  one message for each of\n      them"


def test_line_in_a_pipe_is_not_wrapped(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    assert Output().wrapped("x " * 40, hang=2) == "x " * 40


def test_end_of_a_traceback_starts_with_a_whole_line():
    shown = _end_of("\n".join(f'  File "job.py", line {number} in work' for number in range(200)))
    first, second, *_ = shown.splitlines()
    assert first.endswith("characters before this; --json shows all")
    assert second.startswith('  File "job.py", line ')
    assert _end_of("x" * 3_000).endswith("\n" + "x" * 2_000)
