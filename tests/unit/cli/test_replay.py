"""`redrive dlq replay`: a dry run first, then the real run, with an exit code for its result."""

import json

import pytest

TARGETS = """
import errno, sys

print("importing the target")


def load(records, dry_run=False):
    print("loading", len(records), "records")
    return [ValueError(f"fee: {r['fee']!r} of {r['id']}") if r["id"].endswith("3") else None for r in records]


def accepts(records, dry_run=False):
    with open("sent", "a") as sent:
        sent.writelines(f"{r['id']}\\n" for r in records if not dry_run)


def cannot_rehearse(records): ...


class Pipeline:
    def reprocess(self, records, dry_run=False): ...


pipeline = Pipeline()


def down(records): raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
def full(records): raise OSError(errno.ENOSPC, "No space left on device")
def bug(records): records.no_such_thing
def miscounts(records): return [None, None]


def unauthorized(records):
    import redrive
    import httpx
    request = httpx.Request("GET", "https://partner.example/?api_key=hunter2")
    raise httpx.HTTPStatusError("401 for ?api_key=hunter2", request=request, response=httpx.Response(401))


not_callable = 3
"""


@pytest.fixture(autouse=True)
def targets(here):
    (here / "targets.py").write_text(TARGETS)


def test_dry_run_shows_the_outcome_and_the_command(run, put, store):
    put(3)
    answer = run("dlq", "replay", "--pipeline", "vendor", "--target", "targets.py:load")
    assert answer.code == 70
    assert answer.out == (
        "outcome\tletters\twhy\nselected\t3\tpipeline vendor\nattempted\t3\t\nwould pass\t2\t\n"
        "would fail\t1\tValueError: fee: <value> of D-<n>\n"
    )
    assert answer.err.splitlines() == [
        "importing the target",
        "loading 3 records",
        "dry run: nothing was changed",
        "Next steps:",
        "  execute  redrive dlq replay --pipeline vendor --target targets.py:load --go",
    ]
    assert store.dlq.count(status="pending") == 3


@pytest.mark.parametrize("go", ["--go", "--no-dry-run"])
def test_real_run_marks_each_letter_by_its_outcome(run, put, store, go):
    put(3)
    answer = run("dlq", "replay", "--pipeline", "vendor", "--target", "targets:load", go, "--note", "parser mended")
    assert answer.code == 70
    assert answer.rows == [
        ["selected", "3", "pipeline vendor"],
        ["attempted", "3", ""],
        ["reprocessed", "2", ""],
        ["failed again", "1", "ValueError: fee: <value> of D-<n>"],
    ]
    assert "redrive dlq ls --status escalated" in answer.err
    assert [str(store.dlq.get(one).status) for one in (1, 2, 3)] == ["reprocessed", "reprocessed", "escalated"]
    assert store.dlq.get(1).note == "parser mended"


def test_exit_code_is_0_when_all_letters_pass(run, put, here):
    put(3)
    answer = run("dlq", "replay", "--any-pipeline", "--target", "targets.py:accepts", "--go")
    assert answer.code == 0
    assert (here / "sent").read_text().split() == ["D-1", "D-2", "D-3"]
    again = run("dlq", "replay", "--any-pipeline", "--target", "targets.py:accepts", "--go")
    assert again.err.splitlines()[-2:] == [
        "no letters selected",
        "matching letters with another status: 3 reprocessed. --status reprocessed lists them",
    ]


def test_pipeline_without_letters_is_named(run, put):
    put(3)
    answer = run("dlq", "replay", "--pipeline", "vender", "--target", "targets.py:accepts", "--go")
    assert answer.code == 0
    assert answer.err.splitlines()[-2:] == [
        "no letters selected",
        "the store has no letters of pipeline 'vender', of any status",
    ]


@pytest.mark.parametrize("words", [[], ["--status", "any"], ["--all-statuses"], ["--status", "open"]])
def test_escalated_letters_are_replayed_like_pending_ones(run, put, store, words):
    put(3)
    store.dlq.escalate(note="x", key="D-1")
    store.dlq.discard(note="x", key="D-2")
    answer = run("dlq", "replay", "--pipeline", "vendor", "--target", "targets.py:accepts", *words)
    assert answer.rows[0] == ["selected", "2", "pipeline vendor"]


def test_letters_that_failed_again_remain_listed(run, put, store):
    put(3)
    assert run("dlq", "replay", "--pipeline", "vendor", "--target", "targets.py:load", "--go").code == 70
    assert [row[0] for row in run("dlq", "ls").rows] == ["3"]
    store.dlq.discard(note="x", ids=[3])
    answer = run("dlq", "ls", "--key", "D-3")
    assert answer.err.splitlines() == [
        "no open letters match",
        "matching letters with another status: 1 discarded. --status discarded lists them",
    ]


PIPELINES = """
import redrive

def to(name):
    sink = redrive.rows.table("sqlite:///warehouse.db", name, key="id", create=True)
    return redrive.Pipeline(name, source=redrive.rows.records([]), sink=sink)

invoices, payments = to("invoices"), to("payments")
"""


