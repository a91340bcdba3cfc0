"""`redrive dlq edit`: fix records before a replay. A dry run by default."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive.cli.command import command
from redrive.cli.dlq.noun import app
from redrive.cli.exit_codes import FAILED, TEMPORARY, CommandRefused, Unwritten
from redrive.cli.format import counted
from redrive.cli.letter_options import OPEN, Selection
from redrive.cli.output import Column
from redrive.cli.session import Session, command_text
from redrive.errors import LetterError

if TYPE_CHECKING:
    from redrive.model.letters import EditReport, Letter
    from redrive.store.store import Store

MISSING: Any = object()  # no record was given, which is another thing than None
_COLUMNS = (
    Column(title="letter", show=str, right=True),
    Column(title="field", least=10),
    Column(title="before", least=16),
    Column(title="after", least=16),
)


@command(app)
def edit(
    session: Session,
    selection: Selection,
    *,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIELD=VALUE", help="Set a field, such as customer.zip; the value is JSON or text."
        ),
    ] = None,
    unset: Annotated[list[str] | None, typer.Option(metavar="FIELD", help="Remove a field.")] = None,
    patch: Annotated[str | None, typer.Option(metavar="JSON", help="JSON merge patch.")] = None,
    expr: Annotated[
        str | None, typer.Option(metavar="PYTHON", help="Python expression of `record` that returns the new record.")
    ] = None,
    record: Annotated[
        str | None, typer.Option(metavar="FILE", help="File with the whole new record as JSON; - for stdin.")
    ] = None,
    line: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Whole new record as a line of text, such as a CSV line; - for stdin."),
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Restore the record as received.")] = False,
    go: Annotated[bool, typer.Option("--go", help="Execute; without this, a dry run.")] = False,
    note: Annotated[str | None, typer.Option(metavar="TEXT", help="Reason, stored with the letters.")] = None,
) -> None:
    """Fix records before a replay; a dry run by default.

    The record as received is kept. With an id and no other option, the complete record opens in your editor.

    Examples: redrive dlq edit 17 --set fee=12.50 --go; redrive dlq edit --cause 8b14ce --unset discount
    """
    ways = {"--set or --unset": set_ or unset, "--patch": patch, "--expr": expr, "--record": record, "--undo": undo}
    ways["--line"] = line
    given = [name for name, value in ways.items() if value not in (None, [], False)]
    if len(given) > 1:
        raise LetterError(f"{' and '.join(given)} exclude each other. Pass one of them")
    if selection.empty:
        raise LetterError("no letters to edit: none was selected. Pass ids, --pipeline, --cause or another filter")
    with session.opened() as store:
        if not given or record is not None or line is not None:
            letter = _the_one(store, selection, given)
            if line is not None:
                _must_be_a_line(letter)
            new = _line(line) if line is not None else MISSING if record is None else _parsed(_read(record), record)
            _edit_whole(session, store, letter, new, go=go, note=note)
            return
        change: dict[str, Any] = {"undo": True} if undo else {"expression": expr} if expr is not None else {}
        if not change:
            change = {"patch": _parsed(patch, "--patch") if patch is not None else _patch(set_ or [], unset or [])}
        filters = selection.filters(store.dlq)
        _must_be_open(store, selection.listed_ids if selection.by_id else ())
        report = store.dlq.edit_many(dry_run=not go, note=note, **change, **filters)
        _show(session, store, report, undo=undo)
    if report.failed or report.held:
        raise typer.Exit(FAILED if report.failed else TEMPORARY)


def _patch(sets: list[str], unsets: list[str]) -> dict[str, Any]:
    """Return a merge patch of single fields."""
    patch: dict[str, Any] = {}
    for one in sets:
        path, equals, text = one.partition("=")
        if not equals or not path.strip():
            raise LetterError(f"--set must be FIELD=VALUE, not {one!r}")
        value = _value(text)
        if value is None:
            raise LetterError(
                f"null in a patch removes the field: write --unset {path} for that, "
                f"""or --expr '{{**record, "{path}": None}}' to have it there without a value"""
            )
        _put(patch, path, value)
    for path in unsets:
        _put(patch, path, None)
    return patch


def _put(patch: dict[str, Any], path: str, value: Any) -> None:
    *parents, name = path.strip().split(".")
    for parent in parents:
        patch = patch.setdefault(parent, {})
        if not isinstance(patch, dict):
            raise LetterError(f"{path} and another --set contradict each other")
    patch[name] = value


def _value(text: str) -> Any:
    from redrive.store.encoding import decode

    try:
        return decode(text, typed=True)
    except ValueError:
        return text


def _parsed(text: str, what: str) -> Any:
    from redrive.store.encoding import decode

    try:
        return decode(text, typed=True)
    except ValueError as error:
        raise LetterError(f"{what} is not JSON: {error}") from None


# ── one record as a whole ─────────────────────────────────────────────────────────────────────────────────────────────


def _the_one(store: Store, selection: Selection, given: list[str]) -> Letter:
    ids = selection.listed_ids
    if not selection.by_id or len(ids) != 1:
        how = f"{given[0] if given else '--record'} replaces one record: name one letter by its id"
        raise LetterError(
            how if given else "no edit given. Pass --set, --unset, --patch, --expr, --record, --line or --undo"
        )
    _must_be_open(store, ids)
    return store.dlq.get(ids[0])


def _edit_whole(session: Session, store: Store, letter: Letter, new: Any, *, go: bool, note: str | None) -> None:
    from redrive.cli.letter_view import LetterView
    from redrive.dlq.edit.edit import refuse_mask

    out, by_hand = session.out, new is MISSING
    if by_hand and not out.attended:
        raise LetterError("no edit given. Pass --set, --unset, --patch, --expr, --record, --line or --undo")
    if by_hand:
        new = edited_by_hand(letter)
    refuse_mask(store.dlq.redactor, letter.payload, new)
    changes = LetterView(store.dlq.redactor).changes(letter.payload, new)
    if out.json:
        listed = [{"path": path, "before": old, "after": after} for path, old, after in changes]
        out.document({"dry_run": not go, "id": letter.id, "changes": listed})
    else:
        out.table(_COLUMNS, [(letter.id, *change) for change in changes])
    if not changes:
        out.say("the record is the same. Nothing was changed")
        return
    if by_hand and not go:
        go = typer.confirm("Store this edit?", err=True)
    if go:
        store.dlq.edit(letter.id, new, note=note)
        out.say(f"edited letter {letter.id}")
        out.next_steps([("undo", f"redrive dlq edit {letter.id} --undo --go{session.store_option}")])
    elif by_hand:
        out.say("nothing was changed")
    else:
        out.say("dry run: nothing was changed")
        out.next_steps([("execute", _again(session, store, [letter.payload, new]))])


def _must_be_a_line(letter: Letter) -> None:
    """Reject a line of text for a letter with fields: no header is stored with it to parse the line."""
    if isinstance(letter.record, dict):
        raise LetterError(
            f"letter {letter.id} holds fields, not a line of text; edit it by --set FIELD=VALUE, or as a whole by "
            "--record FILE. Nothing was changed"
        )


def _line(given: str) -> str:
    """Return a line of text, without its line end."""
    text = _read("-") if given == "-" else given
    return text.removesuffix("\n").removesuffix("\r")


def _read(source: str) -> str:
    try:
        return sys.stdin.read() if source == "-" else Path(source).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandRefused(f"cannot read {source}: {getattr(error, 'strerror', None) or 'it is not UTF-8'}") from None


def _must_be_open(store: Store, ids: tuple[int, ...]) -> None:
    """Raise an error if a letter that was named by its id cannot be edited."""
    for one in ids:
        letter = store.dlq.get(one)
        if letter.status not in OPEN:
            raise LetterError(f"letter {one} is {letter.status} and cannot be edited. Reopen it first")


# ── the report ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _show(session: Session, store: Store, report: EditReport, *, undo: bool) -> None:
    from redrive.cli.letter_view import LetterView

    out, view = session.out, LetterView(store.dlq.redactor)
    failures = [(letter_id, view.text(reason, store.dlq.get(letter_id))) for letter_id, reason in report.failures]
    edits = [(preview, view.changes(preview.before, preview.after)) for preview in report.previews]
    if out.json:
        counts = {
            name: getattr(report, name) for name in ("dry_run", "selected", "changed", "unchanged", "held", "failed")
        }
        out.document(
            {
                **counts,
                "failures": [{"id": letter_id, "reason": reason} for letter_id, reason in failures],
                "previews": [
                    {
                        "id": one.id,
                        "before": view.record(one.before),
                        "after": view.record(one.after),
                        "changes": [{"path": path, "before": old, "after": new} for path, old, new in changes],
                    }
                    for one, changes in edits
                ],
            }
        )
    else:
        out.table(_COLUMNS, [(preview.id, *change) for preview, changes in edits for change in changes])
    out.say("; ".join(_in_words(report, undo=undo)))
    for reason in dict.fromkeys(reason for _, reason in failures):
        out.say(f"  {reason} (letter {', '.join(str(letter_id) for letter_id, its in failures if its == reason)})")
    if report.dry_run and report.changed:
        again = _again(
            session, store, [record for preview in report.previews for record in (preview.before, preview.after)]
        )
        out.say("dry run: nothing was changed")
        out.next_steps([("execute", again)])


def _again(session: Session, store: Store, edited: list[Any]) -> str:
    """Return the command that does it; one with a value that is masked in these records is described instead."""
    again, redactor = session.again_with("--go"), store.dlq.redactor
    return again if all(redactor.text(again, record) == again for record in edited) else command_text("--go")


def _in_words(report: EditReport, *, undo: bool) -> list[str]:
    first = "would edit" if report.dry_run else "edited"
    if undo:
        first = "would undo the edits of" if report.dry_run else "undid the edits of"
    shown = f", the first {len(report.previews)} of them above" if report.changed > len(report.previews) else ""
    parts = [f"{first} {counted(report.changed)}{shown}"]
    if report.unchanged:
        parts.append(
            f"{counted(report.unchanged)} would not change"
            if report.dry_run
            else f"{counted(report.unchanged)} unchanged"
        )
    if report.held:
        parts.append(f"{counted(report.held)} skipped: a replay or run holds them. Try again when it has ended")
    if report.failed:
        parts.append(f"{counted(report.failed)} skipped: the edit fails on them")
    return parts


def edited_by_hand(letter: Letter) -> Any:
    """Return the edited record, unmasked: masked values could not be stored."""
    from redrive.store.encoding import decode, encode

    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    # Only its owner may read it.
    descriptor, path = tempfile.mkstemp(prefix=f"letter-{letter.id}-", suffix=".json")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(json.loads(encode(letter.payload)), file, ensure_ascii=False, indent=2)
            file.write("\n")
    except BaseException as error:
        os.unlink(path)
        if isinstance(error, OSError):
            raise Unwritten(Path(path), error, is_left=True) from None
        raise
    kept = False
    try:
        ended = subprocess.run([*shlex.split(editor), path], check=False)
        if ended.returncode:
            raise CommandRefused(f"{editor} exited with status {ended.returncode}. Nothing was changed")
        with open(path, encoding="utf-8") as file:
            return decode(file.read(), typed=True)
    except OSError as error:
        raise CommandRefused(f"cannot run {editor}: {error.strerror}; Set EDITOR. Nothing was changed") from None
    except ValueError as error:
        kept = True
        raise CommandRefused(
            f"the edited record is not JSON: {error}. It is kept in {path}. Nothing was changed"
        ) from None
    finally:
        if not kept:
            os.unlink(path)
