"""An exception that is not the attempt's own reaches the caller at once, at whichever line of the call it is raised."""

import asyncio
import contextlib
import functools
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future

import pytest

import redrive
from redrive import Breaker, KeyPool, Retry
from redrive.classify.signals import is_stop_signal
from redrive.testing import FakeClock
from tests.support.flows import eventually


class SoftTimeLimit(Exception):
    """As job runners raise it: an ordinary exception."""


def over(*_):
    raise SoftTimeLimit("job over its limit")


def too_late(*_):
    raise TimeoutError("job over its limit")


class Handler:
    def __call__(self, *_):
        raise SoftTimeLimit("job over its limit")

    def method(self, *_):
        raise SoftTimeLimit("job over its limit")


@pytest.fixture
def alarm():
    """Install a handler of SIGALRM for the test."""
    before = signal.getsignal(signal.SIGALRM)
    yield functools.partial(signal.signal, signal.SIGALRM)
    signal.signal(signal.SIGALRM, before)


def ring():
    signal.raise_signal(signal.SIGALRM)


def waits_for_a_future(thread):
    """Return whether the thread waits for what another one does."""
    frame = sys._current_frames().get(thread.ident)
    while frame is not None and frame.f_code is not Future.result.__code__:
        frame = frame.f_back
    return frame is not None


def reset():
    raise ConnectionResetError


def blocks(service, numbers, work):
    for attempt in service.attempts():
        with attempt:
            numbers.append(attempt.number)
            work()


def replaced(stop, way):
    """Raise ConnectionResetError in place of an order to stop."""
    if way == "finally":
        try:
            raise stop
        finally:
            reset()
    elif way == "nested":
        try:
            replaced(stop, "finally")
        except ConnectionResetError as error:
            raise ConnectionResetError("while closing") from error
    else:
        try:
            raise stop
        except BaseException as error:
            if way == "from":
                raise ConnectionResetError from error
            if way == "from None":
                raise ConnectionResetError from None
            raise ConnectionResetError  # noqa: B904  # as a bare except of a driver does it


async def areplaced(way):
    """Wait to be cancelled, and raise ConnectionResetError in place of the cancellation."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError as error:
        replaced(error, way)


async def suspended(task, is_due):
    """Let a task run until it waits."""
    for _ in range(100):
        await asyncio.sleep(0)
        if is_due():
            break
    await asyncio.sleep(0)
    assert not task.done()


def append(results, call):
    results.append(call())


def in_clean_up(where, call):
    """Return what a call gives that is made while KeyboardInterrupt is handled."""
    results = []

    class Held:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            results.append(call())

    with contextlib.suppress(KeyboardInterrupt, ValueError):
        if where == "context manager":
            with Held():
                raise KeyboardInterrupt
        if where == "replaced":
            try:
                replaced(KeyboardInterrupt, "finally")
            except ConnectionResetError:
                results.append(call())
                raise ValueError from None
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            if where != "finally":
                append(results, call)  # in a function of its own, as a clean-up often is
            raise
        finally:
            if where == "finally":
                results.append(call())
    return results[0]


class RingingClock(FakeClock):
    """The job's limit ends while a call waits."""

    def sleep(self, seconds):
        super().sleep(seconds)
        ring()

    async def asleep(self, seconds):
        await super().asleep(seconds)
        ring()


class TestWait:
    @pytest.fixture(autouse=True)
    def _limit(self, alarm):
        alarm(over)

    def test_signal_handler_ends_backoff(self, service, flaky):
        clock, work = RingingClock(), flaky(ConnectionResetError())
        with pytest.raises(SoftTimeLimit):
            service(clock=clock, retry=Retry(base=3, jitter="none")).call(work)
        assert (work.calls, clock.sleeps) == (1, [3])

    async def test_signal_handler_ends_async_backoff(self, service):
        calls = []

        async def work():
            calls.append(1)
            raise ConnectionResetError

        with pytest.raises(SoftTimeLimit):
            await service(clock=RingingClock()).acall(work)
        assert len(calls) == 1

    def test_signal_handler_ends_wait_between_blocks(self, service):
        numbers = []
        with pytest.raises(SoftTimeLimit):
            blocks(service(clock=RingingClock()), numbers, reset)
        assert numbers == [1]

    async def test_signal_handler_ends_wait_between_async_blocks(self, service):
        numbers = []

        async def fetch():
            async for attempt in service(clock=RingingClock()).attempts():
                with attempt:
                    numbers.append(attempt.number)
                    raise ConnectionResetError

        with pytest.raises(SoftTimeLimit):
            await fetch()
        assert numbers == [1]

    def test_signal_handler_ends_wait_for_paused_key(self, service, flaky):
        clock = RingingClock()
        limited = service(clock=clock, credentials=KeyPool(["key-1111"]), retry=Retry(attempts=1))
        with pytest.raises(redrive.RateLimited):
            limited.call(flaky(redrive.RateLimited(retry_after=5)))
        with pytest.raises(SoftTimeLimit):
            limited.call(flaky(1))
        assert clock.sleeps == [5]

    def test_interrupted_probe_returns_its_permit(self, service, clock, flaky):
        broken = service(breaker=Breaker(failures=1, probes=1), retry=Retry(attempts=1))
        with pytest.raises(ConnectionResetError):
            broken.call(flaky(ConnectionResetError()))
        clock.advance(60)
        with pytest.raises(SoftTimeLimit):
            broken.call(ring)
        assert broken.call(flaky(1)) == 1


