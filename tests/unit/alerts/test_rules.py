"""All rules together: the table of conditions, and properties of every finding."""

import re
import shlex
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from typer.main import get_command

from redrive.alerts.conditions import CONDITIONS
from redrive.alerts.config.settings import AlertSettings, PipelineSettings, Thresholds
from redrive.alerts.facts.snapshot import (
    DeadTasks,
    DueRun,
    DueTask,
    Freshness,
    Judgement,
    Lag,
    LevelSnapshot,
    Minute,
    PastRun,
    PendingLetters,
    RunSnapshot,
    ServiceSnapshot,
    Slot,
    TableRows,
    Window,
)
from redrive.alerts.rules import RUN_RULES, of_levels, of_run
from redrive.alerts.watchers import WatchRegistry
from redrive.cli.app import app
from redrive.model.alerts import Severity, Subject
from redrive.model.calls import Kind
from redrive.model.runs import RunStatus, Tier
from redrive.model.tasks import FlowStatus, State
from redrive.policy.time_of_day import TimeOfDay
from redrive.store.lease import new_owner
from tests.support.alert_snapshots import (
    HOUR,
    NOW,
    SECOND,
    a_flow,
    a_run,
    a_service,
    judged,
    levels,
    looked,
    minutes,
    past,
    read_before,
    rejected_before,
    rejecting,
)

DEAD = DeadTasks(task="settle", cause="ValueError@jobs:42", reason="no such merchant", count=1)

EXAMPLES = [
    judged(a_run("failed", error_kind="permanent")),
    judged(a_run("failed", error_kind="auth", error_service="shipfast")),
    judged(a_run("failed", error_kind="transient", error_service="shipfast", sla=NOW - HOUR)),
    judged(a_flow("failed", failed=("settle[3]: ReadTimeout",))),
    judged(rejecting(5_400)),
    judged(rejecting(9_001)),
    judged(rejecting(40_000)),
    judged(a_run(rejected=40, history=rejected_before(30, 20))),
    judged(a_run(read=400, history=read_before(*[1_000] * 5))),
    judged(a_run(seconds=180, history=past(*[100.0] * 9))),
    judged(a_run(seconds=900, history=past(*[100.0] * 9), failures=2, sla=NOW - SECOND)),
    judged(a_flow("held", dead=(DEAD,))),
    judged(a_flow("running", sla=NOW + SECOND)),
    judged(a_flow("running", due_tasks=(DueTask(task="load", due=NOW - SECOND, state="RUNNING"),))),
    looked(
        levels(
            due=(DueRun(subject=Subject(kind="flow", name="a b"), sla=NOW - HOUR, done_at=None, started=False),),
            running=(a_run("running", lost=True), a_flow("running", seconds=900, history=past(*[100.0] * 9))),
            services=(
                a_service(minutes=minutes(*((ago, 9, 9) for ago in range(9, 0, -1))), failed_auth=1, failed_4xx=1),
                a_service(name="bank", successes=100, retries=90, successes_before=900, retries_before=9),
                a_service(name="rates", streaks_5xx=1),
                a_service(name="geo", calls=100, failed=10),
            ),
            letters=(PendingLetters(pipeline="vendor", pending=100_000, new_today=100, oldest=NOW - 800 * HOUR),),
            pending_total=100_000,
            tables=(TableRows(name="silver.orders", rows=1, week_ago=9, pipeline="orders"),),
            slots=(Slot(name="cdc", lag_bytes=11_000_000_000),),
            lags=(Lag(consumer="billing", messages=10_001, look="redrive runs ls"),),
            fresh=(Freshness(subject=Subject(kind="pipeline", name="orders"), within=5_400, age=5_401),),
            unknown={"tables:silver.refunds": "permission denied"},
            store_bytes=50_000_000_001,
            letters_bytes=10_000_000_001,
        )
    ),
]
DIFFERS = WatchRegistry(None, AlertSettings(), new_owner()).finding(
    ["[pipelines.orders]"]
)  # raised by the watch itself
EXAMPLES.append(Judgement(findings=(DIFFERS,), judged=frozenset({DIFFERS.evidence})))
FINDINGS = [finding for judgement in EXAMPLES for finding in judgement.findings]

