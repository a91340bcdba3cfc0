"""`redrive run` of a pipeline: progress, report and next steps."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redrive.cli.format import counted
from redrive.cli.run_report import alert_steps, leave_alerts_to_the_report
from redrive.cli.runs import next_steps, say_notes, show_data, show_outcome
from redrive.errors import RunStopped
from redrive.model.runs import GateJudged, RunEnded, Tier

if TYPE_CHECKING:
    from redrive.cli.session import Session
    from redrive.model.runs import Progress, Report


@dataclass(frozen=True, slots=True)
class PipelineRunResult:
    """The end of a run of a pipeline."""

    pipeline: Any
    report: Report | None
    stopped: RunStopped | None = None

    @property
    def needs_attention(self) -> bool:
        """Return whether something is wrong."""
        report = self.report
        return self.stopped is not None or (report is not None and (report.late or report.tier is not Tier.LOG))

    def show(self, session: Session) -> None:
        """Print the report and the next steps."""
        if self.report is None:
            return
        if session.out.terminal:
            show_outcome(session.out, self.report)
        else:
            show_data(session.out, self.report)
        named = session.named(self.pipeline)
        say_notes(session.out, self.report)
        with session.reopened(self.pipeline) as store:
            alerts = alert_steps(store, self.report.run_id, named=named)
        session.out.next_steps([*next_steps(self.report, store=named), *alerts])


def run(session: Session, pipeline: Any, options: dict[str, Any], *, quiet: bool) -> PipelineRunResult:
    """Run the pipeline, with its progress on the terminal."""
    from redrive.cli.run_report import shown

    how_far = _RunProgress()
    with ExitStack() as around:
        if session.url is not None:  # otherwise the pipeline knows its own
            options["store"] = around.enter_context(session.opened(create=True, may_lack_secrets=False))
        how_far.show = around.enter_context(shown(pipeline.name, quiet=quiet))
        leave_to_the_report(GateJudged, RunEnded)
        leave_alerts_to_the_report()
        try:
            return PipelineRunResult(pipeline, pipeline.run(watch=how_far, **options))
        except RunStopped as stopped:
            return PipelineRunResult(pipeline, stopped.report, stopped)
        except KeyboardInterrupt:
            around.close()
            session.out.say(how_far.text())
            raise


def leave_to_the_report(*events: type) -> None:
    """Suppress warnings that the report also shows, if no logging is configured."""

    names = {event.__name__ for event in events}

    def is_another(record: logging.LogRecord) -> bool:
        return getattr(record, "event", None) not in names

    log = logging.getLogger("redrive.events")
    if not log.hasHandlers():
        log.addFilter(is_another)


class _RunProgress:
    """Stores the progress for the message after an interrupt."""

    def __init__(self) -> None:
        self.show: Any = None
        self._last: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        self._last = progress
        self.show(progress)

    def text(self) -> str:
        """Return how far the run has come."""
        rows = 0 if self._last is None else self._last.counts.read
        return f"{counted(rows, 'row')} so far"
