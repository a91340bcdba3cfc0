"""Foreign text as it may be shown anywhere: no secrets, nothing that steers a terminal, and not too long."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from redrive._internal.masking import mask
from redrive._internal.masking.controls import without_controls
from redrive._internal.masking.excerpts import end_of, start_of

LONGEST = 4_000
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
