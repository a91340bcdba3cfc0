"""The policies of a service, as they were given to it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from redrive.calls.core import Idempotent
from redrive.calls.service import Service
from redrive.classify.classifier import Classifier
from redrive.policy.breaker import Breaker
from redrive.policy.keys import KeyPool, Token
from redrive.policy.retry import Retry, RetryBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What stands between a program and one system it calls."""

    name: str
    retry: Retry
    breaker: Breaker | None = None
    budget: RetryBudget | None = None
    keys: KeyPool | None = None
    classifier: Classifier = field(default_factory=Classifier)
    timeout: float | None = None
    idempotent: Idempotent = False
    is_part: bool = False
    """Whether only the part that gave it its name was asked about; the rest is the default, or nothing."""

    @classmethod
    def of(cls, found: Any) -> Policy | None:
        """The policy that an object is, or is made of; None for anything else."""
        if isinstance(found, Service):
            return cls._of_service(found)
        if isinstance(found, Retry):
            return cls(name="Retry", retry=found, is_part=True)
        part = replace(DEFAULT, name=type(found).__name__, is_part=True)
        if isinstance(found, Classifier):
            return replace(part, classifier=found)
        if isinstance(found, Breaker):
            return replace(part, breaker=found)
        if isinstance(found, RetryBudget):
            return replace(part, budget=found)
        if isinstance(found, KeyPool | Token):
            return replace(part, keys=KeyPool([found]) if isinstance(found, Token) else found)
        return None

    @classmethod
    def _of_service(cls, service: Service) -> Policy:
        core = service._core
        return cls(
            name=service.name,
            retry=service.retry,
            breaker=service.breaker,
            budget=service.budget,
            keys=None if core.credentials is None else core.credentials._options,
            classifier=core.classifier,
            timeout=service._options.timeout,
            idempotent=core.idempotent,
        )


DEFAULT = Policy._of_service(Service("a service"))
"""What a service has where nothing else is said."""
