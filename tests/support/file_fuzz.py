"""Differential fuzzing of files: each case writes one, reads it with redrive, and compares with an independent reader.

A case is made from its number alone. What it checks: every record of the oracle is a row or is handed out as
unreadable, nothing else is, and damage that hides records is an error.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from redrive import rows
from redrive.errors import SourceError
from redrive.rows.batch import Batch
from tests.oracles.compressed import PACKERS, flipped, truncated
from tests.oracles.json_lines import comparable, read_lines

Case = Callable[[int, Path], None]


@dataclass
class Outcome:
    """What a source gave: its batches, and the error that ended it."""

    batches: list[Batch] = field(default_factory=list)
    error: SourceError | None = None

    @property
    def records(self) -> list[Any]:
        return [record for batch in self.batches for record in batch.rows.records]

    @property
    def unreadable(self) -> list[Any]:
        return [one for batch in self.batches for one in batch.unreadable]

    def by_line(self) -> tuple[dict[int, Any], dict[int, bytes]]:
        """Return records and unreadable lines by the numbers of their lines; no number comes twice."""
        good = [
            (_number(batch.position_of(place)), comparable(batch.rows.records[place]))
            for batch in self.batches
            for place in range(len(batch.rows))
        ]
        bad = [(_number(one.position), one.raw) for one in self.unreadable]
        assert len({number for number, _ in [*good, *bad]}) == len(good) + len(bad)
        return dict(good), dict(bad)


def read(source: Any, rng: Random) -> Outcome:
    """Read a source to its end in batches of random sizes, now and then from the checkpoint of a batch."""
    outcome = Outcome()
    try:
        identity = source.identity()
        reading = source.open(None, identity)
        try:
            while (batch := reading.read(rng.choice([1, 2, 3, 7, 50, 1_000]))) is not None:
                outcome.batches.append(batch)
                if rng.random() < 0.1:
                    reading.close()
                    identity = json.loads(json.dumps(identity))
                    assert source.difference(identity) is None
                    reading = source.open(json.loads(json.dumps(batch.next)), identity)
        finally:
            reading.close()
    except SourceError as error:
        outcome.error = error
    return outcome


def run(case: Case, numbers: Iterable[int], folder: Path) -> None:
    """Run cases; a failure names the number to repeat it with."""
    for number in numbers:
        try:
            case(number, folder)
        except BaseException as error:
            error.add_note(f"{case.__name__}, case {number}, files in {folder}")
            raise


# ── NDJSON ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def ndjson_case(number: int, folder: Path) -> None:
    rng = Random(f"ndjson {number}")
    data = json_file(rng)
    path = folder / "case.ndjson"
    path.write_bytes(data)
    with _small_blocks("ndjson.source", rng):
        outcome = read(rows.ndjson(path), rng)
    if outcome.error is None:
        assert outcome.by_line() == read_lines(data)
    else:
        _check_refusal(outcome, data)


def _check_refusal(outcome: Outcome, data: bytes) -> None:
    """Check that a file was refused as not NDJSON, and is not: no line of it is a record, or one that ends an array."""
    records, bad = read_lines(data)
    assert "NDJSON" in str(outcome.error) or "UTF-16" in str(outcome.error)
    assert outcome.batches == []
    assert bad
    assert not records or "over several lines" in str(outcome.error)


def json_file(rng: Random) -> bytes:
    """Return lines of JSON objects, and of other things."""
    end = rng.choice([b"\n", b"\n", b"\r\n", b"\r"])
    lines = [_json_line(rng) for _ in range(rng.choice([0, 1, 3, 20]))]
    data = (b"\xef\xbb\xbf" if rng.random() < 0.1 else b"") + end.join(lines) + rng.choice([end, b""])
    return data if not data.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK", b"BZh", b"\xfd7z")) else b"{}" + data


def _json_line(rng: Random) -> bytes:
    kind = rng.random()
    if kind < 0.05:
        return rng.choice([b"", b"  ", b"\t", b"[]", b"null", b"7", b'"x"', b"{", b"}", b"{}{}", b"{}\0", b'{"a":}'])
    line = _json_object(rng, 0).encode("utf-8", "surrogatepass")
    if kind < 0.25:
        return _mutated(line, rng)
    return line


def _json_object(rng: Random, depth: int) -> str:
    space = rng.choice(["", "", " ", "\t"])
    items = [f'"{_json_text(rng)}"{space}:{space}{_json_value(rng, depth)}' for _ in range(rng.randrange(4))]
    return "{" + space + f",{space}".join(items) + space + "}"


def _json_value(rng: Random, depth: int) -> str:
    kind = rng.random()
    if kind < 0.45:
        return _json_number(rng)
    if kind < 0.75:
        return f'"{_json_text(rng)}"'
    if kind < 0.85 or depth > 2:
        return rng.choice(["true", "false", "null", "NaN", "-Infinity", "Infinity"])
    if kind < 0.93:
        return "[" + ", ".join(_json_value(rng, depth + 1) for _ in range(rng.randrange(4))) + "]"
    return _json_object(rng, depth + 1)


def _json_number(rng: Random) -> str:
    digits = "".join(rng.choices("0123456789", k=rng.choice([1, 2, 5, 14, 15, 16, 17, 18, 19, 20, 21, 40])))
    text = rng.choice(["", "-"]) + (digits.lstrip("0") or "0")
    if rng.random() < 0.1:
        return repr(rng.uniform(-1e6, 1e6))
    if rng.random() < 0.5:
        text += "." + "".join(rng.choices("0123456789", k=rng.choice([1, 2, 6, 9, 15, 17, 25])))
    if rng.random() < 0.3:
        text += (
            rng.choice("eE") + rng.choice(["", "+", "-"]) + str(rng.choice([0, 1, 5, 22, 99, 100, 300, 308, 324, 400]))
        )
    return text


def _json_text(rng: Random) -> str:
    alphabet = [
        "a",
        "1",
        "0",
        ".",
        "e",
        "-",
        ":",
        ",",
        "[",
        " ",
        "é",
        "🚚",
        "\\n",
        '\\"',
        "\\\\",
        "\\u00e9",
        "\\ud800",
        "\x7f",
    ]
    return "".join(rng.choices(alphabet, k=rng.choice([0, 1, 3, 20])))


def _mutated(line: bytes, rng: Random) -> bytes:
    data = bytearray(line)
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(data) + 1)
        if rng.random() < 0.5:
            data[place : place + 1] = b""
        else:
            data[place : place + rng.randrange(2)] = bytes([rng.randrange(256)])
    return bytes(data)


# ── compression ───────────────────────────────────────────────────────────────────────────────────────────────────────


def compression_case(number: int, folder: Path) -> None:
    rng = Random(f"compression {number}")
    kind = rng.choice(sorted(PACKERS))
    is_csv = rng.random() < 0.5
    data = _csv_file(rng) if is_csv else json_file(rng)
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice([0, 0, 1, 3])))
    pieces = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    members = [PACKERS[kind](piece) for piece in pieces]
    damage = rng.choice([None, truncated, flipped])
    packed, whole = (b"".join(members), len(members)) if damage is None else damage(members, rng)
    path = folder / f"case.{'csv' if is_csv else 'ndjson'}.{kind}"
    path.write_bytes(packed)
    source = rows.csv(path, header=False, columns=["a", "b"]) if is_csv else rows.ndjson(path)
    with _small_blocks("csv.header" if is_csv else "ndjson.source", rng):
        outcome = read(source, rng)
    intact = b"".join(pieces[:whole])
    is_whole_file = packed in [b"".join(members[:count]) for count in range(1, len(members) + 1)]
    if _looks_like_another_file(packed):
        return
    if not is_csv and outcome.error is not None and "is damaged" not in str(outcome.error):
        # Also a file whose flipped bits mean nothing, and one that ends behind a whole member.
        _check_refusal(outcome, intact if is_whole_file else data)
        return
    if outcome.error is None:
        # A shorter file of whole members cannot be told from one that was written so, and some bits mean nothing.
        assert is_whole_file or damage is flipped
        expected = [intact if is_whole_file else data]
    else:
        assert not is_whole_file, outcome.error
        assert "is damaged" in str(outcome.error)
        # The bit may be the one that says that there is a checksum: its member is right, and what follows it is not.
        prefixes = [intact] if damage is truncated else [b"".join(pieces[:n]) for n in range(whole, len(pieces) + 1)]
        ends = (b"\n",) if is_csv else (b"\n", b"\r")
        expected = [prefix[: max(map(prefix.rfind, ends)) + 1] for prefix in prefixes]
    assert outcome.by_line() in [_csv_lines(one) if is_csv else read_lines(one) for one in expected]


def _csv_file(rng: Random) -> bytes:
    return "".join(
        f"{number},{rng.choice(['x', '', 'é', 'long ' * 9])}\n" for number in range(rng.choice([0, 3, 60]))
    ).encode()


def _csv_lines(data: bytes) -> tuple[dict[int, Any], dict[int, bytes]]:
    good, bad = {}, {}
    for number, line in enumerate(data.splitlines(), 1):
        fields = line.decode("utf-8", "surrogateescape").split(",")
        if len(fields) == 2 and "".join(fields).isprintable():
            good[number] = comparable({name: text or None for name, text in zip("ab", fields, strict=True)})
        else:
            bad[number] = line
    return good, bad


def _looks_like_another_file(packed: bytes) -> bool:
    """Whether a flipped bit has made it a text, or an archive that is refused by name."""
    return len(packed) >= 4 and not packed.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd"))


# ── Parquet ───────────────────────────────────────────────────────────────────────────────────────────────────────────

COLUMNS: dict[str, tuple[Any, Callable[[Random], Any]]] = {
    "integer": (pa.int64(), lambda rng: rng.randrange(-(2**63), 2**63)),
    "small": (pa.uint8(), lambda rng: rng.randrange(256)),
    "float": (pa.float64(), lambda rng: rng.uniform(-1e9, 1e9)),
    "flag": (pa.bool_(), lambda rng: rng.random() < 0.5),
    "text": (pa.string(), lambda rng: "".join(rng.choices("abé🚚\0", k=rng.randrange(12)))),
    "kind": (pa.string(), lambda rng: rng.choice(["red", "green", ""])),
    "raw": (pa.binary(), lambda rng: rng.randbytes(rng.randrange(9))),
    "fee": (pa.decimal128(20, 2), lambda rng: Decimal(rng.randrange(-(10**12), 10**12)).scaleb(-2)),
    "day": (pa.date32(), lambda rng: date.fromordinal(rng.randrange(1, date.max.toordinal()))),
    "at": (pa.timestamp("us", "UTC"), lambda rng: datetime.fromtimestamp(rng.randrange(2**32), UTC)),
    "tags": (pa.list_(pa.string()), lambda rng: [rng.choice(["x", None, "é"]) for _ in range(rng.randrange(4))]),
    "place": (pa.struct([("x", pa.int32()), ("y", pa.string())]), lambda rng: {"x": rng.randrange(9), "y": None}),
}


def parquet_case(number: int, folder: Path) -> None:
    rng = Random(f"parquet {number}")
    table = _table(rng)
    path = folder / "case.parquet"
    pq.write_table(
        table,
        path,
        row_group_size=rng.choice([1, 5, 40, 1_000]),
        compression=rng.choice(["none", "snappy", "zstd", "gzip"]),
        use_dictionary=rng.random() < 0.5,
        data_page_version=rng.choice(["1.0", "2.0"]),
        data_page_size=rng.choice([64, 1_000, 1 << 20]),
        write_page_checksum=True,
    )
    damage = rng.choice(["none", "none", "flip", "flip", "cut"])
    data = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(data[: rng.randrange(len(data))])
        outcome = read(rows.parquet(path), rng)
        assert outcome.error is not None
        assert outcome.batches == []
        return
    if damage == "flip":
        footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        if footer <= 4:
            return
        data[rng.randrange(4, footer)] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    outcome = read(rows.parquet(path), rng)
    assert outcome.error is None
    _compare_groups(path, table, outcome)
    if damage == "none":
        assert outcome.records == table.to_pylist()
        assert [row["id"] for row in outcome.records] == _ids_by_duckdb(path)


def _table(rng: Random) -> pa.Table:
    count = rng.choice([0, 1, 7, 100])
    names = rng.sample(sorted(COLUMNS), rng.randrange(1, 6))
    columns = {"id": pa.array(range(count), pa.int64())}
    for name in names:
        kind, make = COLUMNS[name]
        empty = rng.choice([0.0, 0.2, 1.0])
        columns[name] = pa.array([None if rng.random() < empty else make(rng) for _ in range(count)], kind)
    return pa.table(columns)


def _compare_groups(path: Path, table: pa.Table, outcome: Outcome) -> None:
    """Compare with what Arrow reads of each row group by itself."""
    given = {
        _number(batch.position_of(place)): batch.rows.records[place]
        for batch in outcome.batches
        for place in range(len(batch.rows))
    }
    set_aside = {}
    for one in outcome.unreadable:
        first = _number(one.position.partition(" to ")[0])
        for number in range(first, first + one.rows):
            assert number not in set_aside
            set_aside[number] = one
    assert sorted([*given, *set_aside]) == list(range(1, len(table) + 1))
    file = pq.ParquetFile(path, page_checksum_verification=True)
    start = 0
    for group in range(file.metadata.num_row_groups):
        count = file.metadata.row_group(group).num_rows
        numbers = range(start + 1, start + count + 1)
        original = table.slice(start, count)
        start += count
        try:
            found = file.read_row_group(group)
        except (pa.ArrowException, OSError):
            assert all(number in set_aside for number in numbers)
            continue
        if found.equals(original):
            assert [given.get(number) for number in numbers] == original.to_pylist()
    file.close()


@functools.cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


def _ids_by_duckdb(path: Path) -> list[int]:
    found = _duckdb().execute("SELECT id FROM read_parquet($path) ORDER BY file_row_number", {"path": str(path)})
    return [row[0] for row in found.fetchall()]


# ── both ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _small_blocks(module: str, rng: Random) -> Iterator[None]:
    """Read in blocks so small that lines and records are cut by them everywhere."""
    name = "BLOCK" if module == "csv.header" else "_BLOCK"
    with mock.patch(f"redrive.rows.sources.{module}.{name}", rng.choice([5, 7, 64, 1 << 20])):
        yield


def _number(position: str) -> int:
    return int(position.split()[1])
