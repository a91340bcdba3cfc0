"""Conditions in `redrive.toml`: what they become, and the error for each invalid one."""

import pytest

from redrive.alerts.config.read import check_channels, read
from redrive.alerts.config.settings import ConditionSettings
from redrive.config import ConfigError, load
from redrive.model.alerts import Severity, Subject

GOOD = "metric = 'redrive_letters'\nabove = 1\nseverity = 'P3'\n"
QUERY = "query = 'SELECT 1'\nurl = 'shop.db'\nabove = 1\nseverity = 'P3'\n"


@pytest.fixture
def say(tmp_path):
    """Reads a file of this text."""

    def say(text, *, how=read, environ=None):
        (tmp_path / "redrive.toml").write_text(text)
        return how(load(environ=environ or {}, directory=tmp_path))

    return say


class TestQueries:
    @pytest.mark.parametrize(
        "query",
        [
            "SELECT 1;",
            "select count(*) from jobs where state = ';' -- a; b",
            '(SELECT max("a;b") FROM t) UNION ALL SELECT 1',
            "/* jobs; all */ WITH a AS (SELECT 1) SELECT * FROM a; -- end",
            "VALUES (1)",
            "TABLE jobs",
            "SELECT*FROM jobs",
        ],
    )
    def test_select_statement_is_accepted(self, say, query):
        assert say(f"[conditions.b]\nquery = '''{query}'''\nurl = 'shop.db'\nabove = 1\nseverity = 'P3'\n").defined

    @pytest.mark.parametrize(
        "query",
        [
            "COPY (SELECT 1) TO PROGRAM 'true'",
            "DELETE FROM jobs",
            "SELECT 1; DROP TABLE jobs",
            "SELECT 1 -- '\n; DROP TABLE jobs -- '",
            "-- SELECT\nDROP TABLE jobs",
            "/* /* */ SELECT */ DROP TABLE jobs",
            "SELECTED",
            "-- nothing",
        ],
    )
    def test_other_statement_is_rejected(self, say, query):
        with pytest.raises(ConfigError, match="query must be one statement that begins with SELECT"):
            say(f"[conditions.b]\nquery = '''{query}'''\nurl = 'shop.db'\nabove = 1\nseverity = 'P3'\n")


