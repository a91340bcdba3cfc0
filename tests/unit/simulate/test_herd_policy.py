"""A simulated client makes its attempts at the same times as a real service."""

import warnings
from itertools import cycle
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import redrive
from redrive.simulate.herd.clients import Caller, Guarded, Policy, errors
from redrive.simulate.herd.server import RequestOutcome
from redrive.testing import FakeClock
from tests.support.examples import examples

seconds = st.floats(0.01, 40.0)
retries = st.builds(
    lambda base, more, **options: redrive.Retry(base=base, cap=base + more, **options),
    base=st.floats(0.0, 5.0),
    more=st.floats(0.0, 60.0),
    attempts=st.integers(1, 7),
    multiplier=st.floats(1.0, 3.0),
    jitter=st.sampled_from(["none", "equal", "full", "decorrelated"]),
    within=st.floats(0.5, 200.0),
    ambiguous=st.integers(0, 2),
    on=st.sets(st.sampled_from(["transient", "rate_limited", "ambiguous"]), min_size=1),
)
breakers = st.builds(
    redrive.Breaker,
    failures=st.integers(1, 5),
    window=st.floats(1.0, 90.0),
    cooldown=st.floats(1.0, 60.0),
    probes=st.integers(1, 3),
    rate=st.floats(0.0, 1.0),
    minimum=st.integers(1, 6),
    slow=st.none() | st.floats(0.5, 10.0),
    jitter=st.floats(0.0, 1.0),
)
budgets = st.builds(
    redrive.RetryBudget, ratio=st.floats(0.0, 1.0), reserve=st.integers(0, 4), window=st.floats(1.0, 90.0)
)
rules = st.dictionaries(st.sampled_from([TimeoutError, ConnectionError]), st.sampled_from(["ambiguous", "permanent"]))
scripts = st.lists(st.tuples(st.sampled_from(RequestOutcome), st.floats(0.0, 15.0)), min_size=1, max_size=30)

CALLS = 25


class Script:
    """What becomes of the requests, one after another, and how long each takes; and the callers' pauses."""

    def __init__(self, fates, pauses):
        self.fates = cycle(fates)
        self.pauses = cycle(pauses)


def by_the_product(service, clock, script, retry_after):
    """The requests and the ends of calls made through the real service on a clock of its own."""
    asked, ended = [], []

    def function(timeout=None):
        asked.append((clock.monotonic(), timeout))
        fate, takes = next(script.fates)
        clock.advance(takes)
        if fate is not RequestOutcome.ANSWERED:
            raise errors(retry_after)[fate]

    for _ in range(CALLS):
        try:
            service.call(function)
        except Exception as error:
            retry_in = error.redrive.retry_in
            ended.append((clock.monotonic(), False, retry_in))
            clock.advance(retry_in or next(script.pauses))
        else:
            ended.append((clock.monotonic(), True, None))
            clock.advance(next(script.pauses))
    return asked, ended


def by_the_simulation(policy, script, seed):
    """The same by a simulated client."""
    asked, ended, now = [], [], 0.0
    caller = Caller(think=1.0, again=1.0, timeout=60.0, failed=lambda at: None, pace=Random(0))
    client = Guarded(policy, caller, Random(seed))
    for _ in range(CALLS):
        call, told = client.call(now), None
        try:
            while True:
                request = call.send(told)
                asked.append((request.at, None if policy.timeout is None else request.timeout))
                fate, takes = next(script.fates)
                told = (fate, request.at + takes)
        except StopIteration as stop:
            end = stop.value
        ended.append((end.at, end.answered, end.retry_in))
        now = end.at + (end.retry_in or next(script.pauses))
    return asked, ended


def held_together(fates, pauses, *, seed=1, retry_after=None, **options):
    clock = FakeClock()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", redrive.PolicyWarning)
        service = redrive.Service("vendor", clock=clock, random=Random(seed), **options)
    policy = Policy.of(service, retry_after=retry_after)
    simulated = by_the_simulation(policy, Script(fates, pauses), seed)
    real = by_the_product(service, clock, Script(fates, pauses), retry_after)
    assert simulated == real
    return real


@settings(max_examples=examples(250))
@given(
    fates=scripts,
    pauses=st.lists(seconds, min_size=1, max_size=5),
    seed=st.integers(0, 1_000),
    retry=st.none() | retries,
    breaker=st.none() | breakers,
    budget=st.none() | budgets,
    timeout=st.none() | st.floats(0.1, 100.0),
    retry_after=st.none() | st.integers(1, 60),
    rules=rules,
)
def test_simulated_attempts_waits_and_ends_are_the_products(rules, **given):
    classifier = redrive.Classifier()
    for error, kind in rules.items():
        classifier = classifier.rule(error, kind=kind)
    held_together(**given, classifier=classifier)


def test_default_policy_changes_state_like_the_product():
    outage = [
        (RequestOutcome.RESET, 20.0),
        *[(RequestOutcome.REFUSED, 0.0)] * 8,
        *[(RequestOutcome.ANSWERED, 20.0)] * 50,
    ]
    asked, ended = held_together(outage, [10.0])
    assert len(asked) == 9 + sum(answered for _, answered, _ in ended)
    waited = [retry_in for _, answered, retry_in in ended if not answered and retry_in]
    rest, *probes = waited  # ten seconds of the first cool-down are over when the caller asks again
    assert 14 <= rest <= 26
    assert len(probes) == 4
    assert all(24 <= wait <= 36 for wait in probes)


@pytest.mark.parametrize("fate", [fate for fate in RequestOutcome if fate is not RequestOutcome.ANSWERED])
def test_request_outcomes_are_judged_by_the_real_classifier(fate):
    kind = type(errors(None)[fate])
    mine = redrive.Service("mine", classifier=redrive.Classifier().rule(kind, kind="permanent"))
    assert Policy.of(redrive.Service("plain")).verdicts[fate].kind == "transient"
    assert Policy.of(mine).verdicts[fate].kind == "permanent"


def test_503_has_the_retry_after_of_the_scenario():
    verdict = Policy.of(redrive.Service("plain"), retry_after=17).verdicts[RequestOutcome.UNAVAILABLE]
    assert (verdict.kind, verdict.retry_after) == ("rate_limited", 17)


def test_policy_without_a_breaker_has_no_cooldown_jitter():
    plain = Policy.of(redrive.Service("plain", breaker=None))
    assert plain.without_jittered_cooldown() == plain
    assert Policy.of(redrive.Service("guarded")).without_jittered_cooldown().breaker == redrive.Breaker(jitter=0.0)


@pytest.mark.parametrize(
    "options",
    [
        {"breaker": redrive.Breaker(failures=2, rate=0.5), "budget": None},
        {"breaker": None, "budget": redrive.RetryBudget(ratio=0.2, reserve=0)},
    ],
    ids=["breaker", "budget"],
)
def test_recent_successes_count_when_a_call_fails(options):
    """A client counts them by the second, so that the last ones are counted only now: they keep the circuit closed, and
    pay for the retries.
    """
    dense = [
        *[(RequestOutcome.ANSWERED, 0.001)] * 20,
        *[(RequestOutcome.REFUSED, 0.0)] * 4,
        (RequestOutcome.ANSWERED, 0.001),
    ]
    _, ended = held_together(dense, [0.001], retry=redrive.Retry(base=0.01, cap=0.01), **options)
    assert all(answered for _, answered, _ in ended[:21])
