"""Limits, rates and circuits shared by the tasks of one service."""

import math

import pytest

import redrive
from redrive.model.calls import Kind, Verdict
from redrive.policy.breaker import Breaker
from redrive.tasks.executor.concurrency import ServiceGroup, ServiceLimiter
from redrive.tasks.workers.protocol import AttemptEnd, TaskOutcome
from redrive.testing import FakeClock

GOOD = TaskOutcome(ticket=1, ended=AttemptEnd.RETURNED, seconds=0.1)


def failed(kind, ended=AttemptEnd.RAISED):
    return TaskOutcome(ticket=1, ended=ended, seconds=0.1, verdict=Verdict(kind, "why", "test"))


@pytest.fixture
def clock():
    return FakeClock()


def limiter_of(clock, **options):
    breaker = Breaker(failures=2, cooldown=30, probes=1, jitter=0)
    service = redrive.Service("bank", breaker=breaker, clock=clock)
    return ServiceLimiter(ServiceGroup("bank", service, **options), clock)


def broken(clock, **options):
    limiter = limiter_of(clock, **options)
    for _ in range(2):
        limiter.end(limiter.begin(), failed(Kind.TRANSIENT))
    assert limiter.is_open
    return limiter


def test_group_without_limits_admits_all(clock):
    assert limiter_of(clock).check_capacity().tasks == math.inf
    assert ServiceLimiter(ServiceGroup("bank", None), clock).check_capacity().tasks == math.inf


def test_concurrent_tasks_do_not_exceed_the_limit(clock):
    limiter = limiter_of(clock, concurrency=2)
    assert limiter.check_capacity().tasks == 2
    permits = [limiter.begin(), limiter.begin()]
    assert limiter.check_capacity().tasks == 0
    limiter.end(permits[0], GOOD)
    assert limiter.check_capacity().tasks == 1


def test_starts_do_not_exceed_the_rate(clock):
    limiter = limiter_of(clock, rate=2)
    assert limiter.check_capacity().tasks == 1
    limiter.begin()
    assert (limiter.check_capacity().tasks, limiter.check_capacity().ask_in) == (0, 0.5)
    clock.advance(0.5)
    assert limiter.check_capacity().tasks == 1


@pytest.mark.parametrize("kind", [Kind.TRANSIENT, Kind.RATE_LIMITED])
def test_failures_of_the_service_open_the_circuit_and_block(clock, kind):
    limiter = limiter_of(clock)
    for _ in range(2):
        limiter.end(limiter.begin(), failed(kind))
    room = limiter.check_capacity()
    assert (room.tasks, room.ask_in, room.reason) == (0, 30, "bank is down, next try in 30 s")


@pytest.mark.parametrize("kind", [Kind.AMBIGUOUS, Kind.PERMANENT, Kind.ROW])
def test_tasks_own_failure_does_not_count_for_the_service(clock, kind):
    limiter = limiter_of(clock)
    for _ in range(9):
        limiter.end(limiter.begin(), failed(kind))
    assert not limiter.is_open


def test_one_task_probes_after_the_cooldown(clock):
    limiter = broken(clock)
    clock.advance(30)
    room = limiter.check_capacity()
    assert (room.tasks, room.probe is not None) == (1, True)
    assert limiter.check_capacity().tasks == 0  # one at a time
    limiter.end(limiter.begin(room.probe), GOOD)
    assert limiter.check_capacity().tasks == math.inf


def test_failed_probe_blocks_the_rest_for_longer(clock):
    limiter = broken(clock)
    clock.advance(30)
    limiter.end(limiter.begin(limiter.check_capacity().probe), failed(Kind.TRANSIENT))
    assert (limiter.check_capacity().tasks, limiter.check_capacity().ask_in) == (0, 30)


def test_missed_probe_can_be_made_later(clock):
    limiter = broken(clock)
    clock.advance(30)
    limiter.release_probe(limiter.check_capacity().probe)
    assert limiter.check_capacity().probe is not None


def test_tasks_that_fail_while_the_service_is_down_are_admitted(clock):
    limiter = broken(clock, when_open="fail")
    assert limiter.check_capacity().tasks == math.inf
    assert limiter.begin() is None
    clock.advance(30)
    assert limiter.check_capacity().probe is not None


def test_probe_may_take_longer_than_the_lease_of_the_breaker(clock):
    limiter = broken(clock)
    clock.advance(30)
    permit = limiter.begin(limiter.check_capacity().probe)
    clock.advance(600)
    assert (limiter.check_capacity().tasks, limiter.check_capacity().probe) == (0, None)
    limiter.end(permit, GOOD)
    assert not limiter.is_open
