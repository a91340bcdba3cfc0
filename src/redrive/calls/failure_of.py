"""Whose failure an error tells of."""

from __future__ import annotations

from typing import Any

from redrive.classify.responses import attribute
from redrive.model.calls import Failure

_DEEPEST = 5


def story_of(failure: Any) -> Failure | None:
    """What a service has said of this error or response, or of what caused it."""
    depth = 0
    while failure is not None and depth < _DEEPEST:
        for holder in (failure, attribute(failure, "response")):
            story = attribute(holder, "redrive")
            if isinstance(story, Failure):
                return story
        failure, depth = attribute(failure, "__cause__"), depth + 1
    return None
