"""A message has the problem, its meaning, the next step and the commands, in that order."""

import json
from dataclasses import replace
from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest

from redrive.alerts.config.settings import AlertSettings
from redrive.alerts.delivery.facts import moment
from redrive.alerts.delivery.message import VERSION, compose, compose_many, compose_plain
from redrive.model.alerts import AlertStatus, Facts, Severity, Subject, What
from tests.support.sample_alerts import FACTS, MORNING, SETTINGS, an_alert, over

BARE = Facts()


def rendered(message):
    return {
        "plain": message.plain(),
        "markdown": message.markdown(),
        "slack": json.dumps(message.slack(), ensure_ascii=False),
        "document": json.dumps(message.document(), ensure_ascii=False),
    }


# ── one alert ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", ["plain", "markdown", "slack", "document"])
def test_every_form_has_all_known_facts(form):
    text = rendered(compose(What.OPENED, an_alert(seen=2), SETTINGS))[form]
    for fact in [
        "P3",
        "vendor",
        "5,400 of 180,000 rows rejected",
        "complete",
        "6b8ef1a2-0000-4000-8000-000000000001",
        "ValueError: could not convert string to float",
        "5,400 deliveries are missing",
        "06:30 Asia/Kolkata",
        "174,600 of 180,000",
        "row 180000",
        "5,400 dead letters, 3.0 % of the rows",
        "fee: Input should be a valid number",
        "52 min, usually 20 min",
        "rejected 0.03, threshold 0.01",
        "settlement, billing",
        "redrive dlq causes --pipeline vendor",
        "redrive alerts ack 12",
        "FROM pipeline.dead_letter_queue",
        "Nothing is repeated by itself",
        "Ask the vendor for a new file.",
        "https://wiki.example/vendor",
        "every 24 h until it is acknowledged",
    ]:
        assert fact in text, fact


def test_plain_text_is_readable_for_the_on_call():
    assert compose(What.OPENED, an_alert(), SETTINGS).plain() == (
        """\
P3 vendor: 5,400 of 180,000 rows rejected (3.0 %)

  Impact     5,400 deliveries are missing in silver.vendor_deliveries until
             they are replayed
  Deadline   2026-03-02 01:00 UTC (06:30 Asia/Kolkata)
  Since      2026-03-02 01:00 UTC (06:30 Asia/Kolkata), for 4 min
  Letters    5,400 dead letters, 3.0 % of the rows
  Cause      fee: Input should be a valid number
  Rows done  174,600 of 180,000
  Duration   52 min, usually 20 min
  Measured   rejected 0.03, threshold 0.01
  Affected   settlement, billing

Error
  ValueError: could not convert string to float: 'N/A'

Next
  Nothing is repeated by itself: bad data stays bad.

Commands
  $ redrive dlq causes --pipeline vendor
  $ redrive dlq replay --pipeline vendor --dry-run
  $ redrive alerts ack 12

SQL
  SELECT error_message, count(*)
  FROM pipeline.dead_letter_queue
  GROUP BY 1

Runbook
  1. Look at the causes.
  2. Ask the vendor for a new file.
  3. Replay.

Links
  Console: https://console.example/vendor/runs/6b8ef1a2-0000-4000-8000-000000000001?alert=12
  Wiki: https://wiki.example/vendor

Details
  Status      complete
  Run         6b8ef1a2-0000-4000-8000-000000000001
  Checkpoint  row 180000
  Sent again  every 24 h until it is acknowledged
  Alert       12, new_letters"""
    )


def test_unknown_fact_is_left_out():
    message = compose(What.OPENED, an_alert(facts=BARE), AlertSettings())
    assert [line.label for line in message.lines] == ["Since"]
    assert (message.error, message.next_step, message.sql) == (None, None, None)
    assert "None" not in message.plain() + message.markdown() + json.dumps(message.slack())


@pytest.mark.parametrize(
    ("what", "begins"),
    [
        (What.OPENED, "P3 vendor: 5,400"),
        (What.ESCALATED, "P3 (escalated) vendor: 5,400"),
        (What.REPEATED, "P3 (still open) vendor: 5,400"),
        (What.RESOLVED, "Resolved (P3) vendor: 5,400"),
        (What.ACKNOWLEDGED, "Acknowledged (P3) vendor: 5,400"),
        (What.TEST, "Test (P3) vendor: 5,400"),
    ],
)
def test_headline_names_the_change_of_the_alert(what, begins):
    assert compose(what, an_alert(), SETTINGS).headline.startswith(begins)


