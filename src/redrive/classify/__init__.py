"""Failure → verdict: a kind, a reason a person can read, the rule that matched, how long to wait. Pure.

What is loaded here is next to nothing; the tables come with the first failure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

    from redrive.classify.classifier import Classifier
    from redrive.classify.responses import is_response_type, response_status
    from redrive.classify.signals import is_stop_signal
    from redrive.model import Scope, Verdict

__all__ = ["Classifier", "classify", "is_response_type", "is_stop_signal", "response_status"]

_HOMES = {
    "Classifier": "classifier",
    "is_response_type": "responses",
    "is_stop_signal": "signals",
    "response_status": "responses",
}


def classify(failure: object, scope: Scope = "call", *, now: datetime | None = None) -> Verdict:
    """The verdict on an exception or a response, by what redrive knows without rules of the user's.

    `scope` says what was being done: one "call", one "row", one "task". `now` is what an HTTP date is compared with
    where the response has no Date of its own.
    """
    from redrive.classify.classifier import Classifier

    return Classifier().classify(failure, scope, now=now)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
