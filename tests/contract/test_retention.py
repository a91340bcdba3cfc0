"""What a purge of the store removes and what it leaves alone, on both databases."""

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


def test_old_runs_go_and_those_that_say_what_is_usual_stay(store):
    many = ran(store, *range(100, 170))
    young = ran(store, 1, 89, name="young")
    done = store.purge(older_than="90d")
    assert (done.runs, done.kept) == (10, 60)
    assert left(store) == {*many[:60], *young}
    with pytest.raises(PipelineError, match="there is no run"):
        store.runs.get(many[-1])


def test_of_each_pipeline_the_newest_run_stays_whatever_became_of_it(store, few):
    ran(store, 100, 101, 102, status="failed")
    newest, _ = ran(store, 99, 105, status="abandoned")
    ran(store, 103, 104, 106)
    other, _ = ran(store, 300, 301, name="other", status="stopped")
    assert store.purge(older_than="90d").runs == 4
    assert {newest, other} <= left(store)


def test_a_run_that_is_to_be_gone_on_with_stays_and_goes_on(store, few, tmp_path):
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


def test_a_run_whose_letters_wait_for_somebody_stays_until_they_are_settled(store, few):
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


def test_a_run_that_an_open_alert_tells_of_stays_until_it_is_over(store, few):
    (told, *_) = ran(store, 103, 102, 101, 100)
    facts = redrive.model.alerts.Facts(run_id=told)
    (alert,) = store.alerts.ledger.apply(judgement(finding(facts=facts)))
    assert store.purge(older_than="90d").runs == 1
    assert told in left(store)
    store.alerts.resolve(alert.id, by="tess", note="seen")
    assert store.purge(older_than="90d").runs == 1


def test_a_run_of_which_nobody_was_told_yet_stays_for_a_week(store, few):
    ran(store, 0.1, 0.2)
    young, old = ran(store, 6, 8, judged_at=None)
    assert store.purge(older_than="1d").runs == 1
    assert (young in left(store), old in left(store)) == (True, False)


@pytest.mark.parametrize("promised_by", ["program", "settings"])
def test_the_runs_from_which_deadlines_are_learned_stay(store, few, promised_by):
    learned = ran(store, *range(1, 22))
    ran(store, 23, 24)
    if promised_by == "program":
        known = {"kind": "pipeline", "name": "vendor", "first_seen": NOW, "last_started": NOW}
        put(store, pipelines, {**known, "sla": "06:30 UTC"})
    else:
        put(store, gauges, {"name": "promise:vendor:06:30 UTC", "at": NOW, "value": 0.0})
    assert store.purge(older_than="1h").runs == 2
    assert left(store) == set(learned)


def test_keys_that_a_run_has_seen_go_with_it(store, few):
    made = ran(store, 100, 101, 102, status="failed")
    put(store, run_keys, *({"run_id": one, "key_digest": bytes(16)} for one in made))
    store.purge(older_than="90d")
    assert ids(store, run_keys) == set(made[:2])


def test_what_goes_is_exactly_what_nobody_needs(store, few, monkeypatch):
    """Against a model: a few hundred runs of every kind, and each is looked at by itself."""
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


def test_a_run_of_a_flow_goes_with_all_that_belongs_to_it(store, few, tmp_path):
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


def test_what_a_dry_run_counts_is_what_goes_then(store, few, tmp_path):
    nights(store, tmp_path, 1, 2, 100, 101)
    ran(store, 99, 100, 101, 102)
    there = holds(store)
    would = purge(store, tmp_path, dry_run=True)
    assert (would.dry_run, would.runs, would.flows, would.tasks, would.files) == (True, 2, 2, 8, 4)
    assert holds(store) == there
    done = purge(store, tmp_path)
    assert (done.dry_run, done.runs, done.flows, done.tasks, done.files) == (False, 2, 2, 8, 4)
    assert would.kept == done.kept == 2


def test_a_run_that_waits_for_a_person_stays_and_goes_on(store, few, tmp_path):
    def refuses(item):
        raise redrive.Permanent("no such merchant")

    held = stopped(settlement(store, tmp_path, work=refuses), params={"day": 1}).report.run_id
    aged(store, 400, held)
    nights(store, tmp_path, 100, 101)
    assert purge(store, tmp_path).flows == 0
    mended = settlement(store, tmp_path)
    mended.retry("settle", run=held)
    assert mended.run(params={"day": 1}).run_id == held


