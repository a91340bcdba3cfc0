"""Which answer a request gets: the scripts of `on`, and the gates that require a token or a key."""

from __future__ import annotations

import fnmatch
import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping

from redrive.testing.faulty_server.answer import Answer
from redrive.testing.faulty_server.http1 import Request

Handler = Callable[[Request], Answer]
Step = Answer | Handler
TOKEN_PATH = "/token"


class RouteRule:
    """A script: the n-th request to a path gets the n-th step, and all later requests get the last step."""

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


class TokenGate:
    """Accepts requests with a bearer token that it issued; each token is valid for a number of requests."""

    def __init__(self, *, uses: int | None) -> None:
        if uses is not None and uses < 1:
            raise ValueError(f"uses must be from 1 up, or None for no limit, not {uses!r}")
        self._uses = uses
        self._left: dict[str, int | None] = {}
        self._issued = 0

    def issue(self) -> str:
        self._issued += 1
        token = f"token-{self._issued:04d}"
        self._left[token] = self._uses
        return token

    def expire_all(self) -> None:
        self._left.clear()

    def grant(self, request: Request) -> Answer:
        """Return the answer of the token endpoint."""
        if request.method != "POST":
            return Answer(405, headers={"Allow": "POST"}, json={"error": f"POST {TOKEN_PATH} issues a token"})
        return Answer(json={"access_token": self.issue(), "token_type": "Bearer"})

    def check(self, request: Request) -> Answer | None:
        token = _bearer(request)
        if token is None:
            return _unauthorized("no bearer token was sent")
        if token not in self._left:
            return _unauthorized("the token is unknown or expired", challenge='Bearer error="invalid_token"')
        left = self._left[token]
        if left is not None:
            if left == 1:
                del self._left[token]
            else:
                self._left[token] = left - 1
        return None


class KeyGate:
    """Accepts requests with a known key until the quota of the key is exhausted."""

    def __init__(
        self, quotas: Mapping[str, int | None], *, header: str | None, query: str | None, bearer: bool
    ) -> None:
        if sum((header is not None, query is not None, bearer)) != 1:
            raise ValueError("where the key is sent must be given by exactly one of header=, query= and bearer=True")
        for quota in quotas.values():
            if quota is not None and quota < 0:
                raise ValueError(f"a quota must be from 0 up, or None for no limit, not {quota!r}")
        self._quotas = dict(quotas)
        self._header, self._query = header, query
        self._used = dict.fromkeys(quotas, 0)

    def reset(self) -> None:
        self._used = dict.fromkeys(self._quotas, 0)

    def check(self, request: Request) -> Answer | None:
        key = self._key(request)
        if key is None or key not in self._quotas:
            return _unauthorized("no key was sent" if key is None else "the key is unknown")
        quota = self._quotas[key]
        if quota is not None and self._used[key] >= quota:
            return _quota_exceeded(quota)
        self._used[key] += 1
        return None

    def _key(self, request: Request) -> str | None:
        if self._header is not None:
            return request.headers.get(self._header)
        return request.query.get(self._query) if self._query is not None else _bearer(request)


def _bearer(request: Request) -> str | None:
    scheme, _, credential = request.headers.get("authorization", "").partition(" ")
    return credential.strip() if scheme.lower() == "bearer" and credential else None


def _unauthorized(why: str, *, challenge: str = "Bearer") -> Answer:
    return Answer(401, headers={"WWW-Authenticate": challenge}, json={"error": why})


def _quota_exceeded(quota: int) -> Answer:
    """Return the answer in the form of Google's APIs, which others have copied."""
    message = f"The quota of {quota} requests for this key is exhausted."
    detail = {"message": message, "domain": "usageLimits", "reason": "quotaExceeded"}
    return Answer(403, json={"error": {"code": 403, "message": message, "errors": [detail]}})
