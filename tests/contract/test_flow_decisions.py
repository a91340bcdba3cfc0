"""Decisions of operators about failed tasks, on both databases."""

import threading
import time

import pytest

import redrive
from redrive.errors import FlowError, FlowStopped
from redrive.model.letters import Status
from redrive.model.tasks import FlowStatus, State
from redrive.testing import set_testing
from tests.support.flows import PATIENCE, states


@pytest.fixture(autouse=True)
def _no_waits():
    with set_testing():
        yield


@pytest.fixture
def flow(store):
    return redrive.Flow("settlement", store=store, workers=4)


@pytest.fixture
def bad(task):
    """`fetch` → `parse` → `load` → `tell`, of which `parse` dies for as long as `bad` holds something."""
    bad = [redrive.Permanent("a new column")]

    def parse(fetch):
        if bad:
            raise bad[0]
        return fetch + 1

    task(name="fetch")(lambda: 1)
    task(name="parse", after="fetch")(parse)
    task(name="load", after="parse")(lambda parse: parse)
    task(name="tell", after="load")(lambda load: load)
    return bad


def status_of(flow):
    try:
        return flow.run().status
    except FlowStopped as stopped:
        return stopped.report.status


def pending(store):
    return sorted(letter.key for letter in store.dlq.each(status=Status.PENDING))


def test_retried_task_runs_and_the_flow_resumes(flow, bad, store):
    assert status_of(flow) is FlowStatus.HELD
    assert pending(store) == ["parse"]
    bad.clear()
    decided = flow.retry("parse", note="the column is known now")
    assert (decided.tasks, decided.upstream_failed) == (("parse",), 0)
    assert pending(store) == ["parse"]  # not before it has succeeded
    report = flow.run()
    assert (report.status, report.resumed) == (FlowStatus.COMPLETE, True)
    assert (flow.result("tell"), store.tasks.get("settlement", "parse").task.attempts) == (2, 2)
    assert pending(store) == []
    assert next(store.dlq.each()).status is Status.REPROCESSED


def test_retried_task_has_all_its_attempts_again(flow, task, store):
    calls = []

    @task()
    def fetch():
        calls.append(1)
        raise redrive.Transient("away")

    assert status_of(flow) is FlowStatus.FAILED
    flow.retry("fetch")
    assert status_of(flow) is FlowStatus.FAILED
    assert len(calls) == 6


def test_task_dead_again_is_the_same_letter(flow, bad, store):
    status_of(flow)
    flow.retry("parse")
    assert status_of(flow) is FlowStatus.HELD
    (letter,) = store.dlq.each()
    assert (letter.seen, letter.status, letter.attempts) == (2, Status.PENDING, 2)


def test_accepted_result_is_passed_to_the_next_tasks(flow, bad, store):
    status_of(flow)
    flow.accept("parse", note="counted by hand", result=42)
    assert pending(store) == []
    assert flow.run().status is FlowStatus.COMPLETE
    assert flow.result("tell") == 42
    row = store.tasks.get("settlement", "parse").task
    assert (row.state, row.attempts) == (State.SUCCESS, 1)
    assert row.note.startswith("counted by hand (")


def test_failed_task_blocks_its_followers(flow, bad, store):
    status_of(flow)
    decided = flow.fail("parse", note="the vendor is gone")
    assert decided.upstream_failed == 2
    assert states(store) == {
        "fetch": "SUCCESS",
        "parse": "FAILED",
        "load": "UPSTREAM_FAILED",
        "tell": "UPSTREAM_FAILED",
    }
    assert pending(store) == []
    assert status_of(flow) is FlowStatus.FAILED


def test_failed_task_can_be_retried_or_accepted(flow, bad, store):
    status_of(flow)
    flow.fail("parse", note="the vendor is gone")
    assert flow.accept("parse", note="no, it is not", result=7).freed == 2
    assert states(store)["load"] == "READY"
    assert flow.run().status is FlowStatus.COMPLETE
    assert flow.result("tell") == 7


def test_task_below_two_failures_waits_for_both(flow, task, store):
    for name in ("a", "b"):
        task(name=name)(lambda: 1 / 0)
    task(name="end", after=["a", "b"])(lambda: 1)
    status_of(flow)
    flow.fail("a", "b", note="no")
    assert states(store)["end"] == "UPSTREAM_FAILED"
    flow.accept("a", note="fine")
    assert states(store)["end"] == "UPSTREAM_FAILED"
    flow.accept("b", note="fine, too")
    assert status_of(flow) is FlowStatus.COMPLETE


def test_accepted_last_task_lets_the_next_run_complete(flow, task, store):
    task(name="only")(lambda: 1 / 0)
    status_of(flow)
    held = store.tasks.run("settlement")
    flow.accept("only", note="fine")
    report = flow.run()
    assert (report.run_id, report.status, report.attempts) == (held.run_id, FlowStatus.COMPLETE, 2)
    assert store.tasks.run("settlement").status is FlowStatus.COMPLETE


