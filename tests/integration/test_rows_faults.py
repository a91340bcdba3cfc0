"""Faults of the machine during a run: full disks, vanished tables, changed files, an unreachable store.

Every fault ends in one sentence and keeps the finished work; after the cause is gone, a rerun completes the run.
"""

import contextlib
import gc
import inspect
import itertools
import json
import os
import pwd
import random
import shutil
import socket
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Engine, event

import redrive
from tests.support.warm_python import warm_python

COUNT, BATCH = 1_000, 100
TABLE = "CREATE TABLE deliveries (id VARCHAR(10) PRIMARY KEY, fee NUMERIC(8, 2) NOT NULL)"
BAD = {n for n in range(COUNT) if n % 50 == 7}
AGAIN = {n: n - BATCH for n in range(142, COUNT, 200)}
"""Rows that have the key of another one, a batch before."""

# SQLAlchemy does not close the cursor of a connection that broke, and the driver complains when it is collected.
pytestmark = pytest.mark.filterwarnings("ignore:.*ServerCursor.*deleted while still open:ResourceWarning")
_serial = itertools.count()


@pytest.fixture(autouse=True)
def collected():
    """Collect a broken cursor here, where its warning is ignored."""
    yield
    gc.collect()


# ── a load ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def fee_is_a_number(record):
    return {**record, "fee": float(record["fee"])}


def write_file(path, numbers=range(COUNT)):
    lines = (f"{key_of(n)},{'N/A' if n in BAD else f'{n % 90}.25'}\n" for n in numbers)
    path.write_text("id,fee\n" + "".join(lines))
    return path


class Load:
    """A pipeline over a file, its store and its table, and what must come of them."""

    def __init__(self, store, url, file, **options):
        self.store, self.url, self.file, self.options = store, url, file, options

    def connected(self):
        if self.url.startswith("sqlite:"):
            return contextlib.closing(sqlite3.connect(self.url.removeprefix("sqlite:///")))
        return psycopg.connect(self.url)

    def execute(self, statement):
        with self.connected() as connection:
            connection.execute(statement)
            connection.commit()

    def pipeline(self, **more):
        sink = redrive.rows.table(self.url, "deliveries", key="id", patience=1)
        source = redrive.rows.csv(self.file)
        options = {"source": source, "validate": fee_is_a_number, "batch": BATCH, **self.options, **more}
        return redrive.Pipeline("vendor", sink=sink, store=self.store, **options)

    def check_table(self):
        """Every good row is there, once; of those with one key the last, or the first where the others are letters."""
        numbers = reversed(range(COUNT)) if self.keeps_first else range(COUNT)
        wanted = {key_of(n): n % 90 + 0.25 for n in numbers if n not in BAD}
        with self.connected() as connection:
            rows = connection.execute("SELECT id, fee FROM deliveries").fetchall()
        assert len(rows) == len({key for key, _ in rows})
        assert {key: float(fee) for key, fee in rows} == wanted

    def check(self, report, *, refused=()):
        """Everything is where it belongs, once, and counted; beside runs that could not begin, for these reasons."""
        self.check_table()
        rejected = {f"line {n + 2}" for n in BAD.union(AGAIN if self.keeps_first else ())}
        letters = list(self.store.dlq.each())
        assert sorted(letter.position for letter in letters) == sorted(rejected)
        assert {letter.seen for letter in letters} == {1}
        assert sum(cause.seen for cause in self.store.dlq.causes()) == len(letters)
        overwritten = 0 if self.keeps_first else len(AGAIN)
        written = COUNT - len(rejected) - overwritten
        assert (report.read, report.rejected, report.written) == (COUNT, len(rejected), written)
        assert report.duplicates == overwritten
        listed = [run for run in self.store.runs.find() if run.status != "abandoned" or run.read]
        *others, run = sorted(listed, key=lambda run: run.read)
        assert [(other.status, other.read, other.reason) for other in others] == [("failed", 0, one) for one in refused]
        assert (run.run_id, run.status, run.read, run.written) == (report.run_id, "complete", COUNT, report.written)
        assert run.retries == report.retries

    @property
    def keeps_first(self):
        return self.options.get("on_duplicate") == "quarantine"


def key_of(n):
    return f"D-{AGAIN.get(n, n):05}"


