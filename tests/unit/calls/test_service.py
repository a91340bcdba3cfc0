"""A service as its user sees it: ways to call, fallbacks, log lines and events, rejected options."""

import asyncio
import functools
import inspect
import json
import logging
import math
import pickle

import httpx
import pytest

import redrive
from redrive import Breaker, CircuitOpen, Classifier, KeyPool, Retry, RetryBudget, Service, Token
from redrive.model.calls import Attempt, CallFailed, FallbackUsed
from redrive.observe.log import JsonFormatter
from redrive.testing import Answer, FaultyServer

# ── ways to call ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_decorated_function_has_its_name_and_signature(service):
    @service()
    def fetch(page: int, *, size: int = 10) -> str:
        """Fetch a page."""
        return f"{page}/{size}"

    assert fetch(1, size=5) == "1/5"
    assert fetch.__name__ == "fetch"
    assert fetch.__doc__ == "Fetch a page."
    assert list(inspect.signature(fetch).parameters) == ["page", "size"]


def test_method_can_be_decorated(service, flaky):
    work = flaky(TimeoutError(), "done")

    class Partner:
        @service()
        def fetch(self, page):
            return work(), self, page

    partner = Partner()
    assert partner.fetch(3) == ("done", partner, 3)


async def test_async_function_remains_async(service, flaky):
    work = flaky(TimeoutError(), "done")

    @service()
    async def fetch():
        return work()

    assert inspect.iscoroutinefunction(fetch)
    assert await fetch() == "done"


def test_block_is_retried_until_it_succeeds(service, clock, flaky):
    work, numbers = flaky(TimeoutError(), ConnectionResetError(), "done"), []
    for attempt in service().attempts():
        with attempt:
            numbers.append(attempt.number)
            result = work()
    assert result == "done"
    assert numbers == [1, 2, 3]
    assert len(clock.sleeps) == 2


def test_block_may_return_from_inside_and_is_counted(service, flaky):
    shipfast, work = service(), flaky(TimeoutError(), "done")

    def fetch():
        for attempt in shipfast.attempts():
            with attempt:
                return work()
        raise AssertionError("the loop ended without a result")

    assert fetch() == "done"
    assert shipfast.stats().successes == 1


async def test_block_works_in_a_coroutine(service, flaky):
    work = flaky(TimeoutError(), "done")
    async for attempt in service().attempts():
        with attempt:
            result = work()
    assert result == "done"


def test_exhausted_block_raises_its_own_error_with_attempts(service, flaky):
    work = flaky(TimeoutError("own"))

    def fetch():
        for attempt in service(retry=Retry(attempts=3)).attempts():
            with attempt:
                work()

    with pytest.raises(TimeoutError, match="own") as caught:
        fetch()
    assert len(caught.value.redrive.attempts) == 3


@pytest.mark.parametrize("nested", [True, False], ids=["nested", "again"])
def test_attempt_is_used_once(service, nested):
    def fetch():
        for attempt in service().attempts():
            with attempt:
                if nested:
                    attempt.__enter__()
            with attempt:
                pass

    with pytest.raises(RuntimeError, match="was used twice for the same attempt: take the next one from the loop"):
        fetch()


def test_block_has_its_credential_and_needs_a_with(service):
    shipfast = service(credentials=KeyPool(["key-aaaa"]), timeout=3)
    (attempt,) = _entered(shipfast.attempts())
    assert attempt.credential == "key-aaaa"
    assert attempt.timeout == 3
    with pytest.raises(RuntimeError, match="with attempt"):
        for _ in shipfast.attempts():
            pass


def _entered(attempts):
    seen = []
    for attempt in attempts:
        with attempt:
            seen.append(attempt)
    return seen


def test_block_is_rejected_by_an_open_circuit(service, flaky):
    shipfast = service(breaker=Breaker(failures=1), retry=Retry(attempts=1))
    with pytest.raises(TimeoutError):
        shipfast.call(flaky(TimeoutError()))
    with pytest.raises(CircuitOpen):
        _entered(shipfast.attempts())


def test_one_liner_works_with_and_without_options(flaky):
    @redrive.retry
    def plain():
        return "plain"

    work = flaky(TimeoutError(), TimeoutError(), "done")

    @redrive.retry(attempts=2, base=0, cap=0)
    def twice():
        return work()

    assert plain() == "plain"
    with pytest.raises(TimeoutError):
        twice()
    assert work.calls == 2
    with pytest.raises(TypeError, match="takes keyword options only"):
        redrive.retry(3)


