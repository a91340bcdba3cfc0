"""A service with an outage: every request is accounted for, and the effect of its clients on its recovery."""

import gc
import math
from bisect import bisect_right
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import redrive
from redrive.simulate.herd.clients import Caller, Guarded, Policy, Request, retry_forever
from redrive.simulate.herd.report import figures, hold
from redrive.simulate.herd.server import RequestOutcome, SimulatedServer
from redrive.simulate.herd.simulation import Scenario, Strategy, check_fit, simulate, strategies
from tests.support.examples import examples

DEFAULT = Policy.of(redrive.Service("default"))
SMALL = Scenario(clients=150, outage=40, warmup=30, watch=60, every=12, latency=5)


def server(**options):
    always = {"capacity": 1.0, "queue": 2, "latency": 5.0, "away": 100.0, "back": 160.0, "kind": "refused"}
    return SimulatedServer(**(always | options))


# ── the service, by hand ──────────────────────────────────────────────────────────────────────────────────────────────


def test_request_is_started_at_intervals_and_ends_after_latency():
    service = server()
    assert [service.ask(10.0, 60.0) for _ in range(4)] == [
        (RequestOutcome.ANSWERED, 15.0),
        (RequestOutcome.ANSWERED, 16.0),
        (RequestOutcome.ANSWERED, 17.0),
        (RequestOutcome.UNAVAILABLE, 10.0),  # two wait, and the queue is full
    ]
    assert service.ask(11.0, 60.0) == (RequestOutcome.ANSWERED, 18.0)


def test_abandoned_request_costs_capacity():
    service = server()
    assert service.ask(10.0, 60.0) == (RequestOutcome.ANSWERED, 15.0)
    assert service.ask(10.0, 5.5) == (RequestOutcome.TIMED_OUT, 15.5)
    assert service.ask(10.5, 60.0) == (RequestOutcome.ANSWERED, 17.0)


@pytest.mark.parametrize(
    ("kind", "under_way", "meanwhile"),
    [
        ("refused", (RequestOutcome.RESET, 100.0), (RequestOutcome.REFUSED, 130.0)),
        ("503", (RequestOutcome.RESET, 100.0), (RequestOutcome.UNAVAILABLE, 130.0)),
        ("hang", (RequestOutcome.TIMED_OUT, 128.0), (RequestOutcome.TIMED_OUT, 160.0)),
    ],
)
def test_outage_ends_running_requests_and_answers_none(kind, under_way, meanwhile):
    service = server(kind=kind)
    assert service.ask(94.0, 30.0) == (RequestOutcome.ANSWERED, 99.0)
    assert service.ask(98.0, 30.0) == under_way
    assert service.ask(98.0, 1.5) == (RequestOutcome.TIMED_OUT, 99.5)
    assert service.ask(130.0, 30.0) == meanwhile
    assert service.ask(160.0, 30.0) == (RequestOutcome.ANSWERED, 165.0)


def test_queue_before_the_outage_is_empty_after_it():
    service = server(queue=500)
    for _ in range(300):  # more than it can take up until it is back
        service.ask(99.0, 1_000.0)
    assert service.ask(161.0, 30.0) == (RequestOutcome.ANSWERED, 166.0)


@given(
    gaps=st.lists(st.floats(0.0, 3.0), min_size=1, max_size=80),
    capacity=st.floats(0.2, 20.0),
    queue=st.integers(0, 12),
    latency=st.floats(0.1, 9.0),
)
def test_capacity_and_queue_are_never_exceeded(gaps, capacity, queue, latency):
    service, now, begun = server(capacity=capacity, queue=queue, latency=latency, away=1e6, back=2e6), 0.0, []
    for gap in gaps:
        now += gap
        fate, when = service.ask(now, 1e6)
        assert fate in (RequestOutcome.ANSWERED, RequestOutcome.UNAVAILABLE)
        waiting = len(begun) - bisect_right(begun, now)
        if fate is RequestOutcome.ANSWERED:
            begun.append(when - latency)
            assert begun[-1] >= now - 1e-9
            assert waiting <= queue
        else:
            assert waiting >= queue
    assert all(later - earlier >= 1 / capacity - 1e-6 for earlier, later in pairwise(begun))


# ── the clients, by hand ──────────────────────────────────────────────────────────────────────────────────────────────


class Even(Random):
    """Pauses that are always as long as their mean."""

    def expovariate(self, lambd=1.0):
        return 1 / lambd


