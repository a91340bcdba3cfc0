"""Recorded services, with sums in memory; those in the store are tested with the stores."""

import asyncio
import gc
import logging
import sqlite3
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta

import httpx
import pytest

import redrive
from redrive import Breaker, CircuitOpen, Retry, Service
from redrive.calls.metrics import publisher
from redrive.calls.metrics.window import MetricsWindow
from redrive.events import bus
from redrive.policy.consensus import Reports
from redrive.store.repositories import services as service_log
from redrive.testing import FakeClock

NOON = datetime(2027, 1, 1, 12, 0, tzinfo=UTC)
ONCE = Retry(attempts=1)


class Shelf:
    """Where sums are kept. As a store: it has `services` and `shared`. And as what each of them is."""

    def __init__(self):
        self.name, self.node, self.every = "the shelf", "here", 600.0
        self.services = self.shared = self
        self.books, self.batches = {}, []
        self.broken = self.loses_answers = False
        self.stops = []

    # What a service did.

    def add(self, batch):
        if self.broken:
            raise ConnectionRefusedError("no such shelf, password=hunter2")
        if (batch.process, batch.number) not in self.batches:
            self.batches.append((batch.process, batch.number))
            for name, book in batch.windows.items():
                self.books.setdefault(name, MetricsWindow()).add(book)
        if self.loses_answers:
            raise ConnectionResetError("the answer is lost")

    def on_close(self, stop):
        self.stops.append(stop)

    def close(self):
        for stop in self.stops:
            stop()

    # Processes share no reports here.

    def read(self, services, *, keys):
        return Reports((), ())

    def publish(self, words, drained):
        pass

    # As the tests ask for it.

    def counts(self, at=NOON, service="bank"):
        publisher.flush()
        sums = self.books.get(service, MetricsWindow()).quarters.get(int(at.timestamp()))
        return {} if sums is None else dict(+sums.counts)

    def sums(self, at=NOON, service="bank"):
        publisher.flush()
        return self.books[service].quarters[int(at.timestamp())]

    def minute(self, at, service="bank"):
        publisher.flush()
        found = self.books[service].minutes.get(int(at.timestamp()))
        return None if found is None else (found.attempts, found.faults)


@pytest.fixture
def clock():
    return FakeClock(NOON)


@pytest.fixture
def shelf():
    shelf = Shelf()
    yield shelf
    shelf.close()
    eventually(lambda: not writers())


@pytest.fixture
def service(shelf, clock):
    def make(name="bank", **options):
        return Service(name, **{"store": shelf, "clock": clock, "retry": ONCE, **options})

    return make


def writers():
    return [thread for thread in threading.enumerate() if thread.name == "redrive-rollups"]


