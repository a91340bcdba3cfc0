"""`redrive init`: a small project to begin with."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from redrive.cli.command import command
from redrive.cli.exit_codes import CommandRefused, Unwritten
from redrive.cli.session import Session
from redrive.config import FILE

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_PIPELINE = '''\
"""Loads deliveries.csv into a table of SQLite. Rows that do not pass `validate` become dead letters."""

import redrive


def validate(record):
    return {**record, "fee": float(record["fee"])}


pipeline = redrive.Pipeline(
    "deliveries",
    source=redrive.rows.csv("deliveries.csv"),
    validate=validate,
    sink=redrive.rows.table("sqlite:///warehouse.db", "deliveries", key="delivery_id", create=True),
)
'''

_ROWS = """\
delivery_id,city,fee
D-1,Pune,12.50
D-2,Delhi,9.90
D-3,Pune,N/A
D-4,Mumbai,15.00
D-5,Delhi,7.25
"""

_SETTINGS = """\
[store]
url = ".redrive/redrive.db"    # letters, runs and checkpoints; a path is relative to this file

[letters]
redact = []                    # fields that are masked wherever a letter is shown, such as "card_number"
"""

_FILES = {"pipeline.py": _PIPELINE, "deliveries.csv": _ROWS, FILE: _SETTINGS}


@command(app, accept_invalid=True)
def init(
    session: Session,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory of the project; created if it does not exist.")
    ] = Path(),
) -> None:
    """Write a small sample project: a pipeline, a CSV file with one row that is rejected, and redrive.toml.

    No file is overwritten: if one of the three exists, nothing is written.

    Examples: redrive init; redrive init deliveries
    """
    existing = [name for name in _FILES if (directory / name).exists() or (directory / name).is_symlink()]
    if existing:
        raise CommandRefused(
            f"cannot create a project in {directory}: {', '.join(existing)} exist{'s' if len(existing) == 1 else ''}. "
            "Name another directory. Nothing was written"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in _FILES.items():
            with (directory / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise Unwritten(Path(error.filename or directory), error, is_left=True) from None
    out = session.out
    if out.json:
        out.document({"directory": str(directory), "files": list(_FILES)})
    out.say(f"created {', '.join(str(directory / name) for name in _FILES)}")
    enter = [] if directory.resolve() == Path.cwd() else [("enter the project", f"cd {shlex.quote(str(directory))}")]
    out.next_steps(
        [
            *enter,
            ("validate the settings and the pipeline", "redrive check pipeline.py"),
            ("run the pipeline", "redrive run pipeline.py"),
            ("rejected rows by cause", "redrive dlq causes"),
        ]
    )
