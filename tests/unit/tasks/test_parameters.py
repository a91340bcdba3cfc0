"""What each parameter of a task is bound to."""

import functools

import pytest

from redrive.errors import FlowError
from redrive.tasks.parameters import Binding, bind


def bound(function, *, upstream=(), each=None, params=()):
    return bind(function, task="settle", upstream=upstream, each=each, params=params)


def test_parameter_gets_the_result_of_the_task_of_its_name():
    assert bound(lambda fetch: None, upstream=["fetch", "other"]) == Binding(results=("fetch",))


def test_parameter_gets_the_flow_parameter_of_its_name():
    assert bound(lambda day: None, params=["day"]) == Binding(params=("day",))


def test_result_outranks_a_parameter_of_the_run():
    assert bound(lambda day: None, upstream=["day"], params=["day"]) == Binding(results=("day",))


def test_first_parameter_of_a_fan_out_is_its_item():
    assert bound(lambda fetch, day: None, upstream=["fetch"], each="fetch", params=["day"]) == Binding(
        item="fetch", params=("day",)
    )
    assert bound(lambda item, fetch: None, upstream=["fetch"], each="fetch") == Binding("item", results=("fetch",))


def test_key_is_passed_to_a_task_that_asks_for_it():
    assert bound(lambda idempotency_key: None) == Binding(wants_key=True)
    assert bound(lambda idempotency_key: None, each="fetch") == Binding(item="idempotency_key")


def test_parameter_with_a_default_needs_no_value():
    assert bound(lambda limit=3, *rest, **more: None) == Binding()


def test_methods_partials_and_objects_bind_open_parameters():
    class Settle:
        def __call__(self, fetch):
            return fetch

    assert bound(Settle(), upstream=["fetch"]) == Binding(results=("fetch",))
    assert bound(functools.partial(lambda day, fetch: None, 1), upstream=["fetch"]) == Binding(results=("fetch",))


def by_position(fetch, /):
    return fetch


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        (
            lambda fetch: None,
            {},
            "nothing gives parameter 'fetch' of task 'settle' a value: name the task it comes from",
        ),
        (lambda: None, {"each": "fetch"}, "task 'settle' runs for each item of 'fetch', and takes none: give it a par"),
        (lambda *items: None, {"each": "fetch"}, "takes none: give it a parameter"),
        (by_position, {"upstream": ["fetch"]}, "task 'settle' takes 'fetch' by position only; let it be taken by name"),
        (dict, {}, "the parameters of task 'settle' cannot be known; wrap it in a function of your own"),
    ],
)
def test_unbindable_parameter_is_rejected_in_one_sentence(function, options, said):
    with pytest.raises(FlowError) as refused:
        bound(function, **options)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