def test_fixed_delay_client_retries_until_success():
    caller = Caller(think=10.0, again=5.0, timeout=7.0, failed=pytest.fail, pace=Even())
    life = retry_forever(lambda repeat: 30.0 * repeat, caller, 2.0)
    assert next(life) == Request(2.0, 7.0)
    assert life.send((RequestOutcome.REFUSED, 2.0)).at == 32.0
    assert life.send((RequestOutcome.TIMED_OUT, 39.0)).at == 99.0
    assert life.send((RequestOutcome.ANSWERED, 104.0)).at == 114.0
    assert life.send((RequestOutcome.RESET, 115.0)).at == 145.0


def test_failed_client_returns_at_the_time_of_its_error():
    failed = []
    caller = Caller(think=10.0, again=5.0, timeout=7.0, failed=failed.append, pace=Even())
    service = redrive.Service("x", retry=None, breaker=redrive.Breaker(failures=2, cooldown=20.0, jitter=0.0))
    life = Guarded(Policy.of(service), caller, Random(1)).life(1.0)
    assert next(life) == Request(1.0, 7.0)
    assert life.send((RequestOutcome.REFUSED, 1.0)) == Request(6.0, 7.0)  # the server sends no response
    assert life.send((RequestOutcome.REFUSED, 6.0)) == Request(
        26.0, 7.0, probe=True
    )  # refused at 11, with 15 seconds to go
    assert failed == [1.0, 6.0, 11.0]
    assert life.send((RequestOutcome.ANSWERED, 28.0)) == Request(38.0, 7.0, probe=True)
    assert life.send((RequestOutcome.ANSWERED, 40.0)) == Request(50.0, 7.0)


# ── the books ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Watched(Guarded):
    """A client whose calls are written down."""

    def __init__(self, log, *given):
        super().__init__(*given)
        self.log = log

    def call(self, now):
        self.log.append("began")
        ended = yield from super().call(now)
        self.log[-1] = ended
        return ended


scenarios = st.builds(
    lambda latency, think, bucket, outage, watch, **options: Scenario(
        every=latency + think,
        latency=latency,
        bucket=min(bucket, outage, watch),
        outage=outage,
        watch=watch,
        **options,
    ),
    clients=st.integers(1, 40),
    latency=st.floats(0.5, 10.0),
    think=st.floats(0.5, 20.0),
    queue=st.none() | st.integers(0, 30),
    timeout=st.floats(10.5, 40.0),
    outage=st.floats(1.0, 90.0),
    kind=st.sampled_from(["refused", "503", "hang"]),
    retry_after=st.none() | st.integers(1, 40),
    warmup=st.floats(10.0, 40.0),
    watch=st.floats(1.0, 90.0),
    bucket=st.floats(0.1, 20.0),
)
policies = st.sampled_from(
    [
        redrive.Service("default"),
        redrive.Service("bare", retry=None, breaker=None, budget=None),
        redrive.Service("poor", budget=redrive.RetryBudget(ratio=0.0, reserve=1)),
        redrive.Service("touchy", retry=None, breaker=redrive.Breaker(failures=1, probes=1)),
        redrive.Service("quick", retry=redrive.Retry(base=0.0, cap=0.0), timeout=12.0),
    ]
)


@settings(max_examples=examples(60))
@given(scenario=scenarios, service=policies, seed=st.integers(0, 100))
def test_every_request_and_every_call_has_one_outcome(scenario, service, seed):
    policy, logs = Policy.of(service, retry_after=scenario.retry_after), []

    def live(caller, chance, first):
        logs.append([])
        return Watched(logs[-1], policy, caller, chance).life(first)

    watched = simulate(scenario, Strategy("watched", live), seed=seed)
    for books in [watched, *(simulate(scenario, one, seed=seed) for one in strategies("x", policy, fixed=30.0))]:
        assert sum(books.requests) == sum(map(sum, books.fates)) + books.in_flight
        assert books.in_flight <= scenario.clients
        assert all(probes <= requests for probes, requests in zip(books.probes, books.requests, strict=True))
    ended = [[one for one in log if one != "began" and one.at <= scenario.until] for log in logs]
    assert all("began" not in log[:-1] for log in logs)  # one call at a time
    assert sum(one.answered for log in ended for one in log) == sum(watched.fates[RequestOutcome.ANSWERED])
    assert sum(not one.answered for log in ended for one in log) == sum(watched.calls_failed)


