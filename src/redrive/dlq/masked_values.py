"""Values that are masked wherever a text has them: whole, or the beginning or the end that a library leaves of one."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator

from redrive._internal.masking import MASK

# This many characters are recognized anywhere, and fewer beside an ellipsis.
_RECOGNIZED = 12
_BESIDE_ELLIPSIS = 4
_COMPARED = 2_000  # characters by which the value is chosen whose beginning is the longest

_ELLIPSIS = re.compile(r"\.{3,}+|…")

_Span = tuple[int, int]


def mask_values(text: str, forms: Iterable[str], *, cut: Collection[str]) -> str:
    """Return a text without values that it has whole, in one of their forms, and without what continues one.

    Args:
        cut: values of which a beginning may continue what another begins.
    """
    whole = [(start, start + len(form)) for form in forms for start in _places(text, form)]
    if not whole:
        return text
    spans = _merged([*whole, *_parts(text, cut)])
    starts = sorted(start for start, _ in whole)
    return _without(
        text, [(start, end) for start, end in spans if bisect_left(starts, start) < bisect_left(starts, end)]
    )


def mask_parts(text: str, values: Collection[str]) -> str:
    """Return a text without beginnings and ends of values, where these are long enough to be recognized."""
    return _without(text, _merged(_parts(text, values)))


def _parts(text: str, of_values: Collection[str]) -> list[_Span]:
    values = {value for value in of_values if len(value) > _BESIDE_ELLIPSIS}
    if not values:
        return []
    size, mirrored = len(text), text[::-1]
    # No more of a value can be in the text, and a value may be a file.
    forward = sorted({value[: size + 1] for value in values})
    backward = sorted({value[-size - 1 :][::-1] for value in values})
    ends = [*_beginnings(mirrored, backward), *_before_ellipses(mirrored, backward)]
    return [
        *_beginnings(text, forward),
        *_before_ellipses(text, forward),
        *((size - end, size - start) for start, end in ends),
    ]


def _places(text: str, form: str) -> Iterator[int]:
    start = text.find(form)
    while start >= 0:
        yield start
        start = text.find(form, start + len(form))


def _beginnings(text: str, values: list[str]) -> Iterator[_Span]:
    """Yield where a text has beginnings of values; the values are sorted."""
    for beginning in {value[:_RECOGNIZED] for value in values if len(value) > _RECOGNIZED}:
        start = text.find(beginning)
        while start >= 0:
            place = bisect_left(values, text[start : start + _COMPARED])
            near = values[max(0, place - 1) : place + 1]
            end = start + max(_common(text, start, value) for value in near)
            yield start, end
            start = text.find(beginning, end)


def _common(text: str, start: int, value: str) -> int:
    """Return how many characters of a value a text has from there."""
    least, step = 0, 16
    while text.startswith(value[least : least + step], start + least) and least < len(value):
        least += step
        step *= 2
    while step > 1:
        step //= 2
        if text.startswith(value[least : least + step], start + least):
            least += step
    return min(least, len(value))


def _before_ellipses(text: str, values: Collection[str]) -> Iterator[_Span]:
    """Yield where short beginnings of values stand before an ellipsis."""
    ellipses = [found.start() for found in _ELLIPSIS.finditer(text)]
    if not ellipses:
        return
    beginnings = {value[:size] for value in values for size in range(_BESIDE_ELLIPSIS, min(_RECOGNIZED, len(value)))}
    for place in ellipses:
        end = place - 1 if text[place - 1 : place] == " " else place
        for size in range(min(_RECOGNIZED - 1, end), _BESIDE_ELLIPSIS - 1, -1):
            if text[end - size : end] in beginnings:
                yield end - size, end
                break


def _merged(spans: list[_Span]) -> list[_Span]:
    """Return the spans in their order, those that overlap as one."""
    merged: list[_Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _without(text: str, spans: list[_Span]) -> str:
    pieces: list[str] = []
    at = 0
    for start, end in spans:
        pieces += (text[at:start], MASK)
        at = end
    return "".join([*pieces, text[at:]])
