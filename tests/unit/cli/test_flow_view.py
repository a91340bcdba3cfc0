"""The live view of a flow: what it shows, and that it fits every terminal, whatever the task names are."""

import re
from pathlib import Path
from uuid import UUID

import pytest
from rich.cells import cell_len

from redrive.cli.flow_view import FailureSummary, frame, watched
from redrive.model.tasks import FlowProgress, RunningTask, State, TaskFailed, TasksDead

PAGE = Path(__file__).parents[3] / "docs" / "command-line.md"
RUN = UUID(int=0)

SETTLING = FlowProgress(
    counts={
        State.PENDING: 1,
        State.READY: 405,
        State.RUNNING: 4,
        State.SUCCESS: 834,
        State.RETRYING: 5,
        State.DEAD_LETTER: 3,
    },
    running=(
        RunningTask(task="settle[17]", seconds=61.2, attempt=1, timeout=60, dying=True),
        RunningTask(task="settle[840]", seconds=12, attempt=1, timeout=60),
        RunningTask(task="settle[96]", seconds=3.1, attempt=2, timeout=60),
        RunningTask(task="settle[841]", seconds=0.4, attempt=1, timeout=60),
    ),
    retries=(("settle[112]", 6.3), ("settle[97]", 8.0), ("settle[131]", 9.0)),
    held=(("partner-api", "partner-api is down, next try in 24 s"),),
    seconds=240,
)
ODD = "\x1b[31m[bold]設計" * 40
CROWDED = FlowProgress(
    counts=dict.fromkeys(State, 50_000),
    running=tuple(RunningTask(task=f"{ODD}[{n}]", seconds=n, attempt=n, timeout=None) for n in range(20)),
    retries=tuple((f"{ODD}[{n}]", n / 2) for n in range(20)),
    held=tuple((f"{ODD}{n}", "down\n" * 30) for n in range(12)),
    seconds=1e7,
)


def dead(task="settle", reason="LookupError: Cipla has no account", *, cause="x", untried=0):
    return TasksDead(
        flow="settlement", run_id=RUN, task=task, cause=cause, reason=reason, count=3 + untried, untried=untried
    )


def failed(task, reason):
    return TaskFailed(flow="settlement", run_id=RUN, task=task, reason=reason, upstream_failed=0)


def heard(*events):
    troubles = FailureSummary()
    for event in events:
        troubles.record(event)
    return troubles


def drawn(progress, troubles=(), *, name="settlement", width=80, height=24):
    return [line.plain for line in frame(name, progress, troubles, width=width, height=height)]


def test_view_shows_what_the_page_shows():
    shown = "\n".join(drawn(SETTLING, heard(dead())))
    assert f"```text\n{shown}\n```" in PAGE.read_text()


@pytest.mark.parametrize("height", [1, 2, 3, 5, 10, 24, 60])
@pytest.mark.parametrize("width", [10, 40, 80, 120, 300])
@pytest.mark.parametrize("progress", [FlowProgress(counts={}), SETTLING, CROWDED])
@pytest.mark.parametrize("name", ["settlement", ODD])
def test_view_never_exceeds_the_terminal(progress, name, width, height):
    troubles = heard(*(dead(f"{ODD}{n}", "x" * 500, untried=n) for n in range(30)))
    lines = drawn(progress, troubles, name=name, width=width, height=height)
    assert 1 <= len(lines) <= max(1, height - 1)
    assert all(cell_len(line) <= width for line in lines)
    assert not any(re.search(r"[\0-\x1f\x7f]", line) for line in lines)


def test_flow_without_tasks_is_shown_as_starting():
    assert drawn(FlowProgress(counts={})) == ["settlement  ────────────────────────  starting · 0.0 s"]


def test_markup_in_a_name_is_shown_literally():
    (*_, line) = drawn(FlowProgress(counts={}, held=(("[red]api[/red]", "[bold]down[/bold]"),)))
    assert line == "held      [red]api[/red]  [bold]down[/bold]"


def test_child_with_a_long_name_is_identifiable():
    running = RunningTask(task=f"{'a_very_long_name' * 9}[4711]", seconds=1, attempt=1)
    (*_, line) = drawn(FlowProgress(counts={}, running=(running,)))
    assert re.fullmatch(r"running   a_very_long_name\w*…\[4711\]  1\.0 s", line)


def test_every_section_has_a_line_in_a_small_terminal():
    lines = drawn(CROWDED, heard(dead()), width=300, height=7)
    assert [line.split()[0] for line in lines[-4:]] == ["running", "failed", "held", "retries"]


def test_omitted_lines_are_counted():
    lines = drawn(CROWDED, height=40)
    assert [line.strip() for line in lines if "more" in line] == [
        "… and 49,993 more",  # 50,000 are running, of which seven have a line
        "… and 5 more",
        "… and 49,993 more",
    ]


def test_failures_are_grouped_by_cause():
    troubles = heard(
        dead(),
        dead(untried=1_242),
        *(failed(f"fetch[{n}]", f"ConnectionError: refused by {n}") for n in range(3)),
        failed("fetch[3]", "ran longer than its limit of 60 s"),
        failed("report", "OSError: password=hunter2"),
        object(),
    )
    assert drawn(FlowProgress(counts={}), troubles)[1:] == [
        "failed    settle  dead letters, 1,242 not tried: LookupError: Cipla has no acco…",
        "          fetch   3 failed: ConnectionError: refused by 0",
        "          fetch   1 failed: ran longer than its limit of 60 s",
        "          report  1 failed: OSError: password=***",
    ]


def test_due_retry_is_shown_as_now():
    (*_, line) = drawn(FlowProgress(counts={}, retries=(("fetch", -0.1),)))
    assert line == "retries   fetch  now"


def test_view_is_off_without_a_terminal():
    with watched("settlement") as draw:
        assert draw is None
