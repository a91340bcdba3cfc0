"""The attempts that this thread or task is inside of, so that nested policies do not multiply."""

from __future__ import annotations

from collections import Counter
from contextvars import ContextVar
from types import FrameType
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, uuid4, uuid5

if TYPE_CHECKING:
    from redrive.calls.core import ServiceCore
    from redrive.calls.credentials import Grant
    from redrive.calls.effects.idempotency import SentKeys


class EnclosingAttempt:
    """A running attempt. An inner call of the same service adds no attempts to those of the outer one.

    Made in every call, so it has no __init__: what is not set is None.
    """

    core: ServiceCore | None = None
    grant: Grant | None = None
    """The credential of the attempt: inner requests are sent with it, and their failures count against it."""
    outer: EnclosingAttempt | None = None
    key: str | None = None
    keys: SentKeys | None = None
    """Of the logical call that the attempt belongs to, or of the outermost one of the same service."""
    sent: str | None = None
    """The key of the request that is sent in this very attempt."""
    over = False
    """A task that outlives the attempt it was started in is not inside of it any more."""
    frame: FrameType | None = None
    """Of the generator that the attempt is a block of, if it is one."""
    _requests: Counter[str] | None = None

    @property
    def is_running(self) -> bool:
        """Return whether the attempt runs; one in a suspended generator does not, nor is its consumer inside of it."""
        return not self.over and (self.frame is None or self.frame.f_back is not None)

    def next_key(self, request: str) -> str | None:
        """Return an idempotency key for an inner request: the same for the same request in every attempt.

        It depends on what is sent, not on its position: an attempt may skip what an earlier one has done.
        """
        if self.key is None:
            outer = self.outer
            return outer.next_key(request) if outer is not None and _same_service(outer.core, self.core) else None
        derived_from = hash((self.key, request))
        if self.keys is not None and (key := self.keys.reusable_key(derived_from)) is not None:
            return key
        if self._requests is None:
            self._requests = Counter()
        self._requests[request] += 1
        key = str(uuid5(NAMESPACE_URL, f"{self.key} {request} {self._requests[request]}"))
        if self.keys is not None:
            self.keys.issued(key, derived_from)
        return key

    def send(self, key: str, what: str) -> None:
        """Note that a request which is not idempotent is about to be sent with this key."""
        if self.keys is not None:
            self.keys.send(key, what)
            self.sent = key

    def send_unprotected(self) -> None:
        """Note that a request which is not idempotent is about to be sent without a key."""
        if self.keys is not None:
            self.sent = self.keys.send_unprotected()


def attempt_of(
    core: ServiceCore, grant: Grant | None, outer: EnclosingAttempt | None, key: str | None, keys: SentKeys | None
) -> EnclosingAttempt:
    """Return the record of an attempt that is about to be made."""
    mark = EnclosingAttempt()
    mark.core, mark.grant, mark.outer, mark.key, mark.keys = core, grant, outer, key, keys
    return mark


inside: ContextVar[EnclosingAttempt | None] = ContextVar("redrive_inside", default=None)
current, enter, leave = inside.get, inside.set, inside.reset


def innermost() -> EnclosingAttempt | None:
    """Return the innermost running attempt that encloses the current code."""
    mark = inside.get()
    while mark is not None and not mark.is_running:
        mark = mark.outer
    return mark


def enclosing(core: ServiceCore) -> EnclosingAttempt | None:
    """Return the running attempt of this service that encloses the current code."""
    mark = inside.get()
    while mark is not None and (not _same_service(mark.core, core) or not mark.is_running):
        mark = mark.outer
    return mark


def _same_service(one: ServiceCore | None, other: ServiceCore | None) -> bool:
    """Return whether two cores are of one service, of which each endpoint may have its own."""
    return one is other or (one is not None and other is not None and one.family is other.family)


def new_key() -> str:
    """Return a new idempotency key."""
    return str(uuid4())
