"""The sums of service metrics: batches of processes are added, old windows are folded into one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Table, case, delete, or_

from redrive.calls.metrics.window import MINUTES_KEPT, MetricsWindow
from redrive.store.dialects.dialect import Dialect
from redrive.store.schema import (
    service_endpoints,
    service_latencies,
    service_minutes,
    service_reporters,
    service_rollups,
)

if TYPE_CHECKING:
    from redrive.calls.metrics.publisher import MetricsBatch

EPOCH = datetime.fromtimestamp(0, UTC)
"""The window that purged windows are folded into."""
REPORTERS_KEPT = timedelta(days=1)
"""How long the last batch of a process is remembered; a process learns the outcome of a commit sooner than that."""

TIMES = ("last_success", "last_failed_auth")
"""What is the latest of all batches of a window, and not their sum."""
SUMS = tuple(column.name for column in service_rollups.columns if not column.primary_key and column.name not in TIMES)
ENDPOINT_SUMS = tuple(column.name for column in service_endpoints.columns if not column.primary_key)
_COUNTS = tuple(name for name in SUMS if not name.endswith("_seconds"))
_PARTS = 1 << 20  # of a second; a power of two, so that a float holds a multiple of one exactly
_SWEEPS = 60  # a process removes old rows with its first batch, and with every n-th after it

Rows = Sequence[dict[str, Any]]


def add(connection: Connection, dialect: Dialect, batch: MetricsBatch) -> None:
    """Add a batch, unless it was added already: the confirmation of a commit may have been lost."""
    now = dialect.now(connection)
    if not _is_new(connection, dialect, batch, now):
        return
    # All processes write in the same order, so that they do not deadlock.
    books = sorted(batch.windows.items())
    sums = [row for name, book in books for row in _sums(name, book)]
    _grow(connection, dialect, service_rollups, SUMS, sums, times=TIMES)
    _grow(
        connection, dialect, service_latencies, ["count"], [row for name, book in books for row in _buckets(name, book)]
    )
    _grow(
        connection,
        dialect,
        service_minutes,
        ["attempts", "faults"],
        [row for name, book in books for row in _minutes(name, book)],
    )
    endpoints = [row for name, book in books for row in _endpoints(name, book)]
    _grow(connection, dialect, service_endpoints, ENDPOINT_SUMS, endpoints)
    if batch.number % _SWEEPS == 1:
        _sweep(connection, batch, now)


def purge(connection: Connection, dialect: Dialect, service: str, before: datetime) -> int:
    """Fold the windows of a service that began before then into one at the beginning of time; return their number.

    What is deleted is what is added, to the row: another process may be adding to the same windows.
    """

    def taken(table: Table) -> Sequence[Any]:
        old = delete(table).where(table.c.service == service, table.c.at > EPOCH, table.c.at < before)
        return connection.execute(old.returning(table)).all()

    windows = taken(service_rollups)
    if windows:
        sums = {name: sum(row._mapping[name] for row in windows) for name in SUMS}
        _grow(connection, dialect, service_rollups, SUMS, [{"service": service, "at": EPOCH, **sums}])
    counts: Counter[int] = Counter()
    for row in taken(service_latencies):
        counts[row.bucket] += row._mapping["count"]
    folded = [{"service": service, "at": EPOCH, "bucket": bucket, "count": counts[bucket]} for bucket in sorted(counts)]
    _grow(connection, dialect, service_latencies, ["count"], folded)
    by_endpoint: dict[str, Counter[str]] = {}
    for row in taken(service_endpoints):
        by_endpoint.setdefault(row.endpoint, Counter()).update({name: row._mapping[name] for name in ENDPOINT_SUMS})
    totals = [{"service": service, "endpoint": name, "at": EPOCH, **by_endpoint[name]} for name in sorted(by_endpoint)]
    _grow(connection, dialect, service_endpoints, ENDPOINT_SUMS, totals)
    connection.execute(
        delete(service_minutes).where(service_minutes.c.service == service, service_minutes.c.at < before)
    )
    return len(windows)


def _is_new(connection: Connection, dialect: Dialect, batch: MetricsBatch, now: datetime) -> bool:
    insert = dialect.insert(service_reporters)
    noted = insert.on_conflict_do_update(
        index_elements=["process"],
        set_={"beat": insert.excluded.beat, "at": insert.excluded.at},
        where=service_reporters.c.beat < insert.excluded.beat,
    ).returning(service_reporters.c.beat)
    row = {"process": batch.process, "beat": batch.number, "at": now}
    return connection.execute(noted, row).first() is not None


def _grow(
    connection: Connection,
    dialect: Dialect,
    table: Table,
    sums: Sequence[str],
    rows: Rows,
    *,
    times: Sequence[str] = (),
) -> None:
    """Add to the rows that are there, and make those that are not; of `times` the latest counts."""
    if rows:
        insert = dialect.insert(table)
        added = insert.excluded
        latest = {
            name: case((or_(table.c[name].is_(None), table.c[name] < added[name]), added[name]), else_=table.c[name])
            for name in times
        }
        connection.execute(
            insert.on_conflict_do_update(
                index_elements=[column.name for column in table.primary_key],
                set_={**{name: table.c[name] + added[name] for name in sums}, **latest},
            ),
            rows,
        )


def _sweep(connection: Connection, batch: MetricsBatch, now: datetime) -> None:
    old = service_minutes.c.at < now - timedelta(seconds=MINUTES_KEPT)
    connection.execute(delete(service_minutes).where(service_minutes.c.service.in_(batch.windows), old))
    connection.execute(delete(service_reporters).where(service_reporters.c.at < now - REPORTERS_KEPT))


# ── a book as rows ───────────────────────────────────────────────────────────────────────────────────────────────────


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _sums(service: str, book: MetricsWindow) -> Iterator[dict[str, Any]]:
    for at, sums in sorted(book.quarters.items()):
        yield {
            "service": service,
            "at": _moment(at),
            **{name: sums.counts[name] for name in _COUNTS},
            "success_seconds": _exact(sums.success_seconds),
            "open_seconds": _exact(sums.open_seconds),
            **{name: None if (moment := getattr(sums, name)) is None else _moment(moment) for name in TIMES},
        }


def _exact(seconds: float) -> float:
    """Round to the microsecond so that sums are exact: in whatever order they are added, totals never shrink."""
    return round(seconds * _PARTS) / _PARTS


def _buckets(service: str, book: MetricsWindow) -> Iterator[dict[str, Any]]:
    for at, sums in sorted(book.quarters.items()):
        for bucket, count in enumerate(sums.buckets):
            if count:
                yield {"service": service, "at": _moment(at), "bucket": bucket, "count": count}


def _endpoints(service: str, book: MetricsWindow) -> Iterator[dict[str, Any]]:
    for (endpoint, at), sums in sorted(book.endpoints.items(), key=lambda item: item[0]):
        counts = {name: sums.counts[name] for name in ENDPOINT_SUMS if name != "success_seconds"}
        row = {"service": service, "endpoint": endpoint, "at": _moment(at), **counts}
        yield {**row, "success_seconds": _exact(sums.success_seconds)}


def _minutes(service: str, book: MetricsWindow) -> Iterator[dict[str, Any]]:
    for at, minute in sorted(book.minutes.items()):
        yield {"service": service, "at": _moment(at), "attempts": minute.attempts, "faults": minute.faults}
