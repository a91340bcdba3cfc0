"""What a failed call reports: the `Failure` attached to its error, the advice, and whether the service is to blame."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redrive.classify.builtin import NO_LIST
from redrive.classify.responses import attribute
from redrive.errors import CallError
from redrive.model.calls import Failure, Kind, Stop, Verdict, format_duration

_DEEPEST = 5


def attached_failure(failure: Any) -> Failure | None:
    """Return the failure that a service attached to this error or response, or to one that caused it."""
    depth = 0
    while failure is not None and depth < _DEEPEST:
        for holder in (failure, attribute(failure, "response")):
            attached = attribute(holder, "redrive")
            if isinstance(attached, Failure):
                return attached
        failure, depth = attribute(failure, "__cause__"), depth + 1
    return None


ADVICE = {
    Kind.RETRY_NOW: "Transactions keep colliding: make them shorter, or touch rows in one order everywhere.",
    Kind.TRANSIENT: "The service did not recover in time: check that it is up, then run again.",
    Kind.RATE_LIMITED: "Send fewer requests, or ask for a higher limit.",
    Kind.AMBIGUOUS: "Retries did not help: ask the service's owner, or look for what is special about this request.",
    Kind.QUOTA: "Add a key to the pool, ask for more quota, or wait for the reset.",
    Kind.AUTH: "Check or renew the credential.",
    Kind.PERMANENT: "Fix the request or the code: a retry cannot help.",
    Kind.ROW: "Look at this one record: the rest is not affected.",
    Kind.DISCARD: "Nothing to do: the record was dropped on purpose.",
    Kind.RESOURCE: "Use smaller batches, or give the process more memory.",
}

CIRCUIT_OPEN = "The service failed too often lately: look at it; the next probe finds out whether it is back."
BUDGET_SPENT = "Too large a share of the calls fails: look at the service before adding load to it."
EFFECT_UNKNOWN = "Find out whether it took effect before sending it again."
NO_KEY_LEFT = ADVICE[Kind.QUOTA]


UNKNOWN = (
    "Unknown error: redrive does not know whether a retry helps. If it does, add a rule: "
    'Classifier().rule(YourError, kind="transient").'
)


def advice_on(verdict: Verdict) -> str:
    """Return what to do about a failure of this verdict."""
    return UNKNOWN if verdict.rule == "unknown" and verdict.kind is Kind.PERMANENT else ADVICE[verdict.kind]


def advise(verdict: Verdict, stop: Stop) -> str:
    """Return one or two sentences on what to do, and when to try again."""
    text = stop.advice or advice_on(verdict)
    return text if stop.retry_in is None else f"{text} Come back in {format_duration(stop.retry_in)}."


# Kinds whose blame is the service's; all others are the request's, the key's or ours.
_SERVICE_FAULTS = frozenset({Kind.TRANSIENT, Kind.AMBIGUOUS})
# A queue within the program, full or empty, is no evidence about a service. A page without a list is an answer.
_NO_FAULTS = frozenset({"type.queue.Empty", "type.queue.Full", "type.asyncio.QueueFull", NO_LIST})
# 5xx that are about the request, not about the service: not implemented, version not supported.
_REQUEST_FAULTS = frozenset({501, 505})


@dataclass(frozen=True, slots=True)
class NoKeyLeft(Stop):
    """Every key of the pool is cooling down."""

    resets_at: datetime | None = None


def is_a_fault(verdict: Verdict) -> bool:
    """Return whether the service is to blame, so that its breaker counts the failure."""
    if verdict.rule in _NO_FAULTS:
        return False
    return verdict.kind in _SERVICE_FAULTS or ((verdict.status or 0) >= 500 and verdict.status not in _REQUEST_FAULTS)


def circuit_open(retry_in: float) -> Stop:
    """Return the stop of a call that an open circuit rejects."""
    return Stop("the circuit is open", spent=True, retry_in=retry_in, advice=CIRCUIT_OPEN, cut_short=True)


def verdict_on_unsent(stop: Stop) -> Verdict:
    """Return the verdict on a call of which nothing was sent."""
    if isinstance(stop, NoKeyLeft):
        return Verdict(Kind.QUOTA, stop.why, "no_key_left", stop.retry_in)
    return Verdict(Kind.TRANSIENT, stop.why, "circuit_open", stop.retry_in)


def attach(failure: Failure, carrier: Any) -> None:
    """Attach a failure to the error or response that the caller gets: as `.redrive`, and as a note in its traceback."""
    with suppress(Exception):  # a frozen class takes no attributes; the error is raised all the same
        carrier.redrive = failure
        if isinstance(carrier, Exception) and not isinstance(
            carrier, CallError
        ):  # redrive's own errors have it in their message
            mark = f"redrive: service {failure.service!r}"
            # An exception object that is raised repeatedly has the note of its latest failure only.
            carrier.__notes__ = [note for note in getattr(carrier, "__notes__", ()) if not note.startswith(mark)]
            carrier.add_note(f"redrive: {failure}")
