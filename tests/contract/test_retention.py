"""What a purge of the store removes and what it keeps, on both databases."""

import random
import signal
import subprocess
import threading
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, update

import redrive
from redrive.alerts.facts import runs as judging
from redrive.alerts.facts import sla_calendar
from redrive.alerts.lifecycle import queries
from redrive.calls.metrics.publisher import MetricsBatch
from redrive.calls.metrics.window import MetricsWindow
from redrive.errors import FlowError, LetterError, PipelineError, RunStopped, StoreError
from redrive.store.retention import finished
from redrive.store.retention import flows as retention_flows
from redrive.store.retention.purge import purge_work
from redrive.store.schema import (
    alert_sends,
    alerts,
    checkpoints,
    gauges,
    pipelines,
    run_keys,
    runs,
    task_executors,
    task_runs,
    tasks,
)
from redrive.testing import set_testing
from tests.support.alerts import finding, judgement
from tests.support.flows import Beside, stopped
from tests.support.retention import DAY, NOW, aged, holds, ids, left, put, ran
from tests.support.warm_python import warm_python

LARGE = "x" * 100_000
"""A result that is a file."""


@pytest.fixture(autouse=True)
def _no_waits():
    with set_testing():
        yield


@pytest.fixture
def few(monkeypatch):
    """The newest two of each are enough to say what is usual: to make sixty takes its time."""
    monkeypatch.setattr(finished, "NEWEST", 2)


def settlement(store, tmp_path, *, name="settlement", work=lambda item: LARGE):
    flow = redrive.Flow(name, store=store, files=tmp_path / "results", workers=2, params=["day"])
    flow.task(lambda: [1, 2], name="merchants", in_thread=True)
    flow.task(work, name="settle", each="merchants", in_thread=True)
    return flow


def nights(store, tmp_path, *ages, **options):
    """Runs of a flow that are complete, and so many days old; their ids."""
    flow = settlement(store, tmp_path, **options)
    made = [flow.run(params={"day": age}).run_id for age in ages]
    for run_id, age in zip(made, ages, strict=True):
        aged(store, age, run_id)
    return made


def purge(store, tmp_path, older_than="90d", **options):
    return store.purge(older_than=older_than, files=tmp_path / "results", **options)


# ── runs of pipelines ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_old_runs_are_removed_and_baseline_runs_kept(store):
    many = ran(store, *range(100, 170))
    young = ran(store, 1, 89, name="young")
    done = store.purge(older_than="90d")
    assert (done.runs, done.kept) == (10, 60)
    assert left(store) == {*many[:60], *young}
    with pytest.raises(PipelineError, match="there is no run"):
        store.runs.get(many[-1])


def test_newest_run_of_each_pipeline_is_kept(store, few):
    ran(store, 100, 101, 102, status="failed")
    newest, _ = ran(store, 99, 105, status="abandoned")
    ran(store, 103, 104, 106)
    other, _ = ran(store, 300, 301, name="other", status="stopped")
    assert store.purge(older_than="90d").runs == 4
    assert {newest, other} <= left(store)


def test_resumable_run_is_kept_and_resumes(store, few, tmp_path):
    sink = redrive.rows.table(f"sqlite:///{tmp_path}/warehouse.db", "deliveries", key="id", create=True)
    source = redrive.rows.records([{"id": n} for n in range(100)])
    pipeline = redrive.Pipeline("vendor", source=source, sink=sink, store=store, batch=10)
    with pytest.raises(RunStopped) as raised:
        pipeline.run(deadline=1e-6)
    begun = raised.value.report
    long_ago = {"started_at": NOW - 400 * DAY, "ended_at": NOW - 400 * DAY, "judged_at": NOW}
    store.database.write(lambda connection: connection.execute(update(runs).values(long_ago)))
    ran(store, 100, 101, 102, 103, status="stopped")
    assert store.purge(older_than="90d").runs == 3
    report = pipeline.run()
    assert (report.run_id, report.resumed, report.read) == (begun.run_id, True, 100)


