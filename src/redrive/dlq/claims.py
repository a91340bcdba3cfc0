"""Who has a letter in hand: claims with a lease, so that two replays never work on the same one.

A run that writes rows for which there are letters claims these, too: no replay writes an old row over a new one. A
claim lives as long as its replay or run renews it. One that was killed stops renewing, and its letters are free once
the lease has run out. Results are only written by who still holds the claim.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta

from sqlalchemy import Connection, delete, select, update

from redrive.store.database import Database
from redrive.store.lease import renewed
from redrive.store.listed import among
from redrive.store.schema import letter_claims

LEASE = 30.0


class Claims:
    """The claims of one replay or run."""

    def __init__(self, database: Database, *, lease: float = LEASE) -> None:
        self.owner = uuid.uuid4().hex
        self.lease = timedelta(seconds=lease)
        self._database = database

    def take(self, connection: Connection, ids: Sequence[int]) -> set[int]:
        """Claim what is free of these letters."""
        now = self._database.dialect.now(connection)
        until = now + self.lease
        wanted = self._database.dialect.insert(letter_claims)
        taken = wanted.on_conflict_do_update(
            index_elements=["letter_id"],
            set_={"owner": wanted.excluded.owner, "until": wanted.excluded.until},
            where=(letter_claims.c.until <= now) | (letter_claims.c.owner == self.owner),
        ).returning(letter_claims.c.letter_id)
        claims = [{"letter_id": one, "owner": self.owner, "until": until} for one in ids]
        return set(connection.execute(taken, claims).scalars())

    def release(self, connection: Connection, ids: Sequence[int] | None = None) -> set[int]:
        """Give claims back, all where none are named; those that were still ours."""
        statement = delete(letter_claims).where(letter_claims.c.owner == self.owner)
        if ids is not None:
            statement = statement.where(among(letter_claims.c.letter_id, ids))
        return set(connection.execute(statement.returning(letter_claims.c.letter_id)).scalars())

    def kept_alive(self) -> AbstractContextManager[None]:
        """Renew the claims for as long as the block runs."""
        return renewed(self._database, self.renew, lease=self.lease)

    def renew(self, connection: Connection) -> None:
        """Hold the claims for another lease."""
        until = self._database.dialect.now(connection) + self.lease
        connection.execute(update(letter_claims).where(letter_claims.c.owner == self.owner).values(until=until))


def holders(connection: Connection, ids: Sequence[int]) -> dict[int, datetime]:
    """Until when these letters are claimed, by whomever."""
    claims = letter_claims.c
    rows = connection.execute(select(claims.letter_id, claims.until).where(among(claims.letter_id, ids)))
    return {row.letter_id: row.until for row in rows}
