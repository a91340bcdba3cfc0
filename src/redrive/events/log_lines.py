"""Lines of the execution log: the level, the sentence and the fields of each event."""

from __future__ import annotations

import json
import logging
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from redrive._internal.masking import mask, mask_start
from redrive.model.calls import (
    QUOTA_USED_UP,
    BreakerChanged,
    CallFailed,
    Event,
    Failure,
    FallbackUsed,
    KeyCooled,
    TokenRefreshed,
    format_duration,
)
from redrive.model.letters import LetterEvent, LettersChanged, LettersPurged, LettersPut, LettersReplayed
from redrive.model.runs import (
    BatchQuarantined,
    BatchRetried,
    BatchShrunk,
    BatchWritten,
    ColumnsIgnored,
    Counts,
    GateJudged,
    RunEnded,
    RunEvent,
    RunStarted,
    RunStatus,
    Tier,
)
from redrive.model.tasks import (
    FlowEnded,
    FlowEvent,
    FlowStarted,
    FlowStatus,
    GroupHeld,
    SlaAtRisk,
    TaskFailed,
    TaskRetried,
    TasksDead,
)


def line_of(event: Event) -> tuple[int, str]:
    """Return the level of an event and the sentence that describes it."""
    match event:
        case RunStarted() | BatchWritten() | BatchShrunk() | BatchRetried() | BatchQuarantined():
            return _run_line(event)
        case GateJudged() | ColumnsIgnored() | RunEnded():
            return _run_line(event)
        case FlowStarted() | TaskRetried() | TaskFailed() | TasksDead() | GroupHeld() | SlaAtRisk() | FlowEnded():
            return _flow_line(event)
        case LettersPut() | LettersReplayed() | LettersChanged() | LettersPurged():
            return _letter_line(event)
        case BreakerChanged(service, before, after, retry_in):
            opened = "" if retry_in is None else f", next probe in {format_duration(retry_in)}"
            return logging.WARNING if after == "open" else logging.INFO, f"{service} circuit {before} → {after}{opened}"
        case KeyCooled(service, key_id, until, reason):
            level = logging.WARNING if reason == QUOTA_USED_UP else logging.INFO
            return level, f"{service} key …{key_id} cools down until {until:%Y-%m-%d %H:%M:%S %Z}: {reason}"
        case TokenRefreshed(service, key_id, _):
            return logging.INFO, f"{service} token …{key_id} fetched"
        case FallbackUsed(failure):
            return logging.WARNING, f"{failure.service} {failure.endpoint} answered by its fallback: {failure.why}"
        case CallFailed(failure, exhausted):
            return logging.ERROR if exhausted else logging.DEBUG, f"failed: {failure}{_request_of(failure)}"
        case _:
            return logging.DEBUG, str(event)


def _run_line(event: RunEvent) -> tuple[int, str]:
    match event:
        case RunStarted(pipeline=pipeline, started_over=str(reason)):
            return logging.WARNING, f"{pipeline} starts over: {reason}"
        case RunStarted(pipeline=pipeline, source=source, sink=sink, gate_overridden=True):
            return logging.WARNING, f"{pipeline} resumes, the gate overridden by an operator: {source} → {sink}"
        case RunStarted(pipeline=pipeline, source=source, sink=sink, resumed=resumed):
            return logging.INFO, f"{pipeline} {'resumes' if resumed else 'starts'}: {source} → {sink}"
        case BatchWritten():
            return logging.INFO, _batch_line(event)
        case BatchShrunk(pipeline=pipeline, rows=rows, reason=reason):
            return logging.WARNING, f"{pipeline} continues with batches of {rows:,} rows: {reason}"
        case BatchRetried(pipeline=pipeline, step=step, retry=retry, wait=wait, reason=reason):
            return logging.WARNING, f"{pipeline} retry {retry} to {step} a batch in {wait:.1f} s: {reason}"
        case BatchQuarantined(pipeline=pipeline, rows=rows, reason=reason):
            return logging.WARNING, f"{pipeline} a batch of {rows:,} rows is quarantined as a whole: {reason}"
        case GateJudged(pipeline=pipeline, tier=tier, rate=rate, rejected=rejected, read=read, final=final):
            level = {Tier.LOG: logging.INFO, Tier.P3: logging.WARNING}.get(tier, logging.ERROR)
            so_far = "" if final else " so far"  # a warning only when it is certain
            sentence = f"{pipeline} {rejected:,} of {read:,} rows rejected{so_far} ({rate:.1%}): {tier}"
            return level if final else logging.INFO, sentence
        case ColumnsIgnored(pipeline=pipeline, source=source, columns=columns):
            return logging.WARNING, f"{pipeline} does not write these columns of {source}: {', '.join(columns)}"
        case RunEnded(report=report):
            level = logging.INFO if report.status is RunStatus.COMPLETE else logging.ERROR
            return level, str(report).replace("\n ", ";")


