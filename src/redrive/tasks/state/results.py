"""Results of tasks: how they are stored and how they reach downstream tasks. Large results are files."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import Connection, select

from redrive._internal.files import make_directory, open_new, scratch_beside
from redrive.errors import FlowError
from redrive.model.calls import Kind
from redrive.model.tasks import State
from redrive.store.encoding import decode
from redrive.store.repositories.tasks import exactly, find_run, shown_name
from redrive.store.schema import tasks
from redrive.store.store import Store
from redrive.tasks.state.run_handle import FlowRunHandle
from redrive.tasks.workers.output import live_file
from redrive.tasks.workers.protocol import LARGEST

_CACHED = 32


@dataclass(frozen=True, slots=True)
class Value:
    """A result as JSON text, in memory or in a file."""

    text: str | None = None
    path: str | None = None


class Results:
    """Reads the results of a run, and writes arguments that are too large to be sent."""

    def __init__(self, run: FlowRunHandle, directory: Path | None) -> None:
        self._run = run
        self._directory = (run.store.results if directory is None else directory).absolute()
        self._cache: OrderedDict[int, Value] = OrderedDict()
        self._shared_files: dict[str, str] = {}

    def forget(self) -> None:
        """Drop cached results: tasks that run again may return other values."""
        self._cache.clear()
        self._shared_files.clear()

    def result_path(self, task_id: int, attempt: int) -> str:
        """Return the path for a large result; each attempt has its own, since a late one may still write."""
        return f"{self._directory}/{self.stored_name(task_id, attempt)}"

    def stored_name(self, task_id: int, attempt: int) -> str:
        """Return the stored name of the result file; the directory may differ on other machines."""
        return f"{self._run.run_id}/{task_id}-{attempt}.json"

    def output_path(self, task_id: int, attempt: int) -> Path:
        """Return the path of the output of a running attempt."""
        return live_file(self._directory, self._run.run_id, task_id, attempt)

    largest = LARGEST // 2
    """Maximum bytes of arguments that are sent without files."""

    def write_large_arguments(self, arguments: dict[str, str], shared: Mapping[str, str]) -> dict[str, str]:
        """Write the largest arguments to files if all together are too large to be sent.

        Args:
            arguments: Arguments as JSON text by name; the written ones are removed.
            shared: File names of arguments that tasks of the run have in common; each is written once.

        Returns:
            The paths of the files by argument name.
        """
        excess = sum(map(len, arguments.values())) - self.largest
        files: dict[str, str] = {}
        for name in [] if excess <= 0 else sorted(shared, key=lambda name: len(arguments[name]), reverse=True):
            if excess > 0:
                text = arguments.pop(name)
                excess -= len(text)
                files[name] = self._write_shared(f"{shared[name]}.json", text)
        return files

    def _write_shared(self, name: str, text: str) -> str:
        if name not in self._shared_files:
            self._shared_files[name] = self._write_file(name, text)
        return self._shared_files[name]

    def write_item(self, task_id: int, attempt: int, item: str) -> str:
        """Write an item that is too large to be sent; the file is removed when the attempt has ended."""
        return self._write_file(_item_file_name(task_id, attempt), item)

    def remove_item(self, task_id: int, attempt: int) -> None:
        """Remove the item file of an attempt that has ended."""
        with contextlib.suppress(OSError):
            (self._directory / str(self._run.run_id) / _item_file_name(task_id, attempt)).unlink(missing_ok=True)

    def read_value(self, connection: Connection, node: int) -> Value:
        """Return the result of a task; for a fan-out, the list of its children's results."""
        value = self._cache.get(node)
        if value is None:
            value = self._read(connection, node)
            self._cache[node] = value
            if len(self._cache) > _CACHED:
                self._cache.popitem(last=False)
        return value

    def read_items(self, connection: Connection, node: int) -> list[str]:
        """Return the items of a list result, each as JSON text."""
        if self._is_expanded(connection, node):
            return self._read_children(connection, node)
        name = self._run.shape.places[node].name
        value = self._read(connection, node)
        text = value.text or "null" if value.path is None else _read_file(value.path, name)
        try:
            items = orjson.loads(text)
        except ValueError as error:
            raise _unreadable_error(value.path or "the store", name, str(error)) from None
        if items is None:  # the task was discarded on purpose
            return []
        if not isinstance(items, list):
            raise FlowError(f"the result of task {name!r} is no list, and another task is to run for each of its items")
        return [orjson.dumps(item).decode() for item in items]

    def _read(self, connection: Connection, node: int) -> Value:
        if self._is_expanded(connection, node):
            text = f"[{','.join(self._read_children(connection, node))}]"
            return Value(text) if len(text) <= self.largest else Value(path=self._write_file(f"all-{node}.json", text))
        query = select(tasks.c.result, tasks.c.result_file).where(
            tasks.c.run_id == self._run.run_id, tasks.c.node == node, tasks.c.child == -1
        )
        row = connection.execute(query).one()
        if row.result_file is not None:
            return Value(path=str(self._directory / row.result_file))
        return Value(row.result or "null")

    def read_text(self, connection: Connection, row: Any) -> str:
        """Return the result of a task row as JSON text; for a fan-out, the list of its children's results."""
        if row.children is not None:
            return f"[{','.join(self._read_children(connection, row.node))}]"
        return self._read_row_text(row)

    def _read_row_text(self, row: Any) -> str:
        if row.result_file is None:
            return row.result or "null"
        return _read_file(self._directory / row.result_file, shown_name(row.name, row.child))

    def _is_expanded(self, connection: Connection, node: int) -> bool:
        """Return whether a task is a fan-out with children; one that an operator accepted early has its own result."""
        if self._run.shape.places[node].kind != "fan-out":
            return False
        query = select(tasks.c.children).where(
            tasks.c.run_id == self._run.run_id, tasks.c.node == node, tasks.c.child == -1
        )
        return connection.execute(query).scalar_one() is not None

    def _read_children(self, connection: Connection, node: int) -> list[str]:
        children = (
            select(tasks.c.name, tasks.c.child, tasks.c.result, tasks.c.result_file)
            .where(tasks.c.run_id == self._run.run_id, tasks.c.node == node, tasks.c.child >= 0)
            .where(tasks.c.kind.is_distinct_from(Kind.DISCARD))  # children that an operator skipped
            .order_by(tasks.c.child)
        )
        return [self._read_row_text(row) for row in connection.execute(children)]

    def _write_file(self, name: str, text: str) -> str:
        path = self._directory / str(self._run.run_id) / name
        # Another executor may write the same file, so it is written aside and renamed: readers see a whole file.
        scratch = Path(scratch_beside(path))
        try:
            make_directory(path.parent)
            with open(open_new(scratch), "w", encoding="utf-8") as file:
                file.write(text)
            scratch.replace(path)
        except OSError as error:
            scratch.unlink(missing_ok=True)
            raise FlowError(
                f"{path}, which holds what is too large for the store, cannot be written: {error.strerror}; see that "
                "there is room, and run again"
            ) from None
        return str(path)


