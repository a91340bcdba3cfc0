"""The graph of a flow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import FlowError
from redrive.policy.retry import Retry
from redrive.tasks.graph import Graph, GraphShape, Node, SensorOptions, longest_way, reach, worst_case
from redrive.tasks.parameters import Binding


def node(name, *after, each=None, **options):
    return Node(name=name, function=len, binding=Binding(), after=after, each=each, retry=Retry(attempts=1), **options)


def graph_of(*nodes):
    graph = Graph()
    for one in nodes:
        graph.add(one)
    return graph


# ── circles ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_task_cannot_wait_for_itself():
    with pytest.raises(FlowError, match="in a circle: a → a"):
        graph_of(node("a", "a"))


def test_cycle_is_rejected_where_it_closes_and_shown():
    graph = graph_of(node("a", "c"), node("b", "a"))
    with pytest.raises(FlowError, match="cannot wait for each other in a circle: c → b → a → c"):
        graph.add(node("c", "b"))
    graph.add(node("c"))  # what was refused left nothing behind
    graph.check()


edges = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=16)


@given(edges, st.permutations(range(8)))
def test_graph_is_accepted_if_and_only_if_it_has_an_order(pairs, order):
    above = {number: sorted({upper for lower, upper in pairs if lower == number}) for number in range(8)}
    graph = Graph()
    try:
        for number in order:
            graph.add(node(str(number), *map(str, above[number])))
        accepted = True
    except FlowError:
        accepted = False
    left = dict(above)
    while free := [number for number, upper in left.items() if not set(upper) & left.keys()]:
        for number in free:
            del left[number]
    assert accepted == (not left)


# ── names ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_two_tasks_cannot_have_one_name():
    with pytest.raises(FlowError, match=r"there is a task 'a' already; give this one another name="):
        graph_of(node("a"), node("a"))


def test_task_may_wait_for_a_later_one_but_not_in_a_cycle():
    graph = graph_of(node("b", "a"))
    with pytest.raises(FlowError, match="task 'b' waits for 'a', which is not there"):
        graph.check()
    graph.add(node("a"))
    graph.check()


def test_flow_without_tasks_cannot_run():
    with pytest.raises(FlowError, match="has no tasks"):
        Graph().check()


# ── what is stored of it ──────────────────────────────────────────────────────────────────────────────────────────────


def shape_of(*nodes):
    return graph_of(*nodes).shape()


DIAMOND = (
    node("a"),
    node("b", "a", each="a"),
    node("c", "a", sensing=SensorOptions(every=1, timeout=9)),
    node("d", "b", "c"),
)


def test_shape_comes_back_as_it_was_stored():
    shape = shape_of(*DIAMOND)
    assert GraphShape.of(shape.document()) == shape
    assert shape.difference(GraphShape.of(shape.document())) is None
    assert shape.below() == [[1, 2], [3], [3], []]


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (DIAMOND[:3], "'d' is new"),
        ((*DIAMOND, node("e"), node("f")), "'e', 'f' are gone"),
        ((DIAMOND[0], node("b", "a"), *DIAMOND[2:]), "'b' is another kind of task, or after other tasks"),
        ((*DIAMOND[:3], node("d", "b")), "'d' is another kind of task, or after other tasks"),
        ((DIAMOND[0], DIAMOND[2], DIAMOND[1], DIAMOND[3]), None),  # another order alone is no change
    ],
)
def test_change_of_a_flow_is_described(nodes, said):
    assert shape_of(*DIAMOND).difference(shape_of(*nodes)) == said


def test_fan_out_over_another_task_is_another_one():
    before = shape_of(node("a"), node("b"), node("c", "a", "b", each="a"))
    after = shape_of(node("a"), node("b"), node("c", "b", "a", each="b"))
    assert after.difference(before) == "'c' is another kind of task, or after other tasks"
    assert (
        shape_of(node("a"), node("b"), node("c", "b", "a")).difference(
            shape_of(node("a"), node("b"), node("c", "a", "b"))
        )
        is None
    )


# ── ways ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=6, max_size=6), st.sets(st.integers(0, 5)))
def test_reachable_tasks_are_transitive_from_the_starts(lower, starts):
    found = reach(starts, lower)
    assert {one for start in starts for one in lower[start]} <= found
    assert all(set(lower[one]) <= found for one in found)
    assert all(any(one in lower[upper] for upper in found | starts) for one in found)


def test_longest_path_counts_the_slower_of_two_branches():
    costs = {"a": 1.0, "b": 5.0, "c": 2.0, "d": 1.0}
    assert longest_way(graph_of(*DIAMOND), lambda one: costs[one.name]) == 7.0


def test_worst_case_of_a_task_is_all_its_attempts_and_waits():
    patient = Node(
        name="a", function=len, binding=Binding(), timeout=10.0, retry=Retry(attempts=3, base=2.0, jitter="none")
    )
    assert worst_case(patient) == 3 * 10 + 2 + 4
    assert worst_case(node("b", sensing=SensorOptions(every=1, timeout=9))) == 9
