"""Formats of values in output: ages, counts, durations, trends, colours, and texts that are safe for a terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import IO, Any

from redrive.model.calls import format_duration

_BARS = "▂▃▄▅▆▇█"
# Control characters, and those that change the direction of text: a vendor's data must not control the terminal.
_UNPRINTABLE = re.compile("[\0-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# The same in JSON, where the other controls are escaped already and line ends are its own.
_UNPRINTABLE_IN_JSON = re.compile("[\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def ago(moment: datetime | None) -> str:
    """Return the age of a time: `5 min ago`; for a time in the future, `in 5 min`."""
    if moment is None:
        return ""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    if -10 < seconds < 10:
        return "just now"
    return f"{format_duration(seconds)} ago" if seconds > 0 else f"in {format_duration(-seconds)}"


def due(moment: datetime | None) -> str:
    """Return the time until a due date: `in 5 min`; `due now` if it has passed."""
    text = ago(moment)
    return text if text.startswith("in ") else "due now"


def at(moment: datetime | None) -> str:
    """Return a time in UTC, and its age."""
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC, {ago(moment)}"


def bars(counts: Sequence[int]) -> str:
    """Return a sparkline; zero is drawn as the lowest bar."""
    top = max(counts, default=0)
    return "".join(_BARS[(len(_BARS) - 1) * count // top] if count else "▁" for count in counts)


def counted(number: int, noun: str = "letter", plural: str | None = None) -> str:
    """Return a count with its noun: `1 letter`, `5,400 letters`, `2 retries`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def percent(share: float) -> str:
    """Return a share as `3.0 %`; a share that is neither 0 nor 1 is never rounded to one of them."""
    if 0 < share < 0.001:
        return "<0.1 %"
    return ">99.9 %" if 0.999 < share < 1 else f"{share * 100:.1f} %"


def latency(seconds: float) -> str:
    """Return the duration of a call: `147 ms`, `2.4 s`."""
    return f"{seconds * 1_000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def megabytes(size: int) -> str:
    """Return a size in megabytes."""
    return f"{size / 1_000_000:,.1f} MB"


def short_path(path: str) -> str:
    """Return a path relative to the working directory, where it is inside it."""
    inside = os.path.relpath(path) if os.path.isabs(path) else path
    return path if inside.startswith(os.pardir) else inside


def in_a_line(text: str | None) -> str:
    """Return a message of several lines as one line, for a table."""
    return " ".join((text or "").split())


def one_line(text: str) -> str:
    """Return a text as one printable line; control characters are shown as escapes."""
    return _UNPRINTABLE.sub(_escaped, text)


def lines(text: str) -> str:
    """Return a text with its line breaks; other control characters are shown as escapes."""
    return "\n".join(one_line(line) for line in text.replace("\r\n", "\n").split("\n"))


def in_json(text: str) -> str:
    """Return a JSON text of the same value, in which characters that could control the terminal are escaped."""
    return _UNPRINTABLE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def hexdump(data: bytes) -> str:
    """Return bytes as `hexdump -C` prints them."""
    rows = []
    for start in range(0, len(data), 16):
        part = data[start : start + 16]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        rows.append(f"{start:08x}  {part[:8].hex(' '):<23}  {part[8:].hex(' '):<23}  {shown}")
    return "\n".join(rows)


def _escaped(match: re.Match[str]) -> str:
    found = match[0]
    code = ord(found)
    return _SHORT.get(found) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


FAILURE = "red"
WARNING = "yellow"
SUCCESS = "green"
HINT = "dim"
COMMAND = "cyan"

_CODES = {FAILURE: "31", WARNING: "33", SUCCESS: "32", HINT: "2", COMMAND: "36", "bold": "1"}
_MEANINGS = {
    **dict.fromkeys(("p1", "failed", "aborted", "dead_letter", "upstream_failed", "problem"), FAILURE),
    **dict.fromkeys(("p2", "pending", "retrying", "held", "stopped", "escalated", "open", "waiting"), WARNING),
    **dict.fromkeys(("success", "complete", "resolved", "reprocessed", "sent", "closed", "ok"), SUCCESS),
    **dict.fromkeys(("skipped", "discarded", "abandoned", "ended"), HINT),
    "running": COMMAND,
}


def style_of(value: Any) -> str:
    """Return the style of a status, a state or a severity; none where it has no meaning of its own."""
    return _MEANINGS.get(str(value).lower(), "")


def style_of_circuit(state: Any) -> str:
    """Return the style of a circuit: an open one is a failure, not something that waits."""
    return {"open": FAILURE, "half_open": WARNING, "closed": SUCCESS}.get(str(state), "")


def paint(text: str, style: str, stream: IO[str]) -> str:
    """Return the text in a style, where the stream is a terminal that shows colours."""
    code = _CODES.get(style)
    if code is None or not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{code}m{text}\x1b[0m"
