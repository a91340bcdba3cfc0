"""The circuit breaker as callers see it; the numbers are those of docs/semantics.md."""

import asyncio
import threading

import pytest

import redrive
from redrive import Breaker, CircuitOpen, Retry, Service
from redrive.model.calls import BreakerChanged

ONCE = Retry(attempts=1)


def trip(shipfast, flaky, failures=5):
    for _ in range(failures):
        with pytest.raises(TimeoutError):
            shipfast.call(flaky(TimeoutError()))


def test_15_no_lock_is_taken_while_the_function_runs():
    together = threading.Barrier(4, timeout=30)  # breaks unless all four are inside the function at once
    shipfast = Service("shipfast", retry=ONCE, breaker=Breaker())
    results = []
    threads = [threading.Thread(target=lambda: results.append(shipfast.call(together.wait))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [0, 1, 2, 3]


def test_15_no_lock_is_taken_while_a_probe_or_retry_runs(service, clock, flaky):
    shipfast = service(retry=ONCE)
    trip(shipfast, flaky)
    clock.advance(40)

    def probe():
        assert shipfast.circuit == "half_open"
        with pytest.raises(CircuitOpen):
            _elsewhere(shipfast)

    shipfast.call(probe)


def _elsewhere(shipfast):
    """Another thread's call, so that it is not nested in this one."""
    caught = []

    def call():
        try:
            shipfast.call(lambda: None)
        except CircuitOpen as error:
            caught.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    raise caught[0]


def test_16_one_of_many_threads_is_let_through_as_the_probe(service, clock, flaky):
    shipfast = service(retry=ONCE, breaker=Breaker(probes=1))
    trip(shipfast, flaky)
    clock.advance(40)
    inside, refused, release = [], [], threading.Event()
    gate = threading.Barrier(20, timeout=30)

    def probe():
        inside.append(1)
        release.wait(30)

    def call():
        gate.wait()
        try:
            shipfast.call(probe)
        except CircuitOpen:
            refused.append(1)
        if len(refused) == 19:
            release.set()

    threads = [threading.Thread(target=call) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(inside) == 1
    assert len(refused) == 19
    assert shipfast.circuit == "closed"


async def test_16_cancelled_probe_returns_its_permit(service, clock, flaky):
    shipfast = service(retry=ONCE)
    trip(shipfast, flaky)
    clock.advance(40)

    async def hang():
        await asyncio.sleep(60)

    probe = asyncio.create_task(shipfast.acall(hang))
    await asyncio.sleep(0.01)
    with pytest.raises(CircuitOpen):
        await shipfast.acall(hang)
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    assert shipfast.circuit == "half_open"
    assert shipfast.call(flaky("alive")) == "alive"


async def test_16_cancelled_probe_in_a_block_returns_its_permit(service, clock, flaky):
    shipfast = service(retry=ONCE)
    trip(shipfast, flaky)
    clock.advance(40)

    async def block():
        async for attempt in shipfast.attempts():
            with attempt:
                await asyncio.sleep(60)

    probe = asyncio.create_task(block())
    await asyncio.sleep(0.01)
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    assert shipfast.call(flaky("alive")) == "alive"


def test_16_lost_probe_is_replaced_after_its_lease(service, clock, flaky):
    shipfast = service(retry=ONCE, breaker=Breaker(lease=60))
    trip(shipfast, flaky)
    clock.advance(40)
    lost = iter(shipfast.attempts())
    attempt = next(lost)
    with pytest.raises(CircuitOpen):
        shipfast.call(flaky("alive"))
    clock.advance(61)
    assert shipfast.call(flaky("alive")) == "alive"
    del attempt, lost


@pytest.mark.parametrize("neutral", [redrive.Permanent("bad request"), redrive.Reject("bad row"), ValueError("bug")])
def test_17_neutral_outcome_in_half_open_changes_no_state(service, clock, flaky, neutral):
    shipfast = service(retry=ONCE, breaker=Breaker(probes=1))
    trip(shipfast, flaky)
    clock.advance(40)
    for _ in range(10):
        with pytest.raises(type(neutral)):
            shipfast.call(flaky(neutral))
        assert shipfast.circuit == "half_open"
    shipfast.call(flaky("alive"))
    assert shipfast.circuit == "closed"


def test_17_permanent_errors_never_open_the_circuit(service, flaky):
    shipfast = service(retry=ONCE)
    for _ in range(50):
        with pytest.raises(redrive.Permanent):
            shipfast.call(flaky(redrive.Permanent("no")))
    assert shipfast.circuit == "closed"


@pytest.mark.parametrize("late", [TimeoutError(), "late success"])
def test_18_call_started_while_closed_changes_no_later_state(service, clock, flaky, late):
    shipfast = service(retry=ONCE, breaker=Breaker(probes=1))
    begun, finish, ended = threading.Event(), threading.Event(), []

    def straggler():
        begun.set()
        finish.wait(30)
        return flaky(late)()

    def call():
        try:
            ended.append(shipfast.call(straggler))
        except TimeoutError as error:
            ended.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    begun.wait(30)
    trip(shipfast, flaky)
    clock.advance(40)
    probe = iter(shipfast.attempts())
    with next(probe):
        assert shipfast.circuit == "half_open"
        finish.set()
        thread.join()
        assert shipfast.circuit == "half_open"
    assert len(ended) == 1
    assert shipfast.circuit == "closed"


def test_19_call_that_opens_the_circuit_raises_its_own_error(service, flaky):
    shipfast = service(retry=ONCE, breaker=Breaker(failures=1))
    with pytest.raises(TimeoutError) as caught:
        shipfast.call(flaky(TimeoutError("maybe it happened")))
    assert shipfast.circuit == "open"
    assert not isinstance(caught.value, CircuitOpen)


def test_20_call_stops_with_its_own_error_when_circuit_opens(service, clock, flaky):
    shipfast, work = service(breaker=Breaker(failures=2)), flaky(TimeoutError("own"))
    with pytest.raises(TimeoutError, match="own") as caught:
        shipfast.call(work)
    assert work.calls == 2
    assert len(clock.sleeps) == 1
    assert caught.value.redrive.why == "the circuit opened"
    assert caught.value.redrive.retry_in > 20


def test_20_open_circuit_is_not_retried_and_has_next_probe_time(service, clock, flaky):
    shipfast, work = service(breaker=Breaker(failures=2)), flaky(TimeoutError())
    with pytest.raises(TimeoutError):
        shipfast.call(work)
    clock.sleeps.clear()
    with pytest.raises(CircuitOpen) as refused:
        shipfast.call(work)
    assert work.calls == 2
    assert clock.sleeps == []
    assert 24 * 0.9 < refused.value.retry_in <= 36
    for part in ("service 'shipfast'", "0 attempts", "the circuit is open", "Come back in"):
        assert part in str(refused.value)


def test_circuit_recovers_through_its_probes(service, clock, flaky):
    shipfast = service(retry=ONCE)
    trip(shipfast, flaky)
    clock.advance(40)
    shipfast.call(flaky("one"))
    assert shipfast.circuit == "half_open"
    shipfast.call(flaky("two"))
    assert shipfast.circuit == "closed"


def test_slow_success_counts_as_a_failure_if_configured(service, clock):
    shipfast = service(breaker=Breaker(failures=3, slow=2.0))
    for _ in range(3):
        shipfast.call(lambda: clock.advance(2.5))
    assert shipfast.circuit == "open"


def test_successes_of_clean_calls_count_towards_the_rate(service, clock, flaky):
    shipfast = service(retry=ONCE, breaker=Breaker(rate=0.5, minimum=10))
    for _ in range(20):
        shipfast.call(flaky("fine"))
    trip(shipfast, flaky, failures=19)
    assert shipfast.circuit == "closed"
    trip(shipfast, flaky, failures=1)
    assert shipfast.circuit == "open"


def test_every_change_of_state_emits_an_event(service, clock, flaky):
    seen = []
    shipfast = service(retry=ONCE, breaker=Breaker(probes=1), on_event=seen.append)
    trip(shipfast, flaky)
    clock.advance(40)
    shipfast.call(flaky("alive"))
    changes = [(event.before, event.after) for event in seen if isinstance(event, BreakerChanged)]
    assert changes == [("closed", "open"), ("open", "half_open"), ("half_open", "closed")]


def test_circuit_can_be_reset_or_left_out(service, flaky):
    shipfast = service(retry=ONCE)
    trip(shipfast, flaky)
    shipfast.reset()
    assert shipfast.call(flaky("alive")) == "alive"
    unbroken = service(retry=ONCE, breaker=None)
    trip(unbroken, flaky, failures=50)
    assert unbroken.circuit == "closed"
    unbroken.reset()
