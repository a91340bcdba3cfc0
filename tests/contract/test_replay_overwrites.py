"""A replay that may overwrite a newer row counts the letter: later rows of its run and rows of replays are newer."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

import redrive
from tests.contract.test_replay_outcomes import Place
from tests.support.table_places import place_of


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, new_store, tmp_path):
    with place_of(request.param, new_store, tmp_path) as parts:
        yield Place(*parts)


def refuse_bad(record: dict[str, Any]) -> dict[str, Any]:
    if record["v"].startswith("bad"):
        raise ValueError("bad row")
    return dict(record)


def move_key(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "id": record["id"] + 100}


def refuse_bad_and_move_key(record: dict[str, Any]) -> dict[str, Any]:
    return move_key(refuse_bad(record))


def counted(place: Place, **options: Any) -> int:
    """Return how many letters a dry run and a replay count as possibly overwriting newer rows."""
    dry = place.replay(dry_run=True, **options).key_unknown
    assert place.replay(**options).key_unknown == dry
    return dry


class TestLaterRowOfTheSameRun:
    @pytest.mark.parametrize("batch", [1, 2, 100])
    @pytest.mark.parametrize("before", [[], [(9, "other", 0)]], ids=["no row before", "a row before"])
    @pytest.mark.parametrize("part", ["validate", "transform"])
    def test_key_that_a_function_changes(self, place, part, before, batch):
        place.run(*before, (1, "bad", 1), (1, "new", 1), (2, "x", 1), **{part: refuse_bad_and_move_key}, batch=batch)
        assert place.rows()[101] == "new"
        assert counted(place, **{part: move_key}) == 1

    def test_transform_before_any_row_has_passed(self, place):
        place.run((1, "bad", 1), (1, "new", 1), transform=refuse_bad, batch=1)
        assert counted(place, transform=lambda record: dict(record)) == 1

    @pytest.mark.parametrize("batch", [1, 100])
    def test_letter_behind_the_last_row_is_not_counted(self, place, batch):
        place.run((9, "other", 0), (1, "new", 1), (1, "bad", 1), transform=refuse_bad_and_move_key, batch=batch)
        assert counted(place, transform=move_key) == 0

    @pytest.mark.parametrize("batch", [1, 100])
    def test_earlier_row_counts_where_the_first_is_kept(self, place, batch):
        rows = [(9, "other", 0), (1, "first", 1), (1, "bad", 1)]
        place.run(*rows, transform=refuse_bad_and_move_key, batch=batch, on_duplicate="first")
        assert counted(place, transform=move_key, on_duplicate="first") == 1

    def test_edited_line_of_a_file(self, place, tmp_path):
        (tmp_path / "a.csv").write_text("id,v,seq\n9,other,1\n1,old,1,extra\n1,new,1\n")
        pipeline = place.pipeline(source=redrive.rows.csv(tmp_path / "a.csv"), validate=None)
        pipeline.run()
        (letter,) = place.store.dlq.find()
        place.store.dlq.edit(letter.id, "1,old,1")
        for dry_run in (True, False):
            assert place.store.dlq.replay(pipeline, dry_run=dry_run).key_unknown == 1

    @pytest.mark.parametrize("batch", [1, 100])
    def test_record_that_becomes_two_rows(self, place, batch):
        fixed = False

        def split(frame: pl.DataFrame) -> pl.DataFrame:
            if not fixed and frame["v"].str.starts_with("bad").any():
                raise ValueError("bad row")
            return pl.concat([frame, frame.filter(pl.col("id") < 100).with_columns(pl.col("id") + 100)])

        in_two = redrive.rows.per_frame(split, row="n")
        place.run((9, "other", 1), (1, "bad", 1), (101, "new", 1), transform=in_two, validate=None, batch=batch)
        fixed = True
        assert counted(place, transform=in_two) == 1

    def test_row_that_is_deleted(self, place):
        def with_op(record: dict[str, Any]) -> dict[str, Any]:
            return {**move_key(record), "op": "D" if record["v"] == "gone" else "U"}

        mode = {"delete_when": {"op": "D"}}
        place.sql("INSERT INTO t VALUES (101, 'there', 1)")
        place.run((1, "bad", 1), (1, "gone", 1), transform=lambda record: with_op(refuse_bad(record)), mode=mode)
        assert place.rows() == {}
        assert counted(place, transform=with_op, mode=mode) == 1


class TestRowsOfReplays:
    """Rows that a replay wrote are newer than the letters before it."""

    def edit_and_replay(self, place, **options):
        (letter,) = [letter for letter in place.store.dlq.each(status="open") if letter.record["v"] == "bad new"]
        place.store.dlq.edit(letter.id, patch={"v": "new"})
        assert place.replay(ids=[letter.id], **options).reprocessed == 1

    def test_newer_letter_whose_key_is_changed(self, place):
        place.run((1, "bad old", 1), transform=refuse_bad_and_move_key)
        place.run((1, "bad new", 2), transform=refuse_bad_and_move_key)
        newer = place.letters()["bad new"].id
        assert place.replay(transform=move_key, ids=[newer]).reprocessed == 1
        assert counted(place, transform=move_key) == 1

    def test_older_letter_does_not_count(self, place):
        place.run((1, "bad old", 1), transform=refuse_bad_and_move_key)
        place.run((1, "bad new", 2), transform=refuse_bad_and_move_key)
        assert place.replay(transform=move_key, ids=[place.letters()["bad old"].id]).reprocessed == 1
        assert counted(place, transform=move_key) == 0

    def test_older_letter_that_was_edited_counts(self, place):
        place.run((1, "bad new", 1), transform=refuse_bad_and_move_key)
        place.run((1, "bad old", 2), transform=refuse_bad_and_move_key)
        self.edit_and_replay(place, transform=move_key)
        assert counted(place, transform=move_key) == 1

    @pytest.mark.parametrize("order", [("vendor", "other"), ("other", "vendor")])
    def test_letter_of_another_pipeline_into_the_sink(self, place, order):
        for name in order:
            place.run((1, "bad new" if name == "other" else "bad", 1), name=name)
        self.edit_and_replay(place, name="other")
        assert counted(place) == 1

    def test_letter_of_a_renamed_pipeline(self, place):
        place.run((1, "bad", 1), name="before")
        place.run((1, "bad new", 1))
        assert place.replay().reprocessed == 1
        assert counted(place, pipeline="before") == 1

    def test_letter_counts_even_after_it_was_purged(self, place):
        place.run((1, "bad", 1), name="before")
        place.run((1, "bad new", 1))
        assert place.replay().reprocessed == 1
        assert place.store.dlq.purge(older_than="0s")
        assert counted(place, pipeline="before") == 1

    def test_record_that_becomes_two_rows(self, place):
        place.run((1, "bad old", 1))
        place.run((101, "bad new", 2))
        assert place.replay(ids=[place.letters()["bad new"].id]).reprocessed == 1

        def split(frame: pl.DataFrame) -> pl.DataFrame:
            return pl.concat([frame, frame.with_columns(pl.col("id") + 100)])

        assert counted(place, transform=redrive.rows.per_frame(split, row="n")) == 1
