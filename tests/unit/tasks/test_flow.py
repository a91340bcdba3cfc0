"""Defining a flow, and the definitions that are rejected."""

import uuid
from datetime import timedelta

import pytest

import redrive
from redrive.errors import FlowError
from redrive.policy.retry import Retry
from redrive.tasks.flow import Flow


def work():
    return 1


@pytest.fixture
def flow():
    return Flow("settlement", params={"day": "2026-07-01"})


# ── what a task becomes ───────────────────────────────────────────────────────────────────────────────────────────────


def test_task_is_still_its_function(flow):
    @flow.task
    def double(day):
        """Twice."""
        return day * 2

    assert double(4) == 8
    assert (double.name, double.__name__, double.__doc__) == ("double", "double", "Twice.")


def test_unset_options_have_defaults(flow):
    flow.task(work)
    node = flow.graph.nodes["work"]
    assert (node.timeout, node.grace, node.poison, node.storm) == (1_800, 5, 2, 5)
    assert (node.retry.attempts, node.in_thread, node.kind) == (3, False, "task")


def test_task_without_a_retry_has_one_attempt(flow):
    flow.task(retry=None)(work)
    assert flow.graph.nodes["work"].retry == Retry(attempts=1)


def test_after_accepts_tasks_and_names_without_duplicates(flow):
    first = flow.task(name="first")(work)
    flow.task(name="second", after=first)(work)
    flow.task(name="third", after=["first", first, "second"])(work)
    assert [node.after for node in flow.graph.nodes.values()] == [(), ("first",), ("first", "second")]


def test_source_of_a_fan_out_is_first(flow):
    flow.task(name="a")(work)
    flow.task(name="b")(work)
    flow.task(name="c", each="b", after=["a", "b"])(lambda item: item)
    assert flow.graph.nodes["c"].after == ("b", "a")


def test_timeout_none_is_no_limit(flow):
    flow.task(timeout=None)(work)
    flow.task(timeout=None, in_thread=True, name="here")(work)
    assert [node.timeout for node in flow.graph.nodes.values()] == [None, None]


def test_sensor_has_an_interval_and_a_minute_per_call(flow):
    flow.sensor(every=30, timeout=3_600)(work)
    node = flow.graph.nodes["work"]
    assert (node.timeout, node.sensing.every, node.sensing.timeout, node.kind) == (90, 30, 3_600, "sensor")
    flow.sensor(every=30, timeout=3_600, name="here", in_thread=True)(work)
    assert flow.graph.nodes["here"].timeout is None


def test_group_may_be_described_before_or_after_its_tasks(flow):
    bank = redrive.Service("bank")
    flow.group("bank", concurrency=2)
    flow.task(service=bank)(work)
    assert (flow.groups["bank"].service, flow.groups["bank"].concurrency) == (bank, 2)
    flow.group("bank", when_open="fail")
    assert (flow.groups["bank"].service, flow.groups["bank"].when_open) == (bank, "fail")


# ── rejected definitions, one sentence each ───────────────────────────────────────────────────────────────────────────


def other_task():
    return Flow("other").task(name="fetch")(work)


REFUSED = {
    "a lambda": (
        lambda flow: flow.task(lambda: 1),
        "a lambda has no name by which its runs could be known: write a def",
    ),
    "no function": (lambda flow: flow.task(3), "a task is a function, not int"),
    "an odd name": (lambda flow: flow.task(name="a[1]")(work), "a task needs a name of letters, digits"),
    "a name that is none": (lambda flow: flow.task(name=7)(work), "a task needs a name of letters, digits"),
    "a name twice": (lambda flow: (flow.task(work), flow.task(work)), "there is a task 'work' already"),
    "a circle": (
        lambda flow: (flow.task(name="a", after="b")(work), flow.task(name="b", after="a")(work)),
        "tasks cannot wait for each other in a circle: b → a → b",
    ),
    "each without a parameter": (
        lambda flow: (flow.task(name="a")(work), flow.task(name="b", each="a")(work)),
        "task 'b' runs for each item of 'a', and takes none: give it a parameter",
    ),
    "a parameter of nothing": (
        lambda flow: flow.task(name="a")(lambda rows: rows),
        "nothing gives parameter 'rows' of task 'a' a value",
    ),
    "a task of another flow": (
        lambda flow: flow.task(after=other_task())(work),
        "after= of task 'work' names 'fetch' of another flow, 'other'",
    ),
    "a plain function above": (
        lambda flow: flow.task(name="a", after=work)(work),
        "after= of task 'a' takes tasks or their names, not work; is it a @flow.task?",
    ),
    "several sources": (
        lambda flow: flow.task(name="a", each=["x", "y"])(lambda item: item),
        "each= of task 'a' takes tasks or their names, not list",
    ),
    "a timeout of a thread": (
        lambda flow: flow.task(in_thread=True, timeout=5),
        "a task in a thread has no timeout, since nothing can end it: leave one of the two out",
    ),
    "a key that is no function": (
        lambda flow: flow.task(key="day", name="a")(lambda idempotency_key: 1),
        "must be a function of the task's arguments, not str",
    ),
    "a key for nobody": (
        lambda flow: flow.task(key=lambda: "k")(work),
        "task 'work' has a key=…, and no parameter 'idempotency_key' that would be given it",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_invalid_definition_is_rejected(flow, what):
    define, said = REFUSED[what]
    with pytest.raises(FlowError) as refused:
        define(flow)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout": 0}, "timeout must be a finite number of seconds above 0"),
        ({"timeout": "5"}, "timeout must be a finite number of seconds above 0"),
        ({"grace": -1}, "grace must be a finite number of seconds of 0 or more"),
        ({"poison": 0}, "poison must be a whole number of 1 or more"),
        ({"storm": 2.5}, "storm must be a whole number of 1 or more"),
        ({"retry": "3"}, "retry must be a redrive.Retry or None, not str"),
        ({"service": 3}, "service is a redrive.Service or the name of one, not 3"),
    ],
)
def test_options_of_a_task_are_validated(flow, options, said):
    with pytest.raises((TypeError, ValueError), match=said):
        flow.task(**options)(work)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"workers": 0}, "workers must be a whole number of 1 or more"),
        ({"deadline": 0}, "deadline must be a finite number of seconds above 0"),
        ({"stop_within": -1}, "stop_within must be a finite number of seconds of 0 or more"),
        ({"recycle_after": 0}, "recycle_after must be a whole number"),
        ({"max_rss": "1G"}, "max_rss must be a whole number"),
        ({"params": "day"}, r"params takes names, or a mapping of names to defaults: \['day'\]"),
        ({"params": ["first day"]}, "a parameter's name must be one that a function can take, not 'first day'"),
        ({"sla": "soon"}, "sla"),
    ],
)
def test_options_of_a_flow_are_validated(options, said):
    with pytest.raises((TypeError, ValueError), match=said):
        Flow("settlement", **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 0}, "concurrency must be a whole number of 1 or more"),
        ({"rate": 0}, "rate must be a number of tasks a second above 0"),
        ({"when_open": "wait"}, 'when_open must be "hold" or "fail", not \'wait\''),
    ],
)
def test_options_of_a_group_are_validated(flow, options, said):
    with pytest.raises(ValueError, match=said):
        flow.group("bank", **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"params": {"date": 1}}, "flow 'settlement' has no parameter 'date'; it has day"),
        ({"params": {"day": object()}}, "parameter 'day' of flow 'settlement' is an object, which JSON cannot hold"),
        ({"run_id": "today"}, "a run's id is a UUID, not 'today'"),
        ({"run_id": 7}, "a run's id is a UUID, not 7"),
    ],
)
def test_arguments_of_a_run_are_validated_before_the_start(flow, tmp_path, options, said):
    flow.task(in_thread=True)(work)
    with redrive.connect(tmp_path / "store.db") as store:
        with pytest.raises(FlowError, match=said):
            flow.run(store=store, **options)
        assert store.tasks.runs() == []


