"""Which services this thread or task is inside of, so that nested policies do not multiply."""

from __future__ import annotations

from contextvars import ContextVar
from uuid import NAMESPACE_URL, uuid4, uuid5


class Inside:
    """One attempt under way. An inner call of the same service adds no attempts of its own to the outer one's."""

    __slots__ = ("_key", "_requests", "outer", "service")

    def __init__(self, service: str, outer: Inside | None = None, key: str | None = None) -> None:
        self.service = service
        self.outer = outer
        self._key = key
        self._requests = 0

    def next_key(self, request: str) -> str | None:
        """An idempotency key for a request made inside: the same for the n-th such request of every attempt."""
        if self._key is None:
            return None
        self._requests += 1
        return str(uuid5(NAMESPACE_URL, f"{self._key} {self._requests} {request}"))


inside: ContextVar[Inside | None] = ContextVar("redrive_inside", default=None)


def enclosing(service: str) -> Inside | None:
    """The attempt of this service that is under way around us."""
    mark = inside.get()
    while mark is not None and mark.service != service:
        mark = mark.outer
    return mark


def new_key() -> str:
    """A fresh idempotency key."""
    return str(uuid4())
