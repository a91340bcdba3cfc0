"""Which answer a request gets: rules by path and method, each a script that every path follows separately."""

from __future__ import annotations

import fnmatch
import inspect
import re
from collections import Counter
from collections.abc import Callable

from redrive.testing.faulty_server.answer import Answer
from redrive.testing.faulty_server.http1 import Request

Handler = Callable[[Request], Answer]
Step = Answer | Handler


class RouteRule:
    """A script: the n-th request to a path gets the n-th step, and the last step repeats."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        if not steps:
            raise TypeError("on() needs at least one Answer or handler")
        for step in steps:
            _check_step(step)
        self._steps = steps
        self._taken: Counter[str] = Counter()

    def step(self, path: str) -> Step:
        taken = self._taken[path]
        self._taken[path] += 1
        return self._steps[min(taken, len(self._steps) - 1)]

    def restart(self) -> None:
        self._taken.clear()


class Routes:
    """The rules. An exact path wins over a pattern, a named method over any, and then the latest rule."""

    def __init__(self) -> None:
        self._exact: dict[tuple[str, str | None], RouteRule] = {}
        self._patterns: dict[tuple[str, str | None], RouteRule] = {}

    def add(self, pattern: str, steps: tuple[Step, ...], *, method: str | None) -> None:
        if not pattern.startswith(("/", "*")):
            raise ValueError(f"a path must begin with '/' or '*', not {pattern!r}")
        rules = self._patterns if is_pattern(pattern) else self._exact
        key = (pattern, method.upper() if method else None)
        rule = RouteRule(steps)
        rules.pop(key, None)  # so that the new rule also becomes the latest
        rules[key] = rule

    def restart(self) -> None:
        for rule in (*self._exact.values(), *self._patterns.values()):
            rule.restart()

    def exact(self, request: Request) -> Step | None:
        """Return the step of a rule for this very path; None where there is none."""
        path = request.path
        rule = self._exact.get((path, request.method)) or self._exact.get((path, None))
        return rule.step(path) if rule else None

    def step(self, request: Request) -> Step | None:
        """Return the step of the best rule; None where no rule matches."""
        exact = self.exact(request)
        if exact is not None:
            return exact
        for wanted in (request.method, None):
            for (pattern, method), rule in reversed(self._patterns.items()):
                if method == wanted and matches(pattern, request.path):
                    return rule.step(request.path)
        return None


def is_pattern(path: str) -> bool:
    return re.search(r"[*?\[]", path) is not None


def matches(pattern: str, path: str) -> bool:
    """Return whether a path matches a pattern: `*` any characters, `?` one, `[ab]` one of these."""
    return path == pattern or fnmatch.fnmatchcase(path, pattern)


def _check_step(step: object) -> None:
    if isinstance(step, tuple | list):
        raise TypeError("on() takes its answers one by one: unpack a sequence with *")
    if inspect.iscoroutinefunction(step):
        raise TypeError("a handler must be a plain function, not async; to be slow, return Answer(delay=...)")
    if not isinstance(step, Answer) and not callable(step):
        raise TypeError(f"on() takes Answers and handlers, not {step!r}")
