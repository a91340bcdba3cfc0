"""Text of `redrive demo`: sentences around the facts of the store and the reports."""

from __future__ import annotations

import re
import shlex
import sys
from difflib import unified_diff
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from redrive.cli.format import counted, in_a_line, lines, percent
from redrive.demo.outcome import FLOW, AlertWithMessages, DemoOutcome
from redrive.model.alerts import Severity
from redrive.model.calls import format_duration
from redrive.model.tasks import FlowReport, State

if TYPE_CHECKING:
    from redrive.cli.demo.acts import DemoResult
    from redrive.cli.output import Output
    from redrive.model.letters import Cause, ReplayReport
    from redrive.model.runs import Report

_LABEL = 11  # columns for what stands before a line of the summary
_TIERS = {Severity.P1: "bold red", Severity.P2: "red", Severity.P3: "yellow"}
_CALLS = {
    "transient": "503s, broken connections and a hang: retried with backoff and jitter",
    "rate_limited": "429s: retried after the Retry-After of the partner",
    "auth": "an expired token: renewed, once for all callers",
    "quota": "an exhausted account: paused until its reset; the other one took over",
}
_BEFORE = re.compile(r"^ *(?:[a-z]+(?: [a-z]+)? {2,})?(?:[\d,]+ {2}|→ )?")
"""Matches the prefix of a line: a label, a number, an arrow."""
_FIX = """'{**record, "weight_kg": record["weight_kg"].replace(",", ".")}'"""


