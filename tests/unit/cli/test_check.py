"""`redrive check`: settings, targets and policies, before anything runs."""

import json

import pytest

PIPELINE = """
import redrive

shipfast = redrive.Service("shipfast"{options})
pipeline = redrive.Pipeline(
    "orders",
    source=redrive.rows.records([{{"id": 1}}]),
    sink=redrive.rows.table("sqlite:///sink.db", "orders", key="id", create=True),
)
"""


@pytest.fixture
def job(here):
    """Write a pipeline with a service beside it."""

    def job(options=""):
        (here / "job.py").write_text(PIPELINE.format(options=options))

    return job


class TestSettings:
    def test_valid_file_is_ok(self, run, here):
        (here / "redrive.toml").write_text('[store]\nurl = "here.db"\n')
        answer = run("check")
        assert answer.code == 0
        assert answer.rows == [["settings", "redrive.toml", "ok", ""]]

    def test_no_file_is_ok(self, run, here):
        assert run("check").rows == [["settings", "redrive.toml", "ok", "no file; defaults and variables"]]

    @pytest.mark.parametrize(
        ("text", "detail"),
        [
            ("[store]\nulr = 'x'\n", "store.ulr"),
            ("[letters]\nredact = ['a..b']\n", "letters.redact"),
            ("[routes]\nP1 = ['nowhere']\n", "nowhere"),
            ("[channels.oncall]\nwebhook = '${UNSET_URL}'\n[routes]\nP1 = ['oncall']\n", "UNSET_URL"),
        ],
        ids=["unknown key", "redaction", "unknown channel", "missing variable"],
    )
    def test_invalid_settings_end_with_64(self, run, here, text, detail):
        (here / "redrive.toml").write_text(text)
        answer = run("check", "--json")
        found = json.loads(answer.out)
        assert (answer.code, found["ok"]) == (64, False)
        assert detail in found["checks"][0]["detail"]

    def test_probe_that_cannot_be_imported_is_a_problem(self, run, here):
        (here / "redrive.toml").write_text('[alerts]\nlags = ["probes.py:lag"]\n')
        answer = run("check")
        assert answer.code == 64
        assert answer.rows[-1][:3] == ["probe", f"{here / 'probes.py'}:lag", "problem"]


class TestTargets:
    def test_target_is_imported_and_not_run(self, run, here, job):
        job()
        answer = run("check", "job.py:pipeline")
        assert answer.code == 0
        assert answer.rows[1] == ["target", "job.py:pipeline", "ok", "pipeline orders"]
        assert answer.rows[2][:3] == ["policy", "shipfast", "ok"]
        assert not (here / "sink.db").exists()
        assert not (here / ".redrive").exists()

    def test_attempts_that_exceed_the_time_limit_are_noted(self, run, job):
        job(", retry=redrive.Retry(attempts=9, base=60.0, within=60.0), breaker=None")
        answer = run("check", "job.py")
        assert answer.code == 0
        assert "within=60" in answer.rows[-1][3]

    def test_service_alone_is_a_target(self, run, job):
        job()
        assert run("check", "job.py:shipfast").rows[1][3] == "policy shipfast"

    @pytest.mark.parametrize(
        ("text", "target", "code"),
        [("", "nothing.py", 64), ("1 / 0\n", "job.py", 70), ("pipeline = 3\n", "job.py:pipeline", 64)],
        ids=["no file", "broken module", "not a pipeline"],
    )
    def test_target_that_cannot_run_has_its_exit_code(self, run, here, text, target, code):
        (here / "job.py").write_text(text)
        answer = run("check", target)
        assert answer.code == code
        assert answer.rows[-1][:3] == ["target", target, "problem"]

    def test_all_targets_are_checked_after_a_problem(self, run, job):
        job()
        assert [row[2] for row in run("check", "nothing.py", "job.py:pipeline").rows[1:3]] == ["problem", "ok"]


class TestConnect:
    def test_store_is_opened_with_its_schema(self, run, store):
        answer = run("check", "--connect")
        assert answer.code == 0
        assert answer.rows[-1][0] == "store"
        assert answer.rows[-1][3].startswith("schema version ")

    def test_missing_store_is_a_problem(self, run, here):
        answer = run("check", "--connect")
        assert (answer.code, answer.rows[-1][:3]) == (64, ["store", "--connect", "problem"])
        assert not (here / ".redrive").exists()
