"""The answer to a question about an error: the verdict, the rule, and what follows in a call, a row and a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, get_args

from redrive.calls.failures import advice_on, attached_failure, is_a_fault
from redrive.classify.classifier import Classifier
from redrive.classify.type_names import libraries
from redrive.explain import UnclearQuestion
from redrive.explain.dry_call import DryCall, ServicePolicy, run_dry_call
from redrive.explain.question import Question
from redrive.explain.schedule import AttemptSchedule, Duration, fits, schedule
from redrive.model.calls import Kind, Scope, Verdict, format_duration
from redrive.policy.breaker import Breaker

RECOVERABLE = frozenset({Kind.RETRY_NOW, Kind.TRANSIENT, Kind.RATE_LIMITED, Kind.AMBIGUOUS, Kind.QUOTA})
"""Kinds that may be gone when a run is started again."""

_STOPS = "stops the run; the next one resumes from its checkpoint"
_WAITS = f"retried for up to a minute by a sink that writes to a database; anything else {_STOPS}"

ROWS: dict[Kind, str] = {
    Kind.RETRY_NOW: _WAITS,
    Kind.TRANSIENT: _WAITS,
    Kind.RATE_LIMITED: _STOPS,
    Kind.AMBIGUOUS: _STOPS,
    Kind.QUOTA: _STOPS,
    Kind.AUTH: _STOPS,
    Kind.PERMANENT: _STOPS,
    Kind.ROW: "the row becomes a dead letter, and the rest is loaded",
    Kind.DISCARD: "the row is dropped and counted, without a letter",
    Kind.RESOURCE: "the batch is halved and retried",
}

_RETRIED = "RETRYING, and FAILED when its attempts are exhausted"
_SUSPECT = "RETRYING, and DEAD_LETTER when it fails twice at the same place or its attempts are exhausted"
_DEAD = "DEAD_LETTER at once; the tasks after it are blocked"

TASKS: dict[Kind, str] = {
    Kind.RETRY_NOW: _RETRIED,
    Kind.TRANSIENT: _RETRIED,
    Kind.RATE_LIMITED: _RETRIED,
    Kind.AMBIGUOUS: _SUSPECT,
    Kind.QUOTA: _DEAD,
    Kind.AUTH: _DEAD,
    Kind.PERMANENT: _DEAD,
    Kind.ROW: _DEAD,
    Kind.DISCARD: "SUCCESS, without a result",
    Kind.RESOURCE: _SUSPECT,
}


def alerts_on(kind: Kind, scope: Scope, *, fault: bool, status: int | None) -> str:
    """Return the alerts that follow, where alerts are set up and the failure persists."""
    if kind is Kind.DISCARD:
        return "none"
    if scope == "row" and kind is Kind.ROW:
        return "P3 new_letters from 1 % of a run's rows, P1 rejected above 5 %"
    if scope == "task" and TASKS[kind] is not _RETRIED:
        return "P1 dead_task, once it is a dead letter"
    alerts = (
        "P2 retries_exhausted, where it ends a run that does not recover within ten minutes"
        if kind in RECOVERABLE
        else "P1 permanent_error, where it ends a run"
    )
    if kind is Kind.AUTH:
        alerts += "; P1 auth_refused, of a service with a store"
    elif fault:
        alerts += "; P2 service_down, where a service with a store fails so for five minutes"
    elif status is not None and 400 <= status < 500 and kind in (Kind.PERMANENT, Kind.ROW):
        alerts += "; P3 client_errors, of a service with a store"
    return alerts


SCOPES: tuple[Scope, ...] = get_args(Scope)

_EFFECTS_BEYOND_HTTP = frozenset(
    {"MySQLdb", "asyncpg", "mysql", "oracledb", "psycopg", "psycopg2", "pymysql", "pyodbc", "smtplib", "sqlalchemy"}
)
"""Libraries whose errors may come after a commit or a mail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What redrive would do with a failure."""

    question: Question
    scope: Scope
    """What was being done when the error was raised."""
    verdicts: Mapping[Scope, Verdict]
    built_in: bool
    """Whether the rule is one of redrive's own, and not of the policy's classifier."""
    call: DryCall
    schedule: AttemptSchedule | None
    """The attempts of a call; None where it makes one, or none that follow a schedule."""
    policy: ServicePolicy
    inside: float
    """Seconds that each attempt takes."""
    sla: float | None = None
    """Seconds that a call may take."""

    @property
    def fits(self) -> str | None:
        """Return how often a call ends within the SLA; None where there is none."""
        at_once = self.inside * self.call.attempts  # with another key or a fresh token there is no wait
        total = Duration(at_once, at_once, at_once) if self.schedule is None else self.schedule.total
        return None if self.sla is None else fits(total, self.sla)

    @property
    def verdict(self) -> Verdict:
        """The verdict in the scope that was asked for."""
        return self.verdicts[self.scope]

    def does(self, scope: Scope) -> str:
        """Return what follows in a scope, as text."""
        if scope == "call":
            return in_a_call(self.call, self.schedule)
        return (ROWS if scope == "row" else TASKS)[self.verdicts[scope].kind]

    @property
    def effects(self) -> str:
        """Return which errors of the class are not retried; empty where none are known."""
        failure = self.question.failure
        is_known = isinstance(failure, BaseException) and not _EFFECTS_BEYOND_HTTP.isdisjoint(libraries(type(failure)))
        if not is_known or self.call.attempts < 2 or self.policy.idempotent is True:
            return ""
        return (
            "not retried where a commit, a statement in autocommit mode or a mail may have taken effect, as far as "
            "psycopg, asyncpg, SQLAlchemy and smtplib show it; with other drivers, such as psycopg2 and PyMySQL alone, "
            "a commit whose answer is lost is retried"
        )

    @property
    def breaker(self) -> str:
        """Return whether it counts against the breaker, as text."""
        options = self.policy.breaker
        if options is None:
            return "there is none"
        attached = attached_failure(self.question.failure)
        if not self.call.faults and attached is not None and is_a_fault(self.verdicts["call"]):
            return f"not counted here: it is a failure of {attached.service}"
        if not self.call.faults:
            return "not counted: it is no evidence that the service is down"
        share = f"{share_needed(options)}," if options.rate else ""
        opens = "opens" if options.failures == 1 else "open"
        enough = f"{options.failures} within {format_duration(options.window)}{share}"
        return f"counted: {enough} {opens} the circuit for about {format_duration(options.cooldown)}"

    @property
    def alerts(self) -> str:
        """The alerts that follow."""
        found = self.verdict
        return alerts_on(found.kind, self.scope, fault=bool(self.call.faults), status=found.status)

    @property
    def advice(self) -> str:
        """Return the advice for the operator."""
        return self.call.advice if self.scope == "call" else advice_on(self.verdict)

    @property
    def change(self) -> str:
        """The rule that classifies it otherwise, as code."""
        other = Kind.PERMANENT if self.verdict.kind in self.policy.retry.on else Kind.TRANSIENT
        return f'redrive.Classifier().rule({self.question.condition}, kind="{other}")'


def explain(
    question: Question,
    policy: ServicePolicy,
    *,
    scope: Scope = "call",
    timeout: float | None = None,
    sla: float | None = None,
) -> Explanation:
    """Ask the classifier, and let a dry call fail in this way."""
    classifier = policy.classifier
    _reject_success(question, classifier)
    verdicts = {one: classifier.classify(question.failure, one) for one in SCOPES}
    found = verdicts["call"]
    if question.driver_error is not None and found.rule.startswith(("unknown", "type.")):
        raise UnclearQuestion(
            f"no rule knows {question.read_as}, so that the class of the driver's error decides: ask by that, such as "
            f"{question.driver_error}"
        )
    inside = timeout if timeout is not None else policy.timeout or 0.0
    call = run_dry_call(policy, question.failure, inside=inside)
    repeats = found.kind in policy.retry.on and call.attempts > 1
    return Explanation(
        question=question,
        scope=scope,
        verdicts=verdicts,
        built_in=verdicts[scope].rule not in {rule.name for rule in classifier.rules},
        call=call,
        schedule=schedule(policy.retry, found, inside=inside, most=call.attempts) if repeats else None,
        policy=policy,
        inside=inside,
        sla=sla,
    )


def _reject_success(question: Question, classifier: Classifier) -> None:
    """Raise UnclearQuestion for a response that is no failure: what a call returns is its result."""
    answer, now = question.failure, datetime.now(UTC)
    if isinstance(answer, BaseException) or classifier.judge(answer, now=now) is not None:
        return
    raise UnclearQuestion(f"a response with {question.read_as} is not a failure: redrive returns it as it is")


def in_a_call(call: DryCall, planned: AttemptSchedule | None) -> str:
    """Return what a call does, as text."""
    if call.attempts == 0:
        return f"nothing is sent: {call.ends}"
    if call.attempts == 1:
        return f"not retried: {call.ends}"
    retries = "once" if call.attempts == 2 else f"up to {call.attempts - 1} times"
    how = []
    if call.refreshed:
        how.append("with a fresh token")
    elif call.keys > 1:
        how.append(f"with {call.keys} keys, one after the other")
    if planned is not None:
        how.append(f"over {_from_to(planned)}")
    return f"retried {retries}{' ' + ', '.join(how) if how else ''}; then the caller gets the error: {call.ends}"


def _from_to(planned: AttemptSchedule) -> str:
    total = planned.total
    best, mean, worst = (lasting(length) for length in (total.best, total.mean, total.worst))
    took = f", if an attempt takes {lasting(planned.inside)}" if planned.inside else ""
    return f"{worst if best == worst else f'{best} to {worst} ({mean} on average)'}{took}"


def share_needed(breaker: Breaker) -> str:
    """Return the share of failures that a breaker requires, as text."""
    they = "it is" if breaker.failures == 1 else "they are"
    return f", if {they} {breaker.rate * 100:g} % of the attempts" if breaker.rate else ""


def lasting(length: float) -> str:
    """Return a span that is compared with others: in seconds up to ten minutes."""
    return f"{length:.1f} s" if length < 600 else format_duration(length)


def document(explanation: Explanation) -> dict[str, Any]:
    """Return the answer as a JSON document."""
    verdict, question = explanation.verdict, explanation.question
    planned = explanation.schedule
    return {
        "about": "error",
        "what": question.what,
        "read_as": question.read_as,
        "note": question.note,
        "scope": explanation.scope,
        "kind": str(verdict.kind),
        "reason": verdict.reason,
        "rule": verdict.rule,
        "built_in": explanation.built_in,
        "detail": verdict.detail,
        "status": verdict.status,
        "retry_after": verdict.retry_after,
        "does": {
            scope: {"kind": str(verdict.kind), "rule": verdict.rule, "what": explanation.does(scope)}
            for scope, verdict in explanation.verdicts.items()
        },
        "policy": explanation.policy.name,
        "attempts": explanation.call.attempts,
        "ends": explanation.call.ends,
        "counts_against_breaker": explanation.call.faults > 0,
        "opens_circuit": explanation.call.opened,
        "seconds": None if planned is None else seconds(planned.total),
        "sla": explanation.sla,
        "fits": explanation.fits,
        "alerts": explanation.alerts,
        "advice": explanation.advice,
        "change": explanation.change,
    }


def seconds(span: Any) -> dict[str, float]:
    """Return a span as a JSON document."""
    return {name: round(getattr(span, name), 3) for name in ("best", "mean", "worst")}
