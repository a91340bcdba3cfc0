"""Alerts that a program opens itself, on both databases."""

import json
import threading

import pytest
from sqlalchemy import select

from redrive._internal.masking import mask
from redrive.alerts.config.settings import AlertSettings, Channel, PipelineSettings
from redrive.alerts.delivery.message import compose
from redrive.alerts.lifecycle.rows import StoredKeys
from redrive.alerts.service import Alerts
from redrive.model.alerts import AlertStatus, Facts, Severity, What
from redrive.store.schema import alert_sends, alert_silences, alerts

EXPORT = {"key": "nightly-export", "severity": "P2", "title": "the export has no rows"}


TEAM = {"team": Channel(name="team", kind="log")}


@pytest.fixture
def make(store):
    """Desks of this store, with settings of their own."""
    desks = []

    def make(**options):
        desks.append(Alerts(store.database, AlertSettings(channels=TEAM, **options)))
        return desks[-1]

    yield make
    for desk in desks:
        desk.close()


@pytest.fixture
def desk(make):
    return make(routes=dict.fromkeys(Severity, ("team",)))


def said(desk, alert):
    return [(send.channel, send.what) for send in desk.sends(alert.id)]


class TestAcknowledgeByKey:
    def test_key_of_the_message_acknowledges_its_alert(self, desk):
        alert = desk.open(**EXPORT)
        done = desk.acknowledge(key=alert.key, by="ann at PagerDuty")
        assert (done.id, done.status, done.acknowledged_by) == (alert.id, AlertStatus.ACKNOWLEDGED, "ann at PagerDuty")

    def test_late_or_unknown_key_changes_nothing(self, desk):
        alert = desk.open(**EXPORT)
        desk.resolve("nightly-export")
        assert desk.acknowledge(key=alert.key, by="ann") is None
        assert desk.acknowledge(key="run:nobody", by="ann") is None
        assert desk.get(alert.id).status is AlertStatus.RESOLVED

    def test_number_or_key_is_required(self, desk):
        with pytest.raises(TypeError, match="number of an alert, or key="):
            desk.acknowledge(by="ann")


