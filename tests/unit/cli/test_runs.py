"""`redrive runs`: the runs of pipelines and flows, and their progress."""

import json
import re

import pytest

import redrive


@pytest.fixture
def ran(store):
    """Run a pipeline over a number of rows, of which the last are bad, and return its report."""

    def check(record):
        if record["bad"]:
            raise ValueError("fee: not a number")

    def ran(name, rows, *, bad=0, **options):
        made = [{"id": n, "bad": n >= rows - bad} for n in range(rows)]
        sink = redrive.rows.table("sqlite:///warehouse.db", "deliveries", key="id", create=True)
        source = redrive.rows.records(options.pop("source", made))
        pipeline = redrive.Pipeline(
            name,
            source=source,
            sink=sink,
            validate=check,
            store=store,
            gate=redrive.Gate(least=1, abort_least=1),
            **options,
        )
        try:
            return pipeline.run()
        except redrive.RunStopped as stopped:
            return stopped.report

    return ran


def settled(text):
    """A screen without what differs from run to run."""
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, (just now|[\d.]+ s ago)", "WHEN", text)
    text = re.sub(r"[\d.]+ s, [\d,]+ rows/s", "SPEED", text)
    return [line.rstrip() for line in text.splitlines()]


def test_runs_are_listed_newest_first_with_row_counts(run, ran):
    first, second, third = ran("vendor", 1_000, bad=30), ran("partner", 4), ran("vendor", 10, bad=5)
    answer = run("runs", "ls")
    assert answer.code == 0
    assert answer.out.splitlines()[0].split("\t") == [
        *("run", "pipeline", "status", "started", "duration", "read", "written", "rejected", "rate", "tier", "reason"),
        *("kind", "tasks", "succeeded", "dead", "failed"),
    ]
    assert [row[:3] + row[5:10] for row in answer.rows] == [
        [str(third.run_id), "vendor", "aborted", "10", "5", "5", "0.5", "abort"],
        [str(second.run_id), "partner", "complete", "4", "4", "0", "0.0", "log"],
        [str(first.run_id), "vendor", "complete", "1000", "970", "30", "0.03", "P3"],
    ]
    assert answer.rows[0][10].startswith("the gate aborted it: 5 of 10 rows were rejected")


def test_list_on_a_terminal_is_human_readable(terminal, ran):
    report = ran("vendor", 1_000, bad=30)
    answer = terminal("runs", "ls", columns=110)
    title, _, row = [line.split() for line in answer.out.splitlines() if line]
    assert title == ["run", "pipeline", "status", "started", "duration", "read", "written", "rejected", "rate", "tier"]
    assert row[:3] == [str(report.run_id)[:8], "vendor", "complete"]
    assert re.fullmatch(r"just now|[\d.]+ s ago", " ".join(row[3:-8]))
    assert row[-6:] == ["1,000", "970", "30", "3.0", "%", "P3"]


def test_outcome_is_shown_in_a_narrow_terminal(terminal, ran):
    ran("vendor", 1_000, bad=500)
    title = terminal("runs", "ls", columns=60).out.splitlines()[0].split()
    assert title == ["run", "pipeline", "status", "started", "written", "rejected"]


def test_runs_are_selected_by_pipeline_status_and_age(run, ran):
    ran("vendor", 10)
    ran("partner", 4)
    ran("vendor", 10, bad=5)
    assert [row[1] for row in run("runs", "ls", "--pipeline", "partner").rows] == ["partner"]
    assert [row[1:3] for row in run("runs", "ls", "--status", "aborted").rows] == [["vendor", "aborted"]]
    assert len(run("runs", "ls", "--since", "1h").rows) == 3
    answer = run("runs", "ls", "--since", "2999-01-01")
    assert (answer.code, answer.rows, answer.err) == (0, [], "no runs that match\n")


def test_limited_list_reports_more_runs(run, ran):
    for _ in range(3):
        ran("vendor", 2)
    answer = run("runs", "ls", "--limit", 2)
    assert len(answer.rows) == 2
    assert answer.err == "Next steps:\n  list more runs  redrive runs ls --limit 10\n"


def test_json_has_all_fields_of_every_run(run, ran):
    report = ran("vendor", 1_000, bad=30)
    (told,) = json.loads(run("runs", "ls", "--json").out)
    varies = {"seconds": told["seconds"], "throughput": told["throughput"]}
    assert told == {"kind": "pipeline", **report.document(), **varies}
    assert json.loads(run("runs", "show", "vendor", "--json").out) == told
    assert json.loads(run("runs", "ls", "--pipeline", "other", "--json").out) == []


def test_store_without_runs_is_reported(run, store):
    assert run("runs", "ls").err == "no runs yet\n"


