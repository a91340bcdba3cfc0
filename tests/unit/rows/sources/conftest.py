"""An API for the tests of pages: a real server, a client, and a service that never gives it up."""

import httpx
import pytest

from redrive import Service
from redrive.testing import FaultyServer


@pytest.fixture
def server():
    with FaultyServer() as server:
        yield server


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server.url) as client:
        yield client


@pytest.fixture
def service():
    return Service("partner", breaker=None, budget=None)
