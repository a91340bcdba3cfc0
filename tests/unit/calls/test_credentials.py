"""Keys and tokens as callers see them; the numbers are those of docs/semantics.md."""

import asyncio
import gc
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta

import httpx
import pytest
import requests

import redrive
from redrive import Breaker, KeyPool, QuotaExhausted, Retry, Service, Token
from redrive.model.calls import KeyCooled, TokenRefreshed
from redrive.testing import FakeClock, set_testing

QUOTA = {"error": {"errors": [{"reason": "quotaExceeded"}], "code": 403}}


class Api:
    """Answers by credential, as a server would."""

    def __init__(self, **answers):
        self.answers = answers
        self.seen = []

    def __call__(self, *, credential):
        self.seen.append(credential)
        answer = self.answers.get(credential, 200)
        if callable(answer):
            answer = answer()
        response = answer if isinstance(answer, httpx.Response) else httpx.Response(answer)
        response.request = httpx.Request("GET", "http://partner/")
        return response.raise_for_status()

    async def later(self, *, credential):
        await asyncio.sleep(0)
        return self(credential=credential)


def used_up(**headers):
    return httpx.Response(403, json=QUOTA, headers=headers)


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_function_with_credential_parameter_gets_the_first_key(service):
    api = Api()
    service(credentials=KeyPool(["key-aaaa", "key-bbbb"])).call(api)
    assert api.seen == ["key-aaaa"]


def test_credential_passed_by_the_caller_is_used(service):
    api = Api()
    service(credentials=KeyPool(["key-aaaa"])).call(api, credential="mine")
    assert api.seen == ["mine"]


def test_exhausted_key_is_rotated_and_unused_until_its_reset(service, clock):
    api = Api(**{"key-aaaa": used_up})
    shipfast = service(credentials=KeyPool(["key-aaaa", "key-bbbb"], resets="00:00 America/Los_Angeles"))
    shipfast.call(api)
    shipfast.call(api)
    assert api.seen == ["key-aaaa", "key-bbbb", "key-bbbb"]
    assert clock.sleeps == []
    clock.advance(86_400)
    api.answers.clear()
    api.seen.clear()
    shipfast.call(api)
    assert api.seen == ["key-bbbb"]  # the least failed one is kept


def test_rotation_is_not_charged_to_attempts_or_budget(service):
    keys = [f"key-{n:04}" for n in range(12)]
    api = Api(**dict.fromkeys(keys[:-1], used_up))
    shipfast = service(
        credentials=KeyPool(keys), retry=Retry(attempts=2), budget=redrive.RetryBudget(ratio=0, reserve=0)
    )
    shipfast.call(api)
    assert api.seen == keys


def test_exhausted_pool_error_names_the_next_reset(service, clock):
    api = Api(**{"key-aaaa": used_up, "key-bbbb": used_up})
    shipfast = service(credentials=KeyPool(["key-aaaa", "key-bbbb"], resets=7200))
    with pytest.raises(QuotaExhausted) as spent:
        shipfast.call(api)
    assert spent.value.resets_at == clock.now() + timedelta(hours=2)
    assert isinstance(spent.value.__cause__, httpx.HTTPStatusError)
    for part in ("service 'shipfast'", "2 attempts", "no key is left before 2025-01-01 02:00:00 UTC", "Add a key"):
        assert part in str(spent.value)
    with pytest.raises(QuotaExhausted, match="nothing was sent"):
        shipfast.call(api)
    assert len(api.seen) == 2
    clock.advance(7200)
    api.answers.clear()
    assert shipfast.call(api).status_code == 200


def test_rejected_key_is_not_sent_again_in_the_call(service, clock):
    api = Api(**{"key-aaaa": 401, "key-bbbb": used_up})
    with pytest.raises(QuotaExhausted) as spent:
        service(credentials=KeyPool(["key-aaaa", "key-bbbb"], resets=7200)).call(api)
    assert api.seen == ["key-aaaa", "key-bbbb"]
    assert spent.value.resets_at == clock.now() + timedelta(hours=2)


def test_key_with_more_failures_replaces_a_rejected_one(service):
    api = Api(**{"key-aaaa": 401, "key-bbbb": 401, "key-cccc": 401})
    shipfast = service(credentials=KeyPool(["key-aaaa", "key-bbbb", "key-cccc"]))
    for _ in range(3):
        api.seen.clear()
        with pytest.raises(httpx.HTTPStatusError):
            shipfast.call(api)
        assert sorted(api.seen) == ["key-aaaa", "key-bbbb", "key-cccc"]
    del api.answers["key-aaaa"]
    shipfast.call(api)
    del api.answers["key-bbbb"]
    api.answers["key-aaaa"] = 401
    assert shipfast.call(api).status_code == 200


