"""What `redrive demo` does, act by act: the commands of this program, played on the demo's own files."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redrive.cli.run_report import shown
from redrive.cli.targets import load
from redrive.demo import outcome, world
from redrive.demo.outcome import DemoOutcome
from redrive.errors import FlowStopped
from redrive.model.tasks import FlowReport, FlowStatus
from redrive.store.store import connect

if TYPE_CHECKING:
    from redrive.cli.demo.story import DemoNarration
    from redrive.cli.session import Session
    from redrive.model.letters import ReplayReport
    from redrive.model.runs import Report
    from redrive.testing import FaultyServer

_REPLAY = "dlq replay --pipeline vendor --target vendor.py:pipeline"
_CANARY = 100
_PARAMS = {"day": world.DAY}
NO_FEE = ('NO_FEE = {"-"}', 'NO_FEE = {"-", "N/A"}')
"""A line of vendor.py before and after the fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """Results of the demo."""

    partner: Report
    vendor: Report
    before: DemoOutcome
    """Before any action of the operator."""
    rehearsal: ReplayReport
    replay: ReplayReport
    rows: int
    keys: int
    settled: FlowReport
    report: str
    asked: int
    """Requests to the bank."""
    paid: int
    """Merchants that the bank has paid, each once."""
    after: DemoOutcome

    @property
    def is_right(self) -> bool:
        """Return whether no row was lost or stored twice; if not, this is a bug to report."""
        return (
            self.rows == self.keys == self.vendor.read
            and self.settled.status is FlowStatus.COMPLETE
            and self.paid == world.MERCHANTS
            and all(alert.alert.is_over for alert in self.after.alerts)
        )

    def document(self) -> dict[str, Any]:
        """Return the result as a JSON document."""
        replay = self.replay
        return {
            "partner": self.partner.document(),
            "vendor": self.vendor.document(),
            "settlement": self.settled.document(),
            "before_the_fix": self.before.document(),
            "redrive": {
                "would_pass": self.rehearsal.reprocessed,
                "reprocessed": replay.reprocessed,
                "failed_again": replay.failed_again,
                "rows": self.rows,
                "keys": self.keys,
                "report": self.report,
                "bank_asked": self.asked,
                "bank_paid": self.paid,
            },
            "after_the_fix": self.after.document(),
            "is_right": self.is_right,
        }


@contextmanager
def set_aside() -> Iterator[None]:
    """Ignore the user's settings: the demo has its own, so that its numbers are the same everywhere."""
    kept = dict(os.environ)
    for name in [name for name in kept if name.startswith("REDRIVE_")]:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)


@contextmanager
def _logged(path: str) -> Iterator[None]:
    """Log to a file instead of the terminal, because the demo prints the important events itself."""
    from redrive.observe.log import attempt_log

    log, handler = logging.getLogger("redrive"), attempt_log(path)
    before = log.level, log.propagate, logging.raiseExceptions
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = logging.raiseExceptions = False  # who needs the disk reports that it is full
    try:
        yield
    finally:
        log.level, log.propagate, logging.raiseExceptions = before
        log.removeHandler(handler)
        handler.close()


class DemoActs:
    """The acts of the demo, in order, in its directory."""

    def __init__(self, session: Session, story: DemoNarration, *, rows: int) -> None:
        self._out = session.out
        self._story = story
        self._rows = rows

    def go(self) -> DemoResult:
        """Play all acts."""
        from redrive.testing import FaultyServer

        story = self._story
        with _logged(world.LOG), FaultyServer() as partner, FaultyServer() as bank_server:
            bank = world.Bank(bank_server)
            os.environ.update(PARTNER_URL=partner.url, BANK_URL=bank_server.url)
            story.partner(loaded := self._partner(partner), _happened())
            story.vendor(received := self._vendor(), _happened())
            story.settlement(self._settlement(), _happened())
            story.what_happened(before := _happened())
            rehearsal, replay = self._fix_the_vendor()
            rows, keys = outcome.in_the_table("vendor_deliveries")
            story.redriven(replay, sent=received.read, rows=rows, keys=keys)
            settled, report = self._fix_the_account()
            story.settled(settled, report, asked=bank.asked, paid=len(bank.paid))
        return DemoResult(
            partner=loaded,
            vendor=received,
            before=before,
            rehearsal=rehearsal,
            replay=replay,
            rows=rows,
            keys=keys,
            settled=settled,
            report=report,
            asked=bank.asked,
            paid=len(bank.paid),
            after=_happened(),
        )

    # ── the acts ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _partner(self, server: FaultyServer) -> Report:
        self._story.act_one()
        world.Partner(server)
        return self._run("partner.py:pipeline")

    def _vendor(self) -> Report:
        self._story.act_two(self._rows)
        return self._run("vendor.py:pipeline")

    def _run(self, target: str) -> Report:
        pipeline = load(target)
        with ExitStack() as around:
            around.callback(pipeline.store.close)  # delivers alerts
            watch = around.enter_context(shown(pipeline.name))
            report: Report = pipeline.run(watch=watch)
        return report

    def _settlement(self) -> FlowReport:
        self._story.act_three(world.MERCHANTS)
        try:
            return self._run_flow()
        except FlowStopped as stopped:
            if stopped.report is None or stopped.report.status is not FlowStatus.HELD:
                raise
            return stopped.report

    def _run_flow(self) -> FlowReport:
        from redrive.cli.flow_view import watched

        flow = load("settlement.py:flow")
        with ExitStack() as around:
            around.callback(flow.store.close)
            watch = around.enter_context(watched(flow.name))
            report: FlowReport = flow.run(params=_PARAMS, watch=watch)
        return report

    # ── the fix and the redrive ───────────────────────────────────────────────────────────────────────────────────────

    def _fix_the_vendor(self) -> tuple[ReplayReport, ReplayReport]:
        program = Path("vendor.py")
        before = program.read_text(encoding="utf-8")
        program.write_text(after := before.replace(*NO_FEE), encoding="utf-8")
        self._story.fixed(program.name, before, after)
        sys.modules.pop("vendor", None)  # a new process would read it again
        pipeline = load("vendor.py:pipeline")
        with ExitStack() as around:
            around.callback(pipeline.store.close)
            around.callback(pipeline.sink.close)
            self._story.command(_REPLAY)
            rehearsal = self._replay(pipeline, dry_run=True)
            self._story.rehearsed(rehearsal)
            self._story.command(f"{_REPLAY} --canary {_CANARY} --go")
            return rehearsal, self._replay(pipeline, dry_run=False, canary=_CANARY, note="N/A means no fee")

    def _replay(self, pipeline: Any, **options: Any) -> ReplayReport:
        with self._out.progress("dry run" if options["dry_run"] else "replaying") as tell:
            report: ReplayReport = pipeline.store.dlq.replay(pipeline, pipeline=pipeline.name, progress=tell, **options)
        return report

    def _fix_the_account(self) -> tuple[FlowReport, str]:
        accounts = Path(world.ACCOUNTS)
        before = accounts.read_text()
        world.write_accounts(accounts, **{world.MALFORMED: "DE8817"})
        self._story.fixed(accounts.name, before, accounts.read_text())
        flow = load("settlement.py:flow")
        self._story.command("tasks retry settle")
        flow.retry("settle", note="the account is fixed")
        self._story.command(f"run settlement.py --param day={world.DAY}")
        settled = self._run_flow()
        report: str = flow.result("report")
        flow.store.close()
        return settled, report


def _happened() -> DemoOutcome:
    with connect() as store:
        return outcome.look(store)
