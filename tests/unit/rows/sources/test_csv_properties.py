"""For any bytes: the fast parser and the careful parser agree, and every byte of the file is accounted for."""

import contextlib
import re
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from redrive import rows
from redrive.rows.sources.csv import header as csv_header
from redrive.rows.sources.csv.encoding import undecodable
from redrive.rows.sources.csv.records import CsvDialect, count_lines, record_at
from tests.oracles.csv_files import (
    Refused,
    agreed_records,
    encode_records,
    missing_as_blank,
    read_with_csv_module,
    read_with_duckdb,
    replace_unencodable,
)
from tests.support.examples import examples

# What a CSV file is made of, what it should not be made of, and what a parser may take for something else: characters
# of two bytes and halves of them, a byte-order mark, the start of a zlib stream.
PIECES = [b",", b'"', b"\n", b"\r", b"\r\n", b'""', b'","', b'"\n', b'\n"', b"a", b"NA", b"x\x01", b"\x00", b" ", b"\t"]
PIECES += ["é".encode(), b"\xc3", b"\xa9", b"\xff", b"\xef\xbb\xbf", b"1,2,3\n", b'"1","2","3"\n', b"#", b"\\"]

contents = st.lists(st.sampled_from(PIECES), max_size=60).map(b"".join)
widths = st.integers(1, 4)
some = st.integers(1, 9)
blocks = st.integers(3, 12)


@contextlib.contextmanager
def file_of(content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file.csv")
        path.write_bytes(content)
        yield path


def blocks_of(size):
    """Read in blocks of this size."""
    return mock.patch.object(csv_header, "BLOCK", size)


def carefully(content, width, dialect=CsvDialect(has_header=False), encoding="utf-8", line=1):  # noqa: B008 - frozen
    """The rows with their lines, the bad records with theirs, and the bytes of every record, one record at a time."""
    data = content if content.endswith((b"\n", b"\r")) or not content else content + b"\n"
    good, bad, at = [], [], 0
    while at < len(data):
        found = record_at(data, at, dialect, width, final=True)
        raw = data[at : found.end]
        where = f"line {line}"
        if error := found.error or (found.fields and undecodable(raw, encoding)):
            bad.append((where, re.sub(rb"(\r\n?|\n)\Z", b"", raw), error))
        elif found.fields:
            good.append((where, tuple(field.value(dialect, encoding) for field in found.fields)))
        line += count_lines(raw)
        at = found.end
    return good, bad


def read(source, most, position=None):
    """Read everything from a position on; return it with the next position of each batch."""
    good, bad, ends = [], [], []
    reading = source.open(position, source.identity())
    while (batch := reading.read(most)) is not None:
        assert 0 < len(batch.rows) + len(batch.unreadable) <= most
        good += [(batch.position_of(place), row) for place, row in enumerate(batch.rows.frame.rows())]
        bad += [(one.position, one.raw, one.error) for one in batch.unreadable]
        ends.append((batch.next, len(good), len(bad)))
    reading.close()
    return good, bad, ends


def names(width):
    return [f"c{number}" for number in range(width)]


@settings(max_examples=examples(600), deadline=None)
@given(contents, widths, blocks, some)
@example(b'1,"x\n2,y\n3,"z"\n4,w\n', 2, 4, 2)
@example(b'1,"a\nb"\n"2\n",3\n', 2, 3, 1)
@example(b'1,"a"\r', 2, 3, 1)
@example(b'"a"\r\n"b"\r', 1, 3, 1)
def test_fast_parser_reads_the_same_as_the_careful_parser(content, width, block, most):
    with file_of(content) as path, blocks_of(block):
        good, bad, _ = read(rows.csv(path, header=False, columns=names(width)), most)
    skipped = 3 if content.startswith(b"\xef\xbb\xbf") else 0
    assert (good, bad) == carefully(content[skipped:], width)
    assert len(good) + len(bad) <= count_lines(content[skipped:]) + 1


@settings(max_examples=examples(300), deadline=None)
@given(contents, widths, some)
def test_reading_resumes_after_any_batch(content, width, most):
    with file_of(content) as path, blocks_of(7):
        source = rows.csv(path, header=False, columns=names(width))
        good, bad, ends = read(source, most)
        for position, rows_before, bad_before in ends:
            later_good, later_bad, _ = read(source, most + 1, position)
            assert (good[rows_before:], bad[bad_before:]) == (later_good, later_bad)


@settings(max_examples=examples(300), deadline=None)
@given(contents, widths, st.integers(1, 20), blocks)
@example(b'"\r\n""\r\n', 1, 5, 7)
def test_record_over_the_size_limit_ends_at_the_same_byte(content, width, largest, block):
    with file_of(content) as path:
        whole = rows.csv(path, header=False, columns=names(width))
        limited = rows.csv(path, header=False, columns=names(width), max_record_bytes=largest)
        good, bad, _ = read(whole, 5)
        for size in (block, 1 << 20):
            with blocks_of(size):
                kept, letters, ends = read(limited, 1)
            assert [row for row in good if row in kept] == kept
            assert [where for where, _, _ in bad if where in dict.fromkeys(at for at, _, _ in letters)] == [
                where for where, _, _ in bad
            ]
            assert sorted(where for where, *_ in kept + letters) == sorted(where for where, *_ in good + bad)
            assert all(error for _, raw, error in letters if isinstance(raw, dict))
            assert all(len(raw) <= largest for _, raw, _ in letters if not isinstance(raw, dict))
            for position, rows_before, bad_before in ends:
                assert read(limited, 2, position)[:2] == (kept[rows_before:], letters[bad_before:])


@settings(max_examples=examples(200), deadline=None)
@given(contents, widths, st.sampled_from(['"', "'", None, "a"]), st.sampled_from([",", "\t", "\x01", "|", "1"]), blocks)
def test_parsers_agree_in_every_dialect_and_encoding(content, width, quote, delimiter, block):
    for encoding in ("latin-1", "cp1252", "ascii"):
        with file_of(content) as path, blocks_of(block):
            source = rows.csv(
                path,
                header=False,
                columns=names(width),
                quote=quote,
                delimiter=delimiter,
                encoding=encoding,
                null=("NA", "é"[: encoding != "ascii"]),
            )
            good, bad, _ = read(source, 3)
        name = source._options.of_bytes
        dialect = source._options.dialect("x.csv", name)
        assert (good, bad) == carefully(content, width, dialect, name)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.lists(st.text(max_size=5), min_size=2, max_size=2), max_size=20), st.sampled_from(["\n", "\r\n", "\r"])
)
def test_file_written_by_the_standard_library_is_read_back(table, line_end):
    with file_of(encode_records([["a", "b"], *table], quote_all=True, line_end=line_end)) as path:
        good, bad, _ = read(rows.csv(path), 7)
    assert bad == []
    assert [list(row) for _, row in good] == [[replace_unencodable(value) for value in row] for row in table]


