"""The program as a whole: help, invalid arguments, exit codes, stdout and stderr."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

import redrive
from redrive.cli import exit_codes
from redrive.cli.app import NOUNS
from redrive.errors import LetterError, ReplayStopped, StoreError
from redrive.model.calls import Kind
from tests.support.warm_python import warm_python

HEAVY = ["sqlalchemy", "alembic", "rich", "psycopg", "pydantic", "redrive.dlq.queue", "redrive.connect"]


def imported_by(*words, of=HEAVY):
    program = (
        "import sys\nfrom redrive.cli import main\n"
        f"sys.argv = ['redrive', *{list(words)!r}]\n"
        "try: main()\nexcept SystemExit as end: assert not end.code, end.code\n"
        f"print('imported:', *[name for name in {of} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.rpartition("imported:")[2].split()


@pytest.mark.process
@pytest.mark.parametrize("words", [[], ["--help"], ["--version"], ["-h"]])
def test_help_imports_nothing_heavy(words):
    assert imported_by(*words) == []


@pytest.mark.process
@pytest.mark.parametrize(
    "words",
    [["dlq", "--help"], ["dlq", "replay", "--help"], ["services", "-h"], ["store", "-h"], ["tasks", "ls", "-h"]],
)
def test_help_of_a_command_imports_no_database_and_no_tables(words):
    # typer itself brings pydantic as soon as an option takes a value
    assert set(imported_by(*words)) <= {"pydantic"}


RUNTIMES = ["redrive.rows.pipeline", "redrive.tasks.flow"]
FLOW = "flow = redrive.Flow('f')\nflow.task(name='t', in_thread=True)(lambda: 1)\n"
PIPELINE = (
    "pipeline = redrive.Pipeline('p', source=redrive.rows.records([]), "
    "sink=redrive.rows.table('sqlite:///t.db', 't', key='id', create=True))\n"
)


@pytest.mark.process
@pytest.mark.parametrize(
    ("program", "imported"), [(FLOW, RUNTIMES[1:]), (PIPELINE, RUNTIMES[:1])], ids=["flow", "pipeline"]
)
def test_run_imports_only_what_it_runs(here, program, imported):
    (here / "work.py").write_text(f"import redrive\n{program}")
    assert imported_by("run", "--quiet", "work.py", of=RUNTIMES) == imported


def test_version_is_printed(run):
    assert run("--version") == (0, f"redrive {redrive.__version__}\n", "")


def test_help_lists_every_noun_with_its_purpose(run):
    for words in ([], ["--help"], ["-h"]):
        answer = run(*words)
        assert answer.code == 0
        assert all(text in " ".join(answer.out.split()) for text in NOUNS.values())


def test_help_of_a_noun_shows_its_commands(run):
    answer = run("dlq", "--help")
    assert answer.code == 0
    for name in [
        "causes",
        "ls",
        "show",
        "history",
        "replay",
        "edit",
        "discard",
        "escalate",
        "reopen",
        "purge",
        "export",
        "import",
    ]:
        assert f"\n  {name} " in answer.out


@pytest.mark.parametrize(
    ("noun", "meant"),
    [
        ("dlq", "causes"),
        ("runs", "ls"),
        ("tasks", "ls"),
        ("services", "ls"),
        ("alerts", "ls"),
        ("store", "info"),
        ("simulate", "--help"),
    ],
)
def test_noun_alone_runs_its_most_used_command(run, store, noun, meant):
    for options in ([], ["--json"]):
        assert run(noun, *options) == run(noun, *options, meant)


def test_help_of_a_noun_describes_its_commands_in_sentences(run):
    for noun in NOUNS:
        assert "..." not in run(noun, "--help").out.partition("Commands:")[2]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["dlqq"], "no such command 'dlqq', did you mean 'dlq'? See `redrive --help`"),
        (["dlq", "lss"], "no such command 'lss', did you mean 'ls'? See `redrive dlq --help`"),
        (["dlq", "ls", "--pipelin", "x"], "no such option: --pipelin (Possible options: --pipeline"),
        (["dlq", "ls", "--limit", "many"], "invalid value for '--limit'"),
        (["dlq", "ls", "--limit", "0"], "invalid value for '--limit'"),
        (["dlq", "show"], "missing argument 'ID'; see `redrive dlq show --help`"),
        (["dlq", "show", "first"], "invalid value for 'ID'"),
        (["dlq", "discard", "1"], "missing option '--note'; see `redrive dlq discard --help`"),
        (["dlq", "ls", "--store"], "option '--store' requires an argument"),
        (["dlq", "history", "a", "b"], "got unexpected extra argument"),
    ],
)
def test_invalid_arguments_are_a_usage_error_in_one_sentence(run, words, sentence):
    answer = run(*words)
    assert answer.code == 64
    assert answer.out == ""
    assert answer.sentence.startswith(sentence)


def test_common_options_are_accepted_in_any_position(run, store, put):
    put(1)
    url = "sqlite:///.redrive/redrive.db"
    for words in (
        ["--store", url, "--json", "dlq", "ls"],
        ["dlq", "--json", f"--store={url}", "ls"],
        ["dlq", "ls", "--store", url, "--json"],
    ):
        answer = run(*words)
        assert answer.code == 0
        assert [letter["key"] for letter in json.loads(answer.out)] == ["D-1"]


def test_last_of_two_store_options_counts(run, store, put):
    put(1)
    answer = run("--store", "elsewhere.db", "dlq", "ls", "--store", ".redrive/redrive.db")
    assert (answer.code, len(answer.rows)) == (0, 1)


def test_store_may_be_set_by_environment_or_file(run, store, put, here, monkeypatch):
    put(1)
    below = here / "jobs"
    below.mkdir()
    monkeypatch.chdir(below)
    assert run("dlq", "ls").code == 64
    (here / "redrive.toml").write_text("[store]\nurl = '.redrive/redrive.db'\n")
    assert len(run("dlq", "ls").rows) == 1
    monkeypatch.setenv("REDRIVE_STORE", "nowhere.db")
    assert "there is no store at nowhere.db" in run("dlq", "ls").sentence


def test_invalid_settings_are_a_usage_error(run, store, here):
    (here / "redrive.toml").write_text("[store]\nulr = 'x'\n")
    answer = run("dlq", "ls")
    assert answer.code == 64
    assert answer.sentence == f"{here / 'redrive.toml'}, line 2: store.ulr is not a setting; did you mean 'url'?"
    (here / "redrive.toml").write_text("[letters]\nredact = ['a..b']\n")
    assert run("dlq", "ls").sentence.startswith("letters.redact is not valid")


def test_debug_shows_no_value_that_is_masked_in_another_message(run, here):
    (here / "broken.py").write_text(
        "def connect(value):\n    try:\n        int(value)\n    except ValueError as error:\n"
        "        raise RuntimeError(f'password={value}') from error\n\nconnect('Zq77' + 'x')\n"
    )
    shown = run("run", "broken.py:flow", "--debug").err
    assert "base 10: '***'" in shown
    assert "RuntimeError: password=***" in shown
    assert "Zq77x" not in shown


def test_debug_shows_the_traceback_and_the_sentence(run, store):
    answer = run("dlq", "show", 99, "--debug")
    assert answer.code == 64
    assert "Traceback" in answer.err
    assert answer.err.endswith("redrive: there is no letter 99\n")


def test_unexpected_error_is_named_as_such(run, store, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("division by zero of password=hunter2")

    monkeypatch.setattr("redrive.dlq.queue.DeadLetters.find", broken)
    answer = run("dlq", "ls")
    assert answer.code == 70
    assert answer.sentence == (
        "internal error: ZeroDivisionError: division by zero of password=*** (run with --debug to see where)"
    )


@pytest.mark.process
def test_missing_extra_is_one_sentence(here):
    program = (
        "import sys\nsys.modules['psycopg'] = None\nfrom redrive.cli import main\n"
        "sys.argv = ['redrive', 'dlq', 'ls', '--store', 'postgresql://h/d']\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 70
    assert done.stderr == "redrive: psycopg is not installed: pip install 'redrive[postgres]'\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LetterError("x"), 64),
        (exit_codes.CommandRefused("x"), 64),
        (StoreError("x"), 70),
        (StoreError("x", kind=Kind.AUTH), 77),
        (StoreError("x", kind=Kind.TRANSIENT), 75),
        (StoreError("x", kind=Kind.RETRY_NOW), 75),
        (ReplayStopped("x"), 70),
        (ReplayStopped("x", kind=Kind.TRANSIENT), 75),
        (ReplayStopped("x", kind=Kind.RATE_LIMITED), 75),
        (ReplayStopped("x", kind=Kind.RETRY_NOW), 75),
        (ReplayStopped("x", kind=Kind.AUTH), 77),
        (ReplayStopped("x", kind=Kind.QUOTA), 77),
        (ReplayStopped("x", kind=Kind.AMBIGUOUS), 70),
        (RuntimeError("x"), 70),
    ],
)
def test_each_failure_has_its_documented_exit_code(error, code):
    assert exit_codes.exit_code(error) == code


@pytest.mark.process
def test_closed_pipe_is_no_error(put, here):
    put(3_000)
    export = shlex.join(warm_python("-W", "error", "-m", "redrive.cli", "dlq", "export"))
    command = f"{export} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    line, code = done.stdout.splitlines()
    assert json.loads(line)["source_key"] == "D-1"
    assert code == "141"
    assert done.stderr == ""


@pytest.mark.process
def test_interrupt_reports_saved_progress(put, here):
    put(3)
    (here / "slow.py").write_text(
        "import pathlib, time\ndef target(records):\n    pathlib.Path('reached').touch()\n    time.sleep(60)\n"
    )
    words = ["dlq", "replay", "--pipeline", "vendor", "--target", "slow.py:target", "--go"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is started deaf to it
    try:
        process = subprocess.Popen(
            warm_python("-m", "redrive.cli", *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    finally:
        signal.signal(signal.SIGINT, before)
    while not (here / "reached").exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines() == [
        "0 of 3 letters done",
        "redrive: interrupted; finished work is kept. Run the same command again to resume",
    ]


@pytest.mark.process
@pytest.mark.parametrize("imported", ["typer", "flow_file"])
@pytest.mark.parametrize(
    ("name", "code", "how"),
    [("SIGTERM", 75, "stopped by SIGTERM"), ("SIGHUP", 75, "stopped by SIGHUP"), ("SIGINT", 130, "interrupted")],
)
def test_signal_during_startup_ends_the_command_in_a_sentence(here, imported, name, code, how):
    """It arrives while a library of the program is imported, or the user's own module."""
    (here / f"{imported}.py").write_text(
        "import os, signal\n"
        "if not os.fork():\n    signal.raise_signal(signal.SIGTERM)\n"  # its child ends as any process does
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == -signal.SIGTERM\n"
        f"signal.raise_signal(signal.{name})\n"
    )
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # a shell may have ignored it
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; from redrive.cli import main; main()", "run", "flow_file.py:flow"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(here), *sys.path])},
        capture_output=True,
        text=True,
    )
    said = f"redrive: {how}; finished work is kept. Run the same command again to resume\n"
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)


