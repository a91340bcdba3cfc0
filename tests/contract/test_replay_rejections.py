"""A letter that does not fit the sink fails alone; the replay of the others continues."""

import re
import sqlite3

import pytest

import redrive

TABLE = "CREATE TABLE orders (id TEXT PRIMARY KEY, fee REAL NOT NULL, double REAL AS (fee * 2))"


@pytest.fixture
def orders(tmp_path):
    connection = sqlite3.connect(tmp_path / "orders.db", isolation_level=None)
    connection.execute(TABLE)
    yield connection
    connection.close()


@pytest.fixture
def pipeline(store, tmp_path):
    def make(**options):
        sink = options.pop("sink", None) or redrive.rows.table(
            f"sqlite:///{tmp_path / 'orders.db'}", "orders", key="id"
        )
        return redrive.Pipeline("vendor", source=redrive.rows.records([]), sink=sink, store=store, **options)

    return make


def put(store, *records):
    store.dlq.put_many([redrive.NewLetter(record, "rejected") for record in records], pipeline="vendor")


MISFITS = {
    "'old' is not a column of the sink": {"id": "odd", "fee": 1, "old": "x"},
    "'old', 'older' are not columns of the sink": {"id": "odd", "fee": 1, "old": "x", "older": 2},
    "the sink computes 'double' itself and takes no value": {"id": "odd", "fee": 1, "double": 2},
    "(?i)not null|needs a value for column 'fee'": {"id": "odd"},
    "id": {"fee": 1},
}


@pytest.mark.parametrize("batch", [1, 3, 500])
@pytest.mark.parametrize("transform", [None, "frame"])
@pytest.mark.parametrize("reason", MISFITS)
def test_misfit_fails_with_its_own_reason(store, orders, pipeline, reason, batch, transform):
    good = [{"id": f"g{n}", "fee": n} for n in range(7)]
    put(store, *good[:3], MISFITS[reason], *good[3:])
    options = {} if transform is None else {"transform": redrive.rows.per_frame(lambda frame: frame)}
    for dry_run in (True, False):
        report = store.dlq.replay(pipeline(**options), batch=batch, dry_run=dry_run)
        assert (report.attempted, report.reprocessed, report.failed_again) == (8, 7, 1)
    (letter,) = store.dlq.each(status="open")
    assert letter.record == MISFITS[reason]
    assert re.search(reason, letter.last_error)
    assert orders.execute("SELECT id FROM orders ORDER BY id").fetchall() == [(f"g{n}",) for n in range(7)]


def test_selection_that_all_fails_the_sink_fails_one_by_one(store, orders, pipeline):
    put(store, *({"id": str(n), "fee": n, "old": 1} for n in range(4)))
    report = store.dlq.replay(pipeline(), dry_run=False)
    assert (report.failed_again, report.stopped) == (4, None)
    assert {letter.last_error for letter in store.dlq.each()} == {"'old' is not a column of the sink"}


def test_field_without_a_value_fits(store, orders, pipeline):
    put(store, {"id": "a", "fee": 1, "old": None}, {"id": "b", "fee": 2})
    assert store.dlq.replay(pipeline(), dry_run=False).reprocessed == 2


def test_missing_table_stops_the_replay(store, orders, pipeline, tmp_path):
    put(store, {"id": "a", "fee": 1})
    sink = redrive.rows.table(f"sqlite:///{tmp_path / 'orders.db'}", "nowhere", key="id")
    with pytest.raises(redrive.ReplayStopped, match="nowhere"):
        store.dlq.replay(pipeline(sink=sink), dry_run=False)
    assert store.dlq.count(status="pending") == 1


def test_parquet_dataset_takes_the_letters_that_fit(store, pipeline, tmp_path):
    sink = redrive.rows.parquet_dataset(tmp_path / "orders", key="id")
    put(store, {"id": "a", "fee": 1})
    assert store.dlq.replay(pipeline(sink=sink), dry_run=False).reprocessed == 1
    put(store, {"id": "b", "fee": 2}, {"id": "odd", "fee": 3, "old": 1}, {"id": "c", "fee": 4})
    report = store.dlq.replay(pipeline(sink=sink), dry_run=False)
    assert (report.reprocessed, report.failed_again) == (2, 1)


def test_older_letter_is_written_if_the_newest_is_rejected(store, orders, pipeline):
    orders.execute(
        "CREATE TRIGGER refuse BEFORE INSERT ON orders WHEN new.fee > 100 BEGIN SELECT raise(ABORT, 'no'); END"
    )
    put(store, {"id": "a", "fee": 5}, {"id": "a", "fee": 500})
    for dry_run in (True, False):
        report = store.dlq.replay(pipeline(), dry_run=dry_run)
        assert (report.reprocessed, report.failed_again) == (1, 1)
    assert orders.execute("SELECT id, fee FROM orders").fetchall() == [("a", 5)]


class TestRedactedRecord:
    """A store with redacted records has no values to send."""

    def test_is_not_sent_before_an_edit(self, tmp_path):
        with redrive.connect(tmp_path / "redacted.db", redact=["card"], store_redacted=True) as store:
            store.dlq.put({"id": 1, "card": "4111111111111111"}, "bad", pipeline="p", key="1")
            store.dlq.put({"id": 2}, "bad", pipeline="p", key="2")
            sent = []
            report = store.dlq.replay(sent.extend, dry_run=False, pipeline="p")
            assert (report.reprocessed, report.failed_again) == (1, 1)
            assert "edit all of them before it is replayed" in report.by_cause[0].message
            assert sent == [{"id": 2}]
            store.dlq.edit(1, {"id": 1, "card": "4000000000000002"})
            assert store.dlq.replay(sent.extend, dry_run=False, pipeline="p").reprocessed == 1