def test_pipeline_is_sent_its_own_letters_only(run, here, store):
    (here / "jobs.py").write_text(PIPELINES)
    store.dlq.put({"id": "I-1"}, "bad", pipeline="invoices")
    store.dlq.put({"id": "P-9"}, "bad", pipeline="payments")
    answer = run("dlq", "replay", "--target", "jobs.py:invoices", "--go")
    assert answer.rows == [["selected", "1", "pipeline invoices"], ["attempted", "1", ""], ["reprocessed", "1", ""]]
    assert "1 letter of other pipelines skipped (payments: 1)" in answer.err
    assert [letter.pipeline for letter in store.dlq.each(status="open")] == ["payments"]
    answer = run("dlq", "replay", "--any-pipeline", "--status", "any", "--target", "jobs.py:invoices", "--json")
    assert json.loads(answer.out)["selected_by_pipeline"] == {"payments": 1}


def test_function_needs_a_selection(run, put):
    put(1)
    answer = run("dlq", "replay", "--target", "targets.py:accepts", "--go")
    assert answer.code == 64
    assert "pass pipeline= (--pipeline) or another filter, or any_pipeline=True (--any-pipeline)" in answer.err


def test_large_replay_has_a_canary_by_default(run, put, store):
    put(101)
    words = ["dlq", "replay", "--pipeline", "vendor", "--target", "targets.py:load", "--go"]
    answer = run(*words)
    assert "stopped: canary: 1 of the first 10 failed" in answer.err
    assert store.dlq.count(status="pending") == 91
    answer = run(*words, "--no-canary", "--rate", "5000")
    assert "stopped" not in answer.err
    assert store.dlq.count(status="pending") == 0
    assert run(*words, "--no-canary", "--canary", 3).code == 64


def test_object_with_reprocess_is_a_target(run, put):
    put(2)
    assert run("dlq", "replay", "--any-pipeline", "--target", "targets.py:pipeline", "--go").code == 0
    assert run("dlq", "replay", "--any-pipeline", "--target", "targets.py:pipeline.reprocess").code == 0


def test_only_pipeline_of_a_file_needs_no_name(run, put, here):
    put(2)
    (here / "vendor.py").write_text(
        "import redrive\n"
        "pipeline = redrive.Pipeline('vendor', source=redrive.rows.records([]), validate=lambda record: record,\n"
        "    sink=redrive.rows.table('sqlite:///warehouse.db', 'deliveries', key='id', create=True))\n"
    )
    answer = run("dlq", "replay", "--target", "vendor.py")
    assert (answer.code, answer.rows[0]) == (0, ["selected", "2", "pipeline vendor"])


def test_target_without_dry_run_is_reported(run, put):
    put(2)
    answer = run("dlq", "replay", "--any-pipeline", "--target", "targets.py:cannot_rehearse")
    assert (answer.code, answer.rows) == (0, [["selected", "2", "pipeline vendor"]])
    assert "the target has no parameter `dry_run`: the dry run only counts the selected letters" in answer.err


def test_failing_canary_stops_the_rest(run, put, store):
    put(8, start=3)
    answer = run("dlq", "replay", "--any-pipeline", "--target", "targets.py:load", "--canary", 3, "--go")
    assert answer.code == 70
    assert "stopped: canary: 1 of the first 3 failed, the rest was not touched" in answer.err
    assert store.dlq.count(status="pending") == 5


def test_limit_and_batch_bound_the_work(run, put, store):
    put(5)
    answer = run("dlq", "replay", "--any-pipeline", "--target", "targets.py:load", "--limit", 2, "--batch", 1, "--go")
    assert answer.code == 0
    assert answer.err.count("loading 1 records") == 2
    assert store.dlq.count(status="pending") == 3


def test_ids_and_filters_select_the_replayed_letters(run, put, here):
    put(5)
    assert run("dlq", "replay", 2, 4, "--any-pipeline", "--target", "targets.py:accepts", "--go").code == 0
    assert run("dlq", "replay", "--key", "D-5", "--any-pipeline", "--target", "targets.py:accepts", "--go").code == 0
    assert (here / "sent").read_text().split() == ["D-2", "D-4", "D-5"]


def test_report_in_json_is_complete(run, put):
    put(3)
    answer = run("dlq", "replay", "--any-pipeline", "--target", "targets.py:load", "--json")
    told = json.loads(answer.out)
    assert (told["dry_run"], told["rehearsed"], told["selected"], told["attempted"]) == (True, True, 3, 3)
    assert (told["reprocessed"], told["failed_again"], told["remaining"], told["stopped"]) == (2, 1, 0, None)
    (cause,) = told["by_cause"]
    assert (cause["count"], cause["message"]) == (1, "ValueError: fee: <value> of D-<n>")


