"""Conditions defined in the settings, measured and judged on both databases."""

import sqlite3
from datetime import timedelta
from decimal import Decimal

import pytest

from redrive.alerts.config.settings import AlertSettings, Channel, ConditionSettings
from redrive.alerts.service import Alerts
from redrive.model.alerts import AlertStatus, Severity
from tests.support.alerts import NOON
from tests.support.run_history import levels_of

MINUTE = timedelta(minutes=1)


class Clock:
    def __init__(self):
        self.at = NOON

    def now(self):
        return self.at


@pytest.fixture
def shop(tmp_path):
    """A separate database whose query returns its number of jobs."""
    path = tmp_path / "shop.db"

    def set_jobs(count):
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS jobs (n)")
            connection.execute("DELETE FROM jobs")
            connection.executemany("INSERT INTO jobs VALUES (?)", [(n,) for n in range(count)])

    set_jobs(0)
    set_jobs.url = f"sqlite:///{path}"
    return set_jobs


@pytest.fixture
def watch(store):
    """Check repeatedly, a minute apart; return the open alerts."""
    desks = []

    def watch(probes=None, **conditions):
        clock = Clock()
        channels = {"team": Channel(name="team", kind="log")}
        settings = AlertSettings(conditions=conditions, channels=channels, persist=60.0)
        desk = Alerts(store.database, settings, clock=clock)
        desks.append(desk)
        levels = levels_of(store, conditions=conditions, figure_probes=probes)

        def look():
            clock.at += MINUTE
            desk.apply_levels(levels.collect(clock.at))
            desk.pass_time()
            found = [one for one in desk.find() if one.status is AlertStatus.OPEN]
            return {(one.condition, str(one.urgency), one.title) for one in found}

        look.desk = desk
        return look

    yield watch
    for desk in desks:
        desk.close()


def a_query(shop, **options):
    query = "SELECT count(*) FROM jobs -- 100 % of :them"
    return ConditionSettings(**{"severity": Severity.P2, "query": query, "url": shop.url, "above": 2.0, **options})


