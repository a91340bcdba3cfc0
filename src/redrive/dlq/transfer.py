"""Letters as NDJSON, one a line: out of one store and into another, losing nothing, doubling nothing."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from redrive._internal.masking import MASK
from redrive.dlq.filters import Filter, checked_status
from redrive.dlq.fingerprint import Fingerprint
from redrive.dlq.insert.identity import PREFIX, Digests, salt_id
from redrive.dlq.insert.insert import CauseFound, add_causes
from redrive.dlq.insert.row_builder import REDACTED, masked_record, masked_text, run_text, storable
from redrive.dlq.queries import in_parts, snapshot
from redrive.dlq.redact import Redactor
from redrive.errors import LetterError, StoreError
from redrive.model.letters import OPEN, Imported
from redrive.store.database import Database
from redrive.store.encoding import decode, encode
from redrive.store.schema import causes, letters
from redrive.store.schema.columns import utc_text
from redrive.store.sql import in_ids

FORMAT = 1
BATCH = 1_000

# Everything but the id, which is each store's own. Records are kept in the encoding of the store.
_COLUMNS = tuple(column.name for column in letters.columns if column.name != "id")
# `key_since` is each store's own as well: its runs have not looked for the keys of what is imported.
_MOMENTS = {"rejected_at", "last_reprocess", "last_seen", "settled_at", "superseded_at"}
_NUMBERS = {"reprocess_count": 0, "seen": 1, "attempts": 0}  # and what they are at least
_TEXTS = {"source_table", "source_key", "position", "resolution_note", "fingerprint", "last_error", "target"}
_TEXTS |= {"sink_key", "trace_id"}
_NEEDED = {"pipeline_name", "error_type", "error_message", "raw_record", "rejected_at", "status", "identity"}


def export_lines(database: Database, chosen: Filter) -> Iterator[str]:
    """The letters of a selection, oldest first, a line each."""
    where, salt = chosen.where(), salt_id(database)
    for ids in in_parts(database.read(lambda connection: snapshot(connection, where)), BATCH):

        def work(connection: Connection, ids: list[int] = ids) -> list[Any]:
            statement = (
                select(letters, letters.c.edited_record.is_not(None).label("edited"))
                .add_columns(causes.c.template, causes.c.version)
                .outerjoin(causes, causes.c.fingerprint == letters.c.fingerprint)
                .where(in_ids(letters.c.id, ids))
                .order_by(letters.c.id)
            )
            return list(connection.execute(statement))

        yield from (_line(row, salt) for row in database.read(work))


def _line(row: Any, salt: str | None) -> str:
    plain = {
        "format": FORMAT,
        "pipeline_name": row.pipeline_name,
        "run_id": str(row.run_id) if row.run_id else None,
        "error_type": row.error_type,
        "error_message": row.error_message,
        **{name: utc_text(getattr(row, name)) if getattr(row, name) else None for name in sorted(_MOMENTS)},
        **{name: getattr(row, name) for name in ("source_table", "source_key", "position", "status")},
        **{name: getattr(row, name) for name in ("resolution_note", "fingerprint", "last_error", "target", "sink_key")},
        "trace_id": row.trace_id,
        **{name: getattr(row, name) for name in sorted(_NUMBERS)},
        "identity": row.identity.hex(),
        "cause": {"template": row.template, "version": row.version} if row.template is not None else None,
    }
    if REDACTED in (row.context or {}):
        plain["salt"] = salt  # whose digests they are
    text = json.dumps(plain, ensure_ascii=False)[:-1]
    edited = f', "edited_record": {encode(row.edited_record)}' if row.edited else ""
    context = "" if row.context is None else f', "context": {encode(row.context)}'
    received = "" if row.received_key is None else f', "received_key": {json.dumps(row.received_key)}'
    return f'{text}, "raw_record": {encode(row.raw_record)}{edited}{context}{received}}}'


def import_lines(
    database: Database,
    lines: Iterable[str],
    *,
    kept: Callable[[int], None],
    redactor: Redactor,
    digests: Digests | None = None,
) -> Imported:
    """Take letters in, batch by batch; those that are there already are left alone.

    A line that cannot be read ends the import: everything before it is kept, and the error reports that. In the end
    `kept` is called with how many letters are new, however it ended.
    """
    done = Imported()
    closed: Counter[int] = Counter()
    opened: set[bytes] = set()
    batch: list[dict[str, Any]] = []
    salt = salt_id(database)

    def store() -> None:
        nonlocal done, batch
        if batch:
            new, differing = database.write(lambda connection: _store(connection, database, batch, closed, opened))
            done = Imported(
                done.new + len(new),
                done.known + len(batch) - len(new),
                done.differing + differing,
                done.masked_elsewhere + sum(row["is_masked_elsewhere"] for row in new),
            )
            batch = []

    try:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                batch.append(_read(line, redactor, digests, salt))
            except LetterError as error:
                store()
                raise LetterError(
                    f"line {number} {error}; {_counts_of(done)} before it, and importing the whole file again is safe"
                ) from None
            if len(batch) >= BATCH:
                store()
        store()
    except StoreError as error:
        error.args = (f"{error.args[0]} ({_counts_of(done)} before the fault)",)
        raise
    finally:
        kept(done.new)
    return done


def _counts_of(done: Imported) -> str:
    known = f", {done.known:,} were there already" if done.known else ""
    return f"{done.new:,} letters were imported{known}"


def _read(line: str, redactor: Redactor, digests: Digests | None, salt: str | None) -> dict[str, Any]:
    """One line, checked: what reaches the database is of the right type."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise LetterError("is cut short, or is not JSON") from None
    if not isinstance(found, dict) or not found.keys() >= _NEEDED:
        raise LetterError("is not a letter that redrive exported")
    if found.get("format") != FORMAT:
        raise LetterError(f"is of format {found.get('format')!r}; this redrive reads format {FORMAT}")
    try:
        return _without_foreign_keys(_checked(found, redactor, digests), found, salt)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, LetterError):
        raise LetterError("is not a letter that redrive exported") from None


