"""Tools for testing pipelines against failures: a clock without waiting, a server that fails on demand."""

from redrive.testing.clock import FakeClock
from redrive.testing.faulty_server.answer import Answer
from redrive.testing.faulty_server.http1 import Headers, Request
from redrive.testing.faulty_server.server import FaultyServer
from redrive.testing.mode import set_testing

__all__ = ["Answer", "FakeClock", "FaultyServer", "Headers", "Request", "set_testing"]
