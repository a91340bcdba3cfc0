"""A sink that another session blocks: every way to end the run ends it within seconds, and a rerun resumes."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import psycopg
import pytest
from sqlalchemy import make_url

import redrive
from redrive.model.calls import Kind
from redrive.rows.sinks.sqlalchemy.sink import GenericTable
from redrive.rows.sinks.table_schema import TableName
from redrive.rows.write import thread

TABLE = "CREATE TABLE t (id integer PRIMARY KEY, v integer)"
COUNT, BATCH = 300, 100

# SQLAlchemy does not close the cursor of a connection that was cut, and the driver complains when it is collected.
pytestmark = pytest.mark.filterwarnings("ignore:.*Cursor.*deleted while still open:ResourceWarning")


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    """The grace period that a batch has to finish."""
    monkeypatch.setattr(thread, "GRACE", 0.3)


def execute(url, statement):
    if url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else None


@contextlib.contextmanager
def blocked(url):
    """Block all writes to the table."""
    if url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
    else:
        with psycopg.connect(url) as other:
            other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
            yield


class Load:
    """A pipeline of three batches into a table that can be blocked."""

    def __init__(self, kind, store, url):
        self.kind, self.store, self.url = kind, store, url

    def pipeline(self, *, patience=60.0, query=""):
        if self.kind == "generic":
            generic = make_url(self.url.replace("postgresql:", "postgresql+psycopg2:"))
            sink = GenericTable(generic, TableName("t"), key=("id",), create=False, patience=patience)
        else:
            sink = redrive.rows.table(self.url + query, "t", key="id", patience=patience)
        source = redrive.rows.records([{"id": n, "v": n} for n in range(COUNT)], name="numbers")
        return redrive.Pipeline("numbers", source=source, sink=sink, store=self.store, batch=BATCH)

    def check_rerun(self):
        report = self.pipeline().run()
        assert (report.status, report.read, report.written) == ("complete", COUNT, COUNT)
        assert execute(self.url, "SELECT count(*), sum(v) FROM t") == [(COUNT, sum(range(COUNT)))]


@pytest.fixture(params=["postgresql", "postgresql with its store", "generic", "sqlite"])
def load(request, new_store):
    kind = "sqlite" if request.param == "sqlite" else "postgresql"
    with new_store(kind) as url, new_store(kind) as other, redrive.connect(url) as store:
        made = Load(request.param, store, url if request.param.endswith("store") else other)
        execute(made.url, TABLE)
        yield made


@contextlib.contextmanager
def soon(action):
    """Do something in another thread as soon as the run waits for its sink."""

    def wait():
        ends, before = time.monotonic() + 60, None
        while time.monotonic() < ends:
            writing = next((one for one in threading.enumerate() if one.name == "redrive-sink"), None)
            if writing is not None and writing is before:
                action()
                return
            before = writing
            time.sleep(0.4)

    waiting = threading.Thread(target=wait)
    waiting.start()
    yield
    waiting.join()


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


class TestBlockedWrite:
    def test_timeout_ends_the_run(self, load):
        with blocked(load.url), pytest.raises(redrive.RunStopped) as stopped:
            load.pipeline(patience=1).run()
        assert stopped.value.kind is Kind.TRANSIENT
        assert "\n" not in str(stopped.value)
        load.check_rerun()

    def test_deadline_ends_the_run(self, load):
        with blocked(load.url), pytest.raises(redrive.RunStopped, match="deadline") as stopped:
            load.pipeline().run(deadline=0.5)
        assert stopped.value.kind is Kind.TRANSIENT
        assert stopped.value.report.status == "stopped"
        load.check_rerun()

    def test_sigterm_ends_the_run(self, load):
        with blocked(load.url), soon(terminate), pytest.raises(redrive.RunStopped, match="SIGTERM") as stopped:
            load.pipeline().run()
        assert stopped.value.report.status == "stopped"
        load.check_rerun()

    def test_ctrl_c_ends_the_run(self, load):
        with blocked(load.url), soon(interrupt), pytest.raises(KeyboardInterrupt):
            load.pipeline().run()
        load.check_rerun()

    def test_second_ctrl_c_skips_the_grace_period(self, load, monkeypatch):
        monkeypatch.setattr(thread, "GRACE", 600.0)

        def twice():
            for _ in range(2):
                interrupt()
                time.sleep(0.5)

        with blocked(load.url), soon(twice), pytest.raises(KeyboardInterrupt):
            load.pipeline().run()
        load.check_rerun()

    def test_lock_released_in_time_is_survived(self, load):
        if load.kind == "sqlite":
            pytest.skip("a connection of sqlite3 is closed by its own thread")
        with contextlib.ExitStack() as lock:
            lock.enter_context(blocked(load.url))
            with soon(lock.close):
                report = load.pipeline().run()
        assert (report.status, report.written) == ("complete", COUNT)

    def test_batch_finished_within_the_grace_period_is_saved(self, load, monkeypatch):
        monkeypatch.setattr(thread, "GRACE", 600.0)
        pipeline = load.pipeline()
        with pytest.raises(redrive.RunStopped, match="everything so far is written") as stopped:
            pipeline.run(watch=lambda progress: pipeline.stop("enough"))
        assert stopped.value.report.written in (BATCH, 2 * BATCH)
        load.check_rerun()


@pytest.mark.parametrize("ending", ["stop", "patience"])
def test_run_on_locked_duckdb_file_can_be_ended(tmp_path, ending):
    file = tmp_path / "t.duckdb"
    script = (
        "import duckdb, sys; c = duckdb.connect(sys.argv[1]); "
        "c.execute('CREATE TABLE IF NOT EXISTS t (id integer PRIMARY KEY, v integer)'); "
        "print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(file)]
    with redrive.connect(tmp_path / "store.db") as store:
        load = Load("duckdb", store, f"duckdb:///{file}")
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout.readline() == "held\n"
            pipeline = load.pipeline(patience=60 if ending == "stop" else 0.5)
            asked = soon(pipeline.stop) if ending == "stop" else contextlib.nullcontext()
            with asked, pytest.raises(redrive.RunStopped) as stopped:
                pipeline.run()
            assert stopped.value.kind is Kind.TRANSIENT
            other.stdin.close()
        assert load.pipeline().run().written == COUNT


class TestStatementTimeout:
    QUERY = "?options=-c%20statement_timeout%3D200"

    @pytest.fixture
    def load(self, new_store):
        with new_store("sqlite") as url, new_store("postgresql") as other, redrive.connect(url) as store:
            execute(other, TABLE)
            yield Load("postgresql", store, other)

    def test_statement_is_retried_within_timeout(self, load):
        with contextlib.ExitStack() as lock:
            lock.enter_context(blocked(load.url))
            with soon(lambda: (time.sleep(1), lock.close())):
                report = load.pipeline(query=self.QUERY).run()
        assert (report.status, report.written) == ("complete", COUNT)
        assert report.retries > 0

    def test_exhausted_timeout_is_a_transient_failure(self, load):
        with blocked(load.url), pytest.raises(redrive.RunStopped, match="statement timeout") as stopped:
            load.pipeline(patience=1, query=self.QUERY).run()
        assert stopped.value.kind is Kind.TRANSIENT
        assert stopped.value.report.retries > 0
        load.check_rerun()

    def test_shorter_lock_timeout_of_the_user_is_kept(self, load):
        query = "?options=-c%20lock_timeout%3D100"
        with blocked(load.url), pytest.raises(redrive.RunStopped, match="lock timeout") as stopped:
            load.pipeline(patience=2, query=query).run()
        assert stopped.value.report.retries > 1
