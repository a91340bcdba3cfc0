"""Decisions of the retry policy, and the policies that it rejects or warns about."""

import math
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from redrive.errors import PolicyWarning
from redrive.model.calls import Kind, Repeat, Stop, Verdict
from redrive.policy.backoff import JITTERS
from redrive.policy.retry import CallProgress, Retry

CHANCE = random.Random(7)


def verdict(kind=Kind.TRANSIENT, retry_after=None):
    return Verdict(kind, "it broke", "test", retry_after)


def decide(policy, kind=Kind.TRANSIENT, *, attempts=1, elapsed=0.0, ambiguous=0, retry_after=None):
    return policy.decide(verdict(kind, retry_after), CallProgress(attempts, elapsed, ambiguous), CHANCE)


@pytest.mark.parametrize("kind", [Kind.RETRY_NOW, Kind.TRANSIENT, Kind.RATE_LIMITED, Kind.AMBIGUOUS])
def test_transient_failure_is_retried(kind):
    assert isinstance(decide(Retry(), kind), Repeat)


@pytest.mark.parametrize("kind", [Kind.PERMANENT, Kind.ROW, Kind.DISCARD, Kind.RESOURCE, Kind.AUTH, Kind.QUOTA])
def test_permanent_failure_is_not_retried_or_exhausted(kind):
    decision = decide(Retry(), kind)
    assert isinstance(decision, Stop)
    assert not decision.spent


def test_attempts_are_bounded():
    assert isinstance(decide(Retry(attempts=3), attempts=2), Repeat)
    stop = decide(Retry(attempts=3), attempts=3)
    assert isinstance(stop, Stop)
    assert stop.spent


def test_ambiguous_error_has_a_small_budget_of_its_own():
    assert isinstance(decide(Retry(), Kind.AMBIGUOUS, attempts=2, ambiguous=2), Repeat)
    assert isinstance(decide(Retry(), Kind.AMBIGUOUS, attempts=3, ambiguous=3), Stop)


def test_deadline_is_checked_before_sleeping():
    policy = Retry(base=4, cap=4, jitter="none", within=10)
    assert isinstance(decide(policy, elapsed=5.9), Repeat)
    stop = decide(policy, elapsed=6.0)
    assert isinstance(stop, Stop)
    assert "does not fit" in stop.why


@given(st.floats(0, 1000), st.integers(0, 1000))
def test_retry_after_is_a_floor_that_the_cap_does_not_shorten(retry_after, seed):
    policy = Retry(base=0.1, cap=1, within=5000)
    decision = policy.decide(verdict(Kind.RATE_LIMITED, retry_after), CallProgress(1, 0.0), random.Random(seed))
    assert isinstance(decision, Repeat)
    assert retry_after <= decision.wait <= max(retry_after * 1.5, 0.1)


class TestFloor:
    """What a server asks for is the least; the backoff counts where it is longer."""

    @pytest.mark.parametrize("asked", [0.0, 1.0, 4.9])
    def test_shorter_than_the_backoff_leaves_the_backoff(self, asked):
        policy = Retry(base=5, cap=60, jitter="none")
        assert decide(policy, Kind.RATE_LIMITED, retry_after=asked).wait == pytest.approx(5, abs=2.5)
        assert decide(policy, Kind.RATE_LIMITED, attempts=3, retry_after=asked).wait == 20

    def test_constant_second_grows_with_the_backoff(self):
        policy = Retry(base=1, cap=60)
        longest = [
            max(
                policy.decide(verdict(retry_after=1.0), CallProgress(made, 0.0), random.Random(seed)).wait
                for seed in range(50)
            )
            for made in (1, 2, 3, 4)
        ]
        assert longest == sorted(longest)
        assert longest[-1] > 5

    def test_429_without_a_wait_waits_thirty_seconds(self):
        limited = Verdict(Kind.RATE_LIMITED, "slow down", "test", status=429)
        for seed in range(50):
            assert 30 <= Retry().decide(limited, CallProgress(1, 0.0), random.Random(seed)).wait <= 45
            quick = Retry(rate_limit_wait=0, base=1, cap=1)
            assert quick.decide(limited, CallProgress(1, 0.0), random.Random(seed)).wait <= 1

    def test_other_limits_without_a_wait_back_off(self):
        assert decide(Retry(base=1, cap=1), Kind.RATE_LIMITED).wait <= 1


@given(st.floats(0.01, 1), st.integers(1, 9), st.integers(0, 1000))
def test_jitter_as_a_share_is_around_the_ramp(share, made, seed):
    policy = Retry(attempts=10, base=1, cap=8, within=1_000, jitter=share)
    top = min(8, 2 ** (made - 1))
    wait = policy.decide(verdict(), CallProgress(made, 0.0), random.Random(seed)).wait
    assert top * (1 - share) <= wait <= top * (1 + share)
    assert wait <= policy._longest(made)


def test_retry_after_beyond_the_deadline_fails_now():
    stop = decide(Retry(within=180), Kind.RATE_LIMITED, retry_after=3600)
    assert isinstance(stop, Stop)
    assert stop.retry_in == 3600


def test_retry_after_that_just_fits_is_obeyed():
    policy = Retry(within=10)
    for seed in range(100):
        decision = policy.decide(verdict(Kind.RATE_LIMITED, 9.9), CallProgress(1, 0.0), random.Random(seed))
        assert isinstance(decision, Repeat)
        assert 9.9 <= decision.wait < 10


def test_deadlock_is_retried_almost_at_once():
    assert all(decide(Retry(base=30), Kind.RETRY_NOW, attempts=n).wait <= 0.5 for n in range(1, 5))


