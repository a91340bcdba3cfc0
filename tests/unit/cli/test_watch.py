"""`redrive watch`: its output, the options that it rejects, and its side effects."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import urllib.request
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import delete, insert, update

import redrive
from redrive.store.retention import finished
from redrive.store.schema import leases, letters, runs
from redrive.testing import Answer, FaultyServer
from tests.support.retention import left, ran
from tests.support.warm_python import cold_python, warm_python

PATIENCE = 60.0
PROBES = """
from redrive.types import Lag

def billing():
    return Lag(consumer="billing", messages=20_000)

def broken():
    raise ConnectionError("no broker")
"""


@pytest.fixture
def failed(store):
    """Record a failed run whose process sent no alert."""

    def failed(name="vendor", reason="no space left on device"):
        then = datetime.now(UTC) - timedelta(minutes=5)
        row = {
            "run_id": uuid.uuid4(),
            "pipeline_name": name,
            "status": "failed",
            "source": "deliveries.csv",
            "sink": "deliveries",
            "started_at": then,
            "updated_at": then,
            "ended_at": then,
            "reason": reason,
            "error_kind": "permanent",
        }
        store.database.write(lambda connection: connection.execute(insert(runs), row))

    return failed


@pytest.fixture
def settings(here):
    """Writes redrive.toml."""
    return lambda text: (here / "redrive.toml").write_text(text)


def test_second_look_reports_nothing_new(run, failed, store):
    failed()
    answer = run("watch", "--once")
    assert answer.code == 0
    ((at, what, number, urgency, subject, title),) = answer.rows
    assert (what, number, urgency, subject) == ("opened", "1", "P1", "vendor")
    assert "no space left" in title
    datetime.fromisoformat(at)
    (row,) = run("watch", "--once").rows
    assert row[1] == "found"
    assert len(store.alerts.sends(1)) == 1


def test_each_change_is_one_json_document(run, failed):
    failed("orders")
    failed("vendor", reason="KeyError: 'fee'")
    lines = [json.loads(line) for line in run("watch", "--once", "--json").out.splitlines()]
    assert [(one["what"], one["subject"]["name"]) for one in lines] == [("opened", "orders"), ("opened", "vendor")]


def test_each_change_is_one_line_on_a_terminal(terminal, failed):
    failed()
    (line,) = terminal("watch", "--once", columns=200).out.splitlines()
    assert re.fullmatch(r"\d\d:\d\d  P1 opened +vendor .*no space left on device.* \(alert 1\)", line)
    (line,) = terminal("watch", "--once", columns=200).out.splitlines()
    assert re.fullmatch(r"\d\d:\d\d  P1 is open +vendor .* \(alert 1\)", line)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--every", "soon"), '--every must be a span such as "90s", "5min" or "1h"'),
        (("--every", "0"), "--every must be more than 0 seconds"),
        (
            ("--listen", "nowhere"),
            "the address to listen on must be a host and a port, such as 127.0.0.1:9464, not 'nowhere'",
        ),
        (("--textfile", "metrics.txt"), "metrics.txt would not be read"),
        (("--textfile", "no/such/place.prom"), "no/such/place.prom cannot be written"),
        (("--once", "--every", "5s"), "--once excludes --every: it evaluates once. Remove one of them"),
        (("--once", "--listen", "127.0.0.1:0"), "--once excludes --listen: it evaluates once. Remove one of them"),
    ],
)
def test_invalid_watch_is_rejected_in_a_sentence(run, store, words, sentence):
    answer = run("watch", *words)
    assert answer.code == 64
    assert answer.sentence.startswith(sentence)
    assert answer.out == ""


def test_port_in_use_is_reported(run, store):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        answer = run("watch", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert answer.code == 64
    assert "another program listens there already" in answer.sentence


def test_missing_store_is_not_watched(run, here):
    answer = run("watch", "--once")
    assert (answer.code, (here / ".redrive").exists()) == (64, False)
    assert answer.sentence.startswith("there is no store at .redrive/redrive.db")


@pytest.mark.parametrize("configured", ["by a file", "by the environment"])
def test_configured_store_is_created_before_the_first_run(run, here, monkeypatch, configured):
    if configured == "by a file":
        (here / "redrive.toml").write_text('[pipelines.vendor]\nsla = "06:00 UTC"\n')
    else:
        monkeypatch.setenv("REDRIVE_STORE", "sqlite:///.redrive/redrive.db")
    assert run("watch", "--once").code == 0
    assert (here / ".redrive" / "redrive.db").exists()


def test_metrics_are_written_to_the_named_file(run, here, failed):
    failed()
    assert run("watch", "--once", "--textfile", "redrive.prom").code == 0
    assert "redrive_up 1" in (here / "redrive.prom").read_text()


# ── probes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_runs_are_purged_only_as_configured(run, store, settings):
    ran(store, *range(100, 102 + finished.NEWEST))
    assert run("watch", "--once").code == 0
    assert len(left(store)) == finished.NEWEST + 2
    settings('[retention]\nruns = "90d"\n')
    tomorrow = delete(leases).where(leases.c.name == "purge")
    store.database.write(lambda connection: connection.execute(tomorrow))
    assert run("watch", "--once").code == 0
    assert len(left(store)) == finished.NEWEST


def test_watch_purges_closed_letters_as_configured(run, store, settings):
    store.dlq.put_many([redrive.NewLetter({"id": n}, "bad", key=str(n)) for n in range(3)], pipeline="p", source="s")
    for key in ("0", "1"):
        store.dlq.discard(key=key, note="known")
    long_ago = datetime.now(UTC) - timedelta(days=40)
    old = update(letters).values(last_seen=long_ago)
    settled = update(letters).where(letters.c.settled_at.is_not(None)).values(settled_at=long_ago)
    store.database.write(lambda connection: [connection.execute(one) for one in (old, settled)])
    settings('[retention]\nletters = "60d"\n')
    assert run("watch", "--once").code == 0
    assert store.dlq.size().letters == 3
    settings('[retention]\nletters = "30d"\n')
    tomorrow = delete(leases).where(leases.c.name == "purge")
    store.database.write(lambda connection: connection.execute(tomorrow))
    assert run("watch", "--once").code == 0
    assert [one.key for one in store.dlq.find()] == ["2"]
    assert store.dlq.size().letters == 1


def test_runs_remain_while_their_results_directory_is_missing(run, store, settings):
    ran(store, *range(100, 102 + finished.NEWEST))
    settings('[retention]\nruns = "90d"\nfiles = "unmounted"\n')
    answer = run("watch", "--once")
    assert answer.code == 70
    assert "unmounted' of flow results does not exist" in answer.sentence
    assert len(left(store)) == finished.NEWEST + 2


def test_probes_are_found_beside_the_settings_and_called(run, store, settings, here, monkeypatch):
    (here / "probes.py").write_text(PROBES)
    settings('[alerts]\npersist = "1s"\nlags = ["probes.py:billing"]\n')
    (here / "below").mkdir()
    monkeypatch.chdir(here / "below")
    assert run("watch", "--once", "--store", here / ".redrive" / "redrive.db").code == 0
    (waiting,) = store.alerts.find()
    assert (waiting.condition, waiting.subject.name) == ("consumer_lag", "billing")


def test_failing_probe_is_logged_and_the_rest_continues(spawn, failed, settings, here):
    failed()
    (here / "probes.py").write_text(PROBES)
    settings('[alerts]\nlags = ["probes.py:broken"]\n')
    done = spawn("watch", "--once")
    assert done.returncode == 75
    assert "ConnectionError: no broker" in done.stderr
    assert "the evaluation is incomplete: cannot measure lags:" in done.stderr
    assert "\topened\t" in done.stdout


def test_omitted_unmeasured_names_are_counted(run, failed, settings, here):
    failed()
    own = '[conditions.own_{0:02}]\nquery = "SELECT n FROM gone"\nurl = "gone.db"\nabove = 1\nseverity = "P3"\n'
    settings("".join(map(own.format, range(17))))
    done = run("watch", "--once")
    assert done.code == 75
    assert "conditions:own_09 and 7 more. Everything else was evaluated" in done.err


@pytest.mark.parametrize(
    ("lags", "code", "sentence"),
    [
        ("gone.py:billing", 64, "there is no file "),
        ("probes.py:biling", 64, "has no name 'biling'; did you mean 'billing'?"),
        ("probes.py:Lag", 64, "is a class, not a probe"),
        ("bad.py:billing", 70, "bad.py"),
    ],
)
def test_invalid_probe_is_rejected_at_the_start(run, store, settings, here, lags, code, sentence):
    (here / "probes.py").write_text(PROBES)
    (here / "bad.py").write_text("import nothing_like_this\n")
    settings(f'[alerts]\nlags = ["{lags}"]\n')
    answer = run("watch", "--once")
    assert answer.code == code
    assert sentence in answer.sentence


# ── as a process ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def watching(store, here):
    """Start the watch as a process of its own, and return its stderr line by line."""
    begun = []

    def start(*words, python=warm_python):
        command = python("-W", "error", "-m", "redrive.cli", "watch", *words)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        begun.append(process)
        return process

    yield start
    for process in begun:
        process.kill()
        process.communicate()


def test_metrics_are_served_until_stopped(watching):
    process = watching("--listen", "127.0.0.1:0", "--every", "1s")
    url = process.stderr.readline().removeprefix("serving metrics at ").strip()
    assert re.match("^watching .*, every 1.0 s; times are UTC$", process.stderr.readline())
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        assert b"redrive_up 1" in answer.read()
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


def test_watch_continues_and_reports_new_findings(watching, failed, store):
    process = watching("--every", "1")
    process.stdout.readline()
    failed()
    assert process.stdout.readline().split("\t")[1] == "opened"
    store.alerts.acknowledge(1, by="anna")
    assert process.stdout.readline().split("\t")[1] == "acknowledged"
    store.alerts.resolve(1, by="anna", note="more disk")
    assert process.stdout.readline().split("\t")[1] == "resolved"
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("replaced", [True, False])
def test_watch_ends_when_its_store_is_replaced_or_removed(watching, store, here, replaced):
    process = watching("--every", "0.1")
    assert process.stderr.readline().startswith("watching ")
    file = here / ".redrive" / "redrive.db"
    copy = file.rename(here / "moved.db")
    if replaced:
        shutil.copy(copy, file)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 75
    # Who opens what is not there makes it, and an empty one is another one as well.
    was = "replaced by another file" if replaced else "(removed|replaced by another file)"
    assert re.search(f"redrive.db was {was} while it was watched; start the watch again\n", said)


def test_second_watch_reports_that_it_stands_by(watching):
    first = watching("--every", "1", python=cold_python)  # its own pid is looked for
    first.stderr.readline()
    second = watching("--every", "1")
    host = os.uname().nodename
    assert second.stderr.readline() == (
        f"standing by: process {first.pid} on {host} leads; this one takes over when it ends\n"
    )


def test_renamed_channel_is_used_and_the_old_one_is_named(run, failed, settings):
    with FaultyServer() as server:
        server.on("/old", Answer(503))
        server.on("/new", Answer(200))
        settings(f'[channels.hub]\nwebhook = "{server.url}/old"\n[routes]\nP1 = "hub"\n')
        failed()
        assert run("watch", "--once").err == ""
        settings(f'[channels.team]\nwebhook = "{server.url}/new"\n[routes]\nP1 = "team"\n')
        answer = run("watch", "--once")
        assert (answer.code, [one.path for one in server.requests].count("/new")) == (0, 1)
    waits = "channel hub is not configured here. A process whose redrive.toml has [channels.hub] delivers them"
    assert f"messages about alert 1 are waiting: {waits}" in answer.err
    listed = run("alerts", "ls")
    assert f"alert 1: messages are waiting: {waits}" in listed.err
    assert "hub: not configured here" in listed.out
