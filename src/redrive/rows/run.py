"""One run: reads and prepares the next batch while the last one is being written.

The user's code (source, check, transform) runs in the thread that called `run()`; a thread beside it writes. There is
one batch in the hands of each, so that memory does not grow with the source.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import Any, TypeVar

from redrive._internal.interrupts import is_from_signal_handler
from redrive._internal.shutdown import StopSignal
from redrive.classify.signals import is_interrupt
from redrive.dlq.insert.row_builder import storable
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
from redrive.rows.checkpoint import RunHandle, StartedRun
from redrive.rows.errors import RunFault, kind_of, sentence, stop_reason
from redrive.rows.prepare import Prepared, reason_of
from redrive.rows.retries import Retries
from redrive.rows.run_options import RunOptions
from redrive.rows.schema_drift import KnownColumns
from redrive.rows.sources.source import Reading, SetsFilesAside
from redrive.rows.validation.validator import unmet
from redrive.rows.write.thread import WriteThread
from redrive.rows.write.writer import BatchResult, BatchWriter

T = TypeVar("T")

SMALLEST = 16
"""Rows of a batch that is not cut any further: what has no room in memory then never will."""


class Run:
    """A run that was begun."""

    def __init__(
        self,
        job: RunOptions,
        begun: StartedRun,
        ledger: RunHandle,
        writer: BatchWriter,
        *,
        stopping: StopSignal,
        watch: Callable[[Progress], None] | None,
    ) -> None:
        self._job = job
        self._begun = begun
        self._ledger = ledger
        self._writer = writer
        self._stopping = stopping
        self._beside = WriteThread(stopping)
        self._retries = Retries(patience=job.patience, stopping=stopping, announce=self._retried)
        self._watch = watch
        self._size = job.batch
        self._reading: Reading | None = None
        self._position = begun.position
        self._waiting: deque[Batch] = deque()
        self._done = 0
        self._tier = Tier.LOG
        self._columns = KnownColumns(job.sink, begun.fields)
        self._ignored: dict[str, None] = {}

    def go(self) -> Report:
        """Run to the end. Whatever ends it before, the checkpoint is saved and the report is in the error."""
        self._announce(
            RunStarted,
            source=self._job.source_name,
            sink=self._job.sink_name,
            resumed=self._begun.resumed,
            checkpoint=self._begun.position,
            sla=self._begun.sla,
            started_over=self._begun.started_over,
            gate_overridden=self._begun.overridden,
        )
        try:
            with self._ledger.kept_alive(), self._retries.cancelling():
                self._all()
        except GateAborted as aborted:
            raise self._ended(RunStatus.ABORTED, aborted) from None
        except RunStopped as stopped:
            raise self._ended(RunStatus.STOPPED, stopped) from None
        except BaseException as error:
            if isinstance(error, Exception) and not is_interrupt(error):
                raise self._ended(RunStatus.FAILED, error) from error
            if type(error).__name__ == "PanicException":  # what polars raises for a fault of its own is no interrupt
                raise self._ended(RunStatus.FAILED, RuntimeError(str(error))) from error
            # Code that calls sys.exit is a fault; a signal handler of the program that does so was asked to stop.
            exited = isinstance(error, SystemExit) and not is_from_signal_handler(error)
            self._end(RunStatus.STOPPED, stop_reason(error), error if exited else None)  # what was written is saved
            raise
        finally:
            self._close()
        return self._end(RunStatus.COMPLETE, None, None)

    # ── batch by batch ────────────────────────────────────────────────────────────────────────────────────────────────

    def _all(self) -> None:
        self._open()
        under_way: tuple[Prepared, Future[BatchResult]] | None = None
        try:
            while True:
                try:
                    prepared = self._next()
                except BaseException as error:
                    if _is_interrupt(error):
                        raise
                    # What was handed over is being written all the same.
                    if under_way is not None:
                        self._written(*under_way)
                    raise
                if under_way is not None:
                    self._written(*under_way)
                self._judge(final=False)
                if prepared is None:
                    break
                self._fit(prepared)
                under_way = prepared, self._submit(prepared)
                if reason := self._stopping.reason():
                    self._written(*under_way)
                    self._judge(final=False)
                    raise RunStopped(
                        f"stopped: {reason}; everything so far is written, and running again goes on from there",
                        kind=Kind.TRANSIENT,
                    )
        except BaseException as error:
            if _is_interrupt(error):
                written = self._beside.interrupt()
                if isinstance(written, BatchResult):
                    self._note(written)
            raise
        self._judge(final=True)

    def _submit(self, prepared: Prepared) -> Future[BatchResult]:
        return self._beside.submit(lambda: self._writer.write(prepared))

    def _open(self) -> None:
        reading = self._reading = self._reader("read", self._open_source)
        if reading.columns is not None:
            self._check_columns(reading.columns)
            self._note_ignored(reading.columns)

    def _open_source(self) -> Reading:
        source, identity = self._job.source, self._begun.identity
        if isinstance(source, SetsFilesAside):
            return source.open_fitting(self._position, identity, self._misfit)
        return source.open(self._position, identity)

    def _misfit(self, columns: Sequence[str]) -> str | None:
        """Why rows of these columns cannot be checked or written."""
        if self._columns.have_fitted(tuple(columns)):
            return None
        try:
            self._check_columns(columns)
        except PipelineError as error:
            return str(error)
        return None

    def _check_columns(self, columns: Sequence[str]) -> None:
        job = self._job
        job.preparation.fits(columns)
        if missing := [name for name in job.key if name not in columns]:
            raise PipelineError(
                f"the key {missing[0]!r} is not among the columns of {job.source.name}: {', '.join(columns)}"
            )
        if job.preparation.keeps_columns:
            # Also where no row follows: a page of HTML that was saved as a CSV file has a header, and nothing else.
            if missing := [name for name in job.sink.key if name not in columns]:
                raise unmet("the sink's key", missing, columns)
            self._beside.ask(lambda: job.sink.check(columns))

    def _note_ignored(self, columns: Collection[str]) -> None:
        """Report columns that are not written, each once; or reject the source."""
        ignored = self._job.preparation.ignored(columns)
        new = tuple(sorted(name for name in ignored if name not in self._ignored))
        if not new:
            return
        if self._job.on_new_column == "reject":
            raise PipelineError(
                f"{self._job.source.name} has columns that the model or schema does not name: {', '.join(new)}; add "
                'them there, or write on_new_column="ignore"'
            )
        self._ignored.update(dict.fromkeys(new))
        self._announce(ColumnsIgnored, source=self._job.source_name, columns=tuple(map(storable, new)))

    def _fit(self, prepared: Prepared) -> None:
        """Give the rows the columns that the sink is to have; it may have to be waited for."""
        self._beside.result(self._beside.submit(lambda: self._job.preparation.fit(prepared, self._columns)))

    def _next(self) -> Prepared | None:
        """The next batch, read and prepared; a smaller one where memory does not suffice."""
        while True:
            batch = self._waiting.popleft() if self._waiting else self._read()
            if batch is None:
                return None
            try:
                return self._prepared(batch)
            except Exception as error:
                if is_interrupt(error) or kind_of(error) is not Kind.RESOURCE:
                    raise
                self._waiting.extendleft(reversed(self._halved(batch, error)))

    def _prepared(self, batch: Batch) -> Prepared:
        prepared = self._retries.run("prepare", lambda: self._job.preparation.prepare(batch), scope="row")
        prepared.counts += Counts(retries=self._retries.uncounted)
        self._retries.uncounted = 0
        return prepared

    def _read(self) -> Batch | None:
        try:
            batch = self._reader("read", self._read_once, again=self._close)
        except MemoryError as error:
            self._shrink(self._size // 2, error)
            self._close()
            return self._read()
        if batch is not None:
            self._position, self._done = batch.next, batch.done
            self._writer.source_total = None if self._reading is None else self._reading.total
            if self._job.preparation.names_columns and not batch.rows.is_frame and len(batch.rows):
                self._note_ignored(set().union(*batch.rows.records))
        return batch

    def _read_once(self) -> Batch | None:
        if self._reading is None:
            self._reading = self._open_source()
        return self._reading.read(self._size)

    def _reader(self, step: str, work: Callable[[], T], *, again: Callable[[], object] | None = None) -> T:
        """Retry reading, unless the source has done so itself or cannot be opened again."""
        retried = getattr(self._job.source, "retries_reading", True)
        return self._retries.run(step, work, scope="call", again=again, retried=retried)

    def _halved(self, batch: Batch, error: BaseException) -> tuple[Batch, Batch]:
        self._shrink(len(batch.rows) // 2, error)
        return batch.halves()

    def _shrink(self, size: int, error: BaseException) -> None:
        if size < SMALLEST:
            raise error
        self._size = min(self._size, size)
        self._announce(BatchShrunk, rows=size, reason=reason_of(error))

    def _written(self, prepared: Prepared, under_way: Future[BatchResult]) -> None:
        try:
            written = self._beside.result(under_way)
        except Exception as error:
            if is_interrupt(error) or kind_of(error) is not Kind.RESOURCE or not len(prepared.rows):
                raise
            self._in_pieces(prepared.batch, error)
        else:
            self._note(written)

    def _in_pieces(self, batch: Batch, error: BaseException) -> None:
        """Write a batch that was too much for the sink, half by half."""
        for half in self._halved(batch, error):
            try:
                prepared = self._prepared(half)
                self._fit(prepared)
                written = self._beside.result(self._submit(prepared))
            except Exception as again:
                if is_interrupt(again) or kind_of(again) is not Kind.RESOURCE:
                    raise
                self._in_pieces(half, again)
            else:
                self._note(written)

    # ── what it means ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _note(self, written: BatchResult) -> None:
        writer = self._writer
        if written.bad_batch is not None:
            self._announce(BatchQuarantined, rows=written.counts.read, reason=written.bad_batch)
        if not written.moved:
            return  # a piece of a batch
        self._announce(
            BatchWritten,
            counts=written.counts,
            so_far=writer.counts,
            seconds=written.seconds,
            checkpoint=writer.position,
        )
        if self._watch is not None:
            total = self._reading.total if self._reading is not None else None
            self._watch(Progress(counts=writer.counts, done=self._done, total=total, seconds=writer.seconds))

    def _judge(self, *, final: bool) -> None:
        judged, tier = self._writer.judged, self._writer.tier
        worse = list(Tier).index(tier) > list(Tier).index(self._tier)
        enough = judged.read >= self._job.gate.least
        if final or (worse and enough):
            self._tier = tier
            self._announce(
                GateJudged, tier=tier, rate=judged.rate, rejected=judged.rejected, read=judged.read, final=final
            )
        if self._job.gate.stops(judged.rejected, judged.read, ended=final):
            raise GateAborted(
                f"the gate aborted it: {judged.rejected:,} of {judged.read:,} rows were rejected ({judged.rate:.1%}, "
                f"more than {self._job.gate.abort:.0%}); the others are written, the rejected ones quarantined: see "
                f"`redrive dlq causes --run {str(self._begun.run_id)[:8]}`"
            )
        if final and not self._begun.overridden and self._job.gate.has_too_few(self._writer.counts.read):
            raise GateAborted(
                f"the gate aborted it: {self._writer.counts.read:,} rows were read, and at least "
                f"{self._job.gate.at_least:,} are expected; what was read is written"
            )

    def _ended(self, status: RunStatus, error: Exception) -> RunStopped:
        """The error that a caller sees, with the report."""
        report = self._end(status, sentence(error), error)
        if isinstance(error, RunStopped):
            error.report = report
            return error
        return RunStopped(f"{self._job.pipeline}: {sentence(error)}", kind=kind_of(error), report=report)

    def _end(self, status: RunStatus, reason: str | None, error: BaseException | None) -> Report:
        writer, ended = self._writer, None
        writer.counts += Counts(retries=self._retries.uncounted)
        fault = None if error is None else RunFault.of(error)
        try:
            ended = self._ledger.end(
                status,
                reason=reason,
                fault=fault,
                counts=writer.counts,
                seconds=writer.seconds,
                tier=writer.tier,
                keep_claims=writer.has_unsaved_rows,
            )
        except (StoreError, RunStopped) as lost:
            # The checkpoint stands where the last batch left it; only how the run ended is not noted. Where everything
            # else went well, that is what has gone wrong.
            if error is None and status is RunStatus.COMPLETE:
                raise self._unsaved(lost) from lost
        report = self._report(status, reason, ended, fault)
        self._job.announcer.event(_ending(report, fault))
        return report

    def _unsaved(self, lost: StoreError | RunStopped) -> RunStopped:
        report = self._report(RunStatus.FAILED, sentence(lost), None)
        return RunStopped(f"{self._job.pipeline}: {sentence(lost)}", kind=lost.kind, report=report)

    def _report(
        self, status: RunStatus, reason: str | None, ended: datetime | None, fault: RunFault | None = None
    ) -> Report:
        writer = self._writer
        return Report(
            pipeline=self._job.pipeline,
            run_id=self._begun.run_id,
            status=status,
            source=self._job.source_name,
            sink=self._job.sink_name,
            started_at=self._begun.started_at,
            seconds=writer.seconds,
            **{name: getattr(writer.counts, name) for name in COUNTED},
            tier=writer.tier,
            resumed=self._begun.resumed,
            started_over=self._begun.started_over,
            checkpoint=writer.position,
            reason=reason,
            sla=self._begun.sla,
            ended_at=ended,
            gate_overridden=self._begun.overridden,
            source_done=writer.source_done,
            source_total=writer.source_total,
            detail=None if fault is None else fault.detail,
            ignored_columns=tuple(map(storable, self._ignored)),
        )

    def _announce(self, event: Any, **values: Any) -> None:
        self._job.announcer.event(event(pipeline=self._job.pipeline, run_id=self._begun.run_id, **values))

    def _retried(self, step: str, retry: int, wait: float, error: Exception) -> None:
        self._announce(BatchRetried, step=step, retry=retry, wait=wait, reason=reason_of(error))

    def _close(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.close()


def _is_interrupt(error: BaseException) -> bool:
    """Return whether an error of the thread that reads means: end now, without waiting for the sink to the end."""
    if isinstance(error, Exception):
        return is_interrupt(error)
    return isinstance(error, KeyboardInterrupt | SystemExit)


def tell_of_refusal(
    job: RunOptions, ledger: RunHandle, *, sla: TimeOfDay | float | None, error: BaseException, seconds: float
) -> None:
    """Note and announce that a run could not begin: its file is not there, its checkpoint is of another source.

    Nobody would hear of it otherwise but who has started it, which may be a scheduler.
    """
    fault = RunFault.of(error)
    reason = stop_reason(error) if isinstance(error, SystemExit) else sentence(error)
    try:
        refusal = ledger.refuse(job.source, sink=job.sink.name, sla=sla, reason=reason, fault=fault, seconds=seconds)
    except StoreError:
        return  # its caller has the error itself
    if refusal is not None:
        report = Report(
            pipeline=job.pipeline,
            run_id=refusal.run_id,
            status=RunStatus.FAILED,
            source=job.source_name,
            sink=job.sink_name,
            started_at=refusal.at - timedelta(seconds=seconds),
            seconds=seconds,
            reason=reason,
            sla=refusal.sla,
            ended_at=refusal.at,
        )
        job.announcer.event(_ending(report, fault))


def _ending(report: Report, fault: RunFault | None) -> RunEnded:
    if fault is None:
        return RunEnded(report=report)
    return RunEnded(report=report, error=fault.name, kind=fault.kind, service=fault.service)
