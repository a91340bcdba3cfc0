"""Limits that all runs and flows of a store share, across processes."""

import subprocess
import sys
import textwrap

import pytest

import redrive
from tests.support.flows import PATIENCE, eventually

LIMIT = 2
PROGRAM = """
    import sys, time
    import redrive

    store, flow_name, book, who, items = sys.argv[1:]
    flow = redrive.Flow(flow_name, params=["who"], store=store, workers=3)
    flow.group("bank", concurrency=2, across_runs=True)


    def note(word):
        with open(book, "ab", buffering=0) as file:
            file.write(f"{word} {who}\\n".encode())


    flow.task(name="items", in_thread=True)(lambda: list(range(int(items))))


    @flow.task(each="items", service="bank", in_thread=True)
    def pay(item):
        note("begin")
        time.sleep(600 if who == "killed" else 0.02)
        note("end")


    flow.run(params={"who": who})
"""


@pytest.fixture
def start(store_url, tmp_path):
    program, book = tmp_path / "program.py", tmp_path / "book"
    program.write_text(textwrap.dedent(PROGRAM))
    book.touch()
    started = []

    def start(flow, who, items):
        command = [sys.executable, program, store_url, flow, book, who, str(items)]
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        return started[-1]

    start.lines = lambda: book.read_text().splitlines()
    yield start
    for process in started:
        process.kill()
        process.communicate()


def most_at_once(lines):
    """The maximum number of concurrent tasks."""
    running, most = 0, 0
    for line in lines:
        running += 1 if line.startswith("begin") else -1
        most = max(most, running)
    return most


def test_limit_spans_runs_and_flows_and_a_kill_frees_it(start, store_url):
    with redrive.connect(store_url):
        pass
    killed = start("first", "killed", 3)
    eventually(lambda: len(start.lines()) == LIMIT)  # it has the whole limit, and never ends
    others = [start("first", "a", 10), start("second", "b", 10), start("second", "c", 10)]
    with redrive.connect(store_url) as store:
        eventually(lambda: sum(one.counts.get("READY", 0) for one in store.tasks.runs()) >= 30)
    assert len(start.lines()) == LIMIT, "nobody begins while the limit is used"
    killed.kill()
    killed.wait()
    for process in others:
        errors = process.communicate(timeout=PATIENCE)[1]
        assert process.returncode == 0, errors
    lines = start.lines()[LIMIT:]
    assert len(lines) == 2 * 30
    assert most_at_once(lines) <= LIMIT


def test_wrong_arguments_raise(store):
    flow = redrive.Flow("wrong", store=store)
    with pytest.raises(ValueError, match="across_runs=True applies to concurrency: add concurrency="):
        flow.group("bank", across_runs=True)
