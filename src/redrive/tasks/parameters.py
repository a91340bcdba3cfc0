"""Parameters of tasks and runs: how they are bound, which mean the same work, and idempotency keys from them. Pure.

A parameter at its default is as if it were not there. So a run from before the flow had some parameter is the run of
the work that has the parameter at its default now.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple
from uuid import UUID

from redrive.errors import FlowError
from redrive.store.encoding import encode

NO_PARAMS = "{}"
"""Without parameters, nothing distinguishes the work of a run from that of the next one."""
_MOST = 1_000  # texts to look for: all combinations of nine parameters that are at their defaults


def written(params: Mapping[str, Any]) -> str:
    """Parameters as the store has them."""
    return encode(dict(sorted(params.items())))


def spellings(params: Mapping[str, Any], defaults: Mapping[str, Any]) -> tuple[str, ...]:
    """Return how the store may have these parameters: as they are first, then without some that are at their defaults.

    defaults  of the flow's parameters that have one
    """
    given = sorted(params.keys() & defaults.keys())
    at_default = [name for name in given if encode(defaults[name]) == encode(params[name])]
    return tuple(itertools.islice(_without_some(params, at_default), _MOST))


def _without_some(params: Mapping[str, Any], names: list[str]) -> Iterator[str]:
    for count in range(len(names) + 1):
        for left_out in itertools.combinations(names, count):
            yield written({name: value for name, value in params.items() if name not in left_out})


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
    """Find a value for every parameter; FlowError names the one that has none."""
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


_LENGTH = 8  # bytes of a digest, which is written in twice as many characters


class PreviousRun(NamedTuple):
    """The last run of the same work."""

    run_id: UUID
    prefix: str | None
    params: str
    is_complete: bool


def new_prefix(flow: str, params: str, run_id: UUID, previous: PreviousRun | None, *, new_keys: bool = False) -> str:
    """Return the prefix of the keys of a new run: the flow and its parameters.

    If an earlier run of the same work lacked some parameter, the new run keeps the keys of that run.

    Without parameters, nothing distinguishes one run of a flow from the next, so each run has keys of its own. If the
    previous run did not finish, the new run uses its keys, since it does the rest of the work.

    Args:
        flow: Name of the flow.
        params: Parameters as stored.
        run_id: Id of the new run.
        previous: The last run of the same work; None if there is none.
        new_keys: Whether the new run is other work, however the previous run ended.
    """
    finishes_previous = previous is not None and not previous.is_complete and not new_keys
    if previous is not None and previous.params == NO_PARAMS and finishes_previous:
        return previous.prefix or str(previous.run_id)
    if params == NO_PARAMS:
        return f"{flow}/{run_id}"
    if previous is not None and previous.params != NO_PARAMS and previous.prefix is not None:
        return previous.prefix
    return f"{flow}/{_digest(params)}"


def make_key(prefix: str, task: str, item: str | None, twin: int) -> str:
    """Return the key of a task; for a child of a fan-out, by its item, since its number may differ between runs.

    Args:
        prefix: Prefix of the run's keys.
        task: Name of the task.
        item: Item of the child as JSON text; None for a task that is not a child.
        twin: How many children before this one have the same item.
    """
    if item is None:
        return f"{prefix}/{task}"
    return f"{prefix}/{task}[{_digest(item)}{f'-{twin + 1}' if twin else ''}]"


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=_LENGTH).hexdigest()
