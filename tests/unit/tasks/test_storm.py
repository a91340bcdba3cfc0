"""When the children of a fan-out die of one cause, the rest is not tried."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.tasks.executor.sibling_limiter import PROBE_EVERY, CauseCount, SiblingLimiter

BAD = "ValueError@parse:7"


def test_it_begins_with_as_many_children_as_may_die():
    assert SiblingLimiter(5).max_new() == 5


def test_a_permanent_cause_is_a_storm_when_the_first_few_have_died():
    siblings = SiblingLimiter(5)
    assert [siblings.record_death(child, BAD) for child in range(5)] == [False] * 4 + [True]
    assert (siblings.max_new(), siblings.count_dead(BAD)) == (0, 5)


def test_bad_input_of_one_child_says_nothing_about_the_others():
    siblings = SiblingLimiter(5)
    assert not any(siblings.record_death(child, "redrive.Reject@parse:7", alone=True) for child in range(50))
    assert siblings.max_new() == 5
    assert siblings.take_unannounced(final=True) == ["redrive.Reject@parse:7"]
    assert siblings.recount(0, {BAD: CauseCount(dead=9, alone=True)}) == []


def test_what_may_yet_die_counts_as_if_it_had():
    siblings = SiblingLimiter(5)
    for child in range(4):
        siblings.record_retry(child, BAD, suspect=True)
    assert siblings.max_new() == 1
    siblings.record_retry(4, BAD, suspect=True)
    assert siblings.max_new() == 0
    siblings.record_end(0)
    siblings.record_success(1)
    assert siblings.max_new() == 2


def test_what_will_heal_says_nothing_about_the_others():
    siblings = SiblingLimiter(5)
    for child in range(20):
        siblings.record_retry(child, "timeout@fetch:3", suspect=False)
    assert siblings.max_new() == 5


def test_the_more_succeed_the_more_may_run():
    siblings = SiblingLimiter(5)
    for child in range(1_000):
        siblings.record_success(child)
    assert siblings.max_new() > 900


def test_one_that_fails_and_then_succeeds_is_not_held_against_the_rest():
    siblings = SiblingLimiter(2)
    siblings.record_retry(0, BAD, suspect=True)
    siblings.record_success(0)
    assert siblings.max_new() == 2
    assert not siblings.record_death(1, BAD)


def test_a_storm_that_begins_late_is_one_all_the_same():
    siblings = SiblingLimiter(5)
    for child in range(1_000):
        siblings.record_success(child)
    deaths = [siblings.record_death(child, BAD) for child in range(55)]
    assert deaths == [False] * 54 + [True]


def test_a_cluster_of_bad_ones_among_many_that_succeeded_is_no_storm():
    siblings = SiblingLimiter(5)
    for child in range(1_000):
        siblings.record_success(child)
    for child in range(6):
        siblings.record_retry(child, BAD, suspect=True)
    assert siblings.max_new() > 0
    assert not any(siblings.record_death(child, BAD) for child in range(6))


def test_those_that_are_long_in_coming_back_do_not_hold_their_siblings_for_ever():
    siblings = SiblingLimiter(2)
    for child in range(2):
        siblings.record_retry(child, BAD, suspect=True)
    assert siblings.max_new(1_000.0) == 0
    assert siblings.max_new(1_000.0 + PROBE_EVERY) == 1
    siblings.record_probe(1_000.0 + PROBE_EVERY)
    assert siblings.max_new(1_001.0 + PROBE_EVERY) == 0
    for child in range(2):
        siblings.record_death(child, BAD)
    assert siblings.max_new(9_000.0) == 0  # nobody is left to wait for: it was a storm


@pytest.mark.parametrize("seed", range(20))
def test_a_fan_out_with_one_bad_child_in_ten_is_not_stopped(seed):
    chance = random.Random(seed)
    bad = [number % 10 == 9 for number in range(1_000)]
    if seed:
        for start in range(0, 1_000, 10):  # bad ones anywhere in their ten
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
def test_whatever_the_order_no_more_die_of_one_cause_than_may_while_fewer_succeed(children, limit, chance):
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


# ── telling people ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_cause_is_told_once_and_not_before_it_is_known_whether_it_is_a_storm():
    siblings = SiblingLimiter(5)
    siblings.record_death(0, BAD)
    assert siblings.take_unannounced() == []  # four more may follow
    siblings.record_success(1)
    assert siblings.take_unannounced() == [BAD]
    siblings.record_death(2, BAD)
    assert siblings.take_unannounced(final=True) == []


def test_what_is_left_is_told_at_the_end():
    siblings = SiblingLimiter(5)
    siblings.record_death(0, BAD)
    siblings.record_retry(1, "other", suspect=True)
    assert siblings.take_unannounced(final=True) == [BAD]


def test_a_storm_is_news_once():
    siblings = SiblingLimiter(1)
    assert siblings.record_death(0, BAD)
    assert (siblings.mark_announced(BAD), siblings.mark_announced(BAD)) == (True, False)
    assert siblings.take_unannounced(final=True) == []


# ── what the store knows ──────────────────────────────────────────────────────────────────────────────────────────────


def test_what_others_saw_counts_as_if_it_had_been_seen_here():
    siblings = SiblingLimiter(5)
    assert siblings.recount(0, {BAD: CauseCount(dead=2, failing={7}, survived=0)}) == []
    assert siblings.max_new() == 2
    assert siblings.recount(100, {BAD: CauseCount(dead=2, survived=90)}) == []
    assert siblings.max_new() > 50


def test_a_storm_that_two_executors_saw_half_of_each_is_noticed():
    siblings = SiblingLimiter(5)
    for child in range(3):
        siblings.record_death(child, BAD)
    assert siblings.recount(1, {BAD: CauseCount(dead=6, survived=1)}) == [BAD]
    assert siblings.count_dead(BAD) == 6
