"""`Entry`, the right-hand side of every table: what a code or a type means."""

from __future__ import annotations

from typing import NamedTuple

from redrive.model.calls import Kind, Scope


class ByScope(NamedTuple):
    """A kind that depends on the scope in which the error occurred."""

    call: Kind
    row: Kind
    task: Kind


class Entry(NamedTuple):
    """What a code or a type means, and a phrase for it."""

    meaning: Kind | ByScope
    phrase: str

    def kind(self, scope: Scope) -> Kind:
        if isinstance(self.meaning, Kind):
            return self.meaning
        kind: Kind = getattr(self.meaning, scope)
        return kind


RETRY_NOW = Kind.RETRY_NOW
TRANSIENT = Kind.TRANSIENT
RATE_LIMITED = Kind.RATE_LIMITED
AMBIGUOUS = Kind.AMBIGUOUS
QUOTA = Kind.QUOTA
AUTH = Kind.AUTH
PERMANENT = Kind.PERMANENT
ROW = Kind.ROW
RESOURCE = Kind.RESOURCE

DATA = ByScope(call=PERMANENT, row=ROW, task=AMBIGUOUS)
"""A value was not what the code expected: an invalid record, or a bug, depending on the scope."""

GARBLED = ByScope(call=AMBIGUOUS, row=ROW, task=AMBIGUOUS)
"""Bytes that do not parse: a bad record, or a truncated response that may be complete the next time."""
