"""HTTP: statuses, the statuses whose Retry-After counts, and the reasons that mean an exhausted credential."""

from __future__ import annotations

from redrive.classify.tables.entry import AMBIGUOUS, AUTH, PERMANENT, RATE_LIMITED, ROW, TRANSIENT
from redrive.model.calls import Kind

STATUS: dict[int, Kind] = {
    401: AUTH,
    404: ROW,
    408: TRANSIENT,
    410: ROW,
    420: RATE_LIMITED,  # as some services limit their clients
    423: TRANSIENT,  # locked
    425: TRANSIENT,
    429: RATE_LIMITED,
    430: RATE_LIMITED,  # Shopify
    449: TRANSIENT,  # "retry with", of IIS
    501: PERMANENT,  # not implemented
    502: TRANSIENT,
    503: TRANSIENT,
    504: TRANSIENT,
    505: PERMANENT,  # HTTP version not supported
    # Of Cloudflare and other proxies: the server behind them is down, slow or overloaded.
    **dict.fromkeys((520, 521, 522, 523, 524, 529, 598, 599), TRANSIENT),
}

STATUS_CLASS: dict[int, Kind] = {
    4: PERMANENT,
    5: AMBIGUOUS,
}

RETRY_AFTER_COUNTS: frozenset[int] = frozenset(
    {*range(300, 400), 403, 408, 409, 412, 413, 420, 423, 425, 429, 430, 449, *range(500, 600)} - {501, 505}
)
"""Statuses of responses that can change with time. On a 400, a 404 or a 501 the header is ignored."""

EXHAUSTED: tuple[str, ...] = (
    "quotaExceeded",
    "quota_exceeded",
    "dailyLimitExceeded",
    "dailyLimitExceededUnreg",
    "insufficient_quota",
    "RESOURCE_EXHAUSTED",
)
"""Reasons in the body of a 403 that mean: the quota of this credential is exhausted."""

EXHAUSTED_429: tuple[str, ...] = ("insufficient_quota", "billing_hard_limit_reached")
"""The same for a 429, which is otherwise a rate limit."""

TOO_FAST: tuple[str, ...] = (
    "rateLimitExceeded",
    "rate_limit_exceeded",
    "userRateLimitExceeded",
    "concurrentLimitExceeded",
    "API rate limit exceeded",
    "secondary rate limit",
    "SlowDown",
    "backendError",
)
"""Reasons in the body of a 403 that mean: slow down."""
