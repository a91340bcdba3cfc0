"""`redrive dlq discard`, `escalate` and `reopen`: decisions about letters without a replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive.cli.command import command
from redrive.cli.dlq.noun import app
from redrive.cli.exit_codes import TEMPORARY, CommandRefused
from redrive.cli.format import counted
from redrive.cli.letter_options import OPEN, Selection, statuses_of
from redrive.cli.session import Session
from redrive.errors import LetterError

if TYPE_CHECKING:
    from redrive.dlq.queue import DeadLetters
    from redrive.model.letters import Changed

_Note = Annotated[
    str, typer.Option("--note", metavar="TEXT", help="Reason, stored with the letters.", show_default=False)
]
_MaybeNote = Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Reason, stored with the letters.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]

_DONE = {"discard": "discarded", "escalate": "escalated", "reopen": "reopened"}
_STARTS: Mapping[str, tuple[str, ...]] = {
    "discard": OPEN,
    "escalate": ("pending",),
    "reopen": ("escalated", "discarded", "reprocessed"),
}


@command(app)
def discard(session: Session, selection: Selection, note: _Note, yes: Yes = False) -> None:
    """Discard open letters. They are kept until a purge, and can be reopened.

    Examples: redrive dlq discard 17 --note "test data"; redrive dlq discard --cause 8b14ce --note "not billable" --yes
    """
    _decide(session, selection, "discard", note, yes)


@command(app)
def escalate(session: Session, selection: Selection, note: _Note, yes: Yes = False) -> None:
    """Escalate pending letters: an operator must decide about them.

    Examples: redrive dlq escalate 17 --note "ask the vendor"; redrive dlq escalate --pipeline vendor --note "format"
    """
    _decide(session, selection, "escalate", note, yes)


@command(app)
def reopen(session: Session, selection: Selection, note: _MaybeNote = None, yes: Yes = False) -> None:
    """Reopen escalated, discarded or reprocessed letters: they are pending again.

    Examples: redrive dlq reopen 17; redrive dlq reopen --cause 8b14ce --status discarded --note "billable after all"
    """
    _decide(session, selection, "reopen", note, yes)


def _decide(session: Session, selection: Selection, verb: str, note: str | None, yes: bool) -> None:
    if selection.empty:
        raise LetterError(
            f"no letters to {verb}: none was selected. Pass ids, --pipeline, --cause, --status or another filter"
        )
    with session.opened() as store:
        filters = selection.filters(store.dlq, status=_STARTS[verb])
        if not yes and not selection.by_id:
            _ask(session, store.dlq, verb, filters)
        changed: Changed = getattr(store.dlq, verb)(note=note, **filters)
    if session.out.json:
        session.out.document({"changed": changed.changed, "unfit": changed.unfit, "held": changed.held})
    session.out.say("; ".join(_in_words(changed, verb)))
    if changed.held:
        raise typer.Exit(TEMPORARY)


def _in_words(changed: Changed, verb: str) -> list[str]:
    parts = [f"{_DONE[verb]} {counted(changed.changed)}"]
    if changed.unfit:
        starts = " or ".join(_STARTS[verb])
        twin = ", or another letter of the same record or key is open" if verb == "reopen" else ""
        parts.append(f"{counted(changed.unfit)} skipped: not {starts}{twin}")
    if changed.held:
        parts.append(f"{counted(changed.held)} skipped: a replay or run holds them. Try again when it has ended")
    return parts


def _ask(session: Session, dlq: DeadLetters, verb: str, filters: dict[str, Any]) -> None:
    """Ask before letters change that were selected by filters."""
    counts = dlq.count_by_status(**filters)
    selected = {status: counts[status] for status in statuses_of(filters) if counts.get(status)}
    total = sum(selected.values())
    if total <= 1:
        return
    kinds = ", ".join(f"{count:,} {status}" for status, count in selected.items())
    confirm(session, f"{verb} {counted(total)} ({kinds})", total)


def confirm(session: Session, what: str, total: int) -> None:
    """Ask for confirmation; raise where stdin is not a terminal."""
    if not session.out.attended:
        raise CommandRefused(
            f"cannot {what} without confirmation: stdin is not a terminal. Pass --yes. Nothing was changed"
        )
    if not typer.confirm(f"{what[:1].upper()}{what[1:]}?", err=True):
        raise CommandRefused("nothing was changed")
