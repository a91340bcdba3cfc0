"""Opening stores: what is created, what is rejected, and what the user's own SQL finds."""

import datetime as dt
import threading
import uuid

import psycopg
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

import redrive
from redrive.errors import SchemaMismatch
from redrive.store import migrate
from redrive.store.schema import metadata

UTC = dt.UTC
CORE = [
    *("id", "pipeline_name", "run_id", "error_type", "error_message", "raw_record", "source_table", "source_key"),
    *("rejected_at", "reprocess_count", "last_reprocess", "status", "resolution_note"),
]


@pytest.mark.filterwarnings("ignore:Skipped unsupported reflection", "ignore:autogenerate skipping")
def test_migrations_create_the_known_tables(store):
    def work(connection):
        def known(name, kind, parents):
            return kind != "schema" or name in {None, "pipeline"}

        options = {"include_schemas": connection.dialect.name == "postgresql", "include_name": known}
        context = MigrationContext.configure(connection, opts=options)
        ours = metadata
        if connection.dialect.name == "sqlite":
            ours = sa.MetaData()
            for table in metadata.tables.values():
                table.to_metadata(ours, schema=None)
        # Our own version table is Alembic's, and an index on an expression cannot be compared.
        unseen = ("redrive_schema", "dead_letter_queue_identity", "alerts_key")
        return [change for change in compare_metadata(context, ours) if not any(name in str(change) for name in unseen)]

    assert store.database.read(work) == []


def test_known_version_is_that_of_the_last_migration():
    scripts = ScriptDirectory(migrate.SCRIPTS)
    assert scripts.get_current_head() == migrate.VERSION


def test_core_columns_come_first_and_in_order(store):
    schema = "pipeline" if store.info().database == "postgresql" else None

    def work(connection):
        return [column["name"] for column in sa.inspect(connection).get_columns("dead_letter_queue", schema=schema)]

    assert store.database.read(work)[: len(CORE)] == CORE


def test_newer_schema_is_rejected_and_unchanged(store, store_url):
    table = "pipeline.redrive_schema" if store.info().database == "postgresql" else "redrive_schema"
    newer = sa.text(f"UPDATE {table} SET version_num = '9999'")
    store.database.write(lambda connection: connection.execute(newer))
    for migrating in (None, True, False):
        with pytest.raises(SchemaMismatch, match=r"schema version 9999.*upgrade redrive.*nothing was changed"):
            redrive.connect(store_url, migrate=migrating)
    with pytest.raises(SchemaMismatch):
        store.migrate()
    assert store.database.read(migrate.version) == "9999"


def test_migrating_a_current_store_changes_nothing(store):
    assert store.migrate() == (migrate.VERSION, migrate.VERSION)


def test_info_has_location_and_counts(store, put):
    put(3)
    info = store.info()
    assert info.database in info.url or info.database == "sqlite"
    assert (info.schema_version, info.size.letters) == (migrate.VERSION, 3)
    assert "correct-horse" not in f"{info}{store!r}{store.database!r}"


def test_closed_store_can_be_used_again(store, put):
    put(1)
    store.close()
    assert store.dlq.count() == 1


def test_interrupted_transaction_is_not_retried(store):
    """As psycopg does, when the connection breaks while it cancels the statement."""
    calls = []

    def work(connection):
        calls.append(1)
        try:
            if len(calls) == 1:
                raise KeyboardInterrupt
        finally:
            if len(calls) == 1:
                lost = psycopg.OperationalError("the connection is lost")
                raise sa.exc.OperationalError("SELECT 1", {}, lost, connection_invalidated=True)

    with pytest.raises(redrive.errors.StoreError, match="the connection is lost"):
        store.database.write(work)
    assert len(calls) == 1


def test_threads_can_share_a_store(dlq, put):
    put(10)
    counts, together = [], threading.Barrier(16)

    def ask():
        together.wait()
        counts.extend(dlq.count() for _ in range(10))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [10] * 160


def test_postgres_is_not_migrated_unasked(postgres_url):
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS bare_store")
        connection.execute("CREATE DATABASE bare_store")
    url = postgres_url.rpartition("/")[0] + "/bare_store"
    with pytest.raises(SchemaMismatch, match="has no redrive schema: run `redrive store migrate`"):
        redrive.connect(url)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT to_regnamespace('pipeline')").fetchone() == (None,)
    with redrive.connect(url, migrate=True) as store:
        assert store.info().schema_version == migrate.VERSION
    with redrive.connect(url) as store:
        assert store.dlq.count() == 0


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://x/y", "not mysql"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        (":memory:", "in memory"),
        ("postgresql://host:port/name", "cannot be read"),
        ("nonsense://", "not nonsense"),
    ],
)
def test_invalid_url_raises_one_sentence(url, says):
    with pytest.raises(redrive.StoreError, match=says):
        redrive.connect(url)


