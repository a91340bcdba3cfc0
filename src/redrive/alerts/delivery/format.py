"""Figures, moments and names as an alert says them."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, tzinfo

from redrive.alerts.delivery.safe_text import safe_line

TITLE_LENGTH = 160
"""Characters of a line that a phone shows whole."""
_NAME_LENGTH = 60
_CORE = "id, source_key, error_type, error_message, raw_record"


def short(name: str) -> str:
    """A name that leaves room for the figures beside it."""
    return safe_line(name, _NAME_LENGTH)


def counted(number: int, noun: str) -> str:
    """`1 row`, `5,400 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    """`3.0 %`; what is more than nothing never looks like nothing."""
    return "<0.1 %" if 0 < share < 0.001 else f"{share * 100:.1f} %"


def span(seconds: float) -> str:
    """A duration in one or two units, so that two of them can be compared: 47 s, 12 min, 2 h 10 min, 3 days 4 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return _two(seconds, 3_600, "h", 60, "min")
    return _two(seconds, 86_400, "days", 3_600, "h") if seconds < 1e12 else "for ever"


def _two(seconds: float, large: int, name: str, small: int, rest: str) -> str:
    steps = round(seconds / small)
    whole, left = divmod(steps, large // small)
    return f"{whole} {name} {left} {rest}" if left else f"{whole} {name}"


def gigabytes(size: float) -> str:
    """`12.3 GB`."""
    return f"{size / 1e9:,.1f} GB"


def clock(moment: datetime, now: datetime) -> str:
    """`02:14 UTC`; with its date, where that is not today's."""
    at = moment.astimezone(UTC)
    return f"{at:%H:%M} UTC" if at.date() == now.astimezone(UTC).date() else whole(at)


def whole(moment: datetime) -> str:
    """`2026-11-14 06:12 UTC`."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def wall(moment: datetime, zone: tzinfo | None, now: datetime) -> str:
    """A deadline on the wall of its place, and in UTC: `06:30 IST (01:00 UTC)`."""
    if zone is None or moment.astimezone(zone).utcoffset() == moment.astimezone(UTC).utcoffset():
        return clock(moment, now)
    local = moment.astimezone(zone)
    dated = "" if local.date() == now.astimezone(zone).date() else f"{local:%Y-%m-%d} "
    return f"{dated}{local:%H:%M %Z} ({moment.astimezone(UTC):%H:%M} UTC)"


# ── what to type ──────────────────────────────────────────────────────────────────────────────────────────────────────


def command(*words: object) -> str:
    """A command, as a shell takes it."""
    return "redrive " + " ".join(shlex.quote(str(word)) for word in words)


def text(value: object) -> str:
    """A text, as SQL takes it."""
    return "'" + str(value).replace("'", "''") + "'"


def letters_sql(where: str) -> str:
    """The letters that are meant, for who has only PostgreSQL at hand."""
    is_open = "status IN ('pending', 'escalated')"
    return f"SELECT {_CORE} FROM pipeline.dead_letter_queue WHERE {where} AND {is_open} ORDER BY id LIMIT 50"
