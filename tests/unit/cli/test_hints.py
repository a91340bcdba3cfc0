"""What a command says beside its answer, so that the next one is the right one."""

from datetime import UTC, datetime, timedelta

import pytest

from redrive.policy.consensus import DrainedKey


@pytest.mark.usefixtures("store")
def test_letters_that_were_named_are_not_said_to_be_missing_among_the_pending_ones(run):
    assert run("dlq", "ls", "99").err == "no letters match\n"
    assert run("dlq", "ls").err == "no open letters\n"
    assert run("dlq", "ls", "--after", "5").err == "no open letters match\n"


def test_a_reset_says_how_used_up_keys_are_used_again(run, store):
    store.shared.publish([], [DrainedKey("partner", "0" * 16, "a1b2", datetime.now(UTC) + timedelta(hours=1))])
    said = "its exhausted keys stay exhausted; --keys releases them\n"
    assert run("services", "reset", "partner").err.endswith(said)
    assert said not in run("services", "reset", "partner", "--keys").err
    assert said not in run("services", "reset", "partner").err
