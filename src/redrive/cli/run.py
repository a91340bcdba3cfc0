"""`redrive run`: runs a pipeline or a flow, or resumes an unfinished run."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from redrive.cli.command import command
from redrive.cli.exit_codes import CommandRefused, TargetNotFound
from redrive.cli.session import Session, seconds

if TYPE_CHECKING:
    from redrive.errors import RedriveError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class RunResult(Protocol):
    """The end of a run of a pipeline or a flow."""

    @property
    def stopped(self) -> RedriveError | None:
        """Return the error that ended the run; None if it is complete."""

    @property
    def needs_attention(self) -> bool:
        """Return whether the report is also shown with --quiet."""

    def show(self, session: Session) -> None:
        """Print the report and the next steps."""


@command(app)
def run(
    session: Session,
    *,
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE_OR_MODULE:NAME",
            help="Pipeline or flow to run; without a name, the only one in the file.",
            show_default=False,
        ),
    ],
    param: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Parameter of a flow, as JSON or text; may be repeated."),
    ] = None,
    run_id: Annotated[
        str | None, typer.Option(metavar="UUID", help="Id of the flow's run to begin, resume or join.")
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Abandon an unfinished run and begin a new one.")] = False,
    new_run: Annotated[
        bool, typer.Option("--new-run", help="Begin a new run of a flow; leave an earlier one as it is.")
    ] = False,
    override_gate: Annotated[
        bool, typer.Option("--override-gate", help="Continue a run that the gate of its pipeline aborted.")
    ] = False,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Continue a pipeline although its options have changed.")
    ] = False,
    deadline: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Stop after 90 (seconds), 30min, 2h …; the command resumes.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing unless something is wrong.")] = False,
) -> None:
    """Run a pipeline or a flow, or resume a run that is not complete.

    Rejected rows and failed tasks become dead letters, and the run continues; tasks after a dead letter are blocked.
    SIGTERM and --deadline let the batch or the running tasks finish. Run the same command again to resume: finished
    tasks do not run again, failed tasks are retried, and dead letters wait for an operator's decision.

    Examples: redrive run vendor.py:pipeline; redrive run settlement.py:flow --param day=2026-11-15 --deadline 2h
    """
    options: dict[str, Any] = {} if deadline is None else {"deadline": seconds("--deadline", deadline)}
    if restart:
        options["restart"] = True
    of_rows = {"override_gate": True} if override_gate else {}
    if accept_changes:
        of_rows["accept_changes"] = True
    of_flows: dict[str, Any] = {} if not param else {"params": _params(param)}
    if run_id is not None:
        of_flows["run_id"] = run_id
    if new_run:
        of_flows["new_run"] = True
    # Output of user code must not mix with the answer.
    with redirect_stdout(sys.stderr):
        found = found_target(target)
        _remember_target(target, found)
        ending = _run(session, found, options, of_rows, of_flows, quiet=quiet)
    if not quiet or session.out.json or ending.needs_attention:
        ending.show(session)
    if ending.stopped is not None:
        raise ending.stopped


def _run(
    session: Session,
    found: Any,
    options: dict[str, Any],
    of_rows: dict[str, Any],
    of_flows: dict[str, Any],
    *,
    quiet: bool,
) -> RunResult:
    from redrive.cli import run_flow, run_rows
    from redrive.cli.targets import is_flow

    if is_flow(found):
        if of_rows:
            option = "--" + next(iter(of_rows)).replace("_", "-")
            raise CommandRefused(f"{option} is for pipelines, and {found.name} is a flow: leave it out")
        return run_flow.run(session, found, options | of_flows, quiet=quiet)
    if of_flows:
        option = {"params": "--param", "run_id": "--run-id", "new_run": "--new-run"}[next(iter(of_flows))]
        raise CommandRefused(f"{option} is for flows, and {found.name} is a pipeline: leave it out")
    return run_rows.run(session, found, options | of_rows, quiet=quiet)


# ── the target ────────────────────────────────────────────────────────────────────────────────────────────────────────


def found_target(wanted: str) -> Any:
    """Return the pipeline or flow of a target."""
    from redrive.cli.targets import can_run, load_target

    found = load_target(wanted)
    if not can_run(found):
        raise TargetNotFound(f"{wanted} is {_what(found)}, not a pipeline or a flow")
    return found


def _remember_target(wanted: str, found: Any) -> None:
    """Set the target of a pipeline, which its letters store, so that a replay finds it without its name."""
    from redrive.cli.targets import is_pipeline, target_of

    if is_pipeline(found):
        found.target = target_of(wanted, found)


def _what(found: Any) -> str:
    from redrive.tasks.task import Task

    if isinstance(found, Task):
        return f"a task of flow {found.flow.name!r}"
    return "a class" if isinstance(found, type) else f"a {type(found).__name__}"


# ── parameters ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _params(given: Sequence[str]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for one in given:
        name, equals, text = one.partition("=")
        name = name.strip()
        if not (equals and name):
            raise CommandRefused(f"--param is NAME=VALUE, such as day=2026-11-15, not {one!r}")
        if name in params:
            raise CommandRefused(f"--param {name} is given twice; a parameter has one value")
        params[name] = read_value(text)
    return params


def read_value(text: str) -> Any:
    """Return the value of JSON; the text itself if it is not JSON, as NaN."""
    try:
        return json.loads(text, parse_constant=lambda name: name)
    except (ValueError, RecursionError):
        return text
