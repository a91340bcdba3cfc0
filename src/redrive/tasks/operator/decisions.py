"""Operator actions as methods of `Flow`, for programs and notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from redrive.tasks.task import Upstream, shown

if TYPE_CHECKING:  # a worker imports this module, and has no use for a database
    from pathlib import Path

    from redrive.store.store import Store
    from redrive.tasks.operator.actions import OperatorAction
    from redrive.tasks.operator.cancel import TasksCancelled


class Decisions:
    """Results and operator actions of past runs; without `run=`, of the last run in this program."""

    files: Path | None

    def _run(self, run: UUID | str | None) -> tuple[Store, UUID | str]:
        """Return the store and the run to use."""
        raise NotImplementedError

    def result(self, task: Upstream, *, run: UUID | str | None = None) -> Any:
        """Return the result of a task (`settle[17]` for a child); for a fan-out, the list of its children's results."""
        from redrive.tasks.state.results import read_result

        return read_result(*self._run(run), shown(task), self.files)

    def retry(
        self, *tasks: Upstream, cause: str | None = None, note: str | None = None, run: UUID | str | None = None
    ) -> OperatorAction:
        """Send failed tasks back, by name or by cause. The next `run()` retries them and continues from there.

        A task that waits for its next attempt is retried without waiting.
        """
        from redrive.tasks.operator import actions

        return actions.retry(*self._run(run), [shown(task) for task in tasks], cause=cause, note=note)

    def accept(
        self,
        *tasks: Upstream,
        note: str,
        result: Any = None,
        cause: str | None = None,
        run: UUID | str | None = None,
    ) -> OperatorAction:
        """Mark failed tasks as successful with this result. The next `run()` continues with downstream tasks.

        result  the result that downstream tasks receive
        """
        from redrive.tasks.operator import actions

        names = [shown(task) for task in tasks]
        return actions.accept(*self._run(run), names, cause=cause, note=note, result=result)

    def skip(
        self, *tasks: Upstream, note: str, cause: str | None = None, run: UUID | str | None = None
    ) -> OperatorAction:
        """Skip failed children of a fan-out. Downstream tasks receive the results of the others."""
        from redrive.tasks.operator import actions

        return actions.skip(*self._run(run), [shown(task) for task in tasks], cause=cause, note=note)

    def reopen(self, *tasks: Upstream, note: str | None = None, run: UUID | str | None = None) -> OperatorAction:
        """Undo actions on tasks, if no downstream task has run: the tasks become dead letters again."""
        from redrive.tasks.operator import rerun

        return rerun.reopen(*self._run(run), [shown(task) for task in tasks], note=note)

    def rerun(self, *tasks: Upstream, note: str | None = None, run: UUID | str | None = None) -> OperatorAction:
        """Let the next `run()` run tasks that succeeded again, and everything downstream of them."""
        from redrive.tasks.operator import rerun

        return rerun.rerun(*self._run(run), [shown(task) for task in tasks], note=note)

    def cancel_tasks(self, *tasks: Upstream, note: str, run: UUID | str | None = None) -> TasksCancelled:
        """Kill running tasks and fail waiting tasks, for good. Downstream tasks follow their `run_when`."""
        from redrive.tasks.operator import cancel

        return cancel.cancel_tasks(*self._run(run), [shown(task) for task in tasks], note=note)

    def fail(
        self, *tasks: Upstream, note: str, cause: str | None = None, run: UUID | str | None = None
    ) -> OperatorAction:
        """Fail tasks for good. Downstream tasks will not run."""
        from redrive.tasks.operator import actions

        return actions.fail(*self._run(run), [shown(task) for task in tasks], cause=cause, note=note)

    def cancel(self, *, note: str, run: UUID | str | None = None) -> UUID:
        """End a run for good; its executors stop. The next `run()` starts a new run."""
        from redrive.tasks.operator import actions

        return actions.cancel(*self._run(run), note=note)
