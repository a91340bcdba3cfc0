"""`redrive dlq discard`, `escalate`, `reopen`: by id at once, by filter only with confirmation."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from redrive.store.schema import letter_claims


@pytest.fixture
def held(store):
    """Put a letter into the hands of a replay."""

    def held(letter_id):
        until = datetime.now(UTC) + timedelta(minutes=5)
        claim = letter_claims.insert().values(letter_id=letter_id, owner="another", until=until)
        store.database.write(lambda connection: connection.execute(claim))

    return held


def status(store, *ids):
    return [str(store.dlq.get(one).status) for one in ids]


@pytest.mark.parametrize(("verb", "done"), [("discard", "discarded"), ("escalate", "escalated")])
def test_letters_named_by_id_are_decided_at_once(run, put, store, verb, done):
    put(3)
    answer = run("dlq", verb, 1, 2, "--note", "their test data")
    assert answer == (0, "", f"{done} 2 letters\n")
    assert status(store, 1, 2, 3) == [done, done, "pending"]
    assert store.dlq.get(1).note == "their test data"


def test_closed_letter_is_reopened(run, put, store):
    put(2)
    store.dlq.discard(ids=(1, 2), note="known")
    assert run("dlq", "reopen", "--id", 1, "--note", "not known after all").err == "reopened 1 letter\n"
    assert run("dlq", "reopen", 2).code == 0
    assert status(store, 1, 2) == ["pending", "pending"]


def test_letters_of_another_status_are_counted_and_unchanged(run, put, store):
    put(2)
    store.dlq.discard(ids=(1,), note="known")
    answer = run("dlq", "escalate", 1, 2, "--note", "look")
    assert (answer.code, answer.err) == (0, "escalated 1 letter; 1 letter skipped: not pending\n")


def test_letter_claimed_by_a_replay_is_unchanged(run, put, held, store):
    put(2)
    held(1)
    answer = run("dlq", "discard", 1, 2, "--note", "known", "--json")
    assert answer.code == 75
    assert json.loads(answer.out) == {"changed": 1, "unfit": 0, "held": 1}
    assert "1 letter skipped: a replay or run holds them" in answer.err
    assert status(store, 1, 2) == ["pending", "discarded"]


def test_selection_is_rejected_without_a_terminal(run, put, store):
    put(3)
    answer = run("dlq", "discard", "--pipeline", "vendor", "--note", "known")
    assert answer.code == 64
    assert answer.sentence == (
        "cannot discard 3 letters (3 pending) without confirmation: stdin is not a terminal. "
        "Pass --yes. Nothing was changed"
    )
    assert status(store, 1, 2, 3) == ["pending"] * 3


def test_selection_is_decided_with_yes(run, put, store):
    put(3)
    store.dlq.escalate(ids=(3,), note="look")
    assert run("dlq", "discard", "--pipeline", "vendor", "--note", "known", "--yes").err == "discarded 3 letters\n"
    assert run("dlq", "reopen", "--pipeline", "vendor", "--status", "discarded", "--yes").err == "reopened 3 letters\n"
    assert status(store, 1, 2, 3) == ["pending"] * 3


def test_selection_of_one_needs_no_confirmation(run, put):
    put(3)
    assert run("dlq", "discard", "--key", "D-2", "--note", "known") == (0, "", "discarded 1 letter\n")


def test_confirmation_shows_the_count(terminal, put, store):
    put(3)
    store.dlq.escalate(ids=(3,), note="look")
    words = ["dlq", "discard", "--pipeline", "vendor", "--note", "known"]
    no = terminal(*words, keys="n\n")
    assert no.code == 64
    assert "Discard 3 letters (2 pending, 1 escalated)? [y/N]" in no.out
    assert "redrive: nothing was changed" in no.out
    assert status(store, 1, 2, 3) == ["pending", "pending", "escalated"]
    yes = terminal(*words, keys="y\n")
    assert yes.code == 0
    assert "discarded 3 letters" in yes.out


@pytest.mark.parametrize("verb", ["discard", "escalate", "reopen"])
def test_all_letters_must_be_selected_explicitly(run, put, store, verb):
    put(2)
    answer = run("dlq", verb, "--note", "all of it", "--yes")
    assert answer.code == 64
    assert answer.sentence.startswith(f"no letters to {verb}: none was selected. Pass ids, --pipeline")
    assert status(store, 1, 2) == ["pending"] * 2


def test_empty_note_is_rejected(run, put):
    put(1)
    answer = run("dlq", "discard", 1, "--note", "  ")
    assert (answer.code, answer.sentence) == (
        64,
        "to discard a letter needs a note with the reason; nothing was changed",
    )


def test_unknown_id_changes_nothing(run, put, store):
    put(1)
    answer = run("dlq", "discard", 1, 99, "--note", "known")
    assert (answer.code, answer.sentence) == (64, "there is no letter 99; nothing was changed")
    assert status(store, 1) == ["pending"]


def test_one_letter_named_twice_is_one_letter(run, put):
    put(1)
    assert run("dlq", "discard", 1, 1, "--id", 1, "--note", "known").err == "discarded 1 letter\n"
