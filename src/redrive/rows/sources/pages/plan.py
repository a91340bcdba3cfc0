"""How an API is paged: how its pages are called, where they begin, and how many of them are wanted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from redrive._internal.masking import mask
from redrive.errors import SourceError

By = Literal["page", "offset", "cursor"]
BadPage = Literal["stop", "quarantine"]

_LONGEST_LABEL = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePlan:
    """The checked options of `pages` that decide the order of pages."""

    by: By = "page"
    start: Any = None
    size: int | None = None
    in_flight: int = 1
    bad_page: BadPage = "stop"
    limit: int | None = None
    asks_next: bool = False
    """Whether the pages themselves announce their end, by a cursor or by `following`."""

    def __post_init__(self) -> None:
        for option, value, known in (("by", self.by, By), ("bad_page", self.bad_page, BadPage)):
            if value not in get_args(known):
                raise ValueError(f"{option} must be {' or '.join(map(repr, get_args(known)))}, not {value!r}")
        for option, number, least in (
            ("size", self.size, 1),
            ("in_flight", self.in_flight, 1),
            ("limit", self.limit, 1),
        ):
            if number is not None and not _whole(number, least):
                raise ValueError(f"{option} must be a whole number from {least} up, not {number!r}")
        if self.by == "cursor":
            self._check_cursor()
            return
        if self.start is None:
            object.__setattr__(self, "start", 1 if self.by == "page" else 0)
        if not _whole(self.start, 0):
            raise ValueError(f"start must be the number of the first {self.by}, from 0 up, not {self.start!r}")
        if self.by == "offset" and self.size is None:
            raise ValueError("size must be given with by='offset': the next page begins that many items further on")

    def _check_cursor(self) -> None:
        if self.in_flight != 1:
            raise ValueError("in_flight must be 1 with by='cursor': only the previous page has the next cursor")
        if self.size is not None:
            raise ValueError("size has no meaning with by='cursor': the pages themselves announce their end")
        if not is_json(self.start):
            raise ValueError(f"start must be a cursor that JSON can hold, not {self.start!r}")

    @property
    def step(self) -> int:
        """From one page to the next."""
        return self.size if self.by == "offset" and self.size is not None else 1

    def is_enough(self, pages: int) -> bool:
        """Return whether this many pages reach the limit."""
        return self.limit is not None and pages >= self.limit

    def position(self, token: Any, pages: int) -> dict[str, Any]:
        """Return the position at which the next page is `token`, and this many came before it."""
        return {"token": token, "pages": pages}

    def end(self, pages: int) -> dict[str, Any]:
        """Return where a reading stands after the last page."""
        return {"end": True, "pages": pages}

    def place(self, position: Any | None) -> tuple[Any, int, bool]:
        """Return the next page of a position, how many came before it, and whether there is none."""
        if position is None:
            return self.start, 0, False
        pages: Any = position.get("pages") if isinstance(position, Mapping) else None
        if not _whole(pages, 0) or ("token" in position) == (position.get("end") is True):
            raise SourceError(f"a position in pages is the `next` of a batch, not {position!r}")
        token = position.get("token")
        if "token" not in position or self.by == "cursor":
            return token, pages, "token" not in position
        if token != self.start + pages * self.step:
            raise SourceError(f"{position!r} is not a position in pages that begin at {self.label(self.start)}")
        return token, pages, False

    def label(self, token: Any) -> str:
        """Return a page as shown to users."""
        if self.by != "cursor":
            return f"{self.by} {token}"
        if token is None:
            return "the first page"
        text = mask(token if isinstance(token, str) else json.dumps(token))
        return f"cursor {text}" if len(text) <= _LONGEST_LABEL else f"cursor {text[:_LONGEST_LABEL]}…"


def is_json(value: Any) -> bool:
    """Return whether a value can be part of a checkpoint."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _whole(number: Any, least: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= least
