"""Load records into a table one row at a time, in plain Python: what a pipeline must have done in the end.

The suite of tests/contract/test_row_loader_oracle.py compares `redrive.Pipeline` with it. It follows docs/rows.md: each
record ends written, rejected as it was received, or discarded; of several rows with one key, a rule says which counts.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Row = dict[str, Any]
Key = tuple[Any, ...]
Rule = Literal["last", "first", "quarantine"]

MISSING_KEY = "missing key"
DUPLICATE_KEY = "duplicate key"


class Rejected(NamedTuple):
    """A record that was not written."""

    number: int
    """Its place among the records, from 1."""
    record: Any
    """As it was received."""
    step: Literal["parse", "validation", "transform", "sink"]
    reason: str
    """What the function of that step raised or returned, the type of what is not a record, or one of the constants
    above with columns of the key: "missing key: day"."""


class _Candidate(NamedTuple):
    """A row that is ready for the table, and the record it was made of."""

    number: int
    record: Row
    row: Row


def _order(rejected: Rejected) -> int:
    steps = ("parse", "validation", "transform", "sink")
    return len(steps) if rejected.reason.startswith(DUPLICATE_KEY) else steps.index(rejected.step)


def keep(row: Row) -> Row:
    """Return the row: the step of a loader that has nothing to do."""
    return row


def allow(row: Row) -> None:
    """Return no objection: the constraint of a table that has none."""


@dataclass
class RowLoader:
    """Loads records into a table.

    Args:
        key: The columns of the table's key.
        columns: All columns of the table. What a row lacks is None.
        batch: How many records are written together. It makes no difference to the outcome.
        on_duplicate: Which of several rows with one key counts.
        validate: Returns the row, or raises what is wrong with it. Gets a copy of the record.
        transform: Returns a row, a list of rows, or None to discard it; or raises.
        constraint: Returns why the table does not take a row, or None where it does.
        discard: The exceptions by which a step discards a record on purpose.
        table: The rows that the table holds before.
    """

    key: Sequence[str]
    columns: Sequence[str]
    batch: int
    on_duplicate: Rule = "last"
    validate: Callable[[Row], Row] = keep
    transform: Callable[[Row], Row | list[Row] | None] = keep
    constraint: Callable[[Row], str | None] = allow
    discard: tuple[type[Exception], ...] = ()
    table: dict[Key, Row] = field(default_factory=dict)

    rejected: list[Rejected] = field(default_factory=list, init=False)
    discarded: list[Row] = field(default_factory=list, init=False)
    counts: Counter[str] = field(default_factory=Counter, init=False)
    """Records read, rejected and discarded, rows that are in the table, and rows superseded by another of their key
    ("duplicates")."""
    _loaded: set[Key] = field(default_factory=set, init=False)

    def load(self, records: Sequence[Any]) -> None:
        """Load all records, batch by batch."""
        for start in range(0, len(records), self.batch):
            by_key: dict[Key, list[_Candidate]] = {}
            for number, record in enumerate(records[start : start + self.batch], start + 1):
                self.counts["read"] += 1
                for candidate in self._candidates(number, record):
                    by_key.setdefault(self._key_of(candidate.row), []).append(candidate)
            for key, candidates in by_key.items():
                self._write(key, candidates)
        # A record is rejected once, for the first step that rejects one of its rows.
        self.rejected.sort(key=lambda rejected: (rejected.number, _order(rejected)))
        firsts = {rejected.number: rejected for rejected in reversed(self.rejected)}
        self.rejected = [firsts[number] for number in sorted(firsts)]
        self.counts["rejected"] = len(self.rejected)

    # ── before the table ──────────────────────────────────────────────────────────────────────────────────────────────

    def _candidates(self, number: int, record: Any) -> list[_Candidate]:
        """Validate and transform one record; return the rows that have a key."""
        if not isinstance(record, Mapping):
            self._reject(number, record, "parse", type(record).__name__)
            return []
        step: Literal["validation", "transform"] = "validation"
        try:
            row = self.validate(copy.deepcopy(dict(record)))
            step = "transform"
            made = self.transform(row)
        except self.discard:
            made = None
        except Exception as error:
            self._reject(number, record, step, str(error))
            return []
        rows = made if isinstance(made, list) else [] if made is None else [made]
        if not rows:
            self.discarded.append(record)
            self.counts["discarded"] += 1
        candidates = []
        for row in rows:
            missing = [name for name in self.key if row.get(name) is None]
            if missing:
                self._reject(number, record, "validation", f"{MISSING_KEY}: {missing[0]}")
            else:
                candidates.append(_Candidate(number, record, row))
        return candidates

    def _key_of(self, row: Row) -> Key:
        return tuple(row.get(name) for name in self.key)

    def _reject(self, number: int, record: Any, step: Any, reason: str) -> None:
        self.rejected.append(Rejected(number, record, step, reason))

    # ── the table ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _write(self, key: Key, candidates: list[_Candidate]) -> None:
        """Write one of the rows of one batch that have this key. A row that the table rejects supersedes no other."""
        is_written = self.on_duplicate != "last" and key in self._loaded
        for candidate in reversed(candidates) if self.on_duplicate == "last" else candidates:
            if is_written and self.on_duplicate == "quarantine":
                self._reject(
                    candidate.number, candidate.record, "validation", f"{DUPLICATE_KEY}: {', '.join(self.key)}"
                )
            elif is_written:
                self.counts["duplicates"] += 1
            elif (objection := self.constraint(candidate.row)) is not None:
                self._reject(candidate.number, candidate.record, "sink", objection)
            else:
                self.table[key] = {name: candidate.row.get(name) for name in self.columns}
                # Of one key the table has one row: the earlier one is superseded.
                self.counts["duplicates" if key in self._loaded else "written"] += 1
                is_written = True
        if is_written:
            self._loaded.add(key)
