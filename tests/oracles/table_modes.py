"""What a table holds after rows were loaded one by one, by the rule for duplicates and the mode of the table.

It follows docs/rows.md, and knows nothing of batches, stops and resumed runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class Change(NamedTuple):
    """A row that comes: `deletes` marks a deletion where the table has them."""

    key: int
    value: str
    moment: int | None
    deletes: bool


Stored = dict[int, tuple[str, int | None]]

UNFIT = "unfit"
"""The value of a row that the check rejects."""
REFUSED = "refused"
"""The value of a row that the table refuses. A deletion has no value to refuse."""


def load(
    table: Stored,
    changes: Iterable[Change],
    *,
    rule: str = "last",
    on_conflict: str = "update",
    newer: bool = False,
    deletions: bool = False,
) -> Stored:
    """Return the table behind all changes."""
    table, decided = dict(table), set[int]()
    for change in changes:
        deletes = deletions and change.deletes
        if change.value == UNFIT or (change.value == REFUSED and not deletes):
            continue
        if rule != "last" and change.key in decided:
            continue
        decided.add(change.key)
        there = table.get(change.key)
        if deletes:
            if there is not None and (not newer or _is_newer(there, change)):
                del table[change.key]
        elif there is None or (on_conflict == "update" and (not newer or _is_newer(there, change))):
            table[change.key] = change.value, change.moment
    return table


def _is_newer(there: tuple[Any, int | None], change: Change) -> bool:
    """A row without a moment is always replaced or deleted; otherwise only a greater moment does that."""
    return there[1] is None or (change.moment is not None and change.moment > there[1])
