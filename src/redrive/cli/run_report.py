"""What the reports of runs share: a progress line on stderr, and the alerts that a run opened as next steps."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from uuid import UUID

from redrive._internal.masking import mask
from redrive.cli.format import COMMAND, SUCCESS, counted, one_line, percent
from redrive.errors import StoreError
from redrive.model.alerts import AlertStatus, Severity
from redrive.model.calls import format_duration

if TYPE_CHECKING:
    from redrive.model.runs import Progress
    from redrive.store.store import Store

_WHEN = {Severity.P1: "act now", Severity.P2: "act within 1 h", Severity.P3: "review within 24 h"}
_SHOWN = 5
_LOOKED_AT = 50


def leave_alerts_to_the_report() -> None:
    """Suppress warnings that the report also shows, if no logging is configured."""
    log = logging.getLogger("redrive.alerts")
    if not log.hasHandlers():
        log.addFilter(lambda record: not hasattr(record, "alert"))


def alert_steps(store: Store, run_id: UUID, *, named: str | None) -> list[tuple[str, str]]:
    """Return a next step for each alert that the run opened."""
    with suppress(StoreError):  # the report is complete without its alerts, which can be listed later
        found = [
            alert
            for alert in store.alerts.find(status="open", limit=_LOOKED_AT)
            if alert.facts.run_id == run_id and alert.status is not AlertStatus.WAITING
        ]
        where = "" if named is None else f" --store {shlex.quote(mask(named))}"
        steps = [
            (f"alert #{alert.id} ({alert.urgency}, {_WHEN[alert.urgency]})", f"redrive alerts show {alert.id}{where}")
            for alert in found[:_SHOWN]
        ]
        if len(found) > _SHOWN:
            steps.append((f"{counted(len(found) - _SHOWN, 'more alert')}", f"redrive alerts ls{where}"))
        return steps
    return []


_BAR = 24


@contextmanager
def shown(name: str, *, quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """Return a function that draws the progress it is called with."""
    if quiet or not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(_BAR, complete_style=COMMAND, finished_style=SUCCESS, pulse_style=COMMAND),
        TextColumn("{task.fields[figures]}", markup=False),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(one_line(name), total=None, figures="")

        def draw(progress: Progress) -> None:
            bar.update(task, completed=progress.done, total=progress.total, figures=in_figures(progress))

        yield draw


def in_figures(progress: Progress) -> str:
    """Return the figures beside the bar."""
    counts, seconds = progress.counts, progress.seconds
    figures = [counted(counts.read, "row")]
    if seconds > 0:
        figures.append(f"{counts.read / seconds:,.0f} rows/s")
    figures.append(f"{counts.rejected:,} rejected ({percent(counts.rate)})")
    if counts.retries:
        figures.append(counted(counts.retries, "retry", "retries"))
    if progress.total is not None and 0 < progress.done < progress.total:
        figures.append(f"{format_duration(seconds * (progress.total - progress.done) / progress.done)} left")
    return " · ".join(figures)
