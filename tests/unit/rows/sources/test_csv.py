"""CSV files as a source: options, checkpoints, and resuming a run."""

import gzip
import json
import os
from unittest import mock

import polars as pl
import pytest

from redrive import rows
from redrive.errors import SourceError
from redrive.model.letters import ErrorType
from redrive.rows.sources.csv import reader
from redrive.rows.sources.csv.frames import FrameBuilder


def batches(source, most=100, position=None, identity=None):
    reading = source.open(position, identity or source.identity())
    found = []
    while (batch := reading.read(most)) is not None:
        found.append(batch)
    reading.close()
    return found


def records(source, most=100):
    return [record for batch in batches(source, most) for record in batch.rows.records]


@pytest.fixture
def two_files(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"id,fee\n1,10\n2,20\n3\n4,40\n")
    (tmp_path / "b.csv").write_bytes(b"id,fee\n5,50\n6,60\n")
    return tmp_path


def test_rows_are_a_frame_of_text_in_the_order_of_the_file(two_files):
    (batch,) = batches(rows.csv(two_files / "a.csv"))
    assert batch.rows.is_frame
    assert batch.rows.frame.equals(pl.DataFrame({"id": ["1", "2", "4"], "fee": ["10", "20", "40"]}))
    assert [batch.position_of(place) for place in range(3)] == ["line 2", "line 3", "line 5"]
    (bad,) = batch.unreadable
    assert (bad.raw, bad.position, bad.error_type, bad.rows) == (b"3", "line 4", ErrorType.PARSE, 1)


def test_batch_has_rows_of_one_file_and_names_it(two_files):
    found = batches(rows.csv(two_files / "*.csv"))
    assert [(batch.source, len(batch.rows)) for batch in found] == [
        (str(two_files / "a.csv"), 3),
        (str(two_files / "b.csv"), 2),
    ]