def test_run_with_open_letters_is_kept_until_decided(store, few):
    (waits, goes, *_) = ran(store, 103, 102, 101, 100)
    store.dlq.put({"id": 1}, "bad", key="1", pipeline="vendor", run_id=waits)
    assert store.purge(older_than="90d").runs == 1
    assert waits in left(store)
    assert goes not in left(store)
    store.dlq.escalate(pipeline="vendor", note="to the vendor")
    assert store.purge(older_than="90d").runs == 0
    store.dlq.discard(pipeline="vendor", status="escalated", note="known")
    assert store.purge(older_than="90d").runs == 1
    assert store.dlq.get(1).run_id == waits  # a letter says where it came from, though nothing more is known of that


def test_run_of_an_open_alert_is_kept_until_resolved(store, few):
    (told, *_) = ran(store, 103, 102, 101, 100)
    facts = redrive.model.alerts.Facts(run_id=told)
    (alert,) = store.alerts.ledger.apply(judgement(finding(facts=facts)))
    assert store.purge(older_than="90d").runs == 1
    assert told in left(store)
    store.alerts.resolve(alert.id, by="tess", note="seen")
    assert store.purge(older_than="90d").runs == 1


def test_run_without_a_judgement_is_kept_for_a_week(store, few):
    ran(store, 0.1, 0.2)
    young, old = ran(store, 6, 8, judged_at=None)
    assert store.purge(older_than="1d").runs == 1
    assert (young in left(store), old in left(store)) == (True, False)


@pytest.mark.parametrize("promised_by", ["program", "settings"])
def test_runs_that_deadlines_are_learned_from_are_kept(store, few, promised_by):
    learned = ran(store, *range(1, 22))
    ran(store, 23, 24)
    if promised_by == "program":
        known = {"kind": "pipeline", "name": "vendor", "first_seen": NOW, "last_started": NOW}
        put(store, pipelines, {**known, "sla": "06:30 UTC"})
    else:
        put(store, gauges, {"name": "promise:vendor:06:30 UTC", "at": NOW, "value": 0.0})
    assert store.purge(older_than="1h").runs == 2
    assert left(store) == set(learned)


def test_keys_of_a_removed_run_are_removed(store, few):
    made = ran(store, 100, 101, 102, status="failed")
    put(store, run_keys, *({"run_id": one, "key_digest": bytes(16)} for one in made))
    store.purge(older_than="90d")
    assert ids(store, run_keys) == set(made[:2])


def test_only_unneeded_rows_are_removed(store, few, monkeypatch):
    """Compare with a model: a few hundred runs of every kind, each judged by itself."""
    monkeypatch.setattr(finished, "BATCH", 7)
    chance, facts = random.Random(20_261), []
    for n in range(300):
        name, age = chance.choice("abc"), chance.uniform(0, 200)
        status = chance.choice(["complete", "failed", "aborted", "stopped", "abandoned", "running"])
        ended = {"ended_at": None} if status == "running" else {}
        (run_id,) = ran(store, age, name=name, status=status, **ended)
        flaw = chance.choice(["letter", "settled", "checkpoint", *[None] * 9])
        if flaw == "letter" or flaw == "settled":
            store.dlq.put({"id": n}, "bad", key=str(n), pipeline=name, run_id=run_id)
        if flaw == "settled":
            store.dlq.discard(key=str(n), note="known")
        if flaw == "checkpoint":
            place = {"pipeline_name": f"{name}{n}", "run_id": run_id, "identity": {}, "updated_at": NOW}
            put(store, checkpoints, place)
        facts.append((name, status, age, run_id, flaw))
    compared = {"complete", "failed", "aborted"}
    goes = {
        run_id
        for name, status, age, run_id, flaw in facts
        if age > 90
        and status != "running"
        and flaw not in {"letter", "checkpoint"}
        and sum(one[:2] == (name, status) and one[2] < age for one in facts) >= (2 if status in compared else 1)
    }
    would, done = store.purge(older_than="90d", dry_run=True), store.purge(older_than="90d")
    assert would.runs == done.runs == len(goes) > 50
    assert left(store) == {one[3] for one in facts} - goes
    assert would.kept == done.kept == sum(one[2] > 90 for one in facts) - len(goes)


