"""The owner of a claim, and whether it is alive: only processes of this machine can be known to be dead."""

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


def test_ended_process_of_this_machine_is_dead(of_a_dead_process):
    assert is_owner_dead(json.dumps(of_a_dead_process))


@pytest.mark.parametrize("other", ["host", "boot", "space"])
def test_process_of_another_machine_is_never_known_dead(of_a_dead_process, other):
    assert not is_owner_dead(json.dumps({**of_a_dead_process, other: "another"}))


def test_claim_without_a_kernel_id_is_never_ended(of_a_dead_process):
    if of_a_dead_process.pop("boot") is None:
        pytest.skip("this machine does not say it either")
    assert not is_owner_dead(json.dumps(of_a_dead_process))


def test_own_claim_is_alive_while_its_work_runs():
    owner = new_owner()
    begin_work(owner)
    assert not is_owner_dead(owner)
    end_work(owner)
    assert is_owner_dead(owner)
