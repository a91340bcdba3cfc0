"""How long to wait before the n-th repeat."""

from __future__ import annotations

from typing import Literal, get_args

from redrive.clock import Random

NamedJitter = Literal["none", "equal", "full", "decorrelated", "fixed"]
JITTERS: tuple[str, ...] = get_args(NamedJitter)
Jitter = NamedJitter | float
"""By name, or the share by which a wait may be shorter or longer: 0.25 is ± 25 %."""


def ceiling(repeat: int, *, base: float, multiplier: float, cap: float) -> float:
    """The exponential ramp before jitter: base, base·multiplier, … and never more than cap."""
    if base == 0:
        return 0.0
    try:
        return min(cap, base * multiplier ** (repeat - 1))
    except OverflowError:
        return cap


def wait(
    repeat: int, *, base: float, multiplier: float, cap: float, jitter: Jitter, previous: float | None, random: Random
) -> float:
    """Seconds before the `repeat`-th repeat (from 1); `previous` is this call's own last wait.

    The ramp is capped before it is jittered, so that waits at the cap still differ between clients.
    """
    if jitter == "decorrelated":
        last = base if previous is None else max(base, previous)
        return min(cap, random.uniform(base, 3 * last))
    low, high = span(repeat, base=base, multiplier=multiplier, cap=cap, jitter=jitter, previous=previous)
    return low if low == high else random.uniform(low, high)


def span(
    repeat: int, *, base: float, multiplier: float, cap: float, jitter: Jitter, previous: float | None
) -> tuple[float, float]:
    """The least and the most that `wait` can answer, given the call's own last wait."""
    if jitter == "fixed":
        return base, base
    if jitter == "decorrelated":
        return min(cap, base), min(cap, 3 * (base if previous is None else max(base, previous)))
    top = ceiling(repeat, base=base, multiplier=multiplier, cap=cap)
    if isinstance(jitter, int | float):
        return top * (1 - jitter), top * (1 + jitter)
    return {"none": top, "equal": top / 2, "full": 0.0}[jitter], top


def longest(repeat: int, *, base: float, multiplier: float, cap: float, jitter: Jitter) -> float:
    """The most that `wait` can answer for this repeat."""
    if jitter == "fixed":
        return base
    # Three times the last wait, each at its longest: 3·base, 9·base, …
    ramp = (base * 3, 3.0) if jitter == "decorrelated" else (base, multiplier)
    top = ceiling(repeat, base=ramp[0], multiplier=ramp[1], cap=cap)
    return top * (1 + jitter) if isinstance(jitter, int | float) else top
