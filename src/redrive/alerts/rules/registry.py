"""The registry of rules: which rules judge a run by its status, and which judge a snapshot of the levels.

Used by `redrive.alerts.service`. Rules are pure functions. Evidence that was evaluated without a finding is withdrawn
from its alerts; evidence that a rule could not evaluate is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from redrive.alerts.conditions import CONDITIONS, Condition
from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.facts.snapshot import Judgement, LevelSnapshot, RunSnapshot
from redrive.alerts.rules import conditions as condition_rules
from redrive.alerts.rules import growth as growth_rules
from redrive.alerts.rules import levels as level_rules
from redrive.alerts.rules import services as service_rules
from redrive.alerts.rules import sla as sla_rules
from redrive.alerts.rules import watch as watch_rules
from redrive.alerts.rules.runs import dead, errors, exited, few_rows, growing, late, recovered, rejects, took
from redrive.alerts.rules.sla import at_risk, late_tasks

__all__ = ["CONDITIONS", "LEVEL_RULES", "RUN_RULES", "Condition", "of_levels", "of_run"]

RunRule = Callable[[RunSnapshot, AlertSettings, datetime], Judgement]
LevelRule = Callable[[LevelSnapshot, AlertSettings], Judgement]

RUN_RULES: Mapping[str, tuple[RunRule, ...]] = {
    "complete": (errors, late, at_risk, late_tasks, rejects, few_rows, growing, took, dead, recovered),
    "failed": (errors, late, took, dead),
    # An aborted run was stopped by its gate: its rows are counted, and nothing has failed.
    "aborted": (late, rejects, growing, took),
    "held": (errors, late, at_risk, late_tasks, took, dead),
    # A run that a deploy or an operator stopped is judged completely after it resumes. A run whose own code calls
    # sys.exit is an error.
    "stopped": (exited, late, took, dead),
    "running": (errors, late, at_risk, late_tasks, dead),
    "abandoned": (at_risk, late_tasks, dead),
}
"""The rules by the status of the run."""

LEVEL_RULES: tuple[LevelRule, ...] = (
    level_rules.deadlines,
    watch_rules.freshness,
    watch_rules.table_freshness,
    level_rules.lost,
    level_rules.durations,
    level_rules.dead_tasks,
    sla_rules.under_way,
    service_rules.down,
    service_rules.refused,
    service_rules.client_errors,
    service_rules.server_errors,
    service_rules.calls_failing,
    service_rules.retries,
    level_rules.pending,
    level_rules.pending_in_all,
    growth_rules.old_letters,
    growth_rules.sizes,
    level_rules.row_counts,
    level_rules.slots,
    level_rules.consumers,
    condition_rules.defined_conditions,
    watch_rules.monitors,
)


def of_run(run: RunSnapshot, settings: AlertSettings, *, now: datetime) -> Judgement:
    """Return the judgement of a run by its current state."""
    rules = RUN_RULES.get(run.status, ())
    return sum((rule(run, settings, now) for rule in rules), Judgement())


def of_levels(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return the judgement of a snapshot of the levels."""
    return sum((rule(snapshot, settings) for rule in LEVEL_RULES), Judgement())
