"""Where a pipeline stands: its checkpoint, and the claim of the one process that may move it.

A process that was killed leaves its claim behind. Another one on the same machine sees that it is dead; one elsewhere
waits until the lease has run out. Whoever lost the claim meanwhile can save nothing any more.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, null, select, update

from redrive._internal.masking import mask_all, mask_start
from redrive._internal.tracing import trace_id
from redrive.dlq.insert.row_builder import storable
from redrive.dlq.replay.claims import Claims, abandon_run, owner_of_run
from redrive.errors import PipelineError, RunStopped
from redrive.model.calls import Kind, format_duration
from redrive.model.runs import Counts, RunStatus, Tier
from redrive.policy.time_of_day import TimeOfDay, due_at
from redrive.rows.errors import RunFault
from redrive.rows.refused_runs import has_appended, has_rows, still_aborted, would_double
from redrive.rows.sinks.sink import Appends
from redrive.rows.sources.files.files import with_new_files
from redrive.rows.sources.source import Incremental, Replaceable, Source
from redrive.store.database import Database
from redrive.store.lease import renewed
from redrive.store.process_identity import begin_work, end_work, is_owner_dead, new_owner
from redrive.store.repositories.known_runs import count_rows, register_start
from redrive.store.repositories.runs import columns_of, counts_of
from redrive.store.schema import checkpoints, letters, run_key_blocks, run_keys, runs

LEASE = timedelta(seconds=60)
_LONGEST_VARIABLE = 500
_OVER = {RunStatus.COMPLETE, RunStatus.ABANDONED}


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedRun:
    """A run that was begun, or is gone on with."""

    run_id: uuid.UUID
    started_at: datetime
    identity: Mapping[str, Any]
    position: Any = None
    fields: tuple[str, ...] = ()
    """What the records before had for fields."""
    counts: Counts = field(default_factory=Counts)
    seconds: float = 0.0
    """Spent in the parts before."""
    resumed: bool = False
    started_over: str | None = None
    """Why an unfinished run was abandoned and this one reads from the start, where that was not asked for."""
    source_done: int | None = None
    source_total: int | None = None
    """How much of the source the parts before have read, and how much there was."""
    sla: datetime | None = None
    judged_before: Counts = field(default_factory=Counts)
    """What the gate has judged, and an operator has accepted."""
    overridden: bool = False
    """Whether an operator let the run continue, in this part or an earlier one, after the gate had aborted it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRefused:
    """A run that could not begin."""

    run_id: uuid.UUID
    at: datetime
    sla: datetime | None


