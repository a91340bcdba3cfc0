"""Running a flow again, on both databases: completed work is not redone, and keeps its keys."""

import functools
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update

import redrive
from redrive.cli.exit_codes import exit_code
from redrive.errors import FlowError
from redrive.model.calls import Kind
from redrive.model.tasks import FlowStatus, State
from redrive.store.schema import task_executors, task_runs
from redrive.testing import set_testing
from tests.support.flows import states, stopped


class Bank:
    """Record the requests and their keys."""

    def __init__(self):
        self.calls = Counter()
        self.keys = defaultdict(set)
        self.error = None

    def pay(self, merchant, key):
        self.calls[merchant] += 1
        self.keys[merchant].add(key)

    def post(self):
        self.calls["post"] += 1
        if self.error is not None:
            raise self.error


@pytest.fixture
def bank():
    return Bank()


@pytest.fixture(autouse=True)
def _quick():
    with set_testing():
        yield


def paying(store, bank, *, params=("day",), merchants=("a", "b", "c")):
    flow = redrive.Flow("paying", params=params, store=store, workers=2)
    flow.task(lambda: list(merchants), name="merchants", in_thread=True)
    flow.task(
        lambda merchant, idempotency_key: bank.pay(merchant, idempotency_key),
        name="pay",
        each="merchants",
        in_thread=True,
    )
    flow.task(lambda: bank.post(), name="post", after="pay", in_thread=True)
    flow.task(lambda: None, name="report", after="post", in_thread=True)
    return flow


TODAY = {"day": "2026-11-15"}
PAID_ONCE = {"a": 1, "b": 1, "c": 1}


class TestFailedRun:
    def test_rerun_retries_only_failed_tasks(self, store, bank):
        flow, bank.error = paying(store, bank), ConnectionRefusedError("down")
        first = stopped(flow, params=TODAY)
        again = stopped(flow, params=TODAY)
        assert (first.kind, again.kind) == (Kind.TRANSIENT, Kind.TRANSIENT)
        assert states(store, "paying")["report"] == State.UPSTREAM_FAILED
        bank.error = None
        report = flow.run(params=TODAY)
        assert (report.status, report.resumed, report.run_id) == (FlowStatus.COMPLETE, True, first.report.run_id)
        assert {merchant: bank.calls[merchant] for merchant in "abc"} == PAID_ONCE
        assert len(store.tasks.runs()) == 1

    def test_dead_letter_and_transient_failure_stay_retryable(self, store, bank):
        flow, bank.error = paying(store, bank), ConnectionRefusedError("down")
        flow.task(lambda: 1 / 0, name="broken", in_thread=True)
        first = stopped(flow, params=TODAY)
        assert (first.report.status, exit_code(first)) == (FlowStatus.HELD, 75)
        bank.error = None
        second = stopped(flow, params=TODAY)
        assert (second.report.run_id, exit_code(second)) == (first.report.run_id, 70)
        assert states(store, "paying")["report"] == State.SUCCESS
        assert {merchant: bank.calls[merchant] for merchant in "abc"} == PAID_ONCE

    def test_rerun_by_id_retries_only_failed_tasks(self, store, bank):
        flow, bank.error = paying(store, bank), ConnectionRefusedError("down")
        run_id = stopped(flow, params=TODAY).report.run_id
        bank.error = None
        assert flow.run(params=TODAY, run_id=run_id).status is FlowStatus.COMPLETE
        assert {merchant: bank.calls[merchant] for merchant in "abc"} == PAID_ONCE

    def test_failed_children_are_tried_again(self, store, bank):
        flow, down = redrive.Flow("paying", store=store), {"b"}
        flow.task(lambda: ["a", "b", "c"], name="merchants", in_thread=True)

        def pay(merchant, idempotency_key):
            bank.pay(merchant, idempotency_key)
            if merchant in down:
                raise ConnectionResetError("down")

        flow.task(pay, each="merchants", retry=None, in_thread=True)
        assert stopped(flow).report.counts == {State.SUCCESS: 3, State.FAILED: 1}
        down.clear()
        assert flow.run().status is FlowStatus.COMPLETE
        assert bank.calls == {"a": 1, "b": 2, "c": 1}
        assert {len(keys) for keys in bank.keys.values()} == {1}

    def test_mixed_transient_failures_are_transient(self, store):
        flow = redrive.Flow("paying", store=store)
        flow.task(lambda: _raise(ConnectionResetError("down")), name="one", retry=None, in_thread=True)
        flow.task(lambda: _raise(redrive.RateLimited("slowly")), name="two", retry=None, in_thread=True)
        assert stopped(flow).kind is Kind.TRANSIENT

    def test_task_failed_by_an_operator_stays_failed(self, store, bank):
        flow, bank.error = paying(store, bank), ValueError("bad")
        stopped(flow, params=TODAY)
        flow.fail("post", note="not today")
        bank.error = None
        assert stopped(flow, params=TODAY).kind is Kind.PERMANENT
        assert bank.calls["post"] == 2

    def test_operator_can_fail_a_retryable_task(self, store, bank):
        flow, bank.error = paying(store, bank), ConnectionRefusedError("down")
        stopped(flow, params=TODAY)
        tried = bank.calls["post"]
        assert flow.fail("post", note="the bank is closed").tasks == ("post",)
        with pytest.raises(FlowError, match="is FAILED already"):
            flow.fail("post", note="the bank is closed")
        assert stopped(flow, params=TODAY).kind is Kind.PERMANENT
        assert bank.calls["post"] == tried


