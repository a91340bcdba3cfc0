"""How a credential is put on a request, and kept out of what is said about it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, urlencode, urlsplit

from redrive._internal.masking import MASK, last_four
from redrive.classify.responses import header
from redrive.classify.unwrap import unwrap_chain

_PORTS = {"http": 80, "https": 443}
_SENDABLE = re.compile(r"[\x20-\x7e]*")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True, slots=True)
class Apply:
    """Where the credential goes: a header and what stands before the key in it, or a query parameter."""

    header: str | None = None
    prefix: str = ""
    query: str | None = None

    @classmethod
    def parse(cls, text: object) -> Apply:
        """Read "bearer", a header's name, or "query:NAME"."""
        if not isinstance(text, str):
            raise TypeError(f'apply must be "bearer", a header\'s name or "query:NAME", not {text!r}')
        if text.lower() == "bearer":
            return cls(header="Authorization", prefix="Bearer ")
        kind, colon, name = text.partition(":")
        if colon and kind == "query" and name:
            return cls(query=name)
        if not _HEADER_NAME.fullmatch(text):
            raise ValueError(f'apply must be "bearer", a header\'s name or "query:NAME", not {text!r}')
        return cls(header=text)

    def headers(self, credential: str) -> dict[str, str]:
        """The header to send."""
        if self.header is None:
            return {}
        if not _SENDABLE.fullmatch(credential):
            # The library would refuse it, too, with an error that shows all of it.
            raise ValueError(
                f"the credential …{last_four(credential)} cannot be sent in the header {self.header}: it has a "
                "character that is not printable ASCII, such as a dash that was copied from a document. Check "
                "the key"
            )
        return {self.header: self.prefix + credential}

    def with_query(self, query: str, credential: str) -> str:
        """The query to send; what the caller wrote stays as he wrote it."""
        if self.query is None:
            return query
        return "&".join(filter(None, [query, urlencode({self.query: credential})]))

    def take_back(self, response: Any, credential: str | None) -> None:
        """Take the credential out of the address of a redirect that keeps the query.

        The client would log and show it, and send it wherever the redirect leads; where it may go it is put on again.
        """
        if self.query is None or credential is None or (location := header(response.headers, "location")) is None:
            return
        address, sharp, fragment = location.partition("#")
        path, _, query = address.partition("?")
        pair = [(self.query, credential)]
        kept = "&".join(part for part in query.split("&") if parse_qsl(part, keep_blank_values=True) != pair)
        if kept != query:
            response.headers["Location"] = path + ("?" + kept if kept else "") + sharp + fragment


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request goes."""

    scheme: str
    host: str
    port: int | None

    @classmethod
    def of(cls, url: str) -> Origin:
        """The origin of a URL, with the port that its scheme implies."""
        parts = urlsplit(url)
        return cls(parts.scheme, (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme))

    def trusts(self, other: Origin) -> bool:
        """Whether a credential meant for here may go there: the same origin, or the same host by https instead."""
        upgraded = (self.scheme, self.port, other.scheme, other.port) == ("http", 80, "https", 443)
        return self == other or (self.host == other.host and upgraded)


def scrub(error: Exception, secret: str | None) -> None:
    """Take the secret out of the texts of an error and of those it wraps: libraries put whole URLs there."""
    if secret is None:
        return
    forms = {secret, quote(secret), quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1]}
    for inner in unwrap_chain(error):
        if any(isinstance(part, str) and form in part for part in inner.args for form in forms):
            inner.args = tuple(_without(part, forms) for part in inner.args)


def _without(part: object, forms: set[str]) -> object:
    if isinstance(part, str):
        for form in sorted(forms, key=len, reverse=True):
            part = part.replace(form, MASK)
    return part