class TestOpen:
    def test_fact_under_the_name_of_a_secret_is_masked(self, store):
        alert = store.alerts.open(key="k", severity="P2", title="t", facts={"password": "S3cretFACT", "host": "db-1"})
        assert alert.facts.named == {"password": "***", "host": "db-1"}

    def test_facts_of_the_class_are_masked_by_their_names(self, store):
        facts = Facts(named={"api_key": "S3cretFACT", "host": "db-1"}, environment={"DB_PASSWORD": "S3cretFACT"})
        alert = store.alerts.open(key="k", severity="P2", title="t", facts=facts)
        assert alert.facts.named == {"api_key": "***", "host": "db-1"}
        assert alert.facts.environment == {"DB_PASSWORD": "***"}

    def test_opens_an_alert_and_notifies_its_route(self, desk):
        alert = desk.open(**EXPORT, facts={"rows": 0, "file": "export.csv"})
        assert (alert.status, alert.urgency, alert.condition) == (AlertStatus.OPEN, Severity.P2, "custom")
        assert (alert.subject.name, alert.title) == ("nightly-export", "the export has no rows")
        assert alert.facts.named == {"rows": 0, "file": "export.csv"}
        assert said(desk, alert) == [("team", What.OPENED)]
        assert desk.get(alert.id) == alert
        assert [one.id for one in desk.find(status="open", subject="nightly-export")] == [alert.id]

    @pytest.mark.parametrize("facts", [{"n": -(10**5_000)}, Facts(measured={"n": float("inf"), "m": 10**5_000})])
    def test_number_unknown_to_json_is_stored_as_text(self, desk, facts):
        alert = desk.open(**EXPORT, facts=facts)
        shown = alert.facts.named or alert.facts.measured
        assert set(shown.values()) <= {"-10^5000 or so", "10^5000 or so", "inf"}
        assert json.loads(json.dumps(alert.document(), allow_nan=False))
        desk.send_due()
        desk.close()
        assert desk.unsent() == []

    def test_same_key_counts_and_does_not_notify_again(self, desk):
        first = desk.open(**EXPORT)
        again = desk.open(**{**EXPORT, "title": "still no rows"}, facts={"rows": 0})
        assert (again.id, again.seen, again.title) == (first.id, 2, "still no rows")
        assert said(desk, again) == [("team", What.OPENED)]

    def test_higher_severity_notifies_and_lower_does_not(self, desk):
        desk.open(**EXPORT)
        desk.open(**{**EXPORT, "severity": "P3"})
        alert = desk.open(**EXPORT)
        assert said(desk, alert) == [("team", What.OPENED)]
        desk.open(**{**EXPORT, "severity": "P1"})
        # A message that waits is replaced by the more urgent one.
        assert said(desk, alert)[-1] == ("team", What.ESCALATED)
        before = said(desk, alert)
        desk.open(**EXPORT)
        desk.open(**{**EXPORT, "severity": Severity.P1})
        assert said(desk, alert) == before

    def test_alert_stays_acknowledged_until_more_severe(self, desk):
        alert = desk.open(**EXPORT)
        desk.acknowledge(alert.id, by="me")
        assert desk.open(**EXPORT).status is AlertStatus.ACKNOWLEDGED
        assert desk.open(**{**EXPORT, "severity": "P1"}).status is AlertStatus.OPEN

    def test_pipeline_gives_its_routes(self, make):
        desk = make(pipelines={"orders": PipelineSettings(routes={Severity.P2: ("team",)})})
        alert = desk.open(**EXPORT, pipeline="orders")
        assert (alert.subject.kind, alert.subject.name) == ("pipeline", "orders")
        assert said(desk, alert) == [("team", What.OPENED)]

    def test_facts_of_the_library_are_stored_unchanged(self, desk):
        facts = Facts(impact="the finance report is empty", commands=("make export",), next_step="run it again")
        assert desk.open(**EXPORT, facts=facts).facts == facts

    def test_secrets_in_title_and_facts_are_masked(self, desk):
        secret = "hunter2hunter2"
        alert = desk.open(**{**EXPORT, "title": f"password={secret}"}, facts={"url": f"postgresql://me:{secret}@db/x"})
        assert secret not in f"{alert.title}{alert.facts.document()}"

    def test_many_threads_open_one_alert(self, desk):
        threads = [threading.Thread(target=desk.open, kwargs=EXPORT) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (alert,) = desk.find()
        assert (alert.seen, said(desk, alert)) == (6, [("team", What.OPENED)])

    def test_nothing_is_stored_where_alerts_are_off(self, make):
        desk = make(enabled=False)
        assert desk.open(**EXPORT) is None
        assert desk.resolve("nightly-export") is None
        assert desk.find() == []

    @pytest.mark.parametrize(
        ("wrong", "says"),
        [
            ({"key": ""}, "key must be a printable text of 1 to 200 characters"),
            ({"key": "k" * 201}, "key must be"),
            ({"key": "two\nlines"}, "key must be"),
            ({"key": 7}, "key must be"),
            ({"severity": "P4"}, "severity must be one of P1, P2, P3, not 'P4'"),
            ({"severity": 1}, "severity must be one of"),
            ({"title": " "}, "title must be a text"),
            ({"pipeline": ""}, "pipeline must be the name"),
            ({"facts": ["rows"]}, "facts must be a mapping"),
            ({"facts": {"rows": [1]}}, r"facts\['rows'\] must be a text, a finite number or a bool, not list"),
            ({"facts": {"share": float("nan")}}, r"facts\['share'\] must be"),
            ({"facts": {1: "x"}}, "facts must have texts as names"),
            ({"facts": {str(n): n for n in range(21)}}, "at most 20 entries, not 21"),
        ],
    )
    def test_wrong_arguments_raise_and_store_nothing(self, desk, wrong, says):
        with pytest.raises(ValueError, match=says):
            desk.open(**{**EXPORT, **wrong})
        assert desk.find() == []


class TestResolve:
    def test_resolve_closes_the_alert_and_notifies(self, desk):
        alert = desk.open(**EXPORT)
        done = desk.resolve("nightly-export", note="rows are there")
        assert (done.id, done.status) == (alert.id, AlertStatus.RESOLVED)
        assert done.resolution == "resolved by its program: rows are there"
        assert said(desk, alert) == [("team", What.OPENED), ("team", What.RESOLVED)]

    def test_resolving_twice_or_an_unknown_key_is_harmless(self, desk):
        alert = desk.open(**EXPORT)
        assert desk.resolve("nightly-export").id == alert.id
        assert desk.resolve("nightly-export") is None
        assert desk.resolve("never-opened") is None
        assert said(desk, alert) == [("team", What.OPENED), ("team", What.RESOLVED)]

    def test_opening_after_resolving_is_a_new_alert(self, desk):
        first = desk.open(**EXPORT)
        desk.resolve("nightly-export")
        second = desk.open(**EXPORT)
        assert (second.id != first.id, second.seen, said(desk, second)) == (True, 1, [("team", What.OPENED)])

    def test_key_of_a_rule_is_not_resolved_by_a_program(self, desk):
        alert = desk.open(**{**EXPORT, "key": "run:vendor"})
        assert alert.key == "custom:run:vendor"
        with pytest.raises(TypeError, match="by= and note="):
            desk.resolve(alert.id)
        assert desk.resolve(alert.id, by="me", note="done").is_over

    def test_watch_keeps_the_alert_open(self, desk):
        alert = desk.open(**EXPORT)
        desk.pass_time()
        desk.resolve_handled_letters()
        assert desk.get(alert.id).status is AlertStatus.OPEN


CARDS = ("order-4539900010051111", "order-4539900010131111")
URLS = ("postgresql://etl:first@db/prod", "postgresql://etl:second@db/prod")


class TestMaskedKeys:
    """Keys that differ in their masked part only."""

    @pytest.fixture(params=[CARDS, URLS], ids=["cards", "passwords"])
    def keys(self, request):
        first, second = request.param
        assert mask(first) == mask(second) != first
        return request.param

    @pytest.fixture
    def pair(self, desk, keys):
        return [desk.open(key=key, severity="P1", title="refund stuck") for key in keys]

    def test_keys_that_mask_equally_are_two_alerts(self, desk, pair):
        messages = [compose(What.OPENED, alert, desk.settings) for alert in pair]
        assert [one.key for one in messages] == [alert.key for alert in pair]
        assert pair[0].key != pair[1].key

    def test_resolving_one_leaves_the_other_open(self, desk, keys, pair):
        assert desk.resolve(keys[0]).id == pair[0].id
        assert [one.id for one in desk.find(status="open")] == [pair[1].id]

    def test_opening_again_counts(self, desk, keys, pair):
        assert desk.open(key=keys[0], severity="P1", title="refund stuck").seen == 2

    def test_key_of_the_message_acknowledges_its_alert(self, desk, pair):
        assert desk.acknowledge(key=compose(What.OPENED, pair[1], desk.settings).key, by="me").id == pair[1].id

    def test_unmasked_key_finds_its_alert(self, desk, keys, pair):
        assert desk.acknowledge(key=f"custom:{keys[1]}", by="me").id == pair[1].id
        assert [one.id for one in desk.find(subject=keys[0])] == [pair[0].id]

    def test_unmasked_subject_silences_its_alert(self, desk, keys, pair):
        desk.silence(seconds=60, reason="known", subject=keys[0])
        assert set(desk.silenced_until(pair)) == {pair[0].id}

    def test_nothing_is_stored_in_clear(self, store, desk, keys, pair):
        desk.silence(seconds=60, reason="known", subject=keys[0])
        tables = (alerts, alert_sends, alert_silences)
        rows = store.database.read(lambda connection: [connection.execute(select(one)).all() for one in tables])
        secrets = [key.removeprefix("order-").split("@")[0] for key in keys]
        assert not any(secret in repr(rows) for secret in secrets)

    def test_key_without_secrets_is_stored_unchanged(self, desk):
        assert desk.open(key="token:shipfast", severity="P2", title="t").key == "custom:token:shipfast"

    def test_keys_that_differ_in_spaces_are_two_alerts(self, desk):
        first, second = (desk.open(key=key, severity="P2", title="t") for key in ("a b", "a  b"))
        assert first.key != compose(What.OPENED, second, desk.settings).key == second.key


class TestKeysOfOlderVersions:
    """Alerts that an older version stored under unmasked keys."""

    @pytest.fixture
    def older(self, desk):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(StoredKeys, "of", lambda self, key: key)
            alert = desk.open(key=URLS[0], severity="P2", title="t")
        assert alert.key == f"custom:{URLS[0]}"
        return alert

    def test_opening_again_counts_and_keeps_its_key(self, desk, older):
        again = desk.open(key=URLS[0], severity="P2", title="t")
        assert (again.id, again.seen, again.key, len(again.evidence)) == (older.id, 2, f"custom:{URLS[0]}", 1)
        assert "first" not in again.subject.name

    def test_alert_is_resolved_by_its_unmasked_key(self, desk, older):
        assert desk.resolve(URLS[0]).id == older.id

    @pytest.mark.parametrize("key", [f"custom:{URLS[0]}", "custom:postgresql://etl:***@db/prod"])
    def test_alert_is_acknowledged_by_either_form(self, desk, older, key):
        assert desk.acknowledge(key=key, by="me").id == older.id
