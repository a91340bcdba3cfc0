"""HTTP: statuses, the statuses whose Retry-After counts, and the reasons that mean a used-up credential."""

from __future__ import annotations

from redrive.classify.tables.entry import AMBIGUOUS, AUTH, PERMANENT, RATE_LIMITED, ROW, TRANSIENT
from redrive.model import Kind

STATUS: dict[int, Kind] = {
    401: AUTH,
    404: ROW,
    408: TRANSIENT,
    410: ROW,
    425: TRANSIENT,
    429: RATE_LIMITED,
    502: TRANSIENT,
    503: TRANSIENT,
    504: TRANSIENT,
}

STATUS_CLASS: dict[int, Kind] = {
    4: PERMANENT,
    5: AMBIGUOUS,
}

RETRY_AFTER_COUNTS: frozenset[int] = frozenset({*range(300, 400), 403, 408, 413, 425, 429, *range(500, 600)})
"""Answers that can heal by waiting. On a 400 or a 404 the header is noise."""

USED_UP: tuple[str, ...] = (
    "quotaExceeded",
    "quota_exceeded",
    "rateLimitExceeded",
    "rate_limit_exceeded",
    "userRateLimitExceeded",
    "dailyLimitExceeded",
    "dailyLimitExceededUnreg",
    "insufficient_quota",
    "RESOURCE_EXHAUSTED",
)
"""Reasons in the body of a 403 that say: this credential has had its share."""
