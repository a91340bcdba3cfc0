"""`store.purge`: remove finished work that is old, one kind after the other."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from redrive.errors import StoreError
from redrive.store.database import Database
from redrive.store.repositories.services import ServiceRepository
from redrive.store.retention.finished import FLOWS, PIPELINES, Retention, StorePurged
from redrive.store.retention.flows import FlowRetention

Progress = Callable[[int, int], None]


def results_directory(named: str | os.PathLike[str] | None, *, usual: Path) -> Path:
    """Return the directory of the results of flows.

    A named directory that does not exist is a mistake, or a disk that is not mounted: the runs would be removed, and
    their files would be left behind. The usual directory is created with the first file.
    """
    if named is None:
        return usual
    if not os.path.isdir(named):
        raise StoreError(
            f"the directory {os.fspath(named)!r} of flow results does not exist: check its name, and that the disk is "
            "mounted; nothing was changed"
        )
    return Path(named)


def purge(
    database: Database, *, before: datetime, files: Path, dry_run: bool = False, progress: Progress = lambda *_: None
) -> StorePurged:
    """Remove all work that was finished before a time."""
    old = Retention(database, before=before, now=database.read(database.dialect.now))
    if dry_run:
        rest = old.rest()
    else:
        windows = ServiceRepository(database).purge(old.services_before)
        rest = StorePurged(alerts=old.purge_alerts(old.alerts_before), services=windows)
    # Flows come last: a file that cannot be removed raises an error.
    done = purge_work(database, before=before, files=files, dry_run=dry_run, progress=progress)
    return replace(done, alerts=rest.alerts, services=rest.services)


def purge_work(
    database: Database,
    *,
    before: datetime,
    files: Path,
    dry_run: bool = False,
    progress: Progress = lambda *_: None,
    within: float = math.inf,
) -> StorePurged:
    """Remove finished runs of pipelines and flows that ended before a time, and nothing else.

    files     the directory of the results of flows
    progress  called with the number of runs that were processed, and the number of all
    within    seconds after which the rest is left for another time
    """
    ends = time.monotonic() + within
    now = database.read(database.dialect.now)
    old = Retention(database, before=before, now=now, enough=lambda: time.monotonic() > ends)
    flows, count = FlowRetention(old, files), old.count(PIPELINES)
    if dry_run:
        would = flows.would_remove()
        return replace(would, runs=count, kept=old.begun() - count - would.flows, dry_run=True)
    seen, total = 0, count + old.count(FLOWS)

    def report_progress(more: int) -> None:
        nonlocal seen
        seen += more
        progress(seen, max(seen, total))

    removed = old.purge_runs(report_progress)
    return replace(flows.purge(report_progress), runs=removed, kept=old.begun())