async def test_one_liner_works_on_an_async_function_with_rules(flaky):
    class BankDown(Exception):
        pass

    work = flaky(BankDown(), "done")

    @redrive.retry(base=0, cap=0, classifier=Classifier().rule(BankDown, kind="transient"))
    async def fetch():
        return work()

    assert await fetch() == "done"


def test_function_with_timeout_parameter_gets_the_services(service):
    @service(timeout=2.5)
    def fetch(url, timeout=99):
        return timeout

    assert fetch("x") == 2.5
    assert fetch("x", 7) == 7
    assert fetch("x", timeout=8) == 8


async def test_async_attempt_is_ended_at_its_timeout_and_retried():
    calls = 0

    async def fetch():
        nonlocal calls
        calls += 1
        await asyncio.sleep(60 if calls == 1 else 0)
        return calls

    assert await Service("shipfast", timeout=0.05, retry=Retry(base=0, cap=0)).acall(fetch) == 2


def test_ambiguous_error_is_retried_at_most_twice(service, flaky):
    work = flaky(httpx.Response(500))
    with pytest.raises(redrive.RetriesExhausted) as caught:
        service().call(work)
    assert work.calls == 3
    assert caught.value.response.status_code == 500
    for part in ("service 'shipfast'", "3 attempts", "HTTP 500", "Retries did not help"):
        assert part in str(caught.value)
    assert caught.value.redrive.verdict.kind == "permanent"  # it had its chance
    assert caught.value.redrive.attempts[-1].outcome == "ambiguous"


def test_unretried_post_of_a_function_is_retries_exhausted():
    with FaultyServer() as server, httpx.Client(base_url=server.url) as client:
        server.on("/orders", Answer(503))
        with pytest.raises(redrive.RetriesExhausted, match="a POST without an Idempotency-Key is not retried"):
            Service("shipfast").call(client.post, "/orders")
        assert server.count("/orders") == 1


def test_permanent_response_of_a_row_is_returned(service, flaky):
    work = flaky(httpx.Response(404))
    response = service().call(work)
    assert response.status_code == 404
    assert response.redrive.verdict.kind == "row"
    assert work.calls == 1


def test_functions_of_one_decorator_have_different_names(service):
    def logged(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)

        return wrapper

    shipfast = service(credentials=KeyPool(["key-aaaa"]))

    @shipfast
    @logged
    def ping():
        return "pong"

    @shipfast
    @logged
    def fetch(page, *, credential):
        return page, credential

    assert ping() == "pong"
    assert fetch(1) == (1, "key-aaaa")


def test_method_gets_its_credential_bound_or_not(service):
    class Partner:
        def fetch(self, page, credential=None):
            return page, credential

    shipfast = service(credentials=KeyPool(["key-aaaa"]))
    assert shipfast.call(Partner().fetch, 1) == (1, "key-aaaa")
    assert shipfast(Partner.fetch)(Partner(), 2) == (2, "key-aaaa")
    assert shipfast.call(Partner().fetch, 3, "mine") == (3, "mine")


def test_presets_of_a_partial_are_unchanged(service):
    def fetch(*, credential, timeout):
        return credential, timeout

    shipfast = service(credentials=KeyPool(["key-aaaa"]), timeout=5)
    assert shipfast.call(functools.partial(fetch, credential="mine", timeout=60)) == ("mine", 60)
    assert shipfast.call(functools.partial(fetch, timeout=60)) == ("key-aaaa", 60)


def test_inner_function_gets_the_key_of_its_own_arguments(service, flaky):
    outcome, seen = flaky(None, TimeoutError(), None), []
    shipfast = service(idempotent="key")

    def write(row, *, idempotency_key):
        seen.append((row, idempotency_key))
        outcome()

    pending = ["a", "b"]

    def flush():
        while pending:
            shipfast.call(write, pending[0])
            pending.pop(0)

    shipfast.call(flush)
    assert [row for row, _ in seen] == ["a", "b", "b"]
    assert len(set(seen)) == 2
    with pytest.raises(TypeError, match="pass idempotency_key yourself"):
        shipfast.call(lambda: shipfast.call(write, object()))


