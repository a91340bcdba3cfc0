"""Damaged and mislabelled files: every record is a row or a letter with its bytes, and reading continues."""

import gzip
import itertools
import tracemalloc
from typing import ClassVar

import pyarrow as pa
import pytest

from redrive import rows
from redrive.errors import SourceError
from redrive.rows.sources.csv import header as csv_header
from tests.oracles.csv_files import Refused, agreed_records, read_with_csv_module, read_with_duckdb

AMBIGUOUS = "a quote is not closed, or text follows a closing quote on a later line"


def read(path, most=3, **options):
    """The rows, the unreadable pieces as (line, bytes, error), and the lines of the rows."""
    source = rows.csv(path, **options)
    reading = source.open(None, source.identity())
    found, bad, lines = [], [], []
    while (batch := reading.read(most)) is not None:
        assert batch.source == str(path)
        assert 0 < len(batch.rows) + len(batch.unreadable) <= most
        found += batch.rows.records
        for one in batch.unreadable:
            raw = next(iter(one.raw.values())) if isinstance(one.raw, dict) else one.raw
            bad.append((one.position, raw, one.error))
        lines += [batch.position_of(place) for place in range(len(batch.rows))]
    reading.close()
    return found, bad, lines


def values(records):
    return [tuple(record.values()) for record in records]


