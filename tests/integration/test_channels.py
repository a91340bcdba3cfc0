"""Messages by HTTP to real servers: Slack, PagerDuty and webhooks, and their failures."""

import contextlib
import logging
import re
import socket
import threading
import traceback
from dataclasses import replace
from pathlib import Path

import pytest

from redrive import __version__
from redrive.alerts.config.settings import Channel
from redrive.alerts.delivery.channels import DeliveryFailed, deliver
from redrive.alerts.delivery.message import compose, compose_many
from redrive.model.alerts import Severity, Subject, What
from redrive.testing import Answer, FaultyServer
from tests.oracles.channel_payloads import check_pagerduty, check_slack
from tests.support.sample_alerts import SETTINGS, an_alert, over

KEY = "0123456789abcdef0123456789abcdef"
SOON = 0.5
"""Seconds after which a test gives up on a receiver that never answers."""

OPENED = compose(What.OPENED, an_alert(urgency=Severity.P1), SETTINGS)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def server():
    with FaultyServer() as running:
        running.on("*", Answer(200, body="ok"))
        yield running


def channel(kind, target, timeout=20.0):
    return Channel(name="team", kind=kind, target=target, timeout=timeout)


def pagerduty(server, **options):
    return channel("pagerduty", f"{server.url}/v2/enqueue?routing_key={KEY}", **options)


def failure(which, message=OPENED):
    with pytest.raises(DeliveryFailed) as caught:
        deliver(which, message)
    return caught.value


def all_threads_have_ended():
    """Whether no thread of an abandoned attempt is left."""
    for thread in threading.enumerate():
        if thread.name == "redrive alert":
            thread.join(30)
    return "redrive alert" not in [thread.name for thread in threading.enumerate()]


@contextlib.contextmanager
def listening(talk):
    """A server that handles each connection with a function; return its port."""
    held = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    held.append(connection)
                    threading.Thread(target=talked, args=(connection,), daemon=True).start()

        def talked(connection):
            with contextlib.suppress(OSError):
                talk(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    for connection in held:
        connection.close()


# ── deliveries ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_webhook_posts_the_json_document(server):
    deliver(channel("webhook", f"{server.url}/hook/a%20b?team=data&x=1"), OPENED)
    (request,) = server.requests
    assert (request.method, request.target) == ("POST", "/hook/a%20b?team=data&x=1")
    assert request.headers["content-type"] == "application/json; charset=utf-8"
    assert request.headers["user-agent"] == f"redrive/{__version__}"
    assert request.json() == OPENED.document()


def test_url_credentials_are_sent_as_basic_auth(server):
    deliver(channel("webhook", server.url.replace("://", "://etl:p%40ss@")), OPENED)
    assert server.requests[0].headers["authorization"] == "Basic ZXRsOnBAc3M="


class TestWebhook:
    KEY = b"0123456789abcdef"

    @pytest.fixture
    def page(self):
        return (Path(__file__).parents[2] / "docs" / "alerts.md").read_text().partition("### Webhooks")[2]

    def test_headers_are_sent(self, server):
        headers = {"Authorization": "Bearer hunter2hunter2", "X-Team": "data"}
        deliver(replace(channel("webhook", server.url), headers=headers), OPENED)
        sent = server.requests[0].headers
        assert (sent["authorization"], sent["x-team"], "webhook-id" in sent) == (*headers.values(), False)

    def test_header_echoed_by_receiver_is_masked(self, server):
        server.on("*", Answer(401, body="no such token: hunter2hunter2"))
        found = failure(replace(channel("webhook", server.url), headers={"Authorization": "Bearer hunter2hunter2"}))
        assert ("hunter2" in found.reason, found.permanent) == (False, True)

    def test_signature_passes_check_of_the_page(self, server, page):
        program = {}
        exec(page.partition("```python\n")[2].partition("```")[0], program)
        for _ in range(2):
            deliver(replace(channel("webhook", server.url), signing_key=self.KEY), OPENED)
        first, second = server.requests
        assert program["is_ours"](first.headers, first.body, self.KEY)
        assert not program["is_ours"](first.headers, first.body + b" ", self.KEY)
        assert not program["is_ours"](first.headers, first.body, self.KEY[::-1])
        assert first.headers["webhook-id"] == second.headers["webhook-id"]

    def test_page_names_every_field(self, page):
        table = page.partition("|---|---|\n")[2].partition("\n\n")[0]
        fields = [name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])]
        assert sorted(fields) == sorted(OPENED.document())


