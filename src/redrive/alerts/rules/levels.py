"""Rules on levels: letters, sizes, tables, replication slots, consumer lag, defined conditions, failed measurements."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction

from redrive.alerts.conditions import make_finding
from redrive.alerts.config.settings import AlertSettings, ConditionSettings
from redrive.alerts.delivery.format import (
    TITLE_LENGTH,
    command,
    counted,
    gigabytes,
    letters_sql,
    percent,
    safe_line,
    short,
    span,
    text,
    whole,
)
from redrive.alerts.facts.snapshot import (
    Figure,
    Judgement,
    Lag,
    LevelSnapshot,
    PendingLetters,
    Slot,
    TableAge,
    TableRows,
)
from redrive.model.alerts import Facts, Finding, Subject

_DAY = timedelta(days=1)
_SLOTS = (
    "SELECT slot_name, active, pg_size_pretty(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)) AS behind "
    "FROM pg_replication_slots ORDER BY restart_lsn"
)


# ── letters ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_KEPT = "they are kept until an operator decides: replay them when the cause is fixed, or discard them with a note"


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


# ── tables, slots and consumers ───────────────────────────────────────────────────────────────────────────────────────


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


def table_freshness(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return watched tables whose newest row is older than their `fresh_within`, or that have none."""
    old = [table for table in snapshot.table_ages if table.age is None or table.age > table.within]
    judged = snapshot.judged("newest", "level:stale_table:", (table.name for table in snapshot.table_ages))
    return Judgement(findings=tuple(_stale_table(table, settings) for table in old)) + judged


