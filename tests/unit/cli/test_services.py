"""`redrive services`: open circuits and used-up keys that processes share."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from redrive.policy.fleet import DrainedKey, Saying, Word


@pytest.fixture
def trouble(store):
    """A service that is down, and one whose key is used up."""
    until = datetime.now(UTC) + timedelta(hours=8, seconds=30)
    store.shared.tell(
        [Word("shipfast", "worker-1", "17", Saying.OPEN, ago=3.0, retry_in=25.0)],
        [DrainedKey("partner", "0" * 16, "a1b2", until)],
    )


def test_nothing_is_wrong_with_services_nobody_spoke_of(run, store):
    answer = run("services", "ls")
    assert answer.code == 0
    assert answer.out == "service\tcircuit\tmachines\tnext_probe\tused-up_keys\tlast_word\n"
    assert answer.err == "no circuit is open, and no key is used up\n"
    assert json.loads(run("services", "ls", "--json").out) == []


def test_open_circuits_and_used_up_keys_are_listed(run, trouble):
    partner, shipfast = run("services", "ls").rows
    assert (partner[0], partner[1], partner[4]) == ("partner", "closed", "…a1b2")
    assert shipfast[:3] == ["shipfast", "open", "worker-1"]
    datetime.fromisoformat(shipfast[3])
    told = json.loads(run("services", "ls", "--json").out)
    assert [one["state"] for one in told] == ["closed", "open"]
    assert told[0]["drained"][0]["key_id"] == "a1b2"
    assert 0 < told[1]["retry_in"] <= 25


def test_one_service_is_shown_with_all_that_is_known(run, terminal, trouble):
    told = json.loads(run("services", "show", "shipfast", "--json").out)
    assert (told["service"], told["hosts"], told["everywhere"]) == ("shipfast", ["worker-1"], True)
    assert ["key …a1b2 used up until", *run("services", "show", "partner").rows[-1][1:]] in run(
        "services", "show", "partner"
    ).rows
    shown = terminal("services", "show", "partner").out
    assert "in 8 h" in shown


def test_a_service_nobody_spoke_of_is_said_with_those_there_are(run, trouble):
    answer = run("services", "show", "shipslow")
    assert answer.code == 64
    assert answer.sentence.endswith("there are partner, shipfast")


def test_a_reset_closes_the_circuit_and_with_keys_uses_them_again(run, trouble, store):
    assert run("services", "reset", "shipfast").err == "the circuit of shipfast is closed\n"
    assert str(store.shared.services()[1].state) == "closed"
    answer = run("services", "reset", "partner", "--keys", "--json")
    assert json.loads(answer.out) == {"service": "partner", "reset": True, "keys": True}
    assert [one.drained for one in store.shared.services()] == [(), ()]


def test_to_reset_what_nobody_spoke_of_is_harmless_and_said(run, store):
    answer = run("services", "reset", "typo")
    assert answer.code == 0
    assert answer.err.startswith("there was nothing to reset of typo")
