"""A user's rule: conditions that must all hold, and the kind that follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redrive.classify.error_codes import http_answer, os_errno, sqlstate
from redrive.classify.responses import Answer
from redrive.classify.signals import is_interrupt
from redrive.model.calls import Kind

Predicate = Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Rule:
    """See `Classifier.rule`."""

    kind: Kind
    error_types: tuple[type[Exception], ...] = ()
    status: frozenset[int] = frozenset()
    when: Predicate | None = None
    sqlstate: str | None = None
    errno: frozenset[int] = frozenset()
    body: str | None = None
    reason: str | None = None
    name: str = ""
    retry_after: float | None = None

    @property
    def conditions(self) -> int:
        conditions = (self.error_types, self.status, self.when, self.sqlstate, self.errno, self.body)
        return sum(bool(condition) for condition in conditions)

    @property
    def sqlstate_length(self) -> int:
        return len(self.sqlstate.rstrip("*")) if self.sqlstate else 0


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """A rule that holds for a failure, and which class of the failure matched."""

    rule: Rule
    position: int
    level: int = 0
    nearness: int | None = None
    """How far up the ancestors the rule's class is; None for a rule without a type."""

    @property
    def rank(self) -> tuple[int, int, float, int, int]:
        """The rank; higher for more conditions, a longer SQLSTATE, a nearer class, a deeper cause, a later rule."""
        distance = float("inf") if self.nearness is None else self.nearness
        return (self.rule.conditions, self.rule.sqlstate_length, -distance, self.level, self.position)


class RuleFailed(Exception):
    """The predicate of a rule raised."""

    def __init__(self, rule: Rule, error: Exception) -> None:
        super().__init__(rule, error)
        self.rule = rule
        self.error = error


@dataclass(frozen=True, slots=True)
class FailureFacts:
    """What rules examine: the failure, the errors it wraps, and the response where there was one."""

    failure: object
    chain: tuple[BaseException, ...] = ()
    answer: Answer | None = None

    @classmethod
    def of_error(cls, error: BaseException, chain: tuple[BaseException, ...]) -> FailureFacts:
        return cls(error, chain, next((answer for inner in chain if (answer := http_answer(inner))), None))


def match(rule: Rule, position: int, facts: FailureFacts) -> RuleMatch | None:
    """Return the match, if every condition holds; the predicate is called last, and only if the others hold."""
    level, nearness = 0, None
    if rule.error_types:
        nearest = _nearest_type(rule.error_types, facts.chain)
        if nearest is None:
            return None
        level, nearness = nearest
    if not (_status_holds(rule, facts) and _sqlstate_holds(rule, facts) and _errno_holds(rule, facts)):
        return None
    if rule.when is not None:
        try:
            if not rule.when(facts.failure):
                return None
        except Exception as error:
            if is_interrupt(error):
                raise
            raise RuleFailed(rule, error) from error
    return RuleMatch(rule, position, level, nearness)


def _nearest_type(wanted: tuple[type[Exception], ...], chain: tuple[BaseException, ...]) -> tuple[int, int] | None:
    matches = [
        (nearness, -level)
        for level, error in enumerate(chain)
        for nearness, ancestor in enumerate(type(error).__mro__)
        if ancestor in wanted
    ]
    if not matches:
        return None
    nearness, level = min(matches)
    return -level, nearness


def _status_holds(rule: Rule, facts: FailureFacts) -> bool:
    answer = facts.answer
    if rule.status and (answer is None or answer.status not in rule.status):
        return False
    return rule.body is None or (answer is not None and rule.body in (answer.body or ""))


def _sqlstate_holds(rule: Rule, facts: FailureFacts) -> bool:
    if rule.sqlstate is None:
        return True
    codes = [code for error in facts.chain if (code := sqlstate(error))]
    if rule.sqlstate.endswith("*"):
        return any(code.startswith(rule.sqlstate[:-1]) for code in codes)
    return rule.sqlstate in codes


def _errno_holds(rule: Rule, facts: FailureFacts) -> bool:
    return not rule.errno or any(os_errno(error) in rule.errno for error in facts.chain)
