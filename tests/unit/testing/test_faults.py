"""Each fault, as seen by common HTTP libraries."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import httpx
import pytest

from redrive.testing import Answer


def test_script_ends_with_its_last_answer(server, client):
    server.on("/orders", Answer(503), Answer(429, retry_after=2), Answer(json={"ok": True}))
    replies = [client.get(server.url + "/orders") for _ in range(4)]
    assert [reply.status for reply in replies] == [503, 429, 200, 200]
    assert replies[1].headers["retry-after"] == "2"
    assert replies[3].json() == {"ok": True}


def test_failures_are_followed_by_success(server, client):
    server.on("/flaky", *Answer(503).times(3), Answer(json="done"))
    assert [client.get(server.url + "/flaky").status for _ in range(5)] == [503, 503, 503, 200, 200]


def test_retry_after_date_is_an_http_date(server, client):
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=5)
    server.on("/busy", Answer(503, retry_after=later))
    assert parsedate_to_datetime(client.get(server.url + "/busy").headers["retry-after"]) == later


def test_every_answer_is_dated(server, client):
    before = datetime.now(UTC).replace(microsecond=0)
    date = parsedate_to_datetime(client.get(server.url + "/").headers["date"])
    assert before <= date <= datetime.now(UTC)


def test_delayed_answer_arrives_late_and_whole(server, client):
    server.on("/slow", Answer(json=1, delay=0.1))
    began = time.monotonic()
    assert client.get(server.url + "/slow").json() == 1
    assert time.monotonic() - began >= 0.09


def wait_until_heard(server, path, count):
    """A client that times out may be ahead of the server."""
    for _ in range(2_000):
        if server.count(path) >= count:
            return
        time.sleep(0.005)


def test_hanging_answer_causes_the_clients_read_timeout(server, client):
    server.on("/hang", Answer(hang=True))
    with pytest.raises(client.timeout):
        client.get(server.url + "/hang", timeout=0.2)
    wait_until_heard(server, "/hang", 1)
    assert [request.status for request in server.requests] == ["hang"]


def test_reset_instead_of_an_answer_drops_the_connection(server, client):
    server.on("/reset", Answer(reset="before"))
    with pytest.raises(client.dropped):
        client.get(server.url + "/reset")
    assert {request.status for request in server.requests} == {"reset before"}


def test_reset_within_the_body_drops_the_connection(server, client):
    server.on("/reset", Answer(json=list(range(1000)), reset="mid-body"))
    with pytest.raises(client.dropped):
        client.get(server.url + "/reset")
    assert {request.status for request in server.requests} == {"reset mid-body"}


def test_reset_in_the_body_comes_after_headers_and_half_of_it(server):
    body = b"x" * 1000
    server.on("/reset", Answer(body=body, reset="mid-body"))
    received = []
    with httpx.stream("GET", server.url + "/reset") as reply:
        assert (reply.status_code, reply.headers["content-length"]) == (200, "1000")
        with pytest.raises(httpx.ReadError):
            received.extend(reply.iter_raw())
    assert b"".join(received) == body[:500]


def test_truncated_answer_is_valid_http_and_broken_json(server, client):
    server.on("/cut", Answer(json={"rows": [1, 2, 3]}, truncate=True))
    reply = client.get(server.url + "/cut")
    assert reply.status == 200
    with pytest.raises(ValueError, match="Expecting value"):  # requests may read by another library than json
        reply.json()


def test_slow_body_arrives_whole(server, client):
    server.on("/drip", Answer(body="[1,2]", drip=0.03))
    began = time.monotonic()
    assert client.get(server.url + "/drip").json() == [1, 2]
    assert time.monotonic() - began >= 5 * 0.03 - 0.01


def test_only_every_nth_request_gets_a_spike(server, client):
    server.on("/page", Answer())
    server.spike(every=2, delay=60)
    assert client.get(server.url + "/page").status == 200
    with pytest.raises(client.timeout):
        client.get(server.url + "/page", timeout=0.2)
    wait_until_heard(server, "/page", 2)
    assert client.get(server.url + "/page").status == 200
    server.spike(every=1, delay=0)
    assert client.get(server.url + "/page").status == 200


def test_server_that_is_down_refuses_connections(server, client):
    server.on("/x", Answer())
    url = server.url
    assert client.get(url + "/x").status == 200
    for _ in range(2):
        server.down()
        with pytest.raises(client.refused):
            client.get(url + "/x")
        server.up()
        assert client.get(url + "/x").status == 200
    assert server.url == url
    assert server.count("/x") == 3


def test_stopping_the_server_resets_a_waiting_connection(server, raw):
    server.on("/hang", Answer(hang=True))
    raw.sendall(b"GET /hang HTTP/1.1\r\n\r\n")
    while server.count("/hang") == 0:
        time.sleep(0.005)
    server.down()
    with pytest.raises(ConnectionResetError):
        raw.recv(1)


def test_stopping_the_server_resets_a_new_connection(server, connect):
    for _ in range(50):
        with connect(server) as connection:
            server.down()
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
        server.up()


def test_stopping_or_restarting_twice_changes_nothing(server, client):
    server.down()
    server.down()
    with pytest.raises(client.refused):
        client.get(server.url)
    server.up()
    server.up()
    assert client.get(server.url).status == 404


def test_handler_can_stop_its_own_server(server, client):
    def last_words(request):
        server.down()
        return Answer()

    server.on("/x", last_words)
    with pytest.raises(client.dropped):
        client.get(server.url + "/x")
    with pytest.raises(client.refused):
        client.get(server.url + "/x")


def test_client_that_leaves_during_a_delay_harms_no_server(server, client):
    server.on("/slow", Answer(delay=0.1))
    server.on("/ok", Answer())
    for _ in range(3):
        with pytest.raises(client.timeout):
            client.get(server.url + "/slow", timeout=0.02)
    time.sleep(0.15)  # the delays run out on connections that are gone
    assert client.get(server.url + "/ok").status == 200
