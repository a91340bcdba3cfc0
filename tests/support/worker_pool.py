"""A pool over a module that is written for the test, and the loop that drives it."""

from __future__ import annotations

import importlib
import itertools
import os
import selectors
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from redrive.store.encoding import decode, encode
from redrive.tasks.workers.pool import WorkerPool
from redrive.tasks.workers.protocol import TaskJob, TaskOutcome

PATIENCE = 60.0
"""Seconds after which a test gives up hope; nothing here takes a tenth of it."""

_numbers = itertools.count(1)

HEAD = """
import os, signal, socket, subprocess, sys, time
from pathlib import Path
from redrive.tasks.flow import Flow

flow = Flow({name!r}{options})
"""


def importable(directory: Path, source: str, **options: Any) -> ModuleType:
    """A module with a flow and these tasks, imported from a file as a user's would be."""
    name = f"workshop_{os.getpid()}_{next(_numbers)}"
    given = "".join(f", {key}={value!r}" for key, value in options.items())
    (directory / f"{name}.py").write_text(HEAD.format(name=name, options=given) + textwrap.dedent(source))
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    importlib.invalidate_caches()
    return importlib.import_module(name)


class Workshop:
    """One pool, the jobs it was given, and what became of them."""

    def __init__(self, directory: Path, source: str, *, workers: int = 1, spares: int = 1, **options: Any) -> None:
        self.directory = directory
        self.module = importable(directory, source, **options)
        self.selector = selectors.DefaultSelector()
        self.pool = WorkerPool(self.module.flow, self.selector, workers=workers, spares=spares)
        self.outcomes: dict[int, TaskOutcome] = {}
        self._tickets = itertools.count(1)

    def __enter__(self) -> Workshop:
        try:
            self.pool.start()
            self.pool.check()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.pool.close()
        assert not self.selector.get_map(), "the pool left something in the selector"
        self.selector.close()
        if str(self.directory) in sys.path:
            sys.path.remove(str(self.directory))
        sys.modules.pop(self.module.__name__, None)

    def turn(self, longest: float = 0.2) -> None:
        """One turn of the loop, as the executor has it."""
        deadline = self.pool.next_deadline()
        wait = longest if deadline is None else max(0.0, min(longest, deadline - time.monotonic()))
        for key, _ in self.selector.select(wait):
            key.data()
        self.pool.tick()
        for outcome in self.pool.take_outcomes():
            assert outcome.ticket not in self.outcomes, "an attempt ended twice"
            self.outcomes[outcome.ticket] = outcome

    def until(self, condition: Callable[[], Any]) -> Any:
        """Go on until something is so."""
        give_up = time.monotonic() + PATIENCE
        while not (found := condition()):
            assert time.monotonic() < give_up, "waited in vain"
            self.turn()
        return found

    def give(self, task: str, *, timeout: float | None = 30.0, grace: float = 0.3, **arguments: Any) -> int:
        """Hand a job to a worker as soon as one is idle; its ticket."""
        self.until(lambda: self.pool.idle)
        ticket = next(self._tickets)
        self.pool.submit(
            TaskJob(
                ticket=ticket,
                task=task,
                arguments={name: encode(value) for name, value in arguments.items()},
                identity=f"id-{ticket}",
                timeout=timeout,
                grace=grace,
                result_file=str(self.directory / f"result-{ticket}.json"),
            )
        )
        return ticket

    def wait(self, ticket: int) -> TaskOutcome:
        """What became of a job."""
        return self.until(lambda: self.outcomes.get(ticket))

    def run(self, task: str, **given: Any) -> TaskOutcome:
        """Have a job done."""
        return self.wait(self.give(task, **given))

    def value(self, task: str, **given: Any) -> Any:
        """What a task returns."""
        outcome = self.run(task, **given)
        assert outcome.error is None, outcome
        return None if outcome.result is None else decode(outcome.result)


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it is more than a memory."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def wait_until(condition: Callable[[], Any]) -> Any:
    """Wait for what nobody here has a hand in."""
    give_up = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < give_up, "waited in vain"
        time.sleep(0.01)
    return found
