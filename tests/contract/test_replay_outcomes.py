"""A replayed letter is reprocessed only if its row is in the sink, and no old row overwrites a newer one."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import threading
from typing import Any

import polars as pl
import pytest
from sqlalchemy import update

import redrive
from redrive.store.schema import letter_claims
from tests.support.table_places import PLACES, place_of, sqlite


class Place:
    """A table, and a pipeline `vendor` into it. Rows with v "bad…" are rejected until the check is fixed."""

    def __init__(self, store, url, execute):
        self.store, self.url, self.sql = store, url, execute
        execute("CREATE TABLE t (id integer PRIMARY KEY, v text, seq integer)")

    def pipeline(self, *rows, fixed=False, mode=None, name="vendor", **options):
        def check(record: dict[str, Any]) -> None:
            if record["v"].startswith("bad") and not fixed:
                raise ValueError("bad " + "row " * record.get("seq", 0))

        source = redrive.rows.records([{"id": key, "v": v, "seq": seq} for key, v, seq in rows], name="in")
        sink = redrive.rows.table(self.url, "t", key="id", **(mode or {}))
        options = {"source": source, "sink": sink, "validate": check, "store": self.store} | options
        return redrive.Pipeline(name, gate=redrive.Gate(abort=1), **options)

    def run(self, *rows, **options):
        return self.pipeline(*rows, **options).run()

    def replay(
        self, *, mode=None, validate=None, transform=None, on_duplicate="last", name="vendor", dry_run=False, **options
    ):
        parts = {"mode": mode, "transform": transform, "on_duplicate": on_duplicate, "name": name}
        target = self.pipeline(fixed=True, **parts, **({} if validate is None else {"validate": validate}))
        return self.store.dlq.replay(target, dry_run=dry_run, **options)

    def rows(self):
        return dict(self.sql("SELECT id, v FROM t ORDER BY id"))

    def letters(self):
        return {letter.record["v"]: letter for letter in self.store.dlq.each()}

    def became(self):
        """Return the status of each letter, by its v; "superseded" for an open one that is."""
        return {
            v: "superseded" if letter.superseded_at and letter.status == "pending" else str(letter.status)
            for v, letter in self.letters().items()
        }


@pytest.fixture(params=PLACES)
def place(request, new_store, tmp_path):
    with place_of(request.param, new_store, tmp_path) as parts:
        yield Place(*parts)


@pytest.fixture(params=["sqlite", "postgresql"])
def some_place(request, new_store, tmp_path):
    with place_of(request.param, new_store, tmp_path) as parts:
        yield Place(*parts)


class TestLettersOfOneKey:
    """Two runs rejected a row of the same key, for different causes: two letters."""

    @pytest.fixture
    def place(self, some_place):
        some_place.run((1, "bad old", 1))
        some_place.run((1, "bad new", 2))
        assert some_place.became() == {"bad old": "pending", "bad new": "pending"}
        return some_place

    def test_older_letter_after_the_newer_is_omitted(self, place):
        assert place.replay(ids=[place.letters()["bad new"].id]).reprocessed == 1
        report = place.replay()
        assert (report.selected, report.superseded) == (0, 1)
        assert place.rows() == {1: "bad new"}
        assert place.became() == {"bad old": "superseded", "bad new": "reprocessed"}

    def test_newer_letter_after_the_older_is_sent(self, place):
        assert place.replay(ids=[place.letters()["bad old"].id]).reprocessed == 1
        assert place.replay().reprocessed == 1
        assert place.rows() == {1: "bad new"}

    def test_one_of_a_batch_is_written_and_reported(self, place):
        report = place.replay()
        assert (report.attempted, report.reprocessed, report.superseded) == (2, 1, 1)
        assert place.rows() == {1: "bad new"}
        assert place.became() == {"bad old": "superseded", "bad new": "reprocessed"}
        assert "another letter of this key" in place.letters()["bad old"].last_error

    def test_batches_of_one_end_with_the_newer_letter(self, place):
        assert place.replay(batch=1).reprocessed == 2
        assert place.rows() == {1: "bad new"}

    def test_reopened_older_letter_stays_superseded(self, place):
        place.replay(batch=1)
        place.store.dlq.reopen(pipeline="vendor")
        place.replay()
        assert place.rows() == {1: "bad new"}
        assert place.became()["bad old"] == "superseded"

    def test_function_supersedes_by_the_key_of_the_letter(self, place):
        report = place.store.dlq.replay(lambda records: None, ids=[place.letters()["bad new"].id], dry_run=False)
        assert report.reprocessed == 1
        assert place.became()["bad old"] == "superseded"

    def test_edited_key_supersedes_the_letters_of_that_key(self, place):
        place.run((2, "bad two", 3))
        place.store.dlq.edit(place.letters()["bad two"].id, patch={"id": 1})
        place.replay(ids=[place.letters()["bad two"].id])
        assert place.became() == {"bad old": "superseded", "bad new": "superseded", "bad two": "reprocessed"}

    def test_dry_run_reports_the_same_and_marks_nothing(self, place):
        report = place.replay(dry_run=True)
        assert (report.attempted, report.reprocessed, report.superseded) == (2, 1, 1)
        assert place.became() == {"bad old": "pending", "bad new": "pending"}

    def test_claimed_letter_keeps_others_of_its_key_from_being_sent(self, place):
        """A replay has claimed the newer letter: sending the older one now might write it last."""
        reports = []

        def target(records):
            reports.append(place.replay(lease=0.5))

        place.store.dlq.replay(target, ids=[place.letters()["bad new"].id], dry_run=False)
        assert (reports[0].attempted, reports[0].held) == (0, 2)


class TestLetterOfUnknownKey:
    """A transform may change the key, and no valid row of its batch shows whether it does."""

    @staticmethod
    def keep(record: dict[str, Any]) -> dict[str, Any]:
        return dict(record)

    def test_unknown_key_is_counted_after_later_rows(self, some_place):
        some_place.run((1, "bad", 1), transform=self.keep)
        assert some_place.replay(transform=self.keep, dry_run=True).key_unknown == 0
        some_place.run((2, "other", 2), transform=self.keep)
        assert some_place.replay(transform=self.keep, dry_run=True).key_unknown == 1

    def test_function_is_not_reported_to_overwrite(self, some_place):
        some_place.run((1, "bad", 1), transform=self.keep)
        some_place.run((2, "other", 2), transform=self.keep)
        assert some_place.store.dlq.replay(lambda records: None, pipeline="vendor").key_unknown == 0


class TestKeyChangedByFunction:
    """The validator gives rows another key than their record has."""

    @staticmethod
    def other_key(record: dict[str, Any]) -> dict[str, Any]:
        if record["v"].startswith("bad"):
            raise ValueError("bad row")
        return {**record, "id": record["id"] + 100}

    @staticmethod
    def fixed(record: dict[str, Any]) -> dict[str, Any]:
        return {**record, "id": record["id"] + 100}

    BEFORE = pytest.mark.parametrize("before", [[], [(9, "other", 0)]], ids=["without a good row", "with a good row"])

    @BEFORE
    def test_letter_is_counted_once_later_rows_are_written(self, some_place, before):
        some_place.run(*before, (1, "bad", 1), validate=self.other_key)
        some_place.run((1, "good", 2), validate=self.other_key)
        assert some_place.replay(validate=self.fixed, dry_run=True).key_unknown == 1
        assert some_place.replay(validate=self.fixed).key_unknown == 1

    @BEFORE
    def test_record_repeated_after_a_newer_row_is_a_new_letter(self, some_place, before):
        some_place.run(*before, (1, "bad", 1), validate=self.other_key)
        assert some_place.replay(validate=self.fixed).reprocessed == 1
        some_place.run((1, "good", 1), validate=self.other_key)
        assert some_place.rows()[101] == "good"
        some_place.run(*before, (1, "bad", 1), validate=self.other_key)
        assert some_place.store.dlq.count(status="open") == 1


class TestEditedKey:
    """A letter is superseded by the key of its edited record."""

    @pytest.fixture
    def place(self, some_place):
        some_place.run((1, "bad", 1), (2, "good", 1))
        return some_place

    @staticmethod
    def edit(place, **given):
        place.store.dlq.edit(place.letters()["bad"].id, **given)

    def test_key_that_was_written_before_is_counted(self, place):
        place.run((2, "new", 1))
        self.edit(place, patch={"id": 2})
        assert place.replay(dry_run=True).key_unknown == 1

    def test_later_run_supersedes_by_the_new_key(self, place):
        self.edit(place, patch={"id": 3})
        place.run((3, "new", 1))
        assert (place.replay().superseded, place.rows()) == (1, {2: "good", 3: "new"})

    def test_later_run_does_not_supersede_by_the_old_key(self, place):
        self.edit(place, patch={"id": 3})
        place.run((1, "new", 1))
        assert place.replay().reprocessed == 1
        assert place.rows() == {1: "new", 2: "good", 3: "bad"}

    def test_run_under_way_supersedes_by_the_new_key(self, place):
        def rows():
            yield {"id": 5, "v": "good", "seq": 1}
            self.edit(place, patch={"id": 3})
            yield {"id": 3, "v": "new", "seq": 1}

        place.run(source=redrive.rows.records(rows), batch=1)
        assert place.became() == {"bad": "superseded"}

    def test_edit_of_the_key_ends_superseding_by_the_old_key(self, place):
        place.run((1, "new", 1))
        assert place.became() == {"bad": "superseded"}
        self.edit(place, patch={"id": 9})
        assert place.became() == {"bad": "pending"}
        self.edit(place, undo=True)
        assert place.became() == {"bad": "superseded"}

    def test_undo_restores_the_key(self, place):
        self.edit(place, patch={"id": 3})
        self.edit(place, undo=True)
        place.run((3, "new", 1))
        assert place.became() == {"bad": "pending"}
        place.run((1, "new", 1))
        assert place.became() == {"bad": "superseded"}

    def test_edit_counts_runs_that_wrote_the_old_key_meanwhile(self, place):
        self.edit(place, patch={"id": 3})
        place.run((1, "new", 1))
        self.edit(place, undo=True)
        assert place.replay(dry_run=True).key_unknown == 1

    def test_edit_of_other_fields_keeps_the_key(self, place):
        place.run((4, "good", 1))
        self.edit(place, patch={"v": "edited"})
        assert place.replay(dry_run=True).key_unknown == 0
        place.run((1, "new", 1))
        assert place.became() == {"bad": "superseded"}

    def test_key_of_a_letter_that_was_replayed(self, place):
        place.run((7, "bad too", 2))
        place.replay(ids=[place.letters()["bad too"].id])
        self.edit(place, patch={"id": 7})
        assert place.became()["bad"] == "superseded"

    def test_later_run_supersedes_another_spelling(self, place):
        self.edit(place, patch={"id": "03"})
        place.run((3, "new", 1))
        assert (place.replay().superseded, place.rows()) == (1, {2: "good", 3: "new"})

    def test_another_spelling_of_a_replayed_letter(self, place):
        place.run((7, "bad too", 2))
        place.replay(ids=[place.letters()["bad too"].id])
        self.edit(place, patch={"id": "07"})
        for dry_run in (True, False):
            report = place.replay(dry_run=dry_run)
            assert (report.selected, report.superseded) == (0, 1)
        assert place.rows() == {2: "good", 7: "bad too"}

    def test_another_spelling_of_the_same_key_stays_superseded(self, place):
        place.run((1, "new", 1))
        self.edit(place, patch={"id": "01"})
        for dry_run in (True, False):
            report = place.replay(dry_run=dry_run)
            assert (report.selected, report.superseded) == (0, 1)
        assert place.rows() == {1: "new", 2: "good"}
        assert place.replay(include_superseded=True).reprocessed == 1

    def test_key_that_a_transform_makes(self, place):
        def swap(record: dict[str, Any]) -> dict[str, Any]:
            return {"id": int(record["seq"]), "v": record["v"], "seq": 1}

        place.sql("DROP TABLE t")
        place.sql("CREATE TABLE t (id integer PRIMARY KEY, v text CHECK (v <> 'refused'), seq integer)")
        place.run((1, "refused", 70), (2, "good", 80), transform=swap)
        letter = place.letters()["refused"]
        place.store.dlq.edit(letter.id, patch={"v": "fixed"})
        place.run((3, "new", 70), transform=swap)
        assert place.became()["refused"] == "superseded"
        place.store.dlq.edit(letter.id, patch={"seq": 90})
        assert place.replay(transform=swap, dry_run=True, ids=[letter.id]).key_unknown == 1

    def test_record_without_the_key_is_counted(self, place):
        self.edit(place, patch={"id": None})
        assert place.replay(dry_run=True).key_unknown == 1

    def test_export_keeps_the_key_before_the_edit(self, place):
        self.edit(place, patch={"id": 3})
        lines = list(place.store.dlq.export())
        place.store.dlq.discard(note="moved", pipeline="vendor")
        place.store.dlq.purge(older_than=dt.timedelta())
        assert place.store.dlq.import_(lines).new == 1
        self.edit(place, undo=True)
        place.run((1, "new", 1))
        assert place.became() == {"bad": "superseded"}


class TestPartlyWrittenLetter:
    def test_older_letter_of_a_written_row_is_superseded(self, some_place):
        """The newer letter becomes two rows; the table takes one of them, and its replay fails."""
        some_place.sql("CREATE UNIQUE INDEX by_seq ON t (seq)")
        some_place.sql("INSERT INTO t VALUES (9, 'other', 99)")
        some_place.run((1, "bad old", 1))
        some_place.run((5, "bad new", 2))

        def split(frame):
            parts = pl.DataFrame({"id": [1, 2], "v": frame["v"].to_list() * 2, "seq": [7, 99], "n": [0, 0]})
            return parts.cast({"n": frame.schema["n"]})

        in_two = redrive.rows.per_frame(split, row="n")
        report = some_place.replay(transform=in_two, ids=[some_place.letters()["bad new"].id])
        assert (report.failed_again, some_place.rows()[1]) == (1, "bad new")
        assert some_place.became() == {"bad old": "superseded", "bad new": "escalated"}


class TestChangedSinkKey:
    def test_run_by_another_key_is_counted(self, some_place):
        """The run cannot supersede the letter, and the replaying pipeline has the letter's own key again."""
        some_place.sql("CREATE UNIQUE INDEX by_seq ON t (seq)")
        some_place.run((1, "bad", 7))
        assert some_place.replay(dry_run=True).key_unknown == 0
        some_place.run((1, "new", 7), sink=redrive.rows.table(some_place.url, "t", key="seq"))
        assert some_place.replay(dry_run=True).key_unknown == 1


