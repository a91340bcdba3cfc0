"""`Answer`: what a `FaultyServer` sends for one request, faults included; checked and encoded when it is made."""

from __future__ import annotations

import json as json_module
import math
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http import HTTPStatus
from typing import Any, Literal

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. At most one of `hang`, `reset`, `truncate` and `drip`; `headers` override the generated ones."""

    status: int = 200
    """The HTTP status."""
    _: KW_ONLY
    json: Any = None
    """Sent as JSON; for a bare `null` use `body="null"`."""
    body: bytes | str | None = None
    """Bytes, or text that is sent as UTF-8."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Header fields by name."""
    retry_after: float | datetime | None = None
    """Seconds, or a time with zone, which is sent as an HTTP date."""
    delay: float = 0.0
    """Seconds before anything is sent."""
    hang: bool = False
    """Never answer: the connection stays open until the client closes it or the server stops."""
    reset: Literal["before", "mid-body"] | None = None
    """Reset the connection: instead of an answer, or after the headers and half of the body."""
    truncate: bool = False
    """Send half of the body in a message that is complete by its headers: valid HTTP, broken JSON."""
    drip: float | None = None
    """Seconds before each byte of the body."""

    payload: bytes = field(init=False, repr=False, compare=False)
    """The body as sent."""
    closes: bool = field(init=False, repr=False, compare=False)
    """Whether the connection cannot be used after this answer."""
    _fields: bytes = field(init=False, repr=False, compare=False)
    _names: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_status()
        self._check_faults()
        payload, content_type = self._encode_body()
        if (self.truncate or self.reset == "mid-body") and len(payload) < 2:
            raise ValueError("truncate and reset='mid-body' need a body of at least 2 bytes to cut in half")
        if payload and self._is_bodiless:
            raise ValueError(f"an answer with status {self.status} has no body in HTTP; leave out json and body")
        if self.truncate:
            payload = payload[: len(payload) // 2]
        self._encode_head(payload, content_type)

    def times(self, n: int) -> tuple[Answer, ...]:
        """Return this answer n times, to be unpacked into a script: `on("/x", *Answer(503).times(3), Answer())`."""
        if n < 0:
            raise ValueError(f"an answer can be sent from 0 times up, not {n!r}")
        return (self,) * n

    @property
    def outcome(self) -> int | str:
        """Return the entry in the log of requests: the status, or the name of the fault without a complete status."""
        if self.hang:
            return "hang"
        return f"reset {self.reset}" if self.reset else self.status

    def head(self, *, date: str, close: bool) -> bytes:
        """Return the status line and headers, the empty line included."""
        stamp = "" if "date" in self._names else f"Date: {date}\r\n"
        end = "Connection: close\r\n\r\n" if close and "connection" not in self._names else "\r\n"
        return self._fields + (stamp + end).encode("ascii")

    @property
    def _is_bodiless(self) -> bool:
        return self.status < 200 or self.status in (204, 304)

    def _check_status(self) -> None:
        if isinstance(self.status, bool) or not isinstance(self.status, int):
            raise TypeError(f"status must be a whole number from 100 to 599, not {self.status!r}")
        if not 100 <= self.status <= 599:
            raise ValueError(f"status must be from 100 to 599, not {self.status!r}")

    def _check_faults(self) -> None:
        if self.reset not in (None, "before", "mid-body"):
            raise ValueError(f"reset must be 'before' or 'mid-body', not {self.reset!r}")
        check_seconds("delay", self.delay)
        if self.drip is not None:
            check_seconds("drip", self.drip)
        named = {"hang": self.hang, "reset": self.reset, "truncate": self.truncate, "drip": self.drip is not None}
        faults = [name for name, is_set in named.items() if is_set]
        if len(faults) > 1:
            raise ValueError(f"an answer has at most one of hang, reset, truncate and drip, not {' and '.join(faults)}")
        if self.hang and self.delay:
            raise ValueError("an answer that hangs is never sent, so it cannot have a delay")

    def _encode_body(self) -> tuple[bytes, str]:
        if self.json is not None and self.body is not None:
            raise ValueError("give json or body, not both")
        if self.json is not None:
            return json_module.dumps(self.json).encode(), "application/json"
        if isinstance(self.body, str):
            return self.body.encode(), "text/plain; charset=utf-8"
        if self.body is None or isinstance(self.body, bytes):
            return self.body or b"", "application/octet-stream"
        raise TypeError(f"body must be bytes or str, not {type(self.body).__name__}")

    def _encode_head(self, payload: bytes, content_type: str) -> None:
        if not isinstance(self.headers, Mapping):
            raise TypeError(f"headers must map names to values, not {self.headers!r}")
        own_headers = {name.lower(): value for name, value in self.headers.items()}
        generated: dict[str, str] = {}
        if self.retry_after is not None:
            generated["Retry-After"] = _retry_after(self.retry_after)
        if not self._is_bodiless:
            generated["Content-Length"] = str(len(payload))
        if payload:
            generated["Content-Type"] = content_type
        generated = {name: value for name, value in generated.items() if name.lower() not in own_headers}
        lines = [f"HTTP/1.1 {self.status} {_phrase(self.status)}"]
        for name, value in (*generated.items(), *self.headers.items()):
            _check_header(name, value)
            lines.append(f"{name}: {value}")
        # A client that got a wrong length is out of step, and after a 1xx alone it would wait forever.
        is_in_step = own_headers.get("content-length", str(len(payload))) == str(len(payload)) and self.status >= 200
        object.__setattr__(self, "payload", payload)
        object.__setattr__(self, "closes", not is_in_step or own_headers.get("connection", "").lower() == "close")
        object.__setattr__(self, "_fields", ("\r\n".join(lines) + "\r\n").encode("latin-1"))
        object.__setattr__(self, "_names", frozenset(own_headers))


def check_seconds(name: str, value: float) -> None:
    """Check a finite number of seconds from 0 up.

    Raises:
        TypeError, ValueError: the value is anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, not {value!r}")
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a finite number of seconds from 0 up, not {value!r}")


def _check_header(name: str, value: str) -> None:
    if not (isinstance(name, str) and _HEADER_NAME.fullmatch(name)):
        raise ValueError(f"{name!r} is not a header name: letters, digits and !#$%&'*+-.^_`|~ are allowed")
    if not (isinstance(value, str) and _HEADER_VALUE.fullmatch(value)):
        raise ValueError(f"header {name} must be a str of latin-1 characters without line breaks, not {value!r}")


def _retry_after(value: float | datetime) -> str:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"retry_after must be seconds or a time with zone, not {value!r}")
        return format_datetime(value.astimezone(UTC), usegmt=True)
    check_seconds("retry_after", value)
    return f"{value:.3f}".rstrip("0").rstrip(".")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
