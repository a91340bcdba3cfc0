"""`redrive dlq discard`, `escalate` and `reopen`: what becomes of letters that are not sent back."""

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
    str, typer.Option("--note", metavar="TEXT", help="Why; it stays with the letters.", show_default=False)
]
_MaybeNote = Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Why; it stays with the letters.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

_DONE = {"discard": "discarded", "escalate": "escalated", "reopen": "reopened"}
_STARTS: Mapping[str, tuple[str, ...]] = {
    "discard": OPEN,
    "escalate": ("pending",),
    "reopen": ("escalated", "discarded", "reprocessed"),
}


@command(app)
def discard(session: Session, selection: Selection, note: _Note, yes: Yes = False) -> None:
    """Give letters up on purpose. They are kept until they are purged, and can be reopened."""
    _decide(session, selection, "discard", note, yes)


@command(app)
def escalate(session: Session, selection: Selection, note: _Note, yes: Yes = False) -> None:
    """Hand pending letters to a person."""
    _decide(session, selection, "escalate", note, yes)


@command(app)
def reopen(session: Session, selection: Selection, note: _MaybeNote = None, yes: Yes = False) -> None:
    """Make escalated or settled letters pending again."""
    _decide(session, selection, "reopen", note, yes)


def _decide(session: Session, selection: Selection, verb: str, note: str | None, yes: bool) -> None:
    if selection.empty:
        raise LetterError(f"say which letters to {verb}: by id, --pipeline, --cause, --status or another filter")
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
    said = [f"{_DONE[verb]} {counted(changed.changed)}"]
    if changed.unfit:
        starts = " or ".join(_STARTS[verb])
        twin = ", or another letter of the same record or key is open" if verb == "reopen" else ""
        said.append(f"{counted(changed.unfit)} left alone: not {starts}{twin}")
    if changed.held:
        said.append(f"{counted(changed.held)} left alone: in the hands of a replay or run, try again when it is done")
    return said


def _ask(session: Session, dlq: DeadLetters, verb: str, filters: dict[str, Any]) -> None:
    """Let a person see how many letters his filters select, before anything is changed."""
    counts = dlq.count_by_status(**filters)
    selected = {status: counts[status] for status in statuses_of(filters) if counts.get(status)}
    total = sum(selected.values())
    if total <= 1:
        return
    kinds = ", ".join(f"{count:,} {status}" for status, count in selected.items())
    confirm(session, f"{verb} {counted(total)} ({kinds})", total)


def confirm(session: Session, what: str, total: int) -> None:
    """Ask; where nobody is there to answer, refuse."""
    if not session.out.attended:
        raise CommandRefused(
            f"this would {what}, and nobody is there to ask; say --yes if that is meant: nothing was changed"
        )
    if not typer.confirm(f"{what[:1].upper()}{what[1:]}?", err=True):
        raise CommandRefused("nothing was changed")
