"""Retries as a caller sees them; the numbers are those of docs/semantics.md."""

import asyncio
import concurrent.futures
import contextlib
import functools
import gc
import threading
import weakref
from datetime import timedelta
from email.utils import format_datetime

import httpx
import pytest

import redrive
from redrive import Breaker, Retry, RetryBudget, Service
from redrive.testing import Answer, FakeClock, FaultyServer, set_testing

QUICK = Retry(base=0.001, cap=0.001)


def response(status, **headers):
    return httpx.Response(status, headers={name.replace("_", "-"): value for name, value in headers.items()})


# ── 1: Retry-After ───────────────────────────────────────────────────────────────────────────────────────────────


def test_01_retry_after_in_seconds_is_a_floor_for_the_wait(service, clock, flaky):
    fetch = flaky(response(429, Retry_After="7"), response(200))
    assert service(retry=Retry(cap=1)).call(fetch).status_code == 200
    assert 7 <= clock.sleeps[0] <= 10.5


def test_01_retry_after_as_a_date_is_read_on_the_wall_clock(service, clock, flaky):
    when = format_datetime(clock.now() + timedelta(seconds=20), usegmt=True)
    fetch = flaky(response(503, Retry_After=when), response(200))
    service().call(fetch)
    assert 20 <= clock.sleeps[0] <= 30


@pytest.mark.parametrize("value", ["soon", "-5", "1e9999", ""])
def test_01_invalid_retry_after_leaves_the_normal_backoff(service, clock, flaky, value):
    fetch = flaky(response(503, Retry_After=value), response(200))
    service(retry=Retry(base=0.5, cap=0.5, jitter="none")).call(fetch)
    assert clock.sleeps == [0.5]


def test_01_retry_after_beyond_the_time_fails_now_with_a_time(service, clock, flaky):
    fetch = flaky(redrive.RateLimited(retry_after=3600))
    with pytest.raises(redrive.RateLimited) as caught:
        service().call(fetch)
    assert fetch.calls == 1
    assert clock.sleeps == []
    assert caught.value.redrive.retry_in == 3600
    assert "Come back in 60 min" in caught.value.__notes__[0]


def test_01_redirect_with_retry_after_is_returned_at_once(service, clock, flaky):
    fetch = flaky(response(303, Retry_After="4", Location="/done"))
    assert service().call(fetch).status_code == 303
    assert fetch.calls == 1
    assert clock.sleeps == []  # whether the caller follows it is not known here


# ── 2, 3: state of the backoff ───────────────────────────────────────────────────────────────────────────────────


def test_02_decorrelated_jitter_restarts_with_each_call(service, clock, flaky):
    shipfast = service(
        retry=Retry(attempts=8, base=1, cap=1000, within=10_000, jitter="decorrelated"), breaker=None, budget=None
    )
    for _ in range(30):
        clock.sleeps.clear()
        with pytest.raises(TimeoutError):
            shipfast.call(flaky(TimeoutError()))
        assert 1 <= clock.sleeps[0] <= 3


@pytest.mark.slow
def test_03_attempt_ten_thousand_waits_no_longer_than_the_cap(service, clock, flaky):
    with pytest.warns(redrive.PolicyWarning):
        retry = Retry(attempts=2_000, base=0.1, cap=2, within=100_000)
    with pytest.raises(TimeoutError):
        service(retry=retry, breaker=None, budget=None).call(flaky(TimeoutError))
    assert len(clock.sleeps) == 1_999
    assert max(clock.sleeps) <= 2


# ── 4: the deadline ──────────────────────────────────────────────────────────────────────────────────────────────


def test_04_function_time_counts_and_no_wait_exceeds_deadline(service, clock):
    shipfast = service(retry=Retry(attempts=9, base=1, cap=4, jitter="none", within=10), breaker=None, budget=None)
    began = clock.monotonic()

    def slow():
        clock.advance(2)
        raise TimeoutError

    with pytest.raises(TimeoutError) as caught:
        shipfast.call(slow)
    # 2 + 1 + 2 + 2 + 2 = 9 s: the next wait of 4 s would end at 13.
    assert clock.monotonic() - began == 9
    assert "does not fit the 1.0 s left" in caught.value.redrive.why