def _checked(found: dict[str, Any], redactor: Redactor, digests: Digests | None) -> dict[str, Any]:
    row: dict[str, Any] = {name: _text(found.get(name)) for name in _TEXTS}
    for name in ("pipeline_name", "error_type", "error_message"):
        row[name] = _text(found[name])
    row["fingerprint"] = row["fingerprint"] or ""
    row["status"] = str(checked_status(found["status"]))
    row["identity"] = bytes.fromhex(found["identity"])
    if not row["pipeline_name"] or not row["error_type"] or row["error_message"] is None or len(row["identity"]) != 16:
        raise ValueError
    for name in _MOMENTS:
        row[name] = _moment(found.get(name))
    if row["rejected_at"] is None:
        raise ValueError
    row["last_seen"] = row["last_seen"] or row["rejected_at"]
    row["run_id"] = run_text(found.get("run_id"))
    for name, least in _NUMBERS.items():
        row[name] = found.get(name, least)
        if type(row[name]) is not int or not least <= row[name] < 1 << 31:
            raise ValueError
    # Through the encoding and back: what is stored is what this store would have written.
    record = decode(json.dumps(found["raw_record"]))
    edited = decode(json.dumps(found.get("edited_record")))
    context = decode(json.dumps(found.get("context")))
    if context is not None and not isinstance(context, dict):
        raise ValueError
    row["raw_record"] = encode(record)
    row["edited_record"] = encode(edited) if "edited_record" in found else None
    if digests is not None:
        context = _mask(row, (record, edited, context), redactor, digests)
    row["context"] = None if context is None else encode(context)
    row["received_key"] = _received_key(found.get("received_key"), digests if REDACTED in (context or {}) else None)
    row["cause"] = _cause(found.get("cause"), row)
    return row


def _without_foreign_keys(row: dict[str, Any], found: dict[str, Any], salt: str | None) -> dict[str, Any]:
    """Remove the keys of a letter that another store has masked: no row of this store would ever be equal to them.

    Its key is not known then, which a replay counts.
    """
    is_foreign = REDACTED in (found.get("context") or {}) and found.get("salt") != salt
    row["is_masked_elsewhere"] = is_foreign
    if is_foreign and (row["sink_key"] or "").startswith(PREFIX):
        row["sink_key"] = None
    if is_foreign:
        row["received_key"] = None
    return row


def _mask(row: dict[str, Any], values: tuple[Any, Any, Any], redactor: Redactor, digests: Digests) -> Any:
    """Mask a letter as this store would have, and return its context.

    Args:
        values: its record, edited record and context.
    """
    record, edited, context = values
    for name in ("error_message", "resolution_note", "last_error"):
        row[name] = row[name] and redactor.text(redactor.text(row[name], record), edited)
    if not redactor.can_read(record):  # the store that it comes from may not have left out the server's answer
        row["error_message"], row["last_error"] = (row[name] and MASK for name in ("error_message", "last_error"))
    if row["edited_record"] is not None:
        row["edited_record"] = encode(redactor.record(edited))
    masked = masked_record(record, row["raw_record"], redactor, digests, error_type=row["error_type"])
    if masked is None:
        return context
    row["raw_record"], digest = masked
    for name in ("source_key", "position"):
        row[name] = masked_text(row[name], record, redactor, digests)
    row["sink_key"] = row["sink_key"] and digests.text(row["sink_key"])
    row["identity"] = digests.identity(row["identity"])  # what it is made of may be the masked value
    return {**(context or {}), REDACTED: digest}


