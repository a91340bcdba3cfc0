"""Messages by apprise: mail to an SMTP server, and other services, from a separate process."""

import contextlib
import email
import email.policy
import logging
import socket
import sys
import threading
import traceback

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from redrive.alerts.config.settings import Channel
from redrive.alerts.delivery.channels import DeliveryFailed, deliver
from redrive.alerts.delivery.message import compose
from redrive.model.alerts import Facts, Severity, What
from redrive.testing import Answer, FaultyServer
from tests.support.sample_alerts import SETTINGS, an_alert, over

PASSWORD = "hunter2-correct-horse"
OPENED = compose(What.OPENED, an_alert(urgency=Severity.P1), SETTINGS)


class Mailbox:
    """Accept mail from clients with the password."""

    def __init__(self):
        self.mails = []
        self.refuse = None

    async def handle_RCPT(self, server, session, envelope, address, options):
        if self.refuse:
            return self.refuse
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        self.mails.append((envelope.rcpt_tos, email.message_from_bytes(envelope.content, policy=email.policy.default)))
        return "250 taken"


def knows_the_password(server, session, envelope, mechanism, data):
    return AuthResult(success=data.password == PASSWORD.encode(), handled=False)


@pytest.fixture
def mailbox():
    box = Mailbox()
    controller = Controller(
        box,
        hostname="127.0.0.1",
        port=0,
        authenticator=knows_the_password,
        auth_require_tls=False,
        auth_exclude_mechanism=["LOGIN"],
    )
    # With port 0 the controller cannot tell itself which one it was given.
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", 0)) as probe:
        controller.port = probe.getsockname()[1]
    controller.start()
    box.port = controller.port
    yield box
    controller.stop()


def mail(box, *, password=PASSWORD, timeout=60.0, extra=""):
    url = f"mailto://etl:{password}@127.0.0.1:{box.port}?from=redrive@example.com&to=oncall@example.com{extra}"
    return Channel(name="mail", kind="apprise", target=url, timeout=timeout)


def failure(which, message=OPENED):
    with pytest.raises(DeliveryFailed) as caught:
        deliver(which, message)
    return caught.value


def test_mail_has_headline_as_subject_and_details_as_text(mailbox):
    deliver(mail(mailbox), OPENED)
    ((recipients, sent),) = mailbox.mails
    assert recipients == ["oncall@example.com"]
    assert sent["subject"] == "P1 vendor: 5,400 of 180,000 rows rejected (3.0 %)"
    assert sent["from"].addresses[0].addr_spec == "redrive@example.com"
    assert sent.get_content_type() == "text/plain"
    text = sent.get_content().replace("\r\n", "\n").strip("\n")
    assert text == OPENED.plain(headline=False)
    assert PASSWORD not in str(sent)


def test_mail_can_be_html(mailbox):
    deliver(mail(mailbox, extra="&format=html"), OPENED)
    ((_, sent),) = mailbox.mails
    page = sent.get_body(("html",)).get_content()
    assert "<li><strong>Impact:</strong> 5,400 deliveries are missing" in page
    assert '<a href="https://wiki.example/vendor">Wiki</a>' in page


def test_mail_shows_every_language_and_no_secret(mailbox):
    facts = Facts(impact="поставки не обработаны 漢字", error="login failed: password=correct-horse-9")
    deliver(mail(mailbox), compose(What.OPENED, an_alert(title="Ошибка 💥", facts=facts), SETTINGS))
    ((_, sent),) = mailbox.mails
    assert sent["subject"] == "P3 vendor: Ошибка 💥"
    text = sent.get_content()
    assert "поставки не обработаны 漢字" in text
    assert "correct-horse-9" not in text


def test_resolved_alert_is_mailed(mailbox):
    deliver(mail(mailbox), compose(What.RESOLVED, over(an_alert()), SETTINGS))
    ((_, sent),) = mailbox.mails
    assert sent["subject"].startswith("Resolved (P3)")


# ── failures ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_rejected_recipient_error_quotes_the_server(mailbox):
    mailbox.refuse = "550 no such mailbox"
    failed = failure(mail(mailbox))
    assert "550" in failed.reason
    assert "no such mailbox" in failed.reason
    assert "oncall@example.com" in failed.reason
    assert mailbox.mails == []


def test_wrong_password_is_reported_and_masked(mailbox):
    failed = failure(mail(mailbox, password="wrong-horse-99"))
    assert "535" in failed.reason
    assert "wrong-horse-99" not in failed.reason


