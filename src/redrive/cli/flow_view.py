"""A running flow, on stderr where that is a terminal: drawn a few times a second, removed when the run ends.

Running tasks, retries, blocked tasks and failures share the lines that the terminal has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redrive._internal.masking import mask
from redrive.cli.format import counted, in_a_line, one_line
from redrive.model.calls import format_duration
from redrive.model.tasks import FlowProgress, RunningTask, State, TaskFailed, TasksDead

if TYPE_CHECKING:
    from rich.text import Text

_BAR = 24
_SHORTEST_BAR = 6
_LABEL = 10  # columns for what stands before the lines of a section
_LONGEST_NAME = 40
_MOST = 8  # lines of one section, however tall the terminal is
_OVER = (State.SUCCESS, State.SKIPPED, State.FAILED, State.UPSTREAM_FAILED, State.DEAD_LETTER)
_STYLES = {
    State.SUCCESS: "green",
    State.RUNNING: "cyan",
    State.RETRYING: "yellow",
    State.FAILED: "red",
    State.UPSTREAM_FAILED: "red",
    State.SKIPPED: "dim",
    State.DEAD_LETTER: "bold red",
}


@contextmanager
def watched(name: str, *, quiet: bool = False) -> Iterator[Callable[[FlowProgress], None] | None]:
    """Return a function that draws the progress it is called with; None where stderr is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console, Group
    from rich.live import Live

    from redrive.events.bus import on_event

    console = Console(stderr=True)
    troubles = FailureSummary()
    live = Live(console=console, transient=True, auto_refresh=False, vertical_overflow="crop")

    def draw(progress: FlowProgress) -> None:
        width, height = console.size
        with suppress(OSError):  # a terminal that is gone must not end the run
            live.update(Group(*frame(name, progress, troubles, width=width, height=height)), refresh=True)

    forget = on_event(troubles.record)
    try:
        live.start()
        yield draw
    finally:
        forget()
        with suppress(OSError):
            live.stop()


# ── failures so far ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class FailedTasks:
    """Tasks that failed with the same cause."""

    task: str
    reason: str
    dead: bool
    untried: int = 0
    count: int = 0

    def __str__(self) -> str:
        # Of dead letters the events have new causes and untried tasks, not the number so far.
        what = "dead letters" if self.dead else f"{self.count:,} failed"
        untried = f", {self.untried:,} not tried" if self.untried else ""
        reason = in_a_line(mask(self.reason))
        return f"{what}{untried}" + (f": {reason}" if reason else "")


