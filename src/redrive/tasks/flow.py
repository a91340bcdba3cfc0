"""`redrive.Flow`: tasks, what they wait for, and how they are run."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload
from uuid import UUID

from redrive._internal.files import local_path
from redrive.calls.service import Service
from redrive.errors import FlowError
from redrive.events.bus import EventBus, Hook
from redrive.model.tasks import FlowProgress, FlowReport
from redrive.policy import option_checks
from redrive.policy.retry import Retry
from redrive.policy.time_of_day import checked_sla
from redrive.tasks.executor.concurrency import ServiceGroup, WhenOpen
from redrive.tasks.graph import Graph, Node, SensorOptions
from redrive.tasks.operator.decisions import Decisions
from redrive.tasks.options import (
    TIMEOUT,
    as_run_id,
    checked_key,
    checked_name,
    checked_params,
    checked_retry,
    checked_rule,
    checked_timeout,
    checked_values,
    cores,
    with_known_options,
)
from redrive.tasks.parameters import bind
from redrive.tasks.task import Task, Upstream, name_of, name_of_task, names_of
from redrive.tasks.trigger_rules import RunWhen

if TYPE_CHECKING:  # a worker imports this module, and has no use for a database
    from redrive.store.store import Store
    from redrive.tasks.executor.executor import Executor
    from redrive.tasks.executor.run_sensor import OnFailure

P = ParamSpec("P")
R = TypeVar("R")

GRACE = 5.0
RETRY = Retry(attempts=3, base=2.0, cap=600.0)
_SHORT_ID = 8  # characters of a run's id that the commands show
_BEYOND_THE_INTERVAL = 60.0  # seconds that asking a sensor may take beyond its interval

defined: dict[tuple[str, int], Flow] = {}
"""The flows of this program by name and line: a worker imports the module that makes them, and finds them here."""


class Flow(Decisions):
    """A graph of tasks, run durably: what is done stays done, whatever is killed.

    Make it at the top of a module: the processes that run its tasks import that module.

    name           under which its runs are kept
    params         the names of its parameters, or a mapping to their defaults; a task that takes one is given its value
    workers        processes that run tasks (one for each core)
    store          where its state is kept; by default `redrive.connect()`
    sla            when a run is to be done: "06:30 Asia/Kolkata", or seconds from its start
    deadline       seconds after which a run stops, as if by SIGTERM; the next run resumes it
    stop_within    seconds that running tasks have to finish when the run is to stop
    files          the directory for results too large for the store; by default beside it
    recycle_after  tasks after which a worker is replaced by a fresh one
    max_rss        bytes of memory beyond which a worker is replaced after its task
    on_event       a function that is called with every event of its runs
    """

    def __init__(
        self,
        name: str,
        *,
        params: Iterable[str] | Mapping[str, Any] = (),
        workers: int | None = None,
        store: Store | str | os.PathLike[str] | None = None,
        sla: str | float | None = None,
        deadline: float | None = None,
        stop_within: float = 10.0,
        files: str | os.PathLike[str] | None = None,
        recycle_after: int | None = 10_000,
        max_rss: int | None = None,
        on_event: Hook | None = None,
    ) -> None:
        self.name = checked_name(name)
        self.params = dict(params) if isinstance(params, Mapping) else {}
        """The parameters that have a default."""
        self.param_names = frozenset(checked_params(params))
        self.workers = option_checks.count("workers", workers, least=1) if workers is not None else cores()
        self.sla = checked_sla(sla)
        self.deadline = None if deadline is None else option_checks.seconds("deadline", deadline, above=0)
        self.stop_within = option_checks.seconds("stop_within", stop_within, least=0)
        self.files = None if files is None else Path(local_path(files, "the directory of results"))
        self.recycle_after = (
            None if recycle_after is None else option_checks.count("recycle_after", recycle_after, least=1)
        )
        self.max_rss = None if max_rss is None else option_checks.count("max_rss", max_rss, least=1)
        self.announcer = EventBus(on_event)
        self.graph = Graph()
        self.groups: dict[str, ServiceGroup] = {}
        self.line = sys._getframe(1).f_lineno
        """Where it was made, in its file: a program may have two flows of one name."""
        made_in = sys._getframe(1).f_globals
        self.module: str = made_in.get("__name__", "__main__")
        self.file: str | None = made_in.get("__file__")
        self._store: Store | None = None if store is None or isinstance(store, str | os.PathLike) else store
        self._store_url = store if isinstance(store, str | os.PathLike) else None
        self._executors: list[Executor] = []
        self._ran = threading.local()
        self._last: tuple[Store, UUID] | None = None
        self._lock = threading.Lock()
        defined[self.name, self.line] = self

    def __repr__(self) -> str:
        return f"<Flow {self.name}: {len(self.graph.nodes)} tasks>"

    @property
    def store(self) -> Store:
        """Return the store of its state."""
        with self._lock:
            if self._store is None:
                from redrive.store.store import connect

                self._store = connect(self._store_url)
            return self._store

    # ── definition ────────────────────────────────────────────────────────────────────────────────────────────────────

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        after: Upstream | Sequence[Upstream] = (),
        each: Upstream | None = None,
        name: str | None = None,
        timeout: float | None = TIMEOUT,
        grace: float = GRACE,
        retry: Retry | None = RETRY,
        poison: int = 2,
        storm: int = 5,
        service: Service | str | None = None,
        in_thread: bool = False,
        key: Callable[..., str] | None = None,
        run_when: str = RunWhen.ALL_SUCCEEDED,
        sla: float | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    @with_known_options("a task")
    def task(
        self,
        function: Callable[P, R] | None = None,
        /,
        *,
        after: Upstream | Sequence[Upstream] = (),
        each: Upstream | None = None,
        name: str | None = None,
        timeout: float | None = TIMEOUT,
        grace: float = GRACE,
        retry: Retry | None = RETRY,
        poison: int = 2,
        storm: int = 5,
        service: Service | str | None = None,
        in_thread: bool = False,
        key: Callable[..., str] | None = None,
        run_when: str = RunWhen.ALL_SUCCEEDED,
        sla: float | None = None,
    ) -> Task[P, R] | Callable[[Callable[P, R]], Task[P, R]]:
        """Make a function a task of this flow.

        A parameter with the name of a task in `after` is given that task's result, of a fan-out the list of all its
        results; one with the name of a parameter of the flow, its value; `idempotency_key`, a key that is the same for
        all attempts of the task.

        after      tasks that must succeed first, unless `run_when` sets another rule
        each       run once for each item of that task's result, which is the first parameter
        name       where the function's own will not do
        timeout    seconds after which an attempt is killed (30 min); None for no limit
        grace      seconds between asking it to end and killing it
        retry      attempts and the waits between them; None for a single attempt
        poison     consecutive failures of one cause that make it a dead letter
        storm      children of a fan-out that may die of one cause before the others are not tried any more
        service    what it depends on: not started while that is down, see `group`
        in_thread  run it in a thread of the executor: for what is short and can be trusted, since nothing can end it
        key        a function of the same arguments that makes its idempotency key
        run_when   "all_done" for cleanup, "any_failed" for notifications, "none_failed" to join branches: when it runs,
                   once everything in `after` has ended
        sla        seconds from the start of the run by which it is to be done; announced as `SlaAtRisk`
        """
        rule = checked_rule(run_when)
        promised = None if sla is None else option_checks.seconds("sla", sla, above=0)
        limit = checked_timeout(timeout, in_thread)
        option_checks.seconds("grace", grace, least=0)
        option_checks.count("poison", poison, least=1)
        option_checks.count("storm", storm, least=1)

        def add(function: Callable[P, R]) -> Task[P, R]:
            own = name_of_task(function, name)
            source = None if each is None else name_of(self, each, own, "each")
            upstream = names_of(self, after, own)
            if source is not None:  # it comes first: a stored graph knows it by that
                upstream = (source, *(name for name in upstream if name != source))
            if rule is not RunWhen.ALL_SUCCEEDED and not upstream:
                raise FlowError(f"task {own!r} has run_when={str(rule)!r} and comes after no task: add after=…")
            binding = bind(function, task=own, upstream=upstream, each=source, params=self.param_names)
            node = Node(
                name=own,
                function=function,
                binding=binding,
                after=upstream,
                each=source,
                timeout=limit,
                grace=grace,
                retry=checked_retry(retry),
                poison=poison,
                storm=storm,
                service=self._downstream(service),
                classifier=service.core.classifier if isinstance(service, Service) else None,
                in_thread=in_thread,
                key=checked_key(key, own, binding),
                run_when=rule,
                sla=promised,
            )
            self.graph.add(node)
            return Task(self, node)

        return add if function is None else add(function)

    @with_known_options("a sensor")
    def sensor(
        self,
        *,
        every: float,
        timeout: float,
        after: Upstream | Sequence[Upstream] = (),
        name: str | None = None,
        retry: Retry | None = RETRY,
        poison: int = 2,
        service: Service | str | None = None,
        in_thread: bool = False,
    ) -> Callable[[Callable[P, R]], Task[P, R]]:
        """Make a function a sensor: it is asked again and again until what it returns is true, its result.

        every      seconds between two questions; none of them may take longer than that and a minute
        timeout    seconds after which it has failed: it is asked for the last time then, and given 5 s to answer
        after      tasks that must succeed first
        retry      attempts and waits where the question itself fails; None for a single attempt
        poison     consecutive failures of one cause that make it a dead letter
        in_thread  ask in a thread of the executor: for what is short and can be trusted
        """
        option_checks.seconds("every", every, above=0)
        option_checks.seconds("timeout", timeout, above=0)

        def add(function: Callable[P, R]) -> Task[P, R]:
            own = name_of_task(function, name)
            upstream = names_of(self, after, own)
            node = Node(
                name=own,
                function=function,
                binding=bind(function, task=own, upstream=upstream, each=None, params=self.param_names),
                after=upstream,
                sensing=SensorOptions(every=every, timeout=timeout),
                timeout=None if in_thread else every + _BEYOND_THE_INTERVAL,
                grace=GRACE,
                retry=checked_retry(retry),
                poison=option_checks.count("poison", poison, least=1),
                service=self._downstream(service),
                classifier=service.core.classifier if isinstance(service, Service) else None,
                in_thread=in_thread,
            )
            self.graph.add(node)
            return Task(self, node)

        return add

    @with_known_options("a run sensor")
    def run_sensor(
        self,
        flow: str,
        *,
        every: float,
        timeout: float,
        within: float | None = None,
        on_failure: OnFailure = "wait",
        after: Upstream | Sequence[Upstream] = (),
        name: str | None = None,
    ) -> Callable[[Callable[..., Any]], Task[..., Any]]:
        """Make a function a sensor that waits until a run of another flow of the same store is complete.

        The function returns the parameters of that run, or some of them. The result is the id of the run and when it
        ended.

        flow        the name of the other flow
        every       seconds between two looks
        timeout     seconds after which it has failed
        within      seconds: a run that ended longer ago does not count
        on_failure  "fail" to fail when the newest run of these parameters failed, is blocked or was cancelled;
                    "wait" for it to be repaired
        after       tasks that must succeed first
        name        where the function's own will not do
        """
        from redrive.tasks.executor.run_sensor import RunSensor

        def add(function: Callable[..., Any]) -> Task[..., Any]:
            name_of_task(function, name)
            asked = RunSensor(function, flow, within=within, on_failure=on_failure)
            sensor = self.sensor(every=every, timeout=timeout, after=after, name=name, retry=None, in_thread=True)
            return sensor(asked)

        return add

    def group(
        self,
        service: Service | str,
        *,
        concurrency: int | None = None,
        rate: float | None = None,
        when_open: WhenOpen = "hold",
        across_runs: bool = False,
    ) -> None:
        """Set limits for the tasks that depend on a service.

        concurrency  how many of them may run at once, in all executors that work on a run
        across_runs  count those of all runs and flows of the store that have this option for the service
        rate         how many may begin in a second, in each executor
        when_open    while the circuit is open, "hold" them or "fail" them
        """
        name = self._downstream(service)
        if name is None:
            raise TypeError("a group is of a redrive.Service, or of the name of one, not of None")
        known = self.groups[name].service
        self.groups[name] = ServiceGroup(
            name, known, concurrency=concurrency, rate=rate, when_open=when_open, across_runs=across_runs
        )

    def _downstream(self, service: Service | str | None) -> str | None:
        if service is None:
            return None
        if not isinstance(service, Service | str) or not service:
            raise TypeError(f"service is a redrive.Service or the name of one, not {service!r}")
        name = service if isinstance(service, str) else service.name
        known = self.groups.get(name)
        if known is None:
            self.groups[name] = ServiceGroup(name, service if isinstance(service, Service) else None)
        elif isinstance(service, Service) and known.service is None:
            self.groups[name] = known.with_service(service)
        return name

    # ── running ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(
        self,
        *,
        params: Mapping[str, Any] | None = None,
        run_id: UUID | str | None = None,
        restart: bool = False,
        new_run: bool = False,
        deadline: float | None = None,
        watch: Callable[[FlowProgress], None] | None = None,
        store: Store | None = None,
    ) -> FlowReport:
        """Run it, or resume the run of the same parameters that is not complete.

        A resumed run does not run completed tasks again, and retries failed ones. A dead letter waits for its decision.
        Raises `FlowStopped` where a task failed, became a dead letter, or the run was asked to stop: its `report` has
        how far it came.

        params    values of its parameters
        run_id    the run to begin, to resume, or to join
        restart   abandon a run that is running or stopped, and begin a new one
        new_run   begin a new one, and leave an earlier one as it is; without parameters its idempotency keys are new
        deadline  seconds after which it stops
        watch     is called about four times a second with how far it has come
        store     another store than the flow's own, for this run
        """
        if restart and new_run:
            raise FlowError("restart abandons the earlier run, new_run leaves it as it is: pass one of them")
        if store is not None and not hasattr(store, "database"):
            raise TypeError(f"store must be what redrive.connect() returns, not {type(store).__name__}")
        if watch is not None and not callable(watch):
            raise TypeError(f"watch needs a function that takes the progress, not {type(watch).__name__}")
        limit = self.deadline if deadline is None else option_checks.seconds("deadline", deadline, above=0)
        values, wanted = self._given(params or {}), as_run_id(run_id)
        from redrive.tasks.workers.fork_server_client import launched

        with launched(self):
            # SQLAlchemy comes with these imports, and takes as long as the fork server does to import the flow.
            from redrive.tasks.executor.executor import Executor
            from redrive.tasks.state.executor_lease import EarlierRun

            start = EarlierRun.RESTART if restart else EarlierRun.NEW if new_run else EarlierRun.RESUME
            executor = Executor(self, store, params=values, run_id=wanted, start=start, deadline=limit, watch=watch)
            self._executors.append(executor)
            try:
                return executor.run()
            finally:
                self._executors.remove(executor)
                if executor.started is not None:
                    self._ran.last = self._last = executor.started

    def stop(self, reason: str = "it was asked to") -> None:
        """End the runs that are under way in this process, as SIGTERM would; from another thread."""
        for executor in list(self._executors):
            executor.stop(reason)

    def _run(self, run: UUID | str | None) -> tuple[Store, UUID | str]:
        """The run that is meant: the one that this thread has run last, then any thread, then the newest there is."""
        last: tuple[Store, UUID] | None = getattr(self._ran, "last", self._last)
        if run is not None:
            ran = [one for one in (last, self._last) if one is not None and _names(run, one[1])]
            return (ran[0][0] if ran else self.store), run  # it may have been run in another store than the flow's own
        if last is not None:
            return last
        newest = self.store.tasks.runs(flow=self.name, limit=1)
        if not newest:
            raise FlowError(f"flow {self.name!r} has not run yet")
        return self.store, newest[0].run_id

    def _given(self, params: Mapping[str, Any]) -> dict[str, Any]:
        if unknown := sorted(set(params) - self.param_names):
            known = f"it has {', '.join(sorted(self.param_names))}" if self.param_names else "it has none"
            raise FlowError(f"flow {self.name!r} has no parameter {unknown[0]!r}; {known}")
        values = {**self.params, **params}
        if missing := sorted(self.param_names - set(values)):
            raise FlowError(f"flow {self.name!r} needs a value for its parameter {missing[0]!r}")
        return checked_values(self.name, values)


def _names(run: UUID | str, run_id: UUID) -> bool:
    """Return whether this is the id of the run, or its beginning."""
    return len(str(run)) >= _SHORT_ID and str(run_id).startswith(str(run).lower())
