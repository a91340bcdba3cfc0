"""A policy as text: when its attempts are made, how long a call can take, and each part of it in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from redrive.classify.classifier import Classifier
from redrive.explain.dry_call import ServicePolicy, run_dry_call
from redrive.explain.explanation import seconds, share_needed
from redrive.explain.schedule import TRANSIENT, AttemptSchedule, fits, schedule
from redrive.model.calls import Kind, Verdict, format_duration
from redrive.policy.breaker import Breaker
from redrive.policy.keys import KeyPool, name_of
from redrive.policy.retry import REPEATABLE, SHORT_BASE, SHORT_CAP, Retry, RetryBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyExplanation:
    """A policy, and what calls do under it while the failure persists."""

    policy: ServicePolicy
    timeout: float | None
    """Seconds that one attempt may take; None where there is no limit."""
    sla: float | None
    at_once: AttemptSchedule
    """Where attempts fail as soon as they are made."""
    timed_out: AttemptSchedule | None
    """Where each attempt runs into its timeout."""
    notes: tuple[str, ...]
    """What will cause trouble, one sentence each."""
    changes: tuple[str, ...]
    """What would make it fit the SLA."""

    @property
    def schedule(self) -> AttemptSchedule:
        """The longer of the two."""
        return self.timed_out or self.at_once


def explain_policy(
    policy: ServicePolicy, *, timeout: float | None = None, sla: float | None = None
) -> PolicyExplanation:
    """Return what calls do under a policy."""
    limit = policy.timeout if timeout is None else timeout
    retry = policy.retry
    verdict = _retried(retry)
    at_once = schedule(retry, verdict)
    timed_out = None if limit is None else schedule(retry, verdict, inside=limit)
    longest = timed_out or at_once
    changes = () if sla is None or longest.total.worst <= sla else tuple(_changes(retry, limit, sla))
    return PolicyExplanation(
        policy=policy,
        timeout=limit,
        sla=sla,
        at_once=at_once,
        timed_out=timed_out,
        notes=(*retry.concerns(timeout=limit, sla=sla), *_notes(policy, at_once, longest)),
        changes=changes,
    )


def _retried(retry: Retry) -> Verdict:
    """Return a verdict that the policy retries for as long as it retries anything."""
    usual = (Kind.TRANSIENT, Kind.RATE_LIMITED, Kind.AMBIGUOUS, Kind.RETRY_NOW)
    return replace(TRANSIENT, kind=next((kind for kind in usual if kind in retry.on), Kind.TRANSIENT))


def _notes(policy: ServicePolicy, at_once: AttemptSchedule, longest: AttemptSchedule) -> Iterator[str]:
    """Yield how the parts of the policy affect each other, as a dry call shows it."""
    kind = _retried(policy.retry).kind
    made = run_dry_call(
        replace(policy, classifier=Classifier(unknown=kind)), Exception("an error that the policy retries")
    )
    if made.attempts < len(at_once.starts):
        yield (f"a call that fails alone makes {made.attempts} of its {len(at_once.starts)} attempts: {made.ends}")
    elif made.opened:
        yield "one call that fails in all its attempts is enough to open the circuit"
    if longest.cut:
        within, most, made_at_most = f"within={policy.retry.within:g}", policy.retry.attempts, len(longest.starts)
        if made_at_most < most:
            yield f"{within} leaves time for {made_at_most} of the {most} attempts at most"
        if (cut_short := 1 - longest.starts[-1].chance) > 0:
            yield f"{within} ends {cut_short * 100:.1f} % of such calls before attempt {made_at_most}"


def _changes(retry: Retry, limit: float | None, sla: float) -> Iterator[str]:
    """Yield changes that make the worst case fit, each of them checked."""
    inside = limit or 0.0

    def worst(other: Retry) -> float:
        return schedule(other, _retried(other), inside=inside).total.worst

    if inside > sla:
        yield f"a timeout below the SLA: one attempt alone may take {format_duration(inside)}"
        return
    fewer = next((n for n in range(min(retry.attempts, 50) - 1, 0, -1) if worst(_quietly(retry, attempts=n)) <= sla), 0)
    if fewer:
        yield f"attempts={fewer}"
    if (left := sla - inside) > 0 and worst(_quietly(retry, within=left)) <= sla:
        yield f"within={left:g}"
    if limit is not None and (waits := schedule(retry, _retried(retry)).total.worst) < sla:
        shorter = int((sla - waits) / retry.attempts * 10) / 10
        if shorter > 0 and schedule(retry, _retried(retry), inside=shorter).total.worst <= sla:
            yield f"timeout={shorter:g}"


def _quietly(retry: Retry, **changes: Any) -> Retry:
    """Return the same with a change, without the warnings that were given when the policy was made."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return replace(retry, **changes)


# ── each part in a sentence ───────────────────────────────────────────────────────────────────────────────────────────


def of_retry(retry: Retry) -> str:
    """Return attempts and waits, as text."""
    if retry.attempts == 1 or not retry.on:
        return "one attempt, no retries"
    kinds = "" if retry.on == REPEATABLE else f", for {', '.join(sorted(map(str, retry.on)))} only"
    return f"up to {retry.attempts} attempts{kinds}; {_waits(retry)}; all within {format_duration(retry.within)}"


