"""`redrive run` of a flow: progress, report and next steps."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redrive.cli.flow_report import next_steps, say_notes, show_data, show_outcome
from redrive.cli.format import counted
from redrive.cli.run_report import alert_steps, leave_alerts_to_the_report
from redrive.cli.run_rows import leave_to_the_report
from redrive.errors import FlowStopped, RedriveError
from redrive.model.tasks import FlowEnded, FlowStatus, State, TaskFailed, TasksDead

if TYPE_CHECKING:
    from redrive.cli.session import Session
    from redrive.model.tasks import FlowReport
    from redrive.store.store import Store
    from redrive.tasks.flow import Flow


@dataclass(frozen=True, slots=True)
class FlowRunResult:
    """The end of a run of a flow."""

    flow: Flow
    report: FlowReport | None
    stopped: FlowStopped | None = None
    causes: tuple[dict[str, Any], ...] = ()

    @property
    def needs_attention(self) -> bool:
        """Return whether something is wrong."""
        return self.stopped is not None or (self.report is not None and self.report.late)

    def show(self, session: Session) -> None:
        """Print the report and the next steps."""
        if self.report is None:
            return
        if session.out.terminal:
            show_outcome(session.out, self.report)
        else:
            show_data(session.out, self.report, self.causes)
        again = session.again_without("--restart", "--new-run")
        named = session.named(self.flow)
        say_notes(session.out, self.report, self.causes)
        with session.reopened(self.flow) as store:
            alerts = alert_steps(store, self.report.run_id, named=named)
        session.out.next_steps([*next_steps(self.report, self.causes, store=named, again=again), *alerts])


def run(session: Session, flow: Flow, options: dict[str, Any], *, quiet: bool) -> FlowRunResult:
    """Run the flow, with its tasks on the terminal."""
    from redrive.cli.flow_view import watched
    from redrive.tasks.workers.fork_server_client import launched

    with ExitStack() as around:
        around.enter_context(launched(flow))
        if session.url is not None:  # otherwise the flow knows its own
            options["store"] = around.enter_context(session.opened(create=True, may_lack_secrets=False))
        store: Store = options.get("store") or flow.store
        view = around.enter_context(ExitStack())
        watch = view.enter_context(watched(flow.name, quiet=quiet))
        leave_to_the_report(TasksDead, TaskFailed, FlowEnded)
        leave_alerts_to_the_report()
        try:
            return FlowRunResult(flow, flow.run(watch=watch, **options))
        except FlowStopped as stopped:
            if stopped.report is not None:
                _leave_the_hint_to_the_report(stopped)
            return FlowRunResult(flow, stopped.report, stopped, _causes(store, stopped.report))
        except KeyboardInterrupt:
            view.close()
            if progress := _how_far(store, flow):
                session.out.say(progress)
            raise


def _leave_the_hint_to_the_report(stopped: FlowStopped) -> None:
    """Remove the hint from the message: the next steps of the report name the store, too."""
    stopped.args = (str(stopped).partition("; see `redrive")[0],)


def _causes(store: Store, report: FlowReport | None) -> tuple[dict[str, Any], ...]:
    from redrive.cli.tasks.view import TaskView

    if report is None or report.status in (FlowStatus.COMPLETE, FlowStatus.ABANDONED):
        return ()
    view = TaskView(store)
    return tuple(view.cause(cause, report.run_id) for cause in store.tasks.causes(report.run_id))


def _how_far(store: Store, flow: Flow) -> str | None:
    """Return how far the run has come; None where the store cannot be asked."""
    with suppress(RedriveError):
        for report in store.tasks.runs(flow=flow.name, limit=1):
            return f"{report.counts.get(State.SUCCESS, 0):,} of {counted(report.total, 'task')} done so far"
    return None
