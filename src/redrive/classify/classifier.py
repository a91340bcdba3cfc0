"""`Classifier`: turns failures into verdicts by the built-in tables, and by the user's rules on top of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import get_args

from redrive.classify.builtin import BuiltinVerdict, find
from redrive.classify.code_verdict import http_verdict, is_failure, kafka_verdict, sqlstate_entry
from redrive.classify.detail import message, shown
from redrive.classify.error_codes import sqlstate
from redrive.classify.responses import Answer, is_response, read_response, retry_after
from redrive.classify.rules import (
    ErrorTypes,
    FailureFacts,
    Numbers,
    Predicate,
    Rule,
    RuleFailed,
    RuleMatch,
    known_kind,
    make_rule,
    match,
)
from redrive.classify.signals import is_stop_signal
from redrive.classify.unwrap import leaves, unwrap_chain
from redrive.model.calls import Kind, Scope, Verdict

# Which of several errors decides: one that cannot recover, before one that can.
_GRAVITY = (
    Kind.PERMANENT,
    Kind.RESOURCE,
    Kind.AUTH,
    Kind.QUOTA,
    Kind.ROW,
    Kind.DISCARD,
    Kind.AMBIGUOUS,
    Kind.RATE_LIMITED,
    Kind.TRANSIENT,
    Kind.RETRY_NOW,
)
_REPEATABLE = frozenset({Kind.RETRY_NOW, Kind.TRANSIENT, Kind.RATE_LIMITED, Kind.AMBIGUOUS, Kind.QUOTA})


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifier:
    """Turns failures into verdicts. Immutable: `rule` returns a new one."""

    unknown: Kind | str | None = None
    """The kind of an error that no rule and no table knows; by default permanent, and in a task ambiguous."""
    rules: tuple[Rule, ...] = ()
    """The rules that were added with `rule`."""

    def __repr__(self) -> str:
        unknown = "" if self.unknown is None else f"unknown={str(self.unknown)!r}"
        return f"Classifier({unknown})" + "".join(f".{rule.name}" for rule in self.rules)

    def __post_init__(self) -> None:
        if self.unknown is not None:
            object.__setattr__(self, "unknown", known_kind(self.unknown, option="unknown"))

    def rule(
        self,
        error_type: ErrorTypes | None = None,
        /,
        *,
        kind: Kind | str,
        status: Numbers | None = None,
        when: Predicate | None = None,
        sqlstate: str | None = None,
        errno: Numbers | None = None,
        body: str | None = None,
        reason: str | None = None,
        name: str | None = None,
        retry_after: float | None = None,
    ) -> Classifier:
        """Return a classifier with one more rule: where all the given conditions hold, the failure is of this kind.

        `status` and `errno` take one number or several, `sqlstate` a code or a prefix such as "23*", `body` a text
        the response's body contains, `when` a function of the exception or response. Among rules the most specific
        wins: more conditions, a longer SQLSTATE, a nearer class, the later one. A rule outranks the built-in table,
        except that a base class alone does not outrank a nearer class or a code, nor a short SQLSTATE a longer one.

        error_type  a class of exceptions, or several
        kind        the kind of the failure
        reason      the reason that the verdict states
        name        the name of the rule in the verdict
        retry_after  least seconds to wait, where the failure itself does not state any
        """
        added = make_rule(
            error_type,
            kind=kind,
            status=status,
            when=when,
            sqlstate=sqlstate,
            errno=errno,
            body=body,
            reason=reason,
            name=name,
            retry_after=retry_after,
        )
        return replace(self, rules=(*self.rules, added))

    def classify(self, failure: object, scope: Scope = "call", *, now: datetime | None = None) -> Verdict:
        """Return the verdict on an exception or a response.

        failure  an exception or a response
        scope    what was being done: one "call", one "row", one "task"
        now      what an HTTP date is compared with where the response has no Date of its own

        Raises TypeError for a signal to stop, which is never classified: Ctrl-C, exit, cancellation (also the
        CancelledError of concurrent.futures, which is an Exception), the time limit of a job runner.
        """
        if scope not in get_args(Scope):
            raise ValueError(f"scope must be one of {', '.join(get_args(Scope))}, not {scope!r}")
        moment = datetime.now(UTC) if now is None else now if now.tzinfo else now.replace(tzinfo=UTC)
        try:
            if isinstance(failure, BaseException):
                return self._classify_error(failure, scope, moment)
            answer = read_response(failure)
            if answer is not None:
                return self._classify_response(failure, answer, moment)
            if verdict := kafka_verdict(failure):
                facts = FailureFacts(failure)
                matches = self._matches(facts)
                return _apply_best_rule(matches, verdict, facts, moment) if matches else verdict
        except RuleFailed as failed:
            return _failed_rule_verdict(failed)
        raise TypeError(f"only an exception or a response can be classified, not {type(failure).__name__}")

    def judge(self, result: object, *, now: datetime) -> Verdict | None:
        """Return the verdict on what a function returned; None where it is no response, or one that is no failure.

        result  what the function returned
        now     what an HTTP date is compared with where the response has no Date of its own
        """
        answer = read_response(result) if is_response(result) else None
        if answer is None:
            return None
        facts = FailureFacts(result, answer=answer)
        try:
            matches = self._matches(facts)
        except RuleFailed as failed:
            return _failed_rule_verdict(failed)
        if matches:
            return _apply_best_rule(matches, http_verdict(answer, now), facts, now)
        return http_verdict(answer, now) if answer.status >= 400 else None

    def _classify_error(self, error: BaseException, scope: Scope, now: datetime) -> Verdict:
        if is_stop_signal(error):
            raise TypeError(f"{type(error).__name__} is a signal to stop and is never classified")
        unknown = None if self.unknown is None else Kind(self.unknown)
        if isinstance(error, BaseExceptionGroup) and len(error.exceptions) > 1:
            return self._classify_group(error, scope, now)
        builtin = find(error, scope, now, unknown)
        if not self.rules:
            return builtin.verdict
        facts = FailureFacts.of_error(error, unwrap_chain(error))
        matches = [matched for matched in self._matches(facts) if not _is_outranked(matched, builtin, facts)]
        if not matches:
            return builtin.verdict
        reason = type(error).__name__ if builtin.basis in ("unknown", "origin") else builtin.verdict.reason
        return _apply_best_rule(matches, replace(builtin.verdict, reason=reason), facts, now)

    def _classify_group(self, group: BaseExceptionGroup[BaseException], scope: Scope, now: datetime) -> Verdict:
        """Return the gravest verdict on its errors, unless a rule names the group itself."""
        facts = FailureFacts(group, (group,))
        members = [error for error in leaves(group) if not is_stop_signal(error)]
        verdicts = [self._classify_error(error, scope, now) for error in members]
        if not verdicts:
            return Verdict(Kind.PERMANENT, f"unknown error {type(group).__name__}", "unknown")
        gravest = min(verdicts, key=lambda verdict: _GRAVITY.index(verdict.kind))
        waits = [verdict.retry_after for verdict in verdicts if verdict.retry_after is not None]
        wait = max(waits, default=None) if gravest.kind in _REPEATABLE else gravest.retry_after
        gravest = replace(gravest, reason=f"{gravest.reason} (the gravest of {len(members)} errors)", retry_after=wait)
        matches = [matched for matched in self._matches(facts) if matched.nearness == 0]
        return _apply_best_rule(matches, gravest, facts, now) if matches else gravest

    def _classify_response(self, response: object, answer: Answer, now: datetime) -> Verdict:
        facts = FailureFacts(response, answer=answer)
        if matches := self._matches(facts):
            return _apply_best_rule(matches, http_verdict(answer, now), facts, now)
        if not is_failure(answer, now):
            raise ValueError(f"a response with status {answer.status} is not a failure")
        return http_verdict(answer, now)

    def _matches(self, facts: FailureFacts) -> list[RuleMatch]:
        candidates = (match(rule, position, facts) for position, rule in enumerate(self.rules))
        return [matched for matched in candidates if matched]


def _is_outranked(matched: RuleMatch, builtin: BuiltinVerdict, facts: FailureFacts) -> bool:
    """Return whether the built-in table has something more specific than the one condition of the rule."""
    rule = matched.rule
    if rule.conditions > 1 or builtin.basis in ("unknown", "origin"):
        return False
    if matched.nearness is not None:
        if matched.nearness == 0:
            return False
        if builtin.basis == "code":
            return True
        if matched.level != builtin.level:
            return builtin.level > matched.level
        return builtin.nearness < matched.nearness
    if rule.sqlstate is not None:
        code = next((code for error in facts.chain if (code := sqlstate(error))), "")
        known = sqlstate_entry(code)
        return known is not None and rule.sqlstate_length < len(known[0].rstrip("*"))
    return False


def _apply_best_rule(matches: list[RuleMatch], known: Verdict, facts: FailureFacts, now: datetime) -> Verdict:
    """Return the verdict of the best rule; what the built-in table read from the failure stays."""
    rule = max(matches, key=lambda matched: matched.rank).rule
    wait = None
    if rule.kind in _REPEATABLE:
        # The user declares the failure retryable, so the server's Retry-After counts whatever the status.
        wait = known.retry_after
        if wait is None and facts.answer is not None:
            wait = retry_after(facts.answer.headers, now)
        if wait is None:
            wait = rule.retry_after
    return replace(known, kind=rule.kind, reason=rule.reason or known.reason, rule=rule.name, retry_after=wait)


def _failed_rule_verdict(failed: RuleFailed) -> Verdict:
    error = failed.error
    return Verdict(
        Kind.PERMANENT,
        f"the predicate of {failed.rule.name} raised {type(error).__name__}",
        failed.rule.name,
        detail=shown(message(error)),
    )