def at_batch(number, happening):
    """Let something happen when so many batches are written."""

    def watch(progress):
        if progress.counts.batches == number:
            happening()

    return watch


def is_one_sentence(error):
    return "\n" not in str(error) and "Traceback" not in str(error) and "correct-horse" not in str(error)


@pytest.fixture
def file(tmp_path):
    return write_file(tmp_path / "deliveries.csv")


@pytest.fixture(params=["sqlite", "postgresql"])
def kind(request):
    return request.param


@pytest.fixture(params=["with its store", "apart"])
def load(request, kind, new_store, file):
    """A load on each database, its table in that of the store and in another."""
    with new_store(kind) as url, new_store(kind) as other, redrive.connect(url) as store:
        made = Load(store, url if request.param == "with its store" else other, file)
        made.execute(TABLE)
        yield made


# ── the table ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_vanished_table_stops_run_until_restored(load):
    pipeline = load.pipeline()
    with pytest.raises(redrive.RunStopped, match="deliveries") as stopped:
        pipeline.run(watch=at_batch(3, lambda: load.execute("ALTER TABLE deliveries RENAME TO elsewhere")))
    assert is_one_sentence(stopped.value)
    assert stopped.value.kind == "permanent"
    part = stopped.value.report
    assert (part.status, part.read) == ("failed", part.batches * BATCH)
    assert 0 < part.read < COUNT
    load.execute("ALTER TABLE elsewhere RENAME TO deliveries")
    report = pipeline.run()
    assert (report.run_id, report.resumed) == (part.run_id, True)
    load.check(report)


def test_dropped_table_is_refilled_by_restart(load):
    pipeline = load.pipeline()
    with pytest.raises(redrive.RunStopped, match="deliveries"):
        pipeline.run(watch=at_batch(3, lambda: load.execute("DROP TABLE deliveries")))
    load.execute(TABLE)
    report = pipeline.run(restart=True)
    assert (report.read, report.resumed) == (COUNT, False)
    load.check_table()


def test_read_only_table_stops_run_until_writable(new_store, file):
    with new_store("postgresql") as url, new_store("sqlite") as store_url, redrive.connect(store_url) as store:
        name = f"reader_{next(_serial)}"
        owner = Load(store, url, file)
        owner.execute(TABLE)
        owner.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'correct-horse'")
        owner.execute(f"GRANT SELECT ON deliveries TO {name}")
        reader = Load(store, url.replace("//postgres:", f"//{name}:"), file)
        with pytest.raises(redrive.RunStopped, match="permission denied") as stopped:
            reader.pipeline().run()
        assert is_one_sentence(stopped.value)
        assert (stopped.value.kind, stopped.value.report.read) == ("permanent", 0)
        owner.execute(f"GRANT INSERT, UPDATE ON deliveries TO {name}")
        reader.check(reader.pipeline().run())
        owner.execute(f"DROP OWNED BY {name}")
        owner.execute(f"DROP ROLE {name}")


def load_as(user, scratch, url, store, file):
    """Run as another user and return the output."""
    import os

    import redrive

    def run(target, where):
        opened = redrive.connect(where)
        sink = redrive.rows.table(target, "deliveries", key="id")
        pipeline = redrive.Pipeline("vendor", source=redrive.rows.csv(file), sink=sink, store=opened, batch=100)
        try:
            return ["complete", str(pipeline.run().read)]
        except redrive.RedriveError as error:
            return [type(error).__name__, error.kind, str(error)]

    run(f"sqlite:///{scratch}/warm.db", f"{scratch}/warm-store.db")  # what is imported late could not be read any more
    if user is not None:
        os.setgroups([])
        os.setgid(user[1])
        os.setuid(user[0])
    return run(url, store)


_CALL = "import json, sys\n{source}\njson.dump({name}(*json.loads(sys.argv[1])), sys.stdout)"


def in_child(function, *arguments, within=()):
    """What a function returns in a process of its own, started by the command `within`."""
    script = _CALL.format(source=textwrap.dedent(inspect.getsource(function)), name=function.__name__)
    words = ["-W", "error", "-c", script, json.dumps(arguments)]
    command = [*within, sys.executable, *words] if within else warm_python(*words)
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
    return json.loads(done.stdout)


