"""How a credential is put on a request."""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True, slots=True)
class Apply:
    """Where the credential goes: a header and what stands before the key in it, or a query parameter."""

    header: str | None = None
    prefix: str = ""
    query: str | None = None

    @classmethod
    def parse(cls, text: str) -> Apply:
        """Read "bearer", a header's name, or "query:NAME"."""
        if text.lower() == "bearer":
            return cls(header="Authorization", prefix="Bearer ")
        kind, colon, name = text.partition(":")
        if colon and kind == "query" and name:
            return cls(query=name)
        if not _HEADER_NAME.fullmatch(text):
            raise ValueError(f'apply must be "bearer", a header\'s name or "query:NAME", not {text!r}')
        return cls(header=text)
