"""What the flow asks of its driver, and what the driver answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redrive.calls.credentials import Grant
    from redrive.calls.tokens import TokenKeeper


@dataclass(frozen=True, slots=True)
class Returned:
    """Outcome: the function gave this back."""

    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Raised:
    """Outcome: the function raised this."""

    error: Exception
    since: int = -1
    """The instruction of the error's outermost frame at which a block of `attempts()` began; -1 for a function."""


Outcome = Returned | Raised


@dataclass(frozen=True, slots=True)
class Invoke:
    """Step: make one attempt; answer with its outcome."""

    number: int
    grant: Grant | None
    timeout: float | None


@dataclass(frozen=True, slots=True)
class Wait:
    """Step: sleep."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Refresh:
    """Step: fetch a token anew, unless someone has since `seen`; answer with Raised where that failed, else None."""

    keeper: TokenKeeper
    seen: int
    patience: float
    """Seconds to wait for another caller's fetch."""


@dataclass(frozen=True, slots=True)
class DiscardResponse:
    """Step: close a response that nobody will read."""

    response: Any


@dataclass(frozen=True, slots=True)
class CallFallback:
    """Step: call the user's fallback in place of the function; answer with its outcome."""

    error: Exception


Step = Invoke | Wait | Refresh | DiscardResponse | CallFallback