def test_read_only_file_is_reported_and_unchanged(open_directory):
    nobody = pwd.getpwnam("nobody")
    user = (nobody.pw_uid, nobody.pw_gid) if os.geteuid() == 0 else None
    file = write_file(open_directory / "deliveries.csv")
    free = open_directory / "free"
    free.mkdir()
    free.chmod(0o777)
    target = open_directory / "target.db"
    for path in (target, free / "warm.db"):
        Load(None, f"sqlite:///{path}", file).execute(TABLE)
    target.chmod(0o444)
    content = target.read_bytes()
    said = in_child(load_as, user, str(free), f"sqlite:///{target}", str(free / "store.db"), str(file))
    assert said[:2] == ["RunStopped", "permanent"]
    assert "read-only" in said[2]
    assert is_one_sentence(said[2])
    assert target.read_bytes() == content
    target.chmod(0o644)
    with redrive.connect(free / "store.db") as store:
        load = Load(store, f"sqlite:///{target}", file)
        load.check(load.pipeline().run())


# ── a disk that is full ───────────────────────────────────────────────────────────────────────────────────────────────


def load_until_it_is_full(source, sink, store, ballast, limit):
    """Run twice on a full disk, free space, run again; return the errors and the final counts."""
    import os
    import resource

    import polars as pl

    import redrive

    def check(record):
        if int(record["id"]) % 5 == 3:
            raise ValueError("not this one")

    def run():
        try:
            report = pipeline.run()
        except redrive.RedriveError as error:
            report = getattr(error, "report", None)  # there may be no room even to begin
            return [str(error.kind), str(error), *((str(report.run_id), report.read) if report else (None, None))]
        return [str(report.status), "", str(report.run_id), report.read]

    def ids():
        kind, path = sink.split(":", 1)
        if kind == "parquet":
            return pl.read_parquet(path)["id"].to_list()
        connected = __import__("sqlite3" if kind == "sqlite" else "duckdb").connect(path)
        return [key for (key,) in connected.execute("SELECT id FROM texts").fetchall()]

    kind, path = sink.split(":", 1)
    if kind == "parquet":
        target = redrive.rows.parquet_dataset(path, key="id")
    else:
        target = redrive.rows.table(f"{kind}:///{path}", "texts", key="id", create=True, patience=1)
    options = {"source": redrive.rows.csv(source), "validate": check, "batch": 50, "gate": redrive.Gate(abort=1)}
    with redrive.connect(store) as opened:
        pipeline = redrive.Pipeline("vendor", **options, sink=target, store=opened)
        if ballast:
            with open(ballast[0], "wb") as file:
                file.write(b"x" * ballast[1])
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        heard = [run(), run()]
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        if ballast:
            os.unlink(ballast[0])
        heard.append(run())
        letters = list(opened.dlq.each())
        return [*heard, sorted(map(int, ids())), [[int(one.record["id"]), one.seen] for one in letters]]


