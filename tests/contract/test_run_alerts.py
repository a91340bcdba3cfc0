"""Alerts about runs: real pipelines and flows on both databases, and the alerts that their store opens."""

import logging
import signal
import socket
import threading
from contextlib import suppress
from datetime import timedelta

import httpx
import pytest
from sqlalchemy import select, update

import redrive
from redrive.alerts.config.settings import AlertSettings, Channel
from redrive.alerts.facts.collector import LevelCollector
from redrive.alerts.facts.runs import RunName, read_snapshot
from redrive.alerts.service import Alerts
from redrive.errors import FlowStopped, RunStopped, StoreError
from redrive.model.alerts import AlertStatus, SendStatus, Severity
from redrive.rows.checkpoint import PipelineRunHandle
from redrive.store.schema import runs, task_executors, task_runs, tasks
from tests.support.alerts import watched
from tests.support.flows import eventually

TWICE = redrive.Retry(attempts=2, base=0.01)


def rows(number=200, *, bad=0):
    return [{"id": place, "fee": "N/A" if place < bad else "1.5"} for place in range(number)]


def checked(record):
    return {**record, "fee": float(record["fee"])}


@pytest.fixture
def vendor(store, tmp_path):
    """A pipeline of this store; its source is a list, or a function that gives one."""

    def make(source, name="vendor", **options):
        return redrive.Pipeline(
            name,
            source=redrive.rows.records(source),
            validate=checked,
            sink=redrive.rows.parquet_dataset(tmp_path / name, key="id"),
            gate=redrive.Gate(least=10, page_least=1, abort_least=1),
            store=store,
            **{"patience": 0, **options},
        )

    return make


@pytest.fixture
def settlement(store):
    return redrive.Flow("settlement", store=store)


def alerts(store, **options):
    return [(str(one.urgency), one.condition, str(one.status)) for one in store.alerts.find(**options)]


def failing(error):
    def source():
        yield from rows(20)
        raise error

    return source


# ── pipelines ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_run_without_failures_opens_no_alert(store, vendor):
    vendor(rows()).run()
    assert alerts(store) == []


def test_one_rejected_row_in_200_opens_no_alert(store, vendor):
    vendor(rows(bad=1)).run()
    assert alerts(store) == []


@pytest.mark.parametrize(("bad", "urgency", "condition"), [(6, "P3", "new_letters"), (14, "P1", "rejected")])
def test_many_rejected_rows_open_one_alert_with_details(store, vendor, bad, urgency, condition):
    report = vendor(rows(bad=bad)).run()
    (alert,) = store.alerts.find()
    assert (str(alert.urgency), alert.condition, str(alert.status)) == (urgency, condition, "open")
    assert f"{bad} of 200 rows rejected ({bad / 2:.1f} %)" in alert.title
    assert alert.facts.letters == bad
    assert alert.facts.cause == "ValueError: could not convert string to float: <value>"
    assert alert.facts.commands[0] == f"redrive dlq causes --run {str(report.run_id)[:8]}"


def test_run_that_loads_the_rejected_rows_resolves_the_alert(store, vendor):
    vendor(rows(bad=14)).run()
    vendor(rows()).run()
    assert alerts(store) == [("P1", "rejected", "resolved")]


class TestQuarantinedRows:
    def others(self, bad=0):
        return [{**one, "id": one["id"] + 10_000} for one in rows(bad=bad)]

    def test_complete_run_of_other_rows_keeps_the_alert_open(self, store, vendor):
        vendor(rows(bad=14)).run()
        vendor(self.others()).run()
        store.alerts.resolve_handled_letters()
        assert alerts(store) == [("P1", "rejected", "open")]
        store.dlq.discard(pipeline="vendor", note="the vendor knows")
        assert alerts(store) == [("P1", "rejected", "resolved")]

    def test_alert_of_two_runs_closes_with_the_letters_of_both(self, store, vendor):
        first = vendor(rows(bad=14)).run()
        second = vendor(self.others(bad=14)).run()
        store.dlq.discard(run_id=second.run_id, note="known")
        assert alerts(store) == [("P1", "rejected", "open")]
        store.dlq.discard(run_id=first.run_id, note="known")
        assert alerts(store) == [("P1", "rejected", "resolved")]

    def test_letters_below_the_threshold_do_not_keep_alert_open(self, store, vendor):
        first = vendor(rows(bad=14)).run()
        vendor(self.others(bad=1)).run()
        store.dlq.discard(run_id=first.run_id, note="known")
        assert alerts(store) == [("P1", "rejected", "resolved")]