@pytest.mark.parametrize("what", What)
def test_slack_payload_follows_its_documentation(server, what):
    deliver(channel("slack", f"{server.url}/services/T0/B0/x"), compose(what, an_alert(), SETTINGS))
    (request,) = server.requests
    check_slack(request.json())


def test_pagerduty_gets_all_events_under_one_key(server):
    for what, alert in [
        (What.OPENED, an_alert()),
        (What.ESCALATED, an_alert(urgency=Severity.P1)),
        (What.REPEATED, an_alert(urgency=Severity.P1)),
        (What.ACKNOWLEDGED, an_alert()),
        (What.RESOLVED, over(an_alert())),
    ]:
        deliver(pagerduty(server), compose(what, alert, SETTINGS))
    events = [check_pagerduty(request.body) for request in server.requests]
    actions = [event["event_action"] for event in events]
    assert actions == ["trigger", "trigger", "trigger", "acknowledge", "resolve"]
    assert {(event["dedup_key"], event["routing_key"]) for event in events} == {("letters:vendor", KEY)}
    assert {request.target for request in server.requests} == {"/v2/enqueue"}


def test_pagerduty_payload_has_all_details(server):
    deliver(pagerduty(server), OPENED)
    event = check_pagerduty(server.requests[0].body)
    payload = event["payload"]
    assert payload["summary"] == "P1 vendor: 5,400 of 180,000 rows rejected (3.0 %)"
    assert payload["timestamp"] == "2026-03-02T01:00:00.000+00:00"
    named = {name: payload[name] for name in ("source", "component", "group", "class", "severity")}
    assert named == {
        "source": "vendor",
        "component": "vendor",
        "group": "pipeline",
        "class": "new_letters",
        "severity": "critical",
    }
    details = payload["custom_details"]
    assert details["Next"] == "Nothing is repeated by itself: bad data stays bad."
    assert details["Commands"][0] == "redrive dlq causes --pipeline vendor"
    assert details["Runbook"] == ["Look at the causes.", "Ask the vendor for a new file.", "Replay."]
    assert details["alerts"][0]["id"] == 12
    assert {"href": "https://wiki.example/vendor", "text": "Wiki"} in event["links"]
    assert event["client"] == "redrive"


@pytest.mark.parametrize(
    ("urgency", "severity"), [(Severity.P1, "critical"), (Severity.P2, "error"), (Severity.P3, "warning")]
)
def test_pagerduty_severity_follows_alert_severity(server, urgency, severity):
    deliver(pagerduty(server), compose(What.OPENED, an_alert(urgency=urgency), SETTINGS))
    assert check_pagerduty(server.requests[0].body)["payload"]["severity"] == severity


def test_pagerduty_gets_resolved_alert_as_info(server):
    deliver(pagerduty(server), compose(What.OPENED, over(an_alert(condition="recovered")), SETTINGS))
    assert check_pagerduty(server.requests[0].body)["payload"]["severity"] == "info"


def test_pagerduty_gets_one_storm_event_and_single_resolves(server):
    items = [
        *((What.OPENED, an_alert(id=number, key=f"new:{number}")) for number in range(5)),
        *((What.RESOLVED, over(an_alert(id=number, key=f"old:{number}"))) for number in (10, 11)),
    ]
    deliver(pagerduty(server), compose_many("summary", items, SETTINGS))
    events = [check_pagerduty(request.body) for request in server.requests]
    assert [(event["event_action"], event["dedup_key"]) for event in events] == [
        ("resolve", "old:10"),
        ("resolve", "old:11"),
        ("trigger", "summary:0-11"),
    ]


