"""`redrive runs`: what pipelines did, and how far they came."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from redrive.cli.command import command, noun
from redrive.cli.exits import Refused
from redrive.cli.output import Column, Output
from redrive.cli.session import Session
from redrive.cli.wording import ago, at, in_a_line
from redrive.masking import mask
from redrive.model import in_words
from redrive.runs import RunStatus, Tier

if TYPE_CHECKING:
    from redrive.runs import Report

app = noun("Runs: what pipelines did, and how far they came.")

_LONGEST = 400  # characters of a checkpoint that are shown to people
_ENDED_BADLY = {RunStatus.ABORTED, RunStatus.FAILED}


@command(app)
def ls(
    session: Session,
    pipeline: Annotated[str | None, typer.Option(metavar="NAME", help="Of this pipeline.")] = None,
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help="running, complete, stopped, aborted, failed or abandoned.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Started since: 2d, 36h, 90min ago, a date, or today.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="No more than so many.", min=1)] = 20,
) -> None:
    """Runs, newest first."""
    from redrive.dlq.filters import moment

    if status is not None and status not in set(RunStatus):
        raise Refused(f"there is no status {status!r} of a run; it is one of {', '.join(RunStatus)}")
    start = None if since is None else moment(since, datetime.now(UTC), "--since")
    with session.opened() as store:
        found = store.runs.find(pipeline=pipeline, status=status, since=start, limit=limit + 1)
    out = session.out
    if out.json:
        out.document([one.document() for one in found[:limit]])
    else:
        columns = (
            Column(title="run", show=_shortened),
            Column(title="pipeline", least=12),
            Column(title="status"),
            Column(title="started", show=ago),
            Column(title="duration", show=in_words, right=True, drop=5),
            Column(title="read", right=True, drop=4),
            Column(title="written", right=True),
            Column(title="rejected", right=True),
            Column(title="rate", show=share, right=True, drop=2),
            Column(title="tier", show=lambda tier: "" if tier == Tier.LOG else str(tier), drop=3),
            Column(title="reason", show=in_a_line, drop=1, least=20),
        )
        out.table(columns, [_row(one) for one in found[:limit]])
    if not found:
        out.say("no runs yet" if (pipeline, status, since) == (None, None, None) else "no runs that match")
    elif len(found) > limit:
        out.say(f"there are more: {session.again_with('--limit', limit * 5)}")


def _row(report: Report) -> list[Any]:
    return [
        report.run_id,
        report.pipeline,
        report.status,
        report.started_at,
        round(report.seconds, 3),
        report.read,
        report.written,
        report.rejected,
        round(report.rate, 6),
        report.tier,
        report.reason,
    ]


@command(app)
def show(
    session: Session,
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_PIPELINE",
            help="The run, by its id or the beginning of it; a pipeline's name means its newest run.",
            show_default=False,
        ),
    ],
) -> None:
    """One run: its rows, how it ended, its checkpoint."""
    with session.opened() as store:
        report = store.runs.get(run)
    out = session.out
    if not out.terminal:
        show_data(out, report)
    else:
        _show_to_people(out, report)
    say_what_to_do(out, report, store=session.url)


# ── a report, here and where a run ends ───────────────────────────────────────────────────────────────────────────────


def show_data(out: Output, report: Report) -> None:
    """A report for programs: JSON where that is asked for, else a field in each line."""
    document = report.document()
    if out.json:
        out.document(document)
        return
    if document["checkpoint"] is not None:
        document["checkpoint"] = json.dumps(document["checkpoint"], ensure_ascii=False)
    out.table((Column(title="field"), Column(title="value")), list(document.items()))


def show_outcome(out: Output, report: Report) -> None:
    """A report in a few lines, for who has just seen the run end."""
    pace = f", {report.throughput:,.0f} rows/s" if report.read else ""
    again = ", resumed" if report.resumed else ""
    took = in_words(report.seconds)
    numbers = len(f"{report.read:,}")

    def rows(count: int, more: str) -> str:
        return f"{count:>{numbers},}  {more}"

    _pairs(
        out,
        {
            "pipeline": report.pipeline,
            "run": f"{report.run_id}, {report.status}{again}",
            "read": rows(report.read, f"from {report.source}"),
            "written": rows(report.written, f"to {report.sink}"),
            "rejected": rows(report.rejected, _judged(report)) if report.rejected else None,
            "duplicates": rows(report.duplicates, _SUPERSEDED) if report.duplicates else None,
            "discarded": rows(report.discarded, "on purpose") if report.discarded else None,
            "retries": rows(report.retries, "") if report.retries else None,
            "took": f"{took}{pace}",
        },
    )


def say_what_to_do(out: Output, report: Report, *, store: str | None) -> None:
    """The commands that lead on from a report. Letters know the whole id of their run, not its beginning."""
    where = "" if store is None else f" --store {shlex.quote(mask(store))}"
    if report.late and report.sla is not None:
        out.say(f"late: it was to be done by {at(report.sla)}")
    if report.rejected:
        out.say(f"the rejected rows by cause: redrive dlq causes --run {report.run_id}{where}")
    if report.status in _ENDED_BADLY and report.read:
        out.say("running it again goes on from its checkpoint; `redrive run --restart` begins anew")


def share(rate: float) -> str:
    """A share of rows; what is more than nothing never looks like nothing."""
    return "<0.1%" if 0 < rate < 0.001 else f"{rate:.1%}"


_SUPERSEDED = "superseded by another row with the same key"


def _show_to_people(out: Output, report: Report) -> None:
    checkpoint = None if report.checkpoint is None else json.dumps(report.checkpoint, ensure_ascii=False)
    if checkpoint is not None and len(checkpoint) > _LONGEST:
        checkpoint = f"{checkpoint[:_LONGEST]}… ({len(checkpoint):,} characters; --json shows all)"
    done = report.status is RunStatus.COMPLETE
    _pairs(
        out,
        {
            "run": f"{report.run_id}, {report.status}",
            "pipeline": report.pipeline,
            "reason": report.reason,
            "source": report.source,
            "sink": report.sink,
            "started": at(report.started_at),
            "ended": at(report.ended_at) or None,
            "took": f"{in_words(report.seconds)}, {report.throughput:,.0f} rows/s",
            "sla": f"{at(report.sla)}{', missed' if report.late else ', kept' if done else ''}" if report.sla else None,
            "read": f"{report.read:,}",
            "written": f"{report.written:,}",
            "rejected": f"{report.rejected:,}" + (f", {_judged(report)}" if report.rejected else ""),
            "duplicates": f"{report.duplicates:,}, {_SUPERSEDED}" if report.duplicates else None,
            "discarded": f"{report.discarded:,}, on purpose" if report.discarded else None,
            "batches": f"{report.batches:,}",
            "retries": f"{report.retries:,}" if report.retries else None,
            "checkpoint": checkpoint,
        },
    )


def _judged(report: Report) -> str:
    """How many of the rows were rejected, and what the gate says to that."""
    return share(report.rate) + ("" if report.tier is Tier.LOG else f", {report.tier}")


def _pairs(out: Output, rows: dict[str, str | None]) -> None:
    for name, value in rows.items():
        if value is not None:
            out.text(f"{name:<11}{in_a_line(value) if name == 'reason' else value}".rstrip())


def _shortened(run_id: UUID) -> str:
    return str(run_id)[:8]