def _stale_table(table: TableAge, settings: AlertSettings) -> Finding:
    since = "has no rows" if table.newest is None else f"is stale since {whole(table.newest)}"
    commands = () if table.pipeline is None else (command("runs", "ls", "--pipeline", table.pipeline),)
    facts = Facts(
        status="stale",
        impact=f"{table.name} {since}, by its newest {table.column}",
        measured={"threshold": table.within} if table.age is None else {"age": table.age, "threshold": table.within},
        affected=() if table.pipeline is None else (table.pipeline,),
        commands=commands,
        sql=f"SELECT max({table.column}) FROM {table.name}",
        next_step="check what writes to this table",
    )
    return make_finding(
        "stale",
        Subject(kind="table", name=table.name),
        f"{short(table.name)} {since}; its newest {short(table.column)} may be {span(table.within)} old",
        facts,
        key=f"stale_table:{table.name}",
        evidence=f"level:stale_table:{table.name}",
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
    reads = "its consumer is too slow" if slot.active else "no consumer reads from it"
    facts = Facts(
        impact="the server keeps all of its log since then, and stops when its disk is full",
        measured={"behind by bytes": slot.lag_bytes, "threshold": limit},
        sql=_SLOTS,
        next_step="only its consumer frees it: restart that, or drop the slot if it is not needed",
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
    excess: list[str] = []
    measured: dict[str, float] = {}
    if lag.messages is not None and lag.messages > limits.lag_messages:
        excess.append(f"by {counted(lag.messages, 'message')} ({limits.lag_messages:,} is the limit)")
        measured |= {"messages": lag.messages, "threshold": limits.lag_messages}
    if lag.seconds is not None and lag.seconds > limits.lag_seconds:
        excess.append(f"by {span(lag.seconds)} ({span(limits.lag_seconds)} is the limit)")
        measured |= {"seconds": lag.seconds, "threshold of seconds": limits.lag_seconds}
    if not excess:
        return None
    facts = Facts(
        measured=measured,
        commands=() if lag.look is None else (lag.look,),
        next_step="it continues to read; if it does not catch up, check whether it runs, and whether it is fast enough",
    )
    return make_finding(
        "consumer_lag",
        Subject(kind="consumer", name=lag.consumer),
        f"consumer {short(lag.consumer)} is behind {' and '.join(excess)}",
        facts,
        key=f"lag:{lag.consumer}",
        evidence=f"level:lag:{lag.consumer}",
        persist=settings.persist,
    )


# ── growth ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_PURGE = "dlq purge and store purge remove what is finished; [retention] in redrive.toml lets the watch do so every day"


def old_letters(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return pipelines whose oldest open letter has waited for too long."""
    known = [letters for letters in snapshot.letters if snapshot.knows("letters", letters.pipeline)]
    findings = [
        finding for letters in known if (finding := _old_letters_finding(letters, snapshot, settings)) is not None
    ]
    judged = snapshot.judged("letters", "level:old_letters:", (letters.pipeline for letters in snapshot.letters))
    return Judgement(findings=tuple(findings)) + judged


def _old_letters_finding(letters: PendingLetters, snapshot: LevelSnapshot, settings: AlertSettings) -> Finding | None:
    limit = settings.thresholds.letter_age
    age = 0.0 if letters.oldest is None else (snapshot.now - letters.oldest).total_seconds()
    if letters.oldest is None or age <= limit:
        return None
    name = letters.pipeline
    facts = Facts(
        letters=letters.pending,
        cause=letters.cause,
        impact=f"{short(name)} lacks these records since {whole(letters.oldest)}",
        measured={"age": age, "threshold": limit},
        affected=(name,),
        commands=(
            command("dlq", "causes", "--pipeline", name),
            command("dlq", "replay", "--pipeline", name),
            command("dlq", "discard", "--pipeline", name, "--note", "WHY"),
        ),
        sql=letters_sql(f"pipeline_name = {text(name)}"),
        next_step="open letters are never removed automatically: replay them when the cause is fixed, or discard them",
    )
    return make_finding(
        "old_letters",
        Subject(kind="pipeline", name=name),
        f"{short(name)}: the oldest of {counted(letters.pending, 'open letter')} has waited for {span(age)}",
        facts,
        key=f"old_letters:{name}",
        evidence=f"level:old_letters:{name}",
        persist=settings.persist,
    )


def sizes(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return findings if the store or its table of letters is too large."""
    limits = settings.thresholds
    return _size("store_size", "the store", snapshot.store_bytes, limits.store_bytes, settings) + _size(
        "letters_size", "the table of letters", snapshot.letters_bytes, limits.letters_bytes, settings
    )


def _size(condition: str, what: str, size: int | None, limit: float, settings: AlertSettings) -> Judgement:
    evidence = f"level:{condition}"
    if size is None:
        return Judgement()
    if size <= limit:
        return Judgement(judged=frozenset({evidence}))
    finding = make_finding(
        condition,
        Subject(kind="store", name=what.removeprefix("the ")),
        f"{what} takes {gigabytes(size)} ({gigabytes(limit)} is the limit)",
        Facts(
            impact="it grows until the disk is full, and then no run can record anything",
            measured={"bytes": size, "threshold": limit},
            commands=(command("store", "info"), command("dlq", "purge", "--dry-run")),
            next_step=_PURGE,
        ),
        key=condition,
        evidence=evidence,
        persist=settings.persist,
    )
    return Judgement(findings=(finding,), judged=frozenset({evidence}))


# ── failed measurements and defined conditions ────────────────────────────────────────────────────────────────────────

_MEASURED = {
    "due": "deadlines",
    "fresh": "freshness",
    "running": "runs",
    "services": "services",
    "letters": "open letters",
    "conditions": "the condition",
    "size": "the size of the store",
    "tables": "table row counts",
    "newest": "the newest row",
    "slots": "replication slots",
    "lags": "consumer lag",
}


def monitors(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return failed measurements, because their own alerts cannot open while they fail."""
    findings = tuple(_monitor_finding(name, reason, settings) for name, reason in sorted(snapshot.unknown.items()))
    return Judgement(findings=findings, judged_under=frozenset({"level:monitor:"}))


def _monitor_finding(name: str, reason: str, settings: AlertSettings) -> Finding:
    group, _, member = name.partition(":")
    what = _MEASURED.get(group, group) + (f" of {short(member)}" if member else "")
    return make_finding(
        "monitor_failed",
        Subject(kind="monitor", name=name),
        f"cannot measure {what}",
        Facts(
            status="not measured",
            error=reason,
            impact=f"alerts about {what} are neither opened nor resolved until it is measured again",
            next_step="fix the connection, permission or name in redrive.toml; the watch tries again at every look",
        ),
        key=f"monitor:{name}",
        evidence=f"level:monitor:{name}",
        persist=settings.persist,
    )


def defined_conditions(snapshot: LevelSnapshot, settings: AlertSettings) -> Judgement:
    """Return the defined conditions that hold. A condition without a value does not hold."""
    defined = settings.defined
    known = [
        figure for figure in snapshot.figures if figure.name in defined and snapshot.knows("conditions", figure.name)
    ]
    findings = [
        finding for figure in known if (finding := _defined_finding(figure, defined[figure.name], settings)) is not None
    ]
    judged = snapshot.judged("conditions", "level:condition:", (figure.name for figure in snapshot.figures))
    return Judgement(findings=tuple(findings)) + judged


def _defined_finding(figure: Figure, own: ConditionSettings, settings: AlertSettings) -> Finding | None:
    value = figure.value
    if value is None or own.severity is None:
        return None
    if own.above is not None and value > own.above:
        beyond, limit = "above", own.above
    elif own.below is not None and value < own.below:
        beyond, limit = "below", own.below
    else:
        return None
    name = figure.name
    subject = Subject(kind="custom", name=name)
    if own.pipeline is not None:
        subject = Subject(kind="pipeline", name=own.pipeline)
    about = () if own.pipeline is None else (own.pipeline,)
    return Finding(
        key=f"condition:{name}",
        condition=name,
        urgency=own.severity,
        subject=subject,
        title=safe_line(f"{own.title or name}: {value:,.10g} is {beyond} {limit:,.10g}", TITLE_LENGTH),
        facts=Facts(
            measured={"value": value, "threshold": limit},
            affected=about,
            commands=tuple(command("runs", "ls", "--pipeline", pipeline) for pipeline in about),
            sql=own.query,
        ),
        evidence=f"level:condition:{name}",
        persist=settings.persist if own.persist is None else own.persist,
    )
