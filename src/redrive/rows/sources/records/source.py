"""Rows that a program makes itself: a list, a generator, a function that begins one, or a frame."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from inspect import GEN_CLOSED, getgeneratorstate
from itertools import islice
from types import GeneratorType
from typing import Any

from redrive.classify.signals import is_interrupt
from redrive.errors import SourceError
from redrive.rows.batch import Batch, Received, Record, Unreadable
from redrive.rows.sources.records.first_items import (
    FirstItems,
    counts_of,
    difference_of,
    difference_of_declared,
    digest_of,
)
from redrive.rows.sources.records.frame import ArrowStream, FrameRecords, frame_of

Items = Iterable[Mapping[str, Any]]

_OVER_LISTS: tuple[type[Any], ...] = (type(iter([])), type(iter(())), type(reversed([])))
_WITH_INDEX = 3
_MOST_SECONDS = 5.0  # how long a slow iterator is read ahead for its identity


def records(
    iterable: Items | Callable[[], Items | ArrowStream] | ArrowStream,
    *,
    name: str = "records",
    identity: str | None = None,
) -> Records | FrameRecords:
    """Read records from a list, from a generator, from a function that returns an iterator, or from a frame.

    A generator can be read only once; pass the function that makes it, so that a run can be retried. A frame of polars
    or pandas, an Arrow table, or another object with Arrow's C interface is read as it is when the source is made,
    batch by batch and without converting it to records.

    A run that resumes skips the items before its checkpoint, so it must get the same items in the same order. The first
    1,000 items, the item at the checkpoint and the length of a list are compared. If the first items or the length
    differ, the unfinished run is abandoned, a new run starts at the first item, and its report has the reason. Items
    that differ each time, because they contain the time of the day, need a declared `identity`.

    iterable  the records or the frame, or a function that returns them
    name      the name in letters and checkpoints
    identity  distinguishes this input from another one of the same name, such as its day: a run resumes if the
              identity is the same, and the items themselves are not compared
    """
    frame = frame_of(iterable)
    if (
        frame is None
        and not callable(iterable)
        and (isinstance(iterable, str | bytes | Mapping) or not isinstance(iterable, Iterable))
    ):
        raise TypeError(f"records takes many mappings, or a function that returns them, not a {_kind(iterable)}")
    if not isinstance(name, str) or not name.strip():
        raise ValueError("records needs a name that is not empty; letters and checkpoints are known by it")
    if identity is not None and (not isinstance(identity, str) or not identity.strip()):
        raise ValueError(f"identity must be a text that is not empty, such as the day of the input, not {identity!r}")
    return Records(iterable, name, identity) if frame is None else FrameRecords(frame, name, identity)


class Records:
    """See `Source` and `Replaceable`."""

    def __init__(self, iterable: Any, name: str, identity: str | None = None) -> None:
        self.name = name
        self._iterable = iterable
        self._declared = identity
        self._only = _Stream(iterable) if isinstance(iterable, Iterator) else None
        self._peeked: _Stream | None = None
        self._is_begun = False

    @property
    def retries_reading(self) -> bool:
        """Return whether the source can be opened again after an error; a generator that has raised cannot."""
        return self._only is None

    def __repr__(self) -> str:
        return f"<records {self.name!r}>"

    def identity(self) -> dict[str, Any]:
        known = {"kind": "records", "name": self.name}
        if self._declared is not None:
            return {**known, "declared": self._declared}
        return known

    def look(self) -> None:
        self._begin()
        if self._declared is None:
            self._peek().first(self._size())

    def difference(self, identity: Mapping[str, Any]) -> str | None:
        if identity.get("kind") == "records" and identity.get("name") == self.name:
            return None
        return f"it was taken over {identity.get('kind')} {identity.get('name')!r}, not over records {self.name!r}"

    def changed(self, identity: Mapping[str, Any], position: Any) -> str | None:
        if self._declared is not None or identity.get("declared") is not None:
            return difference_of_declared(identity, self._declared)
        stream, before = self._peek(), (position or {}).get("first")
        first = stream.first(self._size(), counts_of(before))
        if stream.error is not None and not first["digests"]:
            raise stream.error  # nothing is known about the input: that is no reason to start over
        return difference_of(before, first, "records")

    def forget(self) -> None:
        stream, self._peeked = self._peeked, None
        if stream is not None and stream is not self._only:
            stream.close()

    def open(self, position: Any | None, identity: Mapping[str, Any]) -> RecordsReading:
        self._begin()
        start = 0 if position is None else int(position["row"])
        stream = self._only or self._peek()
        self._peeked = None
        if isinstance(stream.error, SourceError) and not stream.has_ahead:
            raise stream.error
        # One that has ended at row 0 may have been consumed before; at a checkpoint, it has ended there.
        if stream.taken > start or stream.has_failed or (stream.has_ended and not start):
            raise SourceError(
                f"{self.name} is an iterator that was read before, to row {stream.taken:,}, and cannot be read again: "
                "pass the function that makes it, without calling it, or a list"
            )
        compares = self._declared is None
        if position is not None:
            stream.skip_to(start, self.name, last=position.get("last") if compares else None)
        return RecordsReading(stream, self.name, ours=self._only is None, total=self._size(), compares=compares)

    def again(self, raw: Any, context: Mapping[str, Any] | None = None) -> Record:
        return _record(raw)

    def _begin(self) -> None:
        """Raise where the iterator was read to its end by others, before this source has read a record of it."""
        if not self._is_begun and _is_exhausted(self._iterable):
            raise SourceError(
                f"{self.name} is an iterator that was read to its end before: pass the function that makes it, "
                "without calling it, or a list"
            )
        self._is_begun = True

    def _peek(self) -> _Stream:
        """Return the stream of the next reading. Items read ahead are kept, and a function is called once for both."""
        if self._peeked is None:
            try:
                self._peeked = self._only or self._new_stream()
            except Exception as error:
                if is_interrupt(error):
                    raise
                self._peeked = _Stream.failed(error)
        return self._peeked

    def _new_stream(self) -> _Stream:
        made = self._iterable() if callable(self._iterable) else self._iterable
        frame = None if made is self._iterable else frame_of(made)
        if frame is not None:
            from redrive.rows.to_polars import iter_records

            return _Stream(iter_records(frame))
        if not isinstance(made, Iterable):
            raise SourceError(f"the function of {self.name} returned a {_kind(made)}, and must return an iterator")
        return _Stream(iter(made))

    def _size(self) -> int | None:
        return len(self._iterable) if isinstance(self._iterable, Sized) else None


class RecordsReading:
    """See `Reading`."""

    columns: tuple[str, ...] | None = None

    def __init__(self, stream: _Stream, name: str, *, ours: bool, total: int | None, compares: bool) -> None:
        self._stream = stream
        self._name = name
        self._ours = ours
        self._compares = compares  # whether a run that resumes compares the first items
        self.total = total

    def read(self, most: int) -> Batch | None:
        first = self._stream.taken + 1
        items = self._stream.take(most)
        if not items:
            return None
        rows, numbers, unreadable = _sorted_out(items, first)
        taken = self._stream.taken
        position: dict[str, Any] = {"row": taken}
        if self._compares:
            first_items = self._stream.first_taken.document(length=self.total)
            position |= {"last": digest_of(_content(items[-1])), "first": first_items}
        return Batch(
            Received(rows), lambda place: f"row {numbers[place]}", position, self._name, unreadable, done=taken
        )

    def close(self) -> None:
        # A generator that was handed in is its owner's to close.
        if self._ours:
            self._stream.close()


class _Stream:
    """An iterator, what was read ahead of it, and how much was handed out."""

    def __init__(self, items: Iterator[Any]) -> None:
        self.taken = 0
        self.first_taken = FirstItems()
        """The first items that were handed out, also those that were skipped: each is counted once."""
        self.error: Exception | None = None
        self.has_failed = False
        """Whether the error was raised: nothing more will come."""
        self.has_ended = False
        """Return whether a reading reached its end."""
        self._items = items
        self._ahead: list[Any] = []
        self._seen: FirstItems | None = None
        self._length: int | None = None

    @property
    def has_ahead(self) -> bool:
        """Return whether there are items that were not returned yet."""
        return bool(self._ahead)

    @classmethod
    def failed(cls, error: Exception) -> _Stream:
        """Return a stream that could not be begun: reading it raises the error."""
        stream = cls(iter(()))
        stream.error = error
        return stream

    def first(self, length: int | None, marks: Collection[int] = ()) -> dict[str, Any]:
        """Return the digests of the first items, which are read ahead; also at the counts that `marks` has."""
        result = self._read_ahead(length)
        if not result.has(marks) and not self.taken:
            count, result = result.count, FirstItems(marks)
            for item in self._ahead[:count]:
                result.add(_content(item))
        return result.document(length=self._length)

    def _read_ahead(self, length: int | None) -> FirstItems:
        """Return the first items, which are read ahead; `length` is the number of all items, where it is known."""
        if self._seen is None:
            first_items, ends = FirstItems(), time.monotonic() + _MOST_SECONDS
            while not self.taken and not first_items.is_enough and time.monotonic() < ends:
                self._fill(first_items.count + 1)
                if len(self._ahead) == first_items.count:
                    if self.error is None and length is None:
                        length = first_items.count
                    break
                first_items.add(_content(self._ahead[first_items.count]))
            self._seen, self._length = first_items, length
        return self._seen

    def take(self, most: int) -> list[Any]:
        """Return the next items: dicts, and `_NoRecord` for everything else.

        An error waits until what came before it has been handed out, and then it stays: a generator that has raised
        would look like one that has ended.
        """
        self._fill(most)
        if not self._ahead and self.error is not None:
            self.has_failed = True
            raise self.error
        result, self._ahead = (self._ahead, []) if len(self._ahead) <= most else _parted(self._ahead, most)
        self.taken += len(result)
        for item in result:
            if self.first_taken.is_enough:
                break
            self.first_taken.add(_content(item))
        self.has_ended = not result
        return result

    def _fill(self, count: int) -> None:
        """Read ahead to this many items, or to the end or an error."""
        ahead = self._ahead
        if len(ahead) >= count or self.error is not None:
            return
        try:
            for item in islice(self._items, count - len(ahead)):
                # Copied at once: a program may fill the same dict again for every row that it yields.
                ahead.append(item.copy() if type(item) is dict else _record_or_not(item))
        except Exception as error:
            if is_interrupt(error):
                raise
            self.error = error

    def skip_to(self, row: int, name: str, *, last: str | None) -> None:
        """Skip the rows before a checkpoint; `last` is the digest of the last one of them, where it is compared."""
        items: list[Any] = []
        while self.taken < row:
            items = self.take(min(10_000, row - self.taken))
            if not items:
                raise SourceError(
                    f"{name} ended after {self.taken:,} rows, before the checkpoint at row {row:,}: "
                    "it must give the same rows again"
                )
        if items and last is not None and digest_of(_content(items[-1])) != last:
            raise SourceError(
                f"row {row:,} of {name} is not the row that the checkpoint was taken at: other records cannot be "
                "resumed; start over with run(restart=True) or `redrive run --restart`"
            )

    def close(self) -> None:
        """Close the generator; may be called twice."""
        close = getattr(self._items, "close", None)
        if close is not None:
            close()


def _parted(items: list[Any], most: int) -> tuple[list[Any], list[Any]]:
    return items[:most], items[most:]


def _content(item: Any) -> Any:
    return item.item if isinstance(item, _NoRecord) else item


class _NoRecord:
    def __init__(self, item: Any, error: Exception) -> None:
        self.item = item
        self.error = str(error) if isinstance(error, TypeError) else error


def _sorted_out(items: Sequence[Any], first: int) -> tuple[list[Record], Sequence[int], list[Unreadable]]:
    """Return the records with their numbers, and what is none."""
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
        if is_interrupt(error):
            raise
        return _NoRecord(item, error)


def _record(item: Any) -> Record:
    if not isinstance(item, Mapping):
        raise TypeError(f"a record is a mapping, not a {_kind(item)}")
    record = dict(item)
    for key in record:
        if not isinstance(key, str):
            raise TypeError(f"a record's keys are texts, not {key!r}")
    return record


def _is_exhausted(items: object) -> bool:
    """Return whether an iterator was read to its end, of the kinds that know. Others look like one that is empty."""
    if isinstance(items, GeneratorType):
        return getgeneratorstate(items) == GEN_CLOSED
    if isinstance(items, map | filter | zip | enumerate):
        return any(_is_exhausted(part) for part in items.__reduce__()[1])
    # Copied, an iterator over a list begins at an index, unless it was read to its end.
    return isinstance(items, _OVER_LISTS) and len(items.__reduce__()) < _WITH_INDEX


def _kind(item: object) -> str:
    return type(item).__name__
