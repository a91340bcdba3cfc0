"""`redrive dlq causes`, `ls` and `history`: rejected records and their causes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive._internal.masking import mask
from redrive.cli.command import command
from redrive.cli.dlq.noun import app
from redrive.cli.format import ago, bars, counted, in_a_line, style_of
from redrive.cli.letter_options import OPEN, Selection, statuses_of, what_is_there
from redrive.cli.output import Column
from redrive.cli.session import LARGEST_ID, Limit, Session

if TYPE_CHECKING:
    from redrive.cli.letter_view import LetterView
    from redrive.dlq.queue import DeadLetters
    from redrive.model.letters import Cause, Letter

_SHORTEST = 6

Records = Annotated[bool, typer.Option("--records", help="With --json: include records over 10,000 characters.")]

# A narrow terminal keeps the message, then what identifies the letter.
_LETTER_COLUMNS = (
    Column(title="id", show=str, right=True),
    Column(title="pipeline", drop=2, least=12),
    Column(title="status", style=style_of, drop=6),
    Column(title="type", drop=5),
    Column(title="cause", hidden=True),
    Column(title="key", drop=1, least=12),
    Column(title="position", drop=3, least=8),
    Column(title="source", drop=8, least=12),
    Column(title="seen", right=True, drop=4),
    Column(title="rejected", show=ago),
    Column(title="last seen", show=ago, drop=9),
    Column(title="edited", show=lambda edited: "edited" if edited else "", drop=7),
    Column(title="message", show=in_a_line, least=32),
)


@command(app)
def causes(
    session: Session,
    selection: Selection,
    limit: Limit = 20,
) -> None:
    """List letters grouped by cause, the most frequent first.

    Without --status: causes with open letters. `letters` counts letters of the selected statuses; `seen` and `trend`
    count failures, whatever the status of their letters.

    Examples: redrive dlq causes --pipeline vendor; redrive dlq causes --since 2d --status any
    """
    from redrive.cli.letter_view import LetterView

    with session.opened() as store:
        dlq = store.dlq
        filters = selection.filters(dlq, status=OPEN)
        listed = dlq.causes(limit=limit + 1, **filters)
        more = len(listed) > limit
        view = LetterView(dlq.redactor)
        found = [(cause, view.cause(cause, _one_of(dlq, cause))) for cause in listed[:limit]]
        size = None if found else dlq.size()
        others = None if found or selection.empty else what_is_there(dlq, filters)
    out = session.out
    if out.json:
        out.document([document for _, document in found])
    else:
        digits = _digits([cause.fingerprint for cause, _ in found])
        statuses = statuses_of(filters)
        columns = (
            Column(title="cause", show=lambda cause: cause[:digits]),
            Column(title="letters", right=True, drop=4),
            *(_status_column(status) for status in statuses),
            Column(title="seen", right=True, drop=3),
            Column(title="pipelines", show=", ".join, drop=5, least=12),
            Column(title="first seen", show=ago, drop=6),
            Column(title="last seen", show=ago),
            Column(title="trend", show=bars, drop=2),
            Column(title="message", least=30, wrap=True),
        )
        out.table(columns, [_cause_row(cause, document["message"], statuses) for cause, document in found])
    if size is not None:
        out.say("no causes match" if not selection.empty else f"no open letters; {counted(size.letters)} in total")
        if others:
            out.say(others)
    if more:
        out.next_steps([("list more causes", session.again_with("--limit", limit * 5))])


def _one_of(dlq: DeadLetters, cause: Cause) -> Letter | None:
    """Return a letter of a cause if values must be masked; causes inserted by SQL have no fingerprint."""
    if not dlq.redactor.fields or not cause.fingerprint:
        return None
    from redrive.cli.letter_view import MOST_IN_LIST

    found = dlq.find(cause=cause.fingerprint, pipeline=cause.pipelines, limit=1, max_record_chars=MOST_IN_LIST)
    return found[0] if found else None


def _status_column(status: str) -> Column:
    if status == "pending":
        return Column(title=status, right=True)
    return Column(title=status, show=lambda count: f"{count:,}" if count else "", right=True, drop=1)


def _cause_row(cause: Cause, message: str, statuses: Sequence[str]) -> list[Any]:
    return [
        cause.fingerprint,
        cause.count,
        *(cause.by_status[status] for status in statuses),
        cause.seen,
        cause.pipelines,
        cause.first_seen,
        cause.last_seen,
        cause.trend,
        message,
    ]


def _digits(fingerprints: list[str]) -> int:
    """Return how many digits distinguish these causes."""
    for digits in range(_SHORTEST, 12):
        if len({fingerprint[:digits] for fingerprint in fingerprints}) == len(fingerprints):
            return digits
    return 12


@command(app)
def ls(
    session: Session,
    selection: Selection,
    *,
    limit: Limit = 20,
    after: Annotated[
        int | None, typer.Option(metavar="ID", help="List the page after this letter.", min=0, max=LARGEST_ID)
    ] = None,
    oldest_first: Annotated[bool, typer.Option("--oldest-first", help="Sort oldest first.")] = False,
    cursor: Annotated[
        bool,
        typer.Option(
            "--cursor",
            help="With --json: print an object with `letters` and `after`, the --after of the next page or null.",
        ),
    ] = False,
    records: Records = False,
) -> None:
    """List letters, newest first. Without --status: open letters, pending and escalated.

    With --json, a record over 10,000 characters is shown by its size and its beginning, unless --records is given.

    Examples: redrive dlq ls --pipeline vendor --limit 50; redrive dlq ls --text "invalid fee" --since 36h
    """
    from redrive.cli.letter_view import MOST_IN_LIST, LetterView

    with session.opened() as store:
        filters = selection.filters(store.dlq, status=OPEN)
        # A table shows no records; fields that are to be masked are looked for in them.
        found = store.dlq.find(
            limit=limit + 1,
            after=after,
            newest_first=not oldest_first,
            records=session.out.json or bool(store.dlq.redactor.fields),
            max_record_chars=None if records and session.out.json else MOST_IN_LIST,
            **filters,
        )
        view = LetterView(store.dlq.redactor)
        shown = [view.letter(letter) for letter in found[:limit]] if session.out.json else []
        others = None if found or after is not None else what_is_there(store.dlq, filters)
    out = session.out
    if out.json:
        following = found[limit - 1].id if len(found) > limit else None
        out.document({"letters": shown, "after": following} if cursor else shown)
    else:
        out.table(_columns(selection), [_letter_row(letter, view) for letter in found[:limit]])
    if not found:
        where = "" if selection.empty and after is None else " match"
        unsaid = selection.given_status() is None and not selection.by_id
        out.say(f"no {'open ' if unsaid else ''}letters{where}")
        if others:
            out.say(others)
    elif len(found) > limit:
        out.next_steps([("list the next page", session.again_with("--after", found[limit - 1].id))])


def _columns(selection: Selection) -> list[Column]:
    """Return the columns of letters, with the status if statuses were selected."""
    asked = selection.by_id or selection.given_status() is not None
    return [replace(column, drop=0) if asked and column.title == "status" else column for column in _LETTER_COLUMNS]


def _letter_row(letter: Letter, view: LetterView) -> list[Any]:
    return [
        letter.id,
        letter.pipeline,
        letter.status,
        letter.error_type,
        letter.fingerprint,
        None if letter.key is None else view.text(letter.key, letter),
        None if letter.position is None else view.text(letter.position, letter),
        None if letter.source is None else mask(letter.source),
        letter.seen,
        letter.rejected_at,
        letter.last_seen,
        letter.edited,
        # Of one that a replay has sent, why it failed then: the first reason may be repaired.
        view.text(letter.last_error or letter.error_message, letter),
    ]


@command(app)
def history(
    session: Session,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key of the record at its source.")],
    *,
    records: Records = False,
) -> None:
    """List everything that happened to the record of a source key, oldest first.

    Examples: redrive dlq history D-17; redrive dlq history D-17 --json --records
    """
    from redrive.cli.exit_codes import CommandRefused
    from redrive.cli.letter_view import MOST_IN_LIST, LetterView

    with session.opened() as store:
        longest = None if records and session.out.json else MOST_IN_LIST
        found = store.dlq.history(key, max_record_chars=longest)
        view = LetterView(store.dlq.redactor)
        if not found.letters:
            raise CommandRefused(f"no letter has the key {key!r}. `redrive dlq ls --text …` searches errors")
        letters = {letter.id: letter for letter in found.letters}
        events = [(event, letters[event.letter_id]) for event in found.events if event.letter_id in letters]
        if session.out.json:
            shown = [view.letter(letter) for letter in found.letters]
            entries = [view.entry(*event) for event in events]
            session.out.document({"key": mask(key), "letters": shown, "events": entries})
            return
        happened: list[tuple[Any, ...]] = [
            (letter.rejected_at, letter.id, "rejected", "pending", None, view.text(letter.error_message, letter))
            for letter in found.letters
        ]
        for entry, letter in events:
            note = None if entry.note is None else view.text(entry.note, letter)
            happened.append((entry.at, entry.letter_id, entry.action, entry.status_after, entry.actor, note))
    happened.sort(key=lambda event: event[0])
    columns = (
        Column(title="when", show=ago),
        Column(title="letter", show=str, right=True),
        Column(title="what", heading="event"),
        Column(title="status", style=style_of),
        Column(title="who", heading="actor", drop=1),
        Column(title="message", show=in_a_line, least=24),
    )
    session.out.table(columns, happened)
