"""`redrive alerts`: list, acknowledge and resolve alerts; test channels."""

import dataclasses
import json
import re
from datetime import timedelta
from types import SimpleNamespace

import pytest
from sqlalchemy import update

import redrive
from redrive.alerts.conditions import CONDITIONS
from redrive.alerts.config.read import read
from redrive.alerts.config.settings import AlertSettings, Thresholds
from redrive.alerts.facts.snapshot import Judgement
from redrive.config import load
from redrive.model.alerts import Facts, Finding, Severity, Subject
from redrive.store.schema import alert_sends, alerts
from redrive.testing import Answer, FaultyServer

SECRET = "T0pS3cretT0pS3cret"


def finding(name, urgency="P1", **values):
    facts = values.pop("facts", Facts(error="OSError: no space left", commands=("redrive runs show x",)))
    return Finding(
        key=f"run:{name}",
        condition="permanent_error",
        urgency=Severity(urgency),
        subject=Subject(kind="pipeline", name=name),
        title=f"{name} failed: the disk is full",
        evidence=values.pop("evidence", f"run:{name}:failed"),
        facts=facts,
        **values,
    )


@pytest.fixture
def found(store):
    """Finds something, and sends what is to be sent."""

    def found(*findings):
        store.alerts.ledger.apply(Judgement(findings=findings, judged=frozenset()))
        store.alerts.send_due()

    return found


@pytest.fixture
def server():
    with FaultyServer() as server:
        server.on("/hooks/*", Answer(json={"ok": True}))
        yield server


@pytest.fixture
def settings(here):
    """Writes redrive.toml."""
    return lambda text: (here / "redrive.toml").write_text(text)


# ── ls ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_list_without_alerts_states_that_nothing_is_wrong(run, store):
    answer = run("alerts", "ls")
    assert (answer.code, answer.rows) == (0, [])
    assert answer.err == "no open alerts\n"
    assert json.loads(run("alerts", "ls", "--json").out) == []


def test_most_severe_alert_is_first_then_the_newest(run, found):
    found(finding("mild", "P3"), finding("old"), finding("worse", "P2"))
    found(finding("new"))
    assert [(row[1], row[4]) for row in run("alerts", "ls").rows] == [
        ("P1", "new"),
        ("P1", "old"),
        ("P2", "worse"),
        ("P3", "mild"),
    ]
    answer = run("alerts", "ls", "--limit", "1")
    assert [row[4] for row in answer.rows] == ["new"]
    assert answer.err == "Next steps:\n  list more alerts  redrive alerts ls --limit 5\n"


def test_alerts_are_filtered_by_severity_and_subject(run, found):
    found(finding("mild", "P3"), finding("bad"))
    assert [row[4] for row in run("alerts", "ls", "--urgency", "p3").rows] == ["mild"]
    assert [row[4] for row in run("alerts", "ls", "--subject", "bad").rows] == ["bad"]
    assert run("alerts", "ls", "--subject", "other").err == "no alerts match\n"


def test_pending_alerts_are_listed_and_resolved_ones_on_request(run, found):
    found(finding("waits", persist=600.0, evidence="level:waits"), finding("over"))
    run("alerts", "resolve", "2", "--note", "mended")
    assert [(row[2], row[4]) for row in run("alerts", "ls").rows] == [("waiting", "waits")]
    assert [(row[2], row[4]) for row in run("alerts", "ls", "--all").rows] == [
        ("waiting", "waits"),
        ("resolved", "over"),
    ]


def test_delivery_is_a_mark_on_a_terminal_and_names_in_json(run, terminal, found):
    found(finding("vendor"))
    assert run("alerts", "ls").rows[0][6] == "log:sent"
    assert "log ✓" in terminal("alerts", "ls").out
    (told,) = json.loads(run("alerts", "ls", "--json").out)
    assert (told["facts"]["error"], told["sends"][0]["status"]) == ("OSError: no space left", "sent")


