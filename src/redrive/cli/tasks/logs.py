"""`redrive tasks logs`: output of a task, while it runs and afterwards."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from redrive.cli.command import command
from redrive.cli.exit_codes import CommandRefused
from redrive.cli.format import counted
from redrive.cli.session import Session
from redrive.cli.tasks.noun import RunOption, app, run_of
from redrive.model.calls import format_duration
from redrive.model.tasks import State
from redrive.tasks.workers.output import live_file, read_live

if TYPE_CHECKING:
    from redrive.cli.output import Output
    from redrive.store.repositories.tasks import AttemptRow, TaskDetails
    from redrive.store.store import Store

_POLL = 0.5  # seconds between two looks at the file and the store
_OVER = (State.SUCCESS, State.SKIPPED, State.FAILED, State.UPSTREAM_FAILED, State.DEAD_LETTER)


@command(app)
def logs(
    session: Session,
    task: Annotated[
        str,
        typer.Argument(metavar="TASK", help="Task: settle, or settle[17] for a child.", show_default=False),
    ],
    run: RunOption = None,
    attempt: Annotated[
        int | None, typer.Option(metavar="N", help="Attempt to show. [default: the last one]", min=1)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new output until the task ends.")] = False,
) -> None:
    """Show what a task wrote to stdout and stderr.

    While an attempt runs, its output is read from a file beside the store, on the machine that runs it, unless
    Flow(files=…) names a shared directory. Afterwards the store has the first and last 16 KB.

    Examples: redrive tasks logs 'settle[11]' --follow; redrive tasks logs report --run settlement --attempt 1
    """
    with session.opened() as store:
        report = run_of(store, run)
        reader = _Reader(store, report.run_id, task, session.results_of(store))
        found = reader.details()
        if session.out.json:
            attempts = [
                {name: getattr(made, name) for name in ("attempt", "ended", "output")} for made in found.attempts
            ]
            session.out.document({"task": found.task.name, "run_id": str(found.task.run_id), "attempts": attempts})
        elif follow:
            reader.follow(session.out, attempt or max(1, found.task.attempts))
        else:
            _show(session.out, found, attempt)


def _show(out: Output, found: TaskDetails, attempt: int | None) -> None:
    chosen = [made for made in found.attempts if attempt is None or made.attempt == attempt][-1:]
    if not chosen:
        made = len(found.attempts)
        raise CommandRefused(
            f"task {found.task.name!r} has {counted(made, 'attempt')}; --attempt must be one of them"
            if made
            else f"task {found.task.name!r} has not run yet: there is no output"
        )
    (one,) = chosen
    out.say(_heading(one))
    if one.output:
        out.text(one.output.removesuffix("\n"))


def _heading(one: AttemptRow) -> str:
    took = "" if one.seconds is None else f" after {format_duration(one.seconds)}"
    return f"attempt {one.attempt}, {(one.ended or 'is running').replace('_', ' ')}{took}"


def with_live_output(found: TaskDetails, directory: Path) -> TaskDetails:
    """Return the task with the output of the attempt that is running, where its file is here."""
    attempts = tuple(
        attempt
        if attempt.ended is not None
        else replace(attempt, output=read_live(_file(found, attempt.attempt, directory)))
        for attempt in found.attempts
    )
    return replace(found, attempts=attempts)


def _file(found: TaskDetails, attempt: int, directory: Path) -> Path:
    return live_file(directory, found.task.run_id, found.task.id, attempt)


class _Reader:
    """Reads the output of one task, from its file while it runs, else from the store."""

    def __init__(self, store: Store, run_id: object, task: str, directory: Path) -> None:
        from redrive.cli.tasks.view import TaskView

        self._store, self._run_id, self._task, self._directory = store, str(run_id), task, directory
        self._view = TaskView(store)

    def details(self) -> TaskDetails:
        """Return the task with its attempts, and their output with secrets masked."""
        found = with_live_output(self._store.tasks.get(self._run_id, self._task), self._directory)
        shown = [replace(attempt, output=self._view.text(attempt.output, found.input)) for attempt in found.attempts]
        return replace(found, attempts=tuple(shown))

    def follow(self, out: Output, attempt: int) -> None:
        """Print one attempt after the other, until the task ends."""
        shown = ""
        announced = 0
        while True:
            found = self.details()
            one = next((one for one in found.attempts if one.attempt == attempt), None)
            if one is not None:
                if announced != attempt:
                    out.say(f"attempt {attempt}")
                    announced = attempt
                shown = _show_more(out, shown, one.output or "")
            if one is not None and one.ended is not None:
                out.say(_heading(one))
                attempt, shown = attempt + 1, ""
                if attempt <= found.task.attempts:
                    continue
            if found.task.state in _OVER:
                return
            time.sleep(_POLL)


def _show_more(out: Output, shown: str, output: str) -> str:
    """Show what has come since; where the middle was left out by the store, what is there from then on."""
    if output.startswith(shown):
        more = output[len(shown) :]
    else:
        more = output.rpartition(" bytes left out …\n")[2] if "bytes left out" in output else ""
    if more:
        out.text(more.removesuffix("\n"))
        sys.stdout.flush()
    return output if output.startswith(shown) else shown