class TestAttempt:
    @pytest.mark.parametrize(
        "handler",
        [over, too_late, Handler(), Handler().method, functools.partial(over, 1)],
        ids=["function", "TimeoutError", "object", "method", "partial"],
    )
    def test_signal_handler_ends_call(self, service, alarm, handler):
        alarm(handler)
        calls = []

        def work():
            calls.append(1)
            ring()

        limited = service(classifier=redrive.Classifier(unknown="transient"), breaker=Breaker(failures=1))
        with pytest.raises((SoftTimeLimit, TimeoutError), match="job over its limit"):
            limited.call(work)
        assert len(calls) == 1
        assert limited.circuit == "closed"

    def test_signal_handler_ends_loop_of_blocks(self, service, alarm):
        alarm(too_late)
        numbers = []
        with pytest.raises(TimeoutError, match="job over its limit"):
            blocks(service(), numbers, ring)
        assert numbers == [1]

    def test_function_that_limits_itself_is_retried(self, service, alarm):
        calls = []

        def work():
            before = signal.signal(signal.SIGALRM, too_late)
            try:
                calls.append(1)
                if len(calls) < 3:
                    ring()
            finally:
                signal.signal(signal.SIGALRM, before)
            return "done"

        assert service().call(work) == "done"
        assert len(calls) == 3

    def test_error_handled_in_a_signal_handler_is_retried(self, service, alarm, flaky):
        results = []
        alarm(lambda *_: results.append(service().call(flaky(ConnectionResetError(), 7))))
        ring()
        assert results == [7]

    def test_signal_handler_ends_event_hook(self, service, alarm, flaky):
        alarm(over)
        with pytest.raises(SoftTimeLimit):
            service(on_event=lambda _: ring()).call(flaky(ConnectionResetError(), 1))

    def test_signal_handler_ends_closing_of_response(self, service, alarm):
        import httpx

        alarm(over)
        bad = httpx.Response(503)
        bad.close = ring
        with pytest.raises(SoftTimeLimit):
            service().call(lambda: bad)


class TestWrappedError:
    """A client library that catches what the handler raised, and raises an error of its own."""

    @pytest.mark.parametrize("library", ["httpx", "requests"])
    def test_timeout_of_a_client_is_not_retried(self, service, alarm, library):
        httpx, requests = pytest.importorskip("httpx"), pytest.importorskip("requests")
        alarm(too_late)
        calls = []

        def fetch():
            calls.append(1)
            try:
                ring()
            except TimeoutError as error:
                if library == "httpx":
                    raise httpx.ReadTimeout("timed out") from error
                raise requests.exceptions.ReadTimeout(error)  # noqa: B904  # as requests does it

        with pytest.raises((httpx.ReadTimeout, requests.exceptions.ReadTimeout)):
            service().call(fetch)
        assert len(calls) == 1

    def test_error_of_the_program_is_not_read_as_a_timeout(self, service, alarm):
        alarm(too_late)
        calls = []

        class LoadFailed(Exception):
            pass

        def fetch():
            calls.append(1)
            try:
                ring()
            except TimeoutError as error:
                raise LoadFailed from error

        with pytest.raises(LoadFailed):
            service().call(fetch)
        assert len(calls) == 1

    def test_stated_verdict_counts(self, service, alarm):
        alarm(too_late)
        calls = []

        def fetch():
            calls.append(1)
            try:
                ring()
            except TimeoutError as error:
                raise redrive.Transient("slow") from error

        with pytest.raises(redrive.Transient):
            service(retry=Retry(attempts=3, base=0, cap=0)).call(fetch)
        assert len(calls) == 3


