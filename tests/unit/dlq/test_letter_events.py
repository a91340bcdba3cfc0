"""Events of letters: each once, after the change is in the store, and only for real changes."""

import logging
from datetime import UTC, datetime, timedelta

import pytest

import redrive
from redrive.dlq import status as change
from redrive.dlq.insert import insert
from redrive.errors import LetterError, ReplayStopped, StoreError
from redrive.model.letters import LettersChanged, LettersPurged, LettersPut, LettersReplayed

ACTOR = change.actor()


@pytest.fixture
def store(tmp_path):
    with redrive.connect(tmp_path / "letters.db") as opened:
        yield opened


@pytest.fixture
def heard():
    events = []
    end = redrive.on_event(events.append)
    yield events
    end()


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(insert, "BATCH", 10)


def letters(count, *, start=0):
    return (
        redrive.NewLetter({"id": n, "fee": "N/A"}, "fee: not a number", key=f"D-{n}")
        for n in range(start, start + count)
    )


def three_pending(store):
    store.dlq.put_many(letters(3), pipeline="vendor")


# ── putting ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_put_many_is_one_event_with_new_and_seen_counts(store, heard):
    store.dlq.put_many(letters(2), pipeline="vendor")
    store.dlq.put_many(letters(5), pipeline="vendor", run_id="8a7e4e4c-9f0e-4a4b-9c39-1a8f3e1f9d11")
    assert heard == [
        LettersPut(pipeline="vendor", run_id=None, new=2, repeated=0),
        LettersPut(pipeline="vendor", run_id="8a7e4e4c-9f0e-4a4b-9c39-1a8f3e1f9d11", new=3, repeated=2),
    ]


def test_put_in_several_transactions_is_one_event(store, heard, small_batches):
    store.dlq.put_many(letters(35), pipeline="vendor")
    assert heard == [LettersPut(pipeline="vendor", run_id=None, new=35, repeated=0)]


def test_letters_of_several_pipelines_are_a_nameless_event(store, heard):
    new = [redrive.NewLetter(n, "bad", pipeline=f"p{n}") for n in range(2)]
    store.dlq.put_many(new)
    assert heard == [LettersPut(pipeline=None, run_id=None, new=2, repeated=0)]


def test_empty_put_is_no_event(store, heard):
    store.dlq.put_many([], pipeline="vendor")
    assert heard == []


def test_interrupted_stream_reports_the_stored_letters(store, heard, small_batches):
    def broken():
        yield from letters(24)
        raise OSError("the file is gone")

    with pytest.raises(OSError, match="the file is gone"):
        store.dlq.put_many(broken(), pipeline="vendor")
    assert heard == [LettersPut(pipeline="vendor", run_id=None, new=store.dlq.count(), repeated=0)]
    assert store.dlq.count() == 24


def test_event_is_emitted_after_the_letters_are_stored(store):
    found = []
    end = redrive.on_event(lambda event: found.append(store.dlq.count()))
    store.dlq.put_many(letters(3), pipeline="vendor")
    end()
    assert found == [3]


def test_quarantine_of_a_run_is_reported_once_per_batch(store, heard, tmp_path):
    def check(row):
        if row["fee"] == "N/A":
            raise ValueError("fee: not a number")
        return row

    rows = [{"id": str(n), "fee": "N/A" if n % 2 else "1"} for n in range(10)]
    sink = redrive.rows.table(f"sqlite:///{tmp_path / 'sink.db'}", "t", key="id", create=True)
    source = redrive.rows.records(rows)
    redrive.Pipeline("vendor", source=source, validate=check, sink=sink, store=store, gate=redrive.Gate(abort=1)).run()
    assert store.dlq.count() == 5
    assert [type(event).__name__ for event in heard if type(event).__name__.startswith("Letters")] == []


# ── deciding, editing, keeping ────────────────────────────────────────────────────────────────────────────────────────


def test_decision_event_has_the_count_and_the_operator(store, heard):
    three_pending(store)
    heard.clear()
    store.dlq.discard(note="not ours", pipeline="vendor")
    store.dlq.reopen(key="D-0")
    store.dlq.escalate(note="please look", status="pending")
    assert heard == [
        LettersChanged(action="discarded", count=3, actor=ACTOR),
        LettersChanged(action="reopened", count=1, actor=ACTOR),
        LettersChanged(action="escalated", count=1, actor=ACTOR),
    ]


def test_decision_that_changed_nothing_is_no_event(store, heard):
    three_pending(store)
    heard.clear()
    assert store.dlq.reopen(pipeline="vendor").changed == 0
    with pytest.raises(LetterError):
        store.dlq.discard(note=" ", pipeline="vendor")
    assert heard == []


def test_decision_cut_short_by_a_lost_store_reports_its_changes(store, heard, monkeypatch):
    from redrive.dlq import queue

    three_pending(store)
    heard.clear()
    monkeypatch.setattr(queue, "SETTLED_AT_ONCE", 2)
    write, calls = store.database.write, []

    def lost_the_second_time(work, **options):
        calls.append(work)
        if len(calls) == 2:
            raise StoreError("the disk is full")
        return write(work, **options)

    monkeypatch.setattr(store.database, "write", lost_the_second_time)
    with pytest.raises(StoreError):
        store.dlq.discard(note="not ours", pipeline="vendor")
    assert heard == [LettersChanged(action="discarded", count=2, actor=ACTOR)]


