"""Rules on levels: deadlines, lost runs, durations, open letters, row counts, replication slots and consumer lag.

Used by the registry. Rules on services are in `redrive.alerts.rules.services`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from fractions import Fraction

from redrive.alerts.conditions import make_finding
from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.delivery.format import (
    command,
    counted,
    gigabytes,
    letters_sql,
    percent,
    short,
    span,
    text,
    wall,
)
from redrive.alerts.facts.run_history import facts_of, goes_on, stale, zone_of
from redrive.alerts.facts.snapshot import (
    DueRun,
    Judgement,
    Lag,
    LevelSnapshot,
    PendingLetters,
    RunSnapshot,
    Slot,
    TableRows,
)
from redrive.alerts.rules.runs import dead, duration
from redrive.model.alerts import Facts, Finding, Subject

_DAY = timedelta(days=1)
_LOOP_FAILURES = 3  # failures after which a resumed run counts as looping
_SLOTS = (
    "SELECT slot_name, active, pg_size_pretty(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)) AS behind "
    "FROM pg_replication_slots ORDER BY restart_lsn"
)

# ── runs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def deadlines(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return deadlines that have passed without a complete run. A late run ends the miss when it completes.

    A missed deadline stays missed on a following day without a deadline: Friday's missing run is still missing on
    Saturday. Within the grace period a new deadline is not judged, and an earlier miss stays as it is.
    """
    if "due" in snapshot.unknown:
        return Judgement()
    due = [due_run for due_run in snapshot.due if snapshot.knows("due", due_run.subject.ident)]
    grace = timedelta(seconds=settings.thresholds.sla_grace)
    is_there = {
        due_run.subject.ident
        for due_run in due
        if due_run.done_at is not None or (due_run.last_complete is not None and due_run.last_complete > due_run.sla)
    }
    missed = [
        due_run for due_run in due if snapshot.now > due_run.sla + grace and due_run.subject.ident not in is_there
    ]
    # A flow without a time of day may have runs with SLAs of their own: see `sla_rules.under_way`.
    inactive = {ident for ident in snapshot.inactive if snapshot.knows("running", ident)}
    names = is_there | {due_run.subject.ident for due_run in missed} | inactive
    return Judgement(
        findings=tuple(_missed_finding(due_run, snapshot, settings) for due_run in missed),
        judged=frozenset({f"sla:{name}" for name in names} | {f"sla_risk:{name}" for name in inactive}),
    )


def _missed_finding(due: DueRun, snapshot: LevelSnapshot, settings: AlertSettings) -> Finding:
    name, zone, now = short(due.subject.name), zone_of(due, settings), snapshot.now
    run = next((running for running in snapshot.running if running.run_id == due.run_id), None)
    ago = (now - due.sla).total_seconds()
    at = wall(due.sla, zone, now)
    measured = {"late by": ago, "threshold": settings.thresholds.sla_grace}
    if run is not None:
        title, facts = _under_way(run, at, settings, snapshot)
        facts = replace(facts, measured={**facts.measured, **measured})
    else:
        kind = "--flow" if due.subject.kind == "flow" else "--pipeline"
        title = (
            f"{name} is not done, and it was due at {at}"
            if due.started
            else f"{name}: nothing has run, and it was due at {at}"
        )
        facts = Facts(
            status="not done" if due.started else "not started",
            run_id=due.run_id,
            measured=measured,
            affected=(due.subject.name,),
            commands=(command("runs", "ls", kind, due.subject.name),),
            next_step=(
                "nothing starts it but your scheduler: see why that did not, and run it"
                if not due.started
                else "it does not go on by itself: see why it ended, and run it again"
            ),
        )
    facts = replace(facts, impact=stale(due, due.sla, zone, now), sla=due.sla)
    return make_finding(
        "sla_missed",
        due.subject,
        title,
        facts,
        key=f"sla:{due.subject.ident}",
        evidence=f"sla:{due.subject.ident}",
        since=due.sla + timedelta(seconds=settings.thresholds.sla_grace),
    )


def _under_way(run: RunSnapshot, at: str, settings: AlertSettings, snapshot: LevelSnapshot) -> tuple[str, Facts]:
    name = short(run.subject.name)
    if run.status == "running" and not run.lost:
        title, step = f"{name} still runs, and it was due at {at}", "it goes on until it is complete"
    else:
        how = "is lost" if run.lost else f"is {run.status}"
        title, step = (
            f"{name} {how}, and it was due at {at}",
            f"nothing but your scheduler starts it again: {goes_on(run)}",
        )
    return title, facts_of(run, settings, snapshot.now, next_step=step)