class TestUserCode:
    """Functions of the user's that run beside the attempt."""

    def test_signal_handler_ends_predicate_of_a_rule(self, service, alarm):
        alarm(too_late)
        rules = redrive.Classifier().rule(ConnectionError, kind="transient", when=lambda _: ring())
        with pytest.raises(TimeoutError, match="job over its limit"):
            service(classifier=rules).call(reset)

    def test_signal_handler_ends_fetch_of_a_token(self, service, alarm):
        alarm(too_late)
        fetched = []

        def fetch():
            fetched.append(1)
            return ring() if len(fetched) == 1 else "token-01"

        bank = service(credentials=redrive.Token(fetch))
        with pytest.raises(TimeoutError, match="job over its limit"):
            bank.call(lambda credential: credential)
        assert bank.call(lambda credential: credential) == "token-01"

    async def test_signal_handler_ends_async_fetch_of_a_token(self, service, alarm):
        alarm(too_late)
        fetched = []

        async def fetch():
            fetched.append(1)
            return ring() if len(fetched) == 1 else "token-01"

        async def pay(credential):
            return credential

        bank = service(credentials=redrive.Token(fetch))
        with pytest.raises(TimeoutError, match="job over its limit"):
            await bank.acall(pay)
        assert await bank.acall(pay) == "token-01"

    def test_other_thread_fetches_token_again(self, service, alarm):
        alarm(too_late)
        fetched, results = [], []

        def fetch():
            fetched.append(threading.current_thread())
            if len(fetched) == 1:
                other.start()
                eventually(lambda: waits_for_a_future(other))
                ring()
            return "token-01"

        bank = service(credentials=redrive.Token(fetch))
        other = threading.Thread(target=lambda: results.append(bank.call(lambda credential: credential)))
        with pytest.raises(TimeoutError, match="job over its limit"):
            bank.call(lambda credential: credential)
        other.join(30)
        assert results == ["token-01"]
        assert fetched == [threading.main_thread(), other]


class TestReplacedStopSignal:
    """Another error takes the place of an order to stop, since a clean-up fails or a driver loses its connection."""

    @pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit], ids=lambda stop: stop.__name__)
    @pytest.mark.parametrize("way", ["finally", "except", "from", "from None", "nested"])
    def test_attempt_is_the_last(self, service, stop, way):
        calls = []

        def work():
            calls.append(1)
            if len(calls) == 1:
                replaced(stop, way)

        limited = service(breaker=Breaker(failures=1))
        with pytest.raises(ConnectionResetError) as caught:
            limited.call(work)
        assert (len(calls), limited.circuit, limited.stats().calls) == (1, "closed", 0)
        assert not hasattr(caught.value, "redrive")

    def test_second_attempt_is_the_last(self, service):
        calls = []

        def work():
            calls.append(1)
            if len(calls) == 1:
                reset()
            replaced(KeyboardInterrupt, "finally")

        with pytest.raises(ConnectionResetError):
            service().call(work)
        assert len(calls) == 2

    def test_block_is_the_last(self, service):
        numbers = []
        with pytest.raises(ConnectionResetError):
            blocks(service(), numbers, lambda: replaced(KeyboardInterrupt, "finally"))
        assert numbers == [1]

    def test_block_that_is_left_by_the_stop_itself_is_the_last(self, service):
        numbers = []

        def fetch():
            for attempt in service().attempts():
                with attempt:
                    numbers.append(attempt.number)
                    try:
                        raise KeyboardInterrupt
                    finally:
                        reset()

        with pytest.raises(ConnectionResetError):
            fetch()
        assert numbers == [1]

    def test_closed_generator_makes_no_further_attempt(self, service):
        numbers = []

        def pages():
            for attempt in service().attempts():
                with attempt:
                    numbers.append(attempt.number)
                    try:
                        yield 1
                    finally:
                        reset()

        reader = pages()
        next(reader)
        with pytest.raises(ConnectionResetError):
            reader.close()
        assert numbers == [1]

    def test_closed_coroutine_makes_no_further_attempt(self, service):
        calls = []

        class Pause:
            def __await__(self):
                yield

        async def work():
            calls.append(1)
            try:
                await Pause()
            finally:
                reset()

        call = service().acall(work)
        call.send(None)
        with pytest.raises(ConnectionResetError):
            call.close()
        assert len(calls) == 1

    def test_generator_that_the_function_closes_is_its_own(self, service):
        calls = []

        def lines():
            try:
                yield 1
            finally:
                if len(calls) == 1:
                    reset()

        def work():
            calls.append(1)
            reader = lines()
            next(reader)
            reader.close()
            return "done"

        assert service().call(work) == "done"

    def test_limit_by_a_signal_that_the_function_has_wrapped(self, service, alarm):
        alarm(over)
        calls = []

        def work():
            calls.append(1)
            try:
                ring()
            except Exception as error:
                raise ConnectionResetError from error

        with pytest.raises(ConnectionResetError):
            service().call(work)
        assert len(calls) == 1

    def test_failed_fetch_of_a_token_is_the_last(self, service):
        fetched = []

        def fetch():
            fetched.append(1)
            replaced(KeyboardInterrupt, "finally")

        bank = service(credentials=KeyPool([redrive.Token(fetch), redrive.Token(fetch)]))
        with pytest.raises(ConnectionResetError):
            bank.call(lambda credential: credential)
        assert len(fetched) == 1

    def test_no_dead_letter_is_made(self, service, tmp_path):
        letters = redrive.connect(f"sqlite:///{tmp_path}/calls.db")
        with pytest.raises(ConnectionResetError):
            service(dead_letters=letters).call(replaced, KeyboardInterrupt, "finally")
        assert letters.dlq.find() == []
        letters.close()


