"""The table of conditions with their severities and thresholds, and the functions that make findings.

Used by the rules, by the settings, by `redrive alerts rules`, and by `store.alerts.open(key=…)`, whose arguments are
validated and masked here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from redrive._internal.masking import mask_all
from redrive._internal.tracing import trace_id
from redrive.alerts.delivery.format import (
    TITLE_LENGTH,
    safe,
    safe_line,
)
from redrive.model.alerts import Facts, Finding, Severity, Subject

_ERROR_LENGTH = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition that opens an alert when it holds."""

    name: str
    urgency: Severity
    words: str
    """A description for operators."""
    thresholds: tuple[str, ...] = ()
    """The names of its settings in `[alerts.thresholds]`; the first is its limit."""
    elsewhere: str | None = None
    """Other settings that it depends on."""


_P1, _P2, _P3 = Severity.P1, Severity.P2, Severity.P3
_PERSIST = "[alerts] persist"
_RECOVERY = "[alerts] recovery"


def _condition(
    name: str, urgency: Severity, words: str, *thresholds: str, elsewhere: str | None = None
) -> tuple[str, Condition]:
    return name, Condition(name=name, urgency=urgency, words=words, thresholds=thresholds, elsewhere=elsewhere)


CONDITIONS: Mapping[str, Condition] = dict(
    (
        _condition("sla_missed", _P1, "an SLA deadline was missed", "sla_grace", elsewhere="the pipeline's sla"),
        _condition(
            *("stale", _P1, "no run was complete for too long, or a table has no new rows"),
            elsewhere="fresh_within of the pipeline or table",
        ),
        _condition("permanent_error", _P1, "a run ended with a permanent error: credentials, schema, disk full"),
        _condition(
            "rejected", _P1, "more rows of a run were rejected than its gate lets pass", elsewhere="Gate(page=)"
        ),
        _condition("gate_abort", _P1, "a run was aborted by its gate", elsewhere="Gate(abort=, at_least=)"),
        _condition(
            *("few_rows", _P1, "a run read far fewer rows than each of its last runs", "few_rows", "history_least")
        ),
        _condition("dead_task", _P1, "a task is a dead letter and waits for an operator"),
        _condition("auth_refused", _P1, "a service refused a credential for good", "auth_silence"),
        _condition("slot_lag", _P1, "a replication slot lags", "slot_bytes", elsewhere=_PERSIST),
        _condition(
            *("row_count", _P1, "a table has fewer rows than on the same weekday last week", "row_drop"),
            elsewhere=_PERSIST,
        ),
        _condition(
            *(
                "retries_exhausted",
                _P2,
                "a run's retries are exhausted or its executor is lost, and it did not recover",
            ),
            elsewhere=_RECOVERY,
        ),
        _condition(
            *("letters_growing", _P2, "dead letters grow over consecutive runs"),
            *("growing_runs", "growing_rise", "growing_least"),
        ),
        _condition(
            *("sla_at_risk", _P2, "a run or a task with an SLA is not done, and four fifths of its time are over"),
            elsewhere="the flow's and the task's sla",
        ),
        _condition("task_sla_missed", _P2, "a task was not done by its SLA", "sla_grace", elsewhere="the task's sla"),
        _condition(
            *("too_long", _P2, "a run takes longer than a multiple of the 95th percentile of its history"),
            *("too_long", "history_least", "duration_least"),
        ),
        _condition(
            *("service_down", _P2, "a service fails (5xx, no connection, no answer) for minutes, or on and off"),
            *("down_seconds", "down_share", "down_faults", "flap_times", "flap_seconds", "silence"),
        ),
        _condition(
            *("calls_failing", _P2, "a share of a service's calls fails", "calls_failed", "calls_failed_least"),
            elsewhere=_PERSIST,
        ),
        _condition(
            *("consumer_lag", _P2, "a consumer is behind, by messages or by time", "lag_messages", "lag_seconds"),
            elsewhere=_PERSIST,
        ),
        _condition("monitor_failed", _P2, "the watch cannot measure what it should", elsewhere=_PERSIST),
        _condition(
            *("settings_differ", _P2, "a watch stands by with other settings than the one that leads"),
            elsewhere=_PERSIST,
        ),
        _condition("pending_total", _P2, "many letters are open in all", "pending_total", elsewhere=_PERSIST),
        _condition("recovered", _P3, "a run that had failed is complete by itself", elsewhere=_RECOVERY),
        _condition("new_letters", _P3, "a share of a run's rows was rejected", elsewhere="Gate(warn=)"),
        _condition(
            *("pending_day", _P3, "many open letters of one pipeline within a day", "pending_day"),
            elsewhere=_PERSIST,
        ),
        _condition("old_letters", _P3, "letters of a pipeline are open for too long", "letter_age", elsewhere=_PERSIST),
        _condition("letters_size", _P3, "the table of letters is large", "letters_bytes", elsewhere=_PERSIST),
        _condition("store_size", _P3, "the store is large", "store_bytes", elsewhere=_PERSIST),
        _condition(
            *("slow", _P3, "a run takes longer than a multiple of the median of its history"),
            *("slow", "history_least", "duration_least"),
        ),
        _condition("server_errors", _P3, "three calls in a row ended in an answer 5xx", "server_errors"),
        _condition("client_errors", _P3, "calls ended in an answer 4xx", "client_errors"),
        _condition(
            *("retries_rising", _P3, "the mean retries per success rise above what is usual at this hour"),
            *("retries_rise", "retries_spreads", "retries_least", "retries_calls"),
            elsewhere=_PERSIST,
        ),
    )
)
"""The conditions by name, the highest severity first."""
TIERS = {"P3": "new_letters", "P1": "rejected", "abort": "rejected"}
"""The condition of rejected rows by the tier of the gate."""
SETTINGS_DIFFER = "settings_differ"
NO_LONGER = "it no longer holds"
"""The resolution of an alert whose condition cleared."""