class DemoNarration:
    """Prints what happens to stdout, line by line; with --json, one document at the end."""

    def __init__(self, out: Output, directory: Path, *, typed: str) -> None:
        self._out = out
        self._directory = directory
        self._typed = typed
        self._known: set[int] = set()  # alerts that were printed

    # ── the acts ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> None:
        """Print the introduction."""
        self._line("Failures of one day, on this machine: real programs, real servers, real failures.")
        self._line(f"Everything is in {self._directory} and is kept there.")

    def act_one(self) -> None:
        """Print the title of the first act, before the pages are fetched."""
        self._title("1  A partner's API: deliveries page by page, into DuckDB  (partner.py)")
        self._line("   It answers 503 and 429, breaks connections, hangs, expires a token, exhausts an account.")

    def partner(self, report: Report, so_far: DemoOutcome) -> None:
        """Print the result of the act."""
        self._line(f"   {_outcome(report)}.")
        failed = sum(so_far.calls.values())
        self._line(f"   {counted(failed, 'attempt')} failed; {_lost(so_far.calls_lost)}:")
        for kind in dict.fromkeys([*_CALLS, *so_far.calls]):
            if count := so_far.calls.get(kind):
                self._line(f"   {count:6,}  {_CALLS.get(kind, kind)}")
        for key in [key for service in so_far.services for key in service.drained]:
            self._line(f"           ({key.key_id} is exhausted until {key.until:%H:%M} UTC)")
        self._kept(so_far, report.pipeline)
        self._alerts(so_far, otherwise="no alert: every call recovered; the rejected rows are below the threshold")

    def act_two(self, rows: int) -> None:
        """Print the title of the second act, before the file is read."""
        self._title(f"2  A vendor's weekly file: {rows:,} rows, into DuckDB  (vendor.py)")
        self._line('   For some of the deliveries the vendor writes "N/A" where the fee should be.')

    def vendor(self, report: Report, so_far: DemoOutcome) -> None:
        """Print the result of the act."""
        self._line(f"   {_outcome(report)}.")
        self._kept(so_far, report.pipeline)
        self._alerts(so_far)

    def act_three(self, merchants: int) -> None:
        """Print the title of the third act, before merchants are paid."""
        self._title(f"3  A settlement: {merchants} merchants, each paid in a task of its own  (settlement.py)")
        self._line("   The bank is busy at times and never answers for one payment; one account is malformed.")

    def settlement(self, report: FlowReport, so_far: DemoOutcome) -> None:
        """Print the result of the act."""
        done, held = report.counts.get(State.SUCCESS, 0), report.counts.get(State.PENDING, 0)
        self._line(f"   {done} of {counted(report.total, 'task')} done in {format_duration(report.seconds)}.")
        if busy := so_far.attempts.get("transient", 0):
            self._line(f"   {busy:6,}  attempts met a busy bank (503): retried and paid")
        for task in so_far.killed:
            self._line(f"   {1:6,}  {task} hung: killed at its timeout, retried, and paid exactly once")
        for cause in _of(so_far, FLOW):
            self._line(f"   {cause.count:6,}  {_shown(cause)}: twice at the same place: no third attempt;")
            self._line(f"           {counted(held, 'task')} downstream blocked: operator decision required")
        self._alerts(so_far)

    def what_happened(self, so_far: DemoOutcome) -> None:
        """Show the three together, before any action of the operator."""
        self._title("What happened")
        self._entry("failed", f"{counted(so_far.failed, 'attempt')} of calls and tasks")
        self._entry("recovered", f"{so_far.recovered:,} of them by retry, token renewal or key rotation")
        self._entry("killed", f"{counted(len(so_far.killed), 'task')} that hung, at its timeout")
        self._entry("letters", f"{counted(so_far.letters, 'letter')} of {counted(len(so_far.causes), 'cause')}:")
        for cause in so_far.causes:
            self._entry("", f"{cause.count:6,}  {', '.join(cause.pipelines)}: {_shown(cause)}")
        self._entry("alerts", f"{counted(so_far.messages, 'message')}:")
        for one in so_far.alerts:
            self._entry("", *self._headline(one))
        few = sum(cause.count for cause in so_far.causes if not any(_is_about(alert, cause) for alert in so_far.alerts))
        rows = f"{counted(few, 'row')} among thousands of good ones"
        self._entry("no alert", f"{so_far.recovered:,} failures that recovered, and {rows};")
        self._entry("", f"one message for each error would have been {so_far.errors:,}")

    # ── the fix and the replay ───────────────────────────────────────────────────────────────────────────────────────

    def fixed(self, name: str, before: str, after: str) -> None:
        """Print the change of a file."""
        self._title(f"The fix: {name}")
        for line in unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""):
            if not line.startswith(("---", "+++", "@@")):
                self._line(f"   {line}", "red" if line.startswith("-") else "green", whole=True)

    def command(self, words: str) -> None:
        """Show the command that an operator would type for this step."""
        self._line(f"   $ redrive {words}", "cyan", whole=True)

    def rehearsed(self, report: ReplayReport) -> None:
        """Print the result of the dry run."""
        self._line(f"   A dry run: {report.reprocessed:,} of {counted(report.selected)} would pass.")

    def redriven(self, report: ReplayReport, *, sent: int, rows: int, keys: int) -> None:
        """Print the result of the replay, and whether the table has every row of the vendor exactly once."""
        self._line(f"   {report.reprocessed:,} reprocessed, {report.failed_again:,} failed again.")
        self._line(f"   In the table: {rows:,} rows, {keys:,} different keys: {_judged(rows == keys == sent)}.")

    def settled(self, report: FlowReport, decisions: str, *, asked: int, paid: int) -> None:
        """Show that the flow was resumed."""
        self._line(f"   The same run resumes and is {report.status}: {decisions}.")
        self._line(f"   The bank was asked {asked} times, and has paid {paid} merchants, each once.")

    def end(self, came_to: DemoResult, *, seconds: float) -> None:
        """Print the remaining steps and the commands that show more."""
        commands = self._next(came_to.after)
        if self._out.json:
            typed = [words for words, _ in commands]
            self._out.document(
                {
                    "directory": str(self._directory),
                    "seconds": round(seconds, 1),
                    **came_to.document(),
                    "commands": typed,
                }
            )
            return
        after = came_to.after
        over = sum(alert.alert.is_over for alert in after.alerts)
        self._title("In the end")
        self._line(f"   {over} of {counted(len(after.alerts), 'alert')} resolved; each channel was notified.")
        left = sum(cause.by_status.get("pending", 0) for cause in after.causes)
        self._line(f"   {counted(left)} left for you. All of it took {format_duration(seconds)}.")
        if not came_to.is_right:
            self._line("   This is not the expected result: please report it, with redrive.log.", "bold red")
        self._title("Look around")
        width = max(len(words) for words, what in commands if what) + 2
        narrow = self._out.terminal and 3 + width + max(len(what) for _, what in commands) > get_terminal_size().columns
        for words, what in commands:
            self._line(f"   {words}" if narrow else f"   {words:<{width}}{what}".rstrip(), whole=True)
            if narrow and what:
                self._line(f"      {what}")

    def _next(self, after: DemoOutcome) -> list[tuple[str, str]]:
        """Return commands that work as printed, each with a description."""
        redrive = self._typed
        hung = [(f"{redrive} tasks show {shlex.quote(task)}", "the one that hung") for task in after.killed[:1]]
        return [
            (f"cd {shlex.quote(str(self._directory))}", "programs, warehouse, delivered alerts, log"),
            (f"{redrive} dlq causes --status any", "what was quarantined, by cause"),
            (f"{redrive} runs ls", "what ran"),
            (f"{redrive} runs show vendor", "one run"),
            (f"{redrive} tasks ls", "the settlement, task by task"),
            *hung,
            (f"{redrive} services", "the partner and its exhausted account"),
            (f"{redrive} alerts ls --all", "alerts and their messages"),
            (f"{redrive} dlq ls", "open letters: the partner writes 2,5 for 2.5"),
            (f"{redrive} dlq edit --pipeline partner --expr {_FIX} --go", ""),
            (f"{redrive} dlq replay --pipeline partner --target partner.py:pipeline --go", ""),
        ]

    # ── layout ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _kept(self, so_far: DemoOutcome, pipeline: str) -> None:
        for cause in _of(so_far, pipeline):
            self._line(f"   {cause.count:6,}  rows: {_shown(cause)}: quarantined as received, ready for replay")

    def _alerts(self, so_far: DemoOutcome, *, otherwise: str = "no alert") -> None:
        """Return the alerts that were not printed yet."""
        new = [alert for alert in so_far.alerts if alert.alert.id not in self._known]
        for one in new:
            text, style = self._headline(one)
            self._line(f"   → {text}", style)
        if not new:
            self._line(f"   → {otherwise}")
        self._known |= {alert.alert.id for alert in new}

    def _headline(self, one: AlertWithMessages) -> tuple[str, str]:
        alert = one.alert
        return f"{alert.urgency} to {', '.join(one.channels)}: {in_a_line(alert.title)}", _TIERS[alert.urgency]

    def _title(self, text: str) -> None:
        self._line("")
        self._line(text, "bold")

    def _entry(self, label: str, text: str, style: str = "") -> None:
        self._line(f"   {label:<{_LABEL}}{text}", style)

    def _line(self, text: str, style: str = "", *, whole: bool = False) -> None:
        """Print a line; one that is too long for the terminal is wrapped, unless it is to be copied."""
        if self._out.json:
            return
        if not whole:
            text = self._out.wrapped(text, hang=len(text) - len(_BEFORE.sub("", text, count=1)))
        if self._out.terminal and style:
            from rich.console import Console
            from rich.text import Text

            Console(file=sys.stdout, highlight=False, soft_wrap=True).print(Text(lines(text), style=style))
        else:
            self._out.text(text)
        sys.stdout.flush()  # who reads it in a pipe is to see it grow, too


def _outcome(report: Report) -> str:
    rejected = f"{report.rejected:,} rejected ({percent(report.rate)})" if report.rejected else "none rejected"
    pages = f" of {report.checkpoint['pages']:,} pages" if "pages" in (report.checkpoint or {}) else ""
    return (
        f"{report.written:,} of {report.read:,} rows{pages} written, {rejected}, in {format_duration(report.seconds)}"
    )


def _lost(calls: int) -> str:
    return f"{counted(calls, 'call')} failed for good" if calls else "every call succeeded in the end"


def _of(so_far: DemoOutcome, pipeline: str) -> list[Cause]:
    return [cause for cause in so_far.causes if pipeline in cause.pipelines]


def _shown(cause: Cause) -> str:
    return in_a_line(cause.message)


def _is_about(each: AlertWithMessages, cause: Cause) -> bool:
    return each.alert.subject.name in cause.pipelines


def _judged(right: bool) -> str:
    return "none lost, none twice" if right else "NOT what it should be"