def lost(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return runs that are running by their status but have no live executor, or one that is failing repeatedly."""
    runs = _known_running(snapshot)
    findings = [_lost_finding(run, snapshot, settings) for run in runs if run.lost or _is_looping(run)]
    return Judgement(findings=tuple(findings)) + snapshot.judged("running", "level:lost:", (run.ident for run in runs))


def _is_looping(run: RunSnapshot) -> bool:
    """Return whether a run fails each time it is resumed."""
    return run.status == "running" and run.failures >= _LOOP_FAILURES


def _lost_finding(run: RunSnapshot, snapshot: LevelSnapshot, settings: AlertSettings) -> Finding:
    name = short(run.subject.name)
    done = f"{run.tasks_done:,} of {counted(run.tasks_total, 'task')}" if run.tasks_total else None
    done = done or f"{counted(run.written, 'row')} written"
    if run.lost:
        title = f"{name} has died while it ran: no process is behind it any more ({done})"
        step = f"nothing but your scheduler starts it again: {goes_on(run)}"
    else:
        title = f"{name} has failed or died {run.failures:,} times, and runs once more ({done})"
        step = "it goes on until it is complete, or ends as it did before: see what kills it, memory first"
    return make_finding(
        "retries_exhausted",
        run.subject,
        title,
        facts_of(run, settings, snapshot.now, next_step=step, measured={"failures": run.failures}),
        key=f"run:{run.ident}",
        evidence=f"level:lost:{run.ident}",
        persist=settings.recovery,
    )


def durations(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return running runs that take longer than usual."""
    runs = _known_running(snapshot)
    findings = [
        duration(run, settings, snapshot.now, evidence=f"level:duration:{run.subject.ident}", persist=settings.persist)
        for run in runs
        if run.status == "running" and not run.lost
    ]
    judged = snapshot.judged("running", "level:duration:", (run.subject.ident for run in runs))
    return Judgement(findings=tuple(finding for finding in findings if finding is not None)) + judged


def dead_tasks(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return dead tasks that wait for an operator, in all flows that are not over."""
    of_runs = sum((dead(run, settings, snapshot.now) for run in _known_running(snapshot)), Judgement())
    return of_runs + snapshot.judged("running", "dead:", ())


def _known_running(snapshot: LevelSnapshot) -> list[RunSnapshot]:
    return [run for run in snapshot.running if snapshot.knows("running", run.subject.ident)]


# ── letters ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_KEPT = "they are kept until somebody decides: replay them when the cause is mended, or discard them with a note"


def pending(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return pipelines with many open letters that were rejected within a day."""
    limit = settings.thresholds.pending_day
    findings = [
        _pending_finding(letters, snapshot, settings)
        for letters in snapshot.letters
        if letters.new_today >= max(1, limit) and snapshot.knows("letters", letters.pipeline)
    ]
    judged = snapshot.judged("letters", "level:pending:", (letters.pipeline for letters in snapshot.letters))
    return Judgement(findings=tuple(findings)) + judged


def _pending_finding(letters: PendingLetters, snapshot: LevelSnapshot, settings: AlertSettings) -> Finding:
    name = letters.pipeline
    cause = f": {letters.cause}" if letters.cause else ""
    since = snapshot.now - _DAY
    facts = Facts(
        letters=letters.pending,
        cause=letters.cause,
        measured={"open letters of the last day": letters.new_today, "threshold": settings.thresholds.pending_day},
        affected=(name,),
        commands=(
            command("dlq", "causes", "--pipeline", name, "--since", "1d"),
            command("dlq", "replay", "--pipeline", name),
        ),
        sql=letters_sql(f"pipeline_name = {text(name)} AND rejected_at >= {text(since.isoformat())}"),
        next_step=_KEPT,
    )
    return make_finding(
        "pending_day",
        Subject(kind="pipeline", name=name),
        f"{short(name)}: {counted(letters.new_today, 'open letter')} of the last day, "
        f"{letters.pending:,} in all{cause}",
        facts,
        key=f"letters:{name}",
        evidence=f"level:pending:{name}",
        persist=settings.persist,
    )


def pending_in_all(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return a finding if all pipelines together have too many open letters."""
    if "letters" in snapshot.unknown:
        return Judgement()
    evidence, limit = "level:pending_total", settings.thresholds.pending_total
    if snapshot.pending_total < max(1, limit):
        return Judgement(judged=frozenset({evidence}))
    largest = sorted(snapshot.letters, key=lambda letters: -letters.pending)[:5]
    facts = Facts(
        letters=snapshot.pending_total,
        measured={"open letters": snapshot.pending_total, "threshold": limit},
        affected=tuple(letters.pipeline for letters in largest),
        commands=(command("dlq", "causes"),),
        sql=(
            "SELECT pipeline_name, error_type, count(*) AS letters FROM pipeline.dead_letter_queue "
            "WHERE status IN ('pending', 'escalated') GROUP BY pipeline_name, error_type ORDER BY letters DESC LIMIT 50"
        ),
        next_step=_KEPT,
    )
    first = f", {largest[0].pending:,} of them of {short(largest[0].pipeline)}" if largest else ""
    finding = make_finding(
        "pending_total",
        Subject(kind="store", name="letters"),
        f"{counted(snapshot.pending_total, 'open letter')} in all ({limit:,} are too many){first}",
        facts,
        key="letters:*",
        evidence=evidence,
        persist=settings.persist,
    )
    return Judgement(findings=(finding,), judged=frozenset({evidence}))


# ── beside the store ──────────────────────────────────────────────────────────────────────────────────────────────────


def row_counts(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return tables with fewer rows than a week ago. Tables without a count of last week are not judged."""
    tables = [table for table in snapshot.tables if snapshot.knows("tables", table.name)]
    unknown = {table.name for table in tables} - {table.name for table in tables if table.week_ago is not None}
    findings = [finding for table in tables if (finding := _row_count_finding(table, settings)) is not None]
    judged = snapshot.judged("tables", "level:rows:", (table.name for table in snapshot.tables), leaving=unknown)
    return Judgement(findings=tuple(findings)) + judged


def _row_count_finding(table: TableRows, settings: AlertSettings) -> Finding | None:
    limit = settings.thresholds.row_drop
    if not table.week_ago:
        return None
    drop = Fraction(table.week_ago - table.rows, table.week_ago)
    if drop <= Fraction(str(limit)):
        return None
    by = () if table.pipeline is None else (table.pipeline,)
    facts = Facts(
        impact=f"whoever reads {table.name} misses {counted(table.week_ago - table.rows, 'row')}",
        rows_done=table.rows,
        rows_total=table.week_ago,
        measured={"down by": float(drop), "threshold": limit},
        affected=by,
        commands=tuple(command("runs", "ls", "--pipeline", name) for name in by),
        sql=f"SELECT count(*) FROM {table.name}",
        next_step="nothing brings them back by itself: see whether rows were deleted, or a load did not bring them",
    )
    return make_finding(
        "row_count",
        Subject(kind="table", name=table.name),
        f"{short(table.name)} has {counted(table.rows, 'row')}, {percent(float(drop))} fewer than the "
        f"{table.week_ago:,} of this hour last week",
        facts,
        key=f"rows:{table.name}",
        evidence=f"level:rows:{table.name}",
        persist=settings.persist,
    )


def slots(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return replication slots that lag."""
    limit = settings.thresholds.slot_bytes
    findings = [
        _slot_finding(slot, settings)
        for slot in snapshot.slots
        if slot.lag_bytes > limit and snapshot.knows("slots", slot.name)
    ]
    judged = snapshot.judged("slots", "level:slot:", (slot.name for slot in snapshot.slots))
    return Judgement(findings=tuple(findings)) + judged


def _slot_finding(slot: Slot, settings: AlertSettings) -> Finding:
    limit = settings.thresholds.slot_bytes
    reads = "its consumer is too slow" if slot.active else "nobody reads from it"
    facts = Facts(
        impact="the server keeps all of its log since then, and stops when its disk is full",
        measured={"behind by bytes": slot.lag_bytes, "threshold": limit},
        sql=_SLOTS,
        next_step="nothing frees it but its consumer: start that again, or drop the slot if nobody needs it",
    )
    return make_finding(
        "slot_lag",
        Subject(kind="slot", name=slot.name),
        f"replication slot {short(slot.name)} is {gigabytes(slot.lag_bytes)} behind ({gigabytes(limit)} is the limit), "
        f"and {reads}",
        facts,
        key=f"slot:{slot.name}",
        evidence=f"level:slot:{slot.name}",
        persist=settings.persist,
    )


def consumers(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return consumers that are behind."""
    lags = [lag for lag in snapshot.lags if snapshot.knows("lags", lag.consumer)]
    measured = {lag.consumer for lag in lags if lag.messages is not None or lag.seconds is not None}
    unknown = {lag.consumer for lag in lags} - measured
    findings = [finding for lag in lags if (finding := _lag_finding(lag, settings)) is not None]
    judged = snapshot.judged("lags", "level:lag:", (lag.consumer for lag in snapshot.lags), leaving=unknown)
    return Judgement(findings=tuple(findings)) + judged


def _lag_finding(lag: Lag, settings: AlertSettings) -> Finding | None:
    limits = settings.thresholds
    said: list[str] = []
    measured: dict[str, float] = {}
    if lag.messages is not None and lag.messages > limits.lag_messages:
        said.append(f"by {counted(lag.messages, 'message')} ({limits.lag_messages:,} is the limit)")
        measured |= {"messages": lag.messages, "threshold": limits.lag_messages}
    if lag.seconds is not None and lag.seconds > limits.lag_seconds:
        said.append(f"by {span(lag.seconds)} ({span(limits.lag_seconds)} is the limit)")
        measured |= {"seconds": lag.seconds, "threshold of seconds": limits.lag_seconds}
    if not said:
        return None
    facts = Facts(
        measured=measured,
        commands=() if lag.look is None else (lag.look,),
        next_step="it goes on to read; if it does not catch up, see whether it runs, and whether it is fast enough",
    )
    return make_finding(
        "consumer_lag",
        Subject(kind="consumer", name=lag.consumer),
        f"consumer {short(lag.consumer)} is behind {' and '.join(said)}",
        facts,
        key=f"lag:{lag.consumer}",
        evidence=f"level:lag:{lag.consumer}",
        persist=settings.persist,
    )