def test_seed_determines_the_records():
    def books(seed):
        return [vars(simulate(SMALL, one, seed=seed)) for one in strategies("default", DEFAULT, fixed=30.0)]

    assert books(1) == books(1) != books(2)


def test_all_strategies_see_the_same_requests_until_the_outage():
    found = [simulate(SMALL, one, seed=3) for one in strategies("default", DEFAULT, fixed=30.0)]
    first = found[0].first
    assert sum(found[0].requests[:first]) > 0
    assert all(one.requests[:first] == found[0].requests[:first] for one in found)


def test_rate_is_normal_from_the_start():
    """Clients are met in the middle of what they do, not all at its beginning."""
    calm = Scenario(clients=5_000, warmup=120, outage=1, watch=1)
    requests = simulate(calm, strategies("default", DEFAULT, fixed=30.0)[-1], seed=1).requests
    for start in range(0, 120, 20):
        assert sum(requests[start : start + 20]) / 20 == pytest.approx(calm.normal, rel=0.08)


def test_bucket_starts_when_the_service_is_back():
    books = simulate(Scenario(clients=50, warmup=33.3, outage=47.7, bucket=7.0), stubborn_ones(30.0), seed=1)
    assert books.begins(books.before) == 0
    assert books.begins(books.first) == -49.0
    assert books.begins(0) <= -81.0


def stubborn_ones(delay):
    return Strategy("stubborn", lambda caller, chance, first: retry_forever(lambda repeat: delay, caller, first))


def test_garbage_collection_is_enabled_afterwards():
    assert gc.isenabled()
    simulate(SMALL, stubborn_ones(30.0), seed=1)
    assert gc.isenabled()


def test_progress_is_reported():
    told = []
    hold(Scenario(clients=2_000), [stubborn_ones(30.0), stubborn_ones(20.0)], seed=1, progress=told.append)
    assert told == sorted(told)
    assert 0 < told[0] < 0.5 < told[-1] < 1


# ── what comes of it ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def shown():
    """The defaults: five thousand clients, and a service that is away for two minutes."""
    scenario = Scenario()
    assert (scenario.clients, scenario.outage) == (5_000, 120)
    return scenario, hold(scenario, strategies("default", DEFAULT, fixed=30.0), seed=1)


@pytest.mark.slow
def test_default_policy_spares_a_service_flooded_by_fixed_delay(shown):
    _, (ours, _, exponential, fixed) = shown
    assert ours.peak < 3 * ours.normal
    assert ours.peak < fixed.peak / 10
    assert ours.peak < exponential.peak / 10


def test_clients_with_the_same_retry_after_return_spread_out():
    scenario = Scenario(clients=1_000, kind="503", retry_after=30)
    told = Policy.of(redrive.Service("default"), retry_after=30)
    ours, *_, fixed = hold(scenario, strategies("default", told, fixed=30.0), seed=1)
    assert ours.peak < 2 * ours.normal
    assert fixed.peak > 10 * fixed.normal


def test_probes_coincide_only_without_cooldown_jitter(shown):
    _, (ours, unjittered, *_) = shown

    def last_cycle(result):
        """The probes of the thirty seconds from the return on."""
        return result.buckets.probes[result.buckets.before :][:30]

    assert unjittered.peak > 3 * unjittered.normal
    assert max(last_cycle(unjittered)) > 1.8 * max(last_cycle(ours))
    # Each failed probe spreads ours further, while the others come back as they went.
    assert max(last_cycle(ours)) < 0.75 * ours.probe_peak
    assert max(last_cycle(unjittered)) > 0.9 * unjittered.probe_peak


def test_all_clients_are_served_again_and_losses_are_counted(shown):
    scenario, results = shown
    for one in results:
        assert 0 < one.recovered_after < scenario.watch
        assert one.in_vain < one.requests
        assert one.lost > scenario.outage * scenario.normal * 0.9
    assert [one.calls_failed > 0 for one in results] == [True, True, False, False]


def test_worst_figure_of_several_repetitions_is_reported():
    chosen = strategies("default", DEFAULT, fixed=30.0)[:1]
    (worst,) = hold(SMALL, chosen, seed=5, repetitions=3)
    each = [hold(SMALL, chosen, seed=seed)[0] for seed in (5, 6, 7)]
    for figure in ("peak", "peak_while_down", "probe_peak", "recovered_after", "requests", "in_vain", "lost"):
        assert getattr(worst, figure) == max(getattr(one, figure) for one in each)
    assert (worst.peak, worst.peak_at) in [(one.peak, one.peak_at) for one in each]


