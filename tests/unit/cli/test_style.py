"""Colours by meaning, next steps, and lines that fit the terminal."""

import io
import re
import sys

import pytest

from redrive.cli.format import FAILURE, SUCCESS, WARNING, paint, style_of, style_of_circuit
from redrive.cli.output import Column, Output


class Terminal(io.StringIO):
    """A stream that reports to be a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def screen(monkeypatch):
    """Both streams on a terminal with colours, as wide as asked for."""

    def screen(width=80, **environ):
        for name in ("NO_COLOR", "TERM"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"COLUMNS": str(width), **environ}.items():
            monkeypatch.setenv(name, value)
        stream = Terminal()
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return screen


def plain(stream):
    return re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue())


class TestMeaning:
    @pytest.mark.parametrize("value", ["P1", "failed", "aborted", "DEAD_LETTER"])
    def test_failure_is_red(self, value):
        assert style_of(value) == FAILURE

    @pytest.mark.parametrize("value", ["P2", "pending", "RETRYING", "held"])
    def test_waiting_is_yellow(self, value):
        assert style_of(value) == WARNING

    @pytest.mark.parametrize("value", ["SUCCESS", "complete", "resolved"])
    def test_success_is_green(self, value):
        assert style_of(value) == SUCCESS

    def test_open_circuit_is_a_failure(self):
        assert (style_of_circuit("open"), style_of("open")) == (FAILURE, WARNING)

    def test_other_texts_have_no_style(self):
        assert (style_of("P3"), style_of(""), style_of(None)) == ("", "", "")


class TestColour:
    def test_terminal_shows_colour(self, screen):
        assert paint("failed", FAILURE, screen()) == "\x1b[31mfailed\x1b[0m"

    @pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
    def test_environment_disables_colour(self, screen, environ):
        assert paint("failed", FAILURE, screen(**environ)) == "failed"

    def test_pipe_has_no_colour(self):
        assert paint("failed", FAILURE, io.StringIO()) == "failed"

    def test_controls_of_a_value_are_escaped_inside_it(self, screen):
        stream = screen()
        Output().fields({"run": "\x1b[2Jfailed"}, styles={"run": FAILURE})
        assert stream.getvalue() == "run        \x1b[31m\\x1b[2Jfailed\x1b[0m\n"


class TestNextSteps:
    STEPS = (("list tasks", "redrive tasks ls --run c94c0e1a"), ("show one", "redrive tasks show 'settle[2]'"))

    def test_commands_are_aligned(self, screen):
        stream = screen()
        Output().next_steps(self.STEPS)
        assert plain(stream).splitlines() == [
            "Next steps:",
            "  list tasks  redrive tasks ls --run c94c0e1a",
            "  show one    redrive tasks show 'settle[2]'",
        ]

    def test_long_command_is_continued_with_a_backslash(self, screen):
        stream = screen(50)
        Output().next_steps([("retry", "redrive tasks retry --cause 'Lookup Error@settlement:17' --run c94c0e1a")])
        assert plain(stream).splitlines() == [
            "Next steps:",
            "  retry",
            "    redrive tasks retry --cause \\",
            "      'Lookup Error@settlement:17' --run \\",
            "      c94c0e1a",
        ]

    def test_pipe_has_one_line_per_step(self, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "30")
        Output().next_steps(self.STEPS)
        assert capsys.readouterr().err.count("\n") == 3

    def test_no_steps_print_nothing(self, capsys):
        Output().next_steps([])
        assert capsys.readouterr().err == ""


class TestWidth:
    def test_note_is_wrapped_at_spaces(self, screen):
        stream = screen(40)
        Output().say("cannot open the store: no store at /srv/pipelines/nightly/.redrive/redrive.db. Pass --store")
        shown = plain(stream).splitlines()
        assert "/srv/pipelines/nightly/.redrive/redrive.db." in shown
        assert shown[0] == "cannot open the store: no store at"

    def test_wide_table_is_not_cut(self, screen):
        stream = screen(40)
        columns = (Column(title="id"), Column(title="key", drop=1), Column(title="message", least=10))
        Output(wide=True).table(columns, [(1, "D-1", "m" * 60)])
        assert "m" * 60 in plain(stream)
        assert "D-1" in plain(stream)

    @pytest.mark.parametrize(
        "words", [["dlq", "causes"], ["dlq", "ls"], ["dlq", "show", "1"], ["dlq", "ls", "--limit", "1"], ["alerts"]]
    )
    def test_commands_fit_eighty_columns(self, terminal, run, put, words):
        put(2, error="fee: could not convert the string to a number, which has to have a point and no comma: N/A")
        run(
            "alerts",
            "open",
            "export",
            "--severity",
            "P2",
            "--title",
            "the nightly export of all deliveries failed",
        )
        shown = terminal(*words, columns=80).out
        assert max(map(len, shown.splitlines())) <= 80
