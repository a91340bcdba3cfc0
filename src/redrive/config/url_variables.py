"""Encoding of the values of variables within a URL, by the part of the URL.

An unencoded `@` in a password would end the part, and what follows would be taken for a host.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import quote

# Characters that need no encoding; `%` is kept, since users had to percent-encode values by hand in earlier versions.
_IN_USERINFO = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*")
_IN_QUERY = re.compile(r"(?:[A-Za-z0-9._~!$'()*,;:@/?-]|%[0-9A-Fa-f]{2})*")
_AUTHORITY = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,40}://([^/?#]*)")


def encoder(template: str, start: int, end: int) -> Callable[[str], str]:
    """Return how to encode the value of a variable at this position of a URL; other texts are not encoded."""
    url = _AUTHORITY.match(template)
    if url is None or start < url.start(1):
        return str
    userinfo_end = template.rfind("@", *url.span(1))
    if start < userinfo_end:
        is_all = (start, end) == (url.start(1), userinfo_end)
        return _encode_credentials if is_all else _encode_userinfo
    if "?" in template[url.end(1) : start] and template[start - 1] not in "?&":
        return _encode_query
    return str


def _encode_userinfo(value: str) -> str:
    return value if _IN_USERINFO.fullmatch(value) else quote(value, safe="")


def _encode_credentials(value: str) -> str:
    """Encode `user:password` in one variable."""
    user, colon, password = value.partition(":")
    return _encode_userinfo(user) + colon + _encode_userinfo(password)


def _encode_query(value: str) -> str:
    return value if _IN_QUERY.fullmatch(value) else quote(value, safe="")
