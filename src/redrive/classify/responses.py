"""HTTP responses of any library: status, headers, the body if it is in memory, and the wait of Retry-After."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from math import isfinite
from sys import float_info
from typing import Any, NamedTuple

from redrive.classify.type_names import type_names

_RESPONSE_TYPES: frozenset[str] = frozenset(
    {
        "aiohttp.ClientResponse",
        "botocore.AWSResponse",
        "http.HTTPResponse",
        "httpx.Response",
        "httpx2.Response",
        "niquests.Response",
        "requests.Response",
        "urllib.addinfourl",
        "urllib3.BaseHTTPResponse",
        "urllib3.HTTPResponse",
    }
)

# Where the libraries keep a body they have read; `False` or `None` while they have not.
_BODY_ATTRIBUTES = ("_content", "_body")

_BODY_LIMIT = 1_000_000


class Answer(NamedTuple):
    """What a server answered, as far as it is known without reading from the network."""

    status: int
    headers: object = None
    body: str | None = None


def is_response(value: object) -> bool:
    """Return whether a value is a response: of a library redrive knows, or by its shape, see `status_of`."""
    if is_response_type(type(value)):
        return True
    return not isinstance(value, BaseException | dict) and status_of(value) is not None


def has_status(value: object) -> bool:
    """Return whether a value has an attribute for a status, whatever it holds now."""
    try:
        return hasattr(value, "status_code") or hasattr(value, "status")
    except Exception:
        # A property that raises is an attribute all the same.
        return True


def is_response_type(cls: type) -> bool:
    """Return whether instances of the class are responses of a library redrive knows."""
    return not issubclass(cls, BaseException) and not _RESPONSE_TYPES.isdisjoint(type_names(cls))


def response_status(value: object) -> int | None:
    """Return the HTTP status of a response of any library; None for anything else."""
    return None if isinstance(value, BaseException) else status_of(value)


def read_response(value: object) -> Answer | None:
    """Return the content of a response. Nothing is read from the network and no stream is consumed."""
    status = response_status(value)
    if status is None:
        return None
    return Answer(status, attribute(value, "headers"), body_in_memory(value))


def status_of(value: object) -> int | None:
    """Return an integer `status_code`, or an integer `status` of a value that has headers."""
    status = attribute(value, "status_code")
    if not _is_status(status):
        status = attribute(value, "status")
        if not _is_status(status) or attribute(value, "headers") is None:
            return None
    return int(status)


def header(headers: object, name: str) -> str | None:
    """Return the first value of a header, whatever the case of its name and the kind of mapping."""
    items = attribute(headers, "items")
    try:
        pairs: Any = items() if callable(items) else headers
        for key, value in pairs:
            if _text(key).lower() == name:
                return _text(value)
    except Exception:
        # Headers are foreign objects; those that cannot be iterated are treated as empty.
        return None
    return None


def headers_of(error: object) -> object:
    """Return the headers that an exception keeps of its response: its own, or those of its `meta`."""
    for holder, name in ((error, "headers"), (error, "resp_headers"), (attribute(error, "meta"), "headers")):
        if (headers := attribute(holder, name)) is not None:
            return headers
    return None


def body_in_memory(value: object) -> str | None:
    """Return the body as text, if the library holds it already."""
    for name in _BODY_ATTRIBUTES:
        body = attribute(value, name)
        if isinstance(body, str | bytes | bytearray):
            return _text(body[:_BODY_LIMIT])
    return None


def attribute(value: object, name: str) -> Any:
    """Return an attribute, or None: foreign objects may raise any exception on access."""
    try:
        return getattr(value, name, None)
    except Exception:
        return None


def _is_status(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 999


def _text(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    return str(value)


# Headers in which services state the end of the period, in seconds or since 1970.
_RESETS = ("ratelimit-reset", "x-ratelimit-reset", "x-rate-limit-reset")
_EPOCH = 1e9  # of September 2001; as a span, 31 years
_MILLISECONDS = 1e11  # of March 1973; as seconds, of the year 5138
_LATEST = 1e14
_SECONDS = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_TIME = r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
_DATES = (
    # Sun, 06 Nov 1994 08:49:37 GMT
    re.compile(
        rf"[a-z]{{3}}, +(?P<day>[0-9]{{1,2}}) (?P<month>[a-z]{{3}}) (?P<year>[0-9]{{4}}) {_TIME}"
        r"(?: (?:GMT|UTC|Z|[+-]0000))?",
        re.I,
    ),
    # Sunday, 06-Nov-94 08:49:37 GMT
    re.compile(
        rf"[a-z]{{6,9}}, (?P<day>[0-9]{{2}})-(?P<month>[a-z]{{3}})-(?P<year>[0-9]{{2}}) {_TIME} (?:GMT|UTC)", re.I
    ),
    # Sun Nov  6 08:49:37 1994
    re.compile(rf"[a-z]{{3}} (?P<month>[a-z]{{3}}) +(?P<day>[0-9]{{1,2}}) {_TIME} (?P<year>[0-9]{{4}})", re.I),
)
_ISO = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:")
_WAIT_ATTRIBUTES = ("retry_after", "retry_after_s", "retry_after_seconds")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


class RequestedWait(NamedTuple):
    """The wait that an exception asks for, and the attribute that names it."""

    attribute: str
    seconds: float


def requested_wait(error: BaseException) -> RequestedWait | None:
    """Return the wait that an attribute of an exception names; None where none is a span that a float can hold."""
    for name in _WAIT_ATTRIBUTES:
        wait = attribute(error, name)
        if isinstance(wait, int | float) and not isinstance(wait, bool) and 0 <= wait <= float_info.max:
            return RequestedWait(name, float(wait))
    return None


def retry_after(headers: object, now: datetime, *, limited: bool = False) -> float | None:
    """Return the seconds a response's headers ask to wait; None where they ask for nothing that makes sense.

    A date is compared with the response's own Date, so that a wrong clock on either side does not matter.

    Args:
        limited: whether the response limits its client. Then the end of the period counts, which services state in
            every response.
    """
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        value = header(headers, name)
        if value is not None and _SECONDS.fullmatch(value.strip()) and isfinite(float(value)):
            return float(value) / 1000
    sent = header(headers, "date")
    moment = (parse_http_date(sent, now) if sent else None) or now
    names = ("retry-after", *_RESETS) if limited else ("retry-after",)
    waits = (parse_retry_after(value, moment) for name in names if (value := header(headers, name)) is not None)
    return next((wait for wait in waits if wait is not None), None)


def parse_retry_after(value: str, now: datetime) -> float | None:
    """Return seconds from `now`, never negative; None for what is neither a number of seconds nor a date.

    Of several numbers the first counts. A number too large for a wait is the seconds since 1970, a larger one the
    milliseconds, and one beyond the year 5138 is ignored.
    """
    value = value.strip()
    if _SECONDS.fullmatch(first := value.partition(", ")[0].strip()):
        seconds = float(first)
        if seconds >= _LATEST:
            return None
        if seconds >= _MILLISECONDS:
            seconds /= 1000
        return max(0.0, seconds - now.timestamp()) if seconds >= _EPOCH else seconds
    moment = parse_http_date(value, now) or _parse_iso_date(value)
    return None if moment is None else max(0.0, (moment - now).total_seconds())


def _parse_iso_date(value: str) -> datetime | None:
    """Return a date in ISO 8601, which HTTP does not allow and some servers send; UTC where it has no zone."""
    if not _ISO.match(value):  # fromisoformat() also reads a bare date, and a week
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def parse_http_date(value: str, now: datetime) -> datetime | None:
    """Return a date in one of the three forms HTTP allows; None for any other text."""
    for form in _DATES:
        if match := form.fullmatch(value.strip()):
            break
    else:
        return None
    month, year = match["month"].lower(), int(match["year"])
    if len(match["year"]) == 2:
        year += now.year // 100 * 100
        # RFC 9110, 5.6.7: more than 50 years ahead means the century before.
        if year > now.year + 50:
            year -= 100
    try:
        return datetime(
            year,
            _MONTHS.index(month) + 1,
            int(match["day"]),
            int(match["hour"]),
            int(match["minute"]),
            59 if match["second"] == "60" else int(match["second"]),  # a datetime cannot hold a leap second
            tzinfo=UTC,
        )
    except ValueError:
        return None
