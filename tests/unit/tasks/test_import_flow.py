"""How workers import a flow, wherever it is defined, and the error where they cannot."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import textwrap

import pytest

from redrive.cli.targets import load
from redrive.errors import FlowError, PolicyWarning
from redrive.tasks.flow import Flow
from redrive.tasks.workers.import_flow import refuse_within_import
from redrive.tasks.workers.pool import WorkerPool
from tests.support.worker_pool import Workshop, importable, is_alive, wait_until

pytestmark = pytest.mark.process

FLOW = """
import os, sys
from redrive.tasks.flow import Flow

flow = Flow("settlement")

@flow.task
def where():
    return [__name__, sys.argv[1:], os.path.basename(os.getcwd()), where.__module__]
"""

RUN = """
def run():
    import selectors
    from redrive.store.encoding import decode
    from redrive.tasks.workers.import_flow import refuse_within_import
    from redrive.tasks.workers.pool import WorkerPool
    from redrive.tasks.workers.protocol import TaskJob

    refuse_within_import()
    selector = selectors.DefaultSelector()
    pool = WorkerPool(flow, selector, workers=1)
    try:
        pool.start()
        pool.check()
        ended = []
        while not ended:
            if pool.idle:
                pool.submit(TaskJob(ticket=1, task="where"))
            for key, _ in selector.select():
                key.data()
            ended = pool.take_outcomes()
        print(ended[0].error or decode(ended[0].result))
    finally:
        pool.close()
"""

GUARDED = (
    RUN
    + """
if __name__ == "__main__":
    run()
