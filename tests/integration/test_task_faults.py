"""Faults of the machine and manual changes under a flow: full disks, files that vanish, rows that are edited.

Every fault ends in one sentence and keeps the finished work; after the cause is gone, a rerun completes the flow.
"""

import contextlib
import json
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from datetime import timedelta
from functools import partial

import pytest

import redrive
from redrive.model.tasks import FlowStatus, State
from redrive.tasks.executor import executor
from redrive.tasks.operator import actions
from redrive.tasks.state.executor_lease import ExecutorLease
from tests.oracles.effects import EffectLedger
from tests.support.worker_pool import importable

# ── full disks ────────────────────────────────────────────────────────────────────────────────────────────────────────

FILLING = """
import json, os, resource, shutil, sys
from pathlib import Path
import redrive
from redrive.tasks.operator import actions

COUNT = 80
disk, book, what = sys.argv[1:4]
settings = json.loads(sys.argv[4])
COMMON = {"retry": redrive.Retry(attempts=10, base=0.01, cap=0.05), "in_thread": settings.get("in_thread", False)}
flow = redrive.Flow("filling", workers=2, files=settings["files"])


@flow.task(**COMMON)
def numbers():
    return list(range(COUNT))


@flow.task(each=numbers, **COMMON)
def fill(n):
    with open(book, "a") as page:
        page.write(f"{n}\\n")
    return os.urandom(settings["bytes"]).hex()


@flow.task(after=fill, **COMMON)
def measure(fill):
    return sum(map(len, fill))


def told(work):
    try:
        return str(work().status)
    except redrive.RedriveError as error:
        return f"{type(error).__name__} {error}"


def main():
    store = redrive.connect(settings["store"])
    ballast = Path(disk, "ballast")
    if what == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (settings["limit"], resource.RLIM_INFINITY))
    else:
        ballast.write_bytes(bytes(shutil.disk_usage(disk).free - settings["room"]))
    heard = {"full": told(lambda: flow.run(store=store))}
    (run,) = store.tasks.runs()
    heard["still"] = told(lambda: flow.run(store=store, run_id=run.run_id))
    heard["causes"] = [one.error for one in store.tasks.causes(run.run_id)]
    ballast.unlink(missing_ok=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for cause in store.tasks.causes(run.run_id):
        actions.retry(store, run.run_id, cause=cause.cause)
    heard["freed"] = told(lambda: flow.run(store=store, run_id=run.run_id))
    heard["result"] = store.tasks.get(run.run_id, "measure").result
    heard["runs"] = len(store.tasks.runs())
    files = [path for path in Path(settings["files"]).rglob("*") if path.is_file()]
    heard["scratch"] = [path.name for path in files if path.suffix != ".json"]
    json.dump(heard, sys.stdout)


if __name__ == "__main__":
    main()
"""


@pytest.fixture
def filling(tmp_path):
    """Runs the program above on a disk of 64 MB, or in files that may not grow; what it heard."""
    program = tmp_path / "filling.py"
    program.write_text(FILLING)
    disk = tmp_path / "disk"
    disk.mkdir()

    def run(what, **settings):
        within = [] if what == "limit" else small_disk(disk)
        settings = {"store": f"{disk}/redrive.db", "files": f"{disk}/results", **settings}
        command = [sys.executable, "-W", "error", program, disk, tmp_path / "book", what, json.dumps(settings)]
        done = subprocess.run([*within, *command], capture_output=True, text=True, timeout=110, check=False)
        assert done.returncode == 0, done.stderr
        EffectLedger(tmp_path / "book").check_at_least_once(range(80))
        return json.loads(done.stdout)

    return run


def small_disk(directory):
    mount = 'mount -t tmpfs -o size=64m tmpfs "$0" && exec "$@"'
    within = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, str(directory)]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*within, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("a small disk needs mount namespaces; a limit to the size of files is tested beside this")
    return within


def check_filled(heard, digits):
    """Each fault is a sentence, and when there is room, everything is there, and nothing else."""
    assert all("\n" not in heard[one] for one in ("full", "still"))
    assert (heard["freed"], heard["result"], heard["runs"], heard["scratch"]) == ("complete", digits, 1, []), heard


@pytest.mark.parametrize(
    ("what", "says"),
    [("disk", "database or disk is full; free some space and run again"), ("limit", "disk I/O error")],
)
def test_full_disk_of_the_store_stops_flow_until_freed(filling, what, says):
    heard = filling(what, bytes=12_000, room=2_000_000, limit=1_600_000, in_thread=what == "limit")
    assert heard["full"].startswith("StoreError"), heard
    assert says in heard["full"], heard
    assert says in heard["still"], heard
    check_filled(heard, 80 * 24_000)


