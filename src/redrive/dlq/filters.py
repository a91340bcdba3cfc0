"""Filter: the checked conditions that select letters, and their WHERE clause."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, and_, false, select, true

from redrive.dlq.insert.row_builder import as_key, checked_error_type, checked_pipeline, storable
from redrive.errors import LetterError
from redrive.model.letters import OPEN, Status
from redrive.store.repositories.runs import is_run, of_run
from redrive.store.schema import STATUSES, cause_hours, letters
from redrive.store.sql import in_ids, in_texts

_SPAN = re.compile(r"(\d{1,6})\s*(s|min|m|h|d|w)")
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_WHOLE_CAUSE = 12
ANY_STATUS = frozenset({"any", "all"})
_NOT_SEVERAL = (str, bytes, bytearray, memoryview, Mapping)
_TEXTS = (str, int, float, Decimal, UUID, date, PurePath)
"""Types of a key, a position or a source; letters store their text."""
_MOST_PARAMETERS = 1_000
"""Maximum number of texts that are passed as parameters; databases accept some tens of thousands."""
_CAUSE = re.compile(rf"[0-9a-f]{{1,{_WHOLE_CAUSE}}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Conditions that select letters; a letter must meet all of them.

    Several values may be passed as a tuple, a list, a set or another iterable. An empty one selects no letters.

    ids                ids of letters
    pipeline           name of the pipeline, or several
    cause              fingerprint of the cause, or its beginning
    error_type         error type, or several
    status             status, or several; "open" for pending and escalated, None or "any" for all
    run_id             id of the run, or its beginning
    source             source table or file, or several
    key                key of the record at its source, or several
    position           line, offset or page in the source, or several
    since, until       time of the rejection: a datetime, a date, "today", or an age ("2d", "90min")
    seen_since         earliest time of the last failure
    reprocessed_since  earliest time of the last replay
    text               words of the error message; case is ignored, on SQLite for ASCII letters only
    min_seen           minimum number of failures
    attempts           number of attempts before rejection
    reprocess_count    number of replays
    edited             whether the record was edited
    note               words of the note; case is ignored, as for `text`
    rejected_by        target that rejected the record, FILE:NAME, as `redrive run` stored it, or several
    superseded         whether a later run has written the row's key since
    """

    ids: tuple[int, ...] | None = None
    pipeline: str | tuple[str, ...] | None = None
    cause: str | None = None
    error_type: str | tuple[str, ...] | None = None
    status: str | tuple[str, ...] | None = None
    run_id: UUID | str | None = None
    source: str | tuple[str, ...] | None = None
    key: str | tuple[str, ...] | None = None
    position: str | tuple[str, ...] | None = None
    since: datetime | date | str | timedelta | None = None
    until: datetime | date | str | timedelta | None = None
    seen_since: datetime | date | str | timedelta | None = None
    reprocessed_since: datetime | date | str | timedelta | None = None
    text: str | None = None
    min_seen: int | None = None
    attempts: int | None = None
    reprocess_count: int | None = None
    edited: bool | None = None
    note: str | None = None
    rejected_by: str | tuple[str, ...] | None = None
    superseded: bool | None = None

    @classmethod
    def of(cls, now: datetime, conditions: dict[str, Any]) -> Filter:
        """Return a filter with checked conditions; ages are counted back from `now`."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(conditions) - known):
            raise LetterError(f"there is no filter {unknown[0]!r}; there are {', '.join(sorted(known))}")
        given = {name: value for name, value in conditions.items() if value is not None}
        return cls(**{name: _CHECKS[name](value, now, name) for name, value in given.items()})

    def but(self, **changes: Any) -> Filter:
        """Return a copy with other values of these conditions."""
        return replace(self, **changes)

    @property
    def pipelines(self) -> tuple[str, ...]:
        """The names of the selected pipelines."""
        return () if self.pipeline is None else _several(self.pipeline)

    def where(self) -> ColumnElement[bool]:
        """The WHERE clause."""
        return and_(true(), *self._conditions())

    def _conditions(self) -> Iterable[ColumnElement[bool]]:
        column = letters.c
        if self.ids is not None:
            yield in_ids(column.id, self.ids) if self.ids else false()
        for name, value in (
            ("pipeline_name", self.pipeline),
            ("error_type", self.error_type),
            ("status", self.status),
            ("source_key", self.key),
            ("position", self.position),
            ("source_table", self.source),
            ("target", self.rejected_by),
        ):
            if value is not None:
                texts = _several(value)
                yield column[name].in_(texts) if len(texts) <= _MOST_PARAMETERS else in_texts(column[name], texts)
        if self.cause is not None:
            yield of_cause(column.fingerprint, self.cause)
            yield from self._of_the_index()
        for name, wanted in (
            ("attempts", self.attempts),
            ("reprocess_count", self.reprocess_count),
        ):
            if wanted is not None:
                yield column[name] == wanted
        yield from self._ranges()

    def _of_the_index(self) -> Iterable[ColumnElement[bool]]:
        """Return redundant conditions that let the database use the index of pipeline, status and fingerprint."""
        if self.status is None:
            yield letters.c.status.in_(STATUSES)
        if self.pipeline is None and self.cause is not None:
            hit = select(cause_hours.c.pipeline_name).where(of_cause(cause_hours.c.fingerprint, self.cause))
            yield letters.c.pipeline_name.in_(hit)

    def _ranges(self) -> Iterable[ColumnElement[bool]]:
        column = letters.c
        if self.run_id is not None:
            yield of_run(column.run_id, str(self.run_id))
        if self.since is not None:
            yield column.rejected_at >= self.since
        if self.until is not None:
            yield column.rejected_at < self.until
        if self.seen_since is not None:
            yield column.last_seen >= self.seen_since
        if self.reprocessed_since is not None:
            yield column.last_reprocess >= self.reprocessed_since
        if self.min_seen is not None:
            yield column.seen >= self.min_seen
        if self.edited is not None:
            yield column.edited_record.is_not(None) if self.edited else column.edited_record.is_(None)
        if self.superseded is not None:
            yield column.superseded_at.is_not(None) if self.superseded else column.superseded_at.is_(None)
        for name, words in (("error_message", self.text), ("resolution_note", self.note)):
            if words is not None:
                yield column[name].icontains(words, autoescape=True)


def of_cause(column: ColumnElement[str], cause: str) -> ColumnElement[bool]:
    """Match a fingerprint or its beginning; the beginning as a range, because LIKE would not use the index."""
    return column == cause if len(cause) == _WHOLE_CAUSE else and_(column >= cause, column < cause + "g")


def moment(value: datetime | date | str | timedelta, now: datetime, name: str = "since") -> datetime:
    """Return the time for a datetime, an age ("2d", "90min"), a date, or "today" (UTC)."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise LetterError(f"{name} must have a time zone: {value!r} could be any of 24 moments")
        return _in_utc(value, name)
    if isinstance(value, timedelta):
        return _ago(now, value, name)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    words = value.strip() if isinstance(value, str) else ""
    if words.lower() == "today":
        return now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if span := _SPAN.fullmatch(words.lower()):
        return _ago(now, timedelta(seconds=int(span[1]) * _UNITS[span[2]]), name)
    try:
        found = datetime.fromisoformat(words)
    except ValueError:
        raise LetterError(
            f'{name} must be an age such as "2d" or "90min", a date such as "2026-11-30" or "today", not {value!r}'
        ) from None
    return _in_utc(found, name) if found.tzinfo else found.replace(tzinfo=UTC)


