"""From page to page in their order: which comes next, which is lost, where the source ends, whether it goes in circles.

A walk gives one piece at a time and raises what stops it. After an error it stands where it stood, and may be asked
again: what was down may be up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from redrive.errors import SourceError
from redrive.model.letters import ErrorType
from redrive.rows.batch import Unreadable
from redrive.rows.sources.pages.content import UNSAID, Page
from redrive.rows.sources.pages.fetch import RETRY_LATER, STOPPING, FaultKind, Fetcher, Outcome, PageFailed
from redrive.rows.sources.pages.plan import PagePlan, is_json

_MOST_BAD = 3  # failed pages in a row: no single page is at fault, the service is down or the API is at its end
_AT_ITS_END = (
    "the two pages after it cannot be read either, so no single page is at fault; if these are after the last page, "
    "pass limit or following, or have fetch give an empty list there"
)
_MOST_ALIKE = 3  # this many pages in a row with the same rows count as one page that is served again
_MOST_EMPTY = 1_000  # this many empty pages in a row, each of which announces another, count as an endless loop


@dataclass(frozen=True, slots=True)
class PagePart:
    """A page, or what is left of it."""

    label: str
    items: Sequence[Any]
    next: dict[str, Any]
    """Where the reading stands after it."""
    lost: Unreadable | None = None


class NumberedPages:
    """Pages that are called by a number, several of them on their way at once.

    first     the first page, where it has been fetched already
    identity  what distinguishes the pages of this run from others: kept with the letter of a lost page
    """

    def __init__(
        self,
        plan: PagePlan,
        name: str,
        fetcher: Fetcher,
        position: Any | None,
        first: Outcome | None,
        *,
        identity: Mapping[str, Any],
    ) -> None:
        _, self._pages, self._over = plan.place(position)
        self._plan = plan
        self._name = name
        self._identity = identity
        self._fetcher = fetcher
        self._ahead: deque[Future[Outcome] | None] = deque()  # None: to be fetched again
        if first is not None and not self._pages and not self._over:
            fetched: Future[Outcome] = Future()
            fetched.set_result(first)
            self._ahead.append(fetched)
        self._answered = first is not None and _is_answer(first)
        self._alike = 0
        self._digest = b""
        self._rows = plan.size or 1

    def next(self) -> PagePart | None:
        """Return the next page; None at the end."""
        if self._over or self._plan.is_enough(self._pages):
            return None
        outcome = self._outcome(0)
        try:
            piece = self._sound(outcome) if isinstance(outcome, Page) else self._quarantine_page(outcome)
        except Exception:
            self._forget_failures()
            raise
        self._answered = self._answered or _is_answer(outcome)
        if piece is None or "end" in piece.next:
            self._over = True
            return piece
        self._ahead.popleft()
        self._pages += 1
        return piece

    def _outcome(self, place: int) -> Outcome:
        """Return the outcome of the next page, or of the one this many places after it."""
        self._fill(place + 1)
        is_running = self._ahead[place]
        assert is_running is not None
        return is_running.result()

    def _fill(self, least: int) -> None:
        """Have as many pages on their way as are wanted, but none after one that ends it all."""
        plan = self._plan
        for place, is_running in enumerate(self._ahead):
            if is_running is None:
                self._ahead[place] = self._fetcher.start(self._token(place))
        while len(self._ahead) < plan.in_flight or len(self._ahead) < least:
            beyond = plan.is_enough(self._pages + len(self._ahead)) or any(map(self._ends, self._ahead))
            if beyond and len(self._ahead) >= least:
                return
            self._ahead.append(self._fetcher.start(self._token(len(self._ahead))))

    def _forget_failures(self) -> None:
        """After an error, a page is fetched again if it is requested. Fetches in flight continue, since a client whose
        requests are cancelled may lose their connections for good."""
        self._ahead[0] = None
        for place, is_running in enumerate(self._ahead):
            if is_running is not None and is_running.done():
                outcome = is_running.result()
                if isinstance(outcome, PageFailed) and outcome.fault in RETRY_LATER:
                    self._ahead[place] = None

    def _ends(self, is_running: Future[Outcome] | None) -> bool:
        if is_running is None or not is_running.done():
            return False
        outcome = is_running.result()
        return self._is_last(outcome) if isinstance(outcome, Page) else outcome.fault in STOPPING

    def _token(self, place: int = 0) -> int:
        token: int = self._plan.start + (self._pages + place) * self._plan.step
        return token

    def _label(self) -> str:
        return self._plan.label(self._token())

    # ── a page that came ─────────────────────────────────────────────────────────────────────────────────────────

    def _sound(self, page: Page) -> PagePart | None:
        if not page.items and not self._plan.asks_next:
            if self._is_empty_end():
                return None
            self._alike = 0
            return PagePart(self._label(), (), self._plan.position(self._token(1), self._pages + 1))
        last = self._is_last(page)
        if last and self._pages == 0 and not self._plan.asks_next:
            last = self._is_alone(page)
        refuse_other_size(self._plan, self._name, self._token(), page)
        self._detect_endless_loop(page)
        self._rows = self._plan.size or len(page.items) or self._rows
        pages = self._pages + 1
        behind = self._plan.end(pages) if last else self._plan.position(self._token(1), pages)
        return PagePart(self._label(), page.items, behind)

    def _is_last(self, page: Page) -> bool:
        if self._plan.asks_next:
            return not page.following
        return len(page.items) < (self._plan.size or 1)

    def _is_empty_end(self) -> bool:
        """Return whether an empty page is the end: not if the next page has items. Many APIs fail after their end."""
        if self._plan.is_enough(self._pages + 1):
            return True
        after = self._outcome(1)
        return not (isinstance(after, Page) and after.items)

    def _is_alone(self, page: Page) -> bool:
        """Return whether a short first page is the only one: an API may return fewer items on every page."""
        if self._plan.limit == 1:
            return True
        after = self._outcome(1)
        if isinstance(after, Page) and after.items:
            raise SourceError(
                f"{self._name}: the first page has {len(page.items)} items instead of {self._plan.size}, and more "
                f"follow: the API gives at most {len(page.items)} at a time; set size to that"
            )
        return _is_no_page(after)

    def _detect_endless_loop(self, page: Page) -> None:
        """Compare the rows alone: a page that is served again may have another number or time, but rows have keys."""
        digest = _digest(page.items)
        self._alike = self._alike + 1 if digest == self._digest else 1
        self._digest = digest
        if self._alike >= (_MOST_ALIKE if page.items else _MOST_EMPTY):
            content = "the very same items" if page.items else "no items, and announce more"
            raise SourceError(
                f"{self._name}: {self._alike:,} pages in a row, up to {self._label()}, hold {content}: the API goes in "
                "circles; does fetch send the number it is given?"
            )

    # ── a page that did not ──────────────────────────────────────────────────────────────────────────────────────

    def _quarantine_page(self, failed: PageFailed) -> PagePart | None:
        """Quarantine a lost page if that is allowed; return None if there is no page to lose."""
        if failed.fault is FaultKind.MISSING and self._is_the_end(failed):
            return None
        if self._plan.bad_page == "stop" or failed.fault in STOPPING:
            hint = 'bad_page="quarantine" would quarantine it and continue'
            raise _stop_error(failed, self._label(), self._name, hint)
        if not self._is_alone_bad(failed):
            raise _stop_error(failed, self._label(), self._name, _AT_ITS_END)
        self._alike = 0
        raw = {"page": self._token(), "service": self._name, "body": failed.body}
        context = dict(self._identity)
        lost = Unreadable(raw, failed.error, self._label(), ErrorType.PAGE, rows=self._rows, context=context)
        return PagePart(self._label(), (), self._plan.position(self._token(1), self._pages + 1), lost)

    def _is_the_end(self, missing: PageFailed) -> bool:
        """One page that is missing may be one among others; two in a row are the end."""
        stops = self._plan.bad_page == "stop"
        if self._pages == 0 and stops:
            return False
        after = self._outcome(1)
        if _is_no_page(after):
            if self._pages == 0:
                raise _stop_error(missing, self._label(), self._name, "and there is none after it")
            return True
        if stops and isinstance(after, PageFailed) and after.fault in RETRY_LATER:
            raise _stop_error(after, self._plan.label(self._token(1)), self._name)  # who knows which of the two it is
        return False

    def _is_alone_bad(self, failed: PageFailed) -> bool:
        """Return whether a bad page is to blame itself, because one of the next two is there, or is the end."""
        is_known = failed.fault is not FaultKind.DOWN or self._answered
        for place in range(1, _MOST_BAD):
            if self._plan.is_enough(self._pages + place):
                return is_known
            after = self._outcome(place)
            if isinstance(after, Page) or self._is_end_at(place, after):
                return True
            if after.fault in STOPPING:  # it stops the run itself
                return is_known
        return False

    def _is_end_at(self, place: int, missing: PageFailed) -> bool:
        """Return whether a page that many places ahead, which could not be had, is the first after the last page."""
        if missing.fault is not FaultKind.MISSING:
            return False
        return self._plan.is_enough(self._pages + place + 1) or _is_no_page(self._outcome(place + 1))


def refuse_other_size(plan: PagePlan, name: str, token: Any, page: Page) -> None:
    """Raise where the offset of the next page would skip rows of this one, or read some of them again."""
    count, size = len(page.items), plan.size
    if plan.by != "offset" or size is None or (plan.asks_next and not page.following):
        return
    if count > size:
        raise SourceError(
            f"{name}: {plan.label(token)} has {count} items instead of {size}, and the next page would begin within "
            f"them: set size to {count}, or have fetch ask for {size}"
        )
    if count == size or not plan.asks_next:
        return
    cap = f": the API gives at most {count} at a time; set size to that" if count else ""
    raise SourceError(
        f"{name}: {plan.label(token)} has {count} items instead of {size}, and more follow{cap}. "
        'If the API filters the rows of a page, use by="page" or by="cursor"'
    )


class CursorPages:
    """Pages of which each has the cursor of the next one."""

    def __init__(self, plan: PagePlan, name: str, fetcher: Fetcher, position: Any | None) -> None:
        self._token, self._pages, self._over = plan.place(position)
        self._plan = plan
        self._name = name
        self._fetcher = fetcher
        self._circle = _CursorLoop(self._token)

    def next(self) -> PagePart | None:
        """Return the next page; None at the end."""
        if self._over or self._plan.is_enough(self._pages):
            return None
        label = self._plan.label(self._token)
        if self._circle.closed:
            raise SourceError(f"{self._name}: {label} came twice: the API goes in circles")
        outcome = self._fetcher.start(self._token).result()
        if isinstance(outcome, PageFailed):
            hint = "by cursor the run cannot continue without it, since only this page has the next cursor"
            raise _stop_error(outcome, label, self._name, hint)
        following = self._following(outcome)
        self._pages += 1
        self._token, self._over = following, following is None
        if following is None:
            return PagePart(label, outcome.items, self._plan.end(self._pages))
        self._circle.meet(following)
        return PagePart(label, outcome.items, self._plan.position(following, self._pages))

    def _following(self, page: Page) -> Any | None:
        if page.following is UNSAID:
            if self._pages == 0:
                raise SourceError(
                    f"{self._name}: the first page has no cursor under a usual name: pass following= its name, "
                    "or a function that returns it"
                )
            return None
        if not is_json(page.following):
            raise SourceError(
                f"{self._name}: a cursor must be something that JSON can hold, for the checkpoint, not a "
                f"{type(page.following).__name__}"
            )
        return page.following or None


class _CursorLoop:
    """Detects cursors that recur, keeping only one: it is compared with the next 1, then with 2, 4, 8 …"""

    def __init__(self, first: Any) -> None:
        self.closed = False
        self._mark = first
        self._met = 0
        self._span = 1

    def meet(self, cursor: Any) -> None:
        self.closed = cursor == self._mark
        self._met += 1
        if self._met == self._span:
            self._mark, self._met, self._span = cursor, 0, 2 * self._span


def _digest(items: Sequence[Any]) -> bytes:
    try:
        # orjson ends the process over a datetime whose zone raises.
        text = orjson.dumps(items, default=repr, option=orjson.OPT_PASSTHROUGH_DATETIME)
    except TypeError:  # an int beyond 64 bits, a lone surrogate, a key that is no text
        text = repr(items).encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=16).digest()


def _is_answer(outcome: Outcome) -> bool:
    return isinstance(outcome, Page) or outcome.fault not in RETRY_LATER


def _is_no_page(outcome: Outcome) -> bool:
    return not outcome.items if isinstance(outcome, Page) else outcome.fault is FaultKind.MISSING


def _stop_error(failed: PageFailed, label: str, name: str, hint: str = "") -> Exception:
    """Return the error for a page that stops the run: transient errors, and those of the key, as they are."""
    if failed.fault in RETRY_LATER:
        if not isinstance(failed.error, SourceError):
            failed.error.add_note(f"redrive: it was {label} of {name!r}")
        return failed.error
    error = SourceError(f"{label} of {name!r} cannot be had: {failed.reason}; {hint}".removesuffix("; "))
    error.__cause__ = failed.error
    return error
