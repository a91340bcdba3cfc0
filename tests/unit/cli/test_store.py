"""`redrive store`, and the errors for a store that is missing, not ours, or unreachable."""

import json
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import psycopg
import pytest

from redrive.cli.store import beside, describe_purged
from redrive.store.retention import finished
from tests.support.retention import left, ran

READING = [
    ["dlq", "causes"],
    ["dlq", "ls"],
    ["dlq", "show", "1"],
    ["dlq", "history", "x"],
    ["dlq", "export"],
    ["dlq", "purge"],
    ["dlq", "discard", "1", "--note", "x"],
    ["dlq", "edit", "1", "--undo"],
    ["store", "info"],
    ["store", "purge", "--older-than", "90d"],
    ["services", "ls"],
    ["services", "reset", "x"],
]


@pytest.fixture
def server(postgres_url):
    """The URL of an empty database of the test's own."""
    name = f"cli_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield postgres_url.rpartition("/")[0] + f"/{name}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


# ── info and migrate ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_info_shows_location_and_size_of_the_store(run, put, store):
    put(3)
    store.dlq.discard(ids=(1,), note="known")
    told = json.loads(run("store", "info", "--json").out)
    assert (told["url"], told["database"]) == (".redrive/redrive.db", "sqlite")
    assert told["schema_version"] == told["known_version"]
    assert (told["letters"], told["pending_by_pipeline"]) == (3, {"vendor": 2})
    assert told["by_status"] == {"pending": 2, "reprocessed": 0, "discarded": 1, "escalated": 0}
    assert told["bytes"] > 0
    plain = dict(run("store", "info").rows)
    assert (plain["letters"], plain["discarded"], plain["pending in vendor"]) == ("3", "1", "2")
    assert int(plain["size"]) == told["bytes"]
    assert plain["oldest pending"] == told["oldest_pending"]


def test_info_on_a_terminal_is_human_readable(terminal, put):
    put(1)
    shown = terminal("store", "info").out
    assert " MB" in shown
    assert " UTC, " in shown


def test_migrate_creates_a_store_or_reports_no_change(run, here):
    first = run("store", "migrate")
    assert first.code == 0
    assert first.err.startswith(".redrive/redrive.db was brought to schema version ")
    assert (here / ".redrive" / "redrive.db").exists()
    again = run("store", "migrate", "--json")
    assert json.loads(again.out)["changed"] is False
    assert again.err.startswith(".redrive/redrive.db is up to date, at schema version ")


# ── purge ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def old_runs(store):
    """Two more than it takes to learn what is usual."""
    ran(store, *range(100, 102 + finished.NEWEST))


def test_purge_shows_what_it_removes_before_removing_it(run, store, old_runs):
    would = run("store", "purge", "--older-than", "90d", "--dry-run")
    assert (would.code, would.out) == (0, "")
    assert would.err.splitlines() == [
        "would remove 2 runs of pipelines. Nothing was changed",
        "60 runs of that age stay: unfinished, waited for, or needed to say what is usual",
    ]
    assert len(left(store)) == finished.NEWEST + 2
    done = run("store", "purge", "--older-than", "90d", "--json")
    assert json.loads(done.out) == {
        **{"runs": 2, "flows": 0, "tasks": 0, "files": 0, "elsewhere": 0, "alerts": 0, "services": 0},
        **{"kept": finished.NEWEST, "dry_run": False},
    }
    assert "the file itself does not shrink, unless by SQLite's VACUUM" in done.err
    assert len(left(store)) == finished.NEWEST
    again = run("store", "purge", "--older-than", "90d")
    assert again.err.startswith("removed nothing\n")


def test_purge_asks_for_confirmation_on_a_terminal(terminal, store, old_runs):
    refused = terminal("store", "purge", "--older-than", "90d", keys="n\n")
    assert "Remove 2 runs of pipelines for good?" in refused.out
    assert (refused.code, len(left(store))) == (64, finished.NEWEST + 2)
    agreed = terminal("store", "purge", "--older-than", "90d", keys="y\n")
    assert (agreed.code, len(left(store))) == (0, finished.NEWEST)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--older-than"),
        (["--older-than", "soon"], 'older_than must be an age such as "2d"'),
        (["--older-than", "9999-01-01"], "older_than must lie in the past"),
    ],
)
def test_purge_needs_an_age(run, store, words, says):
    answer = run("store", "purge", *words)
    assert answer.code == 64
    assert says in answer.err
    assert "Traceback" not in answer.err


