"""What is said in one message, of what is due to one channel."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.delivery.batching import MessageBatch, groups, sendable
from redrive.model.alerts import Send, SendStatus, Severity, What

NOON = datetime(2027, 3, 1, 12, 0, tzinfo=UTC)
P1, P2, P3 = Severity.P1, Severity.P2, Severity.P3
SETTINGS = AlertSettings(storm=3)


def send(number, *, alert=None, what=What.OPENED, urgency=P2, digest=False, attempts=0, due=0):
    return Send(
        id=number,
        alert_id=number if alert is None else alert,
        channel="slack",
        what=what,
        urgency=urgency,
        status=SendStatus.WAITING,
        created_at=NOON,
        due_at=NOON + timedelta(seconds=due),
        digest=digest,
        attempts=attempts,
    )


def grouped(due, *, sent=0, kind="slack"):
    return [
        (group.kind, [one.id for one in group.sends]) for group in groups(due, sent=sent, settings=SETTINGS, kind=kind)
    ]


# ── what may be sent ──────────────────────────────────────────────────────────────────────────────────────────────────


def free(*waiting, taken=()):
    return [one.id for one in sendable(waiting, NOON, taken=taken)]


def test_what_is_due_and_in_nobodys_hand_may_be_sent():
    assert free(send(1), send(2, due=1), send(3), send(4), taken={3}) == [1, 4]


def test_nobody_hears_that_an_alert_is_over_before_he_has_heard_of_it():
    opened, over = send(1, alert=7, due=60), send(2, alert=7, what=What.RESOLVED)
    assert free(opened, over) == []
    assert free(send(1, alert=7), over, taken={1}) == []
    assert free(send(1, alert=7), over) == [1, 2]
    assert free(over) == [2]


# ── storms ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_few_messages_go_out_one_by_one():
    assert grouped([send(1), send(2), send(3)]) == [("one", [1]), ("one", [2]), ("one", [3])]


def test_what_comes_beyond_is_one_summary():
    assert grouped([send(number) for number in range(1, 8)]) == [
        ("one", [1]),
        ("one", [2]),
        ("one", [3]),
        ("summary", [4, 5, 6, 7]),
    ]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (2, [("one", [1]), ("summary", [2, 3])]),
        (3, [("summary", [1, 2, 3])]),
        (4, []),
        (9, []),
    ],
)
def test_what_was_sent_within_the_window_counts_and_there_is_one_summary_in_it(sent, expected):
    assert grouped([send(1), send(2), send(3)], sent=sent) == expected


def test_a_summary_of_one_is_that_one():
    assert grouped([send(1)], sent=3) == [("one", [1])]


def test_the_most_urgent_are_those_that_go_out_by_themselves():
    due = [send(1, urgency=P3), send(2, urgency=P2), send(3, urgency=P3), send(4, urgency=P1), send(5, urgency=P1)]
    assert grouped(due) == [("one", [4]), ("one", [5]), ("one", [2]), ("summary", [1, 3])]


def test_a_message_that_a_channel_refuses_again_and_again_does_not_hold_up_the_others():
    assert grouped([send(1, urgency=P1, attempts=4), send(2, urgency=P3)]) == [("one", [2]), ("one", [1])]


# ── digests ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_waited_for_the_morning_is_one_message_whatever_was_sent_before():
    due = [send(1, digest=True), send(2, urgency=P1), send(3, digest=True)]
    assert grouped(due) == [("one", [2]), ("digest", [1, 3])]
    assert grouped(due, sent=99) == [("digest", [1, 3])]


def test_what_came_after_something_that_waited_for_the_morning_comes_with_it():
    opened, over = send(1, alert=7, digest=True), send(2, alert=7, what=What.RESOLVED)
    assert grouped([opened, over, send(3)]) == [("one", [3]), ("digest", [1, 2])]


def test_a_digest_of_one_is_that_one():
    assert grouped([send(1, digest=True)]) == [("one", [1])]


# ── who is never told in sums ─────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.booleans(), max_size=30), st.integers(0, 99))
def test_pagerduty_is_told_of_each_alert_by_itself(digests, sent):
    due = [send(number, digest=digest) for number, digest in enumerate(digests, 1)]
    assert grouped(due, sent=sent, kind="pagerduty") == [("one", [one.id]) for one in due]


def test_a_test_is_sent_as_it_is_and_at_once():
    tests = [send(number, what=What.TEST) for number in range(1, 6)]
    assert grouped(tests, sent=99) == [("one", [one.id]) for one in tests]


# ── whatever is due ───────────────────────────────────────────────────────────────────────────────────────────────────

drawn_sends = st.lists(
    st.builds(
        lambda alert, what, urgency, digest, attempts: (alert, what, urgency, digest, attempts),
        st.integers(1, 5),
        st.sampled_from([What.OPENED, What.REPEATED, What.RESOLVED]),
        st.sampled_from(list(Severity)),
        st.booleans(),
        st.integers(0, 3),
    ),
    max_size=20,
).map(
    lambda drawn: [
        send(number, alert=alert, what=what, urgency=urgency, digest=digest, attempts=attempts)
        for number, (alert, what, urgency, digest, attempts) in enumerate(drawn, 1)
    ]
)


@given(drawn_sends, st.integers(0, 10))
def test_nothing_is_said_twice_and_a_channel_is_never_flooded(due, sent):
    found = groups(due, sent=sent, settings=SETTINGS, kind="slack")
    said = [one.id for group in found for one in group.sends]
    assert len(said) == len(set(said))
    loud = [group for group in found if not any(one.digest for one in group.sends)]
    assert len(loud) <= max(0, SETTINGS.storm + 1 - sent)
    if sent <= SETTINGS.storm:
        assert set(said) == {one.id for one in due}


@given(drawn_sends, st.integers(0, 10))
def test_what_is_said_of_one_alert_is_said_in_order(due, sent):
    found = groups(due, sent=sent, settings=SETTINGS, kind="slack")
    for alert in {one.alert_id for one in due}:
        said = [one.id for group in found for one in group.sends if one.alert_id == alert]
        assert said == sorted(said)


def test_a_group_says_what_it_is_made_of():
    assert groups([send(1)], sent=0, settings=SETTINGS, kind="log") == [MessageBatch("one", (send(1),))]


def test_what_is_open_is_sent_before_what_is_over():
    waited = [send(1), send(2, alert=1, what=What.RESOLVED), send(3, urgency=P3), send(4, urgency=P1)]
    assert grouped(waited, kind="pagerduty") == [("one", [4]), ("one", [3]), ("one", [1]), ("one", [2])]
