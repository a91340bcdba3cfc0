"""Every form of every message keeps to the limits of its receiver."""

import json
import re
import sys
import unicodedata
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package

from redrive.alerts.config.settings import AlertSettings, PipelineSettings
from redrive.alerts.delivery.channels import pagerduty
from redrive.alerts.delivery.format import safe, safe_line
from redrive.alerts.delivery.message import compose, compose_many
from redrive.model.alerts import Alert, AlertStatus, Facts, Severity, Subject, What
from tests.oracles.channel_payloads import Misshapen, check_pagerduty, check_slack
from tests.support.sample_alerts import SETTINGS, an_alert

KEY = "0123456789abcdef0123456789abcdef"
TURNS = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
NASTY = [
    *(
        "<!channel>",
        "<@U1>",
        "&",
        "<",
        ">",
        "&amp;",
        "```",
        "`",
        "*",
        "_",
        "|",
        "@here",
        "@everyone",
        "\x1b[31m",
        "\x00",
    ),
    *(
        "\ud800",
        "\u202e",
        "\r\n",
        "\u2028",
        "\U0001f4a5",
        "a̐",
        "漢字",
        " ",
        "\t",
        "\x9b2J",
        "\x1b]0;x\x07",
        "{pipeline}",
    ),
]

letters = st.text(st.characters(exclude_categories=()), max_size=30)
nasty = st.lists(st.sampled_from(NASTY) | letters, max_size=8).map("".join)
huge = st.tuples(st.sampled_from(NASTY) | letters, st.integers(1, 3_000)).map(lambda pair: pair[0] * pair[1])
texts = nasty | huge
moments = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
figures = st.floats() | st.integers(0, 10**12).map(float)
counts = st.none() | st.integers(0, 10**12)


def alerts(words):
    """Alerts in which every text is one of these."""
    maybe, seldom = st.none() | words, st.lists(words, max_size=12).map(tuple)
    facts = st.builds(
        Facts,
        **dict.fromkeys(["status", "error", "error_type", "impact", "checkpoint", "cause", "sql", "next_step"], maybe),
        **dict.fromkeys(["rows_done", "rows_total", "letters"], counts),
        **dict.fromkeys(["affected", "commands"], seldom),
        **dict.fromkeys(["seconds", "usual_seconds"], st.none() | st.floats(0, 1e9)),
        run_id=st.none() | st.just(UUID(int=7)),
        sla=st.none() | moments,
        rate=st.none() | figures,
        measured=st.dictionaries(words, figures, max_size=3),
    )
    kinds = st.sampled_from(["pipeline", "flow", "service", "table", "slot", "consumer", "store"])
    return st.builds(
        Alert,
        **dict.fromkeys(["key", "condition", "title"], words),
        **dict.fromkeys(["acknowledged_by", "note", "resolution"], maybe),
        **dict.fromkeys(["told_at", "acknowledged_at", "resolved_at"], st.none() | moments),
        **dict.fromkeys(["since", "last_seen"], moments),
        id=st.integers(1, 10**9),
        urgency=st.sampled_from(Severity),
        status=st.sampled_from(AlertStatus),
        subject=st.builds(Subject, kind=kinds, name=words),
        facts=facts,
        seen=st.integers(1, 10**9),
    )


@st.composite
def messages(draw):
    words = st.sampled_from(draw(st.lists(texts, min_size=1, max_size=4)))
    alert = draw(alerts(words))
    links = st.dictionaries(words, words | words.map("https://x.example/{pipeline}?".__add__), max_size=12)
    own = PipelineSettings(runbook=tuple(draw(st.lists(words, max_size=25))), links=draw(links))
    settings = AlertSettings(links=draw(links), pipelines={alert.subject.name: own})
    if draw(st.booleans()):
        return compose(draw(st.sampled_from(What)), alert, settings)
    items = [(draw(st.sampled_from(What)), one) for one in [alert, *draw(st.lists(alerts(words), max_size=2))]]
    items += [(What.OPENED, an_alert(id=number)) for number in range(draw(st.integers(0, 60)))]
    return compose_many(draw(st.sampled_from(["digest", "summary"])), items, settings)


