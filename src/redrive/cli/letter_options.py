"""Which letters a command is about: the same options everywhere, read as a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive.errors import LetterError

if TYPE_CHECKING:
    from redrive.dlq.queue import DeadLetters

OPEN = ("pending", "escalated")
"""The statuses of letters that nobody has decided about yet."""
DECIDED = ("reprocessed", "discarded")
"""The other ones."""
_ANY = {"any", "all"}
_SEVERAL = ("pipeline", "error_type", "source", "key", "position")
"""Options that may be repeated, by the names of their filters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The letters that are meant; every condition that is given must hold."""

    ids: Annotated[list[int] | None, typer.Argument(metavar="ID", show_default=False, help="These letters.")] = None
    id: Annotated[list[int] | None, typer.Option("--id", metavar="ID", help="This letter; may be repeated.")] = None
    pipeline: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Of this pipeline; may be repeated.")] = (
        None
    )
    cause: Annotated[
        str | None, typer.Option(metavar="HEX", help="Of this cause, or the beginning of one, as `causes` shows it.")
    ] = None
    error_type: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE", help="Rejected there: validation, parse, sink and so on; may be repeated."),
    ] = None
    status: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATUS",
            help="pending, escalated, open (both of these), reprocessed, discarded, or any; may be repeated.",
        ),
    ] = None
    all_statuses: Annotated[bool, typer.Option("--all-statuses", help="The same as --status any.")] = False
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Rejected since: 2d, 36h, 90min ago, a date, or today.")
    ] = None
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="Rejected before.")] = None
    seen_since: Annotated[str | None, typer.Option(metavar="WHEN", help="Failed, for the last time, since.")] = None
    run: Annotated[str | None, typer.Option(metavar="UUID", help="Rejected in this run.")] = None
    source: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="From this table or file; may be repeated.")
    ] = None
    key: Annotated[list[str] | None, typer.Option(metavar="KEY", help="With this source key; may be repeated.")] = None
    position: Annotated[
        list[str] | None, typer.Option(metavar="WHERE", help="From this line, offset or page; may be repeated.")
    ] = None
    text: Annotated[str | None, typer.Option(metavar="WORDS", help="With these words in the error.")] = None
    min_seen: Annotated[int | None, typer.Option(metavar="N", help="Failed at least so often.")] = None
    edited: Annotated[bool | None, typer.Option("--edited/--unedited", help="Edited, or not.")] = None

    @property
    def empty(self) -> bool:
        """Whether nothing was said."""
        return not self.listed_ids and not self.conditions and self.said_status() is None

    @property
    def by_id(self) -> bool:
        """Whether every letter was named by its id."""
        return bool(self.listed_ids) and not self.conditions

    @property
    def listed_ids(self) -> tuple[int, ...]:
        """The ids, each once."""
        return tuple(dict.fromkeys([*(self.ids or ()), *(self.id or ())]))

    @property
    def conditions(self) -> dict[str, Any]:
        """What was said beside the ids and the status."""
        given = {
            **{name: tuple(getattr(self, name) or ()) or None for name in _SEVERAL},
            "cause": self.cause,
            "run_id": self.run,
            **{name: getattr(self, name) for name in ("since", "until", "seen_since", "text", "min_seen", "edited")},
        }
        return {name: value for name, value in given.items() if value is not None}

    def filters(self, dlq: DeadLetters, *, status: tuple[str, ...] | None = None) -> dict[str, Any]:
        """The filters of `store.dlq`; of this status where none was said, unless the letters were named."""
        found = self.conditions
        if "cause" in found:
            found["cause"] = resolve_cause(dlq, found["cause"])
        if ids := self.listed_ids:
            found["ids"] = ids
        said = self.said_status()
        if said is None:
            said = None if self.by_id else status
        return {**found, **({"status": said} if said else {})}

    def said_status(self) -> tuple[str, ...] | None:
        """The statuses that were said; an empty tuple for any, None where nothing was said."""
        said = tuple(one for several in self.status or () for one in several.split(",") if one)
        return () if self.all_statuses or _ANY & set(said) else said or None


def resolve_cause(dlq: DeadLetters, beginning: str) -> str:
    """The one cause that begins so: a few digits must not select two causes by accident."""
    found = dlq.causes(cause=beginning)
    if not found:
        raise LetterError(f"no cause begins with {beginning}; `redrive dlq causes` lists them")
    if len(found) > 1:
        listed = ", ".join(one.fingerprint for one in found[:4]) + (", …" if len(found) > 4 else "")
        raise LetterError(f"{len(found)} causes begin with {beginning} ({listed}); write more of the digits")
    return found[0].fingerprint


def statuses_of(filters: dict[str, Any]) -> tuple[str, ...]:
    """Return the statuses that filters select, each once; all of them where none is given."""
    asked = filters.get("status") or (*OPEN, *DECIDED)
    return tuple(dict.fromkeys(one for status in asked for one in (OPEN if status == "open" else (status,))))


def what_is_there(dlq: DeadLetters, filters: dict[str, Any]) -> str | None:
    """Return which letters match but for their status, and how to select them; None where there are none."""
    wanted = statuses_of(filters) if filters.get("status") else ()
    counts = {status: number for status, number in dlq.count_by_status(**filters).items() if status not in wanted}
    if not counts:
        return None
    most = sorted(counts.items(), key=lambda one: -one[1])
    listed = ", ".join(f"{number:,} {status}" for status, number in most)
    return f"letters of this selection with another status: {listed}; to list them: --status {most[0][0]}"
