"""`redrive run`: a pipeline from the shell, with an exit code for its result."""

import json
import os
import pty
import re
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from redrive.cli import exit_codes
from redrive.cli.run_report import in_figures
from redrive.errors import (
    CircuitOpen,
    GateAborted,
    PipelineError,
    ReplayStopped,
    RunStopped,
    SinkMismatch,
    SourceError,
)
from redrive.model.calls import Failure, Kind, Verdict
from redrive.model.runs import Counts, Progress
from tests.support.warm_python import cold_python, warm_python

VENDOR = """
import redrive

print("importing vendor")


def check(record):
    return {**record, "fee": float(record["fee"])}


pipeline = redrive.Pipeline(
    "vendor",
    source=redrive.rows.csv("deliveries.csv"),
    validate=check,
    sink=redrive.rows.table("sqlite:///warehouse.db", "deliveries", key="id", create=True),
    batch=100,
    gate=redrive.Gate(least=100),
)
settings = {}
"""

FAULTS = """
import errno, pathlib, time
import redrive


def pipeline(rows, url="sqlite:///warehouse.db", **options):
    sink = redrive.rows.table(url, "deliveries", key="id", create=True, patience=0.1)
    return redrive.Pipeline("faulty", source=redrive.rows.records(rows), sink=sink, batch=2, patience=0, **options)


def then(fail):
    def rows():
        yield from ({"id": n} for n in range(4))
        fail()
        yield {"id": 4}
    return rows


partner = redrive.Service("partner", retry=redrive.Retry(attempts=1))
locked = redrive.Service("locked", retry=redrive.Retry(attempts=1))


def refused(): raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
def full(): raise OSError(errno.ENOSPC, "No space left on device")


def unauthorized():
    import httpx
    request = httpx.Request("GET", "https://partner.example/?api_key=hunter2")
    raise httpx.HTTPStatusError("401 for ?api_key=hunter2", request=request, response=httpx.Response(401))


def slow():
    for n in range(100_000):
        if n == 10:
            pathlib.Path("reached").touch()
        if n > 10:
            time.sleep(0.01)
        yield {"id": n}


busy = pipeline(then(refused))
down = pipeline(then(lambda: partner.call(refused)))
no_disk = pipeline(then(full))
no_key = pipeline(then(lambda: locked.call(unauthorized)))
no_database = pipeline(lambda: [{"id": 1}], "postgresql://nobody:hunter2@127.0.0.1:1/nothing")
endless = pipeline(slow)
"""


@pytest.fixture(autouse=True)
def files(here):
    (here / "vendor.py").write_text(VENDOR)
    (here / "faults.py").write_text(FAULTS)


@pytest.fixture
def deliver(here):
    """Write the vendor's file; of its rows the last ones have no fee."""

    def deliver(rows, *, bad=0):
        lines = [f"D-{n},{'N/A' if n >= rows - bad else 12.5}" for n in range(rows)]
        (here / "deliveries.csv").write_text("\n".join(["id,fee", *lines]) + "\n")

    return deliver


def loaded(here):
    connection = sqlite3.connect(here / "warehouse.db")
    try:
        return connection.execute("SELECT count(*), count(DISTINCT id) FROM deliveries").fetchone()
    finally:
        connection.close()


def fields(answer):
    """A report in a pipe, by field."""
    assert answer.out.startswith("field\tvalue\n"), answer
    return dict(line.split("\t") for line in answer.out.splitlines()[1:])


# ── what it does, and what it prints ──────────────────────────────────────────────────────────────────────────────────


def test_pipeline_reports_and_its_own_output_is_separate(run, deliver, here):
    deliver(1_000, bad=30)
    answer = run("run", "vendor.py:pipeline")
    assert answer.code == 0
    told = fields(answer)
    assert (told["pipeline"], told["status"], told["source"]) == ("vendor", "complete", "deliveries.csv")
    assert (told["read"], told["written"], told["rejected"], told["rate"], told["tier"]) == (
        *("1000", "970", "30", "0.03", "P3"),
    )
    assert answer.err.startswith("importing vendor\n")
    assert f"redrive dlq causes --run {told['run_id'][:8]}\n" in answer.err
    assert loaded(here) == (970, 970)