class TestImportedLetter:
    @pytest.fixture
    def lines(self, some_place):
        some_place.run((1, "bad", 1))
        lines = list(some_place.store.dlq.export())
        some_place.store.dlq.discard(note="moved", pipeline="vendor")
        some_place.store.dlq.purge(older_than=dt.timedelta())
        return lines

    def test_run_before_the_import_is_counted(self, some_place, lines):
        some_place.run((1, "new", 1))
        some_place.store.dlq.import_(lines)
        assert some_place.replay(dry_run=True).key_unknown == 1

    def test_run_after_the_import_supersedes(self, some_place, lines):
        some_place.store.dlq.import_(lines)
        some_place.run((1, "new", 1))
        assert some_place.replay().superseded == 1

    def test_run_under_way_supersedes(self, some_place, lines):
        def rows():
            yield {"id": 5, "v": "good", "seq": 1}
            some_place.store.dlq.import_(lines)
            yield {"id": 1, "v": "new", "seq": 1}

        some_place.run(source=redrive.rows.records(rows), batch=1)
        assert some_place.became() == {"bad": "superseded"}


class TestOtherPipelineIntoTheSink:
    def test_renamed_pipeline_that_has_written_rows(self, some_place):
        some_place.run((1, "bad", 1))
        assert some_place.replay(name="renamed", pipeline="vendor", dry_run=True).key_unknown == 0
        some_place.run((1, "new", 1), name="renamed")
        assert some_place.replay(name="renamed", pipeline="vendor", dry_run=True).key_unknown == 1

    def test_second_pipeline_that_has_written_rows(self, some_place):
        some_place.run((1, "bad", 1))
        some_place.run((1, "new", 1), name="other")
        assert some_place.replay(dry_run=True).key_unknown == 1

    def test_comparing_sink_is_not_reported_to_overwrite(self, some_place):
        mode = {"newer": "seq"}
        some_place.run((1, "bad", 1), mode=mode)
        some_place.run((1, "new", 1), mode=mode, name="other")
        assert some_place.replay(mode=mode, dry_run=True).key_unknown == 0