def test_results_are_in_the_configured_or_named_directory(run, store, here, monkeypatch):
    monkeypatch.setenv("REDRIVE_RETENTION_FILES", "unmounted")
    answer = run("store", "purge", "--older-than", "90d")
    assert answer.code == 70
    assert answer.sentence.startswith("the directory 'unmounted' of flow results does not exist")
    assert run("store", "purge", "--older-than", "90d", "--files", here).code == 0


def test_removed_data_is_described_in_text():
    purged = finished.StorePurged(runs=1, flows=1, tasks=1_200, files=3, elsewhere=1, alerts=2, services=4)
    assert describe_purged(purged) == (
        "1 run of pipelines, 1 run of flows with 1,200 tasks and 3 files, 2 alerts, 4 quarters of an hour of services"
    )
    assert beside(purged, remote=True) == [
        "1 result was in a file that is not here, and stays there; where Flow(files=…) names a directory, say so with "
        "--files or in [retention] before the next purge"
    ]


def test_schema_on_postgresql_is_created_on_request_only(run, server):
    answer = run("dlq", "ls", "--store", server)
    assert answer.code == 70
    assert "has no redrive schema: run `redrive store migrate`" in answer.sentence
    migrated = run("store", "migrate", "--store", server)
    assert migrated.code == 0
    assert "correct-horse" not in migrated.err
    assert run("dlq", "ls", "--store", server).err == "no open letters\n"
    told = json.loads(run("store", "info", "--json", "--store", server).out)
    assert told["database"] == "postgresql"
    assert ":***@" in told["url"]


def test_letters_are_moved_from_sqlite_to_postgresql(run, put, server):
    put(3)
    lines = run("dlq", "export").out
    run("store", "migrate", "--store", server)
    assert run("dlq", "import", "-", "--store", server, input=lines).err == "imported 3 letters\n"
    assert [row[5] for row in run("dlq", "ls", "--store", server).rows] == ["D-3", "D-2", "D-1"]
    assert run("dlq", "discard", "--pipeline", "vendor", "--note", "x", "--yes", "--store", server).code == 0
    assert [row[1] for row in run("dlq", "causes", "--all-statuses", "--store", server).rows] == ["3"]


# ── no store ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("words", READING, ids=lambda words: " ".join(words[:2]))
def test_query_in_the_wrong_directory_creates_no_file(run, here, words):
    answer = run(*words)
    assert answer.code == 64
    assert answer.sentence == (
        "there is no store at .redrive/redrive.db. "
        "Change to the directory of your pipeline, or pass --store or set REDRIVE_STORE"
    )
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("url", ["x.db", "sqlite:///x.db", "sqlite:///x.db?cache=private"])
def test_named_missing_file_is_not_created(run, here, url):
    assert run("dlq", "ls", "--store", url).sentence.startswith("there is no store at x.db")
    assert list(here.iterdir()) == []


def test_store_of_a_parent_directory_is_suggested(run, put, here, monkeypatch):
    put(1)
    (here / "jobs").mkdir()
    monkeypatch.chdir(here / "jobs")
    path = here / ".redrive" / "redrive.db"
    assert f"There is one at {path}: pass --store {path}" in run("dlq", "ls").sentence


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://h/d", "a store is SQLite or PostgreSQL, not mysql"),
        ("://", "the store's URL cannot be read"),
        ("sqlite://", "a store in memory would lose its letters"),
    ],
)
def test_url_of_another_database_is_rejected(run, url, words):
    answer = run("dlq", "ls", "--store", url)
    assert answer.code == 64
    assert answer.sentence.startswith(words)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://etl:Pa55@secretA7@127.0.0.1:1/dw", "the password in the URL has an unencoded '@'; write %40"),
        ("postgresql:/etl:secretA7@127.0.0.1/dw", "the store cannot be opened: it looks like a URL without its '://'"),
        ("etl:secretA7@127.0.0.1/dw", "the store cannot be opened: it looks like a URL without its '://'"),
    ],
)
@pytest.mark.parametrize("command", [["dlq", "ls"], ["store", "migrate"]], ids=" ".join)
def test_url_with_a_misplaced_password_is_rejected(run, here, command, url, words):
    answer = run(*command, "--store", url)
    assert answer.code == 64
    assert answer.sentence.startswith(words)
    assert "secretA7" not in answer.out + answer.err
    assert list(here.iterdir()) == []


