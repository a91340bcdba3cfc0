"""`redrive run` of a flow: its report, its exit code, and the next commands after a failure."""

import json
import os
import pty
import re
import signal
import subprocess
import time
import uuid
from datetime import UTC, datetime

import pytest

from redrive.cli import exit_codes
from redrive.errors import FlowError, FlowStopped
from redrive.model.calls import Kind
from redrive.store.schema import task_runs
from tests.support.warm_python import warm_python

SETTLEMENT = """
import pathlib
import redrive

flow = redrive.Flow("settlement", params={"day": "2026-11-15", "rate": 1})
again = redrive.Retry(attempts=2, base=0.01, cap=0.01)


@flow.task(in_thread=True)
def partners(day):
    print("the partners of", day)
    return ["Acme", "Birla", "Cipla"]


@flow.task(each=partners, retry=again, in_thread=True)
def settle(partner, rate):
    if partner == "Cipla" and not pathlib.Path("mended").exists():
        raise LookupError(f"{partner} has no account, api_key=hunter2")
    return rate


@flow.task(after=settle, in_thread=True)
def report(settle):
    return sum(settle)
"""

FAULTS = """
import errno, pathlib, time
import redrive

once = redrive.Retry(attempts=1)
outage = redrive.Flow("outage")
locked = redrive.Flow("locked")
broken = redrive.Flow("broken")
endless = redrive.Flow("endless", workers=2, stop_within=0.2)


@outage.task(in_thread=True, retry=once)
def fetch(): raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


@outage.task(in_thread=True, after=fetch)
def load(): pass


@locked.task(in_thread=True)
def fetch():
    import httpx
    request = httpx.Request("GET", "https://partner.example/")
    raise httpx.HTTPStatusError("401", request=request, response=httpx.Response(401))


@broken.task(in_thread=True, retry=once)
def parse(): raise redrive.Permanent("no such column")


@broken.task(in_thread=True, retry=once)
def fetch(): raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


@endless.task(in_thread=True)
def days(): return list(range(10_000))


@endless.task(each=days)
def day(n):
    pathlib.Path("reached").touch()
    time.sleep(0.01)
"""

DAY = ["settlement.py:flow", "--param", "day=2026-11-16"]


@pytest.fixture(autouse=True)
def files(here):
    (here / "settlement.py").write_text(SETTLEMENT)
    (here / "faults.py").write_text(FAULTS)


def fields(answer):
    """A report in a pipe, by field."""
    assert answer.out.startswith("field\tvalue\n"), answer
    return dict(line.split("\t") for line in answer.out.splitlines()[1:])


# ── what it does, and what it prints ──────────────────────────────────────────────────────────────────────────────────


def test_flow_reports_and_its_own_output_is_separate(run, here):
    (here / "mended").touch()
    answer = run("run", *DAY)
    assert answer.code == 0, answer.err
    told = fields(answer)
    assert (told["kind"], told["flow"], told["status"], told["total"]) == ("flow", "settlement", "complete", "5")
    assert (told["SUCCESS"], told["DEAD_LETTER"], told["attempts"]) == ("5", "0", "5")
    assert json.loads(told["params"]) == {"day": "2026-11-16", "rate": 1}
    assert "the partners of" not in answer.out


def test_report_as_json_is_one_document_with_its_causes(run):
    answer = run("run", *DAY, "--json")
    assert answer.code == 70
    told = json.loads(answer.out)
    assert (told["kind"], told["status"], told["counts"]) == (
        "flow",
        "held",
        {"PENDING": 1, "SUCCESS": 3, "DEAD_LETTER": 1},
    )
    (cause,) = told["causes"]
    assert (cause["task"], cause["tasks"], cause["untried"], cause["sample"]) == ("settle", 1, 0, "settle[2]")
    assert cause["error"] == "LookupError: Cipla has no account, api_key=***"


def test_failed_flow_reports_causes_and_next_commands(run, here):
    answer = run("run", *DAY)
    assert answer.code == 70
    *_, wrong, heading, tasks, one, retry, again, alert, last = answer.err.splitlines()
    found = re.fullmatch(
        r"settle: 1 task: LookupError: Cipla has no account, api_key=\*\*\* \(cause (LookupError@\S+)\)", wrong
    )
    assert found
    assert last == "redrive: flow 'settlement' has 1 dead letter, and downstream tasks are blocked"
    run_id = fields(answer)["run_id"][:8]
    assert heading == "Next steps:"
    assert [re.split(r"  +", step.strip()) for step in (tasks, one, retry, again, alert)] == [
        ["list tasks", f"redrive tasks ls --run {run_id}"],
        ["show one task", f"redrive tasks show 'settle[2]' --run {run_id}"],
        ["retry when fixed", f"redrive tasks retry --cause {found[1]} --run {run_id}"],
        ["then resume", "redrive run settlement.py:flow --param day=2026-11-16"],
        ["alert #1 (P1, act now)", "redrive alerts show 1"],
    ]
    (here / "mended").touch()
    assert run("tasks", "ls", "--run", run_id).code == 0
    assert run("tasks", "show", "settle[2]", "--run", run_id).code == 0
    assert run("tasks", "retry", "--cause", found[1], "--run", run_id).code == 0
    told = fields(run("run", *DAY))
    assert (told["run_id"][:8], told["status"], told["resumed"]) == (run_id, "complete", "true")


