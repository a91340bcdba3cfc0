"""Metrics of a store, on both databases: they include all processes, and counters never decrease."""

import gc
import itertools
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import delete

import redrive
from redrive.calls.metrics.publisher import MetricsBatch
from redrive.calls.metrics.window import MetricsWindow
from redrive.observe import figures, prometheus
from redrive.policy.consensus import BreakerReport, ReportKind
from redrive.store.schema import alert_sends, alerts, breakers, runs
from redrive.testing import set_testing
from tests.support.alerts import watched
from tests.support.flows import stopped

NOW = datetime.now(UTC)
_serial = itertools.count(1)


def samples(page):
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            place = sample.name.removeprefix("redrive_"), frozenset(sample.labels.items())
            assert place not in found
            found[place] = sample.value
    return found


class Page:
    """The metrics page of a store."""

    def __init__(self, store):
        self.text = prometheus.render(store).decode()
        self._found = samples(self.text)

    def __call__(self, name, **labels):
        return self._found.get((name, frozenset(labels.items())))

    def labels(self, name):
        return {label for place, labels in self._found if place == name for label in labels}

    def counters(self):
        return {
            place: value
            for place, value in self._found.items()
            if place[0].endswith(("_total", "_bucket", "_sum", "_count"))
        }


# ── services ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def book(at, *, quick=3, failed=2):
    made = MetricsWindow()
    made.succeeded(at, [0.002] * quick)
    for _ in range(failed):
        made.attempted(at, "transient", 1.0, retry=False, fault=True)
        made.attempted(at, "success", 0.3, retry=True, fault=False)
    made.rejected(at, "circuit_open")
    made.ended(at, "calls_failed")
    made.open_for(at, at + 12.5)
    return made


def record(store, at=None, **options):
    at = NOW.timestamp() if at is None else at
    store.services.add(MetricsBatch("process-1", next(_serial), {"bank": book(at, **options)}))


def test_services_are_counted_over_all_processes(store):
    record(store)
    store.services.add(MetricsBatch("process-2", 1, {"bank": book(NOW.timestamp())}))
    page = Page(store)
    assert page("service_attempts_total", service="bank", outcome="success") == 10
    assert page("service_attempts_total", service="bank", outcome="transient") == 4
    assert page("service_attempts_total", service="bank", outcome="circuit_open") == 2
    assert page("service_attempts_total", service="bank", outcome="auth") == 0
    assert page("service_retries_total", service="bank") == 4
    assert page("service_failed_calls_total", service="bank") == 2
    assert page("service_circuit_open_seconds_total", service="bank") == 25
    assert page("service_latency_seconds_bucket", service="bank", le="0.005") == 6
    assert page("service_latency_seconds_bucket", service="bank", le="0.25") == 6
    assert page("service_latency_seconds_bucket", service="bank", le="+Inf") == 10
    assert page("service_latency_seconds_count", service="bank") == 10
    assert page("service_latency_seconds_sum", service="bank") == pytest.approx(1.212)


def test_counters_grow_even_when_windows_are_purged(store):
    last = Page(store).counters()
    for day in range(8, 0, -1):
        record(store, (NOW - timedelta(days=day)).timestamp() + 0.1 * day, quick=day, failed=day)
        if day % 2:
            store.services.purge(NOW - timedelta(days=day + 1))
        found = Page(store).counters()
        assert [place for place, value in last.items() if found[place] < value] == []
        last = found
    store.services.purge(NOW)
    assert Page(store).counters() == last


def test_shared_circuit_is_exported_and_unreported_is_closed(store):
    record(store)
    store.shared.publish([BreakerReport("ledger", "host-1", "p1", ReportKind.OPEN, ago=1.0, retry_in=60.0)], [])
    page = Page(store)
    assert [page("service_circuit", service="ledger", state=state) for state in ("closed", "half_open", "open")] == [
        *(0, 0, 1)
    ]
    assert page("service_circuit", service="bank", state="closed") == 1
    store.database.write(lambda connection: connection.execute(breakers.delete()))
    assert Page(store)("service_circuit", service="ledger", state="open") is None


