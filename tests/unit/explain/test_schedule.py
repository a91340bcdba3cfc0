"""The schedule of a policy matches `Retry.decide`: within its bounds, with the same number of attempts."""

import math
import random
import warnings
from contextlib import contextmanager
from statistics import fmean, stdev
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.explain import UnclearQuestion
from redrive.explain import schedule as explained
from redrive.explain.schedule import MOST_ATTEMPTS, Duration, schedule
from redrive.model.calls import Kind, Repeat, Verdict
from redrive.policy.backoff import JITTERS
from redrive.policy.retry import REPEATABLE, CallProgress, Retry
from tests.support.examples import examples


def retry(**options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fixed delay is not good, and is explained all the same
        return Retry(**options)


def call(policy, verdict, inside, chance):
    """How many attempts one call made that never succeeded, and when each of them began; the end is the last."""
    elapsed, previous, moments = 0.0, None, []
    for made in range(1, 10_000):
        moments.append(elapsed)
        elapsed += inside
        ambiguous = made if verdict.kind is Kind.AMBIGUOUS else 0
        decision = policy.decide(verdict, CallProgress(made, elapsed, ambiguous, previous), chance)
        if not isinstance(decision, Repeat):
            return [*moments, elapsed]
        previous = decision.wait
        elapsed += previous
    raise AssertionError("a policy has an end")


@contextmanager
def few_calls():
    """Bounds do not depend on how many calls are simulated for the means."""
    with patch.multiple(explained, _DECISIONS=100, _FEWEST_CALLS=20):
        yield


lengths = st.floats(0, 50).map(lambda length: round(length, 3))
policies = st.builds(
    lambda base, more, **options: retry(base=base, cap=base + more, **options),
    base=lengths,
    more=lengths,
    attempts=st.integers(1, 9),
    multiplier=st.floats(1, 4),
    jitter=st.sampled_from(JITTERS),
    within=st.floats(0.1, 300),
    ambiguous=st.integers(0, 4),
)
verdicts = st.builds(
    lambda kind, wait: Verdict(kind, "it broke", "test", wait if kind is Kind.RATE_LIMITED else None),
    st.sampled_from(sorted(REPEATABLE)),
    st.none() | lengths,
)


@settings(max_examples=examples(150), deadline=None)
@given(policies, verdicts, st.just(0.0) | lengths, st.integers())
def test_every_call_is_between_the_best_and_the_worst_case(policy, verdict, inside, seed):
    with few_calls():
        found = schedule(policy, verdict, inside=inside)
    chance, slack = random.Random(seed), 1e-6
    for _ in range(30):
        *starts, end = call(policy, verdict, inside, chance)
        assert found.total.best - slack <= end <= found.total.worst + slack
        for moment, start in zip(starts, found.starts, strict=False):
            assert start.at.best - slack <= moment <= start.at.worst + slack
        if not found.cut:
            assert len(starts) == len(found.starts)


@settings(max_examples=examples(100), deadline=None)
@given(policies, st.just(0.0) | lengths)
def test_worst_case_is_at_most_that_of_the_policy(policy, inside):
    with few_calls():
        found = schedule(policy, inside=inside)
    assert found.total.worst <= policy.worst_case(timeout=inside) + max(0.0, inside - policy.within) + 1e-6
    assert found.total.best <= found.total.mean <= found.total.worst


MEANT = [
    (retry(), 0.0),
    (retry(), 10.0),
    (retry(jitter="equal"), 1.0),
    (retry(jitter="none"), 0.0),
    (retry(jitter="fixed", base=3), 0.5),
    (retry(jitter="decorrelated"), 0.0),
    (retry(jitter="decorrelated", cap=5), 2.0),
    (retry(jitter="decorrelated", within=20), 0.0),
    (retry(attempts=8, base=10, within=100), 0.0),
    (retry(within=5), 2.0),
    (retry(attempts=9, base=5, cap=5, within=12), 1.0),
]


@pytest.mark.parametrize(("policy", "inside"), MEANT)
def test_mean_is_that_of_many_calls(policy, inside):
    verdict = Verdict(Kind.TRANSIENT, "it broke", "test")
    found = schedule(policy, verdict, inside=inside)
    chance = random.Random(23)
    calls = [call(policy, verdict, inside, chance) for _ in range(3_000)]
    ends = [one[-1] for one in calls]
    error = 5 * stdev(ends) / math.sqrt(len(ends)) * (2 if found.calls else 1) + 1e-9
    assert found.total.mean == pytest.approx(fmean(ends), abs=error)
    for place, start in enumerate(found.starts):
        made = [one[place] for one in calls if len(one) > place + 1]
        assert start.chance == pytest.approx(len(made) / len(calls), abs=0.05)


def test_default_policy_has_figures_that_can_be_checked_by_hand():
    found = schedule(Retry())
    assert found.total == Duration(0.0, 7.5, 15.0)  # 1 + 2 + 4 + 8, and half of it
    assert [one.at.worst for one in found.starts] == [0, 1, 3, 7, 15]
    assert [one.wait.mean for one in found.starts] == [0, 0.5, 1, 2, 4]
    assert schedule(Retry(), inside=10).total == Duration(50.0, 57.5, 65.0)
    assert found.calls == 0  # nothing had to be simulated


def test_decorrelated_waits_have_their_own_mean():
    found = schedule(retry(jitter="decorrelated", cap=1_000, within=10_000))
    assert [one.wait.mean for one in found.starts] == [0, 2, 3.5, 5.75, 9.125]
    assert [one.wait.worst for one in found.starts] == [0, 3, 9, 27, 81]


def test_wait_of_the_server_is_a_floor():
    limited = Verdict(Kind.RATE_LIMITED, "slow down", "test", 30.0)
    assert schedule(Retry(within=200), limited).total == Duration(120.0, 150.0, 180.0)
    cut = schedule(Retry(within=100), limited)
    assert (len(cut.starts), cut.cut) == (4, True)
    assert cut.total.best == pytest.approx(70)  # after two long waits, a third does not fit


def test_ambiguous_error_has_its_own_number_of_retries():
    assert len(schedule(Retry(), Verdict(Kind.AMBIGUOUS, "who knows", "test")).starts) == 3


def test_unretried_error_is_one_attempt():
    found = schedule(Retry(), Verdict(Kind.PERMANENT, "no", "test"), inside=2)
    assert (len(found.starts), found.total, found.cut) == (1, Duration(2, 2, 2), False)


def test_call_ended_by_another_limit_is_shorter():
    assert schedule(Retry(), most=3).total == Duration(0.0, 1.5, 3.0)


def test_policy_without_waits_and_end_is_rejected():
    with pytest.raises(UnclearQuestion, match=f"more than {MOST_ATTEMPTS:,} attempts within its 180 s"):
        schedule(retry(attempts=10**9, base=0, cap=0))


def test_policy_of_countless_attempts_is_explained_by_its_time():
    found = schedule(retry(attempts=10**9, base=10, cap=10, jitter="none", within=100))
    assert len(found.starts) == 10
    assert found.total == Duration(90.0, 90.0, 90.0)


def test_same_question_has_the_same_result():
    policy = retry(attempts=8, base=10, within=100)
    assert schedule(policy) == schedule(policy)
