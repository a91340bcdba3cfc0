"""A user's rule: its options, its conditions, which must all hold, and the kind that follows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from sys import float_info
from typing import Any

from redrive.classify.error_codes import http_answer, os_errno, sqlstate
from redrive.classify.responses import Answer
from redrive.classify.signals import is_interrupt, is_stop_type
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


ErrorTypes = type[Exception] | tuple[type[Exception], ...]
Numbers = int | Iterable[int]

_SQLSTATE = re.compile(r"[0-9A-Z]{5}|[0-9A-Z]{1,4}\*")


def make_rule(
    error_type: ErrorTypes | None,
    *,
    kind: Kind | str,
    status: Numbers | None,
    when: Predicate | None,
    sqlstate: str | None,
    errno: Numbers | None,
    body: str | None,
    reason: str | None,
    name: str | None,
    retry_after: float | None,
) -> Rule:
    """Return a checked rule.

    Raises:
        TypeError, ValueError: an option is wrong; the message names it.
    """
    if when is not None and not callable(when):
        raise TypeError(f"when must be a function of the exception or response, not {when!r}")
    for label, text in (("body", body), ("reason", reason), ("name", name)):
        if text is not None and not isinstance(text, str):
            raise TypeError(f"{label} must be a string, not {text!r}")
    if retry_after is not None and not (isinstance(retry_after, int | float) and 0 <= retry_after <= float_info.max):
        raise ValueError(f"retry_after must be a finite number of seconds from 0 up, not {retry_after!r}")
    if body == "":
        raise ValueError("body must be a text to look for, not an empty string")
    rule = Rule(
        kind=known_kind(kind),
        error_types=_error_types(error_type),
        status=_numbers("status", status, 100, 599),
        when=when,
        sqlstate=_sqlstate(sqlstate),
        errno=_numbers("errno", errno, 1, 65_535),
        body=body,
        reason=reason,
        name=name or "",
        retry_after=retry_after,
    )
    if not rule.conditions:
        raise ValueError("a rule needs a condition: an exception type, status, when, sqlstate, errno or body")
    return rule if name else _named(rule)


def known_kind(kind: Kind | str, *, option: str = "kind") -> Kind:
    """Return the kind of that name."""
    if not isinstance(kind, str):
        raise TypeError(f"{option} must be a redrive.Kind or its name, not {kind!r}")
    try:
        return Kind(kind)
    except ValueError:
        raise ValueError(f"{option} must be one of {', '.join(Kind)}, not {kind!r}") from None


def _error_types(option: object) -> tuple[type[Exception], ...]:
    if option is None:
        return ()
    types = option if isinstance(option, tuple) else (option,)
    for cls in types:
        if not isinstance(cls, type) or not issubclass(cls, BaseException):
            raise TypeError(f"a rule's type must be an exception class or a tuple of them, not {cls!r}")
        if is_stop_type(cls):
            raise ValueError(f"{cls.__name__} is a signal to stop and is never classified")
    if not types:
        raise ValueError("a rule's tuple of exception classes must not be empty")
    return types


def _numbers(label: str, option: object, low: int, high: int) -> frozenset[int]:
    if option is None:
        return frozenset()
    if isinstance(option, str) or not isinstance(option, int | Iterable):
        raise TypeError(f"{label} must be an int or an iterable of ints, not {option!r}")
    numbers = frozenset((option,) if isinstance(option, int) else option)
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError(f"{label} must be an int or an iterable of ints, not {number!r}")
        if not low <= number <= high:
            raise ValueError(f"{label} must be from {low} to {high}, not {number}")
    if not numbers:
        raise ValueError(f"{label} must name at least one number from {low} to {high}")
    return numbers


def _sqlstate(option: object) -> str | None:
    if option is None:
        return None
    if not isinstance(option, str):
        raise TypeError(f"sqlstate must be a string such as '23505' or '23*', not {option!r}")
    if not _SQLSTATE.fullmatch(option):
        raise ValueError(
            f"sqlstate must be five digits or capital letters such as '23505', or one to four and a star "
            f"such as '23*', not {option!r}"
        )
    return option


def _named(rule: Rule) -> Rule:
    parts = ["|".join(cls.__name__ for cls in rule.error_types)] if rule.error_types else []
    parts += [f"status={_listed(rule.status)}"] if rule.status else []
    parts += [f"when={getattr(rule.when, '__qualname__', 'predicate')}"] if rule.when else []
    parts += [f"sqlstate={rule.sqlstate}"] if rule.sqlstate else []
    parts += [f"errno={_listed(rule.errno)}"] if rule.errno else []
    parts += [f"body={rule.body!r}"] if rule.body else []
    return replace(rule, name=f"rule({', '.join(parts)})")


def _listed(numbers: frozenset[int]) -> str:
    ordered = sorted(numbers)
    if len(ordered) > 4:
        return f"{ordered[0]}…{ordered[-1]}"
    return "|".join(str(number) for number in ordered)
