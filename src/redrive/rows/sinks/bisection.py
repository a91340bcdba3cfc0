"""Which rows of a batch are bad, where the sink only says that some are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

E = TypeVar("E")
Probe = Callable[[int, int], E | None]


def isolate(count: int, probe: Probe[E]) -> list[tuple[int, E]]:
    """Find the bad rows among `count` that were refused together: the place of each, and what was said about it.

    `probe(start, stop)` applies these rows and gives None, or applies none of them and gives the error. Each good row
    is applied once, in order. For k bad rows that takes about k·log₂(count/k) + 2k probes. Where rows were refused
    together that are taken one by one, none of them is bad.
    """
    found: list[tuple[int, E]] = []
    start, error = _first(0, count, None, probe) if count else (0, None)
    apart = start  # how far the next bad row is expected, by the distances so far
    while True:
        if error is not None:
            before = found[-1][0] + 1 if found else 0
            apart = (apart + start - before) // 2
            found.append((start - 1, error))
        reach = max(apart, 1)
        while start < count and (error := probe(start, min(start + reach, count))) is None:
            start = min(start + reach, count)
            reach *= 2
        if start == count:
            return found
        start, error = _first(start, min(start + reach, count), error, probe)


def _first(start: int, stop: int, error: E | None, probe: Probe[E]) -> tuple[int, E | None]:
    """The place behind the first bad row of a refused range, and the error of that row; None where it is not bad.

    A half that was taken leaves the fault in the other one, which need not be asked.
    """
    alone = stop - start == 1 and error is not None
    while stop - start > 1:
        middle = (start + stop) // 2
        said = probe(start, middle)
        if said is None:
            start, alone = middle, False
        else:
            stop, error, alone = middle, said, middle - start == 1
    return stop, error if alone else probe(start, stop)