def _in_utc(value: datetime, name: str) -> datetime:
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise LetterError(f"{name}: {value.isoformat()} is outside the years 1 to 9999 in UTC") from None


def _ago(now: datetime, span: timedelta, name: str) -> datetime:
    try:
        return now - span
    except OverflowError:
        raise LetterError(f"{name}: that is before the beginning of time") from None


def _statuses(value: Any, now: datetime, name: str) -> tuple[Status, ...] | None:
    """Return the statuses that are named; None for any."""
    named = _listed(value, name, (str,))
    statuses = [
        status
        for one in named
        if one not in ANY_STATUS
        for status in (OPEN if one == "open" else (checked_status(one),))
    ]
    return None if ANY_STATUS & set(named) else tuple(dict.fromkeys(statuses))


def checked_status(status: str) -> Status:
    """Return the text as a status; raise a LetterError for another text."""
    if status not in set(Status):
        raise LetterError(f"there is no status {status!r}; it is one of {', '.join(Status)}, open or any")
    return Status(status)


def _ids(value: Any, now: datetime, name: str) -> tuple[int, ...]:
    listed = _several(value)
    for one in listed:
        if not isinstance(one, int) or isinstance(one, bool) or not 0 < one < 1 << 63:
            raise LetterError(f"a letter's id is a number of 1 or more, not {one!r}")
    return listed