class TestRecordOfSeveralRows:
    @staticmethod
    def split(seq=None):
        """Return a transform that gives a second row to records with a seq above 5."""
        import polars as pl

        def rows(frame: pl.DataFrame) -> pl.DataFrame:
            second = frame.filter(pl.col("seq") > 5).with_columns(pl.col("id") + 100)
            second = second if seq is None else second.with_columns(seq=pl.lit(seq, pl.Int64))
            return pl.concat([frame.with_columns(seq=pl.lit(1, pl.Int64)), second])

        return redrive.rows.per_frame(rows, row="n")

    def test_is_counted_once_later_rows_are_written(self, some_place):
        some_place.sql("DROP TABLE t")
        some_place.sql("CREATE TABLE t (id integer PRIMARY KEY, v text, seq integer CHECK (seq < 100))")
        some_place.run((1, "old", 500), transform=self.split())
        assert (some_place.rows(), some_place.became()) == ({1: "old"}, {"old": "pending"})
        fixed = self.split(seq=50)
        report = some_place.replay(transform=fixed, dry_run=True)
        assert (report.reprocessed, report.key_unknown) == (1, 0)
        some_place.run((1, "new", 1), transform=self.split())
        assert some_place.replay(transform=fixed, dry_run=True).key_unknown == 1


