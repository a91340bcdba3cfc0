"""Silences: the log of silences in the store, and the check whether an alert is silenced at a moment.

Used by the repository and the outbox. A silenced alert is stored, but not sent until the silence ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from redrive.alerts.conditions import CONDITIONS, CUSTOM
from redrive.alerts.config.settings import Maintenance
from redrive.alerts.delivery.format import safe_line
from redrive.errors import AlertError
from redrive.model.alerts import Alert, AlertFilter, Silence
from redrive.store.database import Database
from redrive.store.schema import alert_silences

MAX_LENGTH = timedelta(days=366)
_REMEMBERED = timedelta(days=32)
"""How long after its end a silence may still cause an alert to be sent: without a watch, the next run may be a monthly
one."""
_MAX_REASON = 500
_MAX_AUTHOR = 200
_silences = alert_silences.c


class Silenced:
    """The silences of the store and the maintenance windows of the settings at one moment."""

    def __init__(self, silences: Iterable[Silence], windows: Iterable[Maintenance], now: datetime) -> None:
        self._known, self._windows = list(silences), list(windows)
        self._active = [silence for silence in self._known if silence.until > now]
        self._open_windows = [
            (window.only, until) for window in self._windows if (until := window.until(now)) is not None
        ]
        self._ended = [silence for silence in self._known if silence.until <= now]

    def __bool__(self) -> bool:
        """Return whether any silence or maintenance window is known."""
        return bool(self._known or self._windows)

    def until(self, alert: Alert) -> datetime | None:
        """Return when the silence of an alert ends; None if the alert is not silenced."""
        ends = [silence.until for silence in self._active if silence.covers(alert)]
        return max([*ends, *(until for only, until in self._open_windows if only.matches(alert))], default=None)

    def is_only_snoozed(self, alert: Alert) -> bool:
        """Return whether an alert is silenced by a snooze alone, and by no other silence or window."""
        covering = [silence for silence in self._active if silence.covers(alert)]
        by_rule = any(silence.alert_id is None for silence in covering)
        return bool(covering) and not by_rule and not any(only.matches(alert) for only, _ in self._open_windows)

    def is_over(self, alert: Alert) -> bool:
        """Return whether a silence has ended since the alert was last sent, and no other silence covers it."""
        told_at = alert.told_at
        if told_at is None or self.until(alert) is not None:
            return False
        return any(silence.created_at >= told_at and silence.covers(alert) for silence in self._ended)

    def ended_at(self, alert: Alert) -> datetime | None:
        """Return when the last silence of an alert ended; None if none has ended lately."""
        return max((silence.until for silence in self._ended if silence.covers(alert)), default=None)

    def is_handled(self, alert: Alert) -> bool:
        """Return whether an alert was acknowledged or resolved before or at the end of a silence of it."""
        moments = [moment for moment in (alert.acknowledged_at, alert.resolved_at) if moment is not None]
        if not moments or self.until(alert) is not None:
            return bool(moments)
        silences = [silence for silence in self._known if silence.covers(alert)]
        windows = [window for window in self._windows if window.only.matches(alert)]
        return any(
            any(silence.until >= moment for silence in silences)
            or any(window.until(moment) is not None for window in windows)
            for moment in moments
        )


def read_silenced(connection: Connection, windows: Iterable[Maintenance], now: datetime) -> Silenced:
    """Return the silences and maintenance windows at this moment."""
    query = select(alert_silences).where(_silences.until > now - _REMEMBERED)
    return Silenced([_silence_of(row) for row in connection.execute(query)], windows, now)


def check_silence(only: AlertFilter, length: timedelta, reason: str, *, conditions: Collection[str] = ()) -> None:
    """Check the arguments of a silence.

    Args:
        only: The alerts that it covers.
        length: How long it lasts.
        reason: Why alerts are silenced.
        conditions: The names of conditions that the settings define.

    Raises:
        AlertError: The silence is not valid.
    """
    if not any((only.keys, only.subjects, only.conditions, only.pipelines)):
        raise AlertError("a silence needs a subject, a condition or a pipeline: it would silence everything")
    if not timedelta() < length <= MAX_LENGTH:
        raise AlertError("a silence must last for more than 0 seconds, and a year at most")
    if not reason.strip():
        raise AlertError("a silence needs a reason, which is shown with it")
    known = {*CONDITIONS, CUSTOM, *conditions}
    for name in only.conditions:
        if name not in known:
            raise AlertError(f"there is no condition {name!r}; see `redrive alerts rules`")


class SilenceLog:
    """The silences of one store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self, only: AlertFilter, *, length: timedelta, reason: str, by: str, now: datetime | None = None
    ) -> Silence:
        """Add a silence that starts now."""

        def work(connection: Connection) -> Silence:
            at = self._database.dialect.now(connection) if now is None else now
            return insert_silence(connection, only, length=length, reason=reason, by=by, now=at)

        return self._database.write(work)

    def end(self, silence_id: int, *, by: str, now: datetime | None = None) -> Silence:
        """End a silence early."""

        def work(connection: Connection) -> Silence:
            at = self._database.dialect.now(connection) if now is None else now
            selected = _silences.id == silence_id
            row = connection.execute(select(alert_silences).where(selected)).one_or_none()
            if row is None:
                raise AlertError(f"there is no silence {silence_id}; see `redrive alerts silences`")
            if row.until <= at:
                raise AlertError(f"silence {silence_id} is over already")
            connection.execute(
                update(alert_silences).where(selected).values(until=at, ended_by=safe_line(by, _MAX_AUTHOR))
            )
            return _silence_of(connection.execute(select(alert_silences).where(selected)).one())

        return self._database.write(work)

    def find(self, *, ended: bool = False, now: datetime | None = None, limit: int = 100) -> list[Silence]:
        """Return the silences, the newest first; with `ended`, also those that are over."""

        def work(connection: Connection) -> list[Silence]:
            at = self._database.dialect.now(connection) if now is None else now
            query = select(alert_silences).order_by(_silences.id.desc()).limit(limit)
            if not ended:
                query = query.where(_silences.until > at)
            return [_silence_of(row) for row in connection.execute(query)]

        return self._database.read(work)

    def purge(self, before: datetime) -> None:
        """Delete silences that ended before a moment."""
        old = delete(alert_silences).where(_silences.until < before)
        self._database.write(lambda connection: connection.execute(old))


