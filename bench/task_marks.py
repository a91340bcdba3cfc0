"""The work of one run, and when each of its tasks began: a moment per task, in a file that every process maps."""

from __future__ import annotations

import functools
import mmap
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WORKERS = 2
TIMEOUT = 60  # seconds that no task ever takes: what is measured is that somebody watches
PLACE = "BENCH_TASKS_MARKS"

_BEGAN, _ENDED, _COUNTED, _FIRST = range(4)


@dataclass(frozen=True, slots=True)
class Work:
    """So many tasks that do nothing, in a shape, and where to keep what has become of them."""

    shape: str
    tasks: int
    database: str
    url: str

    @property
    def stages(self) -> Iterator[range]:
        """Tasks by number: those of a stage may run together, once the stage before has ended."""
        if self.shape == "flat":
            yield range(self.tasks)
        elif self.shape == "chain":
            yield from (range(number, number + 1) for number in range(self.tasks))
        else:
            yield from (range(1), range(1, self.tasks - 1), range(self.tasks - 1, self.tasks))


class Marks:
    """Nanoseconds of the clock that all processes of a machine share; 0 where nothing has happened yet."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._moments = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")

    @classmethod
    def made(cls, path: Path, tasks: int) -> Marks:
        path.write_bytes(bytes(8 * (_FIRST + tasks)))
        return cls(path)

    def begin(self) -> None:
        self._moments[_BEGAN] = time.monotonic_ns()

    def end(self) -> None:
        self._moments[_ENDED] = time.monotonic_ns()

    def task(self, number: int) -> None:
        """The first line of every task."""
        self._moments[_FIRST + number] = time.monotonic_ns()

    def next_task(self) -> None:
        """The same for tasks that run one after another and do not know their number."""
        number = self._moments[_COUNTED]
        self._moments[_COUNTED] = number + 1
        self.task(number)

    @property
    def began(self) -> int:
        return self._moments[_BEGAN]

    @property
    def ended(self) -> int:
        return self._moments[_ENDED]

    @property
    def starts(self) -> list[int]:
        """The moments at which tasks began, in their order."""
        return sorted(filter(None, self._moments[_FIRST:]))


@functools.cache
def here() -> Marks:
    """Those of this run, whichever of its processes asks."""
    return Marks(Path(os.environ[PLACE]))
