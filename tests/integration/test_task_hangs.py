"""Tasks that hang, die or leave processes behind are killed together with their child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from redrive.model.calls import Kind
from redrive.tasks.workers.protocol import AttemptEnd
from tests.support.worker_pool import HEAD, Workshop, is_alive, wait_until

HANGS = """
import ctypes, re

def tell(directory, name="pid"):
    if not directory:  # nobody asks
        return
    scratch = Path(directory, name + ".part")
    scratch.write_text(str(os.getpid()))
    scratch.rename(Path(directory, name))

CHILD = '''
import os, subprocess, sys, time
from pathlib import Path
where, name, *rest = sys.argv[1:]
if "session" in rest:
    os.setsid()
if "deaf" in rest:
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "parent" in rest:
    program = os.environ["CHILD"]
    subprocess.Popen([sys.executable, "-c", program, where, name + "-child", "session", "deaf"])
scratch = Path(where, name + ".part")
scratch.write_text(str(os.getpid()))
scratch.rename(Path(where, name))
time.sleep(600)
'''

def child(*arguments):
    return subprocess.Popen([sys.executable, "-c", CHILD, *arguments], env={**os.environ, "CHILD": CHILD})

def settled(directory, *names):
    while not all(Path(directory, name).exists() for name in names):
        time.sleep(0.01)

@flow.task
def spin(directory=""):
    tell(directory)
    while True:
        pass

@flow.task
def regex(directory=""):
    tell(directory)
    re.match(r"(a+)+$", "a" * 60 + "b")

@flow.task
def dead_socket(directory=""):
    ours, theirs = socket.socketpair()
    tell(directory)
    ours.recv(1)

@flow.task
def ignores_sigterm(directory=""):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tell(directory)
    while True:
        time.sleep(600)

@flow.task
def blocks_signals(directory=""):
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    tell(directory)
    while True:
        time.sleep(600)

@flow.task
def swallows_everything(directory=""):
    tell(directory)
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass

@flow.task
def holds_the_gil(directory=""):
    tell(directory)
    ctypes.PyDLL(None).sleep(600)

@flow.task
def async_sleep(directory=""):
    import asyncio
    async def forever():
        tell(directory)
        while True:
            await asyncio.sleep(600)
    return forever()

@flow.task
def waits_for_a_child(directory=""):
    one = child(directory, "pid")
    one.wait()

@flow.task
def grandchildren(directory=""):
    child(directory, "deaf", "deaf")
    child(directory, "grand", "parent", "deaf")
    child(directory, "away", "session", "deaf")
    settled(directory, "deaf", "grand", "grand-child", "away")
    tell(directory)
    while True:
        time.sleep(600)

@flow.task
def daemon(directory=""):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            tell(directory, "away")
            time.sleep(600)
        os._exit(0)
    os.wait()
    settled(directory, "away")
    tell(directory)
    time.sleep(600)

@flow.task
def segfault(directory=""):
    tell(directory)
    ctypes.string_at(0)

@flow.task
def exits(directory=""):
    print("going")
    os._exit(3)

@flow.task
def dies_with_children(directory=""):
    child(directory, "deaf", "deaf")
    child(directory, "away", "session", "deaf")
    settled(directory, "deaf", "away")
    os.kill(os.getpid(), signal.SIGKILL)

@flow.task
def leaves_a_daemon(directory=""):
    child(directory, "away", "session", "deaf")
    settled(directory, "away")
    return os.getpid()

@flow.task
def tidies_up(directory=""):
    try:
        time.sleep(600)
    finally:
        Path(directory, "tidied").write_text("1")

@flow.task
def too_late(directory=""):
    tell(directory)
    try:
        time.sleep(600)
    except BaseException:
        return "too late"

@flow.task
def fine(directory=""):
    return os.getpid()

@flow.task
def closes_everything(directory=""):
    os.closerange(3, 1_000)
    time.sleep(600)

@flow.task
def memory(directory=""):
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    hoard = []
    while True:
        hoard.append(bytearray(1 << 24))
