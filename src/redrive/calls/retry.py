"""`@redrive.retry`: the one-liner, a retry policy without the rest of a service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from redrive.calls.function import endpoint_of
from redrive.calls.service import Service
from redrive.classify.classifier import Classifier
from redrive.policy.retry import Retry, RetryOptions

P = ParamSpec("P")
R = TypeVar("R")


@overload
def retry(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def retry(
    *, classifier: Classifier | None = None, **options: Unpack[RetryOptions]
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def retry(
    function: Callable[..., Any] | None = None,
    /,
    *,
    classifier: Classifier | None = None,
    **options: Unpack[RetryOptions],
) -> Callable[..., Any]:
    """Repeat a function where its error can heal; the options are those of `Retry`.

    Each decorated function is a service of its own, without breaker or budget: use a `Service` where several
    functions call the same system.
    """
    if function is not None and (not callable(function) or isinstance(function, type)):
        raise TypeError(
            f"@redrive.retry takes keyword options only, not {function!r}; write @redrive.retry(attempts=3), and name "
            'your own errors with classifier=Classifier().rule(YourError, kind="transient")'
        )
    policy = Retry(**options)

    def decorate(wrapped: Callable[P, R]) -> Callable[P, R]:
        service = Service(endpoint_of(wrapped), retry=policy, breaker=None, budget=None, classifier=classifier)
        return service(wrapped)

    return decorate if function is None else decorate(function)
