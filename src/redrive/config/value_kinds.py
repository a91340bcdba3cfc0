"""Checks of setting values by kind: a value of another kind raises `ConfigError` and is never guessed at."""

from __future__ import annotations

import re
from collections.abc import Mapping

from redrive.config.located import Located, shown

_AMOUNT = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)\s*([A-Za-z%]+)\s*")
_TIME_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_SIZE_UNITS = {
    **{"B": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12},
    **{"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40},
}
DAY = 86_400.0
YEAR = 366 * DAY
DECADE = 10 * YEAR
# Larger numbers are beyond any date, and beyond any count of rows, letters or runs.
_MOST = 10**15


def text(at: Located) -> str:
    """Return a text that is not empty."""
    if not isinstance(at.value, str) or not at.value.strip():
        raise at.wrong("must be a text")
    return at.value.strip()


def texts(at: Located, of: str) -> tuple[str, ...]:
    """Return a list of texts.

    Args:
        of: what the texts are, for the message.
    """
    entries = at.entries(of)
    if not all(isinstance(entry.value, str) and entry.value.strip() for entry in entries):
        raise at.wrong(f"must be a list of {of}")
    return tuple(entry.value.strip() for entry in entries)


def switch(at: Located) -> bool:
    """Return true or false."""
    if not isinstance(at.value, bool):
        raise at.wrong("must be true or false")
    return at.value


def whole(at: Located, *, least: int = 1, most: int = _MOST) -> int:
    """Return a whole number in a range."""
    value = at.value
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise at.wrong(f"must be a whole number from {least} up" + (f" to {most}" if most < _MOST else ""))
    return value


def number(at: Located, *, zero: bool = False) -> float:
    """Return a number that is not negative."""
    value = _plain(at)
    if value is None or value < 0 or (value == 0 and not zero):
        raise at.wrong(f"must be a number {'from 0 up' if zero else 'above 0'}")
    return value


_LONGEST = {DAY: "a day", YEAR: "a year", DECADE: "ten years"}


def duration(at: Located, *, zero: bool = False, most: float = YEAR) -> float:
    """Return seconds, of a number or of a span such as "5min"."""
    value = _plain(at) if not isinstance(at.value, str) else _sum(at.value, _TIME_UNITS)
    if value is None:
        raise at.wrong(f'must be a span such as "90s", "5min" or "1h", or a number of seconds{_not(at)}')
    if value < 0 or (value == 0 and not zero):
        raise at.wrong(f"must be {'0 seconds or more' if zero else 'more than 0 seconds'}")
    if value > most:
        raise at.wrong(f"must be at most {_LONGEST.get(most, f'{most:g} seconds')}")
    return value


def duration_or_never(at: Located) -> float | None:
    """Return seconds, or None for "never"."""
    return None if at.value == "never" else duration(at)


def age(at: Located) -> float:
    """Return the seconds of an age, which is at least a day."""
    value = duration(at, most=DECADE)
    if value < DAY:
        raise at.wrong('must be at least a day, such as "90d"')
    return value


def share(at: Located) -> float:
    """Return a share of the whole: 0.05, or "5%"."""
    value = _plain(at)
    if isinstance(at.value, str):
        percent = _sum(at.value, {"%": 1.0})
        value = None if percent is None else percent / 100
    if value is None or not 0 < value <= 1:
        raise at.wrong(f'must be a share above 0 and up to 1, such as 0.05 or "5%"{_not(at)}')
    return value


def size(at: Located) -> float:
    """Return bytes, of a number or of a size such as "10GB"."""
    value = _plain(at) if not isinstance(at.value, str) else _sum(at.value, _SIZE_UNITS)
    if value is None or not 0 < value <= _MOST:
        raise at.wrong(f'must be a size such as "10GB" or "512MiB", or a number of bytes above 0{_not(at)}')
    return value


def _plain(at: Located) -> float | None:
    if isinstance(at.value, bool) or not isinstance(at.value, int | float):
        return None
    return float(at.value) if -_MOST <= at.value <= _MOST else None  # nan is not within either


def _sum(written: str, units: Mapping[str, float]) -> float | None:
    """Return the sum of amounts side by side, as in "1h 30min"; None where `written` is not such a sum."""
    rest, amounts = written.strip(), dict[str, float]()
    while rest:
        amount = _AMOUNT.match(rest)
        if amount is None or amount[2] not in units or amount[2] in amounts:
            return None
        amounts[amount[2]] = float(amount[1]) * units[amount[2]]
        rest = rest[amount.end() :]
    return sum(amounts.values()) if amounts else None


def _not(at: Located) -> str:
    return f", not {shown(at.value)}" if isinstance(at.value, str) else ""
