"""A service remembers only bounded, small data about the functions that it has called."""

import functools
import gc
import weakref

import pytest

from redrive import Service
from redrive.calls import function


class Frame:
    """Something large."""


def calls(frame):
    def closure():
        return frame is not None

    return {
        "closure": closure,
        "default": lambda held=frame: held is not None,
        "partial": functools.partial(lambda held: held is not None, frame),
    }


@pytest.mark.parametrize("kind", ["closure", "default", "partial"])
def test_objects_of_a_function_are_released(kind):
    service, frame = Service("bank"), Frame()
    assert service.call(calls(frame)[kind]) is True
    gone = weakref.ref(frame)
    del frame
    gc.collect()
    assert gone() is None


async def test_objects_of_a_coroutine_function_are_released():
    service, frame = Service("bank"), Frame()

    async def upload(held=frame):
        return held is not None

    assert await service.acall(upload) is True
    gone = weakref.ref(frame)
    del frame, upload
    gc.collect()
    assert gone() is None


def test_remembered_functions_are_bounded():
    service = Service("bank")
    for number in range(function._MOST_KNOWN + 10):
        names = {}
        exec(f"def made_{number}(): return {number}", names)
        assert service.call(names[f"made_{number}"]) == number
    assert len(function._known) <= function._MOST_KNOWN


def test_functions_of_one_factory_have_their_own_names():
    seen = []
    service = Service("bank", on_event=seen.append)

    def make(name):
        def made():
            return name

        made.__qualname__ = name
        return made

    for name in ("balance", "transfer"):
        service.call(make(name))
    assert [event.endpoint for event in seen] == ["balance", "transfer"]
