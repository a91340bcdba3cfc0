"""Flows on both databases: when tasks run, and which arguments they get."""

import json
import uuid
from datetime import UTC, datetime

import pytest

import redrive
from redrive.errors import FlowError
from redrive.model.tasks import FlowStatus, State, TaskFailed
from redrive.store.schema import tasks
from redrive.testing import set_testing
from tests.support.flows import attempts_made, states, stopped


@pytest.fixture
def events():
    return []


@pytest.fixture
def flow(store, tmp_path, events):
    return redrive.Flow("settlement", store=store, workers=4, files=tmp_path / "results", on_event=events.append)


@pytest.fixture(autouse=True)
def _no_waits():
    with set_testing():
        yield


# ── order, fan-out, fan-in ────────────────────────────────────────────────────────────────────────────────────────────


def test_diamond_runs_from_top_to_bottom(flow, task):
    order = []

    def noted(name, *given):
        order.append(name)
        return name + "".join(given)

    @task()
    def top():
        return noted("t")

    @task(after=top)
    def left(top):
        return noted("l", top)

    @task(after=top)
    def right(top):
        return noted("r", top)

    @task(after=[left, right])
    def bottom(left, right):
        return noted("b", left, right)

    report = flow.run()
    assert (report.status, report.counts, report.attempts) == (FlowStatus.COMPLETE, {State.SUCCESS: 4}, 4)
    assert (order[0], set(order[1:3]), order[3]) == ("t", {"l", "r"}, "b")
    assert flow.result(bottom) == "bltrt"


def test_fan_out_passes_items_and_fan_in_gets_ordered_results(flow, task):
    @task()
    def numbers():
        return list(range(40))

    @task(each=numbers)
    def square(number, numbers):
        assert len(numbers) == 40
        return {"of": number, "is": number**2}

    @task(after=square)
    def total(square):
        return [one["is"] for one in square]

    flow.run()
    assert flow.result("total") == [number**2 for number in range(40)]
    assert flow.result("square[7]") == {"of": 7, "is": 49}


def test_empty_fan_out_succeeds_at_once_and_so_do_nested_ones(flow, task):
    task(name="none")(lambda: [])
    task(name="each", each="none")(lambda item: item)
    task(name="deeper", each="each")(lambda item: item)
    task(name="end", after=["each", "deeper"])(lambda each, deeper: [each, deeper])
    assert flow.run().counts == {State.SUCCESS: 4}
    assert flow.result("end") == [[], []]


def test_nested_fan_out_runs_for_each_result(flow, task):
    task(name="words")(lambda: ["a", "b", "c"])
    task(name="louder", each="words")(lambda word: word.upper())
    task(name="twice", each="louder")(lambda word: word * 2)
    task(name="end", after="twice")(lambda twice: twice)
    flow.run()
    assert flow.result("end") == ["AA", "BB", "CC"]


def test_thousands_of_children(flow, task, store):
    task(name="many")(lambda: list(range(2_000)))
    task(name="each", each="many")(lambda item: item)
    task(name="sum", after="each")(lambda each: sum(each))
    report = flow.run()
    assert (report.counts, attempts_made(store)) == ({State.SUCCESS: 2_002}, 2_002)
    assert flow.result("sum") == 1_999_000


def test_large_result_is_a_file_and_reaches_its_readers(flow, task, store, tmp_path):
    task(name="large")(lambda: ["x" * 1_000 for _ in range(300)])
    task(name="each", each="large")(lambda item, large: [len(item), len(large), item * 80])
    task(name="end", after=["each", "large"])(
        lambda each, large: [len(each), sum(len(one[2]) for one in each), large[0]]
    )
    flow.run()
    assert flow.result("end") == [300, 300 * 80_000, "x" * 1_000]
    details = store.tasks.get("settlement", "large")
    assert details.result is None
    assert json.loads((tmp_path / "results" / details.result_file).read_text())[0] == "x" * 1_000


def test_result_is_read_back_unchanged(flow, task):
    moment = datetime(2027, 1, 1, tzinfo=UTC)
    task(name="made")(lambda: {"at": moment, "raw": b"\xff", "pair": (1, 2), "none": None})
    task(name="seen", after="made")(lambda made: [made["at"] == moment, made["raw"] == b"\xff", made["pair"] == (1, 2)])
    flow.run()
    assert flow.result("seen") == [True, True, True]


# ── parameters, keys ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_parameters_are_passed_to_tasks_that_name_them(store):
    flow = redrive.Flow("daily", store=store, params={"day": "monday", "limit": 3})
    flow.task(name="a", in_thread=True)(lambda day: day)
    flow.task(name="b", in_thread=True, after="a")(lambda a, limit=9, other="x": [a, limit, other])
    report = flow.run(params={"day": "friday"})
    assert report.params == {"day": "friday", "limit": 3}
    assert flow.result("b") == ["friday", 3, "x"]


