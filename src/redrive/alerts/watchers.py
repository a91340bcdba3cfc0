"""The watches of one store, each with the settings it was started with, and the news that a watch reports.

One watch leads, and only its settings count. Those of a watch that stands by would have no effect without notice: it
compares its own with the leader's, and raises an alert on its own channels.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime, timedelta
from hashlib import blake2b
from pathlib import PurePath
from typing import Any, Literal

from sqlalchemy import Connection, delete, select

from redrive.alerts.conditions import SETTINGS_DIFFER, make_finding
from redrive.alerts.config.settings import AlertSettings, ConditionSettings
from redrive.alerts.delivery.format import counted, short
from redrive.alerts.facts.external_databases import server_of
from redrive.model.alerts import Alert, AlertStatus, Facts, Finding, Subject
from redrive.store import lease
from redrive.store.dialects.dialect import Dialect
from redrive.store.lease import begin_work, end_work, is_owner_dead
from redrive.store.schema import leases

_PREFIX = "watch settings:"
_SHOWN = 5
# What each process may set for itself, and what is described by name.
_OWN = ("enabled", "every", "exit_wait", "heartbeat")
_NAMED = (
    *("pipelines", "tables", "channels", "slots", "lags", "routes", "thresholds", "conditions", "maintenance"),
    "services",
)


class WatchRegistry:
    """The entry of one watch among those of its store."""

    def __init__(self, dialect: Dialect, settings: AlertSettings, owner: str) -> None:
        self._dialect, self._settings = dialect, settings
        self._described = describe(settings)
        self._entry = json.dumps({**json.loads(owner), "settings": self._described})

    def register(self, connection: Connection, span: timedelta, *, now: datetime | None) -> None:
        """Store the settings of this watch for a span of time; delete the entries of watches that have stopped."""
        begin_work(self._entry)
        moment = self._dialect.now(connection) if now is None else now
        connection.execute(delete(leases).where(leases.c.name.startswith(_PREFIX), leases.c.until <= moment))
        lease.take(connection, self._dialect, _name(json.loads(self._entry)), self._entry, span, now=moment)

    def leave(self, connection: Connection) -> None:
        """Delete the entry."""
        end_work(self._entry)
        lease.release(connection, _name(json.loads(self._entry)), self._entry)

    def differing(self, connection: Connection, leader: str, *, now: datetime | None) -> tuple[str, ...]:
        """Return the settings of this watch that differ from the leader's; none if those are unknown."""
        token = json.loads(leader)["token"]
        theirs = [entry for entry in self._others(connection, now) if entry["token"] == token]
        return _differing(self._described, theirs[0]["settings"]) if theirs else ()

    def evidence(self, connection: Connection, *, now: datetime | None) -> frozenset[str]:
        """Return the evidence of all watches whose settings differ from those of this watch, which leads."""
        others = [entry["settings"] for entry in self._others(connection, now)]
        return frozenset(_evidence(described) for described in others if described != self._described)

    def finding(self, names: Collection[str]) -> Finding:
        """Return the finding on settings of this watch that have no effect."""
        watch = json.loads(self._entry)
        some = ", ".join(short(name) for name in list(names)[:_SHOWN])
        more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
        evidence = _evidence(self._described)
        return make_finding(
            SETTINGS_DIFFER,
            Subject(kind="monitor", name="settings"),
            f"the watch on {short(watch['host'])} stands by with other settings than the one that leads: {some}{more}",
            Facts(
                status="not watched",
                impact=f"{counted(len(names), 'setting')} of its redrive.toml have no effect: deadlines, tables and "
                f"lags that only this file names are not watched",
                next_step="give all watches of this store the same redrive.toml and restart them, or give each team a "
                "store of its own",
                measured={"settings that differ": len(names)},
            ),
            key=evidence.removeprefix("level:"),
            evidence=evidence,
            persist=self._settings.persist,
        )

    def _others(self, connection: Connection, now: datetime | None) -> list[dict[str, Any]]:
        moment = self._dialect.now(connection) if now is None else now
        entries = select(leases.c.owner).where(leases.c.name.startswith(_PREFIX), leases.c.until > moment)
        return [json.loads(owner) for owner in connection.execute(entries).scalars() if not is_owner_dead(owner)]


