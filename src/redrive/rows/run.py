"""The run of a pipeline, used by `Pipeline.run`: read and prepare the next batch while the last one is being written.

The user's code (source, validator, transform) runs in the thread that called `run()`; a second thread writes. Each
thread has one batch, so that memory does not grow with the source.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import Any, TypeVar

from redrive._internal.interrupts import is_from_signal_handler
from redrive._internal.masking import MASK
from redrive._internal.shutdown import StopSignal
from redrive.classify.signals import is_interrupt
from redrive.dlq.insert.row_builder import storable
from redrive.dlq.redact import Redactor
from redrive.errors import GateAborted, PipelineError, RunStopped, StoreError
from redrive.model.calls import Kind
from redrive.model.runs import (
    COUNTED,
    BatchQuarantined,
    BatchRetried,
    BatchShrunk,
    BatchWritten,
    ColumnsIgnored,
    Counts,
    GateJudged,
    Progress,
    Report,
    RunEnded,
    RunStarted,
    RunStatus,
    Tier,
)
from redrive.policy.time_of_day import TimeOfDay
from redrive.rows.batch import Batch
from redrive.rows.checkpoint import PipelineRunHandle
from redrive.rows.errors import RunFault, kind_of, sentence, stop_reason
from redrive.rows.options import RunOptions
from redrive.rows.prepare import Prepared, reason_of
from redrive.rows.retries import Retries
from redrive.rows.run_state import StartedPipelineRun
from redrive.rows.schema_drift import KnownColumns
from redrive.rows.sources.source import Reading, SetsFilesAside
from redrive.rows.validation.validator import unmet
from redrive.rows.write.batch_outcome import BatchResult
from redrive.rows.write.thread import WriteThread
from redrive.rows.write.writer import BatchWriter

T = TypeVar("T")

SMALLEST = 16
"""Rows of the smallest batch: if this many rows do not fit into memory, smaller batches will not help."""


class Run:
    """The run of a pipeline that has claimed it."""

    def __init__(
        self,
        options: RunOptions,
        started: StartedPipelineRun,
        handle: PipelineRunHandle,
        writer: BatchWriter,
        *,
        redactor: Redactor,
        stopping: StopSignal,
        watch: Callable[[Progress], None] | None,
    ) -> None:
        self._options = options
        self._started = started
        self._handle = handle
        self._writer = writer
        self._stopping = stopping
        self._write_thread = WriteThread(stopping)
        self._retries = Retries(patience=options.patience, stopping=stopping, announce=self._announce_retry)
        self._watch = watch
        self._redactor = redactor
        # What an error may show values of, beside the batch that is read: the batch at each step.
        self._preparing: Batch | None = None
        self._writing: Prepared | None = None
        self._size = options.batch
        self._reading: Reading | None = None
        self._position = started.position
        self._pending: deque[Batch] = deque()
        self._done = 0
        self._tier = Tier.LOG
        self._columns = KnownColumns(options.sink, started.fields)
        self._ignored: dict[str, None] = {}

    def execute(self) -> Report:
        """Run to the end and return the report. If the run ends early, its checkpoint is saved.

        Raises:
            GateAborted: too many rows were rejected; the error has the report.
            RunStopped: any other reason; the error has the report.
        """
        self._announce(
            RunStarted,
            source=self._options.source_name,
            sink=self._options.sink_name,
            resumed=self._started.resumed,
            checkpoint=self._started.position,
            sla=self._started.sla,
            started_over=self._started.started_over,
            gate_overridden=self._started.overridden,
        )
        try:
            with self._handle.keep_claim(), self._retries.cancelling():
                self._process_batches()
        except GateAborted as aborted:
            raise self._end_with_error(RunStatus.ABORTED, aborted) from None
        except RunStopped as stopped:
            raise self._end_with_error(RunStatus.STOPPED, stopped) from None
        except BaseException as error:
            if isinstance(error, Exception) and not is_interrupt(error):
                raise self._end_with_error(RunStatus.FAILED, error) from error
            if type(error).__name__ == "PanicException":  # polars raises it for its own faults; it is not an interrupt
                raise self._end_with_error(RunStatus.FAILED, RuntimeError(str(error))) from error
            # User code that calls sys.exit is at fault; a signal handler that calls it is a request to stop.
            exited = isinstance(error, SystemExit) and not is_from_signal_handler(error)
            if isinstance(error, SystemExit) and isinstance(error.code, str):
                error.code = self._hide(error.code)  # it is printed
            self._end(
                RunStatus.STOPPED, stop_reason(error, self._hide), error if exited else None
            )  # written rows are saved
            raise
        finally:
            self._close()
        return self._end(RunStatus.COMPLETE, None, None)

    # ── process batches ───────────────────────────────────────────────────────────────────────────────────────────────

    def _process_batches(self) -> None:
        self._open()
        under_way: tuple[Prepared, Future[BatchResult]] | None = None
        try:
            while True:
                try:
                    prepared = self._prepare_next()
                except BaseException as error:
                    if _ends_run_at_once(error):
                        raise
                    # The batch before this one is already being written, and must be saved.
                    if under_way is not None:
                        self._finish_write(*under_way)
                    raise
                if under_way is not None:
                    self._finish_write(*under_way)
                self._check_gate(final=False)
                if prepared is None:
                    break
                self._fit_columns(prepared)
                under_way = prepared, self._submit(prepared)
                if reason := self._stopping.reason():
                    self._finish_write(*under_way)
                    self._check_gate(final=False)
                    raise RunStopped(
                        f"stopped: {reason}; everything so far is written, and the next run resumes there",
                        kind=Kind.TRANSIENT,
                    )
        except BaseException as error:
            if _ends_run_at_once(error):
                result = self._write_thread.interrupt()
                if isinstance(result, BatchResult):
                    self._report_batch(result)
            raise
        self._check_gate(final=True)

    def _submit(self, prepared: Prepared) -> Future[BatchResult]:
        self._writing = prepared
        return self._write_thread.submit(lambda: self._writer.write(prepared))

    def _open(self) -> None:
        reading = self._reading = self._retry_reading("read", self._open_source)
        if reading.columns is not None:
            self._check_columns(reading.columns)
            self._note_ignored(reading.columns)

    def _open_source(self) -> Reading:
        source, identity = self._options.source, self._started.identity
        if isinstance(source, SetsFilesAside):
            return source.open_fitting(self._position, identity, self._explain_misfit)
        return source.open(self._position, identity)

    def _explain_misfit(self, columns: Sequence[str]) -> str | None:
        """Return why rows of these columns cannot be validated or written; None if they can."""
        if self._columns.have_fitted(tuple(columns)):
            return None
        try:
            self._check_columns(columns)
        except PipelineError as error:
            return str(error)
        return None

    def _check_columns(self, columns: Sequence[str]) -> None:
        options = self._options
        options.preparation.fits(columns)
        if missing := [name for name in options.key if name not in columns]:
            raise PipelineError(
                f"the key {missing[0]!r} is not among the columns of {options.source.name}: {', '.join(columns)}"
            )
        if options.preparation.keeps_columns:
            # Sources without rows are checked, too: a page of HTML that was saved as a CSV file has only a header.
            if missing := [name for name in options.sink.key if name not in columns]:
                raise unmet("the sink's key", missing, columns)
            self._write_thread.ask(lambda: options.sink.check(columns))

    def _note_ignored(self, columns: Collection[str]) -> None:
        """Report each ignored column once, or reject the source if the pipeline asks for it."""
        ignored = self._options.preparation.ignored(columns)
        new = tuple(sorted(name for name in ignored if name not in self._ignored))
        if not new:
            return
        if self._options.on_new_column == "reject":
            raise PipelineError(
                f"{self._options.source.name} has columns that the model or schema does not name: {', '.join(new)}; "
                'add them there, or write on_new_column="ignore"'
            )
        self._ignored.update(dict.fromkeys(new))
        self._announce(ColumnsIgnored, source=self._options.source_name, columns=tuple(map(storable, new)))

    def _fit_columns(self, prepared: Prepared) -> None:
        """Give the rows the columns of the sink. The write thread does it, since the sink may be slow to answer."""
        self._write_thread.result(
            self._write_thread.submit(lambda: self._options.preparation.fit(prepared, self._columns))
        )

    def _prepare_next(self) -> Prepared | None:
        """Read and prepare the next batch; a smaller one where memory does not suffice. Return None at the end."""
        while True:
            batch = self._pending.popleft() if self._pending else self._read()
            if batch is None:
                return None
            try:
                return self._prepare(batch)
            except Exception as error:
                if is_interrupt(error) or kind_of(error) is not Kind.RESOURCE:
                    raise
                self._pending.extendleft(reversed(self._halve(batch, error)))

    def _prepare(self, batch: Batch) -> Prepared:
        self._preparing = batch
        prepared = self._retries.run("prepare", lambda: self._options.preparation.prepare(batch), scope="row")
        prepared.counts += Counts(retries=self._retries.uncounted)
        self._retries.uncounted = 0
        return prepared

    def _read(self) -> Batch | None:
        try:
            batch = self._retry_reading("read", self._read_once, before_retry=self._close)
        except MemoryError as error:
            self._shrink_batches(self._size // 2, error)
            self._close()
            return self._read()
        if batch is not None:
            self._position, self._done = batch.next, batch.done
            self._writer.source_total = None if self._reading is None else self._reading.total
            if self._options.preparation.names_columns and not batch.rows.is_frame and len(batch.rows):
                self._note_ignored(set().union(*batch.rows.records))
        return batch

    def _read_once(self) -> Batch | None:
        if self._reading is None:
            self._reading = self._open_source()
        return self._reading.read(self._size)

    def _retry_reading(
        self, step: str, work: Callable[[], T], *, before_retry: Callable[[], object] | None = None
    ) -> T:
        """Read with retries, unless the source retries by itself or cannot be opened twice."""
        retried = getattr(self._options.source, "retries_reading", True)
        return self._retries.run(step, work, scope="call", before_retry=before_retry, retried=retried)

    def _halve(self, batch: Batch, error: BaseException) -> tuple[Batch, Batch]:
        self._shrink_batches(len(batch.rows) // 2, error)
        return batch.halves()

    def _shrink_batches(self, size: int, error: BaseException) -> None:
        if size < SMALLEST:
            raise error
        self._size = min(self._size, size)
        self._announce(BatchShrunk, rows=size, reason=self._hide(reason_of(error)))

    def _finish_write(self, prepared: Prepared, under_way: Future[BatchResult]) -> None:
        try:
            result = self._write_thread.result(under_way)
        except Exception as error:
            if is_interrupt(error) or kind_of(error) is not Kind.RESOURCE or not len(prepared.rows):
                raise
            self._write_halves(prepared.batch, error)
        else:
            self._report_batch(result)

    def _write_halves(self, batch: Batch, error: BaseException) -> None:
        """Write a batch that was too large for the sink, half by half."""
        for half in self._halve(batch, error):
            try:
                prepared = self._prepare(half)
                self._fit_columns(prepared)
                result = self._write_thread.result(self._submit(prepared))
            except Exception as half_error:
                if is_interrupt(half_error) or kind_of(half_error) is not Kind.RESOURCE:
                    raise
                self._write_halves(half, half_error)
            else:
                self._report_batch(result)

    # ── judge and report ──────────────────────────────────────────────────────────────────────────────────────────────

    def _report_batch(self, result: BatchResult) -> None:
        writer = self._writer
        if result.bad_batch is not None:
            self._announce(BatchQuarantined, rows=result.counts.read, reason=self._hide(result.bad_batch))
        if not result.moved:
            return  # half of a batch; the checkpoint moves with the last half
        self._announce(
            BatchWritten,
            counts=result.counts,
            so_far=writer.counts,
            seconds=result.seconds,
            checkpoint=writer.position,
        )
        if self._watch is not None:
            total = self._reading.total if self._reading is not None else None
            self._watch(Progress(counts=writer.counts, done=self._done, total=total, seconds=writer.seconds))

    def _check_gate(self, *, final: bool) -> None:
        judged, tier = self._writer.judged, self._writer.tier
        is_worse = list(Tier).index(tier) > list(Tier).index(self._tier)
        has_enough_rows = judged.read >= self._options.gate.least
        if final or (is_worse and has_enough_rows):
            self._tier = tier
            self._announce(
                GateJudged, tier=tier, rate=judged.rate, rejected=judged.rejected, read=judged.read, final=final
            )
        if self._options.gate.stops(judged.rejected, judged.read, ended=final):
            raise GateAborted(
                f"the gate aborted it: {judged.rejected:,} of {judged.read:,} rows were rejected ({judged.rate:.1%}, "
                f"more than {self._options.gate.abort:.0%}); the others are written, the rejected ones quarantined: "
                f"see `redrive dlq causes --run {str(self._started.run_id)[:8]}`"
            )
        if final and not self._started.overridden and self._options.gate.has_too_few(self._writer.counts.read):
            raise GateAborted(
                f"the gate aborted it: {self._writer.counts.read:,} rows were read, and at least "
                f"{self._options.gate.at_least:,} are expected; what was read is written"
            )

    def _end_with_error(self, status: RunStatus, error: Exception) -> RunStopped:
        """End the run, and return the error for the caller, with the report."""
        reason = sentence(error, self._hide)
        report = self._end(status, reason, error)
        if isinstance(error, RunStopped):
            error.report = report
            return error
        return RunStopped(f"{self._options.pipeline}: {reason}", kind=kind_of(error), report=report)

    def _end(self, status: RunStatus, reason: str | None, error: BaseException | None) -> Report:
        writer, ended = self._writer, None
        writer.counts += Counts(retries=self._retries.uncounted)
        fault = None if error is None else RunFault.of(error, self._hide)
        try:
            ended = self._handle.end(
                status,
                reason=reason,
                fault=fault,
                counts=writer.counts,
                seconds=writer.seconds,
                tier=writer.tier,
                keep_claims=writer.has_unsaved_rows,
            )
        except (StoreError, RunStopped) as store_error:
            # The checkpoint is where the last batch left it; only the end of the run is not recorded. If there was no
            # other error, this is the one to report.
            if error is None and status is RunStatus.COMPLETE:
                raise self._build_unsaved_error(store_error) from store_error
        report = self._build_report(status, reason, ended, fault)
        self._options.announcer.event(_build_ended_event(report, fault))
        return report

    def _build_unsaved_error(self, store_error: StoreError | RunStopped) -> RunStopped:
        report = self._build_report(RunStatus.FAILED, sentence(store_error), None)
        return RunStopped(f"{self._options.pipeline}: {sentence(store_error)}", kind=store_error.kind, report=report)

    def _build_report(
        self, status: RunStatus, reason: str | None, ended: datetime | None, fault: RunFault | None = None
    ) -> Report:
        writer = self._writer
        return Report(
            pipeline=self._options.pipeline,
            run_id=self._started.run_id,
            status=status,
            source=self._options.source_name,
            sink=self._options.sink_name,
            started_at=self._started.started_at,
            seconds=writer.seconds,
            **{name: getattr(writer.counts, name) for name in COUNTED},
            tier=writer.tier,
            resumed=self._started.resumed,
            started_over=self._started.started_over,
            checkpoint=writer.position,
            reason=reason,
            sla=self._started.sla,
            ended_at=ended,
            gate_overridden=self._started.overridden,
            source_done=writer.source_done,
            source_total=writer.source_total,
            detail=None if fault is None else fault.detail,
            ignored_columns=tuple(map(storable, self._ignored)),
        )

    def _announce(self, event: Any, **values: Any) -> None:
        self._options.announcer.event(event(pipeline=self._options.pipeline, run_id=self._started.run_id, **values))

    def _announce_retry(self, step: str, retry: int, wait: float, error: Exception) -> None:
        self._announce(BatchRetried, step=step, retry=retry, wait=wait, reason=self._hide(reason_of(error)))

    def _hide(self, text: str) -> str:
        """Return the text of an error without the values of redacted fields of the rows at hand, as in letters."""
        if not self._redactor.fields:
            return text
        rows: list[Any] = []
        try:
            if self._preparing is not None:
                rows += self._preparing.rows.records
            if self._writing is not None:
                rows += self._writing.batch.rows.records
                rows += self._writing.rows.records()
        except Exception:  # for example for lack of memory: what the text shows is unknown
            return MASK
        return self._redactor.text(text, {}, rows=rows)

    def _close(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.close()


def _ends_run_at_once(error: BaseException) -> bool:
    """Return whether an error of the reading thread ends the run at once, without waiting for the sink."""
    if isinstance(error, Exception):
        return is_interrupt(error)
    return isinstance(error, KeyboardInterrupt | SystemExit)


def report_refused_start(
    options: RunOptions,
    handle: PipelineRunHandle,
    *,
    sla: TimeOfDay | float | None,
    error: BaseException,
    seconds: float,
) -> None:
    """Record and announce that a run could not start: its file is missing, or its checkpoint is of another source.

    Without this, only the caller would see the error, and the caller may be a scheduler.
    """
    fault = RunFault.of(error)
    reason = stop_reason(error) if isinstance(error, SystemExit) else sentence(error)
    try:
        refused_start = handle.record_refused_start(
            options.source, sink=options.sink.name, sla=sla, reason=reason, fault=fault, seconds=seconds
        )
    except StoreError:
        return  # the caller raises the error itself
    if refused_start is not None:
        report = Report(
            pipeline=options.pipeline,
            run_id=refused_start.run_id,
            status=RunStatus.FAILED,
            source=options.source_name,
            sink=options.sink_name,
            started_at=refused_start.at - timedelta(seconds=seconds),
            seconds=seconds,
            reason=reason,
            sla=refused_start.sla,
            ended_at=refused_start.at,
        )
        options.announcer.event(_build_ended_event(report, fault))


def _build_ended_event(report: Report, fault: RunFault | None) -> RunEnded:
    if fault is None:
        return RunEnded(report=report)
    return RunEnded(report=report, error=fault.name, kind=fault.kind, service=fault.service)
