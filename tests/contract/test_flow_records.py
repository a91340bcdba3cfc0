"""The stored records of a run, on both databases: its letters, its files, and its lookups by name."""

import functools
import uuid

import pytest

import redrive
from redrive.errors import FlowError
from redrive.model.letters import Status
from redrive.model.tasks import FlowStatus, State
from redrive.store.schema import task_changes, tasks
from redrive.tasks.state.results import Results
from redrive.testing import set_testing
from tests.support.flows import stopped, stopped_at_a_retry


@pytest.fixture
def files(tmp_path):
    return tmp_path / "results"


@pytest.fixture
def flow(store, files):
    return redrive.Flow("settlement", store=store, workers=2, files=files, params={"day": "monday", "blob": ""})


@pytest.fixture(autouse=True)
def _no_waits():
    with set_testing():
        yield


# ── letters ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_task_dead_in_two_runs_is_two_letters(flow, task, store):
    @task()
    def load(day):
        raise redrive.Permanent("a bad file")

    runs = {day: stopped(flow, params={"day": day}).report.run_id for day in ("monday", "tuesday")}
    letters = {letter.run_id: letter for letter in store.dlq.find()}
    assert {run: letter.record["params"]["day"] for run, letter in letters.items()} == {
        run: day for day, run in runs.items()
    }
    assert {letter.source for letter in letters.values()} == {f"run {run}" for run in runs.values()}
    flow.accept("load", run=runs["tuesday"], note="empty on holidays")
    assert [letter.run_id for letter in store.dlq.find(status=Status.PENDING)] == [runs["monday"]]


def test_letter_has_only_the_parameters_of_its_task(flow, task, store):
    @task()
    def many():
        return [1, 2]

    @task(each=many, poison=1)
    def load(number, day):
        raise redrive.Permanent("a bad file")

    @task()
    def clean():
        raise redrive.Permanent("no space")

    stopped(flow, params={"day": "tuesday", "blob": "x" * 1_000})
    assert {letter.key: letter.record["params"] for letter in store.dlq.find()} == {
        "load[0]": {"day": "tuesday"},
        "load[1]": {"day": "tuesday"},
        "clean": {},
    }


def test_task_dead_twice_in_one_run_is_one_letter(flow, task, store):
    @task()
    def load(day):
        raise redrive.Permanent("a bad file")

    stopped(flow)
    flow.retry("load")
    stopped(flow)
    (letter,) = store.dlq.find()
    assert (letter.key, letter.seen) == ("load", 2)


# ── restarts ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_restart_under_a_new_id_abandons_the_unfinished_run(flow, task, store):
    tried = []

    @task(retry=redrive.Retry(attempts=2, base=3_600, cap=3_600, jitter="none", within=90_000))
    def work():
        tried.append(1)
        if len(tried) == 1:
            raise redrive.Transient("away")

    with set_testing(False):
        old = stopped_at_a_retry(flow).report.run_id
    new = uuid.uuid4()
    assert flow.run(restart=True, run_id=new).run_id == new
    assert store.tasks.run(old).status is FlowStatus.ABANDONED
    assert flow.run().run_id not in (old, new)


def test_run_with_other_parameters_is_rejected_by_name(store):
    flow = redrive.Flow("secretive", store=store, params=["day", "password"])
    flow.task(name="work", in_thread=True)(lambda password: None)
    run_id = flow.run(params={"day": 1, "password": "hunter2"}).run_id
    with pytest.raises(FlowError) as raised:
        flow.run(params={"day": 1, "password": "correct horse"}, run_id=run_id)
    assert "has other parameters: password; give it those it began with" in str(raised.value)
    assert "hunter2" not in str(raised.value)


# ── arguments ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def left_in(files, run_id):
    return sorted(path.name for path in (files / str(run_id)).glob("*"))


