"""A ledger of effects in a file: which effects happened, and how often, whatever was killed in between.

What a suite tests records each effect at the moment in which it has it, from any process; the suite reads the ledger
and compares. The store that is tested has no part in it. Workers import this module, so it imports little.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path


class EffectLedger:
    """Counts effects by their id. Ids are compared by their text and must not contain white space."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def record(self, *effect_ids: object) -> None:
        """Append effects, all in one write: a process that is killed leaves all of them or none, and no half line."""
        ids = list(map(str, effect_ids))
        if any(effect_id.split() != [effect_id] for effect_id in ids):
            raise ValueError(f"effect ids must be text without white space, not {effect_ids!r}")
        lines = "".join(f"{effect_id}\n" for effect_id in ids).encode()
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            written = os.write(file, lines)
        finally:
            os.close(file)
        if written != len(lines):
            raise OSError(f"{self.path}: wrote {written} of {len(lines)} bytes; the ledger has a half line")

    def ids(self) -> list[str]:
        """Return the id of every effect, in the order in which they were recorded."""
        return self.path.read_text().split() if self.path.exists() else []

    def counts(self) -> Counter[str]:
        """Return how often each effect happened."""
        return Counter(self.ids())

    def check_once(self, expected_ids: Iterable[object]) -> None:
        """Raise AssertionError unless each of these effects happened exactly once, and no other did."""
        self._check(expected_ids, may_repeat=False)

    def check_at_least_once(self, expected_ids: Iterable[object]) -> None:
        """Raise AssertionError unless each of these effects happened, once or more often, and no other did."""
        self._check(expected_ids, may_repeat=True)

    def _check(self, expected_ids: Iterable[object], *, may_repeat: bool) -> None:
        counts = self.counts()
        expected = list(map(str, expected_ids))
        faults = {
            "lost": [effect_id for effect_id in expected if effect_id not in counts],
            "repeated": [f"{effect_id} ({count} times)" for effect_id, count in counts.items() if count > 1],
            "unexpected": sorted(counts.keys() - set(expected)),
        }
        if may_repeat:
            del faults["repeated"]
        if any(faults.values()):
            found = "; ".join(f"{name}: {', '.join(ids)}" for name, ids in faults.items() if ids)
            raise AssertionError(f"{self.path.name}: {found}")
