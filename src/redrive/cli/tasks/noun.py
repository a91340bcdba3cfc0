"""The noun `tasks`, to which the files beside this one add their commands, and the run that they are about."""

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
        help="Of this run, by its id or the beginning of it, or of a flow's newest one; else the newest of all.",
    ),
]


def run_of(store: Store, run: str | None) -> FlowReport:
    """The run that is meant; the newest, where none was named."""
    if run is not None:
        return store.tasks.run(run)
    newest = store.tasks.runs(limit=1)
    if not newest:
        raise CommandRefused("no flow has run yet; run one with `redrive run FILE:NAME`")
    return newest[0]
