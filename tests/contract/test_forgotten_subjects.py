"""Removing a pipeline, flow or service: only its letters remain, and no deadline expects it."""

import pytest
from sqlalchemy import select

import redrive
from redrive.calls.metrics.publisher import MetricsBatch
from redrive.calls.metrics.window import MetricsWindow
from redrive.errors import FlowStopped, RunStopped, StoreError
from redrive.observe.figures import Reader
from redrive.policy.consensus import BreakerReport, ReportKind
from redrive.store.retention.forget import count_service, find_work, forget_service, forget_work
from redrive.store.schema import checkpoints, gauges, pipelines, replayed_rows, runs, task_runs, tasks
from tests.support.alerts import finding, judgement
from tests.support.run_history import MONDAY


def rows_of(store, *tables):
    return [
        store.database.read(lambda connection, one=one: len(connection.execute(select(one)).all())) for one in tables
    ]


def failing(name, store, tmp_path, error="the column fee is gone"):
    def source():
        yield {"id": 1, "fee": 1.0}
        raise redrive.Permanent(error)

    pipeline = redrive.Pipeline(
        name,
        source=redrive.rows.records(source),
        sink=redrive.rows.parquet_dataset(tmp_path / name, key="id"),
        store=store,
        patience=0,
    )
    with pytest.raises(RunStopped):
        pipeline.run()


def forget(store, name, tmp_path):
    found = forget_work(store.database, name, files=tmp_path)
    closed = store.alerts.retire(name, found.kinds, by="ops", run_ids=found.run_ids, params=found.params)
    return found, closed


class TestPipeline:
    def test_removes_all_data_but_letters(self, store, tmp_path):
        failing("vendor", store, tmp_path)
        note = {"name": "promise:vendor:06:30 UTC", "at": MONDAY, "value": 0.0}
        store.database.write(lambda connection: connection.execute(gauges.insert(), [note]))
        before = find_work(store.database, "vendor")
        assert (before.kinds, before.runs, before.unfinished) == (("pipeline",), 1, "failed")
        assert rows_of(store, runs, checkpoints, pipelines, gauges) == [1, 1, 1, 1]

        assert forget(store, "vendor", tmp_path) == (before, 1)
        assert rows_of(store, runs, checkpoints, pipelines, gauges) == [0, 0, 0, 0]
        figures = Reader(store.database).read()
        assert (figures.pipelines, dict(figures.alerts)) == ((), {})
        (alert,) = store.alerts.find()
        assert (str(alert.status), alert.resolution) == ("resolved", "closed by ops: vendor was forgotten")
        assert find_work(store.database, "vendor").kinds == ()

    def test_notes_of_its_replays_are_removed(self, store, tmp_path, put):
        put(2)
        store.dlq.replay(lambda records: [None] * len(records), pipeline="vendor", dry_run=False, canary=0)
        assert rows_of(store, replayed_rows) == [1]
        forget(store, "vendor", tmp_path)
        assert rows_of(store, replayed_rows) == [0]

    def test_replay_notes_about_other_pipelines_are_kept(self, store, tmp_path):
        for name in ("vendor", "orders"):
            failing(name, store, tmp_path)
        noted = {"sink": "", "written_at": MONDAY, "newest_letter": MONDAY}
        pairs = [("vendor", "orders"), ("orders", "vendor"), ("vendor", "vendor"), ("orders", "orders")]
        notes = [{"letters_of": one, "pipeline_name": other, **noted} for one, other in pairs]
        store.database.write(lambda connection: connection.execute(replayed_rows.insert(), notes))
        forget(store, "vendor", tmp_path)
        assert rows_of(store, replayed_rows) == [3]
        forget(store, "orders", tmp_path)
        assert rows_of(store, replayed_rows) == [0]

    def test_alert_shared_with_others_stays_open(self, store, tmp_path):
        for name in ("vendor", "orders"):
            failing(name, store, tmp_path, "disk full")
        (alert,) = store.alerts.find(status="open")
        assert set(alert.facts.affected) == {"vendor", "orders"}
        forget(store, "vendor", tmp_path)
        (alert,) = store.alerts.find(status="open")
        assert alert.evidence == {"run:orders:failed"}
        assert forget(store, "orders", tmp_path)
        assert store.alerts.find(status="open") == []

    def test_open_letters_prevent_removal_and_decided_ones_remain(self, store, tmp_path, put):
        failing("vendor", store, tmp_path)
        put(3)
        with pytest.raises(StoreError, match="has 3 open letters: replay or discard them first"):
            forget_work(store.database, "vendor", files=tmp_path)
        assert rows_of(store, runs, pipelines) == [1, 1]
        store.dlq.discard(pipeline="vendor", note="retired")
        assert forget_work(store.database, "vendor", files=tmp_path).letters == 3
        assert len(store.dlq.find(pipeline="vendor", status="discarded")) == 3

    def test_running_pipeline_is_rejected(self, store, tmp_path):
        def source():
            with pytest.raises(StoreError, match="is running"):
                forget_work(store.database, "vendor", files=tmp_path)
            yield {"id": 1}

        sink = redrive.rows.parquet_dataset(tmp_path / "vendor", key="id")
        redrive.Pipeline("vendor", source=redrive.rows.records(source), sink=sink, store=store).run()
        assert rows_of(store, runs) == [1]


def test_flow_is_forgotten_with_its_tasks_and_alerts(store, tmp_path):
    flow = redrive.Flow("settlement", store=store)

    @flow.task(in_thread=True, retry=redrive.Retry(attempts=1))
    def settle():
        raise redrive.Transient("away")

    with pytest.raises(FlowStopped):
        flow.run()
    assert len(store.alerts.find(status="open")) == 1
    found, closed = forget(store, "settlement", tmp_path)
    assert (found.kinds, found.runs, closed) == (("flow",), 1, 1)
    assert rows_of(store, task_runs, tasks, pipelines) == [0, 0, 0]


def test_service_is_forgotten_with_its_circuit_and_alerts(store):
    book = MetricsWindow()
    book.succeeded(MONDAY.timestamp(), [0.1] * 3)
    store.services.add(MetricsBatch("17-a", 1, {"bank": book, "post": book}))
    store.shared.publish([BreakerReport("bank", "worker-1", "17", ReportKind.OPEN, ago=3.0, retry_in=25.0)], [])
    subject = redrive.model.alerts.Subject(kind="service", name="bank")
    store.alerts.apply(judgement(finding("level:down:bank", key="service:bank:down", subject=subject)))
    assert count_service(store.database, "bank") == forget_service(store.database, "bank") > 0
    assert store.alerts.retire("bank", ["service"], by="ops") == 1
    assert (store.services.names(), store.shared.services()) == (["post"], [])
    assert store.alerts.find(status="open") == []
