"""Random graphs with random outcomes, run by the real executor on a real store, against a small model of what a task
may become.

The workers are replaced by ones that end every attempt at once as a script says; nothing else is. An executor may be
killed before or after any of its transactions. Whatever happens: each task ends as the model says, every attempt is
counted and made once, and every change of a state is one that the table allows.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

import redrive
from redrive.classify.builtin import SKIP
from redrive.errors import FlowStopped
from redrive.model.calls import Kind, Verdict
from redrive.model.letters import Status
from redrive.model.tasks import FlowStatus, State
from redrive.policy.retry import Retry
from redrive.store.encoding import encode
from redrive.store.schema import task_attempts, task_changes, tasks
from redrive.tasks.executor.executor import Executor
from redrive.tasks.executor.threads import Waker
from redrive.tasks.operator import actions
from redrive.tasks.operator.cancel import cancel_tasks
from redrive.tasks.operator.rerun import rerun
from redrive.tasks.state.executor_lease import EarlierRun
from redrive.tasks.state.run_handle import TRANSITIONS
from redrive.tasks.workers.protocol import AttemptEnd, TaskOutcome
from redrive.testing import set_testing
from tests.oracles.flow_states import ACCEPTED_ITEMS, CAUSES, Drawn, Model
from tests.support.stores import StoreSlots

# ── what may happen to an attempt ─────────────────────────────────────────────────────────────────────────────────────

FAILURES = {
    "transient": (AttemptEnd.RAISED, Kind.TRANSIENT),
    "timed out": (AttemptEnd.TIMED_OUT, Kind.TRANSIENT),
    "one bug": (AttemptEnd.RAISED, Kind.AMBIGUOUS),
    "other bug": (AttemptEnd.RAISED, Kind.AMBIGUOUS),
    "died": (AttemptEnd.DIED, Kind.AMBIGUOUS),
    "permanent": (AttemptEnd.RAISED, Kind.PERMANENT),
    "discard": (AttemptEnd.RAISED, Kind.DISCARD),
    "skip": (AttemptEnd.RAISED, Kind.DISCARD),
}
outcomes = st.sampled_from(["returns", "not yet", *FAILURES])
rules = st.one_of(st.just("all_succeeded"), st.sampled_from(["all_done", "any_failed", "none_failed"]))


@st.composite
def graphs(draw: st.DrawFn) -> list[Drawn]:
    found: list[Drawn] = []
    for number in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["task", "fan-out", "sensor"] if number else ["task", "sensor"]))
        after = draw(st.lists(st.integers(0, number - 1), unique=True, max_size=3)) if number else []
        if kind == "fan-out" and not after:
            after = [draw(st.integers(0, number - 1))]
        items = draw(st.integers(1 if kind == "sensor" else 0, 3))
        scripts = draw(st.lists(st.lists(outcomes, max_size=5), min_size=1, max_size=3))
        rule = draw(rules) if after and kind != "sensor" else "all_succeeded"
        found.append(Drawn(kind, after, items, draw(st.integers(1, 4)), scripts, rule))
    return found


DECIDES = {
    "retry": (State.DEAD_LETTER, State.FAILED),
    "accept": (State.DEAD_LETTER, State.FAILED),
    "fail": (State.DEAD_LETTER,),
    "rerun": (State.SUCCESS,),
    "cancel": (State.PENDING, State.READY, State.RETRYING, State.SENSING),
}
"""What an operator can decide, and about tasks in which states."""
decisions = st.lists(st.tuples(st.sampled_from([*DECIDES]), st.integers(0, 99)), max_size=3)
kills = st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=3)


# ── scripted workers, and an executor that is killed ──────────────────────────────────────────────────────────────────


class Killed(BaseException):
    """kill -9, as far as the store shows."""


class ScriptedPool:
    """Ends every attempt at once."""

    idle = 2

    def __init__(self, stage: Stage, selector: Any) -> None:
        self._stage = stage
        self._waker = Waker()
        selector.register(self._waker.receiver, 1, self._waker.clear)
        self._ended: list[TaskOutcome] = []

    def submit(self, job: Any) -> None:
        place, _, attempt = Path(job.result_file).stem.rpartition("-")
        node = int(job.task[1:])
        drawn = self._stage.graph[node]
        child = self._stage.child_of(int(place)) if drawn.kind == "fan-out" else -1
        children = 0 if child < 0 else self._stage.model.resets[node]
        self._stage.made[node, child, children, int(attempt)] += 1
        self._ended.append(outcome_of(job.ticket, drawn, drawn.outcome(child, int(attempt))))
        self._waker.wake()

    def take_outcomes(self) -> list[TaskOutcome]:
        found, self._ended = self._ended, []
        return found

    def next_deadline(self) -> None:
        return None

    def _nothing(self) -> Any:
        return []

    start = check = tick = stop = running = _nothing

    def close(self) -> None:
        self._waker.close()


def outcome_of(ticket: int, drawn: Drawn, said: str) -> TaskOutcome:
    if said in ("returns", "not yet"):
        truth = said == "returns"
        result = encode(list(range(drawn.items)) if truth else None)
        return TaskOutcome(ticket=ticket, ended=AttemptEnd.RETURNED, seconds=0.0, result=result, truth=truth)
    ended, kind = FAILURES[said]
    verdict = Verdict(kind, said, SKIP if said == "skip" else "test")
    return TaskOutcome(ticket=ticket, ended=ended, seconds=0.0, verdict=verdict, error=said, fingerprint=CAUSES[said])


class Stage:
    """One flow on one store, run until nothing moves any more."""

    def __init__(self, graph: list[Drawn], store: redrive.Store) -> None:
        self.graph, self.store = graph, store
        self.model = Model(graph)
        self.made: Counter[tuple[int, int, int, int]] = Counter()
        """How often each attempt was started: of a task, a child, one of its sets of children, and by its number."""
        self.flow = redrive.Flow("drawn", store=store, workers=2)
        for number, drawn in enumerate(graph):
            self._add(number, drawn)

    def _add(self, number: int, drawn: Drawn) -> None:
        upper = [f"t{one}" for one in drawn.after]
        common: dict[str, Any] = {"name": f"t{number}", "retry": Retry(attempts=drawn.attempts)}
        if drawn.kind != "sensor":
            common["run_when"] = drawn.run_when
        if drawn.kind == "sensor":
            self.flow.sensor(every=60, timeout=86_400, after=upper, **common)(lambda: None)
        elif drawn.kind == "fan-out":
            self.flow.task(each=upper[0], after=upper[1:], storm=1_000, **common)(lambda item: None)
        else:
            self.flow.task(after=upper, **common)(lambda: None)

    def run(self, run_id: Any, kill: tuple[int, bool] | None = None) -> FlowStatus | None:
        """How it ended; None where it was killed."""
        executor = Executor(
            self.flow,
            self.store,
            params={},
            run_id=run_id,
            start=EarlierRun.RESUME,
            deadline=None,
            watch=None,
            make_pool=lambda flow, selector, workers: ScriptedPool(self, selector),
        )
        if kill is not None:
            run_cycle, left = executor._cycle.run, [kill[0]]

            def killed(request: Any) -> Any:
                left[0] -= 1
                if left[0] == 0 and not kill[1]:
                    raise Killed
                result = run_cycle(request)
                if left[0] == 0:
                    raise Killed
                return result

            executor._cycle.run = killed  # type: ignore[method-assign]
        try:
            return executor.run().status
        except FlowStopped as stopped:
            if stopped.report is None:  # it was fenced off
                raise
            return stopped.report.status
        except Killed:
            return None

    def child_of(self, task_id: int) -> int:
        """Return which child of its fan-out a task is."""
        own = select(tasks.c.child).where(tasks.c.id == task_id)
        return self.store.database.read(lambda connection: connection.execute(own).scalar_one())

    def rows(self, table: Any, order: Any) -> list[Any]:
        return self.store.database.read(lambda connection: connection.execute(select(table).order_by(*order)).all())


def forgive_failures(stage: Stage, model: Model) -> None:
    """The next start tries again what failed; not what an operator has failed."""
    rows = stage.rows(tasks, [tasks.c.id])
    failed = [row for row in rows if row.state == State.FAILED and row.children is None]
    again = [row for row in failed if (row.node, row.child) not in model.decided]
    for row in again:
        model.forgiven[row.node, row.child] = row.attempt
    for row in again:
        model.reset_below(row.node, {(one.node, one.child): one.attempt for one in rows})


def shown(place: tuple[int, int]) -> str:
    return f"t{place[0]}" if place[1] < 0 else f"t{place[0]}[{place[1]}]"


def observed(stage: Stage, model: Model) -> dict[tuple[int, int], State]:
    """Return the states in the store, and the ends of the attempts, which the model judges independently."""
    rows = stage.rows(tasks, [tasks.c.id])
    places = {row.id: (row.node, row.child) for row in rows}
    model.outcomes.clear()
    for attempt in stage.rows(task_attempts, [task_attempts.c.task_id, task_attempts.c.attempt]):
        number, child = places[attempt.task_id]
        expected = stage.graph[number].outcome(child, attempt.attempt)
        said = "lost" if attempt.ended == "lost" else expected
        assert attempt.ended == (FAILURES[said][0] if said in FAILURES else "lost" if said == "lost" else "returned")
        model.outcomes[number, child].append(said)
    for row in rows:
        assert row.attempt == len(model.outcomes[row.node, row.child]), "an attempt is counted when it is claimed"
        assert row.owner is None
        assert (row.due_at is None) == (row.state not in ("READY", "RETRYING", "SENSING"))
    assert not {one: times for one, times in stage.made.items() if times > 1}, "no attempt is made twice"
    model.check_attempts()
    return {places[row.id]: State(row.state) for row in rows}


def check_changes(stage: Stage) -> None:
    """Every change of a state is allowed, none is missing, and the last one is where the task stands."""
    after: dict[int, str] = {}
    for change in stage.rows(task_changes, [task_changes.c.id]):
        assert State(change.after) in TRANSITIONS[State(change.before)]
        assert change.before == after.get(change.task_id, change.before)
        after[change.task_id] = change.after
    for row in stage.rows(tasks, [tasks.c.id]):
        assert row.state == after.get(row.id, "PENDING" if row.child < 0 else "READY")


def check_letters(stage: Stage, model: Model, states: dict[tuple[int, int], State]) -> None:
    """Whatever is a dead letter has one that is pending, and so may have what was sent back and then failed."""
    parents = {number for number, child in states if child >= 0}
    pending = {letter.key for letter in stage.store.dlq.each(status=Status.PENDING)}
    for place, state in states.items():
        if not (place[1] < 0 and place[0] in parents):
            sent_back = state is State.FAILED and model.forgiven[place]
            assert (shown(place) in pending) == (state is State.DEAD_LETTER) or sent_back


def decide(stage: Stage, model: Model, run_id: Any, wish: tuple[str, int]) -> None:
    """What an operator does about one of the tasks, in the store and in the model."""
    action, choice = wish
    rows = stage.rows(tasks, [tasks.c.node, tasks.c.child])
    possible = [row for row in rows if row.children is None and row.state in DECIDES[action]]
    if not possible:
        return
    row = possible[choice % len(possible)]
    place = (row.node, row.child)
    name = shown(place)
    if action in ("retry", "accept", "rerun"):
        model.reset_below(place[0], {(one.node, one.child): one.attempt for one in rows})
    if action in ("retry", "rerun"):
        {"retry": actions.retry, "rerun": rerun}[action](stage.store, run_id, [name])
        model.forgiven[place] = row.attempt
        model.decided.pop(place, None)
    elif action == "accept":
        actions.accept(stage.store, run_id, [name], note="known", result=list(range(ACCEPTED_ITEMS)))
        model.decided[place] = State.SUCCESS
    else:
        {"fail": actions.fail, "cancel": cancel_tasks}[action](stage.store, run_id, [name], note="given up")
        model.decided[place] = State.FAILED


@given(graphs(), kills, st.lists(decisions, max_size=2))
def test_every_task_ends_as_the_model_predicts(
    store_slots: StoreSlots, graph: list[Drawn], killed: list[tuple[int, bool]], rounds: list[list[tuple[str, int]]]
) -> None:
    with store_slots.lend("sqlite") as url, redrive.connect(url) as store, set_testing():
        store.listeners = ()  # a third of the time went into the alerts, which have tests of their own
        stage = Stage(graph, store)
        model = stage.model
        kill = list(killed)
        run_id = None
        for wishes in [[], *rounds]:
            for wish in wishes:
                decide(stage, model, run_id, wish)
            status = None
            while status is None:
                forgive_failures(stage, model)
                status = stage.run(run_id, kill.pop() if kill else None)
                run_id = store.tasks.runs(flow="drawn", limit=1)[0].run_id
            found = observed(stage, model)
            assert found == model.states()
            assert status == (
                FlowStatus.HELD
                if State.DEAD_LETTER in found.values()
                else FlowStatus.FAILED
                if State.FAILED in found.values()
                else FlowStatus.COMPLETE
            )
            check_changes(stage)
            check_letters(stage, model, found)
