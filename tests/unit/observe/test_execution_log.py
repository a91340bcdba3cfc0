"""The execution log: one line per step of a run, with stable fields in JSON and a readable sentence."""

import dataclasses
import json
import logging
import re
from pathlib import Path

import pytest

import redrive
from redrive.events.log_lines import fields_of
from redrive.observe.log import JsonFormatter, execution_log

EVENTS = logging.getLogger("redrive.events")
PAGE = Path(__file__).parents[3] / "docs" / "observe.md"


@pytest.fixture
def log(tmp_path):
    """The path of the file that the log is written to."""
    handler, level = execution_log(tmp_path / "redrive.jsonl"), EVENTS.level
    EVENTS.addHandler(handler)
    EVENTS.setLevel(logging.INFO)
    yield tmp_path / "redrive.jsonl"
    EVENTS.setLevel(level)
    EVENTS.removeHandler(handler)
    handler.close()


def lines(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def documented():
    """The fields of each event by the page."""
    table = PAGE.read_text().partition("## Execution log")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| \w+[^|]* \| (.+?) \|$", table, re.M)
    each = {name: re.findall(r"`(\w+)`", fields) for names, fields in rows for name in re.findall(r"`(\w+)`", names)}
    return {name: {field for field in fields if field != "tasks_success"} for name, fields in each.items()}


def pipeline(tmp_path, *, rows=100, bad=(), name="vendor", **options):
    def checked(record):
        if record["id"] in bad:
            raise ValueError("not a fee")
        return record

    return redrive.Pipeline(
        name,
        source=redrive.rows.records([{"id": number} for number in range(rows)]),
        validate=checked,
        sink=redrive.rows.parquet_dataset(tmp_path / "out", key="id"),
        store=redrive.connect(f"sqlite:///{tmp_path}/store.db"),
        batch=50,
        **options,
    )


class TestRun:
    def test_logs_start_batches_gate_and_end(self, log, tmp_path):
        report = pipeline(tmp_path, bad={3, 60}, gate=redrive.Gate(least=50)).run()
        found = lines(log)
        assert [line["event"] for line in found] == [
            *("RunStarted", "BatchWritten", "GateJudged", "BatchWritten", "GateJudged", "RunEnded"),
        ]
        assert {line["run_id"] for line in found} == {str(report.run_id)}
        first, last = (line for line in found if line["event"] == "BatchWritten")
        assert (first["batch"], first["read"], first["written"], first["rejected"]) == (1, 50, 49, 1)
        assert (last["batch"], last["read"], last["read_so_far"], last["rejected_so_far"]) == (2, 50, 100, 2)
        assert json.loads(last["checkpoint"]) == report.checkpoint
        assert last["message"].startswith("vendor batch 2: read 50, written 49, rejected 1 in ")
        assert last["message"].endswith(" s; checkpoint saved after 100 rows")
        assert (found[-1]["status"], found[-1]["written"], found[-1]["rate"]) == ("complete", 98, 0.02)

    def test_logs_a_retry(self, log, tmp_path):
        failures = iter([ConnectionResetError("reset by peer")])

        def transform(record):
            for error in failures:
                raise error
            return record

        pipeline(tmp_path, transform=transform).run()
        (retry,) = (line for line in lines(log) if line["event"] == "BatchRetried")
        assert (retry["level"], retry["step"], retry["retry"]) == ("WARNING", "prepare", 1)
        assert "reset by peer" in retry["reason"]

    def test_logs_the_reason_of_a_failure(self, log, tmp_path):
        def transform(record):
            raise redrive.PipelineError("postgresql://etl:hunter2hunter2@db/lake is not for you")

        with pytest.raises(redrive.RunStopped):
            pipeline(tmp_path, transform=transform).run()
        end = lines(log)[-1]
        assert (end["event"], end["status"], end["error"], end["kind"]) == (
            *("RunEnded", "failed", "PipelineError", "permanent"),
        )
        assert "is not for you" in end["reason"]
        assert "hunter2" not in log.read_text()

    def test_file_survives_logrotate(self, log, tmp_path):
        pipeline(tmp_path).run()
        before = len(lines(log))
        log.rename(tmp_path / "redrive.jsonl.1")
        pipeline(tmp_path, name="other").run()
        assert [line["pipeline"] for line in lines(log)] == ["other"] * before


class TestFields:
    def test_are_flat_and_documented(self, tmp_path):
        heard, known = [], documented()
        end = redrive.on_event(heard.append)
        try:
            pipeline(tmp_path, bad={3}).run()
            store = redrive.connect(f"sqlite:///{tmp_path}/store.db")
            store.dlq.replay(lambda records: None, any_pipeline=True, dry_run=False)
            flow = redrive.Flow("nightly", store=store)
            flow.task(lambda: 1, name="load", in_thread=True)
            flow.run()
            with pytest.raises(TimeoutError):
                redrive.Service("bank", retry=redrive.Retry(attempts=1)).call(_time_out)
        finally:
            end()
        for event in heard:
            found, name = fields_of(event), type(event).__name__
            if name in ("Attempt", "TaskEnded"):
                continue  # not in this log
            assert found.pop("event") == name
            assert all(not isinstance(value, dict) and not dataclasses.is_dataclass(value) for value in found.values())
            assert {field for field in found if not field.startswith("tasks_")} == known[name], name

    def test_of_every_event_are_documented(self):
        from redrive.model import calls, letters, runs, tasks

        modules = (calls, runs, tasks, letters)
        events = {
            name
            for module in modules
            for name, value in vars(module).items()
            if isinstance(value, type) and (value.__doc__ or "").startswith("Event:")
        } - {"TaskEnded", "Attempt"}
        assert events == set(documented())

    def test_are_masked_for_any_formatter(self, tmp_path, caplog):
        caplog.set_level(logging.INFO, "redrive.events")
        store = redrive.connect(f"sqlite:///{tmp_path}/store.db")
        store.dlq.put({"id": 1}, "bad", pipeline="token=ghp_abcdefghijklmnopqrstuvwxyz0123456789")
        (record,) = caplog.records
        assert "ghp_abcdef" not in record.pipeline
        assert json.loads(JsonFormatter().format(record))["event"] == "LettersPut"


def _time_out():
    raise TimeoutError
