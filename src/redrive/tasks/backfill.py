"""Backfill: one run of a flow for each value of a range of parameters, a few at a time."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import Connection, select

from redrive._internal.shutdown import StopSignal
from redrive.errors import FlowError, FlowStopped, RedriveError
from redrive.model.calls import Kind
from redrive.model.tasks import FlowStatus
from redrive.policy import option_checks
from redrive.store.schema import task_runs
from redrive.store.store import Store
from redrive.tasks.parameters import NO_PARAMS, spellings, written

if TYPE_CHECKING:
    from redrive.tasks.flow import Flow

MOST = 10_000
"""Runs of one backfill."""
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
_PADDED = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfilled:
    """What became of the run for one set of parameters."""

    params: Mapping[str, Any]
    status: FlowStatus | None
    """None where it was not started any more."""
    skipped: bool = False
    """It was complete before."""
    run_id: UUID | None = None
    error: str | None = None
    kind: Kind | None = None


def values_of(text: str, read: Callable[[str], Any]) -> list[Any]:
    """Return the values that "2026-01-01..2026-01-31", "1..12" or "eu,us" stands for; `read` reads a single one.

    Numbers with leading zeros are texts of one width, as each of them alone is: "01..12" is "01", "02" and so on.

    Raises `ValueError` for a range that is none.
    """
    first, dots, last = text.partition("..")
    if dots:
        return list(_range(first.strip(), last.strip(), text))
    if "," in text and not text.lstrip().startswith(("[", "{", '"')):
        return [read(one.strip()) for one in text.split(",") if one.strip()]
    return [read(text)]


def _range(first: str, last: str, text: str) -> Iterator[Any]:
    if _DAY.fullmatch(first) and _DAY.fullmatch(last):
        try:
            begin, end = date.fromisoformat(first), date.fromisoformat(last)
        except ValueError:
            raise ValueError(f"{text!r} names a day that does not exist") from None
        count = (end - begin).days + 1
        _check_length(count, text)
        yield from ((begin + timedelta(days=number)).isoformat() for number in range(count))
    elif _INTEGER.fullmatch(first) and _INTEGER.fullmatch(last):
        _check_length(int(last) - int(first) + 1, text)
        yield from range(int(first), int(last) + 1)
    elif _PADDED.fullmatch(first) and _PADDED.fullmatch(last) and len(first) == len(last):
        _check_length(int(last) - int(first) + 1, text)
        yield from (f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1))
    elif _PADDED.fullmatch(first) and _PADDED.fullmatch(last):
        raise ValueError(f"the ends of the range {text!r} are not written alike; write 1..12, or 01..12 for texts")
    else:
        raise ValueError(f"a range is of days or of integers, 2026-01-01..2026-01-31, 1..12 or 01..12, not {text!r}")


def _check_length(count: int, text: str) -> None:
    if count < 1:
        raise ValueError(f"the range {text!r} ends before it begins")
    if count > MOST:
        raise ValueError(f"the range {text!r} has {count:,} values; a backfill takes up to {MOST:,}")


def combined(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return every combination of the values, in their order. Raises `ValueError` where there are too many."""
    found = [dict(zip(values, one, strict=True)) for one in itertools.islice(itertools.product(*values.values()), MOST)]
    total = 1
    for several in values.values():
        total *= len(several)
    if total > MOST:
        raise ValueError(f"these parameters have {total:,} combinations; a backfill takes up to {MOST:,}")
    return found


class Backfill:
    """Runs a flow for each set of parameters, `parallel` of them at once, and continues after one that fails."""

    def __init__(self, flow: Flow, params: Sequence[Mapping[str, Any]], *, parallel: int = 1) -> None:
        self._flow = flow
        given = [flow._given(one) for one in params]
        self.params = list({written(one): one for one in given}.values())
        self.repeated = len(given) - len(self.params)
        """Sets of parameters that were given once more than needed, and are run once."""
        self._parallel = option_checks.count("parallel", parallel, least=1)
        if not self.params:
            raise FlowError("a backfill needs at least one set of parameters")

    def complete(self, store: Store) -> set[str]:
        """The parameters, as text, of which a run is complete, also one from before they had those at a default."""
        wanted = {written(one): set(spellings(one, self._flow.params)) for one in self.params}
        done = select(task_runs.c.params).where(
            task_runs.c.flow_name == self._flow.name, task_runs.c.status == FlowStatus.COMPLETE
        )

        def work(connection: Connection) -> set[str]:
            complete = set(connection.execute(done).scalars()) - {NO_PARAMS}
            return {text for text, same in wanted.items() if same & complete}

        return store.database.read(work)

    def run(
        self, store: Store | None = None, *, each: Callable[[Backfilled], None] = lambda one: None
    ) -> list[Backfilled]:
        """Run all that are not complete yet; `each` is called with every one that has ended.

        SIGTERM, SIGHUP and Ctrl-C stop the runs under way, and no more are begun: running it again resumes them.
        """
        done = self.complete(store or self._flow.store)
        found: dict[int, Backfilled] = {}
        todo: list[int] = []
        for number, params in enumerate(self.params):
            if written(params) in done:
                found[number] = Backfilled(params=params, status=FlowStatus.COMPLETE, skipped=True)
            else:
                todo.append(number)
        stopping = StopSignal(None, on_stop=lambda: self._flow.stop("the backfill was asked to stop"))
        with (
            stopping.heeding_signals(),
            stopping.heeding_sigint(),
            ThreadPoolExecutor(self._parallel, thread_name_prefix="redrive-backfill") as pool,
        ):
            running: dict[Future[Backfilled], int] = {}
            while running or (todo and stopping.reason() is None):
                while todo and len(running) < self._parallel and stopping.reason() is None:
                    number = todo.pop(0)
                    running[pool.submit(self._run, self.params[number], store)] = number
                ended, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in ended:
                    number = running.pop(future)
                    found[number] = future.result()
                    each(found[number])
                if stopping.reason() is not None:  # one may have begun since
                    self._flow.stop("the backfill was asked to stop")
        for number in todo:
            found[number] = Backfilled(params=self.params[number], status=None, kind=Kind.TRANSIENT)
        if stopping.interrupted:
            raise KeyboardInterrupt
        return [found[number] for number in range(len(self.params))]

    def _run(self, params: Mapping[str, Any], store: Store | None) -> Backfilled:
        try:
            report = self._flow.run(params=params, store=store)
        except FlowStopped as stopped:
            status = FlowStatus.FAILED if stopped.report is None else stopped.report.status
            run_id = None if stopped.report is None else stopped.report.run_id
            return Backfilled(params=params, status=status, run_id=run_id, error=str(stopped), kind=stopped.kind)
        except RedriveError as error:  # of this run alone, as far as is known: the others are tried
            kind = getattr(error, "kind", Kind.PERMANENT)
            return Backfilled(params=params, status=FlowStatus.FAILED, error=str(error), kind=kind)
        return Backfilled(params=params, status=report.status, run_id=report.run_id)