def test_json_is_one_document_and_nothing_else(run, deliver):
    deliver(200, bad=1)
    told = json.loads(run("run", "vendor.py:pipeline", "--json").out)
    assert (told["read"], told["written"], told["rejected"], told["status"]) == (200, 199, 1, "complete")
    assert told["checkpoint"]["file"] == "deliveries.csv"


def test_report_on_a_terminal_is_human_readable(terminal, deliver):
    deliver(1_000, bad=30)
    answer = terminal("run", "vendor.py:pipeline")
    assert answer.code == 0
    (run_id,) = re.findall(r"run +([0-9a-f-]{36}), complete", answer.out)
    assert [line.rstrip() for line in re.sub(r"took .*", "took", answer.out).splitlines() if line] == [
        "importing vendor",
        "pipeline   vendor",
        f"run        {run_id}, complete",
        "read       1,000  from deliveries.csv",
        "written      970  to deliveries in warehouse.db",
        "rejected      30  3.0 %, P3",
        "took",
        "Next steps:",
        f"  rejected rows by cause             redrive dlq causes --run {run_id[:8]}",
        "  alert #1 (P3, review within 24 h)  redrive alerts show 1",
    ]


def test_hinted_command_finds_the_rejected_rows(run, deliver):
    deliver(1_000, bad=30)
    (hint,) = re.findall(r"redrive (dlq causes .*)", run("run", "vendor.py:pipeline").err)
    ((_, letters, pending, *_),) = run(*hint.split()).rows
    assert (letters, pending) == ("30", "30")


def test_another_store_is_named_in_the_hint(run, deliver, here):
    deliver(200, bad=2)
    answer = run("run", "vendor.py:pipeline", "--store", "other.db")
    assert answer.code == 0
    (hint,) = re.findall(r"redrive (dlq causes .*)", answer.err)
    assert hint.endswith(" --store other.db")
    assert len(run(*hint.split()).rows) == 1
    assert not (here / ".redrive").exists()


def test_hint_names_the_store_of_the_pipeline(run, deliver, here):
    deliver(200, bad=2)
    text = VENDOR.replace("batch=100", "batch=100, store='sqlite:///of_its_own.db'")
    (here / "vendor.py").write_text(text)
    answer = run("run", "vendor.py:pipeline")
    (hint,) = re.findall(r"redrive (dlq causes .*)", answer.err)
    assert hint.endswith(" --store of_its_own.db")
    assert len(run(*hint.split()).rows) == 1


@pytest.mark.parametrize(
    ("rows", "bad", "code", "speaks"), [(1_000, 0, 0, False), (1_000, 2, 0, False), (1_000, 70, 0, True)]
)
def test_quiet_prints_nothing_for_a_good_run(spawn, deliver, here, rows, bad, code, speaks):
    deliver(rows, bad=bad)
    (here / "vendor.py").write_text(VENDOR.replace('print("importing vendor")', ""))
    done = spawn("run", "vendor.py:pipeline", "-q")
    assert done.returncode == code
    assert bool(done.stdout) == speaks
    assert bool(done.stderr) == speaks


def test_messages_are_printed_once_without_logging(spawn, deliver):
    deliver(1_000, bad=500)
    done = spawn("run", "vendor.py:pipeline")
    assert done.returncode == 65
    first, heading, causes, override, restart, alert, last = done.stderr.splitlines()
    assert (first, heading) == ("importing vendor", "Next steps:")
    assert causes.startswith("  rejected rows by cause ")
    assert override.endswith("  redrive run FILE:NAME --override-gate")
    assert restart.endswith("  redrive run FILE:NAME --restart")
    assert alert.split() == ["alert", "#1", "(P1,", "act", "now)", "redrive", "alerts", "show", "1"]
    assert last.startswith("redrive: the gate aborted it: ")


