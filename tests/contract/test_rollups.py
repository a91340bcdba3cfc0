"""Service statistics as the store keeps them, on both databases. The unit tests cover how they are counted."""

import random
import threading
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

import redrive
from redrive.calls.metrics.publisher import MetricsBatch
from redrive.calls.metrics.window import EDGES, MetricsWindow
from redrive.store.schema import service_minutes, service_reporters, service_rollups

NOON = datetime(2027, 1, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def now(store, monkeypatch):
    """The database's clock, set by hand."""
    moment = [NOON]
    monkeypatch.setattr(store.database.dialect, "now", lambda connection: moment[0])
    return moment


@pytest.fixture
def services(store, now):
    return store.services


def quarter(n):
    return NOON + timedelta(minutes=15 * n)


def book(*told, at=NOON):
    """A book of attempts, each `(outcome, seconds)`."""
    made = MetricsWindow()
    for outcome, seconds in told:
        made.attempted(at.timestamp(), outcome, seconds, retry=False, fault=outcome == "transient")
    return made


def batch(number=1, process="17-a", **books):
    return MetricsBatch(process, number, books)


def rows(store, table):
    return store.database.read(lambda connection: connection.execute(select(table)).all())


# ── adding ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_store_without_recorded_services_lists_none(services):
    assert (services.names(), services.windows(), services.totals()) == ([], [], [])
    assert services.minutes("bank", NOON) == []


def test_latest_success_and_rejection_of_all_processes_are_kept(store, services):
    early, late = NOON.timestamp() + 1, NOON.timestamp() + 2
    for number, (refused, succeeded) in enumerate([(None, early), (late, None), (early, early), (None, None)], start=1):
        done = MetricsWindow()
        done.rejected(early, "circuit_open")
        if refused is not None:
            done.ended(refused, "calls_failed", "failed_auth")
        if succeeded is not None:
            done.succeeded(succeeded, [0.1])
        services.add(batch(number, bank=done))
    (row,) = rows(store, service_rollups)
    assert (row.last_success, row.last_failed_auth) == (NOON + timedelta(seconds=1), NOON + timedelta(seconds=2))


def test_statistics_of_a_process_are_read_back_as_a_window(services):
    done = book(("success", 0.02), ("success", 0.3), ("transient", 9.0), ("row", 0.1))
    done.attempted(NOON.timestamp(), "success", 70.0, retry=True, fault=False)
    done.rejected(NOON.timestamp(), "circuit_open")
    done.ended(NOON.timestamp(), "calls_failed", "failed_auth", "failed_4xx", "fallbacks")
    done.open_for(NOON.timestamp() + 10, NOON.timestamp() + 12.5)
    services.add(batch(bank=done))
    (one,) = services.windows()
    assert (one.service, one.at) == ("bank", NOON)
    assert (one.calls, one.attempts, one.successes, one.retries, one.fallbacks) == (5, 5, 3, 1, 1)
    assert (one.calls_failed, one.failed_auth, one.failed_4xx) == (1, 1, 1)
    assert {name: count for name, count in one.failures.items() if count} == {
        "transient": 1,
        "row": 1,
        "circuit_open": 1,
    }
    assert (one.success_seconds, one.open_seconds) == (pytest.approx(70.32), pytest.approx(2.5))
    assert one.latencies == (0, 0, 1, 0, 0, 0, 1, *[0] * 6, 1)
    assert len(one.latencies) == len(EDGES) + 1


def test_endpoints_are_separate_and_totals_survive_a_purge(services):
    done = book()
    done.succeeded(NOON.timestamp(), [0.5, 0.25], {"fetch": [0.5], "GET /users/{id}": [0.25]})
    done.attempted(NOON.timestamp(), "transient", 1.0, retry=False, fault=True, endpoint="fetch")
    done.ended(NOON.timestamp(), "calls_failed", "failed_4xx", "streaks_5xx", endpoint="fetch")
    services.add(batch(1, bank=done))
    later = book()
    later.succeeded(quarter(4).timestamp(), [0.5], {"fetch": [0.5]})
    services.add(batch(2, bank=later))

    def fetched(**chosen):
        return next(one for one in services.endpoints("bank", **chosen) if one.endpoint == "fetch")

    one = fetched(until=quarter(1))
    assert (one.calls, one.attempts, one.successes, one.faults) == (2, 2, 1, 1)
    assert (one.calls_failed, one.failed_4xx, one.failed_404, one.success_seconds) == (1, 1, 0, 0.5)
    assert [one.endpoint for one in services.endpoints()] == ["GET /users/{id}", "fetch"]
    before = services.endpoints()
    services.purge(quarter(2))
    assert services.endpoints() == before
    assert fetched(since=quarter(2)).calls == 1
    assert services.totals()[0].streaks_5xx == 1


def test_processes_in_one_window_are_summed(services):
    for process in ("17-a", "18-b", "19-c"):
        for number in (1, 2):
            services.add(batch(number, process, bank=book(("success", 0.02), ("transient", 1.0))))
    (one,) = services.windows()
    assert (one.attempts, one.successes, one.failures["transient"], sum(one.latencies)) == (12, 6, 6, 6)
    assert [(minute.attempts, minute.faults) for minute in services.minutes("bank", NOON)] == [(12, 6)]


def test_stored_batch_is_not_added_again(services):
    first, second = batch(1, bank=book(("success", 0.02))), batch(2, bank=book(("success", 0.02)))
    for one in (first, first, second, second, first):
        services.add(one)
    assert services.totals()[0].attempts == 2
    assert sum(services.totals()[0].latencies) == 2
    assert services.minutes("bank", NOON)[0].attempts == 2


def test_windows_are_selected_by_service_and_start_in_order(services):
    services.add(batch(1, bank=book(("success", 0.02), at=quarter(2))))
    done = book(("success", 0.02), at=quarter(0))
    done.add(book(("transient", 1.0), at=quarter(1)))
    services.add(batch(2, bank=done, atlas=book(("success", 0.02), at=quarter(1))))
    assert [(one.service, one.at) for one in services.windows()] == [
        ("bank", quarter(0)),
        ("atlas", quarter(1)),
        ("bank", quarter(1)),
        ("bank", quarter(2)),
    ]
    assert [one.at for one in services.windows("bank", since=quarter(1))] == [quarter(1), quarter(2)]
    assert [one.at for one in services.windows("bank", until=quarter(1))] == [quarter(0)]
    assert [sum(one.latencies) for one in services.windows("bank")] == [1, 0, 1]
    assert services.names() == ["atlas", "bank"]


def test_batches_of_many_threads_at_once_lose_nothing(services):
    def work(number):
        chance = random.Random(number)
        for beat in range(1, 11):
            names = chance.sample(["a", "b", "c", "d", "e"], 3)
            services.add(
                MetricsBatch(f"{number}", beat, {name: book(("success", 0.02), ("row", 1.0)) for name in names})
            )

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(one.attempts for one in services.totals()) == 6 * 10 * 3 * 2
    assert sum(sum(one.latencies) for one in services.totals()) == 6 * 10 * 3


# ── retention ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_minutes_are_kept_for_three_hours(services, store, now):
    for hour in range(6):
        now[0] = NOON + timedelta(hours=hour)
        services.add(MetricsBatch(f"process-{hour}", 1, {"bank": book(("success", 0.02), at=now[0])}))
    assert [one.at.hour for one in services.minutes("bank", NOON)] == [14, 15, 16, 17]
    assert [one.at.hour for one in services.minutes("bank", NOON + timedelta(hours=4))] == [16, 17]
    assert len(rows(store, service_minutes)) == 4
    assert len(services.windows()) == 6


def test_processes_that_are_long_gone_are_forgotten(services, store, now):
    services.add(batch(1, "old", bank=book(("success", 0.02))))
    now[0] += timedelta(days=2)
    services.add(batch(1, "new", bank=book(("success", 0.02))))
    assert [row.process for row in rows(store, service_reporters)] == ["new"]


def test_purge_removes_windows_and_keeps_totals(services, store):
    for n in range(8):
        done = book(("success", 0.02), ("transient", 1.0), ("success", 7.0), at=quarter(n))
        done.open_for(quarter(n).timestamp(), quarter(n).timestamp() + n)
        services.add(batch(n + 1, bank=done, atlas=book(("row", 0.1), at=quarter(n))))
    before = services.totals()
    assert services.purge(quarter(3)) == 6
    assert services.totals() == before
    assert [one.at for one in services.windows("bank")] == [quarter(n) for n in range(3, 8)]
    assert services.names() == ["atlas", "bank"]
    services.add(batch(9, bank=book(("success", 0.02), at=quarter(0))))  # of a process that could not tell for long
    assert services.purge(quarter(5)) == 5
    after = services.totals()
    assert after[0] == before[0]
    assert (after[1].attempts, after[1].successes) == (before[1].attempts + 1, before[1].successes + 1)
    assert after[1].open_seconds == before[1].open_seconds
    assert sum(after[1].latencies) == sum(before[1].latencies) + 1
    assert services.minutes("bank", NOON)[0].at == quarter(5)
    assert services.purge(quarter(5)) == 0


def test_totals_grow_during_concurrent_purges_and_writes(services):
    over = threading.Event()
    failed = []

    def purge():
        while not over.is_set():
            services.purge(quarter(100))

    def look():
        last = (0, 0.0)
        while not over.is_set():
            found = services.totals()
            seen = (sum(one.attempts for one in found), sum(one.success_seconds for one in found))
            if seen[0] < last[0] or seen[1] < last[1]:
                failed.append((last, seen))
            last = seen

    others = [threading.Thread(target=one) for one in (purge, purge, look)]
    for thread in others:
        thread.start()
    for number in range(1, 41):
        services.add(batch(number, bank=book(("success", number / 7), ("row", 0.1), at=quarter(number % 3))))
    over.set()
    for thread in others:
        thread.join()
    assert failed == []
    assert services.totals()[0].attempts == 80
    assert sum(services.totals()[0].latencies) == 40


# ── a real service ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_service_is_recorded_and_written_on_close(store):
    bank = redrive.Service("bank", store=store, retry=redrive.Retry(attempts=2, base=0.001, cap=0.001))

    def fail():
        raise TimeoutError

    for _ in range(100):
        bank.call(len, "fine")
    with pytest.raises(TimeoutError):
        bank.call(fail)
    store.close()
    (one,) = store.services.totals()
    assert (one.calls, one.attempts, one.successes, one.retries, one.calls_failed) == (101, 102, 100, 1, 1)
    bank.call(len, "not recorded any more")
    store.close()
    assert store.services.totals() == [one]
    redrive.Service("bank", store=store).call(len, "and again by a new one")
    store.close()
    assert store.services.totals()[0].calls == 102
