"""`store.shared`: what processes share about services, such as the state of circuits and exhausted keys.

`redrive.policy.consensus` defines what is reported and believed; `SharedState` in `redrive.calls.shared_state` is the
contract.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, or_, select

from redrive.policy import consensus
from redrive.policy.breaker import CircuitState
from redrive.policy.consensus import BreakerReport, DrainedKey, ReportKind, Reports
from redrive.store.database import Database
from redrive.store.schema import breakers, credentials

EVERY = 0.5
"""Seconds between two reads: a report reaches every process within a second."""
PATIENCE = 1.0
"""Seconds to wait for a database that restarts: services work without it, and try again soon."""
KEPT = timedelta(hours=1)
"""How long reports are kept that no longer have an effect."""

_OPERATOR = "*"  # the host of a reset


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The state of one service by the reports of all processes."""

    service: str
    state: CircuitState
    """Open if a machine reports it; half-open once its time to retry has come and no process has closed it yet."""
    hosts: tuple[str, ...]
    """The machines whose opening stands."""
    everywhere: bool
    """Whether there are enough of them for other machines to believe them."""
    retry_in: float | None
    """Seconds until the last of them probes; None if the circuit is not open."""
    changed_at: datetime | None
    """The time of the newest report; None if only keys are known."""
    drained: tuple[DrainedKey, ...]
    """The keys that are exhausted now."""


