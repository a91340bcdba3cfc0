"""Which rule answers, what a handler receives, what the log records."""

from __future__ import annotations

import httpx
import pytest

from redrive.testing import Answer, FaultyServer


def test_unrouted_path_is_404_and_named(server):
    reply = httpx.get(server.url + "/no/such")
    assert reply.status_code == 404
    assert "GET /no/such" in reply.json()["error"]
    assert server.requests[0].status == 404


def test_paths_of_a_pattern_have_a_script_position_each(server):
    server.on("/pages/*", Answer(503), Answer(200))
    paths = ["/pages/1", "/pages/2", "/pages/1", "/pages/2", "/pages"]
    assert [httpx.get(server.url + path).status_code for path in paths] == [503, 503, 200, 200, 404]


@pytest.mark.parametrize("exact_first", [True, False])
def test_exact_path_wins_over_a_pattern_in_any_order(server, exact_first):
    rules = [("/pages/7", Answer(410)), ("/pages/*", Answer(200))]
    for path, answer in rules if exact_first else reversed(rules):
        server.on(path, answer)
    assert [httpx.get(server.url + path).status_code for path in ("/pages/7", "/pages/8")] == [410, 200]


@pytest.mark.parametrize("path", ["/x", "/*"])
@pytest.mark.parametrize("named_first", [True, False])
def test_named_method_wins_over_any_in_any_order(server, path, named_first):
    rules = [("post", Answer(201)), (None, Answer(200))]
    for method, answer in rules if named_first else reversed(rules):
        server.on(path, answer, method=method)
    assert httpx.post(server.url + "/x").status_code == 201
    assert httpx.get(server.url + "/x").status_code == 200


def test_latest_of_equal_rules_wins_and_restarts_its_script(server):
    server.on("/x", Answer(500), Answer(501))
    assert httpx.get(server.url + "/x").status_code == 500
    server.on("/x", Answer(502), Answer(503))
    assert httpx.get(server.url + "/x").status_code == 502
    server.on("/a*", Answer(201))
    server.on("/ab*", Answer(202))
    server.on("/a*", Answer(203))
    assert httpx.get(server.url + "/abc").status_code == 203


def test_handler_decides_by_the_request(server):
    def handler(request):
        seen = {
            "number": request.number,
            "method": request.method,
            "path": request.path,
            "query": request.query,
            "agent": request.headers["USER-AGENT"],
            "body": request.json(),
        }
        return Answer(503) if request.number == 1 else Answer(json=seen)

    server.on("/pages/*", handler)
    for path in ("/pages/1", "/pages/1", "/pages/2"):
        reply = httpx.post(server.url + path, params={"q": "ä b"}, json=[1], headers={"User-Agent": "me"})
        expected = {"number": 2, "method": "POST", "path": path, "query": {"q": "ä b"}, "agent": "me", "body": [1]}
        assert reply.status_code == 503 or reply.json() == expected
    assert [request.status for request in server.requests] == [503, 200, 503]


def test_handler_may_be_a_step_of_a_script(server):
    server.on("/x", Answer(503), lambda request: Answer(json=request.number))
    assert httpx.get(server.url + "/x").status_code == 503
    assert httpx.get(server.url + "/x").json() == 2


def test_handler_may_use_the_server(server):
    def handler(request):
        server.on("/next", Answer(json=server.count("/first")))
        return Answer()

    server.on("/first", handler)
    httpx.get(server.url + "/first")
    assert httpx.get(server.url + "/next").json() == 1


def test_handler_error_is_a_500_and_is_raised_at_the_end():
    def broken(request):
        raise LookupError("no such page")

    with pytest.raises(LookupError, match="no such page"), FaultyServer() as server:  # noqa: PT012
        server.on("/x", broken)
        reply = httpx.get(server.url + "/x")
        assert (reply.status_code, reply.json()) == (500, {"error": "LookupError: no such page"})
        assert [str(error) for error in server.errors] == ["no such page"]


def test_error_of_the_block_is_not_hidden_by_a_handlers():
    with pytest.raises(KeyError, match="mine"), FaultyServer() as server:  # noqa: PT012
        server.on("/x", lambda request: 1 / 0)
        httpx.get(server.url + "/x")
        raise KeyError("mine")


def test_failure_declared_in_a_handler_reaches_the_test():
    def strict(request):
        pytest.fail("must not be called")

    with pytest.raises(pytest.fail.Exception, match="must not be called"), FaultyServer() as server:  # noqa: PT012
        server.on("/x", strict)
        httpx.get(server.url + "/x")


def test_handler_that_returns_no_answer_is_an_error(server):
    server.on("/x", lambda request: {"rows": []})
    assert httpx.get(server.url + "/x").status_code == 500
    assert "must return an Answer" in str(server.errors[0])
    server.errors.clear()


async def _async_handler(request):
    return Answer()


@pytest.mark.parametrize(
    ("path", "steps", "error", "says"),
    [
        ("/x", [], TypeError, "at least one"),
        ("/x", [Answer(503).times(2)], TypeError, r"unpack a sequence with \*"),
        ("/x", [503], TypeError, "takes Answers and handlers"),
        ("/x", [_async_handler], TypeError, "plain function"),
        ("x", [Answer()], ValueError, "must begin with"),
    ],
)
def test_invalid_rule_raises(path, steps, error, says):
    with pytest.raises(error, match=says):
        FaultyServer().on(path, *steps)


@pytest.mark.parametrize(("every", "delay"), [(0, 1.0), (-1, 1.0), (1, -1.0)])
def test_invalid_spike_raises(every, delay):
    with pytest.raises(ValueError, match=r"from [01] up"):
        FaultyServer().spike(every=every, delay=delay)


def test_requests_are_counted_and_timed(server):
    server.on("/pages/*", Answer())
    for path in ("/pages/1", "/pages/2", "/pages/1", "/else"):
        httpx.get(server.url + path)
    httpx.post(server.url + "/pages/1")
    assert server.count() == 5
    assert server.count("/pages/1") == 3
    assert server.count("/pages/*") == 4
    assert server.count("/pages/*", method="post") == 1
    assert [request.number for request in server.requests] == [1, 1, 2, 1, 3]
    times = server.times("/pages/*")
    assert len(times) == 4
    assert times == sorted(times)
    assert len(set(server.times())) > 1


def test_rate_counts_by_bucket_from_the_first_request(server):
    assert server.rate() == []
    for _ in range(5):
        httpx.get(server.url + "/x")
    first, *_, last = server.times("/x")
    assert server.rate("/x", bucket=1000) == [5]
    fine = server.rate("/x", bucket=(last - first) / 2.5)
    assert len(fine) == 3
    assert sum(fine) == 5
    assert server.rate("/y") == []
    with pytest.raises(ValueError, match="bucket"):
        server.rate(bucket=0)


def test_list_of_requests_is_a_copy(server):
    httpx.get(server.url + "/x")
    server.requests.clear()
    assert server.count("/x") == 1


def test_reset_clears_requests_and_scripts_but_not_rules(server):
    server.on("/x", Answer(503), Answer(200))
    assert [httpx.get(server.url + "/x").status_code for _ in range(2)] == [503, 200]
    server.reset()
    assert server.requests == []
    assert httpx.get(server.url + "/x").status_code == 503
    assert server.requests[0].number == 1


def test_clear_removes_rules_and_gates(server):
    server.on("/x", Answer(200))
    server.require_token()
    assert httpx.get(server.url + "/x").status_code == 401
    server.clear()
    assert httpx.get(server.url + "/x").status_code == 404
    assert server.count() == 1
