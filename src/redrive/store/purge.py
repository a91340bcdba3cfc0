"""`store.purge`: all that is over and old goes, one kind after the other."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from redrive.store.database import Database
from redrive.store.retention import FLOWS, PIPELINES, Retention, StorePurged
from redrive.store.retention_flows import FlowRetention
from redrive.store.service_log import ServiceLog

Progress = Callable[[int, int], None]


def purge(
    database: Database, *, before: datetime, files: Path, dry_run: bool = False, progress: Progress = lambda *_: None
) -> StorePurged:
    """Remove all that was over before a moment."""
    done = purge_work(database, before=before, files=files, dry_run=dry_run, progress=progress)
    old = Retention(database, before=before, now=database.read(database.dialect.now))
    if dry_run:
        rest = old.rest()
    else:
        windows = ServiceLog(database).purge(old.services_before)
        rest = StorePurged(alerts=old.purge_alerts(old.alerts_before), services=windows)
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