def _received_key(found: Any, digests: Digests | None) -> str | None:
    """Return the key of a letter before it was edited, checked; as a digest where its record is masked."""
    if found is None:
        return None
    key, superseded = _text(found["sink_key"]), _moment(found["superseded_at"])
    if key is not None and digests is not None:
        key = digests.text(key)
    return json.dumps({"sink_key": key, "superseded_at": superseded})


def _text(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and storable(value) == value):
        return value
    raise ValueError


def _moment(value: Any) -> str | None:
    if value is None:
        return None
    found = datetime.fromisoformat(value)
    if found.tzinfo is None:  # it would be taken for a time of this machine's zone
        raise ValueError
    return utc_text(found)


def _cause(found: Any, row: dict[str, Any]) -> CauseFound | None:
    if not found:
        return None
    template, version = _text(found["template"]), found["version"]
    if template is None or type(version) is not int or not 0 <= version < 1 << 31:
        raise ValueError
    cause = Fingerprint(row["fingerprint"], template, version)
    return cause, row["error_type"], row["error_message"]


def _store(
    connection: Connection,
    database: Database,
    batch: Sequence[dict[str, Any]],
    closed: Counter[int],
    opened: set[bytes],
) -> tuple[list[dict[str, Any]], int]:
    """Store what is new of a batch; return these letters, and how many of the others differ.

    Args:
        closed: see `_is_known`.
        opened: the identities of open letters that this import has added.
    """
    known = _known(connection, [row["identity"] for row in batch])
    new: list[dict[str, Any]] = []
    there: list[dict[str, Any]] = []
    for row in batch:
        mark = _Mark(row["identity"], row["rejected_at"], row["settled_at"])
        if row["status"] in OPEN and _Mark(row["identity"], None, None) in known and mark not in known:
            # An older version had a pending letter beside an escalated one of the same identity; both are kept.
            apart = blake2b(repr(mark).encode(), digest_size=16).digest()
            before = _known(connection, [apart])
            if before or row["identity"] in opened:
                row["identity"], mark = apart, mark._replace(identity=apart)
                known |= before
        if not _is_known(mark, row["status"], known, closed):
            known.add(mark)
            if row["status"] in OPEN:
                known.add(_Mark(row["identity"], None, None))
                opened.add(row["identity"])
            new.append(row)
        else:
            there.append(row)
        if row["status"] not in OPEN:
            closed[hash((row["identity"], row["rejected_at"]))] += 1
    differing = _count_differing(connection, there)
    found = {row["fingerprint"]: row["cause"] for row in new if row["cause"]}
    add_causes(connection, database, list(found.values()))
    if new:
        key_since = utc_text(database.dialect.now(connection))
        for row in new:
            row["key_since"] = key_since
        database.dialect.add_letters(connection, _COLUMNS, [[row[name] for name in _COLUMNS] for row in new])
    return new, differing


def _count_differing(connection: Connection, rows: Sequence[dict[str, Any]]) -> int:
    """Return how many of these letters, which are left alone, have another status, record or edit in the store."""
    if not rows:
        return 0
    column = letters.c
    found = connection.execute(
        select(column.identity, column.status, column.raw_record, column.edited_record).where(
            column.identity.in_({row["identity"] for row in rows})
        )
    )
    stored: dict[bytes, list[Any]] = defaultdict(list)
    for identity, status, record, edited in found:
        # As JSON, in which both databases agree but for the order of fields and the notation of numbers.
        stored[identity].append((status, json.loads(encode(record)), json.loads(encode(edited))))
    return sum(
        (row["status"], json.loads(row["raw_record"]), json.loads(row["edited_record"] or "null"))
        not in stored[row["identity"]]
        for row in rows
    )


class _Mark(NamedTuple):
    """By what a letter is known again. Without a moment: some open letter of the identity."""

    identity: bytes
    rejected_at: str | None
    settled_at: str | None


def _is_known(mark: _Mark, status: str, known: set[_Mark], closed: Counter[int]) -> bool:
    """Return whether a letter is there already, maybe in another state than the file has it in.

    `closed` counts the closed letters of the file so far: a pending one that was rejected at the same moment as those
    is not one of them, but came after.
    """
    if mark in known:
        return True
    if status not in OPEN:
        return mark._replace(settled_at=None) in known
    if _Mark(mark.identity, None, None) in known:
        return True
    here = sum(one.identity == mark.identity and one.rejected_at == mark.rejected_at for one in known)
    return here > closed[hash((mark.identity, mark.rejected_at))]


def _known(connection: Connection, identities: Sequence[bytes]) -> set[_Mark]:
    """The letters of these identities."""
    column = letters.c
    rows = connection.execute(
        select(column.identity, column.rejected_at, column.settled_at, column.status).where(
            column.identity.in_(identities)
        )
    )
    known = set()
    for identity, rejected_at, settled_at, status in rows:
        known.add(_Mark(identity, utc_text(rejected_at), None if settled_at is None else utc_text(settled_at)))
        if status in OPEN:
            known.add(_Mark(identity, None, None))
    return known