class TestBlockedRun:
    def test_rerun_keeps_the_dead_letter_and_redoes_nothing(self, store, bank):
        flow, bank.error = paying(store, bank), ValueError("bad")
        first = stopped(flow, params=TODAY)
        assert first.report.status is FlowStatus.HELD
        bank.error = None
        again = stopped(flow, params=TODAY)
        assert (again.report.run_id, again.report.status) == (first.report.run_id, FlowStatus.HELD)
        assert again.kind is not Kind.TRANSIENT
        assert bank.calls == {**PAID_ONCE, "post": 2}
        flow.retry("post")
        assert flow.run(params=TODAY).status is FlowStatus.COMPLETE
        assert bank.calls == {**PAID_ONCE, "post": 3}

    def test_rerun_retries_failures_and_keeps_the_dead_letter(self, store, bank):
        flow, bank.error = paying(store, bank), ConnectionRefusedError("down")
        flow.task(lambda: _raise(ValueError("bad")), name="other", in_thread=True)
        stopped(flow, params=TODAY)
        bank.error = None
        assert stopped(flow, params=TODAY).report.status is FlowStatus.HELD
        assert states(store, "paying") | {"other": ""} == dict.fromkeys(states(store, "paying"), "SUCCESS") | {
            "other": ""
        }


class TestDuration:
    def test_time_blocked_on_a_decision_is_not_work(self, store, bank):
        flow, bank.error = paying(store, bank), ValueError("bad")
        run_id = stopped(flow, params=TODAY).report.run_id
        earlier = {
            "began_at": datetime.now(UTC) - timedelta(hours=9),
            "ended_at": datetime.now(UTC) - timedelta(hours=8),
        }

        def age(connection):
            connection.execute(update(task_runs).values(started_at=earlier["began_at"]))
            connection.execute(update(task_executors).values(**earlier))

        store.database.write(age)
        flow.accept("post", note="done by hand")
        report = flow.run(params=TODAY)
        assert report.run_id == run_id
        assert report.seconds >= 9 * 3_600
        assert 3_600 <= report.worked < 2 * 3_600