def test_run_is_shown_with_all_details(terminal, ran):
    report = ran("vendor", 1_000, bad=30, sla="23:59 UTC")
    answer = terminal("runs", "show", str(report.run_id)[:8], columns=400)
    assert answer.code == 0
    shown = settled(answer.out)
    assert shown.pop(7).startswith("sla        ")
    checkpoint = json.loads(shown.pop(11).removeprefix("checkpoint "))
    assert checkpoint == report.checkpoint
    assert shown == [
        f"run        {report.run_id}, complete",
        "pipeline   vendor",
        "source     records",
        "sink       deliveries in warehouse.db",
        "started    WHEN",
        "ended      WHEN",
        "took       SPEED",
        "read       1,000",
        "written    970",
        "rejected   30, 3.0 %, P3",
        "batches    1",
        "Next steps:",
        f"  rejected rows by cause  redrive dlq causes --run {str(report.run_id)[:8]}",
    ]


def test_failed_run_shows_the_reason_and_the_next_step(terminal, ran):
    report = ran("vendor", 10, bad=5)
    shown = settled(terminal("runs", "show", "vendor", columns=200).out)
    assert shown[0] == f"run        {report.run_id}, aborted"
    assert shown[2] == f"reason     {report.reason}"
    assert shown[-2:] == [
        "  accept the rejected rows  redrive run FILE:NAME --override-gate",
        "  begin a new run           redrive run FILE:NAME --restart",
    ]


def test_duplicates_and_discarded_rows_are_shown_if_any(terminal, ran):
    def rows():
        yield from ({"id": n, "bad": False} for n in (1, 2, 2))

    ran("vendor", 0, source=rows)
    assert "duplicates 1, superseded by another row with the same key" in settled(
        terminal("runs", "show", "vendor").out
    )


def test_name_of_a_pipeline_selects_its_newest_run(run, ran):
    ran("vendor", 1)
    newest = ran("vendor", 2)
    told = dict(run("runs", "show", "vendor").rows)
    assert (told["run_id"], told["read"]) == (str(newest.run_id), "2")
    assert json.loads(told["checkpoint"]) == newest.checkpoint


def test_hint_names_the_store_option(run, ran):
    report = ran("vendor", 100, bad=5)
    answer = run("runs", "show", "vendor", "--store", "sqlite:///.redrive/redrive.db")
    assert answer.err == (
        f"Next steps:\n  rejected rows by cause  redrive dlq causes --run {str(report.run_id)[:8]} "
        "--store sqlite:///.redrive/redrive.db\n"
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["show"], "missing argument 'RUN_OR_NAME'; see `redrive runs show --help`"),
        (["show", "nobody"], "there is no run 'nobody'. `redrive runs ls` lists runs"),
        (
            ["ls", "--status", "done"],
            "--status 'done' is not a status of a run. It must be one of running, complete, stopped",
        ),
        (["ls", "--since", "soon"], "--since must be an age such as"),
        (["ls", "--limit", "0"], "invalid value for '--limit'"),
        (["lss"], "no such command 'lss', did you mean 'ls'? See `redrive runs --help`"),
    ],
)
def test_invalid_arguments_are_a_usage_error_in_one_sentence(run, store, words, sentence):
    answer = run("runs", *words)
    assert (answer.code, answer.out) == (64, "")
    assert answer.sentence.startswith(sentence)


# ── flows beside pipelines ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def flown(store):
    """Run a flow of a number of tasks, of which some end as dead letters."""

    def flown(name, tasks, *, dead=0, **params):
        flow = redrive.Flow(name, store=store, workers=2, params=list(params))

        @flow.task(in_thread=True)
        def items():
            return list(range(tasks - 1))

        @flow.task(each=items, in_thread=True, storm=100)
        def work(item):
            if item < dead:
                raise redrive.Permanent("no such column, token=hunter2")

        try:
            return flow.run(params=params)
        except redrive.FlowStopped as stopped:
            return stopped.report

    return flown


def test_flows_and_pipelines_are_listed_by_start_time(run, ran, flown):
    first, second, third = ran("vendor", 1_000, bad=30), flown("settlement", 6, dead=2), ran("partner", 4)
    answer = run("runs", "ls")
    title = answer.out.splitlines()[0].split("\t")
    told = [dict(zip(title, row, strict=True)) for row in answer.rows]
    assert [one["run"] for one in told] == [str(one.run_id) for one in (third, second, first)]
    assert [(one["pipeline"], one["kind"], one["status"]) for one in told] == [
        ("partner", "pipeline", "complete"),
        ("settlement", "flow", "held"),
        ("vendor", "pipeline", "complete"),
    ]
    of_flow = told[1]
    assert [of_flow[name] for name in ("tasks", "succeeded", "dead", "failed")] == ["6", "4", "2", "0"]
    assert [of_flow[name] for name in ("read", "written", "rejected", "rate", "tier")] == [""] * 5
    assert [told[2][name] for name in ("read", "rejected", "tasks")] == ["1000", "30", ""]


