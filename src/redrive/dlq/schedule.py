"""Trying pending letters again by schedule: a deleted resource reappears, a parser was fixed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, func, or_

from redrive.errors import LetterError
from redrive.store.schema import letters

_LONGEST = 3_650 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How often, and how far apart, a pending letter is tried again.

    tries   after so many a letter is escalated
    first   seconds from its rejection to the first try
    factor  by which each distance is longer than the one before
    """

    tries: int = 5
    first: float = 86_400.0
    factor: float = 2.0

    def __post_init__(self) -> None:
        if not isinstance(self.tries, int) or isinstance(self.tries, bool) or not 1 <= self.tries <= 100:
            raise LetterError(f"tries must be a whole number from 1 to 100, not {self.tries!r}")
        if not 0 <= self.first <= _LONGEST:
            raise LetterError(f"first must be seconds from 0 up, not {self.first!r}")
        if not 1 <= self.factor <= 100:
            raise LetterError(f"factor must be from 1 to 100, not {self.factor!r}")

    def distance(self, tried: int) -> timedelta:
        """How long after its last failure a letter that was tried so often is due.

        tried  how often it was sent back
        """
        return timedelta(seconds=min(self.first * self.factor**tried, _LONGEST))

    def due(self, now: datetime) -> ColumnElement[bool]:
        """The letters whose time has come."""
        column = letters.c
        last = func.coalesce(column.last_reprocess, column.rejected_at, type_=column.rejected_at.type)
        return or_(
            *(and_(column.reprocess_count == tried, last <= now - self.distance(tried)) for tried in range(self.tries))
        )
