"""Trigger rules, skips and branches, on both databases."""

import pytest

import redrive
from redrive.errors import FlowError
from redrive.model.letters import Status
from redrive.model.tasks import FlowStatus, State
from redrive.testing import set_testing
from tests.support.flows import states, stopped


@pytest.fixture(autouse=True)
def _quick():
    with set_testing():
        yield


class Stage:
    """A flow whose tasks act as configured by name, and record that they ran."""

    def __init__(self, store):
        self.flow = redrive.Flow("nightly", store=store, workers=2)
        self.store = store
        self.ran = []
        self.keys = []
        self.does = {}

    def add(self, name, *after, **options):
        def body(idempotency_key):
            self.ran.append(name)
            self.keys.append((name, idempotency_key))
            does = self.does.get(name)
            if isinstance(does, type) and issubclass(does, BaseException):
                raise does("as told")
            return does

        self.flow.task(after=after, name=name, in_thread=True, retry=None, poison=1, **options)(body)
        return self

    def run(self, **options):
        """The names of the tasks that ran, and how the run ended."""
        del self.ran[:]
        try:
            status = self.flow.run(**options).status
        except redrive.FlowStopped as error:
            status = error.report.status
        return self.ran[:], status

    def state(self, name):
        return states(self.store, "nightly")[name]


@pytest.fixture
def stage(store):
    return Stage(store)


@pytest.fixture
def cleaned(stage):
    """work → more, and behind both a cleanup, a notification and what comes after the cleanup."""
    stage.add("work").add("more", "work")
    stage.add("cleanup", "work", "more", run_when="all_done").add("notify", "work", "more", run_when="any_failed")
    return stage.add("after", "cleanup")


class TestCleanup:
    def test_runs_after_success_without_the_notification(self, cleaned):
        assert cleaned.run() == (["work", "more", "cleanup", "after"], FlowStatus.COMPLETE)
        assert cleaned.state("notify") == "SKIPPED"

    def test_runs_after_a_failure_and_after_the_rerun(self, cleaned):
        cleaned.does["work"] = ConnectionError
        ran, status = cleaned.run()
        assert (sorted(ran), status) == (["after", "cleanup", "notify", "work"], FlowStatus.FAILED)
        assert cleaned.state("more") == "UPSTREAM_FAILED"
        del cleaned.does["work"]
        assert cleaned.run() == (["work", "more", "cleanup", "after"], FlowStatus.COMPLETE)
        assert cleaned.state("notify") == "SKIPPED"
        keys = {key for name, key in cleaned.keys if name == "cleanup"}
        assert len(keys) == 1

    def test_runs_after_a_dead_letter_and_after_its_retry(self, cleaned):
        cleaned.does["work"] = ValueError
        ran, status = cleaned.run()
        assert (sorted(ran), status) == (["after", "cleanup", "notify", "work"], FlowStatus.HELD)
        assert cleaned.run() == ([], FlowStatus.HELD)  # nothing was decided: nothing is repeated
        cleaned.does["work"] = None
        cleaned.flow.retry("work")
        assert cleaned.run() == (["work", "more", "cleanup", "after"], FlowStatus.COMPLETE)

    def test_runs_again_after_tasks_that_an_acceptance_released(self, cleaned):
        cleaned.does["work"] = ValueError
        cleaned.run()
        cleaned.flow.accept("work", note="known")
        assert cleaned.run() == (["more", "cleanup", "after"], FlowStatus.COMPLETE)

    def test_does_not_run_again_after_a_permanent_failure(self, cleaned):
        cleaned.does["work"] = ValueError
        cleaned.run()
        assert cleaned.flow.fail("work", note="never").upstream_failed == 1
        assert cleaned.run() == ([], FlowStatus.FAILED)

    def test_cleanup_failure_fails_the_run_and_is_retried(self, cleaned):
        cleaned.does["cleanup"] = ConnectionError
        assert cleaned.run() == (["work", "more", "cleanup"], FlowStatus.FAILED)
        del cleaned.does["cleanup"]
        assert cleaned.run() == (["cleanup", "after"], FlowStatus.COMPLETE)

    def test_dead_letter_of_the_cleanup_is_discarded_on_waiting(self, cleaned, store):
        cleaned.does.update(work=ValueError, cleanup=ValueError)
        cleaned.run()
        cleaned.does.clear()
        cleaned.flow.retry("work")
        assert [letter.key for letter in store.dlq.each(status=Status.DISCARDED)] == ["cleanup"]
        assert cleaned.run() == (["work", "more", "cleanup", "after"], FlowStatus.COMPLETE)
        assert not store.dlq.count(status=Status.PENDING)

    def test_reopened_decision_does_not_affect_cleanup(self, cleaned):
        cleaned.does["work"] = ValueError
        cleaned.run()
        cleaned.flow.fail("work", note="never")
        cleaned.flow.reopen("work")
        assert cleaned.run() == ([], FlowStatus.HELD)
        assert (cleaned.state("more"), cleaned.state("cleanup")) == ("PENDING", "SUCCESS")

    def test_gets_the_available_results(self, store):
        flow = redrive.Flow("given", store=store, workers=2)
        flow.task(lambda: 7, name="good", in_thread=True)
        flow.task(lambda: 1 / 0, name="bad", in_thread=True, poison=1)
        flow.task(lambda: [1, 0], name="items", in_thread=True)
        flow.task(lambda item: 1 / item, name="each_one", each="items", in_thread=True, poison=1)
        upper = ["good", "bad", "each_one"]
        together = flow.task(name="together", after=upper, run_when="all_done", in_thread=True)(
            lambda good, bad, each_one: [good, bad, each_one]
        )
        stopped(flow)
        assert flow.result(together) == [7, None, [1.0, None]]
        flow.accept("bad", result=3, note="known")
        stopped(flow)
        assert flow.result(together) == [7, 3, [1.0, None]]

    def test_fan_out_of_cleanups_runs_over_created_items(self, store):
        """Clusters are deleted one by one; without the list of clusters no cleanup runs."""
        deleted, broken = [], {"work"}

        def fail(name):
            if name in broken:
                raise ConnectionError(name)

        flow = redrive.Flow("clusters", store=store, workers=2)
        options = {"in_thread": True, "retry": None}
        flow.task(name="make", **options)(lambda: fail("make") or ["a", "b"])
        flow.task(name="work", after="make", **options)(lambda: fail("work"))
        flow.task(name="delete", each="make", after="work", run_when="all_done", **options)(
            lambda name: deleted.append(name)
        )
        assert stopped(flow).report.status is FlowStatus.FAILED
        assert sorted(deleted) == ["a", "b"]
        broken.clear()
        assert flow.run().status is FlowStatus.COMPLETE
        assert sorted(deleted) == ["a", "a", "b", "b"]
        broken.add("make")
        stopped(flow, new_run=True)
        assert states(store, "clusters")["delete"] == "SKIPPED"


