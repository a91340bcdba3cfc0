"""What the tasks of one service have in common."""

import math

import pytest

import redrive
from redrive.model.calls import Kind, Verdict
from redrive.policy.breaker import Breaker
from redrive.tasks.executor.concurrency import ServiceGroup, ServiceLimiter
from redrive.tasks.workers.messages import AttemptEnd, TaskOutcome
from redrive.testing import FakeClock

GOOD = TaskOutcome(ticket=1, ended=AttemptEnd.RETURNED, seconds=0.1)


def failed(kind, ended=AttemptEnd.RAISED):
    return TaskOutcome(ticket=1, ended=ended, seconds=0.1, verdict=Verdict(kind, "why", "test"))


@pytest.fixture
def clock():
    return FakeClock()


def turnstile_of(clock, **options):
    breaker = Breaker(failures=2, cooldown=30, probes=1, jitter=0)
    service = redrive.Service("bank", breaker=breaker, clock=clock)
    return ServiceLimiter(ServiceGroup("bank", service, **options), clock)


def broken(clock, **options):
    turnstile = turnstile_of(clock, **options)
    for _ in range(2):
        turnstile.end(turnstile.begin(), failed(Kind.TRANSIENT))
    assert turnstile.open
    return turnstile


def test_without_limits_there_is_room_for_all(clock):
    assert turnstile_of(clock).room().tasks == math.inf
    assert ServiceLimiter(ServiceGroup("bank", None), clock).room().tasks == math.inf


def test_no_more_run_at_once_than_the_limit(clock):
    turnstile = turnstile_of(clock, concurrency=2)
    assert turnstile.room().tasks == 2
    permits = [turnstile.begin(), turnstile.begin()]
    assert turnstile.room().tasks == 0
    turnstile.end(permits[0], GOOD)
    assert turnstile.room().tasks == 1


def test_they_begin_no_faster_than_the_rate(clock):
    turnstile = turnstile_of(clock, rate=2)
    assert turnstile.room().tasks == 1
    turnstile.begin()
    assert (turnstile.room().tasks, turnstile.room().ask_in) == (0, 0.5)
    clock.advance(0.5)
    assert turnstile.room().tasks == 1


@pytest.mark.parametrize("kind", [Kind.TRANSIENT, Kind.RATE_LIMITED])
def test_failures_that_the_service_is_to_blame_for_open_its_circuit_and_the_rest_is_held(clock, kind):
    turnstile = turnstile_of(clock)
    for _ in range(2):
        turnstile.end(turnstile.begin(), failed(kind))
    room = turnstile.room()
    assert (room.tasks, room.ask_in, room.why) == (0, 30, "bank is down, next try in 30 s")


@pytest.mark.parametrize("kind", [Kind.AMBIGUOUS, Kind.PERMANENT, Kind.ROW])
def test_a_failure_of_the_tasks_own_says_nothing_about_the_service(clock, kind):
    turnstile = turnstile_of(clock)
    for _ in range(9):
        turnstile.end(turnstile.begin(), failed(kind))
    assert not turnstile.open


def test_after_the_cool_down_one_task_finds_out(clock):
    turnstile = broken(clock)
    clock.advance(30)
    room = turnstile.room()
    assert (room.tasks, room.probe is not None) == (1, True)
    assert turnstile.room().tasks == 0  # one at a time
    turnstile.end(turnstile.begin(room.probe), GOOD)
    assert turnstile.room().tasks == math.inf


def test_a_probe_that_fails_holds_the_rest_for_longer(clock):
    turnstile = broken(clock)
    clock.advance(30)
    turnstile.end(turnstile.begin(turnstile.room().probe), failed(Kind.TRANSIENT))
    assert (turnstile.room().tasks, turnstile.room().ask_in) == (0, 30)


def test_a_probe_that_nobody_was_there_for_can_be_made_later(clock):
    turnstile = broken(clock)
    clock.advance(30)
    turnstile.give_back(turnstile.room().probe)
    assert turnstile.room().probe is not None


def test_tasks_that_are_to_fail_while_the_service_is_down_are_let_in_for_that(clock):
    turnstile = broken(clock, when_open="fail")
    assert turnstile.room().tasks == math.inf
    assert turnstile.begin() is None
    clock.advance(30)
    assert turnstile.room().probe is not None


def test_a_probe_may_take_longer_than_the_lease_of_the_breaker(clock):
    turnstile = broken(clock)
    clock.advance(30)
    permit = turnstile.begin(turnstile.room().probe)
    clock.advance(600)
    assert (turnstile.room().tasks, turnstile.room().probe) == (0, None)
    turnstile.end(permit, GOOD)
    assert not turnstile.open