"""


def written(directory, name):
    """The number of the process that wrote this file."""
    return int(wait_until(lambda: (directory / name).exists() and (directory / name).read_text()))


def told(directory):
    """The numbers of all processes that wrote one."""
    return {int(path.read_text()) for path in directory.iterdir() if path.is_file() and not path.suffix}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    with Workshop(tmp_path_factory.mktemp("workshop"), HANGS) as opened:
        yield opened


@pytest.mark.parametrize(
    "task",
    [
        "spin",
        "regex",
        "dead_socket",
        "ignores_sigterm",
        "blocks_signals",
        "swallows_everything",
        "holds_the_gil",
        "async_sleep",
        "waits_for_a_child",
    ],
)
def test_hanging_task_is_dead_after_timeout_and_frees_slot(workshop, tmp_path, task):
    limit = 3 if task == "waits_for_a_child" else 0.5  # a child of its own has to start within it
    outcome = workshop.run(task, timeout=limit, directory=str(tmp_path))
    assert outcome.ended is AttemptEnd.TIMED_OUT
    assert outcome.verdict.kind is Kind.TRANSIENT
    assert (outcome.error, outcome.fingerprint) == (f"ran longer than its limit of {limit} s", "timeout")
    assert not is_alive(written(tmp_path, "pid"))
    assert workshop.value("fine") > 0


@pytest.mark.parametrize("task", ["grandchildren", "daemon"])
def test_36_killed_task_leaves_no_process(tmp_path, task):
    with Workshop(tmp_path, HANGS) as workshop:
        ticket = workshop.give(task, timeout=None, directory=str(tmp_path))
        workshop.until((tmp_path / "pid").exists)
        pids = told(tmp_path)
        assert len(pids) == {"grandchildren": 5, "daemon": 2}[task]
        assert all(map(is_alive, pids))
        workshop.pool.stop()
        assert workshop.wait(ticket).ended is AttemptEnd.STOPPED
        assert not any(map(is_alive, pids))


def test_36_children_of_a_dead_worker_are_killed(workshop, tmp_path):
    outcome = workshop.run("dies_with_children", directory=str(tmp_path))
    assert outcome.ended is AttemptEnd.DIED
    assert not any(is_alive(written(tmp_path, name)) for name in ("deaf", "away"))
    assert workshop.value("fine") > 0


def test_leftover_of_a_task_lives_as_long_as_its_worker(tmp_path):
    with Workshop(tmp_path, HANGS) as workshop:
        workshop.value("leaves_a_daemon", directory=str(tmp_path))
        workshop.value("fine")
        assert is_alive(written(tmp_path, "away"))
    assert not is_alive(written(tmp_path, "away"))


@pytest.mark.parametrize(
    ("task", "error", "cause"),
    [
        ("segfault", "segmentation fault (SIGSEGV)", "signal:SIGSEGV"),
        ("exits", "its process exited with status 3", "exit:3"),
        ("dies_with_children", "killed by SIGKILL, probably for want of memory (the OOM killer)", "signal:SIGKILL"),
    ],
)
def test_dead_worker_is_an_attempt_with_a_clear_cause(workshop, tmp_path, task, error, cause):
    outcome = workshop.run(task, directory=str(tmp_path))
    assert outcome.ended is AttemptEnd.DIED
    assert (outcome.error, outcome.fingerprint, outcome.verdict.kind) == (error, cause, Kind.AMBIGUOUS)
    if task == "segfault":
        assert "Fatal Python error: Segmentation fault" in outcome.output
        assert "in segfault" in outcome.output
    if task == "exits":
        assert outcome.output == "going\n"
    assert workshop.value("fine") > 0


def test_sigterm_from_outside_is_a_transient_death(workshop, tmp_path):
    ticket = workshop.give("dead_socket", directory=str(tmp_path))
    os.kill(workshop.until(lambda: told(tmp_path)).pop(), signal.SIGTERM)
    outcome = workshop.wait(ticket)
    assert (outcome.ended, outcome.error) == (AttemptEnd.DIED, "ended from outside (SIGTERM)")
    assert outcome.verdict.kind is Kind.TRANSIENT


def test_memory_error_is_a_normal_error(workshop):
    outcome = workshop.run("memory")
    assert outcome.ended is AttemptEnd.RAISED
    assert outcome.error.startswith("MemoryError")
    assert outcome.fingerprint.startswith("MemoryError@workshop_")


def test_cancelled_task_shows_its_stack_and_cleans_up(workshop, tmp_path):
    outcome = workshop.run("tidies_up", timeout=0.3, grace=30.0, directory=str(tmp_path))
    assert outcome.ended is AttemptEnd.TIMED_OUT
    assert written(tmp_path, "tidied") == 1
    assert "in tidies_up" in outcome.output


def test_stack_is_shown_for_a_call_that_holds_the_gil(workshop, tmp_path):
    outcome = workshop.run("holds_the_gil", timeout=0.3, directory=str(tmp_path))
    assert "in holds_the_gil" in outcome.output


def test_35_result_after_kill_decision_is_dropped(workshop):
    outcome = workshop.run("too_late", timeout=0.3, grace=30.0)
    assert (outcome.ended, outcome.result) == (AttemptEnd.TIMED_OUT, None)


def test_35_terminated_worker_is_never_reused(workshop, tmp_path):
    assert workshop.run("too_late", timeout=0.3, grace=30.0, directory=str(tmp_path)).ended is AttemptEnd.TIMED_OUT
    condemned = written(tmp_path, "pid")
    assert not is_alive(condemned)
    assert condemned not in {workshop.value("fine") for _ in range(5)}


def test_35_kill_leaves_other_tasks_running(tmp_path):
    with Workshop(tmp_path, HANGS, workers=2) as workshop:
        bystander = workshop.give("dead_socket", timeout=None, directory=str(tmp_path))
        pid = workshop.until(lambda: told(tmp_path)).pop()
        assert workshop.run("spin", timeout=0.3, directory=str(tmp_path.parent)).ended is AttemptEnd.TIMED_OUT
        assert workshop.value("fine") != pid
        assert is_alive(pid)
        assert bystander not in workshop.outcomes


def test_task_that_closes_all_files_is_killed_with_reason(workshop):
    outcome = workshop.run("closes_everything")
    assert outcome.ended is AttemptEnd.DIED
    assert outcome.error.startswith("it closed the connection to its executor")
    assert workshop.value("fine") > 0


PROGRAM = """
import selectors
from redrive.tasks.workers.pool import WorkerPool
from redrive.tasks.workers.protocol import TaskJob
from redrive.store.encoding import encode