class FailureSummary:
    """Failures that events of a run reported, one entry per cause."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], FailedTasks] = {}

    def __iter__(self) -> Iterator[FailedTasks]:
        return iter(self._known.values())

    def __len__(self) -> int:
        return len(self._known)

    def record(self, event: Any) -> None:
        """Record an event, if it is a failure of a task."""
        if isinstance(event, TasksDead):
            self._known[event.task, event.cause] = FailedTasks(event.task, event.reason, True, event.untried)
        elif isinstance(event, TaskFailed):
            task = event.task.partition("[")[0]
            alike = (task, event.reason.partition(":")[0])
            self._known.setdefault(alike, FailedTasks(task, event.reason, False)).count += 1


# ── frame ───────────────────────────────────────────────────────────────────────────────────────────────────


def frame(
    name: str, progress: FlowProgress, troubles: FailureSummary | Sequence[FailedTasks] = (), *, width: int, height: int
) -> list[Text]:
    """Return the lines of the view, none wider than the terminal, and one fewer than it has."""
    room = max(1, height - 1)
    lines = [_head(name, progress, width), *_counts(progress, width)]
    sections = [
        _running(progress),
        _Section("failed", [_Row(trouble.task, str(trouble), "red") for trouble in troubles], len(troubles)),
        _Section("held", [_Row(group, why.removeprefix(f"{group} "), "yellow") for group, why in progress.held]),
        _retries(progress),
    ]
    lines += _drawn([section for section in sections if section.rows], width, room - len(lines))
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return lines[:room]


def _head(name: str, progress: FlowProgress, width: int) -> Text:
    from rich.text import Text

    counts = progress.counts
    total, over = sum(counts.values()), sum(counts.get(state, 0) for state in _OVER)
    done = counts.get(State.SUCCESS, 0)
    text = f"{done:,} of {counted(total, 'task')} done" if total else "starting"
    text = f"{text} · {format_duration(progress.seconds)}"
    shown = _shortened(one_line(name), max(8, width // 3))
    bar = min(_BAR, width - shown.cell_len - len(text) - 4)
    if bar < _SHORTEST_BAR:
        return Text.assemble(shown, f"  {text}")
    filled = bar * over // total if total else 0
    good = bar * done // total if total else 0
    parts = [("━" * good, "green"), ("━" * (filled - good), "red"), ("─" * (bar - filled), "dim")]
    return Text.assemble(shown, "  ", *parts, f"  {text}")


def _counts(progress: FlowProgress, width: int) -> list[Text]:
    """Return the tasks by state, in as many lines as needed."""
    from rich.text import Text

    lines: list[Text] = []
    for state in State:
        count = progress.counts.get(state, 0)
        if not count:
            continue
        part = Text(f"{count:,} {state}", style=_STYLES.get(state, ""))
        if lines and lines[-1].cell_len + 3 + part.cell_len <= width:
            lines[-1].append(" · ").append_text(part)
        else:
            lines.append(part)
    return lines


# ── sections ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Row:
    """A name, and text about it."""

    name: str
    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class _Section:
    """Rows of one kind, under a label."""

    label: str
    rows: list[_Row]
    total: int = 0
    """Number of all such rows, which may be more than are known here."""

    @property
    def size(self) -> int:
        """Lines that would show all rows."""
        return max(len(self.rows), self.total)

    def within(self, lines: int) -> tuple[list[_Row], int]:
        """Return the rows that fit, and how many are left out."""
        fit = lines if lines >= self.size or lines == 1 else max(0, lines - 1)
        rows = self.rows[:fit]
        return rows, self.size - len(rows) if len(rows) < lines else 0


def _running(progress: FlowProgress) -> _Section:
    rows = [_Row(task.task, _age(task), "bold red" if task.dying else "") for task in progress.running]
    return _Section("running", rows, progress.counts.get(State.RUNNING, 0))


def _age(task: RunningTask) -> str:
    age = format_duration(task.seconds)
    limit = "" if task.timeout is None else f" of {format_duration(task.timeout)}"
    attempt = f", attempt {task.attempt:,}" if task.attempt > 1 else ""
    return f"{'being killed after ' if task.dying else ''}{age}{limit}{attempt}"


def _retries(progress: FlowProgress) -> _Section:
    rows = [
        _Row(task, f"in {format_duration(wait)}" if wait > 0 else "now", "yellow") for task, wait in progress.retries
    ]
    return _Section("retries", rows, progress.counts.get(State.RETRYING, 0))


def _drawn(sections: Sequence[_Section], width: int, room: int) -> list[Text]:
    """Return the sections in as many lines as fit, with their names in one column."""
    from rich.text import Text

    shares = _shares([section.size for section in sections], room)
    shown = [section.within(share) for section, share in zip(sections, shares, strict=True)]
    most = max(8, min(_LONGEST_NAME, (width - _LABEL) // 2))
    names = [[_shortened(one_line(row.name), most) for row in rows] for rows, _ in shown]
    column = max((name.cell_len for several in names for name in several), default=0)
    lines: list[Text] = []
    for section, (rows, more), several in zip(sections, shown, names, strict=True):
        drawn = [
            Text.assemble(name, " " * (column + 2 - name.cell_len), (one_line(row.text), row.style))
            for row, name in zip(rows, several, strict=True)
        ]
        drawn += [Text(f"… and {more:,} more", style="dim")] if more else []
        labels = [section.label, *[""] * len(drawn)]
        lines += [
            Text.assemble((f"{label:<{_LABEL}}", "dim"), line) for label, line in zip(labels, drawn, strict=False)
        ]
    return lines


def _shares(wanted: Sequence[int], room: int) -> list[int]:
    """Return the lines of each section, given out one by one in turn."""
    shares = [0] * len(wanted)
    most = [min(_MOST, wish) for wish in wanted]
    while sum(shares) < room and shares != most:
        for place, enough in enumerate(most):
            if shares[place] < enough and sum(shares) < room:
                shares[place] += 1
    return shares


def _shortened(name: str, room: int) -> Text:
    """Return a name that fits; the index of a child is kept."""
    from rich.cells import set_cell_size
    from rich.text import Text

    whole = Text(name)
    if whole.cell_len <= room:
        return whole
    child = name[name.rfind("[") :] if name.endswith("]") else ""
    child = child if len(child) <= room - 4 else ""
    return Text(f"{set_cell_size(name, room - len(child) - 1).rstrip()}…{child}")
