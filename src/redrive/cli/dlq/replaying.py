"""`redrive dlq replay`: letters go back through their pipeline, in rehearsal first."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive.cli.command import command
from redrive.cli.dlq.noun import app
from redrive.cli.exits import FAILED
from redrive.cli.output import Column
from redrive.cli.selecting import OPEN, Selection, what_is_there
from redrive.cli.session import Session
from redrive.cli.wording import counted
from redrive.errors import LetterError, ReplayStopped
from redrive.masking import mask

if TYPE_CHECKING:
    from redrive.dlq.due import Schedule
    from redrive.letters import ReplayReport


@command(app)
def replay(
    session: Session,
    selection: Selection,
    *,
    target: Annotated[
        str,
        typer.Option(
            metavar="FILE_OR_MODULE:NAME",
            help="What takes the records: a function, or an object with `reprocess`, such as a pipeline; without a "
            "name, the only pipeline there.",
            show_default=False,
        ),
    ],
    go: Annotated[bool, typer.Option("--go", "--no-dry-run", help="Do it; without this, it is a dry run.")] = False,
    any_pipeline: Annotated[
        bool, typer.Option("--any-pipeline", help="Send the target the letters of every pipeline that match.")
    ] = False,
    canary: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Send so many first, and stop if one of them fails; default: 10 if more than 100 are sent.",
        ),
    ] = None,
    no_canary: Annotated[bool, typer.Option("--no-canary", help="Send all of them without a canary.")] = False,
    rate: Annotated[float | None, typer.Option(metavar="N", help="Maximum number of letters per second.")] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Maximum number of letters.")] = None,
    batch: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="So many records per call of the target.")
    ] = None,
    due: Annotated[bool, typer.Option("--due", help="Only letters whose next try is due by the schedule.")] = False,
    tries: Annotated[int | None, typer.Option(metavar="N", help="With --due: so many tries, then escalate.")] = None,
    first: Annotated[str | None, typer.Option(metavar="AGE", help="With --due: the first try after 1d, 6h …")] = None,
    note: Annotated[str | None, typer.Option(metavar="TEXT", help="A note for letters that pass.")] = None,
) -> None:
    """Send letters back through a target; a dry run by default.

    Open letters (pending and escalated) unless --status is given. A pipeline takes its own letters only; for a
    function, select the letters. A dry run changes nothing: it shows which pipelines the letters belong to, and asks a
    target that can rehearse what it would answer. A letter that passes becomes reprocessed, one that fails again is
    escalated with the new reason. Safe to kill and run again.
    """
    from redrive.cli.loading import load_target

    if no_canary and canary is not None:
        raise LetterError("--canary and --no-canary exclude each other")
    options: dict[str, Any] = {
        "any_pipeline": any_pipeline,
        "canary": 0 if no_canary else canary,
        "rate": rate,
        "limit": limit,
        "note": note,
        "due": _schedule(due, tries, first) or False,
    }
    if batch:
        options["batch"] = batch
    # What the target prints is not our answer.
    with redirect_stdout(sys.stderr):
        loaded = load_target(target)
        report, stopped, others = _replay(session, selection, loaded, dry_run=not go, **options)
    if report is not None:
        _show(session, report)
    if others:
        session.out.say(others)
    if stopped is not None:
        raise stopped
    if report is not None and report.stopped:
        session.out.say(f"stopped: {report.stopped}")
    if report is not None and (report.failed_again or report.stopped):
        raise typer.Exit(FAILED)


def _replay(
    session: Session, selection: Selection, target: Any, **options: Any
) -> tuple[ReplayReport | None, ReplayStopped | None, str | None]:
    """Return the report, why it stopped early if it did, and what else is there if nothing was selected."""
    with session.opened() as store:
        filters = selection.filters(store.dlq)
        with session.out.progress("rehearsing" if options["dry_run"] else "replaying") as tell:
            how_far = _HowFar(tell)
            try:
                report = store.dlq.replay(target, progress=how_far, **options, **filters)
            except ReplayStopped as stopped:
                return stopped.report, stopped, None
            except KeyboardInterrupt:
                session.out.say(how_far.said())
                raise
        if report.selected or report.other_pipelines:
            return report, None, None
        open_ones = {**filters, "status": filters.get("status", OPEN)}
        return report, None, what_is_there(store.dlq, open_ones)


class _HowFar:
    """Remembers the progress, for who interrupts it."""

    def __init__(self, tell: Any) -> None:
        self._tell = tell
        self._done = self._total = 0

    def __call__(self, done: int, total: int) -> None:
        self._done, self._total = done, total
        self._tell(done, total)

    def said(self) -> str:
        """How far it came."""
        return f"{self._done:,} of {counted(self._total)} were done"


def _schedule(due: bool, tries: int | None, first: str | None) -> Schedule | None:
    if not due:
        if tries is not None or first is not None:
            raise LetterError("--tries and --first are about the schedule; say --due as well")
        return None
    from redrive.dlq.due import Schedule
    from redrive.dlq.filters import moment

    now = datetime.now(UTC)
    given: dict[str, Any] = {} if tries is None else {"tries": tries}
    if first is not None:
        given["first"] = (now - moment(first, now, "--first")).total_seconds()
    return Schedule(**given)


def _show(session: Session, report: ReplayReport) -> None:
    from redrive.dlq.scope import named

    out = session.out
    if out.json:
        out.document(_document(report))
    else:
        columns = (
            Column(title="outcome"),
            Column(title="letters", right=True),
            Column(title="why", least=24),
        )
        out.table(columns, _rows(report))
    if report.dry_run and not report.rehearsed:
        out.say("the target has no keyword dry_run and cannot rehearse: this is what is selected, no more")
    if report.held:
        out.say(f"{counted(report.held)} left to another replay that is at work on them")
    if report.seen_meanwhile:
        out.say(f"{counted(report.seen_meanwhile)} failed anew in the pipeline meanwhile and stay pending")
    if report.other_pipelines:
        out.say(
            f"{counted(sum(report.other_pipelines.values()))} of other pipelines left out "
            f"({named(report.other_pipelines)}); --pipeline or --any-pipeline includes them"
        )
    if not report.selected:
        out.say("no letter is selected")
    if report.failed_again and not report.dry_run:
        out.say("what failed again has the new reason; see `redrive dlq ls --status escalated`")
    if report.dry_run and report.selected:
        out.say(f"a dry run: nothing was changed; to do it: {session.again_with('--go')}")


def _rows(report: ReplayReport) -> list[list[Any]]:
    would = report.dry_run
    counts: list[tuple[str, int]] = []
    if report.rehearsed:
        counts += [("attempted", report.attempted), ("would pass" if would else "reprocessed", report.reprocessed)]
    if report.held:
        counts.append(("held", report.held))
    if report.seen_meanwhile:
        counts.append(("failed meanwhile", report.seen_meanwhile))
    rows: list[list[Any]] = [["selected", report.selected, _pipelines(report)]]
    rows += [[name, count, None] for name, count in counts]
    # Without its fingerprint: letters keep the cause of their first failure, and nothing is found by the new one.
    return rows + [["would fail" if would else "failed again", one.count, one.message] for one in report.by_cause]


def _pipelines(report: ReplayReport) -> str | None:
    """Return the pipelines that the selected letters belong to."""
    from redrive.dlq.scope import named

    names = [mask(name) for name in report.selected_by_pipeline]
    if len(names) > 1:
        return f"pipelines {mask(named(report.selected_by_pipeline))}"
    return f"pipeline {names[0]}" if names else None


def _document(report: ReplayReport) -> dict[str, Any]:
    document = {one.name: getattr(report, one.name) for one in fields(report)}
    document["by_cause"] = [
        {"fingerprint": one.fingerprint, "message": one.message, "count": one.count, "sample": one.sample}
        for one in report.by_cause
    ]
    return {
        **document,
        "stopped": None if report.stopped is None else mask(report.stopped),
        "selected_by_cause": dict(report.selected_by_cause),
        "selected_by_pipeline": dict(report.selected_by_pipeline),
        "other_pipelines": dict(report.other_pipelines),
        "remaining": report.remaining,
    }
