"""redrive: the failure-handling runtime for Python data pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Bound at once: a later import of the subpackage of the same name would otherwise take the function's place.
from redrive.classify import classify

if TYPE_CHECKING:
    from redrive.calls.announce import on_event
    from redrive.calls.retry import retry
    from redrive.calls.service import Service
    from redrive.classify.classifier import Classifier
    from redrive.errors import (
        CircuitOpen,
        Discard,
        Permanent,
        PolicyWarning,
        QuotaExhausted,
        RateLimited,
        RedriveError,
        Reject,
        RetriesExhausted,
        Transient,
    )
    from redrive.model import Kind, Verdict
    from redrive.policy.breaker import Breaker
    from redrive.policy.budget import RetryBudget
    from redrive.policy.keys import KeyPool
    from redrive.policy.retry import Retry
    from redrive.policy.token import Token

__version__ = "0.1.0"

__all__ = [
    "Breaker",
    "CircuitOpen",
    "Classifier",
    "Discard",
    "KeyPool",
    "Kind",
    "Permanent",
    "PolicyWarning",
    "QuotaExhausted",
    "RateLimited",
    "RedriveError",
    "Reject",
    "RetriesExhausted",
    "Retry",
    "RetryBudget",
    "Service",
    "Token",
    "Transient",
    "Verdict",
    "classify",
    "on_event",
    "retry",
]

_HOMES = {
    "Breaker": "policy.breaker",
    "Classifier": "classify.classifier",
    "KeyPool": "policy.keys",
    "Kind": "model",
    "Retry": "policy.retry",
    "RetryBudget": "policy.budget",
    "Service": "calls.service",
    "Token": "policy.token",
    "Verdict": "model",
    "on_event": "calls.announce",
    "retry": "calls.retry",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: `import redrive` alone costs next to nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'redrive' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"redrive.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
