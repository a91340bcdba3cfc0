"""Growth of a store: old letters, its size, and what the watch removes; on both databases."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update

from redrive.alerts.config.settings import AlertSettings, Thresholds
from redrive.alerts.rules.levels import old_letters, sizes
from redrive.observe import prometheus
from redrive.store.schema import letters
from tests.support.run_history import levels_of

DAY = timedelta(days=1)


@pytest.fixture
def now():
    return datetime.now(UTC)


def settings(**thresholds):
    return AlertSettings(thresholds=Thresholds(**thresholds))


class TestOldLetters:
    def test_oldest_open_letter_is_reported_by_pipeline(self, store, put, now):
        put(2)
        put(1, pipeline="orders")
        store.dlq.escalate(pipeline="orders", note="ask the vendor")
        snapshot = levels_of(store).collect(now + 31 * DAY)
        found = old_letters(snapshot, settings()).findings
        assert {(one.condition, one.subject.name) for one in found} == {
            ("old_letters", "vendor"),
            ("old_letters", "orders"),
        }
        assert found[1].title.startswith("vendor: the oldest of 2 open letters has waited for 31 days")

    def test_age_limit_is_a_setting(self, store, put, now):
        put(1)
        snapshot = levels_of(store).collect(now + 3 * DAY)
        assert old_letters(snapshot, settings()).findings == ()
        assert len(old_letters(snapshot, settings(letter_age=2 * 86_400.0)).findings) == 1

    def test_decided_letters_are_not_old(self, store, put, now):
        put(1)
        store.dlq.discard(pipeline="vendor", note="known")
        judgement = old_letters(levels_of(store).collect(now + 99 * DAY), settings())
        assert judgement.findings == ()
        assert judgement.covers("level:old_letters:vendor")


class TestSize:
    def test_size_is_measured_and_compared(self, store, put):
        put(100)
        snapshot = levels_of(store).collect()
        assert snapshot.store_bytes > 10_000
        found = sizes(snapshot, settings(store_bytes=10_000.0, letters_bytes=1_000.0)).findings
        on_postgres = snapshot.letters_bytes is not None
        assert on_postgres is store.database.dialect.is_remote
        expected = ["store_size", "letters_size"] if on_postgres else ["store_size"]
        assert [one.condition for one in found] == expected
        assert sizes(snapshot, settings()).findings == ()
        assert sizes(snapshot, settings()).covers("level:store_size")

    def test_metrics_have_the_size(self, store, put):
        put(100)
        page = prometheus.render(store).decode()
        (size,) = [line.split()[1] for line in page.splitlines() if line.startswith("redrive_store_size_bytes ")]
        assert float(size) > 10_000
        assert ("\nredrive_letters_size_bytes " in page) is store.database.dialect.is_remote


class TestPurge:
    def test_decided_letters_are_removed_and_open_ones_kept(self, store, put, now):
        put(5)
        for key in ("D-0", "D-1"):
            store.dlq.discard(key=key, note="known")
        store.dlq.escalate(key="D-2", note="ask")
        long_ago = update(letters).values(rejected_at=now - 99 * DAY, last_seen=now - 99 * DAY)
        store.database.write(lambda connection: connection.execute(long_ago))
        settled = update(letters).where(letters.c.settled_at.is_not(None)).values(settled_at=now - 98 * DAY)
        store.database.write(lambda connection: connection.execute(settled))
        assert store.dlq.purge(older_than="90d").letters == 2
        assert sorted(one.key for one in store.dlq.find()) == ["D-2", "D-3", "D-4"]

    def test_purge_leaves_the_rest_after_its_time(self, store, put, now):
        put(2_500)
        store.dlq.discard(pipeline="vendor", note="known")
        assert store.dlq.purge(older_than=now + DAY, within=0.0).letters == 2_000
        assert store.dlq.purge(older_than=now + DAY, within=0.0).letters == 500
