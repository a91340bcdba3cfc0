"""What may be set about alerts; `redrive.alerts.config.read` makes it of `redrive.toml`."""

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
            day in self.dates or any(day in _days(one, day.year) for one in self.calendars)
        )


NO_DAYS_OFF = DaysOff()


def are_calendars_installed() -> bool:
    """Whether calendars can be used here."""
    return find_spec("holidays") is not None


def unknown_calendar(code: str) -> str | None:
    """Return why a calendar cannot be used; None where it can."""
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
    """The days off of a year. A calendar that cannot be used has none: better a page too many than one too few."""
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
"""The channel that is always there: a line of the logger `redrive.alerts`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Where each condition begins; how many rejected rows are too many is the pipeline's own `Gate`."""

    sla_grace: float = 0.0
    """Seconds after its deadline from which a run is late."""
    row_drop: float = 0.20
    """Share by which a table's rows are down against the same weekday last week."""
    few_rows: float = 0.5
    """Share of the rows of the smallest of its last ten runs, below which a run has read too few."""
    slot_bytes: float = 10e9
    """How far a replication slot lags."""
    growing_runs: int = 3
    """Consecutive runs over which rejected rows only ever became more."""
    growing_rise: float = 1.5
    """Times the first of these runs. Of any three runs whose rows are rejected by chance, one in six rises somehow."""
    growing_least: int = 10
    """Rejected rows in the last of them below which a rise is nothing to speak of."""
    pending_day: int = 100
    """Open letters of one pipeline that were rejected within a day."""
    pending_total: int = 100_000
    """Open letters in all."""
    letter_age: float = 30 * 86_400.0
    """Seconds for which a letter may be open."""
    letters_bytes: float = 10e9
    """Size of the table of letters, with its indexes; on PostgreSQL."""
    store_bytes: float = 50e9
    """Size of the store."""
    too_long: float = 2.0
    """Times the 95th percentile of past durations."""
    slow: float = 1.5
    """Times the median of past durations."""
    history_least: int = 5
    """Past runs it takes to say what is usual."""
    duration_least: float = 60.0
    """Seconds below which no run is too long for anybody."""
    down_seconds: float = 300.0
    """For how long a service has failed by its own fault."""
    down_share: float = 0.5
    """Share of attempts in a minute that must fail for the minute to count."""
    down_faults: int = 5
    """Attempts that must have failed in that time: two calls that a retry has healed are no outage."""
    flap_seconds: float = 3_600.0
    """Seconds without a failure after which an alert is over that may come back: a service that was down, and any level
    or run that has come back within this time."""
    flap_times: int = 3
    """How often a service has failed in turn, each time for a minute or more, to be reported although it was never down
    for `down_seconds`."""
    silence: float = 3_600.0
    """Seconds without any attempt after which what a service did before says nothing of it any more."""
    auth_silence: float = 86_400.0
    """The same for a refused credential, which does not heal by being left alone: a nightly job comes back at night."""
    lag_messages: int = 10_000
    lag_seconds: float = 300.0
    client_errors: int = 1
    """Calls within an hour that ended in an answer 4xx; 404 and 410 count where nothing succeeded."""
    server_errors: int = 1
    """Times within an hour that three calls in a row ended in an answer 5xx."""
    calls_failed: float = 0.05
    """Share of the calls of the last hour that failed because of the service."""
    calls_failed_least: int = 10
    """Failed calls within the last hour below which the share is not judged."""
    retries_rise: float = 1.5
    """Times the usual retries per success: those of the same hours of the last seven days."""
    retries_spreads: float = 4.0
    """Standard deviations by which retries, or failed calls, are above the usual: less may be chance."""
    retries_least: float = 0.03
    """Mean retries per success below which a rise is not reported."""
    retries_calls: int = 100
    """Successes within the last hour, and in the hours it is compared with, that it takes to judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """Where messages go."""

    name: str
    kind: ChannelKind
    target: str | tuple[str, ...] = ""
    """A URL, a routing key, or the words of a command. May be a secret: never shown, never stored."""
    timeout: float = 10.0
    """Seconds for one try."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of a webhook, beside those that every request has. May hold secrets."""
    signing_key: bytes = b""
    """Of a webhook whose receiver checks signatures."""

    def __repr__(self) -> str:
        return f"<Channel {self.name}: {self.kind}>"