@pytest.mark.parametrize(
    ("title", "headline"),
    [
        ("vendor is late", "P3 vendor is late"),
        ("the run of vendor_old is late", "P3 vendor: the run of vendor_old is late"),
    ],
)
def test_subject_is_named_once(title, headline):
    assert compose(What.OPENED, an_alert(title=title), SETTINGS).headline == headline


def test_resolved_alert_has_time_reason_and_duration_only():
    message = compose(What.RESOLVED, over(an_alert(), note="the vendor has sent a new file"), SETTINGS)
    lines = dict(message.lines)
    assert lines["Resolved"] == "2026-03-02 03:00 UTC (08:30 Asia/Kolkata), after 2 h: a run was complete"
    assert lines["Note"] == "the vendor has sent a new file"
    assert lines["Since"] == "2026-03-02 01:00 UTC (06:30 Asia/Kolkata)"
    assert (message.commands, message.steps, message.sql, message.error) == ((), (), None, None)


def test_acknowledged_alert_names_the_operator():
    taken = an_alert(
        status=AlertStatus.ACKNOWLEDGED,
        acknowledged_at=MORNING + timedelta(minutes=9),
        acknowledged_by="asha",
        note="calling the vendor",
    )
    lines = dict(compose(What.ACKNOWLEDGED, taken, SETTINGS).lines)
    assert lines["Taken"] == "2026-03-02 01:09 UTC (06:39 Asia/Kolkata), by asha"
    assert lines["Note"] == "calling the vendor"
    escalated = compose(What.ESCALATED, taken, SETTINGS)
    assert dict(escalated.details)["Taken"].endswith("by asha")
    assert "redrive alerts ack 12" not in escalated.commands


def test_test_message_states_that_nothing_is_wrong():
    message = compose(What.TEST, an_alert(), SETTINGS)
    assert "nothing is wrong" in message.plain()
    assert "redrive alerts ack 12" not in message.commands


@pytest.mark.parametrize(
    ("zone", "told"),
    [
        (None, "2026-03-02 01:00 UTC"),
        ("UTC", "2026-03-02 01:00 UTC"),
        ("Asia/Kolkata", "2026-03-02 01:00 UTC (06:30 Asia/Kolkata)"),
        ("America/New_York", "2026-03-02 01:00 UTC (2026-03-01 20:00 America/New_York)"),
    ],
)
def test_time_is_shown_in_utc_and_in_the_zone_of_the_deadline(zone, told):
    assert moment(MORNING, ZoneInfo(zone) if zone else None) == told


def test_deadline_with_its_own_zone_is_shown_in_it():
    late = replace(FACTS, sla=MORNING.astimezone(ZoneInfo("Europe/Paris")))
    lines = dict(compose(What.OPENED, an_alert(facts=late), AlertSettings()).lines)
    assert lines["Deadline"] == "2026-03-02 01:00 UTC (02:00 Europe/Paris)"


# ── links ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def links(template, **changes):
    message = compose(What.OPENED, an_alert(**changes), AlertSettings(links={"Here": template}))
    return dict(message.links).get("Here")


def test_names_in_links_are_quoted():
    odd = Subject(kind="pipeline", name="a b/ç?&")
    assert links("https://x.example/{pipeline}", subject=odd) == "https://x.example/a%20b%2F%C3%A7%3F%26"


def test_link_with_an_unknown_fact_is_left_out():
    assert links("https://x.example/{run_id}", facts=BARE) is None
    assert links("https://x.example/{service}") is None
    assert links("https://x.example/{service}", subject=Subject(kind="service", name="bank")) == (
        "https://x.example/bank"
    )


def test_links_name_facts_and_the_environment():
    facts = Facts(status="failed", named={"file": "a b.csv"}, environment={"AIRFLOW_CTX_DAG_ID": "orders/eu"})
    template = "https://x.example/{AIRFLOW_CTX_DAG_ID}?status={status}&file={facts.file}&condition={condition}"
    assert links(template, facts=facts, condition="rejected") == (
        "https://x.example/orders%2Feu?status=failed&file=a%20b.csv&condition=rejected"
    )
    assert links(template, facts=replace(facts, environment={})) is None
    assert links(template, facts=replace(facts, named={})) is None


