"""Settings of alerts; `redrive.alerts.config.read` reads them from `redrive.toml`.

Days off come from dates and public calendars. The `holidays` library is loaded when a day is first looked up.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal
from zoneinfo import ZoneInfo

from redrive._internal.optional import require_extra
from redrive.model.alerts import AlertFilter, Severity, Subject
from redrive.policy.time_of_day import TimeOfDay

LOG = logging.getLogger("redrive.alerts")


@dataclass(frozen=True, slots=True, kw_only=True)
class DaysOff:
    """Dates, and calendars by their codes: `DE`, `DE-BY`, `NYSE`."""

    dates: frozenset[date] = frozenset()
    calendars: tuple[str, ...] = ()

    def __contains__(self, day: object) -> bool:
        return isinstance(day, date) and (
            day in self.dates or any(day in _days(code, day.year) for code in self.calendars)
        )


NO_DAYS_OFF = DaysOff()


def are_calendars_installed() -> bool:
    """Return whether the library with the calendars is installed."""
    return find_spec("holidays") is not None


def unknown_calendar(code: str) -> str | None:
    """Return why a calendar cannot be used; None if it can."""
    try:
        _look_up(code, date.today().year)
    except (NotImplementedError, ValueError) as error:
        return str(error)
    return None


def known_calendars() -> set[str]:
    """Return the codes of countries and markets, without their subdivisions."""
    holidays = _library()
    return {*holidays.list_supported_countries(), *holidays.list_supported_financial()}


def _library() -> Any:
    with require_extra("holidays"):
        return import_module("holidays")


@cache
def _days(code: str, year: int) -> frozenset[date]:
    """Return the days off of a year; none for a calendar that cannot be used, since no page must be lost."""
    try:
        return _look_up(code, year)
    except (ImportError, NotImplementedError, ValueError) as error:
        LOG.warning("the calendar %r cannot be used, and has no days off here: %s", code, error)
        return frozenset()


def _look_up(code: str, year: int) -> frozenset[date]:
    holidays = _library()
    if code in holidays.list_supported_financial():
        return frozenset(holidays.financial_holidays(code, years=year))
    country, _, part = code.partition("-")
    return frozenset(holidays.country_holidays(country, subdiv=part or None, years=year))


ChannelKind = Literal["apprise", "webhook", "slack", "pagerduty", "command", "log"]
WEEKEND = frozenset({5, 6})
LOG_CHANNEL = "log"
"""The channel that always exists: a line of the logger `redrive.alerts`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The thresholds of conditions. The limits for rejected rows are in the `Gate` of the pipeline."""

    sla_grace: float = 0.0
    """Seconds after the deadline until a run counts as late."""
    row_drop: float = 0.20
    """Share by which a table has fewer rows than on the same weekday last week."""
    few_rows: float = 0.5
    """A run read too few rows below this share of the smallest of its last ten runs."""
    slot_bytes: float = 10e9
    """Lag of a replication slot, in bytes."""
    growing_runs: int = 3
    """Number of consecutive runs with a rising number of rejected rows."""
    growing_rise: float = 1.5
    """Multiple of the first of these runs: of three runs with random counts, one in six rises by chance."""
    growing_least: int = 10
    """Minimum number of rejected rows in the last of these runs."""
    pending_day: int = 100
    """Open letters of one pipeline that were rejected within a day."""
    pending_total: int = 100_000
    """Open letters of all pipelines."""
    letter_age: float = 30 * 86_400.0
    """Maximum age of an open letter, in seconds."""
    letters_bytes: float = 10e9
    """Size of the table of letters, with its indexes; on PostgreSQL."""
    store_bytes: float = 50e9
    """Size of the store."""
    too_long: float = 2.0
    """Multiple of the 95th percentile of past durations."""
    slow: float = 1.5
    """Multiple of the median of past durations."""
    history_least: int = 5
    """Minimum number of past runs to compare with."""
    duration_least: float = 60.0
    """Seconds below which no run counts as too long."""
    down_seconds: float = 300.0
    """Seconds for which a service must fail by its own fault."""
    down_share: float = 0.5
    """Share of attempts in a minute that must fail for the minute to count."""
    down_faults: int = 5
    """Minimum number of failed attempts in that time: two calls that recovered after a retry are no outage."""
    flap_seconds: float = 3_600.0
    """Seconds without a failure until an alert that may return is resolved: for a service that was down, and for any
    level or run that has returned within this time."""
    flap_times: int = 3
    """Number of failures of a minute or more that are reported although the service was never down for
    `down_seconds`."""
    silence: float = 3_600.0
    """Seconds without any attempt after which earlier failures of a service no longer count."""
    auth_silence: float = 86_400.0
    """The same for a refused credential, which stays refused: a nightly job tries again a day later."""
    lag_messages: int = 10_000
    lag_seconds: float = 300.0
    client_errors: int = 1
    """Calls within an hour that ended in an answer 4xx; 404 and 410 count only if no call succeeded."""
    server_errors: int = 1
    """Times within an hour that three calls in a row ended in an answer 5xx."""
    calls_failed: float = 0.05
    """Share of the calls of the last hour that failed because of the service."""
    calls_failed_least: int = 10
    """Failed calls within the last hour below which the share is not judged."""
    retries_rise: float = 1.5
    """Multiple of the usual retries per success, which are those of the same hours of the last seven days."""
    retries_spreads: float = 4.0
    """Minimum number of standard deviations of retries or failed calls above the usual: fewer may be chance."""
    retries_least: float = 0.03
    """Mean retries per success below which a rise is not reported."""
    retries_calls: int = 100
    """Minimum number of successes within the last hour, and in the hours that it is compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A destination of messages."""

    name: str
    kind: ChannelKind
    target: str | tuple[str, ...] = ""
    """A URL, a routing key, or the words of a command. May be a secret, so it is never shown or stored."""
    timeout: float = 10.0
    """Timeout of one delivery in seconds."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Additional headers of a webhook. They may hold secrets."""
    signing_key: bytes = b""
    """The key of a webhook whose receiver checks signatures."""

    def __repr__(self) -> str:
        return f"<Channel {self.name}: {self.kind}>"


