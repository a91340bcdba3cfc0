"""`redrive tasks`: states of tasks, causes of failures, and decisions of an operator."""

import json
import re
import sys

import pytest

import redrive
from redrive.model.tasks import State


class Settlement:
    """A flow with a fan-out of which some children fail, and its successors."""

    def __init__(self, store, partners=4, missing=(2, 3)):
        self.missing = set(missing)
        self.flow = redrive.Flow("settlement", store=store, params={"day": "2026-11-15"}, workers=2)
        again = redrive.Retry(attempts=2, base=0.01, cap=0.01)

        @self.flow.task(in_thread=True)
        def partners_of(day):
            sys.stdout.write("looked them up with token=hunter2\n")
            return [{"id": n, "card": f"4711-{n}", "password": "hunter2"} for n in range(partners)]

        @self.flow.task(each=partners_of, retry=again, in_thread=True)
        def settle(partner):
            if partner["id"] in self.missing:
                raise LookupError(f"no account of {partner['card']}, api_key=hunter2")
            return partner["id"]

        @self.flow.task(after=settle, in_thread=True)
        def report(settle):
            return sum(one or 0 for one in settle)

        @self.flow.task(after=report, in_thread=True)
        def publish(report):
            return {"sum": report}

    def run(self):
        try:
            return self.flow.run()
        except redrive.FlowStopped as stopped:
            return stopped.report


@pytest.fixture
def settlement(store):
    """It ran, and two of its four children are dead letters."""
    made = Settlement(store)
    made.run()
    return made


@pytest.fixture
def run_id(settlement, store):
    """The beginning of its run's id."""
    return str(store.tasks.run("settlement").run_id)[:8]


def states(store):
    return {one.name: one.state for one in store.tasks.find("settlement")}


def cause(run):
    (found,) = json.loads(run("tasks", "ls", "--json").out)["run"]["causes"]
    return found["cause"]


# ── ls ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_tasks_are_in_flow_order_and_a_fan_out_is_one_line(run, settlement):
    answer = run("tasks", "ls")
    assert answer.code == 0
    title = answer.out.splitlines()[0].split("\t")
    told = [dict(zip(title, row, strict=True)) for row in answer.rows]
    assert [(one["task"], one["state"], one["children"], one["done"], one["dead"]) for one in told] == [
        ("partners_of", "SUCCESS", "", "", ""),
        ("settle", "DEAD_LETTER", "4", "2", "2"),
        ("report", "PENDING", "", "", ""),
        ("publish", "PENDING", "", "", ""),
    ]


def test_terminal_shows_the_causes_first(terminal, settlement, run_id):
    shown = terminal("tasks", "ls", columns=120).out.splitlines()
    assert shown[0] == f"settlement, run {run_id}, held: 7 tasks, 2 dead letters"
    assert shown[2].split() == ["cause", "task", "tasks", "untried", "error"]
    named, rest = shown[4].split(maxsplit=1)
    assert named.startswith("LookupError@")
    assert rest.split(maxsplit=3) == ["settle", "2", "0", "LookupError: no account of 4711-3, api_key=***"]
    assert [line.split()[0] for line in shown[8:12]] == ["partners_of", "settle", "report", "publish"]
    assert shown[12] == "Next steps:"
    assert [re.split(r"  +", step.strip()) for step in shown[13:16]] == [
        ["show one task", f"redrive tasks show 'settle[2]' --run {run_id}"],
        ["retry when fixed", f"redrive tasks retry --cause {named} --run {run_id}"],
        ["then resume flow 'settlement'", "redrive run FILE:NAME --param day=2026-11-15"],
    ]