class ServiceStateRepository:
    """The state of services that processes share; implements `redrive.calls.shared_state.SharedState`.

    node    the name of this machine; where several machines have one name, give each its own
    every   seconds between two looks
    """

    def __init__(self, database: Database, *, node: str | None = None, every: float = EVERY) -> None:
        self.name = database.name
        self.node = socket.gethostname() if node is None else node
        self.every = every
        self._database = database
        # Separate connections, so that shared state and letters do not wait for each other.
        self._impatient = Database(database.dialect, patience=PATIENCE)
        self._stop: Callable[[], None] | None = None

    # ── for the services of this process ─────────────────────────────────────────────────────────────────────────

    def read(self, services: Collection[str], *, keys: bool) -> Reports:
        return self._impatient.read(lambda connection: self._read_reports(connection, services, keys))

    def publish(self, reports: Sequence[BreakerReport], drained: Sequence[DrainedKey]) -> None:
        def work(connection: Connection) -> None:
            now = self._database.dialect.now(connection)
            if reports:
                self._write_reports(connection, reports, now)
            if drained:
                self._write_drained_keys(connection, drained, now)

        self._impatient.write(work)

    def on_close(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def close(self) -> None:
        """Write the last reports of this process's services, detach them, and disconnect."""
        if self._stop is not None:
            self._stop()
        self._impatient.close()

    # ── for operators ────────────────────────────────────────────────────────────────────────────────────────────

    def services(self) -> list[ServiceState]:
        """Return the services with a report of the last hour or an exhausted key, by name."""

        def work(connection: Connection) -> list[ServiceState]:
            now = self._database.dialect.now(connection)
            rows = connection.execute(select(breakers).where(~_is_without_effect(now))).all()
            drained = connection.execute(select(credentials).where(credentials.c.drained_until > now)).all()
            names = {row.service for row in rows} | {row.service for row in drained}
            return [
                _state(
                    name,
                    [row for row in rows if row.service == name],
                    tuple(_drained_key(row) for row in drained if row.service == name),
                    now,
                )
                for name in sorted(names)
            ]

        return self._database.read(work)

    def reset(self, service: str, *, keys: bool = False) -> bool:
        """Close the circuit in every process that shares it, within a second; with `keys`, use all keys again, too.

        Returns whether there was anything to reset.
        """

        def work(connection: Connection) -> bool:
            now = self._database.dialect.now(connection)
            deleted = connection.execute(
                delete(breakers).where(breakers.c.service == service, breakers.c.host != _OPERATOR)
            )
            known = deleted.rowcount
            reports = [BreakerReport(service, _OPERATOR, "circuit", ReportKind.RESET, ago=0.0)]
            if keys:
                known += connection.execute(delete(credentials).where(credentials.c.service == service)).rowcount
                reports.append(BreakerReport(service, _OPERATOR, "keys", ReportKind.RESET_KEYS, ago=0.0))
            self._write_reports(connection, reports, now)
            return known > 0

        return self._database.write(work)

    # ── statements ───────────────────────────────────────────────────────────────────────────────────────────────

    def _read_reports(self, connection: Connection, services: Collection[str], keys: bool) -> Reports:
        rows = connection.execute(select(breakers).where(breakers.c.service.in_(services))).all()
        drained = (
            connection.execute(select(credentials).where(credentials.c.service.in_(services))).all() if keys else ()
        )
        if not rows:  # without a report, the clock of the database is not needed
            return Reports((), [_drained_key(row) for row in drained])
        return Reports(_reports(rows, self._database.dialect.now(connection)), [_drained_key(row) for row in drained])

    def _write_reports(self, connection: Connection, reports: Sequence[BreakerReport], now: datetime) -> None:
        insert = self._database.dialect.insert(breakers)
        replaced = ("state", "since", "retry_at", "quorum", "changed_at")
        connection.execute(
            insert.on_conflict_do_update(
                index_elements=["service", "host", "process"],
                set_={name: insert.excluded[name] for name in replaced},
            ),
            [
                {
                    "service": report.service,
                    "host": report.host,
                    "process": report.process,
                    "state": report.kind.value,
                    "since": now - timedelta(seconds=report.ago),
                    "retry_at": now + timedelta(seconds=report.retry_in) if report.kind is ReportKind.OPEN else None,
                    "quorum": report.quorum,
                    "changed_at": now,
                }
                for report in reports
            ],
        )
        connection.execute(
            delete(breakers).where(
                breakers.c.service.in_({report.service for report in reports}), _is_without_effect(now)
            )
        )

    def _write_drained_keys(self, connection: Connection, drained: Sequence[DrainedKey], now: datetime) -> None:
        insert = self._database.dialect.insert(credentials)
        connection.execute(
            insert.on_conflict_do_update(
                index_elements=["service", "key_digest"],
                set_={name: insert.excluded[name] for name in ("key_id", "drained_until", "changed_at")},
                where=insert.excluded.drained_until > credentials.c.drained_until,
            ),
            [
                {
                    "service": key.service,
                    "key_digest": key.digest,
                    "key_id": key.key_id,
                    "drained_until": key.until,
                    "changed_at": now,
                }
                for key in sorted(drained, key=lambda key: (key.service, key.digest))  # no two writers deadlock
            ],
        )
        connection.execute(
            delete(credentials).where(
                credentials.c.service.in_({key.service for key in drained}), credentials.c.drained_until < now - KEPT
            )
        )


def _is_without_effect(now: datetime) -> ColumnElement[bool]:
    return and_(breakers.c.changed_at < now - KEPT, or_(breakers.c.retry_at.is_(None), breakers.c.retry_at < now))


def _reports(rows: Sequence[Row[Any]], now: datetime) -> list[BreakerReport]:
    return [
        BreakerReport(
            service=row.service,
            host=row.host,
            process=row.process,
            kind=ReportKind(row.state),
            ago=(now - row.since).total_seconds(),
            retry_in=0.0 if row.retry_at is None else max(0.0, (row.retry_at - now).total_seconds()),
            quorum=row.quorum,
        )
        for row in rows
        if row.changed_at <= now  # otherwise the clock was set back, and a dead process would be believed that long
    ]


def _drained_key(row: Row[Any]) -> DrainedKey:
    return DrainedKey(row.service, row.key_digest, row.key_id, row.drained_until)


def _state(service: str, rows: Sequence[Row[Any]], drained: tuple[DrainedKey, ...], now: datetime) -> ServiceState:
    standing = consensus.openings(_reports(rows, now))
    in_force = [report for report in standing if report.in_force]
    hosts = {report.host for report in in_force}
    state = CircuitState.OPEN if in_force else CircuitState.HALF_OPEN if standing else CircuitState.CLOSED
    return ServiceState(
        service=service,
        state=state,
        hosts=tuple(sorted(hosts)),
        everywhere=bool(in_force) and len(hosts) >= max(report.quorum for report in in_force),
        retry_in=max((report.retry_in for report in in_force), default=None),
        changed_at=max((row.changed_at for row in rows), default=None),
        drained=drained,
    )
