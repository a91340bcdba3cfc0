"""`redrive.Pipeline`, the public class of the rows runtime: checks options, starts runs, and reprocesses letters."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from redrive._internal.shutdown import StopSignal
from redrive.classify.signals import is_interrupt
from redrive.dlq.insert.row_builder import checked_pipeline, storable
from redrive.errors import CallError, LetterError, RedriveError, RunStopped, StatedVerdict, StoreError
from redrive.events.bus import EventBus, Hook
from redrive.model.letters import Letter
from redrive.model.runs import Progress, Report
from redrive.policy import option_checks
from redrive.policy.time_of_day import checked_sla
from redrive.rows.checkpoint import PipelineRunHandle
from redrive.rows.errors import kind_of, sentence
from redrive.rows.gate import Gate
from redrive.rows.options import ComparedOptions, RunOptions
from redrive.rows.prepare import OnDuplicate, Preparation
from redrive.rows.replay.reprocess import reprocess
from redrive.rows.retries import PATIENCE
from redrive.rows.run import Run, report_refused_start
from redrive.rows.run_state import StartedPipelineRun
from redrive.rows.sinks.sink import Appends, Sink
from redrive.rows.sources.source import Replaceable, Source
from redrive.rows.transform import transform_of
from redrive.rows.validation.validator import check_of
from redrive.rows.write.superseded import compared_texts
from redrive.rows.write.writer import BatchWriter
from redrive.store.database import Database
from redrive.store.store import Store, connect

BATCH = 40_000
_RULES = get_args(OnDuplicate)


class Pipeline:
    """Move rows from a source into a sink: a rejected row never stops its batch, a rejected batch never stops the run.

    name          the name under which its runs, checkpoint and letters are stored
    source        redrive.rows.csv, ndjson, parquet, records, pages or query
    sink          redrive.rows.table or parquet_dataset
    validate      a pydantic model, a dataframely schema, or a function of a record
    transform     a function of a record, or redrive.rows.per_frame(function of a frame)
    key           the columns that identify a record in its letters; default: the key of the sink
    on_duplicate  which of several rows with one key counts: the "last", the "first", or "quarantine": the first, and
                  the others are quarantined
    batch         rows that are written at once
    gate          how many rejected rows are too many
    on_new_column  what to do with columns of the source that the model or schema does not name: "ignore" and report
                  them, or "reject" the source
    sla           when a run must be complete: "06:30 Asia/Kolkata", or seconds from its start
    deadline      seconds after which a run stops at the end of its batch; the next run resumes there
    patience      seconds for which transient errors that validate, transform or records raise are retried, with their
                  batch; 0 stops the run at the first error
    store         where letters and checkpoints are stored; default: `redrive.connect()`
    on_event      a function that is called with every event of its runs
    """

    def __init__(
        self,
        name: str,
        *,
        source: Source,
        sink: Sink,
        validate: object = None,
        transform: Callable[..., Any] | None = None,
        key: str | Sequence[str] | None = None,
        on_duplicate: OnDuplicate = "last",
        batch: int = BATCH,
        gate: Gate | None = None,
        on_new_column: Literal["ignore", "reject"] = "ignore",
        sla: str | float | None = None,
        deadline: float | None = None,
        patience: float = PATIENCE,
        store: Store | str | os.PathLike[str] | None = None,
        on_event: Hook | None = None,
    ) -> None:
        try:
            self.name = checked_pipeline(name)
        except LetterError:
            raise LetterError(
                f"a pipeline needs a name, a text of 1 to 500 characters, not {str(name)[:40]!r}"
            ) from None
        self.source = _require_method(source, "source", "open", "redrive.rows.csv(…)")
        self.sink = _require_method(sink, "sink", "write", "redrive.rows.table(…)")
        if on_duplicate not in _RULES:
            raise ValueError(f"on_duplicate must be one of {', '.join(_RULES)}, not {on_duplicate!r}")
        if on_new_column not in ("ignore", "reject"):
            raise ValueError(f"on_new_column must be 'ignore' or 'reject', not {on_new_column!r}")
        if on_duplicate != "last" and getattr(getattr(sink, "mode", None), "newer", None):
            raise ValueError(f"the sink keeps the newer row of a key, so on_duplicate={on_duplicate!r} has no meaning")
        if not self.sink.key:
            _reject_key_options(self.source, on_duplicate)
        _share_file(self.source, self.sink)
        if gate is not None and not isinstance(gate, Gate):
            raise TypeError(f"gate is a redrive.Gate, not {type(gate).__name__}")
        key_columns = (key,) if isinstance(key, str) else tuple(key or ())
        self._sla = checked_sla(sla)
        self._deadline = None if deadline is None else option_checks.seconds("deadline", deadline, above=0)
        self._options = RunOptions(
            pipeline=self.name,
            source=self.source,
            sink=self.sink,
            preparation=Preparation(
                check_of(validate),
                transform_of(transform),
                key=self.sink.key,
                letter_key=key_columns or self.sink.key,
                on_duplicate=on_duplicate,
                of_text=getattr(self.source, "of_text", False),
            ),
            key=key_columns,
            on_duplicate=on_duplicate,
            batch=option_checks.count("batch", batch, least=1),
            gate=gate or Gate(),
            on_new_column=on_new_column,
            patience=option_checks.seconds("patience", patience),
            announcer=EventBus(on_event),
        )
        self.target: str | None = None
        """Where the pipeline is defined, as FILE:NAME; set by `redrive run`, stored with its runs and letters."""
        self._store: Store | None = store if isinstance(store, Store) else None
        self._store_url = None if isinstance(store, Store) else store
        self._stopping: StopSignal | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Pipeline {self.name}: {self.source.name} → {self.sink.name}>"

    @property
    def store(self) -> Store:
        """The store of its letters and checkpoints."""
        with self._lock:
            if self._store is None:
                self._store = connect(self._store_url)
            return self._store

    def run(
        self,
        *,
        restart: bool = False,
        override_gate: bool = False,
        accept_changes: bool = False,
        deadline: float | None = None,
        watch: Callable[[Progress], None] | None = None,
        store: Store | None = None,
    ) -> Report:
        """Start a run, or resume the unfinished one.

        Raises `GateAborted` if too many rows were rejected, and `RunStopped` if anything else ended the run early. The
        error's `report` has the progress; the next `run()` resumes there.

        restart        abandon an unfinished run and read from the start; an error if rows of it were appended to a
                       table that is not empty, since they would be appended twice
        override_gate  continue a run that the gate aborted, which otherwise stays aborted
        accept_changes  continue at the checkpoint although options of the source, the sink or `on_duplicate` are others
                        than those that it was taken with; rows before it are not read or written again
        deadline       seconds after which the run stops at the end of its batch
        watch          a function that is called with the progress after every batch
        store          the store for this run, in place of the pipeline's own
        """
        opened_store = store or self.store
        deadline_seconds = self._deadline if deadline is None else option_checks.seconds("deadline", deadline, above=0)
        options = replace(
            self._options, announcer=self._options.announcer.with_listeners(opened_store.listeners), target=self.target
        )
        environment_names = opened_store.alerts.settings.environment
        handle = PipelineRunHandle(
            opened_store.database,
            self.name,
            target=self.target,
            key=self.sink.key,
            environment=environment_names,
        )
        self._stopping = stopping = StopSignal(deadline_seconds)
        try:
            with stopping.heeding_signals():
                started = self._start_run(
                    options,
                    handle,
                    opened_store.database,
                    restart=restart,
                    override_gate=override_gate,
                    accept_changes=accept_changes,
                )
                writer = BatchWriter(options, opened_store, handle, started)
                run = Run(
                    options,
                    started,
                    handle,
                    writer,
                    redactor=opened_store.dlq.redactor,
                    stopping=stopping,
                    watch=watch,
                )
                return run.execute()
        finally:
            handle.release()
            self._stopping = None
            if isinstance(self.source, Replaceable):
                self.source.forget()
            self.sink.close()

    def _start_run(
        self, options: RunOptions, handle: PipelineRunHandle, database: Database, **start_options: bool
    ) -> StartedPipelineRun:
        start = time.monotonic()

        def report_refusal(error: BaseException) -> None:
            report_refused_start(options, handle, sla=self._sla, error=error, seconds=time.monotonic() - start)

        try:
            appending = self.sink if not self.sink.key and isinstance(self.sink, Appends) else None
            return handle.begin(
                self.source,
                sink=self.sink.name,
                compared=ComparedOptions.of(self.source, self.sink, options.on_duplicate, database),
                sla=self._sla,
                appending=appending,
                sink_exists=self.sink.exists,
                **start_options,
            )
        except (RunStopped, StoreError):
            raise  # another process runs the pipeline, or the store cannot be written
        except SystemExit as error:
            report_refusal(error)
            raise
        except Exception as error:
            if is_interrupt(error):
                raise
            report_refusal(error)
            if isinstance(error, RedriveError) and not isinstance(error, CallError | StatedVerdict):
                raise
            # The source could not be compared with the one of the checkpoint, for example because an API is down.
            advice = "nothing was read; running again resumes at the last checkpoint"
            raise RunStopped(f"{self.name}: {sentence(error).rstrip('.')}; {advice}", kind=kind_of(error)) from error

    def stop(self, reason: str = "it was asked to") -> None:
        """Stop the current run at the end of its batch. Called from another thread."""
        stopping = self._stopping
        if stopping is not None:
            stopping.request_stop(reason)

    @property
    def letters_pipeline(self) -> str:
        """The name of the pipeline whose letters a replay sends to `reprocess`: this pipeline."""
        return self.name

    @property
    def letters_overwrite(self) -> bool:
        """Return whether a replayed record always replaces the row of its key in the sink."""
        mode = getattr(self.sink, "mode", None)
        compares = mode is not None and (mode.on_conflict == "ignore" or mode.newer is not None)
        return bool(self.sink.key) and not compares

    @property
    def letters_sink(self) -> str:
        """The name of the sink that a replay writes to, as stored with runs."""
        return storable(self.sink.name)

    def letters_keys(self, records: Sequence[Any]) -> list[str | None]:
        """Return the keys of records as the sink compares them; None for a record without a key, or a sink without.

        records  the records
        """
        if not self.sink.key:
            return [None] * len(records)
        return compared_texts(self.sink, records, of_text=getattr(self.source, "of_text", False))

    def reprocess(
        self, records: Sequence[Any], *, dry_run: bool = False, letters: Sequence[Letter] = ()
    ) -> list[str | BaseException | None]:
        """Validate rejected records again and write them to the sink: the target for `store.dlq.replay`.

        Returns for each record why it was rejected, or None. A dry run does not change the sink.

        A sink that appends rows appends those of a letter once, even if the letter is sent several times. Without
        `letters`, records that are sent twice are appended twice.

        records  the records, as received or edited
        letters  the letters of the records, if they have any
        """
        return reprocess(self.source, self.sink, self._options.preparation, records, dry_run=dry_run, letters=letters)


def _reject_key_options(source: Source, on_duplicate: OnDuplicate) -> None:
    if on_duplicate != "last":
        raise ValueError(
            f"the sink appends every row and knows no keys, so on_duplicate={on_duplicate!r} has no meaning"
        )
    if getattr(source, "rereads", False):
        raise ValueError(
            "a query with a lag reads rows again, which would be appended again; leave out lag, or name a key"
        )


def _share_file(source: Source, sink: Sink) -> None:
    """Let a query open a DuckDB file in the same way as the sink that writes to it."""
    path, share = getattr(sink, "duckdb_file", None), getattr(source, "share_file", None)
    if path is not None and share is not None:
        share(path)


def _require_method(value: Any, what: str, method: str, example: str) -> Any:
    if not hasattr(value, method) or isinstance(value, Mapping):
        raise TypeError(f"{what} must be one of redrive's, such as {example}, not {type(value).__name__}")
    return value
