"""What services did, as people and rules ask for it: `store.services`.

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
"""Seconds for which a database that restarts is waited for: what services did is kept, and told soon after."""

_TOTALLED = tuple(name for name in SUMS if name not in OUTCOMES)
_BUCKETS = len(EDGES) + 1
_NONE = (0,) * _BUCKETS


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceWindow:
    """What one service did in a quarter of an hour, or in several of them together; all processes counted."""

    service: str
    at: datetime
    """When it begins."""
    calls: int = 0
    """Logical calls."""
    attempts: int = 0
    """Of all calls."""
    successes: int = 0
    retries: int = 0
    """Attempts after the first one of a call."""
    fallbacks: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    """By outcome: a verdict's kind; or, for a call of which nothing was sent, `circuit_open` or `no_key_left`."""
    calls_failed: int = 0
    """Calls that ended in an error for their caller."""
    failed_auth: int = 0
    """Of these, by a credential that was refused for good."""
    failed_4xx: int = 0
    """Of these, by an answer 4xx that says that something is wrong with the request."""
    failed_404: int = 0
    """Of these, by 404 or 410: what was asked for is not there."""
    streaks_5xx: int = 0
    """How often three calls in a row, of one process, ended in an answer 5xx."""
    success_seconds: float = 0.0
    """Time spent inside successful attempts."""
    open_seconds: float = 0.0
    """Time for which circuits were not closed; where several processes share one, each counts its own."""
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
        """Share of attempts that failed by something that can heal; None where there were none."""
        healing = sum(self.failures.get(kind, 0) for kind in REPEATABLE)
        return healing / self.attempts if self.attempts else None

    @property
    def mean_retries(self) -> float | None:
        """Retries per success; None where nothing succeeded."""
        return self.retries / self.successes if self.successes else None

    @property
    def mean_seconds(self) -> float | None:
        """How long a successful attempt took; None where there was none."""
        return self.success_seconds / self.successes if self.successes else None

    @property
    def p50(self) -> float | None:
        """The median of how long successful attempts took, in seconds; None where there was none."""
        return percentile(self.latencies, 0.50)

    @property
    def p95(self) -> float | None:
        """95 of 100 successful attempts took at most so long."""
        return percentile(self.latencies, 0.95)

    @property
    def p99(self) -> float | None:
        """99 of 100 successful attempts took at most so long."""
        return percentile(self.latencies, 0.99)

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        derived = ("success_rate", "transient_rate", "mean_retries", "mean_seconds", "p50", "p95", "p99")
        return {
            **{one.name: getattr(self, one.name) for one in fields(self)},
            "at": self.at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
            "failures": dict(self.failures),
            "latencies": list(self.latencies),
            **{name: getattr(self, name) for name in derived},
        }