def test_long_pagerduty_keys_are_shortened_uniquely(server):
    for ending in ("a", "a", "b"):
        deliver(pagerduty(server), compose(What.OPENED, an_alert(key="task:" + "x" * 400 + ending), SETTINGS))
    first, second, other = (check_pagerduty(request.body)["dedup_key"] for request in server.requests)
    assert first == second != other


@pytest.mark.parametrize("target", ["", "https://events.eu.pagerduty.com/v2/enqueue", "http://[x/?routing_key=1"])
def test_pagerduty_without_a_key_is_permanent(target):
    assert failure(channel("pagerduty", target)).permanent


# ── results ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("answer", "reason", "permanent", "retry_after"),
    [
        (Answer(500), "the receiver answered 500", False, None),
        (Answer(503, retry_after=7), "the receiver answered 503", False, 7.0),
        (Answer(429, body="rate_limited", retry_after=30), "the receiver answered 429: rate_limited", False, 30.0),
        (Answer(408), "the receiver answered 408", False, None),
        (Answer(404, body="no_service"), "the receiver answered 404: no_service", True, None),
        (
            Answer(403, body="action_prohibited", retry_after=9),
            "the receiver answered 403: action_prohibited",
            True,
            None,
        ),
        (
            Answer(
                400, json={"status": "invalid event", "message": "Event object is invalid", "errors": ["too short"]}
            ),
            "the receiver answered 400: Event object is invalid; too short",
            True,
            None,
        ),
        (
            Answer(502, body="<html><title>Bad gateway</title></html>"),
            "the receiver answered 502: Bad gateway",
            False,
            None,
        ),
        (Answer(400, body=b"\x00\xff\x1b[31mrubbish" * 9_000), None, True, None),
    ],
    ids=lambda value: value.status if isinstance(value, Answer) else None,
)
def test_http_status_decides_about_retry(server, answer, reason, permanent, retry_after):
    server.on("*", answer)
    failed = failure(channel("slack", server.url))
    assert reason is None or failed.reason == reason
    assert len(failed.reason) <= 500
    assert "\x1b" not in failed.reason
    assert (failed.permanent, failed.retry_after) == (permanent, retry_after)


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_every_answer_of_success_is_success(server, status):
    server.on("*", Answer(status))
    deliver(channel("webhook", server.url), OPENED)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(server, status):
    with FaultyServer() as elsewhere:
        server.on("*", Answer(status, headers={"Location": f"{elsewhere.url}/taken"}))
        failed = failure(channel("slack", f"{server.url}/services/T0/B0/x"))
        assert elsewhere.count() == 0
    assert failed.permanent
    assert "redirect" in failed.reason
    assert server.count() == 1


def test_down_receiver_is_transient(server):
    server.down()
    failed = failure(channel("slack", server.url))
    assert failed.reason == "no connection: Connection refused"
    assert not failed.permanent
    server.up()
    deliver(channel("slack", server.url), OPENED)


def test_connection_reset_is_transient(server):
    server.on("*", Answer(reset="before"))
    assert not failure(channel("webhook", server.url)).permanent


def test_silent_receiver_times_out(server):
    server.on("*", Answer(hang=True))
    failed = failure(channel("webhook", server.url, timeout=SOON))
    assert "not answered" in failed.reason
    assert not failed.permanent
    assert all_threads_have_ended()


def test_slow_receiver_times_out():
    def drip(connection):
        connection.recv(65_536)
        for byte in b"HTTP/1.1 200 OK\r\n" + b"X-Wait: yes\r\n" * 10_000:
            connection.sendall(bytes([byte]))
            threading.Event().wait(SOON / 10)

    with listening(drip) as port:
        assert "not answered" in failure(channel("webhook", f"http://127.0.0.1:{port}/", timeout=SOON)).reason
        assert all_threads_have_ended()


def test_stalled_tls_handshake_times_out():
    with listening(lambda connection: connection.recv(1)) as port:
        assert "not answered" in failure(channel("slack", f"https://localhost:{port}/", timeout=SOON)).reason
        assert all_threads_have_ended()


