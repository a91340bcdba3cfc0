"""The page about the command line runs: each command in order, on a terminal, with the output it shows."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from redrive.cli.app import NOUNS, app
from redrive.config import load

PAGE = Path(__file__).parents[3] / "docs" / "command-line.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.py)\n")
COLUMNS = 110

VARYING = {
    r"just now|[\d.]+ (s|min|h|days) ago": "AGO",
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d": "WHEN",
    r"\S+@[\w.-]+": "WHO",
    r"[\d.]+ MB": "SIZE",
    r"─+": "─",
    r" +": " ",
}


def settled(text):
    """Output without what differs from day to day and from machine to machine."""
    for pattern, name in VARYING.items():
        text = re.sub(pattern, name, text)
    return [line.rstrip() for line in text.splitlines()]


def examples(block):
    """The commands of a block: words, exit code, output."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, _, output = part.partition("\n")
        command, _, said = line.partition("  # exit code ")
        program, *words = shlex.split(command)
        assert program == "redrive"
        yield words, int(said or 0), output


def test_every_command_of_the_page_does_what_the_page_shows(terminal, here):
    for language, block in BLOCK.findall(PAGE.read_text()):
        if language == "python" and (file := FILE.match(block)):
            (here / file[1]).write_text(block)
        elif language == "python":
            subprocess.run([sys.executable, "-W", "error", "-c", block], check=True)
        elif language == "console":
            for words, code, output in examples(block):
                answer = terminal(*words, columns=COLUMNS)
                assert (words, answer.code) == (words, code), answer.out
                assert settled(answer.out) == settled(output.rstrip("\n")), words


def test_the_settings_of_the_page_can_be_used(here):
    (toml,) = [block for language, block in BLOCK.findall(PAGE.read_text()) if language == "toml"]
    (here / "redrive.toml").write_text(toml)
    settings = load(environ={}, directory=here)
    assert settings.redact == ("card_number", "*.ssn")
    for variable in re.findall(r"REDRIVE_\w+", toml):
        assert load(environ={variable: "1"}, directory=here) != settings


def every_command():
    program = get_command(app)
    for noun in NOUNS:
        for verb in program.get_command(None, noun).commands:
            yield f"{noun} {verb}"


@pytest.mark.parametrize("command", list(every_command()))
def test_every_command_is_on_the_page(command):
    assert command in PAGE.read_text()


def test_every_option_that_selects_letters_is_on_the_page():
    program = get_command(app)
    options = {option for one in program.get_command(None, "dlq").commands["ls"].params for option in one.opts}
    page = PAGE.read_text()
    unsaid = {"--after", "--limit", "--oldest-first", "--all-statuses", "--store", "--json", "--debug", "ids"}
    assert [option for option in options - unsaid if f"`{option}" not in page and f", `{option}" not in page] == []
