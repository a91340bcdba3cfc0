"""`redrive demo` as a new user sees it: the real program, in its own directories; only the vendor's file is smaller.

Three demos run: one that is interrupted while merchants are paid, one in a pipe in the same directory, and at the same
time one with `--json`.
"""

import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import duckdb
import pytest
from typer.testing import CliRunner

import redrive
from redrive.cli.app import app
from redrive.cli.demo import as_typed
from redrive.demo import world
from redrive.demo import world as stage
from redrive.demo.outcome import look

ROWS, BAD = 2_000, 60
DEMO = [sys.executable, "-W", "error", "-m", "redrive.cli", "demo", "--rows", str(ROWS)]
MARK = "DEMO_OF_A_TEST"

pytestmark = pytest.mark.timeout(300)  # two at a time, each of which takes a while


def begun(directory, *words, **environment):
    """A demo under way, in a group of its own as a shell would have it."""
    environ = {**os.environ, "PATH": "/usr/bin:/bin", **environment}
    return subprocess.Popen(
        [*DEMO, *words],
        cwd=directory,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def told_until(demo, beginning):
    for line in demo.stdout:
        if line.startswith(beginning):
            return
    raise AssertionError(f"it ended before {beginning!r}: {demo.stderr.read()}")


def interrupted(demo):
    os.killpg(demo.pid, signal.SIGINT)
    _, said = demo.communicate(timeout=60)
    return demo.returncode, said


def processes(mark):
    """The processes that were begun with this mark in their environment, and live."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


class Played:
    """A demo that has come to its end."""

    def __init__(self, demo, directory):
        self.out, self.err = demo.communicate(timeout=100)
        self.code = demo.returncode
        self.directory = directory / stage.NAME


class Interrupted:
    """A demo that was ended by Ctrl-C while its tasks were running."""

    def __init__(self, directory):
        mark = uuid4().hex
        demo = begun(directory, **{MARK: mark})
        told_until(demo, "3  ")
        while len(processes(mark)) < 3:  # itself, and workers
            assert demo.poll() is None
            time.sleep(0.05)
        self.code, self.said = interrupted(demo)
        self.left = processes(mark)


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    first, other = (tmp_path_factory.mktemp(name) for name in ("first", "other"))
    read = begun(other, "--json", REDRIVE_STORE=str(other / "production.db"), REDRIVE_ALERTS="off")
    broken_off = Interrupted(first)
    (first / stage.NAME / "notes.txt").write_text("mine")
    told = begun(first)
    return Played(told, first), Played(read, other), broken_off


@pytest.fixture
def told(demos):
    """The demo with text output, in a pipe."""
    return demos[0]


@pytest.fixture
def read(demos):
    """The demo with JSON output."""
    return demos[1]


@pytest.fixture
def broken_off(demos):
    """The interrupted demo."""
    return demos[2]


def in_the_warehouse(directory, query):
    with duckdb.connect(directory / "warehouse.duckdb") as warehouse:
        return warehouse.execute(query).fetchone()


def next_commands(demo):
    """The commands printed at the end, without their descriptions."""
    lines = demo.out.partition("Look around\n")[2].splitlines()
    return [re.split(r" {2,}", line.strip())[0] for line in lines]


# ── alerts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_output_reads_as_plain_lines_and_succeeds(told):
    assert (told.code, told.err) == (0, "")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", told.out)
    titles = [
        "1  A partner's API",
        "2  A vendor's weekly file",
        "3  A settlement",
        "What happened",
        "The fix: vendor.py",
    ]
    places = [told.out.index(f"\n{title}") for title in [*titles, "The fix: accounts.json", "Look around"]]
    assert places == sorted(places)


def test_row_figures_equal_those_of_the_warehouse(told):
    rows, keys, free = in_the_warehouse(
        told.directory,
        "SELECT count(*), count(DISTINCT delivery_id), count(*) FILTER (fee = 0) FROM vendor_deliveries",
    )
    assert (rows, keys) == (ROWS, ROWS)
    assert free >= BAD
    (partner,) = in_the_warehouse(told.directory, "SELECT count(*) FROM partner_deliveries")
    assert f"{ROWS - BAD:,} of {ROWS:,} rows written, {BAD} rejected (3.0 %)" in told.out
    assert f"{partner:,} of 20,000 rows of 400 pages written, 7 rejected" in told.out
    assert f"In the table: {rows:,} rows, {keys:,} different keys: none lost, none twice." in told.out


def test_printed_counts_equal_the_store(told):
    with redrive.connect(told.directory / ".redrive" / "redrive.db") as store:
        after = look(store)
    assert {"transient", "rate_limited", "auth", "quota"} <= after.calls.keys()
    assert after.calls_lost == after.not_recovered == 0
    assert after.attempts["ambiguous"] == 2  # the poisoned one, which was not tried a third time by itself
    assert "settle[11]" in after.killed
    assert f"failed     {after.failed} attempts" in told.out
    assert f"recovered  {after.failed - 2} of them" in told.out
    assert f"one message for each error would have been {after.failed + BAD + 7:,}" in told.out
    by_status = {cause.pipelines: dict(cause.by_status) for cause in after.causes}
    assert by_status["vendor",]["reprocessed"] == BAD
    assert by_status["partner",]["pending"] == 7
    assert by_status["settlement",]["reprocessed"] == 1


def test_demo_sends_two_alerts_and_their_resolution(told):
    team, pager = ((told.directory / name).read_text().splitlines() for name in ("team.txt", "pager.txt"))
    assert team[0].startswith(f"P3 vendor: {BAD} of {ROWS:,} rows rejected (3.0 %), all for one cause: fee:")
    assert pager[0] == "P1 settlement: settle waits for an operator: ValueError: 'DE88-unknown' is not an account"
    assert [line.partition(" ")[0] for line in team[1:] + pager[1:]] == ["Resolved", "Resolved"]
    assert f"P3 to team: {team[0].removeprefix('P3 ')}\n" in told.out
    assert "alerts     2 messages:" in told.out


def test_fix_of_the_program_is_shown_as_a_diff(told):
    ships = (Path(stage.__file__).parent / "programs" / "vendor.py").read_text().splitlines()
    mended = (told.directory / "vendor.py").read_text().splitlines()
    (removed,) = set(ships) - set(mended)
    (added,) = set(mended) - set(ships)
    assert f"   -{removed}\n   +{added}\n" in told.out


def test_each_merchant_is_paid_once_and_reported(told):
    with redrive.connect(told.directory / ".redrive" / "redrive.db") as store:
        (run,) = store.tasks.runs()
        report = store.tasks.get(run.run_id, "report").result
    assert run.status == "complete"
    assert f"is complete: {report}." in told.out
    assert f"has paid {world.MERCHANTS} merchants, each once" in told.out


# ── leftovers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_files_of_the_user_are_kept(told):
    assert (told.directory / "notes.txt").read_text() == "mine"


def test_printed_command_works_in_a_shell(told):
    cd, causes, *_ = next_commands(told)
    typed = f"{cd} && {causes}"
    done = subprocess.run(["sh", "-c", typed], cwd=told.directory.parent, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(rf"\t{BAD}\t.*\tvendor\t.*fee: Input should be a valid decimal", done.stdout)


def test_every_printed_command_shows_expected_output(told):
    expected = {
        "runs ls": "settlement\tcomplete",
        "runs show vendor": f"written\t{ROWS - BAD}",
        "tasks ls": "settle\tSUCCESS",
        "tasks show settle[11]": "ran longer than its limit of 2 s",
        "services": "token 2",
        "alerts ls --all": "pager:sent",
        "dlq ls": "weight_kg: Input should be a valid decimal",
        "dlq edit": "weight_kg",
        "dlq replay": "reprocessed\t7",
    }
    # By the shell that a person has, and not here: a program's service goes on until its process ends.
    typed = "\necho ═══\n".join(next_commands(told)[2:])
    done = subprocess.run(["sh", "-ec", typed], cwd=told.directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for command, answer in zip(next_commands(told)[2:], done.stdout.split("═══\n"), strict=True):
        words = " ".join(shlex.split(command)[1:])
        shown = [text for start, text in expected.items() if words.startswith(start)]
        assert all(text in answer for text in shown), (command, answer)
        assert shown, command
    assert in_the_warehouse(told.directory, "SELECT count(*) FROM partner_deliveries") == (20_000,)


# ── for programs ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_json_output_is_one_document_with_the_numbers(read):
    assert (read.code, read.err) == (0, "")
    document = json.loads(read.out)
    before, after = document["before_the_fix"], document["after_the_fix"]
    assert document["is_right"]
    assert (document["vendor"]["read"], document["vendor"]["written"]) == (ROWS, ROWS - BAD)
    assert document["redrive"]["would_pass"] == document["redrive"]["reprocessed"] == BAD
    assert (document["redrive"]["rows"], document["redrive"]["keys"]) == (ROWS, ROWS)
    failed = sum(sum(counts.values()) for counts in before["failed_attempts"].values())
    assert (before["errors"], before["healed"]) == (failed + BAD + 7, failed - 2)
    assert (before["messages"], after["messages"]) == (2, 4)
    assert [(one["urgency"], one["status"]) for one in after["alerts"]] == [("P3", "resolved"), ("P1", "resolved")]


def test_shell_settings_do_not_affect_the_demo(read):
    """The shell names another store and disables alerts; the demo ignores both."""
    assert not (read.directory.parent / "production.db").exists()
    _, causes, *_ = json.loads(read.out)["commands"]
    assert " --store .redrive/redrive.db dlq causes" in causes


# ── early ends ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_ctrl_c_ends_demo_and_its_processes(broken_off):
    assert broken_off.code == 130
    assert broken_off.said == ("redrive: interrupted; finished work is kept. Run the same command again to resume\n")
    assert broken_off.left == []


@pytest.fixture
def demo(tmp_path, monkeypatch):
    """Run the demo in this process, where it is rejected at its start; return the error."""
    monkeypatch.chdir(tmp_path)

    def demo(*words):
        answer = CliRunner().invoke(app, ["demo", *words])
        assert (answer.exit_code, answer.stdout) == (64, "")
        assert answer.stderr.count("\n") == 1
        return answer.stderr.removeprefix("redrive: ").rstrip("\n")

    return demo


def test_directory_with_other_files_is_rejected(demo, tmp_path):
    (tmp_path / stage.NAME).mkdir()
    (tmp_path / stage.NAME / "vendor.py").write_text("mine")
    assert demo() == "redrive-demo was not made by a demo, and is left alone; name another place with --directory"
    assert [path.read_text() for path in (tmp_path / stage.NAME).iterdir()] == ["mine"]


def test_directory_of_a_running_demo_is_rejected(demo, tmp_path):
    (tmp_path / "here").mkdir()
    with (tmp_path / "here" / stage.MARKER).open("w") as marker:
        fcntl.flock(marker, fcntl.LOCK_EX)
        assert demo("--directory", "here") == "a demo is under way in here; name another place with --directory"


def test_unwritable_directory_is_rejected(demo, tmp_path):
    (tmp_path / "file").touch()
    assert demo("--directory", "file/demo") == (
        "file cannot be written: File exists; name another place with --directory"
    )


def test_store_option_is_rejected(demo, tmp_path):
    assert demo("--store", "mine.db") == (
        "--store cannot be used: the demo has a store of its own, so that yours is not changed. Remove the option"
    )
    assert list(tmp_path.iterdir()) == []


def test_missing_extra_gives_one_sentence_and_no_files(tmp_path):
    program = (
        "import sys\nsys.modules['duckdb'] = None\nfrom redrive.cli import main\nsys.argv = ['redrive', 'demo']\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (70, "")
    assert done.stderr == "redrive: duckdb is not installed: pip install 'redrive[rows,http]'\n"
    assert list(tmp_path.iterdir()) == []


def test_program_is_named_as_found_on_the_path(tmp_path, monkeypatch):
    scripts = Path(sys.executable).parent
    monkeypatch.delenv("REDRIVE_STORE", raising=False)
    monkeypatch.setenv("PATH", str(scripts))
    assert as_typed(tmp_path) == "redrive"
    monkeypatch.setenv("PATH", "/usr/bin")
    assert as_typed(scripts.parent / "redrive-demo") == "../bin/redrive"
    assert (tmp_path / as_typed(tmp_path)).samefile(scripts / "redrive")