def test_configured_log_has_everything(spawn, deliver, here):
    deliver(1_000, bad=30)
    (here / "vendor.py").write_text("import logging\nlogging.basicConfig(filename='run.log', level='INFO')\n" + VENDOR)
    assert spawn("run", "vendor.py:pipeline").returncode == 0
    log = (here / "run.log").read_text()
    assert "vendor starts: deliveries.csv → deliveries in warehouse.db" in log
    assert "30 of 1,000 rows rejected (3.0%): P3" in log


def test_pipeline_is_a_target_for_its_letters(run, deliver, here):
    deliver(1_000, bad=30)
    assert run("run", "vendor.py:pipeline").code == 0
    words = ["dlq", "replay", "--target", "vendor.py:pipeline", "--pipeline", "vendor"]
    assert run(*words).rows[-1] == ["would fail", "30", "ValueError: could not convert string to float: <value>"]
    text = VENDOR.replace('float(record["fee"])', 'float(record["fee"].replace("N/A", "0"))')
    (here / "mended.py").write_text(text)
    words[3] = "mended.py:pipeline"
    rehearsed = run(*words)
    assert (rehearsed.code, rehearsed.rows[-1]) == (0, ["would pass", "30", ""])
    assert loaded(here) == (970, 970)
    done = run(*words, "--go")
    assert (done.code, done.rows[-1]) == (0, ["reprocessed", "30", ""])
    assert loaded(here) == (1_000, 1_000)


# ── the progress line ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.process
def test_progress_is_a_line_on_a_terminal_and_cleared_at_end(deliver, here):
    deliver(1_000, bad=30)
    ours, theirs = pty.openpty()
    done = subprocess.Popen(
        warm_python("-m", "redrive.cli", "run", "vendor.py:pipeline", "--json"),
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "120", "TERM": "xterm", "NO_COLOR": "1"},
    )
    os.close(theirs)
    heard = b""
    while True:
        try:
            part = os.read(ours, 65_536)
        except OSError:  # the error of Linux when the other side is closed
            break
        heard += part
    os.close(ours)
    out, _ = done.communicate(timeout=60)
    assert json.loads(out)["written"] == 970
    assert "1,000 rows · " in heard.decode()
    assert "30 rejected (3.0 %)" in heard.decode()
    *_, after = heard.decode().rpartition("\x1b[2K")  # erases the line
    assert after.startswith("Next steps:")


@pytest.mark.parametrize(
    ("progress", "said"),
    [
        (Progress(counts=Counts(), done=0, total=None, seconds=0.0), "0 rows · 0 rejected (0.0 %)"),
        (
            Progress(counts=Counts(read=1_234_567, rejected=3, retries=1), done=10, total=40, seconds=20.0),
            "1,234,567 rows · 61,728 rows/s · 3 rejected (<0.1 %) · 1 retry · 60 s left",
        ),
        (
            Progress(counts=Counts(read=100, rejected=3, retries=2), done=40, total=40, seconds=2.0),
            "100 rows · 50 rows/s · 3 rejected (3.0 %) · 2 retries",
        ),
    ],
)
def test_progress_has_figures(progress, said):
    assert in_figures(progress) == said


# ── how it ends ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_gate_abort_is_65_and_keeps_the_good_rows(run, deliver, here):
    deliver(200, bad=150)
    answer = run("run", "vendor.py:pipeline")
    assert answer.code == 65
    told = fields(answer)
    assert (told["status"], told["tier"]) == ("aborted", "abort")
    assert answer.err.splitlines()[-1].startswith("redrive: the gate aborted it: 50 of 100 rows were rejected")
    assert loaded(here) == (50, 50)


