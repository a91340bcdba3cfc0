"""Levels outside the store: counted tables, replication slots, consumer lags."""

import threading
import time
from functools import partial

import psycopg
import pytest
from sqlalchemy import create_engine, select, text

from redrive.alerts.config.settings import AlertSettings, WatchedTable
from redrive.alerts.facts.probes import BadProbe, ProbeRunner
from redrive.alerts.facts.probes import lag_probes as probes
from redrive.alerts.facts.snapshot import Lag
from redrive.alerts.service import Alerts
from redrive.store.schema import gauges
from redrive.testing import FakeClock
from tests.support.run_history import DAY, HOUR, MINUTE, MONDAY, QUICK, Books, levels_of, statements


@pytest.fixture
def books(store):
    return Books(store)


@pytest.fixture
def levels(store):
    return partial(levels_of, store)


# ── tables ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def orders(store_url):
    """A table beside the store's own, with capitals in its name; call it to have so many rows."""
    engine = create_engine(store_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(text('CREATE TABLE "Orders" (id integer)'))

    def have(count):
        with engine.begin() as connection:
            connection.execute(text('DELETE FROM "Orders"'))
            for number in range(count):
                connection.execute(text('INSERT INTO "Orders" VALUES (:n)'), {"n": number})

    yield have
    engine.dispose()


@pytest.fixture
def watched(store_url):
    return WatchedTable(name="Orders", url=store_url, pipeline="orders")


def counted(store):
    wanted = select(gauges.c.at, gauges.c.value).where(gauges.c.name == "rows:Orders").order_by(gauges.c.at)
    return [tuple(row) for row in store.database.read(lambda connection: connection.execute(wanted).all())]


def test_table_is_counted_once_an_hour_by_any_process(store, levels, orders, watched):
    orders(4)
    (found,) = levels(tables=(watched,)).collect(MONDAY).tables
    assert (found.name, found.rows, found.week_ago, found.pipeline) == ("Orders", 4, None, "orders")
    orders(9)
    (found,) = levels(tables=(watched,)).collect(MONDAY + HOUR - MINUTE).tables
    assert found.rows == 4
    (found,) = levels(tables=(watched,)).collect(MONDAY + HOUR).tables
    assert found.rows == 9
    assert counted(store) == [(MONDAY, 4.0), (MONDAY + HOUR, 9.0)]


@pytest.mark.parametrize(
    ("hours_off", "week_ago"), [([0], 100), ([3], 100), ([-3], 100), ([3.1], None), ([-3.1], None), ([-2, 1, 3], 101)]
)
def test_table_is_compared_with_the_same_hour_last_week(books, levels, orders, watched, hours_off, week_ago):
    orders(2)
    then = MONDAY - 7 * DAY
    samples = [(then + hours * HOUR, 100.0 + place) for place, hours in enumerate(hours_off)]
    books.put(gauges, *({"name": "rows:Orders", "at": at, "value": value} for at, value in samples))
    (found,) = levels(tables=(watched,)).collect(MONDAY).tables
    assert (found.rows, found.week_ago) == (2, week_ago)


def test_counts_are_kept_for_fifteen_days(store, books, levels, orders, watched):
    orders(2)
    for days in (14.9, 15.1):
        books.put(gauges, {"name": "rows:Orders", "at": MONDAY - days * DAY, "value": 1.0})
    levels(tables=(watched,)).collect(MONDAY)
    assert [at for at, _ in counted(store)] == [MONDAY - 14.9 * DAY, MONDAY]


def test_uncountable_table_is_retried_after_five_minutes(levels, orders, watched, store_url):
    missing = WatchedTable(name="nowhere", url=store_url)
    orders(3)
    looking = levels(tables=(missing, watched))
    snapshot = looking.collect(MONDAY)
    assert "nowhere" in snapshot.unknown["tables:nowhere"]
    assert [one.name for one in snapshot.tables] == ["Orders"]
    with statements() as heard:
        assert "tables:nowhere" in looking.collect(MONDAY + 4 * MINUTE).unknown
    assert [one for one in heard if "nowhere" in one] == []
    with statements() as heard:
        looking.collect(MONDAY + 5 * MINUTE)
    assert len([one for one in heard if "nowhere" in one]) == 1


def test_unreachable_server_is_unknown_and_password_masked(levels):
    gone = WatchedTable(name="orders", url="postgresql://me:hunter2@127.0.0.1:1/prod")
    snapshot = levels(tables=(gone,)).collect(MONDAY)
    assert "hunter2" not in snapshot.unknown["tables:orders"]


def test_missing_file_is_not_created(levels, tmp_path):
    gone = WatchedTable(name="orders", url=f"sqlite:///{tmp_path}/typo.db")
    assert "tables:orders" in levels(tables=(gone,)).collect(MONDAY).unknown
    assert not (tmp_path / "typo.db").exists()


def test_duckdb_table_is_counted(levels, tmp_path):
    import duckdb

    with duckdb.connect(str(tmp_path / "w.duckdb")) as connection:
        connection.execute('CREATE SCHEMA silver; CREATE TABLE silver."Orders" AS SELECT 1 AS id')
    (found,) = (
        levels(tables=(WatchedTable(name="silver.Orders", url=f"duckdb:///{tmp_path}/w.duckdb"),))
        .collect(MONDAY)
        .tables
    )
    assert found.rows == 1


# ── slots ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def slot(postgres_url):
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("SELECT pg_create_physical_replication_slot('warehouse', true)")
        yield "warehouse"
        connection.execute("SELECT pg_drop_replication_slot('warehouse')")


def test_replication_slots_of_the_store_server_are_monitored(store, levels, slot):
    found = levels().collect(MONDAY).slots
    if not store.database.dialect.is_remote:
        assert found == ()
        return
    (only,) = found
    assert (only.name, only.active) == ("warehouse", False)
    assert only.lag_bytes >= 0


def test_slots_of_several_servers_are_separate(store, levels, slot, postgres_url):
    port = psycopg.conninfo.conninfo_to_dict(postgres_url)["port"]
    by_name = postgres_url.replace("127.0.0.1", "localhost")
    snapshot = levels(slots=(postgres_url, by_name, "postgresql://me:hunter2@127.0.0.1:1/x")).collect(MONDAY)
    assert {one.name for one in snapshot.slots} == {f"warehouse on 127.0.0.1:{port}", f"warehouse on localhost:{port}"}
    assert list(snapshot.unknown) == ["slots:127.0.0.1:1"]
    assert "hunter2" not in snapshot.unknown["slots:127.0.0.1:1"]


# ── lags ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def refuse():
    raise ConnectionError("no broker at kafka://me:hunter2@broker")


class Broker:
    def lag(self):
        return [Lag(consumer="billing", messages=12), Lag(consumer="audit", seconds=3.5)]


def test_probe_can_be_function_or_object_with_several_lags(levels):
    found = {"one": lambda: Lag(consumer="mail", messages=0), "several": Broker()}
    snapshot = levels(probes=probes(found, found.get)).collect(MONDAY)
    assert [one.consumer for one in snapshot.lags] == ["mail", "billing", "audit"]


@pytest.mark.parametrize(
    ("probe", "reason"),
    [
        (refuse, "ConnectionError: no broker at kafka://me:***@broker"),
        (partial(int, "12"), "one answered a int, not a redrive.types.Lag"),
        (lambda: Lag(consumer="mail"), "one knows neither messages nor seconds of mail"),
        (lambda: Lag(consumer="mail", messages=-1), "one answered a lag of mail that is no number from 0 up"),
        (lambda: Lag(consumer="mail", seconds=float("nan")), "one answered a lag of mail that is no number from 0 up"),
        (lambda: Lag(consumer="mail", messages=10**400), "one answered a lag of mail that is no number from 0 up"),
        (
            lambda: Lag(consumer=5, messages=1),
            "one answered a lag of a consumer whose name is no text that can be shown",
        ),
        (
            lambda: Lag(consumer="a\ud800", messages=1),
            "one answered a lag of a consumer whose name is no text that can be shown",
        ),
        (lambda: exit(3), "SystemExit: 3"),
    ],
)
def test_failed_probe_is_unknown_and_hides_no_other(levels, probe, reason):
    found = {"one": probe, "other": lambda: Lag(consumer="mail", messages=1)}
    snapshot = levels(probes=probes(found, found.get)).collect(MONDAY)
    assert snapshot.unknown == {"lags:one": reason}
    assert [one.consumer for one in snapshot.lags] == ["mail"]


@pytest.mark.parametrize("found", [Broker, 12, None])
def test_invalid_probe_is_rejected_before_its_call(found):
    with pytest.raises(BadProbe, match=r"^probes.py:x is a.* not a probe"):
        probes(["probes.py:x"], lambda name: found)


def test_hanging_probe_is_called_once_and_read_when_it_ends(levels):
    asked, answers, answered = [], threading.Event(), threading.Event()

    def hangs():
        asked.append(None)
        answers.wait()
        answered.set()
        return Lag(consumer="slow", messages=1)

    looking = levels(probes=probes(["p"], lambda name: hangs), timeout=0.05)
    assert list(looking.collect(MONDAY).unknown) == ["lags:p"]
    assert list(looking.collect(MONDAY + MINUTE).unknown) == ["lags:p"]
    answers.set()
    answered.wait(QUICK)
    while not (snapshot := looking.collect(MONDAY + 2 * MINUTE)).lags:
        assert asked == [None]
    assert snapshot.unknown == {}


def test_hanging_probe_is_waited_for_only_once():
    errands, answers = ProbeRunner(), threading.Event()
    errands.send({"slow": answers.wait})
    assert errands.collect(until=time.monotonic())["slow"].still_out
    assert errands.collect(until=time.monotonic() + 3_600)["slow"].still_out  # or this test takes an hour
    answers.set()


class TestFreshTable:
    @pytest.fixture
    def loads(self, store_url):
        """A table beside the store's own; call it to load a row at a moment."""
        engine = create_engine(store_url.replace("postgresql://", "postgresql+psycopg://"))
        with engine.begin() as connection:
            connection.execute(text('CREATE TABLE "Loads" (id integer, "loadedAt" timestamp)'))

        def load(at):
            with engine.begin() as connection:
                connection.execute(text('INSERT INTO "Loads" VALUES (1, :at)'), {"at": f"{at:%Y-%m-%d %H:%M:%S}"})

        yield load
        engine.dispose()

    @pytest.fixture
    def look(self, store, store_url):
        table = WatchedTable(name="Loads", url=store_url, time_column="loadedAt", fresh_within=3_600.0)
        levels, clock = levels_of(store, tables=(table,)), FakeClock(MONDAY)
        desk = Alerts(store.database, AlertSettings(), clock=clock)

        def look(now):
            clock.advance((now - clock.now()).total_seconds())
            desk.apply_levels(levels.collect(now))
            found = desk.find(status="open", condition="stale")
            return [one.title for one in found if one.gone_since is None]

        yield look
        desk.close()

    def test_table_is_stale_until_a_new_row_arrives(self, look, loads):
        assert look(MONDAY) == ["Loads has no rows; its newest loadedAt may be 60 min old"]
        loads(MONDAY)
        assert look(MONDAY + HOUR) == []
        stale = "Loads is stale since 2026-11-16 06:30 UTC; its newest loadedAt may be 60 min old"
        assert look(MONDAY + HOUR + 7 * MINUTE) == [stale]
        loads(MONDAY + HOUR)
        assert look(MONDAY + HOUR + 14 * MINUTE) == []

    def test_missing_column_is_a_failed_monitor_and_resolves_none(self, store, store_url, look, loads):
        assert len(look(MONDAY)) == 1
        table = WatchedTable(name="Loads", url=store_url, time_column="nope", fresh_within=3_600.0)
        snapshot = levels_of(store, tables=(table,)).collect(MONDAY)
        assert "nope" in snapshot.unknown["newest:Loads"]
        store.alerts.apply_levels(snapshot)
        assert [one.gone_since for one in store.alerts.find(condition="stale")] == [None]
