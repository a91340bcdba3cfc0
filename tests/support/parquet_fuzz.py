"""Fuzzing of Parquet files: types that Python does not have, at any depth, and bits flipped in the footer.

A case is made from its number alone. Every row is handed out with its values, or is unreadable, and there is no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from redrive import rows
from tests.support.file_fuzz import read

_EPOCH = datetime(1970, 1, 1)
_NOT_UTF_8 = [b"\xff", b"caf\xe9", b"\xc3", b"\xed\xa0\x80"]


@dataclass(frozen=True)
class Kind:
    """A type: how a value is made, how an array is made of values, and what redrive gives for one.

    make   a value, not None
    array  the Arrow array of values, None among them
    plain  what both sides are compared as; of a value that was made, and of one that was read
    fits   whether a record can hold the value
    """

    make: Callable[[Random], Any]
    array: Callable[[Sequence[Any]], pa.Array]
    plain: Callable[[Any], Any]
    fits: Callable[[Any], bool] = lambda value: True


def _of_type(arrow: Any, make: Callable[[Random], Any]) -> Kind:
    return Kind(make, lambda values: pa.array(values, arrow), lambda value: value)


def _text() -> Kind:
    """Texts, some of which are not UTF-8; as bytes here."""

    def make(rng: Random) -> bytes:
        text = "".join(rng.choices("abé🚚\0", k=rng.randrange(4))).encode()
        return text if rng.random() < 0.97 else text + rng.choice(_NOT_UTF_8)

    def array(values: Sequence[Any]) -> pa.Array:
        return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())

    return Kind(make, array, lambda value: value.encode() if isinstance(value, str) else value, _is_utf_8)


def _is_utf_8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _uuid() -> Kind:
    def array(values: Sequence[Any]) -> pa.Array:
        return pa.ExtensionArray.from_storage(pa.uuid(), pa.array(values, pa.binary(16)))

    def plain(value: Any) -> Any:
        return str(UUID(bytes=value)) if isinstance(value, bytes) else str(value)

    return Kind(lambda rng: rng.randbytes(16), array, plain)


def _nanoseconds(zone: str | None) -> Kind:
    def make(rng: Random) -> int:
        unit = rng.choice([1, 1_000, 10**9])
        return rng.randrange(-(2**62), 2**62) // unit * unit

    def plain(value: Any) -> Any:
        if isinstance(value, int):
            return value
        if isinstance(value, str):
            return int(np.datetime64(value[:29], "ns").astype("int64")) - _offset_of(value[29:])
        if value.tzinfo is not None:
            value = value.astimezone(UTC).replace(tzinfo=None)
        return (value - _EPOCH) // timedelta(microseconds=1) * 1_000

    return Kind(make, lambda values: pa.array(values, pa.timestamp("ns", zone)), plain)


def _offset_of(text: str) -> int:
    """Return "+05:30" or "+0530" in nanoseconds."""
    if text in ("", "Z"):
        return 0
    return (-1 if text[0] == "-" else 1) * (int(text[1:3]) * 60 + int(text[-2:])) * 60 * 10**9


def _wide_decimal(rng: Random) -> Decimal:
    return Decimal((rng.randrange(2), rng.choices(range(10), k=rng.choice([1, 20, 60])), -5))


LEAVES: dict[str, Callable[[], Kind]] = {
    "integer": lambda: _of_type(pa.int64(), lambda rng: rng.randrange(-(2**63), 2**63)),
    "text": _text,
    "uuid": _uuid,
    "nanoseconds": lambda: _nanoseconds(None),
    "zoned": lambda: _nanoseconds("Asia/Kolkata"),
    "decimal": lambda: _of_type(pa.decimal256(70, 5), _wide_decimal),
}


def any_kind(rng: Random, depth: int = 0) -> Kind:
    """Return a type, nested to some depth."""
    made = rng.random()
    if made < 0.4 or depth > 2:
        return LEAVES[rng.choice(sorted(LEAVES))]()
    if made < 0.6:
        return _list_of(any_kind(rng, depth + 1))
    if made < 0.75:
        return _struct_of({name: any_kind(rng, depth + 1) for name in "xy"[: rng.randrange(1, 3)]})
    return _map_of(_text() if rng.random() < 0.7 else LEAVES["integer"](), any_kind(rng, depth + 1))


def _or_none(kind: Kind, rng: Random) -> Any:
    return None if rng.random() < 0.2 else kind.make(rng)


def _offsets(values: Sequence[Any]) -> pa.Array:
    """Return where the items of each list begin; None where there is no list."""
    ends = np.cumsum([0, *(0 if value is None else len(value) for value in values)]).tolist()
    return pa.array(
        [None if value is None else start for value, start in zip(values, ends, strict=False)] + ends[-1:], pa.int32()
    )


def _list_of(kind: Kind) -> Kind:
    return Kind(
        lambda rng: [_or_none(kind, rng) for _ in range(rng.randrange(3))],
        lambda values: pa.ListArray.from_arrays(
            _offsets(values), kind.array([one for value in values for one in value or ()])
        ),
        lambda value: [_plain(kind, one) for one in value],
        lambda value: all(_fits(kind, one) for one in value),
    )


def _struct_of(kinds: dict[str, Kind]) -> Kind:
    def array(values: Sequence[Any]) -> pa.Array:
        children = [
            kind.array([None if value is None else value[name] for value in values]) for name, kind in kinds.items()
        ]
        mask = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(children, list(kinds), mask=mask)

    return Kind(
        lambda rng: {name: _or_none(kind, rng) for name, kind in kinds.items()},
        array,
        lambda value: {name: _plain(kinds[name], one) for name, one in value.items()},
        lambda value: all(_fits(kinds[name], one) for name, one in value.items()),
    )


def _map_of(key: Kind, item: Kind) -> Kind:
    """Maps as pairs; a key may come twice."""

    def array(values: Sequence[Any]) -> pa.Array:
        pairs = [pair for value in values for pair in value or ()]
        keys, items = key.array([one for one, _ in pairs]), item.array([one for _, one in pairs])
        return pa.MapArray.from_arrays(_offsets(values), keys, items)

    def plain(value: Any) -> Any:
        pairs = value.items() if isinstance(value, dict) else value
        return {key.plain(one): _plain(item, other) for one, other in pairs}

    def fits(value: Any) -> bool:
        is_unique = len({one for one, _ in value}) == len(value)
        return is_unique and all(key.fits(one) and _fits(item, other) for one, other in value)

    return Kind(lambda rng: [(key.make(rng), _or_none(item, rng)) for _ in range(rng.randrange(3))], array, plain, fits)


def _plain(kind: Kind, value: Any) -> Any:
    return None if value is None else kind.plain(value)


def _fits(kind: Kind, value: Any) -> bool:
    return value is None or kind.fits(value)


# ── cases ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def parquet_kinds_case(number: int, folder: Path) -> None:
    rng = Random(f"parquet kinds {number}")
    count = rng.choice([0, 1, 7, 40])
    kinds = {f"c{place}": any_kind(rng) for place in range(rng.randrange(1, 4))}
    values = {name: [_or_none(kind, rng) for _ in range(count)] for name, kind in kinds.items()}
    table = pa.table(
        {"id": pa.array(range(count), pa.int64())} | {name: kinds[name].array(values[name]) for name in kinds}
    )
    path = folder / "kinds.parquet"
    pq.write_table(table, path, row_group_size=rng.choice([1, 5, 1_000]), use_dictionary=rng.random() < 0.5)
    outcome = read(rows.parquet(path), rng)
    assert outcome.error is None
    good = {place for place in range(count) if all(_fits(kind, values[name][place]) for name, kind in kinds.items())}
    assert [row["id"] for row in outcome.records] == sorted(good)
    assert sorted(one.raw["id"] for one in outcome.unreadable) == sorted(set(range(count)) - good)
    for row in outcome.records:
        for name, kind in kinds.items():
            assert _plain(kind, row[name]) == _plain(kind, values[name][row["id"]]), (row["id"], name)


def parquet_footer_case(number: int, folder: Path) -> None:
    rng = Random(f"parquet footer {number}")
    count = rng.choice([1, 7, 100])
    kinds = {f"c{place}": any_kind(rng, depth=2) for place in range(rng.randrange(1, 4))}
    columns = {name: kind.array([_or_none(kind, rng) for _ in range(count)]) for name, kind in kinds.items()}
    path = folder / "footer.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=rng.choice([5, 1_000]), write_page_checksum=True)
    data = bytearray(path.read_bytes())
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for _ in range(rng.choice([1, 1, 3])):
        data[rng.randrange(footer, len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    outcome = read(rows.parquet(path), rng)  # a SourceError, or what Arrow takes for the file
    if outcome.error is None:
        assert len(outcome.records) + sum(one.rows for one in outcome.unreadable) == pq.read_metadata(path).num_rows