# ── the table ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_condition_of_the_table_has_a_rule():
    assert {finding.condition for finding in FINDINGS} == set(CONDITIONS)


def test_table_has_the_tiers_of_the_specification():
    tiers = {urgency: {one.name for one in CONDITIONS.values() if one.urgency is urgency} for urgency in Severity}
    assert tiers == {
        Severity.P1: {
            "sla_missed",
            "stale",
            "permanent_error",
            "auth_refused",
            "rejected",
            "slot_lag",
            "row_count",
            "gate_abort",
            "few_rows",
            "dead_task",
        },
        Severity.P2: {
            "retries_exhausted",
            "letters_growing",
            "sla_at_risk",
            "task_sla_missed",
            "too_long",
            "service_down",
            "calls_failing",
            "consumer_lag",
            "monitor_failed",
            "settings_differ",
            "pending_total",
        },
        Severity.P3: {
            "recovered",
            "new_letters",
            "pending_day",
            "old_letters",
            "letters_size",
            "store_size",
            "slow",
            "client_errors",
            "server_errors",
            "retries_rising",
        },
    }


def test_thresholds_and_conditions_belong_together():
    named = [name for one in CONDITIONS.values() for name in one.thresholds]
    assert set(named) == {one.name for one in fields(Thresholds)}
    assert all(name == one.name and one.words for name, one in CONDITIONS.items())


def test_thresholds_are_those_of_the_specification():
    limits = Thresholds()
    assert (limits.sla_grace, limits.row_drop, limits.slot_bytes) == (0.0, 0.20, 10_000_000_000)
    assert (limits.too_long, limits.slow) == (2.0, 1.5)
    assert (limits.down_seconds, limits.lag_messages, limits.lag_seconds) == (300.0, 10_000, 300.0)
    assert (limits.pending_day, limits.pending_total, limits.client_errors) == (100, 100_000, 1)
    assert AlertSettings().persist == 300.0


def test_every_status_of_a_run_has_its_rules():
    assert set(RUN_RULES) == {*map(str, RunStatus), *map(str, FlowStatus)}


@pytest.mark.parametrize(
    "words", sorted({command for finding in FINDINGS for command in finding.facts.commands}), ids=str
)
def test_every_suggested_command_exists(words):
    program, *rest = shlex.split(words)
    assert program == "redrive"
    noun, verb, *arguments = rest
    command = get_command(app).get_command(None, noun).commands[verb]
    assert command.make_context(verb, arguments, resilient_parsing=False).args == []


# ── whatever it is made of ────────────────────────────────────────────────────────────────────────────────────────────

