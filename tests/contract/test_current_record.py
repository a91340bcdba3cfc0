"""The last record of a key ends up in the table, also if an earlier one was decided."""

import contextlib
import sqlite3

import pytest

import redrive


class Vendor:
    """A table, and a pipeline into it that rejects every row, each for a cause of its own if it is asked to."""

    def __init__(self, store, path):
        self.store, self.path, self.url = store, path, f"sqlite:///{path}"

    def pipeline(self, values, *, fixed=False, causes=False, mode=None, **options):
        def check(record):
            if not fixed:
                raise ValueError(f"this is {'ab'.index(record['v']) * 'very '}bad" if causes else "bad")

        source = redrive.rows.records([{"id": 1, "v": v, "seq": "ab".index(v)} for v in values], name="in")
        sink = redrive.rows.table(self.url, "t", key="id", create=True, **(mode or {}))
        gate = redrive.Gate(abort=1)
        return redrive.Pipeline(
            "vendor", source=source, sink=sink, validate=check, gate=gate, store=self.store, **options
        )

    def run(self, values, **options):
        self.pipeline(values, **options).run()

    def replay(self, *, mode=None, on_duplicate="last", **options):
        target = self.pipeline("", fixed=True, mode=mode, on_duplicate=on_duplicate)
        report = self.store.dlq.replay(target, dry_run=False, **options)
        target.sink.close()
        return report

    def row(self):
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            return [v for (v,) in connection.execute("SELECT v FROM t")]

    def statuses(self, **filters):
        return [(letter.record["v"], str(letter.status)) for letter in self.store.dlq.each(**filters)]


@pytest.fixture
def vendor(store, tmp_path):
    store.listeners = ()  # no test here looks at alerts, which take a third of the time of such small runs
    return Vendor(store, tmp_path / "out.db")


@pytest.mark.parametrize("causes", [False, True])
class TestRepeatedReprocessedRecord:
    @pytest.mark.parametrize("batch", [1, 500])
    def test_is_written_after_an_open_letter(self, vendor, causes, batch):
        vendor.run("a", causes=causes)
        vendor.replay()
        for values in "ba":
            vendor.run(values, causes=causes)
        vendor.replay(batch=batch)
        assert vendor.row() == ["a"]
        vendor.run("a", causes=causes)
        assert vendor.statuses(status="open", superseded=False) == []

    def test_is_a_letter_after_a_replayed_one(self, vendor, causes):
        for values in "ab":
            vendor.run(values, causes=causes)
            vendor.replay()
        vendor.run("a", causes=causes)
        assert vendor.statuses(status="open") == [("a", "pending")]
        vendor.replay()
        assert vendor.row() == ["a"]

    def test_is_a_letter_after_an_older_one_sent_by_request(self, vendor, causes):
        vendor.run("b", causes=True)
        vendor.run("a", causes=causes)
        vendor.replay()
        assert vendor.row() == ["a"]
        vendor.replay(include_superseded=True)
        assert vendor.row() == ["b"]
        vendor.run("a", causes=causes)
        vendor.replay()
        assert vendor.row() == ["a"]

    @pytest.mark.parametrize("rows", ["ab", "ba"])
    @pytest.mark.parametrize(("rule", "batch"), [("last", 1), ("last", 500), ("first", 500)])
    def test_order_of_its_run_counts(self, vendor, causes, rows, batch, rule):
        counts = -1 if rule == "last" else 0
        options = {"causes": causes, "batch": batch, "on_duplicate": rule}
        vendor.run("ab", **options)
        vendor.replay(on_duplicate=rule)
        assert vendor.row() == ["ab"[counts]]
        for _ in range(2):
            vendor.run(rows, **options)
            vendor.replay(on_duplicate=rule)
            assert vendor.row() == [rows[counts]]

    def test_stays_decided_where_the_table_compares_rows(self, vendor, causes):
        mode = {"newer": "seq"}
        vendor.run("b", causes=causes, mode=mode)
        vendor.replay(mode=mode)
        for values in "ab":
            vendor.run(values, causes=causes, mode=mode)
        assert vendor.statuses() == [("b", "reprocessed"), ("a", "pending")]
        vendor.replay(mode=mode)
        assert vendor.row() == ["b"]

    def test_stays_decided_beside_a_discarded_one(self, vendor, causes):
        vendor.run("ab", causes=causes)
        (first, second) = (letter.id for letter in vendor.store.dlq.each())
        vendor.store.dlq.discard(ids=[second], note="withdrawn")
        vendor.replay(ids=[first])
        for rows in ("ab", "ba", "a"):
            vendor.run(rows, causes=causes)
            assert vendor.statuses() == [("a", "reprocessed"), ("b", "discarded")]


@pytest.mark.parametrize("causes", [False, True])
def test_discarded_record_rejected_again_keeps_open_letters(vendor, causes):
    vendor.run("a", causes=causes)
    vendor.store.dlq.discard(pipeline="vendor", note="withdrawn")
    for rows in "ba":
        vendor.run(rows, causes=causes)
    assert vendor.statuses() == [("a", "discarded"), ("b", "pending")]
    vendor.replay()
    assert vendor.row() == ["b"]


def test_manually_stored_record_is_a_letter_after_a_later_one(dlq):
    sent = []

    def put(fee):
        stored = dlq.put({"id": 1, "fee": fee}, "fee is not a number", key="1", pipeline="vendor")
        dlq.replay(lambda records: sent.extend(record["fee"] for record in records), pipeline="vendor", dry_run=False)
        return stored

    assert [put(fee).new for fee in ("a", "b", "b", "a", "a", "b")] == [1, 1, 0, 1, 0, 1]
    assert sent == ["a", "b", "a", "b"]
