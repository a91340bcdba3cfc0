"""A task inside a worker, and what it cannot break for the next task."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from redrive.model.calls import Kind
from redrive.store.encoding import decode, encode
from redrive.tasks.workers.output import KEPT
from redrive.tasks.workers.protocol import LARGEST, AttemptEnd, TaskJob
from tests.support.worker_pool import Workshop

pytestmark = pytest.mark.process

TASKS = """
import logging, random, threading
handler = logging.StreamHandler(sys.stdout)
log = logging.getLogger("workshop")
log.addHandler(handler)

@flow.task
def double(number=0):
    return 2 * number

@flow.task
async def awaited(number=0):
    import asyncio
    await asyncio.sleep(0)
    return number

@flow.task
def pages():
    return (page for page in range(3))

@flow.task(each=pages)
def page(item):
    return item

@flow.task
def wrong_pages():
    return "no list"

@flow.task(each=wrong_pages)
def wrong_page(item):
    return item

@flow.task
def key(idempotency_key):
    return idempotency_key

@flow.task
def large(size=0):
    return "x" * size

@flow.task
def length(text=""):
    return len(text)

@flow.task
def fails(message=""):
    raise ValueError(message)

@flow.task
def unencodable():
    return socket.socket()

@flow.task
def identity():
    return [os.getpid(), os.getppid(), os.getsid(0), os.getpgrp()]

@flow.task
def descriptors():
    found = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd") if int(fd) > 2]
    return [os.readlink(path) for path in found if os.path.islink(path)]

@flow.task
def inherited():
    program = "import os; print(sorted(int(fd) for fd in os.listdir('/proc/self/fd'))[:-1])"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

@flow.task
def reads_stdin():
    return sys.stdin.read()

@flow.task
def draws():
    numbers = [random.random()]
    if "numpy" in sys.modules:
        numbers.append(sys.modules["numpy"].random.random())
    return [os.getpid(), numbers]

@flow.task
def meets(directory=""):
    Path(directory, str(os.getpid())).touch()
    while len(os.listdir(directory)) < 2:
        time.sleep(0.01)
    numbers = [random.random()]
    return numbers

@flow.task
def says(text="", error=""):
    print(text, end="")
    print(error, end="", file=sys.stderr)

@flow.task
def says_it_all_ways():
    print("python")
    log.warning("logged")
    os.write(1, b"bare\\n")
    subprocess.run(["echo", "child"], check=True)

@flow.task
def says_rubbish():
    os.write(1, b"\\xff\\x00caf\\xc3\\xa9\\n")

@flow.task
def says_much(megabytes=0):
    print("the beginning")
    for _ in range(megabytes):
        sys.stdout.write("x" * (1 << 20))
    print()
    print("the end")

@flow.task
def says_and_dies():
    print("last words", end="")
    sys.stdout.flush()
    os._exit(9)

@flow.task
def tells_a_secret():
    print("password=hunter2")

@flow.task
def moves():
    os.chdir("/")

@flow.task
def where():
    return os.getcwd()

@flow.task
def meddles():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    sys.stdout = open(os.devnull, "w")

@flow.task
def meddles_with_everything():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.setitimer(signal.ITIMER_PROF, 0.01)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.01)
    os.environ["WORKSHOP"] = "left behind"
    os.environ.pop("PATH")
    os.umask(0o777)
    socket.setdefaulttimeout(0.001)
    return os.getpid()

@flow.task
def surroundings():
    handlers = [str(signal.getsignal(number)) for number in (signal.SIGCHLD, signal.SIGUSR1, signal.SIGINT)]
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass  # in vain, where a timer that counts this time is left
    umask = os.umask(0o022)
    os.umask(umask)
    environ = {name: value for name, value in os.environ.items() if name in ("PATH", "WORKSHOP")}
    return [os.getpid(), handlers, umask, environ, socket.getdefaulttimeout()]

@flow.task
def runs_what_fails():
    return subprocess.run(["false"]).returncode

@flow.task
def lowers_a_limit():
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    return os.getpid()

@flow.task
def forks_and_terminates():
    import multiprocessing
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    process.start()
    process.terminate()
    process.join()
    return process.exitcode

@flow.task
def leaves_something_for_the_end(path=""):
    import atexit, tempfile
    global kept
    kept = tempfile.TemporaryDirectory(dir=path)
    atexit.register(Path(path, "ended").touch)
    return kept.name

import atexit, tempfile
of_the_module = tempfile.TemporaryDirectory()
beside = Path(__file__).with_name("module-ended")
atexit.register(lambda: beside.parent.exists() and beside.touch())

@flow.task
def directory_of_the_module():
    return of_the_module.name

@flow.task
def sleeps(seconds=0.0):
    time.sleep(seconds)
    return "slept"

