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
from redrive.explain.dry_call import DryCall, Policy, rehearse
from redrive.explain.question import Question
from redrive.explain.schedule import Duration, Schedule, fits, schedule
from redrive.model.calls import Kind, Scope, Verdict, format_duration
from redrive.policy.breaker import Breaker

HEALS = frozenset({Kind.RETRY_NOW, Kind.TRANSIENT, Kind.RATE_LIMITED, Kind.AMBIGUOUS, Kind.QUOTA})
"""Kinds that may be gone when a run is started again."""

_STOPS = "stops the run; the next one goes on from its checkpoint"
_WAITS = f"a database that writes rows is waited for, up to a minute; anything else {_STOPS}"

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
    Kind.RESOURCE: "the batch is halved and tried again",
}

_RETRIED = "RETRYING, and FAILED when its attempts are used"
_SUSPECT = "RETRYING, and DEAD_LETTER when it fails twice at the same place or its attempts are used"
_DEAD = "DEAD_LETTER at once; what comes after it is held"

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
    """Who would be told, where alerts are set up and nothing heals."""
    if kind is Kind.DISCARD:
        return "nobody"
    if scope == "row" and kind is Kind.ROW:
        return "P3 new_letters from 1 % of a run's rows, P1 rejected above 5 %"
    if scope == "task" and TASKS[kind] is not _RETRIED:
        return "P1 dead_task, once it is a dead letter"
    told = (
        "P2 retries_exhausted, where it ends a run that does not recover within ten minutes"
        if kind in HEALS
        else "P1 permanent_error, where it ends a run"
    )
    if kind is Kind.AUTH:
        told += "; P1 auth_refused, of a service with a store"
    elif fault:
        told += "; P2 service_down, where a service with a store fails so for five minutes"
    elif status is not None and 400 <= status < 500 and kind in (Kind.PERMANENT, Kind.ROW):
        told += "; P3 client_errors, of a service with a store"
    return told


SCOPES: tuple[Scope, ...] = get_args(Scope)

_EFFECTS_BEYOND_HTTP = frozenset(
    {"MySQLdb", "asyncpg", "mysql", "oracledb", "psycopg", "psycopg2", "pymysql", "pyodbc", "smtplib", "sqlalchemy"}
)
"""Libraries whose errors may come after a commit or a mail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What redrive would do with a failure."""

    reading: Question
    scope: Scope
    """What was being done; what the verdict is about."""
    verdicts: Mapping[Scope, Verdict]
    built_in: bool
    """Whether the rule is one of redrive's own, and not of the policy's classifier."""
    call: DryCall
    schedule: Schedule | None
    """The attempts of a call; None where it makes one, or none that follow a schedule."""
    policy: Policy
    inside: float
    """Seconds that each attempt takes."""
    sla: float | None = None
    """Seconds that a call may take."""

    @property
    def fits(self) -> str | None:
        """How often a call is over in time; None where nobody asks."""
        at_once = self.inside * self.call.attempts  # with another key or a fresh token there is no wait
        total = Duration(at_once, at_once, at_once) if self.schedule is None else self.schedule.total
        return None if self.sla is None else fits(total, self.sla)

    @property
    def verdict(self) -> Verdict:
        """The verdict in the scope that was asked for."""
        return self.verdicts[self.scope]

    def does(self, scope: Scope) -> str:
        """What follows, in words."""
        if scope == "call":
            return in_a_call(self.call, self.schedule)
        return (ROWS if scope == "row" else TASKS)[self.verdicts[scope].kind]

    @property
    def effects(self) -> str:
        """Which errors of the class are not retried all the same; empty where there are none to know of."""
        failure = self.reading.failure
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
        """Whether it counts against the breaker, in words."""
        options = self.policy.breaker
        if options is None:
            return "there is none"
        story = attached_failure(self.reading.failure)
        if not self.call.faults and story is not None and is_a_fault(self.verdicts["call"]):
            return f"not counted here: {story.service} has answered for it"
        if not self.call.faults:
            return "not counted: it says nothing about whether the service is up"
        share = f"{share_needed(options)}," if options.rate else ""
        opens = "opens" if options.failures == 1 else "open"
        enough = f"{options.failures} within {format_duration(options.window)}{share}"
        return f"counted: {enough} {opens} the circuit for about {format_duration(options.cooldown)}"

    @property
    def people(self) -> str:
        """Who would be told."""
        found = self.verdict
        return alerts_on(found.kind, self.scope, fault=bool(self.call.faults), status=found.status)

    @property
    def advice(self) -> str:
        """What a person should do."""
        return self.call.advice if self.scope == "call" else advice_on(self.verdict)

    @property
    def change(self) -> str:
        """How to have it judged otherwise, as code."""
        other = Kind.PERMANENT if self.verdict.kind in self.policy.retry.on else Kind.TRANSIENT
        return f'redrive.Classifier().rule({self.reading.condition}, kind="{other}")'


