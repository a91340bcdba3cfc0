"""`redrive dlq replay` without --target: each letter is sent to the target that rejected it."""

import json
import sqlite3
import sys
from contextlib import closing

import pytest

JOBS = """
import redrive

strict = True

def check(record):
    if strict and record["fee"] == "N/A":
        raise ValueError("fee is N/A")
    return record

def to(name, rows):
    sink = redrive.rows.table("sqlite:///{here}/warehouse.db", name, key="id", create=True)
    gate = redrive.Gate(warn=0.1, page=0.95, abort=1.0)
    return redrive.Pipeline(name, source=redrive.rows.records(rows), validate=check, sink=sink, gate=gate)

invoices = to("invoices", [{{"id": 1, "fee": "N/A"}}, {{"id": 2, "fee": "3"}}])
payments = to("payments", [{{"id": 9, "fee": "N/A"}}, {{"id": 8, "fee": "3"}}])
"""


@pytest.fixture
def jobs(here):
    path = here / "jobs.py"
    path.write_text(JOBS.format(here=here))

    def fix():
        path.write_text(path.read_text().replace("strict = True", "strict = False"))
        del sys.modules["jobs"]  # commands of a test share this process

    return fix


def test_letters_of_several_targets_are_sent_to_their_own(run, here, store, jobs):
    for name in ("invoices", "payments"):
        assert run("run", f"jobs.py:{name}").code == 0
    target = f"{here}/./jobs.py"
    assert store.dlq.targets() == {f"{target}:invoices": 1, f"{target}:payments": 1}
    jobs()
    answer = run("dlq", "replay", "--text", "N/A", "--go")
    assert answer.code == 0, answer.err
    assert answer.err.splitlines()[:2] == ["target jobs.py:invoices", "target jobs.py:payments"]
    assert [row[2] for row in answer.rows if row[0] == "selected"] == ["pipeline invoices", "pipeline payments"]
    assert store.dlq.count(status="reprocessed") == 2
    assert run("dlq", "replay").err.splitlines()[0] == "no letters selected"


def test_target_is_found_from_another_directory(run, here, store, jobs, monkeypatch):
    assert run("run", "jobs.py:invoices").code == 0
    jobs()
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    store_url = f"sqlite:///{here / '.redrive' / 'redrive.db'}" if (here / ".redrive").exists() else None
    monkeypatch.chdir(elsewhere)
    words = [] if store_url is None else ["--store", store_url]
    told = json.loads(run("dlq", "replay", "--json", *words).out)
    assert (told["target"], told["reprocessed"]) == (f"{here}/./jobs.py:invoices", 1)
    assert told["selected_by_target"] == {f"{here}/./jobs.py:invoices": 1}


def test_relative_paths_of_a_target_are_those_of_its_run(run, here, store, jobs, monkeypatch):
    (here / "jobs.py").write_text((here / "jobs.py").read_text().replace(f"{here}/warehouse.db", "warehouse.db"))
    assert run("run", "jobs.py:invoices").code == 0
    jobs()
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    answer = run("dlq", "replay", "--store", str(here / ".redrive" / "redrive.db"), "--go")
    assert answer.code == 0, answer.err
    assert not (elsewhere / "warehouse.db").exists()
    with closing(sqlite3.connect(here / "warehouse.db")) as connection:
        assert connection.execute("SELECT id FROM invoices ORDER BY id").fetchall() == [(1,), (2,)]


def test_targets_of_several_directories_are_not_mixed(run, here, store, jobs, monkeypatch):
    """Their modules may have the same names."""
    assert run("run", "jobs.py:invoices").code == 0
    other = here / "other"
    other.mkdir()
    (other / "tasks.py").write_text((here / "jobs.py").read_text())
    monkeypatch.chdir(other)
    assert run("run", "tasks.py:payments", "--store", str(here / ".redrive" / "redrive.db")).code == 0
    answer = run("dlq", "replay", "--store", str(here / ".redrive" / "redrive.db"), "--text", "N/A")
    assert answer.code == 64
    assert "letters of targets in 2 directories" in answer.err


def test_only_pipeline_of_a_file_is_stored_with_its_name(run, here, store):
    (here / "one.py").write_text(JOBS.format(here=here).replace("payments =", "_other ="))
    (here / "one.py").write_text((here / "one.py").read_text().rpartition("_other =")[0])
    assert run("run", "one.py").code == 0
    assert store.dlq.targets() == {f"{here}/./one.py:invoices": 1}