def test_undelivered_message_is_listed_with_the_reason(run, store, settings):
    settings(f'[channels.pager]\nwebhook = "http://127.0.0.1:1/{SECRET}"\n[routes]\nP1 = ["pager"]\n')
    with redrive.connect() as routed:
        routed.alerts.ledger.apply(Judgement(findings=(finding("vendor"),), judged=frozenset()))
        routed.alerts.send_due()
    answer = run("alerts", "ls")
    assert [row[6] for row in answer.rows] == ["pager:waiting"]
    assert re.search(r"^alert 1: pager ✗ since .*, 1 attempt: .*; next attempt ", answer.err)
    given_up = update(alert_sends).values(status="failed", attempts=40)
    over = update(alerts).values(status="resolved")
    for change in (given_up, over):
        store.database.write(lambda connection, change=change: connection.execute(change))
    answer = run("alerts", "ls")
    assert [(row[2], row[6]) for row in answer.rows] == [("resolved", "pager:failed")]
    assert answer.err.endswith("40 attempts: no connection: Connection refused; no further attempt\n")
    assert SECRET not in str(answer) + str(run("alerts", "show", "1"))


def test_unknown_severity_is_rejected_in_a_sentence(run, store):
    answer = run("alerts", "ls", "--urgency", "P4")
    assert (answer.code, answer.sentence) == (64, "'P4' is not a severity. It must be one of P1, P2, P3")


# ── show, ack, resolve ────────────────────────────────────────────────────────────────────────────────────────────────


def test_show_has_the_alert_and_each_delivery(run, terminal, found):
    found(finding("vendor"))
    shown = terminal("alerts", "show", "1").out
    for part in ("P1 vendor failed: the disk is full", "OSError: no space left", "redrive alerts ack 1", "found once"):
        assert part in shown
    assert re.search(r"opened +log +✓ sent", shown)
    fields = dict(run("alerts", "show", "1").rows)
    assert (fields["status"], json.loads(fields["sends"])[0]["channel"]) == ("open", "log")
    told = json.loads(run("alerts", "show", "1", "--json").out)
    assert (told["key"], told["sends"][0]["what"]) == ("run:vendor", "opened")


def test_alert_is_acknowledged_by_the_current_user(run, found, store):
    found(finding("vendor"), finding("orders"))
    answer = run("alerts", "ack", "1", "2", "--note", "on it")
    assert answer.err.splitlines()[0] == "acknowledged alert 1: P1 vendor failed: the disk is full"
    alert = store.alerts.get(2)
    assert (str(alert.status), alert.note) == ("acknowledged", "on it")
    assert re.fullmatch(r".+@.+", alert.acknowledged_by)
    (told,) = json.loads(run("alerts", "ack", "1", "--json").out)
    assert told["status"] == "acknowledged"


def test_alert_is_resolved_with_a_note(run, found, store):
    found(finding("vendor"))
    assert run("alerts", "resolve", "1").code == 64
    assert run("alerts", "resolve", "1", "--note", "more disk").code == 0
    assert "more disk" in store.alerts.get(1).resolution


@pytest.mark.parametrize("words", [("ack", 1, 99), ("resolve", 1, 99, "--note", "x"), ("show", 99)])
def test_missing_alert_is_an_error_and_changes_nothing(run, found, store, words):
    found(finding("vendor"))
    answer = run("alerts", *words)
    assert (answer.code, answer.sentence) == (64, "there is no alert 99; see `redrive alerts ls`")
    assert str(store.alerts.get(1).status) == "open"


def test_resolved_alert_and_invalid_id_cannot_be_acknowledged(run, found):
    found(finding("vendor"))
    run("alerts", "resolve", "1", "--note", "mended")
    answer = run("alerts", "ack", "1")
    assert answer.code == 64
    assert answer.sentence.startswith("alert 1 is over already: closed by ")
    assert run("alerts", "ack", "vendor").code == 64


