"""PostgreSQL restarts or stays down: a short outage is waited for; a long one is reported in one sentence."""

import gc
import itertools
import socket
import threading
from collections import Counter

import psycopg
import pytest

import redrive
from redrive.dlq.insert import insert as putting
from redrive.errors import SchemaMismatch
from redrive.model.letters import Stored

_serial = itertools.count()

# SQLAlchemy does not close the cursor of a connection that broke, and the driver complains when it is collected.
pytestmark = pytest.mark.filterwarnings("ignore:.*ServerCursor.*deleted while still open:ResourceWarning")


@pytest.fixture(autouse=True)
def collected():
    """Collect a broken cursor here, where its warning is ignored."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def migrated(mortal_postgres):
    """The name of a migrated database that tests copy."""
    with psycopg.connect(mortal_postgres.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE migrated")
    with redrive.connect(mortal_postgres.url.rpartition("/")[0] + "/migrated", migrate=True):
        pass
    return "migrated"


@pytest.fixture
def url(mortal_postgres, migrated):
    """A store of the test's own, on a server that it may stop and kill."""
    mortal_postgres.start()
    name = f"store_{next(_serial)}"
    with psycopg.connect(mortal_postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {migrated}")
    return mortal_postgres.url.rpartition("/")[0] + f"/{name}"


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(putting, "BATCH", 10)


@pytest.fixture
def restart(mortal_postgres):
    """Takes the server down, and brings it back while the store is already trying."""
    returning = []

    def restart(how):
        for thread in returning:
            thread.join()
        getattr(mortal_postgres, how)()
        returning.append(threading.Thread(target=mortal_postgres.start))
        returning[-1].start()

    yield restart
    for thread in returning:
        thread.join()


def letters(count):
    return (redrive.NewLetter({"id": n}, "fee: not a number", key=f"D-{n}") for n in range(count))


def interrupt(store, happening, *, before_work=None, before_commit=None):
    """Let something happen within transactions, known by their numbers: when one has begun, or when it would end.

    Gives how often each was tried.
    """
    write, serial, tries = store.database.write, itertools.count(), Counter()

    def interrupted(work):
        number = next(serial)

        def struck(connection):
            tries[number] += 1
            if number == before_work and tries[number] == 1:
                connection.exec_driver_sql("SELECT 1")  # it has begun
                happening()
            result = work(connection)
            if number == before_commit and tries[number] == 1:
                happening()
            return result

        return write(struck)

    store.database.write = interrupted
    return tries


def is_one_sentence(error):
    """Check that the message is one line, and that neither it nor its causes show a password."""
    told, cause = "", error
    while cause is not None:
        told, cause = told + repr(cause) + str(cause), cause.__cause__ or cause.__context__
    return "\n" not in str(error) and "correct-horse" not in told and "battery-staple" not in told


# ── short outages ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_restart_during_writes_loses_and_doubles_no_letter(url, restart, small_batches, how):
    with redrive.connect(url) as store:
        tries = interrupt(store, lambda: restart(how), before_work=1, before_commit=3)
        assert store.dlq.put_many(letters(60), pipeline="vendor") == Stored(new=60)
        assert {number for number, count in tries.items() if count > 1} == {1, 3}
        assert sorted(letter.key for letter in store.dlq.each()) == sorted(f"D-{n}" for n in range(60))
        assert store.dlq.count(min_seen=2) == 0
        (cause,) = store.dlq.causes()
        assert (cause.count, cause.seen, store.dlq.size().letters) == (60, 60, 60)


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("moment", ["while it claims", "while the target works", "while it marks"])
def test_restart_during_replay_sends_each_letter_once(url, restart, how, moment):
    with redrive.connect(url) as store:
        store.dlq.put_many(letters(40), pipeline="vendor")
        sent = []

        def target(records):
            sent.extend(record["id"] for record in records)
            if len(sent) == 20 and moment == "while the target works":
                restart(how)

        at = {"while it claims": {"before_commit": 2}, "while it marks": {"before_commit": 3}}
        interrupt(store, lambda: restart(how), **at.get(moment, {}))
        report = store.dlq.replay(target, any_pipeline=True, dry_run=False, batch=10)
        assert (report.attempted, report.reprocessed) == (40, 40)
        assert sorted(sent) == list(range(40))
        assert store.dlq.count(status="reprocessed", reprocess_count=1) == 40
        assert all(len(store.dlq.audit(letter.id)) == 1 for letter in store.dlq.each())


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_restart_between_calls_is_transparent(url, mortal_postgres, how):
    with redrive.connect(url) as store:
        store.dlq.put_many(letters(5), pipeline="vendor")
        getattr(mortal_postgres, how)()
        mortal_postgres.start()
        assert store.dlq.count() == 5
        getattr(mortal_postgres, how)()
        mortal_postgres.start()
        assert store.dlq.put_many(letters(8), pipeline="vendor") == Stored(new=3, repeated=5)


def test_opening_waits_for_a_returning_server(url, restart):
    restart("kill")
    with redrive.connect(url) as store:
        assert store.dlq.count() == 0


# ── outages ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def gone(mortal_postgres):
    """A server that stays away until the test is over."""
    yield mortal_postgres.stop
    mortal_postgres.start()


def raised_by(function):
    """What a function raises, within a time that is far beyond the patience asked for and below the default."""
    caught = []

    def call():
        try:
            function()
        except Exception as error:
            caught.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(25)
    assert not thread.is_alive(), "it waits longer than it was told to"
    return caught[0]


def test_unreachable_server_is_reported_with_stored_letters(url, mortal_postgres, gone, small_batches):
    store = redrive.connect(url, patience=0.5)
    interrupt(store, gone, before_work=2)
    error = raised_by(lambda: store.dlq.put_many(letters(60), pipeline="vendor"))
    assert isinstance(error, redrive.StoreError)
    assert (error.kind, is_one_sentence(error)) == ("transient", True)
    assert "20 letters before the fault are kept" in str(error)
    assert "running again is safe" in str(error)
    for ask in (store.dlq.count, store.dlq.causes, store.info, lambda: redrive.connect(url, patience=0.5)):
        error = raised_by(ask)
        assert (type(error), error.kind, is_one_sentence(error)) == (redrive.StoreError, "transient", True)
    mortal_postgres.start()
    assert store.dlq.count() == 20
    assert store.dlq.put_many(letters(60), pipeline="vendor") == Stored(new=40, repeated=20)
    store.close()


def test_server_lost_in_replay_leaves_letters_pending(url, mortal_postgres, gone):
    store, sent = redrive.connect(url, patience=0.5), []
    store.dlq.put_many(letters(30), pipeline="vendor")

    def target(records):
        sent.extend(record["id"] for record in records)
        if len(sent) == 20:
            gone()

    error = raised_by(lambda: store.dlq.replay(target, any_pipeline=True, dry_run=False, batch=10, lease=0.5))
    assert (type(error), error.kind, is_one_sentence(error)) == (redrive.StoreError, "transient", True)
    mortal_postgres.start()
    assert store.dlq.count(status="reprocessed") == 10
    again = []
    report = store.dlq.replay(
        lambda records: again.extend(record["id"] for record in records), any_pipeline=True, dry_run=False, lease=0.5
    )
    assert (report.reprocessed, sorted(again)) == (20, list(range(10, 30)))  # what was not marked is sent once more
    store.close()


def test_closed_port_is_reported_after_timeout():
    with socket.socket() as bound:  # bound, so that nobody else takes it, and not listening
        bound.bind(("127.0.0.1", 0))
        url = f"postgresql://u:correct-horse@127.0.0.1:{bound.getsockname()[1]}/d"
        error = raised_by(lambda: redrive.connect(url, patience=0.2))
    assert (type(error), error.kind, is_one_sentence(error)) == (redrive.StoreError, "transient", True)
    assert "check that the server runs" in str(error)


# ── rejections ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_wrong_password_is_reported_at_once_and_masked(url):
    with pytest.raises(redrive.StoreError, match="check the user and the password") as caught:
        redrive.connect(url.replace("correct-horse", "battery-staple"))
    assert (caught.value.kind, is_one_sentence(caught.value)) == ("auth", True)


def test_missing_database_is_reported_at_once(url):
    with pytest.raises(redrive.StoreError, match="does not exist") as caught:
        redrive.connect(url + "_x")
    assert (caught.value.kind, is_one_sentence(caught.value)) == ("permanent", True)


def test_read_only_role_reads_and_gets_a_write_error(url, mortal_postgres):
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE ROLE reader LOGIN PASSWORD 'battery-staple'")
        connection.execute("GRANT USAGE ON SCHEMA pipeline TO reader")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA pipeline TO reader")
    with redrive.connect(url) as store:
        store.dlq.put_many(letters(3), pipeline="vendor")
    with redrive.connect(url.replace("postgres:correct-horse", "reader:battery-staple")) as store:
        assert (store.dlq.count(), store.dlq.causes()[0].count, store.dlq.size().letters) == (3, 3, 3)
        with pytest.raises(redrive.StoreError, match="permission denied") as caught:
            store.dlq.put_many(letters(3), pipeline="vendor")
        assert is_one_sentence(caught.value)
        with pytest.raises(redrive.StoreError, match="permission denied"):
            store.dlq.discard(pipeline="vendor", note="x")


def schema_of(url):
    with psycopg.connect(url) as connection:
        return connection.execute(
            "SELECT table_schema, table_name, column_name FROM information_schema.columns"
            " WHERE table_schema NOT IN ('pg_catalog', 'information_schema') ORDER BY 1, 2, ordinal_position"
        ).fetchall()


def test_database_without_schema_is_unchanged_by_default(mortal_postgres):
    with psycopg.connect(mortal_postgres.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE bare")
    bare = mortal_postgres.url.rpartition("/")[0] + "/bare"
    with pytest.raises(SchemaMismatch, match="`redrive store migrate`") as caught:
        redrive.connect(bare)
    assert is_one_sentence(caught.value)
    assert schema_of(bare) == []
    with redrive.connect(bare, migrate=True) as store:
        assert store.dlq.count() == 0


@pytest.mark.parametrize("migrate", [None, True, False])
def test_newer_schema_is_rejected_and_unchanged(url, migrate):
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE pipeline.redrive_schema SET version_num = '9999'")
    before = schema_of(url)
    with pytest.raises(SchemaMismatch, match="upgrade redrive") as caught:
        redrive.connect(url, migrate=migrate)
    assert is_one_sentence(caught.value)
    assert schema_of(url) == before
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT version_num FROM pipeline.redrive_schema").fetchall() == [("9999",)]