def test_a_run_that_somebody_works_on_stays(store, few, tmp_path):
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


def test_who_is_killed_in_the_middle_leaves_what_the_next_one_finishes(store, store_url, few, tmp_path):
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


def test_two_purges_at_once_remove_each_thing_once(store, store_url, few, tmp_path, monkeypatch):
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


def test_a_file_that_cannot_be_removed_is_said_and_keeps_nothing_else_from_going(store, few, tmp_path):
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


def test_results_that_are_in_another_directory_are_counted(store, few, tmp_path):
    nights(store, tmp_path, 1, 2, 100)
    (tmp_path / "empty").mkdir()
    for dry_run in (True, False):
        done = store.purge(older_than="90d", files=tmp_path / "empty", dry_run=dry_run)
        assert (done.flows, done.files, done.elsewhere) == (1, 0, 2)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_directory_that_is_not_there_is_refused_before_anything_goes(store, few, tmp_path, dry_run):
    made = nights(store, tmp_path, 1, 2, 100)
    (tmp_path / "file").touch()
    for named in ("nowhere", "file"):
        with pytest.raises(
            StoreError, match=f"the directory '.*{named}' of flow results does not exist.*; nothing was changed"
        ):
            store.purge(older_than="90d", files=tmp_path / named, dry_run=dry_run)
    assert ids(store, task_runs) == ids(store, tasks) == set(made)


def test_nothing_behind_a_link_is_ever_removed(store, few, tmp_path):
    """Somebody has put the results of a run on another disk, or a link among those of another."""
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


def test_a_run_that_was_begun_anew_while_two_purge_keeps_its_tasks_and_files(store, few, tmp_path):
    """One has read that a run is to go; before it comes to it, another one removes it, and a scheduler begins it."""
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


def test_a_mark_whose_commit_was_lost_is_made_again(store, few, tmp_path, monkeypatch):
    """Whoever takes a run for marked that is not removes tasks of what others may go on with."""
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


def test_a_file_that_cannot_be_removed_does_not_keep_alerts_from_going(store, few, tmp_path):
    *_, old = nights(store, tmp_path, 1, 2, 100)
    (tmp_path / "results" / str(old) / "mine").mkdir()
    over(store, "a", 100)
    with pytest.raises(StoreError, match="all other runs were purged"):
        purge(store, tmp_path)
    assert store.alerts.find(limit=10) == []


def test_what_is_old_is_so_by_the_clock_of_the_store(store, few, monkeypatch):
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


def test_letters_and_what_pipelines_go_on_from_are_never_touched(store, few, put):
    put(3)
    store.dlq.discard(key="D-1", note="known")
    ran(store, 100, 101, 102)
    kept = ["dead_letter_queue", "letter_audit", "causes", "cause_hours", "checkpoints", "pipelines"]
    before = {name: count for name, count in holds(store).items() if name in kept}
    store.purge(older_than="0s")
    assert {name: count for name, count in holds(store).items() if name in kept} == before


def test_progress_is_told_up_to_the_end(store, few, tmp_path, monkeypatch):
    monkeypatch.setattr(finished, "BATCH", 2)
    ran(store, *range(100, 107))
    nights(store, tmp_path, 1, 2, 100)
    told = []
    purge(store, tmp_path, progress=lambda done, total: told.append((done, total)))
    assert told == [(2, 6), (4, 6), (5, 6), (6, 6)]


def test_what_there_is_no_time_for_is_left_for_another_time(store, few, tmp_path, monkeypatch):
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
def test_rubbish_is_refused_and_nothing_is_removed(store, few, older_than, says):
    ran(store, 100, 101, 102)
    with pytest.raises(LetterError, match=says):
        store.purge(older_than=older_than)
    assert len(left(store)) == 3


def test_as_much_is_kept_as_the_rules_look_at():
    assert finished.NEWEST >= judging._HISTORY_RUNS
    assert sla_calendar.KNOWN + timedelta(days=sla_calendar.BACK) <= finished.LEARNED
    assert finished.UNTOLD >= queries._REMEMBERED