@flow.task
def spoils_descriptors(how=""):
    null = os.open(os.devnull, os.O_RDWR)
    if how == "closed":
        os.close(1), os.close(2)
    elif how == "silenced":
        os.dup2(null, 1), os.dup2(null, 2)
    elif how == "non-blocking":
        os.set_blocking(1, False)
    elif how == "not inherited":
        os.set_inheritable(1, False)
    elif how == "stdin":
        os.close(0)
    elif how == "nothing":
        before = os.dup(1)
        os.dup2(null, 1), os.dup2(before, 1)
        os.close(before)
    os.close(null)
    return os.getpid()

@flow.task
def writes_a_file(path=""):
    with open(path, "w") as file:
        file.write("id,amount\\n")
        file.flush()
        print("progress", flush=True)
        subprocess.run(["echo", "child"], check=True)
    return os.getpid()

@flow.task
def closes_stdout():
    sys.stdout.close()

@flow.task
def forks_and_both_return():
    os.fork()
    return os.getpid()

@flow.task
def leaves_a_thread():
    threading.Thread(target=time.sleep, args=(600,)).start()
"""


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    # Without a spare, the next task meets the same worker.
    with Workshop(tmp_path_factory.mktemp("workshop"), TASKS, spares=0) as opened:
        yield opened


def test_task_gets_its_arguments_and_returns_its_result(workshop):
    assert workshop.value("double", number=21) == 42
    assert workshop.value("awaited", number=3) == 3
    assert workshop.value("pages") == [0, 1, 2]
    assert workshop.value("key").startswith("id-")


def test_fan_out_over_no_list_is_rejected_in_the_worker(workshop):
    outcome = workshop.run("wrong_pages")
    assert outcome.verdict.kind is Kind.PERMANENT
    assert "'wrong_pages' returned a str" in outcome.error


def test_result_that_json_cannot_represent_is_rejected(workshop):
    outcome = workshop.run("unencodable")
    assert (outcome.ended, outcome.verdict.kind) == (AttemptEnd.RAISED, Kind.PERMANENT)
    assert outcome.error.startswith("task 'unencodable' returned a socket, which JSON cannot hold")


def test_error_comes_back_with_all_known_facts(workshop):
    outcome = workshop.run("fails", message="order 17: \0 \udc80 café")
    assert outcome.ended is AttemptEnd.RAISED
    assert outcome.verdict.kind is Kind.AMBIGUOUS
    assert outcome.error == r"ValueError: order 17: \x00 \udc80 café"
    assert outcome.fingerprint.startswith(f"ValueError@{workshop.module.__name__}:")
    assert "in fails" in outcome.trace
    assert outcome.fingerprint == workshop.run("fails", message="order 18").fingerprint


def test_errors_are_masked_and_bounded(workshop):
    outcome = workshop.run("fails", message="password=hunter2 " + "x" * 1_000_000)
    assert "hunter2" not in f"{outcome}"
    assert len(outcome.error) == 2_000
    assert len(outcome.trace) < 20_000


@pytest.mark.parametrize("size", [LARGEST - 10, LARGEST + 10, 20 << 20])
def test_result_of_any_size_comes_back(workshop, size):
    ticket = workshop.give("large", size=size)
    outcome = workshop.wait(ticket)
    assert outcome.in_file == (size > LARGEST)
    text = outcome.result
    if outcome.in_file:
        text = (workshop.directory / f"result-{ticket}.json").read_text()
    assert decode(text) == "x" * size


@pytest.mark.parametrize("size", [10, 60_000, 5 << 20])
def test_arguments_of_any_size_arrive(workshop, size):
    assert workshop.value("length", text="x" * size) == size


def test_arguments_arrive_from_files(workshop, tmp_path):
    path = tmp_path / "argument.json"
    path.write_text(encode("x" * (1 << 20)))
    workshop.until(lambda: workshop.pool.idle)
    workshop.pool.submit(TaskJob(ticket=1_000_000, task="length", files={"text": str(path)}))
    assert decode(workshop.wait(1_000_000).result) == 1 << 20


@pytest.mark.parametrize("how", ["closed", "silenced", "non-blocking", "not inherited", "stdin", "nothing"])
def test_broken_standard_streams_do_not_reach_the_next_task(workshop, tmp_path, how):
    spoiler = workshop.value("spoils_descriptors", how=how)
    outcome = workshop.run("writes_a_file", path=str(tmp_path / "rows.csv"))
    assert ((tmp_path / "rows.csv").read_text(), outcome.output) == ("id,amount\n", "progress\nchild\n")
    assert (decode(outcome.result) == spoiler) is (how == "nothing")  # an unchanged worker continues


def test_worker_leads_its_own_session(workshop):
    pid, parent, session, group = workshop.value("identity")
    assert (pid, pid) == (session, group)
    assert parent not in (os.getpid(), 1)


def test_worker_has_one_socket_and_one_pipe_and_children_none(workshop):
    held = workshop.value("descriptors")
    assert sorted(one.partition(":")[0] for one in held if ":" in one) == ["pipe", "socket"]
    assert json.loads(workshop.value("inherited")) == [0, 1, 2]


def test_standard_input_is_empty(workshop):
    assert workshop.value("reads_stdin") == ""


def test_workers_draw_different_random_numbers(tmp_path):
    numpy = "import numpy\n" + TASKS
    (tmp_path / "met").mkdir()
    with Workshop(tmp_path, numpy, workers=2) as workshop:
        met = [workshop.give("meets", directory=str(tmp_path / "met")) for _ in range(2)]
        assert len({workshop.wait(ticket).result for ticket in met}) == 2
        drawn = {}
        while len(drawn) < 2:
            for ticket in [workshop.give("draws") for _ in range(2)]:
                pid, numbers = decode(workshop.wait(ticket).result)
                drawn.setdefault(pid, numbers)
        one, other = drawn.values()
        assert all(mine != theirs for mine, theirs in zip(one, other, strict=True))


# ── output ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_output_of_a_task_belongs_to_its_attempt(workshop):
    assert workshop.run("says", text="out\n", error="err\n").output == "out\nerr\n"
    assert workshop.run("says", text="second").output == "second"
    assert workshop.run("double").output == ""


def test_output_of_any_thread_or_child_is_captured(workshop):
    assert workshop.run("says_it_all_ways").output == "python\nlogged\nbare\nchild\n"


def test_binary_output_is_shown_escaped(workshop):
    assert workshop.run("says_rubbish").output == "\\xff\\x00café\n"


def test_secrets_in_the_output_are_masked(workshop):
    assert workshop.run("tells_a_secret").output == "password=***\n"


def test_long_output_has_its_start_and_end(workshop):
    output = workshop.run("says_much", megabytes=8).output
    assert output.startswith("the beginning\n")
    assert output.endswith("\nthe end\n")
    left_out = (8 << 20) + len("the beginning\n\nthe end\n") - 2 * KEPT
    assert f"\n… {left_out:,} bytes left out …\n" in output
    assert len(output) < 2 * KEPT + 100


def test_last_output_of_a_dying_worker_is_stored(workshop):
    outcome = workshop.run("says_and_dies")
    assert (outcome.ended, outcome.output) == (AttemptEnd.DIED, "last words")


# ── what the next task finds ──────────────────────────────────────────────────────────────────────────────────────────


def test_working_directory_is_restored(workshop):
    before = workshop.value("where")
    workshop.run("moves")
    assert workshop.value("where") == before


def test_signals_timers_and_streams_are_restored(workshop):
    workshop.run("meddles")
    assert workshop.run("sleeps", seconds=0.5).error is None
    assert workshop.run("says", text="heard").output == "heard"
    workshop.run("meddles")
    outcome = workshop.run("sleeps", seconds=600.0, timeout=0.3, grace=30.0)
    assert outcome.ended is AttemptEnd.TIMED_OUT
    assert "in sleeps" in outcome.output


def test_environment_is_restored(workshop):
    before = workshop.value("surroundings")
    assert workshop.value("meddles_with_everything") == before[0]
    assert workshop.value("surroundings") == before
    workshop.run("meddles_with_everything")
    assert workshop.value("runs_what_fails") == 1


def test_worker_with_lowered_limits_is_replaced(workshop):
    assert workshop.value("lowers_a_limit") != workshop.value("surroundings")[0]


def test_forked_child_ends_by_sigterm_like_any_process(workshop):
    outcome = workshop.run("forks_and_terminates")
    assert (outcome.error, outcome.output, decode(outcome.result or "0")) == (None, "", -signal.SIGTERM)


def test_exit_functions_of_tasks_run_when_their_worker_ends(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Workshop(tmp_path, TASKS, recycle_after=1) as workshop:
        of_the_module = workshop.value("directory_of_the_module")
        kept = workshop.value("leaves_something_for_the_end", path=str(tmp_path))
        workshop.until((tmp_path / "ended").exists)
        workshop.until(lambda: not Path(kept).exists())
        # What the module has registered is left to the process that imported it.
        assert workshop.value("directory_of_the_module") == of_the_module
        assert Path(of_the_module).exists()
        assert not (tmp_path / "module-ended").exists()


def test_worker_with_closed_streams_is_replaced(workshop):
    workshop.run("closes_stdout")
    assert workshop.run("says", text="heard").output == "heard"


def test_child_that_returns_from_the_task_is_no_second_worker(workshop):
    pid = workshop.value("forks_and_both_return")
    assert pid == workshop.value("identity")[0]
    assert workshop.value("double", number=2) == 4


def test_remaining_thread_does_not_block_the_worker(workshop):
    assert workshop.run("leaves_a_thread").error is None
    assert workshop.value("double", number=2) == 4
