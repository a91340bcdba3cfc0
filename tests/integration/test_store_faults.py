"""Faults of the machine under a store: read-only files, full disks, forks, threads, little memory.

Much of it runs in separate processes: one that is not root, one whose disk is small, one that may crash.
"""

import contextlib
import inspect
import json
import os
import pwd
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import threading

import pytest

import redrive
from redrive.errors import SchemaMismatch
from tests.support.warm_python import warm_python

_CALL = "import json, sys\n{source}\njson.dump({name}(*json.loads(sys.argv[1])), sys.stdout)"


def in_child(function, *arguments, within=()):
    """What a function returns in a process of its own, started by the command `within`."""
    script = _CALL.format(source=textwrap.dedent(inspect.getsource(function)), name=function.__name__)
    words = ["-W", "error", "-c", script, json.dumps(arguments)]
    command = [*within, sys.executable, *words] if within else warm_python(*words)
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
    return json.loads(done.stdout)


@pytest.fixture
def filled(empty_sqlite):
    """Makes a store of ten letters in a file."""

    def fill(path):
        shutil.copy(empty_sqlite, path)
        with redrive.connect(path) as store:
            store.dlq.put_many(
                (redrive.NewLetter({"id": n}, "bad", key=f"D-{n}") for n in range(10)), pipeline="vendor"
            )
        return path

    return fill


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "content", [b"id,fee\n" * 5_000, b"x\n", b"SQLite format 3\0 "], ids=["a text", "a short text", "half a header"]
)
def test_non_database_file_is_rejected_and_unchanged(tmp_path, content):
    path = tmp_path / "letters.csv"
    path.write_bytes(content)
    with pytest.raises(redrive.StoreError, match="no SQLite database") as caught:
        redrive.connect(path)
    assert "\n" not in str(caught.value)
    assert (path.read_bytes(), os.listdir(tmp_path)) == (content, ["letters.csv"])