policies = st.builds(
    Retry,
    attempts=st.integers(1, 10),
    base=st.floats(0, 10),
    multiplier=st.floats(1, 5),
    cap=st.floats(10, 100),
    jitter=st.sampled_from([jitter for jitter in JITTERS if jitter != "fixed"]),
    within=st.floats(10, 500),
)


@given(
    policies,
    st.lists(st.tuples(st.sampled_from(list(Kind)), st.none() | st.floats(0, 50)), max_size=30),
    st.floats(0, 20),
    st.integers(0, 99),
)
def test_call_never_exceeds_its_time_or_its_attempts(policy, failures, inside, seed):
    chance, elapsed, attempts, ambiguous, previous = random.Random(seed), 0.0, 0, 0, None
    for kind, retry_after in failures:
        attempts, elapsed, ambiguous = attempts + 1, elapsed + inside, ambiguous + (kind is Kind.AMBIGUOUS)
        decision = policy.decide(
            verdict(kind, retry_after), CallProgress(attempts, elapsed, ambiguous, previous), chance
        )
        if isinstance(decision, Stop):
            break
        assert attempts < policy.attempts
        assert elapsed + decision.wait < policy.within
        assert decision.wait >= (retry_after or 0)
        elapsed, previous = elapsed + decision.wait, decision.wait
    assert attempts <= policy.attempts


@given(policies, st.floats(0.01, 30), st.integers(0, 99))
def test_no_call_takes_longer_than_the_computed_worst_case(policy, timeout, seed):
    chance, elapsed, previous = random.Random(seed), 0.0, None
    for attempt in range(1, policy.attempts + 1):
        elapsed += timeout
        decision = policy.decide(verdict(), CallProgress(attempt, elapsed, 0, previous), chance)
        if isinstance(decision, Stop):
            break
        elapsed, previous = elapsed + decision.wait, decision.wait
    assume(math.isfinite(elapsed))
    assert elapsed <= policy.worst_case(timeout=timeout) * (1 + 1e-9)


def test_worst_case_of_the_defaults_is_15_seconds_of_waiting():
    assert Retry().worst_case() == 1 + 2 + 4 + 8
    assert Retry().worst_case(timeout=10) == 1 + 2 + 4 + 8 + 5 * 10


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"attempts": 0}, "attempts must be a whole number of 1 or more, not 0"),
        ({"attempts": 2.5}, "attempts must be a whole number of 1 or more, not 2.5"),
        ({"base": -1}, "base must be a finite number of seconds of 0 or more, not -1"),
        ({"base": math.nan}, "base must be a finite number of seconds of 0 or more, not nan"),
        ({"cap": 0.5}, "cap must not be below base: 0.5 s is less than 1 s"),
        ({"within": 0}, "within must be a finite number of seconds above 0, not 0"),
        ({"within": math.inf}, "within must be a finite number of seconds above 0, not inf"),
        ({"base": 10**400}, "base must be a finite number of seconds of 0 or more, not 1000"),
        ({"multiplier": True}, "multiplier must be a finite number of 1 or more, not True"),
        ({"multiplier": 0.5}, "multiplier must be a finite number of 1 or more, not 0.5"),
        (
            {"jitter": "some"},
            "jitter must be one of none, equal, full, decorrelated, fixed, or a number above 0 up to 1, not 'some'",
        ),
        ({"ambiguous": -1}, "ambiguous must be a whole number of 0 or more, not -1"),
        ({"on": ["permanent"]}, "on may hold ambiguous, rate_limited, retry_now, transient, not permanent"),
        ({"on": ["sometimes"]}, "on may hold ambiguous, rate_limited, retry_now, transient, not sometimes"),
    ],
)
def test_invalid_policy_is_rejected_in_one_sentence(options, sentence):
    with pytest.raises(ValueError) as refusal:
        Retry(**options)
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_retried_verdicts_can_be_narrowed_by_name():
    policy = Retry(on=["transient"])
    assert isinstance(decide(policy, Kind.TRANSIENT), Repeat)
    assert isinstance(decide(policy, Kind.AMBIGUOUS), Stop)


def test_many_attempts_and_fixed_delay_warn_with_a_reason():
    with pytest.warns(PolicyWarning, match="hides an outage"):
        Retry(attempts=11)
    with pytest.warns(PolicyWarning, match="come back together"):
        Retry(jitter="fixed")


def test_waits_that_do_not_fit_the_call_are_a_concern():
    (concern,) = Retry(base=500, cap=600, within=10).concerns()
    assert concern.startswith("base 500 s is longer than within 10 s: ")
    assert Retry(attempts=1, base=500, cap=600, within=10).concerns() == []


def test_short_base_long_cap_and_slow_worst_case_are_concerns():
    assert Retry().concerns(round_trip=0.2, sla=300, timeout=1) == []
    (short,) = Retry(base=0.1).concerns(round_trip=0.4)
    assert "shorter than the usual round trip" in short
    cap, worst = Retry(cap=60).concerns(sla=10)
    assert "beyond the SLA" in cap
    assert "worst case of 15.0 s does not fit" in worst
    (patience,) = Retry(base=1, cap=4).concerns(sla=30)
    assert "waits that the server asks for may miss it" in patience
    assert Retry(base=1, cap=4, within=30).concerns(sla=30) == []


def test_exception_classes_are_not_kinds():
    with pytest.raises(TypeError, match="redrive retries by verdict"):
        Retry(on=TimeoutError)
    with pytest.raises(TypeError, match="redrive retries by verdict"):
        Retry(on=[ValueError])


def test_warning_points_at_the_users_own_line():
    with pytest.warns(PolicyWarning) as warned:
        Retry(attempts=11)
    assert warned[0].filename == __file__
