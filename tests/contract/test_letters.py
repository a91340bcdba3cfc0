"""Storing letters and finding them, on every store."""

import datetime as dt
import decimal
import enum
import json
import math
import traceback
import uuid
from xml.etree import ElementTree

import pytest
from sqlalchemy import text

import redrive
from redrive.model.letters import ErrorType, Status
from redrive.store.schema import letters

UTC = dt.UTC


def test_28_letter_keeps_the_record_and_its_errors(dlq):
    run = uuid.uuid4()
    record = {"fee": decimal.Decimal("1.10"), "raw": b"\xff\x00", "at": dt.date(2026, 7, 1), "n": math.inf, "x": "a\0b"}
    dlq.put(
        record,
        ValueError("fee is negative"),
        pipeline="vendor",
        key="D-17",
        position="line 18",
        source="deliveries.csv",
        run_id=run,
        error_type="transform",
        attempts=3,
    )
    (letter,) = dlq.find()
    assert letter.record == record
    assert type(letter.record["fee"]) is decimal.Decimal
    assert letter.payload == record
    assert (letter.pipeline, letter.key, letter.position, letter.source) == (
        "vendor",
        "D-17",
        "line 18",
        "deliveries.csv",
    )
    assert (letter.run_id, letter.error_type, letter.attempts) == (run, ErrorType.TRANSFORM, 3)
    assert letter.error_message == "ValueError: fee is negative"
    assert (letter.status, letter.seen, letter.reprocess_count, letter.note) == (Status.PENDING, 1, 0, None)
    assert letter.rejected_at.tzinfo is not None
    assert abs(letter.rejected_at - dt.datetime.now(UTC)) < dt.timedelta(minutes=1)
    assert dlq.get(letter.id) == letter


@pytest.mark.parametrize(
    "record",
    [None, "plain text", b"\x00\xff", 7, [1, 2], {}, "\ud800", math.nan, {"a": {"b": [None, {"c": b""}]}}, {1: 2}],
    ids=repr,
)
def test_any_record_is_read_back_unchanged(dlq, record):
    dlq.put(record, "bad", pipeline="p", position=1)
    found = dlq.find()[0].record
    assert found == record or (isinstance(record, float) and math.isnan(found))


def test_different_elements_are_different_letters(dlq):
    feed = ElementTree.fromstring("<all><order><id>1</id></order><order><id>2</id></order></all>")
    dlq.put_many([redrive.NewLetter(order, ValueError("bad fee")) for order in feed], pipeline="vendor")
    assert {letter.record for letter in dlq.find()} == {"<order><id>1</id></order>", "<order><id>2</id></order>"}


def test_record_of_ten_megabytes_is_stored(dlq):
    record = {"blob": "x" * 10_000_000, "bytes": b"y" * 1_000_000}
    dlq.put(record, "too large", pipeline="p")
    assert dlq.find()[0].record == record


def test_texts_that_no_database_stores_are_shown_escaped(dlq):
    dlq.put({"a": 1}, "bad \0 and \ud800 here", pipeline="p\0q", key="k\0", position="\udfff", source="s\0")
    (letter,) = dlq.find(key="k\\x00")
    assert letter.error_message == r"bad \x00 and \ud800 here"
    assert letter.pipeline == r"p\x00q"


def test_32_same_record_and_cause_is_one_letter_with_a_count(dlq, put):
    first = put(3)
    assert (first.new, first.repeated) == (3, 0)
    second = put(3)
    assert (second.new, second.repeated) == (0, 3)
    assert [letter.seen for letter in dlq.find()] == [2, 2, 2]
    assert dlq.count() == 3


def test_repeated_letter_shows_newest_run_and_first_rejection(dlq, put):
    first, second = uuid.uuid4(), uuid.uuid4()
    put(1, run_id=first)
    before = dlq.find()[0]
    put(1, run_id=second)
    after = dlq.find()[0]
    assert (after.run_id, after.rejected_at) == (second, before.rejected_at)
    assert after.last_seen >= before.last_seen


