"""A mail is not sent again once the server has received it without a response."""

import smtplib

import pytest

from redrive import Retry, Service
from tests.support import fault_server

MAIL = "Subject: invoice\r\n\r\nplease pay"


class MailServer:
    """Takes mails, and breaks the connection, or goes silent, after what a client sends."""

    def __init__(self):
        self.mails = []
        self.breaks_after = None
        self.answer = b"250 queued"

    def __call__(self, client):
        lines = client.makefile("rb")
        client.sendall(b"220 hello\r\n")
        for line in lines:
            word = line.split()[0].upper()
            if word == self.breaks_after:
                self.breaks_after = None
                return
            if word != b"DATA":
                client.sendall(b"250 ok\r\n" if word != b"QUIT" else b"221 bye\r\n")
                continue
            client.sendall(b"354 go on\r\n")
            self.mails.append(b"".join(iter(lines.readline, b".\r\n")))
            if self.breaks_after == b".":
                return
            answer, self.answer = self.answer, b"250 queued"
            client.sendall(answer + b"\r\n")


@pytest.fixture
def server():
    talk = MailServer()
    with fault_server.serving(talk) as port:
        talk.port = port
        yield talk


def send(server):
    with smtplib.SMTP("127.0.0.1", server.port, timeout=10) as smtp:
        smtp.sendmail("a@example.com", "b@example.com", MAIL)


def mailer(**options):
    return Service("mail", retry=Retry(attempts=3, base=0, cap=0), **options)


class TestSmtplib:
    def test_mail_with_a_lost_response_is_not_sent_again(self, server):
        server.breaks_after = b"."
        with pytest.raises(smtplib.SMTPServerDisconnected) as caught:
            mailer().call(send, server)
        assert len(server.mails) == 1
        assert "a mail is not retried once it may have taken effect" in caught.value.redrive.why

    def test_session_broken_before_the_mail_is_retried(self, server):
        server.breaks_after = b"RCPT"
        mailer().call(send, server)
        assert len(server.mails) == 1

    def test_temporarily_rejected_mail_is_sent_again(self, server):
        server.answer = b"451 try again later"
        mailer().call(send, server)
        assert len(server.mails) == 2

    def test_failing_end_of_session_does_not_send_the_mail_again(self, server, monkeypatch):
        def quit_slowly(smtp, command, args=""):
            raise TimeoutError

        monkeypatch.setattr(smtplib.SMTP, "docmd", quit_slowly)
        monkeypatch.setattr(smtplib.SMTP, "ehlo_or_helo_if_needed", lambda smtp: None)
        with pytest.raises(TimeoutError):
            mailer().call(send, server)
        assert len(server.mails) == 1

    def test_idempotent_service_sends_the_mail_again(self, server):
        server.breaks_after = b"."
        with pytest.raises(smtplib.SMTPServerDisconnected):
            mailer(idempotent=True).call(send, server)
        assert len(server.mails) == 3
