"""Circuits and keys that processes share, on both databases. The unit tests cover how reports are sent and judged."""

from datetime import UTC, datetime, timedelta

import pytest

from redrive.policy.consensus import BreakerReport, DrainedKey, ReportKind

NOON = datetime(2027, 1, 1, 12, 0, tzinfo=UTC)


class Clock:
    """The database's clock, set by hand."""

    def __init__(self):
        self.now, self.read = NOON, 0

    def __call__(self, connection):
        self.read += 1
        return self.now

    def advance(self, seconds):
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock(store, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(store.database.dialect, "now", clock)
    return clock


@pytest.fixture
def shared(store, clock):
    return store.shared


def says(kind, host="a", process="1", *, service="bank", ago=0.0, retry_in=30.0, quorum=2):
    return BreakerReport(service, host, process, ReportKind(kind), ago, retry_in if kind == "open" else 0.0, quorum)


def drained(digest="d1", *, service="bank", hours=1):
    return DrainedKey(service, digest, f"…{digest}", NOON + timedelta(hours=hours))


def reports(shared, *services):
    return list(shared.read(services or ("bank",), keys=False).reports)


def keys(shared, *services):
    return list(shared.read(services or ("bank",), keys=True).drained)


def test_22_reports_are_read_back_as_durations_of_one_clock(shared, clock):
    shared.publish([says("open", ago=10, retry_in=30)], [])
    clock.advance(4)
    assert reports(shared) == [says("open", ago=14, retry_in=26)]
    clock.advance(100)
    assert reports(shared) == [says("open", ago=114, retry_in=0)]


def test_22_clock_set_back_extends_no_report(shared, clock):
    shared.publish([says("open", retry_in=30)], [])
    clock.advance(-3600)
    assert reports(shared) == []


def test_store_without_reports_does_not_query_the_clock(shared, clock):
    assert reports(shared) == []
    assert clock.read == 0


def test_report_replaces_the_last_of_its_process(shared):
    shared.publish([says("open"), says("open", process="2"), says("open", "b")], [])
    shared.publish([says("closed")], [])
    assert sorted((word.host, word.process, word.kind) for word in reports(shared)) == [
        ("a", "1", "closed"),
        ("a", "2", "open"),
        ("b", "1", "open"),
    ]


def test_only_requested_services_are_read(shared):
    shared.publish([says("open"), says("open", service="exchange")], [drained(), drained(service="exchange")])
    assert [word.service for word in reports(shared, "exchange", "unheard of")] == ["exchange"]
    assert [key.service for key in keys(shared, "exchange")] == ["exchange"]
    assert len(reports(shared, "bank", "exchange")) == 2


def test_expired_report_is_removed_at_the_next_write(shared, clock):
    shared.publish([says("open", process="old"), says("open", process="long", retry_in=7200)], [])
    clock.advance(3601)
    shared.publish([says("closed", service="exchange")], [])
    assert len(reports(shared)) == 2
    shared.publish([says("closed", process="new")], [])
    assert sorted(word.process for word in reports(shared)) == ["long", "new"]


def test_exhausted_key_rests_until_the_latest_reported_time(shared):
    shared.publish([], [drained(hours=2)])
    shared.publish([], [drained(hours=1), drained("d2")])
    assert {key.digest: key.until for key in keys(shared)} == {
        "d1": NOON + timedelta(hours=2),
        "d2": NOON + timedelta(hours=1),
    }
    shared.publish([], [drained(hours=3)])
    assert max(key.until for key in keys(shared)) == NOON + timedelta(hours=3)


def test_keys_are_looked_at_only_if_asked_for(shared):
    shared.publish([], [drained()])
    assert list(shared.read({"bank"}, keys=False).drained) == []


def test_old_key_exhaustion_is_removed_at_the_next_write(shared, clock):
    shared.publish([], [drained("d1", hours=1), drained("d2", hours=8)])
    clock.advance(3 * 3600)
    shared.publish([], [drained("d3", hours=8)])
    assert sorted(key.digest for key in keys(shared)) == ["d2", "d3"]


def test_reset_removes_reports_and_is_reported(shared, clock):
    shared.publish([says("open"), says("open", "b"), says("open", service="exchange")], [drained()])
    assert shared.reset("bank")
    clock.advance(2)
    assert [(word.kind, word.ago) for word in reports(shared)] == [("reset", 2.0)]
    assert [word.kind for word in reports(shared, "exchange")] == ["open"]
    assert len(keys(shared)) == 1
    assert not shared.reset("bank")


def test_reset_of_keys_clears_exhausted_keys(shared):
    shared.publish([], [drained(), drained(service="exchange")])
    assert shared.reset("bank", keys=True)
    assert sorted(word.kind for word in reports(shared)) == ["reset", "reset_keys"]
    assert keys(shared) == []
    assert len(keys(shared, "exchange")) == 1


# ── listings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_store_without_reports_knows_no_service(shared):
    assert shared.services() == []


def test_services_are_listed_with_machines_that_report_open(shared):
    shared.publish([says("open"), says("open", "b", retry_in=20), says("closed", service="atlas")], [drained()])
    atlas, bank = shared.services()
    assert (atlas.service, atlas.state, atlas.hosts, atlas.retry_in, atlas.everywhere) == (
        *("atlas", "closed", (), None, False),
    )
    assert (bank.service, bank.state, bank.hosts, bank.retry_in, bank.everywhere) == (
        *("bank", "open", ("a", "b"), 30.0, True),
    )
    assert bank.changed_at == NOON
    assert bank.drained == (drained(),)


def test_quorum_of_one_opens_for_all_machines(shared):
    shared.publish([says("open"), says("open", service="exchange", quorum=1)], [])
    assert [(state.state, state.everywhere) for state in shared.services()] == [("open", False), ("open", True)]


def test_circuit_after_cooldown_is_half_open_until_closed(shared, clock):
    shared.publish([says("open")], [])
    clock.advance(31)
    assert [(state.state, state.hosts) for state in shared.services()] == [("half_open", ())]
    shared.publish([says("closed", process="2")], [])
    assert [state.state for state in shared.services()] == ["closed"]


def test_unclosed_circuit_is_not_shown_forever(shared, clock):
    shared.publish([says("open")], [])
    clock.advance(3601)
    assert shared.services() == []


def test_keys_available_again_are_not_shown(shared, clock):
    shared.publish([], [drained(hours=1), drained("d2", hours=3)])
    clock.advance(2 * 3600)
    (bank,) = shared.services()
    assert [key.digest for key in bank.drained] == ["d2"]
    assert bank.changed_at is None