# ── runs of flows ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_flow_run_is_removed_with_its_tasks_and_files(store, few, tmp_path):
    kept = nights(store, tmp_path, 1, 2)
    before = holds(store, "pipelines", "alerts", "alert_sends")
    gone = nights(store, tmp_path, 100, 101)
    assert sorted(one.name for one in (tmp_path / "results").iterdir()) == sorted(map(str, [*kept, *gone]))
    done = purge(store, tmp_path)
    assert (done.flows, done.tasks, done.files, done.elsewhere) == (2, 8, 4, 0)
    assert holds(store, "pipelines", "alerts", "alert_sends") == before
    assert sorted(one.name for one in (tmp_path / "results").iterdir()) == sorted(map(str, kept))
    assert settlement(store, tmp_path).result("settle", run=kept[0]) == [LARGE, LARGE]
    with pytest.raises(FlowError, match="there is no run of a flow"):
        store.tasks.run(gone[0])


def test_dry_run_counts_rows_that_a_purge_removes(store, few, tmp_path):
    nights(store, tmp_path, 1, 2, 100, 101)
    ran(store, 99, 100, 101, 102)
    there = holds(store)
    would = purge(store, tmp_path, dry_run=True)
    assert (would.dry_run, would.runs, would.flows, would.tasks, would.files) == (True, 2, 2, 8, 4)
    assert holds(store) == there
    done = purge(store, tmp_path)
    assert (done.dry_run, done.runs, done.flows, done.tasks, done.files) == (False, 2, 2, 8, 4)
    assert would.kept == done.kept == 2


def test_blocked_run_is_kept_and_resumes(store, few, tmp_path):
    def refuses(item):
        raise redrive.Permanent("no such merchant")

    held = stopped(settlement(store, tmp_path, work=refuses), params={"day": 1}).report.run_id
    aged(store, 400, held)
    nights(store, tmp_path, 100, 101)
    assert purge(store, tmp_path).flows == 0
    mended = settlement(store, tmp_path)
    mended.retry("settle", run=held)
    assert mended.run(params={"day": 1}).run_id == held


def test_running_run_is_kept(store, few, tmp_path):
    begun, goes_on = threading.Event(), threading.Event()

    def slow(item):
        begun.set()
        assert goes_on.wait(30)

    nights(store, tmp_path, 1, 2, 100)
    beside = Beside(settlement(store, tmp_path, work=slow).run, params={"day": 7})
    assert begun.wait(30)
    run_id = store.tasks.run("settlement").run_id
    try:
        # By all that its row says it is old and done: still somebody is at it.
        for_good = {"status": "complete", "ended_at": NOW - 400 * DAY, "started_at": NOW - 401 * DAY}
        mine = update(task_runs).where(task_runs.c.run_id == run_id).values(for_good)
        store.database.write(lambda connection: connection.execute(mine))
        assert purge(store, tmp_path).flows == 1
        assert run_id in ids(store, task_runs)
    finally:
        goes_on.set()
        beside.join()


def test_killed_purge_is_completed_by_the_next(store, store_url, few, tmp_path):
    gone = nights(store, tmp_path, 1, 2, 100, 101, 102)[2:]
    program = """
import os, signal, sys
import redrive
from redrive.store.retention import finished, flows as retention_flows
finished.NEWEST, retention_flows.TASKS = 2, 5
remove = retention_flows.FlowRetention._remove_tasks
def killed(self, ids):
    real = self._old.remove
    self._old.remove = lambda column, work: (real(column, work), os.kill(os.getpid(), signal.SIGKILL))
    remove(self, ids)
retention_flows.FlowRetention._remove_tasks = killed
redrive.connect(sys.argv[1]).purge(older_than="90d", files=sys.argv[2])
"""
    command = warm_python("-c", program, store_url, tmp_path / "results")
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert set(gone) <= ids(store, task_runs)
    assert store.database.read(lambda connection: len(connection.execute(select(tasks.c.id)).all())) == 5 * 4 - 5
    for one in gone:  # what may be gone in part is not begun again
        with pytest.raises(FlowError, match="was abandoned"):
            settlement(store, tmp_path).run(params={"day": 100 + gone.index(one)}, run_id=one)
    would, done = purge(store, tmp_path, dry_run=True), purge(store, tmp_path)
    assert (would.flows, would.tasks, would.files) == (done.flows, done.tasks, done.files) == (3, 7, 6)
    assert ids(store, tasks) == ids(store, task_runs) == ids(store, task_executors)
    assert len(list((tmp_path / "results").iterdir())) == 2