# ── 5: cancellation ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_05_stop_signal_passes_unchanged_and_is_not_counted(service, flaky, signal):
    shipfast = service(breaker=Breaker(failures=1))
    stop = signal()
    work = flaky(stop)
    with pytest.raises(signal) as caught:
        shipfast.call(work)
    assert caught.value is stop
    assert work.calls == 1
    assert not getattr(stop, "__notes__", [])
    assert shipfast.circuit == "closed"
    assert shipfast.stats().failures == {}


def test_05_cancelled_future_is_a_stop_signal(service, flaky):
    work = flaky(concurrent.futures.CancelledError())
    with pytest.raises(concurrent.futures.CancelledError):
        service(classifier=redrive.Classifier(unknown="transient")).call(work)
    assert work.calls == 1


async def test_05_cancelled_wait_for_does_not_continue_in_background():
    calls = 0

    async def hang():
        nonlocal calls
        calls += 1
        await asyncio.sleep(60)

    shipfast = Service("shipfast", breaker=Breaker(failures=1))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(shipfast.acall(hang), 0.05)
    await asyncio.sleep(0.05)
    assert calls == 1
    assert shipfast.circuit == "closed"
    assert shipfast.stats().failures == {"cancelled": 1}


async def test_05_call_cancelled_during_backoff_ends_there(flaky):
    work = flaky(TimeoutError())
    shipfast = Service("shipfast", retry=Retry(base=30, jitter="none"), breaker=None)

    async def attempt():
        return work()

    task = asyncio.create_task(shipfast.acall(attempt))
    while work.calls == 0:
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.calls == 1


# ── 6: async callables in disguise ───────────────────────────────────────────────────────────────────────────────


class AsyncObject:
    def __init__(self):
        self.calls = 0

    async def __call__(self, value):
        self.calls += 1
        if self.calls < 3:
            raise TimeoutError
        return value


def hidden():
    """A plain function that gives a coroutine."""
    work = AsyncObject()
    return lambda value: work(value)


@pytest.mark.parametrize("make", [AsyncObject, lambda: functools.partial(AsyncObject()), hidden])
@pytest.mark.parametrize("how", ["decorated", "call", "acall"])
@pytest.mark.parametrize("keyed", [False, "key"])
async def test_06_any_async_callable_is_retried(make, how, keyed):
    shipfast = Service("shipfast", retry=QUICK, idempotent=keyed)
    work = make()
    run = {"decorated": lambda: shipfast(work)(42), "call": lambda: shipfast.call(work, 42)}
    result = await (run[how]() if how in run else shipfast.acall(work, 42))
    assert result == 42
    assert shipfast.stats().repeats == 2
    assert shipfast.stats().calls == 1


async def test_06_acall_accepts_a_plain_function(service, flaky):
    work = flaky(TimeoutError(), 7)
    assert await service().acall(work) == 7
    assert work.calls == 2


# ── 7: generators ────────────────────────────────────────────────────────────────────────────────────────────────


def pages():
    yield 1


async def apages():
    yield 1


class Pages:
    def __call__(self):
        yield 1


@pytest.mark.parametrize("function", [pages, apages, functools.partial(pages), Pages()])
def test_07_generator_function_is_rejected_at_decoration(service, function):
    with pytest.raises(TypeError, match=r"is a generator function: after its first yield .* yield from outside"):
        service()(function)
    with pytest.raises(TypeError, match="is a generator function"):
        redrive.retry(function)


def test_07_generator_function_is_rejected_by_call(service):
    with pytest.raises(TypeError, match="is a generator function"):
        service().call(pages)


def test_07_function_may_return_a_generator(service):
    assert list(service().call(lambda: (n for n in range(3)))) == [0, 1, 2]


# ── 8: exhaustion ────────────────────────────────────────────────────────────────────────────────────────────────


def test_08_exhausted_error_is_caught_by_the_callers_except():
    with FaultyServer() as server, httpx.Client(timeout=httpx.Timeout(30, read=0.3)) as client:
        server.on("/", Answer(hang=True))
        shipfast = Service("shipfast", retry=Retry(attempts=2, base=0.001, cap=0.001))
        with pytest.raises(httpx.ReadTimeout) as caught:
            shipfast.call(client.get, server.url + "/")
        assert server.count("/") == 2
    story = caught.value.redrive
    assert [attempt.attempt for attempt in story.attempts] == [1, 2]
    assert {attempt.error for attempt in story.attempts} == {"ReadTimeout"}
    (note,) = caught.value.__notes__
    for part in ("service 'shipfast'", "2 attempts in ", "timed out", "all 2 attempts are used", "run again"):
        assert part in note


