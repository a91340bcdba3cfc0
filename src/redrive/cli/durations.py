"""Spans of time as people type them: 90, 30s, 5min, 1h30min."""

from __future__ import annotations

from redrive.config.located import Located
from redrive.config.value_kinds import YEAR, duration


def seconds(option: str, said: str, *, most: float = YEAR) -> float:
    """The length of a span, read as `redrive.toml` reads it; a bare number is one of seconds."""
    try:
        value: str | float = float(said)
    except ValueError:
        value = said
    return duration(Located(value, (option,)), most=most)
