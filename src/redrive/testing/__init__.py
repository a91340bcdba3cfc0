"""Tools for testing pipelines against failure: a clock that needs no waiting, a server that misbehaves on demand."""

from redrive.testing.answer import Answer
from redrive.testing.clock import FakeClock
from redrive.testing.mode import set_testing
from redrive.testing.server import FaultyServer
from redrive.testing.wire import Headers, Request

__all__ = ["Answer", "FakeClock", "FaultyServer", "Headers", "Request", "set_testing"]
