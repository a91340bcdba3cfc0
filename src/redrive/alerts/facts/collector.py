"""The collector of levels: deadlines, running runs, services, letters, tables, slots and lags at one moment.

Used by `redrive watch`. The store answers a few queries from indexes and sums, whatever its size. Other databases and
probes are queried in parallel, with a timeout. What cannot be measured is reported as unknown and is not judged.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, case, func, select

from redrive._internal.masking import mask
from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.facts.external_databases import read_slots, server_of, slots_of
from redrive.alerts.facts.measurements import ConditionFigures, TableCounts, TableFreshness
from redrive.alerts.facts.probes import Probe, ProbeRunner, Unanswered, read_bounded, why
from redrive.alerts.facts.runs import under_way
from redrive.alerts.facts.services import services
from redrive.alerts.facts.sla import SlaMonitor, read_freshness
from redrive.alerts.facts.snapshot import Lag, LevelSnapshot, PendingLetters, Slot, TableRows
from redrive.classify.signals import is_interrupt
from redrive.errors import StoreError
from redrive.model.calls import Kind
from redrive.store.database import Database
from redrive.store.schema import cause_hours, causes

T = TypeVar("T")

TIMEOUT = 10.0
"""Seconds to wait for other databases and probes; a later answer is used in the next snapshot."""
_DAY = timedelta(days=1)
_DOWN = {Kind.TRANSIENT, Kind.RETRY_NOW, Kind.RATE_LIMITED}


class LevelCollector:
    """Collect the levels of a store, and of the databases and probes that its settings name.

    Args:
        database: The store.
        settings: The alert settings.
        probes: Probes for consumer lag by name; see `redrive.alerts.facts.probes`.
        figure_probes: Probes of defined conditions by `FILE_OR_MODULE:NAME`.
        timeout: Seconds to wait for other databases and probes.
    """

    def __init__(
        self,
        database: Database,
        settings: AlertSettings,
        *,
        probes: Mapping[str, Probe] | None = None,
        figure_probes: Mapping[str, Callable[[], object]] | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        self._database, self._settings = database, settings
        self._timeout = timeout
        self._probes = {f"lags:{name}": probe for name, probe in (probes or {}).items()}
        self._slas = SlaMonitor(database, settings)
        self._tables = TableCounts(database, settings.tables)
        self._ages = TableFreshness(settings.tables)
        self._conditions = ConditionFigures(database, settings.defined, figure_probes or {})
        self._servers = self._slot_servers()
        self._runner = ProbeRunner()

    def collect(self, now: datetime | None = None) -> LevelSnapshot:
        """Return a snapshot of all levels; `now` is the clock of the database by default."""
        now = self._database.read(self._database.dialect.now) if now is None else now
        unknown: dict[str, str] = {}
        counting = self._measure("tables", lambda: self._tables.to_count(now), unknown) or {}
        asking = {**counting, **self._ages.to_ask(now), **self._conditions.to_ask(now)}
        self._runner.send({**self._servers, **self._probes, **asking})
        until, read = time.monotonic() + self._timeout, partial(read_bounded, self._database)
        due, inactive = self._measure("due", lambda: self._slas.due(now), unknown) or ([], [])
        unknown |= self._slas.unknown
        fresh = self._measure("fresh", lambda: read_freshness(self._database, self._settings, now), unknown)
        running = self._measure("running", lambda: read(partial(under_way, now=now)), unknown)
        called = self._measure("services", lambda: read(partial(services, now=now)), unknown)
        letters = self._measure("letters", lambda: read(partial(pending, now=now)), unknown) or []
        sizes = self._measure("size", lambda: read(self._sizes), unknown) or (None, None)
        answers = self._runner.collect(until=until)
        tables = self._measure("tables", lambda: self._counted(answers, now, unknown), unknown)
        figures = self._measure("conditions", lambda: self._conditions.figures(answers, now, unknown), unknown)
        return LevelSnapshot(
            now=now,
            due=tuple(due),
            inactive=tuple(inactive),
            fresh=tuple(fresh or ()),
            table_ages=tuple(self._ages.ages(answers, now, unknown)),
            running=tuple(running or ()),
            services=tuple(called or ()),
            letters=tuple(letters),
            pending_total=sum(of_pipeline.pending for of_pipeline in letters),
            store_bytes=sizes[0],
            letters_bytes=sizes[1],
            tables=tuple(tables or ()),
            slots=tuple(self._slots(answers, unknown)),
            lags=tuple(self._lags(answers, unknown)),
            figures=tuple(figures or ()),
            unknown=unknown,
        )

    # ── the store ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _measure(self, name: str, measure: Callable[[], T], unknown: dict[str, str]) -> T | None:
        """Return a measurement; None if it fails. Only an unreachable store prevents the other measurements."""
        try:
            return measure()
        except Exception as error:
            if is_interrupt(error) or (isinstance(error, StoreError) and error.kind in _DOWN):
                raise
            unknown[name] = why(error)
            return None

    def _sizes(self, connection: Connection) -> tuple[int, int | None]:
        dialect = self._database.dialect
        return dialect.size(connection), dialect.letters_size(connection)

    def _counted(self, answers: Mapping[str, Any], now: datetime, unknown: dict[str, str]) -> list[TableRows]:
        own = {name: answer for name, answer in answers.items() if name.startswith("tables:")}
        self._tables.keep(own, now)
        tables, not_counted = self._tables.compared(now, own)
        unknown.update(not_counted)
        return tables

    # ── other databases and probes ────────────────────────────────────────────────────────────────────────────────────

    def _slot_servers(self) -> dict[str, Callable[[], list[Slot]]]:
        """Return the queries for replication slots, one for each server."""
        queries: dict[str, Callable[[], list[Slot]]] = {}
        if self._database.dialect.is_remote:
            queries[f"slots:{server_of(self._database.name)}"] = partial(read_bounded, self._database, read_slots)
        for url in self._settings.slots:
            queries.setdefault(f"slots:{server_of(url)}", partial(slots_of, url))
        return queries

    def _slots(self, answers: Mapping[str, Any], unknown: dict[str, str]) -> list[Slot]:
        """Return the slots of all servers; with several servers, the names include the server."""
        slots = []
        for name in self._servers:
            server, answer = name.removeprefix("slots:"), answers[name]
            if isinstance(answer, Unanswered):
                unknown[name] = answer.reason
            elif len(self._servers) == 1:
                slots += answer
            else:
                slots += [replace(slot, name=f"{slot.name} on {server}") for slot in answer]
        return slots

    def _lags(self, answers: Mapping[str, Any], unknown: dict[str, str]) -> list[Lag]:
        lags: list[Lag] = []
        for name in self._probes:
            if isinstance(answers[name], Unanswered):
                unknown[name] = answers[name].reason
            else:
                lags += answers[name]
        return lags


def pending(connection: Connection, *, now: datetime) -> list[PendingLetters]:
    """Return the open letters of each pipeline with their most frequent cause, from the sums by cause and hour.

    Escalated letters count like pending letters, because a failed replay has solved nothing.
    """
    column = cause_hours.c
    is_open = column.pending + column.escalated
    # The hour in which the last 24 hours start is counted completely.
    today = (now - _DAY).replace(minute=0, second=0, microsecond=0)
    summed = (
        select(
            column.pipeline_name,
            column.fingerprint,
            func.sum(is_open).label("pending"),
            func.sum(case((column.hour >= today, is_open), else_=0)).label("today"),
            func.min(column.hour, type_=column.hour.type).label("oldest"),
        )
        .where(is_open > 0)
        .group_by(column.pipeline_name, column.fingerprint)
    )
    by_pipeline = defaultdict(list)
    for row in connection.execute(summed):
        by_pipeline[row.pipeline_name].append(row)
    main = {
        name: max(rows, key=lambda row: (row.pending, row.fingerprint)).fingerprint
        for name, rows in by_pipeline.items()
    }
    described = select(causes.c.fingerprint, causes.c.template).where(causes.c.fingerprint.in_(set(main.values())))
    words = {row.fingerprint: mask(row.template) for row in connection.execute(described)} if main else {}
    return [
        PendingLetters(
            pipeline=name,
            pending=sum(int(row.pending) for row in rows),
            new_today=sum(int(row.today) for row in rows),
            cause=words.get(main[name]),
            oldest=min(row.oldest for row in rows),
        )
        for name, rows in sorted(by_pipeline.items())
    ]
