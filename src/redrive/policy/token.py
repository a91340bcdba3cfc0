"""`Token`, a credential that expires and can be refreshed, and its state."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from redrive.policy import option_checks

Expiry = float | timedelta | datetime
Fetched = str | tuple[str, Expiry]

# A token is refreshed this long before it expires, or after nine tenths of its life where that is sooner.
_MARGIN = 60.0


def check_secret(what: str, secret: str) -> None:
    """Raise ValueError where a secret cannot be sent in a header or a query; the message does not show it."""
    if any(character.isspace() or not character.isprintable() for character in secret):
        raise ValueError(f"{what} holds a space, a line end or a control character; strip it")


class Token:
    """A refreshable credential: `fetch` is called on first use, after a 401, and before the token expires.

    However many callers meet the same 401, one refresh is in flight; each of them then retries once.

    fetch  returns the token, or the token and when it expires: seconds, a timedelta, or a datetime with zone
    ttl    seconds for which a token is valid, where `fetch` does not return them
    """

    __slots__ = ("fetch", "ttl")

    def __init__(
        self, fetch: Callable[[], Fetched] | Callable[[], Awaitable[Fetched]], *, ttl: float | timedelta | None = None
    ) -> None:
        if not callable(fetch):
            raise TypeError(f"Token needs a function that returns the token, not {type(fetch).__name__}")
        self.fetch = fetch
        span = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
        self.ttl = None if span is None else option_checks.seconds("ttl", span, above=0)

    def __repr__(self) -> str:
        return f"Token({getattr(self.fetch, '__qualname__', type(self.fetch).__qualname__)})"


class TokenState:
    """The token in use, and how often it was fetched."""

    __slots__ = ("generation", "renew_at", "value", "warned")

    def __init__(self) -> None:
        self.value: str | None = None
        self.generation = 0
        self.renew_at = math.inf
        """When to refresh it, by the monotonic clock."""
        self.warned = False
        """Whether the warning that its tokens expire at once was given."""

    def is_outdated(self, generation: int) -> bool:
        """Return whether the token has been renewed since the generation that failed."""
        return generation != self.generation

    def renew(self, fetched: object, *, ttl: float | None, now: datetime, moment: float) -> None:
        """Store a token that was fetched, and when it expires."""
        value, expiry = fetched if isinstance(fetched, tuple) and len(fetched) == 2 else (fetched, ttl)
        span = None if expiry is None else _seconds_until(expiry, now)
        if not isinstance(value, str) or not value:
            raise TypeError(f"the token's fetch function must return a non-empty string, not {type(value).__name__}")
        check_secret("the token", value)
        self.value = value
        self.generation += 1
        self.renew_at = math.inf if span is None else moment + span - min(_MARGIN, span / 10)


def _seconds_until(expiry: object, now: datetime) -> float:
    if isinstance(expiry, datetime) and expiry.tzinfo is not None:
        return max(0.0, (expiry - now).total_seconds())
    span = expiry.total_seconds() if isinstance(expiry, timedelta) else expiry
    if not option_checks.finite(span):
        raise TypeError(
            "the token's fetch function must return when it expires as seconds, a timedelta or a datetime with zone, "
            f"not {option_checks.shown(expiry)}"
        )
    return max(0.0, float(span))  # type: ignore[arg-type]  # checked