class TestAbortedRun:
    def aborted(self, vendor):
        with pytest.raises(redrive.GateAborted):
            vendor(rows(bad=120)).run()

    @pytest.mark.parametrize("how", ["discarded", "escalated"])
    def test_alert_stays_open_whatever_the_letter_status(self, store, vendor, how):
        self.aborted(vendor)
        if how == "discarded":
            store.dlq.discard(pipeline="vendor", note="known")
        else:
            store.dlq.replay(lambda records: ["bad"] * len(records), pipeline="vendor", dry_run=False, canary=0)
        store.alerts.resolve_handled_letters()
        assert alerts(store) == [("P1", "gate_abort", "open")]

    def test_alert_closes_when_a_new_run_is_complete(self, store, vendor):
        self.aborted(vendor)
        vendor(rows()).run(restart=True)
        assert alerts(store) == [("P1", "gate_abort", "resolved")]

    def test_alert_closes_when_abandoned_and_new_run_fails(self, store, vendor):
        self.aborted(vendor)
        with pytest.raises(RunStopped):
            vendor(failing(redrive.Permanent("disk full"))).run(restart=True)
        assert alerts(store) == [("P1", "permanent_error", "open"), ("P1", "gate_abort", "resolved")]


def test_run_aborted_by_the_gate_opens_p1(store, vendor):
    with pytest.raises(redrive.GateAborted):
        vendor(rows(bad=120)).run()
    assert alerts(store) == [("P1", "gate_abort", "open")]


def test_letters_of_a_completed_aborted_run_become_p3(store, vendor):
    def source():
        yield from rows(200, bad=40)
        yield from rows(1_000)[200:]

    with pytest.raises(redrive.GateAborted):
        vendor(source, batch=50).run()
    vendor(source, batch=50).run(override_gate=True)
    assert alerts(store, status="open") == [("P3", "new_letters", "open")]


@pytest.mark.parametrize("how", ["replayed", "discarded", "by hand"])
def test_alert_about_letters_resolves_when_none_is_open(store, vendor, how):
    pipeline = vendor(rows(bad=6))
    pipeline.run()
    if how == "replayed":
        store.dlq.replay(lambda records: [None] * len(records), pipeline="vendor", dry_run=False)
    elif how == "discarded":
        store.dlq.discard(pipeline="vendor", note="the vendor knows")
    else:

        def settle(connection):
            table = "pipeline.dead_letter_queue" if connection.dialect.name == "postgresql" else "dead_letter_queue"
            connection.exec_driver_sql(f"UPDATE {table} SET status = 'discarded', resolution_note = 'by hand'")

        store.database.write(settle)
        store.alerts.resolve_handled_letters()
    assert alerts(store) == [("P3", "new_letters", "resolved")]


def test_alert_stays_open_while_letters_are_escalated(store, vendor):
    vendor(rows(bad=6)).run()
    store.dlq.replay(lambda records: ["still bad"] * len(records), pipeline="vendor", dry_run=False)
    store.alerts.resolve_handled_letters()
    assert alerts(store, status="open") == [("P3", "new_letters", "open")]
    store.dlq.discard(pipeline="vendor", note="the vendor knows")
    assert alerts(store) == [("P3", "new_letters", "resolved")]


def test_alert_about_letters_stays_open_while_one_is_open(store, vendor):
    vendor(rows(bad=6)).run()
    (first, *_) = store.dlq.find(limit=1)
    store.dlq.discard(ids=[first.id], note="this one is known")
    assert alerts(store) == [("P3", "new_letters", "open")]


def test_permanent_error_opens_p1_at_once(store, vendor):
    with pytest.raises(RunStopped):
        vendor(failing(redrive.Permanent("the column fee is gone"))).run()
    (alert,) = store.alerts.find()
    assert (str(alert.urgency), alert.condition) == ("P1", "permanent_error")
    assert "the column fee is gone" in alert.title


