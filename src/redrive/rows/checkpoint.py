"""The checkpoint of a pipeline, and the claim of the one process that may move it; used by `Pipeline.run`.

The claim of a killed process stays in the store. Another process on the same machine sees that the owner is dead; a
process on another machine waits until the lease expires. A process that has lost its claim cannot save anything.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, null, select, update

from redrive._internal.tracing import trace_id
from redrive.dlq.insert.row_builder import storable
from redrive.dlq.replay.claims import Claims, abandon_run, owner_of_run
from redrive.errors import RunStopped
from redrive.model.calls import Kind
from redrive.model.runs import Counts, RunStatus, Tier
from redrive.policy.time_of_day import TimeOfDay, due_at
from redrive.rows.errors import RunFault
from redrive.rows.options import ComparedOptions, without_options
from redrive.rows.run_state import (
    ENDED,
    RunRefused,
    StartedPipelineRun,
    accepted_counts,
    count_failures,
    fault_columns,
    fetch_run,
    forget_keys,
    is_claimed,
    masked_variables,
    supersede_letters,
)
from redrive.rows.sinks.sink import Appends
from redrive.rows.sources.files.files import with_new_files
from redrive.rows.sources.source import Incremental, Replaceable, Source
from redrive.rows.start_checks import (
    aborted_error,
    claimed_error,
    double_append_error,
    explain_changed_input,
    has_appended,
    has_rows,
    is_sink_missing,
    is_unfinished,
    require_same_options,
    require_same_sink,
    require_same_source,
)
from redrive.store.database import Database
from redrive.store.lease import begin_work, end_work, new_owner, renewed
from redrive.store.repositories.runs import columns_of, count_rows, counts_of, register_start
from redrive.store.schema import checkpoints, runs

LEASE = timedelta(seconds=60)


class PipelineRunHandle:
    """The claim of a process on a pipeline: starts, saves and ends a run."""

    def __init__(
        self,
        database: Database,
        pipeline: str,
        *,
        lease: timedelta = LEASE,
        target: str | None = None,
        key: Sequence[str] = (),
        environment: Sequence[str] = (),
    ) -> None:
        self._database = database
        self._pipeline = pipeline
        self._target = None if target is None else storable(target)
        self._key = [storable(name) for name in key] or None
        self._environment = masked_variables(environment)
        self._lease = lease
        self._owner = new_owner()
        self._confirmed = time.monotonic()
        self.claims = Claims(database, lease=lease.total_seconds())
        """Claims on letters whose rows the run is about to write, so that no replay writes them at the same time."""
        begin_work(self._owner)
        self.run_id = uuid.uuid4()

    def begin(
        self,
        source: Source,
        *,
        sink: str,
        compared: ComparedOptions,
        sla: TimeOfDay | float | None,
        restart: bool,
        override_gate: bool = False,
        accept_changes: bool = False,
        appending: Appends | None = None,
        sink_exists: Callable[[], bool] = lambda: True,
    ) -> StartedPipelineRun:
        """Claim the pipeline, and resume its unfinished run or start a new one.

        Args:
            compared: The options that must be those of the checkpoint, unless `accept_changes` is true.
            sink_exists: Returns whether the table or directory exists; called if an earlier run has written rows.
            appending: The sink, if it appends rows: rows of an unfinished run must not be read a second time.

        Raises:
            GateAborted: The gate aborted the last run, and the caller neither overrides it nor restarts.
        """
        if isinstance(source, Replaceable) and not restart and is_unfinished(self._database, self._pipeline):
            source.look()  # before the transaction, since it may take a while, and other processes would wait for it
        identity = source.identity()
        lacks_sink = not restart and is_sink_missing(self._database, self._pipeline, source, sink_exists)

        def work(connection: Connection) -> StartedPipelineRun:
            now = self._database.dialect.now(connection)
            checkpoint = self._claim(connection, identity, now)
            register_start(connection, self._database.dialect, "pipeline", self._pipeline, sla=sla, now=now)
            last_run, failures = None if checkpoint is None else fetch_run(connection, checkpoint.run_id), 0
            started_over = None
            if checkpoint is not None and last_run is not None and RunStatus(last_run.status) not in ENDED:
                aborted = last_run.status == RunStatus.ABORTED
                if aborted and not (restart or override_gate):
                    raise aborted_error(last_run, checkpoint.position)
                appended = has_appended(appending, last_run)
                # A run that was killed in its first batch has no rows in the store, but may have appended some.
                if (last_run.rows_read or aborted or appended) and not restart:
                    # Before the first checkpoint the input is not known; the sink compares the rows it has appended.
                    if checkpoint.position is not None:
                        started_over = explain_changed_input(source, checkpoint, last_run)
                    if started_over is None:
                        return self._resume(
                            connection,
                            source,
                            checkpoint,
                            last_run,
                            current_identity=identity,
                            compared=compared,
                            accept_changes=accept_changes,
                            sink=sink,
                            is_sink_missing=lacks_sink,
                        )
                if appended:
                    raise double_append_error(last_run, sink, started_over)
                reason = {} if started_over is None else {"reason": started_over}
                connection.execute(
                    update(runs)
                    .where(runs.c.run_id == last_run.run_id)
                    .values(status=RunStatus.ABANDONED, ended_at=now, judged_at=now, **reason)
                )
                forget_keys(connection, last_run.run_id)
                abandon_run(connection, last_run.run_id, now)
                if restart and appending is not None:
                    supersede_letters(connection, last_run.run_id, now)
                # A failure before the first row counts like any other, though the run starts over.
                failures = 0 if restart else count_failures(last_run)
            elif restart and last_run is not None and isinstance(source, Incremental) and has_rows(appending):
                raise double_append_error(last_run, sink, None)
            kept_position = (
                None if restart or checkpoint is None or not isinstance(source, Incremental) else checkpoint.position
            )
            if kept_position is not None and checkpoint is not None:
                state = "has a watermark of another source"
                require_same_source(self._pipeline, source, checkpoint.identity, state, "go back to that source")
                require_same_sink(self._pipeline, last_run, sink, is_sink_missing=lacks_sink)
                if not accept_changes:
                    require_same_options(self._pipeline, compared, checkpoint, is_finished=True)
            started = self._start_new_run(
                connection,
                source,
                identity,
                kept_position,
                compared=compared,
                sink=sink,
                sla=sla,
                now=now,
                failures=failures,
            )
            return replace(started, started_over=started_over)

        started = self._database.write(work, done=lambda connection, _: self._owns_claim(connection))
        self.run_id = started.run_id
        self.claims.owner = owner_of_run(started.run_id)
        return started

    def record_refused_start(
        self,
        source: Source,
        *,
        sink: str,
        sla: TimeOfDay | float | None,
        reason: str,
        fault: RunFault,
        seconds: float = 0.0,
    ) -> RunRefused | None:
        """Record a run that could not start. Return None if another process runs the pipeline.

        The checkpoint stays as it is, so an unfinished run can still be resumed.

        Args:
            seconds: How long the start was tried, for example with retries of an API's first page.
        """
        run_id = uuid.uuid4()

        def work(connection: Connection) -> RunRefused | None:
            now = self._database.dialect.now(connection)
            mine = checkpoints.c.pipeline_name == self._pipeline
            checkpoint = connection.execute(select(checkpoints).where(mine)).first()
            if checkpoint is not None and is_claimed(checkpoint, now):
                return None
            register_start(connection, self._database.dialect, "pipeline", self._pipeline, sla=sla, now=now)
            start = now - timedelta(seconds=seconds)
            row = self._build_run_row(run_id, source, sink=sink, sla=sla, now=start) | {
                "updated_at": now,
                "seconds": seconds,
            }
            ended = {"status": RunStatus.FAILED, "reason": reason, "ended_at": now, **fault_columns(fault)}
            connection.execute(runs.insert(), {**row, **ended})
            return RunRefused(run_id=run_id, at=now, sla=row["sla"])

        return self._database.write(work, done=lambda connection, _: fetch_run(connection, run_id) is not None)

    def release(self) -> None:
        """Release the claim in this process: a claim that is left in the store counts as that of a dead process."""
        end_work(self._owner)

    def keep_claim(self) -> AbstractContextManager[None]:
        """Renew the claim while the block runs."""
        return renewed(self._database, self._renew, lease=self._lease)

    def save(
        self,
        connection: Connection,
        *,
        position: Any,
        fields: Sequence[str],
        counts: Counts,
        added: Counts,
        done: int,
        total: int | None,
        seconds: float,
        tier: Tier,
        written_at: datetime | None = None,
    ) -> None:
        """Move the checkpoint, in the transaction that holds the rows' letters.

        Args:
            added: The rows of this batch, which `counts` includes.
            done: How much of the source's `total` has been read up to the checkpoint.
            written_at: When the rows of the batch were written, by the clock of its letters; None if none were.
        """
        now = self._database.dialect.now(connection)
        until = now + self._lease
        self._update_checkpoint(
            connection, position=position, fields=list(fields) or None, updated_at=now, owner_until=until
        )
        connection.execute(
            update(runs)
            .where(runs.c.run_id == self.run_id)
            .values(
                updated_at=now,
                seconds=seconds,
                tier=str(tier),
                source_done=done,
                source_total=total,
                **columns_of(counts),
                **({} if written_at is None else {"written_at": written_at}),
            )
        )
        count_rows(connection, self._pipeline, added)

    def has_saved(self, connection: Connection, counts: Counts) -> bool:
        """Return whether these counts are in the store."""
        run = fetch_run(connection, self.run_id)
        return run is not None and counts_of(run).batches == counts.batches

    def verify_claim(self, connection: Connection) -> None:
        """Raise `RunStopped` if this process has lost its claim, in a transaction that does not move the checkpoint."""
        if not self._owns_claim(connection):
            raise self._build_lost_claim_error()

    def confirm_claim(self) -> None:
        """Raise `RunStopped` if this process has lost its claim, for example because it was suspended.

        The store is read only if the claim was last confirmed more than half a lease ago.
        """
        if time.monotonic() - self._confirmed > self._lease.total_seconds() / 2:
            if not self._database.read(self._owns_claim):
                raise self._build_lost_claim_error()
            self._confirmed = time.monotonic()

    def end(
        self,
        status: RunStatus,
        *,
        reason: str | None,
        fault: RunFault | None,
        counts: Counts,
        seconds: float,
        tier: Tier,
        keep_claims: bool = False,
    ) -> datetime:
        """Record how the run ended, and release the pipeline.

        Args:
            keep_claims: Whether letters stay claimed until the run is resumed or abandoned, like those of a killed run.
        """

        trace = trace_id(self.run_id)

        def work(connection: Connection) -> datetime:
            now = self._database.dialect.now(connection)
            self._update_checkpoint(connection, updated_at=now, owner=None, owner_until=None)
            connection.execute(
                update(runs)
                .where(runs.c.run_id == self.run_id)
                .values(
                    status=status,
                    reason=reason,
                    **fault_columns(fault),
                    trace_id=trace,
                    ended_at=now,
                    updated_at=now,
                    seconds=seconds,
                    tier=str(tier),
                    **columns_of(counts),
                    # Rows of a batch that was not saved may be in the sink.
                    **({"written_at": datetime.now(UTC)} if keep_claims else {}),
                )
            )
            if status is RunStatus.COMPLETE:
                forget_keys(connection, self.run_id)
            if keep_claims:
                self.claims.expire(connection)
            else:
                self.claims.release(connection)
            return now

        def done(connection: Connection, ended: datetime) -> bool:
            run = fetch_run(connection, self.run_id)
            return run is not None and run.ended_at == ended

        return self._database.write(work, done=done)

    def _update_checkpoint(self, connection: Connection, **values: Any) -> None:
        if connection.execute(update(checkpoints).where(self._own_checkpoint()).values(**values)).rowcount != 1:
            raise self._build_lost_claim_error()
        self._confirmed = time.monotonic()

    def _renew(self, connection: Connection) -> None:
        until = self._database.dialect.now(connection) + self._lease
        connection.execute(update(checkpoints).where(self._own_checkpoint()).values(owner_until=until))
        self.claims.renew(connection)

    def _owns_claim(self, connection: Connection) -> bool:
        return connection.execute(select(checkpoints.c.run_id).where(self._own_checkpoint())).first() is not None

    def _own_checkpoint(self) -> ColumnElement[bool]:
        return (checkpoints.c.pipeline_name == self._pipeline) & (checkpoints.c.owner == self._owner)

    def _build_lost_claim_error(self) -> RunStopped:
        return RunStopped(
            f"another process has taken pipeline {self._pipeline!r} over; this one has stopped", kind=Kind.TRANSIENT
        )

    # ── start ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _claim(self, connection: Connection, identity: dict[str, Any], now: datetime) -> Row[Any] | None:
        """Claim the checkpoint and return it as it was before; None if there was none."""
        claim = {"owner": self._owner, "owner_until": now + self._lease}
        first = self._database.dialect.insert(checkpoints).on_conflict_do_nothing()
        values = {"pipeline_name": self._pipeline, "run_id": self.run_id, "identity": identity, "updated_at": now}
        connection.execute(first, {**values, **claim})
        mine = checkpoints.c.pipeline_name == self._pipeline
        checkpoint = connection.execute(select(checkpoints).where(mine).with_for_update()).one()
        if checkpoint.owner == self._owner:
            return None  # the insert above created it
        if is_claimed(checkpoint, now):
            raise claimed_error(checkpoint, now)
        connection.execute(update(checkpoints).where(mine).values(**claim))
        return checkpoint

    def _resume(
        self,
        connection: Connection,
        source: Source,
        checkpoint: Row[Any],
        last_run: Row[Any],
        *,
        current_identity: Mapping[str, Any],
        compared: ComparedOptions,
        accept_changes: bool,
        sink: str,
        is_sink_missing: bool,
    ) -> StartedPipelineRun:
        require_same_source(
            self._pipeline,
            source,
            checkpoint.identity,
            f"has an unfinished run over {last_run.source}",
            "finish it with that source",
        )
        require_same_sink(self._pipeline, last_run, sink, is_sink_missing=is_sink_missing)
        if not accept_changes:
            require_same_options(self._pipeline, compared, checkpoint, is_finished=False)
        identity = with_new_files(without_options(checkpoint.identity), current_identity)
        kept = compared.added_to(identity)
        if kept != checkpoint.identity:
            connection.execute(update(checkpoints).where(self._own_checkpoint()).values(identity=kept))
        counts = counts_of(last_run)
        judged_before = counts if last_run.status == RunStatus.ABORTED else accepted_counts(last_run)
        connection.execute(
            update(runs)
            .where(runs.c.run_id == last_run.run_id)
            .values(
                status=RunStatus.RUNNING,
                reason=None,
                detail=None,
                environment=self._environment,
                ended_at=None,
                judged_at=None,
                failures=count_failures(last_run),
                **({} if judged_before is None else {"accepted": columns_of(judged_before)}),
                **({} if self._target is None else {"target": self._target}),
            )
        )
        return StartedPipelineRun(
            run_id=last_run.run_id,
            started_at=last_run.started_at,
            identity=identity,
            position=checkpoint.position,
            fields=tuple(checkpoint.fields or ()),
            counts=counts,
            judged_before=judged_before or Counts(),
            overridden=judged_before is not None,
            seconds=last_run.seconds,
            resumed=True,
            source_done=last_run.source_done,
            source_total=last_run.source_total,
            sla=last_run.sla,
        )

    def _start_new_run(
        self,
        connection: Connection,
        source: Source,
        identity: dict[str, Any],
        kept_position: Any,
        *,
        compared: ComparedOptions,
        sink: str,
        sla: TimeOfDay | float | None,
        now: datetime,
        failures: int,
    ) -> StartedPipelineRun:
        """Start a new run: at the watermark of an incremental source, else at the start of the source."""
        row = self._build_run_row(self.run_id, source, sink=sink, sla=sla, now=now)
        connection.execute(runs.insert(), {**row, "failures": failures})
        # A lag may make the run start earlier, for late rows; the checkpoint does not move back for that.
        self._update_checkpoint(
            connection,
            run_id=self.run_id,
            identity=compared.added_to(identity),
            position=kept_position,
            fields=None,
            updated_at=now,
        )
        position = (
            source.start_of_next_run(kept_position)
            if isinstance(source, Incremental) and kept_position is not None
            else None
        )
        return StartedPipelineRun(
            run_id=self.run_id, started_at=now, identity=identity, position=position, sla=row["sla"]
        )

    def _build_run_row(
        self, run_id: uuid.UUID, source: Source, *, sink: str, sla: TimeOfDay | float | None, now: datetime
    ) -> dict[str, Any]:
        return {
            "run_id": run_id,
            "pipeline_name": self._pipeline,
            "target": self._target,
            "environment": self._environment,
            "status": RunStatus.RUNNING,
            "source": storable(source.name),
            "sink": storable(sink),
            "key_fields": null() if self._key is None else self._key,
            "started_at": now,
            "updated_at": now,
            "sla": due_at(sla, now),
        }
