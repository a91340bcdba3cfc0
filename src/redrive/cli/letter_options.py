"""Options that select letters, the same for every command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive.errors import LetterError

if TYPE_CHECKING:
    from redrive.dlq.queue import DeadLetters

OPEN = ("pending", "escalated")
"""Statuses of open letters."""
DECIDED = ("reprocessed", "discarded")
"""Statuses of resolved letters."""
_ANY = {"any", "all"}
_SEVERAL = ("pipeline", "error_type", "source", "key", "position")
"""Options that may be repeated, by the names of their filters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Options that select letters; a letter must match all of them."""

    ids: Annotated[list[int] | None, typer.Argument(metavar="ID", show_default=False, help="Ids of letters.")] = None
    id: Annotated[list[int] | None, typer.Option("--id", metavar="ID", help="Only this letter; may be repeated.")] = (
        None
    )
    pipeline: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only letters of this pipeline; may be repeated.")
    ] = None
    cause: Annotated[
        str | None, typer.Option(metavar="HEX", help="Only this cause, or the beginning of it, as `causes` shows it.")
    ] = None
    error_type: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE", help="Only this type: validation, parse, sink …; may be repeated."),
    ] = None
    status: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATUS",
            help="Only this status: pending, escalated, open (both), reprocessed, discarded or any; may be repeated.",
        ),
    ] = None
    all_statuses: Annotated[bool, typer.Option("--all-statuses", help="Same as --status any.")] = False
    since: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="Only letters rejected since: 2d, 36h, 90min ago, a date, or today."),
    ] = None
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="Only letters rejected before.")] = None
    seen_since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Only letters whose last failure was since.")
    ] = None
    run: Annotated[str | None, typer.Option(metavar="UUID", help="Only letters of this run.")] = None
    source: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only letters from this table or file; may be repeated.")
    ] = None
    key: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Only letters with this source key; may be repeated.")
    ] = None
    position: Annotated[
        list[str] | None,
        typer.Option(metavar="WHERE", help="Only letters from this line, offset or page; may be repeated."),
    ] = None
    text: Annotated[str | None, typer.Option(metavar="WORDS", help="Only letters with these words in the error.")] = (
        None
    )
    min_seen: Annotated[int | None, typer.Option(metavar="N", help="Minimum number of failures.")] = None
    edited: Annotated[bool | None, typer.Option("--edited/--unedited", help="Only edited or unedited letters.")] = None

    @property
    def empty(self) -> bool:
        """Return whether no option was given."""
        return not self.listed_ids and not self.conditions and self.given_status() is None

    @property
    def by_id(self) -> bool:
        """Return whether every letter was named by its id."""
        return bool(self.listed_ids) and not self.conditions

    @property
    def listed_ids(self) -> tuple[int, ...]:
        """Return the ids without duplicates."""
        return tuple(dict.fromkeys([*(self.ids or ()), *(self.id or ())]))

    @property
    def conditions(self) -> dict[str, Any]:
        """Return the options that were given, except ids and status."""
        given = {
            **{name: tuple(getattr(self, name) or ()) or None for name in _SEVERAL},
            "cause": self.cause,
            "run_id": self.run,
            **{name: getattr(self, name) for name in ("since", "until", "seen_since", "text", "min_seen", "edited")},
        }
        return {name: value for name, value in given.items() if value is not None}

    def filters(self, dlq: DeadLetters, *, status: tuple[str, ...] | None = None) -> dict[str, Any]:
        """Return the filters of `store.dlq`; with this status by default, unless the letters were named."""
        found = self.conditions
        if "cause" in found:
            found["cause"] = resolve_cause(dlq, found["cause"])
        if ids := self.listed_ids:
            found["ids"] = ids
        statuses = self.given_status()
        if statuses is None:
            statuses = None if self.by_id else status
        return {**found, **({"status": statuses} if statuses else {})}

    def given_status(self) -> tuple[str, ...] | None:
        """Return the given statuses; an empty tuple for any, None where none was given."""
        statuses = tuple(status for several in self.status or () for status in several.split(",") if status)
        return () if self.all_statuses or _ANY & set(statuses) else statuses or None


def resolve_cause(dlq: DeadLetters, beginning: str) -> str:
    """Return the only cause with this beginning; two causes with it are an error."""
    found = dlq.causes(cause=beginning)
    if not found:
        raise LetterError(f"no cause begins with {beginning}. `redrive dlq causes` lists causes")
    if len(found) > 1:
        listed = ", ".join(cause.fingerprint for cause in found[:4]) + (", …" if len(found) > 4 else "")
        raise LetterError(f"{len(found)} causes begin with {beginning} ({listed}); type more digits")
    return found[0].fingerprint


def statuses_of(filters: dict[str, Any]) -> tuple[str, ...]:
    """Return the statuses that filters select, each once; all of them where none is given."""
    asked = filters.get("status") or (*OPEN, *DECIDED)
    return tuple(dict.fromkeys(each for status in asked for each in (OPEN if status == "open" else (status,))))


def what_is_there(dlq: DeadLetters, filters: dict[str, Any]) -> str | None:
    """Return which letters match but for their status, and how to select them; None where there are none."""
    wanted = statuses_of(filters) if filters.get("status") else ()
    counts = {status: number for status, number in dlq.count_by_status(**filters).items() if status not in wanted}
    if not counts:
        return None
    most = sorted(counts.items(), key=lambda item: -item[1])
    listed = ", ".join(f"{number:,} {status}" for status, number in most)
    return f"matching letters with another status: {listed}. --status {most[0][0]} lists them"
