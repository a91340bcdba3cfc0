"""`redrive demo`: failures of a day and their recovery, with real programs in a directory that is kept."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from contextlib import chdir
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from redrive.cli.command import command
from redrive.cli.exit_codes import FAILED, CommandRefused
from redrive.cli.session import Session

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_FEWEST, _MOST = 1_000, 10_000_000


@command(app)
def demo(
    session: Session,
    *,
    directory: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory of the demo; one of an earlier demo is replaced.")
    ] = Path("redrive-demo"),
    rows: Annotated[
        int, typer.Option(metavar="N", min=_FEWEST, max=_MOST, help="Number of rows in the vendor's file.")
    ] = 180_000,
) -> None:
    """Run a demonstration: a failing API, a bad file, a settlement.

    The API and the bank are servers on this machine that fail on purpose; nothing else is contacted, and nothing
    outside the directory is changed. It takes half a minute. The directory keeps the programs, the store, the warehouse
    and the delivered alerts.

    Examples: redrive demo; redrive demo --directory /tmp/demo --rows 10000
    """
    from redrive._internal.optional import require_extra
    from redrive.cli.demo.acts import DemoActs, set_aside
    from redrive.cli.demo.story import DemoNarration
    from redrive.demo.world import DemoDirectoryError, set_up

    if session.url is not None:
        raise CommandRefused(
            "--store cannot be used: the demo has a store of its own, so that yours is not changed. Remove the option"
        )
    with require_extra("rows,http"):
        import duckdb  # noqa: F401
        import httpx  # noqa: F401
        import polars  # noqa: F401
        import pydantic  # noqa: F401
    began = monotonic()
    story = DemoNarration(session.out, directory, typed=as_typed(directory))
    try:
        with set_up(directory, rows=rows), set_aside(), chdir(directory):
            story.begin()
            came_to = DemoActs(session, story, rows=rows).go()
    except DemoDirectoryError as error:
        raise CommandRefused(str(error)) from error
    story.end(came_to, seconds=monotonic() - began)
    if not came_to.is_right:
        raise typer.Exit(FAILED)


def as_typed(directory: Path) -> str:
    """Return the program as it must be typed in the demo's directory: by its path if the shell does not find it."""
    from redrive.store.store import DEFAULT

    script, found = Path(sysconfig.get_path("scripts"), "redrive"), shutil.which("redrive")
    if not script.exists():
        typed = f"{shlex.quote(sys.executable)} -m redrive.cli"
    elif found is not None and os.path.isabs(found) and os.path.samefile(found, script):
        typed = "redrive"
    else:
        typed = shlex.quote(min(os.path.relpath(script, directory), str(script), key=len))
    # Where the shell names a store, that one would be asked.
    return f"{typed} --store {DEFAULT}" if os.environ.get("REDRIVE_STORE", "").strip() else typed