class TestQuery:
    def test_opens_after_its_time_and_resolves_afterwards(self, watch, shop):
        look = watch(backlog=a_query(shop, title="too many jobs", channels=("team",)))
        shop(3)
        assert look() == set()
        assert look() == {("backlog", "P2", "too many jobs: 3 is above 2")}
        (alert,) = look.desk.find()
        assert [send.channel for send in look.desk.sends(alert.id)] == ["team"]
        shop(2)
        look()
        look()
        assert look() == set()
        assert look.desk.get(alert.id).status is AlertStatus.RESOLVED

    def test_is_measured_at_its_interval(self, watch, shop):
        look = watch(backlog=a_query(shop, every=600.0, persist=0.0))
        assert look() == set()
        shop(3)
        assert look() == set()
        assert [look() for _ in range(10)][-1] == {("backlog", "P2", "backlog: 3 is above 2")}

    def test_below_a_limit(self, watch, shop):
        look = watch(workers=a_query(shop, above=None, below=1.0, persist=0.0, severity=Severity.P1))
        assert look() == {("workers", "P1", "workers: 0 is below 1")}

    def test_query_without_rows_does_not_hold(self, watch, shop):
        assert watch(empty=a_query(shop, query="SELECT n FROM jobs", below=5.0, persist=0.0))() == set()

    @pytest.mark.parametrize("value", ["NULL", "9e999", "-9e999", "1 UNION SELECT 2"])
    def test_alert_stays_open_when_value_cannot_be_compared(self, watch, shop, tmp_path, value):
        with sqlite3.connect(tmp_path / "shop.db") as connection:
            connection.execute("CREATE VIEW rate AS SELECT 5 AS n")
        look = watch(backlog=a_query(shop, query="SELECT n FROM rate", persist=0.0))
        assert len(look()) == 1
        with sqlite3.connect(tmp_path / "shop.db") as connection:
            connection.execute("DROP VIEW rate")
            connection.execute(f"CREATE VIEW rate(n) AS SELECT {value}")
        for _ in range(4):
            look()
        assert {condition for condition, *_ in look()} == {"backlog", "monitor_failed"}

    @pytest.mark.parametrize("statement", ["ATTACH '{0}' AS other", "VACUUM INTO '{0}'"])
    def test_query_writes_no_other_file(self, watch, shop, tmp_path, statement):
        other = tmp_path / "other.db"
        look = watch(backlog=a_query(shop, query=statement.format(other)))
        look()
        assert {condition for condition, *_ in look()} == {"monitor_failed"}
        assert not other.exists()

    @pytest.mark.parametrize("statement", ["COPY (SELECT 1) TO '{0}'", "SELECT 1; COPY (SELECT 1) TO '{0}'"])
    def test_query_of_duckdb_cannot_write(self, watch, shop, tmp_path, statement):
        duckdb = pytest.importorskip("duckdb")
        duckdb.connect(str(tmp_path / "shop.duckdb")).close()
        url, other = f"duckdb:///{tmp_path / 'shop.duckdb'}", tmp_path / "other.csv"
        assert watch(one=a_query(shop, url=url, query="SELECT 5", persist=0.0))() == {
            ("one", "P2", "one: 5 is above 2")
        }
        look = watch(copy=a_query(shop, url=url, query=statement.format(other)))
        look()
        assert "monitor_failed" in {condition for condition, *_ in look()}
        assert not other.exists()

    @pytest.mark.parametrize(
        ("query", "reason"),
        [
            ("SELECT n FROM missing", "no such table: missing"),
            ("SELECT 1, 2", "must return one number"),
            ("SELECT 'a'", "must return one number"),
            ("DELETE FROM jobs", "must be one statement that begins with SELECT"),
            ("WITH old AS (SELECT 1) DELETE FROM jobs", "readonly"),
        ],
    )
    def test_failed_query_is_a_separate_alert(self, watch, shop, query, reason):
        shop(3)
        look = watch(backlog=a_query(shop, query=query, persist=0.0))
        look()
        assert [(condition, title) for condition, _, title in look()] == [
            ("monitor_failed", "cannot measure the condition of backlog")
        ]
        assert reason in look.desk.find()[0].facts.error

    def test_alert_stays_open_without_a_measurement(self, watch, shop, tmp_path):
        look = watch(backlog=a_query(shop, persist=0.0, every=60.0))
        shop(3)
        assert len(look()) == 1
        (tmp_path / "shop.db").rename(tmp_path / "away.db")
        for _ in range(4):
            look()
        assert {condition for condition, *_ in look()} == {"backlog", "monitor_failed"}


