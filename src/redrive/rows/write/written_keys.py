"""The keys that a run has written, used by its writer to find and count rows of a key that was written before.

`KeysSeen` is used if no key may be written twice. `DistinctKeys` counts if later rows overwrite earlier rows of a key:
`written` is the number of rows in the sink, so a key of several batches counts once, and a deleted key does not count.
Each batch stores the keys whose state it changed: a key is in the sink if an odd number of batches has it. Keys are
stored as hashes of eight bytes. In a run with ten million rows, two keys share a hash with a probability of about one
in 400,000, and then the count is off by one. Only counts depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import Connection, select

from redrive.rows.batch import Outgoing
from redrive.store.database import Database
from redrive.store.schema import run_key_blocks, run_keys

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]
else:
    Hashes = Any

_AT_ONCE = 500  # parameters of one statement: SQLite and PostgreSQL both take many more
MOST = 20_000_000
"""Maximum number of stored keys: 160 MB. Beyond it, every written row counts."""
_SEED = 7


def digest_of(key: tuple[Any, ...]) -> bytes:
    """Return a key as sixteen bytes."""
    # Numbers that are equal are one key, whatever type they have and however many zeros.
    normalized = tuple(
        _normalize_number(Decimal(part)) if isinstance(part, int | float | Decimal) else part for part in key
    )
    return blake2b(repr(normalized).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _normalize_number(number: Decimal) -> Decimal:
    return number.normalize() if number else Decimal(0)


class KeysSeen:
    """The keys of a run in the store, saved with the checkpoint, so that a resumed run knows them."""

    def __init__(self, database: Database, run_id: UUID, key: Sequence[str]) -> None:
        self._database = database
        self._run_id = run_id
        self._key = tuple(key)

    def digests(self, rows: Outgoing) -> list[bytes]:
        """Return the keys of rows, each as sixteen bytes."""
        rows = rows.keyed
        parts = zip(*(rows.values(name) for name in self._key), strict=True)
        return [digest_of(key) for key in parts]

    def known(self, connection: Connection, digests: Sequence[bytes]) -> set[bytes]:
        """Return the keys that the run has written before."""
        known_digests: set[bytes] = set()
        for start in range(0, len(digests), _AT_ONCE):
            is_listed = run_keys.c.key_digest.in_(digests[start : start + _AT_ONCE])
            known_digests.update(
                connection.execute(
                    select(run_keys.c.key_digest).where(run_keys.c.run_id == self._run_id, is_listed)
                ).scalars()
            )
        return known_digests

    def add(self, connection: Connection, digests: Sequence[bytes]) -> None:
        """Store keys, in the transaction that moves the checkpoint."""
        if digests:
            new = self._database.dialect.insert(run_keys).on_conflict_do_nothing()
            connection.execute(new, [{"run_id": self._run_id, "key_digest": digest} for digest in digests])


class DistinctKeys:
    """The keys of a run, in memory, and in the store for a resumed run."""

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
        if rows.as_frame is not None and (hashes := _hash_frame(rows.as_frame.select(self._key))) is not None:
            return hashes
        return _hash_columns([rows.values(name) for name in self._key])

    def merge(self, parts: Sequence[Hashes]) -> tuple[Hashes, int]:
        """Return the distinct keys of a batch that are new to the run, and the number of rows whose key is not."""
        import numpy as np

        every = np.concatenate([np.empty(0, dtype=np.uint64), *parts])
        hashes = np.unique(every)
        new = hashes[~self._find_known(hashes)]
        return new, len(every) - len(new)

    def changed(self, parts: Sequence[Hashes]) -> Hashes:
        """Return the keys that a batch has added to the sink or removed from it."""
        import numpy as np

        return _keep_odd(np.concatenate([np.empty(0, dtype=np.uint64), *parts]))

    def known(self, hashes: Hashes, more: Sequence[Hashes]) -> list[bool]:
        """Return for each key whether the sink has a row of it from this run; `more` are changes of this batch."""
        import numpy as np

        is_known = self._find_known(hashes)
        for changed in more:
            is_known ^= np.isin(hashes, changed)
        return [bool(flag) for flag in is_known]

    def _find_known(self, hashes: Hashes) -> NDArray[np.bool_]:
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
        """Add the keys of a saved batch."""
        import numpy as np

        if not len(hashes) or self._count + len(hashes) > MOST:
            return
        self._count += len(hashes)
        # Blocks of equal size are merged, so that there are only as many as the count has binary digits.
        while self._sorted and len(self._sorted[-1]) <= len(hashes):
            hashes = _keep_odd(np.concatenate([self._sorted.pop(), hashes]))
        if len(hashes):
            self._sorted.append(hashes)

    def _load(self, database: Database) -> None:
        import numpy as np

        mine = run_key_blocks.c.run_id == self._run_id
        rows = database.read(
            lambda connection: connection.execute(select(run_key_blocks.c.hashes).where(mine)).scalars().all()
        )
        if rows:
            self.add(_keep_odd(np.concatenate([np.frombuffer(block, dtype="<u8") for block in rows]).astype(np.uint64)))


def _hash_frame(frame: pl.DataFrame) -> Hashes | None:
    try:
        return frame.select(_normalize_column(column) for column in frame).hash_rows(_SEED).to_numpy()
    except Exception:  # a type that polars does not hash
        return None


def _hash_columns(columns: Sequence[Sequence[Any]]) -> Hashes:
    """Return the hashes of keys. A key has the same hash in every batch, whatever the types of the other keys are."""
    import numpy as np
    import polars as pl

    def hash_one_type(columns: Sequence[Sequence[Any]]) -> Hashes | None:
        try:
            return _hash_frame(pl.DataFrame({str(at): values for at, values in enumerate(columns)}))
        except Exception:  # values of several types, or of one that polars does not know
            return None

    if (type_hashes := hash_one_type(columns)) is not None:
        return type_hashes
    places: dict[tuple[type, ...], list[int]] = {}
    keys = list(zip(*columns, strict=True))
    for place, key in enumerate(keys):
        places.setdefault(tuple(map(type, key)), []).append(place)
    hashes = np.empty(len(keys), dtype=np.uint64)
    for type_places in places.values():
        type_hashes = hash_one_type([[values[place] for place in type_places] for values in columns])
        if type_hashes is None:
            type_hashes = np.array(
                [int.from_bytes(digest_of(keys[place])[:8]) for place in type_places], dtype=np.uint64
            )
        hashes[type_places] = type_hashes
    return hashes


def _normalize_column(column: pl.Series) -> pl.Series:
    """Return a column in which equal numbers are equal, whatever their type and decimal places in this batch."""
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


def _keep_odd(hashes: Hashes) -> Hashes:
    """Return the hashes that occur an odd number of times, sorted."""
    import numpy as np

    distinct, times = np.unique(hashes, return_counts=True)
    return distinct if len(distinct) == len(hashes) else distinct[times % 2 == 1]
