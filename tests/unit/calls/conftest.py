"""A service on a clock that needs no waiting."""

import random

import pytest

from redrive import Service
from redrive.testing import FakeClock


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def service(clock):
    """Makes services that share one fake clock."""

    def make(name="shipfast", **options):
        return Service(name, **{"clock": clock, "random": random.Random(11), **options})

    return make


class Flaky:
    """Raises or returns its arguments one after the other, then the last one every time."""

    def __init__(self, *script):
        self.script = list(script)
        self.calls = 0

    def __call__(self, *args, **kwargs):
        step = self.script[min(self.calls, len(self.script) - 1)]
        self.calls += 1
        if isinstance(step, BaseException) or (isinstance(step, type) and issubclass(step, BaseException)):
            raise step
        return step


@pytest.fixture
def flaky():
    return Flaky
