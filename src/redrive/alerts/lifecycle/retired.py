"""Alerts of a pipeline, flow or service that is forgotten: nothing is going to resolve them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from uuid import UUID

from redrive.alerts.facts.runs import variant_of
from redrive.alerts.facts.snapshot import Judgement
from redrive.model.alerts import Alert, Subject

_OF_RUNS = ("failed", "gate", "few_rows", "growing", "duration")
_LEVELS = ("lost", "duration", "stale", "pending", "old_letters")


def is_about(alert: Alert, name: str, kinds: Collection[str]) -> bool:
    """Return whether an alert is about this, and no other pipeline or flow shares it."""
    if alert.subject.name != name or alert.subject.kind not in kinds:
        return False
    return alert.subject.kind == "service" or set(alert.facts.affected) <= {name}


def withdraw(subject: Subject, run_ids: Iterable[UUID] = (), params: Iterable[str] = ()) -> Judgement:
    """Return the judgement that withdraws all evidence of a pipeline or flow from the alerts it shares with others."""
    idents = {subject.ident}
    for one in params:
        variant = variant_of(one)
        idents.add(f"{subject.ident}#{variant}" if variant else subject.ident)
    judged = {f"run:{ident}:{what}" for ident in idents for what in _OF_RUNS}
    judged |= {f"level:{what}:{ident}" for ident in idents for what in _LEVELS}
    return Judgement(
        judged=frozenset({*judged, f"sla:{subject.ident}", f"sla_risk:{subject.ident}"}),
        judged_under=frozenset(f"{what}:{run_id}:" for run_id in run_ids for what in ("dead", "task_sla")),
    )
