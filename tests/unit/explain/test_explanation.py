"""Explanations for rows, tasks and alerts match the runtimes."""

import random
import re

import pytest

import redrive
from redrive.alerts.conditions import CONDITIONS
from redrive.alerts.rules.runs import RETRYABLE as RETRYABLE_IN_ALERTS
from redrive.explain.explanation import RECOVERABLE, ROWS, TASKS, alerts_on
from redrive.model.calls import Kind, Verdict
from redrive.model.tasks import State
from redrive.rows.run import SMALLEST
from redrive.tasks.executor.decide import AttemptHistory, decide
from redrive.tasks.workers.protocol import AttemptEnd, TaskOutcome


def after(kind, failures):
    """The states of a task that fails again and again, always at the same place."""
    flow = redrive.Flow("words")
    flow.task(name="one")(lambda: None)
    node, past, states = flow.graph.nodes["one"], AttemptHistory(), []
    for _ in range(failures):
        verdict = Verdict(kind, "it broke", "test")
        outcome = TaskOutcome(ticket=1, ended=AttemptEnd.RAISED, seconds=0.1, verdict=verdict, fingerprint="here")
        found = decide(node, past, outcome, random.Random(1))
        states.append(found.state)
        past = AttemptHistory(found.failures, found.same, found.fingerprint, found.wait)
        if found.state not in (State.RETRYING, State.READY):
            break
    return states


@pytest.mark.parametrize("kind", list(Kind))
def test_task_gets_the_state_that_the_text_names(kind):
    said = re.findall(r"[A-Z_]{4,}", TASKS[kind])
    became = [str(state) for state in dict.fromkeys(after(kind, 5))]
    assert became == said


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_has_a_text(kind):
    assert ROWS[kind]
    for scope in ("call", "row", "task"):
        assert alerts_on(kind, scope, fault=True, status=500)


def test_transient_kinds_are_the_same_as_in_alerts():
    assert RECOVERABLE == RETRYABLE_IN_ALERTS


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("scope", ["call", "row", "task"])
def test_every_named_alert_exists_with_its_severity(kind, scope):
    for fault, status in ((True, 503), (False, 404), (False, None)):
        for urgency, name in re.findall(r"(P\d) (\w+)", alerts_on(kind, scope, fault=fault, status=status)):
            assert CONDITIONS[name].urgency == urgency


ROWS_IN_ALL = 4 * SMALLEST
RAISED = {
    Kind.ROW: redrive.Reject,
    Kind.DISCARD: redrive.Discard,
    Kind.PERMANENT: redrive.Permanent,
    Kind.TRANSIENT: redrive.Transient,
    Kind.RATE_LIMITED: redrive.RateLimited,
    Kind.AMBIGUOUS: lambda text: OSError(5, text),
    Kind.RESOURCE: MemoryError,
}


@pytest.mark.parametrize("kind", list(RAISED))
def test_row_goes_where_the_text_names(kind, tmp_path):
    met = []

    def check(record):
        if record["id"] == 2 and not (met and kind is Kind.RESOURCE):
            met.append(record)
            raise RAISED[kind]("this one")
        return record

    pipeline = redrive.Pipeline(
        "words",
        source=redrive.rows.records([{"id": number} for number in range(ROWS_IN_ALL)]),
        validate=check,
        sink=redrive.rows.parquet_dataset(tmp_path / "rows", key="id"),
        gate=redrive.Gate(warn=1, page=1, abort=1),
        store=tmp_path / "store.db",
        patience=0.05,
    )
    if "stops the run" in ROWS[kind]:
        with pytest.raises(redrive.RunStopped):
            pipeline.run()
        return
    report = pipeline.run()
    expected = {"dead letter": (ROWS_IN_ALL - 1, 1), "dropped": (ROWS_IN_ALL - 1, 0), "halved": (ROWS_IN_ALL, 0)}
    told = next(word for word in expected if word in ROWS[kind])
    assert (report.written, report.rejected) == expected[told]
