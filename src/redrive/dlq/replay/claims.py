"""Claims of letters, with a lease, so that two replays never work on the same letter.

A run that writes rows for which there are letters claims these, too: no replay writes an old row over a new one. A
claim lives as long as its replay or run renews it. A replay that was killed stops renewing, and its letters are free
once the lease has run out. One that lives on this machine keeps them for a minute longer: its renewal may wait for the
lock of the store when a batch was already sent. A run that was killed, or failed while it wrote a batch, may have
written their rows and not marked them: its claims hold until the run is resumed or abandoned. Results are only written
by who still holds the claim.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

from sqlalchemy import Connection, and_, delete, or_, select, update

from redrive.model.runs import RunStatus
from redrive.store.database import Database
from redrive.store.lease import begin_work, end_work, is_owner_alive, new_owner, renewed
from redrive.store.schema import checkpoints, letter_claims, letters, runs
from redrive.store.sql import in_ids

LEASE = 30.0
_LATE = timedelta(seconds=60)
"""How long a process that lives may fail to renew its claims: as long as it tries to write to the store."""
_RUN = "run:"


class Claims:
    """The claims of one replay or run."""

    def __init__(self, database: Database, *, lease: float = LEASE) -> None:
        self.owner = new_owner()
        self.lease = timedelta(seconds=lease)
        self._database = database

    def take(self, connection: Connection, ids: Sequence[int], *, but: Sequence[str] = ()) -> set[int]:
        """Claim what is free of these letters; `but` are owners whose claims hold although their lease is over."""
        now = self._database.dialect.now(connection)
        until = now + self.lease
        holding = {*but, *living_owners(connection, now)} - {self.owner}
        wanted = self._database.dialect.insert(letter_claims)
        taken = wanted.on_conflict_do_update(
            index_elements=["letter_id"],
            set_={"owner": wanted.excluded.owner, "until": wanted.excluded.until},
            where=or_(
                and_(letter_claims.c.until <= now, *(letter_claims.c.owner != owner for owner in holding)),
                letter_claims.c.owner == self.owner,
            ),
        ).returning(letter_claims.c.letter_id)
        claims = [{"letter_id": one, "owner": self.owner, "until": until} for one in ids]
        return set(connection.execute(taken, claims).scalars())

    def release(self, connection: Connection, ids: Sequence[int] | None = None) -> set[int]:
        """Give claims back, all where none are named; those that were still ours."""
        statement = delete(letter_claims).where(letter_claims.c.owner == self.owner)
        if ids is not None:
            statement = statement.where(in_ids(letter_claims.c.letter_id, ids))
        return set(connection.execute(statement.returning(letter_claims.c.letter_id)).scalars())

    def keep(self, connection: Connection, ids: Sequence[int]) -> set[int]:
        """Hold these claims for another lease; return those that are still ours."""
        until = self._database.dialect.now(connection) + self.lease
        ours = (letter_claims.c.owner == self.owner) & in_ids(letter_claims.c.letter_id, ids)
        kept = update(letter_claims).where(ours).values(until=until).returning(letter_claims.c.letter_id)
        return set(connection.execute(kept).scalars())

    def expire(self, connection: Connection) -> None:
        """End the lease of all claims: those of a run hold all the same until it is resumed or abandoned."""
        now = self._database.dialect.now(connection)
        connection.execute(update(letter_claims).where(letter_claims.c.owner == self.owner).values(until=now))

    @contextmanager
    def kept_alive(self) -> Iterator[None]:
        """Renew the claims for as long as the block runs."""
        owner = self.owner
        begin_work(owner)
        try:
            with renewed(self._database, self.renew, lease=self.lease):
                yield
        finally:
            end_work(owner)

    def renew(self, connection: Connection) -> None:
        """Hold the claims for another lease."""
        until = self._database.dialect.now(connection) + self.lease
        connection.execute(update(letter_claims).where(letter_claims.c.owner == self.owner).values(until=until))


def owner_of_run(run_id: uuid.UUID) -> str:
    """Return who the claims of a run belong to, in whatever process it is resumed."""
    return f"{_RUN}{run_id.hex}"


def living_owners(connection: Connection, now: datetime) -> list[str]:
    """Return the owners of claims whose lease has just ended, although their process lives on this machine."""
    claims = letter_claims.c
    late = select(claims.owner).distinct().where(claims.until <= now, claims.until > now - _LATE)
    return [owner for owner in connection.execute(late).scalars() if is_owner_alive(owner)]


def unsaved_runs(connection: Connection, now: datetime) -> list[str]:
    """Return the owners of the claims of runs that were killed, or failed while writing, and are to be resumed."""
    claims = letter_claims.c
    over = select(claims.owner).distinct().where(claims.owner.startswith(_RUN), claims.until <= now)
    owners = {uuid.UUID(owner.removeprefix(_RUN)): owner for owner in connection.execute(over).scalars()}
    if not owners:
        return []
    unfinished = (
        select(runs.c.run_id)
        .join(checkpoints, checkpoints.c.run_id == runs.c.run_id)
        .where(runs.c.run_id.in_(list(owners)), runs.c.status.not_in([RunStatus.COMPLETE, RunStatus.ABANDONED]))
    )
    return sorted(owners[run_id] for run_id in connection.execute(unfinished).scalars())


def abandon_run(connection: Connection, run_id: uuid.UUID, now: datetime) -> None:
    """Let go of the letters of a run that is not resumed. Whether it has written their rows is not known."""
    theirs = delete(letter_claims).where(letter_claims.c.owner == owner_of_run(run_id))
    ids = list(connection.execute(theirs.returning(letter_claims.c.letter_id)).scalars())
    if ids:
        connection.execute(update(letters).where(in_ids(letters.c.id, ids)).values(key_since=now))


def holders(connection: Connection, ids: Sequence[int]) -> dict[int, datetime]:
    """Until when these letters are claimed, by whomever."""
    claims = letter_claims.c
    rows = connection.execute(select(claims.letter_id, claims.until).where(in_ids(claims.letter_id, ids)))
    return {row.letter_id: row.until for row in rows}
