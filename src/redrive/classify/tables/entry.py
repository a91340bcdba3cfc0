"""The right-hand side of every table."""

from __future__ import annotations

from typing import NamedTuple

from redrive.model.calls import Kind, Scope


class ByScope(NamedTuple):
    """A kind that depends on what was being done when the error came."""

    call: Kind
    row: Kind
    task: Kind


class Entry(NamedTuple):
    """What a code or a type means, and the words for it."""

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
"""A value was not what the code expected: one record's fault, or a bug, depending on who was looking."""

GARBLED = ByScope(call=AMBIGUOUS, row=ROW, task=AMBIGUOUS)
"""Bytes that do not parse: a bad record, or an answer that was cut off and comes whole the next time."""