# ── test ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_sample_uses_the_real_routes_and_reports_each_channel(run, store, settings, server):
    settings(
        f"""
        [channels.hook]
        webhook = "{server.url}/hooks/{SECRET}"
        [channels.pager]
        webhook = "http://127.0.0.1:1/{SECRET}"
        [routes]
        P1 = ["hook", "pager"]
        P2 = "hook"
        [pipelines.vendor.routes]
        P1 = ["hook"]
        """
    )
    answer = run("alerts", "test", "P1")
    assert answer.code == 69
    (hook, pager) = answer.rows
    assert hook[:2] == ["hook", "sent"]
    assert pager[0] == "pager"
    assert pager[2] != ""
    assert SECRET not in answer.out + answer.err
    assert server.count("/hooks/*") == 1
    assert run("alerts", "test", "P2").code == 0
    assert run("alerts", "test", "P1", "--pipeline", "vendor").code == 0
    assert [one["channel"] for one in json.loads(run("alerts", "test", "P2", "--json").out)] == ["hook"]


def test_channels_can_be_tested_before_the_first_run(run, settings, server, here):
    server.on("/hooks/*", Answer(200))
    settings(f"""
        [channels.hook]
        webhook = "{server.url}/hooks/x"
        [routes]
        P1 = "hook"
    """)
    answer = run("alerts", "test", "P1")
    assert (answer.code, [row[:2] for row in answer.rows]) == (0, [["hook", "sent"]])
    assert (here / ".redrive" / "redrive.db").exists()


class TestIncident:
    """A test opens an incident in a channel that has incidents, with the severity of a real one, and closes it."""

    @pytest.fixture(autouse=True)
    def _routes(self, settings, server):
        address = f"{server.url}/v2/enqueue?routing_key=0123456789abcdef0123456789abcdef"
        server.on("/v2/*", Answer(202, json={"status": "success"}))
        settings(f'[channels.oncall]\npagerduty = "{address}"\n[routes]\nP1 = ["oncall"]\n')

    @staticmethod
    def events(server):
        return [request.json() for request in server.requests if request.path == "/v2/enqueue"]

    def test_pages_like_an_alert(self, run, store, server):
        answer = run("alerts", "test", "P1", "--no-wait")
        (event,) = self.events(server)
        assert (answer.code, [row[:2] for row in answer.rows]) == (0, [["oncall", "sent"]])
        assert (event["event_action"], event["payload"]["severity"]) == ("trigger", "critical")

    def test_is_closed_after_a_minute(self, run, store, server, monkeypatch):
        waited = []
        monkeypatch.setattr("redrive.alerts.delivery.outbox.TEST_LASTS", timedelta(seconds=0.01))
        monkeypatch.setattr("redrive.cli.alerts.resolve.time", SimpleNamespace(sleep=waited.append))
        answer = run("alerts", "test", "P1")
        opened, closed = self.events(server)
        assert (closed["event_action"], closed["dedup_key"]) == ("resolve", opened["dedup_key"])
        assert (waited, "closing the incident in a minute" in answer.err) == ([0.01], True)

    def test_is_closed_by_the_watch_without_waiting(self, run, store, server, monkeypatch):
        monkeypatch.setattr("redrive.alerts.delivery.outbox.TEST_LASTS", timedelta(0))
        run("alerts", "test", "P1", "--no-wait")
        run("watch", "--once")
        assert [event["event_action"] for event in self.events(server)] == ["trigger", "resolve"]

    def test_is_not_closed_where_it_was_not_opened(self, run, store, server, monkeypatch):
        server.on("/v2/*", Answer(400, body="invalid key"))
        monkeypatch.setattr("redrive.cli.alerts.resolve.time", None)
        assert run("alerts", "test", "P1").code == 69


def test_result_of_each_channel_is_a_mark_on_a_terminal(terminal, store, settings, server):
    settings(f'[channels.hook]\nwebhook = "{server.url}/hooks/x"\n[routes]\nP1 = ["hook"]\n')
    assert re.search(r"hook +✓ sent", terminal("alerts", "test", "P1").out)


