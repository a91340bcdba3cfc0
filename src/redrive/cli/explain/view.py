"""Explanations on a terminal: one error as fields, several as a table, a policy with its attempts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redrive._internal.masking import mask, mask_all
from redrive.cli.format import in_a_line, percent
from redrive.cli.output import Column, Output
from redrive.explain import policy_text
from redrive.explain.dry_call import DEFAULT, ServicePolicy
from redrive.explain.explanation import SCOPES, Explanation, document, explain, lasting
from redrive.explain.policy_text import PolicyExplanation, explain_policy
from redrive.explain.schedule import fits
from redrive.model.calls import format_duration

if TYPE_CHECKING:
    from redrive.explain.question import Question
    from redrive.explain.schedule import AttemptSchedule, Duration
    from redrive.model.calls import Scope

_SURE = 0.995  # as good as certain
_FACTS = (Column(title="what"), Column(title="value", least=20, wrap=True, whole=True))
_ERRORS = (
    Column(title="what", least=20),
    Column(title="read as", least=20, drop=3),
    Column(title="kind"),
    Column(title="in a row", drop=1),
    Column(title="in a task", drop=2),
    Column(title="rule", least=20, drop=4),
    Column(title="reason", least=24, drop=5),
)


def show(
    out: Output,
    asked: Sequence[ServicePolicy | Question],
    policy: ServicePolicy,
    *,
    scope: Scope | None,
    timeout: float | None,
    sla: float | None,
) -> None:
    """Print all explanations, errors first."""
    found = [
        explain_policy(one, timeout=timeout, sla=sla)
        if isinstance(one, ServicePolicy)
        else explain(one, policy, scope=scope or "call", timeout=timeout, sla=sla)
        for one in asked
    ]
    if out.json:
        out.document([mask_all(_document(explained)) for explained in found])
        return
    errors = [explained for explained in found if isinstance(explained, Explanation)]
    if len(errors) == 1:
        out.table(_FACTS, _facts(errors[0], (scope,) if scope else SCOPES))
    elif errors:
        out.table(_ERRORS, [_row(error) for error in errors])
    for one in found:
        if isinstance(one, PolicyExplanation):
            _show_policy(out, one)


def _document(found: Explanation | PolicyExplanation) -> dict[str, Any]:
    return document(found) if isinstance(found, Explanation) else policy_text.document(found)


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _row(found: Explanation) -> list[Any]:
    verdict = found.verdict
    kinds = [str(found.verdicts[scope].kind) for scope in ("row", "task")]
    cells = [found.question.what, found.question.read_as, str(verdict.kind), *kinds, verdict.rule, verdict.reason]
    return [mask(in_a_line(cell)) for cell in cells]


def _facts(found: Explanation, scopes: Sequence[Scope]) -> list[tuple[str, str]]:
    verdict, question = found.verdict, found.question
    whose = "built in" if found.built_in else f"of {found.policy.name}"
    rows = [
        ("asked", question.what),
        ("read as", question.read_as),
        ("note", question.note or ""),
        ("kind", str(verdict.kind)),
        ("reason", verdict.reason),
        ("detail", verdict.detail or ""),
        ("rule", f"{verdict.rule}, {whose}"),
        ("by the policy", "" if found.policy is DEFAULT else found.policy.name),
        *((f"in a {scope}", _does(found, scope)) for scope in scopes),
        ("in the SLA", _kept(found) if "call" in scopes else ""),
        ("effects", found.effects if "call" in scopes else ""),
        ("breaker", found.breaker if "call" in scopes else ""),
        ("alerts", found.alerts),
        ("do", found.advice),
        ("to change it", found.change),
    ]
    return [(name, mask(in_a_line(value))) for name, value in rows if value]


def _does(found: Explanation, scope: Scope) -> str:
    kind = found.verdicts[scope].kind
    return found.does(scope) if kind is found.verdict.kind else f"{kind}: {found.does(scope)}"


def _kept(found: Explanation) -> str:
    return "" if found.sla is None else f"{found.fits}, where it is {format_duration(found.sla)}"


# ── policies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _between(wait: Duration) -> str:
    if wait.worst == 0:
        return ""
    return lasting(wait.best) if wait.best == wait.worst else f"{lasting(wait.best)} to {lasting(wait.worst)}"


_ATTEMPTS = (
    Column(title="attempt", right=True),
    Column(title="wait before it", show=_between, drop=2),
    Column(title="earliest", show=lasting, right=True, drop=3),
    Column(title="mean", show=lasting, right=True),
    Column(title="latest", show=lasting, right=True),
    Column(title="made", show=lambda chance: "" if chance is None else percent(chance), right=True, drop=1),
)


def _show_policy(out: Output, found: PolicyExplanation) -> None:
    facts = _policy_facts(found)
    if not out.terminal:
        starts = found.schedule.starts if _has_retries(found) else ()
        out.table(_FACTS, [*facts, *((f"attempt {start.attempt}", _numbers(start.at)) for start in starts)])
        return
    out.table(_FACTS, facts)
    certain = all(start.chance > _SURE for start in found.schedule.starts)
    if len(found.schedule.starts) > 1 and _has_retries(found):
        out.table(
            _ATTEMPTS,
            [
                (
                    start.attempt,
                    start.wait,
                    start.at.best,
                    start.at.mean,
                    start.at.worst,
                    None if certain else start.chance,
                )
                for start in found.schedule.starts
            ],
        )


def _has_retries(found: PolicyExplanation) -> bool:
    return not found.policy.is_part or found.policy.name == "Retry"


def _policy_facts(found: PolicyExplanation) -> list[tuple[str, Any]]:
    policy, limit = found.policy, found.timeout
    parts = {
        "Retry": ("retry", policy_text.of_retry(policy.retry)),
        "Breaker": ("breaker", policy_text.of_breaker(policy.breaker)),
        "RetryBudget": ("budget", policy_text.of_budget(policy.budget)),
        "KeyPool": ("credentials", policy_text.of_keys(policy)),
        "Token": ("credentials", policy_text.of_keys(policy)),
        "Classifier": ("rules", policy_text.of_rules(policy)),
    }
    rows = [("policy", policy.name), *([parts[policy.name]] if policy.is_part else dict(parts.values()).items())]
    if not policy.is_part:
        rows.append(("effects", policy_text.of_effects(policy)))
    if _has_retries(found):
        rows += [
            ("timeout", "" if limit is None else f"{lasting(limit)} for each attempt"),
            ("fails at once", _total(found.at_once, found.sla)),
            ("times out", "" if found.timed_out is None else _total(found.timed_out, found.sla)),
            *(("note", note) for note in found.notes),
            ("to fit the SLA", ", or ".join(found.changes)),
        ]
    return [(name, mask(value)) for name, value in rows if value]


def _total(planned: AttemptSchedule, sla: float | None) -> str:
    total = planned.total
    ways = f"{lasting(total.best)} at best, {lasting(total.mean)} on average, {lasting(total.worst)} at worst"
    text = f"over after {ways}"
    return text if sla is None else f"{text}; within the SLA of {format_duration(sla)} {fits(total, sla)}"


def _numbers(span: Duration) -> list[float]:
    return [round(number, 3) for number in (span.best, span.mean, span.worst)]