def test_other_cause_source_or_pipeline_is_another_letter(dlq, put):
    put(1)
    put(1, error="weight: missing")
    put(1, source="other.csv")
    put(1, pipeline="other")
    assert dlq.count() == 4


def test_record_that_fails_with_other_content_keeps_both(dlq):
    for fee in ("N/A", "n/a"):
        dlq.put({"fee": fee}, "fee: not a number", pipeline="vendor", key="D-1")
    (letter,) = dlq.find()
    assert letter.record == {"fee": "n/a"}
    (entry,) = dlq.audit(letter.id)
    assert entry.action == "superseded"
    assert entry.detail["raw_record"] == {"fee": "N/A"}


def test_29_key_twice_in_a_batch_is_one_letter_seen_twice(dlq):
    stored = dlq.put_many(
        [redrive.NewLetter({"v": version}, "bad", key="K") for version in range(3)], pipeline="vendor"
    )
    assert (stored.new, stored.repeated) == (1, 2)
    (letter,) = dlq.find()
    assert (letter.seen, letter.record) == (3, {"v": 2})
    assert [entry.detail["raw_record"] for entry in dlq.audit(letter.id)] == [{"v": 0}, {"v": 1}]


def test_other_content_at_the_same_line_is_another_letter(dlq):
    for fee in ("N/A", "N/A", "n/a"):
        dlq.put({"fee": fee}, "fee: not a number", pipeline="vendor", source="week.csv", position=7)
    assert sorted(letter.seen for letter in dlq.find()) == [1, 2]


def test_decided_letter_of_an_unchanged_record_is_counted(dlq, put):
    put(1)
    dlq.discard(note="known", pipeline="vendor")
    assert put(1).decided == 1
    assert {letter.status: letter.seen for letter in dlq.find()} == {Status.DISCARDED: 2}


def test_find_pages_are_stable_while_letters_come_and_go(dlq, put):
    put(10)
    first = dlq.find(limit=4)
    put(5, start=10)
    dlq.discard(ids=[first[0].id], note="gone")
    second = dlq.find(limit=4, after=first[-1].id)
    assert [letter.key for letter in first + second] == [f"D-{n}" for n in range(9, 1, -1)]


def test_each_returns_all_letters_oldest_first(dlq, put):
    put(2_500)
    assert [letter.key for letter in dlq.each()] == [f"D-{n}" for n in range(2_500)]


def test_large_record_is_cut_by_the_database(dlq):
    dlq.put({"id": 1, "note": "small"}, "bad", pipeline="vendor", key="1")
    dlq.put({"id": 2, "note": "x" * 5_000}, "bad", pipeline="vendor", key="2")
    dlq.edit(2, {"id": 2, "note": "y" * 6_000})
    large, small = dlq.find(max_record_chars=1_000)
    assert small.record == {"id": 1, "note": "small"}
    assert 5_000 < large.record.size < 5_100 < large.edited_record.size < 6_100
    assert len(large.record.beginning) == 4_000
    history = dlq.history("2", max_record_chars=1_000)
    assert history.letters == (large,)
    assert history.events[-1].detail.size > 5_000
    assert dlq.history("2").letters[0].record["note"] == "x" * 5_000


