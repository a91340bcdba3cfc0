"""The health of a watch, and its heartbeat to a dead man's switch."""

import logging
import sqlite3
from datetime import UTC, datetime

import httpx
import pytest

from redrive.alerts.config.settings import AlertSettings, WatchedTable
from redrive.alerts.facts.collector import LevelCollector
from redrive.alerts.service import Alerts
from redrive.alerts.watch import Watch
from redrive.errors import StoreError
from redrive.observe import prometheus
from redrive.observe.figures import Reader
from redrive.testing import Answer, FakeClock, FaultyServer
from tests.support.run_history import DAY


@pytest.fixture
def server():
    with FaultyServer() as running:
        running.on("*", Answer(200, body="ok"))
        yield running


@pytest.fixture
def make(store):
    clock, desks = FakeClock(datetime.now(UTC) - DAY), []

    def make(**settings):
        chosen = AlertSettings(**settings)
        desks.append(Alerts(store.database, chosen, clock=clock))
        return Watch(store.database, desks[-1], LevelCollector(store.database, chosen), clock=clock)

    yield make
    for desk in desks:
        desk.close()


class TestHealth:
    def test_watch_that_has_not_looked_is_not_well(self, make):
        assert make().health() == (False, "the watch does not know yet which watch leads")

    def test_watch_with_recent_checks_is_healthy(self, make):
        watch = make()
        watch.check()
        well, said = watch.health()
        assert well
        assert said.startswith("ok: leads, last check")

    def test_standby_names_leader_and_different_settings(self, make):
        make().check()
        second = make(persist=10.0)
        second.check()
        well, said = second.health()
        assert well
        assert said.startswith("ok: stands by, process")
        assert "[alerts] persist" in said

    def test_leader_with_failing_checks_is_unhealthy(self, make, monkeypatch):
        watch = make()

        def broken(*args, **options):
            raise StoreError("the schema is gone")

        monkeypatch.setattr(LevelCollector, "collect", broken)
        watch.check()
        assert watch.health() == (False, "the watch leads and has not completed a check yet")

    @pytest.mark.parametrize("path", ["/healthz", "/readyz"])
    def test_unhealthy_watch_is_a_503_over_http(self, make, store, path, monkeypatch):
        monkeypatch.setattr(prometheus, "KEPT", 0.0)
        watch = make()
        with prometheus.serve(store, "127.0.0.1:0", health=watch.health) as server:
            answer = httpx.get(server.url + path)
            assert (answer.status_code, answer.text) == (503, "the watch does not know yet which watch leads\n")
            watch.check()
            answer = httpx.get(server.url + path)
            assert answer.status_code == 200
            assert answer.text.startswith("ok: leads")


class TestWatchedTable:
    def test_table_that_is_dropped_is_an_alert_and_a_metric(self, store, tmp_path):
        url, clock = f"sqlite:///{tmp_path / 'warehouse.db'}", FakeClock(datetime.now(UTC) - DAY)
        with sqlite3.connect(tmp_path / "warehouse.db") as warehouse:
            warehouse.execute("CREATE TABLE orders (id INTEGER)")
        chosen = AlertSettings(tables=(WatchedTable(name="orders", url=url),))
        desk = Alerts(store.database, chosen, clock=clock)
        watch = Watch(store.database, desk, LevelCollector(store.database, chosen), clock=clock)
        watch.check()
        assert Reader(store.database).read().monitors == {}
        warehouse.execute("DROP TABLE orders")
        warehouse.close()
        for _ in range(5):
            clock.advance(1_500)
            watch.check()
        (alert,) = store.alerts.find(status="open")
        assert (alert.condition, alert.title) == ("monitor_failed", "cannot measure table row counts of orders")
        assert "no such table" in alert.facts.error
        assert Reader(store.database).read().monitors == {"tables:orders": False}
        desk.close()


class TestHeartbeat:
    def test_failed_check_sends_no_heartbeat(self, make, server, monkeypatch):
        watch = make(heartbeat=f"{server.url}/ping/1")

        def broken(*args, **options):
            raise StoreError("the schema is gone")

        with monkeypatch.context() as patched:
            patched.setattr(LevelCollector, "collect", broken)
            watch.check()
        assert server.requests == []
        watch.check()
        assert len(server.requests) == 1

    def test_every_check_sends_a_heartbeat(self, make, server):
        watch = make(heartbeat=f"{server.url}/ping/1")
        watch.check()
        watch.check()
        assert [(one.method, one.target) for one in server.requests] == [("POST", "/ping/1")] * 2

    def test_watch_that_stands_by_sends_none(self, make, server):
        make().check()
        make(heartbeat=f"{server.url}/ping/1").check()
        assert server.requests == []

    def test_failed_heartbeat_is_one_log_line_and_stops_nothing(self, make, server, caplog):
        server.on("*", Answer(500, body="down"))
        watch = make(heartbeat=f"{server.url}/ping/s3cret")
        with caplog.at_level(logging.INFO, logger="redrive.watch"):
            assert watch.check()
            assert watch.check()
            assert watch.failed == []
            server.on("*", Answer(200, body="ok"))
            watch.check()
        said = [one.getMessage() for one in caplog.records]
        assert len(said) == 2
        assert said[0].startswith("the watch cannot send the heartbeat")
        assert said[1] == "the watch can send the heartbeat again"
        assert "s3cret" not in said[0]
