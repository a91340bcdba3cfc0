"""The page about the command line is complete. `tests/integration/test_docs.py` runs its examples."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

from redrive.cli.app import NOUNS, VERBS, app
from redrive.config import load

PAGE = (Path(__file__).parents[3] / "docs" / "command-line.md").read_text()


def every_command():
    program = get_command(app)
    yield from VERBS
    for noun in NOUNS:
        for verb in program.get_command(None, noun).commands:
            yield f"{noun} {verb}"


@pytest.mark.parametrize("command", list(every_command()))
def test_every_command_is_on_the_page(command):
    assert (command if " " in command else f"redrive {command}") in PAGE


def test_every_option_that_selects_letters_is_on_the_page():
    program = get_command(app)
    options = {option for one in program.get_command(None, "dlq").commands["ls"].params for option in one.opts}
    unsaid = {
        "--after",
        "--cursor",
        "--limit",
        "--oldest-first",
        "--all-statuses",
        "--store",
        "--json",
        "--wide",
        "--debug",
        "ids",
    }
    assert [option for option in options - unsaid if f"`{option}" not in PAGE and f", `{option}" not in PAGE] == []


def test_every_variable_of_the_page_counts(tmp_path):
    variables = re.findall(r"REDRIVE_\w+", PAGE)
    assert variables
    for variable in variables:
        assert load(environ={variable: "1"}, directory=tmp_path) != load(environ={}, directory=tmp_path)