def test_shared_arguments_of_children_are_stored_once(flow, task, files):
    task(name="numbers")(lambda: list(range(30)))
    task(name="table")(lambda: "x" * 20_000)
    task(name="work", each="numbers", after="table")(lambda n, table, blob, day: [n, len(table), len(blob), day])
    report = flow.run(params={"blob": "y" * 15_000})
    assert flow.result("work") == [[n, 20_000, 15_000, "monday"] for n in range(30)]
    assert left_in(files, report.run_id) == ["result-1.json"]  # without the table, all of it can be sent


def test_large_item_is_a_file_during_its_attempt(flow, task, files):
    there, failed = [], []
    task(name="texts")(lambda: ["a" * 40_000, "b" * 50_000, "c"])

    @task(each="texts", retry=redrive.Retry(attempts=2))
    def work(text):
        (run,) = files.iterdir()
        there.append(len(list(run.glob("*-item.json"))))
        if text[0] == "b" and not failed:
            failed.append(text)
            raise redrive.Transient("again")
        return len(text)

    report = flow.run()
    assert flow.result("work") == [40_000, 50_000, 1]
    assert max(there) >= 1
    assert not [name for name in left_in(files, report.run_id) if name.endswith("-item.json")]


def test_large_item_of_a_dead_executor_is_removed(flow, task, files, store, monkeypatch):
    task(name="texts")(lambda: ["a" * 40_000])
    died = []

    def dead(work, done=None):
        raise RuntimeError("it is dead")

    @task(each="texts")
    def work(text):
        if not died:
            died.append(1)
            monkeypatch.setattr(store.database, "write", dead)
        return len(text)

    monkeypatch.setattr(Results, "remove_item", lambda *_: None)  # it did not even come to that
    with pytest.raises(RuntimeError, match="it is dead"):
        flow.run()
    monkeypatch.undo()
    report = flow.run()
    assert flow.result("work") == [40_000]
    assert not [name for name in left_in(files, report.run_id) if name.endswith("-item.json")]


# ── operator input ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def dead_pair(flow, task):
    task(name="numbers")(lambda: [1, 2])

    @task(each="numbers")
    def read(number):
        raise redrive.Permanent("corrupt")

    stopped(flow)


@pytest.mark.parametrize("note", ["a\0b", "half \ud800 of it"])
def test_note_with_unstorable_characters_is_stored(flow, store, dead_pair, note):
    flow.retry("read[0]", note=note)
    flow.accept("read[1]", note=note)
    notes = store.database.read(lambda connection: connection.execute(tasks.select()).all())
    assert {row.state for row in notes if row.child >= 0} == {State.READY, State.SUCCESS}
    causes = store.database.read(lambda connection: connection.execute(task_changes.select()).all())
    assert any("\\x00" in (row.cause or "") or "\\ud800" in (row.cause or "") for row in causes)


@pytest.mark.parametrize("number", ["7", "99999999999", "9" * 20, "9" * 5_000])
def test_nonexistent_child_is_not_found(flow, store, dead_pair, number):
    for ask in (functools.partial(store.tasks.get, "settlement"), flow.retry, flow.result):
        with pytest.raises(FlowError, match="has no task"):
            ask(f"read[{number}]")


@pytest.mark.parametrize("name", [3, None, ["read"], b"read", "", "a\0b", "\ud800", "read[x]"])
def test_unknown_task_name_raises_one_sentence(flow, dead_pair, name):
    for ask in (flow.retry, flow.result, functools.partial(flow.fail, note="why")):
        with pytest.raises(FlowError, match="names no task: write settle, or settle"):
            ask(name)


def test_wrong_type_of_run_cause_or_note_raises(flow, dead_pair):
    with pytest.raises(FlowError, match="a cause is a text, as `redrive tasks ls` shows it, not 3"):
        flow.retry(cause=3)
    with pytest.raises(FlowError, match="to send back a task needs a note with the reason"):
        flow.retry("read[0]", note=3)
    for run in ("a\0b", "\ud800"):
        with pytest.raises(FlowError, match="there is no run of a flow"):
            flow.retry("read[0]", run=run)