def test_list_on_a_terminal_has_the_progress_of_each_run(terminal, ran, flown):
    ran("vendor", 1_000, bad=30)
    ran("partner", 1)
    flown("settlement", 1_252, dead=3)
    flown("report", 3)
    title, _, *rows = [line for line in terminal("runs", "ls").out.splitlines() if line]
    assert title.split() == ["run", "pipeline", "or", "flow", "status", "started", "duration", "did"]
    assert [row.split(" s  ")[-1].strip() for row in rows] == [
        "3 tasks",
        "1,252 tasks, 3 dead letters",
        "1 row",
        "1,000 rows, 30 rejected (P3)",
    ]


def test_runs_are_selected_by_flow_and_by_flow_status(run, ran, flown):
    ran("vendor", 10)
    flown("settlement", 3, dead=1)
    flown("report", 3)
    assert [row[1] for row in run("runs", "ls", "--flow", "report").rows] == ["report"]
    assert [row[1] for row in run("runs", "ls", "--pipeline", "vendor").rows] == ["vendor"]
    assert [row[1] for row in run("runs", "ls", "--status", "held").rows] == ["settlement"]
    assert [row[1] for row in run("runs", "ls", "--status", "complete").rows] == ["report", "vendor"]
    assert run("runs", "ls", "--status", "aborted").err == "no runs that match\n"
    answer = run("runs", "ls", "--limit", 2)
    assert [row[1] for row in answer.rows] == ["report", "settlement"]
    assert answer.err == "Next steps:\n  list more runs  redrive runs ls --limit 10\n"


def test_json_distinguishes_flows_from_pipelines(run, ran, flown):
    ran("vendor", 10)
    flown("settlement", 3, day="2026-11-15", api_key="hunter2")
    flow, pipeline = json.loads(run("runs", "ls", "--json").out)
    assert (flow["kind"], flow["flow"], flow["counts"]) == ("flow", "settlement", {"SUCCESS": 3})
    assert flow["params"] == {"day": "2026-11-15", "api_key": "***"}
    assert (pipeline["kind"], pipeline["pipeline"], pipeline["read"]) == ("pipeline", "vendor", 10)


def test_run_of_a_flow_is_shown_with_its_failures(terminal, flown):
    report = flown("settlement", 6, dead=2, day="2026-11-15", password="hunter2")
    run_id = str(report.run_id)[:8]
    shown = settled(terminal("runs", "show", run_id, columns=200).out)
    took = shown.pop(5)
    assert re.fullmatch(r"took       [\d.]+ s", took)
    assert shown == [
        "flow       settlement",
        f"run        {report.run_id}, held",
        "params     day=2026-11-15, password=***",
        "started    WHEN",
        "ended      WHEN",
        "tasks      6: 4 SUCCESS, 2 DEAD_LETTER",
        "attempts   6",
        "work: 2 tasks: Permanent: no such column, token=*** (cause " + shown[7].rpartition("(cause ")[2],
        "Next steps:",
        f"  list tasks                     redrive tasks ls --run {run_id}",
        f"  show one task                  redrive tasks show 'work[0]' --run {run_id}",
        shown[11],
        "  then resume flow 'settlement'  redrive run FILE:NAME --param …",
    ]
    assert shown[11].startswith(
        "  retry when fixed               redrive tasks retry --cause redrive.errors.Permanent@"
    )


def test_shared_name_of_pipeline_and_flow_is_the_newer_run(run, ran, flown):
    ran("nightly", 10)
    flown("nightly", 3)
    assert dict(run("runs", "show", "nightly").rows)["kind"] == "flow"
    ran("nightly", 10)
    assert dict(run("runs", "show", "nightly").rows)["kind"] == "pipeline"


class TestForget:
    def test_command_is_a_dry_run_until_go(self, run, ran):
        ran("vendor", 10)
        answer = run("runs", "forget", "vendor")
        assert answer.code == 0
        assert answer.err.startswith("would forget pipeline vendor with 1 run. Nothing was changed\nNext steps:\n")
        assert answer.err.rstrip().endswith("runs forget vendor --go")
        assert len(run("runs", "ls").rows) == 1
        assert json.loads(run("runs", "forget", "vendor", "--go", "--json").out)["runs"] == 1
        assert run("runs", "ls").rows == []

    def test_unknown_name_is_rejected(self, run, store):
        answer = run("runs", "forget", "vendro", "--go")
        assert answer.code == 64
        assert answer.sentence == "there is no pipeline or flow 'vendro' in the store. `redrive runs ls` lists runs"

    def test_pipeline_that_only_the_settings_name_is_forgotten(self, run, store, here):
        (here / "redrive.toml").write_text('[pipelines.vendor]\nsla = "06:30 UTC"\n')
        store.alerts.open(key="late", severity="P1", title="vendor is late", pipeline="vendor")
        assert "forgot pipeline vendor with 0 runs; 1 alert closed" in run("runs", "forget", "vendor", "--go").err
        assert store.alerts.find(status="open") == []

    def test_settings_that_still_name_it_are_mentioned(self, run, ran, here):
        ran("vendor", 10)
        (here / "redrive.toml").write_text('[pipelines.vendor]\nsla = "06:30 UTC"\n')
        assert "redrive.toml still has [pipelines.vendor]" in run("runs", "forget", "vendor", "--go").err
