"""The values of calls: verdicts, decisions, attempts, failures and events."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal

from redrive.model.letters import LetterEvent
from redrive.model.runs import RunEvent
from redrive.model.tasks import FlowEvent

Scope = Literal["call", "row", "task"]


class Kind(StrEnum):
    """The bucket a failure falls into; it alone decides how redrive responds."""

    RETRY_NOW = "retry_now"
    """Retry almost at once: a deadlock, a serialization failure."""
    TRANSIENT = "transient"
    """Back off and retry: the failure is temporary."""
    RATE_LIMITED = "rate_limited"
    """Wait as long as the other side asks, then retry."""
    AMBIGUOUS = "ambiguous"
    """Transient or permanent, unknown which: two retries, then final."""
    QUOTA = "quota"
    """The quota of this credential is exhausted: cool it down, and use the next."""
    AUTH = "auth"
    """Not authenticated: refresh a token once, and retry once."""
    PERMANENT = "permanent"
    """A retry cannot help, or the error is unknown."""
    ROW = "row"
    """This record is bad, the rest is fine."""
    DISCARD = "discard"
    """This record needs no review: drop and count it."""
    RESOURCE = "resource"
    """Out of memory: do less at once."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a failure is, why, and by which rule."""

    kind: Kind
    reason: str
    """One phrase for operators."""
    rule: str
    """The name of the table entry or user rule that matched."""
    retry_after: float | None = None
    """Seconds that the server asks to wait; None where it asks for none."""
    detail: str | None = None
    """What the server reported, secrets masked: it is what an operator needs to fix a permanent error."""
    status: int | None = None
    """The HTTP status, if any."""


def format_duration(seconds: float) -> str:
    """Format a duration for operators: 0.4 s, 31 s, 12 min, 8 h, 3 days."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    for limit, unit, name in ((120, 1, "s"), (7_200, 60, "min"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86_400:.0f} days"


@dataclass(frozen=True, slots=True)
class Repeat:
    """Decision: make another attempt after `wait` seconds."""

    wait: float
    why: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Decision: no further attempt. `spent` distinguishes exhausted retries from an error that is never retried."""

    why: str
    spent: bool = False
    retry_in: float | None = None
    """Seconds after which a new call makes sense, if known."""
    advice: str | None = None
    """What the operator should do, where the reason for stopping says more than the kind of the error."""
    cut_short: bool = False
    """Whether the call had attempts left, and an open circuit or a spent retry budget ended it."""
    falls_back: bool = False
    """Whether a fallback applies although the retries are not exhausted."""


Decision = Repeat | Stop


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a call, as it is logged, published to hooks and kept in a `Failure`."""

    service: str
    endpoint: str
    attempt: int
    """Counted from 1."""
    outcome: str
    """`success` or the verdict's kind; `circuit_open` or `no_key_left` where nothing was sent."""
    latency_ms: float
    """How long it took, in milliseconds."""
    status: int | None = None
    """The HTTP status, if any."""
    error: str | None = None
    """The class of the exception, if any."""
    key_id: str | None = None
    """The last four characters of the credential in use."""
    wait_s: float | None = None
    """Seconds until the next attempt; None if there is none."""
    elapsed_s: float | None = None
    """Seconds from the start of the call to the end of this attempt."""
    request: str | None = None
    """For an HTTP adapter, the method and the path, with the ids that `endpoint` leaves out."""
    server: str | None = None
    """For an HTTP adapter, the host, with the port if the URL has one."""

    @property
    def subject(self) -> str:
        """Return what was called: the request where the endpoint leaves ids out, else the endpoint."""
        return self.request if self.request is not None and "{id}" in self.endpoint else self.endpoint


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call ended without a result; attached as the attribute `redrive` to the error the caller sees."""

    service: str
    endpoint: str
    attempts: tuple[Attempt, ...]
    """All attempts of the call."""
    elapsed: float
    """Seconds from the start of the call."""
    verdict: Verdict
    why: str
    """Why there was no further attempt."""
    advice: str
    """What the operator should do now."""
    retry_in: float | None = None
    cut_short: bool = False
    """Whether the call had attempts left, and an open circuit or a spent retry budget ended it."""
    effect_unknown: bool = False
    """Whether a request that is not idempotent, a commit or a mail may have taken effect: a retry may do it twice."""

    def __str__(self) -> str:
        call = f"service {self.service!r}" + ("" if self.endpoint == self.service else f", {self.endpoint}")
        if not self.attempts:
            return f"{call}: {self.why}; nothing was sent (0 attempts in {self.elapsed:.1f} s). {self.advice}"
        tries = "1 attempt" if len(self.attempts) == 1 else f"{len(self.attempts)} attempts"
        detail, reason = self.verdict.detail, self.verdict.reason
        server = f" ({detail})" if detail and detail.lower() not in reason.lower() else ""
        return (
            f"{call}: {tries} in {self.elapsed:.1f} s; {self.verdict.kind}: {reason}{server}; {self.why}. {self.advice}"
        )


@dataclass(frozen=True, slots=True)
class BreakerChanged:
    """Event: a circuit changed its state."""

    service: str
    before: str
    """`closed`, `open` or `half_open`."""
    after: str
    """Likewise."""
    retry_in: float | None = None


QUOTA_USED_UP = "quota used up"
RATE_LIMITED = "rate limited"


@dataclass(frozen=True, slots=True)
class KeyCooled:
    """Event: a credential cools down until `until`."""

    service: str
    key_id: str
    until: datetime
    reason: str
    """QUOTA_USED_UP or RATE_LIMITED."""


@dataclass(frozen=True, slots=True)
class TokenRefreshed:
    """Event: a token was fetched."""

    service: str
    key_id: str
    generation: int
    """How often it has been fetched."""


@dataclass(frozen=True, slots=True)
class CallFailed:
    """Event: a call ended in an error for its caller, or would have without a fallback."""

    failure: Failure
    exhausted: bool = False
    """Whether attempts, time or keys were exhausted, and there is no fallback."""


@dataclass(frozen=True, slots=True)
class FallbackUsed:
    """Event: the caller got the fallback instead of this failure."""

    failure: Failure


CallEvent = Attempt | BreakerChanged | KeyCooled | TokenRefreshed | CallFailed | FallbackUsed
Event = CallEvent | RunEvent | FlowEvent | LetterEvent
