"""Watches of one store with different settings: a setting without effect opens an alert."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from redrive.alerts.config.settings import AlertSettings, Channel, ConditionSettings, PipelineSettings, WatchedTable
from redrive.alerts.facts.collector import LevelCollector
from redrive.alerts.service import Alerts
from redrive.alerts.watch import LEASE, Watch
from redrive.alerts.watchers import SettingsDiffer, describe
from redrive.model.alerts import AlertStatus, Severity
from redrive.policy.time_of_day import TimeOfDay
from redrive.testing import Answer, FakeClock, FaultyServer
from tests.support.flows import eventually
from tests.support.run_history import DAY

OURS = AlertSettings()


class Team:
    """A team with its own `redrive.toml`, and its watch."""

    def __init__(self, store, clock, settings):
        self.news = []
        self.desk = Alerts(store.database, settings, clock=clock)
        levels = LevelCollector(store.database, settings)
        self.watch = Watch(store.database, self.desk, levels, clock=clock, news=self.news.append)
        self.clock = clock

    def differs(self):
        return [news.names for news in self.news if isinstance(news, SettingsDiffer)]

    def end(self):
        self.watch.leave()
        self.desk.close()


@pytest.fixture
def teams(store):
    clock, made = FakeClock(datetime.now(UTC) - DAY), []

    def team(settings):
        made.append(Team(store, clock, settings))
        return made[-1]

    yield team
    for one in made:
        one.end()


@pytest.fixture
def server():
    with FaultyServer() as running:
        running.on("*", Answer(200, body="ok"))
        yield running


def theirs(server):
    channel = Channel(name="bteam", kind="webhook", target=f"{server.url}/hook", timeout=20.0)
    return AlertSettings(
        channels={"bteam": channel},
        routes=dict.fromkeys(Severity, ("bteam",)),
        pipelines={"bjob": PipelineSettings(sla=TimeOfDay.of("sla", "06:30 UTC"))},
    )


def look(*teams, minutes):
    for _ in range(2 * minutes):
        for team in teams:
            team.watch.check()
        teams[0].clock.advance(LEASE.total_seconds() / 2)


def told(team):
    return team.desk.find(condition="settings_differ")


def test_standby_with_other_settings_alerts_on_its_channel(teams, server):
    leads, stands_by = teams(OURS), teams(theirs(server))
    look(leads, stands_by, minutes=2)
    assert stands_by.differs() == [("[channels.bteam]", "[pipelines.bjob]", "[routes]")]
    assert [one.status for one in told(leads)] == [AlertStatus.WAITING]  # a deploy restarts one after the other
    look(leads, stands_by, minutes=5)
    (alert,) = told(leads)
    assert (alert.status, alert.urgency) == (AlertStatus.OPEN, Severity.P2)
    assert "[pipelines.bjob]" in alert.title
    eventually(lambda: server.requests)
    assert server.requests[0].json()["headline"].startswith("P2")


def test_alert_resolves_when_the_settings_are_equal(teams, server):
    leads, stands_by = teams(OURS), teams(theirs(server))
    look(leads, stands_by, minutes=8)
    stands_by.end()
    again = teams(OURS)
    look(leads, again, minutes=8)
    assert [one.status for one in told(leads)] == [AlertStatus.RESOLVED]
    assert again.differs() == []


def test_alert_resolves_when_the_standby_leads(teams, server):
    leads, stands_by = teams(OURS), teams(theirs(server))
    look(leads, stands_by, minutes=8)
    leads.watch.leave()
    stands_by.clock.advance(LEASE.total_seconds())
    look(stands_by, minutes=8)
    assert [one.status for one in told(stands_by)] == [AlertStatus.RESOLVED]


def test_equal_settings_open_no_alert(teams, server):
    leads, stands_by = teams(theirs(server)), teams(theirs(server))
    look(leads, stands_by, minutes=8)
    assert (told(leads), stands_by.differs()) == ([], [])


class TestComparedSettings:
    def test_condition_counts_by_its_name_without_its_places(self):
        own = ConditionSettings(severity=Severity.P2, query="SELECT 1", url="postgresql://me:pw@db/x", above=1.0)
        probed = ConditionSettings(severity=Severity.P2, probe="/srv/a/probes.py:age", above=1.0)
        ours = describe(replace(OURS, conditions={"backlog": own, "age": probed}))
        elsewhere = {"backlog": replace(own, url=""), "age": replace(probed, probe="/srv/b/probes.py:age")}
        assert describe(replace(OURS, conditions=elsewhere)) == ours
        changed = describe(replace(OURS, conditions={"backlog": replace(own, above=2.0), "age": probed}))
        assert [name for name in ours if changed[name] != ours[name]] == ["[conditions.backlog]"]

    def test_secrets_and_directories_do_not_count(self):
        one = AlertSettings(
            channels={"team": Channel(name="team", kind="slack", target="https://a")},
            tables=(WatchedTable(name="t", url="postgresql://a:x@wh/prod"),),
            lags=("/srv/a/probes.py:billing",),
            every=30.0,
        )
        other = AlertSettings(
            channels={"team": Channel(name="team", kind="slack", target="https://b")},
            tables=(WatchedTable(name="t", url="postgresql://b:y@wh/prod"),),
            lags=("/home/b/probes.py:billing",),
            every=60.0,
        )
        assert describe(one) == describe(other)

    @pytest.mark.parametrize(
        "changed",
        [
            {"pipelines": {"b": PipelineSettings(fresh_within=60.0)}},
            {"tables": (WatchedTable(name="t", url="sqlite:///x"),)},
            {"slots": ("postgresql://wh/prod",)},
            {"lags": ("probes.py:billing",)},
            {"persist": 10.0},
            {"routes": {Severity.P1: ("team",)}},
        ],
        ids=lambda one: next(iter(one)),
    )
    def test_every_setting_counts(self, changed):
        assert describe(replace(OURS, **changed)) != describe(OURS)
