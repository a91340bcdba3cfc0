"""`redrive.Task`: a task as a program holds it, and the names by which flows know tasks."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from redrive.errors import FlowError

if TYPE_CHECKING:
    from redrive.tasks.flow import Flow
    from redrive.tasks.graph import Node

P = ParamSpec("P")
R = TypeVar("R")

_NAME = re.compile(r"[^\W\d][\w.-]*")


class Task(Generic[P, R]):
    """A task of a flow. Called, it is the plain function: so it can be tested."""

    def __init__(self, flow: Flow, node: Node) -> None:
        self.flow = flow
        self.name = node.name
        functools.update_wrapper(self, node.function)
        self._function = node.function

    def __repr__(self) -> str:
        return f"<Task {self.name} of {self.flow.name}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, here and now."""
        return cast("R", self._function(*args, **kwargs))


Upstream = Task[Any, Any] | str


def name_of_task(function: Callable[..., Any], name: str | None) -> str:
    """Return the name of a task: its function's own, where it is given none."""
    if not callable(function):
        raise FlowError(f"a task is a function, not {type(function).__name__}")
    own: str = name if name is not None else getattr(function, "__name__", "")
    if own == "<lambda>":
        raise FlowError("a lambda has no name by which its runs could be known: write a def, or give it name=…")
    if not isinstance(own, str) or not _NAME.fullmatch(own):
        raise FlowError(f"a task needs a name of letters, digits, '_', '-' and '.', not {own!r}: give it name=…")
    return own


def names_of(flow: Flow, given: Upstream | Sequence[Upstream], own: str) -> tuple[str, ...]:
    """Return the names of the tasks that `after=` of a task holds."""
    several = (given,) if isinstance(given, Task | str) or not isinstance(given, Sequence) else given
    return tuple(dict.fromkeys(name_of(flow, one, own, "after") for one in several))


def name_of(flow: Flow, given: Upstream, own: str, what: str) -> str:
    """Return the name of a task that an option of another one names."""
    if isinstance(given, Task):
        if given.flow is not flow:
            raise FlowError(f"{what}= of task {own!r} names {given.name!r} of another flow, {given.flow.name!r}")
        return given.name
    if not isinstance(given, str) or not given:
        kind = getattr(given, "__name__", type(given).__name__)
        raise FlowError(f"{what}= of task {own!r} takes tasks or their names, not {kind}; is it a @flow.task?")
    return given


def shown(task: Upstream) -> str:
    """Return the name of a task, whichever way it is given."""
    return task.name if isinstance(task, Task) else task