@pytest.mark.process
@pytest.mark.parametrize("imported", ["typer", "flow_file"])
@pytest.mark.parametrize(
    ("name", "code", "how"), [("SIGTERM", 75, "stopped by SIGTERM"), ("SIGINT", 130, "interrupted")]
)
def test_signal_while_a_class_is_made_ends_the_command(here, imported, name, code, how):
    """Python before 3.12 makes a RuntimeError of what is raised in `__set_name__`."""
    (here / f"{imported}.py").write_text(
        "import signal\n"
        "class Field:\n"
        f"    def __set_name__(self, owner, name):\n        signal.raise_signal(signal.{name})\n"
        "class Model:\n    field = Field()\n"
    )
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; from redrive.cli import main; main()", "run", "flow_file.py:flow"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(here), *sys.path])},
        capture_output=True,
        text=True,
    )
    said = f"redrive: {how}; finished work is kept. Run the same command again to resume\n"
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)


def test_character_the_terminal_lacks_is_escaped(put, spawn):
    put(1, error="Müller → 3")
    done = spawn("dlq", "ls", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "M\\xfcller \\u2192 3" in done.stdout


SIGNALLED_WHILE_CLOSING = """
import os, signal, redrive
from sqlalchemy.engine.default import DefaultDialect

def close(dialect, connection):
    _, _, file = next(connection.execute("PRAGMA database_list"))
    if os.path.basename(file) == {database!r}:
        signal.raise_signal(signal.{name})
    connection.close()

DefaultDialect.do_close = close
sink = redrive.rows.table("sqlite:///sink.db", "orders", append=True, create=True)
pipeline = redrive.Pipeline("orders", source=redrive.rows.csv("orders.csv"), sink=sink)
"""


@pytest.mark.process
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
class TestSignalDuringClose:
    def run(self, here, name, database):
        (here / "orders.csv").write_text("id\n1\n")
        (here / "job.py").write_text(SIGNALLED_WHILE_CLOSING.format(name=name, database=database))
        program = (
            "import redrive.cli, signal; signal.signal(signal.SIGINT, signal.default_int_handler); redrive.cli.main()"
        )
        return subprocess.run(
            [sys.executable, "-c", program, "run", "job.py:pipeline", "--json"],
            env={**os.environ, "REDRIVE_STORE": "store.db"},
            capture_output=True,
            text=True,
        )

    def test_finished_command_ends_with_its_own_code(self, here, name):
        done = self.run(here, name, "store.db")
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["written"] == 1

    def test_run_that_closes_its_sink_ends_in_a_sentence(self, here, name):
        done = self.run(here, name, "sink.db")
        assert done.returncode == {"SIGTERM": 75, "SIGINT": 130}[name]
        assert done.stderr.splitlines()[-1].endswith("finished work is kept. Run the same command again to resume")
        assert "Traceback" not in done.stderr


@pytest.mark.process
class TestModule:
    def run(self, module, *words):
        return subprocess.run(warm_python("-m", module, *words), capture_output=True, text=True, check=False)

    @pytest.mark.parametrize("module", ["redrive", "redrive.cli"])
    def test_module_runs_the_command_line(self, module):
        done = self.run(module, "--version")
        assert (done.returncode, done.stdout, done.stderr) == (0, f"redrive {redrive.__version__}\n", "")

    def test_module_shows_the_name_of_the_program(self):
        assert self.run("redrive", "dlq", "ls", "--help").stdout.startswith("Usage: redrive dlq ls ")

    def test_module_ends_with_the_exit_code_of_the_command(self):
        done = self.run("redrive", "nonsense")
        assert done.returncode == exit_codes.USAGE
        assert "nonsense" in done.stderr

    def test_import_of_the_module_runs_nothing(self):
        done = subprocess.run(warm_python("-c", "import redrive.__main__"), capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


class TestDuplicateOption:
    @pytest.mark.parametrize(
        ("words", "option"),
        [
            ("dlq ls --cause 12 --cause 34", "--cause"),
            ("dlq ls --limit 1 --limit=2", "--limit"),
            ("dlq ls --edited --unedited", "--edited"),
            ("dlq discard --text a --text b --note x", "--text"),
            ("dlq discard 1 --note x --note y", "--note"),
            ("dlq --store a.db --store b.db ls", "--store"),
            ("--store a.db --store b.db dlq ls", "--store"),
            ("tasks ls --state dead_letter --state running", "--state"),
            ("runs ls --limit 1 --limit 2", "--limit"),
        ],
    )
    def test_is_rejected_if_it_accepts_one_value(self, run, store, words, option):
        answer = run(*shlex.split(words))
        assert answer.code == exit_codes.USAGE
        assert option in answer.sentence
        assert "it takes one value and is given 2 times; see `redrive " in answer.sentence

    def test_is_accepted_if_it_accepts_several_or_none(self, run, store):
        assert run("dlq", "ls", "--json", "--json", "--id", 1, "--id", 2, "--key", "a", "--key", "b").out == "[]\n"

    def test_is_accepted_before_and_after_the_command(self, run, store):
        nowhere = ["--store", "nowhere.db"]
        assert run(*nowhere, "dlq", "ls", "--store", ".redrive/redrive.db").code == 0
