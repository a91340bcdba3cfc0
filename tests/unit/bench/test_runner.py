"""All benchmarks by one command: a part that fails or hangs does not stop the others."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "bench"))
specification = importlib.util.spec_from_file_location("bench_runner", ROOT / "bench" / "__main__.py")
runner = importlib.util.module_from_spec(specification)
sys.modules["bench_runner"] = runner  # a dataclass looks for its module there
specification.loader.exec_module(runner)

DONE = """
import measure
from record import Figure, Table, Target, record

asked = measure.asked(measure.options("A benchmark of nothing."))
table = Table("Nothing", [Figure("redrive", "rate", "rows/s", 7)])
made = record("A benchmark of nothing.", [table], targets=[Target("speed", 7, "at least", 8, "rows/s")])
measure.tell("half done")
measure.publish(asked, {"environment": measure.environment("redrive"), "record": made}, str)
"""
FAILS = "import sys\nprint('on its way', file=sys.stderr)\nsys.exit('there is no server')"
SAYS_NOTHING = "print('no document')"
HANGS = """
import subprocess, sys, time, measure
asked = measure.asked(measure.options("Hangs."))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({place!r}, "w").write(str(child.pid))
try:
    time.sleep(600)
finally:
    child.terminate()
    child.wait()
"""


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A part that runs a program of its own."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "bench"))

    def make(name, program, limit=60.0):
        path = tmp_path / f"{name}.py"
        path.write_text(program)
        return runner.Part(name, name.title(), str(path), limit)

    return make


def test_part_has_figures_time_and_environment(made):
    [part] = runner.all_of([made("done", DONE)], quick=False, minutes=1)

    assert (part["state"], part["reason"], part["quick"]) == ("done", "", False)
    assert part["tables"][0]["figures"] == [{"row": "redrive", "name": "rate", "unit": "rows/s", "value": 7}]
    assert part["versions"].keys() == {"redrive"}
    assert part["about"] == ["A benchmark of nothing."]
    assert runner.format_duration(part).endswith(", short of: speed")


def test_failed_part_is_reported_and_the_others_run(made):
    parts = [made("fails", FAILS), made("silent", SAYS_NOTHING), made("done", DONE)]
    found = runner.all_of(parts, quick=True, minutes=1)

    assert [(part["state"], part["reason"]) for part in found] == [
        ("failed", "exit code 1: there is no server"),
        ("failed", "it left no document"),
        ("done", ""),
    ]
    assert [part["quick"] for part in found] == [True] * 3
    assert found[0]["tables"] == found[0]["targets"] == []


def test_endless_part_is_killed(made):
    [found] = runner.all_of([made("hangs", "import time; time.sleep(600)", limit=0.1)], quick=False, minutes=1)

    assert found["state"] == "cut off"
    assert found["reason"].startswith("it had not ended after ")


def test_killed_part_leaves_no_child_process(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "bench"))
    place = tmp_path / "child"
    program = subprocess.Popen([sys.executable, "-c", HANGS.format(place=str(place))], start_new_session=True)
    while not (place.exists() and place.read_text()):
        time.sleep(0.01)

    runner.end(program)

    assert program.returncode == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(place.read_text()), 0)


def test_remaining_parts_are_killed_when_time_is_up(made):
    [found] = runner.all_of([made("hangs", "import time; time.sleep(600)")], quick=False, minutes=0)
    assert (found["state"], found["reason"]) == ("cut off", "no time was left for it")


def test_parts_are_chosen_by_name_and_run_in_their_own_order():
    assert [part.name for part in runner.chosen("letters, calls")] == ["calls", "letters"]


def test_every_part_names_an_existing_program():
    assert [part.name for part in runner.PARTS if not (ROOT / part.program).is_file()] == []
    assert len({part.name for part in runner.PARTS}) == len(runner.PARTS)


def run(*arguments):
    return subprocess.run(
        [sys.executable, ROOT / "bench", *arguments], capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.parametrize(("only", "said"), [("rowz", "there is no rowz; there are calls, "), (",", "name some of ")])
def test_unknown_part_is_rejected_in_one_sentence(only, said):
    done = run("--only", only)

    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_hanging_tasks_are_killed_and_reported(tmp_path):
    written, shown = tmp_path / "results.json", tmp_path / "page.md"

    done = run("--quick", "--only", "hangs", "--results", written, "--page", shown)

    assert done.returncode == 0, done.stderr
    [part] = json.loads(written.read_text())["parts"]
    assert (part["part"], part["state"], part["quick"]) == ("hangs", "done", True)
    killed, _, left = part["targets"]
    assert (killed["value"], left["value"]) == (6, 0)
    assert "A quick look only: Tasks that hang." in shown.read_text()


def test_failed_benchmark_fails_the_command_and_shows_on_page(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif sys.argv and 'task_hangs' in ' '.join(sys.orig_argv): sys.exit('out of order')\n"
    )
    written, shown = tmp_path / "results.json", tmp_path / "page.md"

    done = run("--quick", "--only", "hangs", "--results", written, "--page", shown)

    assert done.returncode == 1
    assert "without figures: hangs" in done.stderr
    assert json.loads(written.read_text())["parts"][0]["state"] == "failed"
    assert "Tasks that hang (`python bench/task_hangs.py --quick`): failed" in shown.read_text()