"""
)


def python(*arguments, cwd, stdin=None):
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, input=stdin, capture_output=True, text=True, check=False, timeout=100
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


@pytest.fixture
def project(tmp_path):
    directory = tmp_path / "project"
    (directory / "jobs").mkdir(parents=True)
    return directory


def test_flow_of_a_program_is_found(project):
    (project / "settle.py").write_text(FLOW + GUARDED)
    assert python("settle.py", "a", "b", cwd=project) == str(["__mp_main__", ["a", "b"], "project", "__mp_main__"])


def test_program_needs_no_py_suffix(project):
    (project / "settle").write_text(FLOW + GUARDED)
    assert python("settle", cwd=project).startswith("['__mp_main__'")


def test_program_is_found_from_any_directory(project, tmp_path):
    (project / "settle.py").write_text(FLOW + GUARDED)
    assert python("project/settle.py", cwd=tmp_path).startswith("['__mp_main__'")


def test_flow_of_a_module_run_with_m_is_found_with_siblings(project):
    (project / "jobs" / "__init__.py").write_text("")
    (project / "jobs" / "sibling.py").write_text("value = 1")
    (project / "jobs" / "settle.py").write_text("from . import sibling\n" + FLOW + GUARDED)
    assert python("-m", "jobs.settle", cwd=project).startswith("['__mp_main__'")


def test_flow_of_a_running_package_is_found(project):
    (project / "jobs" / "__init__.py").write_text("")
    (project / "jobs" / "__main__.py").write_text(FLOW + GUARDED)
    assert python("-m", "jobs", cwd=project).startswith("['__mp_main__'")


def test_flow_of_a_running_directory_is_found(project):
    (project / "jobs" / "__main__.py").write_text(FLOW + GUARDED)
    assert python("jobs", cwd=project).startswith("['__mp_main__'")


def test_flow_of_a_module_is_found_without_running_the_program(project):
    (project / "jobs" / "__init__.py").write_text("")
    (project / "jobs" / "settle.py").write_text(FLOW + RUN)
    (project / "main.py").write_text("import jobs.settle\njobs.settle.run()")
    assert python("main.py", cwd=project).startswith("['jobs.settle'")


def test_flow_is_found_where_the_program_changed_its_path(project, tmp_path):
    (project / "jobs" / "settle.py").write_text(FLOW + RUN)
    (tmp_path / "main.py").write_text("import sys\nsys.path.insert(0, 'project/jobs')\nimport settle\nsettle.run()")
    assert python("main.py", cwd=tmp_path).startswith("['settle'")


def test_profiled_program_is_found(project):
    (project / "settle.py").write_text(FLOW + GUARDED)
    assert (
        "['__mp_main__'"
        in subprocess.run(
            [sys.executable, "-m", "cProfile", "settle.py"], cwd=project, capture_output=True, text=True, check=True
        ).stdout
    )


@pytest.mark.parametrize("how", ["-c", "-"])
def test_program_without_a_file_is_rejected_for_workers(project, how):
    program = FLOW + GUARDED
    said = python("-c", program, cwd=project) if how == "-c" else python("-", cwd=project, stdin=program)
    assert said == (
        "redrive.errors.FlowError: flow 'settlement' is made in a program without a file (a notebook, python -c, "
        "standard input), and its workers have nothing to import: write it into a module, or use in_thread=True"
    )


def test_program_without_a_guard_does_not_run_itself_again(project):
    (project / "settle.py").write_text(FLOW + RUN + "run()\n")
    assert python("settle.py", cwd=project) == (
        "redrive.errors.FlowError: settle.py cannot be imported by workers: it runs a flow when it is imported; put "
        "that under `if __name__ == '__main__':`"
    )


def test_flow_may_run_where_nothing_is_imported():
    refuse_within_import()


def test_task_cannot_run_a_flow(tmp_path):
    source = """
    from redrive.tasks.workers.import_flow import refuse_within_import

    @flow.task
    def runs():
        refuse_within_import()
    """
    with Workshop(tmp_path, source) as workshop:
        assert workshop.run("runs").error.startswith("FlowError: a task cannot run a flow")


@pytest.fixture
def checked(monkeypatch):
    """Start the workers of a flow, and return the error."""

    def check(flow):
        with selectors.DefaultSelector() as selector:
            pool = WorkerPool(flow, selector, workers=1)
            try:
                pool.start()
                pool.check()
            except FlowError as error:
                return str(error)
            finally:
                pool.close()
        return None

    path, modules = list(sys.path), set(sys.modules)
    yield check
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if not name.startswith("redrive."):
            del sys.modules[name]


def test_file_loaded_by_the_command_line_is_found(project, checked, monkeypatch):
    monkeypatch.chdir(project)
    (project / "settle.py").write_text(FLOW)
    assert checked(load("settle.py:flow")) is None


def test_package_file_loaded_by_the_command_line_is_found(project, checked, monkeypatch):
    monkeypatch.chdir(project)
    (project / "jobs" / "__init__.py").write_text("")
    (project / "jobs" / "rates.py").write_text("value = 1")
    (project / "jobs" / "settle.py").write_text("from jobs import rates\n" + FLOW)
    assert checked(load("jobs/settle.py:flow")) is None


def test_file_with_a_conflicting_name_is_found_by_its_alias(project, checked, monkeypatch):
    monkeypatch.chdir(project)
    (project / "json.py").write_text(FLOW)
    flow = load("json.py:flow")
    assert flow.module == "redrive_target_json"
    assert checked(flow) is None


def test_flow_made_inside_a_function_is_not_found_and_reported(project, checked, monkeypatch):
    monkeypatch.chdir(project)
    (project / "made.py").write_text(
        "from redrive.tasks.flow import Flow\ndef make():\n    flow = Flow('inner')\n"
        "    @flow.task\n    def one(): pass\n    return flow\n"
    )
    sys.path.insert(0, str(project))
    import made

    assert checked(made.make()) == (
        "a worker that imports made.py does not find flow 'inner': make the flow and its tasks at the top of the "
        "module, not inside a function, or use in_thread=True"
    )


def test_task_made_inside_a_function_is_not_found_and_reported(tmp_path, checked):
    module = importable(tmp_path, "@flow.task\ndef one(): pass")
    module.flow.task(name="late")(lambda: None)
    name = module.__name__
    assert checked(module.flow) == (
        f"a worker that imports {name}.py does not find task 'late' of flow '{name}': make the flow and its tasks at "
        "the top of the module, not inside a function, or use in_thread=True"
    )


def test_task_in_a_thread_need_not_be_found(tmp_path, checked):
    module = importable(tmp_path, "@flow.task\ndef one(): pass")
    module.flow.task(name="late", in_thread=True)(lambda: None)
    assert checked(module.flow) is None


def test_flow_made_in_a_test_is_not_found_and_reported(checked):
    flow = Flow("in a test")
    flow.task(name="one")(lambda: None)
    assert checked(flow).startswith("a worker that imports test_import_flow.py does not find flow 'in a test'")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("int('x')", "ValueError: invalid literal for int() with base 10: 'x' ({file}, line 2)"),
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere' ({file}, line 2)"),
        ("def broken(:", "SyntaxError: invalid syntax ({file}, line 2)"),
        ("sys.exit(2)", "SystemExit: it ends the program when it is imported; put that under `if __name__ == "),
        ("raise KeyboardInterrupt", "KeyboardInterrupt ({file}, line 2)"),
        ("Flow('broken', workers=0)", "({file}, line 2)"),
        ("import json; json.loads('{{')", "JSONDecodeError: Expecting property name"),
        ("raise ValueError('password=hunter2')", "ValueError: password=*** ({file}, line 2)"),
    ],
)
def test_module_failing_in_the_worker_is_named_with_its_error(tmp_path, checked, line, said):
    module = importable(tmp_path, "@flow.task\ndef one(): pass")
    path = tmp_path / f"{module.__name__}.py"
    # As if it were another version, or another environment.
    path.write_text(f"import sys; from redrive.tasks.flow import Flow\n{line}\n")
    found = checked(module.flow)
    assert found.startswith(f"{path.name} cannot be imported by workers: ")
    assert said.format(file=path.name) in found


def test_module_that_kills_the_worker_is_no_import_error(tmp_path, checked):
    module = importable(tmp_path, "@flow.task\ndef one(): pass")
    (tmp_path / f"{module.__name__}.py").write_text("import ctypes; ctypes.string_at(0)")
    assert checked(module.flow) == (
        f"a worker that imports {module.__name__}.py does not survive it: segmentation fault (SIGSEGV)"
    )


def test_side_effects_of_an_import_are_harmless(tmp_path):
    source = """
    import atexit, threading, tempfile
    print("imported")
    os.write(1, b"loudly")
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    keep = tempfile.TemporaryDirectory()
    sleeper = subprocess.Popen(["sleep", "600"])

    @flow.task
    def state():
        return [keep.name, os.path.exists(keep.name), sleeper.pid]
    """
    warned = pytest.warns(PolicyWarning, match="starts threads when it is imported")
    with warned, Workshop(tmp_path, textwrap.dedent(source), recycle_after=1) as workshop:
        outcomes = [workshop.run("state") for _ in range(4)]
        assert {outcome.output for outcome in outcomes} == {""}
        [kept, is_there, sleeper] = workshop.value("state")
        assert is_there
        assert is_alive(sleeper)
    assert not os.path.exists(kept)
    wait_until(lambda: not is_alive(sleeper))
    workshop.module.sleeper.kill()
    workshop.module.sleeper.wait()
    workshop.module.keep.cleanup()


def test_two_flows_of_one_name_run_their_own_tasks(tmp_path):
    source = """
        import redrive

        one = redrive.Flow("twice", store="twice.db")

        @one.task
        def load():
            return "one"

        two = redrive.Flow("twice", store="twice.db")

        @two.task
        def load():
            return "two"

        if __name__ == "__main__":
            one.run()
            print(one.result("load"))
        """
    (tmp_path / "twice.py").write_text(textwrap.dedent(source))
    assert python("twice.py", cwd=tmp_path).strip() == "one"
