"""Making of good rows what the sink is to have: record by record, or frame by frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from redrive._internal.optional import require_extra
from redrive.dlq.insert.row_builder import error_text
from redrive.errors import PipelineError, RedriveError
from redrive.model.letters import ErrorType
from redrive.rows.batch import Outgoing, Received, Record, Refused
from redrive.rows.validation.validator import RowSorter, ValidatedRows, blocking, copies, fault, owned, unusable

if TYPE_CHECKING:
    import polars as pl

    FrameFunction = Callable[[pl.DataFrame], pl.DataFrame | pl.LazyFrame]
    _Piece = tuple[pl.DataFrame, Sequence[int]]
    """Rows that were transformed, and the place of each among those that were to be."""


class BadBatch(RedriveError):
    """No row of a batch could be transformed, and all for the same reason: it is bad as a whole."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"every row of the batch failed: {_first_line(error)}")
        self.error = error


class Transform(Protocol):
    """A transformation of rows that passed their check."""

    def __call__(self, good: Outgoing) -> ValidatedRows:
        """The rows as they became; those that failed, by their place in the `Received`; how many were dropped."""


def per_frame(function: FrameFunction, *, row: str | None = None) -> PerFrame:
    """Mark a transformation as one of a polars frame: it gets a batch at a time, and gives back its rows in order.

    A function that drops, reorders or multiplies rows asks for their numbers: with `row="row_number"` the frame has
    that column, and each row that is given back carries the number of the one it came from. What has no number in the
    end was dropped on purpose. Where the function raises for a value, it is called with parts of the batch until the
    bad rows are found, so it should judge each row by itself.

    function  of a polars frame, which gives one back
    row       the column in which each row has its number
    """
    if not callable(function):
        raise TypeError(f"per_frame takes a function of a frame, not a {type(function).__name__}")
    if row is not None and (not isinstance(row, str) or not row):
        raise TypeError(f"row is the name of a column for the rows' numbers, not {row!r}")
    return PerFrame(function, row)


def transform_of(transform: object) -> Transform | None:
    """The transformation that a pipeline asks for."""
    if transform is None or isinstance(transform, PerFrame):
        return transform
    if not callable(transform) or isinstance(transform, type):
        raise TypeError(
            "transform takes a function of a record, or per_frame(a function of a frame), "
            f"not {transform.__name__ if isinstance(transform, type) else 'a ' + type(transform).__name__}"
        )
    return PerRow(transform)


