"""`redrive dlq show`: one letter in detail."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive._internal.masking import mask
from redrive.cli.command import command
from redrive.cli.dlq.noun import app
from redrive.cli.format import at, counted, hexdump, in_json, one_line, style_of
from redrive.cli.output import Column, Output
from redrive.cli.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redrive.cli.letter_view import LetterView
    from redrive.model.letters import AuditEntry, Letter

_LONGEST = 4_000  # characters of a record that are shown unless all of it is asked for

_FULL = "--full shows all"
_LONGEST_TEXT = 400


@command(app)
def show(
    session: Session,
    letter_id: Annotated[int, typer.Argument(metavar="ID", help="Id of the letter.", show_default=False)],
    raw: Annotated[
        bool, typer.Option("--raw", help="Print only the record as received, complete and unmasked.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Print the whole of a long record.")] = False,
) -> None:
    """Show one letter: its error, its record and its history.

    Examples: redrive dlq show 17; redrive dlq show 17 --raw
    """
    from redrive.cli.letter_view import LetterView

    with session.opened() as store:
        letter = store.dlq.get(letter_id)
        audit = [] if raw else store.dlq.audit(letter_id)
        view = LetterView(store.dlq.redactor)
    out = session.out
    if raw:
        _show_raw(out, letter.record)
    elif out.json:
        out.document({**view.letter(letter), "audit": [view.entry(entry, letter) for entry in audit]})
    elif out.terminal:
        _show_on_terminal(out, view, letter, audit, full=full)
    else:
        shown = view.letter(letter)
        for name in ("record", "edited_record"):
            if name in shown:
                shown[name] = json.dumps(shown[name], ensure_ascii=False)
        out.table((Column(title="field"), Column(title="value")), list(shown.items()))


def _show_raw(out: Output, record: Any) -> None:
    """Write the record as it was received: bytes as bytes, text as text, other values as JSON."""
    from redrive.store.encoding import encode

    if isinstance(record, bytes) and not out.json:
        if out.terminal:
            out.text(hexdump(record))
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(record)
    elif isinstance(record, str) and not out.json:
        if out.terminal:
            out.text(record)
        else:
            sys.stdout.write(f"{record}\n")
    else:
        sys.stdout.write(f"{in_json(encode(record))}\n")


def _show_on_terminal(
    out: Output, view: LetterView, letter: Letter, audit: Iterable[AuditEntry], *, full: bool
) -> None:
    again = f", seen {counted(letter.seen, 'time')}, last {at(letter.last_seen)}" if letter.seen > 1 else ""
    rows = {
        "letter": f"{letter.id}, {letter.status}",
        "pipeline": letter.pipeline,
        "error": view.text(letter.error_message, letter),
        "type": letter.error_type,
        "cause": letter.fingerprint,
        "rejected": f"{at(letter.rejected_at)}{again}",
        "key": None if letter.key is None else view.text(letter.key, letter),
        "source": None if letter.source is None else mask(letter.source),
        "position": None if letter.position is None else view.text(letter.position, letter),
        "run": letter.run_id,
        "attempts": letter.attempts if letter.attempts > 1 else None,
        "replays": f"{letter.reprocess_count}, last {at(letter.last_reprocess)}" if letter.reprocess_count else None,
        "trace": letter.trace_id,
        "last error": None if letter.last_error is None else view.text(letter.last_error, letter),
        "note": None if letter.note is None else view.text(letter.note, letter),
        "resolved": at(letter.settled_at) or None,
    }
    shown = {name: None if value is None else "\n".join(str(value).splitlines()) for name, value in rows.items()}
    out.fields(shown, styles={"letter": style_of(letter.status)})
    out.text(f"\nrecord{_size(letter.record)}\n{_record(view, letter.record, full=full)}")
    if letter.edited:
        out.text(f"\nedited record, as a replay sends it\n{_record(view, letter.edited_record, full=full)}")
        changes = view.changes(letter.record, letter.edited_record)
        out.text(
            "\nchanges\n"
            + "\n".join(f"  {path}: {old or 'nothing'} → {new or 'nothing'}" for path, old, new in changes)
        )
    happened = [f"  {_happened(view, letter, entry)}" for entry in audit]
    if happened:
        out.prose("\nhistory\n" + "\n".join(happened))


def _happened(view: LetterView, letter: Letter, entry: AuditEntry) -> str:
    became = f", {entry.status_before} → {entry.status_after}" if entry.status_before != entry.status_after else ""
    who = f" by {entry.actor}" if entry.actor else ""
    note = f": {one_line(view.text(entry.note, letter))}" if entry.note else ""
    return f"{entry.at:%Y-%m-%d %H:%M:%S}  {entry.action}{became}{who}{note}"


def _size(record: Any) -> str:
    if isinstance(record, bytes):
        return f", {counted(len(record), 'byte')}"
    return f", {len(record):,} characters" if isinstance(record, str) and len(record) > _LONGEST else ""


def _record(view: LetterView, record: Any, *, full: bool) -> str:
    """Return a record for reading; a long one is cut and marked as such."""
    content = view.content(record) if isinstance(record, bytes) else None
    if isinstance(content, bytes):
        shown = content if full else content[: _LONGEST // 16]
        text, cut, unit = hexdump(shown), len(record) - len(shown), "bytes"
    else:
        document = content or view.record(record)
        whole = json.dumps(document if full else _with_short_texts(document), ensure_ascii=False, indent=2)
        text = whole if full else whole[:_LONGEST]
        cut, unit = len(whole) - len(text), "characters"
    hint = "redrive dlq export writes all" if isinstance(content, bytes) and len(content) < len(record) else _FULL
    return f"{text}\n… {cut:,} more {unit}; {hint}" if cut > 0 else text


def _with_short_texts(document: Any) -> Any:
    """Return the document with its long texts cut, so that it fits a screen."""
    if isinstance(document, dict):
        return {name: _with_short_texts(value) for name, value in document.items()}
    if isinstance(document, list):
        return [_with_short_texts(value) for value in document]
    if isinstance(document, str) and len(document) > _LONGEST_TEXT:
        return f"{document[:_LONGEST_TEXT]}… ({len(document):,} characters; {_FULL})"
    return document
