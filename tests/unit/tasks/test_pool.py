"""The pool of workers: assignment of jobs, time limits, and replacement of dead workers."""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import time

import pytest

from redrive.errors import FlowError, FlowStopped
from redrive.model.calls import Kind
from redrive.store.encoding import decode
from redrive.tasks.workers import pool as pools
from redrive.tasks.workers.pool import WorkerPool
from redrive.tasks.workers.protocol import AttemptEnd, TaskJob
from tests.support.worker_pool import Workshop, importable, is_alive, wait_until

pytestmark = pytest.mark.process

TASKS = """
@flow.task
def pid():
    return os.getpid()

@flow.task
def parent():
    return os.getppid()

@flow.task
def sleeps(seconds=600.0):
    time.sleep(seconds)

@flow.task
def tells(path=""):
    Path(path + ".part").write_text(f"{os.getpid()} {os.getppid()}")
    os.rename(path + ".part", path)
    time.sleep(600)

@flow.task
def deaf(path=""):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(path).touch()
    while True:
        time.sleep(600)

hoard = []

@flow.task
def grows(megabytes=0):
    hoard.append(b"x" * (megabytes << 20))
    return os.getpid()

@flow.task
def prints_for_ever():
    while True:
        print("x" * 1_000)

@flow.task
def answers_and_dies():
    import threading
    threading.Timer(0.2, os._exit, (5,)).start()
    return os.getpid()
"""


@pytest.fixture
def workshop(tmp_path):
    with Workshop(tmp_path, TASKS, workers=2) as opened:
        yield opened


def told(path):
    """Worker and fork server, as a task wrote them into a file."""
    return [int(pid) for pid in path.read_text().split()]


def test_concurrent_jobs_do_not_exceed_the_workers(workshop):
    workshop.until(lambda: len(workshop.pool._ready) == 3)
    assert workshop.pool.idle == 2
    workshop.give("sleeps")
    assert workshop.pool.idle == 1
    workshop.give("sleeps")
    assert workshop.pool.idle == 0


def test_worker_is_free_again_when_its_job_has_ended(workshop):
    tickets = [workshop.give("pid") for _ in range(50)]
    for ticket in tickets:
        assert workshop.wait(ticket).ended is AttemptEnd.RETURNED
    workshop.until(lambda: workshop.pool.idle == 2)


def test_workers_are_used_again(workshop):
    assert len({workshop.value("pid") for _ in range(20)}) <= 3


def test_outcomes_are_returned_once(workshop):
    workshop.run("pid")
    assert workshop.pool.take_outcomes() == []


def test_running_jobs_are_visible(workshop, tmp_path):
    ticket = workshop.give("deaf", timeout=0.1, grace=600.0, path=str(tmp_path / "deaf"))
    [running] = workshop.pool.running()
    assert (running.ticket, running.dying) == (ticket, False)
    assert running.seconds >= 0
    workshop.until(lambda: workshop.pool.running()[0].dying)
    assert ticket not in workshop.outcomes


def test_next_deadline_is_available_without_polling(workshop):
    ticket = workshop.give("sleeps", timeout=20.0)
    assert workshop.pool.next_deadline() <= time.monotonic() + 20.0
    workshop.pool.tick()
    workshop.turn()
    assert ticket not in workshop.outcomes


def test_task_may_have_no_deadline(workshop):
    ticket = workshop.give("sleeps", timeout=None)
    for _ in range(3):
        workshop.turn()
    assert ticket not in workshop.outcomes


def test_task_without_grace_is_killed_at_once(workshop):
    outcome = workshop.run("sleeps", timeout=0.2, grace=0.0)
    assert (outcome.ended, outcome.output) == (AttemptEnd.TIMED_OUT, "")


def test_many_timeouts_at_once_are_all_enforced(tmp_path):
    with Workshop(tmp_path, TASKS, workers=8) as workshop:
        tickets = [workshop.give("sleeps", timeout=0.3) for _ in range(16)]
        assert {workshop.wait(ticket).ended for ticket in tickets} == {AttemptEnd.TIMED_OUT}
        workshop.until(lambda: workshop.pool.idle == 8)


def test_worker_is_replaced_after_its_maximum_of_tasks(tmp_path):
    with Workshop(tmp_path, TASKS, recycle_after=3) as workshop:
        pids = [workshop.value("pid") for _ in range(12)]
        assert len(set(pids)) >= 4
        assert all(pids.count(pid) <= 3 for pid in pids)
        workshop.until(lambda: not is_alive(pids[0]))