def test_message_shows_all_error_lines_and_share_of_the_source():
    facts = Facts(
        error="OperationalError: no route",
        error_type="OperationalError",
        detail="OperationalError: no route\nIs the server up?\ncaused by TimeoutError",
        rows_done=620,
        rows_total=620,
        source_share=0.62,
        environment={"AIRFLOW_CTX_DAG_ID": "orders"},
    )
    message = compose(What.OPENED, an_alert(facts=facts), AlertSettings())
    assert message.error == facts.detail
    assert ("Rows done", "620 of 620, 62 % of the source") in message.lines
    assert ("AIRFLOW_CTX_DAG_ID", "orders") in message.details


def test_unknown_placeholder_is_left_unchanged():
    assert links("https://x.example/{alert}/{team}") == "https://x.example/12/{team}"


def test_link_has_only_url_characters_and_is_never_cut():
    assert links("https://x.example/<a b>|`ç`?q={alert}&r=1#x") == (
        "https://x.example/%3Ca%20b%3E%7C%60%C3%A7%60?q=12&r=1#x"
    )
    assert links("https://x.example/" + "x" * 5_000) is None


def test_link_of_the_pipeline_overrides_the_general_one():
    everywhere = replace(SETTINGS, links={"Wiki": "https://wiki.example/all"})
    assert dict(compose(What.OPENED, an_alert(), everywhere).links)["Wiki"] == "https://wiki.example/vendor"


# ── foreign text ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_long_error_keeps_its_start_and_end():
    error = "it began here " + "x" * 50_000 + " and this was the cause"
    message = compose(What.OPENED, an_alert(facts=Facts(error=error)), SETTINGS)
    assert message.error.startswith("it began here")
    assert message.error.endswith("and this was the cause")
    assert "characters left out" in message.error
    assert len(message.error) <= 1_500


def test_terminal_control_sequences_are_removed():
    error = "\x1b[31mred\x1b[0m \x1b]8;;https://evil.example\x07link\x1b]8;;\x07\x9b2J\r\nnext\u202egnol\x00 end\ud800"
    message = compose(What.OPENED, an_alert(facts=Facts(error=error)), SETTINGS)
    assert message.error == "red link\nnextgnol end\ufffd"


def test_secret_hidden_by_an_escape_is_masked():
    error = "pass\x1b[0mword=correct-horse"
    assert "correct-horse" not in compose(What.OPENED, an_alert(facts=Facts(error=error)), SETTINGS).plain()


def test_error_does_not_mention_everyone():
    error = "<!channel> <@U123> @here @everyone ``` *x* <https://evil.example|click>"
    loud = an_alert(title="@channel look", facts=Facts(error=error, impact=error))
    slack = rendered(compose(What.OPENED, loud, SETTINGS))["slack"]
    for call in ("<!channel>", "<@U123>", "@here", "@everyone", "@channel", "<https://evil.example"):
        assert call not in slack
    assert "@everyone" not in compose(What.OPENED, loud, SETTINGS).markdown()


def test_code_in_markdown_cannot_be_left_by_its_content():
    text = compose(What.OPENED, an_alert(facts=Facts(error="```\n# big\n````")), SETTINGS).markdown()
    assert "`````\n```\n# big\n````\n`````" in text


def test_markdown_shows_names_without_emphasis():
    text = compose(What.OPENED, an_alert(facts=Facts(impact="table_of_x *all* [a](b) _y_ <b>")), SETTINGS).markdown()
    assert r"table_of_x \*all\* \[a\](b) \_y\_ \<b\>" in text


# ── many ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def storm(count, **changes):
    return [
        (What.OPENED, an_alert(id=number, key=f"k:{number}", title=f"vendor: problem {number}", **changes))
        for number in range(1, count + 1)
    ]