# ── letters ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_letters_are_exported_by_pipeline_status_and_age(store, put):
    old = datetime.now(UTC) - timedelta(days=3)
    store.dlq.put_many([redrive.NewLetter("x", "bad", rejected_at=old)], pipeline="vendor")
    put(4)
    put(2, start=10, pipeline="other")
    store.dlq.discard(note="not ours", pipeline="other")
    page = Page(store)
    assert page("letters", pipeline="vendor", status="pending") == 5
    assert page("letters", pipeline="other", status="pending") == 0
    assert page("letters", pipeline="other", status="discarded") == 2
    assert abs(page("letters_oldest_pending_timestamp_seconds", pipeline="vendor") - old.timestamp()) < 3_600
    assert page("letters_oldest_pending_timestamp_seconds", pipeline="other") is None


# ── runs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def pipeline(store, tmp_path):
    def make(rows, name="vendor", **options):
        def check(row):
            if row["fee"] == "N/A":
                raise ValueError("fee: not a number")
            return row

        sink = redrive.rows.table(f"sqlite:///{tmp_path / 'sink.db'}", "t", key="id", create=True)
        source = redrive.rows.records([{"id": str(n), "fee": "N/A" if n % 5 == 0 else "1"} for n in range(rows)])
        options = {"validate": check, "gate": redrive.Gate(abort=1), "store": store, **options}
        return redrive.Pipeline(name, source=source, sink=sink, **options)

    return make


def test_rows_of_all_runs_are_counted_and_survive_a_purge(store, pipeline):
    for _ in range(2):
        pipeline(10).run()
    before = Page(store)
    store.database.write(lambda connection: connection.execute(delete(runs)))
    after = Page(store)
    for page in (before, after):
        assert page("rows_read_total", pipeline="vendor") == 20
        assert page("rows_written_total", pipeline="vendor") == 16
        assert page("rows_rejected_total", pipeline="vendor") == 4


def test_newest_and_last_complete_run_are_exported(store, pipeline):
    complete = pipeline(10).run()

    def broken(row):
        raise PermissionError("refused")

    with pytest.raises(redrive.RunStopped):
        pipeline(3, validate=None, transform=broken).run()
    page = Page(store)
    assert page("pipeline_last_run_status", pipeline="vendor", status="failed") == 1
    assert page("pipeline_last_run_status", pipeline="vendor", status="complete") == 0
    assert page("pipeline_last_success_timestamp_seconds", pipeline="vendor") == pytest.approx(
        complete.ended_at.timestamp()
    )
    assert page("pipeline_last_run_timestamp_seconds", pipeline="vendor") > complete.started_at.timestamp()
    assert page("pipeline_last_run_rows_read", pipeline="vendor") == 0
    pipeline(10, name="other").run()
    page = Page(store)
    assert page("pipeline_last_run_rows_read", pipeline="other") == 10
    assert page("pipeline_last_run_rows", pipeline="other", outcome="written") == 8
    assert page("pipeline_last_run_rows", pipeline="other", outcome="rejected") == 2
    assert page("pipeline_last_run_duration_seconds", pipeline="other") > 0
    assert page("pipeline_running", pipeline="other") == 0


def test_running_run_is_exported(store, pipeline):
    seen = []

    def look(row):
        seen.append(Page(store)("pipeline_running", pipeline="vendor"))
        return row

    pipeline(1, validate=look).run()
    assert seen == [1]


# ── flows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def flow(store, tmp_path):
    return redrive.Flow("settlement", store=store, workers=2, files=tmp_path / "results")


def test_tasks_of_unfinished_runs_are_exported(store, flow, task):
    @task
    def parts():
        return [1, 2, 3]

    @task(each=parts)
    def settle(part):
        if part == 2:
            raise redrive.Permanent("no such account")
        return part

    @task(after=settle)
    def report():
        return 1

    with set_testing():
        stopped(flow)
    page = Page(store)
    assert page("flow_tasks", flow="settlement", state="SUCCESS") == 3
    assert page("flow_tasks", flow="settlement", state="DEAD_LETTER") == 1
    assert page("flow_tasks", flow="settlement", state="PENDING") == 1
    assert page("flow_last_run_status", flow="settlement", status="held") == 1
    assert page("flow_last_success_timestamp_seconds", flow="settlement") is None
    flow.accept("settle[1]", result=0, note="not worth it")
    done = flow.run()
    page = Page(store)
    assert page("flow_tasks", flow="settlement", state="SUCCESS") is None
    assert page("flow_last_run_status", flow="settlement", status="complete") == 1
    assert page("flow_last_success_timestamp_seconds", flow="settlement") == pytest.approx(done.ended_at.timestamp())
    assert page("flow_last_run_duration_seconds", flow="settlement") == pytest.approx(done.seconds, abs=0.001)