def test_aborted_run_stays_65_until_the_gate_is_overridden(run, deliver, here):
    deliver(400, bad=150)
    assert run("run", "vendor.py:pipeline").code == 65
    again = run("run", "vendor.py:pipeline")
    assert again.code == 65
    assert "vendor stays aborted" in again.err
    assert fields(again)["status"] == "aborted"
    assert run("run", "vendor.py:pipeline", "--override-gate").code == 0
    assert loaded(here) == (250, 250)


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("busy", 75, "ConnectionRefusedError"),
        ("down", 69, "ConnectionRefusedError"),
        ("no_disk", 70, "No space left on device"),
        ("no_key", 77, "401 for ?api_key=***"),
        ("no_database", 69, "127.0.0.1"),
    ],
)
def test_failed_run_has_its_report_and_exit_code_by_kind(run, name, code, words):
    answer = run("run", f"faults.py:{name}")
    assert answer.code == code, answer.err
    told = fields(answer)
    assert told["status"] == "failed"
    assert told["written"] == ("0" if name == "no_database" else "4")
    *_, last = answer.err.splitlines()
    assert last.startswith("redrive: faulty: ")
    assert words in last
    assert "hunter2" not in answer.err + answer.out
    assert "Traceback" not in answer.err


def started(*words, python=warm_python):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is started deaf to it
    try:
        return subprocess.Popen(
            python("-m", "redrive.cli", "run", *words),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)


def once_reached(process, here):
    ends = time.monotonic() + 60
    while not (here / "reached").exists():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < ends
        time.sleep(0.01)


@pytest.mark.process
def test_sigterm_finishes_the_batch_and_the_next_run_resumes(here):
    process = started("faults.py:endless", "--json")
    once_reached(process, here)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75
    first = json.loads(out)
    assert first["status"] == "stopped"
    assert first["read"] == first["written"] == loaded(here)[0] >= 10
    assert err == ("redrive: stopped: SIGTERM; everything so far is written, and the next run resumes there\n")
    again = started("faults.py:endless", "--json", "--deadline", "0.5s")
    out, err = again.communicate(timeout=60)
    assert again.returncode == 75
    assert "its deadline of 0.5 s has passed" in err
    second = json.loads(out)
    assert (second["run_id"], second["resumed"]) == (first["run_id"], True)
    assert second["read"] == second["written"] == loaded(here)[1] > first["read"]


@pytest.mark.process
def test_interrupt_is_130_and_reports_saved_progress(run, here):
    process = started("faults.py:endless")
    once_reached(process, here)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    how_far, kept = err.splitlines()
    assert re.fullmatch(r"\d+ rows so far", how_far)
    assert kept == "redrive: interrupted; finished work is kept. Run the same command again to resume"
    told = fields(run("runs", "show", "faulty"))
    assert (told["status"], told["reason"]) == ("stopped", "interrupted")
    assert int(told["written"]) == loaded(here)[0]


@pytest.mark.process
def test_pipeline_running_elsewhere_is_not_run(run, here):
    process = started("faults.py:endless", python=cold_python)  # its own pid is looked for
    try:
        once_reached(process, here)
        answer = run("run", "faults.py:endless")
        assert (answer.code, answer.out) == (75, "")
        assert answer.sentence.startswith(f"pipeline 'faulty' is being run by process {process.pid} on ")
    finally:
        process.kill()
        process.communicate(timeout=60)


def test_changed_options_since_the_checkpoint_need_consent(run, deliver):
    deliver(1_000)
    assert run("run", "vendor.py:pipeline", "--deadline", "0.000001").code == 75
    vendor = Path("vendor.py").read_text()
    Path("changed.py").write_text(vendor.replace("batch=100", 'batch=100, on_duplicate="first"'))
    answer = run("run", "changed.py:pipeline")
    assert (answer.code, answer.out) == (64, "")
    assert 'its on_duplicate was "last", and here it is "first"' in answer.err
    assert "`redrive run --accept-changes`" in answer.err
    told = fields(run("run", "changed.py:pipeline", "--accept-changes"))
    assert (told["status"], told["read"], told["resumed"]) == ("complete", "1000", "true")


