"""Parts of texts, masked so that no secret comes through that lies across a cut.

A password of which a cut leaves half is not recognised. So a part is masked twice: with what stands beyond the cut, and
without it. What both have in common does not depend on the cut.
"""

from __future__ import annotations

from collections.abc import Callable

Mask = Callable[[str], str]

MARGIN = 8 << 10
"""Characters beyond a cut that are looked at: a private key, or any other secret up to this long, is seen whole."""

_LONGEST_LINE = 4 << 10
_CONTEXT = 200  # of what stands before the lines that are written now; a value may stand on the line after its name


def start_of(text: str, length: int, mask: Mask) -> str:
    """Return the first characters of a text, masked, up to the first secret that lies across the cut."""
    if len(text) <= length:
        return mask(text)
    return common_start(mask(text[: length + MARGIN]), mask(text[:length]))


def end_of(text: str, length: int, mask: Mask) -> str:
    """Return the last characters of a text, masked, from the end of a secret on that lies across the cut."""
    at = len(text) - length
    if at <= 0:
        return mask(text)
    return _common_end(mask(text[max(0, at - MARGIN) :]), mask(text[at:]))


def common_start(one: str, other: str) -> str:
    """Return the longest text that both begin with."""
    if one.startswith(other):
        return other
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return one[:low]


def _common_end(one: str, other: str) -> str:
    return other if one.endswith(other) else common_start(one[::-1], other[::-1])[::-1]


class MaskedStream:
    """Masks a text that comes in pieces, line by line; a line that is very long comes in parts."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._before = ""  # the end of what was returned, as it came
        self._rest = ""

    def add(self, text: str) -> str:
        """Return what can be shown now, masked."""
        text = self._rest + text
        at = max(text.rfind("\n"), text.rfind("\r")) + 1
        if len(text) - at > _LONGEST_LINE + MARGIN:
            at = len(text) - MARGIN
        self._rest = text[at:]
        if not at:
            return ""
        context = self._context()
        self._before = (self._before + text[:at])[-MARGIN:]

        def masked(part: str) -> str:
            return end_of(context + part, len(part), self._mask)

        # Where whole lines end there is nothing to look at yet beyond the cut.
        return masked(text) if not self._rest else start_of(text, at, masked)

    def _context(self) -> str:
        """Return what the next lines may belong to: a private key that has begun, or a line that ends with a name."""
        before = self._before
        named = before.rfind("PRIVATE KEY")
        begins = before.rfind("BEGIN", max(0, named - 40), named) if named >= 0 else before.rfind("Private-Lines")
        return before[max(0, begins - 6) :] if begins >= 0 else before[-_CONTEXT:]
