"""What must be true of a flow's store and of its book, after a kill and at the end; and who is left of a process."""

import contextlib
import os
import sqlite3
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from sqlalchemy import select

import redrive
from redrive.model.tasks import FlowStatus, State
from redrive.store.encoding import decode
from redrive.store.repositories.tasks import shown_name
from redrive.store.schema import task_attempts, task_changes, task_executors, task_runs, tasks
from redrive.tasks.state.run_handle import TRANSITIONS
from tests.oracles.letters import come_to_rest
from tests.support import tasks_flow
from tests.support.tasks_worker import FLOWS, MARK

OVER = {State.SUCCESS, State.SKIPPED, State.FAILED, State.DEAD_LETTER, State.UPSTREAM_FAILED}
QUIET = {"orders", "catalogue", "nothing", "numbers", "halves", "bag", "count_them"}
"""Tasks that have no effect, and a result of their own."""
WAITS = {State.READY, State.RETRYING, State.SENSING}
_LONGEST = 30.0  # seconds in which processes must be gone


# ── who is left ───────────────────────────────────────────────────────────────────────────────────────────────────────


def alive(mark):
    """The processes that come from the executor with this mark, and itself where it was started by a command."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
    return found


def check_nobody_is_left(mark):
    """Of an executor that is gone, nobody may be there a moment later."""
    until = time.monotonic() + _LONGEST
    while left := alive(mark):
        if time.monotonic() > until:
            pytest.fail(f"processes {left} outlived their executor: {[_command(pid) for pid in left]}")
        time.sleep(0.01)


def _command(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


# ── the store ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Books:
    """One run as the store has it at one moment, and the book of its tasks."""

    def __init__(self, store, run_id, book, flow):
        self.graph, self.book = FLOWS[flow].graph, book

        def work(connection):
            def rows(table, *order):
                return connection.execute(select(table).order_by(*order)).all()

            self.runs = rows(task_runs)
            self.rows = [row for row in rows(tasks, tasks.c.node, tasks.c.child) if str(row.run_id) == str(run_id)]
            self.executors = {row.id: row for row in rows(task_executors)}
            self.attempts, self.changes = defaultdict(list), defaultdict(list)
            for row in rows(task_attempts, task_attempts.c.attempt):
                self.attempts[row.task_id].append(row)
            for row in rows(task_changes, task_changes.c.id):
                self.changes[row.task_id].append(row)

        store.database.read(work)
        self.by_name = {shown_name(row.name, row.child): row for row in self.rows}

    def check(self):
        """What is true at every moment."""
        assert len(self.by_name) == len(self.rows), "a task is there twice"
        for name, row in self.by_name.items():
            self._check_attempts(name, row)
            self._check_changes(name, row)
            self._check_claim(name, row)
            if row.children is not None:
                self._check_fan_out(name, row)
            if row.child < 0:
                self._check_waiting(name, row)
        assert {row.id for row in self.rows} >= set(self.attempts) | set(self.changes)

    def _check_attempts(self, name, row):
        attempts = self.attempts[row.id]
        assert [one.attempt for one in attempts] == list(range(1, row.attempt + 1)), f"{name}: {attempts}"
        for one in attempts:
            open_now = row.owner is not None and one.attempt == row.attempt
            assert (one.ended is None) == (one.ended_at is None) == open_now, f"{name}: {one}"
            if open_now:
                assert one.executor == row.owner
        returned = [one for one in attempts if one.ended == "returned"]
        if self._kind(row) != "sensor":
            # Of a task that was accepted by a person there may be none; of no task more than one.
            assert len(returned) == (row.state == State.SUCCESS and row.children is None), f"{name}: {attempts}"

    def _check_changes(self, name, row):
        changes = self.changes[row.id]
        state = State.PENDING if row.child < 0 else State.READY
        for one in changes:
            assert State(one.before) == state, f"{name}: {changes}"
            assert State(one.after) in TRANSITIONS[state], f"{name}: {state} → {one.after}"
            state = State(one.after)
        assert state == State(row.state), f"{name} is {row.state}, but {changes}"

    def _check_claim(self, name, row):
        claimed, due = row.owner is not None, row.due_at is not None
        assert not (claimed and due), name
        if row.children is None:
            assert claimed == (row.state == State.RUNNING or (row.state == State.SENSING and not due)), f"{name}: {row}"
            assert due == (row.state in WAITS and not claimed), f"{name}: {row}"
        if claimed:
            assert self.executors[row.owner].ended_at is None, f"{name} is held by an executor that has ended"

    def _check_fan_out(self, name, row):
        states = Counter(State(one.state) for one in self.rows if one.node == row.node and one.child >= 0)
        assert states.total() == row.children
        counted = (states.total() - sum(states[one] for one in OVER), states[State.DEAD_LETTER], states[State.FAILED])
        assert (row.remaining, row.dead, row.failed) == counted, f"{name}: {row}, {states}"

    def _check_waiting(self, name, row):
        above = [self.by_name[upper] for upper in self._node(row).after]
        waits_for = [one for one in above if one.state != State.SUCCESS]
        assert row.waiting == len(waits_for), f"{name} waits for {row.waiting}, not {[one.name for one in waits_for]}"
        assert not waits_for or row.state in {State.PENDING, State.UPSTREAM_FAILED}, f"{name} did not wait"

    def _node(self, row):
        return self.graph.nodes[row.name]

    def _kind(self, row):
        return self._node(row).kind

    # ── the book ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def lines(self, name):
        """What a task has noted: how often it began, how often a sensor was asked, and its effects."""
        page = Path(self.book) / name
        lines = page.read_text().splitlines() if page.exists() else []
        kinds = Counter(line.partition(" ")[0] for line in lines)
        return kinds["began"], kinds["asked"], [line.partition(" ")[2] for line in lines if line.startswith("effect")]

    def check_effects(self):
        """Every attempt that began was counted before; every one that the store knows to be done has had its effect."""
        for name, row in self.by_name.items():
            began, asked, effects = self.lines(name)
            ends = Counter(one.ended for one in self.attempts[row.id])
            assert max(began, asked) <= row.attempt, f"{name} began {began} times, and {row.attempt} were counted"
            assert len(set(effects)) == len(effects)
            if name in QUIET or row.children is not None:
                continue
            if self._kind(row) != "sensor":
                assert began >= ends["returned"] + ends["raised"], name
                unknown = row.attempt - ends["returned"] - ends["raised"]
                assert ends["returned"] <= len(effects) <= ends["returned"] + unknown, f"{name}: {ends}, {effects}"
            if row.state == State.SUCCESS:
                result = decode(row.result)
                assert effects.count(result["token"]) == 1, f"{name}: {result['token']} of {effects}"
                for upper, given in result["of"].items():
                    assert given == self.token(upper), f"{name} was given another result of {upper} than the stored one"

    def token(self, name):
        """What the store has as the result of a task; of a fan-out, of all its children."""
        row = self.by_name[name]
        if row.children is None:
            return decode(row.result)["token"]
        return [self.token(f"{name}[{child}]") for child in range(row.children)]


def look(store_url, run_id, directory, flow):
    """The books as they are; None where the run has not begun."""
    come_to_rest(store_url)
    if store_url.startswith("sqlite:"):
        with contextlib.closing(sqlite3.connect(store_url.removeprefix("sqlite:///"), timeout=30)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    with redrive.connect(store_url) as store:
        books = Books(store, run_id, directory / "book", flow)
    return books if books.rows else None


def check(store_url, run_id, directory, flow="fire"):
    """Nothing is lost, doubled or in two hands; the books."""
    books = look(store_url, run_id, directory, flow)
    if books is not None:
        books.check()
        books.check_effects()
    return books


def check_end(store_url, run_id, directory):
    """Every task is done, its effect is there, and nobody holds anything."""
    books = check(store_url, run_id, directory)
    assert [FlowStatus(run.status) for run in books.runs] == [FlowStatus.COMPLETE]
    assert set(books.by_name) == tasks_flow.all_tasks() | {"load", "clean", "page"}
    wrong = {name: row.state for name, row in books.by_name.items() if row.state != State.SUCCESS}
    assert not wrong, wrong
    for name, row in books.by_name.items():
        if name not in QUIET and row.children is None:
            assert books.lines(name)[2], f"{name} has had no effect"
    with redrive.connect(store_url) as store:
        assert store.dlq.count() == 0
        assert store.tasks.run(run_id).attempts == sum(row.attempt for row in books.rows)
    return books
