"""What a flow did, as `redrive run`, `redrive runs show` and `redrive tasks ls` tell it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redrive._internal.masking import MASK, mask, mask_all
from redrive.cli.format import at, counted, in_a_line
from redrive.cli.output import Column, Output
from redrive.model.calls import Kind, format_duration
from redrive.model.tasks import FlowStatus, State

if TYPE_CHECKING:
    from redrive.model.tasks import FlowReport

_MOST_CAUSES = 5  # that are said in words; the table has all of them
_LONGEST = 160  # characters of an error in a sentence
_LONGEST_PARAMS = 400
_WAITED = 10.0  # seconds for which a run was open and nobody was at work on it, to be worth a word
_PASSING = (Kind.TRANSIENT, Kind.RATE_LIMITED, Kind.RETRY_NOW)
_IN_ITS_COUNTS = (FlowStatus.HELD, FlowStatus.FAILED)  # why it ended so is what its tasks say


def document(report: FlowReport, causes: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """A report for programs; told apart from that of a pipeline by its kind."""
    return {"kind": "flow", **report.document(), "causes": list(causes)}


def show_data(out: Output, report: FlowReport, causes: Sequence[dict[str, Any]] = ()) -> None:
    """A report for programs: JSON where that is asked for, else a field in each line."""
    shown = document(report, causes)
    if out.json:
        out.document(shown)
        return
    counts = {str(state): report.counts.get(state, 0) for state in State}
    del shown["causes"], shown["counts"]
    shown["params"] = json.dumps(shown["params"], ensure_ascii=False)
    out.table((Column(title="field"), Column(title="value")), list((shown | counts).items()))


def show_outcome(out: Output, report: FlowReport, *, when: bool = False) -> None:
    """A report in a few lines; with the moments of its beginning and end, for who did not see it."""
    again = ", resumed" if report.resumed else ""
    done = report.status is FlowStatus.COMPLETE
    rows = {
        "flow": report.flow,
        "run": f"{report.run_id}, {report.status}{again}",
        "reason": in_a_line(mask(report.reason)) if report.reason and report.status not in _IN_ITS_COUNTS else None,
        "params": _params(report),
        "started": at(report.started_at) if when else None,
        "ended": (at(report.ended_at) or None) if when else None,
        "took": _took(report) if done or report.ended_at else f"{_took(report)} so far",
        "sla": f"{at(report.sla)}{', missed' if report.late else ', kept' if done else ''}" if report.sla else None,
        "tasks": _tasks(report),
        "attempts": f"{report.attempts:,}",
    }
    for name, value in rows.items():
        if value is not None:
            out.text(f"{name:<11}{value}")


def _took(report: FlowReport) -> str:
    """How long it was worked on; and since when it has been open, where it waited in between."""
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
    """The parameters of a run, each as `--param` takes it."""
    return [f"{name}={_as_said(value)}" for name, value in mask_all(report.params).items()]


def _as_said(value: Any) -> str:
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value  # what cannot be taken for anything but text needs no quotes
    return json.dumps(value, ensure_ascii=False, default=str)


def did(report: FlowReport) -> str:
    """What a run did, in a few words for a table."""
    counts = report.counts
    said = [counted(report.total, "task")]
    if dead := counts.get(State.DEAD_LETTER):
        said.append(counted(dead, "dead letter"))
    if failed := counts.get(State.FAILED):
        said.append(f"{failed:,} failed")
    if lower := counts.get(State.UPSTREAM_FAILED):
        said.append(f"{lower:,} not run")
    if skipped := counts.get(State.SKIPPED):
        said.append(f"{skipped:,} skipped")
    if report.status is not FlowStatus.COMPLETE and len(said) == 1:
        said.append(f"{counts.get(State.SUCCESS, 0):,} done")
    return ", ".join(said)


# ── the way on ────────────────────────────────────────────────────────────────────────────────────────────────────────


def say_what_to_do(
    out: Output,
    report: FlowReport,
    causes: Sequence[dict[str, Any]],
    *,
    store: str | None,
    again: str | None = None,
) -> None:
    """What went wrong, a line for each cause, and the commands that lead on from there."""
    where = where_it_is(report, store)
    if report.late and report.sla is not None:
        out.say(f"SLA missed: due {at(report.sla)}")
    for cause in causes[:_MOST_CAUSES]:
        out.say(_in_a_sentence(cause))
    if len(causes) > _MOST_CAUSES:
        out.say(f"and {counted(len(causes) - _MOST_CAUSES, 'more cause')}")
    if causes and report.status is not FlowStatus.ABANDONED:
        say_how_to_decide(out, causes, where, look=True)
        out.say(f"{to_resume(causes)}: {again or in_words_again(report)}")


def where_it_is(report: FlowReport, store: str | None) -> str:
    """The words by which a command means this run."""
    named = "" if store is None else f" --store {shlex.quote(mask(store))}"
    return f"--run {str(report.run_id)[:8]}{named}"


def say_how_to_decide(out: Output, causes: Sequence[dict[str, Any]], where: str, *, look: bool = False) -> None:
    """The commands by which a person decides about what went wrong."""
    if look:
        out.say(f"the tasks: redrive tasks ls {where}")
    out.say(f"one of them in full: redrive tasks show {shlex.quote(causes[0]['sample'])} {where}")
    for cause in [one for one in causes if not _passes(one)][:_MOST_CAUSES]:
        out.say(f"when that is mended: redrive tasks retry --cause {shlex.quote(cause['cause'])} {where}")


def to_resume(causes: Sequence[dict[str, Any]]) -> str:
    """When to run it again: at once after the decisions, or when what was down is up."""
    return "to try that again" if all(map(_passes, causes)) else "and then, to go on from there"


def _passes(cause: dict[str, Any]) -> bool:
    """Whether the next start tries it again without a decision."""
    return cause["kind"] in _PASSING


def in_words_again(report: FlowReport) -> str:
    """How a run is gone on with, where the command is not known by which it was begun."""
    given = " ".join(f"--param {shlex.quote(one)}" for one in _given(report))
    # With a mask in the place of a value, it would be another run.
    can_be_shown = len(given) <= _LONGEST_PARAMS and MASK not in given
    same = given if can_be_shown else "the same parameters"
    return f"run flow {report.flow!r} again" + (f" with {same}" if same else "")


def _in_a_sentence(cause: dict[str, Any]) -> str:
    number, untried = cause["tasks"], cause["untried"]
    not_tried = f" ({untried:,} of them not tried)" if untried else ""
    error = in_a_line(cause["error"])
    error = error if len(error) <= _LONGEST else f"{error[: _LONGEST - 1]}…"
    return f"{cause['task']}: {counted(number, 'task')}{not_tried}: {error} (cause {cause['cause']})"