def test_reset_time_of_a_quota_response_is_used(service, clock):
    api = Api(**{"key-aaaa": lambda: used_up(**{"Retry-After": "30"})})
    shipfast = service(credentials=KeyPool(["key-aaaa"], resets=86_400))
    with pytest.raises(QuotaExhausted) as spent:
        shipfast.call(api)
    assert spent.value.resets_at == clock.now() + timedelta(seconds=30)


def test_reset_in_the_past_does_not_rotate_forever(service):
    api = Api(**{"key-aaaa": lambda: used_up(**{"Retry-After": "0"})})
    with pytest.raises(QuotaExhausted):
        service(credentials=KeyPool(["key-aaaa"])).call(api)
    assert len(api.seen) <= 3


def test_success_clears_failures_of_a_key(service):
    answers = iter([401, 200, 200])
    api = Api(**{"key-aaaa": lambda: next(answers)})
    shipfast = service(credentials=KeyPool(["key-aaaa", "key-bbbb"]))
    shipfast.call(api)
    assert api.seen == ["key-aaaa", "key-bbbb"]
    api.answers["key-bbbb"] = 401
    shipfast.call(api)  # both failed once: the first again, which forgives it
    api.answers["key-bbbb"] = 200
    shipfast.call(api)
    assert api.seen[2:] == ["key-bbbb", "key-aaaa", "key-aaaa"]


def test_24_429_pauses_the_key_and_503_counts_for_the_circuit(service, clock):
    limited = iter([httpx.Response(429, headers={"Retry-After": "5"})])
    api = Api(**{"key-aaaa": lambda: next(limited, 200)})
    seen = []
    shipfast = service(credentials=KeyPool(["key-aaaa", "key-bbbb"]), breaker=Breaker(failures=1), on_event=seen.append)
    shipfast.call(api)
    assert shipfast.circuit == "closed"
    assert 5 <= clock.sleeps[0] <= 7.5
    (cooled,) = [event for event in seen if isinstance(event, KeyCooled)]
    assert cooled.key_id == "aaaa"
    api.answers["key-bbbb"] = api.answers["key-aaaa"] = 503
    with pytest.raises(httpx.HTTPStatusError):
        shipfast.call(api)
    assert shipfast.circuit == "open"
    assert len([event for event in seen if isinstance(event, KeyCooled)]) == 1


def test_24_callers_wait_while_the_only_key_is_paused(service, clock):
    limited = iter([httpx.Response(429, headers={"Retry-After": "5"})])
    api = Api(**{"key-aaaa": lambda: next(limited, 200)})
    once = service(credentials=KeyPool(["key-aaaa"]), retry=Retry(attempts=1))
    with pytest.raises(httpx.HTTPStatusError):
        once.call(api)
    assert once.call(api).status_code == 200
    assert clock.sleeps == [5]


def test_logs_and_events_show_the_last_four_characters_only(service, caplog):
    caplog.set_level("INFO", "redrive.attempts")
    secret = "sk-live-hunter2-aaaa"
    api = Api(**{secret: used_up})
    seen = []
    service(credentials=KeyPool([secret, "sk-live-hunter2-bbbb"]), on_event=seen.append).call(api)
    lines = [record for record in caplog.records if record.name == "redrive.attempts"]
    assert [line.key_id for line in lines] == ["aaaa", "bbbb"]
    assert "hunter2" not in caplog.text + repr(seen) + repr([vars(record) for record in caplog.records])


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Issuer:
    """Issues token-1, token-2, …; only the newest one issued is good."""

    def __init__(self):
        self.issued = 0
        self.lock = threading.Lock()

    def fetch(self):
        with self.lock:
            self.issued += 1
            return f"token-{self.issued:04}"

    async def afetch(self):
        await asyncio.sleep(0.01)
        return self.fetch()

    def accepts(self, credential):
        return credential == f"token-{self.issued:04}"

    def expire(self):
        self.issued += 1


def guarded_by(issuer):
    def api(*, credential):
        status = 200 if issuer.accepts(credential) else 401
        response = httpx.Response(status, request=httpx.Request("GET", "http://partner/"))
        return response.raise_for_status()

    return api


def test_token_is_fetched_on_first_use_and_reused(service):
    issuer = Issuer()
    shipfast = service(credentials=Token(issuer.fetch))
    for _ in range(5):
        shipfast.call(guarded_by(issuer))
    assert issuer.issued == 1