def _several(value: Any) -> tuple[Any, ...]:
    """Return the values of a condition that takes one or several."""
    return (value,) if isinstance(value, _NOT_SEVERAL) or not isinstance(value, Iterable) else tuple(value)


def _listed(value: Any, name: str, types: tuple[type, ...]) -> tuple[Any, ...]:
    """Return the values of a condition that takes one or several, each of one of these types."""
    listed = _several(value)
    for one in listed:
        if not isinstance(one, types) or isinstance(one, bool):
            raise LetterError(f"{name} must be a text, or several in a tuple or list, not {one!r}")
    return listed


def checked_number(value: Any, name: str, *, least: int) -> int:
    """Return a number if it is at least `least` and databases can store it; otherwise raise a LetterError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise LetterError(f"{name} must be a whole number of {least} or more, not {value!r}")
    if value >= 1 << 63:  # databases have no greater numbers
        raise LetterError(f"{name} must be at most {(1 << 63) - 1}, not {value}")
    return value


def _flag(value: Any, now: datetime, name: str) -> bool:
    if not isinstance(value, bool):
        raise LetterError(f"{name} must be True or False, not {value!r}")
    return value


def _cause(value: Any, now: datetime, name: str) -> str:
    if not isinstance(value, str) or not _CAUSE.fullmatch(value.lower()):
        raise LetterError(f"a cause is up to twelve hexadecimal digits, as listed, not {value!r}")
    return value.lower()


def _run(value: Any, now: datetime, name: str) -> str:
    text = str(value).lower()
    if not isinstance(value, str | UUID) or not is_run(text):
        raise LetterError(f"a run is a UUID, or the beginning of one as `redrive runs ls` shows it, not {value!r}")
    return text


def _pipelines(value: Any, now: datetime, name: str) -> tuple[str, ...]:
    return tuple(checked_pipeline(one) for one in _listed(value, name, (str,)))


def _error_types(value: Any, now: datetime, name: str) -> tuple[str, ...]:
    return tuple(checked_error_type(one) for one in _listed(value, name, (str,)))


def _keys(value: Any, now: datetime, name: str) -> tuple[str, ...]:
    return tuple(as_key(one) for one in _listed(value, name, _TEXTS))


def _texts(value: Any, now: datetime, name: str) -> tuple[str, ...]:
    return tuple(storable(one if isinstance(one, str) else str(one)) for one in _listed(value, name, _TEXTS))


def _contained(value: Any, now: datetime, name: str) -> str:
    if not isinstance(value, str):
        raise LetterError(f"{name} must be a text, not {value!r}")
    words = storable(value)
    if not words.strip():  # every message has it; often a variable of a script that is not set
        raise LetterError(f"{name} is empty, and would match every letter; leave it out for all of them")
    return words


# How each condition is checked, and made what the database compares with.
_CHECKS: dict[str, Callable[[Any, datetime, str], Any]] = {
    "ids": _ids,
    "pipeline": _pipelines,
    "error_type": _error_types,
    "status": _statuses,
    "cause": _cause,
    "run_id": _run,
    "key": _keys,
    **dict.fromkeys(("edited", "superseded"), _flag),
    **dict.fromkeys(("since", "until", "seen_since", "reprocessed_since"), moment),
    **dict.fromkeys(("source", "position", "rejected_by"), _texts),
    **dict.fromkeys(("text", "note"), _contained),
    **dict.fromkeys(
        ("min_seen", "attempts", "reprocess_count"), lambda value, now, name: checked_number(value, name, least=0)
    ),
}
