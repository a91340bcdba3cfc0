"""Letters as they may be shown: fields that are to be masked are, and so is what looks like a secret."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

from redrive._internal.masking import LONGEST, MASK, mask_all, mask_bytes, mask_start
from redrive.cli.output import iso
from redrive.model.letters import AuditEntry, Cause, CutRecord, Letter
from redrive.store.encoding import encode

if TYPE_CHECKING:
    from redrive.dlq.redact import Redactor

MOST_IN_LIST = 10_000
"""Maximum length in characters of a record that lists show completely."""
_LONGEST = 500  # characters of a value in a list of changes
_PREVIEW = 199
_BYTES = re.compile(r"(\"\$bytes\":\s?\")([A-Za-z0-9+/]++)(=*\"?)")
_RECORDS = {"record", "edited_record"}
_TEXTS = {"error_message", "last_error", "note", "key", "position"}


class LetterView:
    """Makes documents of letters: JSON with full values, records in the encoding of the store."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def letter(self, letter: Letter) -> dict[str, Any]:
        """Return a letter as a document, in the order of its fields; the edited record only if there is one."""
        shown: dict[str, Any] = {}
        for field in fields(letter):
            value = getattr(letter, field.name)
            if isinstance(value, CutRecord):
                shown |= self._cut(field.name, value)
            elif field.name in _RECORDS:
                shown[field.name] = self.record(value)
            elif field.name in _TEXTS and value is not None:
                shown[field.name] = self.text(value, letter)
            else:
                shown[field.name] = mask_all(plain(value))
        if not letter.edited:
            del shown["edited_record"]
        return shown

    def text(self, text: str, letter: Letter) -> str:
        """Return a text about a letter; nothing if fields must be masked and the record was not read."""
        cut = isinstance(letter.record, CutRecord) or isinstance(letter.edited_record, CutRecord)
        if cut and self._redactor.fields:
            return MASK
        shown = self._redactor.text(text, letter.record)
        return self._redactor.text(shown, letter.edited_record) if letter.edited else shown

    def _cut(self, name: str, record: CutRecord) -> dict[str, Any]:
        """Return the size and the beginning of a large record; only the size if fields must be masked."""
        preview = MASK if self._redactor.fields else f"{mask_start(_BYTES.sub(_readable, record.beginning), _PREVIEW)}…"
        return {name: None, f"{name}_size": record.size, f"{name}_preview": preview}

    def record(self, record: Any) -> Any:
        """Return a record as a JSON value."""
        return mask_all(json.loads(encode(self._redactor.record(record))))

    def content(self, record: bytes) -> bytes | str:
        """Return the beginning of bytes, or a text if something in it is masked."""
        shown = self._redactor.record(record)
        return mask_bytes(shown[:LONGEST]) if isinstance(shown, bytes) else str(shown)

    def changes(self, before: Any, after: Any) -> list[tuple[str, str, str]]:
        """Return the changes of an edit: the path, and the values before and after as short JSON."""
        from redrive.dlq.edit.corrections import diff

        def hidden(record: Any) -> Any:
            return mask_all(self._redactor.record(record))

        shown = {change.path: change for change in diff(hidden(before), hidden(after))}
        found = []
        for change in diff(before, after):
            # Where the mask is all that may be shown, it still shows that something changed below it.
            seen = shown.get(change.path)
            texts = (MASK, MASK) if seen is None else (_short(seen.before), _short(seen.after))
            old, new = (self._redactor.text(self._redactor.text(text, before), after) for text in texts)
            found.append((change.path or "(the record)", old, new))
        return found

    def cause(self, cause: Cause, one_of_it: Letter | None) -> dict[str, Any]:
        """Show a cause. Its template may have a value that is to be masked: then one of its letters is read."""
        shown = {field.name: plain(getattr(cause, field.name)) for field in fields(cause)}
        if self._redactor.fields:
            shown["sample"] = None  # of a letter we do not know, whose values we could not find in it
            record = one_of_it.record if one_of_it else None
            shown["message"] = MASK if isinstance(record, CutRecord) else self._redactor.text(cause.message, record)
        return shown

    def entry(self, entry: AuditEntry, letter: Letter) -> dict[str, Any]:
        """Return an entry of the audit log as a document; its detail has records by name."""
        shown = {field.name: plain(getattr(entry, field.name)) for field in fields(entry) if field.name != "detail"}
        if entry.note is not None:
            shown["note"] = self.text(entry.note, letter)
        if isinstance(entry.detail, CutRecord):
            shown |= self._cut("detail", entry.detail)
        elif isinstance(entry.detail, dict):
            shown["detail"] = {name: self.record(value) for name, value in entry.detail.items()}
        return shown


def _readable(encoded: re.Match[str]) -> str:
    """Return bytes in the beginning of a record, with values masked."""
    digits = encoded[2]
    data = b64decode(digits[: len(digits) // 4 * 4])
    shown = mask_bytes(data)
    return f"{encoded[1]}{shown}{encoded[3]}" if isinstance(shown, str) else encoded[0]


def plain(value: Any) -> Any:
    """Return a value that is not a record as a JSON value."""
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _short(value: Any) -> str:
    from redrive.model.letters import ABSENT

    if value is ABSENT:
        return ""
    text = encode(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
