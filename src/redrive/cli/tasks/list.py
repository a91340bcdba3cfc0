"""`redrive tasks ls`: the tasks of a run, and the causes of its failures."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive.cli.command import command
from redrive.cli.exit_codes import CommandRefused
from redrive.cli.flow_report import did, document, resume_steps, steps_to_decide, where_it_is
from redrive.cli.format import ago, in_a_line, style_of
from redrive.cli.output import Column
from redrive.cli.session import Limit, Session
from redrive.cli.tasks.noun import RunOption, app, run_of
from redrive.model.calls import format_duration
from redrive.model.tasks import FlowStatus, State

if TYPE_CHECKING:
    from redrive.store.repositories.tasks import TaskRow

_CAUSE_COLUMNS = (
    Column(title="cause", least=16),
    Column(title="task", least=12),
    Column(title="tasks", right=True),
    Column(title="untried", right=True, drop=1),
    Column(title="error", least=30, wrap=True),
)


def _if_any(count: int | None) -> str:
    return f"{count:,}" if count else ""


# A narrow terminal keeps the error, then the progress of a fan-out.
_TASK_COLUMNS = (
    Column(title="task", least=16),
    Column(title="state", style=style_of),
    Column(title="children", show=_if_any, right=True, drop=3),
    Column(title="done", show=_if_any, right=True, drop=2),
    Column(title="dead", show=_if_any, right=True, drop=4),
    Column(title="failed", show=_if_any, right=True, drop=5),
    Column(title="attempts", show=_if_any, right=True, drop=6),
    Column(title="started", show=ago, drop=8),
    Column(
        title="duration", show=lambda seconds: "" if seconds is None else format_duration(seconds), right=True, drop=7
    ),
    Column(title="due", show=ago, drop=1),
    Column(title="cause", hidden=True),
    Column(title="error", show=in_a_line, drop=1, least=24),
    Column(title="note", show=in_a_line, drop=9, least=12),
)


@command(app)
def ls(
    session: Session,
    *,
    which: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN_OR_FLOW",
            help="Run: its id, its beginning, or a flow for its newest run. [default: the newest run]",
            show_default=False,
        ),
    ] = None,
    run: RunOption = None,
    state: Annotated[
        str | None,
        typer.Option(metavar="STATE", help="Only tasks in this state: pending, running, retrying, dead_letter …"),
    ] = None,
    cause: Annotated[
        str | None, typer.Option(metavar="CAUSE", help="Only tasks that failed for this cause, or the beginning of it.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this task; a fan-out includes its children.")
    ] = None,
    children: Annotated[bool, typer.Option("--children", help="Include the children of all fan-outs.")] = False,
    limit: Limit = 50,
) -> None:
    """List the tasks of a run, in the order of the flow, with the causes of failures first.

    A fan-out is one line; --task, --state, --cause and --children list its children.

    Examples: redrive tasks ls settlement; redrive tasks ls --run c94c0e1a --state dead_letter
    """
    from redrive.cli.tasks.view import TaskView

    if run is not None and which is not None and run != which:
        raise CommandRefused(f"{which!r} and --run {run!r} name two runs. Name one of them")
    wanted = {"state": None if state is None else _state(state), "cause": cause, "name": task}
    narrowed = any(value is not None for value in wanted.values())
    with session.opened() as store:
        report = run_of(store, run or which)
        found = store.tasks.find(report.run_id, **wanted, children=children or narrowed, limit=limit + 1)
        view = TaskView(store)
        causes = view.causes(report.run_id)
        shown = view.tasks(found[:limit])
    out = session.out
    if out.json:
        out.document({"run": document(report, causes), "tasks": shown})
    elif out.terminal:
        out.text(f"{report.flow}, run {str(report.run_id)[:8]}, {report.status}: {did(report)}\n")
        if causes and not narrowed:
            out.table(_CAUSE_COLUMNS, [[cause[column.title] for column in _CAUSE_COLUMNS] for cause in causes])
            out.text("")
    if not out.json:
        out.table(_TASK_COLUMNS, [_row(*cells) for cells in zip(found, shown, strict=False)])
    if not found:
        out.say("no tasks that match")
    steps = [("list more tasks", session.again_with("--limit", limit * 5))] if len(found) > limit else []
    if causes and not narrowed and report.status is not FlowStatus.ABANDONED:
        steps += [*steps_to_decide(causes, where_it_is(report, session.url)), *resume_steps(report, causes)]
    out.next_steps(steps)


def _row(task: TaskRow, shown: dict[str, Any]) -> list[Any]:
    fan_out = task.children is not None
    waits = task.state in (State.RETRYING, State.SENSING)
    due: datetime | None = task.due_at if waits else None
    return [
        task.name,
        task.state,
        task.children,
        (task.children or 0) - task.remaining - task.dead - task.failed if fan_out else None,
        task.dead if fan_out else None,
        task.failed if fan_out else None,
        None if fan_out else task.attempts,
        task.started_at,
        shown["seconds"],
        due,
        task.cause,
        shown["error"],
        shown["note"],
    ]


def _state(value: str) -> State:
    """Return a state from an option, such as dead-letter or RUNNING."""
    wanted = value.strip().upper().replace("-", "_").replace(" ", "_")
    if wanted not in set(State):
        raise CommandRefused(f"--state {value!r} is not a state of a task. It must be one of {', '.join(State)}")
    return State(wanted)