def test_23_401_refreshes_and_retries_once_without_breaker(service, clock):
    issuer, seen = Issuer(), []
    shipfast = service(
        credentials=Token(issuer.fetch),
        breaker=Breaker(failures=1),
        budget=redrive.RetryBudget(ratio=0, reserve=0),
        on_event=seen.append,
    )
    shipfast.call(guarded_by(issuer))
    issuer.expire()
    shipfast.call(guarded_by(issuer))
    assert issuer.issued == 3
    assert shipfast.circuit == "closed"
    assert clock.sleeps == []
    assert [event.generation for event in seen if isinstance(event, TokenRefreshed)] == [1, 2]


def test_23_second_401_is_final(service):
    issuer, calls = Issuer(), []

    def never(*, credential):
        calls.append(credential)
        request = httpx.Request("GET", "http://partner/")
        httpx.Response(401, request=request).raise_for_status()

    with pytest.raises(httpx.HTTPStatusError) as final:
        service(credentials=Token(issuer.fetch)).call(never)
    assert calls == ["token-0001", "token-0002"]
    assert "the fresh token was rejected, too" in final.value.redrive.why
    assert "Check or renew the credential" in final.value.redrive.advice


def test_23_403_does_not_refresh(service):
    issuer = Issuer()

    def forbidden(*, credential):
        httpx.Response(403, request=httpx.Request("GET", "http://partner/")).raise_for_status()

    with pytest.raises(httpx.HTTPStatusError):
        service(credentials=Token(issuer.fetch)).call(forbidden)
    assert issuer.issued == 1


@pytest.mark.parametrize("fetch", ["fetch", "afetch"])
async def test_23_401_storm_of_fifty_coroutines_causes_one_refresh(fetch):
    issuer = Issuer()
    shipfast = Service("shipfast", credentials=Token(getattr(issuer, fetch)))
    refused, answered = 0, asyncio.Event()

    async def api(*, credential):
        nonlocal refused
        good = issuer.accepts(credential)
        if not good:
            refused += 1
            if refused == 50:
                answered.set()  # no caller gets its 401 before all have been rejected
            await answered.wait()
        httpx.Response(200 if good else 401, request=httpx.Request("GET", "http://partner/")).raise_for_status()
        return credential

    await shipfast.acall(api)
    issuer.expire()
    results = await asyncio.gather(*(shipfast.acall(api) for _ in range(50)))
    assert refused == 50
    assert set(results) == {"token-0003"}
    assert issuer.issued == 3  # the first, the one that expired it, and one refresh