class TestSkip:
    def test_skipping_task_skips_its_followers(self, stage):
        stage.add("check").add("load", "check").add("publish", "load").add("cleanup", "load", run_when="all_done")
        stage.does["check"] = redrive.Skip
        assert stage.run() == (["check", "cleanup"], FlowStatus.COMPLETE)
        assert [stage.state(name) for name in ("check", "load", "publish")] == ["SKIPPED"] * 3

    def test_failure_and_skip_are_a_failure_in_any_order(self, stage):
        stage.add("check").add("fetch").add("load", "check", "fetch").add("notify", "load", run_when="any_failed")
        stage.does |= {"check": redrive.Skip, "fetch": ValueError}
        ran, status = stage.run()
        assert ("notify" in ran, status) == (True, FlowStatus.HELD)
        assert stage.state("load") == "PENDING"
        stage.flow.fail("fetch", note="given up")
        stage.run()
        assert [stage.state(name) for name in ("load", "notify")] == ["UPSTREAM_FAILED", "SUCCESS"]

    @pytest.mark.parametrize("rule", ["all_succeeded", "none_failed"])
    def test_task_with_a_skip_is_decided_at_the_last_upstream(self, stage, rule):
        stage.add("check").add("first").add("second", "first").add("load", "check", "second", run_when=rule)
        stage.add("publish", "load")
        stage.does["check"] = redrive.Skip  # ended before `second` begins
        assert stage.run()[1] is FlowStatus.COMPLETE
        assert stage.state("load") == stage.state("publish") == ("SKIPPED" if rule == "all_succeeded" else "SUCCESS")

    def test_skipping_child_is_omitted_from_the_list(self, store):
        def odd(item):
            if item % 2 == 0:
                raise redrive.Skip("even")
            return item

        flow = redrive.Flow("odd", store=store, workers=2)
        flow.task(lambda: [1, 2, 3], name="items", in_thread=True)
        flow.task(name="each_one", each="items", in_thread=True)(odd)
        flow.task(name="total", after="each_one", in_thread=True)(lambda each_one: each_one)
        assert flow.run().status is FlowStatus.COMPLETE
        assert flow.result("total") == [1, 3]