class TestChangedSource:
    def test_tasks_in_another_order_resume_the_run(self, store):
        ran, bad = Counter(), {"third"}

        def made(*names):
            flow = redrive.Flow("ordered", store=store)
            after = {"third": ["first"], "fourth": ["third", "second"], "fan": ["first"]}

            def body(name):
                ran[name] += 1
                if name in bad:
                    raise ConnectionRefusedError("down")
                return [1, 2]

            for name in names:
                if name == "fan":
                    flow.task(lambda item: ran.update(fan=1), name="fan", each="first", in_thread=True)
                else:
                    flow.task(
                        functools.partial(body, name), name=name, after=after.get(name, []), retry=None, in_thread=True
                    )
            return flow

        run_id = stopped(made("first", "second", "third", "fourth", "fan")).report.run_id
        bad.clear()
        report = made("fan", "fourth", "second", "first", "third").run()
        assert (report.run_id, report.status) == (run_id, FlowStatus.COMPLETE)
        assert ran == {"first": 1, "second": 1, "third": 2, "fourth": 1, "fan": 2}

    def test_new_default_parameter_resumes_the_run(self, store, bank):
        bank.error = ConnectionRefusedError("down")
        run_id = stopped(paying(store, bank), params=TODAY).report.run_id
        bank.error = None
        flow = paying(store, bank, params={"day": "", "currency": "EUR"})
        assert not flow.run(params={**TODAY, "currency": "USD"}).resumed
        assert flow.run(params=TODAY).run_id == run_id
        assert {len(keys) for keys in bank.keys.values()} == {2}  # of the dollars, and of the run

    def test_new_default_parameter_keeps_keys_of_complete_work(self, store, bank):
        paying(store, bank).run(params=TODAY)
        flow = paying(store, bank, params={"day": "", "currency": "EUR"})
        for _ in range(2):
            with pytest.warns(redrive.PolicyWarning, match="'pay' of this run has the same idempotency keys"):
                assert not flow.run(params=TODAY).resumed
        assert {len(keys) for keys in bank.keys.values()} == {1}
        flow.run(params={**TODAY, "currency": "USD"})
        assert {len(keys) for keys in bank.keys.values()} == {2}

    def test_changed_default_changes_keys_of_existing_runs(self, store, bank):
        paying(store, bank).run(params=TODAY)
        with pytest.warns(redrive.PolicyWarning, match="the same idempotency keys"):
            paying(store, bank, params={"day": "", "currency": "EUR"}).run(params=TODAY)
        paying(store, bank, params={"day": "", "currency": "USD"}).run(params=TODAY)
        assert {len(keys) for keys in bank.keys.values()} == {2}

    def test_new_default_parameter_allows_a_restart(self, store, bank):
        flow = paying(store, bank)
        bank.post = flow.stop
        report = stopped(flow, params=TODAY).report
        del bank.post
        paying(store, bank, params={"day": "", "currency": "EUR"}).run(params=TODAY, restart=True)
        assert (report.status, store.tasks.run(report.run_id).status) == (FlowStatus.STOPPED, FlowStatus.ABANDONED)
        assert {len(keys) for keys in bank.keys.values()} == {1}

    def test_first_parameters_of_a_flow_are_new_work(self, store, bank):
        paying(store, bank, params=()).run()
        paying(store, bank, params={"currency": "EUR"}).run()
        assert {len(keys) for keys in bank.keys.values()} == {2}


class TestOtherRuns:
    def test_new_run_keeps_the_earlier_run(self, store, bank):
        flow, bank.error = paying(store, bank), ValueError("bad")
        blocked = stopped(flow, params=TODAY).report.run_id
        bank.error = None
        report = flow.run(params=TODAY, new_run=True)
        assert (report.resumed, report.status) == (False, FlowStatus.COMPLETE)
        assert store.tasks.run(blocked).status is FlowStatus.HELD
        assert {len(keys) for keys in bank.keys.values()} == {1}

    def test_complete_run_is_followed_by_a_new_run(self, store, bank):
        flow, bank.error = paying(store, bank), ValueError("bad")
        stopped(flow, params=TODAY)
        bank.error = None
        done = flow.run(params=TODAY, new_run=True)
        with pytest.warns(redrive.PolicyWarning, match="'pay' of this run has the same idempotency keys"):
            report = flow.run(params=TODAY)  # the blocked one is older than the complete one
        assert (report.resumed, report.run_id == done.run_id) == (False, False)
        assert {len(keys) for keys in bank.keys.values()} == {1}

    def test_decision_reopens_an_older_run(self, store, bank):
        flow, bank.error = paying(store, bank), ValueError("bad")
        blocked = stopped(flow, params=TODAY).report.run_id
        bank.error = None
        flow.run(params=TODAY, new_run=True)
        flow.retry("post", run=blocked)
        assert flow.run(params=TODAY).run_id == blocked

    def test_contradictory_options_are_rejected(self, store, bank):
        flow = paying(store, bank)
        with pytest.raises(FlowError, match="pass one of them"):
            flow.run(params=TODAY, restart=True, new_run=True)
        run_id = flow.run(params=TODAY).run_id
        with pytest.raises(FlowError, match="leave run_id out, or new_run"):
            flow.run(params=TODAY, run_id=run_id, new_run=True)


