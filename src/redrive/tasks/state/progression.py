"""Progression of the graph: what follows from tasks that have ended for those that come after them.

Success is counted down: a task with the default rule is ready when nothing is left that it waits for, and most of a run
needs nothing else. Failures, skips and other rules are decided from the states of the whole graph (`rules`), by one
transaction at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Text, bindparam, insert, select, update

from redrive.model.tasks import State
from redrive.store.encoding import decode
from redrive.store.schema import tasks
from redrive.store.schema.tasks import PASSED_OVER
from redrive.store.sql import as_list, in_ids
from redrive.tasks.graph import reach
from redrive.tasks.state.claims import CHANGE
from redrive.tasks.state.results import Results
from redrive.tasks.state.run_handle import RunHandle
from redrive.tasks.state.states import checked
from redrive.tasks.trigger_rules import RunWhen, consequences

OVER = {State.SUCCESS, State.SKIPPED, State.FAILED, State.DEAD_LETTER}
"""How a task may end by itself."""
_INSERTED_AT_ONCE = 5_000


@dataclass(slots=True)
class Progress:
    """What followed."""

    ready: set[int] = field(default_factory=set)
    """Nodes that have something to claim now."""
    closed: dict[int, State] = field(default_factory=dict)
    """Nodes that are over, with all their children."""
    upstream_failed: dict[int, int] = field(default_factory=dict)
    """For each node that failed, how many will not run because of it."""
    untried: dict[int, int] = field(default_factory=dict)
    """For each storm, how many were not tried."""
    branches: dict[int, Collection[str]] = field(default_factory=dict)
    """For each node that chose among its followers, those it chose."""


class Progression:
    """Moves the graph of one run on; without results, fan-outs are left to an executor, which has them."""

    def __init__(self, place: RunHandle, results: Results | None) -> None:
        self._place = place
        self._results = results

    def start(self, connection: Connection, now: datetime) -> Progress:
        """Make ready what waits for nothing: at the start of a run, after a resume, after an operator's decision."""
        settled = Progress()
        if self._place.has_rules:
            self._place.lock_graph(connection)
        free = (
            select(tasks.c.node)
            .where(tasks.c.run_id == self._place.run_id, tasks.c.child == -1)
            .where(tasks.c.state == State.PENDING, tasks.c.waiting == 0)
            .with_for_update()  # another executor may begin at the same moment
        )
        nodes = [node for node in connection.execute(free).scalars() if self._counts_down(node)]
        done: list[tuple[int, State]] = []
        self._promote(connection, now, nodes, settled, done)
        if self._place.has_rules or self._without_success(connection):
            done += self._follow(connection, now, settled)
        self.advance(connection, now, done, settled)
        return settled

    def advance(self, connection: Connection, now: datetime, done: list[tuple[int, State]], settled: Progress) -> None:
        """From every task that is over to those that come after it."""
        if any(self._place.has_rules or state is not State.SUCCESS or node in settled.branches for node, state in done):
            self._place.lock_graph(connection)
        failed: list[int] = []
        follows = False
        while done:
            node, state = done.pop()
            settled.closed[node] = state
            lower = self._place.below[node]
            if state is State.FAILED:
                settled.upstream_failed[node] = 0
                failed.append(node)
            if state is State.SUCCESS and lower:
                chosen = settled.branches.get(node)
                freed = self.freed_by(node, chosen)
                if freed:
                    rows = connection.execute(_FREE, {"run": self._place.run_id, "nodes": as_list(freed)}).all()
                    free = [row.node for row in rows if not row.waiting and row.state == State.PENDING]
                    self._promote(connection, now, [one for one in free if self._counts_down(one)], settled, done)
                    left = {row.node: row.waiting for row in rows if row.waiting and row.state == State.PENDING}
                    follows |= self._is_last(connection, left)
                follows |= chosen is not None or any(not self._counts_down(one) for one in lower)
            else:
                follows |= bool(lower) and (state is not State.DEAD_LETTER or self._place.has_rules)
            if lower and (state is State.SKIPPED or node in settled.branches):
                # A task above them that ends at this moment, in another transaction, must see this one or be seen.
                connection.execute(_LOCK, {"run": self._place.run_id, "nodes": as_list(lower)}).all()
            if follows and not done:
                follows = False
                done += self._follow(connection, now, settled, failed)

    def _is_last(self, connection: Connection, left: Mapping[int, int]) -> bool:
        """Whether some of these, by how many tasks above them have not succeeded, wait for nothing that can succeed."""
        without = self._without_success(connection) if left else {}
        places = self._place.shape.places
        for node, waiting in left.items():
            name = places[node].name
            over = sum(upper in without and name not in without[upper] for upper in set(places[node].after))
            if over >= waiting:
                return True
        return False

    def _without_success(self, connection: Connection) -> dict[int, Collection[str]]:
        """The tasks that were skipped or chose among their followers, with the names of those they chose."""
        rows = connection.execute(_PASSED_OVER, {"run": self._place.run_id}).all()
        return {row.node: decode(row.branch) if row.branch else () for row in rows}

    def decide_waiting(self, connection: Connection, now: datetime) -> None:
        """Decide about pending tasks after an operator let some of them wait again."""
        self.advance(connection, now, self._follow(connection, now, Progress()), Progress())

    def freed_by(self, node: int, branch: Collection[str] | None) -> list[int]:
        """The tasks that wait for one task less when this one succeeds."""
        places, lower = self._place.shape.places, self._place.below[node]
        return lower if branch is None else [one for one in lower if places[one].name in branch]

    def _counts_down(self, node: int) -> bool:
        return self._place.shape.places[node].run_when is RunWhen.ALL_SUCCEEDED

    def _follow(
        self, connection: Connection, now: datetime, settled: Progress, failed: Sequence[int] = ()
    ) -> list[tuple[int, State]]:
        """Decide about pending tasks by the states of the whole graph; the fan-outs that are done with it."""
        self._place.lock_graph(connection)
        states, branches = self._place.states(connection)
        found = consequences(self._place.shape.places, states, branches)
        done: list[tuple[int, State]] = []
        doomed = {node for node, after in found.items() if after is State.UPSTREAM_FAILED}
        for node in failed:
            theirs = doomed & reach([node], self._place.below)
            cause = f"{self._place.shape.places[node].name} failed"
            settled.upstream_failed[node] += self._give_up(connection, now, theirs, State.UPSTREAM_FAILED, cause)
            doomed -= theirs
        self._give_up(connection, now, doomed, State.UPSTREAM_FAILED, "a task above it failed")
        skipped = {node for node, after in found.items() if after is State.SKIPPED}
        self._give_up(connection, now, skipped, State.SKIPPED, "nothing to do")
        ready = [node for node, after in found.items() if after is State.READY and not self._counts_down(node)]
        self._promote(connection, now, sorted(ready), settled, done)
        return done

    def _give_up(self, connection: Connection, now: datetime, nodes: Collection[int], state: State, cause: str) -> int:
        given_up = (
            update(tasks)
            .where(tasks.c.run_id == self._place.run_id, tasks.c.child == -1, tasks.c.state == State.PENDING)
            .where(in_ids(tasks.c.node, sorted(nodes)))
            .values(state=checked(State.PENDING, state), ended_at=now)
            .returning(tasks.c.id)
        )
        ids = connection.execute(given_up).scalars().all() if nodes else []
        if ids:
            connection.execute(CHANGE, [change_row(one, now, State.PENDING, state, cause) for one in ids])
        return len(ids)

    def _promote(
        self,
        connection: Connection,
        now: datetime,
        nodes: Sequence[int],
        settled: Progress,
        done: list[tuple[int, State]],
    ) -> None:
        """Nothing is above them any more that they wait for."""
        places = self._place.shape.places
        for kind, state in (("task", State.READY), ("sensor", State.SENSING)):
            chosen = [node for node in nodes if places[node].kind == kind]
            if chosen:
                made = {"run": self._place.run_id, "nodes": as_list(chosen), "to": checked(State.PENDING, state)}
                ids = connection.execute(_READY, {**made, "now": now}).scalars().all()
                connection.execute(CHANGE, [change_row(one, now, State.PENDING, state, None) for one in ids])
                settled.ready.update(chosen)
        for node in nodes:
            if places[node].kind == "fan-out" and self._results is not None:
                row_id = connection.execute(select(tasks.c.id).where(self._own_row(node))).scalar_one()
                if self._expand(connection, now, node, row_id, self._results):
                    settled.ready.add(node)
                else:
                    self.change(connection, now, row_id, (State.RUNNING, State.SUCCESS), "nothing to run for")
                    done.append((node, State.SUCCESS))

    def _expand(self, connection: Connection, now: datetime, node: int, row_id: int, results: Results) -> int:
        """Make the children of a fan-out; how many there are."""
        source = self._place.shape.places[node].after[0]
        items = results.items(connection, source)
        name = self._place.shape.places[node].name
        seen: Counter[str] = Counter()
        for start in range(0, len(items), _INSERTED_AT_ONCE):
            rows = []
            for number, item in enumerate(items[start : start + _INSERTED_AT_ONCE], start):
                rows.append(
                    {
                        "run_id": self._place.run_id,
                        "node": node,
                        "child": number,
                        "name": name,
                        "state": State.READY,
                        "due_at": now,
                        "input": item,
                        "created_at": now,
                        "twin": seen[item],
                    }
                )
                seen[item] += 1
            connection.execute(insert(tasks), rows)
        self.change(connection, now, row_id, (State.PENDING, State.RUNNING), f"{len(items)} children")
        connection.execute(
            update(tasks).where(tasks.c.id == row_id).values(children=len(items), remaining=len(items), since=now)
        )
        return len(items)

    def change(
        self, connection: Connection, now: datetime, row_id: int, ways: tuple[State, State], cause: str | None
    ) -> None:
        """Change the state of one task, from the one to the other."""
        before, after = ways
        over = now if after in OVER else None
        connection.execute(
            update(tasks).where(tasks.c.id == row_id).values(state=checked(before, after), ended_at=over)
        )
        connection.execute(CHANGE, [change_row(row_id, now, before, after, cause)])

    def _own_row(self, node: int) -> Any:
        return (tasks.c.run_id == self._place.run_id) & (tasks.c.node == node) & (tasks.c.child == -1)


_OWN = (tasks.c.run_id == bindparam("run")) & (tasks.c.child == -1)
_FREE = (
    update(tasks)
    .where(_OWN, in_ids(tasks.c.node, bindparam("nodes", type_=Text)))
    .values(waiting=tasks.c.waiting - 1)
    .returning(tasks.c.node, tasks.c.waiting, tasks.c.state)
)
_LOCK = select(tasks.c.id).where(_OWN, in_ids(tasks.c.node, bindparam("nodes", type_=Text))).with_for_update()
_PASSED_OVER = select(tasks.c.node, tasks.c.state, tasks.c.branch).where(_OWN, PASSED_OVER)
_READY = (
    update(tasks)
    .where(_OWN, in_ids(tasks.c.node, bindparam("nodes", type_=Text)), tasks.c.state == State.PENDING)
    .values(state=bindparam("to"), due_at=bindparam("now"))
    .returning(tasks.c.id)
)


def change_row(task_id: int, at: datetime, before: State, after: State, cause: str | None) -> dict[str, Any]:
    """A change of a task's state, as it is stored."""
    return {"task_id": task_id, "at": at, "before": before, "after": checked(before, after), "cause": cause}
