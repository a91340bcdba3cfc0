"""Sections of `redrive.toml` that `redrive.alerts.config.read` leaves to this module.

    [conditions.NAME]    a condition of your own, or the channels of a built-in one
    [[maintenance]]      when alerts are not sent
    holidays             days without deadlines, in [alerts] and [pipelines.NAME]

It also checks that the query of a condition only reads. The transaction of the query is read-only, too, but
`COPY … TO PROGRAM` runs in a read-only transaction of a PostgreSQL superuser.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from datetime import date, datetime, time
from typing import Any

from redrive.alerts.conditions import CONDITIONS, CUSTOM
from redrive.alerts.config import addresses
from redrive.alerts.config.settings import (
    ConditionSettings,
    DaysOff,
    Maintenance,
    Quiet,
    are_calendars_installed,
    known_calendars,
    unknown_calendar,
)
from redrive.config.located import Located, listed, nearest, shown
from redrive.config.times import moment, time_of_day, weekdays, zone
from redrive.config.value_kinds import duration, text, texts
from redrive.model.alerts import AlertFilter, Severity

CONDITION_KEYS = (
    *("metric", "query", "url", "probe", "above", "below", "severity", "title", "persist", "every", "pipeline"),
    "channels",
)
_BUILT_IN = (*CONDITIONS, CUSTOM)
_RESERVED = ("test",)
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,49}")
_METRIC = re.compile(r"(?P<name>redrive_[a-z0-9_]{1,100})(?:\{(?P<labels>[^{}]{0,500})\})?")
_LABEL = re.compile(r'\s*(?P<name>[a-z_]{1,50})\s*=\s*"(?P<value>[^"\\]{0,200})"\s*(?:,|$)')
_SOURCES = ("metric", "query", "probe")
_MOST = 1e15


def read_condition(
    name: str, at: Located, *, channels: Callable[[Located], tuple[str, ...]], needed: bool
) -> ConditionSettings:
    """Return the settings of one condition.

    Args:
        name: The name of the condition.
        at: Its table.
        channels: Reads names of channels.
        needed: Whether the variables that its address names must be set.
    """
    keys = at.table(CONDITION_KEYS)
    routed = channels(keys["channels"]) if "channels" in keys else ()
    if name in _BUILT_IN:
        _check_built_in(at, keys)
        return ConditionSettings(channels=routed)
    if name in _RESERVED or not _NAME.fullmatch(name):
        near = nearest(name, _BUILT_IN) if set(keys) == {"channels"} else None
        hint = f"did you mean {near!r}?" if near else "use lower-case letters, digits, _ and -"
        raise at.wrong(f"is not a name for a condition; {hint}")
    if set(keys) == {"channels"}:
        near = nearest(name, _BUILT_IN)
        raise at.wrong(
            f"is no built-in condition{f'; did you mean {near!r}?' if near else ''}, and has none of {listed(_SOURCES)}"
        )
    above, below = _limits(at, keys)
    return ConditionSettings(
        severity=_severity(at, keys),
        **_source(at, keys, needed=needed),
        above=above,
        below=below,
        title=text(keys["title"]) if "title" in keys else None,
        persist=duration(keys["persist"], zero=True) if "persist" in keys else None,
        every=duration(keys["every"]) if "every" in keys else ConditionSettings().every,
        pipeline=text(keys["pipeline"]) if "pipeline" in keys else None,
        channels=routed,
    )


def check_metrics(at: Located) -> None:
    """Raise if a condition names an unknown metric, or one that cannot be read here."""
    named = {name: table for name, table in at.table().items() if "metric" in table.table()}
    if not named:
        return
    try:
        from redrive.observe.figures import Figures
        from redrive.observe.metric_families import families
    except ImportError as error:
        raise next(iter(named.values())).at("metric").wrong(f"cannot be read: {error}") from None
    suffix = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "info": ("_info",)}
    known = {
        f"{family.name}{end}"
        for family in families(Figures(database="", schema_version=""), took=0.0)
        for end in suffix.get(family.type, ("",))
    }
    for table in named.values():
        metric, _ = _metric(table.at("metric"))
        if metric not in known:
            near = nearest(metric, known)
            hint = f"; did you mean {near!r}?" if near else ""
            raise table.at("metric").wrong(f"names an unknown metric {shown(metric, longest=100)}{hint}")


def _check_built_in(at: Located, keys: Mapping[str, Located]) -> None:
    for key, entry in keys.items():
        if key != "channels":
            raise entry.wrong(
                "is not allowed for a built-in condition, which may only have channels; choose another name"
            )
    if not keys:
        raise at.wrong("has no channels")


def _source(at: Located, keys: Mapping[str, Located], *, needed: bool) -> dict[str, Any]:
    sources = [source for source in _SOURCES if source in keys]
    if len(sources) != 1:
        raise at.wrong(
            f"must have exactly one of {listed(_SOURCES, last='or')}; it has {listed(sources) if sources else 'none'}"
        )
    if "url" in keys and sources != ["query"]:
        raise keys["url"].wrong(f"is not allowed with {sources[0]}")
    if sources == ["metric"]:
        if "every" in keys:
            raise keys["every"].wrong("is not allowed with metric, which is read at every check")
        metric, labels = _metric(keys["metric"])
        return {"metric": metric, "labels": labels}
    if sources == ["probe"]:
        return {"probe": addresses.probe(keys["probe"])}
    if "url" not in keys:
        raise at.wrong("has no url: name the database to query")
    query, url = keys["query"], keys["url"]
    if not is_one_query(text(query)):
        raise query.wrong(ONE_QUERY)
    filled = "" if not needed and url.unset() else addresses.database(url.filled(advice="set it"))
    return {"query": text(query).rstrip("; \n"), "url": filled}


def _metric(at: Located) -> tuple[str, dict[str, str]]:
    match = _METRIC.fullmatch(text(at))
    rest, labels = (match["labels"] or "") if match else "", dict[str, str]()
    while match and rest.strip():
        label = _LABEL.match(rest)
        if label is None or label["name"] in labels:
            match = None
            break
        labels[label["name"]] = label["value"]
        rest = rest[label.end() :]
    if match is None:
        raise at.wrong('must be a metric of redrive, such as \'redrive_letters{pipeline="orders",status="pending"}\'')
    return match["name"], labels


def _limits(at: Located, keys: Mapping[str, Located]) -> tuple[float | None, float | None]:
    above, below = (_limit(keys[name]) if name in keys else None for name in ("above", "below"))
    if above is None and below is None:
        raise at.wrong("has neither above nor below")
    if above is not None and below is not None and below > above:
        raise keys["below"].wrong("is more than above, so the condition would always hold")
    return above, below


def _limit(at: Located) -> float:
    if isinstance(at.value, bool) or not isinstance(at.value, int | float) or not -_MOST <= at.value <= _MOST:
        raise at.wrong("must be a number")
    return float(at.value)


def _severity(at: Located, keys: Mapping[str, Located]) -> Severity:
    if "severity" not in keys:
        raise at.wrong(f"has no severity: {listed(Severity, last='or')}")
    try:
        return Severity(text(keys["severity"]))
    except ValueError:
        raise keys["severity"].wrong(f"must be {listed(Severity, last='or')}") from None


ONE_QUERY = "must be one statement that begins with SELECT, WITH, VALUES or TABLE"
"""The end of the error for a rejected statement."""

_BEGINNING = re.compile(r"[\s(]*(?:SELECT|WITH|VALUES|TABLE)\b", re.IGNORECASE)
_OPENING = re.compile(r"['\"]|--|/\*")
_CLOSING = {"'": "'", '"': '"', "--": "\n", "/*": "*/"}


def is_one_query(statement: str) -> bool:
    """Return whether this is a single statement that begins with SELECT, WITH, VALUES or TABLE."""
    outside, rest = "", statement
    while (opening := _OPENING.search(rest)) is not None:
        outside += f"{rest[: opening.start()]} "
        inside, _, rest = rest[opening.end() :].partition(_CLOSING[opening[0]])
        if opening[0] == "/*" and "/*" in inside:  # where such a comment ends depends on the database
            return False
    outside += rest
    return _BEGINNING.match(outside) is not None and ";" not in outside.rstrip("; \t\r\n")


_CALENDAR = re.compile(r"[A-Z][A-Z0-9]{1,9}(?:-[A-Za-z0-9]{1,10})?")
_KEYS = ("from", "until", "zone", "days", "pipeline", "subject", "condition", "reason")


def read_maintenance(at: Located, defined: Collection[str]) -> tuple[Maintenance, ...]:
    """Return the maintenance windows.

    Args:
        at: The array of tables.
        defined: The names of conditions that the file defines.
    """
    return tuple(_window(entry, defined) for entry in at.entries("windows: write [[maintenance]] above each"))


def read_holidays(at: Located, *, needed: bool) -> DaysOff:
    """Return days off: dates and calendars, as in ["DE-BY", "2026-12-24"], or one of them.

    Args:
        at: The value.
        needed: Whether the library with the calendars must be installed here.
    """
    dates, calendars = set[date](), list[str]()
    for entry in (
        at.entries('dates and calendars, as in ["DE-BY", "2026-12-24"]') if isinstance(at.value, list) else [at]
    ):
        if isinstance(day := _as_date(entry), date):
            dates.add(day)
        elif _CALENDAR.fullmatch(day):
            calendars.append(day)
        else:
            raise entry.wrong(
                f'must be a date such as "2026-12-24" or a calendar such as "DE-BY", not {shown(entry.value)}'
            )
    if calendars and needed and not are_calendars_installed():
        raise at.wrong("needs the library holidays, which is not installed: pip install 'redrive[holidays]'")
    return DaysOff(dates=frozenset(dates), calendars=tuple(calendars))


def check_calendars(at: Located) -> None:
    """Raise if a calendar is not known; loading them takes too long for every run."""
    for code in read_holidays(at, needed=True).calendars:
        if (why := unknown_calendar(code)) is not None:
            near = nearest(code.partition("-")[0], known_calendars())
            hint = f"; did you mean {near!r}?" if near and near != code.partition("-")[0] else ""
            raise at.wrong(f"names an unknown calendar {shown(code)}: {why}{hint}")


def _as_date(at: Located) -> date | str:
    value = at.value
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    written = text(at)
    try:
        return date.fromisoformat(written)
    except ValueError:
        return written


def _window(at: Located, defined: Collection[str]) -> Maintenance:
    keys = at.table(_KEYS)
    for name in ("from", "until"):
        if name not in keys:
            raise at.wrong(f"has no {name}")
    reason = text(keys["reason"]) if "reason" in keys else "maintenance"
    only = AlertFilter(
        subjects=_names(keys, "subject"), conditions=_conditions(keys, defined), pipelines=_names(keys, "pipeline")
    )
    if _is_time_of_day(keys["from"]):
        days = weekdays(keys["days"]) if "days" in keys else None
        return Maintenance(only=only, hours=_hours(at, keys), days=days, reason=reason)
    if "days" in keys:
        raise keys["days"].wrong("is not allowed for a window with dates; remove it, or give times of day only")
    timezone = zone(keys["zone"]) if "zone" in keys else None
    begins, ends = moment(keys["from"], timezone), moment(keys["until"], timezone)
    if begins >= ends:
        raise keys["until"].wrong("must be later than from")
    return Maintenance(only=only, begins=begins, ends=ends, reason=reason)


def _hours(at: Located, keys: Mapping[str, Located]) -> Quiet:
    begins, ends = time_of_day(keys["from"]), time_of_day(keys["until"])
    if begins == ends:
        raise keys["until"].wrong("is the same as from")
    if "zone" not in keys:
        raise at.wrong('has no zone, such as zone = "Europe/Berlin"')
    return Quiet(begins, ends, zone(keys["zone"]))


def _is_time_of_day(at: Located) -> bool:
    """Return whether a value is a time without a date: 22:00:00 or "22:00"."""
    return isinstance(at.value, time) or (isinstance(at.value, str) and "-" not in at.value)


def _names(keys: Mapping[str, Located], name: str) -> tuple[str, ...]:
    if name not in keys:
        return ()
    at = keys[name]
    names = (text(at),) if isinstance(at.value, str) else texts(at, "names")
    if not names:
        raise at.wrong("names nothing; remove it to include all alerts")
    return names


def _conditions(keys: Mapping[str, Located], defined: Collection[str]) -> tuple[str, ...]:
    names = _names(keys, "condition")
    known = {*CONDITIONS, CUSTOM, *defined}
    for name in names:
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near!r}?" if near else "see `redrive alerts rules`"
            raise keys["condition"].wrong(f"names an unknown condition {shown(name)}; {hint}")
    return names
