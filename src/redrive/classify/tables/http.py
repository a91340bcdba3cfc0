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

PHRASE: dict[int, str] = {
    300: "Multiple Choices",
    301: "Moved Permanently",
    302: "Found",
    303: "See Other",
    304: "Not Modified",
    305: "Use Proxy",
    307: "Temporary Redirect",
    308: "Permanent Redirect",
    400: "Bad Request",
    401: "Unauthorized",
    402: "Payment Required",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    406: "Not Acceptable",
    407: "Proxy Authentication Required",
    408: "Request Timeout",
    409: "Conflict",
    410: "Gone",
    411: "Length Required",
    412: "Precondition Failed",
    413: "Content Too Large",
    414: "URI Too Long",
    415: "Unsupported Media Type",
    416: "Range Not Satisfiable",
    417: "Expectation Failed",
    421: "Misdirected Request",
    422: "Unprocessable Content",
    423: "Locked",
    424: "Failed Dependency",
    425: "Too Early",
    426: "Upgrade Required",
    428: "Precondition Required",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    451: "Unavailable For Legal Reasons",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
    505: "HTTP Version Not Supported",
    506: "Variant Also Negotiates",
    507: "Insufficient Storage",
    508: "Loop Detected",
    510: "Not Extended",
    511: "Network Authentication Required",
}
