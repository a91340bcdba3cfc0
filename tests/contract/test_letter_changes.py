"""Deciding, editing and purging letters, on every store."""

import datetime as dt

import pytest

import redrive
from redrive.model.letters import Status
from redrive.store.schema import letters

UTC = dt.UTC


def statuses(dlq):
    return {letter.key: letter.status.value for letter in dlq.find()}


def test_decision_needs_a_note(dlq, put):
    put(1)
    for decide in (dlq.discard, dlq.escalate):
        for note in ("", "   ", None):
            with pytest.raises(redrive.LetterError, match="needs a note"):
                decide(note=note, pipeline="vendor")
    assert statuses(dlq) == {"D-0": "pending"}


def test_decision_about_all_letters_needs_a_filter(dlq, put):
    put(1)
    with pytest.raises(redrive.LetterError, match="select them"):
        dlq.discard(note="all")


def test_changes_are_audited_with_operator_time_and_note(dlq, put):
    put(1)
    (letter,) = dlq.find()
    dlq.escalate(ids=[letter.id], note="whose is it?")
    dlq.discard(ids=[letter.id], note="nobody's")
    dlq.reopen(ids=[letter.id], note="found the owner")
    trail = dlq.audit(letter.id)
    assert [(entry.action, entry.status_before, entry.status_after, entry.note) for entry in trail] == [
        ("escalated", "pending", "escalated", "whose is it?"),
        ("discarded", "escalated", "discarded", "nobody's"),
        ("reopened", "discarded", "pending", "found the owner"),
    ]
    assert all("@" in entry.actor and entry.at.tzinfo for entry in trail)
    after = dlq.get(letter.id)
    assert (after.status, after.settled_at) == (Status.PENDING, None)


def test_change_that_does_not_fit_the_status_is_rejected(dlq, put):
    put(2)
    dlq.discard(note="x", key="D-0")
    changed = dlq.escalate(note="y", pipeline="vendor")
    assert (changed.changed, changed.unfit, changed.held) == (1, 1, 0)
    assert statuses(dlq) == {"D-0": "discarded", "D-1": "escalated"}


def test_only_one_copy_of_a_record_is_reopened(dlq, put):
    put(1)
    dlq.discard(note="x", key="D-0")
    dlq.put({"id": "D-0", "fee": "?"}, "fee: not a number", key="D-0", pipeline="vendor", source="deliveries.csv")
    dlq.discard(note="y", key="D-0", status="pending")
    changed = dlq.reopen(key="D-0")  # both are the same record: one of them can be pending
    assert (changed.changed, changed.unfit) == (1, 1)
    assert sorted(letter.status.value for letter in dlq.find()) == ["discarded", "pending"]
    assert dlq.reopen(key="D-0").changed == 0


def test_change_of_thousands_of_letters_is_complete(dlq, put):
    put(12_000)
    assert dlq.discard(note="x", pipeline="vendor").changed == 12_000
    assert dlq.count(status="discarded") == 12_000


def test_edit_keeps_the_raw_record_and_shows_the_difference(dlq, put):
    put(1)
    (letter,) = dlq.find()
    made = dlq.edit(letter.id, patch={"fee": 0, "note": "set by hand"})
    first = made.changes[0]
    assert (first.path, first.before, first.after) == ("fee", "N/A", 0)
    after = dlq.get(letter.id)
    assert after.record == {"id": "D-0", "fee": "N/A"}
    assert after.payload == {"id": "D-0", "fee": 0, "note": "set by hand"}
    dlq.edit(letter.id, expression='{**record, "fee": record["fee"] + 1}')  # an edit of the edit
    assert dlq.get(letter.id).payload["fee"] == 1
    assert [entry.action for entry in dlq.audit(letter.id)] == ["edited", "edited"]
    undone = dlq.edit(letter.id, undo=True)
    assert [(change.path, change.before) for change in undone.changes] == [("fee", 1), ("note", "set by hand")]
    assert dlq.get(letter.id).payload == letter.record
    assert not dlq.get(letter.id).edited


