"""Rules: what a snapshot means, as conditions with a severity; used by `redrive.alerts.service`.

`of_run` applies the rules on a run by its status, `of_levels` those on a snapshot of the levels. Rules are pure
functions. Evidence that was evaluated without a finding is withdrawn from its alerts; evidence that a rule could not
evaluate is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.facts.snapshot import Judgement, LevelSnapshot, RunSnapshot
from redrive.alerts.rules import levels, run_levels, services
from redrive.alerts.rules.run_levels import at_risk, late_tasks
from redrive.alerts.rules.runs import dead, errors, exited, few_rows, growing, late, recovered, rejects, took

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
    run_levels.deadlines,
    run_levels.freshness,
    levels.table_freshness,
    run_levels.lost,
    run_levels.durations,
    run_levels.dead_tasks,
    run_levels.under_way,
    services.down,
    services.refused,
    services.client_errors,
    services.server_errors,
    services.calls_failing,
    services.retries,
    levels.pending,
    levels.pending_in_all,
    levels.old_letters,
    levels.sizes,
    levels.row_counts,
    levels.slots,
    levels.consumers,
    levels.defined_conditions,
    levels.monitors,
)

_TASK_EVIDENCE = ("dead:", "task_sla:")
"""Prefixes of evidence about the tasks of a single run, which later runs do not change."""
_ROW_EVIDENCE = ":gate"
"""Suffix of evidence about rejected rows, which stay quarantined whatever later runs do."""


def of_run(run: RunSnapshot, settings: AlertSettings, *, now: datetime) -> Judgement:
    """Return the judgement of a run by its current state."""
    rules = RUN_RULES.get(run.status, ())
    return sum((rule(run, settings, now) for rule in rules), Judgement())


def of_levels(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return the judgement of a snapshot of the levels."""
    return sum((rule(snapshot, settings) for rule in LEVEL_RULES), Judgement())


def keep_run_evidence(judgement: Judgement) -> Judgement:
    """Return the part of a judgement that is about one run alone, for a run after which others have ended."""

    def is_own(evidence: str) -> bool:
        return evidence.startswith(_TASK_EVIDENCE) or evidence.endswith(_ROW_EVIDENCE)

    return Judgement(
        findings=tuple(finding for finding in judgement.findings if is_own(finding.evidence)),
        judged=frozenset(evidence for evidence in judgement.judged if is_own(evidence)),
        judged_under=frozenset(prefix for prefix in judgement.judged_under if prefix.startswith(_TASK_EVIDENCE)),
    )
