"""The state machine of the breaker: a random walk against a model, then each rule by name."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from redrive.policy.breaker import Breaker, CircuitMachine, CircuitState
from tests.support.examples import examples

OPTIONS = Breaker(failures=3, window=10.0, cooldown=5.0, probes=2, rate=0, jitter=0.2, lease=4.0)


class Interleavings(RuleBasedStateMachine):
    """Calls start, end in any order or are lost, others report, time passes; a naive model has the expected state."""

    permits = Bundle("permits")

    @initialize(seed=st.integers(0, 10_000))
    def start(self, seed):
        self.machine = CircuitMachine(OPTIONS, random.Random(seed))
        self.now = 100.0
        self.failed_at = []
        self.due = None  # between when and when the next probe is let through, while open
        self.own = False  # whether it stands where it does by its own evidence
        self.probe = None  # (permit, since) while one is out
        self.probed = 0
        self.closed_permits = set()

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 3.9, 4.1, 6.1, 11.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @rule(target=permits)
    def a_call_begins(self):
        before = self.machine.state
        permit = self.machine.admit(self.now)
        if before is CircuitState.CLOSED:
            assert permit is not None
            self.closed_permits.add(permit)
            return permit
        if permit is None:
            if before is CircuitState.OPEN:
                assert self.now < self.due[1]
            else:
                assert self.probe is not None
                assert self.now < self.probe[1] + OPTIONS.lease
            return multiple()
        if before is CircuitState.OPEN:
            assert self.now >= self.due[0]
            self.probed = 0
        else:
            assert self.probe is None or self.now >= self.probe[1] + min(OPTIONS.lease, OPTIONS.cooldown / 10)
        assert self.machine.state is CircuitState.HALF_OPEN
        self.probe = (permit, self.now)
        return permit

    @rule(permit=consumes(permits))
    def it_succeeds(self, permit):
        before, valid = self.machine.state, permit.generation == self.machine.generation
        self.machine.succeeded(permit, self.now)
        if before is CircuitState.HALF_OPEN and valid:
            self.probe, self.probed = None, self.probed + 1
            expected = CircuitState.CLOSED if self.probed == OPTIONS.probes else CircuitState.HALF_OPEN
            assert self.machine.state is expected
            if expected is CircuitState.CLOSED:
                self.failed_at, self.own = [], True
        else:
            assert self.machine.state is before

    @rule(permit=consumes(permits))
    def it_fails(self, permit):
        before, valid = self.machine.state, permit.generation == self.machine.generation
        self.machine.failed(permit, self.now)
        if not valid:
            assert self.machine.state is before
        elif before is CircuitState.CLOSED:
            self.failed_at = [at for at in [*self.failed_at, self.now] if self.now - at <= OPTIONS.window]
            assert self.machine.state is (
                CircuitState.OPEN if len(self.failed_at) >= OPTIONS.failures else CircuitState.CLOSED
            )
        else:
            assert self.machine.state is CircuitState.OPEN
        if before is not CircuitState.OPEN and self.machine.state is CircuitState.OPEN:
            self.due, self.probe, self.own = (self.now + 5.0 * 0.8, self.now + 5.0 * 1.2), None, True

    @rule(permit=consumes(permits))
    def it_ends_neutral_or_cancelled(self, permit):
        before, valid = self.machine.state, permit.generation == self.machine.generation
        self.machine.released(permit)
        assert self.machine.state is before
        if before is CircuitState.HALF_OPEN and valid:
            self.probe = None

    @rule(permit=consumes(permits))
    def it_is_lost(self, permit):
        """The outcome of the call is lost."""

    @rule(retry_in=st.floats(0.1, 100))
    def others_say_open(self, retry_in):
        before, generation = self.machine.state, self.machine.generation
        self.machine.apply_remote_open(self.now, retry_in)
        if before is CircuitState.CLOSED:
            assert self.machine.state is CircuitState.OPEN
            assert self.machine.generation > generation  # what is in flight is void
            least = min(retry_in, OPTIONS.cooldown)
            self.due, self.own, self.failed_at = (self.now + least * 0.8, self.now + least * 1.2), False, []
        else:
            assert (self.machine.state, self.machine.generation) == (before, generation)

    @rule()
    def others_say_closed(self):
        before, generation, wait = self.machine.state, self.machine.generation, self.machine.retry_in(self.now)
        self.machine.apply_remote_close(self.now)
        assert (self.machine.state, self.machine.generation) == (before, generation)
        assert self.machine.retry_in(self.now) <= wait
        if before is CircuitState.OPEN and self.machine.retry_in(self.now) < wait:
            self.due = (self.now, self.now + OPTIONS.cooldown * 0.2)

    @rule()
    def somebody_resets_all(self):
        before = self.machine.state
        self.machine.apply_remote_reset(self.now)
        assert self.machine.state is CircuitState.CLOSED
        if before is not CircuitState.CLOSED:
            self.failed_at, self.probe, self.own = [], None, False

    @invariant()
    def it_tells_others_only_what_it_has_seen_itself(self):
        if hasattr(self, "machine"):
            own_report = self.machine.own_report()
            assert (own_report is not None) == self.own
            assert own_report is None or own_report.open == (self.machine.state is not CircuitState.CLOSED)

    @invariant()
    def an_attempt_is_let_through_sooner_or_later(self):
        if hasattr(self, "machine"):
            assert 0 <= self.machine.retry_in(self.now) <= max(OPTIONS.cooldown * 1.2, OPTIONS.lease)


Interleavings.TestCase.settings = settings(max_examples=examples(400), stateful_step_count=60, deadline=None)
TestInterleavings = Interleavings.TestCase


class Chance:
    """Always the middle."""

    def uniform(self, low, high):
        return (low + high) / 2


def machine(**options):
    return CircuitMachine(Breaker(**{"failures": 3, "window": 10, "cooldown": 5, **options}), Chance())


def fail(breaker, times, now=0.0):
    for _ in range(times):
        breaker.failed(breaker.admit(now), now)


def half_open(**options):
    breaker = machine(**options)
    fail(breaker, 3)
    return breaker, breaker.admit(5.0)


def test_circuit_opens_after_enough_failures_in_the_window():
    breaker = machine()
    fail(breaker, 2)
    assert breaker.state is CircuitState.CLOSED
    fail(breaker, 1)
    assert breaker.state is CircuitState.OPEN


def test_successes_reported_late_do_not_close_an_open_circuit():
    breaker = machine()
    fail(breaker, 3)
    breaker.count_successes(1_000, 0.5)
    assert breaker.state is CircuitState.OPEN


def test_failures_spread_wider_than_the_window_do_not_open():
    breaker = machine()
    for second in (0.0, 6.0, 12.0, 18.0):
        fail(breaker, 1, second)
    assert breaker.state is CircuitState.CLOSED


def test_open_circuit_rejects_with_time_of_next_probe():
    breaker = machine()
    fail(breaker, 3)
    assert breaker.admit(1.0) is None
    assert breaker.retry_in(1.0) == pytest.approx(4.0)


def test_half_open_admits_one_probe_and_closes_after_two():
    breaker, first = half_open()
    assert breaker.admit(5.0) is None
    breaker.succeeded(first, 5.1)
    assert breaker.state is CircuitState.HALF_OPEN
    second = breaker.admit(5.2)
    breaker.succeeded(second, 5.3)
    assert breaker.state is CircuitState.CLOSED


def test_one_failed_probe_reopens_the_circuit():
    breaker, probe = half_open()
    breaker.failed(probe, 5.1)
    assert breaker.state is CircuitState.OPEN
    assert breaker.retry_in(5.1) == pytest.approx(5.0)


def test_neutral_outcome_in_half_open_returns_the_permit_only():
    breaker, probe = half_open()
    breaker.released(probe)
    assert breaker.state is CircuitState.HALF_OPEN
    assert breaker.admit(5.1) is not None


def test_lost_probe_is_replaced_and_its_late_report_is_void():
    breaker, lost = half_open(lease=10)
    assert breaker.admit(5.0 + 9.9) is None
    heir = breaker.admit(5.0 + 10.0)
    assert heir is not None
    breaker.failed(lost, 16.0)
    assert breaker.state is CircuitState.HALF_OPEN
    breaker.succeeded(heir, 16.0)
    breaker.succeeded(breaker.admit(16.0), 16.0)
    assert breaker.state is CircuitState.CLOSED


def test_call_started_while_closed_changes_no_later_state():
    breaker = machine()
    early = [breaker.admit(0.0) for _ in range(2)]
    fail(breaker, 3)
    probe = breaker.admit(5.0)
    breaker.failed(early[0], 5.0)
    breaker.succeeded(early[1], 5.0)
    assert breaker.state is CircuitState.HALF_OPEN
    breaker.succeeded(probe, 5.0)
    assert breaker.state is CircuitState.HALF_OPEN


def test_cooldowns_of_clients_that_opened_together_are_spread():
    waits = set()
    for seed in range(200):
        breaker = CircuitMachine(Breaker(failures=1, cooldown=30), random.Random(seed))
        fail(breaker, 1)
        waits.add(round(breaker.retry_in(0.0), 6))
    assert len(waits) > 190
    assert min(waits) >= 24
    assert max(waits) <= 36
    assert max(waits) - min(waits) > 10


def test_busy_healthy_service_stays_closed_despite_failures():
    breaker = machine(failures=5, window=60, rate=0.1)
    for second in range(300):  # 99 successes and a failure, every second, for five minutes
        breaker.count_successes(99, float(second))
        fail(breaker, 1, float(second))
    assert breaker.state is CircuitState.CLOSED
    for tick in range(300):  # then one call in five fails
        breaker.count_successes(4, 300 + tick / 10)
        fail(breaker, 1 if breaker.state is CircuitState.CLOSED else 0, 300 + tick / 10)
    assert breaker.state is CircuitState.CLOSED  # not yet a tenth of the last minute's calls
    for tick in range(100):
        fail(breaker, 1 if breaker.state is CircuitState.CLOSED else 0, 330 + tick)
    assert breaker.state is CircuitState.OPEN


def test_rate_opens_only_after_enough_calls():
    breaker = machine(rate=0.5, minimum=10)
    fail(breaker, 9)
    assert breaker.state is CircuitState.CLOSED
    fail(breaker, 1)
    assert breaker.state is CircuitState.OPEN


def test_rate_tolerates_many_failures_among_more_successes():
    breaker = machine(rate=0.5, minimum=10)
    breaker.count_successes(100, 0.0)
    fail(breaker, 99)
    assert breaker.state is CircuitState.CLOSED
    fail(breaker, 1)
    assert breaker.state is CircuitState.OPEN


def test_circuit_can_be_reset():
    breaker = machine()
    fail(breaker, 3)
    breaker.reset(0.0)
    assert breaker.admit(0.0) is not None
    fail(breaker, 2)
    assert breaker.state is CircuitState.CLOSED


def test_circuits_opened_by_one_report_probe_at_different_times():
    waits = []
    for seed in range(200):
        breaker = CircuitMachine(Breaker(cooldown=30), random.Random(seed))
        breaker.apply_remote_open(0.0, 20.0)
        waits.append(breaker.retry_in(0.0))
    assert len(set(waits)) > 190
    assert min(waits) >= 16
    assert max(waits) <= 24


def test_report_keeps_no_circuit_open_beyond_its_own_cooldown():
    breaker = machine()
    breaker.apply_remote_open(0.0, 3600.0)
    assert breaker.retry_in(0.0) == pytest.approx(5.0)


def test_report_neither_shortens_nor_prolongs_a_cooldown():
    breaker = machine()
    fail(breaker, 3)
    breaker.apply_remote_open(1.0, 0.5)
    assert breaker.retry_in(1.0) == pytest.approx(4.0)
    breaker.apply_remote_open(4.9, 5.0)
    assert breaker.admit(5.0) is not None


def test_reported_recovery_leads_to_an_early_probe_only():
    breaker = machine(cooldown=30, jitter=0.2)
    fail(breaker, 3)
    breaker.apply_remote_close(1.0)
    assert breaker.state is CircuitState.OPEN
    assert breaker.retry_in(1.0) == pytest.approx(3.0)  # the middle of a fifth of the cool-down
    breaker.failed(breaker.admit(4.0), 4.0)
    assert breaker.state is CircuitState.OPEN
    assert breaker.retry_in(4.0) == pytest.approx(30.0)


def test_early_probe_happens_once_per_cooldown():
    breaker = machine(cooldown=30, jitter=0.2)
    fail(breaker, 3)
    breaker.apply_remote_close(1.0)
    breaker.failed(breaker.admit(4.0), 4.0)
    breaker.apply_remote_close(5.0)
    assert breaker.retry_in(5.0) == pytest.approx(29.0)
    breaker.apply_remote_close(31.0)
    assert breaker.retry_in(31.0) == pytest.approx(3.0)


def test_failed_probe_prolongs_an_opening_of_its_own_only():
    own, told = machine(), machine()
    fail(own, 3)
    told.apply_remote_open(0.0, 5.0)
    for breaker, since in ((own, 0.0), (told, 6.0)):
        breaker.failed(breaker.admit(6.0), 6.0)
        assert breaker.own_report().since == since
        assert breaker.own_report().retry_at == pytest.approx(11.0)


@pytest.mark.parametrize(
    "options",
    [
        {"failures": 0},
        {"window": 0},
        {"cooldown": -1},
        {"probes": 0},
        {"rate": -0.1},
        {"rate": 1.1},
        {"minimum": 0},
        {"slow": 0},
        {"jitter": 2},
        {"lease": 0},
        {"quorum": 0},
    ],
)
def test_invalid_breaker_is_rejected(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        Breaker(**options)