def test_deciding_one_of_two_leaves_the_run_blocked(flow, task):
    for name in ("a", "b"):
        task(name=name)(lambda: 1 / 0)
    status_of(flow)
    flow.accept("a", note="fine")
    assert status_of(flow) is FlowStatus.HELD
    flow.accept("b", note="fine")
    assert status_of(flow) is FlowStatus.COMPLETE


# ── children ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def fan_out(task):
    """Six children, of which 1 and 3 die of one cause and 5 of another, for as long as they are bad."""
    bad = {1, 3, 5}

    def settle(number):
        if number in bad and number == 5:
            raise redrive.Permanent("five")
        if number in bad:
            raise KeyError(number)
        return number

    task(name="split")(lambda: list(range(6)))
    task(name="settle", each="split")(settle)
    task(name="end", after="settle")(lambda settle: settle)
    return bad


def test_fan_out_with_dead_children_resumes_when_they_succeed(flow, fan_out, store):
    assert status_of(flow) is FlowStatus.HELD
    assert states(store)["settle"] == "DEAD_LETTER"
    fan_out.clear()
    flow.retry("settle[1]")
    assert states(store)["settle"] == "RUNNING"
    assert status_of(flow) is FlowStatus.HELD
    assert pending(store) == ["settle[3]", "settle[5]"]
    assert len(flow.retry("settle").tasks) == 2
    assert status_of(flow) is FlowStatus.COMPLETE
    assert flow.result("end") == [0, 1, 2, 3, 4, 5]


def test_cause_is_decided_at_once(flow, fan_out, store):
    status_of(flow)
    causes = {cause.sample: cause.cause for cause in store.tasks.causes("settlement")}
    assert flow.accept(cause=causes["settle[1]"], note="unknown", result=-1).tasks == ("settle[1]", "settle[3]")
    assert states(store)["settle"] == "DEAD_LETTER"
    assert flow.accept(cause=causes["settle[5]"], note="unknown", result=-5).tasks == ("settle[5]",)
    assert states(store)["settle"] == "SUCCESS"
    assert flow.run().status is FlowStatus.COMPLETE
    assert flow.result("end") == [0, -1, 2, -1, 4, -5]


def test_failed_child_fails_fan_out_when_none_is_dead(flow, fan_out, store):
    status_of(flow)
    flow.fail("settle[5]", note="no")
    assert (states(store)["settle"], states(store)["end"]) == ("DEAD_LETTER", "PENDING")
    flow.accept("settle", cause="KeyError", note="fine")
    assert (states(store)["settle"], states(store)["end"]) == ("FAILED", "UPSTREAM_FAILED")
    flow.accept("settle[5]", note="well, yes")
    assert (states(store)["settle"], states(store)["end"]) == ("SUCCESS", "READY")
    assert flow.run().status is FlowStatus.COMPLETE


def test_failing_a_fan_out_fails_its_dead_children(flow, fan_out, store):
    status_of(flow)
    flow.fail("settle[1]", note="no")
    assert flow.fail("settle", note="no").tasks == ("settle[3]", "settle[5]")
    with pytest.raises(FlowError, match=r"task 'settle\[1\]' of run \w{8} is FAILED already"):
        flow.fail("settle[1]", note="no")


def test_source_of_a_fan_out_is_accepted_with_a_list(flow, task, store):
    task(name="split")(lambda: 1 / 0)
    task(name="settle", each="split")(lambda item: item)
    task(name="end", after="settle")(lambda settle: settle)
    status_of(flow)
    with pytest.raises(FlowError, match="'settle' runs for each item of the result of 'split': accept it with a list"):
        flow.accept("split", note="by hand")
    flow.accept("split", note="by hand", result=["x", "y"])
    assert flow.run().counts == {State.SUCCESS: 4}
    assert flow.result("end") == ["x", "y"]


def test_timed_out_sensor_can_be_retried(flow, task, store):
    answers = [False]
    flow.sensor(every=60, timeout=1, in_thread=True, name="arrived")(lambda: answers[0])
    task(name="load", after="arrived")(lambda: 1)
    assert status_of(flow) is FlowStatus.FAILED
    flow.retry("arrived")
    assert states(store) == {"arrived": "SENSING", "load": "PENDING"}
    answers[0] = True
    assert status_of(flow) is FlowStatus.COMPLETE


# ── while an executor runs ────────────────────────────────────────────────────────────────────────────────────────────


def test_running_executor_sees_decisions_of_operators(flow, task, store):
    told = threading.Event()

    @task()
    def long():
        assert told.wait(PATIENCE)

    task(name="bad")(lambda: 1 / 0)
    task(name="items", after="bad")(lambda: [1, 2, 3])
    task(name="each", each="items")(lambda item: item)
    task(name="end", after="each")(lambda: told.set())  # only what comes after the decision lets `long` end

    def person():
        for _ in range(3_000):
            time.sleep(0.01)
            if store.tasks.runs() and states(store).get("bad") == "DEAD_LETTER":
                flow.accept("bad", note="fine")
                return

    watcher = threading.Thread(target=person)
    watcher.start()
    assert flow.run().status is FlowStatus.COMPLETE
    watcher.join()


