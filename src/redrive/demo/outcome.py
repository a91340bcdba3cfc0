"""What happened, as the store tells it: no figure of the story comes from anywhere else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redrive.model.alerts import Alert, Send, SendStatus, What
from redrive.model.tasks import State
from redrive.store.repositories.services import together

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
        """Who heard that it is so."""
        return tuple(dict.fromkeys(one.channel for one in self.messages if one.what is not What.RESOLVED))


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """The demo so far."""

    calls: Mapping[str, int]
    """Attempts of calls that failed, by kind."""
    calls_lost: int
    """Calls that came to nothing, after all their attempts."""
    attempts: Mapping[str, int]
    """Attempts of tasks that failed: by the kind of error, `timed_out` for those that were killed."""
    unhealed: int
    """Of these, attempts of tasks that have not succeeded since."""
    killed: tuple[str, ...]
    """Tasks that ran into their limit and were ended."""
    services: tuple[ServiceState, ...]
    causes: tuple[Cause, ...]
    """What was quarantined, whatever has become of it."""
    told: tuple[AlertWithMessages, ...]

    @property
    def failed(self) -> int:
        """Attempts that failed, of calls and of tasks."""
        return sum(self.calls.values()) + sum(self.attempts.values())

    @property
    def healed(self) -> int:
        """Of these, the ones after which another attempt succeeded."""
        return self.failed - self.calls_lost - self.unhealed

    @property
    def errors(self) -> int:
        """All that went wrong, as somebody would count it who is told of every error."""
        return self.failed + sum(one.count for one in self.causes if one.error_type != _TASK)

    @property
    def letters(self) -> int:
        """All that was quarantined."""
        return sum(one.count for one in self.causes)

    @property
    def messages(self) -> int:
        """Messages that were delivered."""
        return sum(len(one.messages) for one in self.told)

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "failed_attempts": {"calls": dict(self.calls), "tasks": dict(self.attempts)},
            "calls_lost": self.calls_lost,
            "healed": self.healed,
            "killed": list(self.killed),
            "letters": [
                {
                    "cause": one.fingerprint,
                    "pipelines": list(one.pipelines),
                    "message": one.message,
                    "letters": one.count,
                    "by_status": dict(one.by_status),
                }
                for one in self.causes
            ],
            "alerts": [
                {
                    "id": one.alert.id,
                    "urgency": str(one.alert.urgency),
                    "title": one.alert.title,
                    "status": str(one.alert.status),
                    "messages": [{"channel": send.channel, "what": str(send.what)} for send in one.messages],
                }
                for one in self.told
            ],
            "messages": self.messages,
            "errors": self.errors,
        }


def look(store: Store) -> DemoOutcome:
    """Ask the store."""
    did = together(store.services.totals())
    attempts = _failed_attempts(store)
    return DemoOutcome(
        calls={kind: count for kind, count in did.failures.items() if count},
        calls_lost=did.calls_failed,
        attempts=Counter(_how(one) for _, one in attempts),
        unhealed=sum(task.state is not State.SUCCESS for task, _ in attempts),
        killed=tuple(dict.fromkeys(task.name for task, one in attempts if one.ended == _KILLED)),
        services=tuple(store.shared.services()),
        causes=tuple(store.dlq.causes(status=("pending", "escalated", "reprocessed", "discarded"))),
        told=tuple(
            AlertWithMessages(alert=one, messages=_delivered(store, one)) for one in reversed(store.alerts.find())
        ),
    )


def in_the_table(table: str) -> tuple[int, int]:
    """Rows in a table of the warehouse, and different keys among them."""
    import duckdb

    with duckdb.connect("warehouse.duckdb") as warehouse:
        found = warehouse.execute(f"SELECT count(*), count(DISTINCT delivery_id) FROM {table}").fetchone()
    rows, keys = found or (0, 0)
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


def _how(attempt: AttemptRow) -> str:
    return _KILLED if attempt.ended == _KILLED else attempt.kind or "unknown"


def _delivered(store: Store, alert: Alert) -> tuple[Send, ...]:
    return tuple(one for one in store.alerts.sends(alert.id) if one.status is SendStatus.SENT)