def test_unkeyed_call_does_not_read_arguments_of_inner_calls(service):
    class Detached:
        def __repr__(self):
            raise RuntimeError("detached instance")

    shipfast = service()

    def write(row, *, idempotency_key):
        return len(idempotency_key)

    assert shipfast.call(lambda: shipfast.call(write, Detached())) == 36


def test_stop_iteration_of_the_function_is_its_error(service, flaky):
    with pytest.raises(StopIteration):
        service().call(flaky(StopIteration()))


def test_no_attempt_outlasts_the_whole_call(service):
    def fetch(*, timeout):
        return timeout

    with pytest.warns(
        redrive.PolicyWarning, match="timeout 60 s is longer than the 20 s of the whole call, and is cut to them"
    ):
        cut = service(timeout=60, retry=Retry(within=20))
    assert cut.call(fetch) == 20
    assert "at worst 20.0 s" in repr(cut)
    with pytest.warns(redrive.PolicyWarning, match="timeout 60 s is longer than the 20 s of the whole call"):
        cut = service(retry=Retry(within=20)).with_options(timeout=60)
    assert cut.call(fetch) == 20


def test_function_that_cannot_be_timed_warns_once(service, caplog):
    async def coroutine():
        return 1

    def limited(*, timeout):
        return timeout

    timed = service(timeout=5)
    timed(coroutine)
    timed.call(limited)
    assert caplog.records == []
    timed.call(len, "abc")
    timed.call(max, 1, 2)
    assert [record.getMessage() for record in caplog.records] == [
        "service 'shipfast': the timeout of 5 s does not hold for len, which runs in a thread; "
        "let it take the keyword timeout, make it async, or call it by redrive.run_with_timeout"
    ]


def test_timeout_of_a_service_without_retries_is_honoured(service):
    def fetch(*, timeout):
        return timeout

    assert service(timeout=600, retry=None).call(fetch) == 600


def test_default_breaker_lets_a_call_make_all_its_attempts(service, flaky):
    work = flaky(TimeoutError())
    with pytest.raises(TimeoutError):
        service(retry=Retry(attempts=8)).call(work)
    assert work.calls == 8


# ── fallbacks ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_fallback_value_replaces_exhausted_retries(service, flaky):
    seen = []
    shipfast = service(retry=Retry(attempts=2), fallback=None, on_event=seen.append)
    assert shipfast.call(flaky(TimeoutError())) is None
    assert shipfast.stats().fallbacks == 1
    assert [type(event) for event in seen[-2:]] == [CallFailed, FallbackUsed]


def test_fallback_function_gets_arguments_and_optional_error(service, flaky):
    fail = flaky(TimeoutError("down"))

    def fetch(page, *, size):
        return fail()

    shipfast = service(retry=Retry(attempts=1))
    cached = shipfast.with_options(fallback=lambda page, size: (page, size))
    assert cached.call(fetch, 3, size=10) == (3, 10)
    telling = shipfast.with_options(fallback=lambda page, *, size, error: str(error))
    assert telling(fetch)(3, size=10) == "down"
    with pytest.raises(TimeoutError):
        shipfast.call(fetch, 3, size=10)


def test_async_fallback_of_a_sync_call_raises_type_error(service, flaky):
    async def cached():
        return "cached"

    error = TimeoutError()
    with pytest.raises(TypeError, match="the fallback is async and the call is not") as caught:
        service(retry=Retry(attempts=1), fallback=cached).call(flaky(error))
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("idempotent", [False, True, "key"])
def test_blocks_of_a_call_have_one_idempotency_key(service, idempotent):
    shipfast = service(retry=Retry(attempts=3, base=0, cap=0), idempotent=idempotent)
    keys = []
    for _ in range(2):
        for attempt in shipfast.attempts():
            with attempt:
                keys.append(attempt.idempotency_key)
                if attempt.number < 3:
                    raise TimeoutError
    assert keys == [keys[0]] * 3 + [keys[3]] * 3
    assert keys[0]
    assert keys[0] != keys[3]


async def test_fallback_may_be_async(service, flaky):
    async def fetch():
        return flaky(TimeoutError())()

    async def cached():
        return "cached"

    assert await service(retry=Retry(attempts=1), fallback=cached).acall(fetch) == "cached"