def test_sample_without_a_channel_is_logged_and_reported(run, store):
    answer = run("alerts", "test", "p3")
    assert (answer.code, answer.rows[0][:2]) == (0, ["log", "sent"])
    assert (
        "no channel is configured for P3: the alert goes to the log. Add one to [routes] in redrive.toml\n"
        in answer.err
    )


@pytest.mark.parametrize("words", [("alerts", "test", "P1"), ("watch", "--once")])
def test_disabled_alerts_are_reported(run, store, settings, words):
    settings("[alerts]\nenabled = false\n")
    answer = run(*words)
    assert answer.code == 64
    assert answer.sentence.startswith("alerts are disabled by")


def test_invalid_route_is_rejected_with_its_line(run, store, settings):
    settings('[channels.pager]\ncommand = ["no-such-program-here"]\n[routes]\nP1 = ["pager"]\n')
    answer = run("alerts", "test", "P1")
    assert answer.code == 64
    assert "redrive.toml, line 2" in answer.sentence


# ── rules ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_condition_is_listed_with_its_threshold(run, store, settings):
    settings("[alerts.thresholds]\npending_day = 7\n")
    rows = {row[1]: row for row in run("alerts", "rules").rows}
    assert list(rows) == list(CONDITIONS)
    assert rows["pending_day"][3].startswith("pending_day = 7")
    listed = {one["condition"]: one for one in json.loads(run("alerts", "rules", "--json").out)}
    assert listed["pending_day"]["thresholds"] == {"pending_day": 7}
    assert {name for one in listed.values() for name in one["thresholds"]} == {
        one.name for one in dataclasses.fields(Thresholds)
    }


def test_shown_rules_are_valid_in_redrive_toml(run, store, here):
    odd = {one.name: one.default * 3 or 45.0 for one in dataclasses.fields(Thresholds)}
    odd |= {"row_drop": 0.125, "few_rows": 0.25, "down_share": 0.5}
    lines = [f"{name} = {value}" for name, value in odd.items()]
    (here / "redrive.toml").write_text("[alerts.thresholds]\n" + "\n".join(lines))
    shown = re.findall(r"(\w+) = (\S+?)(?:,|$)", "\n".join(row[3] for row in run("alerts", "rules").rows), re.MULTILINE)
    told = {name: value for name, value in shown if name not in ("persist", "recovery")}
    (here / "redrive.toml").write_text("[alerts.thresholds]\n" + "\n".join(f"{a} = {b}" for a, b in told.items()))
    assert read(load(environ={}, directory=here)) == AlertSettings(thresholds=Thresholds(**odd))


# ── without the secrets of channels ───────────────────────────────────────────────────────────────────────────────────


class TestWithoutSecrets:
    FILE = '[channels.oncall]\npagerduty = "$PD_KEY"\n[routes]\nP1 = ["oncall"]\n'

    @pytest.mark.parametrize(
        "words",
        [
            "alerts ls",
            "alerts show 1",
            "alerts ack 1",
            "alerts resolve 1 --note over",
            "alerts rules",
            "dlq ls",
            "dlq causes",
            "runs ls",
            "services ls",
            "store info",
        ],
    )
    @pytest.mark.parametrize("off", [False, True])
    def test_operator_command_needs_none_and_drops_no_page(self, run, settings, monkeypatch, store, words, off):
        settings(self.FILE)
        monkeypatch.setenv("PD_KEY", "0123456789abcdef0123456789abcdef")
        with redrive.connect() as routed:
            routed.alerts.ledger.apply(Judgement(findings=(finding("vendor"), finding("other")), judged=frozenset()))
        monkeypatch.delenv("PD_KEY")
        if off:
            monkeypatch.setenv("REDRIVE_ALERTS", "off")
        answer = run(*words.split())
        assert (answer.code, "PD_KEY" in answer.err) == (0, False)
        assert {one.status for one in store.alerts.unsent()} == {"waiting"}
        assert {one.alert_id for one in store.alerts.unsent()} == {1, 2}

    @pytest.mark.parametrize("words", ["watch --once", "alerts test P1"])
    def test_command_that_sends_names_the_missing_variable(self, run, settings, store, words):
        settings(self.FILE)
        answer = run(*words.split())
        assert answer.code == 64
        assert "names the variable PD_KEY, which is not set" in answer.sentence


