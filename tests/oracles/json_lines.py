"""The records of an NDJSON file as Python's json reads them, numbers as Decimals; no code is shared with redrive."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any

Lines = dict[int, Any]


def read_lines(data: bytes) -> tuple[Lines, dict[int, bytes]]:
    """Return, by the number of their line, the records as `comparable` makes them, and the lines that hold none."""
    records: Lines = {}
    bad: dict[int, bytes] = {}
    for number, line in enumerate(re.split(rb"\r\n?|\n", data.removeprefix(b"\xef\xbb\xbf")), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line.decode(), parse_float=_number)
            if not isinstance(found, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError):
            bad[number] = line
        else:
            records[number] = comparable(found)
    return records, bad


def comparable(value: Any) -> Any:
    """Return a value in which equal means the same number, and an integer is not a float."""
    if isinstance(value, dict):
        return {name: comparable(one) for name, one in value.items()}
    if isinstance(value, list):
        return [comparable(one) for one in value]
    if isinstance(value, float):
        return ("number", repr(value)) if not math.isfinite(value) else ("number", Decimal(repr(value)))
    if isinstance(value, Decimal):
        return ("number", value)
    return (type(value).__name__, value)


def _number(text: str) -> Decimal:
    value = float(text)
    has_digit = re.search(r"[1-9]", text.lower().partition("e")[0]) is not None
    if math.isinf(value) or (not value and has_digit):
        raise ValueError("out of range")
    return Decimal(text) if has_digit else Decimal(0)