def test_commands_name_a_store_that_is_not_the_default(run, here):
    answer = run("run", "settlement.py", "--store", "other.db")
    assert answer.code == 70
    commands = [line for line in answer.err.splitlines() if "  redrive " in line]
    assert len(commands) == 5
    assert all(line.endswith(" --store other.db") for line in commands)
    (here / "apart.py").write_text(SETTLEMENT.replace('"settlement",', '"settlement", store="flows.db",'))
    answer = run("run", "apart.py")
    assert "--store flows.db\n" in answer.err
    assert answer.err.splitlines()[-3].endswith("  redrive run apart.py")
    assert answer.err.splitlines()[-2].endswith("  redrive alerts show 1 --store flows.db")


def test_restart_option_is_not_suggested_again(run):
    run("run", *DAY)
    answer = run("run", *DAY, "--restart")
    assert "  redrive run settlement.py:flow --param day=2026-11-16\n" in answer.err


def test_report_on_a_terminal_is_human_readable(terminal):
    shown = terminal("run", "settlement.py:flow").out.splitlines()
    run_line = shown.index("flow       settlement") + 1
    assert re.fullmatch(r"run        [0-9a-f-]{36}, held", shown[run_line])
    assert shown[run_line + 1] == "params     day=2026-11-15, rate=1"
    assert re.fullmatch(r"took       [\d.]+ s", shown[run_line + 2])
    assert shown[run_line + 3 : run_line + 5] == [
        "tasks      5: 1 PENDING, 3 SUCCESS, 1 DEAD_LETTER",
        "attempts   5",
    ]


@pytest.mark.parametrize(("mended", "speaks"), [(True, False), (False, True)])
def test_quiet_prints_nothing_for_a_good_run(spawn, here, mended, speaks):
    (here / "settlement.py").write_text(SETTLEMENT.replace('    print("the partners of", day)\n', ""))
    if mended:
        (here / "mended").touch()
    done = spawn("run", "settlement.py", "-q")
    assert (bool(done.stdout), bool(done.stderr)) == (speaks, speaks)


def test_late_run_is_reported_even_if_quiet(run, store, here):
    run("run", *DAY)
    (here / "mended").touch()
    run("tasks", "retry", "settle")
    due = task_runs.update().values(sla=datetime(2026, 1, 1, 1, tzinfo=UTC))
    store.database.write(lambda connection: connection.execute(due))
    answer = run("run", *DAY, "-q")
    assert answer.code == 0
    assert "SLA missed: due 2026-01-01 01:00:00 UTC" in answer.err
    assert fields(answer)["late"] == "true"


def test_messages_are_printed_once_without_logging(spawn):
    err = spawn("run", "settlement.py").stderr
    assert err.count("Cipla has no account") == 1


def test_parameter_is_json_if_it_parses(run, here):
    (here / "told.py").write_text(
        "import redrive\n"
        "flow = redrive.Flow('told', params=['a', 'b', 'c', 'd', 'e'])\n"
        "@flow.task(in_thread=True)\n"
        "def told(a, b, c, d, e): return [a, b, c, d, e]\n"
    )
    words = ["a=12", 'b={"x": [1]}', "c=2026-11-15", "d=NaN", "e=x=y"]
    assert run("run", "told.py", *(word for one in words for word in ("--param", one))).code == 0
    told = json.loads(run("tasks", "show", "told", "--json").out)
    assert told["result"] == [12, {"x": [1]}, "2026-11-15", "NaN", "x=y"]


def test_run_id_can_be_set_and_resumed(run, here):
    run_id = str(uuid.uuid4())
    assert fields(run("run", *DAY, "--run-id", run_id))["run_id"] == run_id
    (here / "mended").touch()
    assert run("tasks", "retry", "settle", "--run", run_id).code == 0
    told = fields(run("run", *DAY, "--run-id", run_id))
    assert (told["run_id"], told["status"]) == (run_id, "complete")


# ── how it ends ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "code", "status"),
    [("outage", 75, "failed"), ("locked", 77, "held"), ("broken", 75, "held")],
)
def test_exit_code_shows_whether_to_retry(run, name, code, status):
    answer = run("run", f"faults.py:{name}")
    assert answer.code == code, answer.err
    assert fields(answer)["status"] == status


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FlowStopped("x"), 70),
        (FlowStopped("x", kind=Kind.TRANSIENT), 75),
        (FlowStopped("x", kind=Kind.RATE_LIMITED), 75),
        (FlowStopped("x", kind=Kind.AUTH), 77),
        (FlowStopped("x", kind=Kind.AMBIGUOUS), 70),
        (FlowError("x"), 64),
    ],
)
def test_each_end_of_a_flow_has_its_documented_exit_code(error, code):
    assert exit_codes.exit_code(error) == code


