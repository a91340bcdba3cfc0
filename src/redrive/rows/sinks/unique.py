"""Which rows of a batch lose against others by a unique index beside the key. Pure: the databases' answers come in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class UniqueIndex(NamedTuple):
    """A unique index beside the key."""

    name: str
    columns: tuple[str, ...]


class IndexClaim(NamedTuple):
    """A row of a batch, and the value of an index that it brings."""

    row: int
    on: UniqueIndex
    values: tuple[Any, ...]


def losers(
    taken: Iterable[tuple[IndexClaim, bool]], contested: Iterable[IndexClaim], *, in_order: bool
) -> dict[int, tuple[UniqueIndex, tuple[Any, ...]]]:
    """Return the rows that are refused for certain when a batch is applied row by row, each with the value it lost.

    Args:
        taken: claims on values that another row of the table has, and whether the batch may change that row.
        contested: claims on values that several rows of the batch bring.
        in_order: whether the first row of the batch that claims a value gets it, so that the others lose. Not so where
            rows may be refused for reasons that are not known here.
    """
    refused: dict[int, tuple[UniqueIndex, tuple[Any, ...]]] = {}
    unsure: set[int] = set()
    for claim, may_change in taken:
        if may_change:
            unsure.add(claim.row)
        else:
            refused.setdefault(claim.row, (claim.on, claim.values))
    if not in_order:
        return refused
    by_row: dict[int, list[IndexClaim]] = {}
    for claim in contested:
        by_row.setdefault(claim.row, []).append(claim)
    holders: dict[tuple[UniqueIndex, tuple[Any, ...]], int] = {}
    for row in sorted(by_row):
        if row in refused:
            continue
        lost = [claim for claim in by_row[row] if (claim.on, claim.values) in holders]
        sure = [claim for claim in lost if holders[claim.on, claim.values] not in unsure]
        if sure:
            refused[row] = sure[0].on, sure[0].values
            continue
        if lost:
            unsure.add(row)
        for claim in by_row[row]:
            holders.setdefault((claim.on, claim.values), row)
    return refused


def shown_values(values: Sequence[Any]) -> str:
    """Return the values of an index as a message shows them."""
    return ", ".join(str(value) for value in values)