def test_concurrent_purges_remove_each_row_once(store, store_url, few, tmp_path, monkeypatch):
    monkeypatch.setattr(finished, "BATCH", 3)
    ran(store, *range(100, 142))
    kept = nights(store, tmp_path, 1, 2, *range(100, 108))[:2]
    done, together = [], threading.Barrier(3)

    def one():
        with redrive.connect(store_url) as own:
            together.wait(30)
            done.append(purge(own, tmp_path))

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    together.wait(30)
    flow = settlement(store, tmp_path, name="other")
    assert flow.run(params={"day": 1}).status == "complete"  # and nobody else is disturbed
    for thread in threads:
        thread.join(60)
    done.append(purge(store, tmp_path))  # what each left to the other
    sums = [sum(getattr(each, name) for each in done) for name in ("runs", "flows", "tasks", "files")]
    assert sums == [40, 8, 32, 16]
    assert len(left(store)) == 2
    assert set(kept) <= ids(store, task_runs) == ids(store, tasks) == ids(store, task_executors)


def test_undeletable_file_is_reported_and_the_rest_removed(store, few, tmp_path):
    made = nights(store, tmp_path, 1, 2, 100, 101)
    in_the_way = tmp_path / "results" / str(made[2]) / "mine"
    in_the_way.mkdir()
    with pytest.raises(StoreError, match=r"cannot remove .*mine, which holds results of a purged run") as raised:
        purge(store, tmp_path)
    assert "Check its owner, and purge again" in str(raised.value)
    assert ids(store, task_runs) == set(made[:3])
    in_the_way.rmdir()
    assert purge(store, tmp_path).flows == 1
    assert not in_the_way.parent.exists()


def test_results_in_another_directory_are_counted(store, few, tmp_path):
    nights(store, tmp_path, 1, 2, 100)
    (tmp_path / "empty").mkdir()
    for dry_run in (True, False):
        done = store.purge(older_than="90d", files=tmp_path / "empty", dry_run=dry_run)
        assert (done.flows, done.files, done.elsewhere) == (1, 0, 2)


@pytest.mark.parametrize("dry_run", [True, False])
def test_missing_directory_is_rejected_before_any_removal(store, few, tmp_path, dry_run):
    made = nights(store, tmp_path, 1, 2, 100)
    (tmp_path / "file").touch()
    for named in ("nowhere", "file"):
        with pytest.raises(
            StoreError, match=f"the directory '.*{named}' of flow results does not exist.*; nothing was changed"
        ):
            store.purge(older_than="90d", files=tmp_path / named, dry_run=dry_run)
    assert ids(store, task_runs) == ids(store, tasks) == set(made)


def test_files_behind_a_link_are_never_removed(store, few, tmp_path):
    """An operator moved the results of a run to another disk, or put a link among those of another run."""
    *_, linked, holding = nights(store, tmp_path, 1, 2, 100, 101)
    results, outside = tmp_path / "results", tmp_path / "outside"
    (results / str(linked)).rename(outside)
    (results / str(linked)).symlink_to(outside)
    there = sorted(outside.iterdir())
    (results / str(holding) / "link").symlink_to(there[0])
    assert purge(store, tmp_path, dry_run=True).files == 3  # two files and the link itself
    with pytest.raises(StoreError, match=f"cannot remove .*{linked}, which holds results of a purged run"):
        purge(store, tmp_path)
    assert sorted(outside.iterdir()) == there
    assert not (results / str(holding)).exists()
    (results / str(linked)).unlink()
    assert purge(store, tmp_path).flows == 1
    assert sorted(outside.iterdir()) == there