def test_fallback_serves_an_open_circuit_but_no_permanent_error(service, flaky):
    shipfast = service(retry=Retry(attempts=1), breaker=Breaker(failures=1), fallback="cached")
    assert shipfast.call(flaky(TimeoutError())) == "cached"
    work = flaky("fresh")
    assert shipfast.call(work) == "cached"
    assert work.calls == 0
    shipfast.reset()
    with pytest.raises(ValueError):
        shipfast.call(flaky(ValueError("a bug")))


def test_failing_fallback_is_seen(service, flaky):
    def broken():
        raise LookupError("nothing cached")

    with pytest.raises(LookupError) as caught:
        service(retry=Retry(attempts=1), fallback=broken).call(flaky(TimeoutError("the cause")))
    assert str(caught.value.__cause__) == "the cause"


# ── what is logged, announced and counted ────────────────────────────────────────────────────────────────────────


def test_one_structured_line_per_attempt(service, clock, caplog, flaky):
    caplog.set_level(logging.INFO, "redrive.attempts")
    work = flaky(httpx.Response(503), TimeoutError(), "done")
    shipfast = service(credentials=KeyPool(["key-aaaa"]))

    def orders():
        clock.advance(0.25)
        return work()

    shipfast.call(orders)
    fields = ("endpoint", "attempt", "status", "error", "key_id", "latency_ms", "outcome", "wait_s")
    lines = [{name: getattr(record, name) for name in fields} for record in caplog.records]
    assert [line["attempt"] for line in lines] == [1, 2, 3]
    assert [line["outcome"] for line in lines] == ["transient", "transient", "success"]
    assert [line["status"] for line in lines] == [503, None, None]
    assert [line["error"] for line in lines] == [None, "TimeoutError", None]
    assert [line["wait_s"] for line in lines] == [*clock.sleeps, None]
    assert {line["key_id"] for line in lines} == {"aaaa"}
    assert all(line["latency_ms"] == pytest.approx(250) for line in lines)
    assert all("orders" in line["endpoint"] for line in lines)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO"]


def test_successful_call_is_logged_at_info_level(service, caplog, flaky):
    service().call(flaky("quiet"))
    assert caplog.records == []
    caplog.set_level(logging.INFO, "redrive.attempts")
    service().call(flaky("seen"))
    (record,) = caplog.records
    assert (record.outcome, record.attempt) == ("success", 1)


def test_call_rejected_by_the_circuit_is_logged(service, caplog, flaky):
    caplog.set_level("INFO")
    shipfast = service(breaker=Breaker(failures=1), retry=Retry(attempts=1))
    for _ in range(2):
        with pytest.raises((TimeoutError, CircuitOpen)):
            shipfast.call(flaky(TimeoutError()))
    lines = [record for record in caplog.records if record.name == "redrive.attempts"]
    assert [(line.outcome, line.levelname) for line in lines] == [("transient", "WARNING"), ("circuit_open", "INFO")]
    assert "circuit_open (not sent) in 0.0 ms, retry in" in lines[1].getMessage()
    assert "shipfast circuit closed → open, next probe in" in caplog.text
    assert shipfast.stats().failures == {"transient": 1, "circuit_open": 1}


def test_open_circuit_is_logged_once_by_default(service, caplog, flaky):
    shipfast = service(breaker=Breaker(failures=1), retry=Retry(attempts=1))
    for _ in range(100):
        with pytest.raises((TimeoutError, CircuitOpen)):
            shipfast.call(flaky(TimeoutError()))
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING", "WARNING", "ERROR"]  # the circuit opens, the attempt, the call


def test_exhausted_attempts_are_an_error_line(service, caplog, flaky, clock):
    with pytest.raises(TimeoutError):
        service(retry=Retry(attempts=2, base=3, jitter="none")).call(flaky(TimeoutError()))
    first, second, last = caplog.records
    assert second.getMessage().endswith("3.0 s since the call began")
    assert (last.name, last.levelname) == ("redrive.events", "ERROR")
    assert "failed: service 'shipfast', Flaky: 2 attempts in 3.0 s; transient: timed out" in last.getMessage()
    assert (first.elapsed_s, second.elapsed_s) == (0, 3)


