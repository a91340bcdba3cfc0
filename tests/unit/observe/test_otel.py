"""OpenTelemetry with its real SDK: spans of runs, batches, tasks and calls with durations and errors; metrics."""

import asyncio
import contextvars
import gc
import importlib
import subprocess
import sys
import threading
from datetime import UTC, datetime
from uuid import uuid4

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import redrive
from redrive.calls.function import MOST_ENDPOINTS, OTHER_ENDPOINT
from redrive.events.bus import everywhere
from redrive.model.runs import BatchWritten, Counts, RunStarted
from redrive.model.tasks import FlowEnded, FlowReport, FlowStarted, FlowStatus, TaskEnded
from redrive.observe import otel, spans
from redrive.policy.breaker import Breaker
from redrive.testing import Answer, FaultyServer, set_testing


class Telescope:
    """What a program's OpenTelemetry would have sent."""

    def __init__(self):
        self._spans, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.meters = MeterProvider([self._reader])
        self.end = otel.instrument(tracer_provider=self.tracers, meter_provider=self.meters)

    def spans(self, name=None):
        return [span for span in self._spans.get_finished_spans() if name in (None, span.name)]

    def span(self, name):
        (found,) = self.spans(name)
        return found

    def metric(self, name):
        """The points of a metric, by the values of their labels."""
        data = self._reader.get_metrics_data()
        found = [
            metric
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == f"redrive.{name}"
        ]
        return {
            tuple(value for _, value in sorted(point.attributes.items())): getattr(point, "value", point)
            for metric in found
            for point in metric.data.data_points
        }

    def close(self):
        self.end()
        self.meters.shutdown()
        self.tracers.shutdown()


@pytest.fixture
def sky():
    made = Telescope()
    yield made
    made.close()


@pytest.fixture
def store(tmp_path):
    with redrive.connect(tmp_path / "store.db") as opened:
        yield opened


@pytest.fixture(autouse=True)
def _no_waits():
    with set_testing():
        yield


@pytest.fixture
def pipeline(store, tmp_path):
    def make(rows=10, *, name="vendor", **options):
        def check(row):
            if row["fee"] == "N/A":
                raise ValueError("fee: not a number")
            return row

        made = [{"id": str(n), "fee": "N/A" if n % 5 == 0 else "1"} for n in range(rows)]
        sink = redrive.rows.table(f"sqlite:///{tmp_path / 'sink.db'}", name, key="id", create=True)
        options = {"validate": check, "batch": 4, "gate": redrive.Gate(abort=1), "store": store, **options}
        return redrive.Pipeline(name, source=redrive.rows.records(made), sink=sink, **options)

    return make


@pytest.fixture
def flow(store, tmp_path):
    return redrive.Flow("settlement", store=store, workers=2, files=tmp_path / "results")


def nanoseconds(moment):
    return round(moment.timestamp() * 1e9)


def is_below(span, parent):
    return span.parent is not None and span.parent.span_id == parent.context.span_id


# ── runs and batches ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_run_is_a_span_with_a_span_for_each_batch_below(sky, pipeline):
    report = pipeline(10).run()
    run, batches = sky.span("run vendor"), sky.spans("batch")
    assert [batch.attributes["redrive.rows.read"] for batch in batches] == [4, 4, 2]
    assert all(is_below(batch, run) for batch in batches)
    assert run.status.status_code is StatusCode.UNSET
    assert run.attributes["redrive.pipeline"] == "vendor"
    assert run.attributes["redrive.run_id"] == str(report.run_id) == batches[0].attributes["redrive.run_id"]
    assert run.attributes["redrive.status"] == "complete"
    assert (run.attributes["redrive.rows.written"], run.attributes["redrive.rows.rejected"]) == (8, 2)
    assert (run.attributes["redrive.batches"], run.attributes["redrive.resumed"]) == (3, False)


def test_batch_span_is_within_its_run_with_its_duration(sky, pipeline):
    heard = []
    end = redrive.on_event(lambda event: heard.append(event) if isinstance(event, BatchWritten) else None)
    pipeline(4).run()
    end()
    run, batch = sky.span("run vendor"), sky.span("batch")
    assert batch.end_time - batch.start_time == round(heard[0].seconds * 1e9)
    assert run.start_time <= batch.start_time <= batch.end_time <= run.end_time