def test_password_in_a_path_is_masked(run, here):
    answer = run("dlq", "ls", "--store", "sqlite:///etl:secretA7@127.0.0.1/dw")
    assert answer.code == 64
    assert answer.sentence.startswith("there is no store at etl:***@127.0.0.1/dw")


@pytest.mark.parametrize(
    "url",
    ["postgresql://etl:Pa55@secretA7@127.0.0.1:1/dw", "postgresql:/etl:secretA7@h/dw", "etl:secretA7@127.0.0.1/dw"],
)
def test_setting_with_a_misplaced_password_is_rejected(run, here, url):
    (here / "redrive.toml").write_text(f'[store]\nurl = "{url}"\n')
    answer = run("dlq", "ls")
    assert answer.code == 64
    assert "unencoded '@'" in answer.sentence or "'://'" in answer.sentence
    assert "secretA7" not in answer.out + answer.err


# ── a store that is not as it should be ───────────────────────────────────────────────────────────────────────────────


def test_file_that_is_no_database_is_reported(run, here):
    (here / "notes.txt").write_text("not a database, whatever its name\n" * 100)
    answer = run("dlq", "ls", "--store", "notes.txt")
    assert answer.code == 70
    assert answer.sentence == "notes.txt: file is not a database; it is no SQLite database; name another file"


def test_newer_schema_is_rejected(run, store, here):
    with sqlite3.connect(here / ".redrive" / "redrive.db") as connection:
        connection.execute("UPDATE redrive_schema SET version_num = '9999'")
    connection.close()
    for words in (["dlq", "ls"], ["store", "info"], ["store", "migrate"]):
        answer = run(*words)
        assert answer.code == 70
        assert "has schema version 9999, and this redrive knows none beyond" in answer.sentence
        assert "upgrade redrive" in answer.sentence


@pytest.fixture
def open_to_all(put, here):
    """A copy of the store where others may look as well: pytest's own directories are closed to them."""
    put(1)
    with tempfile.TemporaryDirectory(prefix="redrive-cli-") as directory:
        place = Path(directory)
        place.chmod(0o755)
        shutil.copytree(here / ".redrive", place / ".redrive")
        yield place


# Root may write anywhere, and others may not be able to read this Python: what is needed is imported before the switch.
WITHOUT_RIGHTS = """
import os, sys
from pathlib import Path
from redrive.cli import main

def run(*words):
    sys.argv = ["redrive", *words]
    try:
        main()
    except SystemExit as end:
        return end.code

run("dlq", "discard", "1", "--note", "x"), run("dlq", "reopen", "1"), run("dlq", "show", "99")
for path in (*Path(".redrive").iterdir(), Path(".redrive")):
    path.chmod(0o555)
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
print("now", file=sys.stderr)
sys.exit(run("dlq", "discard", "1", "--note", "x"))
"""


@pytest.mark.process
@pytest.mark.bare
def test_read_only_store_is_reported_as_read_only(open_to_all):
    command = [sys.executable, "-c", WITHOUT_RIGHTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=open_to_all)
    assert done.returncode == 70
    assert done.stderr.partition("now\n")[2] == (
        "redrive: .redrive/redrive.db: attempt to write a readonly database; "
        "the file or its directory is read-only; nothing was changed\n"
    )


def test_wrong_password_is_a_credentials_error(run, server):
    answer = run("dlq", "ls", "--store", server.replace("correct-horse", "hunter2"))
    assert answer.code == 77
    assert "check the user and the password of the store's URL" in answer.sentence
    assert "hunter2" not in answer.err


def test_missing_database_is_permanent(run, server):
    answer = run("dlq", "ls", "--store", server + "_not")
    assert answer.code == 70
    assert "does not exist" in answer.sentence


def test_unreachable_server_is_down(run, monkeypatch):
    monkeypatch.setenv("REDRIVE_STORE_PATIENCE", "0")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]  # a closed port
        answer = run("dlq", "ls", "--store", f"postgresql://redrive:hunter2@127.0.0.1:{port}/prod")
    assert answer.code == 69
    assert "check that the server runs and is reachable; running again is safe" in answer.sentence
    assert "hunter2" not in answer.err


def test_database_locked_by_another_process_is_temporary(run, put, here, monkeypatch):
    put(1)
    monkeypatch.setenv("REDRIVE_STORE_PATIENCE", "0")
    other = sqlite3.connect(here / ".redrive" / "redrive.db", isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        answer = run("dlq", "discard", 1, "--note", "x")
    finally:
        other.close()
    assert answer.code == 75
    assert "another process keeps the file locked; running again is safe" in answer.sentence