def test_permanent_errors_and_fallbacks_are_no_error_lines(service, caplog, flaky):
    with pytest.raises(ValueError, match="no"):
        service().call(flaky(ValueError("no")))
    assert service(retry=None, fallback=1).call(flaky(TimeoutError())) == 1
    assert "ERROR" not in [record.levelname for record in caplog.records]


def test_line_can_be_json(service, caplog, flaky):
    with pytest.raises(TimeoutError):
        service(retry=Retry(attempts=1)).call(flaky(TimeoutError()))
    line = json.loads(JsonFormatter().format(caplog.records[0]))
    assert line["service"] == "shipfast"
    assert line["outcome"] == "transient"
    assert line["error"] == "TimeoutError"
    assert line["logger"] == "redrive.attempts"
    assert line["time"].endswith("+00:00")


def test_line_of_a_call_names_no_row(service, caplog):
    with httpx.Client(
        transport=service().httpx_transport(httpx.MockTransport(lambda _: httpx.Response(404))), base_url="http://x"
    ) as client:
        client.get("/orders/17")
    assert "GET /orders/17 attempt 1: rejected (404) in" in caplog.text
    assert json.loads(JsonFormatter().format(caplog.records[0]))["outcome"] == "row"


def test_json_formatter_masks_secrets_and_serializes_anything():
    extra = {"odd": {1, 2}, "dsn": "postgresql://etl:hunter2@db/lake", "deep": [{"url": "?key=hunter2"}], "n": math.nan}
    record = logging.makeLogRecord({"name": "x", "levelname": "INFO", "msg": "token=hunter2", **extra})
    text = JsonFormatter().format(record)
    line = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert "hunter2" not in text
    assert line["odd"] == "{1, 2}"


def test_hooks_get_every_attempt_and_a_broken_hook_is_harmless(service, caplog, flaky):
    seen = []

    def broken(event):
        raise RuntimeError("hook")

    end = redrive.on_event(seen.append)
    try:
        assert service(on_event=broken).call(flaky(TimeoutError(), "done")) == "done"
    finally:
        end()
    service().call(flaky("unseen"))
    assert [event.outcome for event in seen if isinstance(event, Attempt)] == ["transient", "success"]
    assert "an on_event hook failed on Attempt" in caplog.text


def test_counts_are_exact(service, flaky):
    shipfast = service(retry=Retry(attempts=3), breaker=None)
    for _ in range(100):
        shipfast.call(flaky("fine"))
    shipfast.call(flaky(TimeoutError(), "healed"))
    with pytest.raises(ValueError):
        shipfast.call(flaky(ValueError()))
    stats = shipfast.stats()
    assert (stats.calls, stats.attempts, stats.successes, stats.repeats) == (102, 103, 101, 1)
    assert stats.failures == {"transient": 1, "permanent": 1}


def test_views_of_a_service_share_its_state(service, flaky):
    shipfast = service(breaker=Breaker(failures=1), retry=Retry(attempts=1))
    with pytest.raises(TimeoutError) as caught:
        shipfast.with_options(endpoint="orders").call(flaky(TimeoutError()))
    assert caught.value.redrive.endpoint == "orders"
    assert shipfast.circuit == "open"


# ── errors and rejected options ──────────────────────────────────────────────────────────────────────────────────


def test_permanent_error_names_service_attempts_time_and_action(service, flaky):
    with pytest.raises(KeyError) as caught:
        service().call(flaky(KeyError("fee")))
    (note,) = caught.value.__notes__
    for part in ("service 'shipfast'", "1 attempt in 0.0 s", "permanent", "are not retried", "Fix the request"):
        assert part in note


def test_error_that_cannot_have_attributes_is_raised_unchanged(service):
    class Frozen(Exception):
        __slots__ = ()

        def __setattr__(self, name, value):
            raise AttributeError(name)

    def fail():
        raise Frozen

    with pytest.raises(Frozen):
        service().call(fail)