def test_skipped_siblings_are_counted(run, store):
    Settlement(store, partners=60, missing=range(60)).run()
    (found,) = json.loads(run("tasks", "ls", "--json").out)["run"]["causes"]
    assert found["tasks"] == 60
    assert 40 <= found["untried"] <= 55
    assert found["error"].startswith("LookupError: no account of 4711-")
    tried = json.loads(run("tasks", "show", found["sample"], "--json").out)
    assert tried["attempts"] == 2


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--state", "dead_letter"], ["settle[2]", "settle[3]"]),
        (["--state", "Dead-Letter"], ["settle[2]", "settle[3]"]),
        (["--cause", "LookupError"], ["settle[2]", "settle[3]"]),
        (["--task", "settle"], ["settle", "settle[0]", "settle[1]", "settle[2]", "settle[3]"]),
        (["--task", "settle[1]"], ["settle[1]"]),
        (["--task", "settle", "--state", "success"], ["settle[0]", "settle[1]"]),
        (["--state", "running"], []),
        (["--children", "--limit", "3"], ["partners_of", "settle", "settle[0]"]),
    ],
)
def test_tasks_are_selected_by_state_cause_and_name(run, settlement, words, names):
    assert [row[0] for row in run("tasks", "ls", *words).rows] == names


def test_limited_list_and_empty_result_are_reported(run, settlement):
    answer = run("tasks", "ls", "settlement", "--task", "settle", "--limit", 2)
    assert answer.err == "Next steps:\n  list more tasks  redrive tasks ls settlement --task settle --limit 10\n"
    assert run("tasks", "ls", "--state", "retrying").err == "no tasks that match\n"


def test_newest_run_is_the_default(run, settlement, run_id, store):
    other = redrive.Flow("other", store=store)

    @other.task(in_thread=True)
    def only():
        return 1

    other.run()
    assert [row[0] for row in run("tasks", "ls").rows] == ["only"]
    for words in (["settlement"], ["--run", "settlement"], [run_id], ["--run", run_id], [run_id, "--run", run_id]):
        assert len(run("tasks", "ls", *words).rows) == 4
    assert run("tasks", "ls", "other", "--run", run_id).sentence == (
        f"'other' and --run {run_id!r} name two runs. Name one of them"
    )


def test_store_without_flows_is_reported(run, store):
    answer = run("tasks", "ls")
    assert (answer.code, answer.sentence) == (
        64,
        "there is no run of a flow yet. Start one with `redrive run FILE:NAME`",
    )


# ── show ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_task_is_shown_with_all_its_attempts(terminal, settlement, run_id):
    shown = terminal("tasks", "show", "settle[2]", columns=160).out
    assert shown.startswith("task       settle[2], DEAD_LETTER\nflow       settlement\nrun        ")
    assert "\nerror      LookupError: no account of 4711-2, api_key=***\n" in shown
    assert '\ninput\n{\n  "id": 2,\n  "card": "4711-2",\n  "password": "***"\n}\n' in shown
    assert (
        len(re.findall(r"^  [12]  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d  raised after 0\.0 s: LookupError", shown, re.M)) == 2
    )
    assert shown.count("Traceback (most recent call last):") == 1
    assert "\n     the same traceback as before\n" in shown
    assert re.search(r"  RUNNING → DEAD_LETTER: poison, 2 times in a row", shown)
    assert f"  retry when fixed  redrive tasks retry 'settle[2]' --run {run_id}\n" in shown
    assert "hunter2" not in shown


def test_output_and_result_of_a_task_have_no_secrets(terminal, run, settlement):
    told = json.loads(run("tasks", "show", "partners_of", "--json").out)
    assert (told["state"], told["attempts"], len(told["result"])) == ("SUCCESS", 1, 4)
    assert told["result"][0] == {"id": 0, "card": "4711-0", "password": "***"}
    assert [one["after"] for one in told["changes"]] == ["READY", "RUNNING", "SUCCESS"]
    assert "hunter2" not in json.dumps(told)
    assert "  list its children  redrive tasks ls --task settle --run " in terminal("tasks", "show", "settle").out


def test_terminal_shows_the_end_of_long_output_and_json_all(terminal, run, store):
    flow = redrive.Flow("long", store=store)
    asked = []

    @flow.sensor(every=0.001, timeout=60, in_thread=True)
    def often():
        asked.append(True)
        return len(asked) == 15

    @flow.task(in_thread=True)
    def long():
        raise redrive.Permanent("x" * 1_900) from ValueError("y" * 1_900)

    @flow.task(in_thread=True)
    def much():
        return ["z" * 100] * 200

    with pytest.raises(redrive.FlowStopped):
        flow.run()
    assert "attempts, the last 10 of 15 attempts; --json shows all" in terminal("tasks", "show", "often").out
    assert len(json.loads(run("tasks", "show", "often", "--json").out)["attempted"]) == 15
    shown = terminal("tasks", "show", "long").out
    assert "characters before this; --json shows all" in shown
    assert "y" * 1_900 not in shown
    assert "y" * 1_900 in json.loads(run("tasks", "show", "long", "--json").out)["attempted"][0]["trace"]
    assert "more characters; --json shows all" in terminal("tasks", "show", "much").out
    assert len(json.loads(run("tasks", "show", "much", "--json").out)["result"]) == 200


