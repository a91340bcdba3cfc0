"""Silences: alerts that are recorded and not sent for a while, kept in the store; and what is silent at a moment."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from redrive.alerts.conditions import CONDITIONS
from redrive.alerts.config.settings import Maintenance
from redrive.alerts.custom import CUSTOM
from redrive.alerts.delivery.safe_text import safe_line
from redrive.errors import AlertError
from redrive.model.alerts import Alert, AlertFilter, Silence
from redrive.store.database import Database
from redrive.store.schema import alert_silences

LONGEST = timedelta(days=366)
_REMEMBERED = timedelta(days=32)
"""For how long the end of a silence may send an alert again: without a watch, the next run may be a monthly one."""
_REASON = 500
_BY = 200
_silences = alert_silences.c


class Silenced:
    """What is silent at one moment: by silences of the store, and by maintenance windows of the settings."""

    def __init__(self, silences: Iterable[Silence], windows: Iterable[Maintenance], now: datetime) -> None:
        self._known, self._windows = list(silences), list(windows)
        self._active = [one for one in self._known if one.until > now]
        self._open_windows = [(one.only, until) for one in self._windows if (until := one.until(now)) is not None]
        self._ended = [one for one in self._known if one.until <= now]

    def __bool__(self) -> bool:
        """Whether any alert is silenced, or was."""
        return bool(self._known or self._windows)

    def until(self, alert: Alert) -> datetime | None:
        """When an alert may be sent again; None where it may be now."""
        ends = [one.until for one in self._active if one.covers(alert)]
        return max([*ends, *(until for only, until in self._open_windows if only.matches(alert))], default=None)

    def is_only_snoozed(self, alert: Alert) -> bool:
        """Whether nothing silences an alert but a snooze, which is about what was known when it began."""
        covering = [one for one in self._active if one.covers(alert)]
        by_rule = any(one.alert_id is None for one in covering)
        return bool(covering) and not by_rule and not any(only.matches(alert) for only, _ in self._open_windows)

    def is_over(self, alert: Alert) -> bool:
        """Whether a silence has ended since the alert was last sent, and it is not silent any more."""
        told_at = alert.told_at
        if told_at is None or self.until(alert) is not None:
            return False
        return any(one.created_at >= told_at and one.covers(alert) for one in self._ended)

    def ended_at(self, alert: Alert) -> datetime | None:
        """Return when the last silence of an alert ended; None where none has ended lately."""
        return max((one.until for one in self._ended if one.covers(alert)), default=None)

    def is_settled(self, alert: Alert) -> bool:
        """Whether an alert was acknowledged or resolved before a silence of it ended, or ended its snooze by that."""
        moments = [one for one in (alert.acknowledged_at, alert.resolved_at) if one is not None]
        if not moments or self.until(alert) is not None:
            return bool(moments)
        silences = [one for one in self._known if one.covers(alert)]
        windows = [one for one in self._windows if one.only.matches(alert)]
        return any(
            any(one.until >= moment for one in silences) or any(one.until(moment) is not None for one in windows)
            for moment in moments
        )


def read_silenced(connection: Connection, windows: Iterable[Maintenance], now: datetime) -> Silenced:
    """Return what is silent now."""
    wanted = select(alert_silences).where(_silences.until > now - _REMEMBERED)
    return Silenced([_silence_of(row) for row in connection.execute(wanted)], windows, now)


def check_silence(only: AlertFilter, length: timedelta, reason: str, *, conditions: Collection[str] = ()) -> None:
    """Raise `AlertError` where a silence cannot be used.

    conditions  the names of conditions that are defined in the settings
    """
    if not any((only.keys, only.subjects, only.conditions, only.pipelines)):
        raise AlertError("a silence needs a subject, a condition or a pipeline: it would silence everything")
    if not timedelta() < length <= LONGEST:
        raise AlertError("a silence must last for more than 0 seconds, and a year at most")
    if not reason.strip():
        raise AlertError("a silence needs a reason, for those who wonder why they were not told")
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
        """Begin a silence."""

        def work(connection: Connection) -> Silence:
            at = self._database.dialect.now(connection) if now is None else now
            return insert_silence(connection, only, length=length, reason=reason, by=by, now=at)

        return self._database.write(work)

    def end(self, silence_id: int, *, by: str, now: datetime | None = None) -> Silence:
        """End a silence early."""

        def work(connection: Connection) -> Silence:
            at = self._database.dialect.now(connection) if now is None else now
            one = _silences.id == silence_id
            row = connection.execute(select(alert_silences).where(one)).one_or_none()
            if row is None:
                raise AlertError(f"there is no silence {silence_id}; see `redrive alerts silences`")
            if row.until <= at:
                raise AlertError(f"silence {silence_id} is over already")
            connection.execute(update(alert_silences).where(one).values(until=at, ended_by=safe_line(by, _BY)))
            return _silence_of(connection.execute(select(alert_silences).where(one)).one())

        return self._database.write(work)

    def find(self, *, ended: bool = False, now: datetime | None = None, limit: int = 100) -> list[Silence]:
        """Silences, the newest first; with `ended`, those that are over, too."""

        def work(connection: Connection) -> list[Silence]:
            at = self._database.dialect.now(connection) if now is None else now
            wanted = select(alert_silences).order_by(_silences.id.desc()).limit(limit)
            if not ended:
                wanted = wanted.where(_silences.until > at)
            return [_silence_of(row) for row in connection.execute(wanted)]

        return self._database.read(work)

    def purge(self, before: datetime) -> None:
        """Forget silences that ended before a moment."""
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
    """Write a silence, or the snooze of one alert, in the transaction of who calls."""
    values = {
        "alert_id": alert_id,
        "key": _first(only.keys),
        "subject": _first(only.subjects),
        "condition": _first(only.conditions),
        "pipeline": _first(only.pipelines),
        "reason": safe_line(reason, _REASON),
        "created_by": safe_line(by, _BY),
        "created_at": now,
        "until": now + length,
    }
    return _silence_of(connection.execute(insert(alert_silences).values(values).returning(alert_silences)).one())


def end_snoozes(connection: Connection, alert_id: int, now: datetime) -> None:
    """End the snoozes of an alert, in the transaction of who calls."""
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