# ── alerts of one's own ───────────────────────────────────────────────────────────────────────────────────────────────


class TestOpenedAlerts:
    OPEN = ("alerts", "open", "nightly-export", "--severity", "p2", "--title", "no rows")

    def test_open_lists_shows_and_resolves(self, run, store):
        answer = run(*self.OPEN, "--fact", "rows=0", "--fact", "file=a=b.csv")
        assert (answer.code, answer.err) == (0, "opened alert 1: P2 no rows\n")
        assert run(*self.OPEN).err == "already open, found 2 times: alert 1: P2 no rows\n"
        assert [(row[1], row[4], row[5]) for row in run("alerts", "ls").rows] == [
            ("P2", "custom nightly-export", "no rows")
        ]
        run(*self.OPEN, "--fact", "rows=0", "--fact", "file=a=b.csv")
        shown = json.loads(run("alerts", "show", "1", "--json").out)
        assert shown["facts"]["named"] == {"rows": "0", "file": "a=b.csv"}
        assert run("alerts", "resolve", "--key", "nightly-export").err == "resolved alert 1: P2 no rows\n"
        answer = run("alerts", "resolve", "--key", "nightly-export")
        assert (answer.code, answer.err) == (0, "no open alert has the key 'nightly-export'\n")

    def test_json_is_the_alert(self, run, store):
        assert json.loads(run(*self.OPEN, "--json").out)["key"] == "custom:nightly-export"
        assert json.loads(run("alerts", "resolve", "--key", "nightly-export", "--json").out)[0]["status"] == "resolved"
        assert json.loads(run("alerts", "resolve", "--key", "nightly-export", "--json").out) == []

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (("open", "x", "--severity", "P9", "--title", "t"), "severity must be one of P1, P2, P3, not 'P9'"),
            (("open", "x", "--severity", "P1", "--title", " "), "title must be a text"),
            (("open", "x", "--severity", "P1", "--title", "t", "--fact", "rows"), "--fact must be NAME=VALUE"),
            (("open", "x", "--title", "t"), "--severity"),
            (("resolve",), "no alerts to resolve: pass ids or --key"),
            (("resolve", "1", "--key", "x", "--note", "n"), "no alerts to resolve: pass ids or --key"),
            (("resolve", "1"), "--note is missing"),
        ],
    )
    def test_invalid_arguments_are_rejected_in_one_sentence(self, run, store, words, says):
        answer = run("alerts", *words)
        assert (answer.code, answer.err.count("\n")) == (64, 1)
        assert says in answer.err
        assert store.alerts.find() == []

    def test_open_is_rejected_where_alerts_are_off(self, run, store, monkeypatch):
        monkeypatch.setenv("REDRIVE_ALERTS", "off")
        assert "alerts are disabled by" in run(*self.OPEN).err
        assert store.alerts.find() == []


