"""Transforms of a pipeline, which turn validated rows into rows for the sink: by record, or by frame (`per_frame`)."""

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
    """Every row of a batch failed in the transform with the same type of error: the batch is rejected as a whole."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"every row of the batch failed: {_first_line(error)}")
        self.error = error


class Transform(Protocol):
    """A transform of validated rows."""

    def __call__(self, good: Outgoing) -> ValidatedRows:
        """Return the transformed rows, the failed rows by their place in the `Received`, and the number of dropped."""


def per_frame(function: FrameFunction, *, row: str | None = None) -> PerFrame:
    """Mark a function as a transform of polars frames: it gets the frame of a batch and returns its rows in order.

    A function that drops, reorders or multiplies rows needs their numbers: with `row="row_number"` the frame has that
    column, and each returned row carries the number of the row it came from. Rows whose number is not returned are
    dropped. If the function raises for a value, it is called with parts of the batch until the rejected rows are
    found, so it should treat each row by itself.

    function  a function of a polars frame that returns a polars frame
    row       the column for the numbers of the rows
    """
    if not callable(function):
        raise TypeError(f"per_frame takes a function of a frame, not a {type(function).__name__}")
    if row is not None and (not isinstance(row, str) or not row):
        raise TypeError(f"row is the name of a column for the rows' numbers, not {row!r}")
    return PerFrame(function, row)


def transform_of(transform: object) -> Transform | None:
    """Return the transform for the option of a pipeline."""
    if transform is None or isinstance(transform, PerFrame):
        return transform
    if not callable(transform) or isinstance(transform, type):
        raise TypeError(
            "transform takes a function of a record, or per_frame(a function of a frame), "
            f"not {transform.__name__ if isinstance(transform, type) else 'a ' + type(transform).__name__}"
        )
    return PerRow(transform)


class PerRow:
    """Calls a function with each record. The returned record is written; None drops the row."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = blocking("transform", function)

    def __call__(self, good: Outgoing) -> ValidatedRows:
        sorter = RowSorter(ErrorType.TRANSFORM)
        for place, record in _owned(good, sorter):
            try:
                answer = self._function(record)
            except Exception as error:
                sorter.failed(place, error)
                continue
            if answer is None:
                sorter.discarded += 1
            elif isinstance(answer, Mapping):
                sorter.kept.append(answer)
                sorter.origin.append(place)
            else:
                raise unusable("transform", self._function, answer, "a record, or None to drop it")
        return ValidatedRows(sorter.outgoing(), sorter.rejected, sorter.discarded)