def test_record_can_be_edited_to_null(dlq, put):
    put(1)
    (letter,) = dlq.find()
    dlq.edit(letter.id, None)
    assert dlq.get(letter.id).edited
    assert dlq.get(letter.id).payload is None


def test_bulk_edit_is_a_dry_run_by_default(dlq, put):
    put(30)
    report = dlq.edit_many(expression='{**record, "fee": 0} if record["id"] != "D-3" else record', pipeline="vendor")
    assert (report.dry_run, report.selected, report.changed, report.unchanged) == (True, 30, 29, 1)
    assert report.previews[0].after == {"id": "D-0", "fee": 0}
    assert dlq.count(edited=True) == 0
    report = dlq.edit_many(patch={"fee": None}, pipeline="vendor", dry_run=False)
    assert (report.dry_run, report.changed) == (False, 30)
    assert dlq.find(key="D-7")[0].payload == {"id": "D-7"}


def test_bulk_edit_skips_and_names_a_letter_that_raises(dlq, put):
    put(3)
    report = dlq.edit_many(
        expression='{**record, "fee": 1 / (record["id"] != "D-1")}', pipeline="vendor", dry_run=False
    )
    assert (report.changed, report.failed) == (2, 1)
    ((letter_id, reason),) = report.failures
    assert dlq.get(letter_id).key == "D-1"
    assert "division by zero" in reason
    assert not dlq.get(letter_id).edited


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("(part for part in record)", "a generator"),
        ('{**record, "fee": map(float, record["fee"])}', "a map"),
        ("lambda: record", "a function"),
        ("record.items", "a builtin_function_or_method"),
        ('ValueError("fee")', "a ValueError"),
        ("dict", "the class dict"),
    ],
)
class TestInvalidEdit:
    def test_edit_raises_and_changes_nothing(self, dlq, put, source, what):
        put(1)
        (letter,) = dlq.find()
        with pytest.raises(redrive.LetterError, match=f"its new record is or holds {what}, which JSON cannot hold"):
            dlq.edit(letter.id, expression=source)
        assert dlq.find() == [letter]

    def test_bulk_edit_reports_the_letter_as_failed(self, dlq, put, source, what):
        put(2)
        report = dlq.edit_many(expression=source, pipeline="vendor", dry_run=False)
        assert (report.changed, report.failed) == (0, 2)
        assert what in report.failures[0][1]
        assert dlq.count(edited=True) == 0


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        ({}, "an edit is one of"),
        ({"patch": {}, "undo": True}, "an edit is one of"),
        ({"patch": [1]}, "a patch is an object"),
        ({"expression": "record +"}, "expression"),
        ({"expression": "record['nope']"}, "KeyError"),
    ],
)
def test_malformed_edit_raises_one_sentence(dlq, put, edit, says):
    put(1)
    (letter,) = dlq.find()
    with pytest.raises(redrive.LetterError, match=says):
        dlq.edit(letter.id, **edit)
    assert dlq.get(letter.id) == letter


def test_decided_letter_cannot_be_edited(dlq, put):
    put(1)
    (letter,) = dlq.find()
    dlq.discard(ids=[letter.id], note="x")
    with pytest.raises(redrive.LetterError, match="reopen"):
        dlq.edit(letter.id, patch={})


def test_new_version_of_the_record_drops_the_old_edit(dlq, put):
    dlq.put({"fee": "N/A"}, "bad", pipeline="p", key="k")
    (letter,) = dlq.find()
    dlq.edit(letter.id, patch={"fee": 0})
    dlq.put({"fee": "N/A"}, "bad", pipeline="p", key="k")
    assert dlq.get(letter.id).payload == {"fee": 0}
    dlq.put({"fee": "?"}, "bad", pipeline="p", key="k")
    assert dlq.get(letter.id).payload == {"fee": "?"}
    assert dlq.audit(letter.id)[-1].detail == {"raw_record": {"fee": "N/A"}, "edited_record": {"fee": 0}}