class TestStoreOfPostgres:
    def test_query_of_postgres_cannot_write(self, store, store_url, watch, put):
        if not store.database.dialect.is_remote:
            pytest.skip("of PostgreSQL")
        put(3)
        count = "SELECT count(*) FROM pipeline.dead_letter_queue WHERE error_message LIKE '%'"
        own = ConditionSettings(severity=Severity.P3, query=count, url=store_url, above=2.0, persist=0.0)
        look = watch(letters=own)
        assert look() == {("letters", "P3", "letters: 3 is above 2")}
        remove = ConditionSettings(
            severity=Severity.P3,
            query="WITH gone AS (DELETE FROM pipeline.dead_letter_queue RETURNING 1) SELECT count(*) FROM gone",
            url=store_url,
            above=0.0,
        )
        look = watch(remove=remove)
        look()
        look()
        assert "read-only" in look.desk.find(status="open", subject="conditions:remove")[0].facts.error
        assert store.dlq.size().letters == 3

    @pytest.mark.parametrize(
        "query",
        ["COMMIT; CREATE TABLE evil (a int); SELECT 5", "SET TRANSACTION READ WRITE; CREATE TABLE evil (a int)"],
    )
    def test_query_must_be_one_statement(self, store, store_url, watch, query):
        if not store.database.dialect.is_remote:
            pytest.skip("of PostgreSQL")
        look = watch(evil=ConditionSettings(severity=Severity.P3, query=query, url=store_url, above=0.0))
        look()
        assert {condition for condition, *_ in look()} == {"monitor_failed"}
        made = store.database.read(lambda connection: connection.exec_driver_sql("SELECT to_regclass('evil')").scalar())
        assert made is None

    def test_program_of_the_server_is_not_run(self, store, store_url, watch):
        if not store.database.dialect.is_remote:
            pytest.skip("of PostgreSQL")
        query = "COPY (SELECT 1) TO PROGRAM 'true'"  # which a superuser may run in a read-only transaction
        look = watch(evil=ConditionSettings(severity=Severity.P3, query=query, url=store_url, above=0.0))
        look()
        look()
        (alert,) = look.desk.find(status="open", subject="conditions:evil")
        assert "must be one statement that begins with SELECT" in alert.facts.error

    @pytest.mark.parametrize("value", ["'NaN'::float8", "'Infinity'::float8", "'NaN'::numeric"])
    def test_non_finite_number_is_not_a_measurement(self, store, store_url, watch, value):
        if not store.database.dialect.is_remote:
            pytest.skip("of PostgreSQL")
        own = {"severity": Severity.P1, "url": store_url, "above": 1.0, "persist": 0.0}
        look = watch(rate=ConditionSettings(**own, query=f"SELECT {value}"))
        look()
        assert {condition for condition, *_ in look()} == {"monitor_failed"}
        assert watch(mean=ConditionSettings(**own, query="SELECT avg(x) FROM (VALUES (5),(6)) v(x)"))() >= {
            ("mean", "P1", "mean: 5.5 is above 1")
        }


class TestMetric:
    def test_sum_of_the_samples_with_these_labels(self, watch, put):
        pytest.importorskip("prometheus_client")
        put(3)
        put(2, pipeline="orders")
        own = {"severity": Severity.P3, "metric": "redrive_letters", "persist": 0.0}
        look = watch(
            all=ConditionSettings(**own, labels={"status": "pending"}, above=4.0),
            orders=ConditionSettings(**own, labels={"pipeline": "orders", "status": "pending"}, above=4.0),
            missing=ConditionSettings(**own, labels={"pipeline": "none"}, below=4.0),
        )
        assert look() == {("all", "P3", "all: 5 is above 4")}


class TestProbe:
    def test_function_is_asked(self, watch):
        own = ConditionSettings(severity=Severity.P1, probe="p.py:age", above=1.0, persist=0.0)
        assert watch({"p.py:age": lambda: 1.5}, age=own)() == {("age", "P1", "age: 1.5 is above 1")}

    def test_decimal_is_a_number(self, watch):
        own = ConditionSettings(severity=Severity.P1, probe="p.py:age", above=1.0, persist=0.0)
        assert watch({"p.py:age": lambda: Decimal("12.5")}, age=own)() == {("age", "P1", "age: 12.5 is above 1")}

    @pytest.mark.parametrize("answer", ["1", True, float("nan"), Decimal("inf"), 10**400, [2]])
    def test_non_numeric_answer_is_a_separate_alert(self, watch, answer):
        own = ConditionSettings(severity=Severity.P1, probe="p.py:age", above=1.0)
        look = watch({"p.py:age": lambda: answer}, age=own)
        look()
        assert {condition for condition, *_ in look()} == {"monitor_failed"}

    def test_silence_by_its_name(self, watch):
        own = ConditionSettings(severity=Severity.P1, probe="p.py:age", above=1.0, persist=0.0, channels=("team",))
        look = watch({"p.py:age": lambda: 2}, age=own)
        look.desk.silence(seconds=600, reason="known", condition="age")
        look()
        (alert,) = look.desk.find()
        assert (alert.status, look.desk.sends(alert.id)) == (AlertStatus.OPEN, [])
