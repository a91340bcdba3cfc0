"""Runs that fail of one cause are one alert with members, on every channel."""

from datetime import UTC, datetime

import pytest

import redrive
from redrive.alerts.config.settings import AlertSettings, Channel, PipelineSettings
from redrive.alerts.service import Alerts
from redrive.model.alerts import AlertStatus, Severity
from redrive.testing import Answer, FakeClock, FaultyServer
from tests.support.examples import examples
from tests.support.flows import eventually
from tests.support.run_history import DAY, HOUR, MINUTE, Books

KEY = "0123456789abcdef0123456789abcdef"
EXPIRED = (
    'OperationalError: connection to server at "10.0.0.5", port 5432 failed: '
    'FATAL: password authentication failed for user "{user}"'
)


class Company(Books):
    """Pipelines of one store, with alerts to PagerDuty and Slack."""

    def __init__(self, store, server, **options):
        super().__init__(store)
        self.server = server
        self.clock = FakeClock(datetime.now(UTC) - DAY)  # the sender's thread has the real one
        channels = {
            "oncall": Channel(
                name="oncall", kind="pagerduty", target=f"{server.url}/v2/enqueue?routing_key={KEY}", timeout=20.0
            ),
            "team": Channel(name="team", kind="slack", target=f"{server.url}/services/T0/B0/x", timeout=20.0),
        }
        options.setdefault("routes", {Severity.P1: ("oncall", "team"), Severity.P2: ("oncall",)})
        self.desk = Alerts(store.database, AlertSettings(channels=channels, **options), clock=self.clock)

    def close(self):
        self.desk.close()

    def fail(self, *names, reason=None, kind="auth", sink="orders in the warehouse"):
        for name in names:
            now = self.clock.now()
            self.ran(
                *(now - MINUTE, now),
                name=name,
                status="failed",
                judged=False,
                reason=reason or EXPIRED.format(user="etl"),
                error_kind=kind,
                error_type="OperationalError",
                sink=sink,
            )
            self.clock.advance(1.0)
        self.desk.judge_ended(limit=10_000)

    def complete(self, *names):
        for name in names:
            self.clock.advance(1.0)
            now = self.clock.now()
            self.ran(now - MINUTE / 60, now, name=name, judged=False)
        self.desk.judge_ended(limit=10_000)

    def open(self):
        return self.desk.find(status="open")

    def events(self):
        """The events sent to PagerDuty, with their keys."""
        eventually(lambda: not self.desk.unsent())
        posted = [one.json() for one in self.server.requests if one.target.startswith("/v2/")]
        return [(one["event_action"], one["dedup_key"]) for one in posted]

    def slack(self):
        eventually(lambda: not self.desk.unsent())
        return [one.json() for one in self.server.requests if one.target.startswith("/services")]


@pytest.fixture
def server():
    with FaultyServer() as running:
        running.on("*", Answer(202, body="ok"))
        yield running


@pytest.fixture
def company(store, server):
    made = Company(store, server)
    yield made
    made.close()


def test_pipelines_with_an_expired_password_are_one_page(company):
    many = examples(50)  # 500 in `make chaos`
    names = [f"orders_{number}" for number in range(many)]
    company.fail(*names)
    (alert,) = company.open()
    assert company.events() == [("trigger", alert.key)]
    assert len(company.slack()) == 1
    assert set(alert.facts.affected) == set(names)
    assert alert.title.startswith(f"{many} pipelines have failed, a credential was refused: OperationalError")

    company.complete(*names[:-1])
    (alert,) = company.open()
    assert alert.facts.affected == (names[-1],)
    assert alert.title.startswith(f"1 of {many} pipelines have failed")
    assert company.events() == [("trigger", alert.key)]

    company.complete(names[-1])
    assert company.open() == []
    assert company.events() == [("trigger", alert.key), ("resolve", alert.key)]
    assert len(company.slack()) == 2
    assert company.desk.get(alert.id).title.startswith(f"{many} pipelines have failed")


