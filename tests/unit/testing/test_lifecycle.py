"""Starting, stopping, and leaving nothing behind."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest

import redrive.testing
from redrive.testing import Answer, FaultyServer


def test_public_names_are_exactly_these():
    assert redrive.testing.__all__ == ["Answer", "FakeClock", "FaultyServer", "Headers", "Request", "set_testing"]


@pytest.mark.process
def test_importing_redrive_does_not_load_the_test_tools():
    program = "import redrive, sys; sys.exit('redrive.testing' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


async def test_server_is_an_async_context_manager():
    async with FaultyServer() as server:
        server.on("/x", Answer(json=1))
        async with httpx.AsyncClient() as client:
            assert (await client.get(server.url + "/x")).json() == 1
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)


def test_rules_can_be_set_before_start_and_log_read_after_stop():
    server = FaultyServer()
    server.on("/x", Answer(204))
    with server:
        assert httpx.get(server.url + "/x").status_code == 204
    assert server.count("/x") == 1


def test_starting_twice_is_an_error_and_harms_nothing(server):
    with pytest.raises(RuntimeError, match="already running at http://127"):
        server.start()
    assert httpx.get(server.url).status_code == 404


def test_stopped_server_can_be_started_again():
    server = FaultyServer()
    for _ in range(2):
        with server:
            assert httpx.get(server.url).status_code == 404
    assert server.count() == 2


def test_server_has_no_url_before_it_is_started():
    server = FaultyServer()
    with pytest.raises(RuntimeError, match="never started"):
        _ = server.url
    for action in (server.down, server.up):
        with pytest.raises(RuntimeError, match="not running"):
            action()
    server.stop()  # nothing to do, and no error


def test_handler_cannot_close_its_server(server):
    def stop(request):
        server.stop()

    server.on("/x", stop)
    assert "cannot stop" in httpx.get(server.url + "/x").json()["error"]
    assert len(server.errors) == 1
    server.errors.clear()
    assert httpx.get(server.url).status_code == 404


def test_exit_ends_hanging_slow_and_idle_connections(connect):
    with FaultyServer() as server:
        server.on("/hang", Answer(hang=True))
        server.on("/slow", Answer(delay=3600))
        server.on("/drip", Answer(body="xx", drip=3600))
        clients = [connect(server) for _ in range(5)]
        for client, path in zip(clients, ("/hang", "/slow", "/drip", "/idle"), strict=False):
            client.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        while server.count() < 4:
            time.sleep(0.005)
    for client in clients:
        with client:
            while client.recv(65536):
                pass


def test_stop_while_down_frees_the_port():
    with FaultyServer() as server:
        port = int(server.url.rsplit(":", 1)[1])
        server.down()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        assert other.getsockname()[1] == port


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts file handles the way Linux shows them")
def test_no_thread_or_file_handle_is_left_behind(connect):
    def run_through_everything():
        with FaultyServer() as server:
            server.on("/hang", Answer(hang=True))
            server.on("/reset", Answer(reset="before"))
            with connect(server) as client, connect(server) as other:
                client.sendall(b"GET /hang HTTP/1.1\r\n\r\n")
                other.sendall(b"GET /reset HTTP/1.1\r\n\r\n")
                while server.count() < 2:
                    time.sleep(0.005)
                server.down()
                server.up()
                with connect(server) as late:
                    late.sendall(b"garbage\r\n")
                    assert late.recv(100)

    gc.collect()
    threads, handles = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        run_through_everything()
    gc.collect()
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == handles