@dataclass(frozen=True, slots=True)
class Quiet:
    """Quiet hours: P3 messages wait until they end."""

    begins: time
    ends: time
    zone: ZoneInfo

    def until(self, now: datetime) -> datetime | None:
        """Return when the current quiet hours end; None if it is not quiet now."""
        local = now.astimezone(self.zone)
        at = local.timetz().replace(tzinfo=None)
        overnight = self.begins > self.ends
        within = (at >= self.begins or at < self.ends) if overnight else self.begins <= at < self.ends
        if not within:
            return None
        day = local.date() + timedelta(days=1 if overnight and at >= self.begins else 0)
        return datetime.combine(day, self.ends, self.zone).astimezone(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """A window in which some alerts are not sent: once, or on some days of each week."""

    only: AlertFilter = field(default_factory=AlertFilter)
    hours: Quiet | None = None
    """The time of day of a recurring window."""
    days: frozenset[int] | None = None
    """The weekdays on which it starts, with Monday as 0; None for every day."""
    begins: datetime | None = None
    ends: datetime | None = None
    reason: str = "maintenance"

    def until(self, now: datetime) -> datetime | None:
        """Return when the current window ends; None if it is not active now."""
        if self.hours is None:
            assert self.begins is not None
            assert self.ends is not None
            return self.ends if self.begins <= now < self.ends else None
        ends = self.hours.until(now)
        if ends is None or self.days is None:
            return ends
        day = ends.astimezone(self.hours.zone).date()
        if self.hours.begins > self.hours.ends:  # it began on the day before
            day -= timedelta(days=1)
        return ends if day.weekday() in self.days else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """The settings of one pipeline or flow."""

    sla: TimeOfDay | None = None
    """Takes precedence over the SLA in the program."""
    fresh_within: float | None = None
    """Maximum number of seconds between two complete runs."""
    days: frozenset[int] | None = None
    """The weekdays on which it runs, with Monday as 0; None to learn them from its history."""
    holidays: DaysOff | None = None
    """Days without a deadline; None for those of `AlertSettings`, which apply to weekday pipelines."""
    routes: Mapping[Severity, tuple[str, ...]] = field(default_factory=dict)
    runbook: tuple[str, ...] = ()
    """Steps for the operator."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Name → template with {pipeline}, {run_id}, {alert}, {service}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedTable:
    """A table whose rows are counted."""

    name: str
    url: str = field(repr=False)
    pipeline: str | None = None
    time_column: str | None = None
    """The column with the time at which a row was created."""
    fresh_within: float | None = None
    """Maximum age of the newest row in seconds, by `time_column`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionSettings:
    """A condition that the settings define, or the channels of a built-in one."""

    severity: Severity | None = None
    """None for a built-in condition, which has its own."""
    metric: str | None = None
    """The name of a metric of redrive; with `labels`, the sum of the samples that have these."""
    labels: Mapping[str, str] = field(default_factory=dict)
    query: str | None = None
    """SQL that returns one number from the database at `url`."""
    url: str = field(default="", repr=False)
    probe: str | None = None
    """`FILE_OR_MODULE:NAME` of a function that returns a number."""
    above: float | None = None
    """The condition holds if the number is larger."""
    below: float | None = None
    """The condition holds if the number is smaller."""
    title: str | None = None
    persist: float | None = None
    """Seconds for which it must hold; None for that of `AlertSettings`."""
    every: float = 60.0
    """Seconds between two queries or calls of the probe."""
    pipeline: str | None = None
    """The pipeline or flow that it is about."""
    channels: tuple[str, ...] = ()
    """The channels of its alerts; they replace the routes."""


AIRFLOW = tuple(f"AIRFLOW_CTX_{name}" for name in ("DAG_ID", "DAG_RUN_ID", "TASK_ID", "TRY_NUMBER"))
"""Environment variables that Airflow sets for its tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSettings:
    """All settings of alerts."""

    enabled: bool = True
    persist: float = 300.0
    """Seconds for which a level must last before its alert opens, and stay clear before the alert is resolved."""
    recovery: float = 600.0
    """Seconds that a run with exhausted retries has to recover by itself before its alert is sent."""
    repeat: Mapping[Severity, float | None] = field(
        default_factory=lambda: {Severity.P1: 3_600.0, Severity.P2: 14_400.0, Severity.P3: 86_400.0}
    )
    """Seconds after which an alert that is open and not acknowledged is sent again; None for never."""
    cause_window: float = 3_600.0
    """Seconds after a cause was last seen in which a run that fails with it joins its alert."""
    storm: int = 5
    """Number of messages to one channel within `storm_window` that are sent one by one; further ones are combined."""
    storm_window: float = 300.0
    quiet: Quiet | None = None
    """Quiet hours for P3."""
    holidays: DaysOff = NO_DAYS_OFF
    """Days without deadlines for pipelines that run on weekdays only."""
    exit_wait: float = 5.0
    """Seconds that a program waits for its messages at exit; the next program or the watch sends the rest."""
    every: float = 30.0
    """Seconds between two checks of the watch."""
    keep_days: int = 90
    """Retention of resolved alerts and of service metrics, in days."""
    channels: Mapping[str, Channel] = field(default_factory=dict)
    routes: Mapping[Severity, tuple[str, ...]] = field(default_factory=dict)
    """Severity → names of channels; the log for severities without channels."""
    pipelines: Mapping[str, PipelineSettings] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    environment: tuple[str, ...] = AIRFLOW
    """Environment variables that are stored with each run, for links and details."""
    thresholds: Thresholds = field(default_factory=Thresholds)
    services: Mapping[str, Thresholds] = field(default_factory=dict)
    """Thresholds of single services, by the name of the service."""
    conditions: Mapping[str, ConditionSettings] = field(default_factory=dict)
    """Conditions by name: those that are defined here, and built-in ones with their own channels."""
    maintenance: tuple[Maintenance, ...] = ()
    """Windows in which alerts are not sent."""
    tables: tuple[WatchedTable, ...] = ()
    slots: tuple[str, ...] = field(default=(), repr=False)
    """URLs of PostgreSQL servers whose replication slots are watched; the server of the store always is."""
    heartbeat: str = field(default="", repr=False)
    """A URL that the watch posts to after each check, for a dead man's switch."""
    lags: tuple[str, ...] = ()
    """`FILE_OR_MODULE:NAME` of probes for the lag of consumers; see `redrive.alerts.facts.probes`."""

    def limits_of(self, service: str) -> Thresholds:
        """Return the thresholds for a service."""
        return self.services.get(service, self.thresholds)

    def days_off(self, name: str, *, on_weekends: bool) -> DaysOff:
        """Return the days on which a pipeline or flow has no deadline.

        Args:
            name: The name of the pipeline or flow.
            on_weekends: Whether it runs on weekends; used if its days are not set.
        """
        own = self.pipelines.get(name, PipelineSettings())
        if own.holidays is not None:
            return own.holidays
        weekends = on_weekends if own.days is None else not own.days.isdisjoint(WEEKEND)
        return NO_DAYS_OFF if weekends else self.holidays

    @property
    def defined(self) -> Mapping[str, ConditionSettings]:
        """The conditions that are defined in the settings, by name."""
        return {name: own for name, own in self.conditions.items() if own.severity is not None}

    def has_channel(self, name: str) -> bool:
        """Return whether these settings have a channel, with or without its address."""
        return name == LOG_CHANNEL or name in self.channels

    def channels_for(self, urgency: Severity, subject: Subject, condition: str) -> tuple[str, ...]:
        """Return the names of the channels for an alert."""
        if condition in self.conditions and self.conditions[condition].channels:
            return self.conditions[condition].channels
        own = self.pipelines.get(subject.name) if subject.kind in ("pipeline", "flow") else None
        chosen = (own.routes.get(urgency) if own is not None else None) or self.routes.get(urgency)
        return chosen or (LOG_CHANNEL,)