def texts_in(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_in(inner)


def check_printable(text):
    for letter in text:
        assert letter == "\n" or unicodedata.category(letter) not in ("Cc", "Cs"), ascii(letter)
        assert letter not in TURNS, ascii(letter)


@given(messages())
def test_slack_accepts_every_message(message):
    payload = message.slack()
    check_slack(payload)
    for text in texts_in(payload):
        check_printable(text)
        assert not re.search(r"@(?:here|everyone)(?!\w)", re.sub(r"<http[^|]*\|", "", text), re.ASCII)


@given(messages())
def test_pagerduty_accepts_every_event(message):
    for event in pagerduty.events(message):
        check_pagerduty(json.dumps({"routing_key": KEY, **event}, ensure_ascii=False).encode())


@given(messages())
def test_texts_have_no_controls_and_headlines_are_one_line(message):
    for text in [message.plain(), message.markdown(), *texts_in(message.document())]:
        check_printable(text)
    assert "\n" not in message.headline
    assert len(message.headline) <= 250
    json.dumps(message.document(), allow_nan=False, ensure_ascii=False).encode()


@given(messages())
def test_plain_text_is_narrow_where_it_can_be_broken(message):
    verbatim = {f"  $ {command}" for command in message.commands}
    verbatim |= {f"  {line}" for line in (message.sql or "").splitlines()}
    verbatim |= {f"  {link.label}: {link.value}" for link in message.links}
    for line in message.plain().split("\n"):
        if len(line) > 78 and line not in verbatim:
            assert max(len(word) for word in line.split(" ")) > 40, line


@given(texts, st.integers(100, 5_000))
def test_text_is_never_longer_than_the_limit(text, most):
    assert len(safe(text, most)) <= most
    assert len(safe_line(text, most)) <= most
    assert "\n" not in safe_line(text, most)


@given(st.integers(0, 60_000), st.integers(0, 60_000))
def test_secret_is_masked_wherever_a_text_is_cut(before, after):
    token = "ghp_" + "A1b2C3d4E5f6" * 3
    text = safe(f"{'x' * before} {token} {'y' * after}", 1_500)
    assert "A1b2C3d4E5f6" not in text


SECRET = "correct-horse-battery"
PLANTED = f"https://etl:{SECRET}@db.example/lake?api_key={SECRET} password={SECRET}"


def test_no_form_of_a_message_shows_a_secret():
    known = Facts(
        status=PLANTED,
        run_id=UUID(int=1),
        error=PLANTED,
        error_type=PLANTED,
        impact=PLANTED,
        checkpoint=PLANTED,
        cause=PLANTED,
        measured={PLANTED: 1.0},
        affected=(PLANTED,),
        commands=(PLANTED,),
        sql=PLANTED,
        next_step=PLANTED,
    )
    loose = an_alert(
        key=PLANTED,
        condition=PLANTED,
        subject=Subject(kind="pipeline", name=PLANTED),
        title=PLANTED,
        facts=known,
        acknowledged_by=PLANTED,
        note=PLANTED,
        resolution=PLANTED,
    )
    own = PipelineSettings(runbook=(PLANTED,), links={PLANTED: PLANTED, "x": "https://x.example/{pipeline}"})
    settings = AlertSettings(pipelines={PLANTED: own}, links={"y": PLANTED})
    told = [compose(what, loose, settings) for what in What]
    told += [
        compose_many(kind, [(What.OPENED, loose), (What.OPENED, an_alert())], settings)
        for kind in ("digest", "summary")
    ]
    for message in told:
        shown = [message.plain(), message.markdown(), json.dumps(message.slack()), json.dumps(message.document())]
        shown += [json.dumps(event) for event in pagerduty.events(message)] + [repr(message)]
        for text in shown:
            assert SECRET not in text


# ── the checks themselves ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "spoil",
    [
        lambda payload: payload.pop("text"),
        lambda payload: payload.update(channel="#x"),
        lambda payload: payload["blocks"][0]["text"].update(text="x" * 151),
        lambda payload: payload["blocks"][0]["text"].update(type="mrkdwn"),
        lambda payload: payload["blocks"][1]["text"].update(text="x" * 3_001),
        lambda payload: payload["blocks"][1]["text"].update(text="<!channel>"),
        lambda payload: payload["blocks"][1]["text"].update(text="a & b"),
        lambda payload: payload["blocks"][1]["text"].update(text=""),
        lambda payload: payload["blocks"][1]["text"].pop("verbatim"),
        lambda payload: payload["blocks"].extend(payload["blocks"][1:2] * 50),
    ],
)
def test_payload_that_slack_would_reject_is_noticed(spoil):
    payload = compose(What.OPENED, an_alert(), SETTINGS).slack()
    check_slack(payload)
    spoil(payload)
    with pytest.raises(Misshapen):
        check_slack(payload)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda event: event.pop("routing_key"),
        lambda event: event.update(routing_key="short"),
        lambda event: event.update(event_action="open"),
        lambda event: event.update(dedup_key="x" * 256),
        lambda event: event["payload"].update(summary="x" * 1_025),
        lambda event: event["payload"].update(severity="P1"),
        lambda event: event["payload"].pop("source"),
        lambda event: event["payload"].update(custom_details={"x": "y" * 512_000}),
        lambda event: event.update(links=[{"text": "no address"}]),
    ],
)
def test_event_that_pagerduty_would_reject_is_noticed(spoil):
    (event,) = pagerduty.events(compose(What.OPENED, an_alert(), SETTINGS))
    event["routing_key"] = KEY
    check_pagerduty(json.dumps(event).encode())
    spoil(event)
    with pytest.raises(Misshapen):
        check_pagerduty(json.dumps(event).encode())