def read_result(store: Store, run: UUID | str, name: str, directory: Path | None) -> Any:
    """Return what a task returned; for a fan-out, the list of its children's results."""

    def read(connection: Connection) -> str:
        run_id = find_run(connection, run)
        row = connection.execute(select(tasks).where(tasks.c.run_id == run_id, exactly(name))).one_or_none()
        if row is None:
            raise FlowError(f"run {str(run_id)[:8]} has no task {name!r}")
        if row.state != State.SUCCESS:
            raise FlowError(f"task {name!r} of run {str(run_id)[:8]} is {row.state}: it has no result")
        return Results(FlowRunHandle.load(store, connection, run_id), directory).read_text(connection, row)

    return decode(store.database.read(read))


def _item_file_name(task_id: int, attempt: int) -> str:
    return f"{task_id}-{attempt}-item.json"


def _read_file(path: str | Path, task: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        hint = "; executors on several machines need one directory in common, Flow(files=…)"
        raise _unreadable_error(path, task, f"{error.strerror}{hint}") from None
    except ValueError as error:
        raise _unreadable_error(path, task, str(error)) from None


def _unreadable_error(path: str | Path, task: str, reason: str) -> FlowError:
    return FlowError(f"the result of task {task!r} is in {path}, which cannot be read: {reason}")
