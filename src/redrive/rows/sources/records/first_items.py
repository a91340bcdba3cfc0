"""Compare the input of a run with the input that a checkpoint was taken over, by the first items of both.

Used by sources whose input has no identity of its own: records that a program makes, pages of an API.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import Any

from redrive.store.encoding import encode

MOST_ITEMS = 1_000
_MOST_BYTES = 4_000_000
# Reading ahead may end early: at an error, or because the items are slow or large. The digests at these counts allow
# to compare as many items as both sides have.
_MARKS = frozenset({1, 10, 100, MOST_ITEMS})
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class FirstItems:
    """Digests of the first items of an input."""

    def __init__(self, marks: Collection[int] = ()) -> None:
        """Begin with no item.

        Args:
            marks: further counts at which a digest is kept.
        """
        self.count = 0
        self._marks = _MARKS.union(marks)
        self._bytes = 0
        self._running = blake2b(digest_size=16)
        self._digests: dict[str, str] = {}

    @property
    def is_enough(self) -> bool:
        """Return whether no further item is needed."""
        return self.count >= MOST_ITEMS or self._bytes >= _MOST_BYTES

    def add(self, item: Any) -> None:
        """Add the next item."""
        text = _stable_text(item)
        self.count += 1
        self._bytes += len(text)
        self._running.update(len(text).to_bytes(8))
        self._running.update(text)
        if self.count in self._marks:
            self._digests[str(self.count)] = self._running.hexdigest()

    def has(self, marks: Collection[int]) -> bool:
        """Return whether there is a digest at each of these counts, as far as items were added."""
        return all(mark in self._marks or mark >= self.count for mark in marks)

    def document(self, *, length: int | None) -> dict[str, Any]:
        """Return the digests as JSON.

        Args:
            length: The number of items of the whole input, where it is known.
        """
        digests = dict(self._digests)
        if self.count:
            digests[str(self.count)] = self._running.hexdigest()
        return {"digests": digests, "length": length}


def counts_of(document: Any) -> set[int]:
    """Return the counts at which a document has digests."""
    return {int(count) for count in document["digests"]} if isinstance(document, Mapping) else set()


def digest_of(item: Any) -> str:
    """Return a short digest of one item; equal for equal items in another process."""
    return blake2b(_stable_text(item), digest_size=12).hexdigest()


def difference_of(before: Any, now: Mapping[str, Any], what: str) -> str | None:
    """Return how two documents of `FirstItems` differ, as a clause; None if nothing speaks against the same input.

    Args:
        before: The document that was kept with the checkpoint; something else in checkpoints of earlier versions.
        now: The document of the input as it is.
        what: What the items are: "records".
    """
    if not isinstance(before, Mapping) or "digests" not in before:
        return f"the checkpoint does not have the first {what}"
    was, length = before.get("length"), now["length"]
    if was is not None and length is not None and was != length:
        return f"there were {was:,} {what}, and now there are {length:,}"
    most = max((int(count) for document in (before, now) for count in document["digests"]), default=0)
    least = was if length is None else length
    if least is not None and least < most:
        return f"there are {most:,} {what} or more on one side, and {least:,} on the other"
    common = max((int(count) for count in before["digests"].keys() & now["digests"].keys()), default=0)
    if not common:
        return None if was == length == 0 else f"no {what} could be compared"
    if before["digests"][str(common)] == now["digests"][str(common)]:
        return None
    return f"the first of the {what} differs" if common == 1 else f"the first {common:,} {what} differ"


def difference_of_declared(before: Mapping[str, Any], now: str | None) -> str | None:
    """Return how the declared identity of an input differs from the one that was kept; None if it is the same."""
    declared = before.get("declared")
    return None if declared == now else f"its identity was {declared!r}, and now it is {now!r}"


def _stable_text(item: Any) -> bytes:
    """Return the item as bytes that do not depend on the process: the text of some objects has their address."""
    text = encode(item)
    return (_ADDRESS.sub("", text) if " at 0x" in text else text).encode("utf-8", "surrogatepass")
