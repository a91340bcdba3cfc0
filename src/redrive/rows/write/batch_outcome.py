"""The outcome of a batch: what must be saved in the store when its rows are in the sink. Used by the writer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from redrive.model.letters import NewLetter
from redrive.model.runs import Counts
from redrive.rows.batch import Refused
from redrive.rows.prepare import Preparation, Prepared
from redrive.rows.write.superseded import Order, Place
from redrive.rows.write.written_keys import Hashes

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The outcome of a batch."""

    counts: Counts
    seconds: float
    bad_batch: str | None = None
    moved: bool = True
    """Whether the checkpoint has moved past the batch; False for a piece of a batch."""


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What must be saved in the store when the rows are in the sink."""

    counts: Counts
    letters: tuple[NewLetter, ...] = ()
    digests: tuple[bytes, ...] = ()
    """Of the written keys, if no key may be written twice."""
    hashes: tuple[Hashes, ...] = ()
    """Of the written keys, if a later batch may overwrite them."""
    places: tuple[Order | None, ...] = ()
    """The places of the letters; None for a letter that is not of a single row."""
    last_written: Order | None = None
    """The place of the last written row."""
    superseded: Mapping[str, Order] = field(default_factory=dict)
    """Written keys that have a letter of an earlier batch or run, with the place of their last row."""
    rejected: Mapping[Place, Order] = field(default_factory=dict)
    """The places of rejected rows, if such keys were written: they may belong to letters of other keys."""
    superseded_here: frozenset[Place] = frozenset()
    """Letters of this batch whose key has a later row that was written."""

    def __add__(self, other: BatchOutcome) -> BatchOutcome:
        return BatchOutcome(
            self.counts + other.counts,
            self.letters + other.letters,
            self.digests + other.digests,
            self.hashes + other.hashes,
            self.places + other.places,
            max((order for order in (self.last_written, other.last_written) if order is not None), default=None),
            {**self.superseded, **other.superseded},
            {**self.rejected, **other.rejected},
            self.superseded_here | other.superseded_here,
        )


@dataclass(frozen=True, slots=True)
class KnownRows:
    """Rows whose key the run has written before, if no key may be written twice."""

    rows: frozenset[int] = frozenset()
    """By their place among the prepared rows."""
    rejected: frozenset[int] = frozenset()
    """Rows that were rejected, by their place in the batch."""


class BatchLetters:
    """The letters of a batch: one for each rejected row as received, even if a transform has split it."""

    def __init__(self, preparation: Preparation, prepared: Prepared) -> None:
        self._preparation = preparation
        self._prepared = prepared
        self.of_rows = dict(prepared.rejected)
        """By the place of the row in the batch."""
        self._letters = list(prepared.letters)
        self.rejected = 0
        """The number of received rows that were added here."""

    def add(self, refused: Sequence[Refused]) -> list[NewLetter]:
        """Add letters of rows by their place among the prepared rows; return the new letters."""
        prepared, preparation = self._prepared, self._preparation
        before = len(self._letters)
        for row in refused:
            origin = prepared.rows.origin[row.place]
            if origin not in self.of_rows:
                key = preparation.key_of(prepared.rows, row.place)
                letter = preparation.letter(prepared.batch, replace(row, place=origin), key)
                self.of_rows[origin] = letter
                self._letters.append(letter)
                self.rejected += 1
        return self._letters[before:]

    def places(self, piece: int) -> tuple[Order | None, ...]:
        """Return the places of all letters in a piece of the batch; None for a letter that is not of a single row."""
        of_letters = {id(letter): (piece, place) for place, letter in self.of_rows.items()}
        return tuple(of_letters.get(id(letter)) for letter in self._letters)

    @property
    def all(self) -> tuple[NewLetter, ...]:
        """The letters of the preparation, and the added letters."""
        return tuple(self._letters)


def first_number(letter: NewLetter) -> int:
    """Return the first number of a letter's position, by which letters are sorted: 18 for "line 18"."""
    number = _NUMBER.search(str(letter.position))
    return 0 if number is None else int(number[0])
