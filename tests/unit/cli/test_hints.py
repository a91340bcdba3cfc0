"""Hints that a command prints beside its result."""

from datetime import UTC, datetime, timedelta

import pytest

from redrive.policy.consensus import DrainedKey


@pytest.mark.usefixtures("store")
def test_letters_named_by_id_are_not_reported_as_not_pending(run):
    assert run("dlq", "ls", "99").err == "no letters match\n"
    assert run("dlq", "ls").err == "no open letters\n"
    assert run("dlq", "ls", "--after", "5").err == "no open letters match\n"


def test_reset_explains_how_exhausted_keys_are_used_again(run, store):
    store.shared.publish([], [DrainedKey("partner", "0" * 16, "a1b2", datetime.now(UTC) + timedelta(hours=1))])
    said = "its exhausted keys stay exhausted; --keys releases them\n"
    assert run("services", "reset", "partner").err.endswith(said)
    assert said not in run("services", "reset", "partner", "--keys").err
    assert said not in run("services", "reset", "partner").err