def test_edits_are_reported_and_previews_are_not(store, heard):
    three_pending(store)
    heard.clear()
    store.dlq.edit(1, patch={"fee": "4.90"})
    store.dlq.edit_many(patch={"fee": "0"}, pipeline="vendor")
    store.dlq.edit_many(patch={"fee": "0"}, pipeline="vendor", dry_run=False)
    store.dlq.edit(1, undo=True)
    assert heard == [
        LettersChanged(action="edited", count=1, actor=ACTOR),
        LettersChanged(action="edited", count=3, actor=ACTOR),
        LettersChanged(action="edit undone", count=1, actor=ACTOR),
    ]


def test_purge_event_has_the_removed_count(store, heard):
    three_pending(store)
    store.dlq.discard(note="not ours", ids=[1, 2])
    heard.clear()
    before = datetime.now(UTC) + timedelta(seconds=1)
    store.dlq.purge(older_than=before, dry_run=True)
    store.dlq.purge(older_than=before)
    store.dlq.purge(older_than=before)
    assert heard == [LettersPurged(count=2, before=before, actor=ACTOR)]


def test_import_is_reported_even_if_a_line_ends_it(store, heard, tmp_path):
    three_pending(store)
    lines = list(store.dlq.export())
    heard.clear()
    with redrive.connect(tmp_path / "other.db") as other:
        with pytest.raises(LetterError):
            other.dlq.import_([*lines[:2], "{"])
        other.dlq.import_(lines)
        other.dlq.import_(lines)
    assert heard == [
        LettersChanged(action="imported", count=2, actor=ACTOR),
        LettersChanged(action="imported", count=1, actor=ACTOR),
    ]


# ── sending back ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_replay_event_has_its_report_and_dry_run_has_none(store, heard):
    three_pending(store)
    heard.clear()

    def target(records):
        return [None if record["id"] else "still bad" for record in records]

    store.dlq.replay(target, pipeline="vendor")
    report = store.dlq.replay(target, pipeline="vendor", dry_run=False)
    assert heard == [LettersReplayed(report=report, pipelines=("vendor",), actor=ACTOR)]
    assert (report.reprocessed, report.failed_again) == (2, 1)


def test_replay_stopped_by_its_target_reports_earlier_work(store, heard):
    three_pending(store)
    heard.clear()

    def target(records):
        if records[0]["id"]:
            raise ConnectionRefusedError("the warehouse is down")

    with pytest.raises(ReplayStopped):
        store.dlq.replay(target, batch=1, any_pipeline=True, dry_run=False)
    (told,) = heard
    assert (told.report.attempted, told.report.reprocessed, told.pipelines) == (1, 1, ())
    assert "the warehouse is down" in told.report.stopped


def test_empty_replay_is_no_event(store, heard):
    store.dlq.replay(lambda records: None, any_pipeline=True, dry_run=False)
    assert heard == []


# ── and in the log ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_event_is_one_line_of_the_log(store, caplog):
    caplog.set_level(logging.INFO, "redrive.events")
    three_pending(store)
    three_pending(store)
    store.dlq.replay(lambda records: None, ids=[1], dry_run=False)
    store.dlq.discard(note="not ours", status="pending")
    store.dlq.purge(older_than=datetime(2100, 1, 1, tzinfo=UTC))
    assert [record.getMessage() for record in caplog.records] == [
        "vendor 3 letters quarantined",
        "vendor 3 letters seen again",
        f"1 letter replayed by {ACTOR}: 1 reprocessed, 0 failed again",
        f"2 letters discarded by {ACTOR}",
        f"3 letters decided before 2100-01-01 00:00 UTC purged by {ACTOR}",
    ]
    assert {record.levelname for record in caplog.records} == {"INFO"}


def test_secret_in_a_replays_stop_reason_is_not_logged(store, caplog):
    caplog.set_level(logging.INFO, "redrive.events")
    three_pending(store)

    def target(records):
        raise ConnectionRefusedError("https://warehouse.example/?api_key=hunter2hunter2")

    with pytest.raises(ReplayStopped):
        store.dlq.replay(target, batch=1, any_pipeline=True, dry_run=False)
    with pytest.raises(ReplayStopped):
        store.dlq.replay(
            lambda records: [None] if records[0]["id"] == 0 else target(records),
            batch=1,
            any_pipeline=True,
            dry_run=False,
        )
    assert "1 letter replayed" in caplog.text
    assert "hunter2" not in caplog.text


def test_failing_hook_harms_no_letter(store, caplog):
    def broken(event):
        raise RuntimeError("deaf")

    end = redrive.on_event(broken)
    try:
        assert store.dlq.put("x", "bad", pipeline="vendor").new == 1
    finally:
        end()
    assert "an on_event hook failed on LettersPut" in caplog.text
