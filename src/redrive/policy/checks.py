"""Range checks for options: a nonsense policy is refused where it is made, in one sentence."""

from __future__ import annotations

import math


def seconds(option: str, value: float, *, above: float | None = None, least: float | None = None) -> float:
    """A finite number of seconds, `above` a bound or at `least` one."""
    bound = f"above {above:g}" if above is not None else f"of {least or 0:g} or more"
    numeric = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not numeric or (value <= above if above is not None else value < (least or 0)):
        raise ValueError(f"{option} must be a finite number of seconds {bound}, not {value!r}")
    return float(value)


def count(option: str, value: int, *, least: int) -> int:
    """A whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{option} must be a whole number of {least} or more, not {value!r}")
    return value


def share(option: str, value: float, *, zero: bool) -> float:
    """A number from 0 to 1, zero itself only where it means something."""
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not (0 <= value <= 1 if zero else 0 < value <= 1)
    ):
        raise ValueError(f"{option} must be a number {'from' if zero else 'above'} 0 up to 1, not {value!r}")
    return float(value)