class TestUnwrittenRecord:
    @pytest.mark.parametrize("dry_run", [False, True])
    def test_validate_discards(self, some_place, dry_run):
        def drop(record):
            raise redrive.Discard("a test record")

        some_place.run((1, "bad", 0))
        report = some_place.replay(validate=drop, dry_run=dry_run)
        assert (report.attempted, report.reprocessed, report.discarded) == (1, 0, 1)
        assert some_place.rows() == {}
        assert some_place.became() == {"bad": "pending" if dry_run else "discarded"}
        assert dry_run or "dropped" in some_place.letters()["bad"].note

    def test_transform_drops(self, some_place):
        some_place.run((1, "bad", 0), (2, "bad too", 0))
        report = some_place.replay(transform=lambda record: None if record["id"] == 1 else record)
        assert (report.reprocessed, report.discarded) == (1, 1)
        assert some_place.became() == {"bad": "discarded", "bad too": "reprocessed"}

    def test_function_discards(self, some_place):
        some_place.run((1, "bad", 0))
        some_place.store.dlq.replay(lambda records: [redrive.Discard("obsolete")], pipeline="vendor", dry_run=False)
        assert some_place.became() == {"bad": "discarded"}
        assert some_place.letters()["bad"].note == "obsolete"

    def test_page_that_is_empty_by_now_stays_open(self, some_place):
        some_place.store.dlq.put({"page": 7}, "timeout", pipeline="vendor", error_type="page")

        class Pages:
            name, of_text = "pages", False

            def open(self, position):
                raise NotImplementedError

            def again(self, raw, context=None):
                return []

        sink = redrive.rows.table(some_place.url, "t", key="id")
        target = redrive.Pipeline("vendor", source=Pages(), sink=sink, store=some_place.store)
        report = some_place.store.dlq.replay(target, dry_run=False)
        assert (report.reprocessed, report.discarded, report.failed_again) == (0, 0, 1)
        assert [letter.status for letter in some_place.store.dlq.each()] == ["escalated"]

    @pytest.mark.parametrize("dry_run", [False, True])
    def test_table_keeps_its_row(self, place, dry_run):
        place.sql("INSERT INTO t VALUES (2, 'there', 0), (4, 'there', 0)")
        place.run(*((key, f"bad {key}", 0) for key in range(1, 6)))
        report = place.replay(mode={"on_conflict": "ignore"}, dry_run=dry_run)
        assert (report.attempted, report.reprocessed, report.superseded) == (5, 3, 2)
        if not dry_run:
            assert place.rows() == {1: "bad 1", 2: "there", 3: "bad 3", 4: "there", 5: "bad 5"}
            assert {v for v, became in place.became().items() if became == "superseded"} == {"bad 2", "bad 4"}
            assert "keeps" in place.letters()["bad 2"].last_error

    def test_table_has_a_newer_row(self, place):
        place.sql("INSERT INTO t VALUES (1, 'there', 9), (2, 'there', 1)")
        place.run((1, "bad 1", 5), (2, "bad 2", 5), (3, "bad 3", 5))
        report = place.replay(mode={"newer": "seq"})
        assert (report.reprocessed, report.superseded) == (2, 1)
        assert place.rows() == {1: "there", 2: "bad 2", 3: "bad 3"}
        assert place.became() == {"bad 1": "superseded", "bad 2": "reprocessed", "bad 3": "reprocessed"}

    @pytest.mark.parametrize("dry_run", [True, False])
    def test_table_has_a_newer_row_than_a_deletion(self, place, dry_run):
        mode = {"newer": "seq", "delete_when": {"v": ["bad 1", "bad 2", "bad 3"]}}
        place.sql("INSERT INTO t VALUES (1, 'there', 9), (2, 'there', 1)")
        place.run(*((key, f"bad {key}", 5) for key in (1, 2, 3)))
        report = place.replay(mode=mode, dry_run=dry_run)
        assert (report.reprocessed, report.superseded) == (2, 1)
        if not dry_run:
            assert place.rows() == {1: "there"}
            assert place.became() == {"bad 1": "superseded", "bad 2": "reprocessed", "bad 3": "reprocessed"}
            assert "keeps" in place.letters()["bad 1"].last_error

    def test_trigger_keeps_a_row_from_being_deleted(self, some_place):
        some_place.sql("INSERT INTO t VALUES (1, 'there', 0), (2, 'there', 0)")
        some_place.run((1, "bad 1", 0), (2, "bad 2", 0))
        leave_out(some_place, 2, event="DELETE")
        report = some_place.replay(mode={"delete_when": {"v": ["bad 1", "bad 2"]}})
        assert (report.reprocessed, report.failed_again) == (1, 1)
        assert some_place.rows() == {2: "there"}
        assert "left the row out" in some_place.letters()["bad 2"].last_error

    def test_counts_add_up_to_the_selected(self, some_place):
        for number in range(1, 7):
            some_place.run((number, "bad", number))
        some_place.run((1, "there", 9))
        some_place.sql("INSERT INTO t VALUES (2, 'there', 9)")

        def check(record):
            if record["id"] in (3, 4):
                raise ValueError("bad") if record["id"] == 3 else redrive.Discard("not needed")

        for dry_run in (True, False):
            report = some_place.replay(mode={"newer": "seq"}, validate=check, dry_run=dry_run)
            assert (report.selected, report.superseded, report.superseded_before) == (5, 2, 1)
            assert (report.reprocessed, report.failed_again, report.discarded) == (2, 1, 1)

    def test_table_compares_letters_of_one_key(self, some_place):
        some_place.run((1, "bad newer", 9))
        some_place.run((1, "bad older", 5))
        for dry_run in (True, False):
            report = some_place.replay(mode={"newer": "seq"}, dry_run=dry_run)
            assert (report.reprocessed, report.superseded) == (1, 1)
        assert some_place.rows() == {1: "bad newer"}
        assert some_place.became() == {"bad newer": "reprocessed", "bad older": "superseded"}

    @pytest.mark.parametrize("append", [False, True])
    def test_trigger_leaves_the_row_out(self, some_place, append):
        leave_out(some_place, 2)
        some_place.run((1, "bad 1", 0), (2, "bad 2", 0), (3, "bad 3", 0))
        if append:
            sink = redrive.rows.table(some_place.url, "t", append=True)
            source = redrive.rows.records([], name="in")
            target = redrive.Pipeline("vendor", source=source, sink=sink, store=some_place.store)
            report = some_place.store.dlq.replay(target, dry_run=False)
        else:
            report = some_place.replay()
        assert (report.reprocessed, report.failed_again) == (2, 1)
        assert some_place.rows() == {1: "bad 1", 3: "bad 3"}
        letter = some_place.letters()["bad 2"]
        assert letter.status == "escalated"
        assert "left the row out" in letter.last_error