class TestReplacedCancellation:
    @pytest.mark.parametrize("way", ["finally", "except", "from", "from None", "nested"])
    @pytest.mark.parametrize("failures", [0, 1])
    async def test_cancelled_attempt_is_the_last(self, service, way, failures):
        calls, limited = [], service(breaker=Breaker(failures=2))

        async def work():
            calls.append(1)
            if len(calls) <= failures:
                reset()
            if len(calls) == failures + 1:
                await areplaced(way)

        task = asyncio.ensure_future(limited.acall(work))
        await suspended(task, lambda: len(calls) > failures)
        task.cancel()
        with pytest.raises(ConnectionResetError):
            await task
        assert (len(calls), limited.circuit) == (failures + 1, "closed")

    async def test_cancelled_block_is_the_last(self, service):
        numbers = []

        async def fetch():
            async for attempt in service().attempts():
                with attempt:
                    numbers.append(attempt.number)
                    await areplaced("finally")

        task = asyncio.ensure_future(fetch())
        await suspended(task, lambda: numbers)
        task.cancel()
        with pytest.raises(ConnectionResetError):
            await task
        assert numbers == [1]

    async def test_cancelled_group_of_tasks_is_the_last(self, service):
        calls = []

        async def work():
            calls.append(1)
            async with asyncio.TaskGroup() as group:
                group.create_task(areplaced("finally"))

        task = asyncio.ensure_future(service(classifier=redrive.Classifier(unknown="transient")).acall(work))
        await suspended(task, lambda: calls)
        task.cancel()
        with pytest.raises(ExceptionGroup):
            await task
        assert len(calls) == 1

    async def test_group_that_ends_its_own_tasks_is_retried(self, service, flaky):
        work = flaky(ConnectionResetError(), "done")

        async def fails():
            return work()

        async def both():
            async with asyncio.TaskGroup() as group:
                group.create_task(areplaced("finally")) if work.calls == 0 else None
                group.create_task(fails())
            return "done"

        assert await service().acall(both) == "done"

    @pytest.mark.parametrize("way", ["finally", "except", "from"])
    async def test_limit_inside_the_function_is_its_own(self, service, way):
        calls = []

        async def work():
            calls.append(1)
            if len(calls) == 1:
                async with asyncio.timeout(0):
                    await areplaced(way)
            return "done"

        assert await service().acall(work) == "done"


