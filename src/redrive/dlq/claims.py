"""Who has a letter in hand: claims with a lease, so that two replays never work on the same one.

A claim lives as long as its replay renews it. One that was killed stops renewing, and its letters are free once the
lease has run out. Results are only written by who still holds the claim.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

from sqlalchemy import Connection, delete, select, update

from redrive.errors import StoreError
from redrive.store.database import Database
from redrive.store.listed import among
from redrive.store.schema import letter_claims

LEASE = 30.0


class Claims:
    """One replay's claims."""

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

    @contextmanager
    def kept_alive(self) -> Iterator[None]:
        """Renew the claims for as long as the block runs."""
        done = threading.Event()

        def renew() -> None:
            while not done.wait(self.lease.total_seconds() / 3):
                try:
                    self._database.write(self._renew)
                except StoreError:
                    continue  # what the store cannot do now, it may be able to do in time

        thread = threading.Thread(target=renew, name="redrive-claims", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join(1)  # it may be waiting for a database that is gone

    def _renew(self, connection: Connection) -> None:
        until = self._database.dialect.now(connection) + self.lease
        connection.execute(update(letter_claims).where(letter_claims.c.owner == self.owner).values(until=until))


def holders(connection: Connection, ids: Sequence[int]) -> dict[int, datetime]:
    """Until when these letters are claimed, by whomever."""
    claims = letter_claims.c
    rows = connection.execute(select(claims.letter_id, claims.until).where(among(claims.letter_id, ids)))
    return {row.letter_id: row.until for row in rows}
