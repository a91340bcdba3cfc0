"""Text of alerts: masked, shortened and formatted counts, durations, times, names and commands.

Text from other programs may be shown anywhere after `safe` or `safe_line`: it holds no secrets, no terminal controls,
and is not too long.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any

from redrive._internal.masking import mask
from redrive._internal.masking.excerpts import end_of, start_of
from redrive._internal.masking.patterns import without_controls

LONGEST = 4_000
TITLE_LENGTH = 160
"""Maximum length of a title: a phone shows it completely."""
_NAME_LENGTH = 60
_CORE = "id, source_key, error_type, error_message, raw_record"
_MOST_ENTRIES = 100
_MOST_BITS = 1_023  # a float holds as much; readers of JSON, and Python itself, refuse the digits of far larger numbers

# Characters beyond the limit that are masked, too, because masking makes texts shorter.
_MARGIN = 5_000

_LINE_ENDS = re.compile("\r\n|[\r\v\f\x85\u2028\u2029]")
# Control characters, and those that change the direction of writing.
_UNPRINTABLE = re.compile("[\0-\x08\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_SURROGATES = re.compile("[\ud800-\udfff]")
_BLANK_LINES = re.compile(r"\n[ \n]*\n")
_GROUP_MENTION = re.compile(r"@(?=(?:channel|here|everyone|group|all)(?![a-z0-9_]))", re.IGNORECASE)


def safe(text: str, most: int = LONGEST) -> str:
    """Return the text with its lines; if it is too long, its beginning and its end, which matter most."""
    if len(text) > most + 2 * _MARGIN:
        head, tail = start_of(text, most + _MARGIN, _cleaned), end_of(text, most + _MARGIN, _cleaned)
        return _beginning_and_end(head, tail, most, left_out=len(text) - most)
    text = _cleaned(text)
    return text if len(text) <= most else _beginning_and_end(text, text, most, left_out=len(text) - most)


def safe_line(text: str, most: int) -> str:
    """Return the text on one line, cut at its end."""
    return cut(" ".join(start_of(text, most + _MARGIN, _cleaned).split()), most)


def cut(text: str, most: int) -> str:
    """Return the text, cut with an ellipsis if it is too long."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def safe_document(value: Any) -> Any:
    """Return a JSON document whose texts may all be shown, and that every JSON parser accepts."""
    if isinstance(value, str):
        return safe(value)
    if isinstance(value, Mapping):
        pairs = list(value.items())[:_MOST_ENTRIES]
        return {safe_line(str(name), 200): safe_document(inner) for name, inner in pairs}
    if isinstance(value, list | tuple):
        return [safe_document(inner) for inner in value[:_MOST_ENTRIES]]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f"{'-' if value < 0 else ''}10^{int(value.bit_length() * math.log10(2))} or so"
    return value


def without_calls(text: str) -> str:
    """Return the text with `@channel` and similar mentions broken, so that the text of an error notifies no group."""
    return _GROUP_MENTION.sub("@\u200b", text)


def _cleaned(text: str) -> str:
    # Masked last: an escape in the middle of a secret's name would hide it.
    text = _LINE_ENDS.sub("\n", without_controls(text)).replace("\t", " ")
    text = _SURROGATES.sub("\ufffd", _UNPRINTABLE.sub("", text))
    lines = "\n".join(line.rstrip() for line in mask(text).split("\n"))
    return _BLANK_LINES.sub("\n\n", lines).strip()


def _beginning_and_end(head: str, tail: str, most: int, *, left_out: int) -> str:
    mark = f"\n… {left_out:,} characters left out …\n"
    room = max(0, most - len(mark))
    end = room // 3
    return head[: room - end].rstrip() + mark + (tail[len(tail) - end :].lstrip() if end else "")


# ── values ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def short(name: str) -> str:
    """Return a name that leaves room for figures on the same line."""
    return safe_line(name, _NAME_LENGTH)


def counted(number: int, noun: str) -> str:
    """Return `1 row`, `5,400 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    """Return `3.0 %`; a share above zero is never shown as zero."""
    return "<0.1 %" if 0 < share < 0.001 else f"{share * 100:.1f} %"


def span(seconds: float) -> str:
    """Return a duration in one or two units, so that two can be compared: 47 s, 12 min, 2 h 10 min, 3 days 4 h."""
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
    """Return `12.3 GB`."""
    return f"{size / 1e9:,.1f} GB"


def clock(moment: datetime, now: datetime) -> str:
    """Return `02:14 UTC`; with its date if that is not today."""
    at = moment.astimezone(UTC)
    return f"{at:%H:%M} UTC" if at.date() == now.astimezone(UTC).date() else whole(at)


def whole(moment: datetime) -> str:
    """Return `2026-11-14 06:12 UTC`."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def wall(moment: datetime, zone: tzinfo | None, now: datetime) -> str:
    """Return a deadline in local time and in UTC: `06:30 IST (01:00 UTC)`."""
    if zone is None or moment.astimezone(zone).utcoffset() == moment.astimezone(UTC).utcoffset():
        return clock(moment, now)
    local = moment.astimezone(zone)
    dated = "" if local.date() == now.astimezone(zone).date() else f"{local:%Y-%m-%d} "
    return f"{dated}{local:%H:%M %Z} ({moment.astimezone(UTC):%H:%M} UTC)"


# ── commands and SQL ──────────────────────────────────────────────────────────────────────────────────────────────────


def command(*words: object) -> str:
    """Return a command of redrive, quoted for a shell."""
    return "redrive " + " ".join(shlex.quote(str(word)) for word in words)


def text(value: object) -> str:
    """Return a text as a literal of SQL."""
    return "'" + str(value).replace("'", "''") + "'"


def letters_sql(where: str) -> str:
    """Return SQL that selects open letters."""
    is_open = "status IN ('pending', 'escalated')"
    return f"SELECT {_CORE} FROM pipeline.dead_letter_queue WHERE {where} AND {is_open} ORDER BY id LIMIT 50"