def test_run_restarted_during_purges_keeps_tasks_and_files(store, few, tmp_path):
    """One purge selects a run; before it removes the run, another purge does, and a scheduler restarts the run."""
    *_, old = nights(store, tmp_path, 1, 2, 100)
    now = datetime.now(UTC)
    slow = retention_flows.FlowRetention(
        finished.Retention(store.database, before=now - 90 * DAY, now=now), tmp_path / "results"
    )
    assert purge(store, tmp_path).flows == 1
    flow = settlement(store, tmp_path)
    assert flow.run(params={"day": 100}, run_id=old).status == "complete"
    gone = slow._finish([old])
    assert (gone.flows, gone.tasks, gone.files) == (0, 0, 0)
    assert flow.result("settle", run=old) == [LARGE, LARGE]


def test_mark_with_a_lost_commit_is_retried(store, few, tmp_path, monkeypatch):
    """A purge that takes an unmarked run for marked removes tasks that another executor may resume."""
    *_, old = nights(store, tmp_path, 1, 2, 100)
    write, answers = store.database.write, []

    def loses_the_commit(work, *, done=None):
        """The first transaction is undone when it is committed, and begun again as `Database.write` does."""
        if answers:
            return write(work, done=done)
        with pytest.raises(ZeroDivisionError):
            write(lambda connection: (answers.append(work(connection)), 1 / 0))
        return write(lambda connection: answers[0] if done(connection, answers[0]) else work(connection))

    monkeypatch.setattr(store.database, "write", loses_the_commit)
    now = datetime.now(UTC)
    old_runs = finished.Retention(store.database, before=now - 90 * DAY, now=now)
    flows = retention_flows.FlowRetention(old_runs, tmp_path / "results")
    ((ids_of_page, why),) = old_runs.pages(finished.FLOWS, 10)
    assert flows._mark(ids_of_page, why) == [old] == answers[0]
    assert flows._marked() == [old]


def test_undeletable_file_does_not_prevent_purge_of_alerts(store, few, tmp_path):
    *_, old = nights(store, tmp_path, 1, 2, 100)
    (tmp_path / "results" / str(old) / "mine").mkdir()
    over(store, "a", 100)
    with pytest.raises(StoreError, match="all other runs were purged"):
        purge(store, tmp_path)
    assert store.alerts.find(limit=10) == []


def test_age_is_measured_by_the_store_clock(store, few, monkeypatch):
    ran(store, 1, 2, 3, 4)
    monkeypatch.setattr(store.database.dialect, "now", lambda connection: NOW - 100 * DAY)
    assert store.purge(older_than="1d").runs == 0
    with pytest.raises(LetterError, match="older_than must lie in the past"):
        store.purge(older_than=NOW)


# ── alerts and services ───────────────────────────────────────────────────────────────────────────────────────────────


def over(store, key, days):
    (alert,) = store.alerts.ledger.apply(judgement(finding(f"run:{key}:failed", key=key)))
    store.alerts.resolve(alert.id, by="tess", note="seen")
    store.database.write(
        lambda connection: connection.execute(
            update(alerts).where(alerts.c.id == alert.id).values(resolved_at=NOW - days * DAY)
        )
    )
    return alert.id


def test_alerts_that_are_over_go_with_their_messages(store):
    old, young, lately = over(store, "a", 100), over(store, "b", 80), over(store, "c", 5)
    (still_open,) = store.alerts.ledger.apply(judgement(finding("run:d:failed", key="d")))
    assert len(store.alerts.sends(old)) > 0
    assert store.purge(older_than="90d", dry_run=True).alerts == 1
    assert store.purge(older_than="90d").alerts == 1
    assert {one.id for one in store.alerts.find(limit=10)} == {young, lately, still_open.id}
    assert store.purge(older_than="0s").alerts == 1  # what was told is remembered for a week
    assert {one.id for one in store.alerts.find(limit=10)} == {lately, still_open.id}
    sends = store.database.read(lambda connection: set(connection.execute(select(alert_sends.c.alert_id)).scalars()))
    assert sends == {lately, still_open.id}


