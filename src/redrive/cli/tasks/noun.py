"""The group `tasks`, to which the other files of this package add commands, and the option for the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from redrive.cli.command import noun
from redrive.cli.exit_codes import CommandRefused

if TYPE_CHECKING:
    from redrive.model.tasks import FlowReport
    from redrive.store.store import Store

app = noun("List, show, retry and resolve tasks of flows.", bare="ls")

RunOption = Annotated[
    str | None,
    typer.Option(
        "--run",
        metavar="RUN_OR_FLOW",
        help="Run: its id, the beginning of it, or a flow for its newest run. [default: the newest run]",
    ),
]


def run_of(store: Store, run: str | None) -> FlowReport:
    """Return the run of an option; the newest, where it is None."""
    if run is not None:
        return store.tasks.run(run)
    newest = store.tasks.runs(limit=1)
    if not newest:
        raise CommandRefused("there is no run of a flow yet. Start one with `redrive run FILE:NAME`")
    return newest[0]
