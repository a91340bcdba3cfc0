"""Makes commands of plain functions.

A function takes a `Session`, a `Selection` and options of its own. The first two become the options that commands
share.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, TypeVar, cast, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

import redrive
from redrive.cli.exit_codes import UserCodeExited, on_broken_pipe
from redrive.cli.letter_options import Selection
from redrive.cli.session import CommonOptions, Session

F = TypeVar("F", bound=Callable[..., None])


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"redrive {redrive.__version__}")
        raise typer.Exit


@dataclass(frozen=True, slots=True, kw_only=True)
class _Root(CommonOptions):
    """The options of the program itself."""

    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_print_version)
    ] = False


def root(app: typer.Typer) -> None:
    """Add the program's own options."""

    def start(ctx: typer.Context, **given: Any) -> None:
        _help_without_command(ctx)

    app.callback(invoke_without_command=True)(_with_options(start, [_Root]))


def refuse_repeated_options(command: TyperCommand | TyperGroup, ctx: Any, args: list[str]) -> None:
    """Refuse an option that takes one value and is given twice: one of the two would be ignored.

    A flag without an opposite may be given twice, which changes nothing.
    """
    if ctx.resilient_parsing:
        return
    given = command.make_parser(ctx).parse_args(args=list(args))[2]
    for option, times in Counter(given).items():
        if not isinstance(option, TyperOption) or option.multiple or option.count:
            continue
        if times > 1 and not (option.is_flag and not option.secondary_opts):
            raise typer.BadParameter(f"it takes one value and is given {times} times", ctx=ctx, param=option)


class _Noun(TyperGroup):
    """A group of commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options of the group, each given once."""
        refuse_repeated_options(self, ctx, args)
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with their first paragraph, wrapped."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, (one.help or "").partition("\n\n")[0]) for name, one in found if one is not None]
            )


class _Command(TyperCommand):
    """A command whose help shows the words to type instead of Python types."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options of the command, each given once unless it takes several values."""
        refuse_repeated_options(self, ctx, args)
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return required arguments without braces, which are for choices."""
        return [piece if "|" in piece else re.sub(r"[{}]", "", piece) for piece in super().collect_usage_pieces(ctx)]

    @property
    def examples(self) -> list[str]:
        """Return the examples of the help, each a command."""
        return examples_of(self.help or "")

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the help without its examples, which follow the options."""
        whole, self.help = self.help, without_examples(self.help or "")
        try:
            super().format_help_text(ctx, formatter)
        finally:
            self.help = whole

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, each on a line of its own, so that they can be copied."""
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{example}\n")
        super().format_epilog(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """List arguments by name, then options, with limits in words."""
        arguments, options = [], []
        for one in self.get_params(ctx):
            if isinstance(one, TyperArgument):
                arguments.append((one.display_name_raw, one.help or ""))
            elif (record := one.get_help_record(ctx)) is not None:
                options.append((record[0], _limits_in_words(record[1])))
        for title, found in (("Arguments", arguments), ("Options", options)):
            if found:
                with formatter.section(title):
                    formatter.write_dl(found)


_EXAMPLES = "\n\nExamples: "


def examples_of(help: str) -> list[str]:
    """Return the commands in the last paragraph of a help text."""
    _, found, listed = help.partition(_EXAMPLES)
    return re.split(r"; (?=redrive )", " ".join(listed.split())) if found else []


def without_examples(help: str) -> str:
    """Return a help text without its examples."""
    return help.partition(_EXAMPLES)[0]


def _limits_in_words(help: str) -> str:
    help = re.sub(r"(\d{1,20})<=x<=(\d{1,20})\]$", lambda found: f"{int(found[1]):,} to {int(found[2]):,}]", help)
    return re.sub(r"x>=(\d{1,20})\]$", r"\1 or more]", help)


def noun(help: str, *, bare: str | None = None) -> typer.Typer:
    """Return a group of commands. Without a command, it runs `bare` or prints the help."""
    if bare is not None:
        help = f"{help}\n\nWithout a command: `{bare}`."
    app = typer.Typer(cls=_Noun, help=help, rich_markup_mode=None, add_completion=False)

    def start(ctx: typer.Context, **given: Any) -> None:
        if bare is None or ctx.invoked_subcommand is not None:
            _help_without_command(ctx)
            return
        meant = cast("TyperGroup", ctx.command).commands[bare]
        with meant.make_context(bare, [], parent=ctx) as context:
            meant.invoke(context)

    app.callback(invoke_without_command=True)(_with_options(start, [CommonOptions]))
    return app


def command(app: typer.Typer, name: str | None = None, *, accept_invalid: bool = False) -> Callable[[F], F]:
    """Return a decorator that adds a function to a group; the function itself is unchanged.

    Args:
        accept_invalid: call the function also where the settings cannot be used.
    """

    def decorate(function: F) -> F:
        hints = get_type_hints(function, include_extras=True)
        own = inspect.signature(function).parameters.values()
        options = [
            parameter.replace(annotation=hints[parameter.name])
            for parameter in own
            if hints[parameter.name] not in (Session, Selection)
        ]
        selects = Selection in hints.values()

        def run(ctx: typer.Context, **given: Any) -> None:
            call = {option.name: given.pop(option.name) for option in options}
            for one in CommonOptions.__dataclass_fields__:
                del given[one]  # a session finds them, and those of the groups above, in the context
            if selects:
                call["selection"] = Selection(**given)
            try:
                function(session=Session.of(ctx, accept_invalid=accept_invalid), **call)
                sys.stdout.flush()
            except BrokenPipeError:
                raise typer.Exit(on_broken_pipe()) from None
            except SystemExit as ended:  # its code, which may be 0, is not ours
                raise UserCodeExited(ended) from ended

        run.__name__, run.__doc__ = function.__name__, function.__doc__
        app.command(name or function.__name__.rstrip("_"), cls=_Command)(
            _with_options(run, [*([Selection] if selects else []), CommonOptions], options)
        )
        return function

    return decorate


def _with_options(
    function: Callable[..., None], shared: list[Any], own: list[inspect.Parameter] | None = None
) -> Callable[..., None]:
    """Set the signature that typer reads: the parameters of the function first, arguments before options."""
    parameters = [inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    parameters += [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own or []]
    for group in shared:
        parameters += _parameters(group)
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return function


@cache
def _parameters(group: Any) -> tuple[inspect.Parameter, ...]:
    """Return the fields of a group of options as parameters of a function."""
    hints, kind = get_type_hints(group, include_extras=True), inspect.Parameter.KEYWORD_ONLY
    return tuple(
        inspect.Parameter(field.name, kind, default=field.default, annotation=hints[field.name])
        for field in fields(group)
    )


def _help_without_command(ctx: typer.Context, **given: Any) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
