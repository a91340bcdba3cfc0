"""One structured line per attempt, and events to whoever listens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import fields
from traceback import format_exc

from redrive.calls.interrupts import is_interrupt
from redrive.flows import (
    FlowEnded,
    FlowEvent,
    FlowStarted,
    FlowStatus,
    GroupHeld,
    SlaAtRisk,
    TaskEnded,
    TaskFailed,
    TaskRetried,
    TasksDead,
)
from redrive.letters import LetterEvent, LettersChanged, LettersPurged, LettersPut, LettersReplayed
from redrive.masking import mask
from redrive.model import (
    QUOTA_USED_UP,
    Attempt,
    BreakerChanged,
    CallFailed,
    Event,
    Failure,
    FallbackUsed,
    KeyCooled,
    TokenRefreshed,
    in_words,
)
from redrive.runs import (
    BatchQuarantined,
    BatchRetried,
    BatchShrunk,
    ColumnsIgnored,
    GateJudged,
    RunEnded,
    RunEvent,
    RunStarted,
    RunStatus,
    Tier,
)

Hook = Callable[[Event], None]

ATTEMPTS = logging.getLogger("redrive.attempts")
EVENTS = logging.getLogger("redrive.events")

_FIELDS = tuple(field.name for field in fields(Attempt))
_ATTEMPTS = (Attempt, TaskEnded)

# Hooks for every service of the program, called after a service's own.
everywhere: list[Hook] = []


def on_event(hook: Hook) -> Callable[[], None]:
    """Call `hook` with every event of every service and every run; returns the function that ends it."""
    if not callable(hook):
        raise TypeError(f"on_event needs a function that takes an event, not {type(hook).__name__}")
    everywhere.append(hook)
    return lambda: everywhere.remove(hook) if hook in everywhere else None


def _line(event: Event) -> tuple[int, str]:
    match event:
        case RunStarted() | BatchShrunk() | BatchRetried() | BatchQuarantined():
            return _run_line(event)
        case GateJudged() | ColumnsIgnored() | RunEnded():
            return _run_line(event)
        case FlowStarted() | TaskRetried() | TaskFailed() | TasksDead() | GroupHeld() | SlaAtRisk() | FlowEnded():
            return _flow_line(event)
        case LettersPut() | LettersReplayed() | LettersChanged() | LettersPurged():
            return _letter_line(event)
        case BreakerChanged(service, before, after, retry_in):
            opened = "" if retry_in is None else f", next probe in {in_words(retry_in)}"
            return logging.WARNING if after == "open" else logging.INFO, f"{service} circuit {before} → {after}{opened}"
        case KeyCooled(service, key_id, until, reason):
            level = logging.WARNING if reason == QUOTA_USED_UP else logging.INFO
            return level, f"{service} key …{key_id} rests until {until:%Y-%m-%d %H:%M:%S %Z}: {reason}"
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
            return logging.WARNING, f"{pipeline} goes on, the gate overridden by an operator: {source} → {sink}"
        case RunStarted(pipeline=pipeline, source=source, sink=sink, resumed=resumed):
            return logging.INFO, f"{pipeline} {'goes on' if resumed else 'begins'}: {source} → {sink}"
        case BatchShrunk(pipeline=pipeline, rows=rows, reason=reason):
            return logging.WARNING, f"{pipeline} goes on with batches of {rows:,}: {reason}"
        case BatchRetried(pipeline=pipeline, step=step, retry=retry, wait=wait, reason=reason):
            return logging.WARNING, f"{pipeline} retry {retry} to {step} a batch in {wait:.1f} s: {reason}"
        case BatchQuarantined(pipeline=pipeline, rows=rows, reason=reason):
            return logging.WARNING, f"{pipeline} a batch of {rows:,} rows is quarantined as a whole: {reason}"
        case GateJudged(pipeline=pipeline, tier=tier, rate=rate, rejected=rejected, read=read, final=final):
            level = {Tier.LOG: logging.INFO, Tier.P3: logging.WARNING}.get(tier, logging.ERROR)
            level = level if final else logging.DEBUG  # said once, when it is certain
            return level, f"{pipeline} {rejected:,} of {read:,} rows rejected ({rate:.1%}): {tier}"
        case ColumnsIgnored(pipeline=pipeline, source=source, columns=columns):
            return logging.WARNING, f"{pipeline} does not write these columns of {source}: {', '.join(columns)}"
        case RunEnded(report=report):
            level = logging.INFO if report.status is RunStatus.COMPLETE else logging.ERROR
            return level, str(report).replace("\n ", ";")
        case _:
            return logging.DEBUG, str(event)


def _flow_line(event: FlowEvent) -> tuple[int, str]:
    match event:
        case FlowStarted(flow=flow, resumed=resumed):
            return logging.INFO, f"{flow} {'goes on' if resumed else 'begins'}"
        case TaskRetried(flow=flow, task=task, attempt=attempt, reason=reason, wait=wait):
            return logging.INFO, f"{flow} {task} attempt {attempt}: {reason}; again in {in_words(wait)}"
        case TaskFailed(flow=flow, task=task, reason=reason, upstream_failed=lower, count=count):
            after = f"; {lower:,} after it will not run" if lower else ""
            many = f" {count:,} times" if count > 1 else ""
            return logging.ERROR, f"{flow} {task} failed{many}: {reason}{after}"
        case TasksDead(flow=flow, task=task, reason=reason, count=count, untried=untried):
            many = f" {count:,} times ({untried:,} not tried)" if count > 1 else ""
            return logging.ERROR, f"{flow} {task} is a dead letter{many}: {reason}"
        case GroupHeld(flow=flow, service=service, held=held):
            level = logging.WARNING if held else logging.INFO
            return level, f"{flow} tasks of {service} {'wait: it is down' if held else 'go on'}"
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
            told = [f"{_letters(new)} quarantined"] if new else []
            told += [f"{_letters(repeated)} seen again"] if repeated else []
            return logging.INFO, " ".join(filter(None, (pipeline, ", ".join(told))))
        case LettersReplayed(report=report, actor=actor):
            done = f"{report.reprocessed:,} reprocessed, {report.failed_again:,} failed again"
            done += f", {report.discarded:,} discarded" if report.discarded else ""
            done += f", {report.superseded:,} superseded" if report.superseded else ""
            ended = f"; {mask(report.stopped)}" if report.stopped else ""  # its caller has the error itself
            return logging.INFO, f"{_letters(report.attempted)} replayed by {actor}: {done}{ended}"
        case LettersChanged(action=action, count=count, actor=actor):
            return logging.INFO, f"{_letters(count)} {action} by {actor}"
        case LettersPurged(count=count, before=before, actor=actor):
            return logging.INFO, f"{_letters(count)} settled before {before:%Y-%m-%d %H:%M %Z} purged by {actor}"


def _letters(count: int) -> str:
    return "1 letter" if count == 1 else f"{count:,} letters"


def _request_of(failure: Failure) -> str:
    """Return the request that failed, where the endpoint in the text leaves its ids out."""
    last = failure.attempts[-1] if failure.attempts else None
    return "" if last is None or last.subject == failure.endpoint else f" The request: {last.subject}"


def _is_logged(event: CallFailed) -> bool:
    """Whether somebody listens: the text of a failure is not free, and most programs do not log at DEBUG."""
    return EVENTS.isEnabledFor(logging.ERROR if event.exhausted else logging.DEBUG)


class Announcer:
    """Where the events of one service or one pipeline go: to its own hook, and to who listens where it is kept."""

    __slots__ = ("hooks", "listeners")

    def __init__(self, hook: Hook | None) -> None:
        if hook is not None and not callable(hook):
            raise TypeError(f"on_event needs a function that takes an event, not {type(hook).__name__}")
        self.hooks: tuple[Hook, ...] = () if hook is None else (hook,)
        self.listeners: tuple[Hook, ...] = ()

    def heard_by(self, listeners: Iterable[Hook]) -> Announcer:
        """The same, with others that listen."""
        heard = Announcer(None)
        heard.hooks, heard.listeners = self.hooks, tuple(listeners)
        return heard

    @property
    def heard(self) -> bool:
        """Whether a hook of the user's listens: what comes by the thousand is only made for one."""
        return bool(self.hooks or everywhere)

    def event(self, event: Event) -> None:
        """Log what is no attempt, then tell the hooks. A hook that fails harms nobody but is seen."""
        quiet = isinstance(event, _ATTEMPTS) or (type(event) is CallFailed and not _is_logged(event))
        if not quiet:
            EVENTS.log(*_line(event), extra={"event": event})
        for hook in (*self.hooks, *self.listeners, *everywhere):
            try:
                hook(event)
            except Exception as error:
                if is_interrupt(error):
                    raise
                EVENTS.error("an on_event hook failed on %s\n%s", type(event).__name__, mask(format_exc()))

    def attempt(self, attempt: Attempt) -> None:
        """Log one attempt, then tell the hooks."""
        fine, sent = attempt.outcome == "success", attempt.elapsed_s is not None
        # Calls that an open circuit rejects come by the thousand; that it opened was said once, as an event.
        level = logging.INFO if fine or not sent else logging.WARNING
        if ATTEMPTS.isEnabledFor(level):
            what = attempt.status or attempt.error or ("ok" if fine else "not sent")
            key = "" if attempt.key_id is None else f" with key …{attempt.key_id}"
            after = "" if attempt.attempt == 1 or not sent else f", {attempt.elapsed_s:.1f} s since the call began"
            if attempt.wait_s is not None:
                after += f", next in {attempt.wait_s:.2f} s" if sent else f", retry in {in_words(attempt.wait_s)}"
            ATTEMPTS.log(
                level,
                "%s %s attempt %d%s: %s (%s) in %.1f ms%s",
                attempt.service,
                attempt.subject,
                attempt.attempt,
                key,
                attempt.outcome,
                what,
                attempt.latency_ms,
                after,
                extra={name: getattr(attempt, name) for name in _FIELDS},
            )
        self.event(attempt)
