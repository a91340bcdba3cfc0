"""Endpoints: routes without ids, circuits of their own, streaks of 5xx."""

import asyncio
import pickle
import queue

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import Breaker, CircuitOpen, KeyPool, QuotaExhausted, RetriesExhausted, Retry, Service
from redrive.calls.function import MOST_ENDPOINTS, OTHER_ENDPOINT, route, shown_path
from redrive.testing import Answer, FaultyServer


class TestRoute:
    @pytest.mark.parametrize(
        ("path", "expected"),
        [
            ("/v1/users/123/orders", "/v1/users/{id}/orders"),
            ("/a/550e8400-e29b-41d4-a716-446655440000", "/a/{id}"),
            ("/b/9f86d081884c7d659a2feaa0c55ad015", "/b/{id}"),
            ("/customers/cus_NffrFeUfNV2Hib", "/customers/{id}"),
            ("/reports/2024-05-01/day.csv", "/reports/{id}/day.csv"),
            ("/at/2024-05-01T10:00:00Z", "/at/{id}"),
            ("/orders/ORD-00012", "/orders/{id}"),
            ("/people/a@b.com", "/people/{id}"),
            ("/oauth2/token", "/oauth2/token"),
            ("/api/v2/s3/list", "/api/v2/s3/list"),
            ("/facade/decade", "/facade/decade"),
            ("/", "/"),
        ],
    )
    def test_ids_are_left_out_and_names_remain(self, path, expected):
        assert route(path) == expected

    @given(st.text(max_size=700))
    def test_route_of_a_route_is_itself(self, path):
        once = route(path)
        assert route(once) == once

    @given(st.one_of(st.integers(0), st.uuids(), st.dates(), st.datetimes(), st.binary(min_size=16).map(bytes.hex)))
    def test_every_id_gives_the_same_route(self, value):
        assert route(f"/users/{str(value).replace(' ', 'T')}/orders") == "/users/{id}/orders"


