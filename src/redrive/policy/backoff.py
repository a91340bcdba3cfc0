"""How long to wait before the n-th repeat."""

from __future__ import annotations

from typing import Literal, get_args

from redrive.clock import Random

Jitter = Literal["none", "equal", "full", "decorrelated", "fixed"]
JITTERS: tuple[str, ...] = get_args(Jitter)


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
    if jitter == "fixed":
        return base
    if jitter == "decorrelated":
        last = base if previous is None else max(base, previous)
        return min(cap, random.uniform(base, 3 * last))
    top = ceiling(repeat, base=base, multiplier=multiplier, cap=cap)
    if jitter == "none":
        return top
    return random.uniform(top / 2 if jitter == "equal" else 0.0, top)


def longest(repeat: int, *, base: float, multiplier: float, cap: float, jitter: Jitter) -> float:
    """The most that `wait` can answer for this repeat."""
    if jitter == "fixed":
        return base
    # Three times the last wait, each at its longest: 3·base, 9·base, …
    ramp = (base * 3, 3.0) if jitter == "decorrelated" else (base, multiplier)
    return ceiling(repeat, base=ramp[0], multiplier=ramp[1], cap=cap)