def test_08_error_raised_repeatedly_has_its_latest_attempts(service, flaky):
    error = TimeoutError("the same object")
    for _ in range(3):
        with pytest.raises(TimeoutError):
            service(retry=Retry(attempts=2)).call(flaky(error))
    assert len(error.__notes__) == 1


class Witness:
    """Lives as long as the frame of the failing function."""


def leaks(run):
    """Whether an exception that was caught and dropped leaves a cycle behind."""

    def failing(held):  # its frame holds the witness, and the error's traceback holds the frame
        raise TimeoutError(str(type(held)))

    witness = Witness()
    gone = weakref.ref(witness)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(TimeoutError):
            run(failing, witness)
        del witness
        return gone() is not None
    finally:
        gc.enable()


def test_08_no_cycle_through_tracebacks_remains(service):
    shipfast = service(retry=Retry(attempts=3), breaker=None)
    assert not leaks(shipfast.call)

    async def failing_async(function, held):
        return function(held)

    def by_hand(function, held):  # an event loop leaves cycles of its own
        coroutine = shipfast.acall(failing_async, function, held)
        while True:
            coroutine.send(None)

    assert not leaks(by_hand)

    def in_a_block(function, held):
        for attempt in shipfast.attempts():
            with attempt:
                function(held)

    assert not leaks(in_a_block)

    def nothing_cached(held):
        raise LookupError

    def with_a_fallback(function, held):
        with contextlib.suppress(LookupError):
            shipfast.with_options(fallback=nothing_cached).call(function, held)

    assert not leaks(with_a_fallback)


def test_08_rejected_block_leaves_no_cycle(service, flaky):
    shipfast = service(breaker=Breaker(failures=1), retry=Retry(attempts=1))
    with pytest.raises(TimeoutError):
        shipfast.call(flaky(TimeoutError()))
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(redrive.CircuitOpen) as caught:
            list(shipfast.attempts())
        gone = weakref.ref(caught.value)
        del caught
        assert gone() is None
    finally:
        gc.enable()


def test_08_fallback_that_returns_the_error_is_not_its_cause(service, flaky):
    def give_back(*, error):
        raise error

    with pytest.raises(TimeoutError) as caught:
        service(retry=Retry(attempts=1), fallback=give_back).call(flaky(TimeoutError()))
    assert caught.value.__cause__ is None


# ── 9: nesting ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_09_nested_policies_of_one_service_do_not_multiply(service, flaky):
    shipfast, work = service(breaker=None, budget=None, retry=Retry(attempts=3)), flaky(TimeoutError())
    inner = shipfast(work)
    middle = shipfast(lambda: inner())
    with pytest.raises(TimeoutError):
        shipfast.call(lambda: middle())
    assert work.calls == 3


async def test_09_nested_policies_in_tasks_do_not_multiply(service, flaky):
    shipfast, work = service(breaker=None, budget=None, retry=Retry(attempts=3)), flaky(TimeoutError())

    @shipfast
    async def inner():
        return work()

    @shipfast
    async def outer():
        async with asyncio.TaskGroup() as group:
            group.create_task(inner())

    with pytest.raises(BaseExceptionGroup):
        await outer()
    assert work.calls == 3


def test_09_nested_policies_in_a_block_do_not_multiply(service, flaky):
    shipfast, work = service(breaker=None, budget=None, retry=Retry(attempts=3)), flaky(TimeoutError())

    def block():
        for attempt in shipfast.attempts():
            with attempt:
                work()

    with pytest.raises(TimeoutError):
        shipfast.call(block)
    assert work.calls == 3


def test_09_policies_of_different_services_are_both_applied(service, flaky):
    inner, outer = service("inner", retry=Retry(attempts=2)), service("outer", retry=Retry(attempts=2))
    work = flaky(TimeoutError())
    with pytest.raises(TimeoutError) as caught:
        outer.call(lambda: inner.call(work))
    assert work.calls == 4
    assert len(caught.value.__notes__) == 2