def test_find_filters_by_every_column(dlq):
    run = uuid.uuid4()
    dlq.put({"a": 1}, "fee: bad", pipeline="p1", key="k1", position="line 1", source="s1", run_id=run, attempts=2)
    dlq.put({"a": 2}, "weight: worse 100%", pipeline="p2", key="k2", position="line 2", source="s2", error_type="sink")
    one, two = (dlq.find(pipeline=name)[0] for name in ("p1", "p2"))
    dlq.edit(one.id, patch={"a": 3})
    dlq.escalate(ids=[two.id], note="Look at it")
    now = dt.datetime.now(UTC)
    for filters, expected in [
        ({"ids": [one.id]}, {one.id}),
        ({"pipeline": ["p1", "p2"]}, {one.id, two.id}),
        ({"cause": one.fingerprint}, {one.id}),
        ({"cause": two.fingerprint[:5]}, {two.id}),
        ({"error_type": "sink"}, {two.id}),
        ({"status": "escalated"}, {two.id}),
        ({"status": ["pending", "escalated"]}, {one.id, two.id}),
        ({"run_id": str(run)}, {one.id}),
        ({"source": "s2"}, {two.id}),
        ({"key": "k1"}, {one.id}),
        ({"position": "line 2"}, {two.id}),
        ({"since": "1h"}, {one.id, two.id}),
        ({"until": "1h"}, set()),
        ({"since": now + dt.timedelta(hours=1)}, set()),
        ({"seen_since": dt.timedelta(hours=1)}, {one.id, two.id}),
        ({"reprocessed_since": "1d"}, set()),
        ({"text": "WORSE 100%"}, {two.id}),
        ({"min_seen": 2}, set()),
        ({"attempts": 2}, {one.id}),
        ({"reprocess_count": 0}, {one.id, two.id}),
        ({"edited": True}, {one.id}),
        ({"edited": False}, {two.id}),
        ({"note": "look"}, {two.id}),
        ({"pipeline": "p1", "status": "escalated"}, set()),
    ]:
        assert {letter.id for letter in dlq.find(**filters)} == expected, filters
        assert dlq.count(**filters) == len(expected), filters


@pytest.mark.parametrize(
    ("filters", "says"),
    [
        ({"piepline": "x"}, "no filter 'piepline'"),
        ({"status": "lost"}, "no status 'lost'"),
        ({"error_type": "weird"}, "no error type 'weird'"),
        ({"cause": "xyz"}, "hexadecimal"),
        ({"cause": ""}, "hexadecimal"),
        ({"run_id": "run-7"}, "UUID"),
        ({"since": "two days"}, "since must be an age"),
        ({"since": dt.datetime(2026, 1, 1)}, "time zone"),
        ({"ids": [0]}, "id is a number"),
        ({"ids": ["17"]}, "id is a number"),
        ({"min_seen": "3"}, "whole number"),
        ({"min_seen": 1 << 63}, "min_seen must be at most"),
        ({"text": ""}, "text is empty, and would match every letter"),
        ({"note": " "}, "note is empty, and would match every letter"),
        ({"limit": 0}, "limit must be"),
    ],
)
def test_malformed_filter_raises_one_sentence(dlq, filters, says):
    with pytest.raises(redrive.LetterError, match=says):
        dlq.find(**filters)


def test_unknown_id_raises_and_changes_nothing(dlq, put):
    put(1)
    (letter,) = dlq.find()
    for change in (
        lambda: dlq.get(9_999),
        lambda: dlq.discard(ids=[letter.id, 9_999], note="x"),
        lambda: dlq.edit(9_999, patch={}),
        lambda: dlq.replay(lambda records: None, ids=[9_999], dry_run=False),
    ):
        with pytest.raises(redrive.LetterError, match="there is no letter 9999"):
            change()
    assert dlq.get(letter.id) == letter


def test_secrets_in_an_error_are_masked_before_storage(dlq):
    dlq.put({}, "GET https://x/?api_key=hunter2hunter2 failed", pipeline="p")
    assert "hunter2" not in dlq.find()[0].error_message


def test_history_shows_every_letter_of_a_key_and_its_changes(dlq, put):
    put(2)
    put(1, error="weight: missing")
    dlq.discard(note="duplicate", key="D-0", text="weight")
    history = dlq.history("D-0")
    assert [letter.error_message for letter in history.letters] == ["fee: not a number", "weight: missing"]
    assert [(event.action, event.note) for event in history.events] == [("discarded", "duplicate")]
    assert dlq.history("nothing").letters == ()


