"""CSV files through a pipeline: loaded rows, the counts of the gate, and the replay of a letter."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

import redrive
from redrive.errors import GateAborted

WIDE = redrive.Gate(abort=1)


@pytest.fixture
def store(tmp_path):
    with redrive.connect(tmp_path / "store.db") as opened:
        yield opened


@pytest.fixture
def pipeline(tmp_path, store):
    def make(content=None, *, gate=WIDE, key="id", **options):
        path = tmp_path / "in.csv"
        if content is not None:
            path.write_bytes(content)
        return redrive.Pipeline(
            "people",
            source=redrive.rows.csv(path, **options),
            sink=redrive.rows.table(f"sqlite:///{tmp_path}/target.db", "people", key=key, create=True),
            gate=gate,
            store=store,
        )

    return make


def table(tmp_path, columns="*"):
    with closing(sqlite3.connect(tmp_path / "target.db")) as database:
        return database.execute(f"SELECT {columns} FROM people ORDER BY id").fetchall()


@pytest.mark.parametrize("line_end", ["\r", "\n", "\r\n"], ids=["CR", "LF", "CRLF"])
def test_line_ends_of_every_kind_are_loaded(tmp_path, pipeline, line_end):
    report = pipeline(line_end.join(["id,name", "1,x", "2,y", ""]).encode()).run()
    assert (report.status, report.read, report.written) == ("complete", 2, 2)
    assert table(tmp_path) == [("1", "x"), ("2", "y")]


def test_text_of_a_closed_field_is_never_loaded_as_rows(tmp_path, pipeline, store):
    report = pipeline(b'id,name\n1,"Dear Sir\nhello, world\nregards",extra\n2,y\n').run()
    assert (report.read, report.written, report.rejected) == (3, 1, 2)  # "hello, world" may be a row
    assert table(tmp_path) == [("2", "y")]
    (letter,) = store.dlq.find()
    assert letter.record == b'1,"Dear Sir\nhello, world\nregards",extra'
    assert letter.error_message == "3 fields where the header has 2"


def test_gate_counts_the_lines_of_a_quote_that_is_not_closed(tmp_path, pipeline, store):
    lines = b"".join(b"%d,x\n" % number for number in range(10_000))
    with pytest.raises(GateAborted) as stopped:
        pipeline(b"id,name\n" + lines + b'x,"\n' + lines, gate=redrive.Gate()).run()
    report = stopped.value.report
    assert (report.read, report.written, report.rejected) == (20_001, 10_000, 10_001)
    assert store.dlq.count() == 1


class TestReplay:
    """The replay of a line that could not be decoded, with the encoding that the file has."""

    @pytest.fixture
    def rejected(self, pipeline):
        report = pipeline(b"id,first,last\n1,Ren\xe9,Dubois\n2,Ada,Lovelace\n").run()
        assert (report.written, report.rejected) == (1, 1)

    @pytest.mark.parametrize("now", [b"id,last,first\n3,x,y\n", None], ids=["other header", "moved"])
    def test_columns_are_those_of_the_letter(self, tmp_path, pipeline, store, rejected, now):
        target = pipeline(now, encoding="cp1252")
        if now is None:
            (tmp_path / "in.csv").unlink()
        assert store.dlq.replay(target, dry_run=False).reprocessed == 1
        assert table(tmp_path, "id, first, last") == [("1", "René", "Dubois"), ("2", "Ada", "Lovelace")]

    def test_edited_line_has_the_columns_of_the_letter(self, tmp_path, pipeline, store, rejected):
        (letter,) = store.dlq.find()
        store.dlq.edit(letter.id, "1,Renée,Dubois")
        assert store.dlq.replay(pipeline(b"id,last,first\n"), dry_run=False).reprocessed == 1
        assert table(tmp_path, "first, last")[0] == ("Renée", "Dubois")

    def test_letter_without_header_is_not_guessed(self, tmp_path, pipeline, store):
        store.dlq.put("1,x", "1 field", pipeline="people", source="in.csv", error_type="parse")
        assert store.dlq.replay(pipeline(b"id,name\n"), dry_run=False).reprocessed == 0
        (letter,) = store.dlq.find(status="escalated")
        assert "edit the record into fields" in letter.last_error