def _batch_line(event: BatchWritten) -> str:
    counts, so_far = event.counts, event.so_far
    others = {"rejected": counts.rejected, "duplicates": counts.duplicates, "discarded": counts.discarded}
    parts = [f"read {counts.read:,}", f"written {counts.written:,}"]
    parts += [f"{name} {count:,}" for name, count in others.items() if count]
    return (
        f"{event.pipeline} batch {so_far.batches:,}: {', '.join(parts)} in {event.seconds:.2f} s; "
        f"checkpoint saved after {so_far.read:,} rows"
    )


def _flow_line(event: FlowEvent) -> tuple[int, str]:
    match event:
        case FlowStarted(flow=flow, resumed=resumed):
            return logging.INFO, f"{flow} {'resumes' if resumed else 'starts'}"
        case TaskRetried(flow=flow, task=task, attempt=attempt, reason=reason, wait=wait):
            return logging.INFO, f"{flow} {task} attempt {attempt}: {reason}; retry in {format_duration(wait)}"
        case TaskFailed(flow=flow, task=task, reason=reason, upstream_failed=lower, count=count):
            after = f"; {lower:,} after it will not run" if lower else ""
            many = f" {count:,} times" if count > 1 else ""
            return logging.ERROR, f"{flow} {task} failed{many}: {reason}{after}"
        case TasksDead(flow=flow, task=task, reason=reason, count=count, untried=untried):
            many = f" {count:,} times ({untried:,} not tried)" if count > 1 else ""
            return logging.ERROR, f"{flow} {task} is a dead letter{many}: {reason}"
        case GroupHeld(flow=flow, service=service, held=held):
            level = logging.WARNING if held else logging.INFO
            return level, f"{flow} tasks of {service} {'wait: it is down' if held else 'continue'}"
        case SlaAtRisk(flow=flow, task=task, due=due, missed=missed):
            what = f"{flow} {task or 'run'}: SLA {'missed' if missed else 'at risk'}, due {due:%Y-%m-%d %H:%M:%S %Z}"
            return logging.ERROR if missed else logging.WARNING, what
        case FlowEnded(report=report):
            level = logging.INFO if report.status is FlowStatus.COMPLETE else logging.ERROR
            return level, str(report).replace("\n ", ";")
        case _:
            return logging.DEBUG, str(event)


def _letter_line(event: LetterEvent) -> tuple[int, str]:
    match event:
        case LettersPut(pipeline=pipeline, new=new, repeated=repeated):
            parts = [f"{_letters(new)} quarantined"] if new else []
            parts += [f"{_letters(repeated)} seen again"] if repeated else []
            return logging.INFO, " ".join(filter(None, (pipeline, ", ".join(parts))))
        case LettersReplayed(report=report, actor=actor):
            done = f"{report.reprocessed:,} reprocessed, {report.failed_again:,} failed again"
            done += f", {report.discarded:,} discarded" if report.discarded else ""
            done += f", {report.superseded:,} superseded" if report.superseded else ""
            ended = f"; {mask(report.stopped)}" if report.stopped else ""  # the caller gets the error itself
            return logging.INFO, f"{_letters(report.attempted)} replayed by {actor}: {done}{ended}"
        case LettersChanged(action=action, count=count, actor=actor):
            return logging.INFO, f"{_letters(count)} {action} by {actor}"
        case LettersPurged(count=count, before=before, actor=actor):
            return logging.INFO, f"{_letters(count)} decided before {before:%Y-%m-%d %H:%M %Z} purged by {actor}"


