"""`redrive dlq replay`: send letters back through their pipeline; a dry run by default."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive._internal.masking import mask
from redrive.cli.command import command
from redrive.cli.dlq.noun import app
from redrive.cli.exit_codes import FAILED, BrokenModule, TargetNotFound, exit_code
from redrive.cli.format import counted
from redrive.cli.letter_options import OPEN, Selection, what_is_there
from redrive.cli.output import Column
from redrive.cli.session import MOST, Session
from redrive.errors import LetterError, RedriveError, ReplayStopped

if TYPE_CHECKING:
    from redrive.dlq.queue import DeadLetters
    from redrive.dlq.replay.schedule import Schedule
    from redrive.model.letters import ReplayReport


@command(app)
def replay(
    session: Session,
    selection: Selection,
    *,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="FILE_OR_MODULE:NAME",
            help="Pipeline, function or object with `reprocess` that receives the records; without a name, the only "
            "pipeline in the file. Default: the target that rejected each letter, as `redrive run` stored it.",
            show_default=False,
        ),
    ] = None,
    go: Annotated[bool, typer.Option("--go", "--no-dry-run", help="Execute; without this, a dry run.")] = False,
    any_pipeline: Annotated[
        bool, typer.Option("--any-pipeline", help="Include matching letters of every pipeline.")
    ] = False,
    include_superseded: Annotated[
        bool, typer.Option("--include-superseded", help="Include letters whose key was written since.")
    ] = False,
    canary: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Send N letters first, spread over the selection, and stop if one of them fails. Default: 10 if more "
            "than 100 are sent.",
        ),
    ] = None,
    no_canary: Annotated[bool, typer.Option("--no-canary", help="Send all of them without a canary.")] = False,
    rate: Annotated[float | None, typer.Option(metavar="N", help="Maximum number of letters per second.")] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=MOST, help="Maximum number of letters in all.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=MOST, help="Maximum number of records per call of the target.")
    ] = None,
    due: Annotated[bool, typer.Option("--due", help="Only letters whose next replay is due by the schedule.")] = False,
    tries: Annotated[
        int | None,
        typer.Option(metavar="N", help="With --due: maximum number of replays before a letter is escalated."),
    ] = None,
    first: Annotated[
        str | None, typer.Option(metavar="AGE", help="With --due: delay before the first replay: 1d, 6h …")
    ] = None,
    note: Annotated[str | None, typer.Option(metavar="TEXT", help="Note for letters that pass.")] = None,
) -> None:
    """Send letters back through a target; a dry run by default.

    Open letters (pending and escalated) unless --status is given. A pipeline takes its own letters only; for a
    function, select the letters. A dry run changes nothing: it shows which pipelines the letters belong to, and which
    would pass if the target supports dry runs. A letter that passes becomes reprocessed, one that fails again is
    escalated with the new reason, one that the target drops on purpose is discarded. Safe to kill and run again.

    Examples: redrive dlq replay --pipeline vendor; redrive dlq replay --cause 8b14ce --target vendor.py:pipeline --go
    """
    if no_canary and canary is not None:
        raise LetterError("--canary and --no-canary exclude each other")
    options: dict[str, Any] = {
        "any_pipeline": any_pipeline,
        "include_superseded": include_superseded,
        "canary": 0 if no_canary else canary,
        "rate": rate,
        "limit": limit,
        "note": note,
        "due": _schedule(due, tries, first) or False,
    }
    if batch:
        options["batch"] = batch
    # Output of user code must not mix with the answer.
    with redirect_stdout(sys.stderr):
        done = _replay(session, selection, target, dry_run=not go, **options)
    _show(session, done)
    if done.failures:
        if len(done.reports) == 1:
            raise done.failures[0]
        raise typer.Exit(exit_code(done.failures[0]))
    if any(report.failed_again or report.stopped for _, report in done.reports):
        raise typer.Exit(FAILED)


@dataclass(slots=True)
class _ReplayReports:
    """Reports of a replay, one for each target."""

    reports: list[tuple[str | None, ReplayReport]] = field(default_factory=list)
    """Each with its target if the letters name it, else None."""
    failures: list[RedriveError] = field(default_factory=list)
    """Reasons why targets could not be loaded, or stopped early."""
    others: str | None = None
    """A hint at other letters, if none was selected."""


def _replay(session: Session, selection: Selection, target: str | None, **options: Any) -> _ReplayReports:
    from redrive.cli.targets import load_target
    from redrive.model.letters import ReplayReport

    done = _ReplayReports()
    given = None if target is None else load_target(target)
    with session.opened() as store, ExitStack() as around:
        filters = selection.filters(store.dlq)
        groups: list[tuple[str | None, int]] = [(None, 0)]
        if target is None:
            stored = _stored_targets(store.dlq, {"status": ("pending",) if options["due"] else OPEN, **filters})
            around.enter_context(_directory_of(list(stored)))
            groups = [*stored.items()]
        left: int | None = options.pop("limit")
        with session.out.progress("dry run" if options["dry_run"] else "replaying") as tell:
            how_far = _ReplayProgress(tell)
            for name, count in groups:
                report = ReplayReport(dry_run=options["dry_run"], selected=count)
                try:
                    if left is None or left > 0:
                        loaded = given if name is None else _loaded(name)
                        chosen = filters if name is None else {**filters, "rejected_by": name}
                        report = store.dlq.replay(loaded, progress=how_far, limit=left, **options, **chosen)
                except (ReplayStopped, TargetNotFound, BrokenModule, LetterError) as failed:
                    if len(groups) == 1 and not isinstance(failed, ReplayStopped):
                        raise
                    # The letters of the other targets are sent all the same.
                    done.failures.append(failed)
                    report = getattr(failed, "report", None) or replace(report, stopped=str(failed))
                except KeyboardInterrupt:
                    session.out.say(how_far.text())
                    raise
                done.reports.append((name, report))
                if left is not None:
                    left -= report.attempted if report.rehearsed else min(left, report.selected)
        if not any(one.selected or one.other_pipelines or one.superseded for _, one in done.reports):
            unknown = [name for name in filters.get("pipeline") or () if not store.dlq.count_by_status(pipeline=name)]
            done.others = what_is_there(store.dlq, {**filters, "status": filters.get("status", OPEN)})
            if unknown:
                done.others = f"the store has no letters of pipeline {', '.join(map(repr, unknown))}, of any status"
    return done


def _loaded(name: str) -> Any:
    """Load a stored target, which may have moved since."""
    from redrive.cli.targets import load_target

    try:
        return load_target(name)
    except TargetNotFound as error:
        raise TargetNotFound(
            f"the letters were rejected by {mask(name)}, which is not there any more ({error}); "
            "pass --target FILE:NAME. None of its letters was sent"
        ) from None
    except BrokenModule as error:
        raise BrokenModule(
            f"the letters were rejected by {mask(name)}, which cannot be imported: {error}. "
            "None of its letters was sent"
        ) from error


@contextmanager
def _directory_of(targets: Sequence[str]) -> Iterator[None]:
    """Change to the directory in which the targets ran, because relative paths in their files depend on it."""
    from redrive.cli.targets import directory_of

    places = {(directory, os.path.dirname(name)) for name in targets if (directory := directory_of(name)) is not None}
    if len(places) > 1:
        raise LetterError(
            f"the selection has letters of targets in {len(places)} directories "
            f"({', '.join(sorted(mask(shown_path(name)) for name in targets))}): replay them one after the other, with "
            "--pipeline. Nothing was changed"
        )
    if not places:
        yield
        return
    ((directory, _),) = places
    before = os.getcwd()
    try:
        os.chdir(directory)
    except OSError as error:
        raise LetterError(
            f"the letters were rejected in {directory}, which cannot be entered ({error.strerror}); pass --target "
            "FILE:NAME. Nothing was changed"
        ) from None
    try:
        yield
    finally:
        os.chdir(before)


def _stored_targets(dlq: DeadLetters, filters: dict[str, Any]) -> dict[str, int]:
    """Return the targets that rejected the selected letters, and how many each."""
    counts = dlq.targets(**filters)
    if unknown := counts.get(None):
        raise LetterError(
            f"{counted(unknown)} of the selection {'has' if unknown == 1 else 'have'} no stored target, because "
            f"`redrive run` did not reject {'it' if unknown == 1 else 'them'}; pass --target FILE:NAME. "
            "Nothing was changed"
        )
    return {name: count for name, count in counts.items() if name is not None}


class _ReplayProgress:
    """Stores the progress for the message after an interrupt."""

    def __init__(self, tell: Any) -> None:
        self._report = tell
        self._done = self._total = 0

    def __call__(self, done: int, total: int) -> None:
        self._done, self._total = done, total
        self._report(done, total)

    def text(self) -> str:
        """Return how far the replay has come."""
        return f"{self._done:,} of {counted(self._total)} done"


def _schedule(due: bool, tries: int | None, first: str | None) -> Schedule | None:
    if not due:
        if tries is not None or first is not None:
            raise LetterError("--tries and --first need --due: they change its schedule. Pass --due as well")
        return None
    from redrive.dlq.filters import moment
    from redrive.dlq.replay.schedule import Schedule

    now = datetime.now(UTC)
    given: dict[str, Any] = {} if tries is None else {"tries": tries}
    if first is not None:
        given["first"] = (now - moment(first, now, "--first")).total_seconds()
    return Schedule(**given)


def _show(session: Session, done: _ReplayReports) -> None:
    out, reports = session.out, [report for _, report in done.reports]
    if out.json:
        documents = [_document(report, name) for name, report in done.reports]
        out.document(documents[0] if len(documents) == 1 else {"replays": documents})
    for name, report in done.reports:
        if name is not None:
            out.say(f"target {mask(shown_path(name))}")
        _show_one(session, report)
    if not any(report.selected for report in reports):
        out.say("no letters selected")
    if done.others:
        out.say(done.others)
    steps = []
    if any(report.failed_again and not report.dry_run for report in reports):
        steps.append(("list what failed again", f"redrive dlq ls --status escalated{session.store_option}"))
    if any(report.dry_run and report.selected for report in reports):
        out.say("dry run: nothing was changed")
        steps.append(("execute", session.again_with("--go")))
    for name, report in done.reports:
        if report.stopped and (len(reports) > 1 or not done.failures):
            target = "" if name is None or len(reports) == 1 else f"target {mask(shown_path(name))} "
            out.say(f"{target}stopped: {mask(report.stopped)}")
    out.next_steps(steps)


def _show_one(session: Session, report: ReplayReport) -> None:
    from redrive.dlq.replay.target import named

    out = session.out
    if not out.json:
        columns = (
            Column(title="outcome"),
            Column(title="letters", right=True),
            Column(title="why", heading="reason", least=24, wrap=True),
        )
        out.table(columns, _rows(report))
    if report.dry_run and not report.rehearsed:
        out.say("the target has no parameter `dry_run`: the dry run only counts the selected letters")
    if report.held:
        out.say(f"{counted(report.held)} skipped: another replay or run holds them")
    if report.held_by_run:
        out.say(
            f"{counted(report.held_by_run)} skipped: a run was killed or failed while it wrote their rows. Run "
            "the pipeline again to resume it. --include-superseded sends them, and may overwrite the newer row"
        )
    if report.seen_meanwhile:
        out.say(f"{counted(report.seen_meanwhile)} failed again in the pipeline meanwhile and stay pending")
    if report.discarded:
        out.say(f"{counted(report.discarded)} dropped by the target on purpose: nothing was written")
    if report.superseded:
        out.say(
            f"{counted(report.superseded)} superseded: the sink has a newer row of the same key. They are not "
            "written; --include-superseded sends them and overwrites the newer row"
        )
    if report.key_unknown:
        out.say(
            f"{counted(report.key_unknown)} may overwrite newer rows: the sink was written since, and it is not known "
            "whether with their keys (not known, edited or imported since, several rows of a record, or another "
            "pipeline). Compare them with the sink, or discard them"
        )
    if report.decided:
        out.say(f"{counted(report.decided)} skipped: another replay or an operator resolved them meanwhile")
    if report.other_pipelines:
        renamed = "; if the pipeline was renamed, pass its former name" if not report.selected else ""
        out.say(
            f"{counted(sum(report.other_pipelines.values()))} of other pipelines skipped "
            f"({named(report.other_pipelines)}); --pipeline or --any-pipeline includes them{renamed}"
        )


def shown_path(target: str) -> str:
    """Return a stored target as it can be written in this directory."""
    here = os.path.realpath(os.getcwd())
    return target.removeprefix(f"{here}{os.sep}.{os.sep}").removeprefix(f"{here}{os.sep}")


def _rows(report: ReplayReport) -> list[list[Any]]:
    would = report.dry_run
    counts: list[tuple[str, int]] = []
    if report.rehearsed:
        counts += [("attempted", report.attempted), ("would pass" if would else "reprocessed", report.reprocessed)]
    if report.discarded:
        counts.append(("would be discarded" if would else "discarded", report.discarded))
    if report.superseded:
        counts.append(("superseded", report.superseded))
    if report.decided:
        counts.append(("resolved meanwhile", report.decided))
    if report.held:
        counts.append(("held", report.held))
    if report.held_by_run:
        counts.append(("held by an unfinished run", report.held_by_run))
    if report.seen_meanwhile:
        counts.append(("failed meanwhile", report.seen_meanwhile))
    rows: list[list[Any]] = [["selected", report.selected, _pipelines(report)]]
    rows += [[name, count, None] for name, count in counts]
    # Without its fingerprint: letters keep the cause of their first failure, and nothing is found by the new one.
    # Causes that differ in their type alone read alike.
    failed: Counter[str] = Counter()
    for one in report.by_cause:
        failed[one.message] += one.count
    return rows + [["would fail" if would else "failed again", count, why] for why, count in failed.most_common()]


def _pipelines(report: ReplayReport) -> str | None:
    """Return the pipelines that the selected letters belong to."""
    from redrive.dlq.replay.target import named

    names = [mask(name) for name in report.selected_by_pipeline]
    if len(names) > 1:
        return f"pipelines {mask(named(report.selected_by_pipeline))}"
    return f"pipeline {names[0]}" if names else None


def _document(report: ReplayReport, target: str | None) -> dict[str, Any]:
    document = {entry.name: getattr(report, entry.name) for entry in fields(report)}
    document["by_cause"] = [
        {"fingerprint": one.fingerprint, "message": one.message, "count": one.count, "sample": one.sample}
        for one in report.by_cause
    ]
    return {
        **document,
        "target": target,
        "stopped": None if report.stopped is None else mask(report.stopped),
        "selected_by_cause": dict(report.selected_by_cause),
        "selected_by_pipeline": dict(report.selected_by_pipeline),
        "selected_by_target": dict(report.selected_by_target),
        "other_pipelines": dict(report.other_pipelines),
        "remaining": report.remaining,
    }
