"""Missing keys and duplicate keys."""

from decimal import Decimal

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.dlq.fingerprint import template
from redrive.errors import PipelineError
from redrive.model.letters import ErrorType
from redrive.rows.batch import Outgoing
from redrive.rows.write.dedup import KeyContest, keyless, reduce, twice

COLUMNS = ("id", "day", "value")


def tuples(rows):
    return Outgoing(COLUMNS, range(10, 10 + len(rows)), tuples=rows)


def framed(rows):
    schema = {"id": pl.String, "day": pl.Int64, "value": pl.Int64}
    return Outgoing.of_frame(pl.DataFrame(rows, schema=schema, orient="row"), range(10, 10 + len(rows)))


@pytest.fixture(params=[tuples, framed], ids=["tuples", "frame"])
def made(request):
    return request.param


def test_rows_that_all_have_keys_are_passed_on_unchanged(made):
    rows = made([("a", 1, 1), ("b", 1, 2)])
    assert keyless(rows, ("id", "day")) == (rows, [])
    assert reduce(rows, ("id",), "last") is rows
    assert reduce(rows, ("id", "day"), "quarantine") is rows


def test_row_with_a_missing_part_of_its_key_is_rejected(made):
    good, refused = keyless(made([("a", 1, 1), (None, 1, 2), ("c", None, 3), (None, None, 4)]), ("id", "day"))
    assert (list(good.tuples), list(good.origin)) == ([("a", 1, 1)], [10])
    assert [(one.place, one.error, one.error_type) for one in refused] == [
        (1, "the key id is missing", ErrorType.VALIDATION),
        (2, "the key day is missing", ErrorType.VALIDATION),
        (3, "the key id is missing", ErrorType.VALIDATION),
    ]


def test_key_that_is_not_a_number_is_rejected():
    nan = "the key id is NaN, which equals nothing"
    values = [1.5, float("nan"), None]
    for rows in (
        Outgoing(["id"], range(3), tuples=[(value,) for value in values]),
        Outgoing.of_frame(pl.DataFrame({"id": values}), range(3)),
    ):
        good, refused = keyless(rows, ["id"])
        assert list(good.origin) == [0]
        assert [one.error for one in refused] == [nan, "the key id is missing"]
    _, refused = keyless(Outgoing(["id"], range(2), tuples=[(Decimal("NaN"),), (Decimal(1),)]), ["id"])
    assert [(one.place, one.error) for one in refused] == [(0, nan)]


def test_key_that_cannot_be_compared_is_rejected():
    good, refused = keyless(Outgoing(["id"], range(4), tuples=[("a",), ([1],), (None,), ({},)]), ["id"])
    assert list(good.tuples) == [("a",)]
    assert [(one.place, one.error) for one in refused] == [
        (1, "the key id is a list, and cannot be one"),
        (2, "the key id is missing"),
        (3, "the key id is a dict, and cannot be one"),
    ]
    good, refused = keyless(Outgoing.of_frame(pl.DataFrame({"id": [[1], None]}), range(2)), ["id"])
    assert len(good) == 0
    assert [one.error for one in refused] == ["the key id is a List, and cannot be one", "the key id is missing"]


def test_empty_batch_lacks_no_key():
    nothing = Outgoing((), (), tuples=())
    assert keyless(nothing, ("id",)) == (nothing, [])


def test_missing_key_column_is_a_fault_of_the_pipeline(made):
    with pytest.raises(
        PipelineError, match="the sink's key needs 'ID', which is not among the columns id, day, value; did"
    ):
        keyless(made([("a", 1, 1)]), ("ID",))


TWICE = [("a", 1, 1), ("b", 1, 2), ("a", 2, 3), ("c", 1, 4), ("a", 1, 5)]


def test_last_row_of_a_key_stays_in_its_position(made):
    reduced = reduce(made(TWICE), ("id",), "last")
    assert (list(reduced.tuples), list(reduced.origin)) == ([TWICE[1], TWICE[3], TWICE[4]], [11, 13, 14])


def test_first_row_of_a_key_is_used(made):
    reduced = reduce(made(TWICE), ("id",), "first")
    assert (list(reduced.tuples), list(reduced.origin)) == ([TWICE[0], TWICE[1], TWICE[3]], [10, 11, 13])


def test_second_row_of_a_key_is_dropped_with_a_reason(made):
    rows = made(TWICE)
    contest = KeyContest(rows, ("id", "day"), "quarantine")
    assert list(contest.first()) == [0, 1, 2, 3]
    assert list(contest.left()) == [4]
    rejected = twice(rows, 4, ("id", "day"))
    assert (rejected.error, rejected.keyed) == ("the key id, day came twice in this run ('a', 1)", False)


class TestKeyContest:
    def test_all_rows_are_sent_without_duplicate_keys(self, made):
        contest = KeyContest(made(TWICE[:2]), ("id",), "last")
        assert (list(contest.first()), list(contest.next([0])), list(contest.left())) == ([0, 1], [], [])

    @pytest.mark.parametrize(("rule", "order"), [("last", [4, 2, 0]), ("first", [0, 2, 4]), ("quarantine", [0, 2, 4])])
    def test_rejected_row_is_replaced_by_the_next_of_its_key(self, made, rule, order):
        contest = KeyContest(made(TWICE), ("id",), rule)
        assert sorted(contest.first()) == sorted([order[0], 1, 3])
        assert list(contest.next([order[0]])) == [order[1]]
        assert list(contest.left()) == [order[2]]
        assert list(contest.next([order[1]])) == [order[2]]
        assert list(contest.left()) == []
        assert list(contest.next([order[2]])) == []

    def test_rows_of_a_stored_key_are_never_sent(self, made):
        contest = KeyContest(made(TWICE), ("id",), "first", frozenset({0, 2, 4}))
        assert list(contest.first()) == [1, 3]
        assert list(contest.next([1])) == []
        assert list(contest.left()) == [0, 2, 4]


@pytest.mark.parametrize("name", ["id", "key", "name"])
def test_duplicate_rows_are_one_cause_for_every_key(name):
    rows = Outgoing([name], range(3), tuples=[("a",), ("x" * 200,), ("O'Brien",)])
    assert len({template(twice(rows, place, [name]).error) for place in range(3)}) == 1


ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 2) | st.none(), st.integers(0, 9)))


@given(ROWS, st.sampled_from([("id",), ("id", "day"), ("day",)]), st.sampled_from(["last", "first", "quarantine"]))
def test_result_is_that_of_a_dict(rows, key, rule):
    places = [COLUMNS.index(name) for name in key]
    keyed = [place for place, row in enumerate(rows) if all(row[part] is not None for part in places)]
    kept = {}
    for place in keyed if rule == "last" else reversed(keyed):
        kept[tuple(rows[place][part] for part in places)] = place
    for made in (tuples, framed):
        good, refused = keyless(made(rows), key)
        assert [one.place for one in refused] == [place for place in range(len(rows)) if place not in keyed]
        reduced = reduce(good, key, rule)
        assert [origin - 10 for origin in reduced.origin] == sorted(kept.values())
        contest = KeyContest(good, key, rule)
        assert {keyed[place] for place in contest.first()} == set(kept.values())
        assert {keyed[place] for place in contest.left()} == set(keyed) - set(kept.values())