class RunHandle:
    """One process's claim on one pipeline."""

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
        self._environment = _environment(environment)
        self._lease = lease
        self._owner = new_owner()
        self._confirmed = time.monotonic()
        self.claims = Claims(database, lease=lease.total_seconds())
        """Letters whose rows the run is about to write: no replay must write them at the same time."""
        begin_work(self._owner)
        self.run_id = uuid.uuid4()

    def begin(
        self,
        source: Source,
        *,
        sink: str,
        sla: TimeOfDay | float | None,
        restart: bool,
        override_gate: bool = False,
        appending: Appends | None = None,
        sink_exists: Callable[[], bool] = lambda: True,
    ) -> StartedRun:
        """Claim the pipeline: resume the run that was not finished, or begin a new one.

        Args:
            sink_exists: whether the table or directory is there; asked where rows of an earlier run should be in it.
            appending: the sink, where it appends rows: those of a run that is not finished must not be read again.

        Raises:
            GateAborted: the gate aborted the last run, and nobody has overridden it or asked for a restart.
        """
        if isinstance(source, Replaceable) and not restart and self._database.read(self._is_unfinished):
            source.look()  # here, since it may take a while, and nobody waits for a lock
        identity = source.identity()
        is_gone = not restart and self._is_gone(source, sink_exists)

        def work(connection: Connection) -> StartedRun:
            now = self._database.dialect.now(connection)
            standing = self._claim(connection, identity, now)
            register_start(connection, self._database.dialect, "pipeline", self._pipeline, sla=sla, now=now)
            last, failures = None if standing is None else _run(connection, standing.run_id), 0
            started_over = None
            if standing is not None and last is not None and RunStatus(last.status) not in _OVER:
                aborted = last.status == RunStatus.ABORTED
                if aborted and not (restart or override_gate):
                    raise still_aborted(last, standing.position)
                appended = has_appended(appending, last)
                # A run that was killed in its first batch has read nothing by the store, and may have appended it.
                if (last.rows_read or aborted or appended) and not restart:
                    # Before the first checkpoint nothing is known of the input; the sink compares what was appended.
                    if standing.position is not None:
                        started_over = self._changed(source, standing, last)
                    if started_over is None:
                        return self._resume(
                            connection, source, standing, last, found=identity, sink=sink, is_gone=is_gone
                        )
                if appended:
                    raise would_double(last, sink, started_over)
                reason = {} if started_over is None else {"reason": started_over}
                connection.execute(
                    update(runs)
                    .where(runs.c.run_id == last.run_id)
                    .values(status=RunStatus.ABANDONED, ended_at=now, judged_at=now, **reason)
                )
                _forget_keys(connection, last.run_id)
                abandon_run(connection, last.run_id, now)
                if restart and appending is not None:
                    _supersede_letters(connection, last.run_id, now)
                # Who dies before the first row dies as often as who dies behind it.
                failures = 0 if restart else _failures(last)
            elif restart and last is not None and isinstance(source, Incremental) and has_rows(appending):
                raise would_double(last, sink, None)
            kept = None if restart or standing is None or not isinstance(source, Incremental) else standing.position
            if kept is not None and standing is not None:
                has = "has a watermark of another source"
                self._same(source, standing.identity, has, "go back to that source")
                self._same_sink(last, sink, is_gone=is_gone)
            begun = self._anew(connection, source, identity, kept, sink=sink, sla=sla, now=now, failures=failures)
            return replace(begun, started_over=started_over)

        begun = self._database.write(work, done=lambda connection, _: self._is_ours(connection))
        self.run_id = begun.run_id
        self.claims.owner = owner_of_run(begun.run_id)
        return begun

    def refuse(
        self,
        source: Source,
        *,
        sink: str,
        sla: TimeOfDay | float | None,
        reason: str,
        fault: RunFault,
        seconds: float = 0.0,
    ) -> RunRefused | None:
        """Note a run that could not begin, beside one that is not finished; None where others are at the pipeline.

        It is nobody's checkpoint: what is to be gone on with is so as before. `seconds` is how long it was tried, such
        as the retries of an API's first page.
        """
        run_id = uuid.uuid4()

        def work(connection: Connection) -> RunRefused | None:
            now = self._database.dialect.now(connection)
            mine = checkpoints.c.pipeline_name == self._pipeline
            standing = connection.execute(select(checkpoints).where(mine)).first()
            if standing is not None and _is_held(standing, now):
                return None
            register_start(connection, self._database.dialect, "pipeline", self._pipeline, sla=sla, now=now)
            began = now - timedelta(seconds=seconds)
            row = self._new(run_id, source, sink=sink, sla=sla, now=began) | {"updated_at": now, "seconds": seconds}
            ended = {"status": RunStatus.FAILED, "reason": reason, "ended_at": now, **_fault(fault)}
            connection.execute(runs.insert(), {**row, **ended})
            return RunRefused(run_id=run_id, at=now, sla=row["sla"])

        return self._database.write(work, done=lambda connection, _: _run(connection, run_id) is not None)

    def release(self) -> None:
        """Let go of the claim in this process: what is left of it in the store is nobody's."""
        end_work(self._owner)

    def kept_alive(self) -> AbstractContextManager[None]:
        """Hold the claim for as long as the block runs."""
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
            added: the rows of this batch, which `counts` includes.
            done: how much of the source's `total` is behind the checkpoint.
            written_at: when its rows were written, by the clock of its letters; None where none were.
        """
        now = self._database.dialect.now(connection)
        until = now + self._lease
        self._move(connection, position=position, fields=list(fields) or None, updated_at=now, owner_until=until)
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
        """Whether these counts are in the store."""
        found = _run(connection, self.run_id)
        return found is not None and counts_of(found).batches == counts.batches

    def hold(self, connection: Connection) -> None:
        """See that the claim is ours, in a transaction that moves no checkpoint."""
        if not self._is_ours(connection):
            raise self._lost()

    def confirm(self) -> None:
        """See that the claim is still ours, where we have not heard of it for a while: we may have stood still."""
        if time.monotonic() - self._confirmed > self._lease.total_seconds() / 2:
            if not self._database.read(self._is_ours):
                raise self._lost()
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
        """Say how the run ended, and let the pipeline go.

        Args:
            keep_claims: whether letters stay claimed until the run is resumed or abandoned, as those of a killed one.
        """

        trace = trace_id(self.run_id)

        def work(connection: Connection) -> datetime:
            now = self._database.dialect.now(connection)
            self._move(connection, updated_at=now, owner=None, owner_until=None)
            connection.execute(
                update(runs)
                .where(runs.c.run_id == self.run_id)
                .values(
                    status=status,
                    reason=reason,
                    **_fault(fault),
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
                _forget_keys(connection, self.run_id)
            if keep_claims:
                self.claims.expire(connection)
            else:
                self.claims.release(connection)
            return now

        def done(connection: Connection, ended: datetime) -> bool:
            found = _run(connection, self.run_id)
            return found is not None and found.ended_at == ended

        return self._database.write(work, done=done)

    def _move(self, connection: Connection, **values: Any) -> None:
        if connection.execute(update(checkpoints).where(self._ours()).values(**values)).rowcount != 1:
            raise self._lost()
        self._confirmed = time.monotonic()

    def _renew(self, connection: Connection) -> None:
        until = self._database.dialect.now(connection) + self._lease
        connection.execute(update(checkpoints).where(self._ours()).values(owner_until=until))
        self.claims.renew(connection)

    def _is_ours(self, connection: Connection) -> bool:
        return connection.execute(select(checkpoints.c.run_id).where(self._ours())).first() is not None

    def _ours(self) -> ColumnElement[bool]:
        return (checkpoints.c.pipeline_name == self._pipeline) & (checkpoints.c.owner == self._owner)

    def _lost(self) -> RunStopped:
        return RunStopped(
            f"another process has taken pipeline {self._pipeline!r} over; this one has stopped", kind=Kind.TRANSIENT
        )

    # ── beginning ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _claim(self, connection: Connection, identity: dict[str, Any], now: datetime) -> Row[Any] | None:
        """The checkpoint as it stood, now ours; None where there was none."""
        held = {"owner": self._owner, "owner_until": now + self._lease}
        first = self._database.dialect.insert(checkpoints).on_conflict_do_nothing()
        values = {"pipeline_name": self._pipeline, "run_id": self.run_id, "identity": identity, "updated_at": now}
        connection.execute(first, {**values, **held})
        mine = checkpoints.c.pipeline_name == self._pipeline
        standing = connection.execute(select(checkpoints).where(mine).with_for_update()).one()
        if standing.owner == self._owner:
            return None  # there was none before
        if _is_held(standing, now):
            who = json.loads(standing.owner)
            wait = format_duration((standing.owner_until - now).total_seconds())
            raise RunStopped(
                f"pipeline {self._pipeline!r} is being run by process {who['pid']} on {who['host']}; "
                f"wait until it is done (if it is dead, the claim ends in {wait})",
                kind=Kind.TRANSIENT,
            )
        connection.execute(update(checkpoints).where(mine).values(**held))
        return standing

    def _resume(
        self,
        connection: Connection,
        source: Source,
        standing: Row[Any],
        last: Row[Any],
        *,
        found: Mapping[str, Any],
        sink: str,
        is_gone: bool,
    ) -> StartedRun:
        self._same(source, standing.identity, f"has an unfinished run over {last.source}", "finish it with that source")
        self._same_sink(last, sink, is_gone=is_gone)
        identity = with_new_files(standing.identity, found)
        if identity != standing.identity:
            connection.execute(update(checkpoints).where(self._ours()).values(identity=identity))
        counts = counts_of(last)
        judged_before = counts if last.status == RunStatus.ABORTED else _accepted(last)
        connection.execute(
            update(runs)
            .where(runs.c.run_id == last.run_id)
            .values(
                status=RunStatus.RUNNING,
                reason=None,
                detail=None,
                environment=self._environment,
                ended_at=None,
                judged_at=None,
                failures=_failures(last),
                **({} if judged_before is None else {"accepted": columns_of(judged_before)}),
                **({} if self._target is None else {"target": self._target}),
            )
        )
        return StartedRun(
            run_id=last.run_id,
            started_at=last.started_at,
            identity=identity,
            position=standing.position,
            fields=tuple(standing.fields or ()),
            counts=counts,
            judged_before=judged_before or Counts(),
            overridden=judged_before is not None,
            seconds=last.seconds,
            resumed=True,
            source_done=last.source_done,
            source_total=last.source_total,
            sla=last.sla,
        )

    def _is_unfinished(self, connection: Connection) -> bool:
        mine = (checkpoints.c.pipeline_name == self._pipeline) & (checkpoints.c.run_id == runs.c.run_id)
        status = connection.execute(select(runs.c.status).where(mine)).scalar()
        return status is not None and RunStatus(status) not in _OVER

    def _changed(self, source: Source, standing: Row[Any], last: Row[Any]) -> str | None:
        """Why an unfinished run cannot be resumed over the input as it is; a source that can tell is asked."""
        if not isinstance(source, Replaceable) or source.difference(standing.identity):
            return None  # another source is refused
        changed = source.changed(standing.identity, standing.position)
        if changed is None:
            return None
        return (
            f"{source.name} has other input than the unfinished run {str(last.run_id)[:8]}, which was abandoned after "
            f"{last.rows_read:,} rows: {changed}"
        )

    def _same(self, source: Source, identity: Mapping[str, Any], has: str, do: str) -> None:
        if difference := source.difference(identity):
            raise PipelineError(
                f"pipeline {self._pipeline!r} {has}, and its checkpoint does not fit {source.name}: {difference}; "
                f"{do}, or begin anew with run(restart=True) or `redrive run --restart`"
            )

    def _is_gone(self, source: Source, sink_exists: Callable[[], bool]) -> bool:
        """Whether the sink is missing although rows were written that the run to come would not read again."""
        if not self._database.read(lambda connection: self._has_written(connection, source)):
            return False
        try:
            return not sink_exists()
        except Exception:
            return False  # nothing is known about it; the run itself meets the error, and retries where that helps

    def _has_written(self, connection: Connection, source: Source) -> bool:
        """Whether rows before the checkpoint were written; not asked where another process runs the pipeline."""
        standing = connection.execute(
            select(checkpoints).where(checkpoints.c.pipeline_name == self._pipeline)
        ).one_or_none()
        if standing is None or _is_held(standing, self._database.dialect.now(connection)):
            return False
        if isinstance(source, Incremental):  # which reads nothing again, neither of this run nor of those before
            of_runs = runs.c.pipeline_name == self._pipeline
        else:
            of_runs = (runs.c.run_id == standing.run_id) & runs.c.status.not_in(_OVER)
        written = runs.c.rows_written + runs.c.rows_duplicates > 0
        return connection.execute(select(runs.c.run_id).where(of_runs, written).limit(1)).first() is not None

    def _same_sink(self, last: Row[Any] | None, sink: str, *, is_gone: bool) -> None:
        if last is not None and last.sink != storable(sink):
            raise PipelineError(
                f"pipeline {self._pipeline!r} has written to {last.sink} so far, and would go on in {sink}, where the "
                "rows before would be missing: go back to that sink, or begin anew with run(restart=True) or "
                "`redrive run --restart`"
            )
        if is_gone:
            raise PipelineError(
                f"pipeline {self._pipeline!r} has written rows to {sink}, which does not exist any more, and would "
                "continue behind them: restore it, or begin anew with run(restart=True) or `redrive run --restart`"
            )

    def _anew(
        self,
        connection: Connection,
        source: Source,
        identity: dict[str, Any],
        kept: Any,
        *,
        sink: str,
        sla: TimeOfDay | float | None,
        now: datetime,
        failures: int,
    ) -> StartedRun:
        """A new run: behind the last one where the source goes on from there, else at its start."""
        row = self._new(self.run_id, source, sink=sink, sla=sla, now=now)
        connection.execute(runs.insert(), {**row, "failures": failures})
        # Where it really begins may be earlier, for rows that come late; that is no reason to move the checkpoint back.
        self._move(connection, run_id=self.run_id, identity=identity, position=kept, fields=None, updated_at=now)
        position = source.start_of_next_run(kept) if isinstance(source, Incremental) and kept is not None else None
        return StartedRun(run_id=self.run_id, started_at=now, identity=identity, position=position, sla=row["sla"])

    def _new(
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


def _run(connection: Connection, run_id: uuid.UUID) -> Row[Any] | None:
    return connection.execute(select(runs).where(runs.c.run_id == run_id)).one_or_none()


def _accepted(last: Row[Any]) -> Counts | None:
    """What a run had counted when an operator last overrode the gate; None where nobody has."""
    if last.accepted is None:
        return None
    return Counts(read=last.accepted["rows_read"], rejected=last.accepted["rows_rejected"])


def _supersede_letters(connection: Connection, run_id: uuid.UUID, now: datetime) -> None:
    """Mark the letters of a run whose input is read again: without a key, a replay would double their rows."""
    mine = (letters.c.run_id == run_id) & letters.c.superseded_at.is_(None)
    connection.execute(update(letters).where(mine).values(superseded_at=now))


def _forget_keys(connection: Connection, run_id: uuid.UUID) -> None:
    for table in (run_keys, run_key_blocks):
        connection.execute(delete(table).where(table.c.run_id == run_id))


def _is_held(standing: Row[Any], now: datetime) -> bool:
    """Whether a process that lives has the pipeline in hand."""
    return standing.owner is not None and standing.owner_until > now and not is_owner_dead(standing.owner)


def _failures(last: Row[Any]) -> int:
    """How often this run, which is not finished, has failed so far: who left it running has died."""
    return int(last.failures) + int(last.status in (RunStatus.FAILED, RunStatus.RUNNING))


def _fault(fault: RunFault | None) -> dict[str, Any]:
    return {
        "error_kind": None if fault is None else fault.kind,
        "error_type": None if fault is None else fault.name,
        "error_service": None if fault is None else fault.service,
        "detail": None if fault is None else fault.detail,
    }


def _environment(names: Sequence[str]) -> Any:
    """Return these variables of the environment, masked and bounded; NULL where none of them is set."""
    found = {name: storable(mask_start(os.environ[name], _LONGEST_VARIABLE)) for name in names if os.environ.get(name)}
    return mask_all(found) or null()  # by their names, too
