"""Replaying letters: dry runs, real replays, concurrent replays, and failures."""

import datetime as dt
import subprocess
import sys
import threading
from collections import Counter

import httpx
import pytest
from sqlalchemy import text, update

import redrive
from redrive.dlq.replay.replay import Replay
from redrive.model.letters import Status
from redrive.store.schema import letter_claims, letters

UTC = dt.UTC


class Shelf:
    """A target that accepts what it can, keeps it by key, and remembers how often it was asked."""

    def __init__(self, refuse=()):
        self.kept = {}
        self.calls = []
        self.refuse = set(refuse)

    def reprocess(self, records, *, dry_run=False):
        self.calls.append(([record["id"] for record in records], dry_run))
        answers = [
            ValueError(f"{one['id']}: fee is no number") if one["id"] in self.refuse else None for one in records
        ]
        if not dry_run:
            self.kept |= {one["id"]: one for one, answer in zip(records, answers, strict=True) if answer is None}
        return answers


def dump(store):
    """Everything in the database, table by table."""

    def work(connection):
        on_postgres = connection.dialect.name == "postgresql"
        tables = [
            "dead_letter_queue",
            "letter_audit",
            "letter_claims",
            "causes",
            "cause_hours",
            "breakers",
            "credentials",
        ]
        return [
            connection.execute(text(f"SELECT * FROM {'pipeline.' if on_postgres else ''}{table} ORDER BY 1, 2")).all()
            for table in tables
        ]

    return store.database.read(work)


def test_dry_run_changes_nothing_and_reports_the_outcome(store, dlq, put):
    put(20)
    before, shelf = dump(store), Shelf(refuse={"D-3", "D-4"})
    report = dlq.replay(shelf, any_pipeline=True, batch=6)
    assert dump(store) == before
    assert report.dry_run
    assert report.rehearsed
    assert (report.selected, report.attempted, report.reprocessed, report.failed_again) == (20, 20, 18, 2)
    (cause,) = report.by_cause
    assert (cause.count, "fee is no number" in cause.message) == (2, True)
    assert all(dry_run for _, dry_run in shelf.calls)
    assert shelf.kept == {}


def test_dry_run_never_calls_a_target_without_dry_run(store, dlq, put):
    put(3)
    before = dump(store)
    report = dlq.replay(lambda records: pytest.fail("it was called"), any_pipeline=True)
    assert (report.rehearsed, report.selected, report.attempted) == (False, 3, 0)
    assert dump(store) == before


def test_31_replay_marks_accepted_and_escalates_failed_letters(dlq, put):
    put(5)
    shelf = Shelf(refuse={"D-2"})
    report = dlq.replay(shelf, any_pipeline=True, dry_run=False, note="parser fixed")
    assert (report.dry_run, report.attempted, report.reprocessed, report.failed_again) == (False, 5, 4, 1)
    assert set(shelf.kept) == {"D-0", "D-1", "D-3", "D-4"}
    failed = dlq.find(key="D-2")[0]
    assert (failed.status, failed.reprocess_count) == (Status.ESCALATED, 1)
    assert failed.note == "failed again: ValueError: D-2: fee is no number"
    assert failed.last_error == "ValueError: D-2: fee is no number"
    assert failed.error_message == "fee: not a number"
    good = dlq.find(key="D-0")[0]
    assert (good.status, good.reprocess_count, good.note, good.last_error) == (
        Status.REPROCESSED,
        1,
        "parser fixed",
        None,
    )
    assert good.last_reprocess is not None
    assert [entry.action for entry in dlq.audit(good.id)] == ["reprocessed"]
    assert [(entry.action, entry.status_after) for entry in dlq.audit(failed.id)] == [("failed again", "escalated")]
    assert dlq.count() == 5  # no second letter was bred


def test_replay_sends_the_edited_record(dlq, put):
    put(1)
    dlq.edit(dlq.find()[0].id, patch={"fee": 0})
    shelf = Shelf()
    dlq.replay(shelf, any_pipeline=True, dry_run=False)
    assert shelf.kept == {"D-0": {"id": "D-0", "fee": 0}}