def test_letter_without_a_target_needs_one(run, put, store):
    put(2)
    answer = run("dlq", "replay", "--pipeline", "vendor", "--go")
    assert answer.code == 64
    assert "2 letters of the selection have no stored target" in answer.err
    assert "pass --target FILE:NAME. Nothing was changed" in answer.err
    assert store.dlq.count(status="pending") == 2


def test_alert_has_the_command_to_replay_the_letters_of_a_run(run, store, jobs):
    run("run", "jobs.py:invoices")
    (report,) = store.runs.find()
    answer = run("alerts", "show", "1")
    assert f'"redrive dlq replay --run {str(report.run_id)[:8]}"' in answer.out
    assert run("dlq", "replay", "--run", str(report.run_id)[:8]).rows[0][:2] == ["selected", "1"]


def test_stored_target_that_has_moved_needs_another(run, here, store, jobs):
    assert run("run", "jobs.py:invoices").code == 0
    (here / "jobs.py").rename(here / "moved.py")
    answer = run("dlq", "replay", "--go")
    assert answer.code == 64
    assert f"the letters were rejected by {here}/./jobs.py:invoices, which is not there any more" in answer.err
    assert "pass --target FILE:NAME" in answer.err
    assert run("dlq", "replay", "--target", "moved.py:invoices").rows[0][:2] == ["selected", "1"]


class TestSeveralTargets:
    @pytest.fixture
    def letters(self, run, here, store, jobs):
        """Two letters of each of two targets, in files of their own."""
        (here / "jobs.py").write_text((here / "jobs.py").read_text().replace('"fee": "3"', '"fee": "N/A"'))
        (here / "more.py").write_text((here / "jobs.py").read_text().replace("payments", "receipts"))
        for target in ("jobs.py:invoices", "more.py:receipts"):
            assert run("run", target).code == 0
        for name in ("jobs", "more"):
            path = here / f"{name}.py"
            path.write_text(path.read_text().replace("strict = True", "strict = False"))
            del sys.modules[name]

    def test_limit_applies_to_all_targets_together(self, run, store, letters):
        answer = run("dlq", "replay", "--text", "N/A", "--limit", 3, "--json")
        assert [one["attempted"] for one in json.loads(answer.out)["replays"]] == [2, 1]
        answer = run("dlq", "replay", "--text", "N/A", "--limit", 2, "--go")
        assert answer.code == 0, answer.err
        assert store.dlq.count(status="reprocessed") == 2
        assert store.dlq.count(status="open", pipeline="receipts") == 2

    @pytest.mark.parametrize(
        ("text", "code", "why"),
        [("import nothing_like_it", 70, "nothing_like_it"), ("invoices = None", 64, "replay's target is a function")],
    )
    def test_broken_target_does_not_stop_the_others(self, run, here, store, letters, text, code, why):
        (here / "jobs.py").write_text(text)
        answer = run("dlq", "replay", "--text", "N/A", "--go")
        assert answer.code == code, answer.err
        assert store.dlq.count(status="reprocessed", pipeline="receipts") == 2
        assert store.dlq.count(status="pending", pipeline="invoices") == 2
        (stopped,) = [line for line in answer.err.splitlines() if "stopped" in line]
        assert stopped.startswith("target jobs.py:invoices stopped: ")
        assert why in stopped

    def test_broken_target_is_in_the_json(self, run, here, store, letters):
        (here / "jobs.py").unlink()
        answer = run("dlq", "replay", "--text", "N/A", "--go", "--json")
        assert answer.code == 64
        broken, other = json.loads(answer.out)["replays"]
        assert (broken["selected"], broken["attempted"], other["reprocessed"]) == (2, 0, 2)
        assert "is not there any more" in broken["stopped"]

    def test_stopped_target_does_not_stop_the_others(self, run, here, store, letters):
        path = here / "jobs.py"
        path.write_text(path.read_text().replace("sqlite:///", "sqlite:////nowhere/"))
        answer = run("dlq", "replay", "--text", "N/A", "--go")
        assert answer.code != 0
        assert store.dlq.count(status="reprocessed", pipeline="receipts") == 2
        assert store.dlq.count(status="pending", pipeline="invoices") == 2


def test_letters_of_a_renamed_pipeline_use_its_former_name(run, here, store, jobs):
    assert run("run", "jobs.py:invoices").code == 0
    jobs()
    path = here / "jobs.py"
    path.write_text(path.read_text().replace('to("invoices"', 'to("bills"'))
    answer = run("dlq", "replay", "--go")
    assert "1 letter of other pipelines skipped (invoices: 1)" in answer.err
    assert "if the pipeline was renamed, pass its former name" in answer.err
    assert run("dlq", "replay", "--pipeline", "invoices", "--go").code == 0
    assert store.dlq.count(status="reprocessed") == 1
