"""Decisions about letters last: a record that comes again unchanged stays decided."""

import datetime as dt

import pytest

import redrive


def put(dlq, record, error="fee is not a number", **options):
    return dlq.put(record, error, key=str(record.get("id")), pipeline="vendor", **options)


def decide(dlq, how):
    if how == "discarded":
        dlq.discard(note="the vendor knows", pipeline="vendor")
    else:
        dlq.replay(lambda records: None, pipeline="vendor", dry_run=False)


@pytest.mark.parametrize("how", ["discarded", "reprocessed"])
class TestDecidedLetter:
    def test_unchanged_record_is_counted_at_its_letter(self, dlq, how):
        put(dlq, {"id": 1, "fee": "N/A"})
        decide(dlq, how)
        stored = put(dlq, {"id": 1, "fee": "N/A"})
        assert (stored.new, stored.repeated, stored.decided, stored.total) == (0, 0, 1, 1)
        (letter,) = dlq.each()
        assert (str(letter.status), letter.seen) == (how, 2)
        assert letter.last_seen > letter.rejected_at

    def test_changed_record_is_a_new_letter(self, dlq, how):
        put(dlq, {"id": 1, "fee": "N/A"})
        decide(dlq, how)
        assert put(dlq, {"id": 1, "fee": "n.v."}).new == 1
        assert [str(letter.status) for letter in dlq.each()] == [how, "pending"]
        # While a letter is open, the record is counted there, whatever it holds.
        assert put(dlq, {"id": 1, "fee": "N/A"}).repeated == 1

    def test_other_cause_is_a_new_letter(self, dlq, how):
        put(dlq, {"id": 1, "fee": "N/A"})
        decide(dlq, how)
        assert put(dlq, {"id": 1, "fee": "N/A"}, "city is missing").new == 1

    def test_batch_counts_each_copy(self, dlq, how):
        put(dlq, {"id": 1, "fee": "N/A"})
        decide(dlq, how)
        letters = [
            redrive.NewLetter({"id": one, "fee": fee}, "fee is not a number", key=str(one))
            for one, fee in [(1, "N/A"), (2, "N/A"), (1, "N/A"), (1, "new"), (2, "N/A")]
        ]
        stored = dlq.put_many(letters, pipeline="vendor")
        assert (stored.new, stored.repeated, stored.decided) == (2, 1, 2)

    def test_reopened_letter_is_open(self, dlq, how):
        put(dlq, {"id": 1})
        decide(dlq, how)
        dlq.reopen(pipeline="vendor")
        assert put(dlq, {"id": 1}).repeated == 1

    def test_tasks_and_pages_that_fail_again_are_new_letters(self, dlq, how):
        for error_type in ("task", "page"):
            put(dlq, {"id": 1}, error_type=error_type)
        decide(dlq, how)
        for error_type in ("task", "page"):
            assert put(dlq, {"id": 1}, error_type=error_type).new == 1


def test_letter_that_still_comes_is_not_purged(dlq):
    put(dlq, {"id": 1})
    put(dlq, {"id": 2})
    dlq.discard(note="x", pipeline="vendor")
    before = dt.datetime.now(dt.UTC)
    put(dlq, {"id": 1})
    assert dlq.purge(older_than=before).letters == 1
    assert [letter.key for letter in dlq.each()] == ["1"]


class TestPipeline:
    @pytest.fixture
    def pipeline(self, store, tmp_path):
        def make(rows, **options):
            sink = redrive.rows.table(f"sqlite:///{tmp_path / 'out.db'}", "orders", key="id", create=True)
            return redrive.Pipeline(
                "vendor", source=redrive.rows.records(rows), validate=check, sink=sink, store=store, **options
            )

        return make

    @pytest.mark.parametrize("batch", [1, 40_000])
    def test_full_file_that_is_sent_every_night_needs_one_decision(self, store, pipeline, batch):
        rows = [{"id": n % 95, "fee": "N/A" if n % 10 == 0 else str(n)} for n in range(100)]
        pipeline(rows, batch=batch, gate=redrive.Gate(warn=0.01, page=0.5, abort=0.9)).run()
        assert store.dlq.count(status="open") == 10
        store.dlq.discard(note="the vendor knows", pipeline="vendor")
        known = len(store.alerts.find(limit=100))
        for _ in range(2):
            report = pipeline(rows, batch=batch, gate=redrive.Gate(warn=0.01, page=0.5, abort=0.9)).run()
            assert report.rejected == 10
        assert (store.dlq.count(), store.dlq.count(status="open")) == (10, 0)
        assert len(store.alerts.find(limit=100)) == known
        rows[10]["fee"] = "changed"
        pipeline(rows, batch=batch, gate=redrive.Gate(warn=0.01, page=0.5, abort=0.9)).run()
        assert store.dlq.count(status="open") == 1


def check(record):
    return {**record, "fee": float(record["fee"])}