def test_redacted_fields_are_masked_in_every_task_view(run, terminal, settlement, here):
    (here / "redrive.toml").write_text("[letters]\nredact = ['card']\n")
    for words in (["ls"], ["ls", "--json"], ["ls", "--state", "dead_letter"], ["show", "settle[2]", "--json"]):
        answer = run("tasks", *words)
        assert answer.code == 0
        assert "4711-" not in answer.out + answer.err
    for words in (["tasks", "ls"], ["tasks", "show", "settle[2]"], ["runs", "show", "settlement"]):
        assert "4711-" not in terminal(*words).out


# ── retry, accept, fail ───────────────────────────────────────────────────────────────────────────────────────────────


def test_retried_cause_lets_the_flow_continue(run, settlement, run_id, store):
    answer = run("tasks", "retry", "--cause", cause(run), "--yes", "--note", "accounts are there now")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err == (
        f"will retry 2 tasks of settlement, run {run_id}\n"
        "Next steps:\n  resume flow 'settlement'  redrive run FILE:NAME --param day=2026-11-15\n"
    )
    settlement.missing.clear()
    assert settlement.run().status == "complete"
    assert store.tasks.get("settlement", "publish").result == {"sum": 6}
    assert "accounts are there now" in store.tasks.get("settlement", "settle[2]").changes[-3].cause


def test_task_accepted_with_a_result_lets_successors_run(run, settlement, run_id, store):
    words = ["tasks", "accept", "settle[2]", "settle[3]", "--result", "100", "--note", "paid by hand"]
    assert run(*words).err.startswith(f"accepted 2 tasks of settlement, run {run_id}\n")
    assert settlement.run().status == "complete"
    assert store.tasks.get("settlement", "publish").result == {"sum": 201}


def test_cancelled_task_blocks_successors_until_retried(run, settlement, run_id, store):
    run("tasks", "accept", "settle[2]", "--note", "paid by hand")
    assert run("tasks", "fail", "settle[3]", "--note", "they left").err.startswith(
        f"failed settle[3] of settlement, run {run_id}; 2 tasks downstream will not run\n"
    )
    assert states(store)["publish"] is State.UPSTREAM_FAILED
    assert run("tasks", "retry", "publish").sentence == (
        "task 'publish' did not run because 'settle', which is above it, failed: decide about that one"
    )
    answer = run("tasks", "retry", "settle[3]", "--json")
    assert json.loads(answer.out) == {
        "flow": "settlement",
        "run_id": str(store.tasks.run("settlement").run_id),
        "tasks": ["settle[3]"],
        "freed": 2,
        "upstream_failed": 0,
    }
    assert answer.err.startswith(
        f"will retry settle[3] of settlement, run {run_id}; 2 tasks downstream can run again\n"
    )


def test_skipped_children_let_successors_run(run, settlement, run_id, store):
    hint = f"  or skip it        redrive tasks skip 'settle[2]' --run {run_id} --note …\n"
    assert run("tasks", "show", "settle[2]").err.endswith(hint)
    answer = run("tasks", "skip", "settle[2]", "settle[3]", "--note", "they left")
    assert answer.err.startswith(f"skipped 2 tasks of settlement, run {run_id}\n")
    assert settlement.run().status == "complete"
    assert store.tasks.get("settlement", "publish").result == {"sum": 1}


def test_accepting_a_child_without_a_result_shows_the_effect(run, settlement, run_id, store):
    answer = run("tasks", "accept", "settle[2]", "--note", "paid by hand")
    assert answer.err.endswith(
        "without --result, downstream tasks receive null for settle[2]\n"
        "Next steps:\n"
        f"  to skip instead, reopen  redrive tasks reopen 'settle[2]' --run {run_id}\n"
        f"  and then skip            redrive tasks skip 'settle[2]' --run {run_id} --note …\n"
    )
    assert run("tasks", "reopen", "settle[2]").err == f"reopened settle[2] of settlement, run {run_id}\n"
    assert states(store)["settle[2]"] is State.DEAD_LETTER