def test_result_on_a_full_disk_is_a_dead_letter_until_retried(filling, tmp_path):
    heard = filling("disk", store=f"{tmp_path}/redrive.db", bytes=60_000, room=1_500_000)
    assert "downstream tasks are blocked" in heard["full"], heard
    assert any("No space left on device" in one for one in heard["causes"]), heard
    check_filled(heard, 80 * 120_000)


def test_several_results_on_a_full_disk_stop_the_flow(filling, tmp_path):
    heard = filling("disk", store=f"{tmp_path}/redrive.db", bytes=12_000, room=500_000, in_thread=True)
    assert heard["full"].startswith("FlowError"), heard
    assert "cannot be written: No space left on device; see that there is room, and run again" in heard["full"]
    check_filled(heard, 80 * 24_000)


# ── rubbish ───────────────────────────────────────────────────────────────────────────────────────────────────────────

RUBBISH = """
import redrive
SHORT = {"retry": redrive.Retry(attempts=3, base=0.01, cap=0.05), "in_thread": True}

@flow.task(**SHORT)
def large():
    return ["x" * 1_000] * 100

@flow.task(after=large, **SHORT)
def gate(directory):
    if not Path(directory, "open").exists():
        raise redrive.Permanent("it is closed")
    return [1, 2, 3]

@flow.task(after=[large, gate], **SHORT)
def use(large):
    return len(large)

@flow.task(after=[use, gate], **SHORT)
def end(use, gate):
    return [use, *gate]
"""
FAN = """
@flow.task(each=large, after=gate, **SHORT)
def fan(item):
    return len(item)
"""


class Half:
    """A run that an operator stopped half-way; it must resume after any manual change."""

    def __init__(self, directory, source):
        self.directory = directory
        self.module = importable(directory, source, params=["directory"], workers=2)
        self.store = redrive.connect(directory / "redrive.db")
        with pytest.raises(redrive.FlowStopped) as held:
            self.run()
        self.run_id = held.value.report.run_id
        actions.retry(self.store, self.run_id, ["gate"])
        (directory / "open").touch()

    def run(self):
        return self.module.flow.run(store=self.store, params={"directory": str(self.directory)}, deadline=60)

    def go_on(self):
        """Return its error, or its status if there is none."""
        try:
            said = str(self.run().status)
        except redrive.RedriveError as error:
            said = f"{type(error).__name__}: {error}"
        assert "\n" not in said
        assert "deadline" not in said, "it hung"
        return said

    def execute(self, statement):
        with contextlib.closing(sqlite3.connect(self.directory / "redrive.db")) as connection:
            found = connection.execute(statement).fetchall()
            connection.commit()
            return found

    def file(self):
        (found,) = (self.directory / "results" / str(self.run_id)).glob("*.json")
        return found


@pytest.fixture
def half(tmp_path):
    made = []

    def make(source=RUBBISH):
        made.append(Half(tmp_path, source))
        return made[-1]

    yield make
    for one in made:
        one.store.close()


def cut_short(path):
    path.write_bytes(path.read_bytes()[:500])


def empty(path):
    path.write_bytes(b"")


def scramble(path):
    path.write_bytes(b"\xff\xfe\x00")


def remove(path):
    path.unlink()


@pytest.mark.parametrize("spoil", [cut_short, empty, scramble, remove])
def test_corrupt_argument_file_is_a_dead_letter(half, spoil):
    run = half()
    path, content = run.file(), run.file().read_bytes()
    spoil(path)
    assert "1 dead letter, and downstream tasks are blocked" in run.go_on()
    (cause,) = run.store.tasks.causes(run.run_id)
    assert cause.error.startswith(f"the argument 'large' of task 'use' is in {path}, which cannot be read: ")
    path.write_bytes(content)
    actions.retry(run.store, run.run_id, cause=cause.cause)
    assert run.go_on() == "complete"
    assert run.store.tasks.get(run.run_id, "end").result == [100, 1, 2, 3]


