"""What `redrive.toml` says of when alerts are not sent: `[[maintenance]]`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import time

from redrive.alerts.conditions import CONDITIONS
from redrive.alerts.custom import CUSTOM
from redrive.alerts.settings import Maintenance, Quiet
from redrive.config.kinds import text, texts
from redrive.config.located import Located, nearest, shown
from redrive.config.times import moment, time_of_day, weekdays, zone
from redrive.notices import AlertFilter

_KEYS = ("from", "until", "zone", "days", "pipeline", "subject", "condition", "reason")


def read_maintenance(at: Located) -> tuple[Maintenance, ...]:
    """The maintenance windows."""
    return tuple(_window(one) for one in at.entries("windows: write [[maintenance]] above each"))


def _window(at: Located) -> Maintenance:
    found = at.table(_KEYS)
    for name in ("from", "until"):
        if name not in found:
            raise at.wrong(f"has no {name}")
    reason = text(found["reason"]) if "reason" in found else "maintenance"
    only = AlertFilter(
        subjects=_names(found, "subject"), conditions=_conditions(found), pipelines=_names(found, "pipeline")
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


def _conditions(found: Mapping[str, Located]) -> tuple[str, ...]:
    names = _names(found, "condition")
    known = {*CONDITIONS, CUSTOM}
    for name in names:
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near!r}?" if near else "see `redrive alerts rules`"
            raise found["condition"].wrong(f"names an unknown condition {shown(name)}; {hint}")
    return names