def test_plain_function_can_return_several_kinds_of_outcome(dlq, put):
    put(6)
    answers = [None, True, False, "no reason", ValueError("x"), KeyError("y")]
    report = dlq.replay(lambda records: answers, any_pipeline=True, dry_run=False)
    assert (report.reprocessed, report.failed_again) == (2, 4)
    errors = {letter.key: letter.last_error for letter in dlq.find()}
    assert errors == {
        "D-0": None,
        "D-1": None,
        "D-2": "the target did not accept it",
        "D-3": "no reason",
        "D-4": "ValueError: x",
        "D-5": "KeyError: 'y'",
    }


def test_target_can_take_letters(dlq, put):
    put(2)
    given = []

    def target(records, *, letters):
        given.extend(letter.key for letter in letters)

    dlq.replay(target, any_pipeline=True, dry_run=False)
    assert given == ["D-0", "D-1"]


def test_replay_sends_only_the_selection_up_to_the_limit(dlq, put):
    put(10)
    put(5, pipeline="other")
    shelf = Shelf()
    report = dlq.replay(shelf, pipeline="vendor", limit=4, dry_run=False)
    assert (report.selected, report.attempted, report.remaining) == (10, 4, 6)
    assert set(shelf.kept) == {"D-0", "D-1", "D-2", "D-3"}
    assert dlq.count(status="pending", pipeline="other") == 5


def test_31_letter_stored_during_a_replay_is_not_sent(dlq, put):
    put(4)

    def target(records):
        put(4, start=100 + len(records))

    report = dlq.replay(target, any_pipeline=True, batch=2, dry_run=False)
    assert (report.selected, report.attempted) == (4, 4)


def test_failed_canary_stops_the_replay(dlq, put):
    put(20)
    report = dlq.replay(Shelf(refuse={"D-0"}), any_pipeline=True, canary=3, dry_run=False)
    assert (report.attempted, report.reprocessed, report.failed_again) == (3, 2, 1)
    assert "1 of the first 3 failed" in report.stopped
    assert dlq.count(status="pending") == 17


def test_passed_canary_continues_the_replay(dlq, put):
    put(20)
    shelf = Shelf(refuse={"D-9"})
    report = dlq.replay(shelf, any_pipeline=True, canary=3, dry_run=False)
    assert (report.attempted, report.failed_again, report.stopped) == (20, 1, None)
    assert len(shelf.calls[0][0]) == 3


UNPROCESSABLE = httpx.Response(422, request=httpx.Request("POST", "http://bank/orders"), json={"detail": "no D-5"})


@pytest.mark.parametrize("levels", [255, 300])
def test_incomplete_record_is_sent_once_it_is_edited(dlq, levels):
    record = {"leaf": 1}
    for _ in range(levels):
        record = {"a": record}
    dlq.put(record, "bad", pipeline="vendor")
    shelf = []
    report = dlq.replay(shelf.extend, pipeline="vendor", dry_run=False)
    assert (shelf, report.reprocessed, report.failed_again) == ([], 0, 1)
    (letter,) = dlq.find(pipeline="vendor")
    assert "the record is nested too deep" in letter.last_error
    dlq.edit(letter.id, record={"a": 1})
    assert dlq.replay(shelf.extend, pipeline="vendor", dry_run=False).reprocessed == 1
    assert shelf == [{"a": 1}]


