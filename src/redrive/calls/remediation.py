"""What a person should do about a failure, by its kind."""

from __future__ import annotations

from redrive.model.calls import Kind, Stop, Verdict, format_duration

ADVICE = {
    Kind.RETRY_NOW: "Transactions keep colliding: make them shorter, or touch rows in one order everywhere.",
    Kind.TRANSIENT: "The service did not heal in time: check that it is up, then run again.",
    Kind.RATE_LIMITED: "Send fewer requests, or ask for a higher limit.",
    Kind.AMBIGUOUS: "Repeating did not help: ask the service's owner, or look for what is special about this request.",
    Kind.QUOTA: "Add a key to the pool, ask for more quota, or wait for the reset.",
    Kind.AUTH: "Check or renew the credential.",
    Kind.PERMANENT: "Fix the request or the code: repeating it cannot help.",
    Kind.ROW: "Look at this one record: the rest is not affected.",
    Kind.DISCARD: "Nothing to do: the record was dropped on purpose.",
    Kind.RESOURCE: "Use smaller batches, or give the process more memory.",
}

CIRCUIT_OPEN = "The service failed too often lately: look at it; the next probe finds out whether it is back."
BUDGET_SPENT = "Too large a share of the calls fails: look at the service before adding load to it."
EFFECT_UNKNOWN = "Find out whether it took effect before sending it again."
NO_KEY_LEFT = ADVICE[Kind.QUOTA]


UNKNOWN = (
    "Unknown error: redrive does not know whether repeating it helps. If it does, add a rule: "
    'Classifier().rule(YourError, kind="transient").'
)


def advice_on(verdict: Verdict) -> str:
    """What to do about a failure of this verdict."""
    return UNKNOWN if verdict.rule == "unknown" and verdict.kind is Kind.PERMANENT else ADVICE[verdict.kind]


def advise(verdict: Verdict, stop: Stop) -> str:
    """One or two sentences."""
    text = stop.advice or advice_on(verdict)
    return text if stop.retry_in is None else f"{text} Come back in {format_duration(stop.retry_in)}."
