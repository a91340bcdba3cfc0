"""Reports of flow runs, for `redrive run`, `redrive runs show` and `redrive tasks ls`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redrive._internal.masking import MASK, mask, mask_all
from redrive.cli.format import FAILURE, at, counted, in_a_line, style_of
from redrive.cli.output import Column, Output
from redrive.model.calls import Kind, format_duration
from redrive.model.tasks import FlowStatus, State

if TYPE_CHECKING:
    from redrive.model.tasks import FlowReport

_MOST_CAUSES = 5  # causes that are written out; the table has all of them
_LONGEST = 160  # characters of an error in a sentence
_LONGEST_PARAMS = 400
_WAITED = 10.0  # seconds without an executor that are worth showing
_PASSING = (Kind.TRANSIENT, Kind.RATE_LIMITED, Kind.RETRY_NOW)
_IN_ITS_COUNTS = (FlowStatus.HELD, FlowStatus.FAILED)  # the counts of tasks are the reason


def document(report: FlowReport, causes: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return a report as JSON shows it; `kind` distinguishes it from that of a pipeline."""
    return {"kind": "flow", **report.document(), "causes": list(causes)}


def show_data(out: Output, report: FlowReport, causes: Sequence[dict[str, Any]] = ()) -> None:
    """Print a report as JSON, or as one field per line for a pipe."""
    shown = document(report, causes)
    if out.json:
        out.document(shown)
        return
    counts = {str(state): report.counts.get(state, 0) for state in State}
    del shown["causes"], shown["counts"]
    shown["params"] = json.dumps(shown["params"], ensure_ascii=False)
    out.table((Column(title="field"), Column(title="value")), list((shown | counts).items()))


def show_outcome(out: Output, report: FlowReport, *, when: bool = False) -> None:
    """Print a report on a terminal.

    Args:
        when: also print when the run started and ended.
    """
    resumed = ", resumed" if report.resumed else ""
    done = report.status is FlowStatus.COMPLETE
    rows = {
        "flow": report.flow,
        "run": f"{report.run_id}, {report.status}{resumed}",
        "reason": in_a_line(mask(report.reason)) if report.reason and report.status not in _IN_ITS_COUNTS else None,
        "params": _params(report),
        "started": at(report.started_at) if when else None,
        "ended": (at(report.ended_at) or None) if when else None,
        "took": _took(report) if done or report.ended_at else f"{_took(report)} so far",
        "sla": f"{at(report.sla)}{', missed' if report.late else ', met' if done else ''}" if report.sla else None,
        "tasks": _tasks(report),
        "attempts": f"{report.attempts:,}",
    }
    out.fields(rows, styles={"run": style_of(report.status), "sla": FAILURE if report.late else ""})


def _took(report: FlowReport) -> str:
    """Return how long tasks ran, and how long the run has been open where it waited in between."""
    waited = report.seconds - report.worked
    return format_duration(report.worked) + (
        f", open for {format_duration(report.seconds)}" if waited >= _WAITED else ""
    )


def _tasks(report: FlowReport) -> str:
    by_state = [f"{count:,} {state}" for state, count in report.counts.items() if count]
    total = f"{report.total:,}"
    if len(by_state) == 1:
        return f"{total}, all {next(iter(report.counts))}" if report.total > 1 else by_state[0]
    return f"{total}: {', '.join(by_state)}" if by_state else total


def _params(report: FlowReport) -> str | None:
    shown = ", ".join(_given(report))
    return f"{shown[:_LONGEST_PARAMS]}… (--json shows all)" if len(shown) > _LONGEST_PARAMS else shown or None


def _given(report: FlowReport) -> list[str]:
    """Return the parameters of a run, each as `--param` takes it."""
    return [f"{name}={_as_typed(value)}" for name, value in mask_all(report.params).items()]


def _as_typed(value: Any) -> str:
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value  # text that is not JSON needs no quotes
    return json.dumps(value, ensure_ascii=False, default=str)


