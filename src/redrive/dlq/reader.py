"""`LetterReader`: the queries of the dead-letter queue. `store.dlq` adds what changes letters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from sqlalchemy import Connection

from redrive.dlq import queries, retention
from redrive.dlq.causes import find_causes
from redrive.dlq.filters import Filter, checked_number
from redrive.dlq.insert.identity import Digests
from redrive.dlq.redact import Redactor
from redrive.errors import LetterError
from redrive.model.letters import AuditEntry, Cause, History, Letter, QueueSize
from redrive.store.database import Database


class LetterReader:
    """Reads the letters of a store."""

    def __init__(self, database: Database, *, redact: Iterable[str] = (), store_redacted: bool = False) -> None:
        self._database = database
        self.redactor = Redactor(redact)
        self._masks = store_redacted and bool(self.redactor.fields)

    @cached_property
    def _salted(self) -> Digests:
        return Digests.of(self._database)

    @cached_property
    def _found_salt(self) -> Digests | None:
        """Return the digests of values that any process masks; None if the store has no salt."""
        return Digests.found(self._database)

    @property
    def _digests(self) -> Digests | None:
        """Return the digests of masked values; None if records are stored complete."""
        return self._salted if self._masks else None

    def stored_texts(self, text: str) -> tuple[str, ...]:
        """Return how a key or a position may be stored: as it is, or as a digest where its record was masked.

        text  the key or the position
        """
        digests = self._found_salt  # also where nothing is masked here: another process may mask fields
        return (text,) if digests is None else (text, digests.text(text))

    def digest(self, text: str) -> str:
        """Return a digest of 12 characters that stands for a text, and is comparable within this store only.

        text  the text that must not be shown
        """
        return self._salted.short(text)

    def _filter(self, filters: Mapping[str, Any], now: datetime | None = None) -> Filter:
        chosen = Filter.of(now or _now(), dict(filters))
        # Both forms, whatever this process would store: another one may mask fields.
        given = {name: texts for name in ("key", "position") if (texts := getattr(chosen, name))}
        both = {name: (*texts, *(self._salted.text(text) for text in texts)) for name, texts in given.items()}
        return chosen.but(**both)

    def get(self, letter_id: int) -> Letter:
        """Return one letter."""
        chosen = Filter.of(_now(), {"ids": (letter_id,)})
        found = self._database.read(lambda connection: queries.fetch(connection, list(chosen.ids or ())))
        if not found:
            raise LetterError(f"there is no letter {letter_id}")
        return found[0]

    def find(
        self,
        *,
        limit: int = 100,
        after: int | None = None,
        newest_first: bool = True,
        records: bool = True,
        max_record_chars: int | None = None,
        **filters: Any,
    ) -> list[Letter]:
        """Return one page of letters.

        after             id of the last letter of the previous page
        newest_first      whether the newest letter comes first; otherwise the oldest
        records           whether to read the records, which may be large; otherwise they are None
        max_record_chars  maximum length of a record that is read, in characters of its JSON; for a longer one the
                          letter has a `CutRecord` with its size and its beginning
        """
        checked_number(limit, "limit", least=1)
        if after is not None:
            checked_number(after, "after", least=0)
        _check_longest(max_record_chars)
        chosen = self._filter(filters)
        return self._database.read(
            lambda connection: queries.page(
                connection,
                chosen,
                limit=limit,
                after=after,
                newest_first=newest_first,
                records=records,
                longest=max_record_chars,
            )
        )

    def each(self, **filters: Any) -> Iterator[Letter]:
        """Iterate over all letters that match, oldest first."""
        for ids in self._parts(self._filter(filters), queries.PAGE):
            yield from self._database.read(lambda connection, ids=ids: queries.fetch(connection, ids))  # type: ignore[misc]

    def count(self, **filters: Any) -> int:
        """Return the number of letters that match."""
        chosen = self._filter(filters)
        return self._database.read(lambda connection: queries.count(connection, chosen))

    def count_by_status(self, **filters: Any) -> dict[str, int]:
        """Return the number of letters that match, by status; a status among the filters is ignored."""
        chosen = self._filter(filters)
        return self._database.read(lambda connection: queries.by_status(connection, chosen))

    def targets(self, **filters: Any) -> dict[str | None, int]:
        """Return the number of letters that match, by the target that rejected them; None for an unknown target."""
        chosen = self._filter(filters)
        return self._database.read(lambda connection: queries.by_target(connection, chosen))

    def causes(self, *, limit: int | None = None, **filters: Any) -> list[Cause]:
        """Return the causes of the letters that match, the most frequent first."""
        now = _now()
        chosen = self._filter(filters, now)
        if limit is not None:
            checked_number(limit, "limit", least=1)
        return self._database.read(lambda connection: find_causes(connection, chosen, limit=limit, now=now))

    def history(self, source_key: str, *, max_record_chars: int | None = None) -> History:
        """Return every letter of one source key, with the changes of each.

        source_key        key of the record at its source
        max_record_chars  maximum length of a record that is read, as in `find`
        """
        _check_longest(max_record_chars)
        chosen = self._filter({"key": str(source_key)})

        def work(connection: Connection) -> History:
            ids = queries.snapshot(connection, chosen.where())
            found = queries.fetch(connection, ids, longest=max_record_chars)
            events = queries.audit(connection, ids, longest=max_record_chars)
            return History(key=str(source_key), letters=tuple(found), events=tuple(events))

        return self._database.read(work)

    def audit(self, letter_id: int) -> list[AuditEntry]:
        """Return the changes of one letter, oldest first."""
        ids = Filter.of(_now(), {"ids": (letter_id,)}).ids or ()
        return self._database.read(lambda connection: queries.audit(connection, ids))

    def size(self) -> QueueSize:
        """Return the size of the queue."""
        return self._database.read(lambda connection: retention.size(connection, self._database, now=_now()))

    def _parts(self, chosen: Filter, size: int) -> Iterator[list[int]]:
        """Yield the ids of the letters that match now, in lists of at most `size`; later ones do not join."""
        where = chosen.where()
        return queries.in_parts(self._database.read(lambda connection: queries.snapshot(connection, where)), size)


def _check_longest(max_record_chars: int | None) -> None:
    if max_record_chars is not None:
        checked_number(max_record_chars, "max_record_chars", least=0)


def _now() -> datetime:
    return datetime.now(UTC)
