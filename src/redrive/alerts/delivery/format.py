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
from redrive._internal.masking.controls import without_controls
from redrive._internal.masking.excerpts import end_of, start_of

LONGEST = 4_000
TITLE_LENGTH = 160
"""Characters of a line that a phone shows whole."""
_NAME_LENGTH = 60
_CORE = "id, source_key, error_type, error_message, raw_record"
_MOST_ENTRIES = 100
_MOST_BITS = 1_023  # a float holds as much; readers of JSON, and Python itself, refuse the digits of far larger numbers

# Looked at beyond what is shown, for masking makes texts shorter.
_MARGIN = 5_000

_LINE_ENDS = re.compile("\r\n|[\r\v\f\x85\u2028\u2029]")
# Controls, and what turns the direction of writing.
_UNPRINTABLE = re.compile("[\0-\x08\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_HALVES = re.compile("[\ud800-\udfff]")
_BLANK_LINES = re.compile(r"\n[ \n]*\n")
_EVERYBODY = re.compile(r"@(?=(?:channel|here|everyone|group|all)(?![a-z0-9_]))", re.IGNORECASE)


def safe(text: str, most: int = LONGEST) -> str:
    """The text, its lines kept; of one that is too long the beginning and the end, for both may tell the most."""
    if len(text) > most + 2 * _MARGIN:
        head, tail = start_of(text, most + _MARGIN, _cleaned), end_of(text, most + _MARGIN, _cleaned)
        return _beginning_and_end(head, tail, most, left_out=len(text) - most)
    text = _cleaned(text)
    return text if len(text) <= most else _beginning_and_end(text, text, most, left_out=len(text) - most)


def safe_line(text: str, most: int) -> str:
    """The text in one line, cut at its end."""
    return cut(" ".join(start_of(text, most + _MARGIN, _cleaned).split()), most)


def cut(text: str, most: int) -> str:
    """The text, with an ellipsis where it is too long."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def safe_document(value: Any) -> Any:
    """A JSON document of which every text may be shown, and that every reader of JSON can read."""
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
    """The text with `@channel` and its like broken: what an error says must not wake everybody."""
    return _EVERYBODY.sub("@\u200b", text)


def _cleaned(text: str) -> str:
    # Masked last: an escape in the middle of a secret's name would hide it.
    text = _LINE_ENDS.sub("\n", without_controls(text)).replace("\t", " ")
    text = _HALVES.sub("\ufffd", _UNPRINTABLE.sub("", text))
    lines = "\n".join(line.rstrip() for line in mask(text).split("\n"))
    return _BLANK_LINES.sub("\n\n", lines).strip()


def _beginning_and_end(head: str, tail: str, most: int, *, left_out: int) -> str:
    mark = f"\n… {left_out:,} characters left out …\n"
    room = max(0, most - len(mark))
    end = room // 3
    return head[: room - end].rstrip() + mark + (tail[len(tail) - end :].lstrip() if end else "")


# ── values ────────────────────────────────────────────────────────────────────────────────────────────────────────────


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