@pytest.fixture
def csv_file(tmp_path):
    def write(content, name="deliveries.csv"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


CASES = {
    "a byte-order mark": (b"\xef\xbb\xbfa,b\n1,2\n", [("1", "2")], []),
    "CRLF": (b"a,b\r\n1,2\r\n3,4\r\n", [("1", "2"), ("3", "4")], []),
    "line ends of both kinds": (b"a,b\r\n1,2\n3,4\r\n5,6\n", [("1", "2"), ("3", "4"), ("5", "6")], []),
    "no line end at the end": (b"a,b\n1,2\n3,4", [("1", "2"), ("3", "4")], []),
    "half a line end at the end": (b"a,b\r\n1,2\r", [("1", "2")], []),
    "CR": (b"a,b\r1,2\r3,4\r", [("1", "2"), ("3", "4")], []),
    "CR, quoted fields and no line end at the end": (b'"a","b"\r"1","2"\r"3","4"', [("1", "2"), ("3", "4")], []),
    "line ends of all kinds": (
        b"a,b\r1,2\n3,4\r\n5,6\r\r7,8\r\r\n9,0\n\r",
        [("1", "2"), ("3", "4"), ("5", "6"), ("7", "8"), ("9", "0")],
        [],
    ),
    "CR within a line": (
        b"a,b\n1\r,2\n3,4\n",
        [(None, "2"), ("3", "4")],
        [("line 2", b"1", "1 field where the header has 2")],
    ),
    "CR within quotes": (b'a,b\n1,"x\ry"\n2,"\r"\r3,"\r\n"\r\n', [("1", "x\ry"), ("2", "\r"), ("3", "\r\n")], []),
    "NUL bytes": (b"a,b\n\x00,x\x00y\n", [("\x00", "x\x00y")], []),
    "empty lines": (b"\n\r\na,b\n\n1,2\n\r\n\n3,4\n\n", [("1", "2"), ("3", "4")], []),
    "a header and nothing else": (b"a,b\n", [], []),
    "a header without its line end": (b"a,b", [], []),
    "a quoted line end": (b'a,b\n1,"x\ny"\n2,"p\r\nq"\n', [("1", "x\ny"), ("2", "p\r\nq")], []),
    "quotes that are text": (b'a,b\n1,5" pipe\n2,"6"" pipe"\n', [("1", '5" pipe'), ("2", '6" pipe')], []),
    "nothing, and a text of nothing": (b'a,b\n,""\n"",\n', [(None, ""), ("", None)], []),
    "one column": (
        b'a\n1\n\n""\n,\n2\n',
        [("1",), (None,), ("",), ("2",)],
        [("line 5", b",", "2 fields where the header has 1")],
    ),
    "too few fields": (b"a,b\n1\n2,3\n", [("2", "3")], [("line 2", b"1", "1 field where the header has 2")]),
    "too many fields": (
        b"a,b\n1,2,3\r\n4,5\n",
        [("4", "5")],
        [("line 2", b"1,2,3", "3 fields where the header has 2")],
    ),
    "too many fields and a quoted line end": (
        b'a,b\n1,"Dear Sir\nhello, world\nregards",extra\n2,y\n',
        [("2", "y")],
        [("line 2", b'1,"Dear Sir\nhello, world\nregards",extra', "3 fields where the header has 2")],
    ),
    "too few fields and a quoted line end": (
        b'a,b\n"Dear Sir\nhello, world"\n2,y\n',
        [("2", "y")],
        [("line 2", b'"Dear Sir\nhello, world"', "1 field where the header has 2")],
    ),
    "an unclosed quote in the first row": (
        b'a,b\n1,"x\n2,y\n3,z\n',
        [],
        [("line 2", b'1,"x\n2,y\n3,z', "a quote is not closed")],
    ),
    "an unclosed quote among quoted rows": (
        b'a,b\n"1","x"\n"2","y\n"3","z"\n"4","w"\n',
        [("1", "x"), ("4", "w")],
        [("line 3", b'"2","y\n"3","z"', AMBIGUOUS)],
    ),
    "an unclosed quote before a quoted row": (
        b'a,b\n1,"x\n2,y\n3,"z"\n4,w\n',
        [("4", "w")],
        [("line 2", b'1,"x\n2,y\n3,"z"', AMBIGUOUS)],
    ),
    "an unclosed quote before a row of several lines": (
        b'a,b\n1,"x\n2,"dear\nsir,madam"\n4,w\n',
        [("4", "w")],
        [("line 2", b'1,"x\n2,"dear\nsir,madam"', AMBIGUOUS)],
    ),
    "a quote as text in a field of several lines": (
        b'a,b\n1,"dear\nsir, 5" pipe\nfoo,bar"\n4,"w"\n5,v\n',
        [("4", "w"), ("5", "v")],
        [("line 2", b'1,"dear\nsir, 5" pipe\nfoo,bar"', AMBIGUOUS)],
    ),
    "an unclosed quote in the last row": (
        b'a,b\n1,x\n2,"y',
        [("1", "x")],
        [("line 3", b'2,"y', "a quote is not closed")],
    ),
    "several unclosed quotes": (
        b'a,b\n1,"x\n2,"y\n3,z\n"4,w\n5,v\n',
        [],
        [("line 2", b'1,"x\n2,"y\n3,z\n"4,w\n5,v', AMBIGUOUS)],
    ),
    "text after a closing quote": (
        b'a,b\n1,"x"y\n"2" ,z\n3,"w"\n',
        [("3", "w")],
        [("line 2", b'1,"x"y', "text after a closing quote"), ("line 3", b'"2" ,z', "text after a closing quote")],
    ),
    "text after a closing quote and a quoted line end": (
        b'a,b\n"x"y,"p\nq"\n3,"w"\n',
        [("3", "w")],
        [("line 2", b'"x"y,"p\nq"', "text after a closing quote")],
    ),
    "Latin-1 in UTF-8": (
        b"a,b\n1,caf\xe9\n2,caf\xc3\xa9\n\xff,3\n",
        [("2", "café")],
        [
            ("line 2", b"1,caf\xe9", "not UTF-8: byte 0xe9 at column 6"),
            ("line 4", b"\xff,3", "not UTF-8: byte 0xff at column 1"),
        ],
    ),
    "a wrong byte on the second line of a record": (
        b'a,b\n1,"x\ny\xe9"\n2,z\n',
        [("2", "z")],
        [("line 2", b'1,"x\ny\xe9"', "not UTF-8: byte 0xe9 at column 2")],
    ),
    "a byte-order mark in the middle": (b"a,b\n\xef\xbb\xbf1,2\n", [("\ufeff1", "2")], []),
}


@pytest.mark.parametrize(("content", "good", "bad"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("most", [1, 1000])
def test_damaged_file_is_read_as_expected(csv_file, content, good, bad, most):
    records, unreadable, _ = read(csv_file(content), most)
    assert (values(records), unreadable) == (good, bad)


@pytest.mark.parametrize(("content", "good", "bad"), CASES.values(), ids=CASES)
def test_other_readers_agree_about_a_damaged_file(csv_file, content, good, bad):
    path = csv_file(content)
    by_csv_module, by_duckdb = read_with_csv_module(path), read_with_duckdb(path)
    assert isinstance(by_csv_module, Refused) == bool(bad)
    if not bad:
        assert values(by_csv_module) == [tuple(value or "" for value in row) for row in good]
    if (agreed := agreed_records(by_csv_module, by_duckdb)) is not None:
        assert values(agreed) == good


@pytest.mark.parametrize("compress", [gzip.compress, lambda data: pa.compress(data, "zstd", asbytes=True)])
@pytest.mark.parametrize(("content", "good", "bad"), CASES.values(), ids=CASES)
def test_damaged_compressed_file_is_read_as_expected(csv_file, content, good, bad, compress):
    records, unreadable, _ = read(csv_file(compress(content)))
    assert (values(records), unreadable) == (good, bad)


def test_lines_are_numbered_as_in_an_editor(csv_file):
    path = csv_file(b'\na,b\n\n1,"x\r\ny\rz"\r\r2\n3,"w\n4,"v"\n5,v\r\n')
    _, bad, lines = read(path)
    assert lines == ["line 4", "line 11"]
    assert [where for where, _, _ in bad] == ["line 8", "line 9"]


@pytest.mark.parametrize(
    "field",
    [
        b"x" * 5_000_000,
        b'"' + b"x" * 5_000_000 + b'"',
        b'"' + b"xy\n" * 1_700_000 + b'"',
        b'"' + b'""' * 2_500_000 + b'"',
    ],
    ids=["bare", "quoted", "of many lines", "of quotes"],
)
@pytest.mark.slow
def test_field_of_five_megabytes_is_a_field(csv_file, field):
    records, bad, _ = read(csv_file(b"a,b\n1," + field + b"\n2,z\n"))
    text = field.decode()
    assert values(records) == [("1", text[1:-1].replace('""', '"') if text[0] == '"' else text), ("2", "z")]
    assert bad == []


def test_closed_quoted_field_of_any_size_is_one_field(csv_file):
    field = b"y,z\n" * 5_000_000
    records, bad, lines = read(csv_file(b'a,b\n1,"' + field + b'"\n2,"z"\n'))
    assert bad == []
    assert [len(record["b"]) for record in records] == [len(field), 1]
    assert lines == ["line 2", "line 5000003"]


class TestRecordTooLarge:
    """A record larger than `max_record_bytes` is one letter, and is not kept in memory."""

    BODY = b"y,z\n" * 1_000_000
    CASES: ClassVar = {
        "closed": (b'1,"' + BODY + b'"\n', 1_000_001, "the record has 4,000,004 bytes, and max_record_bytes is 1,000"),
        "ragged": (b'"' + BODY + b'"\n', 1_000_001, "the record has 4,000,002 bytes, and max_record_bytes is 1,000"),
        "one line": (
            b"1," + b"y" * 4_000_000 + b"\n",
            1,
            "the record has 4,000,002 bytes, and max_record_bytes is 1,000",
        ),
        "not closed": (
            b'1,"' + BODY + b'3,"z"\n',
            1_000_001,
            f"{AMBIGUOUS}: the record has 4,000,008 bytes, and max_record_bytes is 1,000",
        ),
    }

    @pytest.mark.parametrize("block", [1 << 12, 1 << 24], ids=["in pieces", "at once"])
    @pytest.mark.parametrize(("record", "lines", "error"), CASES.values(), ids=CASES)
    def test_letter_has_the_beginning_and_counts_lines(self, csv_file, monkeypatch, record, lines, error, block):
        monkeypatch.setattr(csv_header, "BLOCK", block)
        source = rows.csv(csv_file(b"a,b\n0,x\n" + record + b"2,z\n"), max_record_bytes=1_000)
        reading = source.open(None, source.identity())
        batches = list(iter(lambda: reading.read(1), None))
        assert [values(batch.rows.records) for batch in batches] == [[("0", "x")], [], [("2", "z")]]
        (letter,) = batches[1].unreadable
        assert letter.raw == {"too_large": record[:1_000]}
        assert (letter.position, letter.rows, letter.error) == ("line 3", lines, error)
        assert batches[2].position_of(0) == f"line {3 + lines}"
        for batch, following in itertools.pairwise(batches):
            resumed = source.open(batch.next, source.identity())
            found = resumed.read(1)
            assert (found.rows.records, found.unreadable) == (following.rows.records, following.unreadable)
            resumed.close()
        with pytest.raises(ValueError, match="holds only the beginning of the record; run the pipeline again with a"):
            source.again(letter.raw)

    def test_memory_does_not_grow_with_the_record(self, csv_file):
        path = csv_file(b'a,b\n1,"' + b"y" * (64 << 20) + b"\n2,z\n")
        tracemalloc.start()
        try:
            _, bad, _ = read(path, max_record_bytes=1 << 20)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert [error.partition(":")[0] for _, _, error in bad] == ["a quote is not closed"]
        assert peak < 32 << 20


@pytest.mark.parametrize(
    ("content", "counted"),
    [
        (b'a,b\n1,"x\n2,y\n3,z\n4,w', [4]),
        (b'a,b\n1,"x\r2,y\r\n3,"z"\n4,w\n5\n', [3, 1]),
        (b'a,b\n1,"x\ny",z\n', [1]),
        (b'a,b\n1,"x\ny\xff"\n', [1]),
    ],
    ids=["not closed", "ambiguous", "ragged", "not UTF-8"],
)
def test_letter_counts_as_the_rows_that_it_may_contain(csv_file, content, counted):
    source = rows.csv(csv_file(content))
    reading = source.open(None, source.identity())
    assert [bad.rows for bad in reading.read(100).unreadable] == counted
    reading.close()


def test_thousands_of_columns_are_read(csv_file):
    names = [f"c{number}" for number in range(5_000)]
    header, row = ",".join(names), ",".join("x" for _ in names)
    records, bad, _ = read(csv_file(f"{header}\n{row}\n{row},x\n{row}\n".encode()))
    assert [len(record) for record in records] == [5_000, 5_000]
    assert [error for _, _, error in bad] == ["5001 fields where the header has 5000"]


def test_duplicate_and_nameless_columns_are_numbered(csv_file):
    records, _, _ = read(csv_file(b'a,a,a_2,,a,"",column_7,\n1,2,3,4,5,6,7,8\n'))
    assert list(records[0]) == ["a", "a_3", "a_2", "column_4", "a_4", "column_6", "column_7", "column_8"]
    assert list(records[0].values()) == list("12345678")


def read_until_damage(path, most=700, **options):
    """Read up to the error that ends it: the records, what was unreadable, the position, and the error."""
    source = rows.csv(path, **options)
    reading = source.open(None, source.identity())
    batches = []
    with pytest.raises(SourceError) as error:
        batches.extend(iter(lambda: reading.read(most), None))
    reading.close()
    records = [record for batch in batches for record in batch.rows.records]
    bad = [one for batch in batches for one in batch.unreadable]
    return records, bad, batches[-1].next if batches else None, str(error.value)


def numbered(start, end):
    return b"".join(b"%d,%x\n" % (number, number * 7919 % 104729) for number in range(start, end))


def zstd(data):
    return pa.compress(data, "zstd", asbytes=True)


@pytest.mark.parametrize("lost", [1, 8, 9, 40, 2_000])
@pytest.mark.parametrize("pack", [gzip.compress, zstd], ids=["gzip", "zstd"])
def test_nothing_of_a_truncated_stream_is_read(csv_file, pack, lost):
    path = csv_file(pack(b"id,text\n" + numbered(0, 5_000))[:-lost])
    with pytest.raises(SourceError, match="ends early, so that all of its rows are missing"):
        read(path)
    with pytest.raises(SourceError, match="ends early, so that all of its rows are missing"):
        read(path, header=False, columns=["id", "text"])


@pytest.mark.parametrize("pack", [gzip.compress, zstd], ids=["gzip", "zstd"])
def test_whole_members_before_a_truncated_one_are_read(csv_file, pack):
    content = pack(b"id,text\n" + numbered(0, 2_000)) + pack(numbered(2_000, 3_000) + b"3000,") + pack(numbered(1, 2))
    records, bad, position, error = read_until_damage(csv_file(content[:-3]))
    assert [record["id"] for record in records] == [str(number) for number in range(3_000)]
    assert bad == []
    assert "an unknown number of rows after line 3,001 are missing" in error
    source = rows.csv(csv_file(content[:-3]))
    resumed = source.open(position, source.identity())
    with pytest.raises(SourceError, match="after line 3,001"):
        resumed.read(10)
    resumed.close()


def test_nothing_of_a_corrupt_gzip_member_is_read(csv_file):
    packed = bytearray(gzip.compress(b"id,text\n" + numbered(0, 100)) + gzip.compress(numbered(100, 50_000)))
    for place in range(len(packed) // 2, len(packed) // 2 + 400):
        packed[place] ^= 0x5A
    records, bad, _, error = read_until_damage(csv_file(bytes(packed)))
    assert (len(records), bad) == (100, [])
    assert "is damaged: the gzip stream is corrupt, so that an unknown number of rows after line 101 are" in error


def test_wrong_checksum_is_damage(csv_file):
    packed = bytearray(gzip.compress(b"a\n1\n2\n3\n"))
    packed[-6] ^= 1
    with pytest.raises(SourceError, match="the gzip stream is corrupt"):
        read(csv_file(bytes(packed)))


def test_quote_open_at_the_damage_makes_no_rows(csv_file):
    content = gzip.compress(b'a,b\n1,x\n2,"Dear Sir\n3,y\n4,z\n') + gzip.compress(b'end"\n5,w\n')
    records, bad, _, error = read_until_damage(csv_file(content[:-1]))
    assert (values(records), bad) == ([("1", "x")], [])
    assert "after line 2 are missing" in error


def test_concatenated_gzip_members_are_one_file(csv_file):
    packed = gzip.compress(b"a,b\n1,") + gzip.compress(b"2\n3,4\n") + b"\0" * 512
    assert values(read(csv_file(packed))[0]) == [("1", "2"), ("3", "4")]


def test_bytes_after_a_gzip_stream_are_not_lost_silently(csv_file):
    records, _, _, error = read_until_damage(csv_file(gzip.compress(b"a\n1\n") + b"2\n3\n"))
    assert values(records) == [("1",)]
    assert "after line 2 are missing" in error


def test_unreadable_header_ends_the_run_with_a_sentence(csv_file):
    cases = {
        b"caf\xe9,b\n1,2\n": "is not UTF-8: byte 0xe9 at column 4: name its encoding, such as encoding='cp1252'",
        b'"a,b\n1,2\n': "deliveries.csv, line 1, cannot be read: a quote is not closed",
        gzip.compress(b"a,b\n" * 100)[
            :12
        ]: "deliveries.csv is damaged: the gzip stream ends early, so that all of its rows",
        b"PK\x03\x04....": "deliveries.csv is a zip archive, or a spreadsheet: unpack or export it first",
    }
    for content, sentence in cases.items():
        with pytest.raises(SourceError) as error:
            read(csv_file(content))
        assert sentence in str(error.value)


HTML = "is an HTML page, not CSV: it may be the error page of a download; fetch the file again"
JSON = "is JSON, not CSV: read it with rows.ndjson, one object per line"
NOT_CSV = {
    "doctype": (b"\n<!DOCTYPE html>\n<p>503</p>\n", {}, HTML),
    "html": (b"\xef\xbb\xbf  <HTML lang=en>\n<p>503</p>\n", {"header": False, "columns": ["a"]}, HTML),
    "html with skip": (b"<html>\na,b\n1,2\n", {"skip": 1}, HTML),
    "html behind a comment": (b"<!-- cached -->\n<html>\n<p>503</p>\n", {}, HTML),
    "html behind a BOM": (b"\xef\xbb\xbf\n <html>\n", {"encoding": "cp1252"}, HTML),
    "html without a head": (b"<title>503</title>\n<p>later</p>\n", {}, HTML),
    "skip beyond the end": (b"a,b\n1,2\n", {"skip": 9}, "no line behind the first 9, which skip leaves out"),
    "skip of every line": (b"a,b\n1,2", {"skip": 2}, "no line behind the first 2"),
    "xml": (b'<?xml version="1.0"?>\n<a/>\n', {}, "is an XML file, not CSV: convert it to CSV first"),
    "json lines": (b'{"id": 1}\n{"id": 2}\n', {}, JSON),
    "json": (b'[\n{"id": 1}\n]\n', {}, JSON),
    "json in one line": (b'[{"id": 1, "name": "x"}]', {}, JSON),
    "utf-32": ("a,b\n1,2\n".encode("utf-32"), {}, "is UTF-32: convert it to UTF-8 first, as with iconv"),
    "utf-32-be": (b"\0\0\xfe\xff\0\0\0a\0\0\0\n", {"encoding": "cp1252"}, "is UTF-32: convert it"),
    "utf-16-le": ("a,b\n1,2\n".encode("utf-16-le"), {}, "pass encoding='utf-16-le'"),
    "utf-16-be": ("a,b\n1,2\n".encode("utf-16-be"), {}, "pass encoding='utf-16-be'"),
    "semicolons": (b"id;name\n1;x\n", {}, "did you mean delimiter=';'? If it is one column, pass delimiter=','"),
    "tabs, and no row": (b"id\tname\n", {}, "did you mean delimiter='\\t'?"),
    "separator line": (b"sep=;\na;b\n", {"delimiter": ","}, "pass that instead of delimiter=','"),
}


@pytest.mark.parametrize(("content", "options", "sentence"), NOT_CSV.values(), ids=NOT_CSV)
def test_file_that_is_not_csv_is_rejected(csv_file, content, options, sentence):
    with pytest.raises(SourceError) as error:
        read(csv_file(content), **options)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


ODD_CSV = {
    "names in brackets": (b"[id],{name}\n1,x\n", {}, [("1", "x")]),
    "a tag as a value": (b"a,b\n<html>,x\n", {}, [("<html>", "x")]),
    "JSON as a value": (b'{"a"\n', {"header": False, "columns": ["a"]}, [('{"a"',)]),
    "a semicolon in the name of one column": (b"notes; etc\nx\n", {}, [("x",)]),
    "one column with semicolons": (b"a;b\n1;x\n", {"delimiter": ","}, [("1;x",)]),
    "a quoted name with semicolons": (b'"a;b"\n1;x\n', {}, [("1;x",)]),
    "sep=;": (b"sep=;\r\na;b\r\n1;2,5\r\n", {}, [("1", "2,5")]),
    'BOM and "sep=|"': (b'\xef\xbb\xbf"sep=|"\na|b\n1|2\n', {}, [("1", "2")]),
    "sep= as declared": (b"sep=;\na;b\n1;2\n", {"delimiter": ";"}, [("1", "2")]),
    "sep= without a header": (b"sep=;\n1;2\n", {"header": False}, [("1", "2")]),
    "an empty line first in one column": (b"\n1\n", {"header": False}, [(None,), ("1",)]),
    "an empty line first in two columns": (b"\n1,2\n", {"header": False}, [("1", "2")]),
}


@pytest.mark.parametrize(("content", "options", "good"), ODD_CSV.values(), ids=ODD_CSV)
def test_file_that_looks_odd_and_is_csv_is_read(csv_file, content, options, good):
    records, bad, _ = read(csv_file(content), **options)
    assert (values(records), bad) == (good, [])


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_read_like_utf_8(csv_file, encoding):
    text = "".join(f'{number},"é\n{number} 🚚"\n' for number in range(3_000))
    path = csv_file(("a,b\n" + text + "ragged").encode(encoding))
    asked_for = {} if encoding == "utf-16" else {"encoding": encoding}  # a byte-order mark shows the encoding
    records, bad, _ = read(path, most=1_000, **asked_for)
    assert values(records) == [(str(number), f"é\n{number} 🚚") for number in range(3_000)]
    assert bad == [("line 6002", b"ragged", "1 field where the header has 2")]


def test_truncated_or_broken_utf_16_is_not_lost(csv_file):
    content = b"\xff\xfe" + "a,b\n1,".encode("utf-16-le") + b"\x00\xd8" + "\n2,x\n3,y".encode("utf-16-le") + b"z"
    records, bad, _ = read(csv_file(content))
    assert values(records) == [("2", "x")]
    assert [(where, error[:9]) for where, _, error in bad] == [("line 2", "not UTF-8"), ("line 4", "the UTF-1")]
    assert bad[1][1:] == (b"3,y", "the UTF-16 text ends in the middle of a character")


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "gb18030", "shift_jis", "koi8-r"])
def test_other_encodings_are_decoded(csv_file, encoding):
    text = {"gb18030": "中文", "shift_jis": "日本", "koi8-r": "дом"}.get(encoding, "café")
    records, bad, _ = read(csv_file(f'a,{text}\n1,"{text}"\n'.encode(encoding)), encoding=encoding)
    assert (records, bad) == ([{"a": "1", text: text}], [])


def test_byte_invalid_in_the_encoding_makes_its_line_unreadable(csv_file):
    records, bad, _ = read(csv_file(b"a\n\x81\n\x80\n"), encoding="cp1252")
    assert (values(records), bad) == ([("€",)], [("line 2", b"\x81", "not cp1252: byte 0x81 at column 1")])


def test_truncated_line_is_not_read_as_a_whole_one_in_a_replay(csv_file):
    source = rows.csv(csv_file("a,b\n17,89".encode("utf-16") + b"1"))
    reading = source.open(None, source.identity())
    (cut,) = [one for batch in iter(lambda: reading.read(1_000), None) for one in batch.unreadable]
    reading.close()
    with pytest.raises(ValueError, match="truncated"):
        source.again(cut.raw)
    assert source.again({"a": "17", "b": "89"}) == {"a": "17", "b": "89"}