def test_worker_that_has_grown_too_large_is_replaced(tmp_path):
    with Workshop(tmp_path, TASKS, spares=0, max_rss=300 << 20) as workshop:
        small = workshop.value("grows", megabytes=1)
        assert workshop.value("grows", megabytes=1) == small
        assert workshop.value("grows", megabytes=300) == small
        assert workshop.value("pid") != small
        workshop.until(lambda: not is_alive(small))


def test_stop_ends_running_tasks_and_reports_them(workshop, tmp_path):
    path = tmp_path / "deaf"
    tickets = [workshop.give("sleeps"), workshop.give("deaf", path=str(path))]
    workshop.until(path.exists)
    workshop.pool.stop()
    for ticket in tickets:
        outcome = workshop.wait(ticket)
        assert (outcome.ended, outcome.verdict.kind) == (AttemptEnd.STOPPED, Kind.TRANSIENT)
        assert outcome.error == "ended with its executor"
    assert workshop.pool.idle == 0
    assert workshop.pool.running() == []


def test_kill_is_immediate(workshop):
    tickets = [workshop.give("sleeps", grace=600.0) for _ in range(2)]
    workshop.pool.kill()
    assert {workshop.wait(ticket).ended for ticket in tickets} == {AttemptEnd.STOPPED}
    workshop.until(lambda: not workshop.pool._links)


def test_close_leaves_nothing_behind(tmp_path):
    before = set(os.listdir("/proc/self/fd"))
    path = tmp_path / "told"
    with Workshop(tmp_path, TASKS) as workshop:
        workshop.give("tells", path=str(path))
        workshop.until(path.exists)
    assert not any(map(is_alive, told(path)))
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) <= before
    workshop.pool.close()


def test_close_before_any_import_is_quick_and_clean(tmp_path):
    module = importable(tmp_path, "time.sleep(0 if __name__ != 'never' else 1)\n@flow.task\ndef one(): pass")
    with selectors.DefaultSelector() as selector:
        pool = WorkerPool(module.flow, selector, workers=1)
        pool.start()
        pool.close()
        assert not selector.get_map()


def test_unstarted_pool_can_be_closed(tmp_path):
    module = importable(tmp_path, "@flow.task\ndef one(): pass")
    with selectors.DefaultSelector() as selector:
        WorkerPool(module.flow, selector, workers=1).close()


def test_endless_output_uses_bounded_memory_and_blocks_no_other(workshop):
    chatter = workshop.give("prints_for_ever", timeout=1.0)
    while chatter not in workshop.outcomes:
        assert workshop.value("pid") > 0
    outcome = workshop.outcomes[chatter]
    assert outcome.ended is AttemptEnd.TIMED_OUT
    assert "bytes left out" in outcome.output
    assert len(outcome.output) < 40_000


# ── deaths between jobs ───────────────────────────────────────────────────────────────────────────────────────────────


def test_idle_worker_that_dies_is_replaced(workshop):
    for _ in range(5):
        pid = workshop.value("answers_and_dies")
        wait_until(lambda pid=pid: not is_alive(pid))
        assert workshop.value("pid") != pid
    workshop.until(lambda: workshop.pool.idle == 2)


def test_job_sent_to_a_dead_worker_finds_another(tmp_path):
    with Workshop(tmp_path, TASKS, workers=1, spares=0) as workshop:
        workshop.until(lambda: workshop.pool.idle)
        for _ in range(5):
            pid = workshop.value("pid")
            workshop.until(lambda: workshop.pool.idle)
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: not os.path.exists(f"/proc/{pid}"))
            workshop.pool.submit(TaskJob(ticket=pid + 1_000_000, task="pid"))
            assert workshop.pool.idle == 0
            outcome = workshop.wait(pid + 1_000_000)
            assert outcome.ended is AttemptEnd.RETURNED


def test_outcome_sent_just_before_death_counts(workshop):
    outcome = workshop.run("answers_and_dies")
    assert outcome.ended is AttemptEnd.RETURNED


