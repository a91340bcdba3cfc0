"""`store.services`: what services did, for operators and for alert rules.

All processes add to the same sums. See `Rollups` in `redrive.calls.metrics.publisher` for how they do that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, Row, Table, func, select

from redrive.calls.metrics.window import EDGES
from redrive.policy.retry import REPEATABLE
from redrive.store.database import Database
from redrive.store.repositories import service_sums
from redrive.store.repositories.service_sums import ENDPOINT_SUMS, EPOCH, SUMS
from redrive.store.schema import OUTCOMES, service_endpoints, service_latencies, service_minutes, service_rollups

if TYPE_CHECKING:
    from redrive.calls.metrics.publisher import MetricsBatch

EVERY = 5.0
"""Seconds between two batches of a process."""
PATIENCE = 1.0
"""Seconds to wait for a database that restarts: metrics are buffered, and written soon after."""

_TOTALLED = tuple(name for name in SUMS if name not in OUTCOMES)
_BUCKETS = len(EDGES) + 1
_NONE = (0,) * _BUCKETS


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceWindow:
    """What one service did in a quarter of an hour, or in several of them together, in all processes."""

    service: str
    at: datetime
    """When it begins."""
    calls: int = 0
    """Logical calls."""
    attempts: int = 0
    """Attempts of all calls."""
    successes: int = 0
    retries: int = 0
    """Attempts after the first one of a call."""
    fallbacks: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    """By outcome: a verdict's kind; or, for a call of which nothing was sent, `circuit_open` or `no_key_left`."""
    calls_failed: int = 0
    """Calls that ended in an error for their caller."""
    failed_auth: int = 0
    """Failed calls whose credential was rejected permanently."""
    failed_4xx: int = 0
    """Failed calls with a 4xx response that blames the request."""
    failed_404: int = 0
    """Failed calls with a 404 or 410: the resource does not exist."""
    streaks_5xx: int = 0
    """How often three calls in a row, of one process, ended in a 5xx response."""
    success_seconds: float = 0.0
    """Time spent inside successful attempts."""
    open_seconds: float = 0.0
    """Seconds for which circuits were not closed; where several processes share one, each counts its own."""
    latencies: tuple[int, ...] = _NONE
    """Successful attempts by how long they took: up to each of `redrive.calls.metrics.window.EDGES`, and longer."""

    @property
    def failed_attempts(self) -> int:
        """Attempts that did not succeed."""
        return self.attempts - self.successes

    @property
    def success_rate(self) -> float | None:
        """Share of attempts that succeeded; None where there were none."""
        return self.successes / self.attempts if self.attempts else None

    @property
    def transient_rate(self) -> float | None:
        """Share of attempts that failed with a retryable error; None without attempts."""
        retryable = sum(self.failures.get(kind, 0) for kind in REPEATABLE)
        return retryable / self.attempts if self.attempts else None

    @property
    def mean_retries(self) -> float | None:
        """Retries per success; None where nothing succeeded."""
        return self.retries / self.successes if self.successes else None

    @property
    def mean_seconds(self) -> float | None:
        """Mean duration of a successful attempt; None without one."""
        return self.success_seconds / self.successes if self.successes else None

    @property
    def p50(self) -> float | None:
        """Median duration of successful attempts in seconds; None without one."""
        return percentile(self.latencies, 0.50)

    @property
    def p95(self) -> float | None:
        """95th percentile of the duration of successful attempts."""
        return percentile(self.latencies, 0.95)

    @property
    def p99(self) -> float | None:
        """99th percentile of the duration of successful attempts."""
        return percentile(self.latencies, 0.99)

    def document(self) -> dict[str, Any]:
        """Return the window as a JSON document."""
        derived = ("success_rate", "transient_rate", "mean_retries", "mean_seconds", "p50", "p95", "p99")
        return {
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "at": self.at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
            "failures": dict(self.failures),
            "latencies": list(self.latencies),
            **{name: getattr(self, name) for name in derived},
        }