def test_run_belongs_to_the_span_in_which_it_was_started(sky, pipeline):
    with sky.tracers.get_tracer("mine").start_as_current_span("nightly"):
        pipeline(2).run()
    assert is_below(sky.span("run vendor"), sky.span("nightly"))


def test_gate_result_is_an_event_of_the_run(sky, pipeline):
    pipeline(10).run()
    judged = [event for event in sky.span("run vendor").events if event.name == "GateJudged"]
    assert judged[-1].attributes == {
        "redrive.tier": "P3",
        "redrive.rate": 0.2,
        "redrive.rejected": 2,
        "redrive.read": 10,
        "redrive.final": True,
    }


def test_failed_run_has_its_reason_without_secrets(sky, pipeline):
    def broken(row):
        raise PermissionError("https://partner.example/?api_key=hunter2hunter2 refused")

    with pytest.raises(redrive.RunStopped):
        pipeline(3, validate=None, transform=broken).run()
    run = sky.span("run vendor")
    assert run.status.status_code is StatusCode.ERROR
    assert "refused" in run.status.description
    assert run.attributes["redrive.status"] == "failed"
    assert run.attributes["error.type"] == "PermissionError"
    assert "hunter2" not in run.to_json()


def test_stopped_run_has_not_failed(sky, pipeline):
    made = pipeline(10)
    end = redrive.on_event(lambda event: made.stop() if isinstance(event, RunStarted) else None)
    with pytest.raises(redrive.RunStopped):
        made.run()
    end()
    run = sky.span("run vendor")
    assert (run.status.status_code, run.attributes["redrive.status"]) == (StatusCode.UNSET, "stopped")


# ── flows and tasks ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_task_attempt_is_a_span_below_its_flow_with_its_time(sky, flow):
    heard, failed = [], []

    @flow.task(in_thread=True, retry=redrive.Retry(attempts=2))
    def fetch():
        if not failed:
            failed.append(1)
            raise redrive.Transient("token=hunter2hunter2 was refused for now")
        return [1, 2]

    @flow.task(each=fetch, in_thread=True)
    def settle(part):
        return part

    end = redrive.on_event(lambda event: heard.append(event) if isinstance(event, TaskEnded) else None)
    report = flow.run()
    end()
    run, tries = sky.span("flow settlement"), sky.spans("task fetch")
    assert [span.attributes["redrive.state"] for span in tries] == ["RETRYING", "SUCCESS"]
    assert [span.attributes["redrive.attempt"] for span in tries] == [1, 2]
    assert [span.status.status_code for span in tries] == [StatusCode.ERROR, StatusCode.UNSET]
    assert tries[0].attributes["error.type"] == "transient"
    assert sorted(span.attributes["redrive.task"] for span in sky.spans("task settle")) == ["settle[0]", "settle[1]"]
    assert all(is_below(span, run) for span in sky.spans() if span is not run)
    assert (run.attributes["redrive.run_id"], run.attributes["redrive.tasks.success"]) == (str(report.run_id), 3)
    for event, span in zip(heard, [span for span in sky.spans() if span is not run], strict=True):
        assert (span.start_time, span.end_time) == (nanoseconds(event.started_at), nanoseconds(event.ended_at))
        assert run.start_time <= span.start_time <= span.end_time <= run.end_time
    (retried,) = [event for event in run.events if event.name == "TaskRetried"]
    assert (retried.attributes["redrive.task"], retried.attributes["redrive.attempt"]) == ("fetch", 1)
    assert "hunter2" not in "".join(span.to_json() for span in sky.spans())


