"""Range checks for options: a nonsense policy is refused where it is made, in one sentence."""

from __future__ import annotations

import math
import sys
import warnings

from redrive.errors import PolicyWarning


def seconds(option: str, value: float, *, above: float | None = None, least: float | None = None) -> float:
    """A finite number of seconds, `above` a bound or at `least` one."""
    bound = f"above {above:g}" if above is not None else f"of {least or 0:g} or more"
    if not finite(value) or (value <= above if above is not None else value < (least or 0)):
        raise ValueError(f"{option} must be a finite number of seconds {bound}, not {shown(value)}")
    return float(value)


def finite(value: object) -> bool:
    """Whether it is a number that a float can hold."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an int beyond every float
        return False


def shown(value: object) -> str:
    """The value as it stands in a sentence."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def count(option: str, value: int, *, least: int) -> int:
    """A whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{option} must be a whole number of {least} or more, not {value!r}")
    return value


def share(option: str, value: float, *, zero: bool) -> float:
    """A number from 0 to 1, zero itself only where it means something."""
    if not finite(value) or not (0 <= value <= 1 if zero else 0 < value <= 1):
        raise ValueError(f"{option} must be a number {'from' if zero else 'above'} 0 up to 1, not {shown(value)}")
    return float(value)


def warn(text: str) -> None:
    """Warn of a policy that will hurt, at the line of the user's that made it."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("redrive."):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, PolicyWarning, stacklevel=level)