class PerFrame:
    """Calls a function with a frame. Made by `per_frame`."""

    def __init__(self, function: FrameFunction, row: str | None) -> None:
        self._function = blocking("transform", function)
        self._row = row

    def __call__(self, good: Outgoing) -> ValidatedRows:
        frame, good, unfit = _frame_of(good)
        if not len(good):
            return ValidatedRows(good, unfit)
        checked = self._transform_all(frame, good)
        rejected = sorted(unfit + checked.rejected, key=lambda refused: refused.place)
        return ValidatedRows(checked.good, rejected, checked.discarded)

    def _transform_all(self, frame: pl.DataFrame, good: Outgoing) -> ValidatedRows:
        if self._row is not None and self._row in frame.columns:
            raise PipelineError(f"the rows have a column {self._row!r} already: per_frame needs another name in row=…")
        try:
            whole = self._apply(frame, range(frame.height))
        except Exception as error:
            failed = _Failure.of(error, 0)
        else:
            return _build_outcome(good, [whole], [])
        return _build_outcome(good, *self._isolate_rows(frame, failed))

    def _apply(self, frame: pl.DataFrame, places: Sequence[int]) -> _Piece:
        """Call the function with some rows, and return what it made of them."""
        with require_extra("rows"):
            import polars as pl
        if self._row is not None:
            frame = frame.with_columns(pl.Series(self._row, places, dtype=pl.Int64))
        result = self._function(frame.clone())  # it may change its frame in place
        if isinstance(result, pl.LazyFrame):
            result = result.collect()
        if not isinstance(result, pl.DataFrame):
            raise unusable("transform", self._function, result, "a polars frame")
        if self._row is None:
            if result.height != frame.height:
                raise PipelineError(
                    f"transform gave back {result.height:,} rows for {frame.height:,}: to drop, reorder or multiply "
                    'rows, use per_frame(…, row="row_number") and keep that column'
                )
            if _is_reordered(frame, result):
                raise PipelineError("the function of per_frame reorders rows; ask for their numbers with row=…")
            return result, places
        return _split_numbers(result, self._row, set(places))

    def _isolate_rows(self, frame: pl.DataFrame, whole: _Failure) -> tuple[list[_Piece], list[_Failure]]:
        """Find the rows at fault in a frame that failed; return the pieces that pass, and the failures.

        Groups of rows that pass grow, groups that fail shrink. Within a group that fails, bisection finds its first
        failing row. k failing rows among n cost about k·log₂(n/k) + 2k calls.
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
            # If the rows before it pass, the last row of a group is at fault, unless only the whole group fails.
            failed = failed or attempt(start, end)
            if failed is not None:
                failures.append(failed)
            start, failed = end, None
        return self._apply_to_good_rows(frame, pieces, failures), failures

    def _apply_to_good_rows(self, frame: pl.DataFrame, pieces: list[_Piece], failures: list[_Failure]) -> list[_Piece]:
        """Transform all good rows at once, so that the result does not depend on how the failing rows were found."""
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
    """A failure of the function, with the first row that it was called with."""

    place: int
    error: Exception
    reason: str | None
    """None if the row is to be dropped."""

    @classmethod
    def of(cls, error: Exception, place: int) -> _Failure:
        """Return the failure for an error; raise an error that no row has caused."""
        import polars as pl

        # polars raises these errors for a value that it cannot convert or compute with.
        is_value_error = isinstance(error, pl.exceptions.ComputeError | pl.exceptions.InvalidOperationError)
        reason = _first_line(error) if is_value_error else fault(error)
        # A traceback would keep its frame in memory, and a batch may have thousands of failures.
        return cls(place, error.with_traceback(None), reason)


def _owned(rows: Outgoing, sorter: RowSorter) -> Iterator[tuple[int, Record]]:
    """Yield each row as a record that may be changed, with its place as received."""
    if rows.as_frame is not None:
        return ((rows.origin[place], record) for place, record in owned(Received(rows.as_frame), sorter))
    # The rows may share values with the records as received.
    records = (dict(zip(rows.columns, row, strict=True)) for row in rows.tuples)
    return copies(zip(rows.origin, records, strict=True), sorter)


def _first_line(error: Exception) -> str:
    """Return the first line of an error of polars, which is about the value; the other lines explain polars."""
    return error_text(error).partition("\n")[0]


def _frame_of(rows: Outgoing) -> tuple[pl.DataFrame, Outgoing, list[Refused]]:
    """Return the rows as a frame, the rows that are in it, and the rejected rows that do not fit into a frame."""
    if rows.as_frame is not None:
        return rows.as_frame, rows, []
    from redrive.rows.to_polars import framed

    frame, misfits = framed(rows.records(), one_kind=True)
    if not misfits:
        return frame, rows, []
    reasons: dict[int, list[str]] = {}
    for misfit in misfits:
        reasons.setdefault(misfit.place, []).append(misfit.why)
    fitting = [place for place in range(len(rows)) if place not in reasons]
    unfit = [Refused(rows.origin[place], "; ".join(reasons[place]), ErrorType.TRANSFORM) for place in reasons]
    return frame[fitting], rows.take(fitting), unfit


def _is_reordered(before: pl.DataFrame, after: pl.DataFrame) -> bool:
    """Return whether rows are certainly reordered: a column has its values in another order, and no column is equal."""
    import polars as pl

    moved_columns = []
    for name, dtype in before.schema.items():
        if after.schema.get(name) != dtype or dtype.is_nested() or dtype == pl.Object:
            continue  # it has no order, or is slow to compare
        old_values, new_values = before.get_column(name), after.get_column(name)
        if not old_values.equals(new_values):
            moved_columns.append((old_values, new_values))
        elif old_values.n_unique() > 1:
            return False
    # A negated boolean column looks like a reordered one.
    moved_columns = [
        (old_values, new_values) for old_values, new_values in moved_columns if old_values.dtype != pl.Boolean
    ]
    return any(old_values.sort().equals(new_values.sort()) for old_values, new_values in moved_columns)


def _split_numbers(result: pl.DataFrame, row: str, places: set[int]) -> _Piece:
    """Return the rows without their numbers, and the numbers."""
    numbers: list[Any] = result.get_column(row).to_list() if row in result.columns else [None]
    if not places.issuperset(numbers) or (numbers and not result.schema[row].is_integer()):
        raise PipelineError(
            f"transform must give back the column {row!r} with the numbers it got: they identify the rows"
        )
    return result.drop(row), numbers


def _build_outcome(good: Outgoing, pieces: list[_Piece], failures: list[_Failure]) -> ValidatedRows:
    """Return the outcome, by the places of the rows as received."""
    rejected = [failure for failure in failures if failure.reason is not None]
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
        Refused(good.origin[failure.place], failure.reason, ErrorType.TRANSFORM)
        for failure in rejected
        if failure.reason is not None
    ]
    return ValidatedRows(kept, refused, len(good) - len(set(places)) - len(rejected))