def test_response_text_of_a_422_is_in_the_alert(store, vendor):
    bank = redrive.Service("bank")
    answer = httpx.Response(
        422, json={"detail": "fee: not a number"}, request=httpx.Request("POST", "https://bank.example/orders")
    )

    def source():
        bank.call(answer.raise_for_status)
        yield {}

    with pytest.raises(RunStopped):
        vendor(source).run()
    (alert,) = store.alerts.find()
    assert "fee: not a number" in alert.facts.error


def test_rejected_credential_is_one_alert_of_its_service(store, vendor):
    bank = redrive.Service("bank")

    def source():
        bank.call(lambda: httpx.Response(401, request=httpx.Request("GET", "https://bank.example/")).raise_for_status())
        yield {}

    for name in ("billing", "payouts"):
        with pytest.raises(RunStopped):
            vendor(source, name=name).run()
    (alert,) = store.alerts.find()
    assert (str(alert.urgency), alert.key, str(alert.subject)) == ("P1", "service:bank:auth", "service bank")
    assert set(alert.facts.affected) == {"billing", "payouts"}
    vendor(rows(), name="billing").run()
    assert alerts(store, status="open") == [("P1", "permanent_error", "open")]
    vendor(rows(), name="payouts").run()
    assert alerts(store) == [("P1", "permanent_error", "resolved")]


def test_exhausted_retries_alert_at_once_without_a_watch(store, vendor):
    with pytest.raises(RunStopped):
        vendor(failing(redrive.Transient("the share is not mounted"))).run()
    assert alerts(store) == [("P2", "retries_exhausted", "open")]
    vendor(rows()).run()
    assert alerts(store) == [("P2", "retries_exhausted", "resolved")]


def test_run_recovered_under_a_watch_is_one_p3(store, vendor):
    watched(store)
    once = iter([redrive.Transient("the share is not mounted")])

    def source():
        yield from rows(20)
        for error in once:
            raise error
        yield from rows(40)[20:]

    pipeline = vendor(source)
    with pytest.raises(RunStopped):
        pipeline.run()
    assert alerts(store) == [("P2", "retries_exhausted", "waiting")]
    assert store.alerts.unsent() == []
    pipeline.run()
    assert alerts(store) == [("P3", "recovered", "resolved")]


def test_41_retried_attempt_opens_none_and_recovery_resolves(store, vendor):
    answers = iter([503, 503, 200])
    partner = redrive.Service("partner", retry=redrive.Retry(base=0.001), store=store)

    def source():
        partner.call(
            lambda: httpx.Response(
                next(answers), request=httpx.Request("GET", "https://partner.example/")
            ).raise_for_status()
        )
        yield from rows()

    vendor(source).run()
    assert alerts(store) == []

    with pytest.raises(RunStopped):
        vendor(failing(redrive.Permanent("disk full"))).run()
    assert alerts(store, status="open") == [("P1", "permanent_error", "open")]
    vendor(rows()).run()
    assert alerts(store, status="open") == []


def test_stopped_run_opens_no_alert(store, vendor):
    def source():
        yield from rows(20)
        pipeline.stop("a deploy")
        yield from rows(80)[20:]

    pipeline = vendor(source, batch=20)
    with pytest.raises(RunStopped):
        pipeline.run()
    assert alerts(store) == []


def test_killed_run_is_judged_by_the_next_process(store, vendor, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Alerts, "handle_event", lambda self, event: None)  # killed between its end and its alert
        vendor(rows(bad=14)).run()
    assert alerts(store) == []
    assert [one.condition for one in store.alerts.judge_ended()] == ["rejected"]
    assert store.alerts.judge_ended() == []
    assert alerts(store) == [("P1", "rejected", "open")]


