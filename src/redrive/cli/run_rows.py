"""`redrive run` of a pipeline: watched, reported, and what to do where it ended early."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redrive.cli.format import counted
from redrive.cli.run_alerts import leave_alerts_to_the_report, say_alerts
from redrive.cli.runs import say_what_to_do, show_data, show_outcome
from redrive.errors import RunStopped
from redrive.model.runs import GateJudged, RunEnded, Tier

if TYPE_CHECKING:
    from redrive.cli.session import Session
    from redrive.model.runs import Progress, Report


@dataclass(frozen=True, slots=True)
class PipelineRunResult:
    """How the run of a pipeline ended."""

    pipeline: Any
    report: Report | None
    stopped: RunStopped | None = None

    @property
    def worth_a_word(self) -> bool:
        """Whether something is wrong."""
        report = self.report
        return self.stopped is not None or (report is not None and (report.late or report.tier is not Tier.LOG))

    def show(self, session: Session) -> None:
        """The report, and the commands that lead on."""
        if self.report is None:
            return
        if session.out.terminal:
            show_outcome(session.out, self.report)
        else:
            show_data(session.out, self.report)
        named = session.named(self.pipeline)
        say_what_to_do(session.out, self.report, store=named)
        with session.reopened(self.pipeline) as store:
            say_alerts(session.out, store, self.report.run_id, named=named)


def run(session: Session, pipeline: Any, options: dict[str, Any], *, quiet: bool) -> PipelineRunResult:
    """Run it, with a line on the terminal that says how far it has come."""
    from redrive.cli.progress import shown

    how_far = _LastProgress()
    with ExitStack() as around:
        if session.url is not None:  # otherwise the pipeline knows its own
            options["store"] = around.enter_context(session.opened(create=True, may_lack_secrets=False))
        how_far.tell = around.enter_context(shown(pipeline.name, quiet=quiet))
        leave_to_the_report(GateJudged, RunEnded)
        leave_alerts_to_the_report()
        try:
            return PipelineRunResult(pipeline, pipeline.run(watch=how_far, **options))
        except RunStopped as stopped:
            return PipelineRunResult(pipeline, stopped.report, stopped)
        except KeyboardInterrupt:
            around.close()
            session.out.say(how_far.said())
            raise


def leave_to_the_report(*events: type) -> None:
    """Where nobody has set logging up, Python prints warnings: all but those that the report is about to repeat."""

    names = {event.__name__ for event in events}

    def is_another(record: logging.LogRecord) -> bool:
        return getattr(record, "event", None) not in names

    log = logging.getLogger("redrive.events")
    if not log.hasHandlers():
        log.addFilter(is_another)


class _LastProgress:
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