def test_batches_are_full_until_a_file_ends(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("id\n" + "".join(f"{number}\n" for number in range(300_000)))
    assert [len(batch.rows) for batch in batches(rows.csv(path), 80_000)] == [80_000, 80_000, 80_000, 60_000]


def test_batches_of_large_rows_are_cut_by_their_size(tmp_path):
    path = tmp_path / "wide.csv"
    path.write_bytes(b"id,text\n" + (b"1," + b"x" * 1_000_000 + b"\n") * 70)
    found = batches(rows.csv(path), 1_000)
    assert sum(len(batch.rows) for batch in found) == 70
    assert len(found) == 3


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_progress_is_reported_in_bytes_on_disk(tmp_path, compress):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_bytes(compress(b"id\n" + b"".join(b"%d\n" % number for number in range(200_000))))
    source = rows.csv(tmp_path / "*.csv")
    reading = source.open(None, source.identity())
    done = []
    while (batch := reading.read(50_000)) is not None:
        done.append(batch.done)
    assert reading.total == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert done == sorted(done)
    assert done[-1] == reading.total
    assert len(set(done)) == 8


def test_columns_are_known_before_a_row_is_read(two_files):
    source = rows.csv(two_files / "*.csv")
    reading = source.open(None, source.identity())
    assert reading.columns == ("id", "fee")
    reading.close()
    reading.close()


def test_resumed_file_leaves_later_arrivals_to_the_next_run(two_files):
    source = rows.csv(two_files / "*.csv")
    identity = source.identity()
    first, *rest = batches(source, 2, identity=identity)
    (two_files / "a_late.csv").write_bytes(b"id,fee\n9,90\n")
    again = batches(source, 2, first.next, identity)
    assert [batch.rows.records for batch in again] == [batch.rows.records for batch in rest]
    assert [batch.next for batch in again] == [batch.next for batch in rest]
    assert source.difference(identity) is None
    assert first.next == {"file": str(two_files / "a.csv"), "byte": 17, "line": 4}


def test_checkpoint_of_a_changed_file_is_rejected(two_files):
    path = two_files / "a.csv"
    source = rows.csv(path)
    identity = source.identity()
    (batch,) = batches(source)
    with path.open("ab") as file:
        file.write(b"7,70\n")
    assert source.difference(identity) == f"{path} has grown since"
    path.write_bytes(b"id,fee\n0,10\n2,20\n3\n4,40\n")
    assert source.difference(identity) == f"{path} is another file now: its beginning or end differs"
    path.write_bytes(b"id,fee\n1,10\n")
    assert source.difference(identity) == f"{path} has become shorter"
    with pytest.raises(SourceError, match="has become shorter: byte 24, where the run resumes, is not in it"):
        source.open(batch.next, identity)


def test_first_file_defines_headerless_columns_after_a_resume(tmp_path):
    for name, content in (("a", b""), ("b", b"1,x\n2,x\n"), ("c", b"ragged\n4,x\n5,x\n")):
        (tmp_path / f"{name}.csv").write_bytes(content)
    source = rows.csv(tmp_path / "*.csv", header=False)
    whole = batches(source, 1)
    for place, batch in enumerate(whole):
        again = batches(source, 1, batch.next)
        assert [one.rows.records for one in again] == [one.rows.records for one in whole[place + 1 :]]
        assert [one.unreadable for one in again] == [one.unreadable for one in whole[place + 1 :]]
    assert [bad.raw for batch in whole for bad in batch.unreadable] == [b"ragged"]


def test_file_with_another_header_is_quarantined_after_a_resume(tmp_path):
    (tmp_path / "a.csv").write_bytes("id,fee\n1,20".encode("utf-16")[:-1])
    (tmp_path / "b.csv").write_bytes(b"id,price\n1,10\n")
    source = rows.csv(tmp_path / "*.csv")
    reading = source.open(None, source.identity())
    last = reading.read(10).next
    assert last["ended"]
    reading.close()
    resumed = source.open(last, source.identity())
    [letter] = resumed.read(10).unreadable
    assert "it lacks fee and it adds price" in letter.error
    assert resumed.read(10) is None


def test_checkpoint_of_another_source_is_rejected(two_files):
    source = rows.csv(two_files / "a.csv")
    assert source.difference({"kind": "ndjson", "files": []}) == "it was taken over ndjson, not over csv"
    other = rows.csv(two_files / "b.csv").identity()
    assert source.difference(other) == f"{two_files / 'b.csv'} is not among its files"
    utf_16 = rows.csv(two_files / "a.csv", encoding="utf-16")
    assert utf_16.difference(source.identity()) == "it was taken over csv, not over csv in utf-16"
    with pytest.raises(SourceError, match="in which the run resumes, is not among the files"):
        source.open({"file": "elsewhere.csv", "byte": 0, "line": 1}, source.identity())


@pytest.mark.parametrize(
    ("header", "clause"),
    [
        (b"id,Fee", "it lacks fee and it adds Fee"),
        (b"id", "it lacks fee"),
        (b"id,fee,tip", "it adds tip"),
    ],
)
def test_later_file_with_another_header_is_quarantined_in_order(two_files, header, clause):
    (two_files / "b.csv").write_bytes(header + b"\n5,50\n")
    source = rows.csv(two_files / "*.csv")
    reading = source.open(None, source.identity())
    assert len(reading.read(10).rows) == 3
    [letter] = reading.read(10).unreadable
    expected = f"{two_files / 'b.csv'} has other columns than {two_files / 'a.csv'}: {clause}"
    assert letter.error == f"the file was set aside, and an unknown number of rows with it: {expected}"
    assert reading.read(10) is None
    reading.close()


def test_empty_files_among_others_are_quarantined(two_files):
    (two_files / "0.csv").write_bytes(b"")
    (two_files / "a2.csv").write_bytes(b"\n\n")
    (two_files / "c.csv").write_bytes(b"id,fee\n")
    source = rows.csv(two_files / "*.csv")
    reading = source.open(None, source.identity())
    assert reading.columns == ("id", "fee")
    reading.close()
    assert len(records(source)) == 5
    aside = [bad for batch in batches(source) for bad in batch.unreadable if bad.error_type is ErrorType.FILE]
    assert [os.path.basename(letter.raw["path"]) for letter in aside] == ["0.csv", "a2.csv"]
    assert all("has no header that can be read: the file is empty" in letter.error for letter in aside)


@pytest.mark.parametrize("content", [b"", b"\n" * 50_000, gzip.compress(b"")], ids=["no bytes", "empty lines", "gzip"])
def test_empty_file_has_no_header(tmp_path, content):
    (tmp_path / "empty.csv").write_bytes(content)
    source = rows.csv(tmp_path / "empty.csv")
    with pytest.raises(SourceError, match=r"empty\.csv has no header that can be read: the file is empty"):
        source.open(None, source.identity())


def test_empty_file_without_a_header_has_no_columns_and_no_rows(tmp_path):
    (tmp_path / "empty.csv").write_bytes(b"")
    source = rows.csv(tmp_path / "empty.csv", header=False)
    reading = source.open(None, source.identity())
    assert (reading.columns, reading.total, reading.read(10)) == (None, 0, None)


def test_headerless_file_has_numbered_or_declared_columns(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"1,2\n3,4\n5\n")
    (tmp_path / "b.csv").write_bytes(b"6\n7,8\n")
    numbered = rows.csv(tmp_path / "*.csv", header=False)
    assert records(numbered)[0] == {"column_1": "1", "column_2": "2"}
    errors = [bad.error for batch in batches(numbered) for bad in batch.unreadable]
    assert errors == ["1 field where there should be 2"] * 2
    named = rows.csv(tmp_path / "*.csv", header=False, columns=["id", "fee"])
    assert records(named)[-1] == {"id": "7", "fee": "8"}


def test_ambiguous_first_record_asks_for_column_names(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'1,"2\n3,4\n')
    with pytest.raises(SourceError, match="a quote is not closed; name the columns"):
        batches(rows.csv(path, header=False))
    (batch,) = batches(rows.csv(path, header=False, columns=["a", "b"]))
    assert (batch.rows.records, [bad.raw for bad in batch.unreadable]) == ([], [b'1,"2\n3,4'])


@pytest.mark.parametrize("name", ["a.tsv", "A.TSV", "a.tab", "a.tsv.gz", "a.tsv.zst"])
def test_tsv_file_is_split_at_tabs(tmp_path, name):
    (tmp_path / name).write_bytes(b"a\tb\n1,5\t2\n")
    assert records(rows.csv(tmp_path / name)) == [{"a": "1,5", "b": "2"}]
    assert records(rows.csv(tmp_path / name, delimiter=",")) == []


def test_delimiter_and_quote_can_be_set(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"a|b\n'x|y'|\"\n")
    assert records(rows.csv(path, delimiter="|", quote="'")) == [{"a": "x|y", "b": '"'}]
    path.write_bytes(b"1a101b1\n1x0y10z\n")
    assert records(rows.csv(path, delimiter="0", quote="1")) == [{"a": "x0y", "b": "z"}]
    path.write_bytes(b'a,b\n"x,y\nx\x01,\r"\n')
    (batch,) = batches(rows.csv(path, quote=None))
    assert batch.rows.records == [{"a": '"x', "b": "y"}, {"a": "x\x01", "b": None}]
    assert [bad.raw for bad in batch.unreadable] == [b'"']


def test_null_texts_are_none_only_unquoted(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'a,b,c\nN/A,"N/A",\n-,x,""\n"N/A",N/A,"-"\n')
    found = [list(record.values()) for record in records(rows.csv(path, null=("", "N/A", "-")))]
    assert found == [[None, "N/A", None], [None, "x", ""], ["N/A", None, "-"]]
    found = [list(record.values()) for record in records(rows.csv(path, null=("N/A",)))]
    assert found == [[None, "N/A", ""], ["-", "x", ""], ["N/A", None, "-"]]
    found = [list(record.values()) for record in records(rows.csv(path, null=()))]
    assert found[0] == ["N/A", "N/A", ""]


def test_lines_before_the_header_are_skipped_and_counted(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbfreport of "today\n\na,b\n1,2\n')
    (batch,) = batches(rows.csv(path, skip=2))
    assert batch.rows.records == [{"a": "1", "b": "2"}]
    assert batch.position_of(0) == "line 4"
    path.write_bytes(b"")
    with pytest.raises(SourceError, match="the file is empty"):
        batches(rows.csv(path, skip=9))


MULTI_LINE = {
    "closed quotes are one row": (b'1,"a\nb\nc",2\n', 1),
    "lines that could be rows count": (b'1,"a\n2,b\n3,c\n4,d",5\n', 3),
    "an open quote counts its lines": (b'1,"a\nb\nc\n', 3),
}


@pytest.mark.parametrize(("content", "count"), MULTI_LINE.values(), ids=MULTI_LINE)
def test_rejected_multiline_record_counts_as_its_possible_rows(tmp_path, content, count):
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,b\n" + content)
    (batch,) = batches(rows.csv(path))
    assert [bad.rows for bad in batch.unreadable] == [count]


CONTEXT = {"header": ["id", "fee"], "delimiter": ",", "quote": '"'}


class TestLetterReplay:
    """A letter of a CSV line is read with its own header, and with the encoding of today."""

    def test_fixed_line_is_read(self, two_files):
        source = rows.csv(two_files / "*.csv")
        with pytest.raises(ValueError, match="1 field where the header has 2"):
            source.again(b"3", CONTEXT)
        assert source.again(b"3,30", CONTEXT) == {"id": "3", "fee": "30"}
        assert source.again(b"3,30\r\n", CONTEXT) == {"id": "3", "fee": "30"}
        assert source.again(b"3,30\r4,40\r", CONTEXT) == [{"id": "3", "fee": "30"}, {"id": "4", "fee": "40"}]
        assert source.again('3,"drei\nßig"', CONTEXT) == {"id": "3", "fee": "drei\nßig"}
        assert source.again("3,\n\n4,40\n", CONTEXT) == [{"id": "3", "fee": None}, {"id": "4", "fee": "40"}]
        assert source.again({"id": 3}, CONTEXT) == source.again({"id": 3}) == {"id": 3}

    @pytest.mark.parametrize(
        ("raw", "sentence"),
        [
            (b'3,"x', "a quote is not closed"),
            (b'3,"x"y', "text after a closing quote"),
            (b"3,\xe9", "not UTF-8: byte 0xe9 at column 3"),
            ("3,\udce9", "not UTF-8: byte 0xed at column 3"),
            (b"", "there is no row in it"),
            (7, "a line of a CSV file is a text, bytes or a record, not a int"),
        ],
        ids=str,
    )
    def test_line_that_is_still_bad_is_rejected(self, two_files, raw, sentence):
        with pytest.raises(ValueError) as error:
            rows.csv(two_files / "a.csv").again(raw, CONTEXT)
        assert str(error.value) == sentence

    def test_every_unreadable_record_fails_with_the_same_sentence(self, tmp_path):
        path = tmp_path / "a.csv"
        path.write_bytes(b'a,b\n1\n1,2,3\n"1"x,2\n\xff,2\n1,"2\n')
        source = rows.csv(path)
        (batch,) = batches(source)
        assert len(batch.unreadable) == 5
        for bad in batch.unreadable:
            with pytest.raises(ValueError) as error:
                source.again(bad.raw, bad.context)
            assert str(error.value) == bad.error

    @pytest.mark.parametrize("now", [b"id,last,first\n2,x,y\n", b"", None], ids=["other header", "empty", "moved"])
    def test_header_is_that_of_the_letter(self, tmp_path, now):
        path = tmp_path / "in.csv"
        path.write_bytes(b"id,first,last\n1,Ren\xe9,Dubois\n")
        (batch,) = batches(rows.csv(path))
        (bad,) = json.loads(json.dumps([one.context for one in batch.unreadable]))
        path.unlink() if now is None else path.write_bytes(now)
        fixed = rows.csv(path, encoding="cp1252")
        assert fixed.again(batch.unreadable[0].raw, bad) == {"id": "1", "first": "René", "last": "Dubois"}

    def test_delimiter_and_quote_are_those_of_the_letter(self, tmp_path):
        path = tmp_path / "in.tsv"
        path.write_bytes(b"a\tb\n'x\ty'\t\xe9\n")
        (batch,) = batches(rows.csv(path, quote="'"))
        (bad,) = batch.unreadable
        now = rows.csv(tmp_path / "gone.csv", delimiter=";", encoding="cp1252")
        assert now.again(bad.raw, bad.context) == {"a": "x\ty", "b": "é"}
        path.write_bytes(b"'a\t\xe9\n")
        (batch,) = batches(rows.csv(path, quote=None, header=False, columns=["a", "b"]))
        (bad,) = batch.unreadable
        assert now.again(bad.raw, bad.context) == {"a": "'a", "b": "é"}

    def test_text_converted_from_utf_16_is_unchanged(self, tmp_path):
        path = tmp_path / "in.csv"
        path.write_bytes("a,b\né\n".encode("utf-16"))
        (batch,) = batches(rows.csv(path))
        (bad,) = batch.unreadable
        assert rows.csv(path, encoding="cp1252").again(bad.raw + b",2", bad.context) == {"a": "é", "b": "2"}

    def test_headerless_letter_needs_declared_columns(self, two_files):
        with pytest.raises(ValueError, match="without the header of its file"):
            rows.csv(two_files / "*.csv").again(b"3,30")
        gone = two_files / "gone.tsv"
        source = rows.csv(gone, header=False, columns=["a", "b"], encoding="cp1252", null=("", "€"))
        assert source.again(b"\x80\tcaf\xe9") == {"a": None, "b": "café"}
        assert source.again("€\tcafé") == {"a": None, "b": "café"}

    @pytest.mark.parametrize("context", [{}, {"header": 1, "delimiter": ",", "quote": None}, {"page": 3}], ids=str)
    def test_context_of_something_else_is_rejected(self, two_files, context):
        with pytest.raises(ValueError, match="the context of the letter is not that of a CSV line"):
            rows.csv(two_files / "a.csv").again(b"3,30", context)


def test_careful_parser_replaces_a_failing_fast_parser(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'a,b\n1,"x\ny"\n2\n,""\r5" pipe,"\r"\r\n')
    expected = [batch.rows.frame for batch in batches(rows.csv(path))]
    with mock.patch.object(FrameBuilder, "_fast", return_value=None):
        found = [batch.rows.frame for batch in batches(rows.csv(path))]
    assert [frame.to_dict(as_series=False) for frame in found] == [frame.to_dict(as_series=False) for frame in expected]
    assert found[0].schema == expected[0].schema


def test_disk_error_is_no_end_of_the_source(two_files):
    source = rows.csv(two_files / "a.csv")
    reading = source.open(None, source.identity())
    with (
        mock.patch.object(reader, "structure", side_effect=OSError(5, "Input/output error")),
        pytest.raises(OSError, match="Input/output"),
    ):
        reading.read(10)
    with pytest.raises(OSError, match="Input/output"):
        reading.read(10)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"delimiter": ""}, "delimiter must be one ASCII character, and no line end, not ''"),
        ({"delimiter": "||"}, "delimiter must be one ASCII character, and no line end, not '||'"),
        ({"quote": "«"}, "quote must be one ASCII character, and no line end, not '«'"),
        ({"delimiter": '"'}, "delimiter and quote must differ, and both are '\"'"),
        ({"quote": ","}, "delimiter and quote must differ, and both are ','"),
        ({"columns": ["a"]}, "columns names those of a file without a header"),
        ({"header": False, "columns": []}, "columns must be a list of names"),
        ({"header": False, "columns": "ab"}, "columns must be a list of names"),
        ({"header": False, "columns": ["a", "a"]}, "columns must not name one twice"),
        ({"max_record_bytes": 0}, "max_record_bytes must be a number of bytes from 1 up, not 0"),
        ({"skip": -1}, "skip must be a number of lines from 0 up, not -1"),
        ({"encoding": "utf-9"}, "'utf-9' is not an encoding that Python knows"),
        ({"encoding": "hex"}, "'hex' is not an encoding that Python knows"),
        ({"encoding": "utf-7"}, "CSV in utf-7 cannot be taken apart by its bytes"),
        ({"encoding": "cp037"}, "CSV in cp037 cannot be taken apart by its bytes"),
        ({"encoding": "utf-32"}, "CSV in utf-32 cannot be taken apart by its bytes"),
        ({"encoding": "shift_jis", "delimiter": "|"}, "CSV in shift_jis cannot be taken apart by its bytes"),
        ({"null": "N/A"}, "null must be a list of texts, such as ('', 'N/A'), not 'N/A'"),
        ({"null": ["a\n"]}, "null cannot be 'a\\n': a text with a quote or a line end in it is always quoted"),
        ({"null": ["€"], "encoding": "latin-1"}, "null cannot be '€': there is no such text in iso8859-1"),
    ],
    ids=str,
)
def test_contradictory_options_are_rejected_at_once(options, sentence):
    with pytest.raises((ValueError, TypeError)) as error:
        rows.csv("a.csv", **options)
    assert sentence in str(error.value)