@pytest.mark.parametrize("spoil", [cut_short, empty, scramble, remove])
def test_corrupt_fan_out_file_stops_flow_until_restored(half, spoil):
    run = half(RUBBISH + FAN)
    path, content = run.file(), run.file().read_bytes()
    spoil(path)
    assert run.go_on().startswith(f"FlowError: the result of task 'large' is in {path}, which cannot be read: ")
    path.write_bytes(content)
    assert run.go_on() == "complete"
    assert run.store.tasks.get(run.run_id, "fan").task.children == 100


INCONSISTENT = "the stored state of flow .* is inconsistent .* if it was changed by hand, undo that; otherwise restart"
STUCK = "is stuck with .* nothing of it can be claimed: if the store was changed by hand, undo that; otherwise restart"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("state = 'NONSENSE'", INCONSISTENT),
        ("due_at = 'tomorrow'", INCONSISTENT),
        ("since = 'yesterday'", INCONSISTENT),
        ("attempt = 'many'", INCONSISTENT),
        ("child = 5", INCONSISTENT),
        ("state = 'RUNNING'", "a task cannot go from RUNNING to RUNNING"),
        ("attempt = 0", "UNIQUE constraint failed"),
        ("due_at = NULL", STUCK),
        ("due_at = NULL, state = 'RUNNING'", STUCK),
        ("due_at = NULL, state = 'PENDING', waiting = 1", STUCK),
        ("run_id = 'another'", STUCK),
        ("node = -1", INCONSISTENT),
    ],
)
def test_corrupt_task_row_stops_flow_with_one_sentence(half, change, says):
    run = half()
    run.execute(f"UPDATE tasks SET {change} WHERE name = 'gate'")
    assert re.search(says, said := run.go_on()), said
    assert run.execute("SELECT status FROM task_runs") == [(FlowStatus.RUNNING,)]


def test_task_without_executor_is_retried(half):
    run = half()
    run.execute(
        "UPDATE tasks SET owner = 999, due_at = NULL, state = 'RUNNING', since = started_at WHERE name = 'gate'"
    )
    assert run.go_on() == "complete"
    (*_, last_but_one, last) = run.store.tasks.get(run.run_id, "gate").attempts
    assert (last_but_one.ended, last.ended) == ("lost", "returned")


def test_run_with_a_missing_task_is_never_complete(half):
    run = half()
    run.execute("DELETE FROM tasks WHERE name = 'use'")
    assert "is stuck with 1 PENDING" in run.go_on()
    assert run.store.tasks.run(run.run_id).counts == {State.PENDING: 1, State.SUCCESS: 2}


@pytest.mark.parametrize(
    "change",
    [
        "task_runs SET shape = '[1,'",
        "task_runs SET started_at = 'x'",
        "task_executors SET owner = 'x', ended_at = NULL",
        "task_executors SET until = 'x', ended_at = NULL",
    ],
)
def test_corrupt_run_row_stops_flow_with_one_sentence(half, change):
    run = half()
    run.execute(f"UPDATE {change}")
    assert "is inconsistent" in run.go_on()


# ── modules ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_error_names_module_that_closes_foreign_files(tmp_path):
    module = importable(tmp_path, "@flow.task\ndef one(): pass")
    path = tmp_path / f"{module.__name__}.py"
    path.write_text(f"import os\nos.closerange(3, 256)\n{path.read_text()}")
    with redrive.connect(tmp_path / "redrive.db") as store, pytest.raises(redrive.FlowError) as caught:
        module.flow.run(store=store)
    assert str(caught.value) == (
        f"a worker that imports {path.name} does not survive it: its process exited with status 1"
    )


# ── an end that nothing holds up ──────────────────────────────────────────────────────────────────────────────────────


def test_37_idle_run_stops_at_once(tmp_path, monkeypatch):
    """Neither at the next poll nor after the grace period of running tasks."""
    monkeypatch.setattr(executor, "ExecutorLease", partial(ExecutorLease, lease=timedelta(hours=10)))
    source = "@flow.sensor(every=3_600, timeout=86_400, in_thread=True)\ndef never():\n    return False\n"
    flow = importable(tmp_path, source, stop_within=3_600).flow
    ended = []

    def run():
        try:
            flow.run(store=store)
        except redrive.FlowStopped as stopped:
            ended.append(str(stopped))

    with redrive.connect(tmp_path / "redrive.db") as store:
        running = threading.Thread(target=run, daemon=True)
        running.start()
        while not (store.tasks.runs() and store.tasks.get(flow.name, "never").task.attempts):
            running.join(0.01)
        flow.stop("it is late")
        running.join(60)
        assert ended, "it still waits"
        assert "stopped: it is late" in ended[0]