def started(*words, **streams):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is started deaf to it
    try:
        return subprocess.Popen(
            warm_python("-m", "redrive.cli", "run", *words),
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **streams},
        )
    finally:
        signal.signal(signal.SIGINT, before)


def once_reached(process, here):
    ends = time.monotonic() + 60
    while not (here / "reached").exists():
        assert process.poll() is None
        assert time.monotonic() < ends
        time.sleep(0.01)


@pytest.mark.process
@pytest.mark.skipif(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, reason="these tests run under nohup")
def test_sighup_stops_the_flow_like_sigterm(here):
    process = started("faults.py:endless", "--json")
    once_reached(process, here)
    process.send_signal(signal.SIGHUP)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, json.loads(out)["status"]) == (75, "stopped")
    assert "stopped: SIGHUP" in err


@pytest.mark.process
def test_sigterm_stops_the_flow_and_the_next_run_resumes(here):
    process = started("faults.py:endless", "--json")
    once_reached(process, here)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75
    first = json.loads(out)
    assert first["status"] == "stopped"
    assert err == "redrive: flow 'endless' stopped: SIGTERM; running it again resumes it\n"
    again = started("faults.py:endless", "--json", "--deadline", "2s")
    out, err = again.communicate(timeout=60)
    assert again.returncode == 75
    assert "its deadline of 2.0 s has passed" in err
    second = json.loads(out)
    assert (second["run_id"], second["resumed"]) == (first["run_id"], True)
    assert second["counts"]["SUCCESS"] >= first["counts"]["SUCCESS"]


@pytest.mark.process
def test_interrupt_is_130_and_reports_progress(run, here):
    process = started("faults.py:endless")
    once_reached(process, here)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    how_far, kept = err.splitlines()
    assert re.fullmatch(r"[\d,]+ of 10,001 tasks done so far", how_far)
    assert kept == "redrive: interrupted; finished work is kept. Run the same command again to resume"
    assert dict(run("runs", "show", "endless").rows)["status"] == "stopped"


@pytest.mark.process
def test_view_is_on_a_terminal_only_and_cleared_at_the_end():
    ours, theirs = pty.openpty()
    size = {"COLUMNS": "80", "LINES": "12", "TERM": "xterm"}
    process = started("faults.py:endless", "--json", stderr=theirs, env={**os.environ, **size})
    os.close(theirs)
    heard, told = "", False
    while True:
        try:
            heard += os.read(ours, 65_536).decode(errors="replace")
        except OSError:  # the error of Linux when the other side is closed
            break
        drawn = re.sub(r"\x1b\[[\d;]*m", "", heard)
        head = re.search(r"endless  [━─]+  [\d,]+ of 10,001 tasks done · ", drawn)
        if not told and head and re.search(r"running   day\[\d+\]", drawn):
            process.send_signal(signal.SIGTERM)
            told = True
    os.close(ours)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 75
    assert json.loads(out)["status"] == "stopped"
    *_, after = heard.rpartition("\x1b[2K")  # erases a line
    message = re.sub(r"\x1b\[[\d;]*m", "", after).strip()
    assert message.startswith("redrive: flow 'endless' stopped: SIGTERM")


# ── wrong words ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--param", "day"], "--param is NAME=VALUE, such as day=2026-11-15, not 'day'"),
        (["--param", "=1"], "--param is NAME=VALUE, such as day=2026-11-15, not '=1'"),
        (["--param", "day=1", "--param", "day=2"], "--param day is given twice; a parameter has one value"),
        (["--param", "month=1"], "flow 'settlement' has no parameter 'month'; it has day, rate"),
        (["--run-id", "17"], "a run's id is a UUID, not '17'"),
    ],
)
def test_invalid_flow_argument_is_rejected_in_one_sentence(run, words, sentence):
    answer = run("run", "settlement.py:flow", *words)
    assert (answer.code, answer.out, answer.sentence) == (64, "", sentence)


def test_task_is_not_a_flow_and_several_flows_need_a_name(run, here):
    assert run("run", "settlement.py:settle").sentence == (
        "settlement.py:settle is a task of flow 'settlement', not a pipeline or a flow"
    )
    assert run("run", "faults.py").sentence.startswith(
        "there are 4 flows in faults.py. Name one of them: faults.py:outage, "
    )
    (here / "both.py").write_text(
        SETTLEMENT + "sink = redrive.rows.table('sqlite:///x.db', 'x', key='id')\n"
        "rows = redrive.Pipeline('rows', source=redrive.rows.records([]), sink=sink)\n"
    )
    assert run("run", "both.py").sentence == (
        "there are 1 flow and 1 pipeline in both.py. Name one of them: both.py:flow, both.py:rows"
    )
