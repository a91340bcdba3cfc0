"""What processes share about the services they call: where each one's circuit stands, which keys are used up.

See `redrive.policy.consensus` for what is said and believed, and `SharedState` in `redrive.calls.shared_state` for the
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
"""Seconds between two looks at what others say: news is everywhere within a second."""
PATIENCE = 1.0
"""Seconds for which a database that restarts is waited for: services go on by themselves, and look again soon."""
KEPT = timedelta(hours=1)
"""How long a word is kept that moves nobody any more."""

_A_PERSON = "*"  # says resets, in the place of a host


@dataclass(frozen=True, slots=True)
class ServiceState:
    """What all processes together say of one service."""

    service: str
    state: CircuitState
    """Open where a machine says so; half-open once its time to retry has come and nobody has closed it yet."""
    hosts: tuple[str, ...]
    """The machines whose opening stands."""
    everywhere: bool
    """Whether they are as many as other machines need to believe them."""
    retry_in: float | None
    """Seconds until the last of them probes; None where it is not open."""
    changed_at: datetime | None
    """When a process last said something; None where only keys are known."""
    drained: tuple[DrainedKey, ...]
    """The keys that are used up now."""


class ServiceStateRepository:
    """See `redrive.calls.shared_state.SharedState`.

    node    the name of this machine; where several machines have one name, give each its own
    every   seconds between two looks
    """

    def __init__(self, database: Database, *, node: str | None = None, every: float = EVERY) -> None:
        self.name = database.name
        self.node = socket.gethostname() if node is None else node
        self.every = every
        self._database = database
        # Connections of our own: what is shared must neither wait for letters nor keep them waiting.
        self._impatient = Database(database.dialect, patience=PATIENCE)
        self._stop: Callable[[], None] | None = None

    # ── for the services of this process ─────────────────────────────────────────────────────────────────────────

    def ask(self, services: Collection[str], *, keys: bool) -> Reports:
        return self._impatient.read(lambda connection: self._heard(connection, services, keys))

    def tell(self, words: Sequence[BreakerReport], drained: Sequence[DrainedKey]) -> None:
        def work(connection: Connection) -> None:
            now = self._database.dialect.now(connection)
            if words:
                self._say(connection, words, now)
            if drained:
                self._drain(connection, drained, now)

        self._impatient.write(work)

    def on_close(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def close(self) -> None:
        """Write what the services of this process still have to tell, let them go on alone, and disconnect."""
        if self._stop is not None:
            self._stop()
        self._impatient.close()

    # ── for people ───────────────────────────────────────────────────────────────────────────────────────────────

    def services(self) -> list[ServiceState]:
        """The services of which something was said within the last hour, or of which keys are used up, by name."""

        def work(connection: Connection) -> list[ServiceState]:
            now = self._database.dialect.now(connection)
            rows = connection.execute(select(breakers).where(~_moves_nobody(now))).all()
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

        Tells whether there was anything to reset.
        """

        def work(connection: Connection) -> bool:
            now = self._database.dialect.now(connection)
            said = connection.execute(
                delete(breakers).where(breakers.c.service == service, breakers.c.host != _A_PERSON)
            )
            known = said.rowcount
            words = [BreakerReport(service, _A_PERSON, "circuit", ReportKind.RESET, ago=0.0)]
            if keys:
                known += connection.execute(delete(credentials).where(credentials.c.service == service)).rowcount
                words.append(BreakerReport(service, _A_PERSON, "keys", ReportKind.RESET_KEYS, ago=0.0))
            self._say(connection, words, now)
            return known > 0

        return self._database.write(work)

    # ── statements ───────────────────────────────────────────────────────────────────────────────────────────────

    def _heard(self, connection: Connection, services: Collection[str], keys: bool) -> Reports:
        rows = connection.execute(select(breakers).where(breakers.c.service.in_(services))).all()
        drained = (
            connection.execute(select(credentials).where(credentials.c.service.in_(services))).all() if keys else ()
        )
        if not rows:  # as long as all is well there is nothing to ask the clock for
            return Reports((), [_drained_key(row) for row in drained])
        return Reports(_words(rows, self._database.dialect.now(connection)), [_drained_key(row) for row in drained])

    def _say(self, connection: Connection, words: Sequence[BreakerReport], now: datetime) -> None:
        insert = self._database.dialect.insert(breakers)
        replaced = ("state", "since", "retry_at", "quorum", "changed_at")
        connection.execute(
            insert.on_conflict_do_update(
                index_elements=["service", "host", "process"],
                set_={name: insert.excluded[name] for name in replaced},
            ),
            [
                {
                    "service": word.service,
                    "host": word.host,
                    "process": word.process,
                    "state": word.saying.value,
                    "since": now - timedelta(seconds=word.ago),
                    "retry_at": now + timedelta(seconds=word.retry_in) if word.saying is ReportKind.OPEN else None,
                    "quorum": word.quorum,
                    "changed_at": now,
                }
                for word in words
            ],
        )
        connection.execute(
            delete(breakers).where(breakers.c.service.in_({word.service for word in words}), _moves_nobody(now))
        )

    def _drain(self, connection: Connection, drained: Sequence[DrainedKey], now: datetime) -> None:
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


def _moves_nobody(now: datetime) -> ColumnElement[bool]:
    return and_(breakers.c.changed_at < now - KEPT, or_(breakers.c.retry_at.is_(None), breakers.c.retry_at < now))


def _words(rows: Sequence[Row[Any]], now: datetime) -> list[BreakerReport]:
    return [
        BreakerReport(
            service=row.service,
            host=row.host,
            process=row.process,
            saying=ReportKind(row.state),
            ago=(now - row.since).total_seconds(),
            retry_in=0.0 if row.retry_at is None else max(0.0, (row.retry_at - now).total_seconds()),
            quorum=row.quorum,
        )
        for row in rows
        if row.changed_at <= now  # else the clock was set back, and the word of a dead process would last that long
    ]


def _drained_key(row: Row[Any]) -> DrainedKey:
    return DrainedKey(row.service, row.key_digest, row.key_id, row.drained_until)


def _state(service: str, rows: Sequence[Row[Any]], drained: tuple[DrainedKey, ...], now: datetime) -> ServiceState:
    standing = consensus.openings(_words(rows, now))
    in_force = [word for word in standing if word.in_force]
    hosts = {word.host for word in in_force}
    state = CircuitState.OPEN if in_force else CircuitState.HALF_OPEN if standing else CircuitState.CLOSED
    return ServiceState(
        service=service,
        state=state,
        hosts=tuple(sorted(hosts)),
        everywhere=bool(in_force) and len(hosts) >= max(word.quorum for word in in_force),
        retry_in=max((word.retry_in for word in in_force), default=None),
        changed_at=max((row.changed_at for row in rows), default=None),
        drained=drained,
    )
