"""Removal of flow runs: a run is marked first, so that no process resumes it, and its row is removed last.

A run may have a million tasks, which are not removed in one transaction. A purge that is killed leaves marked runs, and
the next purge removes the rest of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, delete, exists, func, select, update

from redrive.errors import StoreError
from redrive.model.calls import Kind
from redrive.model.tasks import FlowStatus
from redrive.store.retention.finished import FLOWS, PURGING, Retention, StorePurged
from redrive.store.schema import task_attempts, task_changes, task_executors, task_runs, tasks
from redrive.store.sql import in_ids

RUNS = 100
TASKS = 2_000
_MARKED = (task_runs.c.status == FlowStatus.ABANDONED, task_runs.c.reason == PURGING)


class FlowRetention:
    """Old runs of flows, and the directory of their results."""

    def __init__(self, old: Retention, files: Path) -> None:
        self._old, self._files = old, files
        self._database = old.database
        self._stuck: OSError | None = None

    def would_remove(self) -> StorePurged:
        """Count the runs, tasks and files to remove."""
        removable = self._counted(self._marked())
        for ids, _ in self._old.pages(FLOWS, RUNS):
            removable = _sum(removable, self._counted(ids))
        return removable

    def _counted(self, ids: Sequence[UUID]) -> StorePurged:
        counted = select(func.count(tasks.c.id)).where(tasks.c.run_id.in_(ids))
        return StorePurged(
            flows=len(ids),
            tasks=self._database.read(lambda connection: connection.execute(counted).scalar_one()) if ids else 0,
            files=sum(_count(self._place(run_id)) for run_id in ids),
            elsewhere=self._elsewhere(ids),
        )

    def purge(self, progress: Callable[[int], None]) -> StorePurged:
        """Remove them; return how many.

        Raises:
            StoreError: a file could not be removed; all else was.
        """
        gone = self._finish(self._marked())
        for ids, why in self._old.pages(FLOWS, RUNS):
            gone = _sum(gone, self._finish(self._mark(ids, why)))
            progress(len(ids))
        if self._stuck is not None:
            raise StoreError(
                f"cannot remove {self._stuck.filename}, which holds results of a purged run: "
                f"{self._stuck.strerror}. Check its owner, and purge again; all other runs were purged",
                kind=Kind.PERMANENT,
            )
        return gone

    def remove(self, ids: Sequence[UUID]) -> StorePurged:
        """Remove these runs, whatever their age and status; return how many there were."""
        return self._finish(self._mark(ids, ()))

    # ── the steps of a removal ────────────────────────────────────────────────────────────────────────────────────────

    def _marked(self) -> list[UUID]:
        """Return the runs that a purge began to remove."""
        wanted = select(task_runs.c.run_id).where(*_MARKED)
        return self._database.read(lambda connection: list(connection.execute(wanted).scalars()))

    def _mark(self, ids: Sequence[UUID], why: Sequence[Any]) -> list[UUID]:
        """Mark runs for removal, so that no process resumes them; return those that could be marked."""

        def work(connection: Connection) -> list[UUID]:
            now = self._database.dialect.begin_bounded(connection)
            still = select(task_runs.c.run_id).where(task_runs.c.run_id.in_(ids), *why)
            own = list(connection.execute(still.with_for_update(skip_locked=True)).scalars())
            given_up = {"status": FlowStatus.ABANDONED, "reason": PURGING, "judged_at": now}
            connection.execute(update(task_runs).where(task_runs.c.run_id.in_(own)).values(given_up))
            return own

        def is_done(connection: Connection, own: list[UUID]) -> bool:
            unmarked = task_runs.c.reason.is_distinct_from(PURGING)  # most have none
            left = select(task_runs.c.run_id).where(task_runs.c.run_id.in_(own), unmarked)
            return bool(own) and connection.execute(left.limit(1)).first() is None

        return self._database.write(work, done=is_done)

    def _finish(self, ids: Sequence[UUID]) -> StorePurged:
        """Remove what is marked: its tasks, its files, and then its row.

        Each step checks the mark again: another purge may have finished meanwhile, and a scheduler that chooses the ids
        of its runs may have started the run again.
        """
        removed = StorePurged()
        for start in range(0, len(ids), RUNS):
            if self._old.enough():
                break
            part = ids[start : start + RUNS]
            elsewhere, gone = self._elsewhere(part), self._remove_tasks(part)
            files = {run_id: self._remove_files(run_id) for run_id in part}
            rows = self._remove_rows([run_id for run_id, count in files.items() if count is not None])
            count = sum(number or 0 for number in files.values())
            more = StorePurged(flows=len(rows), tasks=gone, files=count, elsewhere=elsewhere)
            removed = _sum(removed, more)
        return removed

    def _remove_tasks(self, ids: Sequence[UUID]) -> int:
        marked = select(task_runs.c.run_id).where(task_runs.c.run_id.in_(ids), *_MARKED)
        some = select(tasks.c.id).where(tasks.c.run_id.in_(marked)).order_by(tasks.c.id).limit(TASKS)

        def work(connection: Connection) -> list[int]:
            gone = list(connection.execute(some.with_for_update(skip_locked=True)).scalars())
            connection.execute(delete(task_attempts).where(in_ids(task_attempts.c.task_id, gone)))
            connection.execute(delete(task_changes).where(in_ids(task_changes.c.task_id, gone)))
            connection.execute(delete(tasks).where(in_ids(tasks.c.id, gone)))
            return gone

        removed = 0
        while not self._old.enough() and (gone := self._old.remove(tasks.c.id, work)):
            removed += len(gone)
        return removed

    def _remove_files(self, run_id: UUID) -> int | None:
        """Remove the files of a run; return their number, or None where that failed: the next purge tries again."""
        place, removed = self._place(run_id), 0
        still = select(task_runs.c.run_id).where(task_runs.c.run_id == run_id, *_MARKED)
        if self._database.read(lambda connection: connection.execute(still).first()) is None:
            return None
        try:
            with _opened(place) as directory:
                for name in os.listdir(directory):
                    with suppress(FileNotFoundError), _named(place / name):  # another purge was quicker
                        os.unlink(name, dir_fd=directory)
                        removed += 1
                place.rmdir()
        except FileNotFoundError:
            return removed
        except OSError as error:
            self._stuck = self._stuck or error
            return None
        return removed

    def _remove_rows(self, ids: Iterable[UUID]) -> list[UUID]:
        def work(connection: Connection) -> list[UUID]:
            # A run of another purge may still have tasks; that purge removes the row as well.
            empty = select(task_runs.c.run_id).where(
                task_runs.c.run_id.in_(ids), *_MARKED, ~exists().where(tasks.c.run_id == task_runs.c.run_id)
            )
            gone = list(connection.execute(empty.with_for_update(skip_locked=True)).scalars())
            connection.execute(delete(task_executors).where(task_executors.c.run_id.in_(gone)))
            connection.execute(delete(task_runs).where(task_runs.c.run_id.in_(gone)))
            return gone

        return self._old.remove(task_runs.c.run_id, work)

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _place(self, run_id: UUID) -> Path:
        return self._files / str(run_id)

    def _elsewhere(self, ids: Sequence[UUID]) -> int:
        """Count the results of these runs whose files are not in the directory."""
        lacking = [run_id for run_id in ids if not self._place(run_id).exists()]
        wanted = select(func.count(tasks.c.id)).where(tasks.c.run_id.in_(lacking), tasks.c.result_file.is_not(None))
        return self._database.read(lambda connection: connection.execute(wanted).scalar_one()) if lacking else 0


@contextmanager
def _opened(place: Path) -> Iterator[int]:
    """Open the directory itself, not the target of a link: nothing outside is ever removed."""
    directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield directory
    finally:
        os.close(directory)


@contextmanager
def _named(file: Path) -> Iterator[None]:
    """Put the whole path into an OSError."""
    try:
        yield
    except OSError as error:
        error.filename = str(file)
        raise


def _count(place: Path) -> int:
    with suppress(OSError), _opened(place) as directory:
        return len(os.listdir(directory))
    return 0


def _sum(first: StorePurged, second: StorePurged) -> StorePurged:
    return StorePurged(
        flows=first.flows + second.flows,
        tasks=first.tasks + second.tasks,
        files=first.files + second.files,
        elsewhere=first.elsewhere + second.elsewhere,
    )