class TestCauses:
    def test_two_causes_at_once_are_two_alerts(self, company):
        company.fail("a", "b")
        company.fail("c", "d", reason=EXPIRED.format(user="crm"))
        company.fail("e", "f", reason=EXPIRED.format(user="etl").replace("10.0.0.5", "10.0.0.6"))
        assert [set(one.facts.affected) for one in company.open()] == [{"e", "f"}, {"c", "d"}, {"a", "b"}]
        assert [action for action, _ in company.events()] == ["trigger"] * 3

    def test_errors_without_a_server_are_separated_by_target(self, company):
        wrong = "DatabaseError: 250001: Incorrect username or password was specified."
        company.fail("a", "b", reason=wrong, sink="x in snowflake://one")
        company.fail("c", "d", reason=wrong, sink="y in snowflake://two")
        assert [set(one.facts.affected) for one in company.open()] == [{"c", "d"}, {"a", "b"}]

    def test_texts_that_vary_by_run_are_one_cause(self, company):
        for number, name in enumerate(("orders", "customers", "stock")):
            full = f"OSError: [Errno 28] No space left on device: '/data/{name}/{number}'"
            company.fail(name, reason=full, kind="resource")
        (alert,) = company.open()
        assert set(alert.facts.affected) == {"orders", "customers", "stock"}

    def test_exhausted_retries_are_grouped_too(self, company):
        refused = 'OperationalError: connection to server at "wh", port 5432 failed: Connection refused'
        company.fail("a", "b", "c", reason=refused, kind="transient")
        (alert,) = company.open()
        assert alert.title.startswith("3 pipelines have failed, and their retries are exhausted")
        assert len(company.events()) == 1

    def test_pipelines_with_own_routes_are_a_separate_alert(self, store, server):
        theirs = {"crm": PipelineSettings(routes={Severity.P1: ("team",)})}
        company = Company(store, server, pipelines=theirs)
        company.fail("orders", "stock", "crm")
        assert [set(one.facts.affected) for one in company.open()] == [{"crm"}, {"orders", "stock"}]
        assert (len(company.events()), len(company.slack())) == (1, 2)
        company.close()

    def test_real_pipelines_with_one_cause_share_an_alert(self, store, tmp_path):
        def source():
            raise PermissionError(13, "password expired for user 'etl'")
            yield

        for name in ("orders", "stock"):
            pipeline = redrive.Pipeline(
                name,
                source=redrive.rows.records(source),
                sink=redrive.rows.parquet_dataset(tmp_path / name, key="id"),
                store=store,
            )
            with pytest.raises(redrive.errors.RunStopped):
                pipeline.run()
        (alert,) = store.alerts.find(status="open")
        assert set(alert.facts.affected) == {"orders", "stock"}


class TestMembers:
    def test_member_that_joins_later_does_not_page_again(self, company):
        company.fail("a", "b")
        company.clock.advance(MINUTE.total_seconds() * 50)
        company.fail("c")
        (alert,) = company.open()
        assert set(alert.facts.affected) == {"a", "b", "c"}
        assert len(company.events()) == 1

    def test_member_of_an_acknowledged_alert_does_not_page(self, company):
        company.fail("a", "b")
        (alert,) = company.open()
        company.desk.acknowledge(alert.id, by="me")
        company.fail("c")
        assert company.desk.get(alert.id).status is AlertStatus.ACKNOWLEDGED
        assert [action for action, _ in company.events()] == ["trigger", "acknowledge"]

    def test_same_text_after_the_window_is_a_new_page(self, company):
        company.fail("a", "b")
        company.clock.advance(HOUR.total_seconds() + MINUTE.total_seconds())
        company.fail("c", "d")
        newer, older = company.open()
        assert (set(newer.facts.affected), set(older.facts.affected)) == ({"c", "d"}, {"a", "b"})
        assert len(company.events()) == 2
        company.complete("a", "b")
        assert [one.id for one in company.open()] == [newer.id]

    def test_member_with_another_failure_gets_its_own_alert(self, company):
        company.fail("a", "b", "c")
        company.fail("b", reason="KeyError: 'amount'", kind="permanent")
        other, shared = company.open()
        assert (set(other.facts.affected), set(shared.facts.affected)) == ({"b"}, {"a", "c"})
        company.complete("a", "c")
        assert [one.id for one in company.open()] == [other.id]

    def test_single_pipeline_stays_in_its_alert(self, company):
        company.fail("a")
        company.fail("a", reason="KeyError: 'amount'", kind="permanent")
        (alert,) = company.open()
        assert "KeyError" in alert.title
        assert len(company.events()) == 1

    def test_alert_is_found_by_the_name_of_any_member(self, company):
        company.fail("a", "b", "c")
        assert [len(company.desk.find(status="open", subject=name)) for name in ("a", "b", "c", "d")] == [1, 1, 1, 0]

    @pytest.mark.parametrize("how", ["pipeline", "subject"])
    def test_silence_of_one_member_does_not_silence_the_others(self, company, how):
        company.desk.silence(**{how: "a"}, seconds=3_600.0, reason="it is being rebuilt", by="me")
        company.fail("a")
        assert company.events() == []
        company.fail("b")
        (alert,) = company.open()
        assert company.events() == [("trigger", alert.key)]