# Fields and lines of which about half make a file that other readers take.
FIELDS = [b"", b"1", b"x y", b" ", "é".encode(), b'""', b'"p\nq"', b'"p\r\nq"', b'"p""q"', b'5" pipe', b"NULL", b"\\"]
FIELDS += [b'"p\rq"', b'"\r"']
BROKEN = [b'"open', b'"x"y', b"1,2", b"\xff", b'"', b"p\rq"]
line_ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
sound_lines = st.lists(st.sampled_from(FIELDS), min_size=2, max_size=2)
any_lines = st.lists(st.sampled_from(FIELDS + BROKEN), min_size=1, max_size=3)
lines = st.lists(sound_lines, max_size=8) | st.lists(sound_lines | any_lines, max_size=5)


@settings(max_examples=examples(200), deadline=None)
@given(lines, line_ends, st.booleans(), some)
def test_other_readers_and_redrive_read_the_same_records(table, line_end, ends_with_line, most):
    """Redrive reads what the csv module reads, with the Nones of DuckDB; where both refuse, it rejects lines."""
    content = line_end.join([b"a,b", *(b",".join(fields) for fields in table)]) + (line_end if ends_with_line else b"")
    with file_of(content) as path:
        by_csv_module, by_duckdb = read_with_csv_module(path), read_with_duckdb(path)
        good, bad, _ = read(rows.csv(path), most)
    records = [dict(zip("ab", row, strict=True)) for _, row in good]
    if not isinstance(by_csv_module, Refused):
        assert (missing_as_blank(records), bad) == (by_csv_module, [])
    elif isinstance(by_duckdb, Refused):
        assert bad != []
    if (agreed := agreed_records(by_csv_module, by_duckdb)) is not None:
        assert records == agreed


@settings(max_examples=examples(300), deadline=None)
@given(contents, widths)
def test_every_byte_is_in_a_row_a_letter_or_an_empty_line(content, width):
    with file_of(content) as path, blocks_of(5):
        good, bad, ends = read(rows.csv(path, header=False, columns=names(width)), 1)
    at = 3 if content.startswith(b"\xef\xbb\xbf") else 0
    raw_of = {bad_before: raw for bad_before, (_, raw, _) in enumerate(bad, 1)}
    bad_so_far = 0
    for position, _, bad_before in ends:
        piece = content[at : position["byte"]]
        if width > 1:
            piece = piece.lstrip(b"\r\n")
        if bad_before > bad_so_far:
            assert piece.startswith(raw_of[bad_before])
            piece = piece.removeprefix(raw_of[bad_before])
        else:
            assert len(piece) > 0
            piece = piece[record_at(piece + b"\n", 0, CsvDialect(), width, final=True).end :]
        assert re.fullmatch(rb"\r\n?|\n|" if width == 1 else rb"[\r\n]*", piece)
        at, bad_so_far = position["byte"], bad_before
    assert re.fullmatch(b"" if width == 1 else rb"[\r\n]*", content[at:])
    assert len(ends) == len(good) + len(bad)


@pytest.mark.parametrize("quoted", [False, True], ids=["bare", "quoted"])
def test_long_file_is_read_the_same_in_blocks_of_any_size(tmp_path, quoted):
    path = tmp_path / "long.csv"
    with path.open("wb") as file:
        file.write(encode_records([["a", "b", "c"]], quote_all=quoted))
        for number in range(30_000):
            row = [number, f'say "{number}"\n, twice' if number % 7 == 0 else "é", "x" * (number % 50)]
            file.write(encode_records([row], quote_all=quoted))
            if number % 1000 == 3:
                file.write(b'5,5" pipe,ok\r\nragged\n"open,1,2\r6,"closed",3\n')
    results = []
    for block in (1 << 12, 1 << 16, 1 << 24):
        with blocks_of(block):
            results.append(read(rows.csv(path), 7_000)[:2])
    assert results[0] == results[1] == results[2]
    good, bad = results[0]
    assert len(good) == 30_000 + 30
    assert [error.partition(",")[0] for _, _, error in bad] == [
        "1 field where the header has 3",
        "a quote is not closed",
    ] * 30