def test_concurrent_judgements_of_a_run_open_one_alert(store, store_url, vendor, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Alerts, "handle_event", lambda self, event: None)
        vendor(rows(bad=14)).run()
    with redrive.connect(store_url) as other:
        told = []
        desks = [store.alerts, other.alerts]
        threads = [threading.Thread(target=lambda desk=desk: told.append(desk.judge_ended())) for desk in desks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(map(len, told)) == [0, 1]
    (alert,) = store.alerts.find()
    assert alert.seen == 1


def test_resumed_run_is_judged_at_its_next_end(store, vendor):
    pipeline = vendor(failing(redrive.Transient("away")))
    with pytest.raises(RunStopped):
        pipeline.run()
    (row,) = store.database.read(lambda connection: connection.execute(select(runs)).all())
    assert row.judged_at is not None
    assert (row.error_kind, row.error_type, row.failures) == ("transient", "Transient", 0)
    vendor(rows()).run(restart=True)
    ends = store.database.read(lambda connection: connection.execute(select(runs.c.judged_at)).scalars().all())
    assert None not in ends


def test_resumed_killed_run_has_recovered(store, vendor, monkeypatch):
    def gone(*args, **options):
        raise StoreError("killed")

    def dies():
        yield from rows(2_000)
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(PipelineRunHandle, "end", gone)
        with pytest.raises(SystemExit):
            vendor(dies, batch=1_000).run()
    vendor(rows(4_000), batch=1_000).run()
    (alert,) = store.alerts.find()
    assert (str(alert.urgency), alert.condition, str(alert.status)) == ("P3", "recovered", "resolved")


class TestSysExit:
    def exited(self, pipeline):
        with pytest.raises(SystemExit):
            pipeline.run()

    @pytest.mark.parametrize("code", [3, 0, None, "the settings are missing"])
    def test_run_that_exits_is_an_alert_at_once(self, store, vendor, code):
        self.exited(vendor(failing(SystemExit(code))))
        (alert,) = store.alerts.find()
        assert (str(alert.urgency), alert.condition, str(alert.status)) == ("P1", "permanent_error", "open")
        said = "" if code is None else repr(code)
        assert alert.title == f"vendor was stopped: code of the pipeline called sys.exit({said})"

    def test_complete_run_resolves_the_alert(self, store, vendor):
        self.exited(vendor(failing(SystemExit(3))))
        vendor(rows()).run(restart=True)
        assert alerts(store) == [("P1", "permanent_error", "resolved")]

    def test_exit_while_the_source_is_compared_is_an_alert(self, store, vendor):
        def source():
            if is_broken:
                raise SystemExit(3)
            yield from rows(4_000)

        is_broken = False
        pipeline = vendor(source, batch=1_000)
        with pytest.raises(RunStopped):
            pipeline.run(watch=lambda _: pipeline.stop())
        is_broken = True
        self.exited(pipeline)
        assert alerts(store) == [("P1", "permanent_error", "open")]

    def test_exit_by_a_signal_handler_opens_no_alert(self, store, vendor):
        def stop(number, frame):
            raise SystemExit(0)

        def source():
            yield from rows(20)
            signal.raise_signal(signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, stop)
        try:
            self.exited(vendor(source))
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert alerts(store) == []


# ── flows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_dead_task_opens_p1_with_the_retry_command(store, settlement):
    mended = False

    @settlement.task(in_thread=True, retry=TWICE)
    def settle():
        if not mended:
            raise ValueError("no such account")

    with pytest.raises(FlowStopped) as stopped:
        settlement.run()
    (alert,) = store.alerts.find()
    assert (str(alert.urgency), alert.condition, str(alert.subject)) == ("P1", "dead_task", "settlement")
    assert alert.facts.commands[0].endswith(f"--run {str(stopped.value.report.run_id)[:8]}")
    assert "redrive tasks retry --cause" in alert.facts.commands[0]

    mended = True
    settlement.retry("settle", run=stopped.value.report.run_id)
    settlement.run()
    assert alerts(store) == [("P1", "dead_task", "resolved")]


def test_thousand_dead_children_of_one_cause_are_one_alert(store, settlement):
    @settlement.task(in_thread=True)
    def merchants():
        return list(range(1_000))

    @settlement.task(each=merchants, in_thread=True)
    def settle(merchants):
        raise ValueError("the input is corrupt")

    with pytest.raises(FlowStopped):
        settlement.run()
    (alert,) = store.alerts.find()
    assert alert.facts.letters == 1_000
    assert len(store.alerts.sends(alert.id)) == 1


def test_late_task_alerts_until_it_is_done(store, settlement):
    @settlement.task(in_thread=True, sla=0.001)
    def load():
        return eventually(lambda: alerts(store, status="open"))

    @settlement.task(after=load, in_thread=True, sla=3_600)
    def settle():
        pass

    settlement.run()
    assert settlement.result("load") == [("P2", "task_sla_missed", "open")]
    assert alerts(store) == [("P2", "task_sla_missed", "resolved")]


def set_back(store, began, *, sla, task_sla):
    def work(connection):
        connection.execute(update(task_runs).values(started_at=began, sla=sla))
        connection.execute(update(tasks).values(sla=task_sla))

    store.database.write(work)


def test_slas_are_monitored_while_a_run_is_blocked(store):
    flow = redrive.Flow("settlement", store=store, sla=7_200)
    mended = False

    @flow.task(in_thread=True, retry=TWICE, sla=3_600)
    def settle():
        if not mended:
            raise ValueError("no such account")

    with pytest.raises(FlowStopped) as stopped:
        flow.run()
    run = stopped.value.report
    for ago, found in ((0, []), (100, ["sla_at_risk"] * 2), (119, ["sla_at_risk", "task_sla_missed"])):
        began = run.started_at - timedelta(minutes=ago)
        set_back(store, began, sla=began + timedelta(minutes=120), task_sla=began + timedelta(minutes=110))
        store.alerts.apply_levels(LevelCollector(store.database, store.alerts.settings).collect())
        assert sorted(one for _, one, _ in alerts(store) if one != "dead_task") == found

    mended = True
    flow.retry("settle", run=run.run_id)
    flow.run()
    assert alerts(store, status="open") == []


def test_retried_task_that_succeeds_opens_no_alert(store, settlement):
    tries = iter([redrive.Transient("away"), None])

    @settlement.task(in_thread=True, retry=TWICE)
    def settle():
        if error := next(tries):
            raise error

    settlement.run()
    assert alerts(store) == []


def test_task_with_exhausted_retries_opens_p2(store, settlement):
    @settlement.task(in_thread=True, retry=TWICE)
    def settle():
        raise redrive.Transient("away")

    with pytest.raises(FlowStopped):
        settlement.run()
    assert alerts(store) == [("P2", "retries_exhausted", "open")]


# ── the run comes first ───────────────────────────────────────────────────────────────────────────────────────────────


def test_40_alert_failure_never_fails_the_run(store, vendor, monkeypatch, caplog):
    def broken(*args, **options):
        raise StoreError("no room left")

    monkeypatch.setattr(store.alerts.ledger, "apply", broken)
    with caplog.at_level(logging.WARNING, "redrive.alerts"):
        assert vendor(rows(bad=14)).run().rejected == 14
    assert "`redrive watch` judges it later: no room left" in caplog.text
    monkeypatch.undo()
    assert [one.condition for one in store.alerts.judge_ended()] == ["rejected"]


def test_40_hanging_channel_blocks_no_run_and_loses_no_alert(store, vendor):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        channel = Channel(name="silent", kind="webhook", target=url, timeout=30)
        settings = AlertSettings(
            channels={"silent": channel}, routes=dict.fromkeys(Severity, ("silent",)), exit_wait=0.1
        )
        store.__dict__["alerts"] = desk = Alerts(store.database, settings)
        vendor(rows(bad=14)).run()  # over, while the channel has not answered
        connection, _ = silent.accept()
        with connection:
            (alert,) = desk.find(status="open")
            (send,) = desk.sends(alert.id)
            assert (send.status, send.attempts) == (SendStatus.WAITING, 0)
            desk.close()
        assert [one.alert_id for one in desk.unsent()] == [alert.id]


def test_alerts_can_be_disabled(store_url, vendor, monkeypatch):
    monkeypatch.setenv("REDRIVE_ALERTS", "off")
    with redrive.connect(store_url) as quiet:
        vendor(rows(bad=14)).run(store=quiet)
        assert quiet.alerts.find() == []


def test_runs_before_the_first_alert_are_ignored(store, vendor):
    vendor(rows(bad=14)).run(store=store)
    store.database.write(lambda connection: connection.execute(update(runs).values(judged_at=runs.c.ended_at)))
    assert store.alerts.judge_ended() == []


def test_sql_for_the_letters_is_executable(store, vendor):
    vendor(rows(bad=14)).run()
    (alert,) = store.alerts.find(status=AlertStatus.OPEN)
    found = store.database.read(lambda connection: connection.exec_driver_sql(alert.facts.sql).all())
    assert len(found) == 14


# ── late, double and concurrent judgements ────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def unheard(monkeypatch):
    """Runs whose process dies between their end and their alert."""

    def run(pipeline):
        with monkeypatch.context() as patched:
            patched.setattr(Alerts, "handle_event", lambda self, event: None)
            with suppress(RunStopped):
                pipeline.run()

    return run


def test_late_judgement_resolves_no_newer_alert(store, vendor, unheard):
    unheard(vendor(rows()))
    with pytest.raises(RunStopped):
        vendor(failing(redrive.Permanent("the column fee is gone"))).run()
    store.alerts.judge_ended()
    assert alerts(store) == [("P1", "permanent_error", "open")]


def test_late_judgement_opens_no_resolved_condition(store, vendor, unheard):
    unheard(vendor(rows(bad=14)))
    vendor(rows()).run()
    store.alerts.judge_ended()
    assert alerts(store) == []


def test_rejected_start_resolves_when_unfinished_run_completes(store, vendor, tmp_path):
    def stops():
        yield from rows(20)
        pipeline.stop("a deploy")
        yield from rows(80)[20:]

    pipeline = vendor(stops, batch=20)
    with pytest.raises(RunStopped):
        pipeline.run()
    missing = redrive.Pipeline(
        "vendor",
        source=redrive.rows.csv(tmp_path / "missing.csv"),
        sink=redrive.rows.parquet_dataset(tmp_path / "vendor", key="id"),
        store=store,
    )
    with pytest.raises(redrive.PipelineError):
        missing.run()
    assert alerts(store, status="open") == [("P1", "permanent_error", "open")]
    vendor(rows(80), batch=20).run()  # goes on with the first one
    assert alerts(store, status="open") == []


def test_unjudged_run_is_judged_with_the_next_of_any_pipeline(store, vendor, unheard):
    unheard(vendor(rows(bad=14)))
    vendor(rows(), name="another").run()
    assert alerts(store) == [("P1", "rejected", "open")]


def test_run_resumed_while_judged_is_judged_at_its_next_end(store, vendor, monkeypatch):
    once = iter([redrive.Transient("away")])

    def source():
        yield from rows(20)
        for error in once:
            raise error
        yield from rows(40)[20:]

    pipeline = vendor(source, batch=10)
    applied = store.alerts.ledger.apply

    def overtaken(*args, **options):
        monkeypatch.undo()
        pipeline.run()  # it is complete before what was seen of it is stored
        return applied(*args, **options)

    monkeypatch.setattr(store.alerts.ledger, "apply", overtaken)
    with pytest.raises(RunStopped):
        pipeline.run()
    assert alerts(store, status="open") == []


def test_rows_rejected_again_keep_alert_open_during_next_run(store, vendor):
    vendor(rows(bad=14)).run()
    seen = []

    def again():
        yield from rows(300, bad=18)[:250]  # the first hundred are written by now
        store.alerts.resolve_handled_letters()
        seen.extend(alerts(store))
        yield from rows(300)[250:]

    vendor(again, batch=100).run()
    assert set(seen) == {("P1", "rejected", "open")}
    assert alerts(store) == [("P1", "rejected", "open")]


def test_sql_fits_the_database_and_keeps_names(store, vendor):
    vendor(rows(bad=14), name="acme.pipeline.orders").run()
    (alert,) = store.alerts.find()
    assert "acme.pipeline.orders" in alert.title


def test_flow_stopped_by_a_dead_task_stays_alerted(store, settlement):
    mended = False

    @settlement.task(in_thread=True, retry=TWICE)
    def first():
        if not mended:
            raise ValueError("no such account")

    @settlement.task(in_thread=True, retry=TWICE)
    def second():
        raise KeyError("M-1")

    with pytest.raises(FlowStopped) as stopped:
        settlement.run()
    run = stopped.value.report.run_id
    settlement.retry("first", run=run)  # the run waits to be gone on with, and `second` for a person
    store.alerts.apply_levels(LevelCollector(store.database, store.alerts.settings).collect())
    assert ("P1", "dead_task", "open") in alerts(store)
    (still,) = [one for one in store.alerts.find(status="open") if one.condition == "dead_task"]
    assert "second" in still.title


class TestSlowSnapshot:
    """A run may end between the read of a snapshot and the write of its judgement."""

    @pytest.fixture
    def fixed(self):
        return []

    @pytest.fixture
    def flow(self, settlement, fixed):
        @settlement.task(in_thread=True)
        def settle():
            if not fixed:
                raise redrive.Permanent("no such account")

        return settlement

    def test_does_not_reopen_a_resolved_alert(self, store, flow, fixed):
        with pytest.raises(FlowStopped):
            flow.run()
        read = LevelCollector(store.database, store.alerts.settings).collect()
        fixed.append(True)
        flow.retry("settle")
        flow.run()
        assert alerts(store) == [("P1", "dead_task", "resolved")]
        store.alerts.apply_levels(read)
        assert alerts(store) == [("P1", "dead_task", "resolved")]

    def test_does_not_resolve_a_newer_alert(self, store, flow):
        read = LevelCollector(store.database, store.alerts.settings).collect()
        with pytest.raises(FlowStopped):
            flow.run()
        store.alerts.apply_levels(read)
        assert alerts(store) == [("P1", "dead_task", "open")]
        store.alerts.apply_levels(LevelCollector(store.database, store.alerts.settings).collect())
        assert alerts(store) == [("P1", "dead_task", "open")]


def test_time_blocked_on_an_operator_is_not_work(store, settlement):
    mended = False

    @settlement.task(in_thread=True, retry=TWICE)
    def settle():
        if not mended:
            raise ValueError("no such account")

    with pytest.raises(FlowStopped) as stopped:
        settlement.run()
    run = stopped.value.report.run_id
    half_a_day = timedelta(hours=12)

    def long_ago(connection):
        for table, columns in (
            (task_runs, ("started_at", "ended_at")),
            (task_executors, ("began_at", "ended_at", "until")),
        ):
            for row in connection.execute(select(table)).all():
                moved = {name: getattr(row, name) - half_a_day for name in columns}
                connection.execute(update(table).values(**moved))

    store.database.write(long_ago)
    mended = True
    settlement.retry("settle", run=run)
    settlement.run()
    snapshot = store.database.read(
        lambda connection: read_snapshot(connection, RunName("flow", run), store.database.dialect.now(connection))
    )
    assert snapshot.seconds < 3_600


def test_thousand_failed_tasks_are_judged_together(store, settlement, monkeypatch):
    judged = []
    judge = Alerts.judge
    monkeypatch.setattr(Alerts, "judge", lambda self, run: judged.append(run) or judge(self, run))
    for number in range(200):

        @settlement.task(name=f"settle_{number}", in_thread=True, retry=redrive.Retry(attempts=1))
        def settle():
            raise redrive.Transient("away")

    with pytest.raises(FlowStopped):
        settlement.run()
    assert len(judged) < 100
    assert [one[1] for one in alerts(store)] == ["retries_exhausted"]


class TestRunDetails:
    """Details that are stored with a run for messages about it."""

    def failing(self, vendor, **options):
        def source():
            yield from rows(40)
            error = RuntimeError("the feed broke\npassword=hunter2hunter2\nafter 40 rows")
            error.add_note("ask the vendor")
            raise error from OSError("disk")

        return vendor(source, batch=20, **options)

    def test_error_lines_are_masked_in_alert_and_run(self, store, vendor):
        with pytest.raises(RunStopped):
            self.failing(vendor).run()
        (alert,), (report,) = store.alerts.find(), store.runs.find()
        assert report.reason == "RuntimeError: the feed broke"
        assert report.detail == alert.facts.detail
        assert report.detail.splitlines() == [
            *("RuntimeError: the feed broke", "password=***", "after 40 rows", "ask the vendor"),
            "caused by OSError: disk",
        ]

    def test_share_of_the_source_is_stored(self, store, vendor):
        def transform(record):
            if record["id"] == 170:
                raise PermissionError("denied")
            return record

        with pytest.raises(RunStopped) as stopped:
            vendor(rows(200), batch=20, transform=transform).run()
        (alert,), (report,) = store.alerts.find(), store.runs.find()
        assert (report.source_done, report.source_total, report.source_share) == (160, 200, 0.8)
        assert stopped.value.report.source_share == alert.facts.source_share == 0.8

    def test_environment_of_the_run_is_stored(self, store, vendor, monkeypatch):
        monkeypatch.setenv("AIRFLOW_CTX_DAG_ID", "orders")
        monkeypatch.setenv("AIRFLOW_CTX_DAG_RUN_ID", "manual token=hunter2hunter2")
        with pytest.raises(RunStopped):
            self.failing(vendor).run()
        (alert,) = store.alerts.find()
        assert alert.facts.environment == {"AIRFLOW_CTX_DAG_ID": "orders", "AIRFLOW_CTX_DAG_RUN_ID": "manual token=***"}