class TestShownPath:
    @pytest.mark.parametrize(
        ("path", "shown"),
        [
            ("/users/17/orders/2024-05-01", "/users/17/orders/2024-05-01"),
            ("/a/550e8400-e29b-41d4-a716-446655440000", "/a/550e8400-e29b-41d4-a716-446655440000"),
            ("/at/2024-05-01T10:00:00Z", "/at/2024-05-01T10:00:00Z"),
            ("/customers/cus_NffrFeUfNV2Hib", "/customers/cus_NffrFeUfNV2Hib"),
            ("/hooks/9f86d081884c7d659a2feaa0c55ad015", "/hooks/{id}"),
            ("/api/a1b2c3d4e5f60718/weather", "/api/{id}/weather"),
            ("/people/a@b.com", "/people/{id}"),
            ("/files/a%2F17", "/files/{id}"),
        ],
    )
    def test_ids_are_shown_unless_they_may_be_secrets(self, path, shown):
        assert shown_path(path) == shown

    def test_log_lines_have_the_id_and_counts_the_route(self, caplog):
        bank = Service("bank", retry=Retry(attempts=2, base=0, cap=0))
        with FaultyServer() as server, caplog.at_level("INFO"):
            server.on("/users/*", Answer(json={}))
            server.on("/users/3", Answer(503))
            with httpx.Client(transport=bank.httpx_transport(), base_url=server.url) as client:
                client.get("/users/17")
                client.get("/users/3")
        lines = [record for record in caplog.records if record.name == "redrive.attempts"]
        assert [record.request for record in lines] == ["GET /users/17", "GET /users/3", "GET /users/3"]
        assert {record.endpoint for record in lines} == {"GET /users/{id}"}
        assert lines[0].getMessage().startswith("bank GET /users/17 attempt 1: success")
        (error,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert error.endswith("The request: GET /users/3")

    def test_user_name_is_shown_in_the_line(self, caplog):
        bank = Service("bank").with_options(endpoint="users")
        with FaultyServer() as server, caplog.at_level("INFO", logger="redrive.attempts"):
            server.on("/users/*", Answer(json={}))
            with httpx.Client(transport=bank.httpx_transport(), base_url=server.url) as client:
                client.get("/users/17")
        (line,) = caplog.records[:1]
        assert line.getMessage().startswith("bank users attempt 1")
        assert line.request == "GET /users/17"


def fail():
    raise ConnectionRefusedError


def work():
    return 1


def service(**options):
    given = {"retry": Retry(attempts=1), "breaker": Breaker(failures=2), "breaker_per": "endpoint"}
    return Service("bank", **given | options)


class TestCounts:
    def test_call_cancelled_by_its_caller_is_counted(self):
        bank = Service("bank")

        @bank
        async def hang():
            await asyncio.Event().wait()

        async def main():
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(hang(), 0.01)

        asyncio.run(main())
        stats = bank.stats()
        assert (stats.calls, stats.attempts, stats.failures) == (1, 1, {"cancelled": 1})
        assert bank.circuit == "closed"

    def test_failures_are_counted_by_plain_text(self):
        bank = Service("bank", retry=Retry(attempts=1), credentials=KeyPool(["k-1111"]))
        for _ in range(2):
            with pytest.raises((QuotaExhausted, RetriesExhausted)):
                bank.call(lambda: httpx.Response(403, json={"error": {"errors": [{"reason": "dailyLimitExceeded"}]}}))
        assert {type(name) for name in bank.stats().failures} == {str}
        assert bank.stats().attempts == 1

    def test_queue_within_the_program_is_not_blamed_on_the_service(self):
        bank = Service("bank", retry=Retry(attempts=1), breaker=Breaker(failures=1))
        with pytest.raises(queue.Empty):
            bank.call(queue.Queue().get_nowait)
        assert bank.circuit == "closed"


class TestBreakerPerEndpoint:
    def test_failing_function_does_not_block_the_others(self):
        bank = service()
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError):
                bank.call(fail)
        with pytest.raises(CircuitOpen, match=r"fail: the circuit is open"):
            bank.call(fail)
        assert bank.call(work) == 1
        assert bank.circuit == "open"
        bank.reset()
        assert bank.circuit == "closed"
        with pytest.raises(ConnectionRefusedError):
            bank.call(fail)

    def test_routes_have_circuits_of_their_own(self):
        bank = service()
        with FaultyServer() as server:
            for number in (1, 2, 3):
                server.on(f"/users/{number}", Answer(503))
            server.on("/rates", Answer(json=[1]))
            with httpx.Client(transport=bank.httpx_transport(), base_url=server.url) as client:
                client.get("/users/1")
                client.get("/users/2")
                with pytest.raises(CircuitOpen, match=r"GET /users/\{id\}"):
                    client.get("/users/3")
                assert client.get("/rates").json() == [1]

    def test_nested_calls_do_not_multiply_across_endpoints(self):
        tried = []
        bank = service(retry=Retry(attempts=3, base=0, cap=0), breaker=Breaker(failures=50))

        def inner():
            tried.append(1)
            raise ConnectionRefusedError

        with pytest.raises(ConnectionRefusedError):
            bank.call(lambda: bank.call(inner))
        assert len(tried) == 3

    def test_endpoints_beyond_the_first_hundred_share_a_circuit(self):
        bank = service()
        for number in range(MOST_ENDPOINTS + 50):
            bank.with_options(endpoint=f"e{number}").call(work)
        assert len(bank.core.circuits._cores) == MOST_ENDPOINTS + 1
        assert OTHER_ENDPOINT in bank.core.circuits._cores
        assert bank.stats().successes == MOST_ENDPOINTS + 50

    def test_service_is_pickled_with_its_choice(self):
        bank = pickle.loads(pickle.dumps(service()))
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError):
                bank.call(fail)
        assert bank.call(work) == 1
        assert bank.circuit == "open"

    def test_invalid_choice_is_rejected(self):
        with pytest.raises(ValueError, match='must be "service" or "endpoint"'):
            service(breaker_per="route")