class TestConditions:
    def test_each_source_is_read(self, say, tmp_path):
        found = say(
            f"""
            [conditions.backlog]
            {QUERY}
            title = "too many jobs"
            persist = 0
            every = "5min"
            pipeline = "jobs"
            channels = "log"
            [conditions.pending]
            metric = 'redrive_letters{{pipeline="orders", status="pending"}}'
            below = -1.5
            severity = "P1"
            [conditions.age]
            probe = "probes.py:age"
            above = 2
            below = 1
            severity = "P2"
            """
        ).defined
        assert found == {
            "backlog": ConditionSettings(
                severity=Severity.P3,
                query="SELECT 1",
                url=f"sqlite:///{tmp_path}/shop.db",
                above=1.0,
                title="too many jobs",
                persist=0.0,
                every=300.0,
                pipeline="jobs",
                channels=("log",),
            ),
            "pending": ConditionSettings(
                severity=Severity.P1,
                metric="redrive_letters",
                labels={"pipeline": "orders", "status": "pending"},
                below=-1.5,
            ),
            "age": ConditionSettings(severity=Severity.P2, probe=f"{tmp_path}/probes.py:age", above=2.0, below=1.0),
        }

    def test_built_in_condition_may_have_channels(self, say):
        settings = say(
            """
            [channels.oncall]
            command = ["page"]
            [conditions.sla_missed]
            channels = "oncall"
            [routes]
            P1 = "log"
            [pipelines.vendor]
            routes = { P1 = "log" }
            """
        )
        vendor = Subject(kind="pipeline", name="vendor")
        assert settings.defined == {}
        assert settings.channels_for(Severity.P1, vendor, "sla_missed") == ("oncall",)
        assert settings.channels_for(Severity.P1, vendor, "stale") == ("log",)

    def test_channel_of_a_condition_alone_is_enough(self, say):
        say('[channels.oncall]\ncommand = ["page"]\n[conditions.custom]\nchannels = "oncall"\n')

    def test_defined_condition_may_be_in_a_maintenance_window(self, say):
        window = "[[maintenance]]\nfrom = '22:00'\nuntil = '23:00'\nzone = 'UTC'\ncondition = 'backlog'\n"
        assert say(f"{window}[conditions.backlog]\n{GOOD}").maintenance[0].only.conditions == ("backlog",)

    def test_variable_of_the_url_is_optional_without_alerts(self, say):
        text = f"[conditions.b]\n{QUERY.replace('shop.db', '$SHOP')}"
        with pytest.raises(ConfigError, match="names the variable SHOP, which is not set"):
            say(text)
        assert say(text, environ={"REDRIVE_ALERTS": "off"}).defined["b"].url == ""

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            (f"[conditions.Backlog]\n{GOOD}", "is not a name for a condition"),
            (f"[conditions.test]\n{GOOD}", "is not a name for a condition"),
            (f"[conditions.slow]\n{GOOD}", "is not allowed for a built-in condition"),
            ("[conditions.slow]\n", "has no channels"),
            ("[conditions.slwo]\nchannels = 'log'\n", "did you mean 'slow'?"),
            ("[conditions.b]\nchannels = 'nobody'\n", "unknown channel 'nobody'"),
            ("[conditions.b]\nabove = 1\nseverity = 'P1'\n", "exactly one of metric, query or probe; it has none"),
            (f"[conditions.b]\n{GOOD}probe = 'a.py:b'\n", "it has metric and probe"),
            (f"[conditions.b]\n{GOOD}url = 'x'\n", "url is not allowed with metric"),
            (f"[conditions.b]\n{GOOD}every = '1h'\n", "every is not allowed with metric"),
            ("[conditions.b]\nquery = 'SELECT 1'\nabove = 1\nseverity = 'P1'\n", "has no url"),
            ("[conditions.b]\nmetric = 'up'\nabove = 1\nseverity = 'P1'\n", "must be a metric of redrive"),
            (
                "[conditions.b]\nmetric = 'redrive_x{a=1}'\nabove = 1\nseverity = 'P1'\n",
                "must be a metric of redrive",
            ),
            ("[conditions.b]\nmetric = 'redrive_up'\nseverity = 'P1'\n", "has neither above nor below"),
            (
                "[conditions.b]\nmetric = 'redrive_up'\nabove = 1\nbelow = 2\nseverity = 'P1'\n",
                "the condition would always hold",
            ),
            ("[conditions.b]\nmetric = 'redrive_up'\nabove = 'x'\nseverity = 'P1'\n", "above must be a number"),
            ("[conditions.b]\nmetric = 'redrive_up'\nabove = nan\nseverity = 'P1'\n", "above must be a number"),
            ("[conditions.b]\nmetric = 'redrive_up'\nabove = 1\n", "has no severity: P1, P2 or P3"),
            ("[conditions.b]\nmetric = 'redrive_up'\nabove = 1\nseverity = 'P4'\n", "must be P1, P2 or P3"),
            ("[conditions.b]\nprobe = 'x'\nabove = 1\nseverity = 'P1'\n", "must be FILE:NAME"),
            (f"[conditions.b]\n{GOOD}limit = 1\n", "limit is not a setting"),
        ],
    )
    def test_invalid_condition_is_rejected_with_its_line(self, say, text, says):
        with pytest.raises(ConfigError) as raised:
            say(text)
        assert says in str(raised.value)
        assert "line " in str(raised.value)

    def test_unknown_metric_is_rejected_by_the_watch(self, say):
        pytest.importorskip("prometheus_client")
        say(f"[conditions.b]\n{GOOD}", how=check_channels)
        with pytest.raises(ConfigError, match="did you mean 'redrive_letters'"):
            say(f"[conditions.b]\n{GOOD.replace('redrive_letters', 'redrive_leters')}", how=check_channels)