def test_default_store_is_a_file_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with redrive.connect() as store:
        store.dlq.put({}, "bad", pipeline="p")
    assert (tmp_path / ".redrive" / "redrive.db").exists()


def test_store_can_be_named_by_environment_or_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "redrive.toml").write_text('[store]\nurl = "from_file.db"\n[letters]\nredact = ["card"]\n')
    with redrive.connect() as store:
        assert store.info().url.endswith("from_file.db")
        assert store.dlq.redactor.fields == ("card",)
    monkeypatch.setenv("REDRIVE_STORE", "from_environment.db")
    with redrive.connect() as store:
        assert store.info().url == "from_environment.db"
    with redrive.connect("by_argument.db", redact=[]) as store:
        assert store.info().url == "by_argument.db"
        assert store.dlq.redactor.fields == ()


# ── a team's own SQL, as it is written on PostgreSQL ──────────────────────────────────────────────────────────────────

SUMMARY = """
    SELECT pipeline_name, error_type, DATE(rejected_at) AS day, COUNT(*) AS total,
           COUNT(*) FILTER (WHERE status = 'pending') AS pending
    FROM pipeline.dead_letter_queue
    WHERE rejected_at >= CURRENT_DATE - INTERVAL '7 days'
    GROUP BY pipeline_name, error_type, DATE(rejected_at)
    ORDER BY day DESC, total DESC
"""
REASONS = """
    SELECT error_message, COUNT(*) AS letters
    FROM pipeline.dead_letter_queue
    WHERE rejected_at >= CURRENT_DATE
    GROUP BY error_message ORDER BY letters DESC LIMIT 20
"""
PENDING = """
    SELECT id, raw_record, source_key
    FROM pipeline.dead_letter_queue
    WHERE pipeline_name = 'vendor' AND status = 'pending' AND error_type = 'validation'
    ORDER BY rejected_at
"""


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_monitoring_sql_works_as_documented(store_url, dlq, put):
    put(5)
    put(2, error="sink refused it", error_type="sink")
    old = dt.datetime.now(UTC) - dt.timedelta(days=9)
    dlq.put_many([redrive.NewLetter({"id": "old"}, "fee: not a number", key="old", rejected_at=old)], pipeline="vendor")
    dlq.discard(note="x", key="D-0", error_type="validation")
    with psycopg.connect(store_url) as connection:
        summary = connection.execute(SUMMARY).fetchall()
        assert [(row[0], row[1], row[3], row[4]) for row in summary] == [
            ("vendor", "validation", 5, 4),
            ("vendor", "sink", 2, 2),
        ]
        assert connection.execute(REASONS).fetchall() == [("fee: not a number", 5), ("sink refused it", 2)]
        pending = connection.execute(PENDING).fetchall()
        assert [row[2] for row in pending] == ["old", "D-1", "D-2", "D-3", "D-4"]
        assert pending[1][1] == {"id": "D-1", "fee": "N/A"}


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_counts_follow_changes_by_sql(store_url, dlq, put):
    put(10)
    run = uuid.uuid4()
    with psycopg.connect(store_url) as connection:
        connection.execute("UPDATE pipeline.dead_letter_queue SET status = 'discarded' WHERE source_key < 'D-4'")
        connection.execute("DELETE FROM pipeline.dead_letter_queue WHERE source_key = 'D-0'")
        connection.execute(
            "INSERT INTO pipeline.dead_letter_queue (pipeline_name, run_id, error_type, error_message, raw_record)"
            " SELECT 'spark', %s, 'schema', 'bad', '{}' FROM generate_series(1, 7)",
            [run],
        )
    by_status = {cause.fingerprint: dict(cause.by_status) for cause in dlq.causes()}
    assert sum(counts["pending"] for counts in by_status.values()) == dlq.count(status="pending") == 13
    assert sum(counts["discarded"] for counts in by_status.values()) == dlq.count(status="discarded") == 3
    assert dlq.count(run_id=run) == 7