def test_letter_can_be_inserted_by_sql(store, dlq):
    table = "pipeline.dead_letter_queue" if "postgresql" in store.info().database else "dead_letter_queue"
    statement = text(
        f"INSERT INTO {table} (pipeline_name, error_type, error_message, raw_record)"
        " VALUES ('by hand', 'validation', 'fee: bad', '{\"fee\": 1}')"
    )
    store.database.write(lambda connection: connection.execute(statement))
    (letter,) = dlq.find()
    assert (letter.pipeline, letter.record, letter.status, letter.fingerprint) == (
        "by hand",
        {"fee": 1},
        Status.PENDING,
        "",
    )


def test_letter_without_pipeline_or_with_naive_time_is_rejected(dlq):
    with pytest.raises(redrive.LetterError, match="pipeline"):
        dlq.put_many([redrive.NewLetter({}, "bad")])
    naive = redrive.NewLetter({}, "bad", rejected_at=dt.datetime(2026, 1, 1))
    with pytest.raises(redrive.LetterError, match="time zone"):
        dlq.put_many([naive], pipeline="p")
    assert dlq.count() == 0


def test_redacted_fields_are_masked_only_in_messages(store_url):
    with redrive.connect(store_url, redact=["card_number", "*.ssn"]) as store:
        record = {"card_number": "4111111111111111", "customer": {"ssn": "078-05-1120"}}
        store.dlq.put(record, "4111111111111111 of 078-05-1120 is bad", pipeline="p", key="k")
        (letter,) = store.dlq.find()
        assert letter.record == record
        assert letter.error_message == "*** of *** is bad"
        assert "4111" not in repr(store.dlq.causes())
        assert store.dlq.redactor.record(letter.record) == {"card_number": "***", "customer": {"ssn": "***"}}
        report = store.dlq.replay(lambda records: ["no 4111111111111111"], any_pipeline=True, dry_run=False)
        assert report.by_cause[0].sample == "no ***"
        assert "4111" not in repr(store.dlq.audit(letter.id))
        assert store.dlq.find()[0].last_error == "no ***"


def test_record_can_be_stored_redacted(store_url):
    with redrive.connect(store_url, redact=["card_number"], store_redacted=True) as store:
        store.dlq.put({"card_number": "4111111111111111", "fee": 1}, "bad 4111111111111111", pipeline="p")
        (letter,) = store.dlq.find()
        assert (letter.record, letter.error_message) == ({"card_number": "***", "fee": 1}, "bad ***")


def test_key_of_any_length_can_be_stored_and_found(dlq):
    key = "x" * 100_000
    dlq.put({"a": 1}, "bad", pipeline="p", key=key)
    dlq.put({"a": 1}, "bad", pipeline="p", key=key + "y")
    assert [len(letter.key) < 600 for letter in dlq.find(key=key)] == [True]


def test_exception_names_its_origin(dlq):
    errors = []
    for broken in ("{", '"x'):
        try:
            json.loads(broken)
        except ValueError as error:
            errors.append(error)
    dlq.put_many([redrive.NewLetter(n, error) for n, error in enumerate(errors)], pipeline="p")
    dlq.put({}, KeyError("fee"), pipeline="p")
    dlq.put({}, redrive.Reject("too old"), pipeline="p")
    assert sorted(letter.error_type for letter in dlq.find()) == ["parse", "parse", "transform", "validation"]


class Vendor(str, enum.Enum):  # noqa: UP042  # as many programs have it
    EAST = "vendor-east"


def test_string_subclasses_are_stored_as_plain_text(dlq):
    for pipeline in (Vendor.EAST, "vendor-east"):
        dlq.put({"a": 1}, "bad", pipeline=pipeline, key=Vendor.EAST, source=7, position=7)
    (letter,) = dlq.find(pipeline=Vendor.EAST, position=7, source=7)
    assert (letter.pipeline, letter.key, letter.seen) == ("vendor-east", "vendor-east", 2)


def test_key_with_tabs_and_backslashes_is_stored_unchanged(dlq):
    class Path(str):
        pass

    for key in ("a\tb", "C:\\new\\x", Path("C:\\new\ty")):
        dlq.put({"a": 1}, "bad", pipeline="p", key=key)
    assert {letter.key for letter in dlq.find()} == {"a\tb", "C:\\new\\x", "C:\\new\ty"}