def test_23_401_storm_of_fifty_threads_causes_one_refresh():
    issuer = Issuer()
    shipfast = Service("shipfast", credentials=Token(issuer.fetch))
    together = threading.Barrier(50, timeout=30)

    def api(*, credential):
        good = issuer.accepts(credential)
        if not good:
            together.wait()
        httpx.Response(200 if good else 401, request=httpx.Request("GET", "http://partner/")).raise_for_status()
        return credential

    shipfast.call(api)
    issuer.expire()
    results = []
    threads = [threading.Thread(target=lambda: results.append(shipfast.call(api))) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(results) == {"token-0003"}
    assert issuer.issued == 3


async def test_23_storm_on_the_very_first_use_fetches_once():
    issuer = Issuer()
    shipfast = Service("shipfast", credentials=Token(issuer.afetch))
    api = guarded_by(issuer)

    async def later(*, credential):
        return api(credential=credential)

    await asyncio.gather(*(shipfast.acall(later) for _ in range(50)))
    assert issuer.issued == 1


def test_23_late_failure_of_the_old_token_does_not_refresh(service):
    issuer = Issuer()
    shipfast = service(credentials=Token(issuer.fetch))
    api = guarded_by(issuer)
    shipfast.call(api)
    calls = 0

    def slow(*, credential):
        nonlocal calls
        calls += 1
        if calls == 1:  # while this request is under way, another caller meets the 401 and refreshes
            issuer.expire()
            _in_thread(lambda: shipfast.call(api))
        httpx.Response(200 if calls == 2 else 401, request=httpx.Request("GET", "http://partner/")).raise_for_status()
        return credential

    assert shipfast.call(slow) == "token-0003"
    assert issuer.issued == 3


def _in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


async def test_cancelled_waiter_does_not_cancel_the_fetch():
    entered, release, fetched = asyncio.Event(), asyncio.Event(), 0

    async def fetch():
        nonlocal fetched
        fetched += 1
        entered.set()
        await release.wait()
        return "token"

    async def api(*, credential):
        return credential

    shipfast = Service("shipfast", credentials=Token(fetch))
    first = asyncio.create_task(shipfast.acall(api))
    await entered.wait()
    others = [asyncio.create_task(shipfast.acall(api)) for _ in range(5)]
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    release.set()
    assert await asyncio.gather(*others) == ["token"] * 5
    assert fetched == 1


async def test_hanging_fetch_is_limited_by_the_time_of_the_call():
    async def fetch():
        await asyncio.sleep(60)

    async def api(*, credential):
        return credential

    shipfast = Service("shipfast", retry=Retry(base=0.1, within=0.2), credentials=Token(fetch))
    with pytest.raises(TimeoutError):
        await shipfast.acall(api)


async def test_task_started_by_a_fetch_may_use_the_service_later():
    tasks, api, fetches = [], Api(), 0

    async def background():
        await fetched.wait()
        return await shipfast.acall(api.later)

    async def fetch():
        nonlocal fetches
        fetches += 1
        if fetches == 1:
            tasks.append(asyncio.create_task(background()))
        return f"token-{fetches}"

    fetched = asyncio.Event()
    shipfast = Service("shipfast", credentials=Token(fetch))
    await shipfast.acall(api.later)
    api.answers["token-1"] = 401
    fetched.set()
    assert (await tasks[0]).status_code == 200
    assert api.seen == ["token-1", "token-1", "token-2"]


def test_no_attempt_starts_after_a_fetch_took_all_the_time(service, clock):
    api = Api()

    def fetch():
        clock.advance(60)
        return "token"

    with pytest.raises(TimeoutError, match="the call's time is over"):
        service(retry=Retry(within=5), credentials=Token(fetch)).call(api)
    assert api.seen == []


def test_account_with_a_failed_fetch_does_not_stop_the_others(service, flaky):
    bad, api = flaky(PermissionError("locked")), Api()
    shipfast = service(credentials=KeyPool([Token(bad), Token(lambda: "good-token")]))
    for _ in range(4):
        shipfast.call(api)
    assert api.seen == ["good-token"] * 4
    assert bad.calls == 1


def test_account_with_a_failed_refresh_does_not_stop_the_others(service, flaky):
    fetch = flaky("old-token", PermissionError("locked"))
    api = Api(**{"old-token": 401})
    service(credentials=KeyPool([Token(fetch), Token(lambda: "good-token")])).call(api)
    assert api.seen == ["old-token", "good-token"]


def test_call_uses_the_key_with_the_earliest_end_of_pause(service, clock):
    waits = {"key-aaaa": iter([2, 2]), "key-bbbb": iter([100])}
    seen = []

    def api(*, credential):
        seen.append((clock.monotonic(), credential))
        seconds = next(waits[credential], None)
        if seconds:
            raise redrive.RateLimited(retry_after=seconds)
        return credential

    once = service(credentials=KeyPool(["key-aaaa", "key-bbbb"]), retry=Retry(attempts=1))
    for _ in range(3):
        with pytest.raises(redrive.RateLimited):
            once.call(api)
    assert once.call(api) == "key-aaaa"
    assert seen[-1][0] >= 4


@pytest.mark.parametrize("key", ["key\n", "two words", "tab\tbed", "bell\a"])
def test_key_invalid_in_a_request_is_rejected_and_not_shown(service, key):
    with pytest.raises(ValueError, match="strip it") as refusal:
        KeyPool([key])
    assert key not in str(refusal.value)
    with pytest.raises(ValueError, match="strip it"):
        service(credentials=Token(lambda: key)).call(Api())


def test_failed_fetch_is_a_failed_attempt(service, clock, flaky):
    fetch = flaky(TimeoutError(), TimeoutError(), "token-9")
    api = Api()
    service(credentials=Token(fetch)).call(api)
    assert fetch.calls == 3
    assert len(clock.sleeps) == 2
    assert api.seen == ["token-9"]


def test_failed_refresh_may_be_retried(service, flaky):
    fetch = flaky("old-token", TimeoutError(), "new-token")
    api = Api(**{"old-token": 401})
    service(credentials=Token(fetch)).call(api)
    assert api.seen == ["old-token", "old-token", "new-token"]
    assert fetch.calls == 3


@pytest.mark.parametrize("token", ["", None, b"bytes"])
def test_fetch_that_returns_no_token_is_an_error(service, token):
    with pytest.raises(TypeError, match="must return a non-empty string"):
        service(credentials=Token(lambda: token)).call(Api())


def test_async_fetch_cannot_serve_a_synchronous_call(service):
    async def fetch():
        return "token"

    with pytest.raises(TypeError, match="the token's fetch function is async"):
        service(credentials=Token(fetch)).call(Api())


def test_account_pool_refreshes_the_token_then_rotates(service):
    first, second = Issuer(), Issuer()
    drained = False

    def api(*, credential):
        request = httpx.Request("GET", "http://partner/")
        if drained and credential.startswith("a:"):
            response = used_up()
            response.request = request
            response.raise_for_status()
        account = first if credential.startswith("a:") else second
        good = account.accepts(credential[2:])
        httpx.Response(200 if good else 401, request=request).raise_for_status()
        return credential

    shipfast = service(credentials=KeyPool([Token(lambda: "a:" + first.fetch()), Token(lambda: "b:" + second.fetch())]))
    assert shipfast.call(api) == "a:token-0001"
    first.expire()
    assert shipfast.call(api) == "a:token-0003"
    drained = True
    assert shipfast.call(api) == "b:token-0001"
    second.expire()
    assert shipfast.call(api) == "b:token-0003"


def test_huge_retry_after_on_a_key_does_not_overflow(service):
    api = Api(**{"key-aaaa": lambda: httpx.Response(429, headers={"Retry-After": "9" * 9})})
    shipfast = service(credentials=KeyPool(["key-aaaa"]))
    with pytest.raises(httpx.HTTPStatusError):
        shipfast.call(api)
    with pytest.raises(QuotaExhausted):
        shipfast.call(api)


def test_daily_reset_is_named_in_utc(service):
    clock = FakeClock(datetime(2026, 11, 15, 12, 0, tzinfo=UTC))
    api = Api(**{"key-aaaa": used_up})
    pool = KeyPool(["key-aaaa"], resets="00:00 America/Los_Angeles")
    with pytest.raises(QuotaExhausted, match="2026-11-16 08:00:00 UTC"):
        service(credentials=pool, clock=clock).call(api)


# ── whose credential, whose fault ────────────────────────────────────────────────────────────────────────────────


def test_24_failure_of_an_inner_service_is_blamed_on_it_only(service):
    inner = service("inner", retry=Retry(attempts=1), breaker=Breaker(failures=1), credentials=KeyPool(["inner-01"]))
    outer = service(
        "outer",
        retry=Retry(attempts=1),
        breaker=Breaker(failures=1),
        credentials=KeyPool(["outer-01", "outer-02"]),
    )
    drained = Api(**{"inner-01": used_up})

    @outer
    def work(*, credential):
        inner.call(drained)

    with pytest.raises(QuotaExhausted):
        work()

    fine = Api()
    outer.call(fine)
    assert fine.seen == ["outer-01"]
    assert outer.circuit == "closed"

    refused = service("refused", retry=Retry(attempts=1))

    @outer
    def wrapped(*, credential):
        response = refused.call(lambda: httpx.Response(401, request=httpx.Request("GET", "http://partner/")))
        response.raise_for_status()

    with pytest.raises(httpx.HTTPStatusError):
        wrapped()
    outer.call(fine)
    assert fine.seen == ["outer-01"] * 2  # the 401 was not its key's

    broken = service("broken", retry=Retry(attempts=1), breaker=Breaker(failures=1))

    def fail():
        raise TimeoutError

    for _ in range(3):
        with pytest.raises((TimeoutError, redrive.CircuitOpen)):
            outer.call(lambda: broken.call(fail))
    assert broken.circuit == "open"
    assert outer.circuit == "closed"


def test_inner_request_of_an_attempt_uses_its_credential(service):
    shipfast = service(credentials=KeyPool(["key-aaaa", "key-bbbb", "key-cccc"]))
    api, seen = Api(**{"key-aaaa": used_up}), []

    @shipfast
    def inner(*, credential):
        seen.append(credential)

    @shipfast
    def outer(*, credential):
        _in_thread(lambda: shipfast.call(api))  # meanwhile another caller moves on to the next key
        inner()
        return credential

    assert outer() == "key-aaaa"
    assert seen == ["key-aaaa"]


def test_each_account_is_tried_even_if_its_token_was_refreshed(service):
    issued = []

    def account(name):
        def fetch():
            issued.append(name)
            return f"{name}-{issued.count(name)}"

        return Token(fetch)

    def api(*, credential):
        name, number = credential.split("-")
        response = httpx.Response(401) if number == "1" else used_up() if name != "c" else httpx.Response(200)
        response.request = httpx.Request("GET", "http://partner/")
        response.raise_for_status()
        return credential

    assert service(credentials=KeyPool([account("a"), account("b"), account("c")])).call(api) == "c-2"


def test_exhausted_pool_is_named_in_verdict_line_and_counts(service, caplog):
    caplog.set_level("INFO")
    shipfast = service(credentials=KeyPool(["key-aaaa"], resets=3600))
    api = Api(**{"key-aaaa": used_up})
    for _ in range(2):
        with pytest.raises(QuotaExhausted) as spent:
            shipfast.call(api)
    assert spent.value.redrive.verdict.kind == "quota"
    assert spent.value.redrive.attempts == ()
    assert "Add a key to the pool" in str(spent.value)
    assert "Come back in 60 min" in str(spent.value)
    assert shipfast.stats().failures == {"quota": 1, "no_key_left": 1}
    lines = [record for record in caplog.records if record.name == "redrive.attempts"]
    assert [line.outcome for line in lines] == ["quota", "no_key_left"]
    assert lines[0].wait_s is None


def test_concurrent_callers_report_an_exhausted_key_once():
    together, seen = threading.Barrier(10, timeout=30), []

    def api(*, credential):
        together.wait()
        response = used_up()
        response.request = httpx.Request("GET", "http://partner/")
        response.raise_for_status()

    pool = KeyPool(["key-aaaa"], resets="00:00 America/Los_Angeles")
    shipfast = Service("shipfast", credentials=pool, on_event=seen.append)

    def call():
        with pytest.raises(QuotaExhausted):
            shipfast.call(api)

    threads = [threading.Thread(target=call) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([event for event in seen if isinstance(event, KeyCooled)]) == 1


def test_13_step_of_the_wall_clock_does_not_prolong_a_pause(service, clock):
    limited = iter([httpx.Response(429, headers={"Retry-After": "2"})])
    api = Api(**{"key-aaaa": lambda: next(limited, 200)})
    shipfast = service(credentials=KeyPool(["key-aaaa"]), retry=Retry(attempts=1))
    with pytest.raises(httpx.HTTPStatusError):
        shipfast.call(api)
    clock.jump(-3600)
    assert shipfast.call(api).status_code == 200
    assert clock.sleeps == [2]


def test_14_pause_takes_no_time_in_tests(clock, service):
    limited = iter([redrive.RateLimited(retry_after=3)])

    def api(*, credential):
        error = next(limited, None)
        if error:
            raise error
        return "done"

    with set_testing():
        assert service(credentials=KeyPool(["key-aaaa"])).call(api) == "done"
        assert Service("real clock", credentials=KeyPool(["key-aaaa"])).call(api) == "done"


# ── fetches that would wait for themselves ───────────────────────────────────────────────────────────────────────


def test_fetch_that_calls_its_own_service_is_rejected(service):
    shipfast = service(credentials=Token(lambda: log_in()))

    @shipfast
    def log_in(*, credential=""):
        return "token"

    with pytest.raises(RuntimeError, match="calls the service it fetches for"):
        shipfast.call(Api())


async def test_async_fetch_that_calls_its_own_service_is_rejected():
    async def fetch():
        return await shipfast.acall(log_in)

    async def log_in(*, credential=""):
        return "token"

    shipfast = Service("shipfast", credentials=Token(fetch))
    with pytest.raises(RuntimeError, match="calls the service it fetches for"):
        await shipfast.acall(log_in)


async def test_sync_call_in_the_loop_does_not_wait_for_async_fetch():
    fetched = 0

    async def slow():
        await asyncio.sleep(0.05)
        return "slow"

    def fetch():
        nonlocal fetched
        fetched += 1
        return slow() if fetched == 1 else "quick"

    async def api(*, credential):
        return credential

    shipfast = Service("shipfast", credentials=Token(fetch))
    refreshing = asyncio.create_task(shipfast.acall(api))
    await asyncio.sleep(0.02)
    assert shipfast.call(lambda *, credential: credential) == "quick"
    assert await refreshing in ("quick", "slow")


def test_fetch_that_raises_stop_iteration_ends_no_loop(service):
    def fetch():
        raise StopIteration

    shipfast = service(credentials=Token(fetch))
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        shipfast.call(Api())
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        list(shipfast.attempts())


@pytest.mark.process
def test_fork_during_a_fetch_does_not_wait_for_its_parent():
    program = """
import os, sys, threading, redrive
entered, release = threading.Event(), threading.Event()
def fetch():
    if os.getpid() == parent:
        entered.set(); release.wait(30)
    return "token"
parent = os.getpid()
service = redrive.Service("shipfast", credentials=redrive.Token(fetch))
call = lambda: service.call(lambda *, credential: credential)
thread = threading.Thread(target=call); thread.start(); entered.wait(30)
child = os.fork()
if child == 0:
    os._exit(0 if call() == "token" else 1)
_, status = os.waitpid(child, 0)
release.set(); thread.join()
sys.exit(os.waitstatus_to_exitcode(status))
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=60)


# ── other keys take over within the call ─────────────────────────────────────────────────────────────────────────


class TestKeyRotation:
    def test_rejected_key_is_replaced_by_the_next(self, service):
        api = Api(**{"key-aaaa": 401, "key-bbbb": 401})
        assert service(credentials=KeyPool(["key-aaaa", "key-bbbb", "key-cccc"])).call(api).status_code == 200
        assert api.seen == ["key-aaaa", "key-bbbb", "key-cccc"]

    def test_every_key_is_tried_once_where_all_are_rejected(self, service):
        api = Api(**{"key-aaaa": 401, "key-bbbb": 401})
        refused = service(credentials=KeyPool(["key-aaaa", "key-bbbb"]))
        with pytest.raises(httpx.HTTPStatusError) as caught:
            refused.call(api)
        assert api.seen == ["key-aaaa", "key-bbbb"]
        assert "the key was rejected" in caught.value.__notes__[0]

    def test_limited_key_is_replaced_by_the_next(self, service, clock):
        api = Api(**{"key-aaaa": 429})
        pool = service(credentials=KeyPool(["key-aaaa", "key-bbbb"]))
        for _ in range(3):
            assert pool.call(api).status_code == 200
        assert api.seen == ["key-aaaa", "key-bbbb", "key-bbbb", "key-bbbb"]
        assert clock.sleeps == []

    def test_call_waits_where_all_keys_are_limited(self, service, clock):
        limited = {"key-aaaa": iter([429]), "key-bbbb": iter([429])}
        api = Api(**{key: lambda answers=answers: next(answers, 200) for key, answers in limited.items()})
        assert service(credentials=KeyPool(["key-aaaa", "key-bbbb"])).call(api).status_code == 200
        assert api.seen[:2] == ["key-aaaa", "key-bbbb"]
        assert len(api.seen) == 3
        assert 30 <= sum(clock.sleeps) <= 45


class TestLongestPause:
    """A Retry-After that makes no sense does not put a key out of use for good."""

    @pytest.fixture
    def limited(self, service):
        answers = iter([httpx.Response(429, headers={"Retry-After": "999999999"})])
        api = Api(**{"key-aaaa": lambda: next(answers, 200)})
        once = service(credentials=KeyPool(["key-aaaa"]), retry=Retry(attempts=1))
        with pytest.raises(httpx.HTTPStatusError):
            once.call(api)
        return once, api

    def test_key_is_used_again_after_an_hour(self, limited, clock):
        once, api = limited
        with pytest.raises(QuotaExhausted):
            once.call(api)
        clock.advance(3600)
        assert once.call(api).status_code == 200

    def test_operator_reset_makes_the_key_usable(self, limited):
        once, api = limited
        once.reset()
        assert once.call(api).status_code == 200

    def test_exhausted_key_is_used_again_after_its_reset(self, service, clock, caplog):
        answers = iter([httpx.Response(403, headers={"Retry-After": "999999999"}, json=QUOTA)])
        api = Api(**{"key-aaaa": lambda: next(answers, 200)})
        once = service(credentials=KeyPool(["key-aaaa"], resets=7200))
        with pytest.raises(QuotaExhausted):
            once.call(api)
        clock.advance(7200)
        assert once.call(api).status_code == 200
        assert "the server asks to wait 11574 days; it is tried again in 2 h" in caplog.text


# ── event loops that end in the middle of a fetch ────────────────────────────────────────────────────────────────


def abandoned_fetch(closed):
    """A service whose first token is being fetched in an event loop that no longer runs."""
    fetches = []

    async def fetch():
        fetches.append(1)
        if len(fetches) == 1:
            await asyncio.Event().wait()
        return f"token-{len(fetches):04}"

    async def use(*, credential):
        return credential

    service = Service("bank", credentials=Token(fetch))
    loop = asyncio.new_event_loop()
    with pytest.raises(TimeoutError):
        loop.run_until_complete(asyncio.wait_for(service.acall(use), 0.05))
    if closed:
        loop.close()
    return service, use, loop


@pytest.mark.parametrize("closed", [True, False])
def test_token_is_fetched_again_after_its_event_loop_ended(closed):
    service, use, loop = abandoned_fetch(closed)
    assert asyncio.run(service.acall(use)) == "token-0002"
    if not closed:
        pending = asyncio.all_tasks(loop)
        for task in pending:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        loop.close()
    del loop
    gc.collect()  # what is left of the first fetch ends without an error of its own


def test_cancelled_caller_of_a_failing_fetch_leaves_no_warning():
    noise = []

    async def fetch():
        await asyncio.Event().wait()

    async def use(*, credential):
        return credential

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: noise.append(context["message"]))
        service = Service("bank", credentials=Token(fetch))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(service.acall(use), 0.05)

    asyncio.run(main())
    gc.collect()
    assert noise == []


class TestExpiry:
    """A token is fetched again before it expires, without a 401."""

    @pytest.mark.parametrize(
        "expiry",
        [600, 600.0, timedelta(minutes=10), datetime(2025, 1, 1, 0, 10, tzinfo=UTC)],
        ids=["int", "float", "timedelta", "datetime"],
    )
    def test_fetch_can_return_the_expiry(self, service, clock, expiry):
        tokens = iter([("token-0001", expiry), "token-0002"])
        bank = service(credentials=Token(lambda: next(tokens)))
        used = []

        def use(*, credential):
            used.append(credential)

        for seconds in (0, 530, 20):
            clock.advance(seconds)
            bank.call(use)
        for attempt in bank.attempts():
            with attempt:
                used.append(attempt.credential)
        assert used == ["token-0001", "token-0001", "token-0002", "token-0002"]

    async def test_ttl_applies_to_every_token(self, service, clock):
        fetched = []

        async def fetch():
            fetched.append(1)
            return f"token-{len(fetched):04}"

        async def use(*, credential):
            return credential

        bank = service(credentials=Token(fetch, ttl=100))
        assert await bank.acall(use) == "token-0001"
        clock.advance(89)
        assert await bank.acall(use) == "token-0001"
        clock.advance(1)
        assert await bank.acall(use) == "token-0002"
        clock.advance(90)
        assert await bank.acall(use) == "token-0003"

    def test_invalid_expiry_is_an_error(self, service):
        with pytest.raises(
            TypeError, match="must return when it expires as seconds, a timedelta or a datetime with zone"
        ):
            service(credentials=Token(lambda: ("token-0001", "soon"))).call(lambda *, credential: credential)
        with pytest.raises(ValueError, match="ttl must be a finite number of seconds above 0"):
            Token(lambda: "token-0001", ttl=0)


class TestExpiredToken:
    """The clock of the server may differ: the token is used, and fetched once for each call."""

    @pytest.fixture
    def fetch(self):
        def fetch():
            fetch.count += 1
            assert fetch.count < 10, "a busy loop on the token endpoint"
            return f"token-{fetch.count:04}", fetch.expiry

        fetch.count, fetch.expiry = 0, 0
        return fetch

    @pytest.mark.parametrize(
        "expiry", [0, -5, timedelta(seconds=-1), datetime(2020, 1, 1, tzinfo=UTC)], ids=["0", "-5", "delta", "past"]
    )
    def test_each_call_fetches_once_and_one_warning_is_logged(self, service, fetch, caplog, expiry):
        fetch.expiry = expiry
        api = Api()
        bank = service(credentials=Token(fetch))
        bank.call(api)
        for attempt in bank.attempts():
            with attempt:
                api(credential=attempt.credential)
        assert api.seen == ["token-0001", "token-0002"]
        assert caplog.text.count("shipfast: the token expires at once") == 1

    async def test_async_call_fetches_once(self, service, fetch):
        async def afetch():
            return fetch()

        api = Api()
        await service(credentials=Token(afetch)).acall(api.later)
        assert api.seen == ["token-0001"]

    def test_expiry_before_first_use_counts_as_expired(self, fetch):
        fetch.expiry = 1e-9
        api = Api()
        Service("shipfast", credentials=Token(fetch)).call(api)
        assert api.seen == [f"token-{fetch.count:04}"]

    def test_retries_use_the_same_token(self, service, fetch):
        api = Api(**{"token-0001": 503})
        with pytest.raises(httpx.HTTPStatusError):
            service(credentials=Token(fetch), retry=Retry(attempts=3)).call(api)
        assert api.seen == ["token-0001"] * 3

    def test_401_fetches_one_more(self, service, fetch):
        api = Api(**{"token-0001": 401})
        service(credentials=Token(fetch)).call(api)
        assert api.seen == ["token-0001", "token-0002"]


@pytest.mark.parametrize("bad", ["\u2013", "é"])
@pytest.mark.parametrize("kind", ["key", "token"])
def test_credential_invalid_in_a_header_is_not_shown(bad, kind):
    secret = f"sk-live-Zq9xW7vT3p{bad}Lm2Rk8"
    credentials = KeyPool([secret]) if kind == "key" else Token(lambda: secret)
    shipfast = redrive.Service("shipfast", credentials=credentials)

    async def by_async_httpx():
        async with httpx.AsyncClient(transport=shipfast.httpx_transport()) as client:
            await client.get("http://127.0.0.1:9/")

    with httpx.Client(transport=shipfast.httpx_transport()) as client, requests.Session() as session:
        session.mount("http://", shipfast.requests_adapter())
        for send in (
            lambda: client.get("http://127.0.0.1:9/"),
            lambda: session.get("http://127.0.0.1:9/"),
            lambda: asyncio.run(by_async_httpx()),
        ):
            with pytest.raises(ValueError, match="cannot be sent in the header Authorization") as caught:
                send()
            assert "2Rk8" in str(caught.value)
            assert "Zq9xW7vT3p" not in repr(caught.value) + str(caught.value.__notes__)
            assert caught.value.__cause__ is caught.value.__context__ is None
            assert len(caught.value.redrive.attempts) == 1
