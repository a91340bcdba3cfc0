"""The named lease of which one process of a store is the holder."""

from datetime import timedelta

from redrive.store import lease
from tests.support.alerts import NOON, after


def test_lease_is_exclusive_until_it_ends_or_is_released(store):
    dialect, minute = store.database.dialect, timedelta(seconds=60)

    def take(owner, now):
        return store.database.write(lambda connection: lease.take(connection, dialect, "watch", owner, minute, now=now))

    def holder(now):
        return store.database.read(lambda connection: lease.holder(connection, dialect, "watch", now=now))

    assert holder(NOON) is None
    assert take("a", NOON)
    assert not take("b", after(59))
    assert take("a", after(30)), "who holds it keeps it"
    assert not take("b", after(89))
    assert holder(after(89)) == "a"
    assert holder(after(90)) is None
    assert take("b", after(90))
    assert not store.database.write(lambda connection: lease.release(connection, "watch", "a"))
    assert store.database.write(lambda connection: lease.release(connection, "watch", "b"))
    assert take("a", after(91))


def test_lease_uses_the_database_clock_by_default(store):
    dialect, minute = store.database.dialect, timedelta(seconds=60)
    store.database.write(lambda connection: lease.take(connection, dialect, "watch", "a", minute))
    assert store.database.read(lambda connection: lease.holder(connection, dialect, "watch")) == "a"
