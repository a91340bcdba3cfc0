"""A sensor on the run of another flow, on both databases."""

import pytest

import redrive
from redrive.model.tasks import FlowStatus
from redrive.testing import set_testing
from tests.support.flows import Beside, eventually, states, stopped


@pytest.fixture(autouse=True)
def _quick():
    with set_testing(longest_wait=0.02):
        yield


def upstream(store, broken):
    flow = redrive.Flow("ledger", params={"day": None, "region": "eu"}, store=store, workers=1)

    @flow.task(in_thread=True, retry=None)
    def post(day):
        if day in broken:
            raise ConnectionError("down")

    return flow


def waiting(store, **options):
    flow = redrive.Flow("books", params=["day"], store=store, workers=1)
    flow.run_sensor("ledger", every=0.02, timeout=60, **options)(ledger_is_done)
    flow.task(name="close", after="ledger_is_done", in_thread=True)(lambda ledger_is_done: ledger_is_done["run_id"])
    return flow


def ledger_is_done(day):
    return {"day": day}


def test_waits_for_the_run_of_its_parameters(store):
    ledger, books = upstream(store, ()), waiting(store)
    ledger.run(params={"day": "mon"})
    beside = Beside(books.run, params={"day": "tue"})
    asked = eventually(lambda: store.tasks.runs(flow="books") and store.tasks.get("books", "ledger_is_done").attempts)
    assert asked
    assert states(store, "books")["ledger_is_done"] == "SENSING"
    run = ledger.run(params={"day": "tue"}).run_id
    assert beside.join().report.status is FlowStatus.COMPLETE
    assert books.result("close", run=beside.report.run_id) == str(run)


def test_can_fail_with_the_other_run_and_resume_after_its_fix(store):
    broken = {"mon"}
    ledger, books = upstream(store, broken), waiting(store, on_failure="fail")
    failed = stopped(ledger, params={"day": "mon"}).report.run_id
    error = stopped(books, params={"day": "mon"})
    assert (error.report.status, error.kind) == (FlowStatus.FAILED, redrive.Kind.TRANSIENT)
    (cause,) = store.tasks.causes("books")
    assert f"run {str(failed)[:8]} of flow 'ledger' is failed, and this task waits for it" in cause.error
    broken.clear()
    ledger.run(params={"day": "mon"})
    assert books.run(params={"day": "mon"}).status is FlowStatus.COMPLETE


def test_newest_failed_run_counts_over_older_complete_run(store):
    broken = set()
    ledger, books = upstream(store, broken), waiting(store, on_failure="fail")
    older = ledger.run(params={"day": "mon"}).run_id
    broken.add("mon")
    newest = stopped(ledger, params={"day": "mon"}, new_run=True).report.run_id
    assert stopped(books, params={"day": "mon"}).report.status is FlowStatus.FAILED
    (cause,) = store.tasks.causes("books")
    assert f"run {str(newest)[:8]} of flow 'ledger' is failed" in cause.error
    assert waiting(store).run(params={"day": "mon"}, new_run=True).status is FlowStatus.COMPLETE  # on_failure="wait"
    ledger.rerun("post", run=older)
    broken.clear()
    ledger.run(params={"day": "mon"}, run_id=older)  # complete after the newest one failed
    assert books.run(params={"day": "mon"}, new_run=True).status is FlowStatus.COMPLETE


def test_run_that_failed_too_long_ago_does_not_count(store):
    stopped(upstream(store, {"mon"}), params={"day": "mon"})
    books = redrive.Flow("books", params=["day"], store=store, workers=1)
    books.run_sensor("ledger", every=0.01, timeout=0.05, within=1e-6, on_failure="fail")(ledger_is_done)
    stopped(books, params={"day": "mon"})
    (cause,) = store.tasks.causes("books")
    assert "of flow 'ledger' is failed" not in cause.error


def test_run_that_ended_too_long_ago_does_not_count(store):
    upstream(store, ()).run(params={"day": "mon"})
    books = redrive.Flow("books", params=["day"], store=store, workers=1)
    books.run_sensor("ledger", every=0.01, timeout=0.05, within=1e-6)(ledger_is_done)
    assert stopped(books, params={"day": "mon"}).report.status is FlowStatus.FAILED


def test_wrong_arguments_raise_one_sentence(store):
    with pytest.raises(ValueError, match='on_failure must be "wait" or "fail", not \'stop\''):
        waiting(store, on_failure="stop")
    with pytest.raises(TypeError, match="takes the name of the other flow, not None"):
        redrive.Flow("wrong", params=["day"]).run_sensor(None, every=1, timeout=2)(ledger_is_done)
