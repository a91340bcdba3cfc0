"""Many clients and one row: the model to the millisecond, and the results of the study."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.policy.backoff import wait
from redrive.simulate.contention import (
    STRATEGIES,
    NetworkModel,
    Outcome,
    Study,
    contend,
    estimate_writes,
    figures,
    run_study,
    spread,
    unjittered,
)

EVEN = NetworkModel(deviation=0)  # every hop takes 10 ms
JITTER = {one: one for one in STRATEGIES} | {"none": "none", "exponential": "none"}


class Scripted(Random):
    """Chance whose hops are known."""

    def __init__(self, *hops):
        super().__init__(1)
        self.hops = list(hops)

    def gauss(self, mu=0.0, sigma=1.0):
        return self.hops.pop(0) / 1_000 if self.hops else 0.010


# ── by hand ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_single_client_reads_and_writes_in_four_hops(strategy):
    found = contend(EVEN, strategy, 1, Random(1))
    assert (found.time, found.writes) == (pytest.approx(0.040), 1)


def test_loser_of_two_concurrent_writes_reads_again():
    found = contend(EVEN, "none", 2, Random(1))
    assert (found.time, found.writes) == (pytest.approx(0.080), 3)


def test_ramp_waits_5_ms_then_10_then_20():
    assert contend(EVEN, "exponential", 2, Random(1)).time == pytest.approx(0.085)
    assert contend(EVEN, "exponential", 3, Random(1)).time == pytest.approx(0.040 * 3 + 0.005 + 0.010)
    assert contend(EVEN, "exponential", 4, Random(1)).time == pytest.approx(0.040 * 4 + 0.005 + 0.010 + 0.020)


def test_ramp_ends_at_its_cap():
    capped = NetworkModel(deviation=0, cap=0.010)
    assert contend(capped, "exponential", 5, Random(1)).time == pytest.approx(0.040 * 5 + 0.005 + 3 * 0.010)


@pytest.mark.parametrize(
    ("strategy", "least", "most"), [("equal", 0.0825, 0.085), ("full", 0.080, 0.085), ("decorrelated", 0.085, 0.095)]
)
def test_jitter_stays_within_its_bounds(strategy, least, most):
    times = [contend(EVEN, strategy, 2, Random(seed)).time for seed in range(50)]
    assert least <= min(times) < max(times) <= most


@given(st.integers(1, 60), st.sampled_from(["none", "exponential"]))
def test_lockstep_commits_one_client_per_round(clients, strategy):
    waits = [min(2.0, 0.005 * 2**n) for n in range(clients - 1)] if strategy == "exponential" else []
    found = contend(EVEN, strategy, clients, Random(1))
    assert found.writes == clients * (clients + 1) // 2
    assert found.time == pytest.approx(0.040 * clients + sum(waits))


@pytest.mark.parametrize(
    ("read", "writes"),
    [
        (25, 3),  # before the other's commit at 30 ms: stale when it writes, though it writes alone
        (30, 2),  # at the same moment: it sees the commit
        (35, 2),
    ],
)
def test_write_is_stale_if_a_commit_came_after_its_read(read, writes):
    first, second = (10, 10, 10), (read, 10, 10)
    assert contend(EVEN, "none", 2, Scripted(*first, *second)).writes == writes


# ── against the same model, written out ───────────────────────────────────────────────────────────────────────────────


def message_by_message(network, strategy, clients, random):
    """Reads and writes as events of their own, with the version in between; of two at one moment, writes come first."""

    def hop():
        return abs(random.gauss(network.hop, network.deviation))

    queue, version, writes, done = [], 0, 0, 0.0
    seen, repeats, waited = [0] * clients, [0] * clients, [None] * clients

    def send(client, read):
        queue.append((read, "read", client))
        queue.append((read + hop() + hop(), "write", client))

    for client in range(clients):
        send(client, hop())
    while queue:
        at, what, client = queue.pop(queue.index(min(queue, key=lambda one: (one[0], one[1] == "read", one[2]))))
        if what == "read":
            seen[client] = version
            continue
        writes += 1
        if seen[client] == version:
            version += 1
            done = max(done, at + hop())
            continue
        repeats[client] += 1
        waited[client] = wait(
            repeats[client],
            base=0.0 if strategy == "none" else network.base,
            multiplier=2,
            cap=network.cap,
            jitter=JITTER[strategy],
            previous=waited[client],
            random=random,
        )
        send(client, at + hop() + waited[client] + hop())
    assert version == clients
    return Outcome(done, writes)


@given(
    st.sampled_from(STRATEGIES),
    st.integers(1, 12),
    st.integers(),
    st.builds(
        NetworkModel,
        base=st.sampled_from([0.001, 0.005, 0.02]),
        cap=st.sampled_from([0.02, 2.0]),
        hop=st.sampled_from([0.001, 0.010]),
        deviation=st.sampled_from([0, 0.002, 0.02]),
    ),
)
def test_round_is_decided_as_if_each_message_were_an_event(strategy, clients, seed, network):
    found = contend(network, strategy, clients, Random(seed))
    assert found == message_by_message(network, strategy, clients, Random(seed))


@given(st.sampled_from(STRATEGIES), st.integers(1, 80), st.integers())
def test_every_client_commits_exactly_once(strategy, clients, seed):
    committed = []
    found = contend(NetworkModel(), strategy, clients, Random(seed), committed.append)
    assert sorted(committed) == list(range(clients))
    assert found.writes >= clients
    assert found.time > 0


# ── the study ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_seed_determines_the_results():
    study = Study(clients=(5, 20), repetitions=3, seed=7)
    assert run_study(study) == run_study(study)
    assert run_study(study) != run_study(Study(clients=(5, 20), repetitions=3, seed=8))


def test_other_requested_results_change_no_result():
    whole = run_study(Study(clients=(5, 20), repetitions=3))
    alone = run_study(Study(clients=(20,), strategies=("full",), repetitions=3))
    turned = run_study(Study(clients=(20, 5), strategies=STRATEGIES[::-1], repetitions=3))
    assert [one for one in whole if (one.strategy, one.clients) == ("full", 20)] == alone
    assert sorted(turned, key=str) == sorted(whole, key=str)


def test_more_repetitions_start_with_the_same_ones():
    few, more = (run_study(Study(clients=(20,), strategies=("full",), repetitions=n))[0] for n in (3, 6))
    assert set(few.times) < set(more.times)


def test_jitter_makes_backoff_effective():
    results = {one.strategy: one for one in run_study(Study(clients=(100,), repetitions=20))}
    ramp, none = results["exponential"], results["none"]
    for strategy in ("equal", "full", "decorrelated"):
        assert results[strategy].write_count < none.write_count / 2
        assert results[strategy].time < ramp.time / 5
    assert results["full"].write_count < ramp.write_count / 2
    assert results["equal"].write_count < ramp.write_count / 2
    assert results["decorrelated"].write_count < 0.6 * ramp.write_count
    assert max(results["full"].time, results["decorrelated"].time) < ramp.time / 10
    assert none.write_count > ramp.write_count  # the ramp alone saves some work, and pays with time
    assert ramp.time > 10 * none.time


def test_few_clients_make_little_difference():
    results = run_study(Study(clients=(3,), repetitions=50))
    writes = [one.write_count for one in results]
    assert max(writes) < 1.5 * min(writes)


def test_progress_grows_to_the_total():
    told = []
    run_study(Study(clients=(5, 40), repetitions=4), told.append)
    assert told == sorted(told)
    assert 100 < len(told) <= 1_000
    assert told[0] < 0.1
    assert told[-1] == pytest.approx(1, abs=0.001)


@pytest.mark.parametrize(
    ("strategy", "clients"),
    [("none", 1), ("none", 700), ("exponential", 1_000), ("equal", 2_000), ("full", 2_000), ("decorrelated", 2_000)],
)
def test_work_is_estimated_to_a_factor_of_three(strategy, clients):
    study = Study(clients=(clients,), strategies=(strategy,), repetitions=1)
    (expected,) = estimate_writes(study).values()
    (found,) = run_study(study)
    assert expected / 3 < found.write_count < expected * 3


def test_hours_of_work_are_estimated_at_once():
    assert sum(estimate_writes(Study(clients=(100_000,), strategies=("none",), repetitions=1)).values()) > 1e9


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: NetworkModel(base=0), "base must be a finite number of seconds above 0, not 0"),
        (lambda: NetworkModel(base=math.nan), "base must be a finite number of seconds above 0, not nan"),
        (lambda: NetworkModel(cap=math.inf), "cap must be a finite number of seconds above 0, not inf"),
        (lambda: NetworkModel(cap=0.001), "cap must be no less than base, 0.005 seconds, not 0.001"),
        (lambda: NetworkModel(cap=1e9), "cap must be a day or less, 86400 seconds, not 1e+09"),
        (lambda: NetworkModel(hop=0), "hop must be a finite number of seconds above 0, not 0"),
        (lambda: NetworkModel(deviation=-1), "deviation must be a finite number of seconds of 0 or more, not -1"),
        (lambda: Study(clients=(0,)), "clients must be a whole number of 1 or more, not 0"),
        (lambda: Study(clients=(10**9,)), "clients must be 1,000,000 or fewer, not 1,000,000,000"),
        (lambda: Study(repetitions=0), "repetitions must be a whole number of 1 or more, not 0"),
        (lambda: Study(strategies=("ful",)), "there is no strategy 'ful'; there are none, exponential, equal, full, "),
    ],
)
def test_invalid_numbers_are_rejected_in_a_sentence(made, said):
    with pytest.raises(ValueError) as refused:
        made()
    assert str(refused.value).startswith(said)


# ── what is shown ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_spread_has_the_mean_its_error_and_both_ends():
    values = [float(n) for n in range(1, 101)]
    assert spread("writes", values, digits=3) == {
        "writes": 50.5,
        "writes_error": 2.901,
        "writes_least": 1.0,
        "writes_p95": 95.0,
        "writes_most": 100.0,
    }


def test_single_value_has_no_error():
    assert spread("time_ms", [7.5], digits=1) == {
        "time_ms": 7.5,
        "time_ms_error": None,
        "time_ms_least": 7.5,
        "time_ms_p95": 7.5,
        "time_ms_most": 7.5,
    }


def test_result_is_compared_with_the_ramp_at_as_many_clients():
    results = run_study(Study(clients=(5, 9), repetitions=1, strategies=("exponential", "full")))
    assert [unjittered(one, results) for one in results] == [results[0], results[0], results[2], results[2]]
    assert unjittered(results[1], results[1:2]) is None


def test_figures_show_each_strategy_by_number_of_clients():
    study = Study(clients=(9, 5), repetitions=1, strategies=("full", "none"))
    results = run_study(study)
    time, writes = figures(study, results)
    assert [(one.name, one.emphasis) for one in time.series] == [("full", True), ("none", False)]
    assert [x for x, _ in writes.series[0].points] == [5, 9]
    (few,) = [one for one in results if (one.strategy, one.clients) == ("none", 5)]
    assert (time.series[1].points[0], writes.series[1].points[0]) == ((5, few.time), (5, few.write_count))
