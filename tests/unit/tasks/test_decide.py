"""The state of a task after an attempt."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.calls.testmode import TestMode
from redrive.model.calls import Kind, Verdict
from redrive.model.tasks import State
from redrive.policy.retry import FLOOR_JITTER, Retry
from redrive.tasks.executor.decide import AttemptHistory, decide
from redrive.tasks.graph import Node, SensorOptions
from redrive.tasks.parameters import Binding
from redrive.tasks.workers.protocol import AttemptEnd, TaskOutcome

HEALS = [Kind.RETRY_NOW, Kind.TRANSIENT, Kind.RATE_LIMITED]
SUSPECT = [Kind.AMBIGUOUS, Kind.RESOURCE]
FINAL = [Kind.PERMANENT, Kind.AUTH, Kind.QUOTA, Kind.ROW]


def node(*, attempts=3, poison=2, sensing=None, **retry):
    options = {"base": 2.0, **retry}
    policy = Retry(attempts=attempts, **options)
    return Node(name="settle", function=len, binding=Binding(), retry=policy, poison=poison, sensing=sensing)


def failed(kind=Kind.AMBIGUOUS, cause="ValueError@a:1", *, retry_after=None, ended=AttemptEnd.RAISED):
    verdict = Verdict(kind, "why", "test", retry_after=retry_after)
    return TaskOutcome(ticket=1, ended=ended, seconds=0.1, verdict=verdict, error=f"{cause} said", fingerprint=cause)


def returned(truth=True):
    return TaskOutcome(ticket=1, ended=AttemptEnd.RETURNED, seconds=0.1, result="1", truth=truth)


STOPPED = TaskOutcome(ticket=1, ended=AttemptEnd.STOPPED, seconds=0.1)


def fate(task, outcomes, *, elapsed=0.0):
    """The decisions one after another, until it is over."""
    past, found = AttemptHistory(elapsed=elapsed), []
    for outcome in outcomes:
        following = decide(task, past, outcome, random.Random(1))
        found.append(following)
        if following.wait is None:
            break
        past = AttemptHistory(
            following.failures, following.same, following.fingerprint, following.wait, elapsed, following.lost
        )
    return found


def states(task, outcomes):
    return [following.state for following in fate(task, outcomes)]


# ── poison ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", SUSPECT)
def test_same_cause_twice_in_a_row_is_poisoned(kind):
    assert states(node(attempts=10), [failed(kind), failed(kind)]) == [State.RETRYING, State.DEAD_LETTER]


def test_alternating_causes_use_all_retries():
    causes = [failed(cause="a"), failed(cause="b")] * 2
    assert states(node(attempts=5), [*causes, returned()]) == [State.RETRYING] * 4 + [State.SUCCESS]


def test_task_of_alternating_causes_becomes_a_dead_letter():
    causes = [failed(cause="a"), failed(cause="b"), failed(cause="a")]
    last = fate(node(attempts=3), causes)[-1]
    assert last.state is State.DEAD_LETTER
    assert last.cause == "all 3 attempts are used: a said"


def test_timeout_between_two_failures_breaks_the_row():
    between = [failed(cause="a"), failed(Kind.TRANSIENT, "timeout", ended=AttemptEnd.TIMED_OUT), failed(cause="a")]
    assert states(node(attempts=9), between) == [State.RETRYING] * 3


def test_second_death_by_signal_is_poisoned():
    died = failed(Kind.AMBIGUOUS, "SIGSEGV", ended=AttemptEnd.DIED)
    last = fate(node(), [died, died])[-1]
    assert last.state is State.DEAD_LETTER
    assert last.cause == "poison, 2 times in a row at the same place: SIGSEGV said"


def test_number_of_failures_that_poison_is_a_setting():
    assert states(node(attempts=9, poison=1), [failed()]) == [State.DEAD_LETTER]
    assert states(node(attempts=9, poison=4), [failed()] * 9) == [State.RETRYING] * 3 + [State.DEAD_LETTER]


@pytest.mark.parametrize("kind", HEALS)
def test_transient_error_is_never_poisoned(kind):
    same = [failed(kind, "timeout@a:1")] * 5
    assert states(node(attempts=4, poison=1), same) == [State.RETRYING] * 3 + [State.FAILED]


@pytest.mark.parametrize("kind", FINAL)
def test_permanent_error_is_a_dead_letter_at_once(kind):
    only = fate(node(attempts=9), [failed(kind)])
    assert [one.state for one in only] == [State.DEAD_LETTER]
    assert (only[0].kind, only[0].wait) == (kind, None)


def test_first_failure_without_a_retry_is_the_last():
    assert states(node(attempts=1), [failed(Kind.TRANSIENT)]) == [State.FAILED]
    assert states(node(attempts=1), [failed(Kind.AMBIGUOUS)]) == [State.DEAD_LETTER]


def test_discarded_task_is_done():
    only = fate(node(), [failed(Kind.DISCARD)])[0]
    assert (only.state, only.cause) == (State.SUCCESS, "discarded on purpose: ValueError@a:1 said")


# ── waits ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_wait_of_the_service_is_a_floor_for_every_policy():
    asked = failed(Kind.RATE_LIMITED, retry_after=4_000.0)
    assert 4_000 <= fate(node(cap=10.0), [asked])[0].wait <= 4_000 * (1 + FLOOR_JITTER)


@pytest.mark.parametrize("asked", [86_400.0, 86_401.0, 10 * 86_400.0, 999_999_999.0, float("inf")])
def test_retry_after_of_a_task_counts_for_a_day_at_most(asked):
    only = fate(node(), [failed(Kind.RATE_LIMITED, retry_after=asked)])[0]
    assert only.state is State.RETRYING
    assert 86_400 <= only.wait <= 86_400 * (1 + FLOOR_JITTER)
    assert only.capped == (asked if asked > only.wait else None)


def test_backoff_longer_than_a_day_is_not_capped():
    week = node(base=7 * 86_400.0, cap=7 * 86_400.0, jitter="none")
    only = fate(week, [failed(Kind.RATE_LIMITED, retry_after=60.0)])[0]
    assert (only.wait, only.capped) == (7 * 86_400.0, None)


def test_waits_grow_and_are_stored():
    waits = [one.wait for one in fate(node(attempts=5, jitter="none"), [failed(Kind.TRANSIENT)] * 4)]
    assert waits == [2.0, 4.0, 8.0, 16.0]


def test_elapsed_time_counts_only_with_a_limit():
    def at(elapsed, **retry):
        return decide(node(**retry), AttemptHistory(elapsed=elapsed), failed(Kind.TRANSIENT), random.Random(1)).state

    assert at(1e6) is State.RETRYING
    assert at(30.0, within=60.0) is State.RETRYING
    assert at(61.0, within=60.0) is State.FAILED
    assert at(181.0, within=180.0) is State.FAILED  # as long as the default, and set all the same


def test_waits_and_attempts_are_capped_in_test_mode():
    once = decide(
        node(base=60.0), AttemptHistory(), failed(Kind.TRANSIENT), random.Random(1), TestMode(longest_wait=0.0)
    )
    assert (once.state, once.wait) == (State.RETRYING, 0.0)
    most = decide(
        node(attempts=9), AttemptHistory(failures=1), failed(Kind.TRANSIENT), random.Random(1), TestMode(attempts=2)
    )
    assert most.state is State.FAILED


# ── being stopped ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_37_stop_does_not_count_as_a_failure():
    past = AttemptHistory(failures=2, same=1, fingerprint="a", wait=4.0)
    after = decide(node(), past, STOPPED, random.Random(1))
    assert (after.state, after.wait) == (State.READY, 0.0)
    assert (after.failures, after.same, after.fingerprint) == (2, 1, "a")
    assert (
        decide(node(sensing=SensorOptions(every=1, timeout=9)), past, STOPPED, random.Random(1)).state is State.SENSING
    )


def test_two_failures_around_a_stop_are_in_a_row():
    assert states(node(attempts=9), [failed(), STOPPED, failed()])[-1] is State.DEAD_LETTER


# ── sensors ───────────────────────────────────────────────────────────────────────────────────────────────────────────

SENSOR = node(sensing=SensorOptions(every=30, timeout=100))


def test_sensor_is_called_until_it_returns_true():
    found = fate(SENSOR, [returned(False), returned(False), returned(True)])
    assert [(one.state, one.wait) for one in found] == [
        (State.SENSING, 30),
        (State.SENSING, 30),
        (State.SUCCESS, None),
    ]


def test_sensor_is_called_a_last_time_at_its_timeout():
    assert fate(SENSOR, [returned(False)], elapsed=60)[0].wait == 30
    (last_but_one,) = fate(SENSOR, [returned(False)], elapsed=80)
    assert (last_but_one.state, last_but_one.wait) == (State.SENSING, pytest.approx(19.9))  # the question took 0.1 s
    (last,) = fate(SENSOR, [returned(False)], elapsed=99.95)
    assert (last.state, last.kind) == (State.FAILED, Kind.TRANSIENT)
    assert last.error == "was not true within 100 s"


def test_sensor_that_returns_resets_its_failures():
    broken, no = failed(Kind.TRANSIENT, "down"), returned(False)
    assert set(states(SENSOR, [broken, broken, no] * 4)) == {State.SENSING}
    assert states(SENSOR, [broken] * 3) == [State.SENSING, State.SENSING, State.FAILED]


def test_sensor_that_fails_twice_at_one_line_is_poisoned():
    assert states(SENSOR, [failed(), failed()]) == [State.SENSING, State.DEAD_LETTER]


# ── whatever comes ────────────────────────────────────────────────────────────────────────────────────────────────────

anything = st.one_of(
    st.builds(failed, st.sampled_from([*HEALS, *SUSPECT, *FINAL, Kind.DISCARD]), st.sampled_from(["a", "b"])),
    st.builds(returned, st.booleans()),
    st.just(STOPPED),
)


@given(st.lists(anything, max_size=30), st.integers(1, 6), st.integers(1, 4), st.booleans())
def test_final_state_of_a_task_follows_from_its_failures(outcomes, attempts, poison, senses):
    sensing = SensorOptions(every=1, timeout=1e6) if senses else None
    found = fate(node(attempts=attempts, poison=poison, sensing=sensing), outcomes)
    waiting = {State.SENSING} if senses else {State.RETRYING, State.READY}
    for number, following in enumerate(found):
        outcome = outcomes[number]
        assert (following.wait is not None) == (following.state in waiting)
        assert following.failures <= attempts
        if following.state is State.DEAD_LETTER:
            assert outcome.verdict.kind in [*SUSPECT, *FINAL]
        if following.state is State.FAILED:
            assert outcome.verdict.kind in HEALS
            assert following.failures == attempts
        if following.state in waiting and outcome.verdict is not None and outcome.verdict.kind in SUSPECT:
            assert following.same < poison
    if not senses:
        assert sum(one.state is State.RETRYING for one in found) < attempts


# ── executors that die ────────────────────────────────────────────────────────────────────────────────────────────────

LOST = TaskOutcome(
    ticket=1, ended=AttemptEnd.LOST, seconds=0.1, verdict=Verdict(Kind.TRANSIENT, "died", "test"), error="died"
)


def test_attempt_lost_with_its_executor_costs_no_retry():
    assert states(node(attempts=1), [LOST, LOST, returned()]) == [State.READY, State.READY, State.SUCCESS]


def test_34_task_that_killed_ten_executors_is_a_dead_letter():
    assert states(node(attempts=1), [LOST] * 19) == [State.READY] * 9 + [State.DEAD_LETTER]


def test_lost_executors_do_not_hide_a_poisoned_task():
    bug = failed(Kind.AMBIGUOUS)
    assert states(node(), [bug, LOST, bug]) == [State.RETRYING, State.READY, State.DEAD_LETTER]


def test_only_executors_lost_in_a_row_count():
    lost = [LOST] * 9
    expected = [State.READY] * 9 + [State.RETRYING] + [State.READY] * 9 + [State.SUCCESS]
    assert states(node(attempts=2), [*lost, failed(Kind.TRANSIENT), *lost, returned()]) == expected


def test_sensor_that_raises_fails_at_its_timeout():
    sensor = node(
        attempts=10, sensing=SensorOptions(every=1, timeout=60), jitter="none", base=20.0, multiplier=1, cap=20.0
    )
    away = failed(Kind.TRANSIENT)
    assert fate(sensor, [away], elapsed=50)[0].wait == pytest.approx(9.9)
    (last,) = fate(sensor, [away], elapsed=60)
    assert (last.state, last.cause.startswith("was not true within 60 s")) == (State.FAILED, True)
