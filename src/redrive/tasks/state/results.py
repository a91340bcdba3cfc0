"""Results: where they are kept, and how they reach the tasks that ask for them. What is large is a file."""

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

from redrive._internal.private_files import make_directory, open_new, scratch_beside
from redrive.errors import FlowError
from redrive.model.calls import Kind
from redrive.model.tasks import State
from redrive.store.encoding import decode
from redrive.store.repositories.tasks import exactly, find_run, shown_name
from redrive.store.schema import tasks
from redrive.store.store import Store
from redrive.tasks.state.run_handle import RunHandle
from redrive.tasks.workers.live_output import live_file
from redrive.tasks.workers.messages import LARGEST

_REMEMBERED = 32


@dataclass(frozen=True, slots=True)
class Value:
    """A result as JSON text, here or in a file."""

    text: str | None = None
    path: str | None = None


class Results:
    """The results of a run."""

    def __init__(self, place: RunHandle, directory: Path | None) -> None:
        self._place = place
        self._directory = (place.store.results if directory is None else directory).absolute()
        self._known: OrderedDict[int, Value] = OrderedDict()
        self._written: dict[str, str] = {}

    def forget(self) -> None:
        """Read everything again: tasks may run once more, and return something else."""
        self._known.clear()
        self._written.clear()

    def file_of(self, task_id: int, attempt: int) -> str:
        """Where an attempt leaves a result that is large: a name of its own, since a late one may still be writing."""
        return f"{self._directory}/{self.stored_name(task_id, attempt)}"

    def stored_name(self, task_id: int, attempt: int) -> str:
        """The same, as the store has it: the directory may be another one on the next machine."""
        return f"{self._place.run_id}/{task_id}-{attempt}.json"

    def output_of(self, task_id: int, attempt: int) -> Path:
        """Where the output of an attempt is while it runs."""
        return live_file(self._directory, self._place.run_id, task_id, attempt)

    largest = LARGEST // 2
    """Bytes of arguments that are sent as they are."""

    def put_aside(self, arguments: dict[str, str], shared: Mapping[str, str]) -> dict[str, str]:
        """Take the largest out of arguments that are too large to be sent together: of those that the tasks of a run
        have in common, each is written to a file once, by the name that is given for it here.
        """
        over = sum(map(len, arguments.values())) - self.largest
        files: dict[str, str] = {}
        for name in [] if over <= 0 else sorted(shared, key=lambda name: len(arguments[name]), reverse=True):
            if over > 0:
                text = arguments.pop(name)
                over -= len(text)
                files[name] = self._shared(f"{shared[name]}.json", text)
        return files

    def _shared(self, name: str, text: str) -> str:
        if name not in self._written:
            self._written[name] = self._in_a_file(name, text)
        return self._written[name]

    def put_item(self, task_id: int, attempt: int, item: str) -> str:
        """Write what one attempt alone is given, and what is too large to be sent; it is removed with its end."""
        return self._in_a_file(_item_file(task_id, attempt), item)

    def remove_item(self, task_id: int, attempt: int) -> None:
        """The attempt has ended."""
        with contextlib.suppress(OSError):
            (self._directory / str(self._place.run_id) / _item_file(task_id, attempt)).unlink(missing_ok=True)

    def value(self, connection: Connection, node: int) -> Value:
        """The result of a task; of a fan-out, the list of its children's."""
        known = self._known.get(node)
        if known is None:
            known = self._read(connection, node)
            self._known[node] = known
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return known

    def items(self, connection: Connection, node: int) -> list[str]:
        """The items of a result that is a list, each as JSON text."""
        if self._is_expanded(connection, node):
            return self._of_children(connection, node)
        name = self._place.shape.places[node].name
        value = self._read(connection, node)
        text = value.text or "null" if value.path is None else _file(value.path, name)
        try:
            found = orjson.loads(text)
        except ValueError as error:
            raise _unreadable(value.path or "the store", name, str(error)) from None
        if found is None:  # it was discarded on purpose
            return []
        if not isinstance(found, list):
            raise FlowError(f"the result of task {name!r} is no list, and another task is to run for each of its items")
        return [orjson.dumps(item).decode() for item in found]

    def _read(self, connection: Connection, node: int) -> Value:
        if self._is_expanded(connection, node):
            text = f"[{','.join(self._of_children(connection, node))}]"
            return Value(text) if len(text) <= self.largest else Value(path=self._in_a_file(f"all-{node}.json", text))
        own = select(tasks.c.result, tasks.c.result_file).where(
            tasks.c.run_id == self._place.run_id, tasks.c.node == node, tasks.c.child == -1
        )
        row = connection.execute(own).one()
        if row.result_file is not None:
            return Value(path=str(self._directory / row.result_file))
        return Value(row.result or "null")

    def text(self, connection: Connection, row: Any) -> str:
        """What a task returned, by its row; of a fan-out, the list of what its children did."""
        if row.children is not None:
            return f"[{','.join(self._of_children(connection, row.node))}]"
        return self._text(row)

    def _text(self, row: Any) -> str:
        if row.result_file is None:
            return row.result or "null"
        return _file(self._directory / row.result_file, shown_name(row.name, row.child))

    def _is_expanded(self, connection: Connection, node: int) -> bool:
        """Whether it is a fan-out with children; one that an operator accepted before has a result of its own."""
        if self._place.shape.places[node].kind != "fan-out":
            return False
        own = select(tasks.c.children).where(
            tasks.c.run_id == self._place.run_id, tasks.c.node == node, tasks.c.child == -1
        )
        return connection.execute(own).scalar_one() is not None

    def _of_children(self, connection: Connection, node: int) -> list[str]:
        theirs = (
            select(tasks.c.name, tasks.c.child, tasks.c.result, tasks.c.result_file)
            .where(tasks.c.run_id == self._place.run_id, tasks.c.node == node, tasks.c.child >= 0)
            .where(tasks.c.kind.is_distinct_from(Kind.DISCARD))  # left out by an operator
            .order_by(tasks.c.child)
        )
        return [self._text(row) for row in connection.execute(theirs)]

    def _in_a_file(self, name: str, text: str) -> str:
        path = self._directory / str(self._place.run_id) / name
        # Another executor may be writing the same; what is there is always whole.
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


def result_of(store: Store, run: UUID | str, name: str, directory: Path | None) -> Any:
    """What a task returned; of a fan-out, the list of what its children did."""

    def work(connection: Connection) -> str:
        run_id = find_run(connection, run)
        row = connection.execute(select(tasks).where(tasks.c.run_id == run_id, exactly(name))).one_or_none()
        if row is None:
            raise FlowError(f"run {str(run_id)[:8]} has no task {name!r}")
        if row.state != State.SUCCESS:
            raise FlowError(f"task {name!r} of run {str(run_id)[:8]} is {row.state}: it has no result")
        return Results(RunHandle.of(store, connection, run_id), directory).text(connection, row)

    return decode(store.database.read(work))


def _item_file(task_id: int, attempt: int) -> str:
    return f"{task_id}-{attempt}-item.json"


def _file(path: str | Path, task: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        hint = "; executors on several machines need one directory in common, Flow(files=…)"
        raise _unreadable(path, task, f"{error.strerror}{hint}") from None
    except ValueError as error:
        raise _unreadable(path, task, str(error)) from None


def _unreadable(path: str | Path, task: str, why: str) -> FlowError:
    return FlowError(f"the result of task {task!r} is in {path}, which cannot be read: {why}")
