"""Tasks in real worker processes: their time limits, their output, and threads that their module starts."""

import subprocess
import sys
import textwrap

import pytest

import redrive
from redrive.model.tasks import FlowStatus, State
from redrive.tasks.workers import processes
from redrive.tasks.workers.fork_server_client import launched
from tests.support.terminal import on_a_terminal
from tests.support.worker_pool import importable, wait_until


@pytest.fixture
def store(tmp_path):
    with redrive.connect(tmp_path / "redrive.db") as opened:
        yield opened


class TestSensor:
    def test_hanging_poll_ends_with_the_sensor(self, store, tmp_path):
        source = "@flow.sensor(every=0.2, timeout=1)\ndef arrived():\n    time.sleep(600)\n"
        flow = importable(tmp_path, source, workers=1).flow
        with pytest.raises(redrive.FlowStopped) as stopped:
            flow.run(store=store)
        assert stopped.value.report.status is FlowStatus.FAILED
        found = store.tasks.get(flow.name, "arrived")
        assert (found.task.state, [one.ended for one in found.attempts]) == (State.FAILED, ["timed_out"])

    def test_last_poll_is_at_the_deadline(self, store, tmp_path):
        source = """
        @flow.sensor(every=30, timeout=2)
        def arrived():
            asked = Path(__file__).with_name("asked")
            return asked.exists() or asked.touch()
        """
        flow = importable(tmp_path, source, workers=1).flow
        assert flow.run(store=store).status is FlowStatus.COMPLETE


class TestForkServer:
    """The fork server starts before the store is opened, and imports the flow meanwhile."""

    SOURCE = "@flow.task\ndef parent():\n    return os.getppid()\n"

    def test_run_uses_the_fork_server_started_ahead(self, store, tmp_path):
        flow = importable(tmp_path, self.SOURCE, workers=1).flow
        before = set(processes.children())
        with launched(flow):
            (server,) = set(processes.children()) - before
            flow.run(store=store)
            assert (flow.result("parent"), set(processes.children())) == (server, before)
            flow.run(store=store, new_run=True)
            assert flow.result("parent") != server

    def test_fork_server_ends_if_the_run_does_not_start(self, tmp_path):
        flow = importable(tmp_path, self.SOURCE, workers=1).flow
        before = set(processes.children())
        with launched(flow):
            assert set(processes.children()) > before
        assert set(processes.children()) == before


def command(*words, directory, store):
    return subprocess.Popen(
        [sys.executable, "-m", "redrive.cli", "--store", store, *words],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class TestOutput:
    """The output of a task can be read while it runs, and survives its executor."""

    SOURCE = """
    import redrive
    from pathlib import Path
    import time

    flow = redrive.Flow("loud", workers=1)

    @flow.task
    def work():
        print("begun, password=hunter2", flush=True)
        Path("reached").touch()
        while not Path("go").exists():
            time.sleep(0.01)
        print("the end")
    """

    @pytest.fixture
    def started(self, tmp_path):
        """A run whose task has written its first line."""
        (tmp_path / "loud.py").write_text(textwrap.dedent(self.SOURCE))
        url = f"sqlite:///{tmp_path}/redrive.db"
        process = command("run", "loud.py:flow", directory=tmp_path, store=url)
        try:
            wait_until((tmp_path / "reached").exists)
            yield process, url
        finally:
            process.kill()
            process.communicate()

    def test_output_is_shown_while_the_task_runs(self, started, tmp_path):
        process, url = started
        follower = command("tasks", "logs", "work", "--follow", directory=tmp_path, store=url)
        assert follower.stdout.readline() == "begun, password=***\n"
        for words in (("logs", "work"), ("show", "work", "--json")):
            out, _ = command("tasks", *words, directory=tmp_path, store=url).communicate()
            assert "begun, password=***" in out
        (tmp_path / "go").touch()
        assert follower.communicate()[0] == "the end\n"
        process.wait()
        assert not list(tmp_path.rglob("*.log"))

    def test_output_of_a_lost_attempt_is_kept(self, started, tmp_path):
        process, url = started
        wait_until(lambda: list(tmp_path.rglob("*.log")))
        process.kill()
        process.wait()
        (tmp_path / "go").touch()
        command("run", "loud.py:flow", directory=tmp_path, store=url).communicate()
        with redrive.connect(url) as store:
            first, second = store.tasks.get("loud", "work").attempts
        assert (first.ended, first.output) == ("lost", "begun, password=***\n")
        assert (second.ended, second.output) == ("returned", "begun, password=***\nthe end\n")
        assert not list(tmp_path.rglob("*.log"))


class TestThreadsOfTheModule:
    def test_threads_at_import_are_reported_for_a_hanging_task(self, store, tmp_path):
        source = """
        import queue, threading

        jobs, done = queue.Queue(), queue.Queue()
        threading.Thread(target=lambda: done.put(jobs.get()), name="helper", daemon=True).start()

        @flow.task(timeout=1, retry=None)
        def work():
            jobs.put(1)
            done.get()
        """
        flow = importable(tmp_path, source, workers=1).flow
        with (
            pytest.warns(redrive.PolicyWarning, match=r"starts threads when it is imported \('helper'\)"),
            pytest.raises(redrive.FlowStopped),
        ):
            flow.run(store=store)
        found = store.tasks.get(flow.name, "work")
        assert "its module has started threads when it was imported ('helper')" in found.task.error
        assert "the limit may be too short" not in found.task.error

    def test_library_threads_have_their_system_names(self, store, tmp_path):
        source = """
        import polars
        polars.DataFrame({"a": [1, 2]}).group_by("a").len()

        @flow.task
        def work():
            return 1
        """
        flow = importable(tmp_path, source, workers=1).flow
        with pytest.warns(redrive.PolicyWarning, match="polars-"):
            flow.run(store=store)


class TestThreadDump:
    def test_dump_shows_frames_from_task_to_hanging_call(self, store, tmp_path):
        source = """
        def deep(n):
            return time.sleep(600) if n == 0 else deep(n - 1)

        @flow.task(timeout=1, retry=None)
        def work():
            deep(40)
        """
        flow = importable(tmp_path, source, workers=1).flow
        with pytest.raises(redrive.FlowStopped):
            flow.run(store=store)
        output = store.tasks.get(flow.name, "work").attempts[0].output
        assert output.count("most recent call first") == 1
        assert "in work" in output
        assert "forkserver" not in output
        assert "perform" not in output
        show = [
            sys.executable,
            "-m",
            "redrive.cli",
            "--store",
            f"sqlite:///{tmp_path}/redrive.db",
            "tasks",
            "show",
            "work",
        ]
        _, screen = on_a_terminal(show, columns=200)
        assert "most recent call first" in screen
        assert "more characters; --json shows all" in screen  # of the calls that are furthest from where it is stuck
