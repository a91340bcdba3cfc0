"""When the children of a fan-out die of one cause, the remaining children are not started."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.tasks.executor.sibling_limiter import PROBE_EVERY, CauseCount, SiblingLimiter

BAD = "ValueError@parse:7"


def test_fan_out_starts_with_as_many_children_as_may_die():
    assert SiblingLimiter(5).max_new() == 5


def test_permanent_cause_is_a_storm_after_the_first_few_deaths():
    siblings = SiblingLimiter(5)
    assert [siblings.record_death(child, BAD) for child in range(5)] == [False] * 4 + [True]
    assert (siblings.max_new(), siblings.count_dead(BAD)) == (0, 5)


def test_bad_input_of_one_child_does_not_affect_the_others():
    siblings = SiblingLimiter(5)
    assert not any(siblings.record_death(child, "redrive.Reject@parse:7", alone=True) for child in range(50))
    assert siblings.max_new() == 5
    assert siblings.take_unannounced(final=True) == ["redrive.Reject@parse:7"]
    assert siblings.recount(0, {BAD: CauseCount(dead=9, alone=True)}) == []


def test_running_child_counts_as_a_possible_death():
    siblings = SiblingLimiter(5)
    for child in range(4):
        siblings.record_retry(child, BAD, suspect=True)
    assert siblings.max_new() == 1
    siblings.record_retry(4, BAD, suspect=True)
    assert siblings.max_new() == 0
    siblings.record_end(0)
    siblings.record_success(1)
    assert siblings.max_new() == 2


def test_transient_failure_does_not_affect_the_others():
    siblings = SiblingLimiter(5)
    for child in range(20):
        siblings.record_retry(child, "timeout@fetch:3", suspect=False)
    assert siblings.max_new() == 5


def test_more_successes_admit_more_children():
    siblings = SiblingLimiter(5)
    for child in range(1_000):
        siblings.record_success(child)
    assert siblings.max_new() > 900


def test_recovered_child_does_not_count_against_the_rest():
    siblings = SiblingLimiter(2)
    siblings.record_retry(0, BAD, suspect=True)
    siblings.record_success(0)
    assert siblings.max_new() == 2
    assert not siblings.record_death(1, BAD)


def test_late_storm_is_a_storm():
    siblings = SiblingLimiter(5)
    for child in range(1_000):
        siblings.record_success(child)
    deaths = [siblings.record_death(child, BAD) for child in range(55)]
    assert deaths == [False] * 54 + [True]


def test_cluster_of_failures_among_many_successes_is_no_storm():
    siblings = SiblingLimiter(5)
    for child in range(1_000):
        siblings.record_success(child)
    for child in range(6):
        siblings.record_retry(child, BAD, suspect=True)
    assert siblings.max_new() > 0
    assert not any(siblings.record_death(child, BAD) for child in range(6))


def test_slow_children_do_not_block_their_siblings_forever():
    siblings = SiblingLimiter(2)
    for child in range(2):
        siblings.record_retry(child, BAD, suspect=True)
    assert siblings.max_new(1_000.0) == 0
    assert siblings.max_new(1_000.0 + PROBE_EVERY) == 1
    siblings.record_probe(1_000.0 + PROBE_EVERY)
    assert siblings.max_new(1_001.0 + PROBE_EVERY) == 0
    for child in range(2):
        siblings.record_death(child, BAD)
    assert siblings.max_new(9_000.0) == 0  # no child is left to wait for: it was a storm


@pytest.mark.parametrize("seed", range(20))
def test_fan_out_with_one_bad_child_in_ten_is_not_stopped(seed):
    chance = random.Random(seed)
    bad = [number % 10 == 9 for number in range(1_000)]
    if seed:
        for start in range(0, 1_000, 10):  # failing children anywhere in their ten
            ten = bad[start : start + 10]
            chance.shuffle(ten)
            bad[start : start + 10] = ten
    siblings, ended = SiblingLimiter(5), 0
    while ended < len(bad):
        window = siblings.max_new()
        assert window > 0
        for child in range(ended, min(len(bad), ended + window)):
            if bad[child]:
                siblings.record_retry(child, BAD, suspect=True)
        for child in range(ended, min(len(bad), ended + window)):
            if bad[child]:
                assert not siblings.record_death(child, BAD)
            else:
                siblings.record_success(child)
        ended += window


# Each child's attempts: it succeeds, dies at once, or fails of some cause and is tried again.
scripts = st.lists(st.sampled_from(["a", "b", "success", "dies of a", "dies of b"]), max_size=3).map(
    lambda script: [*script, "success"]
)


@given(st.lists(scripts, max_size=60), st.integers(1, 6), st.randoms(use_true_random=False))
def test_deaths_of_one_cause_are_bounded_in_any_order(children, limit, chance):
    siblings = SiblingLimiter(limit)
    fresh, under_way, waiting = list(range(len(children)))[::-1], [], []
    tried, successes, dead = Counter(), 0, Counter()
    for _ in range(10_000):
        first = sum(not tried[child] for child in under_way)
        moves = []
        if fresh and first < siblings.max_new():
            moves.append("begin")
        moves += ["end"] * bool(under_way) + ["again"] * bool(waiting)
        if not moves:
            break
        match chance.choice(moves):
            case "begin":
                under_way.append(fresh.pop())
            case "again":
                under_way.append(waiting.pop(chance.randrange(len(waiting))))
            case "end":
                child = under_way.pop(chance.randrange(len(under_way)))
                said = children[child][tried[child]]
                previous = children[child][tried[child] - 1] if tried[child] else None
                tried[child] += 1
                if said == "success":
                    siblings.record_success(child)
                    successes += 1
                elif said.startswith("dies") or said == previous:
                    cause = said[-1]
                    dead[cause] += 1
                    if siblings.record_death(child, cause):
                        assert dead[cause] >= limit
                        break  # the rest is not tried
                else:
                    siblings.record_retry(child, said, suspect=True)
                    waiting.append(child)
        for toll in dead.values():
            assert toll <= max(limit, successes + 1)
    else:
        pytest.fail("it goes on for ever")
    for toll in dead.values():
        assert toll <= max(limit, successes + 1)


# ── reports ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_cause_is_reported_once_after_the_storm_decision():
    siblings = SiblingLimiter(5)
    siblings.record_death(0, BAD)
    assert siblings.take_unannounced() == []  # four more may follow
    siblings.record_success(1)
    assert siblings.take_unannounced() == [BAD]
    siblings.record_death(2, BAD)
    assert siblings.take_unannounced(final=True) == []


def test_remaining_causes_are_reported_at_the_end():
    siblings = SiblingLimiter(5)
    siblings.record_death(0, BAD)
    siblings.record_retry(1, "other", suspect=True)
    assert siblings.take_unannounced(final=True) == [BAD]


def test_storm_is_news_once():
    siblings = SiblingLimiter(1)
    assert siblings.record_death(0, BAD)
    assert (siblings.mark_announced(BAD), siblings.mark_announced(BAD)) == (True, False)
    assert siblings.take_unannounced(final=True) == []


# ── what the store knows ──────────────────────────────────────────────────────────────────────────────────────────────


def test_deaths_seen_by_other_executors_count():
    siblings = SiblingLimiter(5)
    assert siblings.recount(0, {BAD: CauseCount(dead=2, failing={7}, survived=0)}) == []
    assert siblings.max_new() == 2
    assert siblings.recount(100, {BAD: CauseCount(dead=2, survived=90)}) == []
    assert siblings.max_new() > 50


def test_storm_split_between_two_executors_is_noticed():
    siblings = SiblingLimiter(5)
    for child in range(3):
        siblings.record_death(child, BAD)
    assert siblings.recount(1, {BAD: CauseCount(dead=6, survived=1)}) == [BAD]
    assert siblings.count_dead(BAD) == 6
