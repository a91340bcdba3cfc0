"""`redrive tasks retry`, `accept`, `skip`, `fail` and `reopen`: what becomes of tasks that went wrong."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive.cli.command import command
from redrive.cli.dlq.resolve import Yes, confirm
from redrive.cli.exit_codes import CommandRefused
from redrive.cli.flow_report import in_words_again
from redrive.cli.format import counted
from redrive.cli.session import Session
from redrive.cli.tasks.noun import RunOption, app, run_of
from redrive.model.tasks import FlowStatus, State

if TYPE_CHECKING:
    from redrive.model.tasks import FlowReport
    from redrive.tasks.operator.actions import OperatorAction

_Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="TASK", help="These tasks: settle with all its children, settle[17].", show_default=False),
]
_Cause = Annotated[
    str | None, typer.Option("--cause", metavar="CAUSE", help="All of this cause, or the beginning of one.")
]
_Note = Annotated[str, typer.Option("--note", metavar="TEXT", help="Why; it stays with the task.", show_default=False)]
_MaybeNote = Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Why; it stays with the task.")]

_DONE = {"retry": "sent back", "accept": "accepted", "skip": "skipped", "fail": "failed", "reopen": "reopened"}


_NAMED = 5  # tasks that a command names one by one


@dataclass(frozen=True, slots=True)
class _TaskSelection:
    """The tasks that are meant."""

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
    """Send tasks back that failed, once the cause is fixed, and try those now that wait for their next attempt.

    All of them have all their attempts again.

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
    result: Annotated[
        str | None, typer.Option(metavar="JSON", help="The result to go on with; null, where nothing is said.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Take tasks as done, so that what comes after them runs."""
    value = None if result is None else _json(result)
    decided = _decide(session, "accept", _TaskSelection.of(tasks, cause, run), yes=yes, note=note, result=value)
    children = [name for name in decided.tasks if name.endswith("]")]
    if result is None and children:
        names = shlex.join(children) if len(children) <= _NAMED else "…"
        where = f"--run {str(decided.run_id)[:8]}"
        session.out.say(
            "without --result, the list of results that comes after has null for "
            f"{children[0] if len(children) == 1 else counted(len(children), 'child')}; to leave it out instead: "
            f"redrive tasks reopen {names} {where} && redrive tasks skip {names} {where} --note …"
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
    """Leave children of a fan-out out: what comes after it is given the results of the others.

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
    """Take a decision back, while nothing that comes after the task is done: it is a dead letter again.

    Examples: redrive tasks reopen 'settle[2]'; redrive tasks reopen report --run settlement --note "wrong figure"
    """
    from redrive.tasks.operator.reopen import reopen as reopened

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
    """Give tasks up: what comes after them does not run."""
    _decide(session, "fail", _TaskSelection.of(tasks, cause, run), yes=yes, note=note)


def _decide(session: Session, verb: str, which: _TaskSelection, *, yes: bool, **said: Any) -> OperatorAction:
    from redrive.tasks.operator import actions

    if not which.names and which.cause is None:
        raise CommandRefused(f"say which tasks to {verb}: by their names, or by --cause; `redrive tasks ls` shows both")
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
        decided: OperatorAction = getattr(actions, verb)(store, run_id, which.names, cause=which.cause, **said)
        report = store.tasks.run(run_id)
    _report(session, decided, verb)
    say_how_to_go_on(session, report)
    return decided


def say_how_to_go_on(session: Session, report: FlowReport) -> None:
    """What makes the run go on after a decision."""
    if report.status is FlowStatus.RUNNING:
        session.out.say("whoever is running it goes on with that; if nobody is, running it again does")
    else:
        session.out.say(f"to go on from there: {in_words_again(report)}")


def _report(session: Session, decided: OperatorAction, verb: str) -> None:
    out = session.out
    if out.json:
        changed = {"tasks": decided.tasks, "freed": decided.freed, "upstream_failed": decided.upstream_failed}
        out.document({"flow": decided.flow, "run_id": str(decided.run_id), **changed})
    out.say("; ".join(_changed(decided, verb)))


def _changed(decided: OperatorAction, verb: str) -> list[str]:
    which = decided.tasks[0] if len(decided.tasks) == 1 else counted(len(decided.tasks), "task")
    said = [f"{_DONE[verb]} {which} of {decided.flow}, run {str(decided.run_id)[:8]}"]
    if decided.freed:
        then = "wait again" if verb == "reopen" else "may run again"
        said.append(f"{counted(decided.freed, 'task')} further down {then}")
    if decided.upstream_failed:
        said.append(f"{counted(decided.upstream_failed, 'task')} further down will not run")
    return said


def _ask(session: Session, verb: str, which: _TaskSelection, found: dict[State, int]) -> None:
    """Let a person see how many tasks are meant, before anything is changed; who names each of them is not asked."""
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
    """NaN and Infinity: Python reads them, and JSON has none."""
    raise ValueError(name)


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise CommandRefused(
            f"""--result is JSON, such as 12, [], {{"paid": 0}} or '"text"', not {text!r}; nothing was changed"""
        ) from None
