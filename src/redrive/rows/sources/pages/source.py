"""Rows of an API that gives them page by page, fetched through a service."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redrive.calls.function import reject_generator, require_callable
from redrive.calls.service import Service
from redrive.errors import SourceError
from redrive.rows.batch import Batch, Received, Record, Unreadable
from redrive.rows.sources.pages.content import Finder, PageReader
from redrive.rows.sources.pages.fetch import (
    RETRY_LATER,
    FaultKind,
    Fetcher,
    InlineFetcher,
    Outcome,
    PageFailed,
    PageFetcher,
    ThreadedFetcher,
)
from redrive.rows.sources.pages.paginate import CursorPages, NumberedPages, PagePart, refuse_other_size
from redrive.rows.sources.pages.plan import BadPage, By, PagePlan
from redrive.rows.sources.records.first_items import FirstItems, difference_of, difference_of_declared

_PATIENCE = 10.0  # seconds: what a slow API gave is written then, however little it is
_LETTER = frozenset({"page", "service", "body"})  # what the letter of a lost page holds
_ADVICE = "Run the pipeline again and discard the letter, or edit the letter into its rows"


def pages(
    service: Service,
    fetch: Callable[..., Any],
    *,
    by: By = "page",
    start: Any = None,
    size: int | None = None,
    items: Finder | None = None,
    following: Finder | None = None,
    in_flight: int = 1,
    bad_page: BadPage = "stop",
    limit: int | None = None,
    name: str | None = None,
    identity: str | None = None,
) -> Pages:
    """Read an API page by page: `fetch(1)`, `fetch(2)` … are called through the service, with its retries and breaker.

    `fetch`, plain or `async def`, returns a list of records, an object that holds one, a response, or JSON. It may be
    guarded with the same service already. An `async def` runs in an event loop of redrive: its HTTP client must not be
    one that another loop uses.

    by         "page": fetch gets 1, 2, 3 …; "offset": 0, size, 2·size …; "cursor": None, then the cursor of each page
    start      the first of them
    size       items of a full page: a shorter one is the last. By offset, a longer page is a `SourceError`, since the
               next offset would read rows again; so is, with `following`, a shorter one that is not the last
    items      where the list is in the page: a name, a path such as "data.items", or a function of the page. Default:
               the page itself, "items", "data", "results" or "records", or the only list in the page
    following  where the next cursor is in the page, or whether there is another page, in the same form. If missing or
               None, the page is the last. Default: "next", "next_cursor", "cursor" or "next_page_token"
    in_flight  maximum number of pages that are fetched at once; rows stay in the order of pages
    bad_page   "quarantine": a page that stays malformed, missing or failing after all retries becomes a letter, and the
               run continues. "stop": the run stops, and the next run resumes there. Pages by cursor always stop it
    limit      maximum number of pages
    name       the name in letters and checkpoints; default: the name of the service
    identity   distinguishes this input from another one of the same name, such as the day that is fetched. If it is the
               same, a run resumes, and a letter of a page is replayed, without a comparison of the first page

    A run that resumes at a page number fetches the first page as well. If its items are not those that the run began
    with, pages have moved: the unfinished run is abandoned, a new run starts at the first page, and its report has the
    reason. A cursor is resumed as it is. The replay of a lost page compares the first page likewise, and leaves the
    letter open if pages have moved.

    Pages by number end with a short one, with two in a row that are empty, or with two that do not exist (404), unless
    `following` announces another. A rejected key, an exhausted quota, a rate limit or an open circuit stops the run in
    any case. So do three failed pages in a row, since then no single page is at fault. An API that returns the same
    pages again is a `SourceError`.
    """
    if not isinstance(service, Service):
        raise TypeError(f"pages takes a redrive.Service and the function that fetches a page, not {service!r} first")
    require_callable(fetch)
    reject_generator(fetch)
    for option, finder in (("items", items), ("following", following)):
        if finder is not None and not callable(finder) and (not isinstance(finder, str) or not finder):
            raise TypeError(f"{option} must be a name in the page or a function of the page, not {finder!r}")
    if name is not None and (not isinstance(name, str) or not name.strip()):
        raise ValueError("name must not be empty; letters and checkpoints are known by it")
    if identity is not None and (not isinstance(identity, str) or not identity.strip()):
        raise ValueError(f"identity must be a text that is not empty, such as the day of the input, not {identity!r}")
    asks_next = by == "cursor" or following is not None
    plan = PagePlan(
        by=by, start=start, size=size, in_flight=in_flight, bad_page=bad_page, limit=limit, asks_next=asks_next
    )
    contents = PageReader(items, following, asks_next=asks_next)
    return Pages(service, fetch, plan, contents, name or service.name, identity=identity)


class Pages:
    """See `Source` and `Replaceable`."""

    retries_reading = False  # the service does

    def __init__(
        self,
        service: Service,
        fetch: Callable[..., Any],
        plan: PagePlan,
        contents: PageReader,
        name: str,
        *,
        identity: str | None = None,
    ) -> None:
        self.name = name
        self._declared = identity
        self._first: Outcome | None = None
        self._service = service
        self._fetch = fetch
        self._plan = plan
        self._contents = contents

    def __repr__(self) -> str:
        return f"<pages of {self.name!r} by {self._plan.by}>"

    def identity(self) -> dict[str, Any]:
        if self._declared is not None:
            return {**self._asked(), "declared": self._declared}
        if self._plan.by == "cursor":
            return self._asked()
        # The next reading hands this page out: it is fetched once for both.
        self._first = self._fetch_first()
        return {**self._asked(), "first": _first_of(self._first)}

    def _asked(self) -> dict[str, Any]:
        plan = self._plan
        return {"kind": "pages", "service": self.name, "by": plan.by, "start": plan.start, "size": plan.size}

    def look(self) -> None:
        """Nothing more to read: the identity has the first page."""

    def changed(self, identity: Mapping[str, Any], position: Any) -> str | None:
        if self._declared is not None or identity.get("declared") is not None:
            return difference_of_declared(identity, self._declared)
        if self._plan.by == "cursor":
            return None
        self._first = self._first or self._fetch_first()
        return _difference_of_first(identity, self._first)

    def forget(self) -> None:
        self._first = None

    def difference(self, identity: Mapping[str, Any]) -> str | None:
        ours = self._asked()
        for key, text in (
            ("kind", "it was taken over {}, not over {}"),
            ("service", "it was taken over the pages of {}, not of {}"),
            ("by", "its pages went by {}, these by {}"),
            ("start", "its pages began at {}, these at {}"),
            ("size", "its pages had a size of {}, these of {}"),
        ):
            if identity.get(key) != ours[key]:
                return text.format(repr(identity.get(key)), repr(ours[key]))
        return None

    def compared_options(self) -> dict[str, Any]:
        """See `ComparesOptions`."""
        return self._contents.compared_options()

    def open(self, position: Any | None, identity: Mapping[str, Any]) -> PagesReading:
        _, done, _ = self._plan.place(position)  # before anything is started that would have to be closed
        if done and self._plan.bad_page == "quarantine":
            self._probe()
        first, self._first = self._first, None
        fetcher = self._fetcher(self._plan.in_flight)
        walk: CursorPages | NumberedPages
        if self._plan.by == "cursor":
            walk = CursorPages(self._plan, self.name, fetcher, position)
        else:
            walk = NumberedPages(self._plan, self.name, fetcher, position, first, identity=identity)
        return PagesReading(walk, fetcher, self.name, self._plan.limit)

    def again(self, raw: Any, context: Mapping[str, Any] | None = None) -> Record | list[Record]:
        if not isinstance(raw, Mapping) or raw.keys() != _LETTER:
            return _record(raw)
        outcome = self._fetch_one(raw["page"])
        if isinstance(outcome, PageFailed):
            if outcome.fault is FaultKind.MALFORMED:
                raise ValueError(f"the page is still malformed: {outcome.reason}") from outcome.error
            raise outcome.error
        refuse_other_size(self._plan, self.name, raw["page"], outcome)
        label = f"{self._plan.label(raw['page'])} of {self.name!r}"
        if why := self._moved(context or {}):
            raise SourceError(f"{label} may hold other rows than those that were lost: {why}. {_ADVICE}")
        if not outcome.items:
            raise SourceError(f"{label} is empty now: its rows may be on another page. {_ADVICE}")
        return [_record(item) for item in outcome.items]

    def _moved(self, context: Mapping[str, Any]) -> str | None:
        """Return why a page that was fetched just now need not be the page of a letter, as a clause.

        Asked after that page, so that pages which move between the two fetches are noticed as well.
        """
        if self._plan.by == "cursor":
            return None  # it names its own place
        if "by" not in context:
            return "the letter does not have the first page"
        if different := self.difference(context):
            return different
        if self._declared is not None or context.get("declared") is not None:
            return difference_of_declared(context, self._declared)
        if not isinstance(context.get("first"), Mapping) or context["first"].get("length") is None:
            return "the first page of its run was lost as well, so that nothing can be compared"
        return _difference_of_first(context, self._fetch_first())

    def _fetch_first(self) -> Outcome:
        return self._fetch_one(self._plan.start)

    def _probe(self) -> None:
        """Have the first page close a half-open circuit: with a page that stays bad as the probe, it never would."""
        fetch = PageFetcher(self._service, self._fetch, self._contents)
        while fetch.wants_probe:
            self._first = self._fetch_first()
            if isinstance(self._first, PageFailed):
                return

    def _fetch_one(self, token: Any) -> Outcome:
        fetcher = self._fetcher(1)
        try:
            return fetcher.start(token).result()
        finally:
            fetcher.close()

    def _fetcher(self, in_flight: int) -> Fetcher:
        fetch = PageFetcher(self._service, self._fetch, self._contents)
        if not fetch.is_async:
            return InlineFetcher(fetch) if in_flight == 1 else ThreadedFetcher(fetch, in_flight)
        from redrive.rows.sources.pages.async_fetch import AsyncFetcher  # asyncio, for those who need it

        return AsyncFetcher(fetch)


class PagesReading:
    """See `Reading`. Batches are whole pages, so that a checkpoint is always between two of them."""

    columns = None

    def __init__(self, walk: CursorPages | NumberedPages, fetcher: Fetcher, name: str, total: int | None) -> None:
        self.total = total
        self._walk = walk
        self._fetcher = fetcher
        self._name = name
        self._held: PagePart | Exception | None = None
        """What came up while a batch was gathered, and belongs after it."""

    def read(self, most: int) -> Batch | None:
        """Whole pages, `most` rows of them, or a single page that has more."""
        gathered = _PageBatch(self._name)
        until = time.monotonic() + _PATIENCE
        while gathered.count < most and time.monotonic() < until:
            piece = self._next()
            if isinstance(piece, Exception) and not gathered.count:
                self._held = None
                raise piece
            if piece is None and not gathered.count:
                return None
            # An error comes up when what came before it is safe; a page is not split.
            if not isinstance(piece, PagePart) or (gathered.count and gathered.count + len(piece.items) > most):
                break
            self._held = None
            gathered.add(piece)
            if piece.lost is not None:
                break  # its body may be large, and letters should not wait
        return gathered.batch()

    def _next(self) -> PagePart | Exception | None:
        if self._held is None:
            try:
                self._held = self._walk.next()
            except Exception as error:
                self._held = error
        return self._held

    def close(self) -> None:
        self._fetcher.close()


class _PageBatch:
    """Pages on their way to becoming a batch."""

    def __init__(self, source: str) -> None:
        self.next: dict[str, Any] | None = None
        self._source = source
        self._rows: list[Record] = []
        self._unreadable: list[Unreadable] = []
        self._starts: list[int] = []
        self._pages: list[tuple[str, Sequence[int]]] = []

    @property
    def count(self) -> int:
        return len(self._rows) + len(self._unreadable)

    def add(self, piece: PagePart) -> None:
        self.next = piece.next
        if piece.lost is not None:
            self._unreadable.append(piece.lost)
            return
        self._starts.append(len(self._rows))
        numbers = []
        for number, item in enumerate(piece.items, 1):
            try:
                self._rows.append(_record(item))
                numbers.append(number)
            except TypeError as error:
                self._unreadable.append(Unreadable(item, str(error), f"{piece.label}, item {number}"))
        self._pages.append((piece.label, numbers))

    def batch(self) -> Batch:
        assert self.next is not None
        starts, pages = self._starts, self._pages

        def position_of(place: int) -> str:
            page = bisect_right(starts, place) - 1
            label, numbers = pages[page]
            return f"{label}, item {numbers[place - starts[page]]}"

        done = self.next["pages"]
        return Batch(Received(self._rows), position_of, self.next, self._source, self._unreadable, done)


def _difference_of_first(identity: Mapping[str, Any], first: Outcome) -> str | None:
    """Return how the first page differs from the one of an identity, as a clause; None if it does not."""
    if isinstance(first, PageFailed) and first.fault in RETRY_LATER:
        raise first.error  # nothing is known about the pages: that does not make them others
    return difference_of(identity.get("first"), _first_of(first), "items of the first page")


def _first_of(first: Outcome) -> dict[str, Any]:
    """Return what is compared of the first page: its items, or why there is none."""
    first_items = FirstItems()
    if isinstance(first, PageFailed):
        first_items.add(f"no page: {first.fault.name}")
        return first_items.document(length=None)
    for item in first.items:
        if first_items.is_enough:
            break
        first_items.add(item)
    return first_items.document(length=len(first.items))


def _record(item: Any) -> Record:
    if not isinstance(item, Mapping):
        raise TypeError(f"an item of a page must be an object, not a {type(item).__name__}")
    if not all(isinstance(key, str) for key in item):
        raise TypeError("the names in an item of a page must be texts")
    return item if type(item) is dict else dict(item)