def test_checkpoint_of_another_file_needs_restart(run, deliver):
    deliver(1_000, bad=1_000)
    assert run("run", "vendor.py:pipeline").code == 65
    deliver(50)
    assert run("run", "vendor.py:pipeline").code == 65
    answer = run("run", "vendor.py:pipeline", "--override-gate")
    assert (answer.code, answer.out) == (64, "")
    assert "deliveries.csv has become shorter" in answer.err
    assert "`redrive run --restart`" in answer.err
    told = fields(run("run", "vendor.py:pipeline", "--restart"))
    assert (told["status"], told["read"], told["resumed"]) == ("complete", "50", "false")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (GateAborted("x"), 65),
        (RunStopped("x"), 70),
        (RunStopped("x", kind=Kind.TRANSIENT), 75),
        (RunStopped("x", kind=Kind.RATE_LIMITED), 75),
        (RunStopped("x", kind=Kind.AUTH), 77),
        (RunStopped("x", kind=Kind.QUOTA), 77),
        (RunStopped("x", kind=Kind.RESOURCE), 70),
        (PipelineError("x"), 64),
        (SourceError("x"), 70),
        (SinkMismatch("x"), 70),
    ],
)
def test_each_end_of_a_run_has_its_documented_exit_code(error, code):
    assert exit_codes.exit_code(error) == code


@pytest.mark.parametrize("stopped", [RunStopped, ReplayStopped])
def test_service_down_is_69_and_rate_limit_is_75(stopped):
    verdict = Verdict(Kind.TRANSIENT, "down", "x")
    circuit = CircuitOpen("open", redrive=Failure("partner", "partner", (), 0.0, verdict, "circuit open", "wait"))
    for kind, code in ((Kind.TRANSIENT, 69), (Kind.RATE_LIMITED, 75), (Kind.QUOTA, 77)):
        error = stopped("x", kind=kind)
        error.__cause__ = circuit
        assert exit_codes.exit_code(error) == code


# ── wrong words ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ([], 64, "missing argument 'FILE_OR_MODULE:NAME'; see `redrive run --help`"),
        (["nowhere.py:pipeline"], 64, "there is no file nowhere.py"),
        (["vendro.py:pipeline"], 64, "there is no file vendro.py; did you mean vendor.py?"),
        (["vendor.py:pipelin"], 64, "vendor.py has no name 'pipelin'; did you mean 'pipeline'?"),
        (["vendor.py:"], 64, "'vendor.py:' is not a target: write FILE:NAME"),
        (["vendor.py:settings"], 64, "vendor.py:settings is a dict, not a pipeline or a flow"),
        (["vendor.py:check"], 64, "vendor.py:check is a function, not a pipeline"),
        (["vendor.py:redrive"], 64, "vendor.py:redrive is a module, not a pipeline"),
        (["vendor.py:redrive.Pipeline"], 64, "vendor.py:redrive.Pipeline is a class, not a pipeline"),
        (["process.py:subprocess"], 64, "process.py:subprocess is a module, not a pipeline"),
        (
            ["process.py"],
            64,
            "there is no pipeline or flow in process.py. Create one with redrive.Pipeline(…) or redrive.Flow(…)",
        ),
        (["nothing"], 64, "there is no module 'nothing'"),
        (["faults.py"], 64, "there are 6 pipelines in faults.py. Name one of them: faults.py:busy, faults.py:down, "),
        (["broken.py:pipeline"], 70, "broken.py cannot be imported: ZeroDivisionError: division by zero"),
        (["wrong.py:pipeline"], 70, "wrong.py cannot be imported: TypeError: source must be one of redrive's"),
        (["vendor.py:pipeline"], 70, "there is no file deliveries.csv"),
        (["vendor.py:pipeline", "--deadline", "soon"], 64, "--deadline must be a span such as"),
        (["vendor.py:pipeline", "--deadline", "0"], 64, "--deadline must be more than 0 seconds"),
        (["vendor.py:pipeline", "--deadline", "9" * 400], 64, "--deadline must be"),
        (["vendor.py:pipeline", "--param", "x=1"], 64, "--param is for flows, and vendor is a pipeline: leave it out"),
        (["vendor.py:pipeline", "--run-id", "x"], 64, "--run-id is for flows, and vendor is a pipeline: leave it out"),
        (["vendor.py:pipeline", "--store", "mysql://x/y"], 64, "a store is SQLite or PostgreSQL, not mysql"),
    ],
)
def test_invalid_run_is_rejected_in_one_sentence(run, here, words, code, sentence):
    (here / "process.py").write_text("import subprocess\n")
    (here / "broken.py").write_text("1 / 0\n")
    (here / "wrong.py").write_text("import redrive\npipeline = redrive.Pipeline('x', source={}, sink={})\n")
    answer = run("run", *words)
    assert (answer.code, answer.out) == (code, "")
    *printed, last = answer.err.splitlines()
    assert last.startswith(f"redrive: {sentence}")
    assert printed in ([], ["importing vendor"])