MOMENTS = st.datetimes(datetime(2026, 10, 1), datetime(2026, 12, 1), timezones=st.just(UTC))
SECONDS = st.floats(0, 1e9) | st.sampled_from([0.0, 59.9, 60.0, 600.0])
COUNTS = st.integers(0, 10**7)
FEW = st.integers(0, 30)
# Hypothesis draws constants of this file, too: the secret alone is a word like any other.
TEXTS = st.text(max_size=40).filter(lambda text: "hunter2" not in text) | st.sampled_from(
    [
        "vendor",
        "vendor*",
        "*",
        "shipfast",
        "a\nb\x1b[31m",
        "password=hunter2",
        "x" * 400,
        "%s {0} '; DROP TABLE",
        "\ud800",
    ]
)
NAMES = TEXTS.filter(bool)
DAILIES = st.builds(
    TimeOfDay, st.integers(0, 23), st.integers(0, 59), st.sampled_from(["UTC", "Asia/Kolkata"]).map(ZoneInfo)
)
MAYBE = st.none()
RUNS = st.builds(
    RunSnapshot,
    subject=st.builds(Subject, kind=st.sampled_from(["pipeline", "flow"]), name=NAMES),
    variant=st.sampled_from(["", "5e1f0a2b"]),
    run_id=st.uuids(),
    status=st.sampled_from([*RunStatus, *FlowStatus]).map(str) | TEXTS,
    lost=st.booleans(),
    started_at=MOMENTS,
    ended_at=MAYBE | MOMENTS,
    seconds=SECONDS,
    sla=MAYBE | MOMENTS,
    daily=MAYBE | DAILIES,
    failures=FEW,
    reason=MAYBE | TEXTS,
    error_kind=MAYBE | st.sampled_from(Kind).map(str) | TEXTS,
    error_type=MAYBE | TEXTS,
    error_service=MAYBE | NAMES,
    read=COUNTS,
    written=COUNTS,
    rejected=COUNTS,
    tier=st.sampled_from(Tier).map(str) | TEXTS,
    target=MAYBE | TEXTS,
    checkpoint=MAYBE | TEXTS,
    cause=MAYBE | TEXTS,
    causes=FEW,
    pending=COUNTS,
    tasks_done=FEW,
    tasks_total=FEW,
    dead=st.lists(st.builds(DeadTasks, task=NAMES, cause=NAMES, reason=TEXTS, count=FEW, untried=FEW), max_size=3).map(
        tuple
    ),
    due_tasks=st.lists(
        st.builds(DueTask, task=NAMES, due=MOMENTS, state=st.sampled_from(State).map(str)),
        max_size=3,
        unique_by=lambda one: one.task,
    ).map(tuple),
    failed=st.lists(TEXTS, max_size=2).map(tuple),
    history=st.lists(
        st.builds(
            PastRun,
            status=st.sampled_from(RunStatus).map(str),
            started_at=MOMENTS,
            ended_at=MAYBE | MOMENTS,
            seconds=SECONDS,
            rejected=COUNTS,
        ),
        max_size=8,
    ).map(tuple),
    last_complete=MAYBE | MOMENTS,
    any_complete=MAYBE | MOMENTS,
)
THRESHOLDS = st.builds(
    Thresholds,
    sla_grace=st.sampled_from([0.0, 900.0]),
    row_drop=st.floats(0, 1),
    growing_runs=st.integers(0, 5),
    growing_least=FEW,
    history_least=st.integers(0, 5),
    duration_least=st.sampled_from([0.0, 60.0]),
    too_long=st.floats(0, 3),
    slow=st.floats(0, 3),
    down_share=st.floats(0, 1),
    down_faults=FEW,
    client_errors=FEW,
    server_errors=FEW,
    pending_day=FEW,
    retries_calls=FEW,
    retries_least=st.floats(0, 1),
    calls_failed=st.floats(0, 1),
    calls_failed_least=FEW,
    flap_times=FEW,
    flap_seconds=SECONDS,
)
SETTINGS = st.builds(
    AlertSettings,
    thresholds=THRESHOLDS,
    pipelines=st.dictionaries(NAMES, st.builds(PipelineSettings, sla=MAYBE | DAILIES), max_size=2),
)
WINDOWS = st.lists(st.builds(Window, calls=COUNTS, failed=COUNTS, successes=COUNTS, retries=COUNTS), max_size=8).map(
    tuple
)
SERVICES = st.builds(
    ServiceSnapshot,
    name=NAMES,
    minutes=st.lists(st.builds(Minute, at=MOMENTS, attempts=FEW, faults=FEW), max_size=8).map(tuple),
    quarters=WINDOWS,
    usual=WINDOWS,
    failed_4xx=FEW,
    failed_404=FEW,
    streaks_5xx=FEW,
    failed_auth=FEW,
    last_auth_failure=MAYBE | MOMENTS,
    last_success=MAYBE | MOMENTS,
)


def many(strategy):
    return st.lists(strategy, max_size=3).map(tuple)


