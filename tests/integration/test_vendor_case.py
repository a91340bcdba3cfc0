"""The reference cases of the row runtime: the vendor's file, invalid files, and an API with faults."""

from __future__ import annotations

import gzip
import json
import sqlite3
import subprocess

import pytest

from tests.support.warm_python import warm_python

PIPELINE = """
import httpx
import redrive


def check(record):
    return {{**record, "fee": float(record["fee"])}}


def lenient(record):
    return {{**record, "fee": 0.0 if record["fee"] == "N/A" else float(record["fee"])}}


SINK = redrive.rows.table("sqlite:///warehouse.db", "deliveries", key="delivery_id")
vendor = redrive.Pipeline("vendor", source=redrive.rows.csv("deliveries.csv"), validate=check, sink=SINK)
fixed = redrive.Pipeline("vendor", source=redrive.rows.csv("deliveries.csv"), validate=lenient, sink=SINK)
raw = redrive.Pipeline(
    "raw", source=redrive.rows.csv("torture.csv"), sink=redrive.rows.table("sqlite:///warehouse.db", "raw", key="a"),
    gate=redrive.Gate(abort=1),
)
client = httpx.Client(base_url="{url}")
partner = redrive.Service("partner", retry=redrive.Retry(base=0.01, cap=0.05))


def fetch(page):
    return client.get(f"/pages/{{page}}").raise_for_status()


pages = redrive.Pipeline(
    "pages", source=redrive.rows.pages(partner, fetch, items="rows", bad_page="quarantine"), sink=SINK
)
"""


@pytest.fixture
def here(tmp_path):
    with sqlite3.connect(tmp_path / "warehouse.db") as connection:
        connection.execute("CREATE TABLE deliveries (delivery_id TEXT PRIMARY KEY, city TEXT, fee NUMERIC NOT NULL)")
        connection.execute("CREATE TABLE raw (a TEXT PRIMARY KEY, b TEXT)")
    (tmp_path / "jobs.py").write_text(PIPELINE.format(url="http://127.0.0.1:9"))
    return tmp_path


def redrive(here, *words):
    command = warm_python("-m", "redrive.cli", *words)
    return subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=100, check=False)


def told(answer):
    return json.loads(answer.stdout)


def count(here, table="deliveries"):
    with sqlite3.connect(here / "warehouse.db") as connection:
        return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def test_vendor_file_is_loaded_and_replayed(here):
    bad = set(range(0, 180_000, 33)[:5_400])
    with (here / "deliveries.csv").open("w") as file:
        file.write("delivery_id,city,fee\n")
        file.writelines(f"D-{n:06},Pune,{'N/A' if n in bad else n / 100}\n" for n in range(180_000))

    run = redrive(here, "run", "jobs.py:vendor", "--json")
    assert run.returncode == 0, run.stderr
    report = told(run)
    assert (report["written"], report["rejected"], report["rate"], report["tier"]) == (174_600, 5_400, 0.03, "P3")
    (alert,) = told(redrive(here, "alerts", "ls", "--json"))
    assert (alert["urgency"], alert["status"], alert["condition"]) == ("P3", "open", "new_letters")
    assert "5,400 of 180,000 rows rejected (3.0 %), all for one cause" in alert["title"]
    assert "could not convert string to float" in alert["title"]
    assert alert["facts"]["commands"][0] == f"redrive dlq causes --run {report['run_id'][:8]}"
    (cause,) = told(redrive(here, "dlq", "causes", "--json"))
    assert cause["count"] == 5_400
    rehearsal = told(redrive(here, "dlq", "replay", "--pipeline", "vendor", "--target", "jobs.py:fixed", "--json"))
    assert (rehearsal["dry_run"], rehearsal["reprocessed"]) == (True, 5_400)
    assert count(here) == 174_600
    replay = redrive(here, "dlq", "replay", "--pipeline", "vendor", "--target", "jobs.py:fixed", "--go", "--json")
    assert (replay.returncode, told(replay)["reprocessed"]) == (0, 5_400)
    assert count(here) == 180_000
    assert told(redrive(here, "dlq", "ls", "--status", "reprocessed", "--limit", "1", "--json"))


FILES = {
    "a BOM": (b"\xef\xbb\xbfa,b\n1,x\n2,y\n", 2),
    "CRLF": (b"a,b\r\n1,x\r\n2,y\r\n", 2),
    "ragged lines": (b"a,b\n1,x\n2\n3,y,z\n4,w\n", 4),
    "unclosed quotes": (b'a,b\n1,"x\n2,y\n3,"z"\n4,"w\n', 4),
    "NUL bytes": (b"a,b\n1,x\x00y\n2,y\n", 2),
    "Latin-1 in UTF-8": (b"a,b\n1,caf\xe9\n2,y\n", 2),
    "a field of 5 MB": (b"a,b\n1," + b"x" * 5_000_000 + b"\n2,y\n", 2),
    "empty lines": (b"a,b\n\n1,x\n\n\n2,y\n", 2),
    "duplicate headers": (b"a,b,a\n1,x,2\n", None),
    "header only": (b"a,b\n", 0),
    "empty": (b"", None),
    "truncated gzip": (gzip.compress(b"a,b\n" + b"".join(b"%d,x%d\n" % (n, n * n) for n in range(9_000)))[:-400], None),
}


@pytest.mark.parametrize(("content", "lines"), FILES.values(), ids=FILES)
def test_invalid_file_loses_no_row_and_shows_no_traceback(here, content, lines):
    (here / "torture.csv").write_bytes(content)
    run = redrive(here, "run", "jobs.py:raw", "--json")
    assert "Traceback" not in run.stderr
    if not run.stdout:
        assert run.stderr.startswith("redrive: ")
        assert run.stderr.count("\n") == 1
        return
    report = told(run)
    if lines is not None:
        assert (report["read"], report["status"]) == (lines, "complete")
    assert report["read"] == report["written"] + report["rejected"]
    assert count(here, "raw") == report["written"]


@pytest.mark.parametrize("kind", ["missing", "a directory"])
def test_missing_file_gives_one_sentence(here, kind):
    if kind == "a directory":
        (here / "torture.csv").mkdir()
    run = redrive(here, "run", "jobs.py:raw")
    assert (run.returncode, run.stdout) == (70, "")
    assert run.stderr.startswith("redrive: ")
    assert run.stderr.count("\n") == 1


def test_api_with_faults_delivers_every_page(here):
    from redrive.testing import Answer, FaultyServer

    def page(number):
        return Answer(json={"rows": [{"delivery_id": f"P-{number}-{n}", "city": "Pune", "fee": n} for n in range(5)]})

    with FaultyServer() as server:
        (here / "jobs.py").write_text(PIPELINE.format(url=server.url))
        for number in range(1, 21):
            server.on(f"/pages/{number}", page(number))
        server.on("/pages/7", Answer(503), page(7))
        server.on("/pages/9", Answer(body=b'{"rows": [{"deliv'))
        server.on("/pages/21", Answer(json={"rows": []}))
        report = told(redrive(here, "run", "jobs.py:pages", "--json"))
        assert (report["status"], report["written"]) == ("complete", 95)
        (letter,) = told(redrive(here, "dlq", "ls", "--json"))
        assert (letter["error_type"], letter["position"]) == ("page", "page 9")

        server.on("/pages/1", Answer(401))
        before = server.count()
        refused = redrive(here, "run", "jobs.py:pages", "--restart")
        assert refused.returncode == 77, refused.stderr
        assert server.count() == before + 1
