"""Rows that a program makes itself: a list, a generator, or a function that begins one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any

from redrive.errors import SourceError
from redrive.rows.batch import Batch, Received, Record, Unreadable

Items = Iterable[Mapping[str, Any]]


def records(iterable: Items | Callable[[], Items], *, name: str = "records") -> Records:
    """Read records from a list, from a generator, or from a function that returns an iterator.

    A run that goes on from a checkpoint skips the items before it, so the same items must come again, in the same
    order. A generator can be read once in its life; pass the function that makes it, and a run may begin again.

    iterable  the records, or a function that gives them
    name      as letters and checkpoints know it
    """
    if not callable(iterable) and (isinstance(iterable, str | bytes | Mapping) or not isinstance(iterable, Iterable)):
        raise TypeError(f"records takes many mappings, or a function that returns them, not a {_kind(iterable)}")
    if not isinstance(name, str) or not name.strip():
        raise ValueError("records needs a name that is not empty; letters and checkpoints are known by it")
    return Records(iterable, name)


class Records:
    """See `Source`."""

    def __init__(self, iterable: Items | Callable[[], Items], name: str) -> None:
        self.name = name
        self._iterable = iterable
        self._only = _Stream(iterable) if isinstance(iterable, Iterator) else None

    def __repr__(self) -> str:
        return f"<records {self.name!r}>"

    def identity(self) -> dict[str, Any]:
        return {"kind": "records", "name": self.name}

    def difference(self, identity: Mapping[str, Any]) -> str | None:
        if identity == self.identity():
            return None
        return f"it was taken over {identity.get('kind')} {identity.get('name')!r}, not over records {self.name!r}"

    def open(self, position: Any | None, identity: Mapping[str, Any]) -> RecordsReading:
        start = 0 if position is None else int(position["row"])
        stream = self._only or self._new_stream()
        if stream.taken > start or stream.error is not None:
            raise SourceError(
                f"{self.name} is a generator that was read before, to row {stream.taken:,}, and cannot begin again: "
                "pass the function that makes it, without calling it"
            )
        stream.skip_to(start, self.name)
        return RecordsReading(stream, self.name, ours=self._only is None, total=self._size())

    def again(self, raw: Any, context: Mapping[str, Any] | None = None) -> Record:
        return _record(raw)

    def _new_stream(self) -> _Stream:
        made = self._iterable() if callable(self._iterable) else self._iterable
        if not isinstance(made, Iterable):
            raise SourceError(f"the function of {self.name} returned a {_kind(made)}, and must return an iterator")
        return _Stream(iter(made))

    def _size(self) -> int | None:
        return len(self._iterable) if isinstance(self._iterable, Sized) else None


class RecordsReading:
    """See `Reading`."""

    columns: tuple[str, ...] | None = None

    def __init__(self, stream: _Stream, name: str, *, ours: bool, total: int | None) -> None:
        self._stream = stream
        self._name = name
        self._ours = ours
        self.total = total

    def read(self, most: int) -> Batch | None:
        first = self._stream.taken + 1
        items = self._stream.take(most)
        if not items:
            return None
        rows, numbers, unreadable = _sorted_out(items, first)
        taken = self._stream.taken
        return Batch(
            Received(rows), lambda place: f"row {numbers[place]}", {"row": taken}, self._name, unreadable, done=taken
        )

    def close(self) -> None:
        # A generator that was handed in is its owner's to close.
        close = getattr(self._stream.items, "close", None)
        if self._ours and close is not None:
            close()


class _Stream:
    """An iterator, and how far it has come."""

    def __init__(self, items: Iterator[Any]) -> None:
        self.items = items
        self.taken = 0
        self.error: Exception | None = None

    def take(self, most: int) -> list[Any]:
        """The next items: dicts, and `_NoRecord` for everything else.

        An error waits until what came before it has been handed out, and then it stays: a generator that has raised
        would look like one that came to its end.
        """
        if self.error is not None:
            raise self.error
        found: list[Any] = []
        try:
            for item in islice(self.items, most):
                # Copied at once: a program may fill one dict anew for every row that it yields.
                found.append(item.copy() if type(item) is dict else _record_or_not(item))  # noqa: PERF401 - kept on error
        except Exception as error:
            self.error = error
            if not found:
                raise
        finally:
            self.taken += len(found)
        return found

    def skip_to(self, row: int, name: str) -> None:
        while self.taken < row:
            if not self.take(min(10_000, row - self.taken)):
                raise SourceError(
                    f"{name} ended after {self.taken:,} rows, before the checkpoint at row {row:,}: "
                    "it must give the same rows again"
                )


class _NoRecord:
    def __init__(self, item: Any, error: Exception) -> None:
        self.item = item
        self.error = str(error) if isinstance(error, TypeError) else error


def _sorted_out(items: Sequence[Any], first: int) -> tuple[list[Record], Sequence[int], list[Unreadable]]:
    """The records with their numbers, and what is none."""
    if all(type(item) is dict for item in items) and all(isinstance(key, str) for key in set().union(*items)):
        return list(items), range(first, first + len(items)), []
    rows: list[Record] = []
    numbers: list[int] = []
    unreadable: list[Unreadable] = []
    for number, item in enumerate(items, first):
        sound = _record_or_not(item) if type(item) is dict else item
        if isinstance(sound, _NoRecord):
            unreadable.append(Unreadable(sound.item, sound.error, f"row {number}"))
        else:
            rows.append(sound)
            numbers.append(number)
    return rows, numbers, unreadable


def _record_or_not(item: Any) -> Record | _NoRecord:
    try:
        return _record(item)
    except Exception as error:
        return _NoRecord(item, error)


def _record(item: Any) -> Record:
    if not isinstance(item, Mapping):
        raise TypeError(f"a record is a mapping, not a {_kind(item)}")
    record = dict(item)
    for key in record:
        if not isinstance(key, str):
            raise TypeError(f"a record's keys are texts, not {key!r}")
    return record


def _kind(item: object) -> str:
    return type(item).__name__