def eventually(condition):
    for _ in range(2_000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it never came true")


def fine():
    return "fine"


def fail():
    raise TimeoutError


def at(hour, minute=0):
    return NOON.replace(hour=hour, minute=minute)


# ── what is counted ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_successful_call_counts_as_call_attempt_and_success(service, shelf, clock):
    bank = service()
    bank.call(fine)
    bank.call(lambda: clock.advance(0.03))
    sums = shelf.sums()
    assert dict(sums.counts) == {"calls": 2, "attempts": 2, "successes": 2}
    assert sums.buckets[0] == sums.buckets[3] == 1
    assert sum(sums.buckets) == 2
    assert sums.success_seconds == pytest.approx(0.03)
    assert shelf.minute(NOON) == (2, 0)


def test_success_is_counted_in_the_windows_it_ended_in(service, shelf, clock):
    bank = service()
    for _ in range(32):
        bank.call(fine)
        bank.call(clock.advance, 30)  # begins in one minute and ends, every other time, in the next
    assert [shelf.counts(at(12, minute))["successes"] for minute in (0, 15)] == [59, 5]
    assert [shelf.minute(at(12, minute)) for minute in (0, 1, 15, 16)] == [(3, 0), (4, 0), (4, 0), (1, 0)]


def test_window_boundary_separates_consecutive_calls(service, shelf, clock):
    bank = service()
    clock.advance(899.5)
    for _ in range(11):
        bank.call(fine)
        clock.advance(0.1)
    assert [shelf.counts(at(12, minute))["successes"] for minute in (0, 15)] == [5, 6]
    assert [shelf.minute(at(12, minute)) for minute in (14, 15)] == [(5, 0), (6, 0)]


def test_idle_services_successes_are_in_the_right_window(service, shelf, clock):
    bank = service()
    clock.advance(899)
    bank.call(fine)
    clock.advance(3600)
    assert shelf.counts() == {"calls": 1, "attempts": 1, "successes": 1}
    assert shelf.counts(at(13)) == {}
    bank.call(fine)
    assert shelf.counts(at(13))["calls"] == 1


def test_wall_clock_step_decides_the_window(service, shelf, clock):
    bank = service()
    bank.call(fine)
    clock.jump(3600)
    clock.advance(1)
    bank.call(fine)
    clock.jump(-7200)
    clock.advance(1)
    bank.call(fine)
    assert [shelf.counts(at(hour))["calls"] for hour in (11, 12, 13)] == [1, 1, 1]


def test_retried_call_counts_each_attempt_by_its_outcome(service, shelf, flaky):
    bank = service(retry=Retry(attempts=5, base=1, cap=1, jitter="none"))
    answers = flaky(TimeoutError(), ConnectionResetError(), TimeoutError(), "fine")
    assert bank.call(answers) == "fine"
    assert shelf.counts() == {"calls": 1, "attempts": 4, "retries": 3, "transient": 3, "successes": 1}
    assert shelf.minute(NOON) == (4, 3)


def test_attempts_are_counted_when_they_end(service, shelf):
    bank = service(retry=Retry(attempts=3, base=600, cap=600, jitter="none", within=3600))
    with pytest.raises(TimeoutError):
        bank.call(fail)
    assert [shelf.counts(at(12, minute)).get("attempts") for minute in (0, 15)] == [2, 1]
    assert shelf.counts(at(12, 15)) == {"attempts": 1, "retries": 1, "transient": 1, "calls_failed": 1}


def test_programs_own_error_is_not_blamed_on_the_service(service, shelf):
    bank = service()
    with pytest.raises(ZeroDivisionError):
        bank.call(lambda: 1 / 0)
    assert shelf.counts()["calls_failed"] == 1
    assert shelf.minute(NOON) == (1, 0)


@pytest.mark.parametrize(
    ("status", "counted"),
    [
        (400, {"failed_4xx"}),
        (404, {"failed_404"}),
        (422, {"failed_4xx"}),
        (401, {"failed_auth"}),
        (403, {"failed_4xx"}),
        (408, set()),
        (425, set()),
        (429, set()),
        (500, set()),
        (503, set()),
    ],
)
def test_call_with_a_bad_response_is_counted_by_its_blame(service, shelf, status, counted):
    bank = service()
    transport = bank.httpx_transport(httpx.MockTransport(lambda request: httpx.Response(status)))
    with httpx.Client(transport=transport) as client:
        assert client.get("https://bank.example").status_code == status
    counts = shelf.counts()
    assert counts["calls_failed"] == 1
    assert {name for name in counts if name.startswith("failed_")} == counted
    assert shelf.minute(NOON) == (1, int(status >= 500 or status in (408, 425)))


class TestRejectedCredential:
    """Whether a service answered well after a refusal, where both are within one minute."""

    def times(self, service, shelf, clock, answers):
        bank, told = service(), iter(answers)
        transport = bank.httpx_transport(httpx.MockTransport(lambda request: httpx.Response(next(told))))
        with httpx.Client(transport=transport) as client:
            for _ in answers:
                client.get("https://bank.example")
                clock.advance(1.0)
        sums = shelf.sums()
        return sums.last_success, sums.last_failed_auth

    def test_success_before_the_rejection_does_not_count_as_later(self, service, shelf, clock):
        succeeded, refused = self.times(service, shelf, clock, [200, 200, 401])
        assert succeeded < refused == NOON.timestamp() + 2

    def test_success_after_the_rejection_counts_as_later(self, service, shelf, clock):
        succeeded, refused = self.times(service, shelf, clock, [200, 401, 200])
        assert succeeded >= refused == NOON.timestamp() + 1


def test_successful_fallback_is_counted_as_no_failed_call(service, shelf):
    bank = service()
    assert bank.with_options(fallback=7).call(fail) == 7
    assert shelf.counts() == {"calls": 1, "attempts": 1, "transient": 1, "fallbacks": 1}
    with pytest.raises(ZeroDivisionError):
        bank.with_options(fallback=lambda: 1 / 0).call(fail)
    assert shelf.counts() == {"calls": 2, "attempts": 2, "transient": 2, "fallbacks": 2, "calls_failed": 1}


def test_failure_of_an_inner_service_is_not_the_outer_ones(service, shelf):
    inner, outer = service("inner"), service("outer")

    def refuse():
        raise httpx.HTTPStatusError("no", request=None, response=httpx.Response(401))

    for failure in (fail, refuse):
        with pytest.raises((TimeoutError, httpx.HTTPStatusError)):
            outer.call(lambda failure=failure: inner.call(failure))
    assert shelf.counts(service="inner")["failed_auth"] == 1
    assert shelf.minute(NOON, "inner") == (2, 1)
    assert shelf.counts(service="outer")["calls_failed"] == 2
    assert "failed_auth" not in shelf.counts(service="outer")
    assert shelf.minute(NOON, "outer") == (2, 0)


def test_call_at_an_open_circuit_is_counted_without_attempts(service, shelf):
    bank = service(breaker=Breaker(failures=1))
    with pytest.raises(TimeoutError):
        bank.call(fail)
    with pytest.raises(CircuitOpen):
        bank.call(fine)
    assert shelf.counts() == {"calls": 2, "attempts": 1, "transient": 1, "circuit_open": 1, "calls_failed": 2}
    assert shelf.minute(NOON) == (1, 1)


def test_coroutines_threads_and_blocks_are_counted_the_same(service, shelf):
    bank = service()

    async def afine():
        await asyncio.sleep(0)

    async def many():
        await asyncio.gather(*(bank.acall(afine) for _ in range(50)))

    asyncio.run(many())
    threads = [threading.Thread(target=lambda: [bank.call(fine) for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for attempt in bank.attempts():
        with attempt:
            pass
    assert shelf.counts() == dict.fromkeys(("calls", "attempts", "successes"), 2051)


def test_two_services_of_one_name_add_to_the_same_sums(service, shelf):
    one, other = service(), service()
    one.call(fine)
    other.call(fine)
    assert shelf.counts()["calls"] == 2
    assert len(writers()) == 1


# ── open circuits ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_time_not_closed_is_counted_while_it_passes(service, shelf, clock):
    bank = service(breaker=Breaker(failures=1, probes=1, cooldown=60, jitter=0))
    clock.advance(800)
    with pytest.raises(TimeoutError):
        bank.call(fail)
    clock.advance(30)
    assert shelf.sums().open_seconds == pytest.approx(30)
    clock.advance(100)
    assert shelf.sums().open_seconds == pytest.approx(100)
    assert shelf.sums(at(12, 15)).open_seconds == pytest.approx(30)
    bank.call(clock.advance, 5)  # the probe, which closes it
    clock.advance(50)
    assert shelf.sums(at(12, 15)).open_seconds == pytest.approx(35)


def test_circuit_opened_and_closed_between_flushes_is_counted(service, shelf, clock):
    bank = service(breaker=Breaker(failures=1))
    for _ in range(3):
        with pytest.raises(TimeoutError):
            bank.call(fail)
        clock.advance(7)
        bank.reset()
        clock.advance(100)
    assert shelf.sums().open_seconds == pytest.approx(21)


# ── how it is written ────────────────────────────────────────────────────────────────────────────────────────────────


def test_service_without_a_store_records_nothing(clock):
    Service("bank", clock=clock).call(fine)
    assert not writers()


def test_lost_store_is_buffered_and_reported_once(service, shelf, clock, caplog):
    caplog.set_level(logging.WARNING, "redrive.events")
    bank = service()
    shelf.broken = True
    for _ in range(5):
        bank.call(fine)
        clock.advance(900)
        publisher.flush()
    assert caplog.text.count("cannot write service metrics") == 1
    assert "hunter2" not in caplog.text
    shelf.broken = False
    assert [shelf.counts(NOON + timedelta(minutes=15 * n))["calls"] for n in range(5)] == [1] * 5
    assert caplog.text.count("writing service metrics to") == 1


def test_write_with_a_lost_response_is_not_added_again(service, shelf):
    bank = service()
    shelf.loses_answers = True
    for _ in range(4):
        bank.call(fine)
        publisher.flush()
    shelf.loses_answers = False
    assert shelf.counts()["calls"] == 4
    processes, numbers = zip(*shelf.batches, strict=True)
    assert len(set(processes)) == 1
    assert list(numbers) == list(range(1, len(numbers) + 1))


def test_idle_service_writes_nothing(service, shelf):
    bank = service()
    bank.call(fine)
    for _ in range(3):
        publisher.flush()
    assert len(shelf.batches) == 1


def test_figures_are_written_in_the_background(shelf, clock):
    shelf.every = 0.01
    bank = Service("bank", store=shelf, clock=clock)
    bank.call(fine)
    eventually(lambda: shelf.batches)
    bank.call(fine)
    eventually(lambda: len(shelf.batches) == 2)


def test_figures_of_a_deleted_service_are_written(service, shelf):
    bank = service()
    for _ in range(3):
        bank.call(fine)
    del bank
    gc.collect()
    assert shelf.counts()["calls"] == 3
    eventually(lambda: publisher.flush() or not writers())
    service().call(fine)
    assert shelf.counts()["calls"] == 4


def test_closing_the_store_writes_figures_and_stops_recording(service, shelf, clock):
    bank = service(breaker=Breaker(failures=1))
    bank.call(fine)
    shelf.close()
    assert shelf.counts()["calls"] == 1
    with pytest.raises(TimeoutError):
        bank.call(fail)
    clock.advance(100)
    assert not writers()
    assert bank.stats().calls == 2
    assert shelf.counts()["calls"] == 1


def test_closing_an_unreachable_store_reports_the_loss(service, shelf, caplog):
    caplog.set_level(logging.WARNING, "redrive.events")
    bank = service()
    bank.call(fine)
    shelf.broken = True
    shelf.close()
    assert "the last service metrics were not written to the shelf" in caplog.text


def test_recorded_service_reports_the_same_about_itself(service, shelf, flaky):
    bank = service(retry=Retry(attempts=3, base=1, cap=1))
    for _ in range(10):
        bank.call(fine)
    bank.call(flaky(TimeoutError(), "fine"))
    publisher.flush()
    stats = bank.stats()
    assert (stats.calls, stats.attempts, stats.successes, stats.repeats) == (11, 12, 11, 1)
    assert Counter(stats.failures) == {"transient": 1}


@pytest.mark.parametrize(
    ("answers", "streaks"),
    [
        ("500 502 503", 1),
        ("500 503", 0),
        ("500 200 500 500", 0),
        ("500 404 500 500", 0),
        ("500 500 500 500 500 500", 1),  # one outage is one streak
        ("500 500 500 200 500 500 500", 2),
        ("500 500 422 500 500 500", 1),
        ("500 reset 500 500", 1),  # a lost connection has no status: it neither adds nor breaks
    ],
)
def test_three_calls_in_a_row_that_end_in_5xx_are_a_streak(service, shelf, answers, streaks):
    left = answers.split()

    def answer(request):
        if (word := left.pop(0)) == "reset":
            raise httpx.ConnectError("connection reset")
        return httpx.Response(int(word))

    bank = service(breaker=None)
    with httpx.Client(transport=bank.httpx_transport(httpx.MockTransport(answer))) as client:
        for _ in answers.split():
            with suppress(httpx.ConnectError):
                client.get("http://bank.example/payouts")
    assert shelf.counts().get("streaks_5xx", 0) == streaks


def test_close_waits_for_a_store_busy_with_another_process(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(service_log, "PATIENCE", 0.01)
    store = redrive.connect(f"sqlite:///{tmp_path / 'store.db'}", patience=0.01)
    bank = Service("bank", store=store)
    with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")

        class CommitsOnceItFailed(logging.Handler):
            def emit(self, record):
                if "cannot write service metrics" in record.getMessage():
                    other.execute("COMMIT")

        handler = CommitsOnceItFailed()
        bus.EVENTS.addHandler(handler)
        try:
            bank.call(fine)
            store.close()
        finally:
            bus.EVENTS.removeHandler(handler)
    assert "database is locked" in caplog.text
    assert "service metrics were not written to" not in caplog.text
    with redrive.connect(f"sqlite:///{tmp_path / 'store.db'}") as store:
        assert sum(window.calls for window in store.services.windows("bank")) == 1