@pytest.mark.parametrize("where", ["vendor.py", "vendor", "./vendor.py"])
def test_only_pipeline_needs_no_name(run, deliver, here, where):
    deliver(10)
    (here / "vendor.py").write_text(VENDOR + "\nby_another_name = pipeline\n")
    assert fields(run("run", where))["written"] == "10"


@pytest.mark.parametrize(("span", "seconds"), [("90", 90), ("1.5", 1.5), ("90s", 90), ("2 min", 120), ("1h", 3_600)])
def test_deadline_is_seconds_or_a_duration(run, here, span, seconds):
    (here / "told.py").write_text(
        "import redrive\n"
        "class Told(redrive.Pipeline):\n"
        "    def run(self, *, watch, **options): raise redrive.RunStopped(repr(options))\n"
        "sink = redrive.rows.table('sqlite:///x.db', 'x', key='id')\n"
        "pipeline = Told('told', source=redrive.rows.records([]), sink=sink)\n"
    )
    assert run("run", "told.py:pipeline", "--deadline", span).sentence == repr({"deadline": float(seconds)})
    assert run("run", "told.py:pipeline", "--restart").sentence == repr({"restart": True})


# ── the page ──────────────────────────────────────────────────────────────────────────────────────────────────────────

PAGE = Path(__file__).parents[3] / "docs" / "command-line.md"


def test_every_exit_code_is_on_the_page():
    told = set(re.findall(r"^\| (\d+) \|", PAGE.read_text(), re.MULTILINE))
    codes = {str(code) for code in vars(exit_codes).values() if isinstance(code, int)}
    assert codes - told == {str(exit_codes.BROKEN_PIPE)}


@pytest.mark.parametrize("code", ["", "0", "3"])
def test_exit_of_user_code_is_a_failure_of_the_command(here, run, code):
    """For any exit code: 0 would mean to a scheduler that the run is complete."""
    Path("leaves.py").write_text(
        "import redrive, sys\n"
        "pipeline = redrive.Pipeline('leaves', source=redrive.rows.records([{'id': 1}]), "
        f"validate=lambda row: sys.exit({code}), "
        "sink=redrive.rows.table('sqlite:///warehouse.db', 'deliveries', key='id', create=True))\n"
    )
    answer = run("run", "leaves.py")
    assert (answer.code, answer.out) == (70, "")
    assert f"the command is incomplete: your code called sys.exit({code}). " in answer.err


@pytest.mark.parametrize("name", ["calendar", "queue", "statistics"])
def test_file_named_like_a_stdlib_module_runs(here, run, name):
    Path(f"{name}.py").write_text(
        "import redrive\n"
        "pipeline = redrive.Pipeline('named', source=redrive.rows.records([{'id': 1}]), "
        "sink=redrive.rows.table('sqlite:///warehouse.db', 'deliveries', key='id', create=True))\n"
    )
    answer = run("run", f"{name}.py")
    assert (answer.code, answer.err) == (0, "")