def test_retry_includes_tasks_waiting_for_their_next_attempt(run, settlement, run_id, store):
    from redrive.store.schema import tasks

    waits = tasks.update().where(tasks.c.child == 2).values(state="RETRYING")
    store.database.write(lambda connection: connection.execute(waits))
    assert "cannot retry 2 tasks (1 dead letter, 1 retrying)" in run("tasks", "retry", "settle").sentence
    assert run("tasks", "accept", "settle[2]", "--note", "x").code == 64
    answer = run("tasks", "retry", "settle[2]")
    assert answer.err.splitlines()[0] == f"will retry settle[2] of settlement, run {run_id}"
    assert states(store)["settle[2]"] is State.READY


def test_run_is_cancelled(run, settlement, run_id, store):
    answer = run("runs", "cancel", run_id, "--note", "wrong day")
    assert answer.err == f"cancelled run {run_id}; its executors stop within a second or so\n"
    assert store.tasks.run("settlement").status == "abandoned"


def test_many_tasks_need_confirmation_or_yes(run, terminal, settlement, store):
    for which in (["settle"], ["--cause", "Lookup"], ["settle", "--cause", "Lookup"]):
        answer = run("tasks", "fail", *which, "--note", "they left")
        assert answer.code == 64
        assert answer.sentence == (
            "cannot fail 2 tasks (2 dead letters) without confirmation: stdin is not a terminal. "
            "Pass --yes. Nothing was changed"
        )
    no = terminal("tasks", "fail", "settle", "--note", "they left", keys="n\n")
    assert no.code == 64
    assert "Fail 2 tasks (2 dead letters)? [y/N]" in no.out
    assert states(store)["settle[2]"] is State.DEAD_LETTER
    yes = terminal("tasks", "fail", "settle", "--note", "they left", keys="y\n")
    assert yes.code == 0
    assert "failed 2 tasks of settlement" in yes.out


def test_running_run_is_reported_as_continuing_by_itself(run, settlement, store):
    from redrive.store.schema import task_runs

    running = task_runs.update().values(status="running")
    store.database.write(lambda connection: connection.execute(running))
    *_, last = run("tasks", "retry", "settle[2]").err.splitlines()
    assert last == "the executor of this run continues with it; if there is none, run the flow again"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["ls", "settlment"], "there is no run of a flow 'settlment'; did you mean 'settlement'?"),
        (["ls", "--run", "nothing"], "there is no run of a flow 'nothing'; see `redrive runs ls`"),
        (
            ["ls", "--state", "done"],
            "--state 'done' is not a state of a task. It must be one of PENDING, READY, RUNNING, ",
        ),
        (["ls", "--task", "setle"], "run RUN has no task 'setle'; did you mean 'settle'?"),
        (["ls", "--cause", "x"], "no task of run RUN failed for a cause that begins with 'x'; its causes are "),
        (["show"], "missing argument 'TASK'; see `redrive tasks show --help`"),
        (["show", "settle[4]"], "run RUN has no task 'settle[4]'; settle has settle[0] to settle[3]"),
        (["show", "report[0]"], "run RUN has no task 'report[0]'; report has no children, or none yet"),
        (["show", "settle[x]"], "'settle[x]' names no task: write settle, or settle[17] for a child of a fan-out"),
        (["retry"], "no tasks to retry: none was named. Pass names of tasks or --cause; `redrive tasks ls` lists both"),
        (["retry", "repport"], "run RUN has no task 'repport'; did you mean 'report'?"),
        (["retry", "report"], "task 'report' of run RUN is PENDING: nothing went wrong that could be decided about"),
        (["retry", "settle[0]"], "task 'settle[0]' of run RUN is SUCCESS: nothing went wrong that could be decided"),
        (["retry", "--cause", ""], "no task of run RUN failed for a cause that begins with ''"),
        (["accept", "settle[2]"], "missing option '--note'; see `redrive tasks accept --help`"),
        (["accept", "settle[2]", "--note", " "], "to accept a task needs a note with the reason; nothing was changed"),
        (["accept", "settle[2]", "--note", "x", "--result", "{"], "--result"),
        (["fail", "settle[2]"], "missing option '--note'; see `redrive tasks fail --help`"),
    ],
)
def test_invalid_decision_is_rejected_and_changes_nothing(run, settlement, run_id, store, words, sentence):
    before = states(store)
    answer = run("tasks", *words)
    assert (answer.code, answer.out) == (64, "")
    assert answer.sentence.startswith(sentence.replace("RUN", run_id) if "RUNNING" not in sentence else sentence)
    assert states(store) == before


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("tasks", "state = 'DONE'"),
        ("tasks", "input = '{'"),
        ("task_runs", "status = 'well'"),
        ("task_runs", "shape = ''"),
    ],
)
def test_rows_with_invalid_values_are_reported(run, settlement, store, table, change):
    which = " WHERE child = 2" if table == "tasks" else ""
    store.database.write(lambda connection: connection.exec_driver_sql(f"UPDATE {table} SET {change}{which}"))
    answers = [
        run("tasks", "ls"),
        run("tasks", "show", "settle[2]"),
        run("tasks", "retry", "settle[2]", "--yes"),
        run("runs", "ls"),
    ]
    failed = [answer for answer in answers if answer.code]
    assert failed
    for answer in failed:
        assert answer.code == 70
        assert answer.sentence.startswith("the store's flows cannot be decoded (")
        assert answer.sentence.endswith("a row was probably changed by hand; undo that change")