def leave_out(place, key, event="INSERT"):
    """Let a trigger leave out the row of a key."""
    row = "OLD" if event == "DELETE" else "NEW"
    if place.url.startswith("sqlite"):
        place.sql(
            f"CREATE TRIGGER no BEFORE {event} ON t WHEN {row}.id = {key} AND {row}.v LIKE '%' "
            "BEGIN SELECT RAISE(IGNORE); END"
        )
        return
    place.sql(
        "CREATE OR REPLACE FUNCTION public.no() RETURNS trigger LANGUAGE plpgsql AS $$ "
        f"BEGIN IF {row}.id = {key} THEN RETURN NULL; END IF; RETURN {row}; END $$"
    )
    place.sql(f"CREATE TRIGGER no BEFORE {event} ON t FOR EACH ROW EXECUTE FUNCTION public.no()")


class TestRunDuringReplay:
    def test_run_does_not_write_below_a_replay(self, some_place):
        """The replay has claimed the letter: a row of the run written now would be overwritten."""
        some_place.run((1, "bad", 0), (2, "fine", 0))

        def check(record):
            with pytest.raises(redrive.RunStopped, match="a replay has claimed 1 letters"):
                some_place.run((1, "new", 0), patience=0.1)

        assert some_place.replay(validate=check).reprocessed == 1
        assert some_place.rows() == {1: "bad", 2: "fine"}
        some_place.run((1, "new", 0))
        assert some_place.rows() == {1: "new", 2: "fine"}

    def test_run_waits_for_the_replay(self, some_place):
        some_place.run((1, "bad", 0))
        runs = []

        def check(record):
            runs.append(threading.Thread(target=some_place.run, args=((1, "new", 0),)))
            runs[0].start()

        some_place.replay(validate=check)
        runs[0].join()
        assert some_place.rows() == {1: "new"}
        assert some_place.letters()["bad"].superseded_at is not None

    def test_replay_skips_letters_of_rows_that_a_run_writes(self, some_place):
        some_place.run((1, "bad", 0))
        reports = []
        pipeline = some_place.pipeline((1, "new", 0))
        write = pipeline.sink.write

        def write_during_replay(rows, *, label):
            reports.append(some_place.replay(lease=0.3))
            return write(rows, label=label)

        pipeline.sink.write = write_during_replay
        pipeline.run()
        assert (reports[0].selected, reports[0].attempted, reports[0].held) == (1, 0, 1)
        assert some_place.rows() == {1: "new"}
        report = some_place.replay()
        assert (report.selected, report.superseded) == (0, 1)

    def test_letters_superseded_meanwhile_are_counted(self, some_place):
        some_place.run((1, "bad 1", 0), (2, "bad 2", 0), (3, "bad 3", 0))

        def check(record):
            if record["id"] == 1:
                some_place.run((2, "new", 0))
                some_place.store.dlq.discard(ids=[some_place.letters()["bad 3"].id], note="x")

        report = some_place.replay(validate=check, batch=1)
        assert (report.selected, report.reprocessed, report.superseded, report.decided) == (3, 1, 1, 1)
        assert some_place.rows() == {1: "bad 1", 2: "new"}

    def test_claims_end_with_the_batch(self, some_place):
        some_place.run((1, "bad 1", 0), (2, "bad 2", 0))
        some_place.run((1, "new", 0))
        report = some_place.replay(include_superseded=True, lease=0.3)
        assert (report.reprocessed, report.held) == (2, 0)