# ── silences ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class TestSilences:
    SILENCE = ("alerts", "silence", "--pipeline", "vendor", "--for", "2h", "--reason", "deploy")

    def test_silence_is_listed_and_ended(self, run, store, found):
        found(finding("vendor"))
        answer = run(*self.SILENCE)
        assert answer.code == 0
        assert re.fullmatch(r"silence 1 until .* UTC, .*: pipeline vendor \(1 open alert now\)\n", answer.err)
        (row,) = run("alerts", "silences").rows
        assert row[2:5] == ["active", "pipeline vendor", "deploy"]
        assert run("alerts", "unsilence", "1").err == "ended silence 1: pipeline vendor\n"
        assert run("alerts", "silences").err == "no active silences\n"
        assert json.loads(run("alerts", "silences", "--all", "--json").out)[0]["pipeline"] == "vendor"

    def test_silenced_alert_is_listed_as_such(self, run, found):
        assert "no open alert matches now" in run(*self.SILENCE).err
        found(finding("vendor"))
        (row,) = run("alerts", "ls").rows
        assert (row[2], row[6]) == ("open", "silenced")
        (listed,) = json.loads(run("alerts", "ls", "--json").out)
        assert listed["silenced_until"].endswith("Z")
        assert listed["sends"] == []
        assert json.loads(run("alerts", "show", "1", "--json").out)["silenced_until"] == listed["silenced_until"]

    def test_snooze_silences_one_alert(self, run, store, found):
        found(finding("vendor"))
        assert "snoozed alert 1 until" in run("alerts", "snooze", "1", "--for", "30min").err
        assert json.loads(run("alerts", "silences", "--json").out)[0]["key"] == "run:vendor"

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (("silence", "--for", "2h", "--reason", "x"), "needs a subject, a condition or a pipeline"),
            (("silence", "--pipeline", "v", "--reason", "x"), "--for"),
            (("silence", "--pipeline", "v", "--for", "2h"), "--reason"),
            (("silence", "--pipeline", "v", "--for", "2 hours", "--reason", "x"), "must be a span such as"),
            (("silence", "--pipeline", "v", "--for", "0", "--reason", "x"), "more than 0 seconds"),
            (("silence", "--condition", "slwo", "--for", "2h", "--reason", "x"), "there is no condition 'slwo'"),
            (("snooze", "7", "--for", "2h"), "there is no alert 7"),
            (("unsilence", "7"), "there is no silence 7"),
        ],
    )
    def test_invalid_arguments_are_rejected_in_one_sentence(self, run, store, words, says):
        answer = run("alerts", *words)
        assert (answer.code, answer.err.count("\n")) == (64, 1)
        assert says in answer.err
        assert store.alerts.silences(ended=True) == []


class TestBulkAcknowledge:
    def open(self, store):
        return sorted(one.subject.name for one in store.alerts.find(status="open") if one.status == "open")

    def test_all(self, run, store, found):
        found(finding("a"), finding("b"))
        result = run("alerts", "ack", "--all", "--note", "known")
        assert (result.code, self.open(store)) == (0, [])
        assert {one.note for one in store.alerts.find(status="acknowledged")} == {"known"}

    def test_by_subject(self, run, store, found):
        found(finding("a"), finding("b"))
        run("alerts", "ack", "--subject", "a")
        assert self.open(store) == ["b"]

    def test_by_condition(self, run, store, found):
        found(finding("a"), dataclasses.replace(finding("b"), condition="sla_missed"))
        run("alerts", "ack", "--condition", "sla_missed")
        assert self.open(store) == ["a"]

    def test_ids_and_a_choice_are_rejected(self, run, store, found):
        found(finding("a"))
        for words in (("1", "--all"), ()):
            result = run("alerts", "ack", *words)
            assert result.code == 64
            assert "--subject" in result.err
        assert self.open(store) == ["a"]

    def test_none_that_matches_changes_nothing(self, run, store, found):
        result = run("alerts", "ack", "--all")
        assert (result.code, "Nothing was changed" in result.err) == (0, True)


def test_rules_list_conditions_of_the_settings(run, store, settings):
    settings("[conditions.backlog]\nmetric = 'redrive_letters'\nabove = 1_000\nseverity = 'P2'\n")
    assert run("alerts", "rules").rows[-1] == [
        "P2",
        "backlog",
        "a number of your own: redrive_letters",
        "above = 1000, [conditions.backlog]",
    ]
    rule = json.loads(run("alerts", "rules", "--json").out)[-1]
    assert (rule["condition"], rule["thresholds"]) == ("backlog", {"above": 1000.0})
