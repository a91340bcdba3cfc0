"""redrive: the failure-handling runtime for Python data pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Bound at once: a later import of the subpackage of the same name would otherwise take the function's place.
from redrive.classify import classify

if TYPE_CHECKING:
    from redrive import rows
    from redrive.calls.service import Service, retry
    from redrive.classify.classifier import Classifier
    from redrive.dlq.replay.schedule import Schedule
    from redrive.errors import (
        CircuitOpen,
        Discard,
        FlowError,
        FlowStopped,
        GateAborted,
        LetterError,
        Permanent,
        PipelineError,
        PolicyWarning,
        QuotaExhausted,
        RateLimited,
        RedriveError,
        Reject,
        ReplayStopped,
        RetriesExhausted,
        RunStopped,
        Skip,
        SourceError,
        StoreError,
        TaskTimeout,
        Transient,
    )
    from redrive.events.bus import on_event
    from redrive.model.calls import Kind, Verdict
    from redrive.model.letters import Letter, NewLetter
    from redrive.model.runs import Report
    from redrive.model.tasks import Branch, FlowReport
    from redrive.policy.breaker import Breaker
    from redrive.policy.keys import KeyPool, Token
    from redrive.policy.retry import Retry, RetryBudget, Timeout
    from redrive.rows.gate import Gate
    from redrive.rows.pipeline import Pipeline
    from redrive.store.store import Store, connect
    from redrive.tasks.flow import Flow
    from redrive.tasks.killable.call import run_with_timeout

__version__ = "0.1.0"

__all__ = [
    "Branch",
    "Breaker",
    "CircuitOpen",
    "Classifier",
    "Discard",
    "Flow",
    "FlowError",
    "FlowReport",
    "FlowStopped",
    "Gate",
    "GateAborted",
    "KeyPool",
    "Kind",
    "Letter",
    "LetterError",
    "NewLetter",
    "Permanent",
    "Pipeline",
    "PipelineError",
    "PolicyWarning",
    "QuotaExhausted",
    "RateLimited",
    "RedriveError",
    "Reject",
    "ReplayStopped",
    "Report",
    "RetriesExhausted",
    "Retry",
    "RetryBudget",
    "RunStopped",
    "Schedule",
    "Service",
    "Skip",
    "SourceError",
    "Store",
    "StoreError",
    "TaskTimeout",
    "Timeout",
    "Token",
    "Transient",
    "Verdict",
    "classify",
    "connect",
    "on_event",
    "retry",
    "rows",
    "run_with_timeout",
]

_HOMES = {
    "Branch": "model.tasks",
    "Breaker": "policy.breaker",
    "Classifier": "classify.classifier",
    "Flow": "tasks.flow",
    "FlowReport": "model.tasks",
    "Gate": "rows.gate",
    "KeyPool": "policy.keys",
    "Kind": "model.calls",
    "Letter": "model.letters",
    "NewLetter": "model.letters",
    "Pipeline": "rows.pipeline",
    "Report": "model.runs",
    "Retry": "policy.retry",
    "RetryBudget": "policy.retry",
    "Schedule": "dlq.replay.schedule",
    "Service": "calls.service",
    "Store": "store.store",
    "Timeout": "policy.retry",
    "Token": "policy.keys",
    "Verdict": "model.calls",
    "connect": "store.store",
    "on_event": "events.bus",
    "retry": "calls.service",
    "run_with_timeout": "tasks.killable.call",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: `import redrive` alone costs next to nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'redrive' has no attribute {name!r}")
    from importlib import import_module

    if name == "rows":
        return import_module("redrive.rows")
    value = getattr(import_module(f"redrive.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
