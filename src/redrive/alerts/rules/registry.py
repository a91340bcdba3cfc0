"""What is worth telling people: which rules look at a run as it stands, and which at everything that is a level.

All of it is pure. `CONDITIONS` is the table of what there is; the rules themselves are in `run_rules`, `level_rules`
and `service_rules`. What a rule has looked at and does not find any more is withdrawn from the alerts that rest on it;
what it could not look at, or is not certain of, it leaves as it is.
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
    # Stopped by its gate: its rows are counted, and nothing has failed.
    "aborted": (late, rejects, growing, took),
    "held": (errors, late, at_risk, late_tasks, took, dead),
    # Told to stop, by a deploy or a person: what is not certain yet is judged when it has gone on. Code of the pipeline
    # that calls sys.exit is an error all the same.
    "stopped": (exited, late, took, dead),
    "running": (errors, late, at_risk, late_tasks, dead),
    "abandoned": (at_risk, late_tasks, dead),
}
"""By how the run stands."""

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
    """What is to be said of a run as it stands."""
    rules = RUN_RULES.get(run.status, ())
    return sum((rule(run, settings, now) for rule in rules), Judgement())


def of_levels(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """What is to be said of everything that is a level."""
    return sum((rule(snapshot, settings) for rule in LEVEL_RULES), Judgement())