def test_only_old_decided_letters_are_purged(dlq, put):
    put(6)
    dlq.discard(note="x", ids=[letter.id for letter in dlq.find(limit=3)])
    dlq.escalate(note="x", key="D-0")
    assert dlq.purge().letters == 0
    later = dt.datetime.now(UTC) + dt.timedelta(minutes=1)
    assert dlq.purge(older_than=later, dry_run=True).letters == 3
    assert dlq.count() == 6
    assert dlq.purge(older_than=later).letters == 3
    assert sorted(letter.status.value for letter in dlq.find()) == ["escalated", "pending", "pending"]


@pytest.mark.parametrize("status", ["pending", "escalated"])
def test_open_letter_is_never_purged(dlq, put, status):
    put(1)
    with pytest.raises(redrive.LetterError, match="never purged"):
        dlq.purge(status=status, older_than="0s")


def test_id_is_never_reused(dlq, put):
    put(3)
    newest = dlq.find(limit=1)[0].id
    dlq.discard(note="x", pipeline="vendor")
    dlq.purge(older_than=dt.datetime.now(UTC) + dt.timedelta(minutes=1))
    put(1)
    assert dlq.find(limit=1)[0].id > newest


def test_size_reports_queue_usage(dlq, put):
    put(3)
    old = dt.datetime.now(UTC) - dt.timedelta(days=3)
    dlq.put_many([redrive.NewLetter({}, "bad", rejected_at=old)], pipeline="other")
    dlq.discard(note="x", key="D-0")
    size = dlq.size()
    assert (size.letters, size.by_status["pending"], size.by_status["discarded"]) == (4, 3, 1)
    assert size.pending_by_pipeline == {"vendor": 2, "other": 1}
    assert size.new_today_by_pipeline == {"vendor": 3}
    assert size.oldest_pending == old
    assert size.bytes > 0


def test_purge_keeps_the_counts_of_open_letters(dlq):
    old = dt.datetime.now(UTC) - dt.timedelta(days=3)
    dlq.put_many([redrive.NewLetter({"a": 1}, "bad", key="k", rejected_at=old)], pipeline="p")
    for days in (2, 1, 0):
        seen = dt.datetime.now(UTC) - dt.timedelta(days=days)
        dlq.put_many([redrive.NewLetter({"a": 1}, "bad", key="k", rejected_at=seen)], pipeline="p")
    before = dlq.causes()
    dlq.purge(older_than=dt.datetime.now(UTC) + dt.timedelta(hours=2))
    assert dlq.causes() == before


def test_letter_decided_by_sql_is_kept_from_its_detection(store, dlq):
    old = dt.datetime.now(UTC) - dt.timedelta(days=90)
    dlq.put_many([redrive.NewLetter({"a": 1}, "bad", rejected_at=old)], pipeline="p")
    store.database.write(lambda connection: connection.execute(letters.update().values(status="discarded")))
    assert dlq.purge().letters == 0
    assert dlq.purge(older_than=dt.datetime.now(UTC) + dt.timedelta(minutes=1)).letters == 1


def test_failed_edit_shows_no_redacted_values(store_url):
    with redrive.connect(store_url, redact=["card"]) as store:
        store.dlq.put({"card": "4111111111111111"}, "bad", pipeline="p")
        (letter,) = store.dlq.find()
        with pytest.raises(redrive.LetterError) as caught:
            store.dlq.edit(letter.id, expression="int(record['card'] + 'x')")
        assert "4111" not in str(caught.value)
        report = store.dlq.edit_many(expression="int(record['card'] + 'x')", pipeline="p")
        assert "4111" not in repr(report.failures)