def test_our_errors_survive_pickling(service, flaky):
    shipfast = service(breaker=Breaker(failures=1), retry=Retry(attempts=1))
    with pytest.raises(TimeoutError):
        shipfast.call(flaky(TimeoutError()))
    with pytest.raises(CircuitOpen) as caught:
        shipfast.call(flaky("never"))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert copy.retry_in == caught.value.retry_in
    assert copy.redrive == caught.value.redrive


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"name": ""}, ValueError, "a Service needs a name"),
        ({"name": None}, ValueError, "a Service needs a name"),
        ({"name": "a\x00b"}, ValueError, "that can be shown"),
        ({"name": "a\ud800b"}, ValueError, "that can be shown"),
        ({"name": "a\nb"}, ValueError, "that can be shown"),
        ({"name": "x" * 201}, ValueError, "at most 200 characters"),
        ({"retry": 3}, TypeError, "retry must be a Retry or None, not int"),
        ({"breaker": "on"}, TypeError, "breaker must be a Breaker or None, not str"),
        ({"budget": 0.1}, TypeError, "budget must be a RetryBudget or None, not float"),
        ({"credentials": "key"}, TypeError, "credentials must be a KeyPool or Token or None, not str"),
        ({"classifier": dict}, TypeError, "classifier must be a Classifier or None, not type"),
        ({"timeout": 0}, ValueError, "timeout must be a finite number of seconds above 0"),
        ({"timeout": -1}, ValueError, "timeout must be a finite number of seconds above 0"),
        ({"sla": "soon"}, ValueError, "sla must be a finite number of seconds above 0"),
        ({"idempotent": "maybe"}, ValueError, 'idempotent must be True, False or "key"'),
        ({"on_event": 1}, TypeError, "on_event needs a function"),
    ],
)
def test_invalid_service_is_rejected_in_one_sentence(options, error, sentence):
    with pytest.raises(error) as refusal:
        Service(**{"name": "shipfast", **options})
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


async def agenerator():
    yield 1


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (None, "a service guards a function, not None"),
        (5, "a service guards a function, not 5"),
        (classmethod(len), "put the service below @classmethod"),
        (staticmethod(len), "put the service below @staticmethod"),
        (property(len), "put the service below @property"),
        (dict, "not the class dict; decorate its methods"),
    ],
)
def test_invalid_decoration_target_is_rejected(service, function, sentence):
    with pytest.raises(TypeError) as refusal:
        service()(function)
    assert sentence in str(refusal.value)


async def test_invalid_call_target_is_rejected(service):
    for nonsense in (None, 5, "x"):
        with pytest.raises(TypeError, match="a service guards a function"):
            service().call(nonsense)
        with pytest.raises(TypeError, match="a service guards a function"):
            await service().acall(nonsense)
    with pytest.raises(TypeError, match="is a generator function"):
        await service().acall(agenerator)
    coroutine = asyncio.sleep(0)
    with pytest.raises(TypeError, match="not a coroutine it gave"):
        service().call(coroutine)
    await coroutine


def test_habits_from_other_libraries_get_advice(service):
    with pytest.raises(TypeError, match=r"classifier=Classifier\(\).rule"):
        redrive.retry(TimeoutError)
    with pytest.raises(TypeError, match=r"RateLimited\(retry_after=30\)"):
        redrive.RateLimited(30)
    with pytest.raises(ValueError, match="retry_after must be"):
        redrive.RateLimited(retry_after="3")
    for options in ({"endpoint": ""}, {"endpoint": 5}, {"idempotency_key": " "}, {"timeout": 0}):
        with pytest.raises(ValueError, match="must be"):
            service().with_options(**options)
    with pytest.raises(TypeError, match=r"clock must have the methods of redrive\.clock\.Clock"):
        Service("x", clock=5)
    with pytest.raises(TypeError, match=r"random must have the methods of redrive\.clock\.Random"):
        Service("x", random=5)


def test_advice_follows_the_reason_for_stopping(service, flaky):
    spent = service(budget=RetryBudget(ratio=0, reserve=0))
    with pytest.raises(TimeoutError) as caught:
        spent.call(flaky(TimeoutError()))
    assert "look at the service before adding load" in caught.value.redrive.advice
    tripped = service(breaker=Breaker(failures=1))
    with pytest.raises(TimeoutError) as caught:
        tripped.call(flaky(TimeoutError()))
    assert "the next probe finds out" in caught.value.redrive.advice


def test_rule_with_an_unknown_kind_is_rejected():
    with pytest.raises(ValueError, match="transient"):
        Classifier().rule(ValueError, kind="sometimes")


