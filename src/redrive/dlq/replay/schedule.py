"""Schedule, canary and rate limit of a replay."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

from redrive.errors import LetterError
from redrive.policy import option_checks
from redrive.store.schema import letters
from redrive.store.sql import in_ids

_LONGEST = 3_650 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How often, and how far apart, a pending letter is tried again.

    tries   number of tries after which a letter is escalated
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
        """Return how long after its last failure a letter that was tried so often is due.

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


_LEAST = 1e-6  # letters per second: below that, one letter waits for weeks


class RateLimit:
    """Spreads letters over time; without a rate it never waits.

    A batch waits until the time of those before it is over, and no second has more letters than the rate, however large
    the batches are. A target that is slower than the rate is not sent a burst afterwards.
    """

    def __init__(
        self,
        rate: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if rate is not None and not (option_checks.finite(rate) and rate >= _LEAST):
            raise LetterError(
                "rate must be a number of letters per second above 0, finite and not below 0.000001, "
                f"not {option_checks.shown(rate)}"
            )
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._free_at = 0.0
        self._most = 1 if rate is None else max(1, int(rate))
        self._recent: deque[tuple[float, int]] = deque()  # when letters were sent in the last second, and how many

    def allow(self, wanted: int) -> int:
        """Wait until letters may be sent, and return how many of the wanted ones may go in one batch."""
        if self._rate is None or wanted <= 0:
            return wanted
        while (delay := self._free_at - self._clock()) > 0:  # a sleep may end early
            self._sleep(delay)
        # One second, or what a single letter takes where that is longer. The margin is for sums of fractions.
        over = self._clock() - self._most / self._rate * (1 - 1e-9)
        while self._recent and self._recent[0][0] <= over:
            self._recent.popleft()
        return min(wanted, max(1, self._most - sum(count for _, count in self._recent)))

    def sent(self, count: int) -> None:
        """Note that letters are being sent now."""
        if self._rate is not None:
            now = self._clock()
            self._free_at = max(self._free_at, now) + count / self._rate
            self._recent.append((now, count))


_STEP = 0.618  # its multiples are spread over the fractions of 1


def has_unknown_key(connection: Connection, conditions: Sequence[ColumnElement[bool]]) -> bool:
    """Return whether one of the selected letters may be a row of any key."""
    unknown = select(letters.c.id).where(letters.c.sink_key.is_(None), *conditions).limit(1)
    return connection.execute(unknown).first() is not None


def canary_first(
    connection: Connection, ids: Sequence[int], *, canary: int, of: int, conditions: Sequence[ColumnElement[bool]]
) -> Sequence[int]:
    """Return the letters with the canary in front, spread evenly from the oldest to the newest.

    Of several letters of one key, the oldest is taken: a canary that sent a newer one would let the older one overwrite
    it afterwards. Where keys are unknown, the order of the letters must not be changed at all.

    Args:
        ids: the selection in the order in which it is sent.
        canary: how many letters to send first.
        of: how many of the selection are sent at all.
        conditions: by which letters were selected.
    """
    if canary >= of:
        return ids
    # One of each stretch, and not at the same place of each: what fails may come at regular distances.
    spread = [ids[int((place + place * _STEP % 1) * of / canary)] for place in range(canary)]
    oldest = _oldest_of_their_key(connection, spread, conditions)
    first = dict.fromkeys(oldest.get(one, one) for one in spread)
    for one in ids[:canary]:  # where letters of one key were met twice
        if len(first) < canary:
            first.setdefault(one)
    return array("q", [*first, *(one for one in ids if one not in first)])


def _oldest_of_their_key(
    connection: Connection, ids: Sequence[int], conditions: Sequence[ColumnElement[bool]]
) -> dict[int, int]:
    """Return for each of these letters that has a key the oldest selected letter of the same key."""
    column = letters.c
    key = func.coalesce(column.sink_key, column.source_key)
    named = select(column.id, column.pipeline_name, key).where(in_ids(column.id, ids), key.is_not(None))
    keys = {row[0]: (row[1], row[2]) for row in connection.execute(named)}
    same = select(column.id, column.pipeline_name, key).where(*conditions, key.in_({one for _, one in keys.values()}))
    oldest: dict[tuple[str, str], int] = {}
    for letter_id, pipeline, text in connection.execute(same.order_by(column.last_seen, column.id)):
        oldest.setdefault((pipeline, text), letter_id)
    return {letter_id: oldest.get(known, letter_id) for letter_id, known in keys.items()}