class TestResult:
    def test_last_run_is_found_in_another_store(self, store, tmp_path):
        with redrive.connect(tmp_path / "own.db") as own:
            flow = redrive.Flow("elsewhere", store=own)
            flow.task(lambda: 17, name="number", in_thread=True)
            run_id = flow.run(store=store).run_id
            assert [flow.result("number", run=run) for run in (run_id, str(run_id), str(run_id)[:8])] == [17, 17, 17]
            with pytest.raises(FlowError, match="there is no run of a flow 'another'"):
                flow.result("number", run="another")

    def test_result_is_of_the_last_run(self, store):
        flow, down = redrive.Flow("report", params=["day"], store=store), {"mon"}

        def report(day):
            if day in down:
                raise ConnectionRefusedError("down")
            return f"report of {day}"

        flow.task(report, retry=None, in_thread=True)
        stopped(flow, params={"day": "mon"})
        flow.run(params={"day": "tue"})
        down.clear()
        flow.run(params={"day": "mon"})  # resumes the older run
        assert flow.result("report") == "report of mon"

    def test_decision_applies_to_the_last_run(self, store):
        flow, bad = redrive.Flow("report", params=["day"], store=store), {"mon"}
        flow.task(lambda day: _raise(ValueError(day)) if day in bad else day, name="report", in_thread=True)
        stopped(flow, params={"day": "mon"})
        flow.run(params={"day": "tue"})
        run_id = stopped(flow, params={"day": "mon"}).report.run_id
        assert flow.accept("report", note="known", result="none").run_id == run_id

    def test_another_program_gets_the_newest_run(self, store):
        redrive.Flow("report", store=store).task(lambda: 1, name="report", in_thread=True).flow.run()
        assert redrive.Flow("report", store=store).result("report") == 1


class TestKeys:
    def test_other_parameters_have_other_keys(self, store, bank):
        flow = paying(store, bank)
        flow.run(params=TODAY)
        flow.run(params={"day": "2026-11-16"})
        assert {len(keys) for keys in bank.keys.values()} == {2}

    def test_child_is_known_by_its_item_not_its_number(self, store, bank):
        bank.error = ConnectionRefusedError("down")
        stopped(paying(store, bank), params=TODAY)
        bank.error = None
        paying(store, bank, merchants=("z", "c", "a", "b")).run(params=TODAY, new_run=True)
        assert {merchant: len(keys) for merchant, keys in bank.keys.items()} == dict.fromkeys("abcz", 1)
        assert len(set.union(*bank.keys.values())) == 4

    def test_equal_items_have_keys_of_their_own(self, store, bank):
        flow = paying(store, bank, merchants=("a", "a", "a"))
        flow.run(params=TODAY)
        assert len(bank.keys["a"]) == 3

    def test_without_parameters_each_complete_run_has_its_own(self, store, bank):
        flow, bank.error = paying(store, bank, params=()), ConnectionRefusedError("down")
        stopped(flow)
        stopped(flow)
        assert {len(keys) for keys in bank.keys.values()} == {1}
        bank.error = None
        flow.run()
        flow.run()
        assert {len(keys) for keys in bank.keys.values()} == {2}

    @pytest.mark.parametrize("error", [ConnectionRefusedError("down"), ValueError("bad")], ids=["failed", "blocked"])
    def test_new_run_without_parameters_has_keys_of_its_own(self, store, bank, error):
        flow, bank.error = paying(store, bank, params=()), error
        flow.task(lambda idempotency_key: bank.pay("z", idempotency_key), name="last", after="post", in_thread=True)
        first = stopped(flow).report.run_id
        theirs = {merchant: set(keys) for merchant, keys in bank.keys.items()}
        bank.error = None
        assert flow.run(new_run=True).status is FlowStatus.COMPLETE
        assert {len(bank.keys[merchant]) for merchant in "abc"} == {2}
        (of_the_new_run,) = bank.keys.pop("z")
        if isinstance(error, ValueError):
            flow.retry("post", run=first)
        assert flow.run(run_id=first).status is FlowStatus.COMPLETE
        (of_the_first,) = bank.keys["z"]
        assert of_the_first != of_the_new_run
        prefix = of_the_first.removesuffix("last")
        assert all(key.startswith(prefix) for keys in theirs.values() for key in keys)

    def test_runs_of_an_older_version_keep_their_keys(self, store, bank):
        flow, bank.error = paying(store, bank), ConnectionRefusedError("down")
        flow.task(lambda idempotency_key: bank.pay("z", idempotency_key), name="last", after="post", in_thread=True)
        run_id = stopped(flow, params=TODAY).report.run_id
        store.database.write(lambda connection: connection.execute(update(task_runs).values(key_prefix=None)))
        bank.error = None
        flow.run(params=TODAY)
        assert bank.keys["z"] == {f"{run_id}/last"}


def _raise(error):
    raise error