class TestKilledRun:
    """A run is killed between the commit of the sink and that of the store."""

    PROGRAM = """
import os, sys
import redrive
store = redrive.connect(sys.argv[1])
sink = redrive.rows.table(sys.argv[2], "t", key="id")
write = sink.write
def write_and_die(rows, *, label):
    if rows.values("id")[0] == 1:
        write(rows, label=label)
        os._exit(9)
    return write(rows, label=label)
sink.write = write_and_die
rows = [{"id": 5, "v": "good", "seq": 0}, {"id": 1, "v": "new", "seq": 0}]
redrive.Pipeline("vendor", source=redrive.rows.records(rows, name="in"), sink=sink, store=store, batch=1).run()
"""

    @pytest.fixture(params=["sqlite", "postgresql"])
    def place(self, request, new_store, tmp_path):
        parts = new_store(request.param), sqlite(tmp_path / "t.db")
        with parts[0] as store_url, parts[1] as table, redrive.connect(store_url) as store:
            place = Place(store, *table)
            place.run((1, "bad", 0))
            command = [sys.executable, "-c", self.PROGRAM, store_url, place.url]
            assert subprocess.run(command, check=False).returncode == 9
            assert place.rows() == {1: "new", 5: "good"}
            past = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
            ended = update(letter_claims).values(until=past)  # as if the lease had run out
            assert store.database.write(lambda connection: connection.execute(ended).rowcount) == 1
            yield place

    def test_replay_skips_its_letters(self, place):
        for dry_run in (True, False):
            report = place.replay(dry_run=dry_run)
            assert (report.selected, report.held_by_run) == (0, 1)
        assert place.rows() == {1: "new", 5: "good"}

    def test_resumed_run_supersedes_its_letters(self, place):
        place.run((5, "good", 0), (1, "new", 0), batch=1)
        report = place.replay()
        assert (report.held_by_run, report.superseded) == (0, 1)

    def test_abandoned_run_may_have_written_its_letters(self, place):
        place.pipeline((7, "other", 0)).run(restart=True)
        report = place.replay(dry_run=True)
        assert (report.selected, report.held_by_run, report.key_unknown) == (1, 0, 1)

    def test_letters_are_sent_on_request(self, place):
        assert place.replay(include_superseded=True).reprocessed == 1


