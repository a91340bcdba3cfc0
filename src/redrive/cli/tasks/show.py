"""`redrive tasks show`: one task in detail."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive.cli.command import command
from redrive.cli.flow_report import where_it_is
from redrive.cli.format import at, counted, in_a_line, style_of
from redrive.cli.output import Column, Output
from redrive.cli.session import Session
from redrive.cli.tasks.noun import RunOption, app, run_of
from redrive.model.calls import format_duration
from redrive.tasks.workers.output import split

if TYPE_CHECKING:
    from redrive.model.tasks import FlowReport

_LONGEST = 2_000  # characters of a value, a traceback or an output on a terminal
_MOST = 10  # attempts, and changes
_FAILED = ("DEAD_LETTER", "FAILED")


@command(app)
def show(
    session: Session,
    task: Annotated[
        str,
        typer.Argument(metavar="TASK", help="Task: settle, or settle[17] for a child.", show_default=False),
    ],
    run: RunOption = None,
) -> None:
    """Show one task: input, result, attempts with their output, and changes of state.

    Examples: redrive tasks show 'settle[2]'; redrive tasks show report --run settlement --json
    """
    from redrive.cli.tasks.logs import with_live_output
    from redrive.cli.tasks.view import TaskView

    with session.opened() as store:
        report = run_of(store, run)
        found = with_live_output(store.tasks.get(report.run_id, task), session.results_of(store))
        shown = TaskView(store).details(found)
    out = session.out
    if out.json:
        out.document({"flow": report.flow, **shown})
    elif out.terminal:
        _show_on_terminal(out, report, shown)
    else:
        rows = {"flow": report.flow, **shown}
        for name in ("input", "result", "attempted", "changes"):
            rows[name] = json.dumps(shown[name], ensure_ascii=False)
        out.table((Column(title="field"), Column(title="value")), list(rows.items()))
    where, name = where_it_is(report, session.url), shlex.quote(shown["task"])
    if shown.get("children"):
        out.next_steps([("list its children", f"redrive tasks ls --task {name} {where}")])
    elif shown["state"] == "RUNNING":
        out.next_steps([("follow its output", f"redrive tasks logs {name} {where} --follow")])
    elif shown["state"] in _FAILED:
        otherwise = (
            ("or skip it", f"redrive tasks skip {name} {where} --note …")
            if shown["task"].endswith("]")
            else ("or supply a result", f"redrive tasks accept {name} {where} --result … --note …")
        )
        out.next_steps([("retry when fixed", f"redrive tasks retry {name} {where}"), otherwise])


def _show_on_terminal(out: Output, report: FlowReport, shown: dict[str, Any]) -> None:
    children = shown.get("children")
    fan_out = None
    if children is not None:
        done = children - shown["remaining"] - shown["dead"] - shown["failed"]
        dead = counted(shown["dead"], "dead letter")
        fan_out = f"{children:,}: {done:,} done, {dead}, {shown['failed']:,} failed"
    rows = {
        "task": f"{shown['task']}, {shown['state']}",
        "flow": report.flow,
        "run": f"{report.run_id}, {report.status}",
        "error": shown["error"],
        "kind": shown["kind"],
        "cause": shown["cause"],
        "children": fan_out,
        "attempts": f"{shown['attempts']:,}" if children is None else None,
        "due": _moment(shown["due_at"]) if shown["state"] in ("RETRYING", "SENSING") else None,
        "started": _moment(shown["started_at"]),
        "ended": _moment(shown["ended_at"]),
        "took": None if shown["seconds"] is None else format_duration(shown["seconds"]),
        "note": shown["note"],
    }
    shown_rows = {name: None if value is None else in_a_line(value) for name, value in rows.items()}
    out.fields(shown_rows, styles={"task": style_of(shown["state"]), "run": style_of(report.status)})
    if shown["input"] is not None:
        out.text(f"\ninput\n{_value(shown['input'])}")
    if shown["result_file"] is not None:
        out.text(f"\nresult, in the file {shown['result_file']}")
    elif shown["result"] is not None:
        out.text(f"\nresult\n{_value(shown['result'])}")
    _show_attempts(out, shown["attempted"])
    changes = [_change(change) for change in shown["changes"][-_MOST:]]
    if changes:
        out.prose(f"\nhistory{_left_out(shown['changes'], 'changes')}\n" + "\n".join(changes))


def _show_attempts(out: Output, attempts: Sequence[dict[str, Any]]) -> None:
    """Print the last attempts; the traceback of the attempt before is not printed again."""
    if attempts:
        out.text(f"\nattempts{_left_out(attempts, 'attempts')}")
    before = None
    for attempt in attempts[-_MOST:]:
        took = "" if attempt["seconds"] is None else f" after {format_duration(attempt['seconds'])}"
        error = f": {in_a_line(attempt['error'])}" if attempt["error"] else ""
        ended = (attempt["ended"] or "is running").replace("_", " ")
        out.prose(f"  {attempt['attempt']}  {_clock(attempt['started_at'])}  {ended}{took}{error}")
        if attempt["trace"] and attempt["trace"] == before:
            out.text(_indented("the same traceback as before"))
        elif attempt["trace"]:
            out.text(_indented(_end_of(attempt["trace"])))
        if attempt["output"]:
            out.text(_indented(_output(attempt["output"])))
        before = attempt["trace"]


def _change(one: dict[str, Any]) -> str:
    why = f": {in_a_line(one['cause'])}" if one["cause"] else ""
    return f"  {_clock(one['at'])}  {one['before']} → {one['after']}{why}"


def _left_out(of: Sequence[Any], what: str) -> str:
    return f", the last {_MOST} of {len(of):,} {what}; --json shows all" if len(of) > _MOST else ""


def _value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=2 if isinstance(value, dict) else None)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}\n… {len(text) - _LONGEST:,} more characters; --json shows all"


def _output(text: str) -> str:
    """Return the end of what an attempt wrote, and the innermost calls where it hung."""
    written, dump = split(text)
    shown = [f"output:\n{_end_of(written)}"] if written.strip() else []
    if dump:
        shown.append(f"where it was:\n{_beginning_of(dump)}")
    return "\n".join(shown)


def _beginning_of(text: str) -> str:
    text = text.rstrip("\n")
    if len(text) <= _LONGEST:
        return text
    beginning = text[:_LONGEST].rpartition("\n")[0]
    return f"{beginning}\n… {len(text) - len(beginning):,} more characters; --json shows all"


def _end_of(text: str) -> str:
    """Return the end of a traceback or an output, which has the most information."""
    text = text.rstrip("\n")
    if len(text) <= _LONGEST:
        return text
    end = text[-_LONGEST:]
    end = end.partition("\n")[2] or end  # from a whole line on, where there is one
    return f"… {len(text) - len(end):,} characters before this; --json shows all\n{end}"


def _indented(text: str) -> str:
    return "\n".join(f"     {line}" for line in text.split("\n"))


def _moment(written: str | None) -> str | None:
    return None if written is None else at(datetime.fromisoformat(written))


def _clock(written: str) -> str:
    return f"{datetime.fromisoformat(written):%Y-%m-%d %H:%M:%S}"