def test_storm_summary_is_sorted_by_severity():
    items = [*storm(12), (What.OPENED, an_alert(id=99, urgency=Severity.P1, title="vendor is late"))]
    message = compose_many("summary", items, SETTINGS)
    assert message.headline == "P1, 13 alerts at once: 1 P1, 12 P3"
    assert message.lines[0] == ("P1", "vendor is late")
    assert message.lines[-1] == ("More", "3 others")
    assert message.urgency is Severity.P1
    assert message.commands[-1] == "redrive alerts ls"
    assert len(message.parts) == len(message.alerts) == 13


def test_digest_is_grouped_and_lists_resolved_alerts():
    bank = Subject(kind="service", name="bank")
    items = [
        (What.OPENED, an_alert(id=1)),
        (What.OPENED, over(an_alert(id=2, key="slow:vendor", title="slower than usual"))),
        (What.OPENED, an_alert(id=3, subject=bank, title="3 answers 4xx", since=MORNING + timedelta(hours=1))),
    ]
    message = compose_many("digest", items, SETTINGS)
    assert message.headline == "Digest of 3 alerts about 2 subjects: 2 P3, 1 resolved meanwhile"
    assert message.lines == (
        (
            "vendor",
            "P3 5,400 of 180,000 rows rejected (3.0 %)\nresolved 2026-03-02 03:00 UTC: slower than usual",
        ),
        ("service bank", "P3 3 answers 4xx"),
    )
    assert message.commands == ("redrive dlq causes --pipeline vendor", "redrive alerts ls")


def test_recovered_run_is_reported_although_it_is_over():
    recovered = over(an_alert(id=1, condition="recovered", title="recovered by itself"))
    message = compose_many("digest", [(What.OPENED, recovered), (What.OPENED, an_alert(id=2))], SETTINGS)
    assert "P3 recovered by itself" in message.lines[0].value


def test_alert_opened_and_resolved_is_one_entry():
    items = [(What.OPENED, over(an_alert())), (What.RESOLVED, over(an_alert())), *storm(2)]
    message = compose_many("digest", items, SETTINGS)
    assert [part.what for part in message.parts] == [What.OPENED, What.OPENED, What.RESOLVED]


def test_digest_of_one_alert_is_that_alert():
    assert compose_many("digest", [(What.OPENED, an_alert())], SETTINGS) == compose(What.OPENED, an_alert(), SETTINGS)
    ended = over(an_alert())
    assert compose_many("digest", [(What.OPENED, ended)], SETTINGS) == compose(What.RESOLVED, ended, SETTINGS)


def test_message_of_resolved_alerts_only_is_a_resolve():
    items = [(What.RESOLVED, over(an_alert(id=number))) for number in (1, 2)]
    message = compose_many("summary", items, SETTINGS)
    assert message.is_over
    assert message.headline == "P3, 2 alerts at once: 2 resolved"


def test_message_without_alerts_is_rejected():
    with pytest.raises(ValueError, match="at least one alert"):
        compose_many("digest", [], SETTINGS)


# ── JSON ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_document_has_a_version_and_these_names():
    document = compose(What.OPENED, an_alert(), SETTINGS).document()
    assert document["version"] == VERSION == 1
    assert list(document) == [
        *("version", "kind", "what", "urgency", "key", "subject", "condition", "headline", "lines", "error"),
        *("next_step", "commands", "sql", "runbook", "links", "details", "alerts"),
    ]
    assert document["subject"] == {"kind": "pipeline", "name": "vendor"}
    assert document["alerts"][0]["facts"]["letters"] == 5_400


def test_figures_that_json_lacks_are_text():
    odd = Facts(rate=float("nan"), measured={"lag": float("inf")}, letters=3)
    document = compose(What.OPENED, an_alert(facts=odd), SETTINGS).document()
    json.dumps(document, allow_nan=False)
    assert document["alerts"][0]["facts"]["measured"] == {"lag": "inf"}


@pytest.mark.parametrize("kind", ["summary", "digest"])
def test_hidden_alerts_are_counted(kind):
    message = compose_plain(kind, [(What.OPENED, an_alert(id=1)), (What.RESOLVED, over(an_alert(id=2)))])
    assert (message.kind, message.what, message.key) == (kind, What.OPENED, f"{kind}:1-2")
    assert "2 messages about alerts" in message.plain()
    assert message.commands == ("redrive alerts ls",)