class TestFailedRun:
    """A run fails between the commit of the sink and that of the store."""

    @pytest.fixture
    def place(self, some_place):
        some_place.run((1, "bad", 0))
        pipeline = some_place.pipeline((5, "good", 0), (1, "new", 0), batch=1)
        write = pipeline.sink.write

        def write_and_fail(rows, *, label):
            refused = write(rows, label=label)
            if rows.values("id")[0] == 1:
                raise ConnectionResetError("the connection is gone")
            return refused

        pipeline.sink.write = write_and_fail
        with pytest.raises(redrive.RunStopped):
            pipeline.run()
        assert some_place.rows() == {1: "new", 5: "good"}
        return some_place

    def test_replay_skips_its_letters(self, place):
        for dry_run in (True, False):
            report = place.replay(dry_run=dry_run)
            assert (report.selected, report.held_by_run) == (0, 1)
        assert place.rows() == {1: "new", 5: "good"}

    def test_resumed_run_supersedes_its_letters(self, place):
        place.run((5, "good", 0), (1, "new", 0), batch=1)
        report = place.replay()
        assert (report.held_by_run, report.superseded) == (0, 1)

    def test_abandoned_run_may_have_written_its_letters(self, place):
        place.pipeline((7, "other", 0)).run(restart=True)
        report = place.replay(dry_run=True)
        assert (report.selected, report.held_by_run, report.key_unknown) == (1, 0, 1)

    def test_run_stopped_before_its_write_keeps_letters_free(self, some_place):
        some_place.run((1, "bad", 0), (2, "bad too", 0))

        def check(record):
            with pytest.raises(redrive.RunStopped, match="a replay has claimed 1 letters"):
                some_place.run((1, "new", 0), (2, "new", 0), patience=0.1)

        assert some_place.replay(validate=check, ids=[some_place.letters()["bad"].id]).reprocessed == 1
        assert some_place.replay(ids=[some_place.letters()["bad too"].id]).reprocessed == 1


class TestRunWithoutTheKey:
    def test_table_that_keeps_its_row_supersedes_no_letter(self, place):
        place.sql("INSERT INTO t VALUES (1, 'there', 0)")
        place.run((1, "bad", 0), mode={"on_conflict": "ignore"})
        place.run((1, "new", 0), mode={"on_conflict": "ignore"})
        assert place.became() == {"bad": "pending"}

    def test_table_that_compares_supersedes_no_letter(self, place):
        place.sql("INSERT INTO t VALUES (1, 'there', 3)")
        place.run((1, "bad", 5), mode={"newer": "seq"})
        place.run((1, "older", 2), mode={"newer": "seq"})
        assert place.became() == {"bad": "pending"}
        assert place.replay(mode={"newer": "seq"}).reprocessed == 1
        assert place.rows() == {1: "bad"}

    @pytest.mark.parametrize("batch", [1, 100])
    def test_deletion_rejected_by_the_table_supersedes_none(self, place, batch):
        mode = {"newer": "seq", "delete_when": "gone"}
        place.sql("INSERT INTO t VALUES (1, 'there', 3), (2, 'there', 3)")
        place.run((1, "bad 1", 5), (2, "bad 2", 5), mode=mode)
        rows = [{"id": key, "v": "", "seq": seq, "gone": "yes"} for key, seq in ((1, 2), (2, 9))]
        report = place.run(source=redrive.rows.records(rows, name="in"), mode=mode, batch=batch)
        assert (report.discarded, report.duplicates) == (1, 1)
        assert place.became() == {"bad 1": "pending", "bad 2": "superseded"}

    def test_deletion_supersedes(self, some_place):
        mode = {"newer": "seq", "delete_when": "gone"}
        some_place.sql("INSERT INTO t VALUES (1, 'there', 3)")
        some_place.run((1, "bad", 5), mode=mode)
        rows = [{"id": 1, "v": "", "seq": 9, "gone": "yes"}]
        some_place.run(source=redrive.rows.records(rows, name="in"), mode=mode)
        assert some_place.became() == {"bad": "superseded"}
        some_place.replay(mode=mode)
        assert some_place.rows() == {}

    @pytest.mark.parametrize("where", ["apart", "with its store"])
    @pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
    def test_row_omitted_by_a_trigger_supersedes_no_letter(self, kind, where, new_store, tmp_path):
        with place_of(kind if where == "apart" else f"{kind} with its store", new_store, tmp_path) as parts:
            place = Place(*parts)
            place.run(*((key, f"bad {key}", 0) for key in range(1, 6)))
            leave_out(place, 2)
            place.run(*((key, "new", 0) for key in range(1, 5)), (9, "bad 9", 0), (9, "new", 0))
            assert place.became() == {
                **dict.fromkeys(["bad 1", "bad 3", "bad 4", "bad 9"], "superseded"),
                **dict.fromkeys(["bad 2", "bad 5"], "pending"),
            }
            assert place.rows() == dict.fromkeys([1, 3, 4, 9], "new")


