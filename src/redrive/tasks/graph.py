"""The graph of a flow: its tasks by name and number, who waits for whom. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redrive.errors import FlowError
from redrive.policy.retry import Retry
from redrive.tasks.parameters import Binding
from redrive.tasks.trigger_rules import RunWhen

if TYPE_CHECKING:
    from redrive.classify.classifier import Classifier


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorOptions:
    """How often a sensor is asked, and for how long in all."""

    every: float
    timeout: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One task as it was defined."""

    name: str
    function: Callable[..., Any]
    binding: Binding
    after: tuple[str, ...] = ()
    """Everything it waits for, the source of its fan-out included."""
    each: str | None = None
    sensing: SensorOptions | None = None
    timeout: float | None = None
    """Seconds of one attempt; None for a task in a thread, which nothing can end."""
    grace: float = 5.0
    retry: Retry
    poison: int = 2
    """Consecutive failures of one cause that make it a dead letter."""
    storm: int = 5
    """Siblings that may die of one cause before the rest is not tried any more."""
    service: str | None = None
    classifier: Classifier | None = None
    in_thread: bool = False
    key: Callable[..., str] | None = None
    run_when: RunWhen = RunWhen.ALL_SUCCEEDED
    sla: float | None = None
    """Seconds from the start of the run by which it is to be done."""

    @property
    def kind(self) -> str:
        """Return its kind as a word."""
        return "sensor" if self.sensing else "fan-out" if self.each else "task"


class Graph:
    """The tasks of a flow, each with a number: its place in the order of definition."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.numbers: dict[str, int] = {}
        self._expected: set[str] = set()  # names that are waited for and not defined yet

    def add(self, node: Node) -> None:
        """Add a task; its name is new, and it does not wait for itself by any way."""
        if node.name in self.nodes:
            raise FlowError(f"there is a task {node.name!r} already; give this one another name=…")
        if way := self._way_back(node):
            raise FlowError(f"tasks cannot wait for each other in a circle: {' → '.join(way)}")
        self.numbers[node.name] = len(self.nodes)
        self.nodes[node.name] = node
        self._expected.discard(node.name)
        self._expected.update(name for name in node.after if name not in self.nodes)

    def _way_back(self, node: Node) -> list[str] | None:
        """From a task upwards to itself, where there is such a way. Only a name used before its time can make one."""
        if node.name not in self._expected and node.name not in node.after:
            return None
        reached: dict[str, str] = dict.fromkeys(node.after, node.name)
        pending = deque(node.after)
        while pending:
            name = pending.popleft()
            if name == node.name:
                way = [name]
                while reached[way[-1]] != node.name:
                    way.append(reached[way[-1]])
                return [node.name, *reversed(way)]
            for upper in self.nodes[name].after if name in self.nodes else ():
                if upper not in reached:
                    reached[upper] = name
                    pending.append(upper)
        return None

    def check(self) -> None:
        """See that everything that is waited for is there."""
        for name in sorted(self._expected):
            waiting = next(node.name for node in self.nodes.values() if name in node.after)
            raise FlowError(f"task {waiting!r} waits for {name!r}, which is not there")
        if not self.nodes:
            raise FlowError("the flow has no tasks; add them with @flow.task")

    def shape(self) -> GraphShape:
        """Return its stored form."""
        return GraphShape(
            tuple(
                GraphShape.Place(node.name, node.kind, tuple(self.numbers[name] for name in node.after), node.run_when)
                for node in self.nodes.values()
            )
        )


@dataclass(frozen=True, slots=True)
class GraphShape:
    """A graph without its functions, as it is stored with a run: operators change and resume the run by it."""

    @dataclass(frozen=True, slots=True)
    class Place:
        """One task: `after` are the numbers of those it waits for, the source of a fan-out first."""

        name: str
        kind: str
        after: tuple[int, ...]
        run_when: RunWhen = RunWhen.ALL_SUCCEEDED

    places: tuple[Place, ...]

    def document(self) -> list[list[Any]]:
        """As JSON has it."""
        return [
            [place.name, place.kind, list(place.after)]
            + ([] if place.run_when is RunWhen.ALL_SUCCEEDED else [place.run_when])
            for place in self.places
        ]

    @classmethod
    def of(cls, document: Iterable[Any]) -> GraphShape:
        """From JSON."""
        return cls(
            tuple(cls.Place(name, kind, tuple(after), *map(RunWhen, rule)) for name, kind, after, *rule in document)
        )

    def difference(self, other: GraphShape) -> str | None:
        """Return the differences from another graph, in words; None if only the order of tasks differs."""
        now, before = _by_name(self), _by_name(other)
        gone, new = sorted(before.keys() - now.keys()), sorted(now.keys() - before.keys())
        changed = sorted(name for name in now.keys() & before.keys() if now[name] != before[name])
        parts = [
            f"{listed(names)} {'is' if len(names) == 1 else 'are'} {what}"
            for names, what in ((gone, "gone"), (new, "new"), (changed, "another kind of task, or after other tasks"))
            if names
        ]
        return ", ".join(parts) or None

    def below(self) -> list[list[int]]:
        """For each task, the numbers of those that wait for it."""
        lower: list[list[int]] = [[] for _ in self.places]
        for number, place in enumerate(self.places):
            for upper in place.after:
                lower[upper].append(number)
        return lower


def followers_of(nodes: Mapping[str, Node]) -> dict[str, set[str]]:
    """For each task, the names of those that come directly after it."""
    found: dict[str, set[str]] = {name: set() for name in nodes}
    for node in nodes.values():
        for upper in node.after:
            if upper in found:
                found[upper].add(node.name)
    return found


def reach(starts: Iterable[int], edges: list[list[int]]) -> set[int]:
    """Everything that can be reached from there, the starts themselves not included unless they are reached, too."""
    found: set[int] = set()
    pending = deque(starts)
    while pending:
        for number in edges[pending.popleft()]:
            if number not in found:
                found.add(number)
                pending.append(number)
    return found


def worst_case(node: Node) -> float:
    """The longest a task may take in seconds, all its attempts and the waits between them."""
    if node.sensing is not None:
        return node.sensing.timeout
    attempt = node.timeout or 0.0
    return node.retry.worst_case(timeout=0.0) + node.retry.attempts * attempt


def longest_way(graph: Graph, cost: Callable[[Node], float]) -> float:
    """The most that one task after another can cost."""
    costs: dict[str, float] = {}
    for name in _in_order(graph.nodes):
        node = graph.nodes[name]
        costs[name] = cost(node) + max((costs[upper] for upper in node.after), default=0.0)
    return max(costs.values(), default=0.0)


def _in_order(nodes: Mapping[str, Node]) -> list[str]:
    waiting = {name: len(set(node.after)) for name, node in nodes.items()}
    lower: dict[str, list[str]] = {name: [] for name in nodes}
    for name, node in nodes.items():
        for upper in set(node.after):
            lower[upper].append(name)
    order = [name for name, count in waiting.items() if not count]
    for name in order:
        for below in lower[name]:
            waiting[below] -= 1
            if not waiting[below]:
                order.append(below)
    return order


def listed(names: list[str], most: int = 3) -> str:
    """A few names, quoted, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _by_name(shape: GraphShape) -> dict[str, tuple[str, str | None, frozenset[str], RunWhen]]:
    names = [place.name for place in shape.places]
    return {
        place.name: (
            place.kind,
            names[place.after[0]] if place.kind == "fan-out" else None,
            frozenset(names[number] for number in place.after),
            place.run_when,
        )
        for place in shape.places
    }
