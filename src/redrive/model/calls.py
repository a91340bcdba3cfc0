"""The frozen values that travel between the parts: what was judged, what was decided, what happened."""

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
    """Repeat almost at once: a deadlock, a serialization failure."""
    TRANSIENT = "transient"
    """It will heal: back off and repeat."""
    RATE_LIMITED = "rate_limited"
    """Wait as long as the other side asks, then repeat."""
    AMBIGUOUS = "ambiguous"
    """It cannot be told: two repeats, then final."""
    QUOTA = "quota"
    """This credential is used up: rest it, and take the next."""
    AUTH = "auth"
    """Not let in: refresh a token once, and repeat once."""
    PERMANENT = "permanent"
    """Repeating cannot help, or nobody knows the error."""
    ROW = "row"
    """This record is bad, the rest is fine."""
    DISCARD = "discard"
    """Nobody needs to look at this record."""
    RESOURCE = "resource"
    """Out of memory: do less at once."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a failure is, why, and by which rule."""

    kind: Kind
    reason: str
    """One phrase a person can read."""
    rule: str
    """The name of the table entry or user rule that matched."""
    retry_after: float | None = None
    """Seconds the other side asked us to wait; None where it said nothing."""
    detail: str | None = None
    """What the other side said, secrets masked: it is what fixes a permanent error."""
    status: int | None = None
    """The HTTP status, where there was one."""


def in_words(seconds: float) -> str:
    """A duration as a person says it: 0.4 s, 31 s, 12 min, 8 h, 3 days."""
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
    """Decision: no further attempt. `spent` tells exhausted retries from an error that was never repeatable."""

    why: str
    spent: bool = False
    retry_in: float | None = None
    """Seconds after which a new call makes sense, where that is known."""
    advice: str | None = None
    """What a person should do, where the reason for stopping says more than the kind of the error."""
    cut_short: bool = False
    """Whether the call had attempts left, and an open circuit or a spent retry budget ended it."""


Decision = Repeat | Stop


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a call, as it is logged, announced to hooks and kept in a `Failure`."""

    service: str
    endpoint: str
    attempt: int
    """Counted from 1."""
    outcome: str
    """`success` or the verdict's kind; `circuit_open` or `no_key_left` where nothing was sent."""
    latency_ms: float
    """How long it took, in milliseconds."""
    status: int | None = None
    """The HTTP status, where there was one."""
    error: str | None = None
    """The class of the exception, where there was one."""
    key_id: str | None = None
    """The last four characters of the credential in use."""
    wait_s: float | None = None
    """How long until the next attempt; None where there is none."""
    elapsed_s: float | None = None
    """Seconds from the beginning of the call to the end of this attempt."""
    request: str | None = None
    """Of an HTTP adapter, the method and the path, with the ids that `endpoint` leaves out."""
    server: str | None = None
    """Of an HTTP adapter, the host, with the port where the URL has one."""

    @property
    def subject(self) -> str:
        """What was called, for people: the request, where the endpoint leaves ids out."""
        return self.request if self.request is not None and "{id}" in self.endpoint else self.endpoint


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call ended without a result; travels as the attribute `redrive` of the error the caller sees."""

    service: str
    endpoint: str
    attempts: tuple[Attempt, ...]
    """All that were made."""
    elapsed: float
    """Seconds from the beginning of the call."""
    verdict: Verdict
    why: str
    """Why there was no further attempt."""
    advice: str
    """What a person should do now."""
    retry_in: float | None = None
    cut_short: bool = False
    """Whether the call had attempts left, and an open circuit or a spent retry budget ended it."""

    def __str__(self) -> str:
        call = f"service {self.service!r}" + ("" if self.endpoint == self.service else f", {self.endpoint}")
        if not self.attempts:
            return f"{call}: {self.why}; nothing was sent (0 attempts in {self.elapsed:.1f} s). {self.advice}"
        tries = "1 attempt" if len(self.attempts) == 1 else f"{len(self.attempts)} attempts"
        detail, reason = self.verdict.detail, self.verdict.reason
        said = f" ({detail})" if detail and detail.lower() not in reason.lower() else ""
        return (
            f"{call}: {tries} in {self.elapsed:.1f} s; {self.verdict.kind}: {reason}{said}; {self.why}. {self.advice}"
        )


@dataclass(frozen=True, slots=True)
class BreakerChanged:
    """Event: a circuit moved from one state to another."""

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
    """Event: a credential is out of use until `until`."""

    service: str
    key_id: str
    until: datetime
    reason: str
    """QUOTA_USED_UP or RATE_LIMITED."""


@dataclass(frozen=True, slots=True)
class TokenRefreshed:
    """Event: a token was fetched anew; `generation` counts the fetches."""

    service: str
    key_id: str
    generation: int
    """How often it has been fetched."""


@dataclass(frozen=True, slots=True)
class CallFailed:
    """Event: a call ended in an error for its caller, or would have but for a fallback."""

    failure: Failure
    exhausted: bool = False
    """Whether attempts, time or keys were exhausted, and no fallback stands in."""


@dataclass(frozen=True, slots=True)
class FallbackUsed:
    """Event: the caller was given the fallback instead of this failure."""

    failure: Failure


CallEvent = Attempt | BreakerChanged | KeyCooled | TokenRefreshed | CallFailed | FallbackUsed
Event = CallEvent | RunEvent | FlowEvent | LetterEvent