def test_randomly_killed_workers_lose_and_duplicate_no_job(tmp_path):
    with Workshop(tmp_path, TASKS, workers=2) as workshop:
        tickets = []
        for number in range(400):
            tickets.append(workshop.give("pid"))
            if number % 20 == 10:
                victims = [link.pid for link in workshop.pool._links.values() if link.pid is not None]
                with contextlib.suppress(ProcessLookupError):  # the last one is not buried yet
                    os.kill(victims[number % len(victims)], signal.SIGKILL)
        ended = [workshop.wait(ticket) for ticket in tickets]
        assert {outcome.ended for outcome in ended} <= {AttemptEnd.RETURNED, AttemptEnd.DIED}
        assert sum(outcome.ended is AttemptEnd.DIED for outcome in ended) <= 20
        workshop.until(lambda: workshop.pool.idle == 2)


def test_workers_that_end_at_start_stop_the_pool_eventually(tmp_path, monkeypatch):
    monkeypatch.setattr(pools, "_START_AGAIN_AFTER", 0.01)
    source = """
    os.register_at_fork(after_in_child=lambda: os._exit(4) if os.environ.get("REDRIVE_FORK_SERVER") else None)

    @flow.task
    def one(): pass
    """
    with (
        Workshop(tmp_path, source) as workshop,
        pytest.raises(FlowError, match="end before they begin: its process exited with status 4"),
    ):
        workshop.until(lambda: workshop.pool.idle)


def test_worker_that_never_starts_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(pools, "_START_WITHIN", 0.5)
    source = """
    os.register_at_fork(after_in_child=lambda: time.sleep(600) if os.environ.get("REDRIVE_FORK_SERVER") else None)

    @flow.task
    def one(): pass
    """
    with Workshop(tmp_path, source) as workshop, pytest.raises(FlowError, match="did not begin within"):
        workshop.until(lambda: workshop.pool.idle)


def test_endless_import_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(pools, "_IMPORT_WITHIN", 0.5)
    source = """
    if os.environ.get("REDRIVE_FORK_SERVER"):
        time.sleep(600)

    @flow.task
    def one(): pass
    """
    with pytest.raises(FlowError, match="no worker could import workshop_"), Workshop(tmp_path, source):
        pass


# ── the fork server ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_dead_fork_server_is_replaced_with_its_workers(workshop, tmp_path):
    path = tmp_path / "told"
    ticket = workshop.give("tells", path=str(path))
    workshop.until(path.exists)
    worker, server = told(path)
    os.kill(server, signal.SIGKILL)
    outcome = workshop.wait(ticket)
    assert (outcome.ended, outcome.verdict.kind) == (AttemptEnd.LOST, Kind.TRANSIENT)
    assert outcome.error == "the process that workers are forked from died, and its workers with it"
    assert not is_alive(worker)
    assert workshop.value("parent") != server


def test_fork_server_killed_while_it_imports_is_restarted(tmp_path):
    source = f"""
    if "workers of flow" in " ".join(Path("/proc/self/cmdline").read_text().split("\\0")):
        if not Path({str(tmp_path / "killed")!r}).exists():
            Path({str(tmp_path / "killed")!r}).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    @flow.task
    def answer():
        return 42
    """
    with Workshop(tmp_path, source) as workshop:
        assert workshop.value("answer") == 42


def kill_the_server(workshop):
    server = workshop.pool._server
    server._supervisor.process.kill()
    workshop.until(lambda: workshop.pool._server is not server)


def test_fork_server_that_dies_repeatedly_is_not_restarted(workshop):
    for _ in range(pools._MAX_RESTARTS):
        workshop.until(lambda: workshop.pool.idle)
        kill_the_server(workshop)
    workshop.until(lambda: workshop.pool.idle)
    with pytest.raises(FlowStopped, match="keeps dying: killed by SIGKILL") as raised:
        kill_the_server(workshop)
    assert raised.value.kind is Kind.TRANSIENT


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_fork_server_leaves_signals_to_the_executor(workshop, number):
    server = workshop.value("parent")
    os.kill(server, number)
    workshop.run("sleeps", seconds=0.0)
    assert workshop.value("parent") == server


def test_garbage_does_not_disturb_the_fork_server(workshop):
    server = workshop.value("parent")
    workshop.pool._server._put(b"\xff" * 13)
    workshop.pool._server.signal(10**9, signal.SIGKILL)
    assert workshop.value("parent") == server


def test_missing_argument_of_a_task_is_an_error(workshop):
    outcome = workshop.run("sleeps", hours=3)
    assert outcome.error.startswith("TypeError")
    assert decode(workshop.run("pid").result) > 0