class TestHandledStopSignal:
    """A call that a clean-up makes, while its caller handles an order to stop."""

    @pytest.mark.parametrize("where", ["except", "finally", "replaced", "context manager"])
    def test_call_is_retried(self, service, flaky, where):
        bank, work = service(), flaky(ConnectionResetError(), "done")
        assert in_clean_up(where, lambda: bank.call(work)) == "done"

    @pytest.mark.parametrize("where", ["except", "finally", "replaced", "context manager"])
    def test_loop_of_blocks_is_retried(self, service, flaky, where):
        numbers = []
        in_clean_up(where, lambda: blocks(service(), numbers, flaky(ConnectionResetError(), "done")))
        assert numbers == [1, 2]

    def test_block_beside_the_handler_is_retried(self, service, flaky):
        work, results = flaky(ConnectionResetError(), "done"), []
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            for attempt in service().attempts():
                with attempt:
                    results.append(work())
        assert results == ["done"]

    async def test_async_call_of_a_cancelled_task_is_retried(self, service):
        bank, calls = service(), []

        async def flush():
            calls.append(1)
            if len(calls) == 2:
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()
            if len(calls) < 3:
                reset()
            return "done"

        async def load():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return await bank.acall(flush)

        task = asyncio.ensure_future(load())
        await asyncio.sleep(0)
        task.cancel()
        assert await task == "done"

    async def test_call_after_a_swallowed_cancellation_is_retried(self, service, flaky):
        bank, work = service(), flaky(ConnectionResetError(), ConnectionResetError(), "done")

        async def flush():
            return work()

        async def load():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return await bank.acall(flush)

        task = asyncio.ensure_future(load())
        await asyncio.sleep(0)
        task.cancel()
        assert await task == "done"


@pytest.mark.parametrize("path", ["billiard.exceptions.SoftTimeLimitExceeded", "rq.timeouts.BaseTimeoutException"])
def test_limit_of_a_job_runner_is_a_stop_signal(path):
    module, _, name = path.rpartition(".")
    limit = type("JobTimeout", (type(name, (Exception,), {"__module__": module}),), {"__module__": module})
    assert is_stop_signal(limit())


REENTRY = """
import sys
import redrive
from redrive import Breaker, KeyPool, Retry, RetryBudget, Service, Token
from redrive.testing import FakeClock
from tests.support.flows import eventually

for credentials in (None, KeyPool(["key-1111", "key-2222"]), Token(lambda: "token-01")):
    service = Service(
        "shipfast",
        credentials=credentials,
        clock=FakeClock(),
        retry=Retry(attempts=2),
        breaker=Breaker(failures=1_000),
        budget=RetryBudget(reserve=10_000),
    )
    seen, nested = set(), []

    def call():
        left = [redrive.RateLimited(), 1]

        def work():
            answer = left.pop(0)
            if answer == 1:
                return answer
            raise answer

        return service.call(work)

    def handler(frame, event, _):
        if "/redrive/calls/" not in frame.f_code.co_filename:
            return None
        place = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and place not in seen:
            seen.add(place)
            try:
                nested.append(call())
            except redrive.RateLimited:
                nested.append(None)
            service.stats()
        return handler

    service.call(lambda: 1)
    sys.settrace(handler)
    try:
        call()
        service.stats()
    finally:
        sys.settrace(None)
    assert len(nested) > 100, len(nested)
"""


class TestReentry:
    """A signal handler, or an object that is collected as garbage, calls the service in the middle of a call of it."""

    @pytest.mark.process
    def test_call_at_any_line_of_another_call(self):
        # In a process of its own: Python 3.11 can loop for ever where a traced thread and others want the interpreter.
        done = subprocess.run([sys.executable, "-c", REENTRY], capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr


class TestGenerator:
    """A generator that is suspended inside `with attempt:` leaves its consumer outside of the attempt."""

    def test_consumer_of_a_suspended_block_is_not_inside(self, service, flaky):
        bank = service(retry=Retry(attempts=3, base=0, cap=0))

        def pages():
            for attempt in bank.attempts():
                with attempt:
                    yield attempt.number

        for _ in pages():
            assert bank.call(flaky(ConnectionResetError(), ConnectionResetError(), "fine")) == "fine"
        assert bank.stats().calls == 2

    async def test_consumer_of_a_suspended_async_block_is_not_inside(self, service, flaky):
        bank = service(retry=Retry(attempts=3, base=0, cap=0))

        async def pages():
            async for attempt in bank.attempts():
                with attempt:
                    yield attempt.number

        async for _ in pages():
            assert bank.call(flaky(ConnectionResetError(), ConnectionResetError(), "fine")) == "fine"
        assert bank.stats().calls == 2

    def test_call_inside_the_block_of_a_running_generator_is_nested(self, service, flaky):
        bank, work = service(retry=Retry(attempts=3, base=0, cap=0)), flaky(ConnectionResetError())

        def pages():
            for attempt in bank.attempts():
                with attempt:
                    bank.call(work)
            yield 1

        with pytest.raises(ConnectionResetError):
            next(pages())
        assert work.calls == 3