def test_ambiguous_cause_prefix_does_not_select_two_causes(run, store):
    flow = redrive.Flow("several", store=store)

    @flow.task(in_thread=True)
    def one():
        raise redrive.Permanent("one")

    @flow.task(in_thread=True)
    def other():
        raise redrive.Permanent("other")

    with pytest.raises(redrive.FlowStopped):
        flow.run()
    answer = run("tasks", "retry", "--cause", "redrive", "--yes")
    assert answer.code == 64
    assert answer.sentence.startswith("2 causes begin with 'redrive' (redrive.errors.Permanent@")
    assert answer.sentence.endswith("; write more of it")


def test_task_that_feeds_a_fan_out_is_accepted_with_a_list(run, store):
    flow = redrive.Flow("fanned", store=store)

    @flow.task(in_thread=True)
    def items():
        raise redrive.Permanent("no such table")

    @flow.task(each=items, in_thread=True)
    def work(item):
        return item

    with pytest.raises(redrive.FlowStopped):
        flow.run()
    answer = run("tasks", "accept", "items", "--note", "by hand")
    assert answer.sentence == (
        "'work' runs for each item of the result of 'items': accept it with a list, `--result '[…]'`"
    )
    assert run("tasks", "accept", "items", "--note", "by hand", "--result", "[1, 2]").code == 0
    assert flow.run().total == 3


class TestRerunAndCancel:
    def test_rerun_shows_its_effect_and_asks(self, run, store):
        made = Settlement(store, missing=())
        made.run()
        shown = run("tasks", "rerun", "report", "--dry-run")
        assert shown.err.startswith("would run report again, and 1 task downstream, of settlement, run ")
        refused = run("tasks", "rerun", "report")
        assert "cannot run report again, and 1 task downstream without confirmation" in refused.sentence
        assert states(store)["report"] is State.SUCCESS
        done = run("tasks", "rerun", "report", "--yes", "--note", "new rate")
        assert done.code == 0, done.err
        assert "will run again, and 1 task downstream" in done.err
        assert "  resume flow" in done.err
        assert (states(store)["report"], states(store)["publish"]) == (State.READY, State.PENDING)

    def test_cancelled_task_fails_and_its_successors_do_not_run(self, run, settlement, store):
        done = run("tasks", "cancel", "report", "--note", "not today")
        assert done.err == "cancelled report; 1 task downstream will not run\n"
        assert (states(store)["report"], states(store)["publish"]) == (State.FAILED, State.UPSTREAM_FAILED)
        again = run("tasks", "cancel", "report", "--note", "twice")
        assert again.sentence.endswith("is FAILED: there is nothing to cancel")