def describe(settings: AlertSettings) -> dict[str, str]:
    """Return a digest of every setting of the watch, by its name in `redrive.toml`.

    Addresses are left out: they are secrets, and may differ from machine to machine.
    """
    parts: dict[str, Any] = {f"[pipelines.{name}]": own for name, own in settings.pipelines.items()}
    parts |= {
        f"[[tables]] {table.name}": (table.pipeline, table.time_column, table.fresh_within) for table in settings.tables
    }
    parts |= {f"[channels.{name}]": channel.kind for name, channel in settings.channels.items()}
    parts |= {f"[alerts] slots of {server_of(url)}": "" for url in settings.slots}
    parts |= {f"[alerts] lags {PurePath(name).name}": "" for name in settings.lags}
    parts |= {f"[conditions.{name}]": _without_places(own) for name, own in settings.conditions.items()}
    parts |= {f"[services.{name}]": own for name, own in settings.services.items()}
    parts |= {"[[maintenance]]": settings.maintenance}
    parts |= {"[routes]": settings.routes, "[alerts.thresholds]": settings.thresholds}
    rest = (field.name for field in fields(settings) if field.name not in (*_OWN, *_NAMED))
    parts |= {f"[alerts] {name}": getattr(settings, name) for name in rest}
    return {name: _digest(value) for name, value in parts.items()}


def _without_places(own: ConditionSettings) -> ConditionSettings:
    return replace(own, url="", probe=None if own.probe is None else PurePath(own.probe).name)


def _differing(ours: Mapping[str, str], theirs: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)))


def _evidence(described: Mapping[str, str]) -> str:
    return f"level:settings:{_digest(described)}"


def _name(entry: Mapping[str, Any]) -> str:
    return f"{_PREFIX}{entry['token']}"


def _digest(value: Any) -> str:
    return blake2b(repr(_plain(value)).encode(errors="backslashreplace"), digest_size=6).hexdigest()


def _plain(value: Any) -> Any:
    """Return the value in a form that is the same for the same settings, in whatever order they are written."""
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, _plain(getattr(value, field.name))) for field in fields(value)]
    if isinstance(value, Mapping):
        return sorted((str(name), _plain(inner)) for name, inner in value.items())
    if isinstance(value, frozenset | set):
        return sorted(map(str, value))
    return [_plain(inner) for inner in value] if isinstance(value, tuple | list) else repr(value)


# ── news ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

AlertChanged = Literal["found", "opened", "escalated", "acknowledged", "resolved"]


@dataclass(frozen=True, slots=True)
class Leading:
    """News: this watch leads now."""


@dataclass(frozen=True, slots=True)
class StandingBy:
    """News: another watch leads, and this one takes over when it stops."""

    process: int
    host: str


@dataclass(frozen=True, slots=True)
class SettingsDiffer:
    """News: the settings of this watch that differ from the leader's and have no effect; none when they agree."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AlertMoved:
    """News: a change of an alert; `found` are those that were already open when the watch started."""

    what: AlertChanged
    alert: Alert


@dataclass(frozen=True, slots=True)
class WatchProblem:
    """News: the watch cannot do something, or can do it again."""

    what: str
    reason: str | None
    """None when it can do it again."""


@dataclass(frozen=True, slots=True)
class Unconfigured:
    """News: messages wait for channels that the settings of this watch do not have; none when that is over."""

    alerts: Mapping[str, tuple[int, ...]]
    """The numbers of their alerts, by channel."""


News = Leading | StandingBy | SettingsDiffer | AlertMoved | WatchProblem | Unconfigured


def change_of(alert: Alert, before: Alert | None, *, first: bool) -> AlertChanged | None:
    """Return how an alert changed since the last check, if operators are notified of that."""
    if alert.status is AlertStatus.WAITING or (first and alert.is_over):
        return None
    if first:
        return "found"
    if alert.is_over:
        return None if before is not None and before.is_over else "resolved"
    if before is None or before.status is AlertStatus.WAITING:
        return "opened"
    if alert.urgency.outranks(before.urgency):
        return "escalated"
    return "acknowledged" if alert.status is not before.status else None