@pytest.mark.parametrize("kept", [50, 20_000])
def test_truncated_database_is_rejected_and_unchanged(tmp_path, filled, kept):
    path = filled(tmp_path / "redrive.db")
    content = path.read_bytes()[:kept]
    path.write_bytes(content)
    with pytest.raises(redrive.StoreError, match="restore it from a backup") as caught:
        redrive.connect(path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == content


def test_directory_as_file_and_file_as_directory_are_rejected(tmp_path):
    with pytest.raises(redrive.StoreError, match="see that the path is right"):
        redrive.connect(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(redrive.StoreError, match="cannot make the directory"):
        redrive.connect(tmp_path / "file" / "redrive.db")


def test_missing_directories_are_created(tmp_path):
    with redrive.connect(tmp_path / "not" / "yet" / "redrive.db") as store:
        assert store.dlq.count() == 0


@pytest.mark.parametrize("migrate", [None, True, False])
def test_newer_schema_in_a_file_is_rejected_and_unchanged(tmp_path, filled, migrate):
    path = filled(tmp_path / "redrive.db")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE redrive_schema SET version_num = '9999'")
        connection.commit()
    content = path.read_bytes()
    with pytest.raises(SchemaMismatch, match="upgrade redrive"):
        redrive.connect(path, migrate=migrate)
    assert path.read_bytes() == content


def test_file_without_tables_is_unchanged_without_migration(tmp_path):
    path = tmp_path / "redrive.db"
    with pytest.raises(SchemaMismatch, match="redrive store migrate"):
        redrive.connect(path, migrate=False)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,)


def try_without_rights(user, scratch, paths):
    import os

    import redrive

    def put(path):
        with redrive.connect(path) as store:
            store.dlq.put({"id": 1}, "bad", pipeline="vendor")

    put(f"{scratch}/warm.db")  # what is imported late could not be read any more
    if user is not None:
        os.setgroups([])
        os.setgid(user[1])
        os.setuid(user[0])
    said = []
    for path in paths:
        try:
            put(path)
        except redrive.StoreError as error:
            said.append([error.kind, str(error)])
        else:
            said.append(["nothing", ""])
    return said


def test_read_only_store_is_reported_and_unchanged(open_directory, filled):
    nobody = pwd.getpwnam("nobody")
    user = (nobody.pw_uid, nobody.pw_gid) if os.geteuid() == 0 else None
    free, closed = open_directory / "free", open_directory / "closed"
    for directory in (free, closed):
        directory.mkdir()
    scratch, file, both, new = free / "scratch", free / "file.db", closed / "both.db", closed / "new.db"
    scratch.mkdir()
    filled(file).chmod(0o444)
    filled(both).chmod(0o444)
    free.chmod(0o777)
    closed.chmod(0o555)
    content = (file.read_bytes(), both.read_bytes())
    paths = [str(one) for one in (file, both, new, closed / "deeper" / "new.db")]
    said = in_child(try_without_rights, user, str(scratch), paths)
    assert [kind for kind, _ in said] == ["permanent"] * 4
    assert "read-only; nothing was changed" in said[0][1]
    assert "read-only; nothing was changed" in said[1][1]
    assert "see that the path is right and may be written" in said[2][1]
    assert "cannot make the directory" in said[3][1]
    assert (file.read_bytes(), both.read_bytes()) == content
    assert os.listdir(closed) == ["both.db"]
    closed.chmod(0o755)


# ── a disk that is full ───────────────────────────────────────────────────────────────────────────────────────────────


def fill_the_disk(directory, ballast, limit):
    """Store until the disk is full, free space, store again; return the errors and the counts."""
    import os
    import resource
    import sqlite3

    import redrive
    from redrive.dlq.insert import insert as putting

    def put():
        letters = (redrive.NewLetter({"n": n, "text": "x" * 2_000}, "bad", key=str(n)) for n in range(1_500))
        try:
            return str(store.dlq.put_many(letters, pipeline="vendor"))
        except redrive.StoreError as error:
            return f"{error.kind}: {error}"

    def state():
        keys = sorted(int(letter.key) for letter in store.dlq.each())
        assert keys == list(range(len(keys)))
        return [len(keys), store.dlq.size().letters, sum(cause.count for cause in store.dlq.causes())]

    putting.BATCH = 100
    path = f"{directory}/redrive.db"
    if ballast:
        with open(f"{directory}/ballast", "wb") as file:
            file.write(b"x" * ballast)
    store = redrive.connect(path)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    heard = [put(), state(), put(), state()]
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    if ballast:
        os.unlink(f"{directory}/ballast")
    heard += [put(), state()]
    store.close()
    heard.append(sqlite3.connect(path).execute("PRAGMA integrity_check").fetchall())
    return heard


def check_a_full_disk(heard, says):
    full, kept, still, kept_still, freed, at_end, intact = heard
    assert says in full
    assert "\n" not in full
    assert f"({kept[0]:,} letters before the fault are kept)" in full
    assert 0 < kept[0] < 1_500
    assert kept == [kept[0]] * 3
    assert says in still
    assert kept_still == kept
    assert freed == f"Stored(new={1_500 - kept[0]}, repeated={kept[0]}, decided=0)"
    assert at_end == [1_500] * 3
    assert intact == [["ok"]]


def test_full_disk_reports_stored_letters_and_recovers(tmp_path):
    mount = 'mount -t tmpfs -o size=24m tmpfs "$0" && exec "$@"'
    within = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, str(tmp_path)]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*within, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("a small disk needs mount namespaces; a limit to the size of files is tested beside this")
    heard = in_child(fill_the_disk, str(tmp_path), 21 << 20, 0, within=within)
    check_a_full_disk(heard, "database or disk is full; free some space and run again")


def test_file_size_limit_reports_stored_letters_and_recovers(tmp_path):
    check_a_full_disk(in_child(fill_the_disk, str(tmp_path), 0, 2_000_000), "disk I/O error")


# ── a file that is busy ───────────────────────────────────────────────────────────────────────────────────────────────


def test_locked_file_is_reported_after_timeout(tmp_path, filled):
    path, caught = filled(tmp_path / "redrive.db"), []
    store = redrive.connect(path, patience=0.2)

    def put():
        try:
            store.dlq.put({"id": 1}, "bad", pipeline="vendor")
        except redrive.StoreError as error:
            caught.append(error)

    waiting = threading.Thread(target=put)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        waiting.start()
        waiting.join(20)  # a hundred times the patience, and less than the default
        too_long = waiting.is_alive()
    waiting.join()
    store.close()
    assert not too_long
    assert (caught[0].kind, "running again is safe" in str(caught[0])) == ("transient", True)


