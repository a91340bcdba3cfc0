"""Processes as the system shows them: children, dead ones, and marked ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from redrive.tasks.workers import processes
from tests.support.worker_pool import is_alive, wait_until

pytestmark = pytest.mark.process


@pytest.fixture
def child():
    process = subprocess.Popen(["sleep", "600"], env={**os.environ, "REDRIVE_TEST_MARK": str(os.getpid())})
    yield process
    process.kill()
    process.wait()


def test_children_are_found_with_and_without_the_kernels_list(child):
    assert child.pid in processes.children()
    assert child.pid in processes._children_by_scan()


@pytest.mark.parametrize("can_look_first", [True, False])
def test_dead_child_is_reaped_once_with_its_status(monkeypatch, can_look_first):
    if not can_look_first:
        monkeypatch.delattr(os, "waitid")
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    seen = []
    buried = wait_until(lambda: processes.bury(seen.append))
    assert buried[0] == pid
    assert os.waitstatus_to_exitcode(buried[1]) == 7
    assert seen[-1] == pid
    assert processes.bury(seen.append) is None


def test_unreaped_child_is_noticed():
    assert not processes.has_zombie()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    wait_until(processes.has_zombie)
    os.waitpid(pid, 0)
    assert not processes.has_zombie()


def test_only_marked_processes_are_killed(child):
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        processes.kill_marked(f"REDRIVE_TEST_MARK={os.getpid()}")
        assert child.wait() == -signal.SIGKILL
        assert is_alive(bystander.pid)
    finally:
        bystander.kill()
        bystander.wait()


def test_group_is_signalled_whole_and_single_process_alone():
    leader = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=True)
    member = int(leader.stdout.readline())
    processes.kill_group(leader.pid, signal.SIGKILL)
    leader.communicate()
    wait_until(lambda: not is_alive(member))

    alone = subprocess.Popen(["sleep", "600"])
    processes.kill_group(alone.pid, signal.SIGTERM)
    assert alone.wait() == -signal.SIGTERM


def test_memory_is_in_bytes():
    statm = os.open("/proc/self/statm", os.O_RDONLY)
    try:
        assert 1 << 20 < processes.resident_bytes(statm) < 1 << 36
    finally:
        os.close(statm)
    assert 1 << 20 < processes.resident_bytes(None) < 1 << 36


def test_process_may_die_with_its_parent():
    program = """
import os, sys, time
from redrive.tasks.workers import processes
parent = os.getpid()
if os.fork() == 0:
    processes.die_with_parent(parent)
    print(os.getpid(), flush=True)
    time.sleep(600)
sys.stdin.read()
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child = int(parent.stdout.readline())
    assert is_alive(child)
    parent.kill()
    parent.communicate()
    wait_until(lambda: not is_alive(child))
