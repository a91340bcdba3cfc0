"""Levels of what is beside the store: tables that are counted, replication slots, consumers that lag."""

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


def test_a_table_is_counted_once_an_hour_by_whichever_process(store, levels, orders, watched):
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
def test_a_table_is_compared_with_the_count_nearest_to_this_hour_last_week(
    books, levels, orders, watched, hours_off, week_ago
):
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


def test_a_table_that_cannot_be_counted_is_unknown_and_tried_again_after_five_minutes(
    levels, orders, watched, store_url
):
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


def test_a_table_of_a_server_that_is_not_there_is_unknown_without_its_password(levels):
    gone = WatchedTable(name="orders", url="postgresql://me:hunter2@127.0.0.1:1/prod")
    snapshot = levels(tables=(gone,)).collect(MONDAY)
    assert "hunter2" not in snapshot.unknown["tables:orders"]


def test_a_file_that_is_not_there_is_not_made(levels, tmp_path):
    gone = WatchedTable(name="orders", url=f"sqlite:///{tmp_path}/typo.db")
    assert "tables:orders" in levels(tables=(gone,)).collect(MONDAY).unknown
    assert not (tmp_path / "typo.db").exists()


def test_a_table_of_duckdb_is_counted(levels, tmp_path):
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


def test_the_replication_slots_of_the_stores_own_server_are_watched(store, levels, slot):
    found = levels().collect(MONDAY).slots
    if not store.database.dialect.is_remote:
        assert found == ()
        return
    (only,) = found
    assert (only.name, only.active) == ("warehouse", False)
    assert only.lag_bytes >= 0


def test_slots_of_several_servers_are_told_apart_and_one_that_is_down_hides_no_other(store, levels, slot, postgres_url):
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


def test_a_probe_is_a_function_or_an_object_and_answers_one_lag_or_several(levels):
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
def test_a_probe_that_fails_is_unknown_and_hides_no_other(levels, probe, reason):
    found = {"one": probe, "other": lambda: Lag(consumer="mail", messages=1)}
    snapshot = levels(probes=probes(found, found.get)).collect(MONDAY)
    assert snapshot.unknown == {"lags:one": reason}
    assert [one.consumer for one in snapshot.lags] == ["mail"]


@pytest.mark.parametrize("found", [Broker, 12, None])
def test_what_is_no_probe_is_refused_before_it_is_asked(found):
    with pytest.raises(BadProbe, match=r"^probes.py:x is a.* not a probe"):
        probes(["probes.py:x"], lambda name: found)


def test_a_probe_that_hangs_is_not_waited_for_nor_asked_again_and_is_heard_when_it_answers(levels):
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


def test_who_was_waited_for_in_vain_is_not_waited_for_again():
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

    def test_it_is_stale_until_a_new_row_comes(self, look, loads):
        assert look(MONDAY) == ["Loads has no rows; its newest loadedAt may be 60 min old"]
        loads(MONDAY)
        assert look(MONDAY + HOUR) == []
        stale = "Loads is stale since 2026-11-16 06:30 UTC; its newest loadedAt may be 60 min old"
        assert look(MONDAY + HOUR + 7 * MINUTE) == [stale]
        loads(MONDAY + HOUR)
        assert look(MONDAY + HOUR + 14 * MINUTE) == []

    def test_column_that_is_not_there_is_a_failed_monitor_and_no_all_clear(self, store, store_url, look, loads):
        assert len(look(MONDAY)) == 1
        table = WatchedTable(name="Loads", url=store_url, time_column="nope", fresh_within=3_600.0)
        snapshot = levels_of(store, tables=(table,)).collect(MONDAY)
        assert "nope" in snapshot.unknown["newest:Loads"]
        store.alerts.apply_levels(snapshot)
        assert [one.gone_since for one in store.alerts.find(condition="stale")] == [None]
