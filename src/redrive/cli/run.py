"""`redrive run`: runs a pipeline, or goes on where it stopped."""

from __future__ import annotations

import logging
import math
import re
import sys
from contextlib import ExitStack, redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive.cli.command import command
from redrive.cli.exits import NotThere, Refused
from redrive.cli.runs import say_what_to_do, show_data, show_outcome
from redrive.cli.session import Session
from redrive.cli.wording import counted
from redrive.errors import RunStopped
from redrive.masking import mask
from redrive.runs import GateJudged, RunEnded, Tier

if TYPE_CHECKING:
    from redrive.runs import Progress, Report

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d)?")
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}


@command(app)
def run(
    session: Session,
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE_OR_MODULE:NAME",
            help="The pipeline; without a name, the only one that is there.",
            show_default=False,
        ),
    ],
    restart: Annotated[bool, typer.Option("--restart", help="Give an unfinished run up and begin anew.")] = False,
    deadline: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Stop behind the batch after 90 (seconds), 30min, 2h …")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing where nothing is wrong.")] = False,
) -> None:
    """Run a pipeline, or go on where it stopped.

    Rows that are bad go to the dead letters, and the run goes on. SIGTERM and a deadline let it finish its batch; the
    next run goes on from there.
    """
    options: dict[str, Any] = {} if deadline is None else {"deadline": _seconds(deadline)}
    if restart:
        options["restart"] = True
    # What the user's code prints is not our answer.
    with redirect_stdout(sys.stderr):
        pipeline = _pipeline(target)
        report, stopped = _run(session, pipeline, options, quiet=quiet)
    if report is not None and (not quiet or session.out.json or _worth_a_word(report, stopped)):
        _show(session, report, pipeline)
    if stopped is not None:
        raise stopped


def _run(
    session: Session, pipeline: Any, options: dict[str, Any], *, quiet: bool
) -> tuple[Report | None, RunStopped | None]:
    """The report, and why it ended before its time, where it did."""
    from redrive.cli.progress import shown

    how_far = _HowFar()
    with ExitStack() as around:
        if session.url is not None:  # otherwise the pipeline knows its own
            options["store"] = around.enter_context(session.opened(create=True))
        how_far.tell = around.enter_context(shown(pipeline.name, quiet=quiet))
        _leave_the_end_to_the_report()
        try:
            return pipeline.run(watch=how_far, **options), None
        except RunStopped as stopped:
            return stopped.report, stopped
        except KeyboardInterrupt:
            around.close()
            session.out.say(how_far.said())
            raise


def _leave_the_end_to_the_report() -> None:
    """Where nobody has set logging up, Python prints warnings: all but those that the report is about to repeat."""
    log = logging.getLogger("redrive.events")
    if not log.hasHandlers():
        log.addFilter(_is_not_about_the_end)


def _is_not_about_the_end(record: logging.LogRecord) -> bool:
    return not isinstance(getattr(record, "event", None), GateJudged | RunEnded)


def _worth_a_word(report: Report, stopped: RunStopped | None) -> bool:
    return stopped is not None or report.late or report.tier is not Tier.LOG


class _HowFar:
    """Remembers the progress, for who interrupts it."""

    def __init__(self) -> None:
        self.tell: Any = None
        self._last: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        self._last = progress
        self.tell(progress)

    def said(self) -> str:
        """How far it came."""
        rows = 0 if self._last is None else self._last.counts.read
        return f"{counted(rows, 'row')} so far"


def _show(session: Session, report: Report, pipeline: Any) -> None:
    if session.out.terminal:
        show_outcome(session.out, report)
    else:
        show_data(session.out, report)
    say_what_to_do(session.out, report, store=session.url or _store_of_its_own(session, pipeline))


def _store_of_its_own(session: Session, pipeline: Any) -> str | None:
    """The pipeline's store, where the other commands would look into another one."""
    from redrive.opening import DEFAULT

    name: str = pipeline.store.database.name
    usual = session.settings.store or DEFAULT
    return None if name in {usual, mask(usual), usual.removeprefix("sqlite:///")} else name


# ── which pipeline ────────────────────────────────────────────────────────────────────────────────────────────────────


def _pipeline(wanted: str) -> Any:
    from redrive.cli.loading import load

    if ":" not in wanted:
        return _only_one(wanted, load(f"{wanted}:__dict__"))
    found = load(wanted)
    if not _can_run(found):
        what = "a class" if isinstance(found, type) else f"a {type(found).__name__}"
        raise NotThere(f"{wanted} is {what}, not a pipeline")
    return found


def _only_one(where: str, names: dict[str, Any]) -> Any:
    found = {id(value): (name, value) for name, value in reversed(names.items()) if _can_run(value)}
    if not found:
        raise NotThere(f"there is no pipeline in {where}; make one with redrive.Pipeline(…)")
    if len(found) > 1:
        listed = ", ".join(f"{where}:{name}" for name, _ in reversed(found.values()))
        raise NotThere(f"there are {len(found)} pipelines in {where}; say which one: {listed}")
    ((_, only),) = found.values()
    return only


def _can_run(value: Any) -> bool:
    """Whether it is one of ours, or made of one: a module, a web application or a process has a `run`, too."""
    ours = any(one.__module__.split(".")[0] == "redrive" for one in type(value).__mro__)
    return ours and callable(getattr(value, "run", None))


def _seconds(span: str) -> float:
    found = _SPAN.fullmatch(span.strip().lower())
    seconds = float(found[1]) * _UNITS[found[2] or "s"] if found else 0.0
    if not 0 < seconds < math.inf:
        raise Refused(f"--deadline is a number of seconds or a span such as 90min or 2h, not {span!r}")
    return seconds
