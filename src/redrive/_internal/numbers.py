"""Numbers that are written as text, without changing them."""

from __future__ import annotations

import math
import re
from decimal import Decimal


def exact(text: str) -> float | Decimal:
    """Return the value of a JSON number with a fraction or an exponent; ValueError where it is out of range.

    Out of range is what is beyond a float: a Decimal such as 1e999999999 has no place in any database, and could fill
    the memory of whoever writes out its digits.
    """
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is beyond what a float can hold")
    if not number and re.search("[1-9]", re.split("[eE]", text)[0]):
        raise ValueError(f"{text} is smaller than what a float can hold")
    if repr(number) == text or not number:
        return number
    value = Decimal(text)
    return number if Decimal(repr(number)) == value else value
