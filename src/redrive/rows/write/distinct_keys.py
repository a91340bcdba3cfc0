"""The number of distinct keys that a run has written, where a later row of a key overwrites an earlier one.

`written` is the number of rows that are in the sink, so a key that comes again in a later batch must not be counted
again, and one that is deleted again must not be counted. Each batch has the keys whose state it changed: a key is in
the sink if an odd number of batches has it. Keys are known by hashes of eight bytes: two keys of a run with ten million
rows share one with a probability of about one in 400,000, and then the count is off by one. Nothing but counts depends
on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import Connection, select

from redrive.rows.batch import Outgoing
from redrive.rows.write.dedup_store import digest_of
from redrive.store.database import Database
from redrive.store.schema import run_key_blocks

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]
else:
    Hashes = Any

MOST = 20_000_000
"""Keys that are remembered: 160 MB. Beyond, every row that is written counts."""
_SEED = 7


class DistinctKeys:
    """The keys of a run, in memory; kept in the store batch by batch, for a run that is resumed."""

    def __init__(self, database: Database, run_id: UUID, key: tuple[str, ...], *, resumed: bool) -> None:
        self._run_id = run_id
        self._key = key
        self._sorted: list[Hashes] = []
        self._count = 0
        if resumed:
            self._load(database)

    def hashes(self, rows: Outgoing) -> Hashes:
        """Return the hashes of the keys of rows."""
        rows = rows.keyed
        if rows.as_frame is not None and (found := _of_frame(rows.as_frame.select(self._key))) is not None:
            return found
        return _of_columns([rows.values(name) for name in self._key])

    def merge(self, parts: Sequence[Hashes]) -> tuple[Hashes, int]:
        """Return the distinct keys of a batch that are new to the run, and how many rows had a key that is not."""
        import numpy as np

        every = np.concatenate([np.empty(0, dtype=np.uint64), *parts])
        hashes = np.unique(every)
        new = hashes[~self._known(hashes)]
        return new, len(every) - len(new)

    def changed(self, parts: Sequence[Hashes]) -> Hashes:
        """Return the keys of a batch that were not in the sink before and are now, or the other way round."""
        import numpy as np

        return _odd(np.concatenate([np.empty(0, dtype=np.uint64), *parts]))

    def known(self, hashes: Hashes, more: Sequence[Hashes]) -> list[bool]:
        """Return for each key whether the run has a row of it in the sink; `more` are changes of this batch."""
        import numpy as np

        found = self._known(hashes)
        for some in more:
            found ^= np.isin(hashes, some)
        return [bool(one) for one in found]

    def _known(self, hashes: Hashes) -> NDArray[np.bool_]:
        import numpy as np

        known = np.zeros(len(hashes), dtype=bool)
        for block in self._sorted:
            places = np.minimum(np.searchsorted(block, hashes), len(block) - 1)
            known ^= block[places] == hashes
        return known

    def save(self, connection: Connection, batch: int, hashes: Hashes) -> None:
        """Store the keys of a batch, in the transaction that moves the checkpoint."""
        if len(hashes) and self._count + len(hashes) <= MOST:
            values = {"run_id": self._run_id, "batch": batch, "hashes": hashes.astype("<u8").tobytes()}
            connection.execute(run_key_blocks.insert(), values)

    def add(self, hashes: Hashes) -> None:
        """Remember the keys of a batch that was saved."""
        import numpy as np

        if not len(hashes) or self._count + len(hashes) > MOST:
            return
        self._count += len(hashes)
        # Blocks of equal size are merged, so that there are few: as many as the count has binary digits.
        while self._sorted and len(self._sorted[-1]) <= len(hashes):
            hashes = _odd(np.concatenate([self._sorted.pop(), hashes]))
        if len(hashes):
            self._sorted.append(hashes)

    def _load(self, database: Database) -> None:
        import numpy as np

        mine = run_key_blocks.c.run_id == self._run_id
        rows = database.read(
            lambda connection: connection.execute(select(run_key_blocks.c.hashes).where(mine)).scalars().all()
        )
        if rows:
            self.add(_odd(np.concatenate([np.frombuffer(block, dtype="<u8") for block in rows]).astype(np.uint64)))


def _of_frame(frame: pl.DataFrame) -> Hashes | None:
    try:
        return frame.select(_alike(column) for column in frame).hash_rows(_SEED).to_numpy()
    except Exception:  # a type that polars does not hash
        return None


def _of_columns(columns: Sequence[Sequence[Any]]) -> Hashes:
    """Return the hashes of keys. Those of one type have the same hash in every batch, whatever stands beside them."""
    import numpy as np
    import polars as pl

    def of_one_type(columns: Sequence[Sequence[Any]]) -> Hashes | None:
        try:
            return _of_frame(pl.DataFrame({str(at): values for at, values in enumerate(columns)}))
        except Exception:  # values of several types, or of one that polars does not know
            return None

    if (found := of_one_type(columns)) is not None:
        return found
    places: dict[tuple[type, ...], list[int]] = {}
    keys = list(zip(*columns, strict=True))
    for place, key in enumerate(keys):
        places.setdefault(tuple(map(type, key)), []).append(place)
    hashes = np.empty(len(keys), dtype=np.uint64)
    for those in places.values():
        found = of_one_type([[values[place] for place in those] for values in columns])
        if found is None:
            found = np.array([int.from_bytes(digest_of(keys[place])[:8]) for place in those], dtype=np.uint64)
        hashes[those] = found
    return hashes


def _alike(column: pl.Series) -> pl.Series:
    """Return a column in which equal numbers are equal, whatever the type and the decimal places are in this batch."""
    import polars as pl

    kind = column.dtype
    if kind.is_integer():
        return column.cast(pl.Int64)
    if not kind.is_numeric():
        return column
    whole = column.cast(pl.Int64, strict=False)
    is_whole = (whole.cast(kind, strict=False) == column).fill_null(False)
    texts = column.cast(pl.String).str.replace(r"(\.\d*?)0+$", "${1}").str.strip_suffix(".")
    return whole.zip_with(is_whole, texts.hash(_SEED).reinterpret(signed=True))


def _odd(hashes: Hashes) -> Hashes:
    """Return the hashes that are there an odd number of times, sorted."""
    import numpy as np

    found, times = np.unique(hashes, return_counts=True)
    return found if len(found) == len(hashes) else found[times % 2 == 1]
