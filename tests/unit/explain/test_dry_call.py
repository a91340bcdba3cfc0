"""A dry call ends like a real call: the policy of a Service on a simulated clock, without side effects."""

import errno
import logging
import random
import re

import pytest

import redrive
from redrive.explain.dry_call import DEFAULT, ServicePolicy, run_dry_call
from redrive.explain.fake_errors import FailureDetails, FakeResponse
from redrive.testing import FakeClock

FAILURES = [
    lambda: FakeResponse(503, FailureDetails()),
    lambda: FakeResponse(429, FailureDetails(retry_after="30")),
    lambda: FakeResponse(500, FailureDetails()),
    lambda: FakeResponse(404, FailureDetails()),
    lambda: FakeResponse(401, FailureDetails()),
    lambda: FakeResponse(403, FailureDetails(body="quotaExceeded")),
    lambda: TimeoutError("too slow"),
    lambda: OSError(errno.ENOSPC, "full"),
    lambda: ValueError("no"),
]
POLICIES = [
    {},
    {"retry": redrive.Retry(attempts=8, base=1, cap=60, within=1_000)},
    {"retry": None},
    {"breaker": None, "budget": None},
    {"budget": redrive.RetryBudget(ratio=0, reserve=1)},
    {"credentials": redrive.KeyPool(["first-key-1111", "other-key-2222"])},
    {"credentials": redrive.Token(lambda: "a-token")},
    {"classifier": redrive.Classifier().rule(status=404, kind="transient").rule(ValueError, kind="ambiguous")},
]


def in_earnest(options, failure):
    """Make the same call by a real service, and return the attempts of its error or response."""
    service = redrive.Service("real", clock=FakeClock(), random=random.Random(5), **options)

    def fail(*, credential=None):
        if isinstance(failure, Exception):
            raise failure
        return failure

    try:
        answer = service.call(fail)
    except Exception as error:
        return error.redrive
    return answer.redrive


@pytest.mark.parametrize("options", POLICIES)
@pytest.mark.parametrize("make", FAILURES)
def test_dry_run_ends_like_a_real_call(options, make):
    real = in_earnest(options, make())
    found = run_dry_call(ServicePolicy.of(redrive.Service("real", **options)), make())
    assert found.attempts == len(real.attempts)
    # The moment of a reset, and waits that are drawn, differ from call to call.
    assert re.sub(r"[\d.:-]+", "N", found.ends) == re.sub(r"[\d.:-]+", "N", real.why)


def test_request_with_a_side_effect_is_not_retried():
    assert run_dry_call(DEFAULT, FakeResponse(503, FailureDetails(method="POST"))).attempts == 1
    assert run_dry_call(DEFAULT, FakeResponse(503, FailureDetails(method="GET"))).attempts == 5
    keyed = ServicePolicy.of(redrive.Service("bank", idempotent="key"))
    assert run_dry_call(keyed, FakeResponse(503, FailureDetails(method="POST"))).attempts == 5


def test_failures_for_the_breaker_are_counted():
    assert run_dry_call(DEFAULT, FakeResponse(503, FailureDetails())).faults == 5
    assert run_dry_call(DEFAULT, FakeResponse(503, FailureDetails())).opened
    assert run_dry_call(DEFAULT, FakeResponse(429, FailureDetails())).faults == 0
    assert not run_dry_call(DEFAULT, FakeResponse(429, FailureDetails())).opened


def test_keys_rotate_and_tokens_refresh_without_real_ones():
    def never() -> str:
        raise AssertionError("a rehearsal fetches nothing")

    tokens = ServicePolicy.of(redrive.Service("partner", credentials=redrive.Token(never)))
    assert run_dry_call(tokens, FakeResponse(401, FailureDetails())).refreshed == 1
    keys = ServicePolicy.of(redrive.Service("partner", credentials=redrive.KeyPool(["first-1111", "other-2222"])))
    assert run_dry_call(keys, FakeResponse(403, FailureDetails(body="quotaExceeded"))).keys == 2


def test_dry_run_emits_no_event(caplog):
    heard = []
    stop = redrive.on_event(heard.append)
    with caplog.at_level(logging.DEBUG):
        service = redrive.Service("quiet", on_event=heard.append)
        run_dry_call(ServicePolicy.of(service), TimeoutError())
    stop()
    assert heard == []
    assert caplog.records == []
    assert service.stats().calls == 0
    assert service.circuit == "closed"


@pytest.mark.parametrize("within", [1.0, 5.0, 12.0])
def test_call_makes_no_more_attempts_than_its_dry_run(within):
    retry = redrive.Retry(within=within)
    found = run_dry_call(ServicePolicy.of(retry), TimeoutError())
    made = set()
    for seed in range(300):
        clock = FakeClock()
        service = redrive.Service("real", retry=retry, breaker=None, clock=clock, random=random.Random(seed))
        error = TimeoutError()
        with pytest.raises(TimeoutError):
            service.call(_raise, error)
        made.add(len(error.redrive.attempts))
    assert len(made) > 1  # chance does decide
    assert max(made) <= found.attempts == 5
    assert "all 5 attempts are used" in found.ends


def _raise(error):
    raise error


def test_dry_run_leaves_the_error_unchanged():
    error = TimeoutError("too slow")
    run_dry_call(DEFAULT, error)
    assert vars(error) == {}
