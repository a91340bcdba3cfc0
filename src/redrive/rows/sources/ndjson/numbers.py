"""JSON numbers, exactly as they were written.

A float stands for a number only where it writes as the same number: `0.1` and `0.30000000000000004` are floats,
`12345678901234567.89` is a Decimal. Integers are ints of any size.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from redrive._internal.numbers import exact

# A float holds every number of 15 digits, and orjson every integer of 64 bits. So only a number of 16 digits or more
# can be changed, or one whose exponent has three. Most texts have none, which a search for two
# bytestrings finds fast, in the text with every digit as 0, without points, signs and spaces.
_AS_ZEROS = bytes.maketrans(b"123456789E", b"000000000e")
_SPACES = b" \t\r\n"
_LEFT_OUT = b".+-" + _SPACES
_MARKS = (b"0" * 16, b"0e000")
_LONG = re.compile(rb"[\[:,\s](-?(?:[0-9.]{16}|[0-9][0-9.]*[eE][+-]?[0-9]{3})[0-9.eE+-]*)")


def loads(text: str | bytes | bytearray) -> Any:
    """Decode JSON as Python's json does, numbers exactly."""
    return json.loads(text, parse_float=exact)


def has_long_number(data: bytes) -> bool:
    """Return whether JSON may have a number that orjson does not decode exactly; fast, and never wrongly False."""
    digits = data.translate(_AS_ZEROS, _LEFT_OUT)
    return any(_has_number(digits, mark) for mark in _MARKS)


def is_exact(line: bytes, decoded: Any) -> bool:
    """Return whether orjson has decoded every number of a JSON object exactly; False also where that is not sure."""
    # Most programs write a float by its shortest digits, as orjson does.
    if orjson.dumps(decoded).translate(None, _SPACES) == line.translate(None, _SPACES):
        return True
    return not has_long_number(line) or all(_is_exact(number.decode()) for number in _LONG.findall(line))


def _is_exact(number: str) -> bool:
    try:
        if number.removeprefix("-").isdigit():
            return -(2**63) <= int(number) < 2**64
        return type(exact(number)) is float
    except ValueError:
        return False


def _has_number(digits: bytes, mark: bytes) -> bool:
    """Return whether a mark stands in a number; digits in a string have a quote or a letter before them."""
    place = digits.find(mark)
    while place >= 0:
        start = place
        while start and digits[start - 1] == 0x30:
            start -= 1
        if digits[start - 1 : start] in (b":", b",", b"["):
            return True
        place = digits.find(mark, place + len(mark))
    return False