if __name__ == "__main__":
    selector = selectors.DefaultSelector()
    if "blocks" in sys.argv[2]:
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    pool = WorkerPool(flow, selector, workers=3)
    pool.start()
    pool.check()
    if "forks" in sys.argv[2] and os.fork() == 0:  # who holds on to whatever the executor has open
        tell(sys.argv[1], "fork.held")
        time.sleep(600)
    tasks = sys.argv[3:]
    while True:
        while tasks and pool.idle:
            pool.submit(TaskJob(ticket=len(tasks), task=tasks.pop(), arguments={"directory": encode(sys.argv[1])}))
        for key, _ in selector.select():
            key.data()
        pool.tick()
"""


@pytest.mark.parametrize(
    ("task", "how"),
    [
        ("spin", ""),
        ("holds_the_gil", ""),
        ("daemon", ""),
        ("grandchildren", ""),
        ("grandchildren", "forks"),
        ("grandchildren", "blocks"),
    ],
)
def test_36_killed_executor_leaves_no_process(tmp_path, task, how):
    program = tmp_path / "program.py"
    program.write_text(HEAD.format(name="killed", options="") + textwrap.dedent(HANGS) + PROGRAM)
    executor = subprocess.Popen([sys.executable, str(program), str(tmp_path), how, task])
    try:
        wait_until((tmp_path / "pid").exists)
        # The executor, the fork server, three workers and a spare.
        wait_until(lambda: len(family(executor.pid)) >= 6)
        pids = told(tmp_path) | family(executor.pid) - {executor.pid}
    finally:
        executor.kill()
        executor.wait()
        if how == "forks":
            holder = written(tmp_path, "fork.held")
            pids -= {holder}
            wait_until(lambda: not any(map(is_alive, pids)))
            os.kill(holder, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, pids)))


def test_36_killed_fork_server_leaves_no_process(tmp_path):
    with Workshop(tmp_path, HANGS) as workshop:
        ticket = workshop.give("grandchildren", timeout=None, directory=str(tmp_path))
        workshop.until((tmp_path / "pid").exists)
        pids = told(tmp_path)
        os.kill(parent_of(written(tmp_path, "pid")), signal.SIGKILL)
        assert workshop.wait(ticket).ended is AttemptEnd.LOST
        wait_until(lambda: not any(map(is_alive, pids)))
        assert workshop.value("fine") > 0


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def family(root: int) -> set[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{name}/stat").read_text()
        except OSError:
            continue
        children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(name))
    found, pending = set(), [root]
    while pending:
        pid = pending.pop()
        found.add(pid)
        pending += children.get(pid, [])
    return found
