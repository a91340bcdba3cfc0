"""The records of a CSV file as Python's `csv` module and DuckDB read them, and lines as the `csv` module writes them.

Suites of `redrive.rows.csv` compare its rows with these. Neither reader shares code with redrive or with the other one.
Both take a UTF-8 file with a header, commas and double quotes. Both refuse a whole file where redrive rejects one line.
"""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

Records = list[dict[str, str | None]]

# Nothing is sniffed. `strict_mode` refuses what RFC 4180 does not allow instead of guessing.
_READ = """
    SELECT * FROM read_csv($path, auto_detect = false, columns = $columns, header = true, delim = ',', quote = '"',
                           escape = '"', allow_quoted_nulls = false, strict_mode = true, parallel = false)"""


@dataclass(frozen=True)
class Refused:
    """Stands for the records of a file that a reader does not read."""

    reason: str


# ── readers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_with_csv_module(path: Path) -> Records | Refused:
    """Return the records as the `csv` module reads them; an empty field is "", whether it is quoted or not."""
    table = _table(path)
    if isinstance(table, Refused) or not table:
        return table
    header, *rows = table
    if len(set(header)) < len(header):
        return Refused(f"the header has a name twice: {header}")
    ragged = [fields for fields in rows if len(fields) != len(header)]
    if ragged:
        return Refused(f"a record does not have the {len(header)} fields of the header: {ragged[0]}")
    return [dict(zip(header, fields, strict=True)) for fields in rows]


def read_with_duckdb(path: Path) -> Records | Refused:
    """Return the records as DuckDB reads them; an empty field is None, a quoted empty field is "".

    DuckDB needs the names of the columns where it does not sniff: they are those that the `csv` module reads.
    """
    table = _table(path)
    if isinstance(table, Refused) or not table:
        return table
    names = table[0]
    columns = dict.fromkeys(names, "VARCHAR")
    if len(columns) < len(names) or "" in columns:
        return Refused(f"the header has a name twice, or an empty name: {names}")
    try:
        rows = _duckdb().execute(_READ, {"path": str(path), "columns": columns}).fetchall()
    except duckdb.Error as error:
        return Refused(str(error))
    return [dict(zip(names, row, strict=True)) for row in rows]


def agreed_records(by_csv_module: Records | Refused, by_duckdb: Records | Refused) -> Records | None:
    """Return the records that both readers read alike, as DuckDB has them; None where they do not agree."""
    if isinstance(by_csv_module, Refused) or isinstance(by_duckdb, Refused):
        return None
    return by_duckdb if by_csv_module == missing_as_blank(by_duckdb) else None


def missing_as_blank(records: Records) -> Records:
    """Return the records with "" for None, for a comparison with the `csv` module, which has no None."""
    return [{name: value or "" for name, value in record.items()} for record in records]


def _table(path: Path) -> list[list[str]] | Refused:
    """Return the fields of every line that is not empty, the header first."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return [fields for fields in csv.reader(file, strict=True) if fields]
    except (csv.Error, UnicodeDecodeError) as error:
        return Refused(str(error))


@functools.cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": 1})


# ── writer ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode_records(rows: Iterable[Iterable[Any]], *, quote_all: bool = False, line_end: str = "\r\n") -> bytes:
    """Return rows as the `csv` module writes them, in UTF-8; what UTF-8 does not hold is replaced."""
    text = io.StringIO()
    quoting = csv.QUOTE_ALL if quote_all else csv.QUOTE_MINIMAL
    csv.writer(text, quoting=quoting, lineterminator=line_end).writerows(rows)
    return text.getvalue().encode("utf-8", "replace")


def replace_unencodable(value: str) -> str:
    """Return a value as it is after `encode_records` and decoding."""
    return value.encode("utf-8", "replace").decode()


# ── records with their lines ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class SplitRecord:
    """A record as the `csv` module ends it, in bytes.

    first, last  the numbers of its lines, from 1 up
    raw          its bytes, with the last line end
    fields       its fields; an empty line has none
    """

    first: int
    last: int
    raw: bytes
    fields: tuple[bytes, ...]


def split_records(data: bytes, *, delimiter: bytes = b",", quote: bytes | None = b'"') -> list[SplitRecord]:
    """Return all records, empty lines included, whatever their encoding and number of fields.

    The `csv` module reads text: each byte is given to it as one character.
    """
    lines = list(io.StringIO(data.decode("latin-1"), newline=""))
    reader = csv.reader(lines, **_format(delimiter, quote))
    records, first = [], 0
    before = csv.field_size_limit(1 << 40)
    try:
        for fields in reader:
            raw = "".join(lines[first : reader.line_num])
            texts = tuple(field.encode("latin-1") for field in fields)
            records.append(SplitRecord(first + 1, reader.line_num, raw.encode("latin-1"), texts))
            first = reader.line_num
    finally:
        csv.field_size_limit(before)
    return records


def has_sound_quotes(record: SplitRecord, *, delimiter: bytes = b",", quote: bytes | None = b'"') -> bool:
    """Return whether every quote is closed, and followed by a delimiter or the end of the record."""
    lines = io.StringIO(record.raw.decode("latin-1"), newline="")
    try:
        return len(list(csv.reader(lines, strict=True, **_format(delimiter, quote)))) == 1
    except csv.Error:
        return False


def _format(delimiter: bytes, quote: bytes | None) -> dict[str, Any]:
    if quote is None:
        return {"delimiter": delimiter.decode(), "quotechar": None, "quoting": csv.QUOTE_NONE}
    return {"delimiter": delimiter.decode(), "quotechar": quote.decode()}