def test_letters_before_an_invalid_one_are_kept_and_counted(dlq):
    def rejected():
        for n in range(30):
            yield redrive.NewLetter({"n": n}, "bad", key=str(n))
        raise ConnectionError("the source is gone")

    with pytest.raises(ConnectionError) as caught:
        dlq.put_many(rejected(), pipeline="p")
    assert caught.value.__notes__ == ["redrive: the 30 letters before it are kept"]
    assert dlq.count() == 30


def test_opaque_record_is_stored(store_url):
    class Broken(dict):
        def items(self):
            raise RuntimeError("no")

    with redrive.connect(store_url, redact=["card"]) as store:
        for record in ({"card": 10**5000}, Broken(card="4111111111111111"), {"card": {Vendor.EAST}}):
            store.dlq.put(record, "bad 4111111111111111", pipeline="p")
        assert store.dlq.count() == 3
        assert all("4111" not in letter.error_message for letter in store.dlq.find(text="***"))


def test_truncated_message_shows_no_half_secret(store_url):
    with redrive.connect(store_url, redact=["card"]) as store:
        store.dlq.put({"card": "4111111111111111"}, "x" * 9_990 + "4111111111111111", pipeline="p")
        assert "4111" not in store.dlq.find()[0].error_message


def test_traceback_shows_no_records(store, dlq):
    values = {"record": "-".join(["4111", "1111"])}
    statement = text("INSERT INTO nowhere VALUES (:record)")
    with pytest.raises(redrive.StoreError) as caught:
        store.database.write(lambda connection: connection.execute(statement, values))
    assert "4111-1111" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "since", ["2020-07-01T12:00:00Z", "2020-07-01T14:00:00+02:00", dt.date(2020, 7, 1), "2020-07-01"]
)
def test_time_filter_accepts_several_formats(dlq, put, since):
    put(1)
    assert dlq.count(since=since) == 1


@pytest.mark.parametrize(
    "filters", [{"pipeline": 5}, {"ids": 5.0}, {"since": dt.timedelta(days=10**6)}, {"ids": "17"}, {"pipeline": [""]}]
)
def test_invalid_filter_value_is_rejected(dlq, filters):
    with pytest.raises(redrive.LetterError):
        dlq.find(**filters)


@pytest.mark.parametrize("attempts", [-1, 1 << 31, 1.5, True])
def test_attempts_are_a_number(dlq, attempts):
    with pytest.raises(redrive.LetterError, match="attempts"):
        dlq.put({}, "bad", pipeline="p", attempts=attempts)


def test_history_is_complete(dlq):
    causes = [f"error {first}{second}x" for first in "abcdefghijklmnopqrstuvwxyz" for second in "abcdefghijklmnopqrst"]
    for turn in range(3):
        dlq.put_many((redrive.NewLetter({"turn": turn}, cause, key="k") for cause in causes), pipeline="p")
        dlq.discard(note="x", key="k", status="pending")
    assert len(dlq.history("k").letters) == dlq.count(key="k") == 3 * 520


def test_repeats_within_one_batch_are_counted(dlq):
    stored = dlq.put_many((redrive.NewLetter({"v": n % 3}, "bad", key="K") for n in range(3_000)), pipeline="p")
    assert (stored.new, stored.repeated) == (1, 2_999)
    assert dlq.find()[0].seen == 3_000


def test_any_number_of_ids_can_be_named(dlq, put):
    put(3)
    ids = [letter.id for letter in dlq.find()]
    assert dlq.count(ids=[*ids, *range(10_000, 80_000)]) == 3


def test_database_rejects_an_unknown_status(store, dlq, put):
    put(1)
    change = letters.update().values(status="open")
    with pytest.raises(redrive.StoreError):
        store.database.write(lambda connection: connection.execute(change))
    assert dlq.count(status="pending") == 1
