"""The `--help` of every command: arguments, options and examples."""

import re
import shlex

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


def test_help_shows_no_python_types_and_no_inequalities(helped):
    for words in commands():
        assert not re.search(r"<(?:str|int|list|float|bool)|x[<>]=|<=x", helped(*words)), words


def test_required_arguments_are_bare_and_optional_in_brackets(helped):
    assert "Usage: redrive runs show [OPTIONS] RUN_OR_NAME Show one run" in helped("runs", "show")
    assert "Usage: redrive tasks ls [OPTIONS] [RUN_OR_FLOW] List" in helped("tasks", "ls")
    assert "Usage: redrive alerts test [OPTIONS] {P1|P2|P3} Send" in helped("alerts", "test")
    assert "Arguments: ID Ids of alerts. Options:" in helped("alerts", "ack")


def test_limits_are_written_out(helped):
    assert "[default: 20; 1 to 1,000,000,000]" in helped("runs", "ls")
    assert "[default: 1; 1 or more]" in helped("tasks", "backfill")
    assert "[default: 180000; 1,000 to 10,000,000]" in helped("demo")


def leaf_commands():
    """Every command that is no group."""
    program = get_command(app)
    for name in COMMANDS:
        found = program.get_command(None, name)
        members = getattr(found, "commands", None)
        for words, command in [([name, one], members[one]) for one in members] if members else [([name], found)]:
            yield pytest.param(words, command, id=" ".join(words))


@pytest.mark.parametrize(("words", "command"), [*leaf_commands()])
class TestExamples:
    def test_every_command_has_two_of_its_own(self, words, command):
        assert len(command.examples) == 2
        own = " ".join(["redrive", *words])
        assert all(example == own or example.startswith((f"{own} ", f"{own} |")) for example in command.examples)

    def test_examples_use_options_that_exist(self, words, command):
        options = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
        for example in command.examples:
            typed = [word for word in shlex.split(example) if word.startswith("-") and word != "-"]
            assert set(typed) <= options, example

    def test_every_option_is_a_sentence(self, words, command):
        for one in command.params:
            if (text := getattr(one, "help", None)) and "ompletion" not in text:
                assert text[:1].isupper() or text[:1] == "-", (words, one.name, text)


@pytest.mark.parametrize("noun", NOUNS)
def test_noun_has_the_same_help_in_the_program_and_itself(helped, noun):
    assert NOUNS[noun] in helped(noun)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["runs", "ls", "--limit", "0"], "invalid value for '--limit': it must be greater than or equal to 1; see"),
        (["dlq", "show", "x"], "invalid value for 'ID': it must be a valid integer; see `redrive dlq show --help`"),
        (["run", "pyproject.toml"], "pyproject.toml is not a Python file: write FILE:NAME"),
    ],
)
def test_unknown_command_is_named_as_typed(run, here, store, words, sentence):
    (here / "pyproject.toml").touch()
    assert run(*words).sentence.startswith(sentence)