async def test_09_task_that_outlives_its_attempt_retries_by_itself(service, flaky):
    shipfast, work, tasks = service(breaker=None), flaky(TimeoutError(), TimeoutError(), "done"), []
    released = asyncio.Event()

    @shipfast
    async def inner():
        return work()

    async def later():
        await released.wait()
        return await inner()

    @shipfast
    async def outer():
        tasks.append(asyncio.create_task(later()))

    await outer()
    released.set()
    assert await tasks[0] == "done"
    assert work.calls == 3


def test_09_functions_of_one_name_are_not_one_service(flaky):
    work = flaky(TimeoutError(), TimeoutError(), "done")

    def make(function):
        def load():
            return function()

        return redrive.retry(base=0, cap=0)(load)

    with set_testing():
        assert make(redrive.retry(base=0, cap=0)(make(work)))() == "done"
    assert work.calls == 3


# ── 13, 14: clocks ───────────────────────────────────────────────────────────────────────────────────────────────


def test_13_step_of_the_wall_clock_changes_no_duration(service, clock):
    calls = 0

    def work():
        nonlocal calls
        calls += 1
        clock.jump(-86_400 if calls % 2 else 86_400)
        raise TimeoutError

    with pytest.raises(TimeoutError) as caught:
        service(retry=Retry(attempts=4, base=1, jitter="none"), breaker=None).call(work)
    assert clock.sleeps == [1, 2, 4]
    assert caught.value.redrive.elapsed == 7


def test_14_waiting_can_be_disabled_for_the_whole_program(flaky):
    patient = Service("patient", retry=Retry(base=60, cap=60, jitter="none"))
    with set_testing():
        assert patient.call(flaky(TimeoutError(), TimeoutError(), "done")) == "done"


def test_14_log_shows_the_actual_waits(flaky, caplog):
    patient = Service("patient", retry=Retry(base=60, cap=60, jitter="none"))
    with set_testing(longest_wait=0.01):
        patient.call(flaky(TimeoutError(), "done"))
    assert "next in 0.01 s" in caplog.text


def test_14_attempts_can_be_capped_as_well(flaky):
    work = flaky(TimeoutError())
    with set_testing(attempts=2), pytest.raises(TimeoutError):
        Service("patient", retry=Retry(base=60)).call(work)
    assert work.calls == 2


@pytest.mark.parametrize("options", [{"longest_wait": -1}, {"attempts": 0}])
def test_14_invalid_test_mode_is_rejected(options):
    with pytest.raises(ValueError, match="must be"):
        set_testing(**options)


# ── 25: the budget ───────────────────────────────────────────────────────────────────────────────────────────────


def test_25_retries_are_a_share_of_calls_with_a_reserve(service, flaky):
    shipfast = service(budget=RetryBudget(ratio=0.1, reserve=3), breaker=None, retry=Retry(attempts=2))
    for _ in range(50):
        shipfast.call(flaky("fine"))
    repeats = 0
    for _ in range(50):
        work = flaky(TimeoutError())
        with pytest.raises(TimeoutError):
            shipfast.call(work)
        repeats += work.calls - 1
    assert repeats == 3 + 10  # the reserve, and a tenth of a hundred calls
    assert shipfast.stats().repeats == repeats


def test_25_first_attempts_are_never_charged(service, flaky):
    shipfast = service(budget=RetryBudget(ratio=0, reserve=0), breaker=None)
    work = flaky(TimeoutError())
    for _ in range(20):
        with pytest.raises(TimeoutError) as caught:
            shipfast.call(work)
    assert work.calls == 20
    assert "retry budget is exhausted" in caught.value.redrive.why


def test_25_budget_is_shared_by_threads_to_the_last_token():
    shipfast = Service(
        "shipfast",
        budget=RetryBudget(ratio=0, reserve=100),
        breaker=None,
        retry=Retry(attempts=9, base=0, cap=0),
        clock=FakeClock(),
    )

    def hammer():
        for _ in range(50):
            with pytest.raises(TimeoutError):
                shipfast.call(fail)

    def fail():
        raise TimeoutError

    threads = [threading.Thread(target=hammer) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shipfast.stats().repeats == 100
    assert shipfast.stats().calls == 400