def test_down_mail_server_is_transient():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    failed = failure(Channel(name="mail", kind="apprise", target=f"mailto://127.0.0.1:{port}?from=a@b.cc&to=c@d.ee"))
    assert "Connection refused" in failed.reason
    assert not failed.permanent


def test_silent_mail_server_times_out():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"mailto://127.0.0.1:{silent.getsockname()[1]}?from=a@b.cc&to=c@d.ee"
        failed = failure(Channel(name="mail", kind="apprise", target=url, timeout=3.0))
    assert "3 s" in failed.reason or "deadline" in failed.reason.lower() or "timeout" in failed.reason.lower()
    assert not failed.permanent


@pytest.mark.parametrize("url", ["", "not an address", f"nobody://{PASSWORD}", f"mailto://{PASSWORD}"])
def test_url_unknown_to_apprise_is_permanent(url):
    failed = failure(Channel(name="x", kind="apprise", target=url, timeout=60.0))
    assert failed.permanent
    assert PASSWORD not in failed.reason


def test_missing_apprise_error_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "apprise.py").write_text("raise ModuleNotFoundError(\"No module named 'apprise'\", name='apprise')\n")
    monkeypatch.syspath_prepend(tmp_path)
    failed = failure(Channel(name="x", kind="apprise", target="json://127.0.0.1/", timeout=60.0))
    assert failed.reason == "apprise is not installed: pip install 'redrive[alerts]'"


def test_crashed_process_error_has_its_last_lines(tmp_path, monkeypatch):
    (tmp_path / "apprise.py").write_text("raise RuntimeError('half an installation')\n")
    monkeypatch.syspath_prepend(tmp_path)
    failed = failure(Channel(name="x", kind="apprise", target="json://127.0.0.1/", timeout=60.0))
    assert "half an installation" in failed.reason


# ── other services ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def server():
    with FaultyServer() as running:
        running.on("*", Answer(200))
        yield running


def by_json(server, path="/hook"):
    return Channel(name="x", kind="apprise", target=server.url.replace("http://", "json://") + path, timeout=60.0)


@pytest.mark.parametrize(
    ("what", "urgency", "kind"),
    [
        (What.OPENED, Severity.P1, "failure"),
        (What.OPENED, Severity.P2, "warning"),
        (What.RESOLVED, Severity.P1, "success"),
        (What.TEST, Severity.P1, "info"),
    ],
)
def test_service_gets_the_severity(server, what, urgency, kind):
    message = compose(what, an_alert(urgency=urgency), SETTINGS)
    deliver(by_json(server), message)
    sent = server.requests[0].json()
    assert (sent["type"], sent["title"]) == (kind, message.headline)
    assert "5,400" in sent["message"]


@pytest.mark.parametrize("status", [404, 500])
def test_rejection_of_a_service_is_quoted(server, status):
    server.on("*", Answer(status, body="out of order"))
    failed = failure(by_json(server))
    assert str(status) in failed.reason
    assert "out of order" in failed.reason


def test_redirects_of_a_service_are_not_followed(server):
    with FaultyServer() as elsewhere:
        server.on("*", Answer(307, headers={"Location": f"{elsewhere.url}/"}))
        failure(by_json(server))
        assert elsewhere.count() == 0


@pytest.mark.parametrize("place", ["/{}", "/hook?token={}", "/hook?+X-Key={}"])
def test_no_error_text_or_log_shows_the_url(server, place, caplog):
    server.on("*", lambda request: Answer(400, body=f"no {request.target} {dict(request.headers)}"))
    which = by_json(server, place.format(PASSWORD))
    with caplog.at_level(1):
        failed = failure(which)
    assert server.count() == 1
    for shown in [failed.reason, repr(failed), repr(which), caplog.text, *traceback.format_exception(failed)]:
        assert "hunter2" not in shown
    assert failed.__context__ is None


def test_apprise_logs_nothing_in_the_pipeline_process(mailbox, caplog):
    with caplog.at_level(1), contextlib.suppress(DeliveryFailed):
        deliver(mail(mailbox), OPENED)
    assert [record for record in caplog.records if record.name.startswith(("apprise", "urllib3", "requests"))] == []
    assert logging.getLogger("apprise").handlers == [] or "apprise" in sys.modules
    assert not [thread for thread in threading.enumerate() if "apprise" in thread.name]