def test_idempotency_key_is_per_task_and_same_for_attempts(flow, task):
    seen = []

    @task(name="items")
    def items(idempotency_key):
        seen.append(("items", idempotency_key))
        return ["x", "y"]

    @task(name="pay", each="items")
    def pay(item, idempotency_key):
        seen.append((item, idempotency_key))
        if len([one for one in seen if one[0] == item]) < 3:
            raise redrive.Transient("not yet")

    flow.run()
    keys = {item: {key for name, key in seen if name == item} for item in ("items", "x", "y")}
    assert [len(found) for found in keys.values()] == [1, 1, 1]
    assert len(set.union(*keys.values())) == 3
    flow.run()
    assert len({key for _, key in seen}) == 6  # another run pays anew


def test_key_can_be_built_from_the_arguments(flow, task):
    task(name="items")(lambda: [{"id": 7}, {"id": 8}])
    made = task(name="pay", each="items", key=lambda item: f"pay-{item['id']}")
    made(lambda item, idempotency_key: idempotency_key)
    flow.run()
    assert [flow.result("pay[0]"), flow.result("pay[1]")] == ["pay-7", "pay-8"]


# ── sensors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_sensor_is_polled_until_true_and_returns_its_answer(flow, task, store):
    answers = iter([None, False, [], ["file.csv"]])

    @flow.sensor(every=60, timeout=3_600, in_thread=True)
    def arrived():
        return next(answers)

    task(name="load", each=arrived)(lambda path: path.upper())
    flow.run()
    assert flow.result("load") == ["FILE.CSV"]
    details = store.tasks.get("settlement", "arrived")
    assert (details.task.attempts, details.result) == (4, ["file.csv"])
    assert [(one.before, one.after) for one in details.changes] == [
        (State.PENDING, State.SENSING),
        (State.SENSING, State.SUCCESS),
    ]


def test_sensor_timeout_fails_and_blocks_followers(flow, task, store):
    flow.sensor(every=60, timeout=1, in_thread=True, name="arrived")(lambda: False)
    task(name="load", after="arrived")(lambda: None)
    assert stopped(flow).report.status is FlowStatus.FAILED
    assert states(store) == {"arrived": "FAILED", "load": "UPSTREAM_FAILED"}
    assert store.tasks.get("settlement", "arrived").task.error == "was not true within 1.0 s"


# ── runs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_complete_run_is_followed_by_a_new_run_unless_named(flow, task):
    ran = []
    task(name="a")(lambda: ran.append(1))
    own = uuid.uuid4()
    first = flow.run(run_id=own)
    assert (first.run_id, first.resumed) == (own, False)
    again = flow.run(run_id=own)
    assert (again.resumed, again.ended_at, len(ran)) == (True, first.ended_at, 1)
    assert flow.run().run_id != own
    assert len(ran) == 2


def test_run_of_other_flow_or_parameters_is_not_resumed(store):
    flow = redrive.Flow("daily", store=store, params=["day"])
    flow.task(name="a", in_thread=True)(lambda day: day)
    run_id = flow.run(params={"day": 1}).run_id
    with pytest.raises(FlowError, match=f"run {run_id} has other parameters: "):
        flow.run(run_id=run_id, params={"day": 2})
    other = redrive.Flow("weekly", store=store)
    other.task(name="a", in_thread=True)(lambda: 1)
    with pytest.raises(FlowError, match="is of flow 'daily', not of 'weekly'"):
        other.run(run_id=run_id)


def test_task_rows_are_one_per_node_and_child(flow, task, store):
    """The rows that monitoring reads: one for each task and each child."""
    task(name="a")(lambda: [1, 2])
    task(name="b", each="a")(lambda item: item)
    flow.run()
    read = store.database.read(lambda connection: connection.execute(tasks.select()).all())
    assert sorted((row.name, row.child, row.remaining) for row in read) == [
        ("a", -1, 0),
        ("b", -1, 0),
        ("b", 0, 0),
        ("b", 1, 0),
    ]


def test_failing_watch_function_does_not_end_the_run(flow, task, caplog):
    @task
    def load():
        return 1

    def watch(progress):
        raise RuntimeError("blind")

    assert flow.run(watch=watch).status is FlowStatus.COMPLETE
    assert "is not called any more" in caplog.text


def test_failed_children_are_logged_once(flow, task):
    told = []

    @task
    def parts():
        return list(range(30))

    @task(each="parts", retry=None)
    def fetch(part):
        raise redrive.Transient(f"{part} is away")

    end = redrive.on_event(told.append)
    stopped(flow)
    end()
    (failed,) = [event for event in told if isinstance(event, TaskFailed)]
    assert (failed.task, failed.count) == ("fetch", 30)