def test_harmful_policy_warns_with_the_services_name():
    with pytest.warns(redrive.PolicyWarning, match=r"service 'bank': base 0.1 s is shorter than the usual round trip"):
        Service("bank", retry=Retry(base=0.1), round_trip=0.5)
    with pytest.warns(redrive.PolicyWarning) as warned:
        Service("bank", retry=Retry(base=20), sla=30, timeout=10)
    assert any("does not fit the SLA of 30 s" in str(warning.message) for warning in warned)


def test_call_that_opens_the_circuit_by_itself_warns(service, flaky):
    with pytest.warns(redrive.PolicyWarning, match=r"fails 2 times opens the circuit.* pass Breaker\(failures=4\)"):
        bank = service(breaker=Breaker(failures=2), retry=Retry(attempts=4, base=0, cap=0))
    work = flaky(ConnectionResetError())
    with pytest.raises(ConnectionResetError):
        bank.call(work)
    assert work.calls == 2
    for attempts, breaker in ((2, Breaker(failures=2)), (4, Breaker(failures=2, minimum=4)), (4, None)):
        work = flaky(ConnectionResetError())
        with pytest.raises(ConnectionResetError):
            service(breaker=breaker, retry=Retry(attempts=attempts, base=0, cap=0)).call(work)
        assert work.calls == attempts


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ({"retries": 3}, r"a Service has no option retries=: write retry=redrive.Retry\(attempts=…\)"),
        ({"max_attempts": 3}, r"no option max_attempts=: write retry=redrive.Retry\(attempts=…\)"),
        ({"circuit_breaker": 3}, r"no option circuit_breaker=: write breaker=redrive.Breaker\(…\)"),
        ({"nonsense": 3}, "a Service has no option nonsense=$"),
        ({"retry": 3}, r"retry must be a Retry or None, not int: write redrive.Retry\(attempts=4\)"),
    ],
)
def test_wrong_option_names_the_right_one(wrong, right):
    with pytest.raises(TypeError, match=right):
        Service("bank", **wrong)


def test_service_shows_its_worst_case():
    assert "5 attempts, at worst 65.0 s, circuit closed" in repr(Service("bank", timeout=10))
    assert "5 attempts, waits of at most 15.0 s, circuit closed" in repr(Service("bank"))


def test_user_errors_state_the_verdict(service, clock, flaky):
    assert service().call(flaky(redrive.Transient("restarting"), "done")) == "done"
    for final in (redrive.Permanent("no"), redrive.Reject("bad row"), redrive.Discard("noise")):
        work = flaky(final)
        with pytest.raises(type(final)):
            service().call(work)
        assert work.calls == 1
    with pytest.raises(ValueError, match="retry_after must be"):
        redrive.RateLimited(retry_after=-1)


def test_unknown_error_is_permanent_unless_configured(service, flaky):
    class Odd(Exception):
        pass

    once, thrice = flaky(Odd()), flaky(Odd())
    with pytest.raises(Odd):
        service().call(once)
    with pytest.raises(Odd):
        service(classifier=Classifier(unknown="ambiguous")).call(thrice)
    assert (once.calls, thrice.calls) == (1, 3)


def test_all_options_work_together_under_a_partial(service, flaky):
    shipfast = service(
        retry=Retry(), breaker=Breaker(), budget=RetryBudget(), credentials=Token(lambda: "token-1"), timeout=5
    )

    def fetch(kind, page, *, credential, timeout, idempotency_key):
        return kind, page, credential, timeout, len(idempotency_key)

    assert shipfast.call(functools.partial(fetch, "orders"), 7) == ("orders", 7, "token-1", 5, 36)


def test_missing_extra_is_one_sentence_with_the_command(monkeypatch):
    import sys

    for module in ("redrive.calls.adapters.requests", "requests"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "requests", None)
    with pytest.raises(ImportError, match=r"pip install 'redrive\[requests\]'"):
        Service("shipfast").requests_adapter()


async def test_fifty_tasks_share_one_service():
    with FaultyServer() as server:
        server.on("/page/*", Answer(503), Answer(json={"ok": True}))
        shipfast = Service(
            "shipfast",
            retry=Retry(base=0.001, cap=0.01),
            breaker=None,
            budget=RetryBudget(ratio=1),
        )
        async with httpx.AsyncClient(transport=shipfast.httpx_transport(), base_url=server.url) as client:
            results = await asyncio.gather(*(client.get(f"/page/{n}") for n in range(50)))
        assert all(result.json() == {"ok": True} for result in results)
        assert server.count() == 100
