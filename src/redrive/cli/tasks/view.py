"""Tasks as they may be shown: what is a secret, or named as one in the settings, is masked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from redrive._internal.masking import mask, mask_all
from redrive.cli.letter_view import plain
from redrive.store.encoding import encode

if TYPE_CHECKING:
    from redrive.store.repositories.tasks import AttemptRow, ChangeRow, TaskCause, TaskDetails, TaskRow
    from redrive.store.store import Store


class TaskView:
    """Makes documents of tasks, of what went wrong with them, and of all that happened to one."""

    def __init__(self, store: Store) -> None:
        self._redactor = store.dlq.redactor
        self._log = store.tasks

    def tasks(self, rows: Sequence[TaskRow]) -> list[dict[str, Any]]:
        """Return tasks as documents, in the order of their fields."""
        errors = [row.id for row in rows if row.error is not None]
        inputs = self._log.inputs(errors) if self._redactor.fields and errors else {}
        return [self._task(row, inputs.get(row.id)) for row in rows]

    def causes(self, run_id: UUID) -> list[dict[str, Any]]:
        """Return the causes of failures in a run."""
        return [self.cause(cause, run_id) for cause in self._log.causes(run_id)]

    def cause(self, cause: TaskCause, run_id: UUID) -> dict[str, Any]:
        """Show a cause. Where values are to be masked, one task of it is read, whose values are known."""
        error = mask(cause.error or "")
        if self._redactor.fields:
            (shown,) = self.tasks(self._log.find(run_id, name=cause.sample, limit=1))
            error = shown["error"] or ""
        return {
            "cause": cause.cause,
            "task": cause.task,
            "tasks": cause.count,
            "untried": cause.untried,
            "kind": cause.kind,
            "error": error,
            "sample": cause.sample,
        }

    def details(self, found: TaskDetails) -> dict[str, Any]:
        """Return one task with its attempts and changes, complete."""
        return {
            **self._task(found.task, found.input),
            "input": self.value(found.input),
            "result": self.value(found.result),
            "result_file": found.result_file,
            "attempted": [self._attempt(attempt, found.input) for attempt in found.attempts],
            "changes": [self._change(change, found.input) for change in found.changes],
        }

    def value(self, value: Any) -> Any:
        """Return the input or the result of a task as a JSON value."""
        return mask_all(json.loads(encode(self._redactor.record(value))))

    def text(self, text: str | None, given: Any) -> str | None:
        """Return the output or the error of a task, with the redacted values of its input masked."""
        return None if text is None else self._redactor.text(text, given)

    def _task(self, row: TaskRow, given: Any) -> dict[str, Any]:
        fan_out = {"children": row.children, "remaining": row.remaining, "dead": row.dead, "failed": row.failed}
        return {
            "task": row.name,
            "run_id": str(row.run_id),
            "state": str(row.state),
            "attempts": row.attempts,
            "error": self.text(row.error, given),
            "kind": row.kind,
            "cause": row.cause,
            "due_at": plain(row.due_at),
            "started_at": plain(row.started_at),
            "ended_at": plain(row.ended_at),
            "seconds": _rounded(row.seconds),
            "note": self.text(row.note, given),
            **(fan_out if row.children is not None else {}),
        }

    def _attempt(self, one: AttemptRow, given: Any) -> dict[str, Any]:
        return {
            "attempt": one.attempt,
            "started_at": plain(one.started_at),
            "ended_at": plain(one.ended_at),
            "ended": one.ended,
            "seconds": _rounded(one.seconds),
            "kind": one.kind,
            "error": self.text(one.error, given),
            "cause": one.cause,
            "trace": self.text(one.trace, given),
            "output": self.text(one.output, given),
        }

    def _change(self, one: ChangeRow, given: Any) -> dict[str, Any]:
        return {
            "at": plain(one.at),
            "before": str(one.before),
            "after": str(one.after),
            "cause": self.text(one.cause, given),
        }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
