"""A rejected record as the row it becomes: its error in words, its cause, its identity."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Any

from redrive._internal.tracing import trace_id
from redrive.classify.detail import server_detail
from redrive.dlq.fingerprint import Fingerprint, fingerprint
from redrive.dlq.insert.identity import Digests, LetterIdentity
from redrive.dlq.redact import Redactor
from redrive.errors import LetterError
from redrive.model.letters import GENERATED_KEY, INCOMPLETE, ErrorType, NewLetter
from redrive.store.dialects.dialect import LetterRow
from redrive.store.encoding import TOO_DEEP, canonical, decode, encode
from redrive.store.schema.columns import utc_text

_ERROR_TYPES = frozenset(ErrorType)
_LONGEST_MESSAGE = 10_000
_LONGEST_KEY = 500
_BEGINNING = 200  # characters of a record in which its number is looked for
_NUMBER = re.compile("[0-9]+")
_MOST = 1 << 31  # what an integer column holds
_REMEMBERED = 1_000  # messages: the same few make most of a batch
_PARSING = ("json", "csv", "_csv", "zlib", "gzip", "zipfile", "xml", "pyarrow", "simplejson", "orjson", "yaml")
_SINKS = ("sqlalchemy", "psycopg", "psycopg2", "sqlite3", "duckdb", "pymysql", "asyncpg", "oracledb", "MySQLdb")

REDACTED = "redacted"
"""In the context of a letter whose record was masked before it was stored: the digest of the record as received."""

_NAMES_WORK = {ErrorType.TASK, ErrorType.PAGE, ErrorType.FILE, ErrorType.CALL}
"""Letters whose record only names what is to be done again."""

_OF_ANY_SOURCE = "\0"
"""Stands for the source where it does not identify a letter; no source is stored under this name."""

_Place = tuple[str | None, ...]
"""Pipeline, source, cause unless it is a call, and the run where that counts: mostly equal in a batch."""


class LetterRowBuilder:
    """Makes rows of letters, and remembers the causes it met since it was last asked."""

    def __init__(
        self,
        *,
        now: datetime,
        pipeline: str | None = None,
        run_id: uuid.UUID | str | None = None,
        source: str | None = None,
        error_type: ErrorType | str | None = None,
        target: str | None = None,
        by_key: bool = True,
        by_run: bool = False,
        redactor: Redactor,
        digests: Digests | None = None,
    ) -> None:
        """Prepare letters; what a letter leaves out is taken from the arguments.

        Args:
            by_key: whether a letter's key identifies it. Otherwise its `sink_key` does, and the key only finds it.
            by_run: whether a record of another run is another letter, equal or not: an event, not the state of a key.
            digests: given where named fields are masked before a record is stored.
        """
        self.causes: dict[str, tuple[Fingerprint, str, str]] = {}
        self._now = utc_text(now)
        self._pipeline = pipeline
        self._run_id = run_text(run_id)
        self._source = source
        self._target = target
        self._trace_id = trace_id(run_id)
        self._by_key = by_key
        self._by_run = by_run
        self._places: dict[tuple[str | None, str | None], tuple[str, str | None]] = {}
        self._error_type = None if error_type is None else checked_error_type(error_type)
        self._redactor = redactor
        self._digests = digests
        self._described: dict[tuple[str, str | None], tuple[str, str, str]] = {}
        self._roots: dict[_Place, tuple[Any, bytes]] = {}

    def row(self, letter: NewLetter) -> LetterRow:
        """The letter as a row."""
        pipeline, source = self._place(letter)
        error_type, message, cause = self._error(letter)
        lost: list[str] = []
        raw, context = encode(letter.record, lost=lost), letter.context
        if any(each.endswith(TOO_DEEP) for each in lost):
            context = {**(context or {}), INCOMPLETE: "the record is nested too deep: below, only its text is stored"}
        key = None if letter.key is None else as_key(letter.key)
        own_key = None if key is None else _identifying(letter.key, key)
        sink_key = None if letter.sink_key is None else as_key(letter.sink_key)
        target = self._target if letter.target is None else letter.target
        position = None if letter.position is None else storable(str(letter.position))
        if self._digests is not None:
            masked = masked_record(letter.record, raw, self._redactor, self._digests, error_type=error_type)
            if masked is not None:
                raw, digest = masked
                context = {**(context or {}), REDACTED: digest}
                shown_key, key = key, masked_text(key, letter.record, self._redactor, self._digests)
                own_key = own_key if key == shown_key else key
                position = masked_text(position, letter.record, self._redactor, self._digests)
                # No operator reads this key, and a transform may have made it of masked values: no search for them.
                sink_key = None if sink_key is None else self._digests.text(sink_key)
        rejected = self._now if letter.rejected_at is None else utc_text(_zoned(letter.rejected_at))
        if type(letter.attempts) is not int or not 0 <= letter.attempts < _MOST:
            raise LetterError(f"attempts must be a whole number from 0 up, not {letter.attempts!r}")
        run_id = self._run_id if letter.run_id is None else run_text(letter.run_id)
        return LetterRow(
            pipeline,
            run_id,
            error_type,
            message,
            raw,
            source,
            key,
            rejected,
            position,
            cause,
            self._identity(
                self._common(pipeline, source, cause, error_type, run_id),
                own_key if self._by_key else sink_key if letter.is_key_sure else None,
                position,
                _content(_of_the_call(raw, error_type), context),
            ),
            letter.attempts,
            rejected,
            None if context is None else encode(dict(context)),
            None if target is None else storable(target),
            sink_key,
            self._trace_id,
        )

    def identities(self, row: LetterRow) -> LetterIdentity:
        """Return by what the row of a run may be known."""
        place = self._common(row.pipeline_name, row.source_table, row.fingerprint, row.error_type, row.run_id)
        context = None if row.context is None or self._digests is None else decode(row.context)
        raw = _of_the_call(row.raw_record, row.error_type)
        by_position = self._identity(place, None, row.position, _content(raw, context))
        content = f"{canonical(raw)}\0{'' if row.context is None else canonical(row.context)}"
        # The next delivery of a row may be a file of another name, and its key may be known today and not tomorrow.
        anywhere = place
        if row.error_type not in _NAMES_WORK:
            anywhere = self._common(row.pipeline_name, _OF_ANY_SOURCE, row.fingerprint, row.error_type, row.run_id)
        keys: tuple[bytes, ...] = ()
        if row.sink_key is not None:
            keys = tuple(self._identity(one, row.sink_key, None, "") for one in (anywhere, place))
        return LetterIdentity(
            keys,
            self._content_identity(anywhere, content),
            by_position,
            is_key_sure=row.identity != by_position,
            is_numbered=not self._by_run and row.error_type not in _NAMES_WORK,
        )

    def _common(self, pipeline: str, source: str | None, cause: str, error_type: str, run_id: str | None) -> _Place:
        """Return what the identity of a letter has in common with those of its batch."""
        if error_type == ErrorType.CALL:
            # In one outage equal calls fail for several causes: refused, timed out, circuit open. A replay makes one.
            return (pipeline, source, error_type)
        if self._by_run and error_type not in _NAMES_WORK:
            return (pipeline, source, cause, run_id)
        return (pipeline, source, cause)

    def _place(self, letter: NewLetter) -> tuple[str, str | None]:
        """Pipeline and source."""
        known = self._places.get((letter.pipeline, letter.source))
        if known is None:
            pipeline = self._pipeline if letter.pipeline is None else letter.pipeline
            source = self._source if letter.source is None else letter.source
            known = checked_pipeline(pipeline), None if source is None else storable(str(source))
            if len(self._places) < _REMEMBERED:
                self._places[letter.pipeline, letter.source] = known
        return known

    def _error(self, letter: NewLetter) -> tuple[str, str, str]:
        """Error type, message and cause."""
        error = letter.error
        if not isinstance(error, str) or self._redactor.fields:
            return self._describe(letter)
        known = self._described.get((error, letter.error_type))
        if known is None:
            known = self._describe(letter)
            if len(self._described) < _REMEMBERED:
                self._described[error, letter.error_type] = known
        elif known[2] not in self.causes:
            return self._describe(letter)
        return known

    def _describe(self, letter: NewLetter) -> tuple[str, str, str]:
        error = letter.error
        message = error if isinstance(error, str) else error_text(error)
        error_type = letter.error_type or self._error_type
        if error_type is None:
            error_type = ErrorType.VALIDATION if isinstance(error, str) else error_type_of(error)
        elif error_type not in _ERROR_TYPES:
            raise LetterError(_unknown_error_type(error_type))
        # Redacted before it is cut: half a secret would not be recognised.
        message = self._redactor.text(message, letter.record, most=2 * _LONGEST_MESSAGE)
        message = storable(message[:_LONGEST_MESSAGE])
        cause = fingerprint(error_type, message)
        if cause.value not in self.causes:
            self.causes[cause.value] = (cause, str(error_type), message)
        return str(error_type), message, cause.value

    def _identity(self, place: _Place, key: str | None, position: str | None, content: str) -> bytes:
        """The same record failing for the same cause has the same identity, in this run and in the next.

        A key identifies a record whatever it holds. A position alone does not: line 7 of next week's file is another
        record, which its content shows.

        Three bytes stand for the place, five for the number at the end of the key, eight for everything. So records
        that come one after the other are neighbours in the index; spread at random, they would touch all its pages.
        """
        name = position if key is None else key
        number = "" if name is None else name[len(name.rstrip("0123456789")) :]
        if key is not None:
            return self._digest(place, f"k{key}", number)
        return self._digest(place, f"n{content}" if position is None else f"p{position}\0{content}", number)

    def _content_identity(self, place: _Place, content: str) -> bytes:
        """Return the identity of a row by its content alone; the first number in it makes neighbours of its like."""
        number = _NUMBER.search(content, 0, _BEGINNING)
        return self._digest(place, f"c{content}", "" if number is None else number[0])

    def _digest(self, place: _Place, text: str, number: str) -> bytes:
        root = self._roots.get(place)
        if root is None:
            if len(self._roots) > _REMEMBERED:
                self._roots.clear()
            digest = blake2b(repr(place).encode("utf-8", "surrogatepass"), digest_size=16)
            root = self._roots[place] = (digest, digest.digest()[:3])
        digest, start = root[0].copy(), root[1]
        digest.update(text.encode())
        full: bytes = digest.digest()
        if not number:
            return start + full[3:]
        return start + int(number[-12:]).to_bytes(5, "big") + full[8:]


def masked_record(
    record: Any, raw: str, redactor: Redactor, digests: Digests, *, error_type: str | None = None
) -> tuple[str, str] | None:
    """Return the record with its named fields masked, and the digest of all of it; None where it has none of them.

    Args:
        raw: the record as it is stored otherwise.
        error_type: of the letter; where it is not known, the digest distinguishes all records.
    """
    masked = encode(redactor.record(record))
    return None if masked == raw else (masked, digests.text(canonical(_of_the_call(raw, error_type))))


def _of_the_call(raw: str, error_type: str | None) -> str:
    """Return a record without the idempotency key that redrive made for a call: equal calls have keys of their own."""
    if error_type != ErrorType.CALL or f'"{GENERATED_KEY}"' not in raw:
        return raw
    record = decode(raw)
    if not isinstance(record, Mapping):
        return raw
    return encode({name: value for name, value in record.items() if name != GENERATED_KEY})


def masked_text(text: str | None, record: Any, redactor: Redactor, digests: Digests) -> str | None:
    """Return a key or a position of a masked record: its digest where it holds a masked value."""
    return digests.text(text) if text is not None and redactor.is_shown(text, record) else text


def _content(raw: str, context: Mapping[str, Any] | None) -> str:
    """Return what identifies a record: of a masked record, the digest of the record as received."""
    digest = None if context is None else context.get(REDACTED)
    return raw if digest is None else str(digest)


def error_text(error: BaseException) -> str:
    """Return an exception as a sentence: its class and its message."""
    try:
        message = str(error)
    except Exception as broken:
        message = f"(its text cannot be had: {type(broken).__name__})"
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    detail = server_detail(error)
    if detail is None or detail in text:
        return text
    first, line_end, rest = text.partition("\n")
    return f"{first} ({detail}){line_end}{rest}"  # alerts and lists show the first line


def error_type_of(error: BaseException) -> ErrorType:
    """Return the error type of an exception; an unknown one was raised by the transformation."""
    module = type(error).__module__.partition(".")[0]
    if isinstance(error, UnicodeError | EOFError) or module in _PARSING:
        return ErrorType.PARSE
    if module in _SINKS:
        return ErrorType.SINK
    if isinstance(error, ValueError) or module in {"pydantic", "pydantic_core", "dataframely", "redrive"}:
        return ErrorType.VALIDATION
    return ErrorType.TRANSFORM


def checked_error_type(error_type: str) -> ErrorType:
    """The error type, if it is one."""
    if error_type not in _ERROR_TYPES:
        raise LetterError(_unknown_error_type(error_type))
    return ErrorType(error_type)


def _unknown_error_type(error_type: object) -> str:
    return f"there is no error type {error_type!r}; it is one of {', '.join(ErrorType)}"


def run_text(run_id: uuid.UUID | str | None) -> str | None:
    """A run's id as text; reject one that is not a UUID, since PostgreSQL's column could not store it."""
    if run_id is None or isinstance(run_id, uuid.UUID):
        return None if run_id is None else str(run_id)
    try:
        return str(uuid.UUID(run_id))
    except (ValueError, AttributeError, TypeError):
        raise LetterError(
            f"a run_id is a UUID, not {run_id!r}; for a name of your own: uuid.uuid5(uuid.NAMESPACE_URL, name)"
        ) from None


def checked_pipeline(pipeline: object) -> str:
    """The name of a pipeline, if it is one."""
    if not isinstance(pipeline, str) or not pipeline.strip() or len(pipeline) > _LONGEST_KEY:
        raise LetterError(
            f"a letter needs the name of its pipeline, a text of at most {_LONGEST_KEY} characters: "
            "NewLetter(…, pipeline=…) or put(…, pipeline=…)"
        )
    return storable(pipeline)


def as_key(key: object) -> str:
    """A key that an index can hold; one that is too long is known by its beginning and a digest of it all."""
    text = storable(key if isinstance(key, str) else str(key))
    if len(text) <= _LONGEST_KEY:
        return text
    return f"{text[: _LONGEST_KEY - 40]}…{blake2b(text.encode(), digest_size=16).hexdigest()}"


def _identifying(key: object, stored: str) -> str:
    """Return the text that identifies a key. Where the stored one has escapes, they may be the text of another key."""
    text = key if isinstance(key, str) else str(key)
    return stored if storable(text) == text else f"{text!a}\0"


def key_text(parts: Sequence[Any]) -> str | None:
    """Return a key as one text, as a letter keeps it; None where a part of it is missing."""
    if not parts or any(part is None for part in parts):
        return None
    if len(parts) == 1:
        return as_key(parts[0])
    return as_key("|".join(str(part).replace("\\", "\\\\").replace("|", "\\|") for part in parts))


def storable(text: str) -> str:
    """Text that both databases take: what is no character, NUL included, is shown by its escape."""
    if type(text) is not str:
        text = str.__str__(text)  # what an Enum of strings holds, not how it is shown
    if text.isascii():
        return text.replace("\0", "\\x00") if "\0" in text else text
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _zoned(moment: datetime) -> datetime:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise LetterError(f"rejected_at must have a time zone: {moment!r} could be any of 24 moments")
    return moment
