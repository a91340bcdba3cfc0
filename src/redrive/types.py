"""Types of the values that redrive returns and passes to hooks, for annotations and comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redrive._internal.lazy_names import exported

if TYPE_CHECKING:
    from redrive.alerts.facts.snapshot import (
        Lag,
    )
    from redrive.calls.metrics.counters import (
        CallStats,
    )
    from redrive.model.alerts import (
        Alert,
        AlertFilter,
        AlertStatus,
        Facts,
        Finding,
        Send,
        SendStatus,
        Severity,
        Silence,
        Subject,
    )
    from redrive.model.calls import (
        Failure,
        Kind,
        Scope,
        Verdict,
    )
    from redrive.model.letters import (
        AuditEntry,
        Cause,
        Changed,
        Edit,
        EditReport,
        ErrorType,
        History,
        Imported,
        Letter,
        NewLetter,
        Purged,
        QueueSize,
        ReplayReport,
        Status,
        Stored,
    )
    from redrive.model.runs import (
        Counts,
        Progress,
        Report,
        RunStatus,
        Tier,
    )
    from redrive.model.tasks import (
        Branch,
        FlowProgress,
        FlowReport,
        FlowStatus,
        RunningTask,
        State,
    )

_HOMES = {
    "redrive.alerts.facts.snapshot": ("Lag",),
    "redrive.calls.metrics.counters": ("CallStats",),
    "redrive.model.alerts": (
        "Alert",
        "AlertFilter",
        "AlertStatus",
        "Facts",
        "Finding",
        "Send",
        "SendStatus",
        "Severity",
        "Silence",
        "Subject",
    ),
    "redrive.model.calls": (
        "Failure",
        "Kind",
        "Scope",
        "Verdict",
    ),
    "redrive.model.letters": (
        "AuditEntry",
        "Cause",
        "Changed",
        "Edit",
        "EditReport",
        "ErrorType",
        "History",
        "Imported",
        "Letter",
        "NewLetter",
        "Purged",
        "QueueSize",
        "ReplayReport",
        "Status",
        "Stored",
    ),
    "redrive.model.runs": (
        "Counts",
        "Progress",
        "Report",
        "RunStatus",
        "Tier",
    ),
    "redrive.model.tasks": (
        "Branch",
        "FlowProgress",
        "FlowReport",
        "FlowStatus",
        "RunningTask",
        "State",
    ),
}

__all__ = [
    "Alert",
    "AlertFilter",
    "AlertStatus",
    "AuditEntry",
    "Branch",
    "CallStats",
    "Cause",
    "Changed",
    "Counts",
    "Edit",
    "EditReport",
    "ErrorType",
    "Facts",
    "Failure",
    "Finding",
    "FlowProgress",
    "FlowReport",
    "FlowStatus",
    "History",
    "Imported",
    "Kind",
    "Lag",
    "Letter",
    "NewLetter",
    "Progress",
    "Purged",
    "QueueSize",
    "ReplayReport",
    "Report",
    "RunStatus",
    "RunningTask",
    "Scope",
    "Send",
    "SendStatus",
    "Severity",
    "Silence",
    "State",
    "Status",
    "Stored",
    "Subject",
    "Tier",
    "Verdict",
]

__getattr__ = exported(__name__, _HOMES)


def __dir__() -> list[str]:
    return list(__all__)
