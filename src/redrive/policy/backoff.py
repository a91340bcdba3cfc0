"""Backoff: how long to wait before the n-th retry. Used by `Retry` and by the explain tools."""

from __future__ import annotations

from typing import Literal, get_args

from redrive.clock import Random

NamedJitter = Literal["none", "equal", "full", "decorrelated", "fixed"]
JITTERS: tuple[str, ...] = get_args(NamedJitter)
Jitter = NamedJitter | float
"""By name, or the share by which a wait may vary in either direction: 0.25 is ± 25 %."""


def ceiling(retry: int, *, base: float, multiplier: float, cap: float) -> float:
    """Return the exponential backoff before jitter: base, base·multiplier, … up to cap."""
    if base == 0:
        return 0.0
    try:
        return min(cap, base * multiplier ** (retry - 1))
    except OverflowError:
        return cap


def wait(
    retry: int, *, base: float, multiplier: float, cap: float, jitter: Jitter, previous: float | None, random: Random
) -> float:
    """Return the seconds to wait before the `repeat`-th retry (from 1).

    The backoff is capped before jitter is added, so that waits at the cap still differ between clients.

    Args:
        previous: the previous wait of this call; None before the first retry.
    """
    if jitter == "decorrelated":
        last = base if previous is None else max(base, previous)
        return min(cap, random.uniform(base, 3 * last))
    low, high = span(retry, base=base, multiplier=multiplier, cap=cap, jitter=jitter, previous=previous)
    return low if low == high else random.uniform(low, high)


def span(
    retry: int, *, base: float, multiplier: float, cap: float, jitter: Jitter, previous: float | None
) -> tuple[float, float]:
    """Return the shortest and the longest wait that `wait` can return, given the previous wait of the call."""
    if jitter == "fixed":
        return base, base
    if jitter == "decorrelated":
        return min(cap, base), min(cap, 3 * (base if previous is None else max(base, previous)))
    top = ceiling(retry, base=base, multiplier=multiplier, cap=cap)
    if isinstance(jitter, int | float):
        return top * (1 - jitter), top * (1 + jitter)
    return {"none": top, "equal": top / 2, "full": 0.0}[jitter], top


def longest(retry: int, *, base: float, multiplier: float, cap: float, jitter: Jitter) -> float:
    """Return the longest wait that `wait` can return for this retry."""
    if jitter == "fixed":
        return base
    # Decorrelated jitter draws up to three times the previous wait: at most 3·base, 9·base, …
    ramp = (base * 3, 3.0) if jitter == "decorrelated" else (base, multiplier)
    top = ceiling(retry, base=ramp[0], multiplier=ramp[1], cap=cap)
    return top * (1 + jitter) if isinstance(jitter, int | float) else top