def test_client_unserved_at_the_end_has_not_recovered():
    (result,) = hold(Scenario(clients=50, watch=5.0), [stubborn_ones(300.0)], seed=1)
    assert math.isinf(result.recovered_after)


def test_service_busy_with_abandoned_calls_does_not_recover():
    """A request that waits longer than its client is processed in vain, and retried."""
    scenario = Scenario(clients=500, every=30, latency=20, capacity=18, queue=2_000, timeout=25, fixed=1, watch=600)
    (result,) = hold(scenario, [stubborn_ones(1.0)], seed=1)
    assert math.isinf(result.recovered_after)
    (patient,) = hold(scenario, strategies("default", DEFAULT, fixed=30.0)[:1], seed=1)
    assert patient.lost < result.lost / 2


def test_policy_without_a_jittered_breaker_has_no_twin():
    for service in (redrive.Service("x", breaker=None), redrive.Service("x", breaker=redrive.Breaker(jitter=0))):
        names = [one.name for one in strategies("x", Policy.of(service), fixed=12.5)]
        assert names == ["x", "exponential, not jittered", "fixed 12.5 s"]


def test_figures_show_requests_and_probes(shown):
    scenario, results = shown
    requests, probes = figures(scenario, results)
    assert [one.name for one in requests.series] == [one.strategy for one in results]
    assert [one.name for one in probes.series] == [one.strategy for one in results[:2]]
    assert [one.emphasis for one in requests.series] == [True, False, False, False]
    assert requests.marks == ((0.0, "down"), (120.0, "back"))
    assert requests.series[0].points[0][0] == -60.0
    assert sum(y for _, y in requests.series[0].points) == sum(results[0].buckets.requests)
    (alone,) = figures(scenario, results[2:])
    assert alone.y_label == "requests per second"


# ── rubbish ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"clients": 0}, "clients must be a whole number of 1 or more, not 0"),
        ({"clients": 2_000_000}, "clients must be 1,000,000 or fewer, not 2,000,000"),
        ({"outage": math.nan}, "outage must be a finite number of seconds above 0, not nan"),
        ({"watch": 1e9}, "watch must be a day or less, 86,400 seconds, not 1e+09"),
        ({"latency": 30}, "latency must be below every, 30 seconds, not 30"),
        ({"timeout": 20}, "latency must be below timeout, 20 seconds, not 20"),
        ({"warmup": 5}, "warmup must be no less than latency, 20 seconds, not 5"),
        ({"queue": -1}, "queue must be a whole number of 0 or more, not -1"),
        ({"queue": 10**400}, "queue must be 100,000,000 or fewer, not 1000"),
        ({"capacity": 1e308}, "capacity must be 100,000,000 or less, not 1e+308"),
        ({"retry_after": 0}, "Retry-After must be a whole number of 1 or more, not 0"),
        ({"retry_after": 100_000}, "Retry-After must be a day or less, 86,400 seconds, not 100000"),
        ({"kind": "flood"}, "the kind of outage must be one of refused, 503, hang, not 'flood'"),
        ({"bucket": 121}, "bucket must be no longer than outage and watch, 120 seconds, not 121"),
        ({"bucket": 0.001}, "bucket of 0.001 seconds makes 360,000 of them; make it longer"),
        ({"capacity": math.inf}, "capacity must be above the normal rate of 166.7 requests a second, not inf"),
        ({"capacity": 100}, "capacity must be above the normal rate of 166.7 requests a second, not 100"),
        ({"fixed": 0.001}, "that may be 1,800,000,000 requests"),
    ],
)
def test_invalid_scenario_is_rejected_in_a_sentence(given, said):
    with pytest.raises(ValueError) as refused:
        Scenario(**given)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    ("service", "said"),
    [
        (redrive.Service("x", timeout=10), "x ends an attempt after 10 seconds, and the service takes 20"),
        (
            redrive.Service("x", breaker=redrive.Breaker(slow=2.0)),
            "x counts an answer after 2 seconds as a failure, and the service takes 20",
        ),
    ],
)
def test_policy_that_always_fails_is_rejected(service, said):
    with pytest.raises(ValueError, match=said):
        check_fit("x", Policy.of(service), Scenario())
