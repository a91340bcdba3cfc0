"""Days off: dates and public calendars on which no deadline of a weekday pipeline has to be kept.

Calendars come from the `holidays` library, which is loaded when a day is first looked up.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from redrive._internal.optional import require_extra

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


def is_installed() -> bool:
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