@dataclass(frozen=True, slots=True)
class Quiet:
    """Hours in which what can wait until the morning waits."""

    begins: time
    ends: time
    zone: ZoneInfo

    def until(self, now: datetime) -> datetime | None:
        """When they end, if it is quiet now."""
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
    """A window in which some alerts are not sent: once, or on some days of every week."""

    only: AlertFilter = field(default_factory=AlertFilter)
    hours: Quiet | None = None
    """The time of day, of a window that comes again."""
    days: frozenset[int] | None = None
    """The weekdays on which it begins, Monday being 0; None for every day."""
    begins: datetime | None = None
    ends: datetime | None = None
    reason: str = "maintenance"

    def until(self, now: datetime) -> datetime | None:
        """When it ends, if it is under way now."""
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
    """What is special about one pipeline or flow."""

    sla: TimeOfDay | None = None
    """Holds before what its program says."""
    fresh_within: float | None = None
    """Seconds that may pass between two complete runs."""
    days: frozenset[int] | None = None
    """The weekdays on which it runs, Monday being 0; None where that is to be learned from its history."""
    holidays: DaysOff | None = None
    """Days on which no deadline has to be kept; None for those of `AlertSettings`, which hold for weekday pipelines."""
    routes: Mapping[Severity, tuple[str, ...]] = field(default_factory=dict)
    runbook: tuple[str, ...] = ()
    """What to do, step by step."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Name → template with {pipeline}, {run_id}, {alert}, {service}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedTable:
    """A table whose rows are counted."""

    name: str
    url: str = field(repr=False)
    pipeline: str | None = None
    time_column: str | None = None
    """The column that says when a row was made."""
    fresh_within: float | None = None
    """Seconds that the newest row may be old, by `time_column`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionSettings:
    """A condition that the settings define, or where alerts of a built-in one go."""

    severity: Severity | None = None
    """None for a built-in condition, which has its own."""
    metric: str | None = None
    """A metric of redrive's by its name; with `labels`, the sum of the samples that have these."""
    labels: Mapping[str, str] = field(default_factory=dict)
    query: str | None = None
    """SQL that returns one number, asked of `url`."""
    url: str = field(default="", repr=False)
    probe: str | None = None
    """`FILE_OR_MODULE:NAME` of a function that returns a number."""
    above: float | None = None
    """It holds where the number is larger."""
    below: float | None = None
    """It holds where the number is smaller."""
    title: str | None = None
    persist: float | None = None
    """Seconds for which it must hold; None for that of `AlertSettings`."""
    every: float = 60.0
    """Seconds between two queries or calls of the probe."""
    pipeline: str | None = None
    """The pipeline or flow that it is about."""
    channels: tuple[str, ...] = ()
    """Where its alerts go, whatever the routes say."""


AIRFLOW = tuple(f"AIRFLOW_CTX_{name}" for name in ("DAG_ID", "DAG_RUN_ID", "TASK_ID", "TRY_NUMBER"))
"""What Airflow sets for the tasks that it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSettings:
    """All of it."""

    enabled: bool = True
    persist: float = 300.0
    """Seconds for which a level must hold before it is an alert, and be gone before the alert is resolved."""
    recovery: float = 600.0
    """Seconds that a run whose retries are spent has to recover by itself before anybody is told."""
    repeat: Mapping[Severity, float | None] = field(
        default_factory=lambda: {Severity.P1: 3_600.0, Severity.P2: 14_400.0, Severity.P3: 86_400.0}
    )
    """Seconds after which an alert that is open and not acknowledged is sent again; None for never."""
    cause_window: float = 3_600.0
    """Seconds after a cause was last seen within which a run that fails of it joins its alert."""
    storm: int = 5
    """Messages to one channel within `storm_window` that are sent one by one; what comes beyond is summed up."""
    storm_window: float = 300.0
    quiet: Quiet | None = None
    """For P3."""
    holidays: DaysOff = NO_DAYS_OFF
    """Days on which pipelines that run on weekdays only have no deadline to keep."""
    exit_wait: float = 5.0
    """Seconds that a program which ends waits for its messages; what is left is sent by the next one, or the watch."""
    every: float = 30.0
    """Seconds between two looks of the watch."""
    keep_days: int = 90
    """Days for which alerts that are over, and rollups of services, are kept."""
    channels: Mapping[str, Channel] = field(default_factory=dict)
    routes: Mapping[Severity, tuple[str, ...]] = field(default_factory=dict)
    """Urgency → names of channels; where none is named, the log."""
    pipelines: Mapping[str, PipelineSettings] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    environment: tuple[str, ...] = AIRFLOW
    """Variables of the environment that are kept with each run, for links and details."""
    thresholds: Thresholds = field(default_factory=Thresholds)
    services: Mapping[str, Thresholds] = field(default_factory=dict)
    """By the names of services: their thresholds, where these are not those of all."""
    conditions: Mapping[str, ConditionSettings] = field(default_factory=dict)
    """By name: conditions that are defined here, and built-in ones with channels of their own."""
    maintenance: tuple[Maintenance, ...] = ()
    """Windows in which alerts are not sent."""
    tables: tuple[WatchedTable, ...] = ()
    slots: tuple[str, ...] = field(default=(), repr=False)
    """URLs of PostgreSQL servers whose replication slots are watched; the store's own always is."""
    heartbeat: str = field(default="", repr=False)
    """A URL that the watch posts to after every look, for a dead man's switch."""
    lags: tuple[str, ...] = ()
    """`FILE_OR_MODULE:NAME` of probes for the lag of consumers; see `redrive.alerts.facts.probes`."""

    def limits_of(self, service: str) -> Thresholds:
        """Return the thresholds for a service."""
        return self.services.get(service, self.thresholds)

    def days_off(self, name: str, *, on_weekends: bool) -> DaysOff:
        """Return the days on which a pipeline or flow has no deadline to keep.

        on_weekends  whether it runs on weekends, where no setting says on which days it runs
        """
        own = self.pipelines.get(name, PipelineSettings())
        if own.holidays is not None:
            return own.holidays
        weekends = on_weekends if own.days is None else not own.days.isdisjoint(WEEKEND)
        return NO_DAYS_OFF if weekends else self.holidays

    @property
    def defined(self) -> Mapping[str, ConditionSettings]:
        """The conditions that are defined in the settings, by name."""
        return {name: one for name, one in self.conditions.items() if one.severity is not None}

    def has_channel(self, name: str) -> bool:
        """Return whether these settings have a channel, with or without its address."""
        return name == LOG_CHANNEL or name in self.channels

    def channels_for(self, urgency: Severity, subject: Subject, condition: str) -> tuple[str, ...]:
        """Who is told of it."""
        if condition in self.conditions and self.conditions[condition].channels:
            return self.conditions[condition].channels
        own = self.pipelines.get(subject.name) if subject.kind in ("pipeline", "flow") else None
        chosen = (own.routes.get(urgency) if own is not None else None) or self.routes.get(urgency)
        return chosen or (LOG_CHANNEL,)