class TestBranch:
    @pytest.fixture
    def branching(self, stage):
        stage.add("choose").add("full", "choose").add("delta", "choose").add("detail", "full")
        stage.add("join", "detail", "delta", run_when="none_failed")
        return stage.add("cleanup", "choose", "join", run_when="all_done")

    def test_only_chosen_followers_and_their_join_run(self, branching):
        branching.does["choose"] = redrive.Branch("delta", result=5)
        assert branching.run() == (["choose", "delta", "join", "cleanup"], FlowStatus.COMPLETE)
        assert (branching.state("full"), branching.state("detail")) == ("SKIPPED", "SKIPPED")
        assert branching.flow.result("choose") == 5

    def test_no_choice_skips_the_join(self, branching):
        branching.does["choose"] = redrive.Branch()
        assert branching.run() == (["choose", "cleanup"], FlowStatus.COMPLETE)

    def test_failed_branch_is_resumed_as_chosen(self, branching):
        branching.does.update(choose=redrive.Branch("delta"), delta=ConnectionError)
        assert branching.run() == (["choose", "delta", "cleanup"], FlowStatus.FAILED)
        assert branching.state("join") == "UPSTREAM_FAILED"
        branching.does["delta"] = None
        assert branching.run() == (["delta", "join", "cleanup"], FlowStatus.COMPLETE)
        assert branching.state("full") == "SKIPPED"

    def test_missing_follower_is_a_dead_letter(self, branching):
        branching.does["choose"] = redrive.Branch("detail")
        assert branching.run()[1] is FlowStatus.HELD
        (cause,) = branching.store.tasks.causes("nightly")
        assert cause.error == ("task 'choose' returned Branch('detail'), and no task 'detail' comes directly after it")


class TestMistakes:
    def test_wrong_rule_raises_one_sentence(self, stage):
        with pytest.raises(ValueError, match=r"run_when must be one of all_succeeded, .*, not 'always'"):
            stage.add("work", run_when="always")
        with pytest.raises(FlowError, match=r"task 'work' has run_when='all_done' and comes after no task"):
            stage.add("work", run_when="all_done")
        with pytest.raises(TypeError, match=r"no option trigger_rule=: write run_when="):
            stage.flow.task(trigger_rule="all_done")

    def test_changed_rule_prevents_a_resume(self, store):
        def flow_with(rule):
            flow = redrive.Flow("changed", store=store, workers=2)
            flow.task(lambda: 1 / 0, name="work", in_thread=True, poison=1)
            flow.task(name="cleanup", after="work", in_thread=True, run_when=rule)(lambda: None)
            return flow

        stopped(flow_with("all_done"))
        with pytest.raises(FlowError, match="'cleanup' is another kind of task"):
            flow_with("any_failed").run()


def test_states_of_a_report_include_skipped_tasks(stage):
    stage.add("check").add("load", "check")
    stage.does["check"] = redrive.Skip
    assert stage.flow.run().counts == {State.SKIPPED: 2}


class TestGraphWithoutRules:
    @pytest.mark.parametrize("skipped", ["a", "b", "c"])
    def test_join_is_skipped_after_its_last_upstream_task(self, stage, skipped):
        stage.add("a").add("b").add("c").add("join", "a", "b", "c")
        stage.does[skipped] = redrive.Skip
        ran, status = stage.run()
        assert (sorted(ran), status, stage.state("join")) == (["a", "b", "c"], FlowStatus.COMPLETE, "SKIPPED")

    def test_join_outside_the_branch_is_skipped_after_other_task(self, stage):
        stage.add("choose").add("chosen", "choose").add("other").add("join", "choose", "other")
        stage.does["choose"] = redrive.Branch("chosen")
        ran, status = stage.run()
        assert (sorted(ran), status, stage.state("join")) == (
            ["choose", "chosen", "other"],
            FlowStatus.COMPLETE,
            "SKIPPED",
        )
