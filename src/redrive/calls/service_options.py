"""The options of a service: what they must be, and warnings of those that do not fit each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from redrive.classify.classifier import Classifier
from redrive.policy import option_checks
from redrive.policy.breaker import Breaker
from redrive.policy.keys import KeyPool, Token
from redrive.policy.retry import Retry, RetryBudget, Timeout

Idempotent = bool | Literal["key"]


class _NoFallback:
    """Distinguishes "no fallback" from "fall back to None"."""

    def __reduce__(self) -> str:
        return "MISSING"


MISSING: Final = _NoFallback()


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """The options that may differ between the views of one service."""

    timeout: float | None = None
    """Seconds of one whole attempt."""
    limits: Timeout | None = None
    """The same with the limits of its phases."""
    endpoint: str | None = None
    idempotency_key: str | None = None
    fallback: Any = MISSING
    keeps_letters: bool = True
    """Whether calls that fail become dead letters, where the service has a store for them."""


_LONGEST_NAME = 200

_TYPES: dict[str, tuple[type, ...]] = {
    "retry": (Retry,),
    "breaker": (Breaker,),
    "budget": (RetryBudget,),
    "credentials": (KeyPool, Token),
    "classifier": (Classifier,),
}

_SPELLED = {
    "retries": "retry=redrive.Retry(attempts=…), which counts the first attempt, too",
    "max_retries": "retry=redrive.Retry(attempts=…), which counts the first attempt, too",
    **{option: f"retry=redrive.Retry({option}=…)" for option in ("attempts", "base", "cap", "jitter", "within")},
    "max_attempts": "retry=redrive.Retry(attempts=…)",
    "backoff": "retry=redrive.Retry(base=…), in seconds",
    "retry_delay": "retry=redrive.Retry(base=…), in seconds",
    "circuit_breaker": "breaker=redrive.Breaker(…)",
    "failures": "breaker=redrive.Breaker(failures=…)",
    "cooldown": "breaker=redrive.Breaker(cooldown=…)",
    "retry_budget": "budget=redrive.RetryBudget(…)",
    "keys": "credentials=redrive.KeyPool([…])",
    "key_pool": "credentials=redrive.KeyPool([…])",
    "api_key": "credentials=redrive.KeyPool([…])",
    "token": "credentials=redrive.Token(…)",
    "rules": "classifier=redrive.Classifier().rule(…)",
    "timeout_seconds": "timeout=…, in seconds",
    "dlq": "dead_letters=redrive.connect(…)",
    "endpoint": "service.with_options(endpoint=…)",
    "idempotency_key": "service.with_options(idempotency_key=…)",
}
"""What other libraries call an option of a service, and its name here."""


def reject_mistaken(options: Mapping[str, object]) -> None:
    """Raise TypeError for options that a service does not have, with those that may be meant."""
    for name in options:
        meant = f": write {_SPELLED[name]}" if name in _SPELLED else ""
        raise TypeError(f"a Service has no option {name}={meant}")


def warn_of_early_circuit(service: str, retry: Retry, breaker: Breaker) -> None:
    """Warn where the failures of a single call open the circuit, so that it ends before its attempts are used."""
    opens_at = max(breaker.failures, breaker.minimum)
    if opens_at < retry.attempts:
        option_checks.warn(
            f"service {service!r}: a single call that fails {opens_at} times opens the circuit, and the rest of its "
            f"{retry.attempts} attempts are not made: pass Breaker(failures={retry.attempts}) or more"
        )


def check_types(
    name: object, idempotent: object, clock: object, random: object, store: object, **given: object
) -> None:
    """Raise where an option is not of the type it must be."""
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"a Service needs a name, a non-empty string, not {name!r}")
    if not name.isprintable() or len(name) > _LONGEST_NAME:
        raise ValueError(
            f"a Service needs a name of at most {_LONGEST_NAME} characters that can be shown: {name[:50]!r}"
        )
    if idempotent not in (True, False, "key"):
        raise ValueError(f'idempotent must be True, False or "key", not {idempotent!r}')
    for option, value, method in (("clock", clock, "monotonic"), ("random", random, "uniform")):
        if value is not None and not hasattr(value, method):
            raise TypeError(f"{option} must have the methods of redrive.clock.{option.title()}, not be {value!r}")
    if store is not None and not hasattr(store, "shared"):
        raise TypeError(f"store must be what redrive.connect() returns, not {type(store).__name__}")
    for option, value in given.items():
        if value is not None and not isinstance(value, _TYPES[option]):
            names = " or ".join(cls.__name__ for cls in _TYPES[option])
            meant = f": write redrive.Retry(attempts={value + 1})" if option == "retry" and type(value) is int else ""
            raise TypeError(f"{option} must be a {names} or None, not {type(value).__name__}{meant}")


def check_letters(dead_letters: object, pipeline: object, on_discard: object) -> None:
    """Raise where the options of dead letters do not fit."""
    if dead_letters is not None and not hasattr(dead_letters, "dlq"):
        raise TypeError(f"dead_letters must be what redrive.connect() returns, not {type(dead_letters).__name__}")
    if pipeline is not None and (dead_letters is None or not isinstance(pipeline, str) or not pipeline.strip()):
        raise ValueError(f"pipeline names the letters of dead_letters=, as a non-empty string, not {pipeline!r}")
    if on_discard not in ("raise", "none"):
        raise ValueError(f'on_discard must be "raise" or "none", not {on_discard!r}')
