"""Decisions about letters last: a record that is rejected again unchanged stays decided."""

import datetime as dt

import pydantic
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


def test_decided_letter_seen_recently_is_not_purged(dlq):
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
            options = {"validate": check} | options
            return redrive.Pipeline("vendor", source=redrive.rows.records(rows), sink=sink, store=store, **options)

        return make

    @pytest.mark.parametrize("batch", [1, 40_000])
    def test_full_file_every_night_needs_one_decision(self, store, pipeline, batch):
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

    @pytest.mark.parametrize("batch", [1, 40_000])
    @pytest.mark.parametrize("validate", ["function", "schema"])
    def test_rows_of_one_key_stay_decided_in_any_order(self, store, pipeline, batch, validate):
        rows = [{"id": 1, "fee": fee} for fee in "abc"]
        options = {"batch": batch, "gate": redrive.Gate(abort=1)}
        if validate == "schema":
            options["validate"] = Order
        pipeline(rows, **options).run()
        assert fees(store) == ["a", "b", "c"]
        (first, *_) = (letter.id for letter in store.dlq.each())
        store.dlq.discard(ids=[first], note="withdrawn")
        for order in ([2, 1, 0], [1, 0, 2], [2, 0], [0], [1, 2, 0]):
            pipeline([rows[place] for place in order], **options).run()
            assert fees(store, status="discarded") == ["a"]
            assert fees(store, status="open") == ["b", "c"]
        store.dlq.discard(pipeline="vendor", note="withdrawn, too")
        pipeline([{"id": 0, "fee": "1"}, *reversed(rows), rows[2]], **options).run()
        assert fees(store, status="open") == []
        pipeline([rows[2], {"id": 1, "fee": "d"}], **options).run()
        assert fees(store, status="open") == ["d"]

    @pytest.mark.parametrize("batch", [1, 40_000])
    def test_deciding_a_letter_keeps_other_open_ones_of_its_key(self, store, pipeline, batch):
        options = {"batch": batch, "gate": redrive.Gate(abort=1), "validate": Order}
        pipeline([{"id": 1, "fee": "a"}], **options).run()
        store.dlq.discard(pipeline="vendor", note="withdrawn")
        pipeline([{"id": 1, "fee": "b"}], **options).run()
        for fees_of_run in ("ab", "ba"):
            pipeline([{"id": 1, "fee": fee} for fee in fees_of_run], **options).run()
            assert (fees(store, status="discarded"), fees(store, status="open")) == (["a"], ["b"])

    def test_discarded_row_after_a_newer_one_becomes_the_newest(self, store, pipeline):
        rejected, written = {"id": 1, "fee": "N/A"}, {"id": 1, "fee": "5"}
        other = {"id": 2, "fee": "1"}
        pipeline([rejected, other]).run()
        (letter,) = store.dlq.discard(note="not now", pipeline="vendor") and store.dlq.each()
        pipeline([written, other]).run()
        assert store.dlq.get(letter.id).superseded_at is not None
        pipeline([rejected, other]).run()
        assert store.dlq.get(letter.id).superseded_at is None
        store.dlq.reopen(ids=[letter.id])
        fixed = pipeline([], validate=lambda record: {**record, "fee": 0.0})
        assert store.dlq.replay(fixed, dry_run=False, pipeline="vendor").reprocessed == 1

    def test_discarded_row_before_a_newer_one_stays_older(self, store, pipeline):
        rejected, written = {"id": 1, "fee": "N/A"}, {"id": 1, "fee": "5"}
        pipeline([rejected, written]).run()
        store.dlq.discard(note="not now", pipeline="vendor")
        pipeline([rejected, written]).run()
        (letter,) = store.dlq.each()
        assert (letter.seen, letter.superseded_at is None) == (2, False)

    def test_unreadable_line_stays_decided_at_another_position(self, store, tmp_path):
        def load(*lines):
            (tmp_path / "in.csv").write_text("\n".join(["id,fee", *lines, ""]))
            sink = redrive.rows.table(f"sqlite:///{tmp_path / 'out.db'}", "orders", key="id", create=True)
            source = redrive.rows.csv(tmp_path / "in.csv")
            redrive.Pipeline("vendor", source=source, sink=sink, store=store, gate=redrive.Gate(abort=1)).run()

        load("1,5", "2,6,7")
        store.dlq.discard(pipeline="vendor", note="withdrawn")
        load("0,4", "1,5", "2,6,7")
        assert [(str(letter.status), letter.seen) for letter in store.dlq.each()] == [("discarded", 2)]

    @pytest.mark.parametrize("newer", ["written", "replayed", "open", "in the same file"])
    def test_edited_line_reopens_after_a_newer_row(self, store, tmp_path, newer):
        def vendor(*lines, validate=check):
            (tmp_path / "in.csv").write_text("\n".join(["id,fee", *lines, ""]))
            sink = redrive.rows.table(f"sqlite:///{tmp_path / 'out.db'}", "orders", key="id", create=True)
            source, gate = redrive.rows.csv(tmp_path / "in.csv"), redrive.Gate(abort=1)
            return redrive.Pipeline("vendor", source=source, sink=sink, store=store, gate=gate, validate=validate)

        vendor("0,1", "2,6,").run()
        (line,) = store.dlq.each()
        store.dlq.edit(line.id, "2,6")
        store.dlq.replay(vendor("0,1"), dry_run=False)
        vendor("0,1", "2,6,").run()
        assert (store.dlq.get(line.id).seen, store.dlq.count(status="open")) == (2, 0)
        if newer == "in the same file":
            vendor("0,1", "2,X", "2,6,").run()
        else:
            vendor("0,1", "2,7" if newer == "written" else "2,X").run()
            if newer == "replayed":
                store.dlq.replay(vendor("0,1", validate=lambda record: {**record, "fee": 7.0}), dry_run=False)
            vendor("0,1", "2,6,").run()
        assert store.dlq.get(line.id).seen == 2
        assert [letter.record for letter in store.dlq.each(status="open") if letter.error_type == "parse"] == [b"2,6,"]


class Order(pydantic.BaseModel):
    id: int
    fee: float


def fees(store, **filters):
    return sorted(letter.record["fee"] for letter in store.dlq.each(**filters))


def check(record):
    return {**record, "fee": float(record["fee"])}