def insert_silence(
    connection: Connection,
    only: AlertFilter,
    *,
    length: timedelta,
    reason: str,
    by: str,
    now: datetime,
    alert_id: int | None = None,
) -> Silence:
    """Insert a silence, or the snooze of one alert, in the transaction of the caller."""
    values = {
        "alert_id": alert_id,
        "key": _first(only.keys),
        "subject": _first(only.subjects),
        "condition": _first(only.conditions),
        "pipeline": _first(only.pipelines),
        "reason": safe_line(reason, _MAX_REASON),
        "created_by": safe_line(by, _MAX_AUTHOR),
        "created_at": now,
        "until": now + length,
    }
    return _silence_of(connection.execute(insert(alert_silences).values(values).returning(alert_silences)).one())


def end_snoozes(connection: Connection, alert_id: int, now: datetime) -> None:
    """End the snoozes of an alert, in the transaction of the caller."""
    active = (_silences.alert_id == alert_id) & (_silences.until > now)
    connection.execute(update(alert_silences).where(active).values(until=now, ended_by="redrive"))


def _first(names: tuple[str, ...]) -> str | None:
    return names[0] if names else None


def _silence_of(row: Row[Any]) -> Silence:
    def names(name: str | None) -> tuple[str, ...]:
        return () if name is None else (name,)

    return Silence(
        id=row.id,
        only=AlertFilter(
            keys=names(row.key),
            subjects=names(row.subject),
            conditions=names(row.condition),
            pipelines=names(row.pipeline),
        ),
        reason=row.reason,
        created_by=row.created_by,
        created_at=row.created_at,
        until=row.until,
        ended_by=row.ended_by,
        alert_id=row.alert_id,
    )