def explain(
    reading: Question,
    policy: Policy,
    *,
    scope: Scope = "call",
    timeout: float | None = None,
    sla: float | None = None,
) -> Explanation:
    """Ask the classifier, and let a call go through it."""
    classifier = policy.classifier
    _refuse_a_success(reading, classifier)
    verdicts = {one: classifier.classify(reading.failure, one) for one in SCOPES}
    found = verdicts["call"]
    if reading.driver_error is not None and found.rule.startswith(("unknown", "type.")):
        raise UnclearQuestion(
            f"no rule knows {reading.read_as}, so that the class of the driver's error decides: ask by that, such as "
            f"{reading.driver_error}"
        )
    inside = timeout if timeout is not None else policy.timeout or 0.0
    call = rehearse(policy, reading.failure, inside=inside)
    repeats = found.kind in policy.retry.on and call.attempts > 1
    return Explanation(
        reading=reading,
        scope=scope,
        verdicts=verdicts,
        built_in=verdicts[scope].rule not in {rule.name for rule in classifier.rules},
        call=call,
        schedule=schedule(policy.retry, found, inside=inside, most=call.attempts) if repeats else None,
        policy=policy,
        inside=inside,
        sla=sla,
    )


def _refuse_a_success(reading: Question, classifier: Classifier) -> None:
    """What a call returns is its result, unless it is an answer that somebody objects to."""
    answer, now = reading.failure, datetime.now(UTC)
    if isinstance(answer, BaseException) or classifier.judge(answer, now=now) is not None:
        return
    raise UnclearQuestion(f"a response with {reading.read_as} is not a failure: redrive hands it on as it is")


def in_a_call(call: DryCall, planned: Schedule | None) -> str:
    """What a call does, in words."""
    if call.attempts == 0:
        return f"nothing is sent: {call.ends}"
    if call.attempts == 1:
        return f"not repeated: {call.ends}"
    repeats = "once" if call.attempts == 2 else f"up to {call.attempts - 1} times"
    how = []
    if call.refreshed:
        how.append("with a fresh token")
    elif call.keys > 1:
        how.append(f"with {call.keys} keys, one after the other")
    if planned is not None:
        how.append(f"over {_from_to(planned)}")
    return f"repeated {repeats}{' ' + ', '.join(how) if how else ''}; then the error is the caller's: {call.ends}"


def _from_to(planned: Schedule) -> str:
    total = planned.total
    best, mean, worst = (lasting(length) for length in (total.best, total.mean, total.worst))
    took = f", if an attempt takes {lasting(planned.inside)}" if planned.inside else ""
    return f"{worst if best == worst else f'{best} to {worst} ({mean} on average)'}{took}"


def share_needed(breaker: Breaker) -> str:
    """What a breaker asks for beside the number of failures."""
    they = "it is" if breaker.failures == 1 else "they are"
    return f", if {they} {breaker.rate * 100:g} % of the attempts" if breaker.rate else ""


def lasting(length: float) -> str:
    """A span that is compared with others: not rounded to minutes before it has many."""
    return f"{length:.1f} s" if length < 600 else format_duration(length)


def document(found: Explanation) -> dict[str, Any]:
    """The answer as JSON has it."""
    verdict, reading = found.verdict, found.reading
    planned = found.schedule
    return {
        "about": "error",
        "what": reading.what,
        "read_as": reading.read_as,
        "note": reading.note,
        "scope": found.scope,
        "kind": str(verdict.kind),
        "reason": verdict.reason,
        "rule": verdict.rule,
        "built_in": found.built_in,
        "detail": verdict.detail,
        "status": verdict.status,
        "retry_after": verdict.retry_after,
        "does": {
            scope: {"kind": str(one.kind), "rule": one.rule, "what": found.does(scope)}
            for scope, one in found.verdicts.items()
        },
        "policy": found.policy.name,
        "attempts": found.call.attempts,
        "ends": found.call.ends,
        "counts_against_breaker": found.call.faults > 0,
        "opens_circuit": found.call.opened,
        "seconds": None if planned is None else seconds(planned.total),
        "sla": found.sla,
        "fits": found.fits,
        "alerts": found.people,
        "advice": found.advice,
        "change": found.change,
    }


def seconds(span: Any) -> dict[str, float]:
    """A span as JSON has it."""
    return {name: round(getattr(span, name), 3) for name in ("best", "mean", "worst")}