def did(report: FlowReport) -> str:
    """Return what a run did, in a few words for a table."""
    counts = report.counts
    parts = [counted(report.total, "task")]
    if dead := counts.get(State.DEAD_LETTER):
        parts.append(counted(dead, "dead letter"))
    if failed := counts.get(State.FAILED):
        parts.append(f"{failed:,} failed")
    if lower := counts.get(State.UPSTREAM_FAILED):
        parts.append(f"{lower:,} not run")
    if skipped := counts.get(State.SKIPPED):
        parts.append(f"{skipped:,} skipped")
    if report.status is not FlowStatus.COMPLETE and len(parts) == 1:
        parts.append(f"{counts.get(State.SUCCESS, 0):,} done")
    return ", ".join(parts)


# ── next steps ────────────────────────────────────────────────────────────────────────────────────────────────────────


def say_notes(out: Output, report: FlowReport, causes: Sequence[dict[str, Any]]) -> None:
    """Print a missed SLA, and a line for each cause of failed tasks."""
    if report.late and report.sla is not None:
        out.say(f"SLA missed: due {at(report.sla)}")
    for cause in causes[:_MOST_CAUSES]:
        out.say(_in_a_sentence(cause))
    if len(causes) > _MOST_CAUSES:
        out.say(f"and {counted(len(causes) - _MOST_CAUSES, 'more cause')}")


def next_steps(
    report: FlowReport, causes: Sequence[dict[str, Any]], *, store: str | None, again: str | None = None
) -> list[tuple[str, str]]:
    """Return the commands that show and resolve failed tasks, and resume the run."""
    if not causes or report.status is FlowStatus.ABANDONED:
        return []
    where = where_it_is(report, store)
    steps = [("list tasks", f"redrive tasks ls {where}"), *steps_to_decide(causes, where)]
    return [*steps, *([(to_resume(causes), again)] if again else resume_steps(report, causes))]


def where_it_is(report: FlowReport, store: str | None) -> str:
    """Return the options by which a command means this run."""
    named = "" if store is None else f" --store {shlex.quote(mask(store))}"
    return f"--run {str(report.run_id)[:8]}{named}"


def steps_to_decide(causes: Sequence[dict[str, Any]], where: str) -> list[tuple[str, str]]:
    """Return the commands by which an operator looks at failed tasks and retries them."""
    steps = [("show one task", f"redrive tasks show {shlex.quote(causes[0]['sample'])} {where}")]
    decidable = [cause["cause"] for cause in causes if not _passes(cause)][:_MOST_CAUSES]
    retries = [("retry when fixed", f"redrive tasks retry --cause {shlex.quote(cause)} {where}") for cause in decidable]
    return [*steps, *retries]


def to_resume(causes: Sequence[dict[str, Any]]) -> str:
    """Return what the command that resumes a run is for: at once, or after the decisions."""
    return "retry now" if all(map(_passes, causes)) else "then resume"


def resume_steps(report: FlowReport, causes: Sequence[dict[str, Any]] = ()) -> list[tuple[str, str]]:
    """Return the command that resumes a run, as far as the store knows it."""
    given = "".join(f" --param {shlex.quote(text)}" for text in _given(report))
    # With a mask in the place of a value, it would be another run.
    can_be_shown = len(given) <= _LONGEST_PARAMS and MASK not in given
    purpose = f"{to_resume(causes) if causes else 'resume'} flow {report.flow!r}"
    return [(purpose, f"redrive run FILE:NAME{given if can_be_shown else ' --param …'}")]


def _passes(cause: dict[str, Any]) -> bool:
    """Return whether the next start retries it without a decision."""
    return cause["kind"] in _PASSING


def _in_a_sentence(cause: dict[str, Any]) -> str:
    number, untried = cause["tasks"], cause["untried"]
    not_tried = f" ({untried:,} of them not tried)" if untried else ""
    error = in_a_line(cause["error"])
    error = error if len(error) <= _LONGEST else f"{error[: _LONGEST - 1]}…"
    return f"{cause['task']}: {counted(number, 'task')}{not_tried}: {error} (cause {cause['cause']})"
