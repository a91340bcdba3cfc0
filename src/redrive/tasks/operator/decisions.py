"""Decisions: what an operator asks and decides about the runs of a flow, from a program."""

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
    """The part of a flow that is about runs that were: without `run=`, the one that this program has run last."""

    files: Path | None

    def _run(self, run: UUID | str | None) -> tuple[Store, UUID | str]:
        """Return the store and the run that is meant."""
        raise NotImplementedError

    def result(self, task: Upstream, *, run: UUID | str | None = None) -> Any:
        """What a task returned, `settle[17]` for a child; of a fan-out, the list of what its children did."""
        from redrive.tasks.state.results import read_result

        return read_result(*self._run(run), shown(task), self.files)

    def retry(
        self, *tasks: Upstream, cause: str | None = None, note: str | None = None, run: UUID | str | None = None
    ) -> OperatorAction:
        """Send tasks back that went wrong, by name or by cause. The next `run()` tries them, and goes on from there.

        One that waits for its next attempt makes it now.
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
        """Take tasks that went wrong as done, with this result. The next `run()` goes on with what comes after them.

        result  what the tasks after it are given
        """
        from redrive.tasks.operator import actions

        names = [shown(task) for task in tasks]
        return actions.accept(*self._run(run), names, cause=cause, note=note, result=result)

    def skip(
        self, *tasks: Upstream, note: str, cause: str | None = None, run: UUID | str | None = None
    ) -> OperatorAction:
        """Leave children of a fan-out that went wrong out. What comes after it is given the results of the others."""
        from redrive.tasks.operator import actions

        return actions.skip(*self._run(run), [shown(task) for task in tasks], cause=cause, note=note)

    def reopen(self, *tasks: Upstream, note: str | None = None, run: UUID | str | None = None) -> OperatorAction:
        """Take back what was decided about tasks, while nothing after them is done: they are dead letters again."""
        from redrive.tasks.operator import reopen

        return reopen.reopen(*self._run(run), [shown(task) for task in tasks], note=note)

    def rerun(self, *tasks: Upstream, note: str | None = None, run: UUID | str | None = None) -> OperatorAction:
        """Have tasks that succeeded run again, and everything that comes after them, by the next `run()`."""
        from redrive.tasks.operator import rerun

        return rerun.rerun(*self._run(run), [shown(task) for task in tasks], note=note)

    def cancel_tasks(self, *tasks: Upstream, note: str, run: UUID | str | None = None) -> TasksCancelled:
        """End tasks that run, and fail those that wait, for good. What comes after them follows its `run_when`."""
        from redrive.tasks.operator import cancel

        return cancel.cancel_tasks(*self._run(run), [shown(task) for task in tasks], note=note)

    def fail(
        self, *tasks: Upstream, note: str, cause: str | None = None, run: UUID | str | None = None
    ) -> OperatorAction:
        """Give tasks up that went wrong. What comes after them will not run."""
        from redrive.tasks.operator import actions

        return actions.fail(*self._run(run), [shown(task) for task in tasks], cause=cause, note=note)

    def cancel(self, *, note: str, run: UUID | str | None = None) -> UUID:
        """End a run for good; executors that are at work on it stop. The next `run()` begins a new one."""
        from redrive.tasks.operator import actions

        return actions.cancel(*self._run(run), note=note)
