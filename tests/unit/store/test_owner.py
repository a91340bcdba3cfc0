"""Who holds a claim, and whether it still lives: only what this machine knows is believed."""

import json
import subprocess
import sys

import pytest

from redrive.store.lease import begin_work, end_work, is_owner_dead, new_owner

pytestmark = pytest.mark.process

SAYS_WHO_IT_IS = "from redrive.store.lease import new_owner; print(new_owner())"


@pytest.fixture
def of_a_dead_process():
    done = subprocess.run([sys.executable, "-c", SAYS_WHO_IT_IS], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def test_a_process_of_this_machine_that_has_ended_is_dead(of_a_dead_process):
    assert is_owner_dead(json.dumps(of_a_dead_process))


@pytest.mark.parametrize("other", ["host", "boot", "space"])
def test_of_another_machine_nobody_is_known_to_be_dead(of_a_dead_process, other):
    assert not is_owner_dead(json.dumps({**of_a_dead_process, other: "another"}))


def test_a_claim_that_does_not_say_which_kernel_it_is_from_is_nobodys_to_end(of_a_dead_process):
    if of_a_dead_process.pop("boot") is None:
        pytest.skip("this machine does not say it either")
    assert not is_owner_dead(json.dumps(of_a_dead_process))


def test_a_claim_of_our_own_lives_while_somebody_is_behind_it():
    owner = new_owner()
    begin_work(owner)
    assert not is_owner_dead(owner)
    end_work(owner)
    assert is_owner_dead(owner)
