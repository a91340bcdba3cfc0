"""Run sensors, which wait for the run of another flow. They are polled in the executor, which has the store."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

from redrive.errors import Permanent, Transient
from redrive.model.tasks import FlowStatus
from redrive.policy import option_checks

if TYPE_CHECKING:
    from redrive.store.store import Store

OnFailure = Literal["wait", "fail"]
_RUNS_READ = 1_000  # runs of the other flow to read, newest first
_ENDED_BADLY = (FlowStatus.FAILED, FlowStatus.HELD, FlowStatus.ABANDONED)


class _ThreadStore(threading.local):
    store: Store | None = None


CURRENT = _ThreadStore()
"""The store of the executor that the current thread belongs to."""


class RunSensor:
    """Polls for a run of a flow; the user's function returns the parameters of that run."""

    def __init__(self, function: Callable[..., Any], flow: str, *, within: float | None, on_failure: OnFailure) -> None:
        if not isinstance(flow, str) or not flow.strip():
            raise TypeError(f"a run sensor takes the name of the other flow, not {option_checks.shown(flow)}")
        if on_failure not in get_args(OnFailure):
            raise ValueError(f'on_failure must be "wait" or "fail", not {option_checks.shown(on_failure)}')
        functools.update_wrapper(self, function)
        self._function = function
        self._flow = flow
        self._within = None if within is None else option_checks.seconds("within", within, above=0)
        self._on_failure = on_failure

    def __call__(self, **arguments: Any) -> dict[str, Any] | None:
        """Return the id and the end of the complete run that the sensor waits for; None if there is none."""
        params = self._function(**arguments)
        if params is not None and not isinstance(params, Mapping):
            raise Permanent(
                f"a run sensor returns the parameters of the run it waits for, as a dict, not {type(params).__name__}"
            )
        if CURRENT.store is None:
            raise Permanent("a run sensor can only be asked by a run of its flow")
        return self._find_run(CURRENT.store, params or {})

    def _find_run(self, store: Store, params: Mapping[str, Any]) -> dict[str, Any] | None:
        from sqlalchemy import Connection, select

        from redrive.store.encoding import decode, encode
        from redrive.store.schema import task_runs

        wanted = {name: encode(value) for name, value in params.items()}
        columns = task_runs.c
        newest = select(columns.run_id, columns.status, columns.params, columns.ended_at).where(
            columns.flow_name == self._flow
        )

        def work(connection: Connection) -> tuple[list[Any], Any]:
            rows = connection.execute(newest.order_by(columns.started_at.desc()).limit(_RUNS_READ)).all()
            return list(rows), store.database.dialect.now(connection)

        rows, now = store.database.read(work)
        since = None if self._within is None else now - timedelta(seconds=self._within)
        matching = [
            row
            for row in rows
            if wanted.items() <= {name: encode(value) for name, value in decode(row.params).items()}.items()
            and (since is None or row.ended_at is None or row.ended_at >= since)
        ]
        complete = next((row for row in matching if row.status == FlowStatus.COMPLETE), None)
        if self._on_failure == "fail" and matching and matching[0].status in _ENDED_BADLY:
            newest, completed = matching[0], [row for row in matching if row.status == FlowStatus.COMPLETE]
            # An older run may have been resumed and completed since: then the work is done.
            if not any(row.ended_at > newest.ended_at for row in completed):
                run = str(newest.run_id)[:8]
                raise Transient(f"run {run} of flow {self._flow!r} is {newest.status}, and this task waits for it")
        return None if complete is None else {"run_id": str(complete.run_id), "ended_at": complete.ended_at}