def test_figures_of_services_are_summed_up(store):
    books = {f"bank{days}": MetricsWindow() for days in (1, 100, 200)}
    for name, book in books.items():
        at = NOW - int(name.removeprefix("bank")) * DAY
        book.attempted(at.timestamp(), "success", 0.1, retry=False, fault=False)
    store.services.add(MetricsBatch("17-a", 1, books))
    totals = store.services.totals()
    assert store.purge(older_than="90d", dry_run=True).services == 2
    assert store.purge(older_than="90d").services == 2
    assert store.purge(older_than="0s").services == 0  # the last day is what the last hour is compared with
    assert store.services.totals() == totals
    assert [one.service for one in store.services.windows(since=NOW - 2 * DAY)] == ["bank1"]


# ── the rest ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_letters_and_checkpoints_are_never_removed(store, few, put):
    put(3)
    store.dlq.discard(key="D-1", note="known")
    ran(store, 100, 101, 102)
    kept = ["dead_letter_queue", "letter_audit", "causes", "cause_hours", "checkpoints", "pipelines"]
    before = {name: count for name, count in holds(store).items() if name in kept}
    store.purge(older_than="0s")
    assert {name: count for name, count in holds(store).items() if name in kept} == before


def test_progress_is_reported_to_the_end(store, few, tmp_path, monkeypatch):
    monkeypatch.setattr(finished, "BATCH", 2)
    ran(store, *range(100, 107))
    nights(store, tmp_path, 1, 2, 100)
    told = []
    purge(store, tmp_path, progress=lambda done, total: told.append((done, total)))
    assert told == [(2, 6), (4, 6), (5, 6), (6, 6)]


def test_purge_out_of_time_leaves_the_rest_for_the_next(store, few, tmp_path, monkeypatch):
    monkeypatch.setattr(retention_flows, "TASKS", 3)
    made = nights(store, tmp_path, 1, 2, 100, 101)
    asked = iter([False, False, False, True])  # the page, its runs, the first tasks, and then it is enough
    now = datetime.now(UTC)
    old = finished.Retention(store.database, before=now - 90 * DAY, now=now, enough=lambda: next(asked, True))
    part = retention_flows.FlowRetention(old, tmp_path / "results").purge(lambda seen: None)
    assert (part.flows, part.tasks) == (0, 3)
    assert purge_work(store.database, before=now - 90 * DAY, files=tmp_path / "results", within=-1).tasks == 0
    rest = purge(store, tmp_path)
    assert (rest.flows, rest.tasks, ids(store, task_runs)) == (2, 5, set(made[:2]))


@pytest.mark.parametrize(
    ("older_than", "says"),
    [
        ("soon", 'older_than must be an age such as "2d"'),
        ("", 'older_than must be an age such as "2d"'),
        (None, 'older_than must be an age such as "2d"'),
        (datetime(2020, 1, 1), "older_than must have a time zone"),
        ("9999-01-01", "older_than must lie in the past"),
        (timedelta(days=-1), "older_than must lie in the past"),
        (timedelta.max, "before the beginning of time"),
    ],
)
def test_invalid_arguments_raise_and_remove_nothing(store, few, older_than, says):
    ran(store, 100, 101, 102)
    with pytest.raises(LetterError, match=says):
        store.purge(older_than=older_than)
    assert len(left(store)) == 3


def test_retention_keeps_all_history_that_rules_need():
    assert finished.NEWEST >= judging._HISTORY_RUNS
    assert sla_calendar.KNOWN + timedelta(days=sla_calendar.BACK) <= finished.LEARNED
    assert finished.UNTOLD >= queries._REMEMBERED
