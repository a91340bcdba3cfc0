"""`make unit` runs the tests of this directory that start no program and no server; all others are marked `process`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# In a file of their own: the selection of `make test-changed` takes a fixture's name in a Python file for its use.
FIXTURES = set(Path(__file__).with_name("process_fixtures.txt").read_text().split())
"""What these give starts a program or a server."""
STARTS = frozenset({"os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen"})

_allowed = True


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if FIXTURES & set(getattr(item, "fixturenames", ())) or "postgresql" in filter(_is_text, values):
            item.add_marker(pytest.mark.process)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    global _allowed
    _allowed = item.get_closest_marker("process") is not None
    try:
        return (yield)
    finally:
        _allowed = True


def _check_start(event: str, args: Any, starts: frozenset[str] = STARTS) -> None:  # a global is gone at the end
    # matplotlib lists the fonts once per machine, whichever test draws first.
    if event in starts and not _allowed and args[:1] != ("fc-list",):
        raise RuntimeError("this test starts a process: mark it with @pytest.mark.process")


if os.environ.get("REDRIVE_TEST_LOOP") == "unit":
    sys.addaudithook(_check_start)
