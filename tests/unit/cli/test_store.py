"""`redrive store`, and what is said of a store that is not there, not ours, or out of reach."""

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


def test_info_tells_where_the_store_is_and_how_full(run, put, store):
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


def test_info_on_a_terminal_is_for_people(terminal, put):
    put(1)
    shown = terminal("store", "info").out
    assert " MB" in shown
    assert " UTC, " in shown


def test_migrate_makes_a_store_and_says_when_there_is_nothing_to_do(run, here):
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


def test_a_purge_says_what_it_would_remove_and_then_removes_it(run, store, old_runs):
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


def test_a_person_is_asked_before_anything_is_removed(terminal, store, old_runs):
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
def test_a_purge_is_told_how_old_is_old(run, store, words, says):
    answer = run("store", "purge", *words)
    assert answer.code == 64
    assert says in answer.err
    assert "Traceback" not in answer.err


def test_results_are_looked_for_where_the_settings_say_unless_another_place_is_named(run, store, here, monkeypatch):
    monkeypatch.setenv("REDRIVE_RETENTION_FILES", "unmounted")
    answer = run("store", "purge", "--older-than", "90d")
    assert answer.code == 70
    assert answer.sentence.startswith("the directory 'unmounted' of flow results does not exist")
    assert run("store", "purge", "--older-than", "90d", "--files", here).code == 0


def test_what_is_gone_is_told_in_words():
    purged = finished.StorePurged(runs=1, flows=1, tasks=1_200, files=3, elsewhere=1, alerts=2, services=4)
    assert describe_purged(purged) == (
        "1 run of pipelines, 1 run of flows with 1,200 tasks and 3 files, 2 alerts, 4 quarters of an hour of services"
    )
    assert beside(purged, remote=True) == [
        "1 result was in a file that is not here, and stays there; where Flow(files=…) names a directory, say so with "
        "--files or in [retention] before the next purge"
    ]


def test_on_postgresql_the_schema_is_made_only_where_that_is_asked_for(run, server):
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


def test_letters_go_from_sqlite_to_postgresql(run, put, server):
    put(3)
    lines = run("dlq", "export").out
    run("store", "migrate", "--store", server)
    assert run("dlq", "import", "-", "--store", server, input=lines).err == "imported 3 letters\n"
    assert [row[5] for row in run("dlq", "ls", "--store", server).rows] == ["D-3", "D-2", "D-1"]
    assert run("dlq", "discard", "--pipeline", "vendor", "--note", "x", "--yes", "--store", server).code == 0
    assert [row[1] for row in run("dlq", "causes", "--all-statuses", "--store", server).rows] == ["3"]


# ── no store ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("words", READING, ids=lambda words: " ".join(words[:2]))
def test_to_ask_in_the_wrong_directory_leaves_no_trace(run, here, words):
    answer = run(*words)
    assert answer.code == 64
    assert answer.sentence == (
        "there is no store at .redrive/redrive.db. "
        "Change to the directory of your pipeline, or pass --store or set REDRIVE_STORE"
    )
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("url", ["x.db", "sqlite:///x.db", "sqlite:///x.db?cache=private"])
def test_a_named_file_that_is_not_there_is_not_made_either(run, here, url):
    assert run("dlq", "ls", "--store", url).sentence.startswith("there is no store at x.db")
    assert list(here.iterdir()) == []


def test_the_store_of_a_parent_directory_is_pointed_at(run, put, here, monkeypatch):
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
def test_a_url_that_is_no_stores_is_refused(run, url, words):
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
def test_url_with_a_password_in_the_wrong_place_is_refused(run, here, command, url, words):
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
def test_setting_with_a_password_in_the_wrong_place_is_refused(run, here, url):
    (here / "redrive.toml").write_text(f'[store]\nurl = "{url}"\n')
    answer = run("dlq", "ls")
    assert answer.code == 64
    assert "unencoded '@'" in answer.sentence or "'://'" in answer.sentence
    assert "secretA7" not in answer.out + answer.err


# ── a store that is not as it should be ───────────────────────────────────────────────────────────────────────────────


def test_a_file_that_is_no_database_is_said_to_be_none(run, here):
    (here / "notes.txt").write_text("not a database, whatever its name\n" * 100)
    answer = run("dlq", "ls", "--store", "notes.txt")
    assert answer.code == 70
    assert answer.sentence == "notes.txt: file is not a database; it is no SQLite database; name another file"


def test_a_newer_schema_is_refused(run, store, here):
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
def test_a_store_that_may_not_be_written_is_said_to_be_read_only(open_to_all):
    command = [sys.executable, "-c", WITHOUT_RIGHTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=open_to_all)
    assert done.returncode == 70
    assert done.stderr.partition("now\n")[2] == (
        "redrive: .redrive/redrive.db: attempt to write a readonly database; "
        "the file or its directory is read-only; nothing was changed\n"
    )


def test_a_wrong_password_is_a_matter_of_credentials(run, server):
    answer = run("dlq", "ls", "--store", server.replace("correct-horse", "hunter2"))
    assert answer.code == 77
    assert "check the user and the password of the store's URL" in answer.sentence
    assert "hunter2" not in answer.err


def test_a_database_that_is_not_there_is_permanent(run, server):
    answer = run("dlq", "ls", "--store", server + "_not")
    assert answer.code == 70
    assert "does not exist" in answer.sentence


def test_a_server_that_cannot_be_reached_is_down(run, monkeypatch):
    monkeypatch.setenv("REDRIVE_STORE_PATIENCE", "0")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]  # nobody listens there
        answer = run("dlq", "ls", "--store", f"postgresql://redrive:hunter2@127.0.0.1:{port}/prod")
    assert answer.code == 69
    assert "check that the server runs and is reachable; running again is safe" in answer.sentence
    assert "hunter2" not in answer.err


def test_a_database_that_another_process_keeps_busy_is_temporary(run, put, here, monkeypatch):
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
