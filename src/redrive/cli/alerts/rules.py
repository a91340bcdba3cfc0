"""`redrive alerts rules`: alert conditions, with their severity and thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redrive._internal.masking import mask
from redrive.cli.alerts.noun import (
    OFF,
    app,
)
from redrive.cli.command import command
from redrive.cli.format import style_of
from redrive.cli.output import Column
from redrive.cli.session import Session

if TYPE_CHECKING:
    from redrive.alerts.conditions import Condition
    from redrive.alerts.config.settings import AlertSettings, ConditionSettings

_SPANS = (("d", 86_400), ("h", 3_600), ("min", 60))


_RULE_COLUMNS = (
    Column(title="urgency", heading="severity", style=style_of),
    Column(title="condition"),
    Column(title="when", least=40, wrap=True),
    Column(title="set by", least=24, wrap=True),
)


@command(app)
def rules(session: Session) -> None:
    """List every alert condition, with its severity and the thresholds set here.

    Examples: redrive alerts rules; redrive alerts rules --json
    """
    from redrive.alerts.conditions import CONDITIONS

    with session.opened() as store:
        settings = store.alerts.settings
    out = session.out
    if out.json:
        own = [_defined_rule(name, one) for name, one in settings.defined.items()]
        out.document([*(_rule(condition, settings) for condition in CONDITIONS.values()), *own])
    else:
        own_rows = [_defined_row(name, one) for name, one in settings.defined.items()]
        out.table(_RULE_COLUMNS, [*(_rule_row(condition, settings) for condition in CONDITIONS.values()), *own_rows])
    if not settings.enabled:
        out.say(OFF)


def _rule(condition: Condition, settings: AlertSettings) -> dict[str, Any]:
    return {
        "condition": condition.name,
        "urgency": str(condition.urgency),
        "when": condition.words,
        "thresholds": {name: getattr(settings.thresholds, name) for name in condition.thresholds},
        "elsewhere": condition.elsewhere,
    }


def _rule_row(condition: Condition, settings: AlertSettings) -> list[Any]:
    parts = [f"{name} = {_as_set(name, getattr(settings.thresholds, name))}" for name in condition.thresholds]
    if condition.elsewhere is not None:
        own = condition.elsewhere.removeprefix("[alerts] ")
        is_own = own != condition.elsewhere
        parts.append(f"{own} = {_as_set(own, getattr(settings, own))}" if is_own else condition.elsewhere)
    return [condition.urgency, condition.name, condition.words, ", ".join(parts)]


def _defined_rule(name: str, own: ConditionSettings) -> dict[str, Any]:
    limits = {limit: getattr(own, limit) for limit in ("above", "below") if getattr(own, limit) is not None}
    when = mask(own.title or f"a number of your own: {own.metric or own.query or own.probe}")
    return {
        "condition": name,
        "urgency": str(own.severity),
        "when": when,
        "thresholds": limits,
        "elsewhere": f"[conditions.{name}]",
    }


def _defined_row(name: str, own: ConditionSettings) -> list[Any]:
    rule = _defined_rule(name, own)
    limits = [f"{limit} = {value:.10g}" for limit, value in rule["thresholds"].items()]
    return [rule["urgency"], name, rule["when"], ", ".join([*limits, rule["elsewhere"]])]


def _as_set(name: str, value: float) -> str:
    """Return a threshold in the form of `redrive.toml`."""
    if name.endswith("_bytes"):
        return f'"{value / 1e9:g}GB"'
    if name.endswith(("_drop", "_share")):
        return f'"{value * 100:g}%"'
    if name in ("persist", "recovery") or name.endswith(("_seconds", "_grace", "silence", "duration_least")):
        unit, size = next((span for span in _SPANS if value and value % span[1] == 0), ("s", 1))
        return f'"{value / size:g}{unit}"'
    return f"{value:_}"
