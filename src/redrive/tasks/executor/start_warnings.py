"""Warnings at the start of a run: retries that may exceed the SLA, idempotency keys that were used before."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from redrive.model.calls import format_duration
from redrive.policy.option_checks import warn
from redrive.policy.time_of_day import TimeOfDay
from redrive.tasks.graph import listed, longest_way, worst_case
from redrive.tasks.state.executor_lease import StartedRun

if TYPE_CHECKING:
    from redrive.tasks.flow import Flow


def warn_of_sla(flow: Flow) -> None:
    """Warn if the retries of the run may exceed its SLA."""
    if flow.sla is None:
        return
    now, sla = datetime.now(UTC), flow.sla
    left = (sla.after(now) - now).total_seconds() if isinstance(sla, TimeOfDay) else sla
    worst = longest_way(flow.graph, worst_case)
    if worst > left:
        warn(
            f"flow {flow.name!r} is to be done in {format_duration(left)}, and its tasks may take "
            f"{format_duration(worst)}, one after another with all their retries: shorten their timeouts or the waits"
        )


def warn_of_known_keys(flow: Flow, started: StartedRun) -> None:
    """Warn if services may take the work of this run for that of a complete one."""
    known = [node.name for node in flow.graph.nodes.values() if node.binding.wants_key and node.key is None]
    if known and started.done_before is not None:
        warn(
            f"flow {flow.name!r} was complete with these parameters at {started.done_before:%Y-%m-%d %H:%M} "
            f"UTC: {listed(known)} of this run {'has' if len(known) == 1 else 'have'} the same idempotency keys, "
            "so services that know them do nothing. If this is other work, tell it apart by a parameter"
        )
