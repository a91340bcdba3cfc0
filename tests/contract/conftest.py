"""Every store test runs on both databases: SQLite in a file, and a real PostgreSQL."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import redrive


@pytest.fixture
def store(store_url: str) -> Iterator[redrive.Store]:
    with redrive.connect(store_url) as opened:
        yield opened


@pytest.fixture
def dlq(store: redrive.Store) -> Any:
    return store.dlq


@pytest.fixture
def put(dlq: Any) -> Callable[..., Any]:
    """Put letters by number: distinct keys, one cause each for `error`."""

    def put(count: int = 1, *, start: int = 0, error: str = "fee: not a number", **options: Any) -> Any:
        options.setdefault("pipeline", "vendor")
        options.setdefault("source", "deliveries.csv")
        return dlq.put_many(
            (
                redrive.NewLetter({"id": f"D-{n}", "fee": "N/A"}, error, key=f"D-{n}")
                for n in range(start, start + count)
            ),
            **options,
        )

    return put


@pytest.fixture
def task(flow: redrive.Flow) -> Callable[..., Any]:
    """A task in a thread, where a function of the test's own may be one."""
    return functools.partial(flow.task, in_thread=True)