PICTURES = st.builds(
    LevelSnapshot,
    now=MOMENTS,
    due=many(
        st.builds(
            DueRun,
            subject=st.builds(Subject, kind=st.sampled_from(["pipeline", "flow"]), name=NAMES),
            sla=MOMENTS,
            done_at=MAYBE | MOMENTS,
            started=st.booleans(),
            run_id=MAYBE | st.uuids(),
            last_complete=MAYBE | MOMENTS,
            target=MAYBE | TEXTS,
            daily=MAYBE | DAILIES,
        )
    ),
    inactive=many(NAMES),
    fresh=many(
        st.builds(
            Freshness,
            subject=st.builds(Subject, kind=st.sampled_from(["pipeline", "flow"]), name=NAMES),
            within=SECONDS,
            age=SECONDS,
            last_complete=MAYBE | MOMENTS,
            target=MAYBE | TEXTS,
        )
    ),
    running=many(RUNS),
    services=many(SERVICES),
    letters=many(st.builds(PendingLetters, pipeline=NAMES, pending=COUNTS, new_today=COUNTS, cause=MAYBE | TEXTS)),
    pending_total=COUNTS,
    tables=many(st.builds(TableRows, name=NAMES, rows=COUNTS, week_ago=MAYBE | COUNTS, pipeline=MAYBE | NAMES)),
    slots=many(st.builds(Slot, name=NAMES, lag_bytes=st.integers(0, 10**12), active=st.booleans())),
    lags=many(st.builds(Lag, consumer=NAMES, messages=MAYBE | COUNTS, seconds=MAYBE | SECONDS)),
    unknown=st.dictionaries(
        st.sampled_from(["due", "running", "services", "letters", "tables", "slots", "lags", "tables:vendor"]),
        TEXTS,
        max_size=2,
    ),
)

# Key and evidence, as everybody who works with alerts knows them.
SHAPES = {
    "sla_missed": (r"sla:(.+)", r"sla:\1"),
    "sla_at_risk": (r"sla:(.+)|task_sla:.+", r"sla_risk:.+|task_sla:[0-9a-f-]{36}:.+"),
    "task_sla_missed": (r"task_sla:.+:.+", r"task_sla:[0-9a-f-]{36}:.+"),
    "permanent_error": (r"service:.+:auth|run:.+", r"run:.+:failed"),
    "retries_exhausted": (r"service:.+:down|run:.+", r"run:.+:failed|level:lost:.+"),
    "rejected": (r"letters:(.+)", r"run:\1:gate"),
    "gate_abort": (r"letters:(.+)", r"run:\1:gate"),
    "new_letters": (r"letters:(.+)", r"run:\1:gate"),
    "pending_day": (r"letters:(.+)", r"level:pending:\1"),
    "pending_total": (r"letters:\*", r"level:pending_total"),
    "old_letters": (r"old_letters:(.+)", r"level:old_letters:\1"),
    "letters_size": (r"letters_size", r"level:letters_size"),
    "store_size": (r"store_size", r"level:store_size"),
    "few_rows": (r"few_rows:(.+)", r"run:\1:few_rows"),
    "letters_growing": (r"growing:(.+)", r"run:\1:growing"),
    "dead_task": (r"task:.+:.+", r"dead:[0-9a-f-]{36}:.+"),
    "too_long": (r"duration:(.+)", r"(?:run:\1:duration|level:duration:\1)"),
    "slow": (r"duration:(.+)", r"(?:run:\1:duration|level:duration:\1)"),
    "service_down": (r"service:(.+):down", r"level:down:\1"),
    "auth_refused": (r"service:(.+):auth", r"level:auth:\1"),
    "client_errors": (r"service:(.+):4xx", r"level:4xx:\1"),
    "server_errors": (r"service:(.+):down", r"level:5xx:\1"),
    "calls_failing": (r"service:(.+):down", r"level:calls:\1"),
    "retries_rising": (r"service:(.+):down", r"level:retries:\1"),
    "slot_lag": (r"slot:(.+)", r"level:slot:\1"),
    "row_count": (r"rows:(.+)", r"level:rows:\1"),
    "consumer_lag": (r"lag:(.+)", r"level:lag:\1"),
    "stale": (r"((?:stale|stale_table):.+)", r"level:\1"),
    "monitor_failed": (r"monitor:(.+)", r"level:monitor:\1"),
    "settings_differ": (r"settings:(.+)", r"level:settings:\1"),
    "recovered": (r"(recovered:.+)", r"\1"),
}
NO_COMMAND = ("consumer_lag", "monitor_failed", "settings_differ")
PERSISTS = {
    **dict.fromkeys(("pending_day", "pending_total", "retries_rising", "slot_lag", "row_count", "consumer_lag"), 300.0),
    **dict.fromkeys(("monitor_failed", "settings_differ", "calls_failing"), 300.0),
    **dict.fromkeys(("old_letters", "letters_size", "store_size"), 300.0),
    "retries_exhausted": 600.0,
}


