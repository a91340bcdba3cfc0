"""The page about commands: every one, with its arguments and options, as the program itself knows them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

from typer.main import get_command

from redrive.cli.app import NOUNS, VERBS, app
from redrive.cli.command import examples_of, without_examples
from redrive.cli.letter_options import Selection
from redrive.cli.session import CommonOptions

INTRO = (
    "Every command with its arguments and options, as `--help` prints them. "
    "[The command line](../command-line.md) has examples and the exit codes."
)
_COMMON = {one.name for one in fields(CommonOptions)}
_SELECTION = {one.name for one in fields(Selection)}
_NAMED_DEFAULTS = {".": "the current directory", "-": "stdout"}


class Commands:
    """The page. What nobody has written down is `missing`."""

    def __init__(self) -> None:
        self.missing: list[str] = []
        self._program = get_command(app)

    def text(self) -> str:
        """The whole page."""
        parts = ["# Commands", INTRO, "## Options of every command", "They may also be placed before the command."]
        parts.append(self._table("redrive", self._program.params))
        parts += ["## Options that select letters", "A letter must match all of them."]
        listing = self._program.get_command(None, "dlq").commands["ls"]
        parts.append(self._table("dlq ls", [one for one in listing.params if one.name in _SELECTION]))
        for verb in VERBS:
            parts += self._command(verb, self._program.get_command(None, verb), "##")
        for noun in NOUNS:
            group = self._program.get_command(None, noun)
            parts += [f"## `redrive {noun}`", *_paragraphs(group.help)]
            for verb, command in group.commands.items():
                parts += self._command(f"{noun} {verb}", command, "###")
        return "\n\n".join(parts) + "\n"

    def _command(self, words: str, command: Any, heading: str) -> Iterator[str]:
        names = {one.name for one in command.params}
        selects = names >= _SELECTION
        own = [one for one in command.params if one.name not in _COMMON and not (selects and one.name in _SELECTION)]
        arguments = [_usage(one) for one in command.params if one.param_type_name == "argument"]
        yield f"{heading} `redrive {words}`"
        yield f"```text\nredrive {words} {' '.join(['[OPTIONS]', *arguments])}\n```"
        if not command.help:
            self.missing.append(f"redrive {words} has no help")
        yield from _paragraphs(without_examples(command.help or ""))
        if examples := examples_of(command.help or ""):
            yield "```text\n" + "\n".join(examples) + "\n```"
        if own:
            yield self._table(words, own)
        if selects:
            yield "The letters are selected by the [options that select letters](#options-that-select-letters)."

    def _table(self, words: str, parameters: Iterable[Any]) -> str:
        lines = ["| option | meaning |", "|---|---|"]
        for one in parameters:
            is_option = one.param_type_name == "option"
            if one.name in {"install_completion", "show_completion"} or one.hidden:
                continue
            meaning = " ".join((one.help or "").split())
            if not meaning:
                self.missing.append(f"redrive {words} does not say what {one.opts[0]} is")
            name = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts)) if is_option else ""
            takes = "" if is_option and one.is_flag else f"`{_value(one)}`"
            said = f"{meaning}{_default(one)}".replace("|", "&#124;")
            lines.append(f"| {' '.join(part for part in (name, takes) if part)} | {said} |")
        return "\n".join(lines)


def _value(one: Any) -> str:
    return str(one.metavar or one.name.upper())


def _usage(one: Any) -> str:
    """An argument in the line that says how a command is typed."""
    value = _value(one) + ("..." if one.nargs < 0 else "")
    return value if one.required else f"[{value}]"


def _default(one: Any) -> str:
    if one.required:
        return " Required."
    if one.default in (None, False, (), [], "") or callable(one.default):
        return ""
    if getattr(one, "is_flag", False):
        name = (one.opts if one.default else one.secondary_opts)[0]
        return f" Default: `{name}`."
    return f" Default: {_NAMED_DEFAULTS.get(one.default, one.default)}."


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        yield " ".join(paragraph.replace("\b", "").split())
