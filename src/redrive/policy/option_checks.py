"""Range checks for options: a policy with a value out of range fails where it is made, with one sentence."""

from __future__ import annotations

import math
import sys
import warnings

from redrive.errors import PolicyWarning


def seconds(option: str, value: float, *, above: float | None = None, least: float | None = None) -> float:
    """Return `value` as a finite number of seconds, `above` a bound or of at `least` one.

    Raises:
        ValueError: the value is out of range.
    """
    bound = f"above {above:g}" if above is not None else f"of {least or 0:g} or more"
    if not finite(value) or (value <= above if above is not None else value < (least or 0)):
        raise ValueError(f"{option} must be a finite number of seconds {bound}, not {shown(value)}")
    return float(value)


def finite(value: object) -> bool:
    """Return whether `value` is a number that a float can hold."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # the int is larger than any float
        return False


def shown(value: object) -> str:
    """Return the value as a message quotes it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def count(option: str, value: int, *, least: int) -> int:
    """Return `value` as a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{option} must be a whole number of {least} or more, not {value!r}")
    return value


def share(option: str, value: float, *, zero: bool) -> float:
    """Return `value` as a number from 0 to 1; 0 itself only where `zero`."""
    if not finite(value) or not (0 <= value <= 1 if zero else 0 < value <= 1):
        raise ValueError(f"{option} must be a number {'from' if zero else 'above'} 0 up to 1, not {shown(value)}")
    return float(value)


def warn(text: str) -> None:
    """Warn of a policy that will hurt, at the line of the user's code that made it."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("redrive."):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, PolicyWarning, stacklevel=level)