@pytest.mark.process
def test_task_in_a_process_has_its_real_duration(sky, store, tmp_path, monkeypatch):
    (tmp_path / "otel_nightly.py").write_text(
        "import time, redrive\n"
        "flow = redrive.Flow('settlement', workers=1)\n"
        "@flow.task\n"
        "def load():\n"
        "    time.sleep(0.05)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("otel_nightly").flow.run(store=store)
    span = sky.span("task load")
    assert span.end_time - span.start_time >= 50_000_000
    assert span.attributes["redrive.ended"] == "returned"


def test_dead_task_is_an_event_of_a_failed_flow(sky, flow):
    @flow.task(in_thread=True)
    def settle():
        raise redrive.Permanent("no such account")

    with pytest.raises(redrive.FlowStopped):
        flow.run()
    run = sky.span("flow settlement")
    assert (run.status.status_code, run.status.description) == (StatusCode.ERROR, "1 dead letter")
    (dead,) = [event for event in run.events if event.name == "TasksDead"]
    assert dead.attributes["redrive.reason"] == "Permanent: no such account"
    assert sky.span("task settle").attributes["redrive.state"] == "DEAD_LETTER"


def test_unstarted_returned_job_is_no_attempt(sky, flow):
    """A task that waited for a worker when the executor stopped was not tried."""
    began, go = threading.Event(), threading.Event()

    @flow.task(in_thread=True)
    def parts():
        return list(range(40))

    @flow.task(each=parts, in_thread=True)
    def fetch(part):
        began.set()
        go.wait(30)

    def stop():
        began.wait(30)
        flow.stop()
        go.set()

    beside = threading.Thread(target=stop)
    beside.start()
    with pytest.raises(redrive.FlowStopped):
        flow.run()
    beside.join()
    tried = [span for span in sky.spans("task fetch") if span.attributes["redrive.ended"] == "returned"]
    assert sky.spans("task fetch") == tried
    assert 0 < len(tried) < 40


def test_attempts_cost_nothing_without_a_listener(flow, monkeypatch):
    from redrive.tasks.executor import events

    def refuse(**values):
        raise AssertionError("it was made")

    monkeypatch.setattr(events, "TaskEnded", refuse)
    flow.task(lambda: 1, name="load", in_thread=True)
    assert everywhere == []
    assert flow.run().status is FlowStatus.COMPLETE


# ── what must not leak, mix or harm ───────────────────────────────────────────────────────────────────────────────────


def test_concurrent_runs_have_separate_spans(sky, pipeline):
    made = [pipeline(8, name=f"vendor_{n}") for n in range(4)]
    threads = [threading.Thread(target=one.run) for one in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(4):
        run = sky.span(f"run vendor_{n}")
        batches = [batch for batch in sky.spans("batch") if is_below(batch, run)]
        assert [batch.attributes["redrive.pipeline"] for batch in batches] == [f"vendor_{n}"] * 2


def test_two_executors_at_one_run_have_a_span_each(sky):
    run_id, turn = uuid4(), threading.Barrier(2)

    def work():
        tell(FlowStarted(flow="settlement", run_id=run_id, resumed=False))
        turn.wait(30)
        tell(ended(run_id))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [span.attributes["redrive.status"] for span in sky.spans("flow settlement")] == ["complete"] * 2


def tell(event):
    for hook in list(everywhere):
        hook(event)


def began(name="vendor"):
    return RunStarted(pipeline=name, run_id=uuid4(), source="a", sink="b", resumed=False)


def ended(run_id):
    at = datetime.now(UTC)
    report = FlowReport(flow="settlement", run_id=run_id, status=FlowStatus.COMPLETE, started_at=at, seconds=1.0)
    return FlowEnded(report=report)


def test_span_of_a_dead_run_ends_when_its_thread_starts_another(sky):
    first, second = began(), began()
    tell(first)
    assert sky.spans() == []
    tell(second)
    lost = sky.span("run vendor")
    assert lost.attributes["redrive.run_id"] == str(first.run_id)
    assert (lost.status.status_code, lost.status.description) == (StatusCode.ERROR, "its end was never announced")


def test_inner_pipeline_ends_only_its_own_span(sky):
    tell(began("outer"))
    tell(began("inner"))
    assert sky.spans() == []


def test_number_of_open_runs_is_bounded(sky, monkeypatch):
    monkeypatch.setattr(spans, "MOST_OPEN", 3)
    for n in range(5):
        tell(began(f"p{n}"))
    assert [span.name for span in sky.spans()] == ["run p0", "run p1"]


def test_close_ends_all_spans_and_stops_listening(sky, pipeline):
    tell(began("lost"))
    sky.end()
    sky.end()
    assert [span.name for span in sky.spans()] == ["run lost"]
    pipeline(2).run()
    assert len(sky.spans()) == 1
    assert everywhere == []


def test_run_started_before_the_listener_is_no_error(sky):
    counts = Counts(read=2, written=2)
    written = BatchWritten(
        pipeline="vendor", run_id=uuid4(), counts=counts, so_far=counts, seconds=0.5, checkpoint=None
    )
    tell(written)
    tell(ended(uuid4()))
    assert sky.span("batch").parent is None


def test_failing_provider_harms_no_run_and_no_metric(pipeline, caplog):
    class Broken(trace.TracerProvider):
        def get_tracer(self, *args, **options):
            return BrokenTracer()

    class BrokenTracer(trace.NoOpTracer):
        def start_span(self, *args, **options):
            raise RuntimeError("out of order")

    reader = InMemoryMetricReader()
    meters = MeterProvider([reader])
    end = otel.instrument(tracer_provider=Broken(), meter_provider=meters)
    try:
        assert pipeline(5).run().written == 4
        assert "redrive.pipeline.runs" in reader.get_metrics_data().to_json()
    finally:
        end()
        meters.shutdown()
    assert "an on_event hook failed on RunStarted" in caplog.text


def test_missing_sdk_costs_nothing_and_logs_nothing(pipeline):
    end = otel.instrument()
    assert pipeline(3).run().written == 2
    end()


@pytest.mark.process
def test_only_the_api_is_needed():
    program = (
        "import sys; sys.modules['opentelemetry.sdk'] = None; import redrive.observe.otel as o; o.instrument()(); "
        "print('opentelemetry' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


@pytest.mark.process
def test_missing_package_is_one_sentence_with_the_command():
    program = "import sys; sys.modules['opentelemetry'] = None; import redrive.observe.otel"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "opentelemetry" in done.stderr.splitlines()[-1]
    assert "pip install 'redrive[otel]'" in done.stderr.splitlines()[-1]


# ── metrics ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class TestCalls:
    """Each call is a span below the one in which it is made, and each attempt one below its call."""

    @staticmethod
    def call(sky, *outcomes, times=1, **options):
        """Make calls of a service that answers so; the span around them."""
        left = list(outcomes)

        def ask():
            if (outcome := left.pop(0)) is not None:
                raise outcome

        service = redrive.Service("bank", fallback=0, **options)
        with set_testing(), sky.tracers.get_tracer("program").start_as_current_span("settle") as around:
            for _ in range(times):
                service.call(ask)
        return around

    def test_each_attempt_is_a_span_of_a_client(self, sky):
        self.call(sky, ConnectionResetError("gone"), None)
        call, (first, second) = sky.span("call bank"), sky.spans("attempt bank")
        assert {span.kind for span in (first, second)} == {SpanKind.CLIENT}
        assert {span.parent.span_id for span in (first, second)} == {call.get_span_context().span_id}
        assert call.start_time <= first.start_time
        assert second.end_time <= call.end_time
        assert (first.status.status_code, second.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
        said = {"error.type": "ConnectionResetError", "redrive.outcome": "transient", "redrive.attempt": 1}
        assert said.items() <= first.attributes.items()
        assert "http.request.resend_count" not in first.attributes
        assert {"http.request.resend_count": 1, "redrive.attempt": 2}.items() <= second.attributes.items()
        assert first.start_time <= first.end_time <= second.end_time

    def test_unsent_call_is_an_event(self, sky):
        options = {"retry": redrive.Retry(attempts=1), "breaker": Breaker(failures=1)}
        around = self.call(sky, ConnectionRefusedError("nobody there"), times=2, **options)
        assert [event.name for event in around.events] == ["circuit_open"]
        assert len(sky.spans("call bank")) == len(sky.spans("attempt bank")) == 1

    def test_call_is_a_span_with_its_outcome(self, sky):
        around = self.call(sky, ConnectionResetError("gone"), None)
        call = sky.span("call bank")
        assert call.parent.span_id == around.get_span_context().span_id
        assert {"redrive.attempts": 2, "redrive.outcome": "success"}.items() <= call.attributes.items()
        assert call.status.status_code is StatusCode.UNSET

    def test_call_that_fails_has_the_error(self, sky):
        self.call(sky, *[TimeoutError("slow")] * 2, retry=redrive.Retry(attempts=2))
        call = sky.span("call bank")
        assert {"redrive.attempts": 2, "error.type": "TimeoutError"}.items() <= call.attributes.items()
        assert call.status.status_code is StatusCode.ERROR

    def test_calls_of_tasks_and_services_are_separate(self, sky):
        async def ask(times):
            left = [ConnectionResetError("gone")] * times

            async def flaky():
                await asyncio.sleep(0)
                if left:
                    raise left.pop()

            await redrive.Service(f"bank-{times}").acall(flaky)

        async def all_at_once():
            await asyncio.gather(*(ask(times) for times in (0, 1, 2)))

        with set_testing():
            asyncio.run(all_at_once())
        for times in (0, 1, 2):
            call, attempts = sky.span(f"call bank-{times}"), sky.spans(f"attempt bank-{times}")
            assert {span.parent.span_id for span in attempts} == {call.get_span_context().span_id}
            assert len(attempts) == call.attributes["redrive.attempts"] == times + 1

    def test_call_that_is_interrupted_ends_with_its_context(self, sky):
        def flaky():
            if not sky.spans("attempt bank"):
                raise ConnectionResetError("gone")
            raise KeyboardInterrupt

        def interrupted():
            with pytest.raises(KeyboardInterrupt):
                redrive.Service("bank").call(flaky)

        with set_testing():
            contextvars.copy_context().run(interrupted)
        gc.collect()
        assert sky.span("call bank").status.description == "its end was never announced"

    def test_requests_have_the_attributes_of_the_conventions(self, sky):
        with FaultyServer() as server:
            self.check_requests(sky, server)

    @staticmethod
    def check_requests(sky, server):
        server.on("/users/*", Answer(503), Answer(200))
        url = server.url.replace("://", "://bob:hunter2hunter2@")
        service = redrive.Service("bank")
        with set_testing(), httpx.Client(transport=service.httpx_transport()) as client:
            assert client.get(f"{url}/users/1742?api_key=hunter2hunter2").status_code == 200
        first, second = sky.spans("attempt bank")
        host, _, port = server.url.removeprefix("http://").partition(":")
        said = {
            "http.request.method": "GET",
            "url.template": "/users/{id}",
            "server.address": host,
            "server.port": int(port),
            "http.response.status_code": 503,
            "error.type": "503",
        }
        assert said.items() <= first.attributes.items()
        assert {"http.response.status_code": 200, "http.request.resend_count": 1}.items() <= second.attributes.items()
        assert "hunter2" not in str([dict(span.attributes) for span in sky.spans()])

    def test_call_spans_can_be_disabled(self, sky):
        sky.end()
        sky.end = otel.instrument(tracer_provider=sky.tracers, meter_provider=sky.meters, calls=False)
        self.call(sky, None)
        assert [span.name for span in sky.spans()] == ["settle"]


class TestTraceIds:
    """Runs, letters and alerts keep the id of the trace that was active."""

    def test_letters_and_alert_of_a_run_have_its_trace(self, sky, store, pipeline):
        def broken(row):
            raise PermissionError("refused")

        with pytest.raises(redrive.RunStopped):
            pipeline(transform=broken).run()
        trace_id = trace.format_trace_id(sky.span("run vendor").get_span_context().trace_id)
        assert [alert.facts.trace_id for alert in store.alerts.find()] == [trace_id]

    def test_letter_and_own_alert_have_the_current_trace(self, sky, store):
        with sky.tracers.get_tracer("program").start_as_current_span("settle") as around:
            store.dlq.put({"id": 1}, "bad", pipeline="vendor", key="1")
            store.alerts.open(key="export", severity="P3", title="no rows")
        trace_id = trace.format_trace_id(around.get_span_context().trace_id)
        (letter,) = store.dlq.find()
        assert letter.trace_id == store.alerts.find()[0].facts.trace_id == trace_id

    def test_rejected_rows_have_the_trace_of_their_run(self, sky, store, pipeline):
        pipeline(4).run()
        (letter,) = store.dlq.find()
        assert letter.trace_id == trace.format_trace_id(sky.span("run vendor").get_span_context().trace_id)

    def test_trace_id_is_empty_without_a_span(self, store):
        store.dlq.put({"id": 1}, "bad", pipeline="vendor", key="1")
        assert store.dlq.find()[0].trace_id is None


def test_attempts_are_counted_by_service_outcome_and_latency(sky):
    answers = iter([TimeoutError(), "done", "done"])

    def fetch():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    bank = redrive.Service("bank", retry=redrive.Retry(attempts=3)).with_options(endpoint="fetch")
    bank.call(fetch)
    bank.call(fetch)
    assert sky.metric("service.attempts") == {("fetch", "transient", "bank"): 1, ("fetch", "success", "bank"): 2}
    assert sky.metric("service.retries") == {("fetch", "bank"): 1}
    assert sky.metric("service.latency")["fetch", "success", "bank"].count == 2


def test_endpoints_of_a_service_are_bounded(sky):
    bank = redrive.Service("bank", retry=redrive.Retry(attempts=1))
    for number in range(MOST_ENDPOINTS + 5):
        bank.with_options(endpoint=f"e{number}").call(int)
    with pytest.raises(ValueError, match="invalid literal"):
        bank.with_options(endpoint="new").call(int, "x")
    found = sky.metric("service.attempts")
    assert found[OTHER_ENDPOINT, "success", "bank"] == 5
    assert len(found) == MOST_ENDPOINTS + 2
    assert sky.metric("service.failed_calls") == {(OTHER_ENDPOINT, "permanent", "bank"): 1}


def test_unsent_call_has_no_latency(sky):
    bank = redrive.Service("bank", retry=redrive.Retry(attempts=1), breaker=Breaker(failures=1), fallback=0)
    bank = bank.with_options(endpoint="down")

    def down():
        raise ConnectionRefusedError

    assert (bank.call(down), bank.call(down)) == (0, 0)
    assert sky.metric("service.attempts") == {("down", "transient", "bank"): 1, ("down", "circuit_open", "bank"): 1}
    assert set(sky.metric("service.latency")) == {("down", "transient", "bank")}
    assert sky.metric("service.circuit_changes") == {("bank", "open"): 1}
    assert sky.metric("service.fallbacks") == {("down", "bank"): 2}


def test_rows_runs_and_their_durations_are_counted(sky, pipeline):
    pipeline(10).run()
    assert sky.metric("pipeline.rows") == {("written", "vendor"): 8, ("rejected", "vendor"): 2}
    assert sky.metric("pipeline.runs") == {("vendor", "complete"): 1}
    assert sky.metric("pipeline.run.duration")["vendor", "complete"].count == 1
    assert sky.metric("pipeline.batch.duration")["vendor",].count == 3


def test_tasks_are_counted_by_their_final_state(sky, flow):
    flow.task(lambda: [1, 2, 3], name="parts", in_thread=True)
    flow.task(lambda part: part, name="settle", each="parts", in_thread=True)
    flow.run()
    assert sky.metric("task.attempts") == {
        ("settlement", "SUCCESS", "parts"): 1,
        ("settlement", "SUCCESS", "settle"): 3,
    }
    assert sky.metric("task.duration")["settlement", "settle"].count == 3
    assert sky.metric("flow.runs") == {("settlement", "complete"): 1}


def test_letters_are_counted_by_operation(sky, store):
    store.dlq.put_many([redrive.NewLetter(n, "bad", key=str(n)) for n in range(4)], pipeline="vendor")
    store.dlq.put("x", "bad", key="0", pipeline="vendor")
    store.dlq.replay(lambda records: [None, "still bad"], ids=[1, 2], pipeline="vendor", dry_run=False)
    store.dlq.discard(note="not ours", status="pending")
    assert sky.metric("letters") == {
        ("put", "vendor"): 4,
        ("seen again", "vendor"): 1,
        ("reprocessed", "vendor"): 1,
        ("failed again", "vendor"): 1,
        ("discarded",): 2,
    }


def test_secret_in_a_name_is_in_no_label(sky):
    redrive.Service("https://user:hunter2@bank.example").with_options(endpoint="int").call(int)
    assert sky.metric("service.attempts") == {("int", "success", "https://user:***@bank.example"): 1}
