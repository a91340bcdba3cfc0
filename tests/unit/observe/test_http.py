"""The metrics server: its responses, and its limits against slow or invalid clients."""

import errno
import http.client
import os
import socket
import threading

import pytest

from redrive.config import ConfigError
from redrive.observe import metrics_server as serving
from redrive.observe.metrics_server import HttpAnswer, MetricsServer


def say(path, accept):
    if path == "/broken":
        raise RuntimeError("postgresql://user:hunter2@db is out of order")
    return HttpAnswer.sentence(200, f"{path} {accept}".strip())


@pytest.fixture
def server():
    with MetricsServer("127.0.0.1:0", say) as made:
        yield made


def port_of(server):
    return int(server.address.rpartition(":")[2])


def ask(server, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=30)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer
    finally:
        connection.close()


def send(server, raw):
    """What comes back for bytes as they are."""
    with socket.create_connection(("127.0.0.1", port_of(server)), timeout=30) as connection:
        connection.sendall(raw)
        got = b""
        while part := connection.recv(65_536):
            got += part
        return got.decode()


# ── answers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_path_is_served_in_the_accepted_format(server):
    status, body, answer = ask(server, "/metrics?x=1", Accept="text/plain")
    assert (status, body) == (200, "/metrics text/plain\n")
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Server"].strip() == "redrive"


def test_head_has_the_length_and_no_body(server):
    status, body, answer = ask(server, "/metrics", method="HEAD")
    assert (status, body, answer.headers["Content-Length"]) == (200, "", "9")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "BREW"])
def test_other_methods_are_rejected_in_a_sentence(server, method):
    assert ask(server, method=method)[:2] == (405, "only GET and HEAD are answered here\n")


@pytest.mark.parametrize("raw", [b"\r\n\r\n", b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET\r\n\r\n"])
def test_invalid_request_gets_no_traceback(server, raw):
    said = send(server, raw)
    assert "Traceback" not in said
    assert said == "" or "this request cannot be read" in said
    assert ask(server)[0] == 200


def test_internal_error_is_a_sentence_without_secrets(server):
    status, body, _ = ask(server, "/broken")
    assert (status, body) == (
        500,
        "this request failed: RuntimeError: postgresql://user:***@db is out of order\n",
    )


def test_concurrent_requests_are_served(server):
    found = []
    threads = [threading.Thread(target=lambda n=n: found.append(ask(server, f"/{n}")[1])) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [f"/{n}\n" for n in range(8)]


# ── bounds ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_large_request_is_rejected(server):
    said = send(server, b"GET / HTTP/1.1\r\n" + b"X-Long: " + b"x" * serving.LARGEST)
    assert said.startswith("HTTP/1.0 431")
    assert ask(server)[0] == 200


def test_slow_client_is_disconnected(server, monkeypatch):
    monkeypatch.setattr(serving, "TIMEOUT", 0.2)
    with socket.create_connection(("127.0.0.1", port_of(server)), timeout=30) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
        assert connection.recv(100) == b""


def test_client_that_disconnects_early_disturbs_no_other(server, capfd):
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", port_of(server)), timeout=30) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert ask(server)[0] == 200
    assert capfd.readouterr() == ("", "")


def test_excess_concurrent_requests_are_rejected():
    go = threading.Event()
    entered = threading.Semaphore(0)

    def slow(path, accept):
        entered.release()
        go.wait(30)
        return HttpAnswer.sentence(200, "done")

    with MetricsServer("127.0.0.1:0", slow) as server:
        found = []
        threads = [threading.Thread(target=lambda: found.append(ask(server)[0])) for _ in range(16)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert entered.acquire(timeout=30)
        try:
            with pytest.raises((http.client.HTTPException, ConnectionError)):
                ask(server)
        finally:
            go.set()
        for thread in threads:
            thread.join()
        assert found == [200] * 16
        assert ask(server)[0] == 200


def test_close_frees_the_port_and_leaves_no_thread():
    closed = []
    server = MetricsServer("127.0.0.1:0", say, closed=lambda: closed.append(1))
    address = server.address
    ask(server)
    server.close()
    assert closed == [1]
    with pytest.raises(ConnectionRefusedError):
        ask(server)
    MetricsServer(address, say).close()
    assert not [thread for thread in threading.enumerate() if thread.name == "redrive-http"]


# ── where it listens ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_server_has_its_address(server):
    assert server.url == f"http://{server.address}"
    assert server.address.startswith("127.0.0.1:")
    assert port_of(server) > 0


def test_host_name_and_ipv6_are_accepted():
    with MetricsServer("localhost:0", say) as server:
        assert port_of(server) > 0
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return  # a machine without IPv6
    with MetricsServer("[::1]:0", say) as server:
        assert server.address.startswith("[::1]:")


@pytest.mark.parametrize(
    "listen",
    [
        *("", "9464", ":9464", "127.0.0.1", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:70000", "127.0.0.1:-1"),
        *("::1:9464", "127.0.0.1:٤٢", f"127.0.0.1:{'9' * 5_000}"),
    ],
)
def test_invalid_address_is_rejected_in_one_sentence(listen):
    with pytest.raises(
        ConfigError, match=r"^the address to listen on must be a host and a port, such as 127.+:9464, not .{0,120}$"
    ):
        MetricsServer(listen, say)


@pytest.mark.parametrize("listen", ["no.such.host.invalid:9464", "a\0b:9464", f"{'x' * 100}:9464"])
def test_unknown_host_is_rejected_in_one_sentence(listen):
    with pytest.raises(ConfigError, match=r"the address .* is unknown"):
        MetricsServer(listen, say)


def test_address_in_use_is_rejected_in_one_sentence(server):
    with pytest.raises(ConfigError) as raised:
        MetricsServer(server.address, say)
    assert str(raised.value) == (
        f"cannot listen on {server.address}: another program listens there already; stop it, or choose another port"
    )


def test_address_of_another_machine_is_rejected_in_one_sentence():
    with pytest.raises(ConfigError, match="it is not an address of this machine"):
        MetricsServer("192.0.2.1:9464", say)


def test_any_other_bind_error_is_one_sentence(monkeypatch):
    def refuse(*args):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(serving, "_Listener", refuse)
    with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1:9464: too many open files"):
        MetricsServer("127.0.0.1:9464", say)
