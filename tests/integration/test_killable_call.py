"""`run_with_timeout`: a call in a separate process, which is killed at its limit and with its caller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import redrive
from redrive.tasks.workers import processes
from redrive.testing import Answer, FaultyServer
from tests.support import slow_calls
from tests.support.worker_pool import is_alive, wait_until

LONG = 60.0
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
NAMES = ("child", "session", "worker")


def pids(directory: Path, names: tuple[str, ...] = NAMES) -> list[int]:
    wait_until(lambda: all((directory / name).exists() for name in names))
    return [int((directory / name).read_text()) for name in names]


class TestResult:
    def test_result_comes_back_from_calls_in_threads(self):
        before = set(processes.children())
        with ThreadPoolExecutor(4) as threads:
            calls = [
                threads.submit(redrive.run_with_timeout, slow_calls.add, LONG, 1, second=2),
                threads.submit(redrive.run_with_timeout, slow_calls.add_later, LONG, 3, 4),
                threads.submit(redrive.run_with_timeout, bytes, LONG, 3_000_000),
                threads.submit(redrive.run_with_timeout, len, LONG, b"x" * 3_000_000),
            ]
            first, second, *large = [call.result() for call in calls]
        assert (first, second, len(large[0]), large[1]) == (3, 7, 3_000_000, 3_000_000)
        assert set(processes.children()) == before

    def test_error_keeps_its_class_and_shows_its_traceback(self):
        with pytest.raises(slow_calls.NeedsTwo, match="code 422") as caught:
            redrive.run_with_timeout(slow_calls.fail, LONG)
        assert caught.value.code == 422
        assert "in fail" in caught.value.__notes__[0]

    def test_error_reports_death_of_the_process(self):
        with pytest.raises(ChildProcessError, match=r"die died: aborted by its own code \(SIGABRT\)"):
            redrive.run_with_timeout(slow_calls.die, LONG)

    def test_unpicklable_function_or_result_gets_one_sentence(self):
        with pytest.raises(TypeError, match="Define the function at the top of a module"):
            redrive.run_with_timeout(lambda: 1, LONG)
        with pytest.raises(TypeError, match=r"the result of give_generator, a generator, cannot be sent back"):
            redrive.run_with_timeout(slow_calls.give_generator, LONG)

    def test_wrong_arguments_are_rejected(self):
        with pytest.raises(TypeError, match="needs a function"):
            redrive.run_with_timeout(30, slow_calls.add)
        with pytest.raises(ValueError, match="timeout"):
            redrive.run_with_timeout(slow_calls.add, 0)


class TestLimit:
    def test_very_long_limit_is_accepted(self):
        assert redrive.run_with_timeout(slow_calls.add, 1e12, 1, second=2) == 3

    def test_hanging_call_is_killed_with_its_children(self, tmp_path):
        before = set(processes.children())
        with pytest.raises(TimeoutError, match=r"hang did not finish within 6 s; its process was killed"):
            redrive.run_with_timeout(slow_calls.hang, 6, str(tmp_path))
        assert not any(map(is_alive, pids(tmp_path)))
        assert set(processes.children()) == before

    def test_processes_left_behind_end_with_the_call(self, tmp_path):
        redrive.run_with_timeout(slow_calls.leave_sleepers, LONG, str(tmp_path))
        assert not any(map(is_alive, pids(tmp_path, ("child", "session"))))

    def test_event_loop_runs_meanwhile(self):
        import asyncio

        async def main() -> list[int]:
            call = asyncio.to_thread(redrive.run_with_timeout, slow_calls.add, LONG, 1, second=2)
            return await asyncio.gather(call, asyncio.sleep(0, 5))

        assert asyncio.run(main()) == [3, 5]


class TestRequestInTheProcess:
    @pytest.mark.parametrize(
        ("answer", "method", "expected"),
        [
            (Answer(200, body=b"x" * 50, reset="mid-body"), "POST", 1),
            (Answer(200, body="<html>"), "POST", 1),
            (Answer(502), "POST", 1),
            (Answer(503, retry_after=0), "POST", 2),
            (Answer(200, body="<html>"), "GET", 2),
        ],
        ids=["cut body", "no JSON", "502", "refused", "GET"],
    )
    def test_request_error_is_retried_as_in_the_caller(self, answer, method, expected):
        assert self._attempts(slow_calls.send, answer, LONG, method) == expected

    @pytest.mark.parametrize("function", [slow_calls.send, slow_calls.send_later])
    def test_post_in_flight_at_the_limit_is_not_retried(self, function):
        assert self._attempts(function, Answer(hang=True), 5, "POST") == 1

    def _attempts(self, function, answer, limit, method):
        service = redrive.Service("bank", retry=redrive.Retry(attempts=2, base=0.001, cap=0.002))
        with FaultyServer() as server:
            server.on("/pay", answer)
            with pytest.raises(Exception):  # noqa: B017  # the client's error, whichever it is
                service.call(redrive.run_with_timeout, function, limit, method, f"{server.url}/pay")
            return server.count("/pay")


PROGRAM = """
import sys
import redrive
from tests.support.slow_calls import hang

def hang_here(directory):
    hang(directory)

if {guard}:
    redrive.run_with_timeout(hang_here, 600, sys.argv[1])
"""


class TestProgram:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda one: one.name)
    def test_call_ends_with_its_caller(self, tmp_path, number):
        program = tmp_path / "program.py"
        program.write_text(textwrap.dedent(PROGRAM.format(guard="__name__ == '__main__'")))
        caller = subprocess.Popen([sys.executable, program, tmp_path], stderr=subprocess.DEVNULL, env=ENVIRONMENT)
        running = pids(tmp_path)
        caller.send_signal(number)
        assert caller.wait(60) != 0
        wait_until(lambda: not any(map(is_alive, running)))

    def test_program_without_main_guard_is_rejected(self, tmp_path):
        program = tmp_path / "program.py"
        program.write_text(textwrap.dedent(PROGRAM.format(guard="True")))
        command = [sys.executable, program, tmp_path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=ENVIRONMENT)
        assert done.returncode == 1
        assert "put that under `if __name__ == '__main__':`" in done.stderr