@pytest.fixture
def small_disk(tmp_path):
    """A directory, and the command that starts a child for which it is a disk of 16 MB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = 'mount -t tmpfs -o size=16m tmpfs "$0" && exec "$@"'
    within = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, str(directory)]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*within, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("a small disk needs mount namespaces; a limit to the size of files is tested beside this")
    return directory, within


@pytest.fixture
def texts(tmp_path):
    """A file of 1,000 rows, 4 kB each, that no compression makes small."""
    chance, path = random.Random(15), tmp_path / "texts.csv"
    path.write_text("id,text\n" + "".join(f"{n},{chance.randbytes(2_000).hex()}\n" for n in range(1_000)))
    return path


def check_a_full_disk(heard, kind, says):
    full, still, freed, rows, letters = heard
    for found, sentence, *_ in (full, still):
        assert (found, says in sentence, is_one_sentence(sentence)) == (kind, True, True), sentence
    assert 0 < full[3] < 1_000
    assert still[3] is None or full[3] <= still[3] < 1_000  # what is left of the room may do for another batch
    assert freed == ["complete", "", full[2], 1_000]
    assert rows == [n for n in range(1_000) if n % 5 != 3]
    assert sorted(letters) == [[n, 1] for n in range(1_000) if n % 5 == 3]


@pytest.mark.parametrize(
    ("kind", "says"), [("sqlite", "disk is full"), ("duckdb", "No space left"), ("parquet", "No space left")]
)
def test_full_disk_of_the_table_stops_run_until_freed(small_disk, texts, kind, says):
    disk, within = small_disk
    ballast = (str(disk / "ballast"), 15 << 20)
    heard = in_child(
        load_until_it_is_full, str(texts), f"{kind}:{disk}/target", f"{texts}.db", ballast, 0, within=within
    )
    check_a_full_disk(heard, "permanent", says)


def test_full_disk_of_the_store_stops_run_until_freed(small_disk, texts):
    disk, within = small_disk
    ballast = (str(disk / "ballast"), 14 << 20)
    heard = in_child(
        load_until_it_is_full, str(texts), f"sqlite:{texts}.target", f"{disk}/store.db", ballast, 0, within=within
    )
    check_a_full_disk(heard, "permanent", "disk is full")


def test_file_size_limit_stops_run_until_lifted(texts):
    heard = in_child(load_until_it_is_full, str(texts), f"sqlite:{texts}.target", f"{texts}.db", None, 2_000_000)
    check_a_full_disk(heard, "ambiguous", "disk I/O error")


# ── the store ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["with its store", "apart"])
def mortal(request, mortal_postgres, tmp_path, file):
    """A load whose store is on a server that may be stopped; its table is in it, or in a file."""
    name = f"rows_{next(_serial)}"
    with psycopg.connect(mortal_postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    url = mortal_postgres.url.rpartition("/")[0] + f"/{name}"
    with redrive.connect(url, migrate=True, patience=1) as store:
        made = Load(store, url if request.param == "with its store" else f"sqlite:///{tmp_path}/rows.db", file)
        made.execute(TABLE)
        yield made
    mortal_postgres.start()


def test_unreachable_store_stops_run_until_back(mortal, mortal_postgres):
    pipeline = mortal.pipeline()
    with pytest.raises(redrive.RunStopped, match="check that the server runs") as stopped:
        pipeline.run(watch=at_batch(3, mortal_postgres.stop))
    assert is_one_sentence(stopped.value)
    part = stopped.value.report
    assert (stopped.value.kind, part.status) == ("transient", "failed")
    with pytest.raises(redrive.RedriveError, match="check that the server runs") as still:
        pipeline.run()
    assert is_one_sentence(still.value)
    assert still.value.kind == "transient"
    mortal_postgres.start()
    report = pipeline.run()
    assert (report.run_id, report.resumed) == (part.run_id, True)
    mortal.check(report)


class Broken:
    """Breaks the connection to PostgreSQL at one of the commits: before it, or when it is done and nobody knows."""

    def __init__(self, at, *, committed):
        self.left, self.committed = at, committed
        self.struck = False

    def commit(self, connection):
        self.left -= 1
        if self.left >= 0 or self.struck:
            return
        self.struck = True
        server = connection.connection.driver_connection
        if self.committed:
            server.execute("COMMIT")
        with socket.socket(fileno=os.dup(server.fileno())) as ours:
            ours.shutdown(socket.SHUT_RDWR)
        server.execute("SELECT 'nobody answers'")

    @contextlib.contextmanager
    def listening(self):
        event.listen(Engine, "commit", self.commit)
        try:
            yield
        finally:
            event.remove(Engine, "commit", self.commit)


@pytest.mark.parametrize(
    ("where", "committed"), [("with its store", True), ("with its store", False), ("apart", True)], ids=str
)
def test_broken_connection_at_commit_leaves_exact_result(new_store, file, where, committed):
    wrong = {}
    with new_store("postgresql") as elsewhere:
        for at in itertools.count():
            broken = Broken(at, committed=committed)
            with new_store("postgresql") as url, redrive.connect(url) as store:
                load = Load(store, url if where == "with its store" else elsewhere, file, on_duplicate="quarantine")
                load.execute(f"DROP TABLE IF EXISTS deliveries; {TABLE}")
                try:
                    with broken.listening():
                        report = load.pipeline(batch=500).run()
                    load.check(report)
                except (AssertionError, redrive.RedriveError) as error:
                    wrong[at] = repr(error)
            if not broken.struck:
                break
    assert at >= 5  # it begins, looks at the table, writes two batches and ends
    assert wrong == {}


@pytest.mark.parametrize("committed", [True, False], ids=["after", "before"])
def test_broken_connection_at_resume_leaves_exact_result(new_store, file, committed):
    with new_store("postgresql") as url, redrive.connect(url) as store:
        load = Load(store, url, file)
        load.execute(TABLE)
        part = stop_at(3, load.pipeline())
        with Broken(0, committed=committed).listening():
            report = load.pipeline().run()
        assert (report.run_id, report.resumed) == (part.run_id, True)
        load.check(report)


# ── the file ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def here(new_store, file):
    """A load that needs no server."""
    with new_store("sqlite") as url, redrive.connect(url) as store:
        made = Load(store, url, file)
        made.execute(TABLE)
        yield made


def stop_at(batch, pipeline):
    with pytest.raises(redrive.RunStopped) as stopped:
        pipeline.run(watch=at_batch(batch, pipeline.stop))
    return stopped.value.report


def other_file(path):
    path.write_text(path.read_text().replace("D-", "E-"))


def shorter_file(path):
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (other_file, "is another file now: its beginning or end differs"),
        (shorter_file, "has become shorter"),
        (Path.unlink, "there is no file"),
    ],
    ids=["another file", "shorter", "gone"],
)
def test_changed_file_blocks_resume_until_restored(here, change, says):
    content, pipeline = here.file.read_text(), here.pipeline()
    part = stop_at(3, pipeline)
    change(here.file)
    with pytest.raises(redrive.PipelineError) as refused:
        pipeline.run()
    assert says in str(refused.value)
    assert is_one_sentence(refused.value)
    here.file.write_text(content)
    report = pipeline.run()
    assert (report.run_id, report.resumed) == (part.run_id, True)
    here.check(report, refused=[str(refused.value)])


def test_changed_file_is_reread_by_restart(here):
    content = here.file.read_text()
    other_file(here.file)
    pipeline = here.pipeline()
    stop_at(3, pipeline)
    here.execute("DELETE FROM deliveries")
    here.file.write_text(content)
    with pytest.raises(redrive.PipelineError, match="--restart"):
        pipeline.run()
    assert pipeline.run(restart=True).read == COUNT
    here.check_table()
    # The one that was refused is listed as well, with its reason.
    assert [run.status for run in here.store.runs.find()] == ["complete", "failed", "abandoned"]


def test_file_removed_while_read_is_read_to_its_end(here):
    here.check(here.pipeline().run(watch=at_batch(3, here.file.unlink)))


def test_truncated_file_fails_the_run(here):
    header, *lines = here.file.read_text().splitlines()
    content = "\n".join([header, *(line + " " * 3_000 for line in lines), ""])  # too much to be read at once
    here.file.write_text(content)
    pipeline = here.pipeline()
    with pytest.raises(redrive.RunStopped, match="shorter") as stopped:
        pipeline.run(watch=at_batch(1, lambda: shorter_file(here.file)))
    assert is_one_sentence(stopped.value)
    here.file.write_text(content)
    here.check(pipeline.run())


def test_missing_second_file_stops_run_until_back(here):
    parts = [write_file(here.file.with_name(f"part-{half}.csv"), range(half, half + 500)) for half in (0, 500)]
    content = parts[1].read_text()
    pipeline = here.pipeline(source=redrive.rows.csv(here.file.with_name("part-*.csv")))
    with pytest.raises(redrive.RunStopped, match="part-500") as stopped:
        pipeline.run(watch=at_batch(2, parts[1].unlink))
    assert is_one_sentence(stopped.value)
    assert stopped.value.report.read == 500
    parts[1].write_text(content)
    report = pipeline.run()
    assert (report.run_id, report.read) == (stopped.value.report.run_id, COUNT)
    here.check_table()


# ── the process ───────────────────────────────────────────────────────────────────────────────────────────────────────


def load_alone(url, store, file):
    import redrive

    sink = redrive.rows.table(url, "deliveries", key="id")
    with redrive.connect(store) as opened:
        pipeline = redrive.Pipeline("vendor", source=redrive.rows.csv(file), sink=sink, store=opened, batch=100)
        return pipeline.run(watch=lambda progress: None).document()


def test_run_works_without_standard_streams(here):
    within = ["sh", "-c", 'exec "$@" <&- 2>&-', "sh"]
    report = in_child(load_alone, here.url, here.url, str(here.file), within=within)
    assert (report["status"], report["read"]) == ("complete", COUNT)
