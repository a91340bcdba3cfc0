"""The program: its commands, loaded on first use, and the one place where an error becomes an exit code."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from redrive._internal.interrupts import Terminated, interrupt_behind
from redrive.cli import exit_codes, say_interrupted
from redrive.cli.command import refuse_repeated_options, root
from redrive.cli.format import FAILURE, in_a_line, one_line, paint

VERBS = {
    "init": "Write a small sample project.",
    "check": "Validate settings, targets and policies without running them.",
    "run": "Run a pipeline or a flow, or resume a run that is not complete.",
    "status": "Show the last runs, open alerts, open letters and services with trouble.",
    "watch": "Evaluate alert conditions for a store, and deliver alerts.",
    "explain": "Explain how redrive handles an error, or what a policy amounts to.",
    "demo": "Run a demonstration: a failing API, a bad file, a settlement.",
}
NOUNS = {
    "runs": "List, show and cancel runs of pipelines and flows.",
    "tasks": "List, show, retry and resolve tasks of flows.",
    "dlq": "List, show, edit, replay and resolve dead letters.",
    "alerts": "List, acknowledge and resolve alerts; test channels.",
    "services": "List services with their circuits and exhausted keys; reset them.",
    "store": "Show, migrate and purge the store.",
    "observe": "Print a Grafana dashboard and Prometheus alert rules.",
    "config": "Show the settings and where each comes from.",
    "simulate": "Simulate what a policy does to a service under load or after an outage.",
}
COMMANDS = VERBS | NOUNS

# What calls a command: a warning that points there points nowhere.
_FRAMEWORK = {os.path.dirname(str(module.__file__)) for module in (typer, typer.core)}

# Public by their child alone, in click as in the copy of it that typer brings.
_UsageError, _ClickException = cast("tuple[type[Any], type[Any]]", typer.BadParameter.__mro__[1:3])


class Program(TyperGroup):
    """Root of the commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options before the command, each given once."""
        refuse_repeated_options(self, ctx, args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return all groups and commands."""
        return [*COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a group or a command."""
        if cmd_name not in self.commands and cmd_name in COMMANDS:
            made = get_command(import_module(f"redrive.cli.{cmd_name}").app)
            made.name = cmd_name
            self.commands[cmd_name] = made
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command of a word; suggestions for a mistyped one need all commands loaded."""
        if args and args[0] not in COMMANDS:
            for name in COMMANDS:
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands without loading them: `redrive --help` answers at once."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def main(self, args: Sequence[str] | None = None, *_: Any, **extra: Any) -> Any:
        """Run, and end the process with the right code."""
        words = list(sys.argv[1:] if args is None else args) or ["--help"]
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # A character that the terminal cannot show is shown by its escape.
                stream.reconfigure(errors="backslashreplace")
        if logging.lastResort is not None:
            logging.lastResort.addFilter(_is_no_interrupt)
        extra = {**extra, "prog_name": "redrive", "standalone_mode": False, "obj": {"words": words}}
        try:
            with _plain_warnings():
                code = super().main(words, **extra) or exit_codes.DONE
            sys.stdout.flush()
        except BrokenPipeError:
            code = exit_codes.on_broken_pipe()
        except (KeyboardInterrupt, typer.Abort):
            code = exit_codes.INTERRUPTED
        except Exception as error:
            if (interrupt := interrupt_behind(error)) is not None:
                raise interrupt from None
            code = _report(error, debug="--debug" in words)
            exit_codes.drop_unwritable_output()
        if code == exit_codes.INTERRUPTED:
            say_interrupted(KeyboardInterrupt())
        sys.exit(code)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show a warning of ours in one line, and where only if that is a line of the user's."""
    from redrive.errors import PolicyWarning

    before = warnings.showwarning

    def show(message: Any, category: type[Warning], filename: str, lineno: int, *rest: Any, **more: Any) -> None:
        if not issubclass(category, PolicyWarning):
            before(message, category, filename, lineno, *rest, **more)
            return
        here = "" if os.path.dirname(filename) in _FRAMEWORK else f"{filename}, line {lineno}: "
        _say(f"warning: {here}{message}")

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Return whether a record is no interrupt. SQLAlchemy logs a signal that arrives while it closes a connection."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, KeyboardInterrupt | Terminated)


def _report(error: Exception, *, debug: bool) -> int:
    if isinstance(error, _ClickException):
        message = _as_a_clause(error.format_message())
        context = getattr(error, "ctx", None)
        see = ""
        if context is not None:
            see = f"{' See' if message.endswith('?') else '; see'} `{context.command_path} --help`"
        _say(f"{message[:1].lower()}{message[1:]}{see}")
        return exit_codes.USAGE
    if debug:
        from redrive._internal.masked_errors import masked_traceback

        sys.stderr.write(masked_traceback(error))
    _say(in_a_line(exit_codes.sentence(error)))
    return exit_codes.exit_code(error)


def _as_a_clause(text: str) -> str:
    """Return a message of click or pydantic as a clause of ours, without its full stop."""
    text = text.replace("\n", " ").replace(". Did you mean", ", did you mean")
    text = text.replace(": Input should be ", ": it must be ").partition(", unable to parse ")[0]
    return text.rstrip(". ")


def _say(text: str) -> None:
    from redrive._internal.masking import mask

    line = f"redrive: {one_line(mask(text))}"
    if sys.stderr.isatty():
        from redrive.cli.output import wrapped_prose

        line = wrapped_prose(line)
    sys.stderr.write(f"{paint('redrive:', FAILURE, sys.stderr)}{line.removeprefix('redrive:')}\n")


app = typer.Typer(
    name="redrive",
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Run data pipelines and flows, and handle their failures: see what failed and why, fix it, replay it.",
    epilog="Exit codes: 0 done, 64 usage, 65 too many rejected rows, 69 a service is down, 70 failed, "
    "75 try again later, 77 credentials.",
)
root(app)