# ── many at once ──────────────────────────────────────────────────────────────────────────────────────────────────────


def put_from_threads(url, threads):
    import threading

    import redrive

    failed = []

    def put(which):
        try:
            for number in range(20):
                store.dlq.put({"n": number}, "bad", pipeline="vendor", key=f"{which}-{number}")
                store.dlq.count(key=f"{which}-{number}")
        except Exception as error:
            failed.append(repr(error))

    with redrive.connect(url) as store:
        running = [threading.Thread(target=put, args=(which,)) for which in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        return [store.dlq.count(), failed]


def test_many_threads_share_a_store(store_url):
    assert in_child(put_from_threads, store_url, 24) == [480, []]


def use_beside_a_fork(url):
    """Store from both processes, together and one after the other: every confirmed letter must exist."""
    import os
    import subprocess
    import sys

    import redrive

    def put(who):
        letters = (redrive.NewLetter({"n": n}, "bad", key=f"{who}-{n}") for n in range(50))
        assert store.dlq.put_many(letters, pipeline="vendor").new == 50

    store = redrive.connect(url)
    put("before")
    to_child, to_parent = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            put("child at first")
            os.write(to_parent[1], b".")
            os.read(to_child[0], 1)
            put("child when the parent has closed")
            os.write(to_parent[1], b".")
            os.read(to_child[0], 1)
            put("child when others came")
            store.close()
            code = 0
        finally:
            os._exit(code)
    put("parent")
    os.read(to_parent[0], 1)
    store.close()
    os.write(to_child[1], b".")
    os.read(to_parent[0], 1)
    count = "import redrive, sys; print(redrive.connect(sys.argv[1]).dlq.count())"
    counted = subprocess.run([sys.executable, "-c", count, url], capture_output=True, text=True, check=True).stdout
    os.write(to_child[1], b".")
    assert os.waitpid(child, 0)[1] == 0
    with store:
        return [int(counted), store.dlq.count(), store.dlq.size().letters]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_store_used_before_fork_serves_both_processes(new_store, kind):
    with new_store(kind) as url:
        assert in_child(use_beside_a_fork, url) == [200, 250, 250]


def put_from_a_pool(url):
    import multiprocessing

    import redrive

    global put  # what a pool runs, it finds by its name

    def put(which):
        letters = (redrive.NewLetter({"n": n}, "bad", key=f"{which}-{n}") for n in range(20))
        return store.dlq.put_many(letters, pipeline="vendor").new

    store = redrive.connect(url)
    store.dlq.put({"n": 0}, "bad", pipeline="vendor", key="before")
    with multiprocessing.get_context("fork").Pool(4) as pool:
        stored = pool.map(put, range(12))
        pool.close()
        pool.join()
    with store:
        return [sum(stored), store.dlq.count()]


def test_store_serves_forked_pool_processes(store_url):
    assert in_child(put_from_a_pool, store_url) == [240, 241]


def test_closed_store_can_be_used_again(store_url):
    store = redrive.connect(store_url)
    store.dlq.put({"id": 1}, "bad", pipeline="vendor", key="1")
    store.close()
    store.close()
    assert store.dlq.count() == 1
    store.dlq.put({"id": 2}, "bad", pipeline="vendor", key="2")
    store.close()
    with store:
        assert store.dlq.count() == 2


# ── memory ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def peak_of_putting(url, count):
    import resource

    import redrive

    with redrive.connect(url) as store:
        letters = (redrive.NewLetter({"n": n, "text": "x" * 2_000}, "bad", key=str(n)) for n in range(count))
        assert store.dlq.put_many(letters, pipeline="vendor").new == count
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_memory_is_constant_while_letters_are_stored(new_store, kind):
    peaks = []
    for count in (20_000, 60_000):
        with new_store(kind) as url:
            peaks.append(in_child(peak_of_putting, url, count))
    # Were letters kept, it would be twice as much. SQLite's cache still grows a little between the two.
    assert peaks[1] < peaks[0] * 1.5
