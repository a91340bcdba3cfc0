"""The switch behind `redrive.testing.set_testing`: how long waits may be and how many attempts are made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TestMode:
    """`longest_wait` caps every wait, `attempts` every policy's number; None leaves them alone."""

    __test__ = False  # pytest collects classes by this prefix

    longest_wait: float | None = None
    attempts: int | None = None


_active = TestMode()


def active() -> TestMode:
    """Return the effective settings."""
    return _active


def capped(seconds: float) -> float:
    """The wait as the mode in force allows it."""
    longest = _active.longest_wait
    return seconds if longest is None else min(seconds, longest)


def activate(mode: TestMode) -> TestMode:
    """Put a mode in force for the whole program; returns the one before."""
    global _active  # the one switch of the program, on purpose
    before, _active = _active, mode
    return before
