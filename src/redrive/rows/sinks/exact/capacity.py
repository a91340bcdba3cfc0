"""What a column can hold exactly, read from the name of its type. PostgreSQL and DuckDB use the same names for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from redrive.rows.sinks.exact.decimals import scale_of

_INTEGER = re.compile(r"u?(?:tiny|small|big|huge)?int(?:eger)?|bignum")
_TIMED = re.compile(
    r"(?P<base>timestamp|time)(?P<ending>tz|_s|_ms|_ns|tz_ns)?(?:\s*+\((?P<places>\d)\))?\s*+"
    r"(?P<zone>with(?:out)? time zone)?"
)
_INTERVAL = re.compile(
    r"interval(?: (?:\w+ to )?(?P<lowest>year|month|day|hour|minute|second))?(?:\s*\((?P<places>\d)\))?"
)
_ENDINGS = {"_s": 0, "_ms": 3, "_ns": 9, "tz_ns": 9}
_MICROSECONDS = 6


class Family(StrEnum):
    """Types that change values in the same way."""

    INTEGER = "integer"
    DECIMAL = "decimal"
    """With a fixed number of decimal places."""
    FLOAT = "float"
    BOOLEAN = "boolean"
    TIMESTAMP = "timestamp"
    INSTANT = "instant"
    """A timestamp with a zone."""
    DATE = "date"
    TIME = "time"
    INTERVAL = "interval"


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a column can hold: a value that has more to it would be changed on the way in."""

    type: str
    """As the database writes it."""
    family: Family
    places: int = 0
    """Decimal places: of a number, or of the seconds of a time."""
    bits: int = 64
    """Of a float."""
    zoned: bool = False
    """Whether a time of day keeps its offset from UTC."""
    lowest: str = ""
    """The last unit that an interval keeps, such as "day"; empty where it keeps seconds."""
    iso_only: bool = False
    """Whether texts of dates and times must have the form of ISO 8601: others are read otherwise, or only in part."""

    @classmethod
    def of(cls, kind: str) -> Capacity | None:
        """Return the capacity of a column of this type; None where nothing is changed silently."""
        name = kind.strip().lower()
        if (scale := scale_of(name)) is not None:
            return cls(kind, Family.DECIMAL, scale)
        if _INTEGER.fullmatch(name):
            return cls(kind, Family.INTEGER)
        if name in ("real", "float", "double", "double precision"):
            return cls(kind, Family.FLOAT, bits=64 if name.startswith("double") else 32)
        if name in ("boolean", "date"):
            return cls(kind, Family(name))
        if (interval := _INTERVAL.fullmatch(name)) is not None:
            places = int(interval["places"]) if interval["places"] else _MICROSECONDS
            lowest = interval["lowest"] if interval["lowest"] != "second" else None
            return cls(kind, Family.INTERVAL, places, lowest=lowest or "")
        found = _TIMED.fullmatch(name)
        return None if found is None else _timed(kind, found)


def _timed(kind: str, found: re.Match[str]) -> Capacity:
    ending = found["ending"] or ""
    zoned = ending.startswith("tz") or found["zone"] == "with time zone"
    places = int(found["places"]) if found["places"] else _ENDINGS.get(ending, _MICROSECONDS)
    if found["base"] == "time":
        return Capacity(kind, Family.TIME, places, zoned=zoned)
    return Capacity(kind, Family.INSTANT if zoned else Family.TIMESTAMP, places)
