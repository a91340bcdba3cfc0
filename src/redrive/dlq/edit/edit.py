"""Editing letters before a replay. The record as received is kept; the edited copy stands beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, null, select, update

from redrive._internal.masking import MASK, mask_all
from redrive._internal.masking.patterns import without_controls
from redrive.dlq.edit.corrections import diff, expression, merge_patch
from redrive.dlq.edit.keys import StoredTexts, rekey
from redrive.dlq.filters import Filter
from redrive.dlq.insert.row_builder import error_text
from redrive.dlq.queries import fetch, in_parts, must_exist, snapshot
from redrive.dlq.redact import Redactor
from redrive.dlq.status import actor, held_letters
from redrive.errors import LetterError
from redrive.model.letters import OPEN, Edit, EditReport, Letter
from redrive.model.letters import Change as Difference
from redrive.store.database import Database
from redrive.store.encoding import encode
from redrive.store.schema import letter_audit, letters
from redrive.store.sql import in_ids

BATCH = 500
EDITED, UNDONE = "edited", "edit undone"
"""The actions of the audit log."""
_SHOWN = 10

Change = Callable[[Any], Any]


class _NoRecord:
    """Distinguishes "no record given" from a record that is None."""


MISSING: Any = _NoRecord()


def change_of(record: Any, patch: Any, source: str | None, undo: bool) -> Change | None:
    """The one change that was asked for; None to go back to the record as received."""
    given = [record is not MISSING, patch is not MISSING, source is not None, undo]
    if sum(given) != 1:
        raise LetterError("an edit is one of: a record, a patch, an expression, or undo")
    if record is not MISSING:
        return lambda _: record
    if patch is not MISSING:
        if not isinstance(patch, Mapping):
            raise LetterError(f"a patch is an object of the fields to change, not {patch!r}")
        return lambda before: _patched(before, patch)
    if source is not None:
        try:
            return expression(source)
        except ValueError as error:
            raise LetterError(str(error)) from None
    return None


def _patched(record: Any, patch: Mapping[str, Any]) -> Any:
    """Return the patched record. Reject one without fields: the patch would replace all of it."""
    if not isinstance(record, Mapping):
        names: dict[type, str] = {bytes: "bytes", str: "text", list: "a list of records"}
        kind = names.get(type(record), f"a {type(record).__name__}")
        raise LetterError(f"the record is {kind}, and a patch needs fields; replace it as a whole (--line, --record)")
    _keep_lists(record, patch)
    return merge_patch(record, patch)


def _keep_lists(record: Any, patch: Mapping[str, Any], place: str = "") -> None:
    """Raise LetterError if a patch would replace a list by an object, as `items.0.price` would."""
    for name, value in patch.items():
        there = record.get(name) if isinstance(record, Mapping) else None
        if isinstance(value, Mapping) and value:
            if isinstance(there, list | tuple):
                raise LetterError(
                    f"{place}{name} is a list, and a patch cannot change an item of it; give the whole list, or use "
                    "an expression (--expr)"
                )
            _keep_lists(there, value, f"{place}{name}.")


def edit_one(
    database: Database,
    letter_id: int,
    change: Change | None,
    *,
    note: str | None,
    redactor: Redactor,
    stored_texts: StoredTexts,
) -> Edit:
    """Edit one letter."""

    def work(connection: Connection) -> Edit:
        must_exist(connection, (letter_id,))
        connection.execute(select(letters.c.id).where(letters.c.id == letter_id).with_for_update())
        letter = fetch(connection, [letter_id])[0]
        if letter.status not in OPEN:
            raise LetterError(f"letter {letter_id} is {letter.status}; reopen it before it is edited")
        if held_letters(connection, [letter_id], database.dialect.now(connection)):
            raise LetterError(f"letter {letter_id} is in the hands of a replay or run; try again when that is done")
        try:
            made = _edit(letter, change, redactor)
        except Exception as error:
            message = redactor.text(_why(error), letter.payload)
            raise LetterError(f"letter {letter_id} cannot be edited so: {message}; nothing was changed") from error
        keys = stored_texts, database.dialect.now(connection)
        _write(connection, [(letter, made)], note, *keys, undo=change is None)
        return made

    return database.write(work)


def edit_many(
    database: Database,
    chosen: Filter,
    change: Change | None,
    *,
    note: str | None,
    dry_run: bool,
    redactor: Redactor,
    stored_texts: StoredTexts,
    kept: Callable[[int], None],
) -> EditReport:
    """Edit a selection, batch by batch; a letter on which the change raises is left alone and reported.

    In the end `kept` is called with how many were edited, however it ended.
    """
    if chosen.status is None:
        chosen = chosen.but(status=OPEN)
    if closed := set(chosen.status or ()) - set(OPEN):
        raise LetterError(f"a letter that is {min(closed)} is not open; reopen it before it is edited")
    where, again = chosen.where(), chosen.but(ids=None)
    total = EditReport(dry_run=dry_run, selected=0, changed=0, unchanged=0)
    try:
        for ids in in_parts(database.read(lambda connection: snapshot(connection, where)), BATCH):

            def work(connection: Connection, ids: list[int] = ids) -> EditReport:
                return _batch(
                    connection,
                    database,
                    again,
                    ids,
                    change,
                    note=note,
                    dry_run=dry_run,
                    redactor=redactor,
                    stored_texts=stored_texts,
                )

            total = _sum(total, database.read(work) if dry_run else database.write(work))
    finally:
        kept(0 if dry_run else total.changed)
    return total


def _batch(
    connection: Connection,
    database: Database,
    chosen: Filter,
    ids: list[int],
    change: Change | None,
    *,
    note: str | None,
    dry_run: bool,
    redactor: Redactor,
    stored_texts: StoredTexts,
) -> EditReport:
    still = select(letters.c.id).where(chosen.where(), in_ids(letters.c.id, ids)).order_by(letters.c.id)
    there = list(connection.execute(still if dry_run else still.with_for_update()).scalars())
    held = held_letters(connection, there, database.dialect.now(connection))
    made: list[tuple[Letter, Edit]] = []
    failures: list[tuple[int, str]] = []
    unchanged = 0
    for letter in fetch(connection, [one for one in there if one not in held]):
        try:
            edit = _edit(letter, change, redactor)
        except Exception as error:
            failures.append((letter.id, redactor.text(_why(error), letter.payload)))
            continue
        if not diff(letter.payload, edit.after):
            unchanged += 1
        else:
            made.append((letter, edit))
    if made and not dry_run:
        _write(connection, made, note, stored_texts, database.dialect.now(connection), undo=change is None)
    return EditReport(
        dry_run=dry_run,
        selected=len(there),
        changed=len(made),
        unchanged=unchanged,
        held=len(held),
        failed=len(failures),
        failures=tuple(failures[:_SHOWN]),
        previews=tuple(edit for _, edit in made[:_SHOWN]),
    )


def refuse_mask(redactor: Redactor, before: Any, after: Any) -> None:
    """Raise LetterError if an edit would put the mask, as it is displayed, in the place of a hidden value."""
    if redactor.has_masked_field(after) and not redactor.has_masked_field(before):
        raise LetterError(f"it would set a redacted field to its mask, {MASK!r}; give the value itself")
    try:
        masked = mask_all(before)
    except RecursionError:  # too deep to be shown, masked or not
        return
    shown = {one.path: one.after for one in diff(before, masked) if not _lacks_only_controls(one)}
    for change in diff(before, after):
        if change.path in shown and change.after == shown[change.path]:
            raise LetterError(f"it would set {change.path!r} to what is shown of its value; give the value itself")


def _refuse_unstorable(record: Any) -> None:
    """Raise LetterError if a record holds what would be stored as its description, such as a generator."""
    lost: list[str] = []
    encode(record, lost=lost)
    if lost:
        raise LetterError(
            f"its new record is or holds {lost[0]}, which JSON cannot hold; give plain data, such as a list"
        )


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, LetterError) else error_text(error)


def _lacks_only_controls(shown: Difference) -> bool:
    """Return whether a text is shown without its colours and the like, and complete otherwise."""
    return isinstance(shown.before, str) and shown.after == without_controls(shown.before)


def _edit(letter: Letter, change: Change | None, redactor: Redactor) -> Edit:
    if change is None:
        before, after = letter.payload, letter.record
    else:
        before, after = letter.record, change(letter.payload)
        _refuse_unstorable(after)
        refuse_mask(redactor, letter.payload, after)
    return Edit(id=letter.id, before=before, after=after, changes=tuple(diff(before, after)))


def _write(
    connection: Connection,
    made: list[tuple[Letter, Edit]],
    note: str | None,
    stored_texts: StoredTexts,
    now: datetime,
    *,
    undo: bool,
) -> None:
    for letter, edit in made:
        connection.execute(
            update(letters).where(letters.c.id == letter.id).values(edited_record=null() if undo else edit.after)
        )
    rekey(connection, [(letter, edit.after) for letter, edit in made], undo=undo, stored_texts=stored_texts, now=now)
    connection.execute(
        letter_audit.insert(),
        [
            {
                "letter_id": letter.id,
                "at": now,
                "action": UNDONE if undo else EDITED,
                "status_before": str(letter.status),
                "status_after": str(letter.status),
                "actor": actor(),
                "note": note,
                # What was sent before this edit: an edit of an edit can be followed back to the record as received.
                "detail": {"before": letter.payload},
            }
            for letter, _ in made
        ],
    )


def _sum(total: EditReport, part: EditReport) -> EditReport:
    return EditReport(
        dry_run=total.dry_run,
        selected=total.selected + part.selected,
        changed=total.changed + part.changed,
        unchanged=total.unchanged + part.unchanged,
        held=total.held + part.held,
        failed=total.failed + part.failed,
        failures=(total.failures + part.failures)[:_SHOWN],
        previews=(total.previews + part.previews)[:_SHOWN],
    )
