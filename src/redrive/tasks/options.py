"""Options of a flow and its tasks, checked."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from inspect import signature
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

from redrive.errors import FlowError
from redrive.policy import option_checks
from redrive.policy.retry import Retry
from redrive.store.encoding import encode
from redrive.tasks.parameters import KEY, Binding
from redrive.tasks.trigger_rules import RunWhen

P = ParamSpec("P")
R = TypeVar("R")

TIMEOUT = float("1800")
"""The default limit, known by its identity from 30 minutes that the user has set: a task in a thread has none."""

_LONGEST_NAME = 200


def checked_name(name: object) -> str:
    """A flow's name, by which its runs and its letters are known."""
    if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
        raise FlowError(f"a flow needs a name of up to {_LONGEST_NAME} characters, not {option_checks.shown(name)}")
    return name


def checked_params(params: Iterable[str] | Mapping[str, Any]) -> Iterable[str]:
    """The names of a flow's parameters."""
    if isinstance(params, str):
        raise TypeError(f"params takes names, or a mapping of names to defaults: [{params!r}]")
    names = list(params)
    for name in names:
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"a parameter's name must be one that a function can take, not {name!r}")
        if name == KEY:
            raise ValueError(f"a flow cannot have a parameter {KEY!r}: a task that takes one is given its own")
    return names


def checked_values(flow: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a run's parameters."""
    for name, value in values.items():
        lost: list[str] = []
        encode(value, lost=lost)
        if lost:
            raise FlowError(
                f"parameter {name!r} of flow {flow!r} is {lost[0]}, which JSON cannot hold: give plain data"
            )
    return dict(values)


_SPELLED = {
    "retries": "retry=redrive.Retry(attempts=…), which counts the first attempt, too",
    "max_retries": "retry=redrive.Retry(attempts=…), which counts the first attempt, too",
    "attempts": "retry=redrive.Retry(attempts=…)",
    "retry_delay": "retry=redrive.Retry(base=…), in seconds",
    "execution_timeout": "timeout=…, in seconds",
    "timeout_seconds": "timeout=…",
    "depends_on": "after=…",
    "upstream": "after=…",
    "trigger_rule": 'run_when="all_done", "any_failed" or "none_failed"',
    "map": "each=…",
    "expand": "each=…",
    "poke_interval": "every=…, in seconds",
    "interval": "every=…, in seconds",
}
"""What others call an option of a task, and its name here."""


def with_known_options(what: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Answer an option that a decorator of tasks does not have with the one that is meant, not with Python's error."""

    def wrap(method: Callable[P, R]) -> Callable[P, R]:
        parameters = signature(method).parameters.values()
        named = {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
        options = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]

        @functools.wraps(method)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            unknown = [name for name in kwargs if name not in named]
            if unknown:
                raise TypeError(_mistaken(what, unknown[0], options))
            return method(*args, **kwargs)

        return checked

    return wrap


def _mistaken(what: str, name: str, options: Sequence[str]) -> str:
    meant = _SPELLED.get(name, "")
    if meant.partition("=")[0] in options:
        return f"{what} has no option {name}=: write {meant}"
    return f"{what} has no option {name}=; its options are {', '.join(options)}"


def checked_retry(retry: object) -> Retry:
    """A task's policy; a single attempt, where it has none."""
    if retry is None:
        return Retry(attempts=1)
    if not isinstance(retry, Retry):
        meant = f": write redrive.Retry(attempts={retry + 1})" if type(retry) is int else ""
        raise TypeError(f"retry must be a redrive.Retry or None, not {type(retry).__name__}{meant}")
    return retry


def checked_rule(rule: object) -> RunWhen:
    """Return when a task runs."""
    known = {str(one): one for one in RunWhen}
    if not isinstance(rule, str) or rule not in known:
        raise ValueError(f"run_when must be one of {', '.join(known)}, not {option_checks.shown(rule)}")
    return known[rule]


def checked_timeout(timeout: float | None, in_thread: bool) -> float | None:
    """Seconds of one attempt; None where it has no limit, as in a thread."""
    if in_thread and timeout is not None and timeout is not TIMEOUT:
        raise FlowError("a task in a thread has no timeout, since nothing can end it: leave one of the two out")
    if isinstance(timeout, timedelta):
        raise TypeError(f"timeout is in seconds: write timeout={timeout.total_seconds():g}")
    if in_thread or timeout is None:
        return None
    return option_checks.seconds("timeout", timeout, above=0)


def checked_key(key: Callable[..., str] | None, task: str, binding: Binding) -> Callable[..., str] | None:
    """Return what makes a task's idempotency key."""
    if key is not None and not callable(key):
        raise FlowError(f"key= of task {task!r} must be a function of the task's arguments, not {type(key).__name__}")
    if key is not None and not binding.wants_key:
        raise FlowError(f"task {task!r} has a key=…, and no parameter {KEY!r} that would be given it")
    return key


def as_run_id(given: UUID | str | None) -> UUID | None:
    """The id of a run."""
    if given is None or isinstance(given, UUID):
        return given
    try:
        return UUID(given)
    except (ValueError, AttributeError, TypeError):
        raise FlowError(f"a run's id is a UUID, not {given!r}") from None


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
