"""Lines of JSON, and lines that are not JSON."""

from __future__ import annotations

import gzip
import json
import math
import re
import tracemalloc
from decimal import Decimal
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import redrive
from redrive.errors import SourceError
from redrive.rows import ndjson
from tests.oracles.json_lines import read_lines


def read_all(source, most=1_000, position=None, identity=None):
    reading = source.open(position, identity or source.identity())
    try:
        return list(iter(lambda: reading.read(most), None))
    finally:
        reading.close()


def rows_of(batches):
    return [record for batch in batches for record in batch.rows.records]


def bad_of(batches):
    return [(bad.raw, bad.error, bad.position) for batch in batches for bad in batch.unreadable]


@pytest.fixture
def file(tmp_path):
    """Write a file, and read it as NDJSON."""

    def write(data, name="rows.ndjson", **options):
        path = tmp_path / name
        path.write_bytes(data)
        return ndjson(path, **options)

    return write


def lines(count, start=0):
    return b"".join(b'{"id": %d}\n' % number for number in range(start, start + count))


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_line_is_a_record_with_its_line_number(file):
    batches = read_all(file(lines(25)), most=10)
    assert [len(batch.rows) for batch in batches] == [10, 10, 5]
    assert rows_of(batches) == [{"id": number} for number in range(25)]
    assert batches[1].position_of(7) == "line 18"


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("last", [b"\n", b"", b"\r\n\r\n \n"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
def test_bom_line_ends_and_empty_lines_are_only_counted(file, end, last, start):
    source = file(start + end.join([b'{"id": 1}', b"", b"  ", b'{"id": 2}', b'{"id": 3}']) + last)
    [batch] = read_all(source)
    assert batch.rows.records == [{"id": 1}, {"id": 2}, {"id": 3}]
    assert [batch.position_of(place) for place in range(3)] == ["line 1", "line 4", "line 5"]
    assert batch.unreadable == []


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("block", [1, 2, 3, 10, 11])
def test_line_ends_between_blocks_are_line_ends(file, monkeypatch, end, block):
    monkeypatch.setattr("redrive.rows.sources.ndjson.source._BLOCK", block)
    source = file(end.join(b'{"id": %d}' % number for number in range(5)))
    batches = read_all(source, most=2)
    assert rows_of(batches) == [{"id": number} for number in range(5)]
    assert batches[1].position_of(1) == "line 4"
    assert rows_of(read_all(source, position=batches[0].next)) == [{"id": number} for number in range(2, 5)]


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        (b'[{"id": 1}, {"id": 2}, {"id": 3}]', 3),
        (b"[]", 1),
        (b'{"a": {}}{"a": 1} {"a": 2}', 3),
        (b"[{}, {}", 1),
        (b"x", 1),
    ],
)
def test_line_of_several_records_counts_as_that_many_rejected(file, line, rows):
    [batch] = read_all(file(b"{}\n" + line))
    assert [(bad.raw, bad.rows) for bad in batch.unreadable] == [(line, rows)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18446744073709551615", 2**64 - 1),
        ("18446744073709551616", 2**64),
        ("-9223372036854775809", -(2**63) - 1),
        ("1" * 4_000, int("1" * 4_000)),
        ("0.1234567890123456789012345", Decimal("0.1234567890123456789012345")),
        ("-0.0", -0.0),
        ("Infinity", math.inf),
        ("-Infinity", -math.inf),
        (r'"\ud800"', "\ud800"),
        (r'"a\u0000b"', "a\0b"),
    ],
)
def test_numbers_and_texts_are_unchanged(file, text, value):
    source = file(f'{{"id": 1}}\n{{"value": {text}}}\n{{"id": 3}}\n'.encode())
    found = rows_of(read_all(source))
    assert found == [{"id": 1}, {"value": value}, {"id": 3}]
    assert type(found[1]["value"]) is type(value)


def test_nan_is_read_as_by_python(file):
    [found] = rows_of(read_all(file(b'{"value": NaN}')))
    assert math.isnan(found["value"])