def percentile(latencies: Sequence[int], share: float) -> float | None:
    """Return the latency that this share of all does not exceed; within a bucket, an even distribution is assumed.

    Of what is beyond the last edge nothing is known but that.
    """
    total = sum(latencies)
    if not total:
        return None
    wanted, below = share * total, 0
    for begins, ends, count in zip((0.0, *EDGES), EDGES, latencies, strict=False):
        if count and below + count >= wanted:
            return begins + (ends - begins) * (wanted - below) / count
        below += count
    return EDGES[-1]


def merge_windows(windows: Iterable[ServiceWindow], *, service: str = "", at: datetime = EPOCH) -> ServiceWindow:
    """Combine windows into one; the caller states its service and when it begins."""
    listed = list(windows)
    sums = {name: sum(getattr(window, name) for window in listed) for name in _TOTALLED}
    failures = {name: sum(window.failures.get(name, 0) for window in listed) for name in OUTCOMES}
    latencies = tuple(map(sum, zip(*(window.latencies for window in listed), strict=True))) or _NONE
    return ServiceWindow(service=service, at=at, failures=failures, latencies=latencies, **sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceMinute:
    """One minute of a service."""

    at: datetime
    attempts: int
    faults: int
    """Attempts that the service failed: 5xx, no connection, no answer in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSums:
    """What one endpoint of a service did: a function, or a route of an HTTP client; `other` for those beyond the first
    hundred of a process."""

    service: str
    endpoint: str
    calls: int
    """Logical calls."""
    attempts: int
    """Attempts of all calls."""
    successes: int
    retries: int
    """Attempts after the first one of a call."""
    faults: int
    """Attempts that the service failed: 5xx, no connection, no answer in time."""
    calls_failed: int
    """Calls that ended in an error for their caller."""
    failed_4xx: int
    """Failed calls with a 4xx response that blames the request."""
    failed_404: int
    """Failed calls with a 404 or 410: the resource does not exist."""
    success_seconds: float
    """Time spent inside successful attempts."""

    @property
    def success_rate(self) -> float | None:
        """Share of attempts that succeeded; None where there were none."""
        return self.successes / self.attempts if self.attempts else None

    @property
    def mean_seconds(self) -> float | None:
        """Mean duration of a successful attempt; None without one."""
        return self.success_seconds / self.successes if self.successes else None


class ServiceRepository:
    """What services did: sums by the quarter of an hour, in UTC, and of the last hours by the minute.

    every   seconds between two batches that a process of this store writes
    """

    def __init__(self, database: Database, *, every: float = EVERY) -> None:
        self.name = database.name
        self.every = every
        self._database = database
        self._stop: Callable[[], None] | None = None

    # ── for operators and rules ──────────────────────────────────────────────────────────────────────────────────────

    def names(self) -> list[str]:
        """Return the names of all services that were ever recorded."""
        wanted = select(service_rollups.c.service).distinct().order_by(service_rollups.c.service)
        return self._database.read(lambda connection: list(connection.execute(wanted).scalars()))

    def windows(
        self, service: str | None = None, *, since: datetime | None = None, until: datetime | None = None
    ) -> list[ServiceWindow]:
        """Return the windows with activity of one service or of all, oldest first.

        Windows that begin at `since` or later, and before `until`.
        """

        def chosen(table: Table) -> list[ColumnElement[bool]]:
            at, conditions = table.c.at, [table.c.at > EPOCH]
            conditions += [] if since is None else [at >= since]
            conditions += [] if until is None else [at < until]
            return conditions + ([] if service is None else [table.c.service == service])

        def work(connection: Connection) -> list[ServiceWindow]:
            rows = connection.execute(
                select(service_rollups)
                .where(*chosen(service_rollups))
                .order_by(service_rollups.c.at, service_rollups.c.service)
            ).all()
            of = service_latencies.c
            counted = select(of.service, of.at, of.bucket, of.count).where(*chosen(service_latencies))
            buckets = _buckets(connection.execute(counted))
            return [_window(row, row.at, buckets.get((row.service, row.at))) for row in rows]

        return self._database.read(work)

    def totals(self) -> list[ServiceWindow]:
        """Return the totals of each service, purged windows included: numbers that never decrease."""

        def work(connection: Connection) -> list[ServiceWindow]:
            sums = [func.sum(service_rollups.c[name]).label(name) for name in SUMS]
            by = service_rollups.c.service
            rows = connection.execute(select(by, *sums).group_by(by).order_by(by)).all()
            of = service_latencies.c
            counted = connection.execute(
                select(of.service, of.bucket, func.sum(of.count)).group_by(of.service, of.bucket)
            )
            buckets = _buckets((service, EPOCH, bucket, count) for service, bucket, count in counted)
            return [_window(row, EPOCH, buckets.get((row.service, EPOCH))) for row in rows]

        return self._database.read(work)

    def endpoints(
        self, service: str | None = None, *, since: datetime | None = None, until: datetime | None = None
    ) -> list[EndpointSums]:
        """Return what the endpoints of one service or of all did.

        Windows that begin at `since` or later and before `until`; without these, the totals.
        """
        of = service_endpoints.c
        chosen = [] if since is None else [of.at >= since]
        chosen += [] if until is None else [of.at < until]
        chosen += [] if service is None else [of.service == service]
        sums = [func.sum(of[name]).label(name) for name in ENDPOINT_SUMS]
        by = (of.service, of.endpoint)
        wanted = select(*by, *sums).where(*chosen).group_by(*by).order_by(*by)

        def endpoint_sums(row: Row[Any]) -> EndpointSums:
            values = {name: int(row._mapping[name]) for name in ENDPOINT_SUMS if name != "success_seconds"}
            return EndpointSums(
                service=row.service, endpoint=row.endpoint, success_seconds=float(row.success_seconds), **values
            )

        return self._database.read(lambda connection: [endpoint_sums(row) for row in connection.execute(wanted)])

    def minutes(self, service: str, since: datetime) -> list[ServiceMinute]:
        """Return the minutes since then with attempts, oldest first; they are kept for three hours."""
        of = service_minutes.c
        wanted = select(service_minutes).where(of.service == service, of.at >= since).order_by(of.at)
        return self._database.read(
            lambda connection: [
                ServiceMinute(at=row.at, attempts=row.attempts, faults=row.faults) for row in connection.execute(wanted)
            ]
        )

    def purge(self, before: datetime) -> int:
        """Remove windows that began before then, except for their sums, which `totals` keeps; return their number.

        before  the time before which windows are removed
        """

        def purge_service(name: str) -> int:
            return self._database.write(
                lambda connection: service_sums.purge(connection, self._database.dialect, name, before)
            )

        return sum(purge_service(name) for name in self.names())

    # ── for the services of this process ─────────────────────────────────────────────────────────────────────────────

    def add(self, batch: MetricsBatch) -> None:
        self._impatient.write(lambda connection: service_sums.add(connection, self._database.dialect, batch))

    def on_close(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def close(self) -> None:
        """Write the last metrics of this process's services, stop recording them, and disconnect."""
        if self._stop is not None:
            self._stop()
        if "_impatient" in vars(self):
            self._impatient.close()

    @cached_property
    def _impatient(self) -> Database:
        # Separate connections, so that letters do not wait for metrics.
        return Database(self._database.dialect, patience=PATIENCE)


def _buckets(counted: Iterable[Any]) -> dict[tuple[str, datetime], list[int]]:
    """Group latencies by service and window, from rows of service, window, bucket and count."""
    latencies: defaultdict[tuple[str, datetime], list[int]] = defaultdict(lambda: [0] * _BUCKETS)
    for service, at, bucket, count in counted:
        latencies[service, at][bucket] += int(count)
    return latencies


def _window(row: Row[Any], at: datetime, latencies: Sequence[int] | None) -> ServiceWindow:
    of = row._mapping
    sums = {name: of[name] if name.endswith("_seconds") else int(of[name]) for name in SUMS}
    failures = {name: sums.pop(name) for name in OUTCOMES}
    return ServiceWindow(
        service=row.service,
        at=at,
        failures=failures,
        latencies=_NONE if latencies is None else tuple(latencies),
        **sums,
    )
