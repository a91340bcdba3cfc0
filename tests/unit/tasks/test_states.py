"""The ten states of a task, and the transitions between them."""

import pytest

from redrive.model.tasks import State
from redrive.tasks.graph import reach
from redrive.tasks.state.run_handle import TRANSITIONS, WrongTransition, checked


def test_every_state_has_transitions_to_known_states():
    assert set(TRANSITIONS) == set(State)
    assert all(after in State for ways in TRANSITIONS.values() for after in ways)


def test_every_state_can_be_reached_from_the_first():
    states = list(State)
    edges = [[states.index(after) for after in TRANSITIONS[state]] for state in states]
    reached = reach([states.index(State.PENDING)], edges)
    assert {states[number] for number in reached} == set(State)


def test_every_state_but_success_can_reach_success():
    states = list(State)
    edges = [[states.index(after) for after in TRANSITIONS[state]] for state in states]
    for state in states:
        assert state is State.SUCCESS or states.index(State.SUCCESS) in reach([states.index(state)], edges)


def test_success_ends_only_by_a_rerun_or_a_revoked_decision():
    again = {State.READY, State.SENSING, State.RUNNING, State.PENDING}
    assert TRANSITIONS[State.SUCCESS] == again | {State.DEAD_LETTER}


def test_only_failed_transitions_to_itself():
    assert [state for state, ways in TRANSITIONS.items() if state in ways] == [State.FAILED]  # failed for good


@pytest.mark.parametrize("before", State)
@pytest.mark.parametrize("after", State)
def test_transition_is_checked_against_the_table(before, after):
    if after in TRANSITIONS[before]:
        assert checked(before, after) is after
    else:
        with pytest.raises(WrongTransition, match=f"from {before} to {after}"):
            checked(before, after)
