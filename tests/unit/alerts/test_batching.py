"""Which due messages of a channel are combined into a summary or a digest."""

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


def send(number, *, alert=None, what=What.OPENED, urgency=P2, digest=False, attempts=0, due=0, created=0):
    return Send(
        id=number,
        alert_id=number if alert is None else alert,
        channel="slack",
        what=what,
        urgency=urgency,
        status=SendStatus.WAITING,
        created_at=NOON + timedelta(seconds=created),
        due_at=NOON + timedelta(seconds=due),
        digest=digest,
        attempts=attempts,
    )


def grouped(due, *, sent=0, kind="slack", now=0, since=60):
    """Group messages; `sent` were sent a minute ago, a second apart."""
    moment = NOON + timedelta(seconds=now)
    times = [NOON + timedelta(seconds=number - since) for number in range(sent)]
    found = groups(due, now=moment, sent=times, settings=SETTINGS, kind=kind)
    return [(group.kind, [one.id for one in group.sends]) for group in found]


# ── what may be sent ──────────────────────────────────────────────────────────────────────────────────────────────────


def free(*waiting, taken=()):
    return [one.id for one in sendable(waiting, NOON, taken=taken)]


def test_due_unclaimed_message_may_be_sent():
    assert free(send(1), send(2, due=1), send(3), send(4), taken={3}) == [1, 4]


def test_resolve_is_not_sent_before_its_alert():
    opened, over = send(1, alert=7, due=60), send(2, alert=7, what=What.RESOLVED)
    assert free(opened, over) == []
    assert free(send(1, alert=7), over, taken={1}) == []
    assert free(send(1, alert=7), over) == [1, 2]
    assert free(over) == [2]


# ── storms ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_few_messages_are_sent_one_by_one():
    assert grouped([send(1), send(2), send(3)]) == [("one", [1]), ("one", [2]), ("one", [3])]


def test_excess_messages_become_one_summary():
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
        (3, []),
        (4, []),
        (9, []),
    ],
)
def test_messages_sent_within_the_window_count(sent, expected):
    assert grouped([send(1), send(2), send(3)], sent=sent) == expected


def test_excess_of_messages_due_together_is_sent_at_once():
    due = [send(number, created=-90) for number in range(1, 4)]
    assert grouped(due, sent=3) == [("summary", [1, 2, 3])]


def test_delayed_messages_become_one_summary():
    due = [send(number, created=number) for number in range(1, 5)]
    assert grouped(due, sent=3, now=60) == []
    assert grouped([*due, send(9, created=240)], sent=3, now=241) == [("summary", [1, 2, 3, 4, 9])]
    assert grouped(due[:1], sent=3, now=241) == [("one", [1])]


class TestNewP1:
    def test_new_alert_is_sent_at_once(self):
        due = [send(1), send(2, urgency=P1), send(3, what=What.ESCALATED, urgency=P1), send(4, urgency=P1)]
        assert grouped(due[:2], sent=9) == [("one", [2])]
        assert grouped(due[:3], sent=9) == [("summary", [2, 3])]
        assert grouped(due, sent=1) == [("one", [2]), ("one", [3]), ("one", [4]), ("one", [1])]

    def test_repeat_and_end_wait_with_the_others(self):
        due = [send(1, what=What.REPEATED, urgency=P1), send(2, what=What.RESOLVED, urgency=P1)]
        assert grouped(due, sent=9) == []

    def test_delayed_message_of_its_key_comes_first(self):
        due = [send(1, alert=7, what=What.RESOLVED), send(2, alert=7, urgency=P1), send(3)]
        assert grouped(due, sent=9) == [("summary", [1, 2])]


def test_most_severe_alerts_are_sent_individually():
    due = [send(1, urgency=P3), send(2, urgency=P2), send(3, urgency=P3), send(4, urgency=P1), send(5, urgency=P1)]
    assert grouped(due) == [("one", [4]), ("one", [5]), ("one", [2]), ("summary", [1, 3])]


def test_rejected_message_does_not_block_others():
    assert grouped([send(1, urgency=P1, attempts=4), send(2, urgency=P3)]) == [("one", [2]), ("one", [1])]


# ── digests ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_messages_waiting_for_morning_become_one_message():
    due = [send(1, digest=True), send(2), send(3, digest=True)]
    assert grouped(due) == [("one", [2]), ("digest", [1, 3])]
    assert grouped(due, sent=99) == [("digest", [1, 3])]


def test_later_message_joins_the_morning_digest():
    opened, over = send(1, alert=7, digest=True), send(2, alert=7, what=What.RESOLVED)
    assert grouped([opened, over, send(3)]) == [("one", [3]), ("digest", [1, 2])]


def test_digest_of_one_message_is_that_message():
    assert grouped([send(1, digest=True)]) == [("one", [1])]


# ── channels without summaries ────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.booleans(), max_size=30), st.integers(0, 99))
def test_pagerduty_gets_each_alert_individually(digests, sent):
    due = [send(number, digest=digest) for number, digest in enumerate(digests, 1)]
    assert grouped(due, sent=sent, kind="pagerduty") == [("one", [one.id]) for one in due]


def test_test_message_is_sent_unchanged_at_once():
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
def test_channel_gets_no_duplicates_and_no_flood(due, sent):
    times = [NOON - timedelta(seconds=60)] * sent
    found = groups(due, now=NOON, sent=times, settings=SETTINGS, kind="slack")
    said = [one.id for group in found for one in group.sends]
    assert len(said) == len(set(said))
    loud = [group for group in found if not any(one.digest for one in group.sends)]
    singles = [group for group in loud if group.kind == "one"]
    assert len(loud) <= max(0, SETTINGS.storm - sent) + 2
    assert len(singles) <= max(0, SETTINGS.storm - sent) + 2
    assert {one.id for one in due if one.urgency is P1 and one.what is What.OPENED} <= set(said)
    if sent < SETTINGS.storm:
        assert set(said) == {one.id for one in due}


@given(drawn_sends, st.integers(0, 10))
def test_messages_of_one_alert_are_sent_in_order(due, sent):
    found = groups(due, now=NOON, sent=[NOON] * sent, settings=SETTINGS, kind="slack")
    for alert in {one.alert_id for one in due}:
        said = [one.id for group in found for one in group.sends if one.alert_id == alert]
        assert said == sorted(said)


def test_group_lists_its_messages():
    assert groups([send(1)], now=NOON, sent=[], settings=SETTINGS, kind="log") == [MessageBatch("one", (send(1),))]


def test_open_alerts_are_sent_before_resolved_ones():
    waited = [send(1), send(2, alert=1, what=What.RESOLVED), send(3, urgency=P3), send(4, urgency=P1)]
    assert grouped(waited, kind="pagerduty") == [("one", [4]), ("one", [3]), ("one", [1]), ("one", [2])]
