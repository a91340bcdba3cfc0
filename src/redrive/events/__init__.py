"""The event types that every runtime publishes, for hooks; logs, metrics, traces and alerts use the same events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redrive._internal.lazy_names import exported

if TYPE_CHECKING:
    from redrive.events.bus import (
        on_event,
    )
    from redrive.model.calls import (
        Attempt,
        BreakerChanged,
        CallEvent,
        CallFailed,
        Event,
        FallbackUsed,
        KeyCooled,
        TokenRefreshed,
    )
    from redrive.model.letters import (
        LetterEvent,
        LettersChanged,
        LettersPurged,
        LettersPut,
        LettersReplayed,
    )
    from redrive.model.runs import (
        BatchQuarantined,
        BatchRetried,
        BatchShrunk,
        BatchWritten,
        ColumnsIgnored,
        GateJudged,
        RunEnded,
        RunEvent,
        RunStarted,
    )
    from redrive.model.tasks import (
        FlowEnded,
        FlowEvent,
        FlowStarted,
        GroupHeld,
        SlaAtRisk,
        TaskEnded,
        TaskFailed,
        TaskRetried,
        TasksDead,
    )

_HOMES = {
    "redrive.events.bus": ("on_event",),
    "redrive.model.calls": (
        "Attempt",
        "BreakerChanged",
        "CallEvent",
        "CallFailed",
        "Event",
        "FallbackUsed",
        "KeyCooled",
        "TokenRefreshed",
    ),
    "redrive.model.letters": (
        "LetterEvent",
        "LettersChanged",
        "LettersPurged",
        "LettersPut",
        "LettersReplayed",
    ),
    "redrive.model.runs": (
        "BatchQuarantined",
        "BatchRetried",
        "BatchShrunk",
        "BatchWritten",
        "ColumnsIgnored",
        "GateJudged",
        "RunEnded",
        "RunEvent",
        "RunStarted",
    ),
    "redrive.model.tasks": (
        "FlowEnded",
        "FlowEvent",
        "FlowStarted",
        "GroupHeld",
        "SlaAtRisk",
        "TaskEnded",
        "TaskFailed",
        "TaskRetried",
        "TasksDead",
    ),
}

__all__ = [
    "Attempt",
    "BatchQuarantined",
    "BatchRetried",
    "BatchShrunk",
    "BatchWritten",
    "BreakerChanged",
    "CallEvent",
    "CallFailed",
    "ColumnsIgnored",
    "Event",
    "FallbackUsed",
    "FlowEnded",
    "FlowEvent",
    "FlowStarted",
    "GateJudged",
    "GroupHeld",
    "KeyCooled",
    "LetterEvent",
    "LettersChanged",
    "LettersPurged",
    "LettersPut",
    "LettersReplayed",
    "RunEnded",
    "RunEvent",
    "RunStarted",
    "SlaAtRisk",
    "TaskEnded",
    "TaskFailed",
    "TaskRetried",
    "TasksDead",
    "TokenRefreshed",
    "on_event",
]

__getattr__ = exported(__name__, _HOMES)


def __dir__() -> list[str]:
    return list(__all__)
