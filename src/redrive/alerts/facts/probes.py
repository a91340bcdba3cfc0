"""Questions to others who may never answer: each in a thread of its own, and waited for only so long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, text

from redrive._internal.masking import mask
from redrive.errors import RedriveError
from redrive.store.database import Database

T = TypeVar("T")

_BOUND = text("SET LOCAL statement_timeout = '20s'")

_LONGEST = 300  # characters of a reason


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Why there is no answer, fit to be shown."""

    reason: str
    still_out: bool = False
    """It may come yet."""


class ProbeRunner:
    """Asks. Who has not answered yet is not asked again: what hangs costs one thread, not one more every time."""

    def __init__(self) -> None:
        self._out: dict[str, _RunningProbe] = {}

    def send(self, questions: Mapping[str, Callable[[], Any]]) -> None:
        """Begin to ask, by name; an answer that came late to the last question is kept as the answer to this one."""
        for name, question in questions.items():
            if name not in self._out:
                self._out[name] = _RunningProbe(name, question)

    def back(self, *, until: float) -> dict[str, Any]:
        """The answers by name, each of them a value or `Unanswered`; not waited for beyond this monotonic moment.

        Who was waited for in vain is not waited for again: its answer is taken when it is there.
        """
        found: dict[str, Any] = {}
        for name, errand in list(self._out.items()):
            if errand.done.wait(0.0 if errand.late else max(0.0, until - time.monotonic())):
                found[name] = errand.answer
                del self._out[name]
            else:
                errand.late = True
                waited = time.monotonic() - errand.began
                found[name] = Unanswered(f"no answer for {waited:.0f} s, and none yet", still_out=True)
        return found


class _RunningProbe:
    def __init__(self, name: str, question: Callable[[], Any]) -> None:
        self.began = time.monotonic()
        self.done = threading.Event()
        self.late = False
        self.answer: Any = None
        self._question = question
        # A daemon: who never answers does not keep the program from ending.
        threading.Thread(target=self._ask, name=f"redrive-{name}", daemon=True).start()

    def _ask(self) -> None:
        try:
            self.answer = self._question()
        except BaseException as error:  # a probe of the user's may do anything, and this thread is its own
            self.answer = Unanswered(why(error))
        finally:
            self.done.set()


def read_bounded(database: Database, work: Callable[[Connection], T]) -> T:
    """Read from the store as `Database.read` does; a server that takes too long for one statement gives it up."""

    def bounded(connection: Connection) -> T:
        if connection.dialect.name == "postgresql":
            connection.execute(_BOUND)
        return work(connection)

    return database.read(bounded)


def why(error: BaseException) -> str:
    """An error as one line that may be shown to anybody."""
    cause: BaseException = getattr(error, "orig", None) or error  # SQLAlchemy wraps what the driver says
    said = " ".join(mask(str(cause)).split())
    if len(said) > _LONGEST:
        said = f"{said[:_LONGEST]}…"
    if isinstance(cause, RedriveError):
        return said
    return f"{type(cause).__name__}: {said}" if said else type(cause).__name__
