"""Read the settings of alerts in `redrive.toml`, and check all of them.

    [alerts] [alerts.thresholds]    when alerts are sent, and when they are sent again
    [channels.NAME]                 where messages go
    [routes]                        the channels of P1, P2 and P3
    [pipelines.NAME]                settings of one pipeline or flow
    [[tables]]                      tables whose rows are counted
    [conditions.NAME]               your own conditions; see `redrive.alerts.config.sections`
    [[maintenance]]                 when alerts are not sent; see `redrive.alerts.config.sections`

A mistake in the file must show when the file is read, not in the night in which an alert is lost: everything unknown
raises a `ConfigError` that names file, line and key. Addresses are secrets, so no error contains one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, fields, replace
from functools import partial
from typing import Any

from redrive.alerts.config import addresses
from redrive.alerts.config.sections import (
    CONDITION_KEYS,
    check_calendars,
    check_metrics,
    read_condition,
    read_holidays,
    read_maintenance,
)
from redrive.alerts.config.settings import (
    LOG_CHANNEL,
    AlertSettings,
    Channel,
    ChannelKind,
    ConditionSettings,
    PipelineSettings,
    Quiet,
    Thresholds,
    WatchedTable,
)
from redrive.config import Settings
from redrive.config.located import Located, dotted, listed, nearest, shown
from redrive.config.times import time_of_day, weekdays, zone
from redrive.config.value_kinds import duration, duration_or_never, number, share, size, switch, text, texts, whole
from redrive.model.alerts import Severity
from redrive.policy.time_of_day import TimeOfDay

_ADVICE = "set it, or REDRIVE_ALERTS=off to disable alerts here"
_KINDS: Mapping[ChannelKind, Callable[[Located], str]] = {
    "apprise": addresses.apprise,
    "webhook": addresses.web,
    "slack": addresses.web,
    "pagerduty": addresses.pagerduty,
}
_KIND_NAMES = (*_KINDS, "command", "log")
_SLOWEST = 60.0  # seconds: the maximum timeout of a channel
_OF_WEBHOOKS = ("bearer", "headers", "signing_key")
_CHANNEL_KEYS = (*_KIND_NAMES, "timeout", *_OF_WEBHOOKS)
_PIPELINE_KEYS = ("sla", "fresh_within", "days", "holidays", "runbook", "links", "routes")
_LONGEST_KEPT = 3_650
# The units of thresholds; the others are counts.
_MEASURES: Mapping[tuple[str, ...], Callable[[Located], Any]] = {
    ("down_seconds", "flap_seconds", "lag_seconds", "silence", "auth_silence", "letter_age"): duration,
    ("sla_grace", "duration_least"): partial(duration, zero=True),
    ("row_drop", "few_rows", "down_share", "calls_failed"): share,
    ("slot_bytes", "letters_bytes", "store_bytes"): size,
    ("too_long", "slow", "growing_rise", "retries_rise"): number,
    ("retries_least", "retries_spreads"): partial(number, zero=True),
}

# The thresholds that can be set for one service. Those of flapping cannot, because an alert may cover several services.
OF_SERVICES = (
    *("down_seconds", "down_share", "down_faults", "silence", "auth_silence", "client_errors", "server_errors"),
    *("calls_failed", "calls_failed_least", "retries_rise", "retries_spreads", "retries_least", "retries_calls"),
)

Tables = Mapping[str, Located]


def read(settings: Settings, *, may_lack_secrets: bool = False) -> AlertSettings:
    """Return the settings of alerts; raise `ConfigError` for the first mistake in the file.

    Environment variables that the file names may be missing if alerts are disabled, because nothing is sent and no
    server is queried. With `may_lack_secrets` they may be missing, too: commands of operators need only the name of a
    channel, and deliver nothing to a channel without an address.
    """
    tables = settings.alerts
    if not tables:
        return AlertSettings(enabled=settings.alerts_on is not False)
    alerts = tables["alerts"].table((*_ALERTS, "slots", "heartbeat", "holidays")) if "alerts" in tables else {}
    values = {name: _ALERTS[name](entry) for name, entry in alerts.items() if name in _ALERTS}
    if settings.alerts_on is not None:
        values["enabled"] = settings.alerts_on
    on = values.get("enabled", True) and not may_lack_secrets
    channels = {
        name: _channel(name, entry, needed=on) for name, entry in _named(tables, "channels", _CHANNEL_KEYS).items()
    }
    routes = _routes(tables["routes"], channels) if "routes" in tables else {}
    named = _named(tables, "pipelines", _PIPELINE_KEYS)
    pipelines = {name: _pipeline(entry, channels, needed=on) for name, entry in named.items()}
    if "holidays" in alerts:
        values["holidays"] = read_holidays(alerts["holidays"], needed=on)
    conditions = {
        name: read_condition(name, entry, channels=partial(_channel_names, channels=channels), needed=on)
        for name, entry in _named(tables, "conditions", CONDITION_KEYS).items()
    }
    _check_routes(tables, routes, pipelines, conditions)
    return AlertSettings(
        **values,
        channels=channels,
        routes=routes,
        pipelines=pipelines,
        tables=_tables(tables["tables"], needed=on) if "tables" in tables else (),
        slots=_slots(alerts["slots"], needed=on) if "slots" in alerts else (),
        conditions=conditions,
        services=_services(tables, values.get("thresholds", Thresholds())),
        maintenance=read_maintenance(tables["maintenance"], conditions) if "maintenance" in tables else (),
        heartbeat=_target(alerts["heartbeat"], addresses.web, needed=on) if "heartbeat" in alerts else "",
    )


def check_channels(settings: Settings) -> AlertSettings:
    """Read the settings with checks that take too long for every run.

    Apprise checks its own URLs, programs must exist, and calendars of holidays must be known.
    """
    read_so_far = read(settings)
    for name, channel in read_so_far.channels.items():
        if channel.kind in {"apprise", "command"} and channel.target:
            at = settings.alerts["channels"].at(name).at(channel.kind)
            addresses.check_fully(at, channel.target)
    tables = settings.alerts
    named = tables["pipelines"].table().values() if "pipelines" in tables else ()
    for table in (*([tables["alerts"]] if "alerts" in tables else ()), *named):
        if "holidays" in table.table():
            check_calendars(table.at("holidays"))
    if "conditions" in tables:
        check_metrics(tables["conditions"])
    return read_so_far


# ── [alerts] ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _repeat(at: Located) -> Mapping[Severity, float | None]:
    intervals = {Severity(name): duration_or_never(entry) for name, entry in _by_tier(at).items()}
    return {**AlertSettings().repeat, **intervals}


def _quiet(at: Located) -> Quiet:
    keys = at.table(("from", "until", "zone"))
    begins, ends = (time_of_day(_needed(at, keys, name)) for name in ("from", "until"))
    if begins == ends:
        raise keys["until"].wrong("is the same as from, so that it would be always quiet or never")
    return Quiet(begins, ends, zone(_needed(at, keys, "zone")))


def _links(at: Located) -> Mapping[str, str]:
    return {name: addresses.template(entry) for name, entry in _with_names(at.table()).items()}


def _environment(at: Located) -> tuple[str, ...]:
    entries = at.entries('names of environment variables, as in ["AIRFLOW_CTX_DAG_ID"]')
    return tuple(addresses.variable(entry) for entry in entries)


def _lags(at: Located) -> tuple[str, ...]:
    return tuple(addresses.probe(entry) for entry in at.entries('probes, as in ["probes.py:billing"]'))


def _exit_wait(at: Located) -> float:
    return duration_or_never(at) or 0.0


def _slots(at: Located, *, needed: bool) -> tuple[str, ...]:
    urls = (_target(entry, addresses.server, needed=needed) for entry in at.entries("URLs of PostgreSQL servers"))
    return tuple(url for url in urls if url)


def _thresholds(at: Located) -> Thresholds:
    return Thresholds(**{name: _READERS[name](one) for name, one in at.table(_READERS).items()})


def _services(tables: Tables, thresholds: Thresholds) -> Mapping[str, Thresholds]:
    """Return the thresholds of services that have their own; the other thresholds apply to all services."""
    return {
        name: replace(thresholds, **{key: _READERS[key](value) for key, value in table.table().items()})
        for name, table in _named(tables, "services", OF_SERVICES).items()
    }


def _reader_of(threshold: Field[Any]) -> Callable[[Located], Any]:
    for names, reader in _MEASURES.items():
        if threshold.name in names:
            return reader
    return whole


_READERS: Mapping[str, Callable[[Located], Any]] = {
    threshold.name: _reader_of(threshold) for threshold in fields(Thresholds)
}
_ALERTS: Mapping[str, Callable[[Located], Any]] = {
    "enabled": switch,
    "persist": duration,
    "recovery": duration,
    "repeat": _repeat,
    "cause_window": duration,
    "storm": whole,
    "storm_window": duration,
    "quiet": _quiet,
    "exit_wait": _exit_wait,
    "every": duration,
    "keep_days": partial(whole, most=_LONGEST_KEPT),
    "links": _links,
    "environment": _environment,
    "lags": _lags,
    "thresholds": _thresholds,
}


# ── [channels.NAME] and [routes] ──────────────────────────────────────────────────────────────────────────────────────


def _channel(name: str, at: Located, *, needed: bool) -> Channel:
    keys = at.table()
    kinds = [kind for kind in _KIND_NAMES if kind in keys]
    if len(kinds) != 1:
        has = listed(kinds) if kinds else "none"
        raise at.wrong(f"must have exactly one of {listed(_KIND_NAMES, last='or')}; it has {has}")
    (kind,) = kinds
    if name == LOG_CHANNEL and kind != "log":
        raise at.wrong(f"must have another name: {LOG_CHANNEL!r} is always the log")
    target: str | tuple[str, ...] = ""
    if kind == "log":
        _must_be_true(keys["log"])
    elif kind == "command":
        target = addresses.command(keys["command"])
    else:
        target = _target(keys[kind], _KINDS[kind], needed=needed)
        if kind == "apprise" and needed:
            addresses.check_installed(keys[kind])
        elif kind == "apprise" and not addresses.is_installed():
            target = ""
    channel = Channel(name=name, kind=kind, target=target)
    if any(key in keys for key in _OF_WEBHOOKS):
        channel = _with_headers(channel, keys, needed=needed)
    return replace(channel, timeout=duration(keys["timeout"], most=_SLOWEST)) if "timeout" in keys else channel


def _with_headers(channel: Channel, keys: Mapping[str, Located], *, needed: bool) -> Channel:
    """Return a webhook with headers and signing key; without its target if one of its secrets is missing."""
    if channel.kind != "webhook":
        (name, *_) = (entry for entry in _OF_WEBHOOKS if entry in keys)
        raise keys[name].wrong("is for webhooks only")
    listed_headers = keys["headers"].table() if "headers" in keys else {}
    secrets = [*listed_headers.values(), *(keys[name] for name in ("bearer", "signing_key") if name in keys)]
    if not needed and any(entry.unset() for entry in secrets):
        return replace(channel, target="")
    headers = {name: addresses.header(name, entry.filled(advice=_ADVICE)) for name, entry in listed_headers.items()}
    if "bearer" in keys:
        if any(name.lower() == "authorization" for name in headers):
            raise keys["bearer"].wrong("is a header Authorization, and there is another one")
        headers["Authorization"] = f"Bearer {addresses.header('Authorization', keys['bearer'].filled(advice=_ADVICE))}"
    key = addresses.signing_key(keys["signing_key"].filled(advice=_ADVICE)) if "signing_key" in keys else b""
    return replace(channel, headers=headers, signing_key=key)


def _must_be_true(at: Located) -> None:
    if not switch(at):
        raise at.wrong("must be true; remove the channel if nothing is to be logged")


def _target(at: Located, check: Callable[[Located], str], *, needed: bool) -> str:
    return "" if not needed and at.unset() else check(at.filled(advice=_ADVICE))


def _by_tier(at: Located) -> dict[str, Located]:
    return at.table([severity.value for severity in Severity], called="is no tier")


def _routes(at: Located, channels: Collection[str]) -> Mapping[Severity, tuple[str, ...]]:
    return {Severity(name): _channel_names(entry, channels) for name, entry in _by_tier(at).items()}


def _channel_names(at: Located, channels: Collection[str]) -> tuple[str, ...]:
    entries = [at] if isinstance(at.value, str) else at.entries("names of channels")
    known = {*channels, LOG_CHANNEL}
    names = [text(entry) for entry in entries]
    if not names:
        raise at.wrong(f'names no channel; write "{LOG_CHANNEL}" if the log is enough')
    for entry, name in zip(entries, names, strict=True):
        if "://" in name:
            raise entry.wrong("must name a channel; its address belongs in a table of its own, [channels.NAME]")
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near!r}?" if near else f"there {'are' if channels else 'is'} {listed(sorted(known))}"
            raise entry.wrong(f"names an unknown channel {shown(name)}; {hint}")
        if names.count(name) > 1:
            raise at.wrong(f"names the channel {name!r} more than once")
    return tuple(names)


def _check_routes(
    tables: Tables,
    routes: Mapping[Severity, Any],
    pipelines: Mapping[str, PipelineSettings],
    conditions: Mapping[str, ConditionSettings],
) -> None:
    """Raise if alerts would go to the log although channels are configured, which is rarely intended."""
    unrouted = [tier for tier in Severity if tier not in routes and any(tier.outranks(other) for other in routes)]
    if unrouted:
        raise tables["routes"].wrong(
            f'has no channel for {unrouted[0]}, a higher severity than those it has; write "{LOG_CHANNEL}" for none'
        )
    channels = tables["channels"].table() if "channels" in tables else {}
    routed = any(own.routes for own in pipelines.values()) or any(own.channels for own in conditions.values())
    if channels and not routes and not routed:
        name, first = next(iter(channels.items()))
        raise first.wrong(f"is in no route, so it receives no alerts; add [routes] with P1 = [{shown(name)}]")


# ── [pipelines.NAME] and [[tables]] ───────────────────────────────────────────────────────────────────────────────────


def _pipeline(at: Located, channels: Collection[str], *, needed: bool) -> PipelineSettings:
    read_each: Mapping[str, Callable[[Located], Any]] = {
        "sla": _sla,
        "fresh_within": duration,
        "days": weekdays,
        "holidays": partial(read_holidays, needed=needed),
        "runbook": _runbook,
        "links": _links,
        "routes": partial(_routes, channels=channels),
    }
    return PipelineSettings(**{name: read_each[name](entry) for name, entry in at.table().items()})


def _sla(at: Located) -> TimeOfDay:
    clock, _, place = text(at).partition(" ")
    if not place:
        raise at.wrong(f'must be a time of day and a time zone, as in "06:30 Asia/Kolkata", not {shown(at.value)}')
    by = time_of_day(replace(at, value=clock))
    return TimeOfDay(by.hour, by.minute, zone(replace(at, value=place)))


def _runbook(at: Located) -> tuple[str, ...]:
    if isinstance(at.value, list):
        return texts(at, "steps, each a text")
    return tuple(step.strip() for step in text(at).splitlines() if step.strip())


def _tables(at: Located, *, needed: bool) -> tuple[WatchedTable, ...]:
    by_name: dict[str, WatchedTable] = {}
    for entry in at.entries("tables: write [[tables]] above each"):
        keys = entry.table(("name", "url", "pipeline", "time_column", "fresh_within"))
        name = text(_needed(entry, keys, "name"))
        if name in by_name:
            raise keys["name"].wrong(f"is {shown(name)} for a second time; every table has a name of its own")
        url = _target(_needed(entry, keys, "url"), addresses.database, needed=needed)
        pipeline = text(keys["pipeline"]) if "pipeline" in keys else None
        if ("time_column" in keys) is not ("fresh_within" in keys):
            (alone,) = (key for key in ("time_column", "fresh_within") if key in keys)
            raise keys[alone].wrong("needs the other one: time_column and fresh_within go together")
        by_name[name] = WatchedTable(
            name=name,
            url=url,
            pipeline=pipeline,
            time_column=text(keys["time_column"]) if "time_column" in keys else None,
            fresh_within=duration(keys["fresh_within"]) if "fresh_within" in keys else None,
        )
    return tuple(table for table in by_name.values() if table.url)


# ── shared readers ────────────────────────────────────────────────────────────────────────────────────────────────────


def _named(tables: Tables, group: str, known: Collection[str]) -> dict[str, Located]:
    """Return the tables [group.NAME], each with these keys."""
    named = _with_names(tables[group].table()) if group in tables else {}
    for name, table in named.items():
        for inner, value in table.value.items() if isinstance(table.value, dict) else ():
            if inner not in known and isinstance(value, dict):
                meant = dotted((group, f"{name}.{inner}"))
                raise table.at(inner).wrong(f"is not a setting; a name with a dot is quoted: [{meant}]")
        table.table(known)
    return named


def _with_names(tables: dict[str, Located]) -> dict[str, Located]:
    for name, table in tables.items():
        if not name.strip() or not name.isprintable():
            raise table.wrong("has an empty name" if not name.strip() else "has a name that cannot be shown")
    return tables


def _needed(at: Located, keys: Mapping[str, Located], name: str) -> Located:
    if name not in keys:
        raise at.wrong(f"has no {name}")
    return keys[name]
