"""What each parameter of a task is given: the item of a fan-out, the result of another task, a parameter of the run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from redrive.errors import FlowError

KEY = "idempotency_key"
"""A task that takes a parameter of this name is given a key that is the same for all its attempts."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The names of parameters, by what they are given."""

    item: str | None = None
    results: tuple[str, ...] = ()
    """Parameters that have the name of the task whose result they are given."""
    params: tuple[str, ...] = ()
    wants_key: bool = False


def bind(
    function: Callable[..., Any], *, task: str, upstream: Sequence[str], each: str | None, params: Collection[str]
) -> Binding:
    """Find a value for every parameter, or say which one has none."""
    names = _parameters(function, task)
    item = None
    if each is not None:
        if not names:
            raise FlowError(f"task {task!r} runs for each item of {each!r}, and takes none: give it a parameter")
        item = next(iter(names))
    results, of_run = [], []
    for name, parameter in names.items():
        if name in (item, KEY):
            continue
        if name in upstream:
            results.append(name)
        elif name in params:
            of_run.append(name)
        elif parameter.default is parameter.empty:
            raise FlowError(
                f"nothing gives parameter {name!r} of task {task!r} a value: name the task it comes from in after=…, "
                "declare it with Flow(params=…), or give it a default"
            )
    return Binding(item, tuple(results), tuple(of_run), KEY in names and item != KEY)


def _parameters(function: Callable[..., Any], task: str) -> dict[str, inspect.Parameter]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise FlowError(f"the parameters of task {task!r} cannot be known; wrap it in a function of your own") from None
    found = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise FlowError(f"task {task!r} takes {name!r} by position only; let it be taken by name")
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            found[name] = parameter
    return found