def test_last_value_of_a_duplicate_key_counts(file):
    assert rows_of(read_all(file(b'{"a": 1, "a": 2}\n{"a": NaN, "a": 2}\n'))) == [{"a": 2}, {"a": 2}]


def test_line_of_five_megabytes_is_a_normal_record(file):
    long = json.dumps({"id": 2, "text": "x" * 5_000_000}).encode()
    batches = read_all(file(lines(2) + long + b"\n" + lines(2, 3)))
    assert [record["id"] for record in rows_of(batches)] == [0, 1, 2, 3, 4]
    assert len(rows_of(batches)[2]["text"]) == 5_000_000


def test_batch_of_large_lines_is_cut_short(file):
    large = b"".join(json.dumps({"id": number, "text": "x" * 1_000_000}).encode() + b"\n" for number in range(80))
    batches = read_all(file(large))
    assert [record["id"] for record in rows_of(batches)] == list(range(80))
    assert max(len(batch.rows) for batch in batches) < 40


def test_another_encoding_is_read_where_it_is_named(file):
    source = file('{"name": "Müller"}\n'.encode("cp1252"), encoding="cp1252")
    assert rows_of(read_all(source)) == [{"name": "Müller"}]


# ── what is no row ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b'{"id": 2', "no JSON at column 9: Expecting ',' delimiter"),
        (b'{"id": 2}}', "no JSON at column 10: Extra data"),
        (b'{"id": 2},{"id": 3}', "no JSON at column 10: Extra data"),
        (b"id,fee", "no JSON at column 1: Expecting value"),
        (b'{"id": "\xe4"}', "no utf-8: byte 0xe4 at place 9"),
        (b'{"id": "\0"}', "no JSON at column 9: Invalid control character"),
        (b"\0\0\0", "no JSON at column 1: Expecting value"),
        (b'{"id": 1e400}', "1e400 is beyond what a float can hold"),
        (b"[1, 2]", "a record is a JSON object, not an array"),
        (b'"text"', "a record is a JSON object, not a string"),
        (b"12", "a record is a JSON object, not a number"),
        (b"null", "a record is a JSON object, not null"),
        (b"true", "a record is a JSON object, not a boolean"),
        (b"[" * 100_000, "no JSON that can be read: it is nested too deep"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_line_that_is_no_record_is_a_letter_with_its_number(file, line, error):
    source = file(b'{"id": 1}\r\n' + line + b'\r\n{"id": 3}\r\n')
    [batch] = read_all(source)
    assert batch.rows.records == [{"id": 1}, {"id": 3}]
    assert bad_of([batch]) == [(line, error, "line 2")]
    assert batch.position_of(1) == "line 3"
    with pytest.raises(ValueError, match=re.escape(error)):
        source.again(line)


def test_int_of_too_many_digits_is_a_letter(file):
    line = b'{"id": ' + b"1" * 5_000 + b"}"
    [(raw, error, position)] = bad_of(read_all(file(b"{}\n" + line)))
    assert (raw, position) == (line, "line 2")
    assert "digits" in error


def test_repaired_line_is_a_record(file):
    source = file(b"")
    assert source.again(b'{"id": 2}\n') == {"id": 2}
    assert source.again('{"id": "ä"}') == {"id": "ä"}
    assert source.again({"id": 3}) == {"id": 3}
    with pytest.raises(TypeError, match="bytes or text, not a int"):
        source.again(3)


def test_bad_lines_before_the_first_record_have_empty_batches(file):
    batches = read_all(file(b"no\n" * 5_025 + b"{}"), most=1_000)
    assert [(len(batch.rows), len(batch.unreadable)) for batch in batches] == [*[(0, 1_000)] * 5, (1, 25)]


class TestOtherFormat:
    """A file that is not NDJSON is rejected before a line of it is a letter."""

    FORMATS = (
        (b"\n<!DOCTYPE html><html>\n{}\n</html>", "is an HTML page, not NDJSON: it may be the error page"),
        (b"<?xml version='1.0'?>\n<a>\n{}\n</a>", "is an XML file, not NDJSON: convert it to NDJSON first"),
        (b'[\n  {"id": 1},\n  {"id": 2}\n]', "is a JSON array over several lines, not NDJSON"),
        (b'[{"id": 1},\n{"id": 2}\n,{"id": 3}]', "is a JSON array over several lines, not NDJSON"),
        (b'{\n  "items": [\n    {"id": 1}\n  ]\n}', "is a JSON object over several lines, not NDJSON"),
        ('{"id": 1}\n'.encode("utf-16"), "is UTF-16: convert it to UTF-8 first, as with iconv"),
        ('{"id": 1}\n'.encode("utf-16-be"), "is UTF-16: convert it to UTF-8 first, as with iconv"),
        ('{"id": 1}\n'.encode("utf-32"), "is UTF-32: convert it to UTF-8 first, as with iconv"),
        (b"id,v\n1,x\n" * 9_000, "no line is a JSON object (line 1: no JSON at column 1: Expecting value)"),
        (b'\n[{"id": 1}]', "no line is a JSON object (line 2: a record is a JSON object, not an array)"),
        (b'{"id": 01}\n' * 9_000, "no line is a JSON object (line 1: "),
    )

    @pytest.mark.parametrize(("data", "why"), FORMATS, ids=lambda part: str(part)[:20])
    @pytest.mark.parametrize("pack", [bytes, gzip.compress])
    def test_file_of_another_format_is_rejected(self, file, data, why, pack):
        source = file(pack(data))
        with pytest.raises(SourceError, match=re.escape(why)):
            read_all(source)

    def test_run_over_another_format_is_not_complete(self, tmp_path, file):
        source = file(b"<html>\n<p>503 Service Unavailable</p>\n")
        sink = redrive.rows.table(f"sqlite:///{tmp_path}/out.db", "t", key="id", create=True)
        with redrive.connect(tmp_path / "store.db") as store:
            with pytest.raises(redrive.RunStopped, match="is an HTML page, not NDJSON") as stopped:
                redrive.Pipeline("vendor", source=source, sink=sink, store=store).run()
            assert stopped.value.report.status == "failed"
            assert list(store.dlq.each()) == []

    @pytest.mark.parametrize("start", [b"[2026-07-01] INFO started", b"[{", b"{", b"\0\0\0\0", b"<a>", b"x" * 9_000])
    def test_file_with_an_object_is_read(self, file, start):
        batches = read_all(file(start + b'\n{"id": 1}\n'))
        assert rows_of(batches) == [{"id": 1}]
        assert [raw for raw, *_ in bad_of(batches)] == [start]

    def test_file_of_one_line_that_is_too_long_is_read(self, file):
        [batch] = read_all(file(b'{"text": "' + b"x" * 9_000 + b'"}', max_record_bytes=5_000))
        assert [bad.error for bad in batch.unreadable] == ["the record has 9,012 bytes, and max_record_bytes is 5,000"]


@pytest.mark.parametrize("data", [b"", b"\n\n \r\n", b"\xef\xbb\xbf"])
def test_file_without_a_record_is_at_its_end(file, data):
    assert read_all(file(data)) == []


# ── compressed files ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("pack", [gzip.compress, lambda data: pa.compress(data, codec="zstd", asbytes=True)])
def test_compressed_file_is_detected_by_its_bytes(file, pack):
    source = file(pack(lines(2_000)), name="rows.ndjson")
    whole = read_all(source, most=300)
    assert rows_of(whole) == [{"id": number} for number in range(2_000)]
    for batch, following in pairwise(whole):
        assert read_all(source, most=300, position=batch.next)[0].rows.records == following.rows.records


@pytest.mark.parametrize("pack", [gzip.compress, lambda data: pa.compress(data, codec="zstd", asbytes=True)])
def test_truncated_file_is_read_up_to_its_last_whole_member(file, pack):
    whole = pack(lines(250)) + pack(b'{"id": 250}\n{"id": ')
    source = file(whole + pack(b"251}\n")[:-2])
    reading, batches = source.open(None, source.identity()), []
    with pytest.raises(SourceError, match=r"ends early, so that an unknown number of rows after line 251 are missing"):
        batches.extend(iter(lambda: reading.read(100), None))
    reading.close()
    assert rows_of(batches) == [{"id": number} for number in range(251)]
    assert bad_of(batches) == []
    for batch in batches:  # a resumed run meets the damage again
        reading = source.open(batch.next, source.identity())
        with pytest.raises(SourceError, match="after line 251 are missing"):
            list(iter(lambda: reading.read(100), None))  # noqa: B023
        reading.close()


# ── several files, checkpoints ────────────────────────────────────────────────────────────────────────────────────────


def test_files_of_a_glob_are_read_in_order_in_separate_batches(tmp_path):
    for number in range(3):
        (tmp_path / f"part-{number}.ndjson").write_bytes(lines(5, number * 10))
    source = ndjson(tmp_path / "part-*.ndjson")
    batches = read_all(source, most=4)
    assert [[record["id"] for record in batch.rows.records] for batch in batches] == [
        [0, 1, 2, 3], [4], [10, 11, 12, 13], [14], [20, 21, 22, 23], [24],
    ]  # fmt: skip
    assert [batch.source for batch in batches[::2]] == [str(tmp_path / f"part-{number}.ndjson") for number in range(3)]
    assert batches[3].position_of(0) == "line 5"
    for place, batch in enumerate(batches):
        assert rows_of(read_all(source, most=4, position=batch.next)) == rows_of(batches[place + 1 :])


def test_progress_ends_at_the_size_of_all_files(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.ndjson").write_bytes(lines(5_000))
    source = ndjson(tmp_path / "*.ndjson")
    reading = source.open(None, source.identity())
    done = [batch.done for batch in iter(lambda: reading.read(700), None)]
    assert done == sorted(done)
    assert done[-1] == reading.total == 3 * len(lines(5_000))


def test_reading_continues_after_an_error_without_a_lost_line(file, monkeypatch):
    source = file(lines(50))
    reading = source.open(None, source.identity())
    first = reading.read(20)
    with monkeypatch.context() as patched:
        patched.setattr("redrive.rows.sources.ndjson.source.parsed", lambda *_: (_ for _ in ()).throw(MemoryError()))
        with pytest.raises(MemoryError):
            reading.read(20)
    rest = list(iter(lambda: reading.read(20), None))
    reading.close()
    assert [record["id"] for record in rows_of([first, *rest])] == list(range(50))
    assert rest[0].position_of(0) == "line 21"


def test_checkpoint_is_valid_for_the_same_files_only(tmp_path, file):
    source = file(lines(1_000))
    taken = source.identity()
    assert source.difference(json.loads(json.dumps(taken))) is None
    assert (
        file(lines(1_000), encoding="latin-1").difference(taken) == "its encoding was utf-8, and here it is iso8859-1"
    )
    assert source.difference({"kind": "csv"}) == "it was taken over csv, not over ndjson"
    assert "has grown since" in file(lines(1_000, 1)).difference(taken)


def test_missing_file_is_reported(tmp_path):
    with pytest.raises(SourceError, match=r"no\.ndjson"):
        ndjson(tmp_path / "no.ndjson").identity()


@pytest.mark.parametrize(
    ("encoding", "says"),
    [
        ("utf-16", "cannot be separated by their bytes"),
        ("klingon", "not an encoding that Python knows"),
        ("hex", "not an encoding"),
    ],
)
def test_unknown_encoding_is_rejected_at_once(encoding, says):
    with pytest.raises(ValueError, match=says):
        ndjson("x.ndjson", encoding=encoding)


# ── whatever a file holds ─────────────────────────────────────────────────────────────────────────────────────────────

a_line = st.one_of(
    st.binary(max_size=30),
    st.dictionaries(st.text(max_size=3), st.one_of(st.integers(), st.floats(), st.text()), max_size=3).map(
        lambda record: json.dumps(record).encode()
    ),
)


@given(st.lists(a_line), st.integers(1, 7), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.booleans())
def test_every_line_is_a_row_or_a_letter_exactly_once(tmp_path_factory, content, most, end, ends):
    assume(not content or not content[0].startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")))  # a compressed file
    path = tmp_path_factory.mktemp("any") / "any.ndjson"
    path.write_bytes(end.join(content) + (end if ends else b""))
    source = ndjson(path)
    try:
        batches = read_all(source, most=most)
    except SourceError:
        assert read_lines(path.read_bytes())[0] == {}  # not NDJSON at all
        return
    seen = sorted(
        [int(batch.position_of(place).removeprefix("line ")) for batch in batches for place in range(len(batch.rows))]
        + [int(bad.position.removeprefix("line ")) for batch in batches for bad in batch.unreadable]
    )
    without_bom = path.read_bytes().removeprefix(b"\xef\xbb\xbf").splitlines()
    assert seen == [number for number, line in enumerate(without_bom, 1) if line.strip()]
    for place, batch in enumerate(batches):
        again = read_all(source, most=most, position=json.loads(json.dumps(batch.next)))
        assert repr(rows_of(again)) == repr(rows_of(batches[place + 1 :]))
        assert bad_of(again) == bad_of(batches[place + 1 :])


# ── lines that are too long ───────────────────────────────────────────────────────────────────────────────────────────


class TestLongLine:
    LONG = b'{"id": 2, "text": "' + b"x" * 5_000 + b'"}'

    @pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
    @pytest.mark.parametrize("block", [7, 100, 1_001, 1 << 20])
    @pytest.mark.parametrize("is_last", [False, True])
    def test_long_line_is_one_letter_and_the_others_are_rows(self, file, monkeypatch, end, block, is_last):
        monkeypatch.setattr("redrive.rows.sources.ndjson.source._BLOCK", block)
        after = [] if is_last else [b'{"id": 3}', b'{"id": 4}', b""]
        source = file(end.join([b'{"id": 1}', self.LONG, *after]), max_record_bytes=1_000)
        batches = read_all(source)
        assert [row["id"] for row in rows_of(batches)] == [1, *([] if is_last else [3, 4])]
        (bad,) = [one for batch in batches for one in batch.unreadable]
        size = len(self.LONG) + (0 if is_last else len(end))
        assert (bad.position, bad.raw) == ("line 2", {"too_large": self.LONG[:1_000]})
        assert bad.error == f"the record has {size:,} bytes, and max_record_bytes is 1,000"

    def test_reading_continues_behind_a_long_line(self, file, monkeypatch):
        monkeypatch.setattr("redrive.rows.sources.ndjson.source._BLOCK", 100)
        source = file(b"\n".join([b'{"id": 1}', self.LONG, b'{"id": 3}', b'{"id": 4}', b""]), max_record_bytes=1_000)
        identity = source.identity()
        for first in read_all(source, most=1):
            rest = read_all(source, most=1, position=first.next, identity=identity)
            seen = 0 if first.unreadable else first.rows.records[0]["id"]
            assert [row["id"] for row in rows_of(rest)] == [one for one in (1, 3, 4) if one > (seen or 1)]

    @pytest.mark.slow
    def test_line_of_a_gzip_bomb_uses_little_memory(self, file):
        bomb = gzip.compress(b'{"id": "' + b"x" * (64 << 20) + b'"}\n{"id": 2}\n')
        tracemalloc.start()
        try:
            batches = read_all(file(bomb, max_record_bytes=1 << 20))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert [row["id"] for row in rows_of(batches)] == [2]
        assert peak < 16 << 20

    def test_letter_of_a_long_line_cannot_be_replayed_unchanged(self, file):
        with pytest.raises(ValueError, match="holds only the beginning of the record"):
            file(b"").again({"too_large": b"{"})

    def test_invalid_size_is_rejected(self):
        with pytest.raises(ValueError, match="max_record_bytes must be a number of bytes"):
            ndjson("x.ndjson", max_record_bytes=0)


def test_report_over_an_empty_file_has_zero_rows_read(tmp_path):
    (tmp_path / "empty.ndjson").write_bytes(b"")
    report = redrive.Pipeline(
        "vendor",
        source=redrive.rows.ndjson(tmp_path / "empty.ndjson"),
        sink=redrive.rows.table(f"sqlite:///{tmp_path}/target.db", "t", key="id", create=True),
        store=tmp_path / "store.db",
    ).run()
    assert report.status == "complete"
    assert "warning: no rows were read" in str(report)