CUSTOM = "custom"
"""The condition of alerts that a program opens, and the prefix of their keys and evidence."""
LONGEST_KEY = 200
MOST_FACTS = 20

Fact = str | int | float | bool
"""A value of a fact that a program passes."""


def make_finding(
    condition: str,
    subject: Subject,
    title: str,
    facts: Facts,
    *,
    key: str,
    evidence: str,
    since: datetime | None = None,
    persist: float = 0.0,
    momentary: bool = False,
    group: str | None = None,
    group_title: str | None = None,
) -> Finding:
    """Return a finding of a condition of the table, with its texts masked and on a single line."""
    return Finding(
        key=key,
        condition=condition,
        urgency=CONDITIONS[condition].urgency,
        subject=subject,
        title=safe_line(title, TITLE_LENGTH),
        facts=replace(
            facts,
            error=_safe_text(facts.error),
            cause=_safe_text(facts.cause),
            impact=_safe_text(facts.impact),
            next_step=_safe_text(facts.next_step),
            checkpoint=_safe_text(facts.checkpoint),
            detail=None if facts.detail is None else safe(facts.detail),
        ),
        evidence=evidence,
        since=since,
        persist=persist,
        momentary=momentary,
        group=group,
        group_title=None if group_title is None else safe_line(group_title, TITLE_LENGTH),
    )


def _safe_text(text: str | None) -> str | None:
    return None if text is None else safe_line(text, _ERROR_LENGTH)


def custom_finding(
    key: str, *, severity: Severity | str, title: str, facts: Facts | Mapping[str, Fact] | None, pipeline: str | None
) -> Finding:
    """Return the finding of an alert that a program opens.

    Raises:
        ValueError: An argument is not valid.
    """
    if not isinstance(title, str) or not title.strip():
        raise ValueError("title must be a text that describes the problem")
    if pipeline is not None and (not isinstance(pipeline, str) or not pipeline.strip()):
        raise ValueError("pipeline must be the name of a pipeline or flow")
    alert_key, checked = own_key(key), _check_facts(facts)
    subject = Subject(kind="custom", name=key) if pipeline is None else Subject(kind="pipeline", name=pipeline)
    return Finding(
        key=alert_key,
        condition=CUSTOM,
        urgency=severity_of(severity),
        subject=subject,
        title=safe_line(title, TITLE_LENGTH),
        facts=replace(checked, trace_id=checked.trace_id or trace_id()),
        evidence=alert_key,
    )


def own_key(key: str) -> str:
    """Return the key of the alert of a program, with a prefix that separates it from the keys of rules."""
    if not isinstance(key, str) or not key.strip() or not key.isprintable() or len(key) > LONGEST_KEY:
        raise ValueError(f"key must be a printable text of 1 to {LONGEST_KEY} characters")
    return f"{CUSTOM}:{key}"


def severity_of(value: Severity | str) -> Severity:
    """Return the severity with this name; raise `ValueError` for any other text."""
    try:
        return Severity(value)
    except ValueError:
        raise ValueError(f"severity must be one of {', '.join(Severity)}, not {value!r}") from None


def _check_facts(facts: Facts | Mapping[str, Fact] | None) -> Facts:
    if facts is None:
        return Facts()
    if isinstance(facts, Facts):  # a secret is recognized by its name, too
        return replace(facts, named=mask_all(facts.named), environment=mask_all(facts.environment))
    if not isinstance(facts, Mapping):
        raise ValueError("facts must be a mapping of names to values, or redrive.types.Facts")
    if len(facts) > MOST_FACTS:
        raise ValueError(f"facts may have at most {MOST_FACTS} entries, not {len(facts)}")
    return Facts(named={_check_name(name): _check_value(name, value) for name, value in facts.items()})


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"facts must have texts as names, not {name!r}")
    return name


def _check_value(name: str, value: object) -> Fact:
    if isinstance(value, str):
        masked: Fact = mask_all({name: value})[name]  # a secret is recognized by its name, too
        return masked
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(f"facts[{name!r}] must be a text, a finite number or a bool, not {type(value).__name__}")
