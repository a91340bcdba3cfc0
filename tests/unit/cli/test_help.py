"""What `--help` says, of every command: what is to be typed, in the words of people."""

import re

import pytest
from typer.main import get_command

from redrive.cli.app import COMMANDS, NOUNS, app


def commands():
    """Every noun, verb and command of a noun, as it is typed."""
    program = get_command(app)
    for name in COMMANDS:
        yield [name]
        yield from ([name, one] for one in getattr(program.get_command(None, name), "commands", ()))


@pytest.fixture
def helped(run):
    """The help of a command, in one line."""

    def helped(*words):
        answer = run(*words, "--help")
        assert (answer.code, answer.err) == (0, "")
        return " ".join(answer.out.split())

    return helped


def test_no_type_of_python_and_no_inequality_is_shown_to_a_person(helped):
    for words in commands():
        assert not re.search(r"<(?:str|int|list|float|bool)|x[<>]=|<=x", helped(*words)), words


def test_what_must_be_typed_stands_bare_and_what_may_be_left_out_in_brackets(helped):
    assert "Usage: redrive runs show [OPTIONS] RUN_OR_NAME One run" in helped("runs", "show")
    assert "Usage: redrive tasks ls [OPTIONS] [RUN_OR_FLOW] Tasks" in helped("tasks", "ls")
    assert "Usage: redrive alerts test [OPTIONS] {P1|P2|P3} Send" in helped("alerts", "test")
    assert "Arguments: ID The alerts. Options:" in helped("alerts", "ack")


def test_limits_are_said_in_words(helped):
    assert "[default: 20; 1 to 1,000,000,000]" in helped("runs", "ls")
    assert "[default: 1; 1 or more]" in helped("tasks", "backfill")
    assert "[default: 180000; 1,000 to 10,000,000]" in helped("demo")


@pytest.mark.parametrize("noun", NOUNS)
def test_a_noun_is_told_of_in_the_same_words_by_the_program_and_by_itself(helped, noun):
    assert NOUNS[noun] in helped(noun)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["runs", "ls", "--limit", "0"], "invalid value for '--limit': it should be greater than or equal to 1; see"),
        (["dlq", "show", "x"], "invalid value for 'ID': it should be a valid integer; see `redrive dlq show --help`"),
        (["run", "pyproject.toml"], "pyproject.toml is not a Python file: write FILE:NAME"),
    ],
)
def test_a_wrong_word_is_named_as_it_was_typed(run, here, store, words, sentence):
    (here / "pyproject.toml").touch()
    assert run(*words).sentence.startswith(sentence)