def _waits(retry: Retry) -> str:
    base, cap, jitter = retry.base, retry.cap, retry.jitter
    if retry.on == {Kind.RETRY_NOW}:
        base, cap, jitter = min(base, SHORT_BASE), min(cap, SHORT_CAP), "full"
    if base == 0:
        return "no waits between them"
    grows = f"{base:g} s, {retry.multiplier:g} times as long each time, at most {cap:g} s"
    if isinstance(jitter, int | float):
        return f"waits of {grows}, each ± {jitter:.0%}"
    return {
        "full": f"waits from 0 up to {grows}",
        "equal": f"waits in the upper half of {grows}",
        "decorrelated": f"waits from {base:g} s up to three times the last one, at most {cap:g} s",
        "none": f"waits of {grows}, the same for all",
        "fixed": f"waits of {base:g} s, the same for all",
    }[jitter]


def of_breaker(breaker: Breaker | None) -> str:
    """Return when the circuit opens and closes, as text."""
    if breaker is None:
        return "none: a service that is down is still called"
    failures = "1 failure" if breaker.failures == 1 else f"{breaker.failures} failures"
    low, high = breaker.cooldown * (1 - breaker.jitter), breaker.cooldown * (1 + breaker.jitter)
    cooldown = format_duration(low) if low == high else f"{format_duration(low)} to {format_duration(high)}"
    probes = "one probe that succeeds closes" if breaker.probes == 1 else f"{breaker.probes} that succeed close"
    slow = f"; a success of {format_duration(breaker.slow)} counts as a failure" if breaker.slow is not None else ""
    return (
        f"opens after {failures} within {format_duration(breaker.window)}{share_needed(breaker)}; then calls fail at "
        f"once for {cooldown}, and probes go out one at a time, of which {probes} it{slow}"
    )


def of_budget(budget: RetryBudget | None) -> str:
    """Return how many retries there may be, as text."""
    if budget is None:
        return "none: every call may use all its attempts"
    return (
        f"retries are at most {budget.ratio * 100:g} % of the calls of the last {format_duration(budget.window)}, and "
        f"{budget.reserve} more"
    )


def of_keys(policy: ServicePolicy) -> str:
    """Return the keys, by what may be shown of them."""
    keys: KeyPool | None = policy.keys
    if keys is None:
        return "none"
    shown = [name_of(key, service=policy.name, place=place).key_id for place, key in enumerate(keys.keys)]
    listed = ", ".join(key if key.startswith("token") else f"…{key}" for key in shown)
    if all(key.startswith("token") for key in shown):
        return f"{listed}; refreshed after a 401, once per call"
    cooldown = (
        f"until {keys.resets}" if isinstance(keys.resets, str) else f"for {format_duration(_length(keys.resets))}"
    )
    others = ", and the call is retried at once with another" if len(shown) > 1 else ""
    return f"{listed}; an exhausted key cools down {cooldown}{others}"


def _length(resets: Any) -> float:
    return resets if isinstance(resets, int | float) else float(resets.total_seconds())


def of_effects(policy: ServicePolicy) -> str:
    """Return which requests are retried, as text."""
    if policy.idempotent is True:
        return "every request, commit and mail may be retried"
    if policy.idempotent == "key":
        return (
            "every request is sent with an Idempotency-Key, and may be retried; a commit or mail that may have taken "
            "effect is not"
        )
    return "a POST, PATCH, commit or mail is not retried once it may have taken effect"


def of_rules(policy: ServicePolicy) -> str:
    """Return the user's own rules, as text."""
    rules = policy.classifier.rules
    unknown = "" if policy.classifier.unknown is None else f"unknown errors are {policy.classifier.unknown}"
    named = ", ".join(f"{rule.name} → {rule.kind}" for rule in rules)
    return "; ".join(filter(None, (named, unknown))) or "the built-in table"


def document(found: PolicyExplanation) -> dict[str, Any]:
    """Return the answer as a JSON document."""
    policy, sla = found.policy, found.sla
    return {
        "about": "policy",
        "policy": policy.name,
        "retry": of_retry(policy.retry),
        "breaker": of_breaker(policy.breaker),
        "budget": of_budget(policy.budget),
        "credentials": of_keys(policy),
        "effects": of_effects(policy),
        "rules": of_rules(policy),
        "timeout": found.timeout,
        "sla": sla,
        "attempts": [
            {
                "attempt": start.attempt,
                "wait": seconds(start.wait),
                "at": seconds(start.at),
                "chance": round(start.chance, 4),
            }
            for start in found.schedule.starts
        ],
        "at_once": _total(found.at_once, sla),
        "timed_out": None if found.timed_out is None else _total(found.timed_out, sla),
        "notes": list(found.notes),
        "changes": list(found.changes),
    }


def _total(planned: AttemptSchedule, sla: float | None) -> dict[str, Any]:
    return {
        **seconds(planned.total),
        "fits": None if sla is None else fits(planned.total, sla),
        "simulated_calls": planned.calls,
    }