# ── alerts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def an_alert(key, status, urgency="P2", subject="bank"):
    values = {"subject_kind": "service", "subject": subject, "title": "down", "facts": {}, "evidence": []}
    return {"key": key, "condition": "service_down", "status": status, "urgency": urgency, **values}


def a_send(channel, status, **values):
    now = datetime.now(UTC)
    usual = {"alert_id": 1, "what": "opened", "urgency": "P2", "created_at": now, "due_at": now, "digest": 0}
    return {"channel": channel, "status": status, **usual, **values}


def test_superseded_messages_are_not_counted(store):
    sends = [
        a_send("tested", "failed", what="test"),
        a_send("given_up", "failed", created_at=datetime.now(UTC) - timedelta(days=2)),
        a_send("morning", "waiting", digest=1),
        a_send("late", "waiting"),
    ]
    store.database.write(lambda connection: connection.execute(alert_sends.insert(), sends))
    page = Page(store)
    counted = {one["channel"]: page("alert_sends", channel=one["channel"], status=one["status"]) for one in sends}
    assert counted == {"tested": None, "given_up": None, "morning": None, "late": 1}


def test_open_alerts_and_undelivered_messages_are_exported(store):
    standing = [
        an_alert("a", "open"),
        an_alert("b", "open"),
        an_alert("c", "acknowledged", "P1", "ledger"),
        an_alert("d", "resolved"),
    ]
    sends = [a_send("slack", "waiting"), a_send("slack", "waiting"), a_send("mail", "failed"), a_send("mail", "sent")]

    def work(connection):
        connection.execute(alerts.insert(), [{**one, "since": NOW, "last_seen": NOW} for one in standing])
        connection.execute(alert_sends.insert(), sends)

    store.database.write(work)
    page = Page(store)
    of = {"subject_kind": "service"}
    assert page("alerts", status="open", urgency="P2", subject="bank", **of) == 2
    assert page("alerts", status="acknowledged", urgency="P1", subject="ledger", **of) == 1
    assert page("alerts", status="resolved", urgency="P2", subject="bank", **of) is None
    assert page("alert_sends", channel="slack", status="waiting") == 2
    assert page("alert_sends", channel="mail", status="failed") == 1
    assert page("alert_sends", channel="mail", status="sent") is None


class TestTooManyNames:
    def test_letters_and_alerts_of_the_others_are_added_up(self, store, put, monkeypatch):
        put(3, pipeline="large")
        put(2, start=10, pipeline="b")
        put(1, start=20, pipeline="c")
        for subject in ("bank", "ledger", "mail"):
            store.alerts.open(key=subject, severity="P2", title="down", pipeline=subject)
        monkeypatch.setenv("REDRIVE_MAX_METRIC_NAMES", "1")
        page = Page(store)
        assert page("letters", pipeline="large", status="pending") == 3
        assert page("letters", pipeline="other", status="pending") == 3
        assert page("letters", pipeline="b", status="pending") is None
        subjects = {family[1] for family in page.labels("alerts") if family[0] == "subject"}
        assert subjects == {"bank", "other"}
        assert page("names_left_out", of="pipeline") == page("names_left_out", of="subject") == 2

    def test_newest_pipelines_and_busiest_services_are_kept(self, store, pipeline, monkeypatch):
        for name in ("first", "second"):
            pipeline(1, name=name).run()
        books = {"idle": book(NOW.timestamp(), quick=1), "busy": book(NOW.timestamp(), quick=9)}
        store.services.add(MetricsBatch("process-1", next(_serial), books))
        monkeypatch.setenv("REDRIVE_MAX_METRIC_NAMES", "1")
        page = Page(store)
        assert page("pipeline_last_run_rows_read", pipeline="second") == 1
        assert page("pipeline_last_run_rows_read", pipeline="first") is None
        assert page("service_calls_total", service="busy") > 0
        assert page("service_calls_total", service="idle") is None
        assert page("names_left_out", of="service") == 1

    def test_wrong_limit_is_rejected(self, store, monkeypatch):
        monkeypatch.setenv("REDRIVE_MAX_METRIC_NAMES", "0")
        with pytest.raises(redrive.RedriveError, match="must be a whole number of 1 or more, not '0'"):
            Page(store)


def test_active_watch_is_exported(store):
    assert Page(store)("watched") == 0
    watched(store, datetime.now(UTC))
    assert Page(store)("watched") == 1


