"""Findings of a user's program: the arguments of `store.alerts.open(key=…)` are validated and masked here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from redrive._internal.masking import mask_all
from redrive._internal.tracing import trace_id
from redrive.alerts.delivery.format import TITLE_LENGTH
from redrive.alerts.delivery.safe_text import safe_line
from redrive.model.alerts import Facts, Finding, Severity, Subject

CUSTOM = "custom"
"""The condition of these alerts, and the prefix of their keys and evidence."""
LONGEST_KEY = 200
MOST_FACTS = 20

Fact = str | int | float | bool
"""A value of a fact that a program passes."""


def custom_finding(
    key: str, *, severity: Severity | str, title: str, facts: Facts | Mapping[str, Fact] | None, pipeline: str | None
) -> Finding:
    """Return the finding of an alert that a program opens.

    Raises:
        ValueError: An argument is not valid.
    """
    if not isinstance(title, str) or not title.strip():
        raise ValueError("title must be a text that says what is wrong")
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