class TestRaisingTarget:
    """A function that sends record by record, and raises at one of them."""

    @pytest.mark.parametrize(
        "fail", [lambda: int("no D-5"), UNPROCESSABLE.raise_for_status], ids=["ValueError", "HTTP 422"]
    )
    @pytest.mark.parametrize("bad", [{"D-5"}, {"D-0", "D-5", "D-15"}], ids=len)
    def test_gets_every_other_record_at_most_twice(self, dlq, put, fail, bad):
        put(16)
        sent, calls = Counter(), []

        def target(records):
            calls.append(len(records))
            for record in records:
                if record["id"] in bad:
                    fail()
                sent[record["id"]] += 1

        report = dlq.replay(target, any_pipeline=True, dry_run=False)
        assert (report.reprocessed, report.failed_again, report.stopped) == (16 - len(bad), len(bad), None)
        assert len(sent) == 16 - len(bad)
        assert max(sent.values()) <= 2
        assert calls == [16, *[1] * 16]
        assert {letter.key for letter in dlq.find(status="escalated")} == bad
        assert "no D-5" in dlq.find(key="D-5")[0].last_error

    def test_keeps_accepted_records_during_an_outage(self, dlq, put):
        put(8)
        sent = []

        def target(records):
            if len(records) == 1 and len(sent) == 4:
                raise ConnectionResetError("gone")
            if len(records) > 1:
                raise ValueError("D-2 is bad")
            sent.append(records[0]["id"])

        with pytest.raises(redrive.ReplayStopped, match="4 letters were reprocessed"):
            dlq.replay(target, any_pipeline=True, dry_run=False)
        assert dlq.count(status="reprocessed") == 4
        assert dlq.count(status="pending") == 4


@pytest.mark.parametrize(
    ("error", "kind"),
    [(ConnectionResetError("gone"), "transient"), (AttributeError("a bug"), "permanent"), (MemoryError(), "resource")],
)
def test_failed_target_stops_the_replay_and_keeps_pending(dlq, put, error, kind):
    put(10)
    calls = []

    def target(records):
        calls.append(len(records))
        if len(calls) == 2:
            raise error

    with pytest.raises(redrive.ReplayStopped, match="4 letters were reprocessed") as stopped:
        dlq.replay(target, any_pipeline=True, batch=4, dry_run=False)
    assert stopped.value.__cause__ is error
    assert (stopped.value.kind, stopped.value.report.reprocessed) == (kind, 4)
    assert dlq.count(status="pending") == 6
    assert dlq.replay(Shelf(), any_pipeline=True, dry_run=False).reprocessed == 6  # nothing is held back


def test_error_of_a_target_is_masked(store_url):
    def target(records):
        raise ConnectionError(f"https://x/?api_key=hunter2hunter2 with {records[0]['card']}")

    with redrive.connect(store_url, redact=["card"]) as store:
        store.dlq.put({"card": "4111111111111111"}, "bad", pipeline="p")
        with pytest.raises(redrive.ReplayStopped) as stopped:
            store.dlq.replay(target, any_pipeline=True, dry_run=False)
    told = f"{stopped.value} {stopped.value.report.stopped}"
    assert "hunter2" not in told
    assert "4111" not in told


def test_wrong_number_of_outcomes_changes_nothing(dlq, put):
    put(3)
    with pytest.raises(redrive.LetterError, match="2 outcomes for 3 records"):
        dlq.replay(lambda records: [None, None], any_pipeline=True, dry_run=False)
    assert dlq.count(status="pending", reprocess_count=0) == 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"limit": 0}, "limit"),
        ({"canary": -1}, "canary"),
        ({"batch": "many"}, "batch"),
        ({"status": "discarded"}, "reopen"),
    ],
)
def test_malformed_replay_raises_one_sentence(dlq, put, options, says):
    put(1)
    with pytest.raises(redrive.LetterError, match=says):
        dlq.replay(Shelf(), any_pipeline=True, dry_run=False, **options)


def test_invalid_target_is_rejected(dlq):
    with pytest.raises(redrive.LetterError, match="target"):
        dlq.replay("vendor.py:pipeline", any_pipeline=True)


@pytest.mark.parametrize("status", [None, "open", "any"])
def test_replay_sends_escalated_letters_like_pending_ones(dlq, put, status):
    put(3)
    dlq.escalate(note="x", key="D-0")
    dlq.discard(note="x", key="D-2")
    report = dlq.replay(Shelf(), any_pipeline=True, status=status, dry_run=False)
    assert (report.selected, report.reprocessed) == (2, 2)


def test_scheduled_replay_skips_escalated_letters(dlq, put):
    put(2)
    dlq.escalate(note="x", key="D-0")
    schedule = redrive.Schedule(first=0)
    report = dlq.replay(Shelf(), any_pipeline=True, due=schedule, dry_run=False)
    assert (report.selected, dlq.count(status="escalated")) == (1, 1)