def check(finding, judgement):
    """What holds for every finding."""
    assert finding.urgency is CONDITIONS[finding.condition].urgency
    key, evidence = SHAPES[finding.condition]
    assert re.fullmatch(f"(?s:{key}) (?s:{evidence})", f"{finding.key} {finding.evidence}")
    assert 0 < len(finding.title) <= 160
    assert finding.title == " ".join(finding.title.split())
    assert "hunter2" not in finding.title
    assert "hunter2" not in "".join(map(str, (finding.facts.error, finding.facts.cause, finding.facts.impact)))
    assert finding.facts.next_step
    assert finding.facts.commands or finding.facts.sql or finding.condition in NO_COMMAND
    # A momentary finding closes its own alert; all others can be withdrawn by the rule that made them.
    assert judgement.covers(finding.evidence) is not finding.momentary or finding.evidence.endswith("*")
    assert finding.momentary is (finding.condition == "recovered") or finding.condition == "sla_missed"
    lasts = 300.0 if finding.evidence.startswith("level:duration:") else PERSISTS.get(finding.condition, 0.0)
    assert finding.persist == lasts


def test_every_condition_has_a_shape_of_key_and_evidence():
    assert set(SHAPES) == set(CONDITIONS)


@pytest.mark.parametrize("judgement", EXAMPLES, ids=lambda one: "+".join(found.condition for found in one.findings))
def test_every_finding_has_the_documented_key_and_evidence(judgement):
    for finding in judgement.findings:
        check(finding, judgement)


@given(RUNS, SETTINGS, MOMENTS)
def test_any_run_gives_valid_findings(run, settings, now):
    judgement = of_run(run, settings, now=now)
    for finding in judgement.findings:
        check(finding, judgement)
    pairs = [(finding.key, finding.evidence) for finding in judgement.findings]
    assert len(set(pairs)) == len(pairs)


@given(RUNS, RUNS, SETTINGS, MOMENTS)
def test_run_reports_only_its_own_pipeline_or_flow(one, other, settings, now):
    assume(one.subject.ident != other.subject.ident and one.run_id != other.run_id)
    judgement = of_run(one, settings, now=now)
    assert not any(judgement.covers(finding.evidence) for finding in of_run(other, settings, now=now).findings)


@given(PICTURES, SETTINGS)
def test_any_snapshot_of_the_levels_gives_valid_findings(snapshot, settings):
    judgement = of_levels(snapshot, settings)
    for finding in judgement.findings:
        check(finding, judgement)


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_longer_run_is_never_a_less_severe_finding(one, other):
    shorter, longer = sorted((one, other))
    ranks = {None: 0, "slow": 1, "too_long": 2}
    found = []
    for seconds in (shorter, longer):
        findings = judged(a_run(seconds=float(seconds), history=past(*[300.0] * 9))).findings
        found.append(ranks[findings[0].condition if findings else None])
    assert found[0] <= found[1]


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9), st.integers(0, 9)), max_size=40),
    st.integers(0, 600),
)
def test_more_failures_never_make_a_service_healthier(told, seconds):
    """One more minute in which everything failed never withdraws an outage."""
    before = minutes(*told)
    snapshot = levels(services=(a_service(minutes=before),))
    now = NOW + timedelta(seconds=seconds)
    more = Minute(at=now.replace(second=0), attempts=50, faults=50)
    after = levels(now=now, services=(a_service(minutes=(*before, more)),))
    down = [finding.condition == "service_down" for one in (snapshot, after) for finding in looked(one).findings]
    assert down in ([], [True], [True, True])
    if looked(snapshot).findings:
        assert looked(after).findings


def test_run_of_another_flow_is_another_alert():
    one, other = (judged(a_flow("held", run_id=UUID(int=n), dead=(DEAD,))).findings[0] for n in (1, 2))
    assert one.key == other.key
    assert one.evidence != other.evidence