class PerRow:
    """Calls a function with each record; what it gives back is written, None drops the row."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = blocking("transform", function)

    def __call__(self, good: Outgoing) -> ValidatedRows:
        sieve = RowSorter(ErrorType.TRANSFORM)
        for place, record in _owned(good, sieve):
            try:
                answer = self._function(record)
            except Exception as error:
                sieve.failed(place, error)
                continue
            if answer is None:
                sieve.discarded += 1
            elif isinstance(answer, Mapping):
                sieve.kept.append(answer)
                sieve.origin.append(place)
            else:
                raise unusable("transform", self._function, answer, "a record, or None to drop it")
        return ValidatedRows(sieve.outgoing(), sieve.rejected, sieve.discarded)


class PerFrame:
    """Calls a function with a frame. Made by `per_frame`."""

    def __init__(self, function: FrameFunction, row: str | None) -> None:
        self._function = blocking("transform", function)
        self._row = row

    def __call__(self, good: Outgoing) -> ValidatedRows:
        frame, good, unfit = _frame_of(good)
        if not len(good):
            return ValidatedRows(good, unfit)
        checked = self._checked(frame, good)
        rejected = sorted(unfit + checked.rejected, key=lambda refused: refused.place)
        return ValidatedRows(checked.good, rejected, checked.discarded)

    def _checked(self, frame: pl.DataFrame, good: Outgoing) -> ValidatedRows:
        if self._row is not None and self._row in frame.columns:
            raise PipelineError(f"the rows have a column {self._row!r} already: per_frame needs another name in row=…")
        try:
            whole = self._apply(frame, range(frame.height))
        except Exception as error:
            failed = _Failure.of(error, 0)
        else:
            return _checked(good, [whole], [])
        return _checked(good, *self._isolated(frame, failed))

    def _apply(self, frame: pl.DataFrame, places: Sequence[int]) -> _Piece:
        """What the function makes of some rows."""
        with require_extra("rows"):
            import polars as pl
        if self._row is not None:
            frame = frame.with_columns(pl.Series(self._row, places, dtype=pl.Int64))
        found = self._function(frame.clone())  # it may change its frame in place
        if isinstance(found, pl.LazyFrame):
            found = found.collect()
        if not isinstance(found, pl.DataFrame):
            raise unusable("transform", self._function, found, "a polars frame")
        if self._row is None:
            if found.height != frame.height:
                raise PipelineError(
                    f"transform gave back {found.height:,} rows for {frame.height:,}: to drop, reorder or multiply "
                    'rows, use per_frame(…, row="row_number") and keep that column'
                )
            if _is_reordered(frame, found):
                raise PipelineError("the function of per_frame reorders rows; ask for their numbers with row=…")
            return found, places
        return _by_number(found, self._row, set(places))

    def _isolated(self, frame: pl.DataFrame, whole: _Failure) -> tuple[list[_Piece], list[_Failure]]:
        """What became of a frame that failed as a whole: the pieces that pass, the rows that do not.

        Groups of rows that pass grow, those that fail shrink. Within one that fails, halves lead to its first bad row.
        k bad rows among n cost about k·log₂(n/k) + 2k calls.
        """
        pieces: list[_Piece] = []
        failures: list[_Failure] = []

        def attempt(start: int, end: int) -> _Failure | None:
            try:
                pieces.append(self._apply(frame[start:end], range(start, end)))
            except Exception as error:
                return _Failure.of(error, start)
            return None

        start, size = 0, frame.height
        failed: _Failure | None = whole
        while start < frame.height:
            end = min(start + size, frame.height)
            failed = failed or attempt(start, end)
            if failed is None:
                start, size = end, size * 2
                continue
            size = max(1, (end - start) // 2)
            while end - start > 1:
                middle = (start + end) // 2
                failed = attempt(start, middle)
                start, end = (middle, end) if failed is None else (start, middle)
            # Where the rows before it pass, the last one of a group is bad, unless only all of them together were.
            failed = failed or attempt(start, end)
            if failed is not None:
                failures.append(failed)
            start, failed = end, None
        return self._together(frame, pieces, failures), failures

    def _together(self, frame: pl.DataFrame, pieces: list[_Piece], failures: list[_Failure]) -> list[_Piece]:
        """The good rows once more, at once: what a row becomes should not hang on how the bad ones were found."""
        if not failures or len(pieces) < 2:
            return pieces
        bad = {failure.place for failure in failures}
        good = [place for place in range(frame.height) if place not in bad]
        try:
            return [self._apply(frame[good], good)]
        except Exception as error:
            _Failure.of(error, 0)
            return pieces


@dataclass(frozen=True, slots=True)
class _Failure:
    """Rows that the function raised for, known by the first of them."""

    place: int
    error: Exception
    why: str | None
    """None where the row is to be dropped."""

    @classmethod
    def of(cls, error: Exception, place: int) -> _Failure:
        """The failure that an error is; one that no row is to blame for is raised."""
        import polars as pl

        # What polars raises for a value that it cannot convert or compute with.
        of_a_value = isinstance(error, pl.exceptions.ComputeError | pl.exceptions.InvalidOperationError)
        why = _first_line(error) if of_a_value else fault(error)
        # Its traceback would keep the frames alive, thousands of them in a bad batch.
        return cls(place, error.with_traceback(None), why)


def _owned(rows: Outgoing, sieve: RowSorter) -> Iterator[tuple[int, Record]]:
    """Each row as a record that may be changed, with its place as it was received."""
    if rows.as_frame is not None:
        return ((rows.origin[place], record) for place, record in owned(Received(rows.as_frame), sieve))
    # Its values may be those of the record as received.
    records = (dict(zip(rows.columns, row, strict=True)) for row in rows.tuples)
    return copies(zip(rows.origin, records, strict=True), sieve)


def _first_line(error: Exception) -> str:
    """What polars says of a value; the lines below it explain polars."""
    return error_text(error).partition("\n")[0]


def _frame_of(rows: Outgoing) -> tuple[pl.DataFrame, Outgoing, list[Refused]]:
    """The rows as a frame; the rows that are in it, and those that have no place in one."""
    if rows.as_frame is not None:
        return rows.as_frame, rows, []
    from redrive.rows.to_polars import framed

    frame, misfits = framed(rows.records(), one_kind=True)
    if not misfits:
        return frame, rows, []
    why: dict[int, list[str]] = {}
    for misfit in misfits:
        why.setdefault(misfit.place, []).append(misfit.why)
    fitting = [place for place in range(len(rows)) if place not in why]
    unfit = [Refused(rows.origin[place], "; ".join(why[place]), ErrorType.TRANSFORM) for place in why]
    return frame[fitting], rows.take(fitting), unfit


def _is_reordered(before: pl.DataFrame, after: pl.DataFrame) -> bool:
    """Whether rows surely stand in another order: a column has its values, but elsewhere, and none tells otherwise."""
    import polars as pl

    moved = []
    for name, dtype in before.schema.items():
        if after.schema.get(name) != dtype or dtype.is_nested() or dtype == pl.Object:
            continue  # it has no order, or is dear to compare
        had, has = before.get_column(name), after.get_column(name)
        if not had.equals(has):
            moved.append((had, has))
        elif had.n_unique() > 1:
            return False
    moved = [(had, has) for had, has in moved if had.dtype != pl.Boolean]  # truths look so where they were negated
    return any(had.sort().equals(has.sort()) for had, has in moved)


def _by_number(found: pl.DataFrame, row: str, places: set[int]) -> _Piece:
    """Rows that carry the numbers of those they came from."""
    numbers: list[Any] = found.get_column(row).to_list() if row in found.columns else [None]
    if not places.issuperset(numbers) or (numbers and not found.schema[row].is_integer()):
        raise PipelineError(
            f"transform must give back the column {row!r} with the numbers it got: they tell which rows these are"
        )
    return found.drop(row), numbers


def _checked(good: Outgoing, pieces: list[_Piece], failures: list[_Failure]) -> ValidatedRows:
    """The outcome, by the places of the rows as they were received."""
    rejected = [failure for failure in failures if failure.why is not None]
    if len(rejected) == len(good) > 1 and len({type(failure.error) for failure in rejected}) == 1:
        raise BadBatch(rejected[0].error)
    places = [place for _, numbers in pieces for place in numbers]
    frames = [frame for frame, _ in pieces]
    if len(frames) > 1:
        import polars as pl

        frames = [pl.concat(frames, how="vertical_relaxed")]
    origin = [good.origin[place] for place in places]
    kept = Outgoing.of_frame(frames[0], origin) if frames else Outgoing(good.columns, (), tuples=())
    refused = [
        Refused(good.origin[failure.place], failure.why, ErrorType.TRANSFORM)
        for failure in rejected
        if failure.why is not None
    ]
    return ValidatedRows(kept, refused, len(good) - len(set(places)) - len(rejected))