def test_replay_of_escalated_letters_needs_no_status(dlq, put):
    put(2)
    assert dlq.replay(Shelf(refuse={"D-0", "D-1"}), any_pipeline=True, dry_run=False).failed_again == 2
    assert dlq.replay(Shelf(), any_pipeline=True, dry_run=False).reprocessed == 2


def test_concurrent_replays_process_each_letter_once(dlq, put):
    put(400)
    seen, lock, reports = [], threading.Lock(), []
    together = threading.Barrier(2)

    def target(records):
        with lock:
            seen.extend(record["id"] for record in records)

    def replay():
        together.wait()
        reports.append(dlq.replay(target, any_pipeline=True, batch=7, dry_run=False))

    threads = [threading.Thread(target=replay) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == sorted(f"D-{n}" for n in range(400))
    assert sum(report.reprocessed for report in reports) == 400
    assert dlq.count(status="reprocessed", reprocess_count=1) == 400


def test_claims_of_a_running_replay_are_kept(dlq, put):
    put(4)
    inner = []

    def target(records):
        inner.append(dlq.replay(Shelf(), any_pipeline=True, dry_run=False, lease=0.6))

    outer = dlq.replay(target, any_pipeline=True, batch=2, limit=2, dry_run=False, lease=0.3)
    assert outer.reprocessed == 2
    assert (inner[0].reprocessed, inner[0].held) == (2, 2)


def claim_for_somebody_else(store, until):
    def work(connection):
        ids = connection.execute(letters.select()).scalars().all()
        connection.execute(letter_claims.insert(), [{"letter_id": one, "owner": "dead", "until": until} for one in ids])

    store.database.write(work)


def test_claims_of_a_dead_replay_expire_with_its_lease(store, dlq, put):
    put(5)
    claim_for_somebody_else(store, dt.datetime.now(UTC) + dt.timedelta(seconds=0.5))
    report = dlq.replay(Shelf(), any_pipeline=True, dry_run=False, lease=1)
    assert (report.reprocessed, report.held) == (5, 0)


class TestLateRenewal:
    """A busy store delays the renewal of the claims of a running replay."""

    def end_leases(self, store):
        past = dt.datetime.now(UTC) - dt.timedelta(seconds=1)
        store.database.write(lambda connection: connection.execute(letter_claims.update().values(until=past)))

    def test_running_replay_keeps_its_letters(self, store, dlq, put):
        put(4)
        inner, sent = [], []

        def target(records):
            sent.extend(records)
            if not inner:
                self.end_leases(store)
                inner.append(dlq.replay(Shelf(), any_pipeline=True, dry_run=False, lease=0.3))

        outer = dlq.replay(target, any_pipeline=True, batch=4, dry_run=False)
        assert (len(sent), outer.reprocessed) == (4, 4)
        assert (inner[0].attempted, inner[0].held) == (0, 4)

    def test_letters_taken_by_another_replay_are_not_sent(self, store, dlq, put, monkeypatch):
        put(4)
        claimed = Replay._claim

        def late(self, ids):
            batch = claimed(self, ids)
            if batch and not taken:
                taken.append(batch[0].id)
                mine = letter_claims.c.letter_id == batch[0].id
                until = dt.datetime.now(UTC) + dt.timedelta(days=1)
                change = letter_claims.update().where(mine).values(owner="elsewhere", until=until)
                store.database.write(lambda connection: connection.execute(change))
                self._claimed = self._claimed[0] - 3_600, self._claimed[1]
            return batch

        taken, sent = [], []
        monkeypatch.setattr(Replay, "_claim", late)
        report = dlq.replay(sent.extend, any_pipeline=True, dry_run=False, lease=0.3)
        assert (len(sent), report.reprocessed, report.held) == (3, 3, 1)

    def test_claims_of_a_dead_process_are_free(self, store_url, dlq, put):
        put(2)
        claim = (
            "import sys, redrive; from redrive.dlq.replay.claims import Claims;"
            "database = redrive.connect(sys.argv[1]).database; claims = Claims(database, lease=0.1);"
            "database.write(lambda connection: claims.take(connection, [1, 2]))"
        )
        subprocess.run([sys.executable, "-c", claim, store_url], check=True)
        assert dlq.replay(Shelf(), any_pipeline=True, dry_run=False, lease=1).reprocessed == 2


def test_replay_that_lost_its_claims_writes_nothing(store, dlq, put):
    put(3)

    def target(records):
        take_over = update(letter_claims).values(owner="somebody else")
        store.database.write(lambda connection: connection.execute(take_over))

    dlq.replay(target, any_pipeline=True, dry_run=False)
    assert dlq.count(status="pending", reprocess_count=0) == 3


def test_claimed_letter_cannot_be_changed_or_edited(dlq, put):
    put(2)
    first, second = (letter.id for letter in dlq.find(newest_first=False))
    heard = []

    def target(records):
        heard.append(dlq.discard(ids=[first, second], note="x"))
        with pytest.raises(redrive.LetterError, match="hands of a replay"):
            dlq.edit(first, patch={})
        heard.append(dlq.edit_many(patch={"a": 1}, pipeline="vendor", dry_run=False))

    dlq.replay(target, any_pipeline=True, limit=1, dry_run=False)
    assert (heard[0].changed, heard[0].held) == (1, 1)
    assert (heard[1].changed, heard[1].held) == (0, 1)


def test_record_rejected_again_during_replay_stays_pending(dlq, put):
    put(2)

    def target(records):
        dlq.put(
            {"id": "D-0", "fee": "still bad"},
            "fee: not a number",
            pipeline="vendor",
            source="deliveries.csv",
            key="D-0",
        )

    report = dlq.replay(target, any_pipeline=True, dry_run=False)
    assert (report.reprocessed, report.seen_meanwhile) == (1, 1)
    letter = dlq.find(key="D-0")[0]
    assert (letter.status, letter.record["fee"], letter.reprocess_count) == (Status.PENDING, "still bad", 1)


def test_scheduled_retries_back_off_and_escalate(store, dlq, put):
    put(1)
    schedule = redrive.Schedule(tries=3, first=3_600, factor=2)

    def later(hours):
        """Move the letter's past back instead of waiting."""

        def work(connection):
            row = connection.execute(letters.select()).one()
            moved = {
                name: None if getattr(row, name) is None else getattr(row, name) - dt.timedelta(hours=hours)
                for name in ("rejected_at", "last_reprocess")
            }
            connection.execute(update(letters).values(**moved))

        store.database.write(work)

    shelf = Shelf(refuse={"D-0"})
    tried = []
    for hours in (0.5, 0.6, 1.5, 0.6, 3.5, 0.6):
        later(hours)
        tried.append(dlq.replay(shelf, any_pipeline=True, due=schedule, dry_run=False).attempted)
    assert tried == [0, 1, 0, 1, 0, 1]
    letter = dlq.find()[0]
    assert (letter.status, letter.reprocess_count) == (Status.ESCALATED, 3)
    assert dlq.replay(shelf, any_pipeline=True, due=schedule, dry_run=False).selected == 0


def test_letter_recovered_by_schedule_is_reprocessed(store, dlq):
    old = dt.datetime.now(UTC) - dt.timedelta(days=2)
    dlq.put_many([redrive.NewLetter({"id": "x"}, "404", rejected_at=old)], pipeline="p")
    assert dlq.replay(Shelf(), any_pipeline=True, due=True, dry_run=False).reprocessed == 1


@pytest.mark.parametrize("bad", [{"tries": 0}, {"first": -1}, {"factor": 0.5}])
def test_malformed_schedule_is_rejected(bad):
    with pytest.raises(redrive.LetterError):
        redrive.Schedule(**bad)


def test_progress_is_reported_from_start_to_end(dlq, put):
    put(10)
    told = []
    dlq.replay(
        Shelf(), any_pipeline=True, batch=4, dry_run=False, progress=lambda done, total: told.append((done, total))
    )
    assert told == [(0, 10), (4, 10), (8, 10), (10, 10)]


def test_target_may_modify_its_records(dlq, put):
    put(4)
    warehouse = {}

    def target(records):
        for record in records:
            record["fee"] = record["fee"] + "!"
        if any(record["id"] == "D-3" for record in records):
            raise ValueError("D-3 is bad")
        warehouse.update((record["id"], record["fee"]) for record in records)

    dlq.replay(target, any_pipeline=True, dry_run=False)
    assert warehouse == {"D-0": "N/A!", "D-1": "N/A!", "D-2": "N/A!"}
    assert dlq.find(key="D-3")[0].record == {"id": "D-3", "fee": "N/A"}


def test_canary_applies_to_claims_taken_over(store, dlq, put):
    put(20)
    claim_for_somebody_else(store, dt.datetime.now(UTC) + dt.timedelta(seconds=0.3))
    report = dlq.replay(lambda records: ["no"] * len(records), any_pipeline=True, canary=2, dry_run=False, lease=1)
    assert (report.attempted, dlq.count(status="pending")) == (2, 18)
    assert "canary" in report.stopped


async def coroutine(records):
    return None


@pytest.mark.parametrize(
    "target",
    [len, coroutine, lambda records: "ok", lambda records: {}, lambda records: [1] * len(records), lambda records: 7],
)
def test_invalid_outcome_does_not_fail_the_records(dlq, put, target):
    put(3)
    with pytest.raises(redrive.LetterError, match="the target"):
        dlq.replay(target, any_pipeline=True, dry_run=False)
    assert dlq.count(status="pending", reprocess_count=0) == 3


def test_reasons_and_notes_with_unstorable_text_are_stored(dlq, put):
    put(2)
    dlq.replay(lambda records: ["a\0b", "c\ud800d"], any_pipeline=True, dry_run=False)
    assert sorted(letter.last_error for letter in dlq.find()) == ["a\\x00b", "c\\ud800d"]
    dlq.discard(note="x\0y\ud800", status="escalated")
    assert dlq.find(note="x\0y", text="fee\0") == []
    assert len(dlq.find(note="x\0y")) == 2


def test_empty_list_of_statuses_selects_nothing(dlq, put):
    put(2)
    dlq.discard(note="x", key="D-0")
    later = dt.datetime.now(UTC) + dt.timedelta(minutes=1)
    assert dlq.replay(Shelf(), any_pipeline=True, status=[]).selected == 0
    assert dlq.purge(status=[], older_than=later).letters == 0
    assert dlq.edit_many(patch={"a": 1}, status=[]).selected == 0


class TestCanarySample:
    def test_is_spread_over_the_selection(self, dlq, put):
        put(200)
        sent = []
        dlq.replay(lambda records: sent.append([record["id"] for record in records]), pipeline="vendor", dry_run=False)
        numbers = [int(one.removeprefix("D-")) for one in sent[0]]
        assert [number // 20 for number in numbers] == list(range(10))
        assert sorted(one for batch in sent for one in batch) == sorted(f"D-{n}" for n in range(200))

    def test_of_the_letters_that_the_limit_allows(self, dlq, put):
        put(200)
        sent = []
        dlq.replay(sent.extend, pipeline="vendor", dry_run=False, canary=2, limit=10)
        first, second = (int(record["id"].removeprefix("D-")) for record in sent[:2])
        assert first < 5 <= second < 10
        assert {record["id"] for record in sent} == {f"D-{n}" for n in range(10)}

    def test_finds_a_fault_of_newer_letters(self, dlq, put):
        put(60)
        put(60, start=60, error="zone: unknown")
        report = dlq.replay(
            lambda records: [None if int(record["id"][2:]) < 60 else "still bad" for record in records],
            pipeline="vendor",
            dry_run=False,
        )
        assert (report.attempted, report.reprocessed) == (10, 5)
        assert report.stopped is not None

    def test_takes_the_oldest_letter_of_a_key(self, dlq):
        for number in range(120):
            dlq.put({"n": number}, f"reason {'abcdefghij'[number % 10]}", key=str(number % 12), pipeline="vendor")
        sent = []
        dlq.replay(sent.extend, pipeline="vendor", dry_run=False, batch=7)
        last = {record["n"] % 12: record["n"] for record in sent}
        assert last == {record["n"] % 12: record["n"] for record in sorted(sent, key=lambda record: record["n"])}