def _letters(count: int) -> str:
    return "1 letter" if count == 1 else f"{count:,} letters"


def _request_of(failure: Failure) -> str:
    """Return the request that failed, where the endpoint in the text leaves its ids out."""
    last = failure.attempts[-1] if failure.attempts else None
    return "" if last is None or last.subject == failure.endpoint else f" The request: {last.subject}"


# ── fields ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def fields_of(event: Event) -> dict[str, Any]:
    """Return the flat fields of an event, masked; docs/observe.md lists them, and they keep their names."""
    match event:
        case BatchWritten(counts=counts, so_far=so_far):
            values = {name: getattr(event, name) for name in ("pipeline", "run_id", "seconds", "checkpoint")}
            values |= {"batch": so_far.batches, **_rows(counts), **_rows(so_far, "_so_far")}
        case RunEnded(report=report):
            values = {name: getattr(report, name) for name in _OF_REPORT}
            values |= {"late": report.late, "error": event.error, "kind": event.kind, "service": event.service}
        case FlowEnded(report=report):
            values = {name: getattr(report, name) for name in _OF_FLOW_REPORT} | {"late": report.late}
            values |= {f"tasks_{state.lower()}": count for state, count in report.counts.items()}
        case LettersReplayed(report=report, pipelines=pipelines, actor=actor):
            values = {name: getattr(report, name) for name in _OF_REPLAY} | {"pipelines": pipelines, "actor": actor}
            values["causes"] = [cause.message for cause in report.by_cause[:_MOST_CAUSES]]
        case CallFailed(failure=failure) | FallbackUsed(failure=failure):
            values = {name: getattr(failure, name) for name in ("service", "endpoint", "elapsed", "why", "retry_in")}
            values |= {"kind": failure.verdict.kind, "status": failure.verdict.status}
            values |= {"attempts": len(failure.attempts)}
            values |= {"exhausted": event.exhausted} if isinstance(event, CallFailed) else {}
        case _:
            values = {field.name: getattr(event, field.name) for field in fields(event)}
    if values.get("checkpoint") is not None:
        values["checkpoint"] = _checkpoint(values["checkpoint"])
    return {"event": type(event).__name__, **{name: _plain(value) for name, value in values.items()}}


_COUNTED_ROWS = ("read", "written", "rejected", "discarded", "duplicates")
_MOMENTS = ("started_at", "ended_at", "sla")
_OF_REPORT = (
    *("pipeline", "run_id", "status", "source", "sink", *_COUNTED_ROWS, "batches", "retries", "rate", "tier"),
    *("seconds", "throughput", *_MOMENTS, "resumed", "gate_overridden", "reason", "checkpoint"),
)
_OF_FLOW_REPORT = (
    "flow",
    "run_id",
    "status",
    "started_at",
    "ended_at",
    "seconds",
    "attempts",
    "resumed",
    "reason",
    "sla",
)
_OF_REPLAY = ("attempted", "reprocessed", "failed_again", "discarded", "superseded", "stopped")
_LONGEST_CHECKPOINT = 1_000
_MOST_CAUSES = 10


def _rows(counts: Counts, suffix: str = "") -> dict[str, int]:
    return {f"{name}{suffix}": getattr(counts, name) for name in _COUNTED_ROWS}


def _checkpoint(position: Any) -> str:
    """Return a checkpoint as text, so that the line stays flat; the checkpoint of many files is long."""
    text = mask_start(json.dumps(position, ensure_ascii=False, default=str), 10 * _LONGEST_CHECKPOINT)
    return text if len(text) <= _LONGEST_CHECKPOINT else f"{text[:_LONGEST_CHECKPOINT]}…"


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return mask(str(value))
