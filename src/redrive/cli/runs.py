"""`redrive runs`: runs of pipelines and flows, with their progress and results."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive._internal.masking import mask, mask_all
from redrive.cli.command import command, noun
from redrive.cli.exit_codes import CommandRefused
from redrive.cli.format import FAILURE, ago, at, counted, in_a_line, percent, style_of
from redrive.cli.output import Column, Output
from redrive.cli.session import Limit, Session
from redrive.errors import PipelineError
from redrive.model.calls import format_duration
from redrive.model.runs import Report, RunStatus, Tier
from redrive.model.tasks import FlowReport, FlowStatus, State

if TYPE_CHECKING:
    from redrive.store.store import Store

app = noun("List, show and cancel runs of pipelines and flows.", bare="ls")

_LONGEST = 400  # characters of a checkpoint on a terminal
_ENDED_BADLY = {RunStatus.ABORTED, RunStatus.FAILED}
_STATUSES = tuple(dict.fromkeys(map(str, (*RunStatus, *FlowStatus))))


@command(app)
def ls(
    session: Session,
    *,
    pipeline: Annotated[str | None, typer.Option(metavar="NAME", help="Only runs of this pipeline.")] = None,
    flow: Annotated[str | None, typer.Option(metavar="NAME", help="Only runs of this flow.")] = None,
    status: Annotated[
        str | None,
        typer.Option(
            metavar="STATUS", help="Only this status: running, complete, stopped, aborted, failed, abandoned or held."
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Only runs started since: 2d, 36h, 90min ago, a date, or today.")
    ] = None,
    limit: Limit = 20,
) -> None:
    """List runs of pipelines and flows, newest first.

    Examples: redrive runs ls --since 2d; redrive runs ls --pipeline vendor --status failed
    """
    from redrive.dlq.filters import moment

    if status is not None and status not in _STATUSES:
        raise CommandRefused(f"--status {status!r} is not a status of a run. It must be one of {', '.join(_STATUSES)}")
    if pipeline is not None and flow is not None:
        raise CommandRefused("--pipeline and --flow exclude each other: a run is of one or the other. Pass one of them")
    start = None if since is None else moment(since, datetime.now(UTC), "--since")
    found: list[Report | FlowReport] = []
    with session.opened() as store:
        if flow is None and status in (None, *RunStatus):
            found += store.runs.find(pipeline=pipeline, status=status, since=start, limit=limit + 1)
        if pipeline is None and status in (None, *FlowStatus):
            found += store.tasks.runs(flow=flow, status=status, since=start, limit=limit + 1)
    found.sort(key=lambda run: run.started_at, reverse=True)
    out = session.out
    if out.json:
        out.document([run_document(run) for run in found[:limit]])
    else:
        columns = _columns(found[:limit], out)
        out.table(columns, [_cells(run, columns) for run in found[:limit]])
    if not found:
        out.say("no runs yet" if (pipeline, flow, status, since) == (None,) * 4 else "no runs that match")
    elif len(found) > limit:
        out.next_steps([("list more runs", session.again_with("--limit", limit * 5))])


_COLUMNS = (
    Column(title="run", show=lambda run_id: str(run_id)[:8]),
    Column(title="pipeline", least=12),
    Column(title="status", style=style_of),
    Column(title="started", show=ago),
    Column(title="duration", show=format_duration, right=True, drop=5),
)
_REASON = Column(title="reason", show=in_a_line, drop=1, least=20)
_OF_ROWS = (
    Column(title="read", right=True, drop=4),
    Column(title="written", right=True),
    Column(title="rejected", right=True),
    Column(title="rate", show=percent, right=True, drop=2),
    Column(title="tier", show=lambda tier: "" if tier == Tier.LOG else str(tier), style=style_of, drop=3),
    _REASON,
)
_OF_TASKS = tuple(Column(title=title) for title in ("kind", "tasks", "succeeded", "dead", "failed"))


def _columns(found: Sequence[Report | FlowReport], out: Output) -> Sequence[Column]:
    """Return all numbers for a pipe; on a terminal with flows, what each run did in words."""
    if not out.terminal:
        return (*_COLUMNS, *_OF_ROWS, *_OF_TASKS)
    if not any(isinstance(run, FlowReport) for run in found):
        return (*_COLUMNS, *_OF_ROWS)
    run, _, status, started, duration = _COLUMNS
    name, did = Column(title="pipeline or flow", least=12), Column(title="did", least=20, wrap=True)
    return (run, name, status, replace(started, drop=2), duration, did, _REASON)


def _cells(report: Report | FlowReport, columns: Sequence[Column]) -> list[Any]:
    name = name_of(report)
    values = {
        "run": report.run_id,
        "pipeline": name,
        "pipeline or flow": name,
        "status": report.status,
        "started": report.started_at,
        "duration": round(report.worked if isinstance(report, FlowReport) else report.seconds, 3),
        "reason": None if report.reason is None else mask(report.reason),
        **(_of_a_flow(report) if isinstance(report, FlowReport) else _of_a_pipeline(report)),
    }
    return [values.get(column.title) for column in columns]


def _of_a_flow(report: FlowReport) -> dict[str, Any]:
    from redrive.cli.flow_report import did

    counts = report.counts
    return {
        "kind": "flow",
        "did": did(report),
        "reason": None if report.status is FlowStatus.HELD else mask(report.reason or ""),  # the counts show it
        "tasks": report.total,
        "succeeded": counts.get(State.SUCCESS, 0),
        "dead": counts.get(State.DEAD_LETTER, 0),
        "failed": counts.get(State.FAILED, 0),
    }


def _of_a_pipeline(report: Report) -> dict[str, Any]:
    return {
        "kind": "pipeline",
        "did": _did(report),
        "read": report.read,
        "written": report.written,
        "rejected": report.rejected,
        "rate": round(report.rate, 6),
        "tier": report.tier,
    }


def _did(report: Report) -> str:
    rejected = f", {report.rejected:,} rejected" if report.rejected else ""
    tier = f" ({report.tier})" if report.tier is not Tier.LOG else ""
    return f"{counted(report.read, 'row')}{rejected}{tier}"


def name_of(report: Report | FlowReport) -> str:
    """Return the name of the pipeline or flow of a run."""
    return report.flow if isinstance(report, FlowReport) else report.pipeline


def summary_of(report: Report | FlowReport) -> str:
    """Return what a run did, in a few words."""
    if isinstance(report, FlowReport):
        from redrive.cli.flow_report import did

        return did(report)
    return _did(report)


def run_document(report: Report | FlowReport) -> dict[str, Any]:
    """Return a run as JSON shows it."""
    if isinstance(report, FlowReport):
        from redrive.cli.flow_report import document

        whole = document(report)
        del whole["causes"]  # of one run, they are shown with it
        return whole
    return {"kind": "pipeline", **report.document()}


@command(app)
def show(
    session: Session,
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_NAME",
            help="Id of the run or the beginning of it; the name of a pipeline or flow means its newest run.",
            show_default=False,
        ),
    ],
) -> None:
    """Show one run: its rows or tasks, how it ended, and its checkpoint.

    Examples: redrive runs show c94c0e1a; redrive runs show vendor --json
    """
    with session.opened() as store:
        report = _meant(store, run)
        if isinstance(report, FlowReport):
            _show_flow(session, store, report)
            return
    out = session.out
    if not out.terminal:
        show_data(out, report)
    else:
        _show_on_terminal(out, report)
    say_notes(out, report)
    out.next_steps(next_steps(report, store=session.url))


def _meant(store: Store, run: str) -> Report | FlowReport:
    """Return the run of an id or a name; of several with that name, the newest."""
    found: list[Report | FlowReport] = [*store.runs.find_by_prefix(run), *store.tasks.find_by_prefix(run)]
    if not found:
        raise PipelineError(f"there is no run {run!r}. `redrive runs ls` lists runs")
    if all(name_of(report) == run for report in found):
        return max(found, key=lambda report: report.started_at)
    if len(found) > 1:
        raise PipelineError(f"run {run!r} is ambiguous: several ids begin with it. Type more of the id")
    return found[0]


def _show_flow(session: Session, store: Store, report: FlowReport) -> None:
    from redrive.cli import flow_report
    from redrive.cli.tasks.view import TaskView

    causes = TaskView(store).causes(report.run_id)
    if session.out.terminal:
        flow_report.show_outcome(session.out, report, when=True)
    else:
        flow_report.show_data(session.out, report, causes)
    flow_report.say_notes(session.out, report, causes)
    session.out.next_steps(flow_report.next_steps(report, causes, store=session.url))


# ── a report, here and where a run ends ───────────────────────────────────────────────────────────────────────────────


def show_data(out: Output, report: Report) -> None:
    """Print a report as JSON, or as one field per line for a pipe."""
    document = run_document(report)
    if out.json:
        out.document(document)
        return
    if document["checkpoint"] is not None:
        document["checkpoint"] = json.dumps(document["checkpoint"], ensure_ascii=False)
    if "ignored_columns" in document:
        document["ignored_columns"] = ", ".join(document["ignored_columns"])
    out.table((Column(title="field"), Column(title="value")), list(document.items()))


def show_outcome(out: Output, report: Report) -> None:
    """Print the report of a run that has just ended."""
    pace = f", {report.throughput:,.0f} rows/s" if report.read else ""
    resumed = ", resumed" if report.resumed else ""
    took = format_duration(report.seconds)
    numbers = len(f"{report.read:,}")

    def rows(count: int, more: str) -> str:
        return f"{count:>{numbers},}  {more}"

    out.fields(
        {
            "pipeline": report.pipeline,
            "run": f"{report.run_id}, {report.status}{resumed}",
            "read": rows(report.read, f"from {report.source}"),
            "written": rows(report.written, f"to {report.sink}"),
            "rejected": rows(report.rejected, _judged(report)) if report.rejected else None,
            "duplicates": rows(report.duplicates, _SUPERSEDED) if report.duplicates else None,
            "discarded": rows(report.discarded, "on purpose") if report.discarded else None,
            "retries": rows(report.retries, "") if report.retries else None,
            "not written": f"columns {', '.join(report.ignored_columns)}" if report.ignored_columns else None,
            "took": f"{took}{pace}",
        },
        styles=_styles(report),
    )


def say_notes(out: Output, report: Report) -> None:
    """Print what the report does not show: a missed SLA."""
    if report.late and report.sla is not None:
        out.say(f"SLA missed: due {at(report.sla)}")


def next_steps(report: Report, *, store: str | None) -> list[tuple[str, str]]:
    """Return the commands that show what a run rejected, and how an unfinished run continues."""
    where = "" if store is None else f" --store {shlex.quote(mask(store))}"
    steps = []
    if report.rejected:
        steps.append(("rejected rows by cause", f"redrive dlq causes --run {str(report.run_id)[:8]}{where}"))
    if report.status in _ENDED_BADLY and report.read:
        if report.status is RunStatus.ABORTED:
            steps.append(("accept the rejected rows", "redrive run FILE:NAME --override-gate"))
        else:
            steps.append(("resume from the checkpoint", "redrive run FILE:NAME"))
        steps.append(("begin a new run", "redrive run FILE:NAME --restart"))
    return steps


def _styles(report: Report) -> dict[str, str]:
    """Return the styles of the fields of a report."""
    tier = "" if report.tier is Tier.LOG else style_of(report.tier)
    return {"run": style_of(report.status), "rejected": tier, "sla": FAILURE if report.late else ""}


_SUPERSEDED = "superseded by another row with the same key"


def _show_on_terminal(out: Output, report: Report) -> None:
    checkpoint = None if report.checkpoint is None else json.dumps(mask_all(report.checkpoint), ensure_ascii=False)
    if checkpoint is not None and len(checkpoint) > _LONGEST:
        checkpoint = f"{checkpoint[:_LONGEST]}… ({len(checkpoint):,} characters; --json shows all)"
    done, share_read = report.status is RunStatus.COMPLETE, report.source_share
    out.fields(
        {
            "run": f"{report.run_id}, {report.status}",
            "pipeline": report.pipeline,
            "reason": in_a_line(report.detail or report.reason) or None,
            "source": report.source,
            "sink": report.sink,
            "started": at(report.started_at),
            "ended": at(report.ended_at) or None,
            "took": f"{format_duration(report.seconds)}, {report.throughput:,.0f} rows/s",
            "sla": f"{at(report.sla)}{', missed' if report.late else ', met' if done else ''}" if report.sla else None,
            "read": f"{report.read:,}"
            + ("" if done or share_read is None else f", {percent(share_read)} of the source"),
            "written": f"{report.written:,}",
            "rejected": f"{report.rejected:,}" + (f", {_judged(report)}" if report.rejected else ""),
            "duplicates": f"{report.duplicates:,}, {_SUPERSEDED}" if report.duplicates else None,
            "discarded": f"{report.discarded:,}, on purpose" if report.discarded else None,
            "batches": f"{report.batches:,}",
            "retries": f"{report.retries:,}" if report.retries else None,
            "checkpoint": checkpoint,
        },
        styles=_styles(report),
    )


def _judged(report: Report) -> str:
    """Return the share of rejected rows, with the tier of the gate."""
    return percent(report.rate) + ("" if report.tier is Tier.LOG else f", {report.tier}")


@command(app)
def cancel(
    session: Session,
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Run of a flow: its id, the beginning of it, or the name of the flow.",
            show_default=False,
        ),
    ],
    note: Annotated[
        str, typer.Option("--note", metavar="TEXT", help="Reason, stored with the run.", show_default=False)
    ],
) -> None:
    """Cancel the run of a flow: its executors stop, and it is never resumed.

    Its open letters are discarded. The next start of the flow begins a new run. A pipeline is stopped with SIGTERM.

    Examples: redrive runs cancel c94c0e1a --note "wrong day"; redrive runs cancel settlement --note "superseded"
    """
    from redrive.tasks.operator import actions

    with session.opened() as store:
        cancelled = actions.cancel(store, run, note=note)
    if session.out.json:
        session.out.document({"run_id": str(cancelled), "status": str(FlowStatus.ABANDONED)})
    session.out.say(f"cancelled run {str(cancelled)[:8]}; its executors stop within a second or so")


@command(app)
def forget(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the pipeline or flow.", show_default=False)],
    go: Annotated[bool, typer.Option("--go", help="Execute; without this, a dry run.")] = False,
) -> None:
    """Remove what is stored of a retired pipeline or flow: deadline, checkpoint, runs, metrics and alerts.

    Rejected while it is running or has open letters. Resolved letters stay until `redrive dlq purge`.

    Examples: redrive runs forget vendor_2024; redrive runs forget vendor_2024 --go
    """
    from redrive.dlq.status import actor
    from redrive.store.retention.forget import find_work, forget_work

    with session.opened() as store:
        found = find_work(store.database, name)
        still_set = name in store.alerts.settings.pipelines
        if not found.kinds and (still_set or store.alerts.find(status="open", subject=name, limit=1)):
            found = replace(found, kinds=("pipeline",))  # it never ran: only the settings have named it
        if not found.kinds:
            raise CommandRefused(f"there is no pipeline or flow {name!r} in the store. `redrive runs ls` lists runs")
        closed = 0
        if go:
            forget_work(store.database, name, files=session.results_of(store))
            closed = store.alerts.retire(name, found.kinds, by=actor(), run_ids=found.run_ids, params=found.params)
    out, what = session.out, " and ".join(found.kinds)
    if out.json:
        document = {"name": name, "kinds": list(found.kinds), "runs": found.runs, "unfinished": found.unfinished}
        out.document({**document, "letters_kept": found.letters, "alerts_closed": closed, "dry_run": not go})
    some = f"{what} {name} with {counted(found.runs, 'run')}"
    if found.unfinished is not None:
        some += f", the last of them {found.unfinished}: a new start would read from the beginning"
    if go:
        out.say(f"forgot {some}; {counted(closed, 'alert')} closed")
    else:
        out.say(f"would forget {some}. Nothing was changed")
        out.next_steps([("execute", session.again_with("--go"))])
    if found.letters:
        out.say(
            f"{counted(found.letters, 'resolved letter')} kept, also in the metrics; `redrive dlq purge` removes them"
        )
    if still_set:
        out.say(f"redrive.toml still has [pipelines.{name}]. Remove it, or the watch expects the next run")
