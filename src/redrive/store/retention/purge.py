"""`store.purge`: all that is over and old goes, one kind after the other."""

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


def place_of_results(named: str | os.PathLike[str] | None, *, usual: Path) -> Path:
    """The directory in which results of flows are.

    One that is named and not there is a slip, or a disk that is not mounted: the runs would go, and nobody would know
    of their files any more. The usual one is made when there is something to put into it.
    """
    if named is None:
        return usual
    if not os.path.isdir(named):
        raise StoreError(
            f"there is no directory {os.fspath(named)!r} in which results of flows could be: see that the name is "
            "right, and the disk is mounted; nothing was changed"
        )
    return Path(named)


def purge(
    database: Database, *, before: datetime, files: Path, dry_run: bool = False, progress: Progress = lambda *_: None
) -> StorePurged:
    """Remove all that was over before a moment."""
    old = Retention(database, before=before, now=database.read(database.dialect.now))
    if dry_run:
        rest = old.rest()
    else:
        windows = ServiceRepository(database).purge(old.services_before)
        rest = StorePurged(alerts=old.purge_alerts(old.alerts_before), services=windows)
    # The last of all: a file of theirs that cannot be removed ends in an error.
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
    """Remove finished runs of pipelines and flows that ended before a moment, and nothing else.

    files     the directory in which results of flows are
    progress  is called with how many runs were looked at, and of how many
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

    def tell(more: int) -> None:
        nonlocal seen
        seen += more
        progress(seen, max(seen, total))

    removed = old.purge_runs(tell)
    return replace(flows.purge(tell), runs=removed, kept=old.begun())
