"""The outcome of the demo, read from the store: every figure of the story comes from there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redrive.model.alerts import Alert, Send, SendStatus, What
from redrive.model.tasks import State
from redrive.store.repositories.services import merge_windows

if TYPE_CHECKING:
    from redrive.model.letters import Cause
    from redrive.store.repositories.service_state import ServiceState
    from redrive.store.repositories.tasks import AttemptRow, TaskRow
    from redrive.store.store import Store

FLOW = "settlement"
_TASK, _KILLED = "task", "timed_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertWithMessages:
    """An alert, and the messages about it that were delivered."""

    alert: Alert
    messages: tuple[Send, ...]

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels that reported the problem."""
        return tuple(dict.fromkeys(message.channel for message in self.messages if message.what is not What.RESOLVED))


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """The outcome of the demo so far."""

    calls: Mapping[str, int]
    """Failed attempts of calls, by kind."""
    calls_lost: int
    """Calls that failed after all their attempts."""
    attempts: Mapping[str, int]
    """Failed attempts of tasks: by the kind of error, `timed_out` for those that were killed."""
    not_recovered: int
    """Failed attempts of tasks that have not succeeded since."""
    killed: tuple[str, ...]
    """Tasks that exceeded their timeout and were killed."""
    services: tuple[ServiceState, ...]
    causes: tuple[Cause, ...]
    """The causes of what was quarantined, whatever the status of the letters."""
    alerts: tuple[AlertWithMessages, ...]

    @property
    def failed(self) -> int:
        """Failed attempts of calls and of tasks."""
        return sum(self.calls.values()) + sum(self.attempts.values())

    @property
    def recovered(self) -> int:
        """Failed attempts after which another attempt succeeded."""
        return self.failed - self.calls_lost - self.not_recovered

    @property
    def errors(self) -> int:
        """The number of errors that would be reported if every error were."""
        return self.failed + sum(cause.count for cause in self.causes if cause.error_type != _TASK)

    @property
    def letters(self) -> int:
        """The number of quarantined records."""
        return sum(cause.count for cause in self.causes)

    @property
    def messages(self) -> int:
        """The number of messages that were delivered."""
        return sum(len(alert.messages) for alert in self.alerts)

    def document(self) -> dict[str, Any]:
        """Return the outcome as a JSON document."""
        return {
            "failed_attempts": {"calls": dict(self.calls), "tasks": dict(self.attempts)},
            "calls_lost": self.calls_lost,
            "healed": self.recovered,
            "killed": list(self.killed),
            "letters": [
                {
                    "cause": cause.fingerprint,
                    "pipelines": list(cause.pipelines),
                    "message": cause.message,
                    "letters": cause.count,
                    "by_status": dict(cause.by_status),
                }
                for cause in self.causes
            ],
            "alerts": [
                {
                    "id": each.alert.id,
                    "urgency": str(each.alert.urgency),
                    "title": each.alert.title,
                    "status": str(each.alert.status),
                    "messages": [{"channel": send.channel, "what": str(send.what)} for send in each.messages],
                }
                for each in self.alerts
            ],
            "messages": self.messages,
            "errors": self.errors,
        }


def look(store: Store) -> DemoOutcome:
    """Read the outcome from the store."""
    totals = merge_windows(store.services.totals())
    attempts = _failed_attempts(store)
    return DemoOutcome(
        calls={kind: count for kind, count in totals.failures.items() if count},
        calls_lost=totals.calls_failed,
        attempts=Counter(_kind_of(attempt) for _, attempt in attempts),
        not_recovered=sum(task.state is not State.SUCCESS for task, _ in attempts),
        killed=tuple(dict.fromkeys(task.name for task, attempt in attempts if attempt.ended == _KILLED)),
        services=tuple(store.shared.services()),
        causes=tuple(store.dlq.causes(status=("pending", "escalated", "reprocessed", "discarded"))),
        alerts=tuple(
            AlertWithMessages(alert=alert, messages=_delivered(store, alert)) for alert in reversed(store.alerts.find())
        ),
    )


def in_the_table(table: str) -> tuple[int, int]:
    """Return the number of rows in a table of the warehouse, and of different keys among them."""
    import duckdb

    with duckdb.connect("warehouse.duckdb") as warehouse:
        counts = warehouse.execute(f"SELECT count(*), count(DISTINCT delivery_id) FROM {table}").fetchone()
    rows, keys = counts or (0, 0)
    return rows, keys


def _failed_attempts(store: Store) -> list[tuple[TaskRow, AttemptRow]]:
    return [
        (task, attempt)
        for run in store.tasks.runs(flow=FLOW)
        for task in store.tasks.find(run.run_id)
        if task.attempts
        for attempt in store.tasks.get(run.run_id, task.name).attempts
        if attempt.error is not None
    ]


def _kind_of(attempt: AttemptRow) -> str:
    return _KILLED if attempt.ended == _KILLED else attempt.kind or "unknown"


def _delivered(store: Store, alert: Alert) -> tuple[Send, ...]:
    return tuple(send for send in store.alerts.sends(alert.id) if send.status is SendStatus.SENT)