def test_delivery_ends_with_headers_of_a_slow_answer(server):
    server.on("*", Answer(200, body="ok" * 1_000, drip=60.0))
    deliver(channel("webhook", server.url), OPENED)


def test_rejection_is_known_before_its_body_ends(server):
    server.on("*", Answer(404, body="x" * 1_000, drip=60.0))
    failed = failure(channel("webhook", server.url, timeout=SOON))
    assert failed.reason.startswith("the receiver answered 404")
    assert failed.permanent


@pytest.mark.parametrize(
    "said", [b"", b"220 mail.example ESMTP\r\n", b"\x16\x03\x01\x00", b"HTTP/1.1 banana\r\n\r\n", b"x" * 70_000]
)
def test_non_http_receiver_is_transient(said):
    def talk(connection):
        connection.recv(65_536)
        connection.sendall(said)
        connection.shutdown(socket.SHUT_RDWR)

    with listening(talk) as port:
        assert not failure(channel("webhook", f"http://127.0.0.1:{port}/")).permanent


@pytest.mark.parametrize(
    "url",
    ["", "hooks.example/x", "ftp://hooks.example/", "https://", "http://[::1", "http://x:99999999/", "http://x:0/"],
)
def test_unreadable_url_is_permanent(url):
    assert failure(channel("webhook", url)).permanent


def test_unknown_host_name_is_transient():
    assert not failure(channel("webhook", "http://no-such-host.invalid/", timeout=5.0)).permanent


# ── the log ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("what", "urgency", "level"),
    [
        (What.OPENED, Severity.P1, logging.ERROR),
        (What.REPEATED, Severity.P2, logging.WARNING),
        (What.OPENED, Severity.P3, logging.WARNING),
        (What.RESOLVED, Severity.P1, logging.INFO),
        (What.ACKNOWLEDGED, Severity.P1, logging.INFO),
    ],
)
def test_log_channel_writes_document_at_alert_level(caplog, what, urgency, level):
    message = compose(what, an_alert(urgency=urgency), SETTINGS)
    with caplog.at_level(logging.DEBUG, "redrive.alerts"):
        deliver(channel("log", ""), message)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("redrive.alerts", level)
    assert record.getMessage().startswith(message.headline)
    assert "\n" not in record.getMessage()
    assert record.alert == message.document()


# ── secrets ───────────────────────────────────────────────────────────────────────────────────────────────────────────

SECRET = "hunter2-velvet-anchor"


def echoing(request):
    """A receiver whose rejection echoes the whole request."""
    return Answer(400, body=f"{request.target} {dict(request.headers)} ".encode() + request.body[-200:])


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("slack", f"{{url}}/services/T0/B0/{SECRET}"),
        ("webhook", f"{{url}}/hook?token={SECRET}"),
        ("webhook", f"{{url}}/hook?x={SECRET}"),
        ("webhook", f"{{me}}/{SECRET}"),
        ("pagerduty", f"{{url}}/v2/enqueue?routing_key={SECRET}"),
    ],
)
@pytest.mark.parametrize("fault", ["echo", "down", "hang", "redirect", "misread"])
def test_no_error_text_shows_channel_secrets(server, caplog, kind, target, fault):
    url = target.format(url=server.url, me=server.url.replace("://", f"://me:{SECRET}@"))
    if fault == "down":
        server.down()
    elif fault == "misread":
        url = url.replace("http://", "http:///").replace("127.0.0.1", "")
    elif fault == "redirect":
        server.on("*", lambda request: Answer(302, headers={"Location": f"/again{request.target}"}))
    else:
        server.on("*", {"echo": echoing, "hang": Answer(hang=True)}[fault])
    which = channel(kind, url, timeout=SOON if fault == "hang" else 20.0)
    with caplog.at_level(1):
        failed = failure(which, compose(What.OPENED, an_alert(subject=Subject(kind="service", name="bank")), SETTINGS))
    told = [failed.reason, str(failed), repr(failed), repr(which), caplog.text, *traceback.format_exception(failed)]
    assert failed.__context__ is None
    assert failed.__cause__ is None
    for text in told:
        assert SECRET not in text
        assert "hunter2" not in text