def percentile(latencies: Sequence[int], share: float) -> float | None:
    """The latency that this share of all does not exceed, as far as buckets tell: within one, they lie evenly.

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


def together(windows: Iterable[ServiceWindow], *, service: str = "", at: datetime = EPOCH) -> ServiceWindow:
    """Windows as one: of which service, and when it begins, is for the caller to say."""
    listed = list(windows)
    sums = {name: sum(getattr(one, name) for one in listed) for name in _TOTALLED}
    failures = {name: sum(one.failures.get(name, 0) for one in listed) for name in OUTCOMES}
    latencies = tuple(map(sum, zip(*(one.latencies for one in listed), strict=True))) or _NONE
    return ServiceWindow(service=service, at=at, failures=failures, latencies=latencies, **sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceMinute:
    """One minute of a service."""

    at: datetime
    attempts: int
    faults: int
    """Attempts for whose failure the service is to blame: 5xx, no connection, no answer in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSums:
    """What one endpoint of a service did: a function, or a route of an HTTP client; `other` for those beyond the first
    hundred of a process."""

    service: str
    endpoint: str
    calls: int
    """Logical calls."""
    attempts: int
    """Of all calls."""
    successes: int
    retries: int
    """Attempts after the first one of a call."""
    faults: int
    """Attempts for whose failure the service is to blame: 5xx, no connection, no answer in time."""
    calls_failed: int
    """Calls that ended in an error for their caller."""
    failed_4xx: int
    """Of these, by an answer 4xx that says that something is wrong with the request."""
    failed_404: int
    """Of these, by 404 or 410: what was asked for is not there."""
    success_seconds: float
    """Time spent inside successful attempts."""

    @property
    def success_rate(self) -> float | None:
        """Share of attempts that succeeded; None where there were none."""
        return self.successes / self.attempts if self.attempts else None

    @property
    def mean_seconds(self) -> float | None:
        """How long a successful attempt took; None where there was none."""
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

    # ── for people and rules ─────────────────────────────────────────────────────────────────────────────────────────

    def names(self) -> list[str]:
        """The services that were ever recorded, by name."""
        wanted = select(service_rollups.c.service).distinct().order_by(service_rollups.c.service)
        return self._database.read(lambda connection: list(connection.execute(wanted).scalars()))

    def windows(
        self, service: str | None = None, *, since: datetime | None = None, until: datetime | None = None
    ) -> list[ServiceWindow]:
        """Windows in which something was done, of one service or of all; those that begin at `since` or later, and
        before `until`. The oldest first.
        """

        def chosen(table: Table) -> list[ColumnElement[bool]]:
            at, found = table.c.at, [table.c.at > EPOCH]
            found += [] if since is None else [at >= since]
            found += [] if until is None else [at < until]
            return found + ([] if service is None else [table.c.service == service])

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
        """All that was ever done, of each service, purged windows included: numbers that only ever grow."""

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
        """What the endpoints of one service or of all did, in windows that begin at `since` or later and before
        `until`; without these all that was ever done.
        """
        of = service_endpoints.c
        chosen = [] if since is None else [of.at >= since]
        chosen += [] if until is None else [of.at < until]
        chosen += [] if service is None else [of.service == service]
        sums = [func.sum(of[name]).label(name) for name in ENDPOINT_SUMS]
        by = (of.service, of.endpoint)
        wanted = select(*by, *sums).where(*chosen).group_by(*by).order_by(*by)

        def found(row: Row[Any]) -> EndpointSums:
            values = {name: int(row._mapping[name]) for name in ENDPOINT_SUMS if name != "success_seconds"}
            return EndpointSums(
                service=row.service, endpoint=row.endpoint, success_seconds=float(row.success_seconds), **values
            )

        return self._database.read(lambda connection: [found(row) for row in connection.execute(wanted)])

    def minutes(self, service: str, since: datetime) -> list[ServiceMinute]:
        """The minutes since then in which there were attempts, the oldest first; they are kept for three hours."""
        of = service_minutes.c
        wanted = select(service_minutes).where(of.service == service, of.at >= since).order_by(of.at)
        return self._database.read(
            lambda connection: [
                ServiceMinute(at=row.at, attempts=row.attempts, faults=row.faults) for row in connection.execute(wanted)
            ]
        )

    def purge(self, before: datetime) -> int:
        """Forget windows that began before then, but for their sums, which `totals` still has; how many there were.

        before  the moment up to which all is forgotten
        """

        def purge_one(name: str) -> int:
            return self._database.write(
                lambda connection: service_sums.purge(connection, self._database.dialect, name, before)
            )

        return sum(purge_one(name) for name in self.names())

    # ── for the services of this process ─────────────────────────────────────────────────────────────────────────────

    def add(self, batch: MetricsBatch) -> None:
        self._impatient.write(lambda connection: service_sums.add(connection, self._database.dialect, batch))

    def on_close(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def close(self) -> None:
        """Write what the services of this process did last, record them no longer, and disconnect."""
        if self._stop is not None:
            self._stop()
        if "_impatient" in vars(self):
            self._impatient.close()

    @cached_property
    def _impatient(self) -> Database:
        # Connections of our own: what can wait must not keep letters waiting.
        return Database(self._database.dialect, patience=PATIENCE)


def _buckets(counted: Iterable[Any]) -> dict[tuple[str, datetime], list[int]]:
    """Latencies by service and window, of rows of service, window, bucket and count."""
    found: defaultdict[tuple[str, datetime], list[int]] = defaultdict(lambda: [0] * _BUCKETS)
    for service, at, bucket, count in counted:
        found[service, at][bucket] += int(count)
    return found


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
