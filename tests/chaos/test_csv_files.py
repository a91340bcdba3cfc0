"""Generated CSV files as redrive and as Python's `csv` module read them.

Every record of the `csv` module is a row of redrive or is in a letter, and there is no other row. Some files are
compressed, and cut short as well; some go through a pipeline into a table. The short form runs with the tests;
`make chaos` runs 100,000 files. A failure names the number of its file: `make_case(number)` makes it
again.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter, deque
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from unittest import mock

import pytest

from redrive import rows
from redrive.errors import SourceError
from redrive.rows.sources.csv import header as csv_header
from redrive.rows.sources.csv import reader
from tests.oracles.compressed import PACKERS, truncated
from tests.oracles.csv_files import (
    SplitRecord,
    agreed_records,
    has_sound_quotes,
    read_with_csv_module,
    read_with_duckdb,
    split_records,
)
from tests.oracles.json_lines import comparable
from tests.support.csv_cases import CsvCase, make_case
from tests.support.pipeline_fuzz import as_text, run_pipeline

SHORT = 400
PARTS, FILES_OF_A_PART = 20, 5_000
EVERY_PIPELINE = 200  # a run takes as long as many files
AMBIGUOUS = "a quote is not closed, or text follows a closing quote on a later line"


@dataclass(frozen=True)
class Row:
    line: int
    values: tuple[str | None, ...]


@dataclass(frozen=True)
class Letter:
    line: int
    raw: bytes
    is_whole: bool
    error: str
    counted: int

    @property
    def last_line(self) -> int:
        return self.line + len(re.findall(rb"\r\n?|\n", self.raw)) if self.is_whole else self.line + self.counted - 1


def lines_of(data: bytes) -> list[bytes]:
    return re.findall(rb"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+", data)


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def line_number(position: str) -> int:
    return int(position.removeprefix("line "))


def read(source, case: CsvCase, position=None):
    """Return the rows and the letters from a position on, and where each batch ends."""
    found_rows: list[Row] = []
    letters: list[Letter] = []
    ends = []
    for batch in batches_of(source, case, position):
        assert 0 < len(batch.rows) + len(batch.unreadable) <= case.batch
        for place, values in enumerate(batch.rows.frame.rows()):
            found_rows.append(Row(line_number(batch.position_of(place)), values))
        for bad in batch.unreadable:
            letters.append(letter_of(bad))
            with pytest.raises(ValueError):
                source.again(bad.raw, bad.context)
        ends.append((batch.next, len(found_rows), len(letters)))
    return found_rows, letters, ends


def batches_of(source, case: CsvCase, position=None):
    with contextlib.closing(source.open(position, source.identity())) as reading:
        yield from iter(lambda: reading.read(case.batch), None)


def letter_of(bad) -> Letter:
    is_whole = isinstance(bad.raw, bytes)
    raw = bad.raw if is_whole else bad.raw["too_large"]
    return Letter(line_number(bad.position), raw, is_whole, bad.error, bad.rows)


# ── invariants ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Expectation:
    """What the `csv` module says about a file."""

    def __init__(self, case: CsvCase) -> None:
        self.case = case
        self.format = {"delimiter": case.delimiter, "quote": case.quote}
        records = split_records(case.text, **self.format)
        if case.has_header:
            (header, *_) = (record for record in records if record.fields)
            records = records[records.index(header) + 1 :]
        self.records = records
        self.lines = lines_of(case.text)

    def has_sound_quotes(self, record: SplitRecord) -> bool:
        return has_sound_quotes(record, **self.format)

    def values(self, record: SplitRecord) -> tuple[str, ...] | None:
        """Return the values of a record that is a row; None where it is not."""
        fields = record.fields or (b"",)
        size = len(re.sub(rb"(?:\r\n?|\n)\Z", b"", record.raw))
        if len(fields) != self.case.width or size > self.case.max_record_bytes or not self.has_sound_quotes(record):
            return None
        try:
            return tuple(field.decode(self.case.text_encoding) for field in fields)
        except UnicodeDecodeError:
            return None

    def check_row(self, row: Row, record: SplitRecord) -> None:
        values = self.values(record)
        assert values is not None, f"invented: {row}"
        for value, text in zip(row.values, values, strict=True):
            assert value == text or (value is None and text in self.case.null), (row, record)
        assert all(value is None for value in row.values) or record.fields or self.case.null != ("",)

    def check_letter(self, letter: Letter, held: list[SplitRecord]) -> None:
        assert held, f"{letter} holds no record"
        assert letter.last_line == held[-1].last, (letter, held)
        raw = b"".join(self.lines[letter.line - 1 : letter.last_line])
        assert re.sub(rb"(?:\r\n?|\n)\Z", b"", raw) == letter.raw if letter.is_whole else raw.startswith(letter.raw)
        if letter.error.startswith(AMBIGUOUS):
            assert not self.has_sound_quotes(held[0])
        else:
            assert len(held) == 1
            assert self.values(held[0]) is None
        assert letter.counted == self.rows_in(letter, held[0])

    def rows_in(self, letter: Letter, record: SplitRecord) -> int:
        """Return how many rejected rows a letter counts as: its lines, or those that could be rows if quotes fit."""
        if letter.error.startswith("not "):  # its text cannot be decoded
            return 1
        lines = self.lines[letter.line - 1 : letter.last_line]
        if not letter.is_whole or not self.has_sound_quotes(record):
            return len(lines)
        return 1 + sum(line.count(self.case.delimiter) == self.case.width - 1 for line in lines[1:-1])


def check(case: CsvCase, found_rows: list[Row], letters: list[Letter]) -> None:
    """Compare: every record once, in a row or in a letter, in the order of the file."""
    expectation = Expectation(case)
    by_line = {one.line: one for one in [*found_rows, *letters]}
    assert len(by_line) == len(found_rows) + len(letters)
    records = deque(expectation.records)
    for line in sorted(by_line):
        found = by_line[line]
        skip_empty_lines(records, case)
        assert records, f"invented: {found}"
        assert records[0].first == line, (records[0], found)
        if isinstance(found, Row):
            expectation.check_row(found, records.popleft())
            continue
        held = []
        while records and records[0].last <= found.last_line:
            held.append(records.popleft())
        expectation.check_letter(found, held)
    skip_empty_lines(records, case)
    assert not records, f"lost: {records}"


def skip_empty_lines(records: deque[SplitRecord], case: CsvCase) -> None:
    while case.width > 1 and records and not records[0].fields:
        records.popleft()


def check_against_duckdb(path, case: CsvCase, found_rows: list[Row]) -> None:
    """Compare None and "" with DuckDB, which tells them apart; where both other readers take the file."""
    agreed = agreed_records(read_with_csv_module(path), read_with_duckdb(path))
    if agreed is not None and case.width > 1:
        assert [row.values for row in found_rows] == [tuple(record.values()) for record in agreed]


def check_truncated(path, case: CsvCase, members: list[bytes], found_rows: list[Row], letters: list[Letter]) -> None:
    """Compare with what is read of the file cut short: the same from its start, and then an error."""
    packed, _ = truncated(members, Random(case.number))
    is_whole = packed in [b"".join(members[:count]) for count in range(len(members) + 1)]
    if is_whole or not packed.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")):
        return  # it looks like a shorter file, or like a text
    path.write_bytes(packed)
    source, rest = rows.csv(path, **case.options), deque([*found_rows, *letters])
    with pytest.raises(SourceError, match=r"is damaged|no header that can be read|cannot be read"):  # noqa: PT012
        for batch in batches_of(source, case):
            for place, values in enumerate(batch.rows.frame.rows()):
                rest.remove(Row(line_number(batch.position_of(place)), values))
            for letter in map(letter_of, batch.unreadable):
                # Of a record that is too large, the size up to the damage is told.
                rest.remove(letter if letter.is_whole else next(one for one in letters if one.line == letter.line))


def check_pipeline(path, case: CsvCase, found_rows: list[Row], letters: list[Letter]) -> None:
    """Compare with the rows of a table and the letters of a store."""
    found = run_pipeline(rows.csv(path, **case.options), path.parent)
    assert found is not None
    written, stored = found
    assert written == Counter(
        as_text(comparable(dict(zip(case.columns, row.values, strict=True)))) for row in found_rows
    )
    held = [(position, raw if isinstance(raw, bytes) else raw["too_large"]) for position, raw in stored]
    assert held == sorted((f"line {letter.line}", letter.raw) for letter in letters)


def packed_members(case: CsvCase) -> list[bytes]:
    """Return the file compressed, as one member or several."""
    random = Random(case.number)
    pack = PACKERS[random.choice(sorted(PACKERS))]
    cuts = sorted(random.randrange(len(case.content) + 1) for _ in range(random.choice([0, 1, 3])))
    return [pack(case.content[start:end]) for start, end in pairwise([0, *cuts, len(case.content)])]


def run(path, number: int) -> None:
    case = make_case(number)
    members = packed_members(case) if number % 4 == 1 else []
    try:
        path.write_bytes(b"".join(members) or case.content)
        source = rows.csv(path, **case.options)
        with (
            mock.patch.object(csv_header, "BLOCK", case.block),
            mock.patch.object(reader, "_BATCH_BYTES", case.batch_bytes),
        ):
            found_rows, letters, ends = read(source, case)
            check(case, found_rows, letters)
            if ends and number % 3 == 0:
                position, rows_before, letters_before = ends[number % len(ends)]
                rest = read(source, case, position)[:2]
                assert rest == (found_rows[rows_before:], letters[letters_before:]), "resumed"
            if number % EVERY_PIPELINE == 0:
                check_pipeline(path, case, found_rows, letters)
            if members:
                check_truncated(path, case, members, found_rows, letters)
        plain = (case.encoding, case.delimiter, case.quote, case.null) == ("utf-8", b",", b'"', ("",))
        if plain and case.has_header and not letters and not members:
            check_against_duckdb(path, case, found_rows)
    except BaseException as error:
        error.add_note(f"make_case({number}) = {case}")
        raise


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("quote", [b"", b'"'], ids=["bare", "quoted"])
@pytest.mark.parametrize("over", range(-3, 4))
def test_record_that_ends_at_the_end_of_a_block_is_a_row(tmp_path, over, quote, line_end):
    path = tmp_path / "file.csv"
    text = b"x" * (csv_header.BLOCK + over - len(b"a,b1,") - len(quote * 2) - 2 * len(line_end))
    lines = [b"a,b", b"1," + quote + text + quote, b'2,"y\rz"', b"3"]
    path.write_bytes(line_end.join(lines) + line_end)
    source = rows.csv(path)
    with contextlib.closing(source.open(None, source.identity())) as reading:
        batch = reading.read(10)
        assert [row["b"] for row in batch.rows.records] == [text.decode(), "y\rz"]
        assert [(bad.raw, bad.position) for bad in batch.unreadable] == [(b"3", "line 5")]
        assert reading.read(10) is None


def test_every_record_is_a_row_or_in_a_letter(tmp_path):
    for number in range(SHORT):
        run(tmp_path / "file.csv", number)


def test_long_record_before_damaged_bytes_is_a_row(tmp_path):
    run(tmp_path / "file.csv", 1_137)


@pytest.mark.chaos
@pytest.mark.parametrize("part", range(PARTS))
def test_every_record_of_many_files_is_a_row_or_in_a_letter(tmp_path, part):
    first = SHORT + part * FILES_OF_A_PART
    for number in range(first, first + FILES_OF_A_PART):
        run(tmp_path / "file.csv", number)
