"""Records that are a single number are read back with the same value and type."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

import redrive

INTS = [0, 7, -7, 2**63 - 1, 2**63, 11244416059747095314, 2**64 - 1, 2**64, 10**20 + 7, -(2**63), -(2**63) - 1]
FLOATS = [0.0, -0.0, 1.0, -2.0, 12.5, 0.1, 1e16, 5e-324, 8400926668113518.0, 27.500000000000004, float(2**63)]
NUMBERS = [*INTS, *FLOATS]


def exact(value: Any) -> tuple[type, str]:
    """Tell 1 from 1.0, and 0.0 from -0.0."""
    return type(value), repr(value)


def put_numbers(dlq: Any, **options: Any) -> None:
    letters = (redrive.NewLetter(number, "no such account", key=repr(number)) for number in NUMBERS)
    dlq.put_many(letters, pipeline="ids", **options)


class TestNumberRecord:
    def test_number_is_found_unchanged(self, dlq):
        put_numbers(dlq)
        assert [exact(letter.record) for letter in dlq.each()] == [exact(number) for number in NUMBERS]

    def test_number_is_replayed_unchanged(self, dlq):
        put_numbers(dlq)
        sent: list[Any] = []
        dlq.replay(sent.extend, pipeline="ids", dry_run=False)
        assert sorted(map(repr, sent)) == sorted(map(repr, NUMBERS))

    def test_number_is_kept_as_an_edit(self, dlq):
        for number in NUMBERS:
            dlq.put("x", "no such account", pipeline="ids", key=repr(number))
            dlq.edit(dlq.find(key=repr(number))[0].id, number)
        assert [exact(letter.payload) for letter in dlq.each()] == [exact(number) for number in NUMBERS]

    @pytest.mark.parametrize("other", ["sqlite", "postgresql"])
    def test_number_survives_export_and_import(self, dlq, new_store, other):
        put_numbers(dlq)
        for letter in list(dlq.each()):
            dlq.edit(letter.id, letter.record if letter.id % 2 else -letter.record)
        lines = list(dlq.export())
        assert '"raw_record": 11244416059747095314,' in "".join(lines)
        with new_store(other) as url, redrive.connect(url) as store:
            store.dlq.import_(lines)
            assert [exact(letter.record) for letter in store.dlq.each()] == [exact(number) for number in NUMBERS]
            assert [letter.payload for letter in store.dlq.each()] == [letter.payload for letter in dlq.each()]
            assert store.dlq.import_(lines).differing == 0

    def test_equal_number_is_not_superseded(self, dlq):
        put_numbers(dlq)
        put_numbers(dlq)
        assert dlq.count() == len(NUMBERS)
        assert not [entry for letter in dlq.each() for entry in dlq.audit(letter.id)]

    def test_equal_number_stays_decided(self, dlq):
        put_numbers(dlq)
        dlq.discard(note="accounts of the test system", pipeline="ids")
        put_numbers(dlq)
        assert [(letter.key, letter.seen) for letter in dlq.each()] == [(repr(number), 2) for number in NUMBERS]

    def test_replaced_number_is_kept_in_the_history(self, dlq):
        dlq.put(2**63, "no such account", pipeline="ids", key="k")
        dlq.put(1.0, "no such account", pipeline="ids", key="k")
        (letter,) = dlq.find()
        assert exact(letter.record) == exact(1.0)
        (superseded,) = dlq.audit(letter.id)
        assert exact(superseded.detail["raw_record"]) == exact(2**63)


class TestLetterOfAnOlderVersion:
    """The record was stored as a number, which SQLite may have changed."""

    @pytest.fixture
    def old(self, new_store):
        with new_store("sqlite") as url, redrive.connect(url) as store:
            store.dlq.put("x", "no such account", pipeline="ids", key="k")

            def as_stored(text: str) -> Any:
                with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
                    connection.execute("UPDATE dead_letter_queue SET raw_record = ?", (text,))
                connection.close()
                return store.dlq

            yield as_stored

    @pytest.mark.parametrize(("text", "record"), [("7", 7), ("12.5", 12.5), ("1.0", 1), (str(2**63), float(2**63))])
    def test_old_number_is_read_as_stored(self, old, text, record):
        (letter,) = old(text).find()
        assert exact(letter.record) == exact(record)

    @pytest.mark.parametrize("number", [7, 12.5])
    def test_old_number_is_the_same_record(self, old, number):
        dlq = old(repr(number))
        assert dlq.put(number, "no such account", pipeline="ids", key="k").repeated == 1
        (letter,) = dlq.find()
        assert exact(letter.record) == exact(number)
        assert not dlq.audit(letter.id)

    def test_changed_number_is_corrected_when_it_is_rejected_again(self, old):
        dlq = old(str(2**63))
        dlq.put(2**63, "no such account", pipeline="ids", key="k")
        (letter,) = dlq.find()
        assert exact(letter.record) == exact(2**63)
