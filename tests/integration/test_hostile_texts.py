"""Texts that could hang a program: a run, a call and a listing end as they do with any other text."""

import json
import signal
import subprocess
import time

import httpx
import pytest

import redrive
from redrive.testing import Answer, FaultyServer
from tests.support.warm_python import warm_python

# A quote that is never closed with escapes behind it, names that lead to nothing, cards beside numbers.
PIECES = ("apikey =            ", "cookie:\t\t\t", "4111 1111 1111 1111 1.5 ", "key='\\a", "auth=('", "eyJaaaaaaaa-")
LONG = 'token="' + "\\a" * 40 + "\n" + "".join(piece * (8_000 // len(piece)) for piece in PIECES)

PROGRAM = """
import csv, itertools, pathlib
import redrive


def rows():
    with open("in.csv", newline="") as file:
        cells = list(csv.DictReader(file))
    for n, row in enumerate(itertools.cycle(cells)):
        if n == 20:
            pathlib.Path("reached").touch()
        yield {"id": n, "fee": row["fee"]}


def check(row):
    if row["fee"] != "1":
        raise ValueError(f"fee is not a number: {row['fee']}")
    return row


pipeline = redrive.Pipeline(
    "hostile",
    source=redrive.rows.records(rows),
    validate=check,
    sink=redrive.rows.table("sqlite:///warehouse.db", "fees", key="id", create=True),
    batch=5,
    gate=redrive.Gate(page=1.0, abort=1.0),
)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(PROGRAM)
    quoted = LONG.replace('"', '""')
    (tmp_path / "in.csv").write_text(f'id,fee\n1,1\n2,"{quoted}"\n')
    return tmp_path


def redrive_command(*words):
    return subprocess.Popen(
        warm_python("-m", "redrive.cli", *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process):
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, out, err


class TestRun:
    def test_deadline_stops_the_run(self, here):
        code, out, err = ended(redrive_command("run", "job.py", "--json", "--deadline", "1s"))
        assert (code, json.loads(out)["status"]) == (75, "stopped"), err
        assert json.loads(out)["rejected"] > 0

    def test_sigterm_stops_the_run(self, here):
        process = redrive_command("run", "job.py", "--json")
        ends = time.monotonic() + 60
        while not (here / "reached").exists() and time.monotonic() < ends:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        code, out, err = ended(process)
        assert (code, json.loads(out)["status"]) == (75, "stopped"), err


@pytest.mark.parametrize("command", [["ls"], ["ls", "--json"], ["show", "1"], ["causes"]], ids=" ".join)
def test_letter_is_shown(here, command):
    with redrive.connect() as store:
        store.dlq.put({"id": 1, "fee": LONG, LONG: [LONG]}, f"fee: {LONG}", pipeline="hostile", key="1")
    code, out, err = ended(redrive_command("dlq", *command))
    assert (code, err) == (0, "")
    assert "hostile" in out


def test_timeout_of_a_service_ends_the_call():
    service = redrive.Service("bank", timeout=0.2, retry=redrive.Retry(attempts=2, base=0.001, cap=0.002))
    with FaultyServer() as server, httpx.Client(base_url=server.url, transport=service.httpx_transport()) as client:
        server.on("/", Answer(500, body=f"<html><p>{LONG}"), Answer(hang=True))
        with pytest.raises(httpx.ReadTimeout):
            client.get("/")
        assert server.count("/") == 2