# ── the store itself ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_empty_store_exports_that_it_is_up(store):
    page = Page(store)
    info = store.info()
    assert page("up") == 1
    assert page("scrape_duration_seconds") > 0
    assert page("store_info", database=info.database, schema_version=info.schema_version) == 1


def test_page_has_no_secret_and_no_unbounded_label(store, pipeline, put):
    secret = "sk-live-hunter2hunter2hunter2"
    record(store)
    put(1, pipeline=f"vendor?api_key={secret}", error=f"token={secret} refused", run_id=None)
    report = pipeline(5, name=f"https://user:{secret}@host").run()
    text = Page(store).text
    assert "hunter2" not in text
    assert str(report.run_id) not in text
    assert "D-0" not in text


# ── over HTTP ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def get(server, path="/metrics", **headers):
    request = urllib.request.Request(server.url + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode(), answer.headers["Content-Type"]
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode(), refused.headers["Content-Type"]


@contextmanager
def served(store, monkeypatch, *, kept=0.0):
    monkeypatch.setattr(prometheus, "KEPT", kept)
    with prometheus.serve(store, "127.0.0.1:0") as server:
        yield server


def test_metrics_are_served_in_the_requested_format(store, put, monkeypatch):
    put(3)
    with served(store, monkeypatch) as server:
        status, page, kind = get(server)
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert samples(page)["letters", frozenset({("pipeline", "vendor"), ("status", "pending")})] == 3
        _, page, kind = get(server, Accept="application/openmetrics-text; version=1.0.0")
        assert kind.startswith("application/openmetrics-text")
        assert page.endswith("# EOF\n")
        assert get(server, "/healthz")[:2] == (200, "ok\n")
        assert get(server, "/")[:2] == (404, "there is /metrics, /healthz and /readyz\n")


def test_concurrent_scrapes_query_the_store_once(store, monkeypatch):
    asked = []
    read = figures.Reader.read

    def counted(reader):
        asked.append(1)
        return read(reader)

    monkeypatch.setattr(figures.Reader, "read", counted)
    with served(store, monkeypatch, kept=60.0) as server:
        found = []
        threads = [threading.Thread(target=lambda: found.append(get(server)[0])) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (found, len(asked)) == ([200] * 8, 1)


def test_scrape_that_waits_too_long_gets_an_error(store, monkeypatch):
    entered, go = threading.Event(), threading.Event()
    read = figures.Reader.read

    def slow(reader):
        entered.set()
        go.wait(60)
        return read(reader)

    monkeypatch.setattr(figures.Reader, "read", slow)
    monkeypatch.setattr(prometheus, "_QUEUE", 0.01)
    with served(store, monkeypatch) as server:
        first = []
        thread = threading.Thread(target=lambda: first.append(get(server)[0]))
        thread.start()
        assert entered.wait(60)
        assert get(server)[:2] == (503, "another request is still being answered: the store is slow\n")
        go.set()
        thread.join()
        assert first == [200]


def test_store_without_tables_is_not_healthy(store, monkeypatch):
    with served(store, monkeypatch) as server:
        prefix = "pipeline." if store.database.dialect.is_remote else ""
        store.database.write(lambda connection: connection.exec_driver_sql(f"DROP TABLE {prefix}redrive_schema"))
        status, said, _ = get(server, "/healthz")
        assert status == 503
        assert said.endswith("has no schema of this redrive: run `redrive store migrate`\n")


@pytest.mark.filterwarnings("ignore:.*ServerCursor.*deleted while still open:ResourceWarning")
def test_unreachable_server_is_a_503_until_it_is_back(mortal_postgres, monkeypatch):
    with psycopg.connect(mortal_postgres.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE watched")
    monkeypatch.setattr(prometheus, "_TIMEOUT", 0.1)
    url = mortal_postgres.url.rpartition("/")[0] + "/watched"
    with redrive.connect(url, migrate=True) as store, served(store, monkeypatch) as server:
        assert get(server)[0] == 200
        mortal_postgres.stop()
        try:
            for path in ("/metrics", "/healthz"):
                status, said, kind = get(server, path)
                assert (status, kind) == (503, "text/plain; charset=utf-8")
                assert said.count("\n") == 1
                assert "Traceback" not in said
                assert "correct-horse" not in said
        finally:
            mortal_postgres.start()
        assert get(server)[0] == 200
        assert get(server, "/healthz")[0] == 200
    gc.collect()