def test_parameter_without_a_default_is_required(tmp_path):
    flow = Flow("settlement", params=["day"])
    flow.task(in_thread=True)(work)
    with redrive.connect(tmp_path / "store.db") as store, pytest.raises(FlowError, match="needs a value for its para"):
        flow.run(store=store)


def test_flow_with_a_missing_dependency_does_not_start(flow, tmp_path):
    flow.task(after="fetch", in_thread=True)(work)
    with redrive.connect(tmp_path / "store.db") as store:
        with pytest.raises(FlowError, match="task 'work' waits for 'fetch', which is not there"):
            flow.run(store=store)
        with pytest.raises(FlowError, match="has no tasks"):
            Flow("empty").run(store=store)
        assert store.tasks.runs() == []


def test_id_of_a_run_may_be_text(flow, tmp_path):
    flow.task(in_thread=True)(work)
    own = uuid.uuid4()
    with redrive.connect(tmp_path / "store.db") as store:
        assert flow.run(store=store, run_id=str(own)).run_id == own


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda flow: flow.group(None), "not of None"),
        (lambda flow: flow.run(store="redrive.db"), "store must be what redrive.connect"),
        (lambda flow: flow.run(watch=3), "watch needs a function"),
        (lambda flow: redrive.Flow("other", params=["idempotency_key"]), "is given its own"),
    ],
)
def test_invalid_option_is_reported_in_a_sentence(wrong, said):
    with pytest.raises((TypeError, ValueError), match=said):
        wrong(redrive.Flow("settlement"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retries": 3}, r"a task has no option retries=: write retry=redrive\.Retry\(attempts=…\)"),
        ({"depends_on": "a"}, "a task has no option depends_on=: write after=…"),
        ({"colour": "red"}, "a task has no option colour=; its options are after, each, name, timeout, "),
        ({"retry": 3}, r"retry must be a redrive\.Retry or None, not int: write redrive\.Retry\(attempts=4\)"),
        ({"timeout": timedelta(minutes=2)}, "timeout is in seconds: write timeout=120"),
    ],
)
def test_options_of_other_schedulers_suggest_ours(options, said):
    with pytest.raises(TypeError, match=said):
        redrive.Flow("mistaken").task(name="work", **options)(lambda: None)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"retries": 3}, r"a sensor has no option retries=: write retry=redrive\.Retry\(attempts=…\)"),
        ({"poke_interval": 60}, "a sensor has no option poke_interval=: write every=…, in seconds"),
        ({"expand": [1]}, "a sensor has no option expand=; its options are every, timeout, after, name, retry, "),
    ],
)
def test_wrong_option_of_a_sensor_suggests_the_right_one(options, sentence):
    with pytest.raises(TypeError, match=sentence):
        redrive.Flow("mistaken").sensor(every=1, timeout=2, **options)


def test_wrong_option_of_a_run_sensor_suggests_the_right_one():
    sentence = "a run sensor has no option retries=; its options are every, timeout, within, on_failure, after, name$"
    with pytest.raises(TypeError, match=sentence):
        redrive.Flow("mistaken").run_sensor(flow="other", every=1, timeout=2, retries=3)
