"""What `redrive.toml` says of when alerts are not sent: `[[maintenance]]`, and `holidays`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import date, datetime, time

from redrive.alerts.conditions import CONDITIONS
from redrive.alerts.config.settings import Maintenance, Quiet
from redrive.alerts.custom import CUSTOM
from redrive.alerts.facts.days_off import DaysOff, is_installed, known_calendars, unknown_calendar
from redrive.config.located import Located, nearest, shown
from redrive.config.times import moment, time_of_day, weekdays, zone
from redrive.config.value_kinds import text, texts
from redrive.model.alerts import AlertFilter

_CALENDAR = re.compile(r"[A-Z][A-Z0-9]{1,9}(?:-[A-Za-z0-9]{1,10})?")
_KEYS = ("from", "until", "zone", "days", "pipeline", "subject", "condition", "reason")


def read_maintenance(at: Located, defined: Collection[str]) -> tuple[Maintenance, ...]:
    """The maintenance windows.

    defined  the names of conditions that the file has
    """
    return tuple(_window(one, defined) for one in at.entries("windows: write [[maintenance]] above each"))


def read_holidays(at: Located, *, needed: bool) -> DaysOff:
    """Days off: dates and calendars, as in ["DE-BY", "2026-12-24"], or one of them.

    needed  whether the library that has the calendars must be installed here
    """
    dates, calendars = set[date](), list[str]()
    for one in at.entries('dates and calendars, as in ["DE-BY", "2026-12-24"]') if isinstance(at.value, list) else [at]:
        if isinstance(day := _as_date(one), date):
            dates.add(day)
        elif _CALENDAR.fullmatch(day):
            calendars.append(day)
        else:
            raise one.wrong(
                f'must be a date such as "2026-12-24" or a calendar such as "DE-BY", not {shown(one.value)}'
            )
    if calendars and needed and not is_installed():
        raise at.wrong("needs the library holidays, which is not installed: pip install 'redrive[holidays]'")
    return DaysOff(dates=frozenset(dates), calendars=tuple(calendars))


def check_calendars(at: Located) -> None:
    """Raise where a calendar is not known; loading them takes longer than a run has time for."""
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
    found = at.table(_KEYS)
    for name in ("from", "until"):
        if name not in found:
            raise at.wrong(f"has no {name}")
    reason = text(found["reason"]) if "reason" in found else "maintenance"
    only = AlertFilter(
        subjects=_names(found, "subject"), conditions=_conditions(found, defined), pipelines=_names(found, "pipeline")
    )
    if _is_time_of_day(found["from"]):
        days = weekdays(found["days"]) if "days" in found else None
        return Maintenance(only=only, hours=_hours(at, found), days=days, reason=reason)
    if "days" in found:
        raise found["days"].wrong("means nothing for a window with dates; leave it out, or give times of day only")
    place = zone(found["zone"]) if "zone" in found else None
    begins, ends = moment(found["from"], place), moment(found["until"], place)
    if begins >= ends:
        raise found["until"].wrong("must be later than from")
    return Maintenance(only=only, begins=begins, ends=ends, reason=reason)


def _hours(at: Located, found: Mapping[str, Located]) -> Quiet:
    begins, ends = time_of_day(found["from"]), time_of_day(found["until"])
    if begins == ends:
        raise found["until"].wrong("is the same as from")
    if "zone" not in found:
        raise at.wrong('has no zone, such as zone = "Europe/Berlin"')
    return Quiet(begins, ends, zone(found["zone"]))


def _is_time_of_day(at: Located) -> bool:
    """Whether it has no date: 22:00:00 or "22:00"."""
    return isinstance(at.value, time) or (isinstance(at.value, str) and "-" not in at.value)


def _names(found: Mapping[str, Located], name: str) -> tuple[str, ...]:
    if name not in found:
        return ()
    at = found[name]
    names = (text(at),) if isinstance(at.value, str) else texts(at, "names")
    if not names:
        raise at.wrong("names nothing; leave it out where all alerts are meant")
    return names


def _conditions(found: Mapping[str, Located], defined: Collection[str]) -> tuple[str, ...]:
    names = _names(found, "condition")
    known = {*CONDITIONS, CUSTOM, *defined}
    for name in names:
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near!r}?" if near else "see `redrive alerts rules`"
            raise found["condition"].wrong(f"names an unknown condition {shown(name)}; {hint}")
    return names
