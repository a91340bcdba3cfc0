"""Whose failure an error tells of."""

from __future__ import annotations

from typing import Any

from redrive.model import Failure

_DEEPEST = 5


def story_of(failure: Any) -> Failure | None:
    """What a service has said of this error or response, or of what caused it."""
    depth = 0
    while failure is not None and depth < _DEEPEST:
        for holder in (failure, getattr(failure, "response", None)):
            story = getattr(holder, "redrive", None)
            if isinstance(story, Failure):
                return story
        failure, depth = getattr(failure, "__cause__", None), depth + 1
    return None
