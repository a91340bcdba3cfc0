"""`redrive tasks retry`, `accept`, `skip`, `fail`, `reopen`, `rerun` and `cancel`: decisions about tasks."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive.cli.command import command
from redrive.cli.dlq.resolve import Yes, confirm
from redrive.cli.exit_codes import CommandRefused
from redrive.cli.flow_report import resume_steps
from redrive.cli.format import counted
from redrive.cli.session import Session
from redrive.cli.tasks.noun import RunOption, app, run_of
from redrive.model.tasks import FlowStatus, State

if TYPE_CHECKING:
    from redrive.model.tasks import FlowReport
    from redrive.tasks.operator.actions import OperatorAction

_Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="TASK", help="Tasks: settle with all its children, settle[17].", show_default=False),
]
_Cause = Annotated[
    str | None,
    typer.Option("--cause", metavar="CAUSE", help="All tasks that failed for this cause, or the beginning of it."),
]
_Note = Annotated[str, typer.Option("--note", metavar="TEXT", help="Reason, stored with the task.", show_default=False)]
_MaybeNote = Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Reason, stored with the task.")]

_DONE = {"retry": "will retry", "accept": "accepted", "skip": "skipped", "fail": "failed", "reopen": "reopened"}


_NAMED = 5  # tasks that a command names one by one


@dataclass(frozen=True, slots=True)
class _TaskSelection:
    """A selection of tasks, by name or by cause."""

    names: tuple[str, ...]
    cause: str | None
    run: str | None

    @classmethod
    def of(cls, tasks: list[str] | None, cause: str | None, run: str | None) -> _TaskSelection:
        return cls(tuple(dict.fromkeys(tasks or ())), cause, run)


@command(app)
def retry(
    session: Session,
    *,
    tasks: _Names = None,
    cause: _Cause = None,
    run: RunOption = None,
    note: _MaybeNote = None,
    yes: Yes = False,
) -> None:
    """Retry failed tasks, once the cause is fixed, and tasks that wait for their next attempt.

    Each has all its attempts again.

    Examples: redrive tasks retry 'settle[2]'; redrive tasks retry --cause ConnectionError --note "the bank is up"
    """
    _decide(session, "retry", _TaskSelection.of(tasks, cause, run), yes=yes, note=note)


@command(app)
def accept(
    session: Session,
    *,
    tasks: _Names = None,
    cause: _Cause = None,
    run: RunOption = None,
    note: _Note,
    result: Annotated[str | None, typer.Option(metavar="JSON", help="Result of the tasks. [default: null]")] = None,
    yes: Yes = False,
) -> None:
    """Accept failed tasks as done, so that downstream tasks run.

    Examples: redrive tasks accept report --result 0 --note "no deliveries today";
    redrive tasks accept 'settle[3]' --note "paid by hand"
    """
    value = None if result is None else _json(result)
    decided = _decide(session, "accept", _TaskSelection.of(tasks, cause, run), yes=yes, note=note, result=value)
    children = [name for name in decided.tasks if name.endswith("]")]
    if result is None and children:
        names = shlex.join(children) if len(children) <= _NAMED else "…"
        where = f"--run {str(decided.run_id)[:8]}"
        which = children[0] if len(children) == 1 else counted(len(children), "child", "children")
        session.out.say(f"without --result, downstream tasks receive null for {which}")
        session.out.next_steps(
            [
                ("to skip instead, reopen", f"redrive tasks reopen {names} {where}"),
                ("and then skip", f"redrive tasks skip {names} {where} --note …"),
            ]
        )


@command(app)
def skip(
    session: Session,
    *,
    tasks: _Names = None,
    cause: _Cause = None,
    run: RunOption = None,
    note: _Note,
    yes: Yes = False,
) -> None:
    """Skip failed children of a fan-out: downstream tasks receive the results of the others.

    Examples: redrive tasks skip 'settle[2]' --note "left in October"; redrive tasks skip --cause LookupError --note "…"
    """
    _decide(session, "skip", _TaskSelection.of(tasks, cause, run), yes=yes, note=note)


@command(app)
def reopen(
    session: Session,
    *,
    tasks: Annotated[
        list[str],
        typer.Argument(metavar="TASK", help="Tasks that were accepted, skipped or failed.", show_default=False),
    ],
    run: RunOption = None,
    note: _MaybeNote = None,
) -> None:
    """Reopen accepted, skipped or failed tasks as dead letters, while no downstream task is done.

    Examples: redrive tasks reopen 'settle[2]'; redrive tasks reopen report --run settlement --note "wrong figure"
    """
    from redrive.tasks.operator.rerun import reopen as reopened

    with session.opened() as store:
        run_id = run_of(store, run).run_id
        decided = reopened(store, run_id, tuple(dict.fromkeys(tasks)), note=note)
    _report(session, decided, "reopen")


@command(app)
def fail(
    session: Session,
    *,
    tasks: _Names = None,
    cause: _Cause = None,
    run: RunOption = None,
    note: _Note,
    yes: Yes = False,
) -> None:
    """Fail tasks for good: downstream tasks do not run.

    Examples: redrive tasks fail report --note "not needed"; redrive tasks fail --cause LookupError --note "no account"
    """
    _decide(session, "fail", _TaskSelection.of(tasks, cause, run), yes=yes, note=note)


def _decide(session: Session, verb: str, which: _TaskSelection, *, yes: bool, **options: Any) -> OperatorAction:
    from redrive.tasks.operator import actions

    if not which.names and which.cause is None:
        raise CommandRefused(
            f"no tasks to {verb}: none was named. Pass names of tasks or --cause; `redrive tasks ls` lists both"
        )
    with session.opened() as store:
        run_id = run_of(store, which.run).run_id
        if not yes:
            states = actions.CAN_RETRY if verb == "retry" else actions.WRONG
            _ask(
                session,
                verb,
                which,
                actions.count_concerned(store, run_id, which.names, cause=which.cause, states=states),
            )
        decided: OperatorAction = getattr(actions, verb)(store, run_id, which.names, cause=which.cause, **options)
        report = store.tasks.run(run_id)
    _report(session, decided, verb)
    show_how_to_resume(session, report)
    return decided


def show_how_to_resume(session: Session, report: FlowReport) -> None:
    """Print how the run continues after a decision."""
    if report.status is FlowStatus.RUNNING:
        session.out.say("the executor of this run continues with it; if there is none, run the flow again")
    else:
        session.out.next_steps(resume_steps(report))


def _report(session: Session, decided: OperatorAction, verb: str) -> None:
    out = session.out
    if out.json:
        changed = {"tasks": decided.tasks, "freed": decided.freed, "upstream_failed": decided.upstream_failed}
        out.document({"flow": decided.flow, "run_id": str(decided.run_id), **changed})
    out.say("; ".join(_changed(decided, verb)))


def _changed(decided: OperatorAction, verb: str) -> list[str]:
    which = decided.tasks[0] if len(decided.tasks) == 1 else counted(len(decided.tasks), "task")
    parts = [f"{_DONE[verb]} {which} of {decided.flow}, run {str(decided.run_id)[:8]}"]
    if decided.freed:
        then = "wait again" if verb == "reopen" else "can run again"
        parts.append(f"{counted(decided.freed, 'task')} downstream {then}")
    if decided.upstream_failed:
        parts.append(f"{counted(decided.upstream_failed, 'task')} downstream will not run")
    return parts


def _ask(session: Session, verb: str, which: _TaskSelection, found: dict[State, int]) -> None:
    """Ask before more tasks change than were named one by one."""
    total = sum(found.values())
    if total <= max(1, len(which.names)):
        return
    shown = {State.DEAD_LETTER: "dead letter", State.FAILED: "failed", State.RETRYING: "retrying"}
    kinds = [
        counted(count, shown[state]) if state is State.DEAD_LETTER else f"{count:,} {shown[state]}"
        for state, count in found.items()
    ]
    confirm(session, f"{verb} {counted(total, 'task')} ({', '.join(kinds)})", total)


def _refuse_constant(name: str) -> None:
    """Reject NaN and Infinity: Python parses them, but they are not JSON."""
    raise ValueError(name)


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise CommandRefused(
            f"""--result {text!r} is not JSON. Pass JSON, such as 12, {{"paid": 0}}, '"text"'. Nothing was changed"""
        ) from None


_RequiredNames = Annotated[
    list[str],
    typer.Argument(metavar="TASK", help="Tasks: settle with all its children, settle[17].", show_default=False),
]


@command(app)
def rerun(
    session: Session,
    *,
    tasks: _RequiredNames,
    run: RunOption = None,
    note: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Reason, stored with the task.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run again; change nothing.")] = False,
    yes: Yes = False,
) -> None:
    """Run succeeded tasks again, with all downstream tasks. Idempotency keys stay the same.

    Examples: redrive tasks rerun report --dry-run; redrive tasks rerun 'settle[2]' --run settlement --note "new rate"
    """
    from redrive.tasks.operator.rerun import rerun as rerun_tasks

    out, names = session.out, tuple(dict.fromkeys(tasks))
    with session.opened() as store:
        run_id = run_of(store, run).run_id
        foreseen = rerun_tasks(store, run_id, names, dry_run=True)
        which = foreseen.tasks[0] if len(foreseen.tasks) == 1 else counted(len(foreseen.tasks), "task")
        what = f"run {which} again, and {counted(foreseen.freed, 'task')} downstream"
        total = len(foreseen.tasks) + foreseen.freed
        if not (dry_run or yes) and total > 1:
            confirm(session, what, total)
        decided = foreseen if dry_run else rerun_tasks(store, run_id, names, note=note)
        report = store.tasks.run(run_id)
    if out.json:
        changed = {"tasks": decided.tasks, "below": decided.freed, "dry_run": dry_run}
        out.document({"flow": decided.flow, "run_id": str(run_id), **changed})
    of = f"of {decided.flow}, run {str(run_id)[:8]}"
    if dry_run:
        out.say(f"would {what}, {of}. Nothing was changed")
        return
    out.say(f"{which} {of}, will run again, and {counted(decided.freed, 'task')} downstream")
    show_how_to_resume(session, report)


@command(app)
def cancel(
    session: Session,
    *,
    tasks: _RequiredNames,
    run: RunOption = None,
    note: Annotated[
        str, typer.Option("--note", metavar="TEXT", help="Reason, stored with the task.", show_default=False)
    ],
) -> None:
    """Cancel tasks that have not ended: a running task is killed, a waiting one fails. The rest of the run continues.

    Downstream tasks run or not by their trigger rule. `redrive runs cancel` cancels a whole run.

    Examples: redrive tasks cancel settle --note "wrong file"; redrive tasks cancel 'settle[2]' --note "stuck"
    """
    from redrive.tasks.operator.cancel import cancel_tasks

    out = session.out
    with session.opened() as store:
        run_id = run_of(store, run).run_id
        done = cancel_tasks(store, run_id, tuple(dict.fromkeys(tasks)), note=note)
    if out.json:
        changed = {"tasks": done.tasks, "killed": done.killed, "upstream_failed": done.upstream_failed}
        out.document({"flow": done.flow, "run_id": str(run_id), **changed})
    parts = []
    for names, how in ((done.tasks, "cancelled {}"), (done.killed, "{} will be killed within ten seconds or so")):
        if names:
            parts.append(how.format(names[0] if len(names) == 1 else counted(len(names), "task")))
    if done.upstream_failed:
        parts.append(f"{counted(done.upstream_failed, 'task')} downstream will not run")
    out.say("; ".join(parts))
