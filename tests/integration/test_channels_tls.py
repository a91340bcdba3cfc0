"""Messages by HTTPS and through proxies: certificates are verified, and the settings of the machine apply."""

import contextlib
import http.server
import json
import socket
import ssl
import threading

import pytest
import trustme

from redrive.alerts.config.settings import Channel
from redrive.alerts.delivery.channels import DeliveryFailed, deliver
from redrive.alerts.delivery.message import compose
from redrive.model.alerts import What
from tests.oracles.channel_payloads import check_slack
from tests.support.sample_alerts import SETTINGS, an_alert

OPENED = compose(What.OPENED, an_alert(), SETTINGS)


def channel(kind, target):
    return Channel(name="team", kind=kind, target=target, timeout=20.0)


def failure(which):
    with pytest.raises(DeliveryFailed) as caught:
        deliver(which, OPENED)
    return caught.value


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.seen.append((self.path, dict(self.headers), self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.end_headers()

    def do_CONNECT(self):
        self.server.seen.append((self.path, dict(self.headers), b""))
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port))) as beyond:
            self.send_response(200)
            self.end_headers()
            there = threading.Thread(target=_pour, args=(self.connection, beyond), daemon=True)
            there.start()
            _pour(beyond, self.connection)
        self.close_connection = True

    def log_message(self, *_):
        pass


def _pour(source, sink):
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def receiver(context=None):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as running:
        running.seen = []
        running.handle_error = lambda *_: None  # a client that refuses the certificate
        if context is not None:
            running.socket = context.wrap_socket(running.socket, server_side=True)
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def authority():
    return trustme.CA()


@pytest.fixture
def secure(authority):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with receiver(context) as running:
        yield running


def test_certificate_of_an_unknown_authority_is_rejected(secure):
    failed = failure(channel("slack", f"https://localhost:{secure.server_port}/services/x"))
    assert "certificate was rejected" in failed.reason
    assert secure.seen == []


def test_certificate_of_a_known_authority_is_accepted(secure, authority, tmp_path, monkeypatch):
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    deliver(channel("slack", f"https://localhost:{secure.server_port}/services/x"), OPENED)
    check_slack(json.loads(secure.seen[0][2]))
    assert "certificate was rejected" in failure(channel("slack", f"https://127.0.0.1:{secure.server_port}/")).reason


def test_proxy_of_the_environment_is_used(secure, authority, tmp_path, monkeypatch):
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with receiver() as proxy:
        for scheme in ("http", "https"):
            monkeypatch.setenv(f"{scheme}_proxy", f"http://me:pw@127.0.0.1:{proxy.server_port}")
        deliver(channel("webhook", f"https://localhost:{secure.server_port}/secret-path"), OPENED)
        deliver(channel("webhook", "http://hooks.example/x"), OPENED)
        monkeypatch.setenv("no_proxy", "localhost")
        deliver(channel("webhook", f"https://localhost:{secure.server_port}/direct"), OPENED)
    (tunnel, asked, _), (plain, headers, _) = proxy.seen
    assert (tunnel, asked["Proxy-Authorization"]) == (f"localhost:{secure.server_port}", "Basic bWU6cHc=")
    assert (plain, headers["Host"]) == ("http://hooks.example:80/x", "hooks.example:80")
    assert headers["Proxy-Authorization"] == "Basic bWU6cHc="
    assert [path for path, _, _ in secure.seen] == ["/secret-path", "/direct"]
    assert "Proxy-Authorization" not in secure.seen[0][1]