def test_retried_children_reset_the_storm(flow, task, store):
    bad, told = [True], threading.Event()

    @task(each="split", storm=2)
    def settle(number):
        if bad:
            raise redrive.Permanent("corrupt")
        if number == 19:
            told.set()

    @task()
    def long():
        assert told.wait(PATIENCE)

    task(name="split")(lambda: list(range(20)))

    def person():
        for _ in range(3_000):
            time.sleep(0.01)
            if store.tasks.runs() and states(store).get("settle") == "DEAD_LETTER":
                bad.clear()
                flow.retry("settle")
                return

    watcher = threading.Thread(target=person)
    watcher.start()
    assert flow.run().status is FlowStatus.COMPLETE
    watcher.join()


# ── rejected arguments ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("decide", "said"),
    [
        (lambda flow: flow.retry("parze"), "has no task 'parze'; did you mean 'parse'?"),
        (lambda flow: flow.retry("parse[3]"), r"has no task 'parse\[3\]'; parse has no children"),
        (lambda flow: flow.retry("fetch"), "task 'fetch' of run .{8} is SUCCESS: nothing went wrong"),
        (lambda flow: flow.retry("load"), "task 'load' of run .{8} is PENDING: nothing went wrong"),
        (lambda flow: flow.retry(cause="Nothing"), "failed for a cause that begins with 'Nothing'; its causes are"),
        (lambda flow: flow.retry(), "select tasks by their names, or by their cause"),
        (lambda flow: flow.accept("parse", note=" "), "to accept a task needs a note with the reason"),
        (lambda flow: flow.fail("parse", note=""), "to fail a task needs a note with the reason"),
        (
            lambda flow: flow.accept("parse", note="x", result=object()),
            "a result is plain data that JSON can hold, not",
        ),
        (lambda flow: flow.retry("parse", run="other"), "there is no run of a flow 'other'"),
    ],
)
def test_invalid_decision_raises_and_changes_nothing(flow, bad, store, decide, said):
    status_of(flow)
    before = states(store)
    with pytest.raises(FlowError, match=said):
        decide(flow)
    assert states(store) == before
    assert store.tasks.run("settlement").status is FlowStatus.HELD


def test_abandoned_run_cannot_be_decided(flow, task, store):
    for name in ("a", "b"):
        task(name=name)(lambda: 1 / 0)
    status_of(flow)
    old = store.tasks.run("settlement").run_id
    flow.retry("a")  # it would be gone on with
    with pytest.raises(FlowStopped):
        flow.run(restart=True)
    with pytest.raises(FlowError, match="was abandoned; there is nothing left to decide"):
        flow.retry("b", run=old)


def test_restart_discards_the_letters_of_the_abandoned_run(flow, task, store):
    for name in ("a", "b"):
        task(name=name)(lambda: 1 / 0)
    status_of(flow)
    old = store.tasks.run("settlement").run_id
    flow.retry("a")  # it would be resumed
    with pytest.raises(FlowStopped) as refused:
        flow.run(restart=True)
    of_old = {letter.key: letter for letter in store.dlq.find() if letter.run_id == old}
    assert {letter.status for letter in of_old.values()} == {Status.DISCARDED}
    assert of_old["b"].note.startswith(f"run {str(old)[:8]} was abandoned for a new run (")
    of_new = [letter.status for letter in store.dlq.find() if letter.run_id == refused.value.report.run_id]
    assert of_new == [Status.PENDING, Status.PENDING]


class TestLetterOfTask:
    def test_cannot_be_decided_or_edited_beside_its_task(self, flow, bad, store):
        status_of(flow)
        (letter,) = store.dlq.each()
        for change in (
            lambda: store.dlq.discard(error_type="task", note="x"),
            lambda: store.dlq.discard(cause=letter.fingerprint, note="x"),
            lambda: store.dlq.escalate(pipeline="settlement", note="x"),
            lambda: store.dlq.edit(letter.id, patch={"input": 1}),
            lambda: store.dlq.edit_many(patch={"input": 1}, pipeline="settlement", dry_run=False),
        ):
            with pytest.raises(redrive.LetterError, match=r"redrive tasks (accept|retry|ls) --run"):
                change()
        assert pending(store) == ["parse"]
        flow.accept("parse", result=1, note="x")
        with pytest.raises(redrive.LetterError, match="redrive tasks reopen --run"):
            store.dlq.reopen(ids=[letter.id])
        assert store.dlq.escalate(pipeline="settlement", note="x").unfit == 1

    def test_of_a_run_that_has_ended_can_be_discarded(self, flow, bad, store):
        status_of(flow)
        flow.cancel(note="x")
        assert store.dlq.discard(pipeline="settlement", note="x").unfit == 1

    def test_that_was_discarded_before_follows_its_task(self, flow, bad, store):
        status_of(flow)
        where = "pipeline." if store.database.dialect.is_remote else ""
        store.database.write(  # as older versions allowed
            lambda connection: connection.exec_driver_sql(f"UPDATE {where}dead_letter_queue SET status = 'discarded'")
        )
        bad.clear()
        flow.retry("parse")
        assert status_of(flow) is FlowStatus.COMPLETE
        assert [letter.status for letter in store.dlq.each()] == [Status.REPROCESSED]
