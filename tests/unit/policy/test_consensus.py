"""Reports that processes share about a circuit: each rule by name, then whole fleets at random."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from redrive.policy import consensus
from redrive.policy.breaker import Breaker, CircuitMachine, CircuitState
from redrive.policy.consensus import BreakerReport, ReportKind
from tests.support.examples import examples

OPTIONS = Breaker(failures=1, cooldown=30.0, probes=1, rate=0, quorum=2)
NOW = 1_000.0


def says(kind, host="a", process="1", *, ago=1.0, retry_in=20.0):
    return BreakerReport("bank", host, process, ReportKind(kind), ago, retry_in if kind == "open" else 0.0)


def closed(since=None):
    """A machine that closed by its own probes at `since`, or that never had trouble."""
    machine = CircuitMachine(OPTIONS, random.Random(1))
    if since is not None:
        opened(since - 100, machine)
        machine.succeeded(machine.admit(since), since)
        assert machine.state is CircuitState.CLOSED
    return machine


def opened(at, machine=None):
    machine = machine or CircuitMachine(OPTIONS, random.Random(1))
    machine.failed(machine.admit(at), at)
    assert machine.state is CircuitState.OPEN
    return machine


def hear(machine, *reports, node="a", quorum=2):
    consensus.apply_reports(machine, reports, node=node, quorum=quorum, now=NOW)
    return machine


def test_22_report_of_the_same_machine_counts_at_once():
    assert hear(closed(), says("open", "a"), node="a").state is CircuitState.OPEN


def test_22_one_machine_does_not_open_the_circuit_of_another():
    assert hear(closed(), says("open", "a", "1"), says("open", "a", "2"), node="b").state is CircuitState.CLOSED


def test_22_quorum_of_machines_opens_the_circuit():
    assert hear(closed(), says("open", "a"), says("open", "c"), node="b").state is CircuitState.OPEN
    assert hear(closed(), says("open", "a"), says("open", "c"), node="b", quorum=3).state is CircuitState.CLOSED
    assert hear(closed(), says("open", "a"), node="b", quorum=1).state is CircuitState.OPEN


def test_22_longest_of_several_reports_counts():
    machine = hear(closed(), says("open", process="1", retry_in=2), says("open", process="2", retry_in=20))
    assert machine.retry_in(NOW) >= 16


def test_22_reports_at_different_times_do_not_add_up():
    assert hear(closed(), says("open", "a", retry_in=0), says("open", "c"), node="b").state is CircuitState.CLOSED


def test_report_of_a_dead_process_expires_at_its_retry_time():
    assert hear(closed(), says("open", retry_in=0.01)).state is CircuitState.OPEN
    assert hear(closed(), says("open", retry_in=0)).state is CircuitState.CLOSED


def test_opening_is_void_after_a_closing_on_the_same_machine():
    open_, mate = says("open", process="1", ago=9), says("closed", process="2", ago=3)
    assert hear(closed(), open_, mate).state is CircuitState.CLOSED
    assert hear(closed(), open_, says("closed", "b", "2", ago=3)).state is CircuitState.OPEN
    assert hear(closed(), says("open", ago=2), mate).state is CircuitState.OPEN
    longer_ago = says("closed", process="3", ago=50)
    assert hear(closed(), open_, mate, longer_ago).state is CircuitState.CLOSED
    assert hear(closed(), open_, longer_ago, mate).state is CircuitState.CLOSED


def test_report_before_own_successful_probes_opens_nothing():
    assert hear(closed(since=NOW - 5), says("open", ago=6)).state is CircuitState.CLOSED
    assert hear(closed(since=NOW - 5), says("open", ago=4)).state is CircuitState.OPEN


def test_one_failing_process_does_not_keep_its_machine_open():
    bad, good = opened(0.0), closed()
    down = 0
    for second in range(300):
        own_report = bad.own_report()
        word = says(
            "open", process="bad", ago=second - own_report.since, retry_in=max(0.0, own_report.retry_at - second)
        )
        consensus.apply_reports(good, [word], node="a", quorum=2, now=float(second))
        if (probe := bad.admit(second)) is not None:
            bad.failed(probe, second)
        if (permit := good.admit(second)) is not None:
            good.succeeded(permit, second)
        down += good.state is not CircuitState.CLOSED
    assert bad.state is CircuitState.OPEN
    assert good.state is CircuitState.CLOSED
    assert down <= 36  # one cool-down, of which it knew no better


@pytest.mark.parametrize("host", ["a", "b"])
def test_open_circuit_probes_soon_after_any_closing(host):
    machine = hear(opened(NOW - 5), says("closed", host, "2", ago=1))
    assert machine.state is CircuitState.OPEN
    assert machine.retry_in(NOW) <= 6


def test_closing_before_the_opening_causes_no_early_probe():
    machine = hear(opened(NOW - 5), says("closed", process="2", ago=6))
    assert machine.retry_in(NOW) >= 30 * 0.8 - 5


def test_closing_before_the_last_failed_probe_is_ignored():
    machine = hear(opened(NOW - 5, opened(NOW - 60)), says("closed", process="2", ago=20))
    assert machine.retry_in(NOW) >= 30 * 0.8 - 5


def test_reset_closes_earlier_openings_and_voids_reports():
    assert hear(opened(NOW - 5), says("reset", "*", ago=1)).state is CircuitState.CLOSED
    assert hear(opened(NOW - 5), says("reset", "*", ago=6)).state is CircuitState.OPEN
    assert hear(opened(NOW - 5, opened(NOW - 60)), says("reset", "*", ago=6)).state is CircuitState.CLOSED
    assert hear(closed(), says("open", ago=2), says("reset", "*", ago=1)).state is CircuitState.CLOSED
    assert hear(closed(), says("open", ago=1), says("reset", "*", ago=2)).state is CircuitState.OPEN


def test_process_does_not_report_what_its_machine_has_reported():
    assert consensus.is_news(says("open", process="2"), [])
    assert not consensus.is_news(says("open", process="2"), [says("open", process="1")])
    assert consensus.is_news(says("open", process="2"), [says("open", process="1", retry_in=0)])
    assert consensus.is_news(says("open", process="2"), [says("open", "b", "1")])
    assert not consensus.is_news(says("open", process="2", retry_in=0), [])


def test_correction_of_an_own_report_is_reported():
    assert consensus.is_news(says("open", process="1", retry_in=25), [says("open", process="1")])
    assert consensus.is_news(
        says("closed", process="1"), [says("open", process="1", ago=9), says("closed", process="2")]
    )


def test_closing_is_reported_where_the_machine_is_still_open():
    assert not consensus.is_news(says("closed", process="2"), [])
    assert consensus.is_news(says("closed", process="2", ago=1), [says("open", process="1", ago=5)])
    assert consensus.is_news(says("closed", process="2", ago=1), [says("open", "b", "1", ago=5)])
    assert not consensus.is_news(says("closed", process="2", ago=7), [says("open", "b", "1", ago=5)])
    said = [says("open", "b", "1", ago=5), says("closed", process="3", ago=2)]
    assert not consensus.is_news(says("closed", process="2", ago=1), said)


WORDS = st.builds(
    says,
    st.sampled_from(["open", "closed", "reset"]),
    st.sampled_from("abc"),
    st.sampled_from("12"),
    ago=st.floats(0, 100),
    retry_in=st.sampled_from([0.0, 1.0, 30.0, 500.0]),
)


@settings(max_examples=examples(300))
@given(reports=st.lists(WORDS, max_size=8), own=st.sampled_from(["well", "closed", "open"]), quorum=st.integers(1, 4))
def test_same_report_twice_changes_nothing_more(reports, own, quorum):
    machine = {"well": closed, "closed": lambda: closed(NOW - 50), "open": lambda: opened(NOW - 20)}[own]()
    hear(machine, *reports, quorum=quorum)
    once = (machine.state, machine.generation, machine.retry_in(NOW))
    hear(machine, *reports, quorum=quorum)
    assert (machine.state, machine.generation, machine.retry_in(NOW)) == once


@settings(max_examples=examples(300))
@given(reports=st.lists(WORDS, max_size=8), own=st.sampled_from(["well", "closed", "open"]), quorum=st.integers(1, 4))
def test_reports_open_on_valid_openings_and_close_on_reset(reports, own, quorum):
    machine = {"well": closed, "closed": lambda: closed(NOW - 50), "open": lambda: opened(NOW - 20)}[own]()
    before = machine.state
    hear(machine, *reports, quorum=quorum)
    in_force = {word.host for word in reports if word.in_force}
    if before is CircuitState.CLOSED and machine.state is CircuitState.OPEN:
        assert "a" in in_force or len(in_force) >= quorum
        assert machine.retry_in(NOW) <= OPTIONS.cooldown * (1 + OPTIONS.jitter)
    if before is CircuitState.OPEN and machine.state is CircuitState.CLOSED:
        assert any(word.kind is ReportKind.RESET for word in reports)
    if machine.state is not before:
        assert machine.own_report() is None  # nothing to pass on


class Fleets(RuleBasedStateMachine):
    """Three machines of two processes each, a service that goes down and comes back, and a table of words."""

    PROCESSES = tuple((host, place) for host in "abc" for place in "12")

    @initialize(seed=st.integers(0, 10_000))
    def start(self, seed):
        chance = random.Random(seed)
        self.machines = {who: CircuitMachine(OPTIONS, chance) for who in self.PROCESSES}
        self.names = dict(zip(self.PROCESSES, self.PROCESSES, strict=True))
        self.table, self.said = {}, {}
        self.now, self.up = NOW, True

    @rule(seconds=st.sampled_from([0.1, 0.5, 3.0, 12.0, 40.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @rule()
    def the_service_goes_down_or_comes_back(self):
        self.up = not self.up

    @rule(who=st.sampled_from(PROCESSES))
    def a_process_calls(self, who):
        machine = self.machines[who]
        if (permit := machine.admit(self.now)) is not None:
            (machine.succeeded if self.up else machine.failed)(permit, self.now)

    @rule(who=st.sampled_from(PROCESSES))
    def a_process_looks_and_tells(self, who):
        machine, name, reports = self.machines[who], self.names[who], self.reports()
        consensus.apply_reports(
            machine, [w for w in reports if (w.host, w.process) != name], node=who[0], quorum=2, now=self.now
        )
        own_report = machine.own_report()
        if own_report is not None and own_report != self.said.get(name):
            (word,) = self.reports({name: own_report})
            if consensus.is_news(word, reports):
                self.table[name] = self.said[name] = own_report

    @rule(who=st.sampled_from(PROCESSES))
    def a_process_is_killed_and_another_starts(self, who):
        """Its word stays behind."""
        self.machines[who] = CircuitMachine(OPTIONS, random.Random(3))
        host, name = self.names[who]
        self.names[who] = (host, name + "'")

    @rule()
    def the_service_is_well_and_everybody_works_for_a_while(self):
        """From any state: within two cooldowns all circuits are closed, and stay closed."""
        self.up = True
        for _ in range(140):
            self.now += 0.5
            for who in self.PROCESSES:
                self.a_process_calls(who)
                self.a_process_looks_and_tells(who)
        assert {machine.state for machine in self.machines.values()} == {CircuitState.CLOSED}

    def reports(self, table=None):
        return [
            says(
                "open" if own_report.open else "closed",
                *who,
                ago=self.now - own_report.since,
                retry_in=max(0.0, own_report.retry_at - self.now),
            )
            for who, own_report in (self.table if table is None else table).items()
        ]


Fleets.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestFleets = Fleets.TestCase
