"""Selection of the alerts of a forgotten pipeline, flow or service; used by `Alerts.retire`.

No later judgement resolves these alerts, because nothing is left to judge.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from uuid import UUID

from redrive.alerts.facts.runs import variant_of
from redrive.alerts.facts.snapshot import Judgement
from redrive.model.alerts import Alert, Subject

_RUN_EVIDENCE = ("failed", "gate", "few_rows", "growing", "duration")
_LEVEL_EVIDENCE = ("lost", "duration", "stale", "pending", "old_letters")


def is_about(alert: Alert, name: str, kinds: Collection[str]) -> bool:
    """Return whether an alert is about this pipeline, flow or service alone, without other members."""
    if alert.subject.name != name or alert.subject.kind not in kinds:
        return False
    return alert.subject.kind == "service" or set(alert.facts.affected) <= {name}


def withdraw(subject: Subject, run_ids: Iterable[UUID] = (), params: Iterable[str] = ()) -> Judgement:
    """Return the judgement that withdraws all evidence of a pipeline or flow from the alerts it shares with others."""
    idents = {subject.ident}
    for run_params in params:
        variant = variant_of(run_params)
        idents.add(f"{subject.ident}#{variant}" if variant else subject.ident)
    judged = {f"run:{ident}:{kind}" for ident in idents for kind in _RUN_EVIDENCE}
    judged |= {f"level:{kind}:{ident}" for ident in idents for kind in _LEVEL_EVIDENCE}
    return Judgement(
        judged=frozenset({*judged, f"sla:{subject.ident}", f"sla_risk:{subject.ident}"}),
        judged_under=frozenset(f"{kind}:{run_id}:" for run_id in run_ids for kind in ("dead", "task_sla")),
    )
