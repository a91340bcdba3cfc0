"""The active trace, which runs, letters and alerts keep the id of; known while OpenTelemetry is instrumented.

Nothing here imports OpenTelemetry: `redrive.observe.otel.instrument` registers how the trace is found.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

Finder = Callable[[UUID | str | None], str | None]
"""Returns the id of the trace of a run, or of the current span where the run has none; None where there is no span."""

_finders: list[Finder] = []


def register(finder: Finder) -> Callable[[], None]:
    """Ask this function for traces from now on; returns the function that ends it."""
    _finders.append(finder)
    return lambda: _finders.remove(finder) if finder in _finders else None


def trace_id(run_id: UUID | str | None = None) -> str | None:
    """Return the id of the active trace, 32 hexadecimal digits; None where there is none."""
    for finder in _finders:
        try:
            found = finder(run_id)
        except Exception:  # a broken provider harms no letter
            continue
        if found is not None:
            return found
    return None