@pytest.mark.parametrize(
    ("target", "code", "words"),
    [
        ("down", 75, "the target failed: ConnectionRefusedError"),
        ("full", 70, "the target failed: OSError: [Errno 28] No space left on device"),
        ("bug", 70, "the target failed: AttributeError: 'list' object has no attribute 'no_such_thing'"),
        ("unauthorized", 77, "the target failed: HTTPStatusError: 401 for ?api_key=***"),
    ],
)
def test_failing_target_stops_the_replay_with_its_exit_code(run, put, store, target, code, words):
    put(3)
    answer = run("dlq", "replay", "--any-pipeline", "--target", f"targets.py:{target}", "--go")
    assert answer.code == code
    *_, last = answer.err.splitlines()
    assert last.startswith(f"redrive: {words}")
    assert "0 letters were reprocessed" in last
    assert "Traceback" not in answer.err
    assert "hunter2" not in answer.err
    assert answer.rows[0] == ["selected", "3", "pipeline vendor"]
    assert store.dlq.count(status="pending") == 3


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--target", "nowhere.py:load"], 64, "there is no file nowhere.py"),
        (["--any-pipeline", "--target", "targets.py:laod"], 64, "targets.py has no name 'laod'; did you mean 'load'?"),
        (["--target", "targets.py"], 64, "there is no pipeline or flow in targets.py. Create one with"),
        (
            ["--target", "broken.py:load"],
            70,
            "broken.py cannot be imported: SyntaxError: expected ':' (broken.py, line 1)",
        ),
        (["--any-pipeline", "--target", "targets.py:not_callable"], 64, "a replay's target is a function of records"),
        (
            ["--any-pipeline", "--target", "targets.py:miscounts", "--go"],
            64,
            "the target answered 2 outcomes for 1 records",
        ),
        (
            ["--any-pipeline", "--target", "targets.py:load", "--tries", "3"],
            64,
            "--tries and --first need --due",
        ),
        (
            ["--any-pipeline", "--target", "targets.py:load", "--due", "--tries", "0"],
            64,
            "tries must be a whole number from 1 to 100",
        ),
        (["--any-pipeline", "--target", "targets.py:load", "--due", "--first", "soon"], 64, "--first must be an age"),
        (["--any-pipeline", "--target", "targets.py:load", "99"], 64, "there is no letter 99"),
        (
            ["--any-pipeline", "--target", "targets.py:load", "--status", "discarded"],
            64,
            "a letter that is discarded is not open",
        ),
    ],
)
def test_invalid_replay_is_rejected_in_one_sentence(run, put, here, words, code, sentence):
    put(1)
    (here / "broken.py").write_text("def load(records)\n    pass\n")
    answer = run("dlq", "replay", *words)
    assert answer.code == code
    last = answer.err.splitlines()[-1]
    assert last.startswith(f"redrive: {sentence}")
    assert "Traceback" not in answer.err


def test_scheduled_replay_tries_only_due_letters(run, put, store):
    put(3)
    assert run("dlq", "replay", "--any-pipeline", "--target", "targets.py:load", "--due", "--go").rows[0] == [
        "selected",
        "0",
        "",
    ]
    answer = run(
        "dlq", "replay", "--any-pipeline", "--target", "targets.py:load", "--due", "--first", "0s", "--tries", 2, "--go"
    )
    assert answer.rows[0] == ["selected", "3", "pipeline vendor"]
    assert str(store.dlq.get(3).status) == "pending"
    assert store.dlq.get(3).reprocess_count == 1


def test_masked_field_in_a_target_message_is_masked(run, store, here):
    (here / "redrive.toml").write_text('[letters]\nredact = ["fee"]\n')
    store.dlq.put({"id": "D-3", "fee": "Rumpelstilzchen"}, "bad", pipeline="vendor")
    for words in (["--json"], []):
        answer = run("dlq", "replay", "--any-pipeline", "--target", "targets.py:load", *words)
        assert answer.code == 70
        assert "Rumpelstilzchen" not in answer.out + answer.err


def test_message_of_a_target_that_exits_shows_no_redacted_value(run, store, here):
    (here / "redrive.toml").write_text('[letters]\nredact = ["fee"]\n')
    (here / "exits.py").write_text("import sys\n\n\ndef load(records):\n    sys.exit(f\"no {records[0]['fee']}\")\n")
    store.dlq.put({"id": "D-3", "fee": "Rumpelstilzchen"}, "bad", pipeline="vendor")
    answer = run("dlq", "replay", "--pipeline", "vendor", "--target", "exits.py:load", "--go")
    assert answer.code == 70
    assert "called sys.exit('no ***')" in answer.err
    assert "Rumpelstilzchen" not in answer.out + answer.err


def test_report_on_a_terminal_is_a_table_below_the_progress(terminal, put):
    put(3)
    answer = terminal("dlq", "replay", "--any-pipeline", "--target", "targets.py:load")
    assert answer.code == 70
    assert "would fail        1  ValueError: fee: <value> of D-<n>" in answer.out