class TestOneRowPerKeyAndRun:
    """With on_duplicate "first" and "quarantine" a key that the run has written is not overwritten by a replay."""

    @pytest.fixture(params=["first", "quarantine"])
    def rule(self, request):
        return request.param

    @pytest.mark.parametrize("batch", [1, 100])
    def test_letter_behind_the_row_that_was_written(self, some_place, rule, batch):
        some_place.run((1, "good", 0), (1, "bad", 0), on_duplicate=rule, batch=batch)
        report = some_place.replay(on_duplicate=rule)
        assert (report.selected, report.superseded) == (0, 1)
        assert some_place.rows() == {1: "good"}

    @pytest.mark.parametrize("batch", [1, 2, 100])
    def test_first_of_several_letters_is_written(self, some_place, rule, batch):
        some_place.run((1, "bad one", 1), (1, "bad two", 2), (1, "bad three", 3), on_duplicate=rule, batch=batch)
        report = some_place.replay(on_duplicate=rule, batch=batch)
        assert (report.reprocessed, report.superseded) == (1, 2)
        assert some_place.rows() == {1: "bad one"}
        assert some_place.became() == {
            "bad one": "reprocessed",
            "bad two": "superseded",
            "bad three": "superseded",
        }

    @pytest.mark.parametrize("batch", [1, 2, 100])
    def test_later_letter_stays_superseded_in_the_next_run(self, some_place, rule, batch):
        rows = [(1, "bad one", 1), (9, "good", 0), (1, "bad two", 2), (1, "bad one", 1), (1, "bad three", 3)]
        for number in range(3):
            some_place.run(*rows, on_duplicate=rule, batch=batch)
            report = some_place.replay(on_duplicate=rule, batch=batch)
            assert report.reprocessed == (0 if number else 1)
            assert some_place.rows() == {1: "bad one", 9: "good"}
        letters = list(some_place.store.dlq.each())
        assert [letter.record["v"] for letter in letters if letter.status == "reprocessed"] == ["bad one"]
        assert sum(letter.superseded_at is not None for letter in letters) == len(letters) - 1 == 3

    @pytest.mark.parametrize("batch", [1, 100])
    def test_row_before_the_written_letter_counts_in_the_next_run(self, some_place, rule, batch):
        some_place.run((1, "bad two", 2), on_duplicate=rule)
        some_place.replay(on_duplicate=rule)
        some_place.run((1, "bad one", 1), (1, "bad two", 2), on_duplicate=rule, batch=batch)
        some_place.replay(on_duplicate=rule)
        assert some_place.rows() == {1: "bad one"}
        assert some_place.replay(on_duplicate=rule).selected == 0

    @pytest.mark.parametrize("batch", [1, 100])
    def test_letter_after_a_discarded_one_is_written(self, some_place, rule, batch):
        rows = [(1, "bad one", 1), (1, "bad two", 2)]
        some_place.run(*rows, on_duplicate=rule)
        some_place.store.dlq.discard(ids=[some_place.letters()["bad one"].id], note="wrong")
        some_place.run(*rows, on_duplicate=rule, batch=batch)
        some_place.replay(on_duplicate=rule)
        assert some_place.rows() == {1: "bad two"}

    def test_letter_of_a_later_run_is_written(self, some_place, rule):
        some_place.run((1, "good", 0), on_duplicate=rule)
        some_place.run((1, "bad", 0), (1, "bad again", 1), on_duplicate=rule)
        some_place.replay(on_duplicate=rule)
        assert some_place.rows() == {1: "bad"}

    @pytest.mark.parametrize("batch", [1, 100])
    def test_quarantined_copy_is_sent_only_on_request(self, some_place, batch):
        some_place.run((1, "one", 0), (1, "two", 0), on_duplicate="quarantine", batch=batch)
        assert some_place.became() == {"two": "superseded"}
        assert some_place.replay(on_duplicate="quarantine").superseded == 1
        assert some_place.rows() == {1: "one"}
        assert some_place.replay(on_duplicate="quarantine", include_superseded=True).reprocessed == 1
        assert some_place.rows() == {1: "two"}


class TestDeadTask:
    def test_is_rejected_with_the_command_to_use(self, store):
        flow = redrive.Flow("settlement")

        @flow.task(in_thread=True)
        def settle() -> None:
            raise redrive.Reject("no such account")

        with pytest.raises(redrive.FlowStopped):
            flow.run(store=store)
        (letter,) = store.dlq.find()
        with pytest.raises(redrive.LetterError, match=f"redrive tasks retry --run {str(letter.run_id)[:8]}"):
            store.dlq.replay(lambda records: None, ids=[letter.id], dry_run=False)
        assert store.dlq.get(letter.id).status == "pending"
