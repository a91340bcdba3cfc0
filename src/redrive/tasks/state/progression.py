"""Progression of the graph: what follows for downstream tasks from tasks that have ended.

Successes are counted down: a task with the default trigger rule is ready when its count of upstream tasks reaches zero,
and most runs need nothing else. Failures, skips and other rules are decided from the states of the whole graph
(`trigger_rules`), by one transaction at a time. Used by the result writer of an executor and by operator actions.
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
from redrive.tasks.state.run_handle import FlowRunHandle, checked
from redrive.tasks.trigger_rules import RunWhen, consequences

OVER = {State.SUCCESS, State.SKIPPED, State.FAILED, State.DEAD_LETTER}
"""States in which a task may end by itself."""
_INSERTED_AT_ONCE = 5_000


@dataclass(slots=True)
class GraphProgress:
    """What followed for the rest of the graph."""

    ready: set[int] = field(default_factory=set)
    """Nodes with tasks to claim now."""
    closed: dict[int, State] = field(default_factory=dict)
    """Nodes that have ended, with all their children."""
    upstream_failed: dict[int, int] = field(default_factory=dict)
    """For each failed node, how many tasks will not run because of it."""
    untried: dict[int, int] = field(default_factory=dict)
    """For each stopped fan-out, how many children were not tried."""
    branches: dict[int, Collection[str]] = field(default_factory=dict)
    """For each node that chose among its followers, the names of the chosen ones."""


class Progression:
    """Advances the graph of one run; without results, expanding fan-outs is left to an executor."""

    def __init__(self, run: FlowRunHandle, results: Results | None) -> None:
        self._run = run
        self._results = results

    def start(self, connection: Connection, now: datetime) -> GraphProgress:
        """Make tasks ready that wait for nothing: at a start or resume, and after an operator action."""
        progress = GraphProgress()
        if self._run.has_rules:
            self._run.lock_graph(connection)
        free_rows = (
            select(tasks.c.node)
            .where(tasks.c.run_id == self._run.run_id, tasks.c.child == -1)
            .where(tasks.c.state == State.PENDING, tasks.c.waiting == 0)
            .with_for_update()  # another executor may start at the same time
        )
        nodes = [node for node in connection.execute(free_rows).scalars() if self._counts_down(node)]
        done: list[tuple[int, State]] = []
        self._promote(connection, now, nodes, progress, done)
        if self._run.has_rules or self._read_passed_over(connection):
            done += self._apply_consequences(connection, now, progress)
        self.advance(connection, now, done, progress)
        return progress

    def advance(
        self, connection: Connection, now: datetime, done: list[tuple[int, State]], progress: GraphProgress
    ) -> None:
        """Apply every ended task to its downstream tasks."""
        if any(self._run.has_rules or state is not State.SUCCESS or node in progress.branches for node, state in done):
            self._run.lock_graph(connection)
        failed: list[int] = []
        follows = False
        while done:
            node, state = done.pop()
            progress.closed[node] = state
            followers = self._run.below[node]
            if state is State.FAILED:
                progress.upstream_failed[node] = 0
                failed.append(node)
            if state is State.SUCCESS and followers:
                branch = progress.branches.get(node)
                freed = self.list_freed(node, branch)
                if freed:
                    rows = connection.execute(_FREE, {"run": self._run.run_id, "nodes": as_list(freed)}).all()
                    free = [row.node for row in rows if not row.waiting and row.state == State.PENDING]
                    self._promote(
                        connection, now, [below for below in free if self._counts_down(below)], progress, done
                    )
                    left = {row.node: row.waiting for row in rows if row.waiting and row.state == State.PENDING}
                    follows |= self._needs_decision(connection, left)
                follows |= branch is not None or any(not self._counts_down(below) for below in followers)
            else:
                follows |= bool(followers) and (state is not State.DEAD_LETTER or self._run.has_rules)
            if followers and (state is State.SKIPPED or node in progress.branches):
                # Another upstream task may end in a parallel transaction: one of the two must see the other.
                connection.execute(_LOCK, {"run": self._run.run_id, "nodes": as_list(followers)}).all()
            if follows and not done:
                follows = False
                done += self._apply_consequences(connection, now, progress, failed)

    def _needs_decision(self, connection: Connection, waiting_for: Mapping[int, int]) -> bool:
        """Return whether a task waits only for upstream tasks that can no longer succeed."""
        passed_over = self._read_passed_over(connection) if waiting_for else {}
        places = self._run.shape.places
        for node, waiting in waiting_for.items():
            name = places[node].name
            not_coming = sum(
                upper in passed_over and name not in passed_over[upper] for upper in set(places[node].after)
            )
            if not_coming >= waiting:
                return True
        return False

    def _read_passed_over(self, connection: Connection) -> dict[int, Collection[str]]:
        """Return the tasks that were skipped or chose a branch, with the names of chosen followers."""
        rows = connection.execute(_PASSED_OVER, {"run": self._run.run_id}).all()
        return {row.node: decode(row.branch) if row.branch else () for row in rows}

    def decide_waiting(self, connection: Connection, now: datetime) -> None:
        """Decide pending tasks after an operator action returned some of them to PENDING."""
        self.advance(connection, now, self._apply_consequences(connection, now, GraphProgress()), GraphProgress())

    def list_freed(self, node: int, branch: Collection[str] | None) -> list[int]:
        """Return the followers that wait for one task less when this one succeeds."""
        places, followers = self._run.shape.places, self._run.below[node]
        return followers if branch is None else [follower for follower in followers if places[follower].name in branch]

    def _counts_down(self, node: int) -> bool:
        return self._run.shape.places[node].run_when is RunWhen.ALL_SUCCEEDED

    def _apply_consequences(
        self, connection: Connection, now: datetime, progress: GraphProgress, failed: Sequence[int] = ()
    ) -> list[tuple[int, State]]:
        """Decide pending tasks by the states of the whole graph; return the fan-outs that ended."""
        self._run.lock_graph(connection)
        states, branches = self._run.read_states(connection)
        outcomes = consequences(self._run.shape.places, states, branches)
        done: list[tuple[int, State]] = []
        doomed = {node for node, after in outcomes.items() if after is State.UPSTREAM_FAILED}
        for node in failed:
            below_node = doomed & reach([node], self._run.below)
            cause = f"{self._run.shape.places[node].name} failed"
            progress.upstream_failed[node] += self._close_unrun(
                connection, now, below_node, State.UPSTREAM_FAILED, cause
            )
            doomed -= below_node
        self._close_unrun(connection, now, doomed, State.UPSTREAM_FAILED, "a task above it failed")
        skipped = {node for node, after in outcomes.items() if after is State.SKIPPED}
        self._close_unrun(connection, now, skipped, State.SKIPPED, "nothing to do")
        ready = [node for node, after in outcomes.items() if after is State.READY and not self._counts_down(node)]
        self._promote(connection, now, sorted(ready), progress, done)
        return done

    def _close_unrun(
        self, connection: Connection, now: datetime, nodes: Collection[int], state: State, cause: str
    ) -> int:
        closing = (
            update(tasks)
            .where(tasks.c.run_id == self._run.run_id, tasks.c.child == -1, tasks.c.state == State.PENDING)
            .where(in_ids(tasks.c.node, sorted(nodes)))
            .values(state=checked(State.PENDING, state), ended_at=now)
            .returning(tasks.c.id)
        )
        ids = connection.execute(closing).scalars().all() if nodes else []
        if ids:
            connection.execute(CHANGE, [change_row(task_id, now, State.PENDING, state, cause) for task_id in ids])
        return len(ids)

    def _promote(
        self,
        connection: Connection,
        now: datetime,
        nodes: Sequence[int],
        progress: GraphProgress,
        done: list[tuple[int, State]],
    ) -> None:
        """Make pending tasks ready, and expand fan-outs."""
        places = self._run.shape.places
        for kind, state in (("task", State.READY), ("sensor", State.SENSING)):
            chosen = [node for node in nodes if places[node].kind == kind]
            if chosen:
                values = {"run": self._run.run_id, "nodes": as_list(chosen), "to": checked(State.PENDING, state)}
                ids = connection.execute(_READY, {**values, "now": now}).scalars().all()
                connection.execute(CHANGE, [change_row(task_id, now, State.PENDING, state, None) for task_id in ids])
                progress.ready.update(chosen)
        for node in nodes:
            if places[node].kind == "fan-out" and self._results is not None:
                row_id = connection.execute(select(tasks.c.id).where(self._own_row(node))).scalar_one()
                if self._expand(connection, now, node, row_id, self._results):
                    progress.ready.add(node)
                else:
                    self.change_state(connection, now, row_id, (State.RUNNING, State.SUCCESS), "nothing to run for")
                    done.append((node, State.SUCCESS))

    def _expand(self, connection: Connection, now: datetime, node: int, row_id: int, results: Results) -> int:
        """Insert the children of a fan-out, and return their number."""
        source = self._run.shape.places[node].after[0]
        items = results.read_items(connection, source)
        name = self._run.shape.places[node].name
        seen: Counter[str] = Counter()
        for start in range(0, len(items), _INSERTED_AT_ONCE):
            rows = []
            for number, item in enumerate(items[start : start + _INSERTED_AT_ONCE], start):
                rows.append(
                    {
                        "run_id": self._run.run_id,
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
        self.change_state(connection, now, row_id, (State.PENDING, State.RUNNING), f"{len(items)} children")
        connection.execute(
            update(tasks).where(tasks.c.id == row_id).values(children=len(items), remaining=len(items), since=now)
        )
        return len(items)

    def change_state(
        self, connection: Connection, now: datetime, row_id: int, states: tuple[State, State], cause: str | None
    ) -> None:
        """Change the state of one task from the first to the second state."""
        before, after = states
        over = now if after in OVER else None
        connection.execute(
            update(tasks).where(tasks.c.id == row_id).values(state=checked(before, after), ended_at=over)
        )
        connection.execute(CHANGE, [change_row(row_id, now, before, after, cause)])

    def _own_row(self, node: int) -> Any:
        return (tasks.c.run_id == self._run.run_id) & (tasks.c.node == node) & (tasks.c.child == -1)


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
    """Return the values of a stored state change."""
    return {"task_id": task_id, "at": at, "before": before, "after": checked(before, after), "cause": cause}
